//! Requests that wait.
//!
//! There are two kinds of kernel tasks, each of which exists only while it has work. The process'
//! [*watcher*](super::watcher) attends to requests that wait for files and clocks. *Workers* (up to
//! [`WORKERS`] of an [`Asker`]) take requests that block for a disk from a queue, one at a time,
//! until it is empty.
//!
//! **The end of a [`Waiter`].** A request may end by itself, be cancelled, or end with its process
//! or asker. The one that takes its content, under the waiter's lock, ends it: it removes the
//! waiter from the list, ends its registrations, releases buffers and file, and reports the result.
//!
//! **Locks.** A waiter's `content` > its file's locks; [`Work`]'s `waiting` is taken alone. Both
//! are sleeping locks.

use core::ops::Bound;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arrayvec::ArrayVec;
use freehold_collections::{Arc, Map, Receiver, Vec, VecDeque, Weak, reserve, reserve::ArcMethods};

use super::request::{Pending, Transfer};
use super::watcher::{self, Attend, RequestSlot};
use crate::fs::{Blocking, OpenFile};
use crate::mem::with_memory_found;
use crate::sched::thread::{self, Thread};
use crate::sync::{Mutex, MutexGuard, PollWaiter, SpinLock, WaitQueue, Wake, Woken};
use crate::task::{self, Helper, HelperKind, Pid, Task};
use crate::time::{self, Deadline, Expire, TimerSlot};
use crate::{Errno, Result, sched};

/// Number of requests of an asker that may be at disks at once.
const WORKERS: usize = 8;
/// Number of requests of an asker that may wait for files and clocks.
const MOST_WAITING: usize = 1 << 16;
/// Number of requests that are looked through, or ended, per acquisition of the list's lock.
const AT_ONCE: usize = 64;

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

/// The tag's key and the request's number, which is never used again: requests with the same key
/// are in the order in which they came.
type WaiterKey = (u64, u64);

static NEXT: AtomicU64 = AtomicU64::new(0);

/// A request that waits for a file or a clock.
struct Waiter<A: Asker> {
    key: WaiterKey,
    asker: Weak<A>,
    owner: Pid,
    /// `None` once the request has ended.
    content: Mutex<Option<(A::Tag, Pending)>>,
    /// The registrations with the file's queues. They hold references to this waiter.
    observing: SpinLock<Option<PollWaiter>>,
    timer: TimerSlot,
    slot: RequestSlot,
}

impl<A: Asker> Wake for Waiter<A> {
    fn wake(&self) -> Woken {
        self.slot.list();
        // An observer is no sleeper: a task that sleeps on the file's own queue is woken first.
        Woken::Nobody
    }
}

impl<A: Asker> Expire for Waiter<A> {
    fn slot(&self) -> &TimerSlot {
        &self.timer
    }
    fn expire(&self, _now: u64) -> Option<Deadline> {
        self.slot.list();
        None
    }
}

impl<A: Asker> Attend for Waiter<A> {
    fn attend(self: Receiver<Self>, stand_in: &Arc<Task>) {
        let mut content = self.content.lock();
        let Some((_, pending)) = &*content else { return };
        let Some(asker) = self.asker.upgrade() else { return };
        let Some(result) = stand_in.lend_name(|| look(pending, || asker.completed())) else { return };
        let ended = content.take();
        drop(content);
        if let Some(ended) = ended {
            self.end(&asker, ended, Some(result));
        }
    }
}

impl<A: Asker> Waiter<A> {
    /// Registers with the queues of the request's file, or arms its timer. Returns whether the
    /// request may be able to end already.
    fn begin(self: &Receiver<Self>, asker: &A) -> Result<bool> {
        let content = self.content.lock();
        let Some((_, pending)) = &*content else { return Ok(false) };
        let (file, wanted) = match pending {
            Pending::Stream(transfer) => (transfer.file(), transfer.readiness()),
            Pending::Socket(request) => (request.file(), request.readiness()),
            Pending::Poll(file, wanted) => (file, *wanted),
            Pending::Timeout { deadline, completions } => {
                let timer: Arc<dyn Expire> = self.clone();
                time::try_arm(&timer, *deadline)?;
                return Ok(completions.is_some_and(|count| asker.completed() >= count));
            }
            Pending::Disk(_) | Pending::Sync(_) => unreachable!("these go to workers"),
        };
        let mut observer = PollWaiter::observer(self.clone());
        let ready = file.file().poll(Some(&mut observer)).reported(wanted) != 0;
        *self.observing.lock() = Some(observer.complete()?);
        Ok(ready)
    }

