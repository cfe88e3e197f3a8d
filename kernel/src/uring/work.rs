//! Requests that wait.
//!
//! Two kinds of kernel tasks, each there only while there is something for it to do. The *watcher* (one for a ring) sleeps
//! until any file that is waited for is ready, a timeout has passed, or the list has changed. *Workers* (up to [`WORKERS`])
//! take requests that block in a disk from a queue, one at a time, until it is empty.

use core::sync::atomic::Ordering;

use freehold_collections::{Arc, Receiver, Vec, VecDeque, reserve::ArcMethods};

use super::IoRing;
use super::request::{Pending, Transfer};
use crate::fs::{Blocking, OpenFile};
use crate::mem::with_memory_found;
use crate::sched::thread::{self, Thread, spawn_kernel};
use crate::sync::{MutexGuard, PollWaiter};
use crate::task::{self, Pid};
use crate::{Errno, Result, time};

/// Requests of a ring that may be with disks at once.
const WORKERS: usize = 8;

/// A request and who asked for it.
struct Waiter {
    user_data: u64,
    owner: Pid,
    pending: Pending,
}

/// A request for a worker.
enum Job {
    Transfer(Transfer),
    Sync(Arc<OpenFile>),
}

/// What a ring waits for.
pub struct Waiting {
    /// For files and clocks.
    waiters: Vec<Waiter>,
    /// A watcher is at work.
    watched: bool,
    /// For disks, not begun.
    jobs: VecDeque<(u64, Job)>,
    /// Workers at work.
    workers: Vec<Arc<Thread>>,
    /// With workers, by their user data.
    running: Vec<u64>,
}

impl Waiting {
    /// Nothing.
    pub const fn new() -> Self {
        Self {
            waiters: Vec::new(),
            watched: false,
            jobs: VecDeque::new(),
            workers: Vec::new(),
            running: Vec::new(),
        }
    }
}

impl IoRing {
    /// Have `pending` finished and posted.
    ///
    /// # Errors
    /// `ENOMEM`, `EAGAIN` where no task can be had.
    pub(super) fn wait_for(self: &Receiver<Self>, user_data: u64, pending: Pending) -> Result<()> {
        match pending {
            Pending::Disk(transfer) => self.queue(user_data, Job::Transfer(transfer)),
            Pending::Sync(file) => self.queue(user_data, Job::Sync(file)),
            pending => {
                let owner = task::current().process().pid;
                self.watch(Waiter { user_data, owner, pending })
            }
        }
    }

    fn watch(self: &Receiver<Self>, waiter: Waiter) -> Result<()> {
        let mut waiting = self.waiting.lock();
        waiting.waiters.try_reserve(1)?;
        if !waiting.watched {
            let ring = self.clone();
            spawn_kernel("uring-watch", move || ring.watch_all())?;
            waiting.watched = true;
            self.helpers.fetch_add(1, Ordering::Relaxed);
        }
        waiting.waiters.push_reserved(waiter);
        drop(waiting);
        self.changed.wake_all();
        Ok(())
    }

    fn queue(self: &Receiver<Self>, user_data: u64, job: Job) -> Result<()> {
        let mut waiting = self.waiting.lock();
        waiting.jobs.try_reserve(1)?;
        let most = WORKERS - waiting.running.len();
        waiting.running.try_reserve(most)?;
        if waiting.workers.len() < WORKERS {
            waiting.workers.try_reserve(1)?;
            let ring = self.clone();
            let worker = spawn_kernel("uring-work", move || ring.work())?;
            waiting.workers.push_reserved(worker);
            self.helpers.fetch_add(1, Ordering::Relaxed);
        }
        waiting.jobs.push_back_reserved((user_data, job));
        Ok(())
    }

    /// A worker's life.
    fn work(&self) {
        loop {
            let mut waiting = self.waiting.lock();
            let Some((user_data, job)) = waiting.jobs.pop_front() else {
                let me = thread::current();
                let at = waiting.workers.iter().position(|worker| worker.is_same(&me));
                let _own = at.map(|at| waiting.workers.swap_remove(at));
                return self.helper_ends(waiting);
            };
            waiting.running.push_reserved(user_data);
            drop(waiting);
            let result = match &job {
                Job::Transfer(transfer) => {
                    with_memory_found(|| transfer.run(Blocking::Wait)).map(|count| count as i64)
                }
                Job::Sync(file) => file.file().sync().map(|()| 0),
            };
            // Buffers and file are free before the program hears of the end.
            drop(job);
            let mut waiting = self.waiting.lock();
            if let Some(at) = waiting.running.iter().position(|&running| running == user_data) {
                waiting.running.swap_remove(at);
            }
            drop(waiting);
            self.post(user_data, result_word(result));
        }
    }

    /// The watcher's life.
    fn watch_all(&self) {
        loop {
            let mut waiter = PollWaiter::new();
            waiter.register(&self.changed);
            let mut ended = Vec::new();
            let mut waiting = self.waiting.lock();
            if waiting.waiters.is_empty() {
                waiting.watched = false;
                return self.helper_ends(waiting);
            }
            let deadline = self.look(&mut waiting, &mut waiter, &mut ended);
            drop(waiting);
            let idle = ended.is_empty();
            for (done, result) in ended {
                let user_data = done.user_data;
                drop(done);
                self.post(user_data, result);
            }
            if idle {
                // Nobody signals a task of the kernel; woken or timed out, the next round looks at everything.
                let _ = waiter.sleep(deadline);
            }
        }
    }

