//! Owners and waiters of the contended locks with priority inheritance.
//!
//! The owner of a free or uncontended lock is recorded only in its word. From the first waiter to
//! the last, the lock is also in this table, with its owner, and in the list of the locks that this
//! owner holds. One lock ([`TABLE`]) protects all of this. Under it the words are compared and
//! exchanged, without faults. So word and table change together, and a walk from owner to owner
//! sees a consistent state. The lock order is: a bucket of futexes, the table, the list of a task's
//! locks and waits, a run queue.
//!
//! An owner that unlocks hands the lock over. It writes the number of the first waiter into the
//! word and makes that waiter the owner, before the waiter runs. A waiter whose wait ends otherwise
//! checks under the table's lock whether it has become the owner meanwhile. If so, it has the lock,
//! however its wait ended (`model` shows the lock that is lost otherwise).
//!
//! Waiters are in the order of their priorities, and among equals of their arrival. An owner runs
//! with the highest priority of the waiters for its locks ([`sched::inherit_priority`]). When a
//! priority changes, so does its place among the waiters, and the priority that the lock's owner
//! inherits, and so on ([`PiTable::settle`]).
//!
//! An owner that ends, or executes a program, can no longer access the word's memory. It leaves its
//! locks without an owner, and the first waiter of each [claims](Standing::Claims) it: that waiter
//! writes its number and FUTEX_OWNER_DIED into the word, which can fault, and becomes the owner. If
//! its wait ends before that, the next waiter claims the lock.
//!
//! Ends of tasks and new waiters: a task sets its mark (`Task::has_left`) before it checks whether
//! it has anything in the table. A waiter ensures that its owner has a part in the table before it
//! checks the mark. One of the two sees the other, because each has a fence between the two steps.
//! The fence is needed on x86, too: a plain store (the end of `Once::call_once`) stays in the CPU's
//! buffer while later loads go ahead. A model of interleavings cannot show this, as its memory has
//! no such buffers.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering};

use freehold_collections::{
    Arc, Map, Vec,
    reserve::{self, ArcMethods},
};

use super::super::id::FutexId;
use crate::sched::heap::{IndexedHeap, Placed, Position, Positioned};
use crate::sched::real_time::MOST_PRIORITY;
use crate::sched::{self, Sleep, Thread};
use crate::sync::SpinLock;
use crate::{Errno, Result};

/// Largest number of owners that a deadlock search visits (Linux: `max_lock_depth`).
pub(super) const MOST_OWNERS: usize = 1024;

/// Number of contended locks, and of lines of waiters that are to be moved to a lock.
static IN_USE: AtomicUsize = AtomicUsize::new(0);

/// The table; see the head of the module.
pub(super) static TABLE: SpinLock<PiTable> = SpinLock::new(PiTable { locks: Map::new(), lines: Map::new() });

/// Whether a thread waits that plain calls must not wake.
#[inline]
pub(in super::super) fn are_used() -> bool {
    IN_USE.load(Ordering::SeqCst) != 0
}

/// Checks that a call could wake `woken` plain waiters at this word.
///
/// # Errors
/// `EINVAL` if it woke none, and the threads that wait there do so for a lock with an owner.
#[cold]
#[inline(never)]
pub(in super::super) fn check_plain(key: FutexId, woken: usize) -> Result<()> {
    if woken == 0 && TABLE.lock().has(key) { Err(Errno::EINVAL) } else { Ok(()) }
}

/// The state of a waiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Standing {
    /// Not in the table.
    Apart,
    /// In the line of a word, to be moved to a lock.
    InLine,
    /// Queued for its lock.
    Waits,
    /// Queued, and the lock has no owner: the waiter must take it.
    Claims,
    /// The waiter owns the lock.
    Owns,
}

impl Standing {
    const ALL: [Self; 5] = [Self::Apart, Self::InLine, Self::Waits, Self::Claims, Self::Owns];
}

