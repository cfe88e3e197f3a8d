//! Nodes of open files that have no name: pipes, sockets, epoll instances, timers.
//!
//! /proc/PID/fd shows them as `kind:[inode]`; opening that link opens the node again, if its kind
//! supports that.

use freehold_collections::{Arc, Box, Receiver, reserve};

use super::device::make_device;
use super::{File, Identity, Metadata, Node, NodeKind, OpenFlags};
use crate::sched::thread;
use crate::sync::UniqueNumbers;
use crate::{Errno, Result, time};

/// Opens the object again, for example a pipe through /proc/self/fd.
type Reopen = dyn Fn(Arc<dyn Node>, OpenFlags) -> Result<Arc<dyn File>> + Send + Sync;

/// A node without a name.
pub struct AnonymousNode {
    inode: u64,
    kind: NodeKind,
    label: &'static str,
    /// The node's owner: user and group.
    owner: (u32, u32),
    made: super::Timestamp,
    reopen: Option<Box<Reopen>>,
}

static INODES: UniqueNumbers = UniqueNumbers::new();

/// The file system number that all nameless nodes share.
pub const DEVICE: u64 = make_device(0, 15);

impl AnonymousNode {
    /// Makes a node that cannot be opened again. /proc/PID/fd shows `label` before the inode number
    /// ("pipe", "socket") or instead of it ("anon_inode:\[eventpoll\]").
    pub fn plain(kind: NodeKind, label: &'static str) -> Arc<dyn Node> {
        reserve::arc(Self::make(kind, label, Self::maker(), None))
    }

    /// Makes a node that `reopen` opens again.
    pub fn with_open(
        kind: NodeKind,
        label: &'static str,
        reopen: impl Fn(Arc<dyn Node>, OpenFlags) -> Result<Arc<dyn File>> + Send + Sync + 'static,
    ) -> Arc<dyn Node> {
        Self::owned(kind, label, Self::maker(), reopen)
    }

    /// Like [`with_open`](Self::with_open), for an owner other than the caller.
    pub fn owned(
        kind: NodeKind,
        label: &'static str,
        owner: (u32, u32),
        reopen: impl Fn(Arc<dyn Node>, OpenFlags) -> Result<Arc<dyn File>> + Send + Sync + 'static,
    ) -> Arc<dyn Node> {
        reserve::arc(Self::make(kind, label, owner, Some(reserve::boxed(reopen))))
    }

    /// The file system user and group of the running process.
    fn maker() -> (u32, u32) {
        let mut ids = (0, 0);
        if let Some(owner) = thread::with_current(|thread| thread.owner()).flatten() {
            owner.show_credentials(&mut |own| ids = (own.fsuid, own.fsgid));
        }
        ids
    }

    fn make(kind: NodeKind, label: &'static str, owner: (u32, u32), reopen: Option<Box<Reopen>>) -> Self {
        let inode = INODES.next();
        Self { inode, kind, label, owner, made: time::wall(), reopen }
    }

    /// Returns the label; see [`AnonymousNode::plain`].
    pub fn label(&self) -> &'static str {
        self.label
    }
}

impl Node for AnonymousNode {
    fn identity(&self) -> Identity {
        Identity { device: DEVICE, inode: self.inode }
    }

    fn kind(&self) -> NodeKind {
        self.kind
    }

    fn metadata(&self) -> Metadata {
        let mode = if self.kind == NodeKind::Socket { 0o777 } else { 0o600 };
        let (uid, gid) = self.owner;
        Metadata { uid, gid, ..super::node::made_by_kernel(self.identity(), self.kind, mode, self.made) }
    }

    fn open(self: Receiver<Self>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        let this = self.clone();
        match &self.reopen {
            Some(reopen) => reopen(this, flags),
            None => Err(Errno::ENXIO),
        }
    }
}
