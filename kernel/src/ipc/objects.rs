//! The objects of one IPC namespace: a table per kind.
//!
//! Calls use the tables of the calling process' namespace ([`of_caller`]), which are made at the
//! first call. An object holds a weak reference to its tables. The end of the namespace empties the
//! tables; an object that is still attached or waited for lives on without a name. Limits are one
//! setting for all namespaces; each namespace has its own counts.
//!
//! Callers: the handlers in [`super::calls`], and /proc. Lock order as in [`super`].

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_collections::{Arc, reserve};

use super::ids::IpcIds;
use super::mqueue::directory::QueueNamespace;
use super::msg::MessageQueue;
use super::sem::Set;
use super::shm::Segment;
use crate::task;
use crate::task::userns::UserNs;

/// The tables and counts of a namespace.
pub struct IpcObjects {
    owner: UserNs,
    /// Shared memory.
    pub segments: IpcIds<Segment>,
    /// Pages of all segments.
    pub pages: AtomicU64,
    /// Semaphores.
    pub sets: IpcIds<Set>,
    /// Semaphores of all sets.
    pub semaphores: AtomicU64,
    /// Message queues.
    pub queues: IpcIds<MessageQueue>,
    /// Message queues of POSIX.
    pub posix_queues: QueueNamespace,
}

impl IpcObjects {
    /// Makes empty tables of a namespace that `owner` owns.
    pub fn new(owner: UserNs) -> Arc<Self> {
        reserve::arc(Self {
            owner,
            segments: IpcIds::new(),
            pages: AtomicU64::new(0),
            sets: IpcIds::new(),
            semaphores: AtomicU64::new(0),
            queues: IpcIds::new(),
            posix_queues: QueueNamespace::default(),
        })
    }

    /// Returns the user namespace in which capabilities are checked.
    pub const fn owner(&self) -> &UserNs {
        &self.owner
    }

    /// Returns the number of messages in all queues, and their bytes.
    pub fn messages(&self) -> (u64, u64) {
        let (mut next, mut messages, mut bytes) = (0, 0, 0);
        while let Some((place, queue)) = self.queues.next(next) {
            let figures = queue.figures();
            (messages, bytes) = (messages + figures.count, bytes + figures.bytes);
            next = place + 1;
            crate::sched::cond_resched();
        }
        (messages, bytes)
    }

    /// Returns the numbers of pages of all segments: requested, in memory, in the swap.
    pub fn segment_pages(&self) -> (u64, u64, u64) {
        let (mut next, mut resident, mut swapped) = (0, 0, 0);
        while let Some((place, segment)) = self.segments.next(next) {
            let pages = segment.resident();
            (resident, swapped) = (resident + pages.0, swapped + pages.1);
            next = place + 1;
            crate::sched::cond_resched();
        }
        (self.pages.load(Ordering::Relaxed), resident, swapped)
    }
}

impl Drop for IpcObjects {
    fn drop(&mut self) {
        self.segments.clear();
        self.sets.clear();
        self.queues.clear();
    }
}

/// Returns the tables of the calling process' namespace.
pub fn of_caller() -> Arc<IpcObjects> {
    let namespace = task::current().process().namespaces().ipc.clone();
    let objects = namespace.objects::<IpcObjects>(|owner| IpcObjects::new(owner.clone()));
    reserve::downcast(objects).unwrap_or_else(|_| unreachable!("only this makes the objects of a namespace"))
}