/// A thread that waits for a lock, or will wait for it.
pub struct PiWaiter {
    pub task: Arc<PiTask>,
    /// The lock.
    pub lock: FutexId,
    /// The word at which it waits to be moved to the lock, if any.
    word: Option<FutexId>,
    /// Position among the waiters of the lock.
    position: Position,
    /// Position in the line of the word.
    line_position: Position,
    standing: AtomicU8,
}

impl PiWaiter {
    pub fn new(task: &Arc<PiTask>, lock: FutexId, word: Option<FutexId>) -> Arc<Self> {
        reserve::arc(Self {
            task: task.clone(),
            lock,
            word,
            position: Position::default(),
            line_position: Position::default(),
            standing: AtomicU8::new(Standing::Apart as u8),
        })
    }
    /// Returns the state, which changes under the table's lock.
    pub fn standing(&self) -> Standing {
        Standing::ALL[usize::from(self.standing.load(Ordering::SeqCst))]
    }
    fn set_standing(&self, standing: Standing) {
        self.standing.store(standing as u8, Ordering::SeqCst);
    }
    /// Sets the waiter's state and wakes it to check the state.
    fn call(&self, standing: Standing) {
        self.set_standing(standing);
        sched::wake(&self.task.thread, &[Sleep::Interruptible]);
    }
}

/// A contended lock.
pub struct PiLock {
    key: FutexId,
    /// Position among the locks of the owner.
    position: Position,
    state: SpinLock<PiLockState>,
}

struct PiLockState {
    /// `None`: the owner has ended, and a waiter claims the lock.
    owner: Option<Arc<PiTask>>,
    waiters: IndexedHeap<Placed<Arc<PiWaiter>>>,
}

impl PiLock {
    /// Returns the owner, if it has not ended.
    pub fn owner(&self) -> Option<Arc<PiTask>> {
        self.state.lock().owner.clone()
    }
    /// Returns the number of the thread that gets the lock next.
    pub fn next_number(&self) -> Option<u32> {
        self.state.lock().waiters.first().map(|(_, next)| next.value.task.number())
    }
}

/// The part of a task in the table: made when the task first waits, or is first waited for.
pub struct PiTask {
    thread: Arc<Thread>,
    number: AtomicU32,
    links: SpinLock<PiLinks>,
}

#[derive(Default)]
struct PiLinks {
    /// Contended locks that the task owns. While the task waits, there is room for one more.
    held: IndexedHeap<Placed<Arc<PiLock>>>,
    waits: Option<Arc<PiWaiter>>,
}

impl PiTask {
    pub(in crate::task) fn new(thread: &Arc<Thread>) -> Arc<Self> {
        reserve::arc(Self {
            thread: thread.clone(),
            number: AtomicU32::new(0),
            links: SpinLock::new(PiLinks::default()),
        })
    }
    /// Removes all locks from the task, one after the other.
    pub(in crate::task) fn abandon(&self) {
        loop {
            let table = TABLE.lock();
            let Some((_, lock)) = self.links.lock().held.pop() else { break };
            let mut state = lock.value.state.lock();
            state.owner = None;
            state.call_first();
            drop(state);
            drop(table);
            sched::rest();
        }
        sched::inherit_priority(&self.thread, 0);
    }
    /// Updates the table after the task's own priority changed.
    pub(in crate::task) fn rank_anew(self: &Arc<Self>) {
        let mut table = TABLE.lock();
        table.settle_waiter(self);
    }
    /// Returns the task's rank as a waiter.
    fn rank(&self) -> u64 {
        rank_of(self.thread.schedule.effective_priority())
    }
    /// Returns the highest priority of the waiters for the task's locks.
    fn wanted_priority(&self) -> u8 {
        match self.links.lock().held.first() {
            Some((rank, _)) if rank < LAST_RANK => MOST_PRIORITY - rank as u8,
            _ => 0,
        }
    }
    /// Returns the task's number, as stored in words.
    pub(super) fn number(&self) -> u32 {
        self.number.load(Ordering::Relaxed)
    }
    pub(in crate::task) fn set_number(&self, number: u32) {
        self.number.store(number, Ordering::Relaxed);
    }
}

