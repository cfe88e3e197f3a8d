//! Wait queues: sleeping until something changes.
//!
//! Protocol, which loses no wake-up: a sleeper (1) puts itself on the queue, (2) announces that it
//! is going to sleep, (3) looks at its condition, and only then (4) gives up the CPU. A waker
//! changes the condition first and then wakes the queue. Whichever comes second sees the other.
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
use crate::{Errno, Result};

/// Result of a wake-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// The wake-up ended a task's sleep.
    Sleeper,
    /// No task slept there: the next in the queue may be tried.
    Nobody,
}

/// Change of a file, as signal-driven I/O tells it (si_code of SIGIO).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(i32)]
pub enum News {
    /// There is something to read (POLL_IN).
    Input = 1,
    /// There is room to write (POLL_OUT).
    Room = 2,
    /// Another program wants the lease of a file (POLL_MSG).
    Message = 3,
    /// There is an error to hear of (POLL_ERR).
    Error = 4,
    /// The other side is gone (POLL_HUP).
    HangUp = 6,
}

/// Target that is told that a queue was woken. Called in any context under the queue's
/// interrupt-safe lock: takes interrupt-safe locks only, allocates and frees nothing.
pub trait Wake: Send + Sync {
    /// Something changed.
    fn wake(&self) -> Woken;
    /// Tells a [listener](PollWaiter::listener) what is new. Task context; the queue is not locked,
    /// and the caller holds no spin lock. It may be called for a short time after the target has
    /// left the queue.
    fn announce(&self, _news: News) {}
}

impl Wake for WaitQueue {
    fn wake(&self) -> Woken {
        self.wake_all();
        Woken::Nobody
    }
}

/// Listeners that are told between two looks at a queue.
const LISTENERS_AT_ONCE: usize = 8;
/// Waiters that are woken with interrupts off.
const AT_ONCE: usize = 128;

/// Events that the target of an entry waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hears {
    /// Wake-ups.
    Wakes,
    /// News, and no wake-ups.
    News,
}

struct WaitEntry {
    id: u64,
    hears: Hears,
    /// `None`: it has left the queue, and its place goes with others'.
    target: Option<Arc<dyn Wake>>,
}

/// The entries of a queue in the order of their numbers. One that leaves from the middle leaves its
/// place behind: so all together take linear time, in whichever order they leave.
struct Entries {
    all: VecDeque<WaitEntry>,
    /// Places without a target; neither the first nor the last is one.
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

    /// Those with this number and later ones.
    fn targets_from(&self, id: u64) -> impl Iterator<Item = (&WaitEntry, &Arc<dyn Wake>)> {
        let at = if id == 0 { 0 } else { self.all.partition_point(|entry| entry.id < id) };
        self.all.iter_from(at).filter_map(|entry| Some((entry, entry.target.as_ref()?)))
    }

    /// Takes the target out of the entry `id`.
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
    /// How many entries there are, to let a waker pass an empty queue without the lock.
    count: AtomicUsize,
}

static NEXT_ENTRY: AtomicU64 = AtomicU64::new(0);

/// How long a sleeper naps before it looks again, where there was no memory to queue it
/// (nanoseconds).
const NAP: u64 = 1_000_000;

impl WaitQueue {
    /// A queue without waiters.
    pub const fn new() -> Self {
        Self { entries: IrqSpinLock::new(Entries::new()), count: AtomicUsize::new(0) }
    }

    /// Sleep until `condition` gives a value.
    ///
    /// # Errors
    /// `ERESTARTSYS` where a signal is pending before that.
    pub fn wait_until<T>(&self, condition: impl FnMut() -> Option<T>) -> Result<T> {
        match self.wait(Sleep::Interruptible, None, condition)? {
            Some(value) => Ok(value),
            None => Err(Errno::ERESTARTSYS),
        }
    }

