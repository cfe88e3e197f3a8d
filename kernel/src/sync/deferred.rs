//! Deferred release: objects that own other objects are dropped in a loop, not by recursion.
//!
//! An open file can own other open files (a socket's queue holds files that were sent by
//! SCM_RIGHTS), and a directory owns its subdirectories. A program chooses the depth of such a
//! chain. Dropping its first element would recursively drop the next one, and so on: the kernel
//! stack would overflow. Linux queues the same work to the task (`task_work_add` in `fput`,
//! fs/file_table.c) and runs it before the task returns to user mode.
//!
//! **Protocol.** The owner keeps a value that may begin a deep chain in a [`Deferred`] box. The
//! list's link is part of the box, so releasing allocates nothing. [`release`] puts the box on the
//! list of the running task. The first release of a task then empties the list in a loop; a release
//! inside that loop only adds to the list. So one level of a chain is dropped at a time, and the
//! stack holds two levels at most. When the outermost release returns, the whole chain is dropped.
//! So its effects on other programs (end of file, EPIPE, released locks) are visible before the
//! system call returns.
//!
//! **Rules.** Each cycle in the graph of types that own each other goes through a [`Deferred`] box.
//! These are `socket::flight::Files` (files in messages) and the names of a tmpfs directory.
//! io_uring instances are in no cycle, because a message cannot carry them; epoll instances and
//! /proc files have weak references to their targets. [`release`] may sleep and calls destructors
//! of any kind: its caller holds no spin lock, and no lock that closing a file takes. A list
//! belongs to one task, and no other task uses it.

use core::ops::{Deref, DerefMut};

use freehold_collections::{Box, reserve};

use super::SpinLock;
use crate::sched;
#[cfg(not(test))]
use crate::sched::thread;

/// Value that a [`Deferred`] box can hold.
pub trait LetGo: Send {
    /// Drops the objects that it owns. A long loop calls [`crate::sched::cond_resched`] now and
    /// then.
    fn let_go(&mut self);
}

type NextDeferred = Option<Box<Deferred<dyn LetGo>>>;

/// A value with the list link that its release needs.
pub struct Deferred<T: ?Sized> {
    next: NextDeferred,
    value: T,
}

impl<T> Deferred<T> {
    /// Boxes `value`. The box is a small object of fixed size, allocated from a system call's
    /// reserve.
    pub fn new(value: T) -> Box<Self> {
        reserve::boxed(Self { next: None, value })
    }
}

impl<T> Deref for Deferred<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Deferred<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

/// The boxes that a task has yet to drop.
pub struct ReleaseList(SpinLock<Releases>);

struct Releases {
    first: NextDeferred,
    draining: bool,
}

impl ReleaseList {
    /// Makes an empty list.
    pub const fn new() -> Self {
        Self(SpinLock::new(Releases { first: None, draining: false }))
    }

    /// Adds `node`, and empties the list, unless a caller further up the stack is doing that
    /// already.
    fn release(&self, mut node: Box<Deferred<dyn LetGo>>) {
        {
            let mut list = self.0.lock();
            node.next = list.first.take();
            list.first = Some(node);
            if core::mem::replace(&mut list.draining, true) {
                return;
            }
        }
        while let Some(mut node) = self.next() {
            node.value.let_go();
            drop(node);
            sched::cond_resched();
        }
    }

    /// Takes the next box from the list. At the end of the list the draining ends.
    fn next(&self) -> NextDeferred {
        let mut list = self.0.lock();
        let node = list.first.take();
        match node {
            Some(mut node) => {
                list.first = node.next.take();
                Some(node)
            }
            None => {
                list.draining = false;
                None
            }
        }
    }
}

/// Drops `node`: now, or after the release that is under way further up the stack. May sleep.
pub fn release<T: LetGo + 'static>(node: Box<Deferred<T>>) {
    with_list(node, |list, node| list.release(node));
}

/// Before the first task runs, chains are not deep, so nothing is deferred.
#[cfg(not(test))]
fn with_list(mut node: Box<Deferred<dyn LetGo>>, f: impl FnOnce(&ReleaseList, Box<Deferred<dyn LetGo>>)) {
    match thread::try_current() {
        Some(thread) => f(&thread.releases, node),
        None => node.value.let_go(),
    }
}

/// A test's thread stands for a task.
#[cfg(test)]
fn with_list(node: Box<Deferred<dyn LetGo>>, f: impl FnOnce(&ReleaseList, Box<Deferred<dyn LetGo>>)) {
    extern crate std;
    std::thread_local!(static LIST: ReleaseList = const { ReleaseList::new() });
    LIST.with(|list| f(list, node));
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::Arc;

    /// A chain of owners; each counts its drop.
    struct Chain(Option<Box<Deferred<Inner>>>);
    struct Inner {
        below: Option<Chain>,
        ended: Arc<AtomicUsize>,
    }

    impl LetGo for Inner {
        fn let_go(&mut self) {
            drop(self.below.take());
            self.ended.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Drop for Chain {
        fn drop(&mut self) {
            if let Some(inner) = self.0.take() {
                release(inner);
            }
        }
    }

    #[test]
    fn a_chain_of_any_depth_is_gone_when_its_first_link_is_dropped() {
        const DEPTH: usize = 100_000;
        let ended = Arc::new(AtomicUsize::new(0));
        let chain = (0..DEPTH)
            .fold(None, |below, _| Some(Chain(Some(Deferred::new(Inner { below, ended: ended.clone() })))));
        drop(chain);
        assert_eq!(ended.load(Ordering::Relaxed), DEPTH);
        drop(Chain(Some(Deferred::new(Inner { below: None, ended: ended.clone() }))));
        assert_eq!(ended.load(Ordering::Relaxed), DEPTH + 1, "the list serves again");
    }
}