/// Reserves room for `more` elements in `heap`.
fn make_room<V: Positioned>(heap: &mut IndexedHeap<V>, more: usize) -> Result<()> {
    let room = heap.len() + more;
    if heap.room() < room {
        let old = heap.give_room(Vec::try_with_capacity(room.max(2 * heap.len()))?);
        drop(old);
    }
    Ok(())
}

fn insert<T>(heap: &mut IndexedHeap<Placed<T>>, rank: u64, value: T, position: fn(&T) -> &Position) {
    assert!(heap.insert(rank, Placed { value, position }).is_ok(), "room was made");
}

/// Changes the rank of the element at `position`.
fn rank_again<T>(heap: &mut IndexedHeap<Placed<T>>, position: Option<usize>, rank: u64) {
    if let Some((_, element)) = position.and_then(|at| heap.remove(at)) {
        assert!(heap.insert(rank, element).is_ok(), "its place is free");
    }
}

/// Returns the rank of a priority in a heap. All tasks without priority have the same rank.
fn rank_of(priority: u8) -> u64 {
    if priority == 0 { LAST_RANK } else { u64::from(MOST_PRIORITY - priority) }
}

const LAST_RANK: u64 = MOST_PRIORITY as u64;

fn place_of_waiter(waiter: &Arc<PiWaiter>) -> &Position {
    &waiter.position
}

fn place_in_line(waiter: &Arc<PiWaiter>) -> &Position {
    &waiter.line_position
}

fn place_of_lock(lock: &Arc<PiLock>) -> &Position {
    &lock.position
}

/// See the head of the module.
pub(super) struct PiTable {
    locks: Map<FutexId, Arc<PiLock>>,
    /// Waiters of FUTEX_WAIT_REQUEUE_PI, by the word at which they wait.
    lines: Map<FutexId, IndexedHeap<Placed<Arc<PiWaiter>>>>,
}

impl PiTable {
    /// Returns the lock at this word, if it is contended.
    pub fn find(&self, key: FutexId) -> Option<&Arc<PiLock>> {
        self.locks.get(&key)
    }
    /// Whether a thread waits at this word that plain calls must not wake.
    pub fn has(&self, key: FutexId) -> bool {
        self.locks.contains_key(&key) || self.has_line(key)
    }
    /// Whether a thread waits at this word to be moved to a lock.
    pub fn has_line(&self, key: FutexId) -> bool {
        self.lines.contains_key(&key)
    }

    /// Returns the length of the chain of owners that wait for each other, from `owner` on.
    ///
    /// # Errors
    /// `EDEADLK` if `task` is one of them, or if they are too many.
    fn count_owners(&self, owner: &Arc<PiTask>, task: &Arc<PiTask>) -> Result<usize> {
        let mut next = owner.clone();
        for seen in 1..=MOST_OWNERS {
            if next.is_same(task) {
                return Err(Errno::EDEADLK);
            }
            let waits = next.links.lock().waits.clone();
            match waits.and_then(|waits| self.find(waits.lock)?.owner()) {
                Some(owner) => next = owner,
                None => return Ok(seen),
            }
        }
        Err(Errno::EDEADLK)
    }

    /// Updates the priority that `task` inherits, after a change of its locks or of their waiters.
    /// Also updates the owners for which it waits.
    fn settle(&mut self, task: &Arc<PiTask>) {
        if sched::inherit_priority(&task.thread, task.wanted_priority()) {
            self.settle_waiter(task);
        }
    }

    /// Updates the place of `task` as a waiter after a change of its priority, and so on along the
    /// chain.
    fn settle_waiter(&mut self, task: &Arc<PiTask>) {
        let mut next = Some(task.clone());
        for _ in 0..MOST_OWNERS {
            let Some(task) = next.take() else { return };
            let Some(waits) = task.links.lock().waits.clone() else { return };
            let Some(lock) = self.find(waits.lock) else { return };
            let mut state = lock.state.lock();
            rank_again(&mut state.waiters, waits.position.get(), task.rank());
            let Some(owner) = state.owner.clone() else { return };
            let rank = state.rank();
            drop(state);
            rank_again(&mut owner.links.lock().held, lock.position.get(), rank);
            if sched::inherit_priority(&owner.thread, owner.wanted_priority()) {
                next = Some(owner);
            }
        }
    }

