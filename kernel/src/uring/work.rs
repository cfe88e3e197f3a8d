//! Requests that wait.
//!
//! There are two kinds of kernel tasks, each of which exists only while it has work. The *watcher*
//! (one per [`Asker`]) sleeps until any awaited file is ready, a timeout has passed, or the list
//! has changed. *Workers* (up to [`WORKERS`]) take requests that block in a disk from a queue, one
//! at a time, until it is empty.

use core::sync::atomic::{AtomicUsize, Ordering};

use freehold_collections::{Arc, Receiver, Vec, VecDeque, reserve, reserve::ArcMethods};

use super::request::{Pending, Transfer};
use crate::fs::{Blocking, OpenFile};
use crate::mem::with_memory_found;
use crate::sched::thread::{self, Thread, spawn_kernel};
use crate::sync::{Mutex, MutexGuard, PollWaiter, WaitQueue};
use crate::task::{self, Pid};
use crate::{Errno, Result, time};

/// Requests of an asker that may be with disks at once.
const WORKERS: usize = 8;

/// Tag by which an asker knows a request.
pub(super) trait Tag: Send + 'static {
    /// Returns the key by which the program names the request.
    fn key(&self) -> u64;
}

/// A ring's: the entry's user data.
impl Tag for u64 {
    fn key(&self) -> u64 {
        *self
    }
}

/// A request and its asker.
struct Waiter<T> {
    tag: T,
    owner: Pid,
    pending: Pending,
}

/// A request for a worker.
enum Job {
    Transfer(Transfer),
    Sync(Arc<OpenFile>),
}

/// Requests that wait.
struct Waiting<T> {
    /// For files and clocks.
    waiters: Vec<Waiter<T>>,
    /// A watcher is at work.
    watched: bool,
    /// For disks, not begun.
    jobs: VecDeque<(T, Job)>,
    /// Workers at work.
    workers: Vec<Arc<Thread>>,
    /// With workers, by their keys.
    running: Vec<u64>,
}

/// The requests of an asker that wait, and the tasks that are there for them.
pub(super) struct Work<T> {
    waiting: Mutex<Waiting<T>>,
    /// Tasks of the kernel that are there for it; changed under `waiting`.
    helpers: AtomicUsize,
    /// Woken when `waiting`, `helpers` or the number of completions changes.
    pub changed: Arc<WaitQueue>,
}

impl<T> Work<T> {
    /// Makes a list without work.
    pub fn new() -> Self {
        let waiting = Waiting {
            waiters: Vec::new(),
            watched: false,
            jobs: VecDeque::new(),
            workers: Vec::new(),
            running: Vec::new(),
        };
        Self {
            waiting: Mutex::new(waiting),
            helpers: AtomicUsize::new(0),
            changed: reserve::arc(WaitQueue::new()),
        }
    }

    fn helper_ends(&self, waiting: MutexGuard<'_, Waiting<T>>) {
        self.helpers.fetch_sub(1, Ordering::Release);
        drop(waiting);
        self.changed.wake_all();
    }

    /// Drops waiting requests, and waits for requests that disks have. Returns whether nothing is
    /// left: a kernel task does not wait, since it may be one of the tasks that do this work.
    pub fn close(&self) -> bool {
        let mut waiting = self.waiting.lock();
        let dropped = (core::mem::take(&mut waiting.waiters), core::mem::take(&mut waiting.jobs));
        // A transfer may be long: only what a disk has now is waited for.
        waiting.workers.iter().for_each(|worker| worker.cancel());
        drop(waiting);
        drop(dropped);
        self.changed.wake_all();
        if task::current().process().is_kernel() {
            return false;
        }
        let none_left = || (self.helpers.load(Ordering::Acquire) == 0).then_some(());
        self.changed.wait_uninterruptible(none_left);
        true
    }
}

/// Source of requests that cannot end at once: a ring, or a context of io_submit(2).
pub(super) trait Asker: Send + Sync + Sized + 'static {
    /// Tag by which it knows its requests.
    type Tag: Tag;

    /// Its requests.
    fn work(&self) -> &Work<Self::Tag>;
    /// Tell the program that a request has ended.
    fn post(&self, tag: Self::Tag, result: i32);
    /// Requests that have ended so far, for timeouts that count them.
    fn completed(&self) -> u64;

    /// Have `pending` finished and posted.
    ///
    /// # Errors
    /// `ENOMEM`, `EAGAIN` where no task can be had.
    fn wait_for(self: &Receiver<Self>, tag: Self::Tag, pending: Pending) -> Result<()> {
        match pending {
            Pending::Disk(transfer) => self.queue(tag, Job::Transfer(transfer)),
            Pending::Sync(file) => self.queue(tag, Job::Sync(file)),
            pending => self.watch(Waiter { tag, owner: task::current().process().pid, pending }),
        }
    }

    /// End the request with this key, which completes as cancelled.
    ///
    /// # Errors
    /// `ENOENT` where there is none, `EALREADY` where a disk has it.
    fn cancel(&self, key: u64) -> Result<()> {
        let mut waiting = self.work().waiting.lock();
        let waiter = waiting.waiters.iter().position(|waiter| waiter.tag.key() == key);
        let job = waiting.jobs.iter().position(|(tag, _)| tag.key() == key);
        // The removed request is dropped after the lock.
        let (tag, _pending, _job) = match (waiter, job) {
            (Some(at), _) => {
                let Waiter { tag, pending, .. } = waiting.waiters.remove(at);
                (tag, Some(pending), None)
            }
            (None, Some(at)) => {
                let (tag, job) = waiting.jobs.remove(at).expect("it is there");
                (tag, None, Some(job))
            }
            (None, None) if waiting.running.contains(&key) => return Err(Errno::EALREADY),
            (None, None) => return Err(Errno::ENOENT),
        };
        drop(waiting);
        self.post(tag, Errno::ECANCELED.to_return_value() as i32);
        Ok(())
    }

    /// End what a process that is leaving asked for and does not come by itself.
    fn abandon(&self, owner: Pid) {
        loop {
            let mut waiting = self.work().waiting.lock();
            let Some(at) = waiting.waiters.iter().rposition(|waiter| waiter.owner == owner) else { return };
            let Waiter { tag, pending, .. } = waiting.waiters.swap_remove(at);
            drop(waiting);
            drop(pending);
            self.post(tag, Errno::ECANCELED.to_return_value() as i32);
        }
    }
}

