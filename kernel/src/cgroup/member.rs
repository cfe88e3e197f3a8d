//! A process' place in the tree of groups.
//!
//! A place is one word. From the top it has: the number of the group (16 bits), whether the process
//! has ended, whether an ended thread still keeps its ID, and the number of living threads. The
//! documentation of [`super`] says who changes the word and when.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use freehold_collections::Arc;

use super::control::{came, may_fork};
use super::group::{Group, add, sub};
use super::tree::{self, GroupTree, tell};
use crate::{Errno, Result};

const NUMBER_SHIFT: u32 = 48;
/// The process has ended: it cannot be moved any more.
const ENDED: u64 = 1 << 47;
/// The thread that had the process' ID has ended, and still counts as a task.
const HELD: u64 = 1 << 46;
const THREADS: u64 = u32::MAX as u64;

const fn number_of(word: u64) -> u16 {
    (word >> NUMBER_SHIFT) as u16
}

/// Number of threads that have not ended.
const fn living(word: u64) -> u32 {
    (word & THREADS) as u32
}

/// Number of tasks as the controller `pids` counts them.
const fn tasks(word: u64) -> u32 {
    living(word) + (word & HELD != 0) as u32
}

/// CPU time in nanoseconds.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub struct CpuTime {
    /// Time in user mode.
    pub user: u64,
    /// Time in the kernel.
    pub system: u64,
}

impl CpuTime {
    /// Adds `other`.
    pub fn add(&mut self, other: Self) {
        self.user += other.user;
        self.system += other.system;
    }
    /// The time used since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
        }
    }
}

/// A process' place.
#[derive(Default)]
pub struct CgroupMember {
    word: AtomicU64,
    /// Threads that are stopped because of cgroup.freeze.
    frozen: AtomicU32,
    /// The time that the process had used when it joined its group.
    came_with: [AtomicU64; 2],
}

/// The role of a thread that ends in its process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndedThread {
    /// The thread with the process' ID, but not the last thread.
    Leader,
    /// Another thread, but not the last.
    Other,
    /// The last thread.
    Last,
}

/// A child that is being made, and is counted in its group.
pub struct Fork {
    /// `None` for the root.
    group: Option<Arc<Group>>,
    kills: u64,
}

impl Fork {
    /// A child in the root group.
    pub const ROOT: Self = Self { group: None, kills: 0 };

    /// Counts a child in `group` (CLONE_INTO_CGROUP).
    ///
    /// # Errors
    /// `ENODEV` for a removed group, `EBUSY` for a group that passes controllers on; the
    /// controllers' errors.
    pub fn into(group: &Arc<Group>) -> Result<Self> {
        if group.is_root() {
            return Ok(Self::ROOT);
        }
        let tree = tree::lock();
        check_destination(group)?;
        Self::begin(&tree, group.clone()).inspect_err(|_| {
            drop(tree);
            tell(group);
        })
    }

    fn begin(tree: &GroupTree, group: Arc<Group>) -> Result<Self> {
        may_fork(tree, &group)?;
        enter(tree, &group, 1);
        let kills = group.kills();
        Ok(Self { group: Some(group), kills })
    }

    /// Returns the child's initial place.
    pub fn place(&self) -> CgroupMember {
        let number = self.group.as_ref().map_or(0, |group| group.number());
        CgroupMember {
            word: AtomicU64::new(u64::from(number) << NUMBER_SHIFT | 1),
            ..CgroupMember::default()
        }
    }

    /// Keeps the count: the child can be found from now on. Returns the changes of its group
    /// meanwhile.
    pub fn keep(mut self) -> Meanwhile {
        let Some(group) = self.group.take() else { return Meanwhile::default() };
        tell(&group);
        Meanwhile { was_killed: group.kills() != self.kills, is_freezing: group.is_freezing() }
    }
}

impl Drop for Fork {
    fn drop(&mut self) {
        if let Some(group) = self.group.take() {
            let mut tree = tree::lock();
            leave(&tree, &group, 1);
            tree.release(&group);
            drop(tree);
            tell(&group);
        }
    }
}

