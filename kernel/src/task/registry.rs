//! All processes and threads by ID, their families, groups and sessions.
//!
//! One plain spin lock orders every change of the family tree, of groups and of sessions. It may be
//! taken before a process' own spin locks, never after.
//!
//! **No lists.** Programs decide how many processes there are, so nothing here makes a list of
//! them. Children are linked by ID; a [`ProcessWalk`] visits processes one by one, by ID, and holds
//! the lock for a bounded number of slots at a time. Both work without memory: at the end of a
//! process, and in the OOM killer. A walk sees every process that exists from its beginning to its
//! end, and may miss those that are added or removed meanwhile.
//!
//! **Known processes.** Between finding a process and taking the lock, another task may reap it. So
//! a change of a process' place checks under the lock whether the registry still has the process,
//! and only the first reaper removes it. A new process inherits its creator's place under the lock,
//! too: the creator may be moved while it forks. [`audit`] recounts everything.
//!
//! **Namespaces.** An ID is a number in the initial PID namespace. Its numbers in other namespaces
//! exist as long as its slot, and are found by namespace and number: see [`pidns`](super::pidns).

pub mod audit;
mod handle;
mod leader;
mod pid_limit;

use core::ops::Bound;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use arrayvec::ArrayVec;
use freehold_collections::{
    Arc, Map, Weak,
    reserve::{self, ArcMethods},
};

pub use handle::{IdHandle, IdRole};
use pid_limit::next_number;
pub use pid_limit::{pid_limit, set_pid_limit};

use super::pidns::{FIRST, Levels, Numbers, PidNs, PidView};
use super::process::Process;
use super::session::Session;
use super::{Pid, Task, pidns, try_with_current, users, with_current};
use crate::sync::{SpinLock, SpinLockGuard};
use crate::{Errno, Result};

/// IDs are below this, whatever the value of /proc/sys/kernel/pid_max.
pub const PID_MAX: Pid = 32_768;
/// After a wrap-around, IDs begin again here.
const RESERVED: Pid = 300;

/// Largest number of threads at one time, however much memory there is.
const TASKS_MOST: usize = 16_384;
/// Smallest limit for threads on a machine with little memory. They may not all fit.
const TASKS_LEAST: usize = 512;
/// The limit is one thread for this many frames of memory (Linux: `set_max_threads`).
const FRAMES_PER_TASK: u64 = 32;

/// The most slots that a search looks at while it holds the lock once.
const WALK_STEP: usize = 64;

/// Largest number of IDs that [`pids_from`] returns.
pub const PIDS_AT_ONCE: usize = 16;

/// A process' links in the family tree, as IDs; 0 ends a chain (no process of a program has it).
/// They change under the registry's lock only.
#[derive(Default)]
pub(super) struct Family {
    first_child: AtomicU32,
    last_child: AtomicU32,
    next_sibling: AtomicU32,
    previous_sibling: AtomicU32,
    /// Set when the process has ended and hands over its children: it gets no more.
    disowns: AtomicBool,
}

fn get(link: &AtomicU32) -> Pid {
    link.load(Ordering::Relaxed)
}

fn set(link: &AtomicU32, pid: Pid) {
    link.store(pid, Ordering::Relaxed);
}

/// The users of an ID.
#[derive(Default)]
struct IdSlot {
    process: Option<Arc<Process>>,
    task: Weak<Task>,
    /// Identifies this use of the ID; never reused. 0 before a task has the ID.
    serial: usize,
    /// Reserved for a task that is being made.
    reserved: bool,
    /// Number of processes whose group has this ID.
    members: usize,
    /// Number of processes whose session has this ID.
    session_members: usize,
    /// Its numbers below the initial namespace.
    levels: Option<Arc<Levels>>,
}

impl IdSlot {
    fn is_free(&self) -> bool {
        self.process.is_none()
            && self.task.strong_count() == 0
            && !self.reserved
            && self.members == 0
            && self.session_members == 0
    }
}

