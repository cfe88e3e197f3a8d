//! Requests that wait.
//!
//! There are two kinds of kernel tasks, each of which exists only while it has work. The *watcher*
//! (one per [`Asker`]) sleeps until any file of a request is ready, a timeout has expired, or the
//! list has changed. *Workers* (up to [`WORKERS`]) take requests that block for a disk from a
//! queue, one at a time, until it is empty.
//!
//! The watcher performs a stream's transfer on behalf of the process that made the request
//! ([`Task::stand_in`]; Linux' workers are threads of that process). This matters because a socket
//! reports the sender to the receiver, and a terminal checks which process reads. A process cancels
//! all its requests before it ends or executes another program. So no request runs with the rights
//! of a program that did not make it.

use core::sync::atomic::{AtomicUsize, Ordering};

use freehold_collections::{Arc, Receiver, Vec, VecDeque, reserve, reserve::ArcMethods};

use super::request::{Pending, Transfer};
use crate::fs::{Blocking, OpenFile};
use crate::mem::with_memory_found;
use crate::sched::thread::{self, Thread, spawn_kernel};
use crate::sync::{Mutex, MutexGuard, PollWaiter, SpinLock, WaitQueue, earlier};
use crate::task::{self, Helper, Pid, Task};
use crate::{Errno, Result, sched, time};

/// Number of requests of an asker that may be at disks at once.
const WORKERS: usize = 8;
/// Number of requests of an asker that may wait for files and clocks. The watcher checks all of
/// them each time it is woken.
const MOST_WAITING: usize = 1 << 16;
/// Number of requests that are checked before other tasks have their turn, and that are removed at
/// once.
const AT_ONCE: usize = 256;

/// Tag by which an asker identifies a request.
pub(super) trait Tag: Send + 'static {
    /// Returns the key by which the program identifies the request.
    fn key(&self) -> u64;
}

/// The tag of a ring's request: the entry's user data.
impl Tag for u64 {
    fn key(&self) -> u64 {
        *self
    }
}

/// A request and its asker.
pub(super) struct Waiter<T> {
    tag: T,
    owner: Pid,
    pending: Pending,
    /// Checks the file and makes the transfer, on behalf of the requesting process.
    stand_in: Arc<Task>,
    /// Set once the request has ended.
    result: Option<i32>,
}

/// A request for a worker.
enum Job {
    Transfer(Transfer),
    Sync(Arc<OpenFile>),
}

/// Requests that wait.
struct Waiting<T> {
    /// Requests that wait for files and clocks.
    waiters: Vec<Waiter<T>>,
    /// Whether a watcher is running.
    watched: bool,
    /// Whether the asker was closed: then nothing is added any more.
    is_closed: bool,
    /// The stand-in of the process that made the last request.
    stand_in: Option<Arc<Task>>,
    /// Requests for disks that no worker has taken yet.
    jobs: VecDeque<(T, Job)>,
    /// The running workers.
    workers: Vec<Arc<Thread>>,
    /// Keys of the requests that workers have taken.
    running: Vec<u64>,
}

impl<T> Waiting<T> {
    /// Returns a task that acts for the running task's process.
    fn stand_in(&mut self) -> Arc<Task> {
        let process = task::current().process().clone();
        match &self.stand_in {
            Some(stand_in) if stand_in.process().pid == process.pid => stand_in.clone(),
            _ => self.stand_in.insert(Task::stand_in(process)).clone(),
        }
    }

    /// Removes some of the requests that have ended; at least one, if there is one.
    fn take_ended(&mut self) -> (Option<Waiter<T>>, Vec<Waiter<T>>) {
        let has_ended = |waiter: &Waiter<T>| waiter.result.is_some();
        let first = self.waiters.iter().position(has_ended).map(|at| self.waiters.remove(at));
        let count = self.waiters.iter().filter(|waiter| has_ended(waiter)).take(AT_ONCE).count();
        let mut more = Vec::new();
        if more.try_reserve(count).is_ok() {
            let ended = self.waiters.extract(|waiter| has_ended(waiter)).take(count);
            ended.for_each(|waiter| more.push_reserved(waiter));
        }
        (first, more)
    }
}