    /// Sleep until `condition` gives a value, or until the clock of [`crate::time::now`] shows
    /// `deadline` nanoseconds: then `None`.
    ///
    /// # Errors
    /// `ERESTARTSYS` where a signal is pending before that.
    pub fn wait_until_deadline<T>(
        &self,
        deadline: Option<u64>,
        condition: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>> {
        self.wait(Sleep::Interruptible, deadline, condition)
    }

    /// Sleeps until `condition` gives a value; signals do not end the sleep.
    pub fn wait_uninterruptible<T>(&self, mut condition: impl FnMut() -> Option<T>) -> T {
        loop {
            if let Ok(Some(value)) = self.wait(Sleep::Uninterruptible, None, &mut condition) {
                return value;
            }
        }
    }

    /// Sleeps until `condition` gives a value, or until the clock of [`crate::time::now`] shows
    /// `deadline` nanoseconds: then `None`. Signals do not end the sleep.
    pub fn wait_uninterruptible_until<T>(
        &self,
        deadline: u64,
        condition: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        self.wait(Sleep::Uninterruptible, Some(deadline), condition).ok().flatten()
    }

    /// Sleeps until `condition` gives a value; only deadly signals end the sleep.
    ///
    /// # Errors
    /// `EINTR` where the thread is to end.
    pub fn wait_killable<T>(&self, condition: impl FnMut() -> Option<T>) -> Result<T> {
        self.wait(Sleep::Killable, None, condition)?.ok_or(Errno::EINTR)
    }

    /// As [`wait_killable`](Self::wait_killable), or until the clock of [`crate::time::now`] shows
    /// `deadline` nanoseconds: then `None`.
    ///
    /// # Errors
    /// `EINTR` where the thread is to end.
    pub fn wait_killable_until<T>(
        &self,
        deadline: u64,
        condition: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>> {
        self.wait(Sleep::Killable, Some(deadline), condition)
    }

    fn wait<T>(
        &self,
        sleep: Sleep,
        deadline: Option<u64>,
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
            let now = if deadline.is_some() || queued.is_none() { crate::time::now() } else { 0 };
            if deadline.is_some_and(|deadline| now >= deadline) {
                break Ok(None);
            }
            let nap = if queued.is_some() { None } else { Some(now + NAP) };
            let until = earlier(deadline, nap);
            sched::block(&task, until);
        };
        task.finish_sleep();
        if let Some(id) = queued {
            self.remove(id);
        }
        outcome
    }

    /// Wake the first who sleeps.
    #[inline]
    pub fn wake_one(&self) {
        if !self.is_empty() {
            self.wake_first();
        }
    }

    fn wake_first(&self) {
        let entries = self.entries.lock();
        let _ = entries.targets().find(|(_, target)| target.wake() == Woken::Sleeper);
    }

    /// Wake all.
    #[inline]
    pub fn wake_all(&self) {
        if !self.is_empty() {
            self.wake_each();
        }
    }

    fn wake_each(&self) {
        self.each(|_, target| {
            target.wake();
        });
    }

    /// Calls `f` with each that waits now. The lock is open after every [`AT_ONCE`], so that
    /// interrupts are not off for long.
    fn each(&self, mut f: impl FnMut(&WaitEntry, &Arc<dyn Wake>)) {
        let mut next = 0;
        let mut last: Option<u64> = None;
        loop {
            let entries = self.entries.lock();
            // One that comes again meanwhile is not woken again.
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

    /// Wakes all, and tells listeners the news. Task context; the caller holds no spin lock.
    #[inline]
    pub fn announce(&self, news: News) {
        if !self.is_empty() {
            self.announce_to_each(news);
        }
    }

    fn announce_to_each(&self, news: News) {
        let mut has_listener = false;
        self.each(|entry, target| {
            has_listener |= entry.hears == Hears::News;
            target.wake();
        });
        if has_listener {
            self.tell_listeners(news);
        }
    }

    #[cold]
    fn tell_listeners(&self, news: News) {
        // Entries are in the order of their numbers: what came or left meanwhile changes nothing.
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

    /// Returns whether no target is registered: asked at each wake-up, most of which find none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Add `target` at the end; the room is made outside the lock, since nothing may be allocated
    /// under it.
    fn insert(&self, target: &Arc<dyn Wake>, hears: Hears) -> Result<u64> {
        let mut target = Some(target.clone());
        let mut spare = VecDeque::new();
        loop {
            let old;
            let wanted = {
                let mut entries = self.entries.lock();
                // The old buffer is freed outside.
                old = entries.all.move_to(spare);
                if entries.all.len() < entries.all.capacity() {
                    // Drawn under the lock: the entries are in the order of their numbers.
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

    /// Remove the entry `id`; it is dropped outside the lock.
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

/// Returns the earlier of two times; `None` is no time.
#[inline]
pub fn earlier(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// How a poll's sleep ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Slept {
    /// A queue was woken (or may have been): look again.
    Woken,
    /// The deadline has passed.
    TimedOut,
}

/// A waiter on several queues at once (poll, select, epoll). Registrations last until it is
/// dropped.
#[must_use]
pub struct PollWaiter {
    target: Arc<dyn Wake>,
    /// The first registrations: most files have one queue or two.
    few: ArrayVec<Registration, 2>,
    more: Vec<Registration>,
    /// Some registration found no memory: sleep only in naps.
    incomplete: bool,
    hears: Hears,
}

/// An entry in a queue.
struct Registration {
    queue: Arc<WaitQueue>,
    id: u64,
}

impl PollWaiter {
    /// A waiter that wakes the current task. Register with every queue first, then look at the
    /// files, then [`sleep`](Self::sleep).
    pub fn new() -> Self {
        let task = thread::current();
        task.prepare_to_sleep(Sleep::Interruptible);
        Self::observer(task)
    }

    /// A waiter that tells `target` of every wake-up, for as long as it lives.
    pub fn observer(target: Arc<dyn Wake>) -> Self {
        Self::make(target, Hears::Wakes)
    }

    /// A waiter that tells `target` of news ([`Wake::announce`]), for as long as it lives. Its
    /// [`Wake::wake`] does nothing.
    pub fn listener(target: Arc<dyn Wake>) -> Self {
        Self::make(target, Hears::News)
    }

    #[inline]
    fn make(target: Arc<dyn Wake>, hears: Hears) -> Self {
        Self { target, few: ArrayVec::new(), more: Vec::new(), incomplete: false, hears }
    }

    /// Be told when `queue` is woken.
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

    /// Whether every queue tells it: an observer that is not told of all is of no use.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn complete(self) -> Result<Self> {
        self.check_complete()?;
        Ok(self)
    }

    /// As [`complete`](Self::complete), for a waiter that stays where it is.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn check_complete(&self) -> Result<()> {
        if self.incomplete { Err(Errno::ENOMEM) } else { Ok(()) }
    }

    /// Sleeps until one of the queues is woken after the last call (or after `new`); the caller
    /// then looks at its files again. Only for waiters made by [`new`](Self::new), on the task that
    /// made it.
    ///
    /// # Errors
    /// `ERESTARTSYS` where a signal is pending.
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
        let until = earlier(deadline, nap);
        sched::block(&task, until);
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
        // An observer's owner may be asleep for another reason; only a waiting task's own state is
        // reset, and that is harmless where it was not preparing to sleep.
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
        // Entries that left make no other be left out.
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
