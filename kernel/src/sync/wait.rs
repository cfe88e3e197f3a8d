//! Wait queues: sleeping until something changes.
//!
//! Protocol, which loses no wake-up: a sleeper (1) adds itself to the queue, (2) announces that it
//! is going to sleep, (3) checks its condition, and only then (4) gives up the CPU. A waker changes
//! the condition first and then wakes the queue. The one that comes second sees the other.
//!
//! A queue's entries are removed by their owners only, never by a waker: so waking allocates and
//! frees nothing and may happen in an interrupt handler, under interrupt-safe locks. Waking takes
//! the queue's lock, then what [`Wake::wake`] takes (a run queue's).

use core::fmt;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use arrayvec::ArrayVec;
use freehold_collections::{Arc, Vec, VecDeque};

use super::lock::IrqSpinLock;
use crate::sched::{self, Sleep, thread};
use crate::time::Deadline;
use crate::{Errno, Result};

/// Result of a wake-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// The wake-up ended a task's sleep.
    Sleeper,
    /// No task slept on this entry: the next one in the queue may be tried.
    Nobody,
}

/// A file event, as signal-driven I/O reports it (si_code of SIGIO).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum News {
    /// There is something to read (POLL_IN).
    Input = 1,
    /// There is room to write (POLL_OUT).
    Room = 2,
    /// Another program requests the lease of a file, or has changed a directory (POLL_MSG).
    Message = 3,
    /// There is an error to report (POLL_ERR).
    Error = 4,
    /// The other side has been closed (POLL_HUP).
    HangUp = 6,
}

/// A target that is notified when a queue is woken. Called in any context under the queue's
/// interrupt-safe lock: takes interrupt-safe locks only, allocates and frees nothing.
pub trait Wake: Send + Sync {
    /// Called when something has changed.
    fn wake(&self) -> Woken;
    /// Notifies a [listener](PollWaiter::listener) of an event. Task context; the queue is not
    /// locked, and the caller holds no spin lock. It may be called for a short time after the
    /// target has left the queue.
    fn announce(&self, _news: News) {}
}

impl Wake for WaitQueue {
    fn wake(&self) -> Woken {
        self.wake_all();
        Woken::Nobody
    }
}

/// Number of listeners that are notified per acquisition of the queue's lock.
const LISTENERS_AT_ONCE: usize = 8;
/// Number of waiters that are woken with interrupts off.
const AT_ONCE: usize = 128;

/// The notifications that the target of an entry gets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hears {
    /// Wake-ups.
    Wakes,
    /// Wake-ups. New input goes to one such entry only, the first whose wake-up ends a sleep.
    InputAlone,
    /// Events, and no wake-ups.
    News,
}

struct WaitEntry {
    id: u64,
    hears: Hears,
    /// `None` if the target has left the queue. The place is removed later, together with others.
    target: Option<Arc<dyn Wake>>,
}

/// The entries of a queue in the order of their numbers. An entry that leaves from the middle
/// leaves an empty place. So all removals together take linear time, in any order.
struct Entries {
    all: VecDeque<WaitEntry>,
    /// Number of places without a target. Neither the first nor the last place is one.
    gone: usize,
}

impl Entries {
    const fn new() -> Self {
        Self { all: VecDeque::new(), gone: 0 }
    }

    fn waiting(&self) -> usize {
        self.all.len() - self.gone
    }

    fn targets(&self) -> impl Iterator<Item = (&WaitEntry, &Arc<dyn Wake>)> {
        self.targets_from(0)
    }

    /// Returns the entries from number `id` on.
    fn targets_from(&self, id: u64) -> impl Iterator<Item = (&WaitEntry, &Arc<dyn Wake>)> {
        let at = if id == 0 { 0 } else { self.all.partition_point(|entry| entry.id < id) };
        self.all.iter_from(at).filter_map(|entry| Some((entry, entry.target.as_ref()?)))
    }

    /// Removes the target of the entry `id`.
    fn take(&mut self, id: u64) -> Option<Arc<dyn Wake>> {
        let is_first = self.all.front().is_some_and(|first| first.id == id);
        let at = if is_first { 0 } else { self.all.partition_point(|entry| entry.id < id) };
        let target = self.all.get_mut(at).filter(|entry| entry.id == id)?.target.take()?;
        self.gone += 1;
        while self.all.front().is_some_and(|first| first.target.is_none()) {
            self.all.pop_front();
            self.gone -= 1;
        }
        while self.all.back().is_some_and(|last| last.target.is_none()) {
            self.all.pop_back();
            self.gone -= 1;
        }
        if self.gone > self.waiting() {
            self.all.retain(|entry| entry.target.is_some());
            self.gone = 0;
        }
        Some(target)
    }
}