/// How what waits is finished.
trait Finish: Asker {
    fn watch(self: &Receiver<Self>, waiter: Waiter<Self::Tag>) -> Result<()> {
        let work = self.work();
        let mut waiting = work.waiting.lock();
        waiting.waiters.try_reserve(1)?;
        if !waiting.watched {
            let asker = self.clone();
            spawn_kernel("io-watch", move || asker.watch_all())?;
            waiting.watched = true;
            work.helpers.fetch_add(1, Ordering::Relaxed);
        }
        waiting.waiters.push_reserved(waiter);
        drop(waiting);
        work.changed.wake_all();
        Ok(())
    }

    fn queue(self: &Receiver<Self>, tag: Self::Tag, job: Job) -> Result<()> {
        let work = self.work();
        let mut waiting = work.waiting.lock();
        waiting.jobs.try_reserve(1)?;
        let most = WORKERS - waiting.running.len();
        waiting.running.try_reserve(most)?;
        if waiting.workers.len() < WORKERS {
            waiting.workers.try_reserve(1)?;
            let asker = self.clone();
            let worker = spawn_kernel("io-work", move || asker.work_all())?;
            waiting.workers.push_reserved(worker);
            work.helpers.fetch_add(1, Ordering::Relaxed);
        }
        waiting.jobs.push_back_reserved((tag, job));
        Ok(())
    }

    /// A worker's life.
    fn work_all(&self) {
        let work = self.work();
        loop {
            let mut waiting = work.waiting.lock();
            let Some((tag, job)) = waiting.jobs.pop_front() else {
                let me = thread::current();
                let at = waiting.workers.iter().position(|worker| worker.is_same(&me));
                let _own = at.map(|at| waiting.workers.swap_remove(at));
                return work.helper_ends(waiting);
            };
            waiting.running.push_reserved(tag.key());
            drop(waiting);
            let result = match &job {
                Job::Transfer(transfer) => {
                    with_memory_found(|| transfer.run(Blocking::Wait)).map(|count| count as i64)
                }
                Job::Sync(file) => file.file().sync().map(|()| 0),
            };
            // Buffers and file are free before the program hears of the end.
            drop(job);
            let mut waiting = work.waiting.lock();
            if let Some(at) = waiting.running.iter().position(|&running| running == tag.key()) {
                waiting.running.swap_remove(at);
            }
            drop(waiting);
            self.post(tag, result_word(result));
        }
    }

    /// The watcher's life.
    fn watch_all(&self) {
        let work = self.work();
        loop {
            let mut waiter = PollWaiter::new();
            waiter.register(&work.changed);
            let mut ended = Vec::new();
            let mut waiting = work.waiting.lock();
            if waiting.waiters.is_empty() {
                waiting.watched = false;
                return work.helper_ends(waiting);
            }
            let deadline = self.look(&mut waiting, &mut waiter, &mut ended);
            drop(waiting);
            let idle = ended.is_empty();
            for (Waiter { tag, pending, .. }, result) in ended {
                drop(pending);
                self.post(tag, result);
            }
            if idle {
                // A task of the kernel gets no signals; woken or timed out, the next round looks at
                // everything.
                let _ = waiter.sleep(deadline);
            }
        }
    }

    /// Take out of `waiting` what has ended, and say until when the rest can wait.
    fn look(
        &self,
        waiting: &mut Waiting<Self::Tag>,
        waiter: &mut PollWaiter,
        ended: &mut Vec<(Waiter<Self::Tag>, i32)>,
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
}

impl<A: Asker> Finish for A {}

/// A result as a completion shows it.
pub(super) fn result_word(result: Result<i64>) -> i32 {
    match result {
        Ok(value) => i32::try_from(value).unwrap_or(i32::MAX),
        // An entry of a ring is never restarted.
        Err(Errno::ERESTARTSYS | Errno::ERESTARTNOHAND | Errno::ERESTARTBLOCK) => {
            Errno::EINTR.to_return_value() as i32
        }
        Err(error) => error.to_return_value() as i32,
    }
}
