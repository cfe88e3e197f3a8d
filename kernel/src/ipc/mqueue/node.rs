//! A queue as a file: stat, read, poll and close.

use freehold_collections::{Arc, Receiver, Weak, reserve, try_format};

use super::account::Charge;
use super::queue::PosixQueue;
use crate::fs::node::NewNode;
use crate::fs::tmpfs::attributes::Attributes;
use crate::fs::{
    Blocking, File, Identity, Metadata, Node, NodeKind, OpenFlags, Ready, Seekable, SetMetadata, notify,
};
use crate::sync::{PollWaiter, SpinLock};
use crate::task::registry;
use crate::time::wall;
use crate::user::Sink;
use crate::{Errno, Result};

/// Size of a queue's file in stat(2).
const FILE_SIZE: u64 = 80;

/// Sets all three times to now, because a message or a name was added or removed.
pub(super) fn touch(attributes: &mut Attributes) {
    attributes.touch();
    attributes.accessed = attributes.modified;
}

/// See the module.
pub struct QueueNode {
    identity: Identity,
    me: Weak<QueueNode>,
    queue: PosixQueue,
    attributes: SpinLock<Attributes>,
    _charge: Charge,
}

impl QueueNode {
    /// Makes the file of `queue`, with one name.
    pub(super) fn new(identity: Identity, new: &NewNode, queue: PosixQueue, charge: Charge) -> Arc<Self> {
        reserve::cyclic(|me| Self {
            identity,
            me: me.clone(),
            queue,
            attributes: SpinLock::new(Attributes::new(new, 1)),
            _charge: charge,
        })
    }

    /// Returns the queue.
    pub const fn queue(&self) -> &PosixQueue {
        &self.queue
    }

    /// Updates the times, because a message was added or removed.
    pub fn touch(&self) {
        touch(&mut self.attributes.lock());
    }

    /// Records that the name was removed.
    pub(super) fn lose_name(&self) {
        let mut attributes = self.attributes.lock();
        attributes.links = 0;
        attributes.changed = wall();
    }
}

impl Drop for QueueNode {
    fn drop(&mut self) {
        notify::inode_ended(self);
    }
}

impl Node for QueueNode {
    fn identity(&self) -> Identity {
        self.identity
    }

    fn kind(&self) -> NodeKind {
        NodeKind::Regular
    }

    fn metadata(&self) -> Metadata {
        let told = self.attributes.lock().metadata(self.identity, NodeKind::Regular);
        Metadata { size: FILE_SIZE, ..told }
    }

    fn set_metadata(&self, change: &SetMetadata) -> Result<()> {
        self.attributes.lock().change(change);
        Ok(())
    }

    fn open(self: Receiver<Self>, _flags: OpenFlags) -> Result<Arc<dyn File>> {
        Ok(self)
    }
}

impl File for QueueNode {
    fn seekable(&self) -> Seekable {
        Seekable::Offset
    }

    fn node(&self) -> Arc<dyn Node> {
        self.me.upgrade().expect("a node is only reached through an Arc of it")
    }

    fn read_at(&self, offset: u64, sink: &mut dyn Sink, _blocking: Blocking) -> Result<usize> {
        let (how, signal, pid) = self.queue.told_registration();
        let pid = registry::shown(pid);
        let bytes = self.queue.figures().bytes;
        let text = try_format!("QSIZE:{bytes:<10} NOTIFY:{how:<5} SIGNO:{signal:<5} NOTIFY_PID:{pid:<6}\n")?;
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let Some(rest) = text.as_bytes().get(from..).filter(|rest| !rest.is_empty()) else { return Ok(0) };
        sink.put(rest)
    }

    fn end(&self) -> Result<u64> {
        Err(Errno::EINVAL)
    }

    fn poll(&self, waiter: Option<&mut PollWaiter>) -> Ready {
        self.queue.poll(waiter)
    }

    fn changes_readiness(&self) -> bool {
        true
    }

    /// Ends the process' registration, whichever of its descriptors of the queue it closes.
    fn flush(&self) -> Result<()> {
        self.queue.unregister();
        Ok(())
    }
}