/// A queue of waiters for a change.
pub struct WaitQueue {
    /// Waiters in the order of their arrival.
    entries: IrqSpinLock<Entries>,
    /// The number of entries, so that a waker can skip an empty queue without the lock.
    count: AtomicUsize,
}

static NEXT_ENTRY: AtomicU64 = AtomicU64::new(0);

/// Nanoseconds that a sleeper sleeps before it checks again, if there was no memory to queue it.
const NAP: u64 = 1_000_000;

impl WaitQueue {
    /// Makes a queue without waiters.
    pub const fn new() -> Self {
        Self { entries: IrqSpinLock::new(Entries::new()), count: AtomicUsize::new(0) }
    }

    /// Sleeps until `condition` returns a value.
    ///
    /// # Errors
    /// `ERESTARTSYS` if a signal is pending before that.
    pub fn wait_until<T>(&self, condition: impl FnMut() -> Option<T>) -> Result<T> {
        match self.wait(Sleep::Interruptible, None, condition)? {
            Some(value) => Ok(value),
            None => Err(Errno::ERESTARTSYS),
        }
    }

    /// Sleeps until `condition` returns a value. Returns `None` if `deadline` comes first; a number
    /// is a time since boot ([`crate::time::now`]).
    ///
    /// # Errors
    /// `ERESTARTSYS` if a signal is pending before that.
    pub fn wait_until_deadline<T>(
        &self,
        deadline: Option<impl Into<Deadline>>,
        condition: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>> {
        self.wait(Sleep::Interruptible, deadline.map(Into::into), condition)
    }

    /// Sleeps until `condition` returns a value; signals do not end the sleep.
    pub fn wait_uninterruptible<T>(&self, mut condition: impl FnMut() -> Option<T>) -> T {
        loop {
            if let Ok(Some(value)) = self.wait(Sleep::Uninterruptible, None, &mut condition) {
                return value;
            }
        }
    }

    /// Sleeps until `condition` returns a value. Returns `None` if the clock [`crate::time::now`]
    /// shows `deadline` nanoseconds first. Signals do not end the sleep.
    pub fn wait_uninterruptible_until<T>(
        &self,
        deadline: u64,
        condition: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        self.wait(Sleep::Uninterruptible, Some(deadline.into()), condition).ok().flatten()
    }

    /// Sleeps until `condition` returns a value; only fatal signals end the sleep.
    ///
    /// # Errors
    /// `EINTR` if the thread is being killed.
    pub fn wait_killable<T>(&self, condition: impl FnMut() -> Option<T>) -> Result<T> {
        self.wait(Sleep::Killable, None, condition)?.ok_or(Errno::EINTR)
    }

    /// As [`wait_killable`](Self::wait_killable), but returns `None` if the clock
    /// [`crate::time::now`] shows `deadline` nanoseconds first.
    ///
    /// # Errors
    /// `EINTR` if the thread is being killed.
    pub fn wait_killable_until<T>(
        &self,
        deadline: u64,
        condition: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>> {
        self.wait(Sleep::Killable, Some(deadline.into()), condition)
    }

    fn wait<T>(
        &self,
        sleep: Sleep,
        deadline: Option<Deadline>,
        mut condition: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>> {
        if let Some(value) = condition() {
            return Ok(Some(value));
        }
        let task = thread::current();
        let target: Arc<dyn Wake> = task.clone();
        let queued = self.insert(&target, Hears::Wakes).ok();
        let outcome = loop {
            task.prepare_to_sleep(sleep);
            if let Some(value) = condition() {
                break Ok(Some(value));
            }
            if sleep == Sleep::Interruptible && task.signal_pending() {
                break Err(Errno::ERESTARTSYS);
            }
            if sleep == Sleep::Killable && task.is_dying() {
                break Err(Errno::EINTR);
            }
            let left = deadline.map(Deadline::left);
            if left == Some(0) {
                break Ok(None);
            }
            let nap = || (crate::time::now() + left.map_or(NAP, |left| left.min(NAP))).into();
            sched::block(&task, if queued.is_some() { deadline } else { Some(nap()) });
        };
        task.finish_sleep();
        if let Some(id) = queued {
            self.remove(id);
        }
        outcome
    }

    /// Wakes the first sleeper.
    #[inline]
    pub fn wake_one(&self) {
        if !self.is_empty() {
            self.wake_first();
        }
    }

    fn wake_first(&self) {
        let entries = self.entries.lock();
        // A watcher is no sleeper, even if its wake-up ends one's sleep.
        let ends_here = |entry: &WaitEntry, woken| woken == Woken::Sleeper && entry.hears == Hears::Wakes;
        let _ = entries.targets().find(|(entry, target)| ends_here(entry, target.wake()));
    }

    /// Wakes all sleepers.
    #[inline]
    pub fn wake_all(&self) {
        if !self.is_empty() {
            self.wake_each();
        }
    }

    /// Wakes all sleepers. Returns whether there was one.
    pub fn wake_each(&self) -> Woken {
        let mut outcome = Woken::Nobody;
        self.each(|_, target| {
            if target.wake() == Woken::Sleeper {
                outcome = Woken::Sleeper;
            }
        });
        outcome
    }

    /// Calls `f` with each present waiter. The lock is released after every [`AT_ONCE`], so that
    /// interrupts are not off for long.
    fn each(&self, mut f: impl FnMut(&WaitEntry, &Arc<dyn Wake>)) {
        let mut next = 0;
        let mut last: Option<u64> = None;
        loop {
            let entries = self.entries.lock();
            // A waiter that is added again meanwhile is not woken again.
            last = last.or_else(|| entries.all.back().map(|entry| entry.id));
            let mut left = AT_ONCE;
            for (entry, target) in entries.targets_from(next).take_while(|(entry, _)| Some(entry.id) <= last)
            {
                f(entry, target);
                next = entry.id + 1;
                left -= 1;
                if left == 0 {
                    break;
                }
            }
            if left > 0 {
                return;
            }
        }
    }

    /// Wakes all, and notifies listeners of the event. Of the [watchers that share
    /// input](PollWaiter::sharing_input), new input wakes those up to the first whose wake-up ends
    /// a sleep. Task context; the caller holds no spin lock.
    #[inline]
    pub fn announce(&self, news: News) {
        if !self.is_empty() {
            self.announce_to_each(news);
        }
    }

    /// Notifies listeners of the event, and wakes none. Task context; the caller holds no spin
    /// lock.
    #[inline]
    pub fn tell(&self, news: News) {
        if !self.is_empty() {
            self.tell_listeners(news);
        }
    }

    fn announce_to_each(&self, news: News) {
        let (mut has_listener, mut is_taken) = (false, false);
        self.each(|entry, target| {
            has_listener |= entry.hears == Hears::News;
            let shares = news == News::Input && entry.hears == Hears::InputAlone;
            if !(shares && is_taken) {
                is_taken |= target.wake() == Woken::Sleeper && shares;
            }
        });
        if has_listener {
            self.tell_listeners(news);
        }
    }

    #[cold]
    fn tell_listeners(&self, news: News) {
        // Entries are in the order of their numbers, so entries added or removed meanwhile do no
        // harm.
        let mut next = 0;
        loop {
            let mut listeners = ArrayVec::<Arc<dyn Wake>, LISTENERS_AT_ONCE>::new();
            let entries = self.entries.lock();
            for (entry, target) in entries.targets_from(next) {
                if entry.hears == Hears::News {
                    listeners.push(target.clone());
                    next = entry.id + 1;
                    if listeners.is_full() {
                        break;
                    }
                }
            }
            drop(entries);
            listeners.iter().for_each(|listener| listener.announce(news));
            if !listeners.is_full() {
                return;
            }
        }
    }

    /// Returns whether no target is registered. Checked at each wake-up; most queues are empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Adds `target` at the end. Memory is allocated outside the lock, since nothing may be
    /// allocated under it.
    fn insert(&self, target: &Arc<dyn Wake>, hears: Hears) -> Result<u64> {
        let mut target = Some(target.clone());
        let mut spare = VecDeque::new();
        loop {
            let old;
            let wanted = {
                let mut entries = self.entries.lock();
                // The old buffer is freed outside the lock.
                old = entries.all.move_to(spare);
                if entries.all.len() < entries.all.capacity() {
                    // Allocated under the lock, because the entries are in the order of their
                    // numbers.
                    let id = NEXT_ENTRY.fetch_add(1, Ordering::Relaxed);
                    entries.all.push_back_reserved(WaitEntry { id, hears, target: target.take() });
                    self.count.store(entries.waiting(), Ordering::SeqCst);
                    return Ok(id);
                }
                (entries.all.capacity() * 2).max(4)
            };
            drop(old);
            spare = VecDeque::try_with_capacity(wanted)?;
        }
    }

    /// Removes the entry `id`. It is dropped outside the lock.
    fn remove(&self, id: u64) {
        let removed = {
            let mut entries = self.entries.lock();
            let removed = entries.take(id);
            self.count.store(entries.waiting(), Ordering::SeqCst);
            removed
        };
        drop(removed);
    }
}

impl Default for WaitQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for WaitQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitQueue").field("waiters", &self.count.load(Ordering::Relaxed)).finish()
    }
}

/// Returns the earlier of two times; `None` means no time.
#[inline]
pub fn earlier(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// The way in which a poll's sleep ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slept {
    /// A queue was woken (or may have been): check again.
    Woken,
    /// The deadline has passed.
    TimedOut,
}

/// A waiter on several queues at once (poll, select, epoll). Registrations last until it is
/// dropped.
#[must_use]
pub struct PollWaiter {
    target: Arc<dyn Wake>,
    /// The first registrations: most files have one or two queues.
    few: ArrayVec<Registration, 2>,
    more: Vec<Registration>,
    /// Whether a registration found no memory: then it sleeps only for short intervals.
    incomplete: bool,
    hears: Hears,
}

/// An entry in a queue.
struct Registration {
    queue: Arc<WaitQueue>,
    id: u64,
}

impl PollWaiter {
    /// Makes a waiter that wakes the current task. Register it with every queue first, then check
    /// the files, then [`sleep`](Self::sleep).
    pub fn new() -> Self {
        let task = thread::current();
        task.prepare_to_sleep(Sleep::Interruptible);
        Self::observer(task)
    }