/// State that the registry's lock protects.
pub struct Registry {
    /// The IDs in use. A slot is made when its ID is allocated.
    slots: Map<Pid, IdSlot>,
    last: Pid,
    /// The IDs by their numbers below the initial namespace.
    below: Map<(PidView, Pid), Pid>,
    /// The processes by their groups: group and ID.
    grouped: Map<(Pid, Pid), ()>,
}

static REGISTRY: SpinLock<Registry> = SpinLock::new(Registry::empty());
static TASKS: AtomicUsize = AtomicUsize::new(0);
static FORKS: AtomicUsize = AtomicUsize::new(0);

/// Takes the lock.
pub(super) fn lock() -> SpinLockGuard<'static, Registry> {
    REGISTRY.lock()
}

/// Returns the largest number of threads at one time. With that many, enough memory is left.
pub fn tasks_max() -> usize {
    let fit = crate::mem::frames().managed_frames() / FRAMES_PER_TASK;
    (fit as usize).clamp(TASKS_LEAST, TASKS_MOST)
}

/// Returns the number of threads that exist.
pub fn count() -> usize {
    TASKS.load(Ordering::Relaxed)
}

/// Counts a new kernel task, which has no ID.
pub(super) fn count_kernel_task() {
    TASKS.fetch_add(1, Ordering::Relaxed);
}

/// Counts a kernel task that has ended.
pub(super) fn forget_kernel_task() {
    TASKS.fetch_sub(1, Ordering::Relaxed);
}

/// Returns the number of threads ever made.
pub fn forks() -> usize {
    FORKS.load(Ordering::Relaxed)
}

/// Returns the last number that was allocated in the caller's namespace.
pub fn last_pid() -> Pid {
    let own = try_with_current(|task| task.process().pid_ns().last()).flatten();
    own.unwrap_or_else(|| REGISTRY.lock().last)
}

/// Returns the process with this ID, including ended ones that were not waited for.
pub fn find(pid: Pid) -> Option<Arc<Process>> {
    REGISTRY.lock().slots.get(&pid)?.process.clone()
}

/// Returns the thread with this ID.
pub fn find_task(tid: Pid) -> Option<Arc<Task>> {
    REGISTRY.lock().slots.get(&tid)?.task.upgrade()
}

/// Makes the next number in the caller's namespace the first free one after `last`.
pub fn set_last_pid(last: Pid) {
    let mut registry = REGISTRY.lock();
    with_current(|task| match task.process().pid_ns() {
        namespace if namespace.is_initial() => registry.last = last,
        namespace => namespace.set_last(last),
    });
}

/// Returns the caller's PID namespace. If there is only the initial one, no search is needed.
#[inline]
fn own_view() -> PidView {
    if pidns::is_only_one() {
        return PidView::INITIAL;
    }
    try_with_current(|task| task.process().pid_view()).unwrap_or(PidView::INITIAL)
}

/// Returns the ID with this number in a namespace; in the initial one each number is an ID.
#[inline]
pub fn pid_in(view: PidView, number: Pid) -> Option<Pid> {
    if view.is_initial() { Some(number) } else { REGISTRY.lock().pid_below(view, number) }
}

/// Returns the ID with this number in the caller's namespace; in the initial one a number is an ID.
#[inline]
pub fn pid_by_number(number: Pid) -> Option<Pid> {
    pid_in(own_view(), number)
}

/// Returns the process with this number in the caller's namespace; see [`find`].
pub fn find_by_number(number: Pid) -> Option<Arc<Process>> {
    find(pid_by_number(number)?)
}

/// Returns the thread with this number in the caller's namespace.
pub fn find_task_by_number(number: Pid) -> Option<Arc<Task>> {
    find_task(pid_by_number(number)?)
}

/// Returns the number of an ID in a namespace; 0 if it has none there.
#[inline]
pub fn number_in(view: PidView, pid: Pid) -> Pid {
    if view.is_initial() { pid } else { number_below(view, pid) }
}

#[cold]
fn number_below(view: PidView, pid: Pid) -> Pid {
    numbers_of(pid).in_view(view)
}

/// Returns the numbers of an ID in its namespace and those above. An unused ID has only itself.
pub fn numbers_of(pid: Pid) -> Numbers {
    Numbers::new(pid, REGISTRY.lock().slots.get(&pid).and_then(|slot| slot.levels.clone()))
}