    /// Queues `waiter` for its lock. `owner` is the lock's owner if the lock is not in the table
    /// yet. Returns the length of the resulting chain of waiting owners.
    ///
    /// # Errors
    /// `EDEADLK`, `ENOMEM`, and `ESRCH` without an owner.
    pub fn join(&mut self, waiter: &Arc<PiWaiter>, owner: Option<&Arc<PiTask>>) -> Result<usize> {
        let found = self.find(waiter.lock).cloned();
        let known = found.as_ref().map_or_else(|| owner.cloned(), |lock| lock.owner());
        let owners = known.map_or(Ok(0), |owner| self.count_owners(&owner, &waiter.task))?;
        make_room(&mut waiter.task.links.lock().held, 1)?;
        let lock = match (found, owner) {
            (Some(lock), _) => {
                make_room(&mut lock.state.lock().waiters, 1)?;
                lock
            }
            (None, Some(owner)) => self.open(waiter.lock, owner)?,
            (None, None) => return Err(Errno::ESRCH),
        };
        insert(&mut lock.state.lock().waiters, waiter.task.rank(), waiter.clone(), place_of_waiter);
        waiter.set_standing(Standing::Waits);
        waiter.task.links.lock().waits = Some(waiter.clone());
        self.settle_waiter(&waiter.task);
        Ok(owners)
    }

    /// Enters a lock of `owner`, with room for one waiter.
    fn open(&mut self, key: FutexId, owner: &Arc<PiTask>) -> Result<Arc<PiLock>> {
        let mut waiters = IndexedHeap::new();
        make_room(&mut waiters, 1)?;
        // One more, because the owner itself may wait.
        make_room(&mut owner.links.lock().held, 2)?;
        let state = SpinLock::new(PiLockState { owner: Some(owner.clone()), waiters });
        let lock = reserve::arc(PiLock { key, position: Position::default(), state });
        self.locks.try_insert(key, lock.clone())?;
        IN_USE.fetch_add(1, Ordering::SeqCst);
        insert(&mut owner.links.lock().held, LAST_RANK, lock.clone(), place_of_lock);
        Ok(lock)
    }

    /// Ends the wait of `waiter`, unless it owns its lock or has none. Returns its previous state.
    pub fn leave(&mut self, waiter: &Arc<PiWaiter>) -> Standing {
        let standing = waiter.standing();
        match standing {
            Standing::Apart | Standing::Owns => return standing,
            Standing::InLine => self.leave_line(waiter),
            Standing::Waits | Standing::Claims => self.leave_lock(waiter, standing),
        }
        waiter.set_standing(Standing::Apart);
        standing
    }

