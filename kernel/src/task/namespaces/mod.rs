//! The namespaces that a process is in (Linux: `struct nsproxy`), all but the user namespace, which
//! is in its credentials.
//!
//! **Invariant.** A [`Namespaces`] never changes: a process that enters or makes a namespace gets
//! another value. Processes that were forked share one, and it goes with the last of them; files of
//! /proc/PID/ns keep single namespaces. No namespace refers to a process, and only a mount can
//! refer to a namespace's file: those of mount namespaces cannot be mounted, so that there is no
//! circle.
//!
//! Namespaces belong to a process, not to its threads as on Linux: one with several threads can
//! neither make nor enter one. A process stays in its PID namespace for good: a PID namespace that
//! it makes or enters is that of its children.
//!
//! Callers: fork, unshare, setns, /proc. Task context.

pub mod calls;
pub mod file;
pub mod network;

use core::any::Any;

use freehold_collections::{Arc, reserve};
use spin::Once;

use self::network::NetworkNamespace;
use super::credentials::Credentials;
use super::pidns::PidNs;
use super::userns::{NamespaceHead, NamespaceKind, UserNs};
use super::uts::UtsNamespace;
use crate::Result;
use crate::cgroup::{self, CgroupMember, Group};
use crate::fs::namespace::MountNamespace;
use crate::fs::{FsContext, root};

/// An IPC namespace. The layer above makes its objects when a program first asks.
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
    /// Returns the namespace's objects; `make` gets the user namespace that owns the namespace.
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
    /// Where it begins: the group of its maker at that time.
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
    /// The PID namespace of future children; the process' own is with its numbers.
    pub pid_for_children: PidNs,
}

/// The kinds of [`Namespaces`] that can be made.
pub const SEPARATE: [NamespaceKind; 6] = [
    NamespaceKind::Uts,
    NamespaceKind::Ipc,
    NamespaceKind::Cgroup,
    NamespaceKind::Network,
    NamespaceKind::Pid,
    NamespaceKind::Mount,
];

impl Namespaces {
    /// The initial ones.
    pub fn initial() -> Arc<Self> {
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
        })
    }

    /// Returns the same namespaces, but for new ones of the kinds that `is_new` chooses, which the
    /// user namespace of `maker` owns. The places of `fs`, which no other process has yet, become
    /// those in a new tree of mounts. A new cgroup namespace begins at the group of `member`.
    ///
    /// # Errors
    /// `ENOSPC` where there are too many of a kind; `ENOMEM`, `EINTR`.
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
        if is_new(NamespaceKind::Mount) {
            new.mount = self.mount.copy(maker, fs)?;
        }
        Ok(new)
    }
}