    /// Makes a waiter that notifies `target` of every wake-up, until it is dropped.
    pub fn observer(target: Arc<dyn Wake>) -> Self {
        Self::make(target, Hears::Wakes)
    }

    /// Makes an observer for one of several targets of which one suffices for new input
    /// (EPOLLEXCLUSIVE). Its [`Wake::wake`] returns whether a task slept that will take the input.
    pub fn sharing_input(target: Arc<dyn Wake>) -> Self {
        Self::make(target, Hears::InputAlone)
    }

    /// Makes a waiter that notifies `target` of events ([`Wake::announce`]), until it is dropped.
    /// Its [`Wake::wake`] does nothing.
    pub fn listener(target: Arc<dyn Wake>) -> Self {
        Self::make(target, Hears::News)
    }

    #[inline]
    fn make(target: Arc<dyn Wake>, hears: Hears) -> Self {
        Self { target, few: ArrayVec::new(), more: Vec::new(), incomplete: false, hears }
    }

    /// Registers the waiter with `queue`.
    pub fn register(&mut self, queue: &Arc<WaitQueue>) {
        if self.few.is_full() && self.more.try_reserve(1).is_err() {
            self.incomplete = true;
            return;
        }
        let Ok(id) = queue.insert(&self.target, self.hears) else {
            self.incomplete = true;
            return;
        };
        let registration = Registration { queue: queue.clone(), id };
        if let Err(full) = self.few.try_push(registration) {
            self.more.push_reserved(full.element());
        }
    }