/// A thread that is being made, and is counted. Dropping this value undoes the count.
pub struct ThreadFork<'a>(&'a CgroupMember);

impl ThreadFork<'_> {
    /// Keeps the count: the thread exists.
    pub fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for ThreadFork<'_> {
    fn drop(&mut self) {
        self.0.thread_ended(EndedThread::Other);
    }
}

/// A kernel task that works for a process of a group, until this is dropped.
pub struct GroupHelper {
    /// `None` for the root.
    group: Option<Arc<Group>>,
    /// Whether it counts as a task.
    counts: bool,
}

impl GroupHelper {
    /// Counts a task in the process' group.
    ///
    /// # Errors
    /// Those of controllers: `EAGAIN`.
    pub fn task(of: &CgroupMember) -> Result<Self> {
        if of.is_in_root() {
            return Ok(Self { group: None, counts: false });
        }
        let tree = tree::lock();
        let group = tree.group(of.number()).clone();
        let outcome = may_fork(&tree, &group);
        if outcome.is_ok() {
            for above in group.counted() {
                add(&above.tasks, 1);
            }
            came(&tree, &group);
        }
        drop(tree);
        tell(&group);
        outcome.map(|()| Self { group: Some(group), counts: true })
    }

    /// Notes the process' group, without a count.
    pub fn uncounted(of: &CgroupMember) -> Self {
        Self { group: (!of.is_in_root()).then(|| of.group()), counts: false }
    }

    /// The group; `None` for the root.
    pub const fn group(&self) -> Option<&Arc<Group>> {
        self.group.as_ref()
    }
}

impl Drop for GroupHelper {
    fn drop(&mut self) {
        if let Some(group) = self.group.as_ref().filter(|_| self.counts) {
            let tree = tree::lock();
            group.counted().for_each(|above| {
                sub(&above.tasks, 1);
            });
            drop(tree);
        }
    }
}

/// Changes of a group while a child was being made.
#[derive(Clone, Copy, Default, Debug)]
pub struct Meanwhile {
    /// All processes in the group were killed.
    pub was_killed: bool,
    /// The group's tasks must be stopped.
    pub is_freezing: bool,
}

/// Checks that processes can join `group`. Under the tree's lock.
fn check_destination(group: &Group) -> Result<()> {
    if group.is_removed() {
        return Err(Errno::ENODEV);
    }
    if !group.is_root() && !group.passes_on().is_empty() { Err(Errno::EBUSY) } else { Ok(()) }
}

/// Counts a living process with this word in a group that it joins.
fn enter(tree: &GroupTree, group: &Arc<Group>, word: u64) {
    if group.is_root() {
        return;
    }
    add(&group.holds, 1);
    if add(&group.processes, 1) == 0 {
        for above in group.counted() {
            if add(&above.populated, 1) != 0 {
                break;
            }
        }
    }
    for above in group.counted() {
        add(&above.tasks, tasks(word));
        add(&above.living, living(word));
        above.settle();
    }
    came(tree, group);
}

/// Removes a living process with this word from a group's counts. The caller releases its reference
/// to the group's number.
fn leave(_tree: &GroupTree, group: &Arc<Group>, word: u64) {
    for above in group.counted() {
        sub(&above.tasks, tasks(word));
        sub(&above.living, living(word));
    }
    empty(group);
}

/// Notes that a group has one living process less.
fn empty(group: &Arc<Group>) {
    if sub(&group.processes, 1) == 0 {
        for above in group.counted() {
            if sub(&above.populated, 1) != 0 {
                break;
            }
        }
    }
    group.counted().for_each(Group::settle);
}

impl CgroupMember {
    /// The number of the process' group; the root's is 0.
    #[inline]
    pub fn number(&self) -> u16 {
        number_of(self.word.load(Ordering::SeqCst))
    }

    /// Whether the process is in the root group.
    #[inline]
    pub fn is_in_root(&self) -> bool {
        self.number() == 0
    }

    /// Whether the process has ended.
    pub fn has_ended(&self) -> bool {
        self.word.load(Ordering::Relaxed) & ENDED != 0
    }