    /// Take out of `waiting` what has ended, and say until when the rest can wait.
    fn look(
        &self,
        waiting: &mut Waiting,
        waiter: &mut PollWaiter,
        ended: &mut Vec<(Waiter, i32)>,
    ) -> Option<u64> {
        let (now, completed) = (time::now(), self.completed());
        let mut earliest = None;
        let mut at = 0;
        while let Some(candidate) = waiting.waiters.get(at) {
            let result = match &candidate.pending {
                Pending::Stream(transfer) => {
                    let ready = transfer.file().file().poll(Some(waiter)).poll_bits() & transfer.readiness();
                    match (ready != 0).then(|| transfer.run(Blocking::Never)) {
                        None | Some(Err(Errno::EAGAIN)) => None,
                        Some(result) => Some(result_word(result.map(|count| count as i64))),
                    }
                }
                Pending::Poll(file, wanted) => {
                    let ready = file.file().poll(Some(waiter)).poll_bits() & wanted;
                    (ready != 0).then_some(ready as i32)
                }
                Pending::Timeout { completions: Some(count), .. } if completed >= *count => Some(0),
                Pending::Timeout { deadline, .. } if *deadline <= now => {
                    Some(Errno::ETIME.to_return_value() as i32)
                }
                Pending::Timeout { deadline, .. } => {
                    earliest = Some(earliest.map_or(*deadline, |earliest: u64| earliest.min(*deadline)));
                    None
                }
                Pending::Disk(_) | Pending::Sync(_) => unreachable!("these go to workers"),
            };
            match result {
                Some(result) if ended.try_reserve(1).is_ok() => {
                    ended.push_reserved((waiting.waiters.remove(at), result));
                }
                _ => at += 1,
            }
        }
        earliest
    }

    /// End the request with this user data, which completes as cancelled.
    ///
    /// # Errors
    /// `ENOENT` where there is none, `EALREADY` where a disk has it.
    pub(super) fn cancel(&self, user_data: u64) -> Result<()> {
        let mut waiting = self.waiting.lock();
        let waiter = waiting.waiters.iter().position(|waiter| waiter.user_data == user_data);
        let job = waiting.jobs.iter().position(|&(data, _)| data == user_data);
        // What is taken out is dropped after the lock is.
        let taken = match (waiter, job) {
            (Some(at), _) => (Some(waiting.waiters.remove(at)), None),
            (None, Some(at)) => (None, waiting.jobs.remove(at)),
            (None, None) if waiting.running.contains(&user_data) => return Err(Errno::EALREADY),
            (None, None) => return Err(Errno::ENOENT),
        };
        drop(waiting);
        drop(taken);
        self.post(user_data, Errno::ECANCELED.to_return_value() as i32);
        Ok(())
    }

    /// End what a process that is leaving asked for and does not come by itself.
    pub(super) fn abandon(&self, owner: Pid) {
        loop {
            let mut waiting = self.waiting.lock();
            let Some(at) = waiting.waiters.iter().rposition(|waiter| waiter.owner == owner) else { return };
            let taken = waiting.waiters.swap_remove(at);
            drop(waiting);
            self.post(taken.user_data, Errno::ECANCELED.to_return_value() as i32);
        }
    }

    fn helper_ends(&self, waiting: MutexGuard<'_, Waiting>) {
        self.helpers.fetch_sub(1, Ordering::Release);
        drop(waiting);
        self.changed.wake_all();
    }

    /// Drop what waits, and wait for what disks have: but for a task of the kernel, which may be this ring's own and have let go of the
    /// last file that led to it. Then the last of those tasks lets the buffers go, with the ring.
    pub(super) fn close(&self) {
        let mut waiting = self.waiting.lock();
        let dropped = (core::mem::take(&mut waiting.waiters), core::mem::take(&mut waiting.jobs));
        // A transfer may be long: only what a disk has now is waited for.
        waiting.workers.iter().for_each(|worker| worker.cancel());
        drop(waiting);
        drop(dropped);
        self.changed.wake_all();
        if task::current().process().is_kernel() {
            return;
        }
        let none_left = || (self.helpers.load(Ordering::Acquire) == 0).then_some(());
        self.changed.wait_uninterruptible(none_left);
        let buffers = core::mem::take(&mut *self.buffers.lock());
        drop(buffers);
    }
}

/// A result as a completion shows it.
pub(super) fn result_word(result: Result<i64>) -> i32 {
    match result {
        Ok(value) => i32::try_from(value).unwrap_or(i32::MAX),
        // Nobody restarts an entry of a ring.
        Err(Errno::ERESTARTSYS | Errno::ERESTARTNOHAND | Errno::ERESTARTBLOCK) => {
            Errno::EINTR.to_return_value() as i32
        }
        Err(error) => error.to_return_value() as i32,
    }
}