/// Returns the number of an ID in the caller's namespace, to be reported; 0 for none.
#[inline]
pub fn shown(pid: Pid) -> Pid {
    number_in(own_view(), pid)
}

/// The first processes with a number of `least` or more in a namespace, ascending: number and ID.
/// There are none where no process is left. One search finds up to [`PIDS_AT_ONCE`].
pub fn pids_from(view: PidView, least: Pid) -> ArrayVec<(Pid, Pid), PIDS_AT_ONCE> {
    let mut pids = ArrayVec::new();
    let mut at = Some(least);
    while let Some(from) = at.take().filter(|_| pids.is_empty()) {
        let registry = REGISTRY.lock();
        if view.is_initial() {
            for (looked, (&pid, slot)) in registry.slots.iter_from(Bound::Included(&from)).enumerate() {
                if pids.is_full() {
                    break;
                }
                if looked == WALK_STEP {
                    at = Some(pid);
                    break;
                }
                if slot.process.is_some() {
                    pids.push((pid, pid));
                }
            }
            continue;
        }
        let below = registry.below.iter_from(Bound::Included(&(view, from)));
        let own = below.take_while(|&(&(of, _), _)| of == view);
        for (looked, (&(_, number), &pid)) in own.enumerate() {
            if pids.is_full() {
                break;
            }
            if looked == WALK_STEP {
                at = Some(number);
                break;
            }
            if registry.process(pid).is_some() {
                pids.push((number, pid));
            }
        }
    }
    pids
}

/// Visits all processes by ID, ended ones that were not waited for included. Allocates nothing.
pub fn processes() -> ProcessWalk {
    ProcessWalk { at: 0, group: None }
}

/// Visits the processes in a group, by ID. Allocates nothing.
pub fn group_members(group: Pid) -> ProcessWalk {
    ProcessWalk { at: 0, group: Some(group) }
}

/// Calls `f` for all processes, by ID.
pub fn for_each(mut f: impl FnMut(&Arc<Process>)) {
    processes().for_each(|process| f(&process));
}

/// A walk over processes, without a lock between two of them; see the module's head.
pub struct ProcessWalk {
    /// The next ID to visit.
    at: Pid,
    /// Only members of this group.
    group: Option<Pid>,
}

impl ProcessWalk {
    /// Visits up to [`WALK_STEP`] slots under the lock.
    fn step(&mut self, registry: &Registry) -> Option<Arc<Process>> {
        if let Some(group) = self.group {
            let found = registry.member_from(group, self.at);
            self.at = found.map_or(PID_MAX, |member| member.pid + 1);
            return found.cloned();
        }
        for (looked, (&pid, slot)) in registry.slots.iter_from(Bound::Included(&self.at)).enumerate() {
            if looked == WALK_STEP {
                self.at = pid;
                return None;
            }
            if let Some(process) = &slot.process {
                self.at = pid + 1;
                return Some(process.clone());
            }
        }
        self.at = PID_MAX;
        None
    }
}

impl Iterator for ProcessWalk {
    type Item = Arc<Process>;

    fn next(&mut self) -> Option<Arc<Process>> {
        while self.at < PID_MAX {
            let found = self.step(&REGISTRY.lock());
            if found.is_some() {
                return found;
            }
        }
        None
    }
}

