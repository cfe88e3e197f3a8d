//! The namespaces that a process is in (Linux: `struct nsproxy`), except the user namespace, which
//! is in its credentials.
//!
//! **Invariant.** A [`Namespaces`] never changes: a process that enters or makes a namespace gets
//! another value. Forked processes share a value, which is dropped with the last of them. Files of
//! /proc/PID/ns keep single namespaces alive. No namespace refers to a process. Only a mount can
//! refer to a namespace's file, and files of mount namespaces cannot be mounted. So there is no
//! reference cycle.
//!
//! Namespaces belong to a process, not to its threads as on Linux: a process with several threads
//! can neither make nor enter one. A process never leaves its PID namespace: a PID namespace that
//! it makes or enters is used for its children. A time namespace that it makes is used for its
//! children, too, but it can enter one itself.
//!
//! Callers: fork, unshare, setns, /proc. Task context.

pub mod calls;
pub mod file;
pub mod network;
pub mod time;

use core::any::Any;

use freehold_collections::{
    Arc,
    reserve::{self, ArcMethods},
};
use spin::Once;

use self::network::NetworkNamespace;
use self::time::TimeNamespace;
use super::credentials::Credentials;
use super::pidns::PidNs;
use super::userns::{NamespaceHead, NamespaceKind, UserNs};
use super::uts::UtsNamespace;
use crate::Result;
use crate::cgroup::{self, CgroupMember, Group};
use crate::fs::namespace::MountNamespace;
use crate::fs::{FsContext, root};

/// An IPC namespace. The layer above makes its objects at a program's first request.
pub struct IpcNamespace {
    head: NamespaceHead,
    objects: Once<Arc<dyn Any + Send + Sync>>,
}

impl IpcNamespace {
    fn new(head: NamespaceHead) -> Arc<Self> {
        reserve::arc(Self { head, objects: Once::new() })
    }
    /// Returns the part that every namespace has.
    pub const fn head(&self) -> &NamespaceHead {
        &self.head
    }
    /// Returns the namespace's objects. `make` gets the user namespace that owns the namespace.
    pub fn objects<T: Any + Send + Sync>(
        &self,
        make: impl FnOnce(&UserNs) -> Arc<T>,
    ) -> Arc<dyn Any + Send + Sync> {
        self.objects.call_once(|| make(self.head.owner())).clone()
    }
}

/// A cgroup namespace: processes in it see the tree of groups from its root on.
pub struct CgroupNamespace {
    head: NamespaceHead,
    root: Arc<Group>,
}

impl CgroupNamespace {
    fn new(head: NamespaceHead, root: Arc<Group>) -> Arc<Self> {
        reserve::arc(Self { head, root })
    }
    /// Returns the part that every namespace has.
    pub const fn head(&self) -> &NamespaceHead {
        &self.head
    }
    /// Returns its root: the group of its creator when it was created.
    pub const fn root(&self) -> &Arc<Group> {
        &self.root
    }
}

/// The namespaces of a process.
#[derive(Clone)]
pub struct Namespaces {
    /// Host and domain name.
    pub uts: Arc<UtsNamespace>,
    /// Objects of System V IPC.
    pub ipc: Arc<IpcNamespace>,
    /// The tree of mounts.
    pub mount: Arc<MountNamespace>,
    /// Devices, ports and names of sockets.
    pub network: Arc<NetworkNamespace>,
    /// The group that /proc/PID/cgroup is relative to.
    pub cgroup: Arc<CgroupNamespace>,
    /// The PID namespace of future children. The process' own one is part of its numbers.
    pub pid_for_children: PidNs,
    /// Offsets of clocks.
    pub time: Arc<TimeNamespace>,
    /// The time namespace of future children.
    pub time_for_children: Arc<TimeNamespace>,
}

/// The kinds of [`Namespaces`] that can be made.
pub const SEPARATE: [NamespaceKind; 7] = [
    NamespaceKind::Uts,
    NamespaceKind::Ipc,
    NamespaceKind::Cgroup,
    NamespaceKind::Network,
    NamespaceKind::Pid,
    NamespaceKind::Time,
    NamespaceKind::Mount,
];

impl Namespaces {
    /// Returns the initial namespaces.
    pub fn initial() -> Arc<Self> {
        let time = TimeNamespace::initial();
        reserve::arc(Self {
            uts: reserve::arc(UtsNamespace::initial()),
            ipc: IpcNamespace::new(NamespaceHead::initial(NamespaceKind::Ipc)),
            mount: root::namespace(),
            network: NetworkNamespace::initial().clone(),
            cgroup: CgroupNamespace::new(
                NamespaceHead::initial(NamespaceKind::Cgroup),
                cgroup::root().clone(),
            ),
            pid_for_children: PidNs::INITIAL,
            time_for_children: time.clone(),
            time,
        })
    }

    /// Returns the same namespaces, except for new ones of the kinds that `is_new` selects. The
    /// user namespace of `maker` owns these. The paths of `fs`, which no other process has yet, are
    /// changed to the same places in a new tree of mounts. A new cgroup namespace begins at the
    /// group of `member`.
    ///
    /// # Errors
    /// `ENOSPC` if there are too many of a kind; `ENOMEM`, `EINTR`.
    pub fn with_new(
        &self,
        is_new: impl Fn(NamespaceKind) -> bool,
        maker: &Credentials,
        (fs, member): (&FsContext, &CgroupMember),
    ) -> Result<Self> {
        let mut new = self.clone();
        let head = |kind| NamespaceHead::new(kind, maker);
        if is_new(NamespaceKind::Uts) {
            new.uts = reserve::arc(self.uts.copy(maker)?);
        }
        if is_new(NamespaceKind::Ipc) {
            new.ipc = IpcNamespace::new(head(NamespaceKind::Ipc)?);
        }
        if is_new(NamespaceKind::Cgroup) {
            new.cgroup = CgroupNamespace::new(head(NamespaceKind::Cgroup)?, member.group());
        }
        if is_new(NamespaceKind::Network) {
            new.network = NetworkNamespace::new(maker)?;
        }
        if is_new(NamespaceKind::Pid) {
            new.pid_for_children = self.pid_for_children.make_below(maker)?;
        }
        if is_new(NamespaceKind::Time) {
            new.time_for_children = self.time_for_children.copy(maker)?;
        }
        if is_new(NamespaceKind::Mount) {
            new.mount = self.mount.copy(maker, fs)?;
        }
        Ok(new)
    }

    /// Whether children are in the same time namespace.
    pub fn keeps_time(&self) -> bool {
        self.time.is_same(&self.time_for_children)
    }
}