    /// Puts `waiter` in the line of its word.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn line_up(&mut self, waiter: &Arc<PiWaiter>) -> Result<()> {
        let Some(word) = waiter.word else { return Err(Errno::EINVAL) };
        if let Some(line) = self.lines.get_mut(&word) {
            make_room(line, 1)?;
            insert(line, waiter.task.rank(), waiter.clone(), place_in_line);
        } else {
            let mut line = IndexedHeap::new();
            make_room(&mut line, 1)?;
            insert(&mut line, waiter.task.rank(), waiter.clone(), place_in_line);
            self.lines.try_insert(word, line)?;
            IN_USE.fetch_add(1, Ordering::SeqCst);
        }
        waiter.set_standing(Standing::InLine);
        Ok(())
    }
    /// Returns the first waiter in the line of `word`.
    pub fn first_in_line(&self, word: FutexId) -> Option<Arc<PiWaiter>> {
        self.lines.get(&word)?.first().map(|(_, first)| first.value.clone())
    }
    /// Removes `waiter` from its line.
    pub fn leave_line(&mut self, waiter: &Arc<PiWaiter>) {
        let Some(word) = waiter.word else { return };
        let Some(line) = self.lines.get_mut(&word) else { return };
        if let Some(at) = waiter.line_position.get() {
            drop(line.remove(at));
        }
        if line.is_empty() && self.lines.remove(&word).is_some() {
            IN_USE.fetch_sub(1, Ordering::SeqCst);
        }
    }
    /// Gives `waiter` its lock, which has no other waiter. The word has its number already.
    pub fn give_free(&mut self, waiter: &Arc<PiWaiter>) {
        self.leave_line(waiter);
        waiter.call(Standing::Owns);
    }

    fn leave_lock(&mut self, waiter: &Arc<PiWaiter>, standing: Standing) {
        let Some(lock) = self.find(waiter.lock).cloned() else { return };
        waiter.task.links.lock().waits = None;
        let mut state = lock.state.lock();
        if let Some(at) = waiter.position.get() {
            drop(state.waiters.remove(at));
        }
        let (owner, rank) = (state.owner.clone(), state.rank());
        if state.waiters.is_empty() {
            self.close(&lock, &mut state);
        } else if standing == Standing::Claims {
            state.call_first();
        }
        drop(state);
        if let Some(owner) = owner {
            rank_again(&mut owner.links.lock().held, lock.position.get(), rank);
            self.settle(&owner);
        }
    }

    /// Removes the lock from the table, because nothing waits for it: its word alone names the
    /// owner.
    fn close(&mut self, lock: &Arc<PiLock>, state: &mut PiLockState) {
        state.leave_owner(lock);
        if self.locks.remove(&lock.key).is_some() {
            IN_USE.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Hands the lock from its owner to the first waiter, whose number is in the word. Returns that
    /// waiter, to be dropped without the table's lock: it may have ended by then.
    #[must_use]
    pub fn hand_over(&mut self, lock: &Arc<PiLock>) -> Option<Arc<PiWaiter>> {
        let mut state = lock.state.lock();
        let owner = state.owner.clone();
        state.leave_owner(lock);
        let next = state.waiters.pop()?.1.value;
        self.give(lock, &mut state, &next);
        drop(state);
        if let Some(owner) = owner {
            self.settle(&owner);
        }
        Some(next)
    }

    /// Gives a lock without an owner to `waiter`, which claims the lock and has written its number.
    pub fn take_over(&mut self, waiter: &Arc<PiWaiter>) {
        let Some(lock) = self.find(waiter.lock).cloned() else { return };
        let mut state = lock.state.lock();
        if let Some(at) = waiter.position.get() {
            drop(state.waiters.remove(at));
        }
        self.give(&lock, &mut state, waiter);
    }

    /// Makes `next`, which is no longer a waiter, the owner.
    fn give(&mut self, lock: &Arc<PiLock>, state: &mut PiLockState, next: &Arc<PiWaiter>) {
        let mut links = next.task.links.lock();
        links.waits = None;
        if state.waiters.is_empty() {
            drop(links);
            self.close(lock, state);
        } else {
            insert(&mut links.held, state.rank(), lock.clone(), place_of_lock);
            drop(links);
            state.owner = Some(next.task.clone());
        }
        sched::inherit_priority(&next.task.thread, next.task.wanted_priority());
        next.call(Standing::Owns);
    }
}

impl PiLockState {
    /// Returns the rank of the first waiter.
    fn rank(&self) -> u64 {
        self.waiters.first().map_or(LAST_RANK, |(rank, _)| rank)
    }
    /// Removes the lock from its owner.
    fn leave_owner(&mut self, lock: &Arc<PiLock>) {
        let Some(owner) = self.owner.take() else { return };
        let mut links = owner.links.lock();
        if let Some(at) = lock.position.get() {
            drop(links.held.remove(at));
        }
    }
    /// Makes the first waiter claim the lock, which has no owner.
    fn call_first(&self) {
        if let Some((_, first)) = self.waiters.first() {
            first.value.call(Standing::Claims);
        }
    }
}