    /// Ends the request before its time, and reports the result, if there is one. Returns `false`
    /// if it has ended already.
    fn stop(self: &Receiver<Self>, asker: &A, result: Option<i32>) -> bool {
        let content = self.content.lock().take();
        content.map(|content| self.end(asker, content, result)).is_some()
    }

    /// Ends the request, whose content the caller took, and reports the result, if there is one.
    fn end(self: &Receiver<Self>, asker: &A, (tag, pending): (A::Tag, Pending), result: Option<i32>) {
        let removed = asker.work().waiting.lock().remove(self.key, &pending);
        let observing = self.observing.lock().take();
        drop(observing);
        if let Pending::Timeout { .. } = pending {
            let timer: Arc<dyn Expire> = self.clone();
            time::cancel(&timer);
        }
        drop(removed);
        // Buffers and file are released before the program is notified.
        drop(pending);
        if let Some(result) = result {
            asker.post(tag, result);
        }
    }
}

/// Returns the result of `pending`, if it can end; `completed` returns the number of requests that
/// have ended.
fn look(pending: &Pending, completed: impl FnOnce() -> u64) -> Option<i32> {
    match pending {
        Pending::Stream(transfer) => attempt((transfer.file(), transfer.readiness()), || {
            transfer.run(Blocking::Never).map(|count| count as i64)
        }),
        Pending::Socket(request) => attempt((request.file(), request.readiness()), || request.run()),
        Pending::Poll(file, wanted) => {
            let ready = file.file().poll(None).reported(*wanted);
            (ready != 0).then_some(ready as i32)
        }
        Pending::Timeout { completions: Some(count), .. } if completed() >= *count => Some(0),
        Pending::Timeout { deadline, .. } => {
            (*deadline <= time::now()).then(|| Errno::ETIME.to_return_value() as i32)
        }
        Pending::Disk(_) | Pending::Sync(_) => unreachable!("these go to workers"),
    }
}

/// Runs `transfer` if its file is ready. Returns the result, unless it has to wait on.
fn attempt((file, readiness): (&Arc<OpenFile>, u32), transfer: impl FnOnce() -> Result<i64>) -> Option<i32> {
    if file.file().poll(None).reported(readiness) == 0 {
        return None;
    }
    match transfer() {
        Err(Errno::EAGAIN) => None,
        result => Some(result_word(result)),
    }
}

/// A request for a worker.
enum Job {
    Transfer(Transfer),
    Sync(Arc<OpenFile>),
}

/// Requests that wait.
struct Waiting<A: Asker> {
    /// Requests that wait for files and clocks.
    waiters: Map<WaiterKey, Arc<Waiter<A>>>,
    /// Those that wait for a number of completions: by that number, and by the request's own.
    counted: Map<(u64, u64), Arc<Waiter<A>>>,
    /// Whether the asker was closed: then nothing is added any more.
    is_closed: bool,
    /// Requests for disks that no worker has taken yet.
    jobs: VecDeque<(A::Tag, Job)>,
    /// The running workers.
    workers: Vec<Arc<Thread>>,
    /// Keys of the requests that workers have taken.
    running: Vec<u64>,
}

impl<A: Asker> Waiting<A> {
    fn insert(&mut self, waiter: &Arc<Waiter<A>>, pending: Option<u64>) -> Result<()> {
        if self.is_closed {
            return Err(Errno::EINVAL);
        }
        if self.waiters.len() >= MOST_WAITING {
            return Err(Errno::EAGAIN);
        }
        self.waiters.try_reserve(1)?;
        if let Some(count) = pending {
            self.counted.try_insert((count, waiter.key.1), waiter.clone())?;
        }
        self.waiters.insert_reserved(waiter.key, waiter.clone());
        Ok(())
    }

    /// Takes a request out. The caller drops the references without the lock.
    fn remove(&mut self, key: WaiterKey, pending: &Pending) -> [Option<Arc<Waiter<A>>>; 2] {
        let counted = match pending {
            Pending::Timeout { completions: Some(count), .. } => self.counted.remove(&(*count, key.1)),
            _ => None,
        };
        [self.waiters.remove(&key), counted]
    }