impl Registry {
    /// Returns a registry without entries.
    pub const fn empty() -> Self {
        Self { slots: Map::new(), last: 0, below: Map::new(), grouped: Map::new() }
    }
    /// Returns an unused ID, with a number for each of `levels` and in the initial namespace.
    /// `wanted` has the requested numbers, the innermost first.
    ///
    /// # Errors
    /// `EAGAIN` if there is none; `ENOMEM`, also if a namespace is ending, or has no first process
    /// yet; `EEXIST` and `EINVAL` for a requested number that is in use or invalid.
    pub fn allocate(&mut self, levels: Option<Arc<Levels>>, wanted: &[Pid]) -> Result<Numbers> {
        // Ended processes that were not waited for count too, as on Linux.
        if TASKS.load(Ordering::Relaxed).max(self.slots.len()) >= tasks_max() {
            return Err(Errno::EAGAIN);
        }
        let depth = levels.as_ref().map_or(0, |levels| levels.iter().count());
        let id = match wanted.get(depth) {
            Some(id) if self.slots.contains_key(id) => return Err(Errno::EEXIST),
            Some(&id) => id,
            None => {
                self.last = next_number(self.last, |id| self.slots.contains_key(&id))?;
                self.last
            }
        };
        let slot = IdSlot { reserved: true, levels: levels.clone(), ..IdSlot::default() };
        self.slots.try_insert(id, slot)?;
        if let Some(levels) = &levels
            && let Err(error) = self.give_numbers(id, levels, wanted)
        {
            self.change(id, |slot| slot.reserved = false);
            return Err(error);
        }
        Ok(Numbers::new(id, levels))
    }
    /// Allocates an ID's numbers below the initial namespace. After a failure the slot has those
    /// allocated so far.
    fn give_numbers(&mut self, id: Pid, levels: &Levels, wanted: &[Pid]) -> Result<()> {
        let depth = levels.iter().count();
        for (index, (namespace, _)) in levels.iter().enumerate() {
            let number = self.free_number(namespace, wanted.get(depth - 1 - index).copied())?;
            self.below.try_insert((namespace.view(), number), id)?;
            levels.set(index, number);
        }
        Ok(())
    }
    /// Returns a free number in a namespace below the initial one.
    fn free_number(&self, namespace: &PidNs, wanted: Option<Pid>) -> Result<Pid> {
        let is_taken = |number| self.below.contains_key(&(namespace.view(), number));
        if namespace.is_ending() {
            return Err(Errno::ENOMEM);
        }
        match wanted {
            Some(number) if number != FIRST && !namespace.has_init() => Err(Errno::EINVAL),
            Some(number) if is_taken(number) => Err(Errno::EEXIST),
            Some(number) => Ok(number),
            None if !namespace.has_init() => {
                if is_taken(FIRST) {
                    Err(Errno::ENOMEM)
                } else {
                    Ok(FIRST)
                }
            }
            None => {
                let number = next_number(namespace.last().unwrap_or(0).max(FIRST), is_taken)?;
                namespace.set_last(number);
                Ok(number)
            }
        }
    }
    /// Returns the ID with this number in a namespace below the initial one.
    pub fn pid_below(&self, view: PidView, number: Pid) -> Option<Pid> {
        self.below.get(&(view, number)).copied()
    }
    /// Returns the sum of the numbers in use in all namespaces below the initial one.
    pub fn numbers_below(&self) -> usize {
        self.below.len()
    }
    /// Releases an ID that no task has used.
    pub fn release(&mut self, pid: Pid) {
        self.change(pid, |slot| slot.reserved = false);
    }
    /// Enters a task under its ID.
    pub fn add_task(&mut self, task: &Arc<Task>) {
        TASKS.fetch_add(1, Ordering::Relaxed);
        let serial = FORKS.fetch_add(1, Ordering::Relaxed) + 1;
        self.change(task.tid(), |slot| {
            slot.serial = serial;
            slot.task = task.downgrade();
            slot.reserved = false;
        });
    }
    /// Removes a task that has ended.
    pub fn remove_task(&mut self, tid: Pid) {
        TASKS.fetch_sub(1, Ordering::Relaxed);
        self.change(tid, |slot| slot.task = reserve::no_weak());
    }
    /// Enters a process, its group and its session, and makes it its parent's child. One with a
    /// `maker` is in the maker's current group and session. The caller drops the result without the
    /// lock.
    ///
    /// # Errors
    /// `ENOMEM`, also where the process' namespace is ending; nothing is known of it then.
    pub fn add_process(
        &mut self,
        process: &Arc<Process>,
        maker: Option<&Process>,
    ) -> Result<Option<Arc<Session>>> {
        let namespace = process.pid_ns();
        if namespace.is_ending() {
            return Err(Errno::ENOMEM);
        }
        let group = maker.map_or_else(|| process.group(), Process::group);
        self.grouped.try_insert((group, process.pid), ())?;
        if process.number() == FIRST {
            namespace.set_init(process.pid);
        }
        let outdated = maker.map(|maker| {
            process.group_id.store(group, Ordering::Release);
            let session = maker.session();
            core::mem::replace(&mut *process.session.lock(), session)
        });
        self.change(process.pid, |slot| slot.process = Some(process.clone()));
        self.change(group, |slot| slot.members += 1);
        self.change(process.session().id, |slot| slot.session_members += 1);
        if let Some(parent) = process.parent() {
            self.adopt(process, &parent);
        }
        Ok(outdated)
    }
    /// Returns whether the process was entered and has not been waited for.
    pub fn knows(&self, process: &Process) -> bool {
        self.process(process.pid).is_some_and(|known| core::ptr::eq(&raw const **known, process))
    }
    /// Removes a process that was waited for. The caller drops the result without the lock; `None`
    /// if another task was first.
    #[must_use]
    pub fn remove_process(&mut self, process: &Process) -> Option<Arc<Process>> {
        if !self.knows(process) {
            return None;
        }
        let mut removed = None;
        self.unlink(process);
        self.grouped.remove(&(process.group(), process.pid));
        self.change(process.group(), |slot| slot.members -= 1);
        self.change(process.session().id, |slot| slot.session_members -= 1);
        process.cgroup.reaped(|| process.cgroup_usage());
        users::forget_threads(process);
        self.change(process.pid, |slot| removed = slot.process.take());
        removed
    }
    /// Returns the process with this ID.
    pub fn process(&self, pid: Pid) -> Option<&Arc<Process>> {
        self.slots.get(&pid)?.process.as_ref()
    }
    /// Whether there is a group with this ID.
    pub fn has_group(&self, group: Pid) -> bool {
        self.slots.get(&group).is_some_and(|slot| slot.members > 0)
    }
    /// The processes in a group, by ID.
    pub fn members(&self, group: Pid) -> impl Iterator<Item = &Arc<Process>> {
        let mut from = 0;
        core::iter::from_fn(move || {
            let member = self.member_from(group, from)?;
            from = member.pid + 1;
            Some(member)
        })
    }
    /// The first process of a group whose ID is `from` or a larger one.
    fn member_from(&self, group: Pid, from: Pid) -> Option<&Arc<Process>> {
        let (&(of, pid), ()) = self.grouped.first_from(Bound::Included(&(group, from)))?;
        if of == group { self.process(pid) } else { None }
    }
    /// Returns the children of a process, the oldest first, with ended ones not waited for.
    pub fn children(&self, parent: &Process) -> impl Iterator<Item = &Arc<Process>> {
        let mut next = get(&parent.family.first_child);
        core::iter::from_fn(move || {
            let child = self.process(next)?;
            next = get(&child.family.next_sibling);
            Some(child)
        })
    }
    /// Removes one child of `process`, which has ended, and gives it to the next reaper. `None` if
    /// none is left: from the first call on, `process` gets no more.
    pub fn hand_over_child(&mut self, process: &Process) -> Option<Arc<Process>> {
        process.family.disowns.store(true, Ordering::Relaxed);
        let child = self.children(process).next()?.clone();
        let reaper = self.reaper_of(process)?;
        self.unlink(&child);
        self.adopt(&child, &reaper);
        Some(child)
    }
    /// Returns the nearest ancestor in the process' namespace that adopts orphans, or the
    /// namespace's init, or the kernel's.
    fn reaper_of(&self, process: &Process) -> Option<Arc<Process>> {
        let namespace = process.pid_ns();
        let lives = |candidate: &Process| !candidate.family.disowns.load(Ordering::Relaxed);
        let mut ancestor = process.parent();
        while let Some(candidate) = ancestor.filter(|candidate| candidate.pid_ns() == namespace) {
            if candidate.is_subreaper.load(Ordering::Relaxed) && lives(&candidate) {
                return Some(candidate);
            }
            ancestor = candidate.parent();
        }
        let init = self.process(namespace.init()).filter(|init| lives(init));
        init.or_else(|| self.process(super::INIT)).cloned()
    }
    /// Prevents new processes in a namespace from now on.
    pub fn end_namespace(&mut self, namespace: &PidNs) {
        namespace.set_ending();
    }
    /// Makes `child` the youngest child of `parent`, or of its reaper if `parent` has ended.
    fn adopt(&self, child: &Process, parent: &Arc<Process>) {
        let disowns = parent.family.disowns.load(Ordering::Relaxed);
        let reaper = if disowns { self.reaper_of(parent) } else { None };
        let parent = reaper.as_ref().unwrap_or(parent);
        *child.parent.lock() = parent.downgrade();
        let last = get(&parent.family.last_child);
        match self.process(last) {
            Some(last) => set(&last.family.next_sibling, child.pid),
            None => set(&parent.family.first_child, child.pid),
        }
        set(&parent.family.last_child, child.pid);
        set(&child.family.previous_sibling, last);
        set(&child.family.next_sibling, 0);
    }
    /// Removes a process from its parent's children.
    fn unlink(&self, child: &Process) {
        let Some(parent) = child.parent() else { return };
        let previous = get(&child.family.previous_sibling);
        let next = get(&child.family.next_sibling);
        match self.process(previous) {
            Some(previous) => set(&previous.family.next_sibling, next),
            None => set(&parent.family.first_child, next),
        }
        match self.process(next) {
            Some(next) => set(&next.family.previous_sibling, previous),
            None => set(&parent.family.last_child, previous),
        }
        set(&child.family.previous_sibling, 0);
        set(&child.family.next_sibling, 0);
    }
    /// Move a process that the registry knows to a group that has members, or to its own.
    ///
    /// # Errors
    /// `ENOMEM`; it stays where it is.
    pub fn set_group(&mut self, process: &Process, group: Pid) -> Result<()> {
        if process.group() == group {
            return Ok(());
        }
        self.grouped.try_insert((group, process.pid), ())?;
        self.change(group, |slot| slot.members += 1);
        let old = process.group_id.swap(group, Ordering::AcqRel);
        self.grouped.remove(&(old, process.pid));
        self.change(old, |slot| slot.members -= 1);
        Ok(())
    }
    /// Moves a process of the registry to a new session.
    pub fn set_session(&mut self, process: &Process, session: Arc<Session>) -> Arc<Session> {
        self.change(session.id, |slot| slot.session_members += 1);
        let old = core::mem::replace(&mut *process.session.lock(), session);
        self.change(old.id, |slot| slot.session_members -= 1);
        old
    }
    /// Returns whether no member of the group except `leaver` has a parent outside of the group in
    /// the same session, and could continue it.
    pub fn is_orphaned(&self, group: Pid, leaver: Option<Pid>) -> bool {
        !self.members(group).any(|member| {
            Some(member.pid) != leaver
                && member.exit_status().is_none()
                && member.parent().is_some_and(|parent| {
                    parent.group() != group && parent.session().id == member.session().id
                })
        })
    }

    /// Changes the slot of an ID in use, and removes it if the ID is no longer used.
    fn change(&mut self, pid: Pid, f: impl FnOnce(&mut IdSlot)) {
        let slot = self.slots.get_mut(&pid).expect("an ID in use has a slot");
        f(slot);
        if slot.is_free()
            && let Some(slot) = self.slots.remove(&pid)
        {
            for (namespace, number) in slot.levels.iter().flat_map(|levels| levels.iter()) {
                // A number that was not allocated is 0, which has no entry.
                self.below.remove(&(namespace.view(), number));
            }
        }
    }
}

/// The session of a group, if the group has members.
pub fn group_session(group: Pid) -> Option<Pid> {
    let registry = REGISTRY.lock();
    registry.members(group).next().map(|member| member.session().id)
}

/// See [`Registry::is_orphaned`].
pub fn group_is_orphaned(group: Pid) -> bool {
    REGISTRY.lock().is_orphaned(group, None)
}

/// Whether a process has children.
pub fn has_children(parent: &Process) -> bool {
    get(&parent.family.first_child) != 0
}