    /// Returns the waiter if all registrations succeeded: an incomplete observer is of no use.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn complete(self) -> Result<Self> {
        self.check_complete()?;
        Ok(self)
    }

    /// As [`complete`](Self::complete), but does not consume the waiter.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn check_complete(&self) -> Result<()> {
        if self.incomplete { Err(Errno::ENOMEM) } else { Ok(()) }
    }

    /// Sleeps until one of the queues is woken after the last call (or after `new`). The caller
    /// then checks its files again. Only for waiters made by [`new`](Self::new), on the task that
    /// made it.
    ///
    /// # Errors
    /// `ERESTARTSYS` if a signal is pending.
    pub fn sleep(&mut self, deadline: Option<u64>) -> Result<Slept> {
        let task = thread::current();
        if task.signal_pending() {
            return Err(Errno::ERESTARTSYS);
        }
        let now = crate::time::now();
        if deadline.is_some_and(|deadline| now >= deadline) {
            return Ok(Slept::TimedOut);
        }
        let nap = if self.incomplete { Some(now + NAP) } else { None };
        sched::block(&task, earlier(deadline, nap).map(Deadline::from));
        task.prepare_to_sleep(Sleep::Interruptible);
        Ok(Slept::Woken)
    }
}

impl Default for PollWaiter {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for PollWaiter {
    fn drop(&mut self) {
        for Registration { queue, id } in self.few.drain(..).chain(self.more.drain(..)) {
            queue.remove(id);
        }
        // The task of an observer may be asleep for another reason. Only the running task's own
        // state is reset, which is harmless if it was not preparing to sleep.
        thread::with_current(|thread| thread.finish_sleep());
    }
}

impl fmt::Debug for PollWaiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PollWaiter").field("queues", &(self.few.len() + self.more.len())).finish()
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicUsize;
    use std::vec::Vec as List;