    /// The least number of completions that a request waits for.
    fn least_count(&self) -> u64 {
        self.counted.keys().next().map_or(u64::MAX, |(count, _)| *count)
    }
}

/// The waiting requests of an asker, and the tasks that finish them.
pub(super) struct Work<A: Asker> {
    waiting: Mutex<Waiting<A>>,
    /// [`Waiting::least_count`], readable without the lock.
    least_count: AtomicU64,
    /// The processes that made requests, and have not left.
    askers: SpinLock<Vec<Pid>>,
    /// Number of workers; changed under `waiting`.
    helpers: AtomicUsize,
    /// Woken when `helpers` changes.
    changed: WaitQueue,
}

impl<A: Asker> Work<A> {
    /// Makes a list without work.
    pub fn new() -> Self {
        let waiting = Waiting {
            waiters: Map::new(),
            counted: Map::new(),
            is_closed: false,
            jobs: VecDeque::new(),
            workers: Vec::new(),
            running: Vec::new(),
        };
        Self {
            waiting: Mutex::new(waiting),
            least_count: AtomicU64::new(u64::MAX),
            askers: SpinLock::new(Vec::new()),
            helpers: AtomicUsize::new(0),
            changed: WaitQueue::new(),
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

    /// Lists the requests that wait for as many completions as there are now. The caller has
    /// counted them.
    #[inline]
    pub fn note_completions(&self, completed: u64) {
        if self.least_count.load(Ordering::SeqCst) <= completed {
            self.list_counted(completed);
        }
    }

    #[cold]
    fn list_counted(&self, completed: u64) {
        let mut waiting = self.waiting.lock();
        while waiting.least_count() <= completed {
            let Some((_, waiter)) = waiting.counted.pop_first() else { break };
            // The list of waiters holds it, too.
            waiter.slot.list();
        }
        self.least_count.store(waiting.least_count(), Ordering::SeqCst);
    }

    fn worker_ends(&self, waiting: MutexGuard<'_, Waiting<A>>) {
        self.helpers.fetch_sub(1, Ordering::Release);
        drop(waiting);
        self.changed.wake_all();
    }

    /// Returns some of the waiters after `from` that `is_wanted`, and the key of the last one that
    /// was looked at; `None` after the last.
    fn some(
        &self,
        from: Option<WaiterKey>,
        is_wanted: impl Fn(&Waiter<A>) -> bool,
    ) -> (ArrayVec<Arc<Waiter<A>>, AT_ONCE>, Option<WaiterKey>) {
        let (mut found, mut last) = (ArrayVec::new(), None);
        let waiting = self.waiting.lock();
        let bound = from.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        for (key, waiter) in waiting.waiters.iter_from(bound).take(AT_ONCE) {
            last = Some(*key);
            if is_wanted(waiter) {
                found.push(waiter.clone());
            }
        }
        (found, last)
    }
}

/// Source of requests that cannot end at once: a ring, or a context of io_submit(2).
pub(super) trait Asker: Send + Sync + Sized + 'static {
    /// The tag by which it identifies its requests.
    type Tag: Tag;

    /// Its requests.
    fn work(&self) -> &Work<Self>;
    /// Reports to the program that a request has ended.
    fn post(&self, tag: Self::Tag, result: i32);
    /// Returns the number of requests that have ended so far, for timeouts that count them.
    fn completed(&self) -> u64;

    /// Queues `pending` to be finished and posted.
    ///
    /// # Errors
    /// `ENOMEM`; `EAGAIN` at a limit of tasks, or if too many requests wait; `EINVAL` if the asker
    /// was closed.
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
    /// `ENOENT` if there is none, `EALREADY` if it is ending, or if a disk is processing it.
    fn cancel(&self, key: u64) -> Result<()> {
        let cancelled = Errno::ECANCELED.to_return_value() as i32;
        let mut waiting = self.work().waiting.lock();
        let found = waiting.waiters.first_from(Bound::Included(&(key, 0)));
        if let Some(waiter) = found.filter(|(found, _)| found.0 == key).map(|(_, waiter)| waiter.clone()) {
            drop(waiting);
            return if waiter.stop(self, Some(cancelled)) { Ok(()) } else { Err(Errno::EALREADY) };
        }
        let Some(at) = waiting.jobs.iter().position(|(tag, _)| tag.key() == key) else {
            return Err(if waiting.running.contains(&key) { Errno::EALREADY } else { Errno::ENOENT });
        };
        let (tag, job) = waiting.jobs.remove(at).expect("it is there");
        drop(waiting);
        drop(job);
        self.post(tag, cancelled);
        Ok(())
    }

    /// Cancels the requests of a process that leaves, except those that will end by themselves.
    fn abandon(&self, owner: Pid) {
        self.work().askers.lock().retain(|&asker| asker != owner);
        let mut from = None;
        loop {
            let (some, last) = self.work().some(from, |waiter| waiter.owner == owner);
            for waiter in some {
                waiter.stop(self, Some(Errno::ECANCELED.to_return_value() as i32));
            }
            if last.is_none() {
                return;
            }
            from = last;
            sched::rest();
        }
    }

    /// Drops waiting requests, and waits for requests at disks. Returns whether nothing is left: a
    /// kernel task does not wait, since it may be one of the tasks that finish these requests.
    fn close_work(&self) -> bool {
        let work = self.work();
        let mut waiting = work.waiting.lock();
        waiting.is_closed = true;
        let jobs = core::mem::take(&mut waiting.jobs);
        // A transfer may be long: only the part that a disk is processing now is waited for.
        waiting.workers.iter().for_each(|worker| worker.cancel());
        drop(waiting);
        drop(jobs);
        let mut from = None;
        loop {
            let (some, last) = work.some(from, |_| true);
            for waiter in some {
                waiter.stop(self, None);
            }
            if last.is_none() {
                break;
            }
            from = last;
            sched::rest();
        }
        if task::current().process().is_kernel() {
            return false;
        }
        let none_left = || (work.helpers.load(Ordering::Acquire) == 0).then_some(());
        work.changed.wait_uninterruptible(none_left);
        true
    }
}

/// The code that finishes waiting requests.
trait Finish: Asker {
    fn watch(self: &Receiver<Self>, tag: Self::Tag, pending: Pending) -> Result<()> {
        let work = self.work();
        let owner = work.note_asker()?;
        let count = match pending {
            Pending::Timeout { completions, .. } => completions,
            _ => None,
        };
        let slot = watcher::of_current()?.claim()?;
        let waiter = reserve::arc(Waiter {
            key: (tag.key(), NEXT.fetch_add(1, Ordering::Relaxed)),
            asker: self.downgrade(),
            owner,
            content: Mutex::new(Some((tag, pending))),
            observing: SpinLock::new(None),
            timer: TimerSlot::new(),
            slot,
        });
        let weak: Weak<Waiter<Self>> = waiter.downgrade();
        waiter.slot.fill(weak);
        let mut waiting = work.waiting.lock();
        waiting.insert(&waiter, count)?;
        work.least_count.store(waiting.least_count(), Ordering::SeqCst);
        drop(waiting);
        match waiter.begin(self) {
            Ok(true) => waiter.slot.list(),
            // If it was cancelled meanwhile, that was reported.
            Err(error) if waiter.stop(self, None) => return Err(error),
            Ok(false) | Err(_) => {}
        }
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
            let body = move |helper: &mut Helper| asker.work_all(helper);
            match task::spawn_helper("io-work", HelperKind::Thread, body) {
                Ok(worker) => {
                    waiting.workers.push_reserved(worker);
                    work.helpers.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) if waiting.workers.is_empty() => return Err(error),
                // The workers that exist do the job in turn.
                Err(_) => {}
            }
        }
        waiting.jobs.push_back_reserved((tag, job));
        Ok(())
    }

    /// The main loop of a worker.
    fn work_all(&self, helper: &mut Helper) {
        let work = self.work();
        loop {
            helper.charge_time(|| work.waiting.lock().is_closed);
            let mut waiting = work.waiting.lock();
            let Some((tag, job)) = waiting.jobs.pop_front() else {
                let me = thread::current();
                let at = waiting.workers.iter().position(|worker| worker.is_same(&me));
                let _own = at.map(|at| waiting.workers.swap_remove(at));
                return work.worker_ends(waiting);
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
