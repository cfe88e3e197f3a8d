//! Namespaces as files: the targets of /proc/PID/ns/* (nsfs), and their ioctls.
//!
//! A file keeps its namespace alive, whether or not a process is in it. Each lookup makes a new
//! node; its inode number is the namespace's.
//!
//! Callers: /proc, setns, ioctl. Task context.

use freehold_collections::{Arc, Receiver, String, reserve, try_format};

use super::network::NetworkNamespace;
use super::time::TimeNamespace;
use super::{CgroupNamespace, IpcNamespace, Namespaces};
use crate::fs::device::make_device;
use crate::fs::flags::OpenFlags;
use crate::fs::namespace::MountNamespace;
use crate::fs::node::{Identity, Metadata, Node, NodeKind, made_by_kernel};
use crate::fs::{File, Timestamp};
use crate::task::pidns::PidNs;
use crate::task::userns::{NamespaceKind, UserNs};
use crate::task::uts::UtsNamespace;
use crate::task::{Process, current, install, registry, shown_ids};
use crate::user::UserPtr;
use crate::{Errno, Result};

/// The device number of all these files.
pub const DEVICE: u64 = make_device(0, 4);

/// One namespace.
#[derive(Clone)]
pub enum NamespaceRef {
    /// Control groups.
    Cgroup(Arc<CgroupNamespace>),
    /// System V IPC.
    Ipc(Arc<IpcNamespace>),
    /// Mounts.
    Mount(Arc<MountNamespace>),
    /// Networks.
    Network(Arc<NetworkNamespace>),
    /// Process IDs.
    Pid(PidNs),
    /// Offsets of clocks.
    Time(Arc<TimeNamespace>),
    /// Users.
    User(UserNs),
    /// Names.
    Uts(Arc<UtsNamespace>),
}

impl NamespaceRef {
    /// Returns the namespace of this kind that `process` is in.
    pub fn of(process: &Process, kind: NamespaceKind) -> Self {
        let Namespaces { uts, ipc, mount, network, cgroup, time, .. } = &*process.namespaces();
        match kind {
            NamespaceKind::Cgroup => Self::Cgroup(cgroup.clone()),
            NamespaceKind::Ipc => Self::Ipc(ipc.clone()),
            NamespaceKind::User => Self::User(process.credentials().user_ns.clone()),
            NamespaceKind::Uts => Self::Uts(uts.clone()),
            NamespaceKind::Mount => Self::Mount(mount.clone()),
            NamespaceKind::Network => Self::Network(network.clone()),
            NamespaceKind::Pid => Self::Pid(process.pid_ns().clone()),
            NamespaceKind::Time => Self::Time(time.clone()),
        }
    }

    /// Returns the namespace of this kind of the children of `process`: `None` for a PID namespace
    /// that has no process yet.
    pub fn of_children(process: &Process, kind: NamespaceKind) -> Option<Self> {
        if kind == NamespaceKind::Time {
            return Some(Self::Time(process.namespaces().time_for_children.clone()));
        }
        let pid = process.namespaces().pid_for_children.clone();
        pid.has_init().then_some(Self::Pid(pid))
    }

    /// Returns the namespace's kind.
    pub const fn kind(&self) -> NamespaceKind {
        match self {
            Self::Cgroup(_) => NamespaceKind::Cgroup,
            Self::Ipc(_) => NamespaceKind::Ipc,
            Self::Mount(_) => NamespaceKind::Mount,
            Self::Network(_) => NamespaceKind::Network,
            Self::Pid(_) => NamespaceKind::Pid,
            Self::Time(_) => NamespaceKind::Time,
            Self::User(_) => NamespaceKind::User,
            Self::Uts(_) => NamespaceKind::Uts,
        }
    }

    /// Returns the namespace's number.
    pub fn inode(&self) -> u64 {
        match self {
            Self::Cgroup(cgroup) => cgroup.head().inode(),
            Self::Ipc(ipc) => ipc.head().inode(),
            Self::Mount(mount) => mount.head().inode(),
            Self::Network(network) => network.number(),
            Self::Pid(pid) => pid.inode(),
            Self::Time(time) => time.head().inode(),
            Self::User(user) => user.inode(),
            Self::Uts(uts) => uts.head().inode(),
        }
    }

    /// Returns the user namespace that owns the namespace. For a user namespace this is its parent,
    /// and the initial one has none.
    pub fn owner(&self) -> Option<UserNs> {
        match self {
            Self::Cgroup(cgroup) => Some(cgroup.head().owner().clone()),
            Self::Ipc(ipc) => Some(ipc.head().owner().clone()),
            Self::Mount(mount) => Some(mount.head().owner().clone()),
            Self::Network(network) => Some(network.head().owner().clone()),
            Self::Pid(pid) => Some(pid.owner()),
            Self::Time(time) => Some(time.head().owner().clone()),
            Self::User(user) => user.parent().cloned(),
            Self::Uts(uts) => Some(uts.head().owner().clone()),
        }
    }

