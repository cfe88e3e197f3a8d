//! Requests that wait.
//!
//! There are two kinds of kernel tasks, each of which exists only while it has work. The *watcher*
//! (one per [`Asker`]) sleeps until any awaited file is ready, a timeout has passed, or the list
//! has changed. *Workers* (up to [`WORKERS`]) take requests that block in a disk from a queue, one
//! at a time, until it is empty.
//!
//! A stream's transfer is the asker's own doing, though the watcher makes it: a socket tells the
//! receiver who sent, and a terminal asks who reads. The watcher makes it in the name of the
//! process that asked ([`Task::stand_in`]; Linux' workers are threads of that process). A process
//! takes all its requests back before it ends or becomes another program, so none is made with the
//! rights of a program that did not ask for it.

use core::sync::atomic::{AtomicUsize, Ordering};

use freehold_collections::{Arc, Receiver, Vec, VecDeque, reserve, reserve::ArcMethods};

use super::request::{Pending, Transfer};
use crate::fs::{Blocking, OpenFile};
use crate::mem::with_memory_found;
use crate::sched::thread::{self, Thread, spawn_kernel};
use crate::sync::{Mutex, MutexGuard, PollWaiter, SpinLock, WaitQueue, earlier};
use crate::task::{self, Helper, Pid, Task};
use crate::{Errno, Result, sched, time};

/// Requests of an asker that may be with disks at once.
const WORKERS: usize = 8;
/// Requests of an asker that may wait for files and clocks: the watcher looks at all of them each
/// time that it is woken.
const MOST_WAITING: usize = 1 << 16;
/// Requests that are looked at before other tasks have their turn, and that are taken out at once.
const AT_ONCE: usize = 256;

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
pub(super) struct Waiter<T> {
    tag: T,
    owner: Pid,
    pending: Pending,
    /// Looks at the file, and makes the transfer.
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
    /// For files and clocks.
    waiters: Vec<Waiter<T>>,
    /// A watcher is at work.
    watched: bool,
    /// The asker was closed: nothing is added any more.
    is_closed: bool,
    /// The stand-in of the process that asked last.
    stand_in: Option<Arc<Task>>,
    /// For disks, not begun.
    jobs: VecDeque<(T, Job)>,
    /// Workers at work.
    workers: Vec<Arc<Thread>>,
    /// With workers, by their keys.
    running: Vec<u64>,
}

impl<T> Waiting<T> {
    /// Returns a task that acts for the running one's process.
    fn stand_in(&mut self) -> Arc<Task> {
        let process = task::current().process().clone();
        match &self.stand_in {
            Some(stand_in) if stand_in.process().pid == process.pid => stand_in.clone(),
            _ => self.stand_in.insert(Task::stand_in(process)).clone(),
        }
    }

    /// Takes out some of those that have ended: one at least, where there is one.
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

/// The requests of an asker that wait, and the tasks that are there for them.
pub(super) struct Work<T> {
    waiting: Mutex<Waiting<T>>,
    /// The processes that asked, and have not left.
    askers: SpinLock<Vec<Pid>>,
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

    /// Whether `process` has asked for something since it came.
    pub fn has_asked(&self, process: Pid) -> bool {
        self.askers.lock().contains(&process)
    }

    /// Notes that the calling process asks, before its request is there.
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

    /// Drops waiting requests, and waits for requests that disks have. Returns whether nothing is
    /// left: a kernel task does not wait, since it may be one of the tasks that do this work.
    pub fn close(&self) -> bool {
        let mut waiting = self.waiting.lock();
        waiting.is_closed = true;
        let dropped = (
            core::mem::take(&mut waiting.waiters),
            core::mem::take(&mut waiting.jobs),
            waiting.stand_in.take(),
        );
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
    /// `ENOMEM`; `EAGAIN` where the user has as many tasks as may be, or too many requests wait;
    /// `EINVAL` where the asker was closed.
    fn wait_for(self: &Receiver<Self>, tag: Self::Tag, pending: Pending) -> Result<()> {
        match pending {
            Pending::Disk(transfer) => self.queue(tag, Job::Transfer(transfer)),
            Pending::Sync(file) => self.queue(tag, Job::Sync(file)),
            pending => self.watch(tag, pending),
        }
    }

    /// End the request with this key, which completes as cancelled.
    ///
    /// # Errors
    /// `ENOENT` where there is none, `EALREADY` where a disk has it.
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

    /// End what a process that is leaving asked for and does not come by itself.
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

    /// Tell the program of requests that have ended. Their buffers and files are free before.
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

/// How what waits is finished.
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
                // Those that are there take it in turn.
                Err(_) => {}
            }
        }
        waiting.jobs.push_back_reserved((tag, job));
        Ok(())
    }

    /// Start a task of the kernel that counts as one of the running process' user; `waiting` is
    /// held.
    fn spawn_helper(&self, name: &'static str, body: impl FnOnce() + Send + 'static) -> Result<Arc<Thread>> {
        let counted = Helper::charge(task::current().process())?;
        let thread = spawn_kernel(name, move || {
            let _counted = counted;
            body();
        })?;
        self.work().helpers.fetch_add(1, Ordering::Relaxed);
        Ok(thread)
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
            let mut waiting = work.waiting.lock();
            if waiting.waiters.is_empty() {
                waiting.watched = false;
                return work.helper_ends(waiting);
            }
            let seen = self.look(&mut waiting, &mut waiter);
            drop(waiting);
            self.post_ended();
            if let Look::Idle { until } = seen {
                // A task of the kernel gets no signals; woken or timed out, the next round looks at
                // everything.
                let _ = waiter.sleep(until);
            }
        }
    }

    /// Look which of `waiting` have ended.
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

/// The outcome of a look at all requests.
enum Look {
    /// Some have ended.
    Ended,
    /// None has; the first timeout is then.
    Idle { until: Option<u64> },
}

impl<T> Waiter<T> {
    /// The result, if the request has ended; else `waiter` is woken when that may have changed.
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