    use freehold_collections::reserve;

    use super::*;

    #[derive(Default)]
    struct Ear {
        wakes: AtomicUsize,
        news: std::sync::Mutex<List<News>>,
    }

    impl Wake for Ear {
        fn wake(&self) -> Woken {
            self.wakes.fetch_add(1, Ordering::Relaxed);
            Woken::Nobody
        }
        fn announce(&self, news: News) {
            self.news.lock().unwrap().push(news);
        }
    }

    #[test]
    fn news_reach_each_listener_once_and_wake_all_others() {
        let queue = WaitQueue::new();
        let hears = |at: usize| if at % 3 == 2 { Hears::Wakes } else { Hears::News };
        let ears: List<_> = (0..5 * LISTENERS_AT_ONCE).map(|_| reserve::arc(Ear::default())).collect();
        let enter = |(at, ear): (usize, &Arc<Ear>)| queue.insert(&(ear.clone() as Arc<dyn Wake>), hears(at));
        let ids: List<_> = ears.iter().enumerate().map(|ear| enter(ear).unwrap()).collect();
        // Removed entries do not cause others to be skipped.
        [3, 8, 9].iter().for_each(|&gone: &usize| queue.remove(ids[gone]));
        queue.announce(News::Input);
        queue.wake_all();
        for (at, ear) in ears.iter().enumerate() {
            let stays = ![3, 8, 9].contains(&at);
            let has_news = stays && hears(at) == Hears::News;
            assert_eq!(ear.news.lock().unwrap().len(), usize::from(has_news), "{at}");
            assert_eq!(ear.wakes.load(Ordering::Relaxed), if stays { 2 } else { 0 }, "{at}");
        }
        assert!(!queue.is_empty());
        WaitQueue::new().announce(News::Room);
    }

    #[test]
    fn all_that_wait_are_woken_once_in_whichever_order_others_left() {
        const COUNT: usize = 5 * AT_ONCE;
        for stride in [1, COUNT - 1, 7, 259] {
            let queue = WaitQueue::new();
            let ears: List<_> = (0..COUNT).map(|_| reserve::arc(Ear::default())).collect();
            let enter = |ear: &Arc<Ear>| queue.insert(&(ear.clone() as Arc<dyn Wake>), Hears::Wakes).unwrap();
            let ids: List<_> = ears.iter().map(enter).collect();
            let mut waits = [true; COUNT];
            for step in 0..COUNT {
                let at = step * stride % COUNT;
                queue.remove(ids[at]);
                queue.remove(ids[at]);
                waits[at] = false;
                let entries = queue.entries.lock();
                assert!(entries.all.len() <= 2 * entries.waiting() + 1, "places that are gone are few");
                assert_eq!(entries.waiting(), COUNT - step - 1);
                drop(entries);
                if step % 61 == 0 {
                    queue.wake_all();
                    for (ear, waits) in ears.iter().zip(waits) {
                        assert_eq!(ear.wakes.swap(0, Ordering::Relaxed), usize::from(waits));
                    }
                }
            }
            assert!(queue.is_empty() && queue.entries.lock().all.is_empty());
        }
    }
}