    /// Returns the text of a link to the namespace: "uts:[4026531838]".
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn text(&self) -> Result<String> {
        Ok(try_format!("{}:[{}]", self.kind().name(), self.inode())?)
    }
}

/// The node of a namespace.
pub struct NamespaceNode(pub NamespaceRef);

impl Node for NamespaceNode {
    fn identity(&self) -> Identity {
        Identity { device: DEVICE, inode: self.0.inode() }
    }
    fn kind(&self) -> NodeKind {
        NodeKind::Regular
    }
    fn metadata(&self) -> Metadata {
        made_by_kernel(self.identity(), NodeKind::Regular, 0o444, Timestamp::default())
    }
    fn open(self: Receiver<Self>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        if flags.writes() { Err(Errno::EPERM) } else { Ok(reserve::arc(NamespaceFile(self))) }
    }
}

/// An open namespace.
pub struct NamespaceFile(Arc<NamespaceNode>);

impl NamespaceFile {
    /// Returns the namespace.
    pub fn namespace(&self) -> &NamespaceRef {
        &self.0.0
    }
}

const NS_GET_USERNS: u32 = 0xb701;
const NS_GET_PARENT: u32 = 0xb702;
const NS_GET_NSTYPE: u32 = 0xb703;
const NS_GET_OWNER_UID: u32 = 0xb704;
const NS_GET_PID_FROM_PIDNS: u32 = 0x8004_b706;
const NS_GET_TGID_FROM_PIDNS: u32 = 0x8004_b707;
const NS_GET_PID_IN_PIDNS: u32 = 0x8004_b708;
const NS_GET_TGID_IN_PIDNS: u32 = 0x8004_b709;

/// Opens a descriptor of the namespace above a PID namespace. The caller must be in that one or
/// above it.
fn open_parent(pid: &PidNs) -> Result<i64> {
    let process = current().process().clone();
    let visible = pid.parent().filter(|parent| process.pid_ns().contains(parent)).ok_or(Errno::EPERM)?;
    let node = reserve::arc(NamespaceNode(NamespaceRef::Pid(visible.clone())));
    install(reserve::arc(NamespaceFile(node)), OpenFlags::CLOEXEC).map(i64::from)
}

/// Translates the number of a thread between the caller's PID namespace and `pid`. The result is
/// the number of the thread, or of its process.
fn translate(pid: &PidNs, request: u32, number: u64) -> Result<i64> {
    let number = number as u32;
    let own = current().process().pid_view();
    let (from, to) = match request {
        NS_GET_PID_FROM_PIDNS | NS_GET_TGID_FROM_PIDNS => (pid.view(), own),
        _ => (own, pid.view()),
    };
    let task = registry::pid_in(from, number).and_then(registry::find_task).ok_or(Errno::ESRCH)?;
    let shown = match request {
        NS_GET_PID_FROM_PIDNS | NS_GET_PID_IN_PIDNS => task.numbers().in_view(to),
        _ => task.process().number_in(to),
    };
    if shown == 0 { Err(Errno::ESRCH) } else { Ok(shown.into()) }
}

/// Opens a descriptor of a user namespace. The caller must be in it or above it.
fn open_user_ns(user: Option<UserNs>) -> Result<i64> {
    let own = current().process().credentials();
    let visible = user.filter(|user| own.user_ns.contains(user)).ok_or(Errno::EPERM)?;
    let node = reserve::arc(NamespaceNode(NamespaceRef::User(visible)));
    install(reserve::arc(NamespaceFile(node)), OpenFlags::CLOEXEC).map(i64::from)
}

impl File for NamespaceFile {
    fn node(&self) -> Arc<dyn Node> {
        self.0.clone()
    }

    fn ioctl(&self, request: u32, argument: u64) -> Result<i64> {
        let namespace = self.namespace();
        match (request, namespace) {
            (NS_GET_USERNS, _) | (NS_GET_PARENT, NamespaceRef::User(_)) => open_user_ns(namespace.owner()),
            (NS_GET_NSTYPE, _) => Ok(i64::from(namespace.kind().clone_flag())),
            (NS_GET_OWNER_UID, NamespaceRef::User(user)) => {
                UserPtr::new(argument).write(&shown_ids(user.owner(), 0).0)?;
                Ok(0)
            }
            (NS_GET_PARENT, NamespaceRef::Pid(pid)) => open_parent(pid),
            (
                NS_GET_PID_FROM_PIDNS | NS_GET_TGID_FROM_PIDNS | NS_GET_PID_IN_PIDNS | NS_GET_TGID_IN_PIDNS,
                namespace,
            ) => match namespace {
                NamespaceRef::Pid(pid) => translate(pid, request, argument),
                _ => Err(Errno::EINVAL),
            },
            (NS_GET_PARENT | NS_GET_OWNER_UID, _) => Err(Errno::EINVAL),
            _ => Err(Errno::ENOTTY),
        }
    }
}