/// The waiting requests of an asker, and the tasks that finish them.
pub(super) struct Work<T> {
    waiting: Mutex<Waiting<T>>,
    /// The processes that made requests, and have not left.
    askers: SpinLock<Vec<Pid>>,
    /// Number of kernel tasks for these requests; changed under `waiting`.
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
            is_closed: false,
            stand_in: None,
            jobs: VecDeque::new(),
            workers: Vec::new(),
            running: Vec::new(),
        };
        Self {
            waiting: Mutex::new(waiting),
            askers: SpinLock::new(Vec::new()),
            helpers: AtomicUsize::new(0),
            changed: reserve::arc(WaitQueue::new()),
        }
    }

    /// Whether `process` has made a request since it last left.
    pub fn has_asked(&self, process: Pid) -> bool {
        self.askers.lock().contains(&process)
    }

    /// Records that the calling process makes a request, before the request is added.
    fn note_asker(&self) -> Result<Pid> {
        let process = task::current().process().clone();
        if !self.has_asked(process.pid) {
            self.askers.lock().try_push(process.pid)?;
        }
        process.asked_rings.store(true, Ordering::Relaxed);
        Ok(process.pid)
    }

    fn helper_ends(&self, waiting: MutexGuard<'_, Waiting<T>>) {
        self.helpers.fetch_sub(1, Ordering::Release);
        drop(waiting);
        self.changed.wake_all();
    }

    /// Drops waiting requests, and waits for requests at disks. Returns whether nothing is left: a
    /// kernel task does not wait, since it may be one of the tasks that finish these requests.
    pub fn close(&self) -> bool {
        let mut waiting = self.waiting.lock();
        waiting.is_closed = true;
        let dropped = (
            core::mem::take(&mut waiting.waiters),
            core::mem::take(&mut waiting.jobs),
            waiting.stand_in.take(),
        );
        // A transfer may be long: only the part that a disk is processing now is waited for.
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
    /// The tag by which it identifies its requests.
    type Tag: Tag;

    /// Its requests.
    fn work(&self) -> &Work<Self::Tag>;
    /// Reports to the program that a request has ended.
    fn post(&self, tag: Self::Tag, result: i32);
    /// Returns the number of requests that have ended so far, for timeouts that count them.
    fn completed(&self) -> u64;

    /// Queues `pending` to be finished and posted.
    ///
    /// # Errors
    /// `ENOMEM`; `EAGAIN` if the user has reached the limit of tasks, or if too many requests wait;
    /// `EINVAL` if the asker was closed.
    fn wait_for(self: &Receiver<Self>, tag: Self::Tag, pending: Pending) -> Result<()> {
        match pending {
            Pending::Disk(transfer) => self.queue(tag, Job::Transfer(transfer)),
            Pending::Sync(file) => self.queue(tag, Job::Sync(file)),
            pending => self.watch(tag, pending),
        }
    }

    /// Ends the request with this key, which completes as cancelled.
    ///
    /// # Errors
    /// `ENOENT` if there is none, `EALREADY` if a disk is processing it.
    fn cancel(&self, key: u64) -> Result<()> {
        let mut waiting = self.work().waiting.lock();
        let waiter = waiting.waiters.iter().position(|waiter| waiter.tag.key() == key);
        if waiter.is_some_and(|at| waiting.waiters[at].result.is_some()) {
            return Err(Errno::EALREADY);
        }
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

    /// Cancels the requests of a process that leaves, except those that will end by themselves.
    fn abandon(&self, owner: Pid) {
        let mut waiting = self.work().waiting.lock();
        self.work().askers.lock().retain(|&asker| asker != owner);
        let stand_in = waiting.stand_in.take();
        for waiter in waiting.waiters.iter_mut().filter(|waiter| waiter.owner == owner) {
            waiter.result.get_or_insert(Errno::ECANCELED.to_return_value() as i32);
        }
        drop(waiting);
        drop(stand_in);
        self.post_ended();
    }

    /// Reports ended requests to the program. Their buffers and files are released before.
    fn post_ended(&self) {
        loop {
            let (first, more) = self.work().waiting.lock().take_ended();
            if first.is_none() {
                return;
            }
            for Waiter { tag, pending, stand_in, result, .. } in first.into_iter().chain(more) {
                drop((pending, stand_in));
                self.post(tag, result.unwrap_or_default());
                sched::rest();
            }
        }
    }
}

/// The code that finishes waiting requests.
trait Finish: Asker {
    fn watch(self: &Receiver<Self>, tag: Self::Tag, pending: Pending) -> Result<()> {
        let work = self.work();
        let mut waiting = work.waiting.lock();
        if waiting.is_closed {
            return Err(Errno::EINVAL);
        }
        if waiting.waiters.len() >= MOST_WAITING {
            return Err(Errno::EAGAIN);
        }
        let owner = work.note_asker()?;
        waiting.waiters.try_reserve(1)?;
        if !waiting.watched {
            let asker = self.clone();
            self.spawn_helper("io-watch", move || asker.watch_all())?;
            waiting.watched = true;
        }
        let stand_in = waiting.stand_in();
        waiting.waiters.push_reserved(Waiter { tag, owner, pending, stand_in, result: None });
        drop(waiting);
        work.changed.wake_all();
        Ok(())
    }

    fn queue(self: &Receiver<Self>, tag: Self::Tag, job: Job) -> Result<()> {
        let work = self.work();
        let mut waiting = work.waiting.lock();
        if waiting.is_closed {
            return Err(Errno::EINVAL);
        }
        waiting.jobs.try_reserve(1)?;
        let most = WORKERS - waiting.running.len();
        waiting.running.try_reserve(most)?;
        if waiting.workers.len() < WORKERS {
            waiting.workers.try_reserve(1)?;
            let asker = self.clone();
            match self.spawn_helper("io-work", move || asker.work_all()) {
                Ok(worker) => waiting.workers.push_reserved(worker),
                Err(error) if waiting.workers.is_empty() => return Err(error),
                // The workers that exist do the job in turn.
                Err(_) => {}
            }
        }
        waiting.jobs.push_back_reserved((tag, job));
        Ok(())
    }

    /// Starts a kernel task that counts as one of the running process' user. The caller holds
    /// `waiting`.
    fn spawn_helper(&self, name: &'static str, body: impl FnOnce() + Send + 'static) -> Result<Arc<Thread>> {
        let counted = Helper::charge(task::current().process())?;
        let thread = spawn_kernel(name, move || {
            let _counted = counted;
            body();
        })?;
        self.work().helpers.fetch_add(1, Ordering::Relaxed);
        Ok(thread)
    }

    /// The main loop of a worker.
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
            // Buffers and file are released before the program is notified.
            drop(job);
            let mut waiting = work.waiting.lock();
            if let Some(at) = waiting.running.iter().position(|&running| running == tag.key()) {
                waiting.running.swap_remove(at);
            }
            drop(waiting);
            self.post(tag, result_word(result));
        }
    }

    /// The main loop of the watcher.
    fn watch_all(&self) {
        let work = self.work();
        loop {
            let mut waiter = PollWaiter::new();
            waiter.register(&work.changed);
            let mut waiting = work.waiting.lock();
            if waiting.waiters.is_empty() {
                waiting.watched = false;
                return work.helper_ends(waiting);
            }
            let seen = self.look(&mut waiting, &mut waiter);
            drop(waiting);
            self.post_ended();
            if let Look::Idle { until } = seen {
                // A kernel task gets no signals. Whether woken or timed out, the next round checks
                // everything.
                let _ = waiter.sleep(until);
            }
        }
    }

    /// Checks which of `waiting` have ended.
    fn look(&self, waiting: &mut Waiting<Self::Tag>, waiter: &mut PollWaiter) -> Look {
        let (now, completed) = (time::now(), self.completed());
        let (mut earliest, mut any) = (None, false);
        for (at, candidate) in waiting.waiters.iter_mut().enumerate() {
            if at % AT_ONCE == AT_ONCE - 1 {
                sched::rest();
            }
            if candidate.result.is_none() {
                let stand_in = candidate.stand_in.clone();
                candidate.result = stand_in.lend_name(|| candidate.look(waiter, now, completed));
            }
            any |= candidate.result.is_some();
            if let Pending::Timeout { deadline, .. } = candidate.pending {
                earliest = earlier(earliest, Some(deadline));
            }
        }
        if any { Look::Ended } else { Look::Idle { until: earliest } }
    }
}

/// Result of a check of all requests.
enum Look {
    /// Some have ended.
    Ended,
    /// None has ended; `until` is the first timeout.
    Idle { until: Option<u64> },
}

impl<T> Waiter<T> {
    /// Returns the result, if the request has ended. Otherwise `waiter` is woken when that may have
    /// changed.
    fn look(&self, waiter: &mut PollWaiter, now: u64, completed: u64) -> Option<i32> {
        match &self.pending {
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
            Pending::Timeout { deadline, .. } => {
                (*deadline <= now).then(|| Errno::ETIME.to_return_value() as i32)
            }
            Pending::Disk(_) | Pending::Sync(_) => unreachable!("these go to workers"),
        }
    }
}

impl<A: Asker> Finish for A {}

/// Returns a result in the format of a completion.
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