    /// The process' group.
    pub fn group(&self) -> Arc<Group> {
        if self.is_in_root() {
            return tree::root().clone();
        }
        let tree = tree::lock();
        tree.group(self.number()).clone()
    }

    /// Whether the process' threads must be stopped.
    pub fn is_freezing(&self) -> bool {
        !self.is_in_root() && self.group().is_freezing()
    }

    /// Counts a child that the process is about to make in the same group.
    ///
    /// # Errors
    /// Those of controllers: `EAGAIN`.
    #[inline]
    pub fn fork(&self) -> Result<Fork> {
        if self.is_in_root() { Ok(Fork::ROOT) } else { self.fork_below() }
    }

    #[cold]
    fn fork_below(&self) -> Result<Fork> {
        let tree = tree::lock();
        let group = tree.group(self.number()).clone();
        if group.is_root() {
            return Ok(Fork::ROOT);
        }
        let forked = Fork::begin(&tree, group.clone());
        drop(tree);
        if forked.is_err() {
            tell(&group);
        }
        forked
    }

    /// Changes the word by compare-exchange, as long as the process is in the root group. Returns
    /// whether it is.
    #[inline]
    fn change_in_root(&self, change: impl Fn(u64) -> u64) -> bool {
        let changed = self.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |word| {
            (number_of(word) == 0).then(|| change(word))
        });
        changed.is_ok()
    }

    /// Counts a thread that the process is about to make.
    ///
    /// # Errors
    /// Those of controllers: `EAGAIN`.
    pub fn fork_thread(&self) -> Result<ThreadFork<'_>> {
        if !self.change_in_root(|word| word + 1) {
            self.fork_thread_below()?;
        }
        Ok(ThreadFork(self))
    }

    #[cold]
    fn fork_thread_below(&self) -> Result<()> {
        let tree = tree::lock();
        let group = tree.group(self.number()).clone();
        let mut outcome = Ok(());
        if !self.change_in_root(|word| word + 1) {
            outcome = may_fork(&tree, &group);
            if outcome.is_ok() {
                self.word.fetch_add(1, Ordering::SeqCst);
                for above in group.counted() {
                    add(&above.tasks, 1);
                    add(&above.living, 1);
                    above.settle();
                }
                came(&tree, &group);
            }
        }
        drop(tree);
        tell(&group);
        outcome
    }

    /// Notes that a thread has ended. The process ends with its last thread.
    pub fn thread_ended(&self, thread: EndedThread) {
        let after = |word: u64| match thread {
            EndedThread::Other => word - 1,
            EndedThread::Leader => (word - 1) | HELD,
            EndedThread::Last => (word - 1) | HELD | ENDED,
        };
        if self.change_in_root(after) {
            return;
        }
        let tree = tree::lock();
        let group = tree.group(self.number()).clone();
        if !self.change_in_root(after) {
            let before = self.word.load(Ordering::Relaxed);
            let now = after(before);
            self.word.store(now, Ordering::SeqCst);
            for above in group.counted() {
                sub(&above.tasks, tasks(before) - tasks(now));
                sub(&above.living, 1);
            }
            if thread == EndedThread::Last {
                empty(&group);
            } else {
                group.counted().for_each(Group::settle);
            }
        }
        drop(tree);
        tell(&group);
    }

    /// Notes that the process was waited for; `used` returns its total CPU time.
    #[inline]
    pub fn reaped(&self, used: impl FnOnce() -> CpuTime) {
        if !self.is_in_root() {
            self.leave_for_good(used());
        }
    }

    #[cold]
    fn leave_for_good(&self, used: CpuTime) {
        let mut tree = tree::lock();
        let word = self.word.swap(ENDED, Ordering::SeqCst);
        let group = tree.group(number_of(word)).clone();
        group.counted().for_each(|above| {
            sub(&above.tasks, tasks(word));
        });
        self.settle_usage(&group, used);
        tree.release(&group);
        drop(tree);
    }

    /// Adds the time that the process used in a group to the group's past time.
    fn settle_usage(&self, group: &Group, used: CpuTime) {
        group.add_past(used.since(self.came_with()));
    }

    /// The time that the process had used when it came to its group.
    pub fn came_with(&self) -> CpuTime {
        let [user, system] = self.came_with.each_ref().map(|part| part.load(Ordering::Relaxed));
        CpuTime { user, system }
    }

    /// Moves the process to a group; `used` is its CPU time so far. An ended process is not moved.
    /// Returns the group that it left.
    ///
    /// # Errors
    /// `ENODEV` for a removed group, `EBUSY` for a group that passes controllers on.
    pub fn move_to(&self, to: &Arc<Group>, used: CpuTime) -> Result<Arc<Group>> {
        let mut tree = tree::lock();
        check_destination(to)?;
        let (word, from) = loop {
            let word = self.word.load(Ordering::SeqCst);
            let from = tree.group(number_of(word)).clone();
            if word & ENDED != 0 || from.id() == to.id() {
                return Ok(from);
            }
            let moved =
                word & !(u64::from(u16::MAX) << NUMBER_SHIFT) | u64::from(to.number()) << NUMBER_SHIFT;
            if self.word.compare_exchange(word, moved, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                break (word, from);
            }
        };
        let frozen = self.frozen.load(Ordering::Relaxed);
        to.counted().for_each(|above| {
            add(&above.frozen, frozen);
        });
        enter(&tree, to, word);
        if !from.is_root() {
            self.settle_usage(&from, used);
            from.counted().for_each(|above| {
                sub(&above.frozen, frozen);
            });
            leave(&tree, &from, word);
            tree.release(&from);
        }
        self.came_with[0].store(used.user, Ordering::Relaxed);
        self.came_with[1].store(used.system, Ordering::Relaxed);
        drop(tree);
        tell(to);
        tell(&from);
        Ok(from)
    }

    /// Notes an execve. The remaining thread has the process' ID, so the ID's former thread no
    /// longer counts.
    pub fn executed(&self) {
        if self.word.load(Ordering::Relaxed) & HELD == 0 || self.change_in_root(|word| word & !HELD) {
            return;
        }
        let tree = tree::lock();
        let group = tree.group(self.number()).clone();
        let before = self.word.fetch_and(!HELD, Ordering::SeqCst);
        group.counted().for_each(|above| {
            sub(&above.tasks, u32::from(before & HELD != 0));
        });
        drop(tree);
    }

    /// Notes that a thread is stopped because of cgroup.freeze, or continues.
    pub fn count_frozen(&self, change: FrozenChange) {
        let tree = tree::lock();
        let group = tree.group(self.number()).clone();
        let change_one = |count: &AtomicU32| match change {
            FrozenChange::Stands => {
                add(count, 1);
            }
            FrozenChange::GoesOn => {
                sub(count, 1);
            }
        };
        change_one(&self.frozen);
        for above in group.counted() {
            change_one(&above.frozen);
            above.settle();
        }
        drop(tree);
        tell(&group);
    }
}

/// A change of a thread in a frozen group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrozenChange {
    /// The thread is stopped.
    Stands,
    /// The thread continues.
    GoesOn,
}

impl Group {
    /// Adds time that a past member, or a helper, used.
    pub fn add_past(&self, used: CpuTime) {
        for above in self.counted() {
            above.past.lock().add(used);
            above.departures.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Returns the CPU time that all members, past and present, used in the group and below.
    /// `living` returns the sum of the time that the present members have used since they
    /// [joined](CgroupMember::came_with).
    ///
    /// The result never decreases: members that leave meanwhile may be missed, and are counted at
    /// the next call.
    pub fn usage(&self, living: impl Fn() -> CpuTime) -> CpuTime {
        const TRIES: usize = 3;
        let mut sum = CpuTime::default();
        for _ in 0..TRIES {
            let departures = self.departures.load(Ordering::SeqCst);
            sum = *self.past.lock();
            sum.add(living());
            if self.departures.load(Ordering::SeqCst) == departures {
                break;
            }
        }
        let mut shown = self.shown.lock();
        shown.user = shown.user.max(sum.user);
        shown.system = shown.system.max(sum.system);
        *shown
    }
}
