//! The tree of groups: making and removing them, and their numbers.

use core::ops::Bound;
use core::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use freehold_collections::{Arc, Map, Receiver};

use super::control::{begin, end};
use super::group::{Group, LEVELS_MOST, Notice, add, sub};
use crate::sync::{SpinLock, SpinLockGuard};
use crate::{Errno, Result, hw, sched};

/// Largest number of groups on any machine: their numbers have 16 bits.
const GROUPS_MOST: u64 = 65_000;
/// The limit of groups on a machine with little memory.
const GROUPS_LEAST: u64 = 1_024;
/// Frames of memory per group, from which the limit is computed.
const FRAMES_PER_GROUP: u64 = 4;

/// The state that the lock protects.
pub(super) struct GroupTree {
    /// The groups by number, without the root.
    groups: Map<u16, Arc<Group>>,
    numbers: GroupNumbers,
    last_id: u64,
}

/// The numbers that groups have, so that a free one is found in 1,024 steps.
struct GroupNumbers {
    used: [u64; WORDS],
    last: u16,
}

const WORDS: usize = (1 << 16) / u64::BITS as usize;

impl GroupNumbers {
    /// Only the root's number, 0, is used.
    const fn new() -> Self {
        let mut used = [0; WORDS];
        used[0] = 1;
        Self { used, last: 0 }
    }

    /// Returns the first free number after the last one that was taken.
    fn free(&self) -> Option<u16> {
        let next = self.last.wrapping_add(1);
        let (word, bit) = (usize::from(next / 64), next % 64);
        // The first word is looked at twice: its lower bits come last.
        (0..=WORDS).find_map(|step| {
            let at = (word + step) % WORDS;
            let passed = if step == 0 { (1 << bit) - 1 } else { 0 };
            let free = !(self.used[at] | passed);
            (free != 0).then(|| (at as u32 * u64::BITS + free.trailing_zeros()) as u16)
        })
    }

    const fn take(&mut self, number: u16) {
        self.used[number as usize / 64] |= 1 << (number % 64);
        self.last = number;
    }

    const fn release(&mut self, number: u16) {
        self.used[number as usize / 64] &= !(1 << (number % 64));
    }
}

static TREE: SpinLock<GroupTree> =
    SpinLock::new(GroupTree { groups: Map::new(), numbers: GroupNumbers::new(), last_id: ROOT_ID });
static ROOT: spin::Once<Arc<Group>> = spin::Once::new();
const ROOT_ID: u64 = 1;

/// Takes the lock.
pub(super) fn lock() -> SpinLockGuard<'static, GroupTree> {
    TREE.lock()
}

/// Returns the root group.
pub fn root() -> &'static Arc<Group> {
    ROOT.call_once(|| Group::new(ROOT_ID, b"", None))
}

/// Returns the largest number of groups at one time.
fn groups_max() -> u64 {
    (hw::frames().managed_frames() / FRAMES_PER_GROUP).clamp(GROUPS_LEAST, GROUPS_MOST)
}

impl GroupTree {
    /// Returns the group with a number, which the caller knows to be held.
    pub fn group(&self, number: u16) -> &Arc<Group> {
        match number {
            0 => root(),
            number => self.groups.get(&number).expect("a number that is held has a group"),
        }
    }

    /// Returns how many groups have a number.
    pub fn len(&self) -> usize {
        self.groups.len()
    }

    /// Releases a reference. Groups without references lose their numbers.
    pub fn release(&mut self, group: &Arc<Group>) {
        let mut at = Some(group);
        while let Some(group) = at.filter(|group| !group.is_root()) {
            if sub(&group.holds, 1) != 0 {
                return;
            }
            // The caller's reference keeps the group, and the group keeps those above it.
            self.groups.remove(&group.number());
            self.numbers.release(group.number());
            group.path().skip(1).for_each(|above| {
                sub(&above.dying, 1);
            });
            at = group.parent();
        }
    }
}

/// Makes a group below `parent`.
///
/// # Errors
/// `ENODEV` for a removed parent, `EAGAIN` for a limit of the groups above, `ENOSPC` for too many
/// groups, `ENOMEM`.
pub fn make(parent: &Arc<Group>, name: &[u8]) -> Result<Arc<Group>> {
    let id = {
        let mut tree = lock();
        tree.last_id += 1;
        tree.last_id
    };
    let new = Group::new(id, name, Some(parent));
    let mut tree = lock();
    if parent.is_removed() {
        return Err(Errno::ENODEV);
    }
    let fits = |(above, depth): (&Group, u32)| {
        above.descendants.load(Ordering::Relaxed) < above.max_descendants.load(Ordering::Relaxed)
            && depth <= above.max_depth.load(Ordering::Relaxed)
    };
    if new.level() > LEVELS_MOST || !parent.path().zip(1..).all(fits) {
        return Err(Errno::EAGAIN);
    }
    if tree.len() as u64 >= groups_max() {
        return Err(Errno::ENOSPC);
    }
    let number = tree.numbers.free().ok_or(Errno::ENOSPC)?;
    new.number.store(number, Ordering::Relaxed);
    tree.groups.try_insert(number, new.clone())?;
    tree.numbers.take(number);
    add(&parent.holds, 1);
    add(&parent.children, 1);
    parent.path().for_each(|above| {
        add(&above.descendants, 1);
    });
    new.settle();
    drop(tree);
    // A new group has no watcher yet.
    Notice::ALL.into_iter().for_each(|notice| {
        new.take_untold(notice);
    });
    begin(&new, parent.passes_on()).or_else(|error| remove(&new).and(Err(error)))?;
    Ok(new)
}

/// Removes a group.
///
/// # Errors
/// `ENODEV` if it was removed before, `EBUSY` if it has processes or groups below.
pub fn remove(group: &Arc<Group>) -> Result<()> {
    let mut tree = lock();
    if group.is_removed() {
        return Err(Errno::ENODEV);
    }
    let parent = group.parent().ok_or(Errno::EBUSY)?;
    if group.is_populated() || group.children.load(Ordering::Relaxed) != 0 {
        return Err(Errno::EBUSY);
    }
    group.is_removed.store(true, Ordering::Relaxed);
    for controller in group.passes_on().indexes() {
        sub(&parent.passed_on[controller], 1);
    }
    sub(&parent.children, 1);
    parent.path().for_each(|above| {
        sub(&above.descendants, 1);
        add(&above.dying, 1);
    });
    tree.release(group);
    drop(tree);
    end(group, group.controllers());
    Ok(())
}

/// Returns the group with a number, if there is one.
pub fn find(number: u16) -> Option<Arc<Group>> {
    lock().groups.get(&number).cloned()
}

/// Calls `visit` with every group but the root until it fails. The groups are collected a few at a
/// time; `visit` runs without the tree's lock.
fn for_each(mut visit: impl FnMut(&Arc<Group>) -> Result<()>) -> Result<()> {
    let mut next = Some(1);
    while let Some(from) = next {
        let some: ArrayVec<_, STEP> = {
            let tree = lock();
            tree.groups.iter_from(Bound::Included(&from)).take(STEP).map(|(_, group)| group.clone()).collect()
        };
        next = some.last().and_then(|last| last.number().checked_add(1));
        some.iter().try_for_each(&mut visit)?;
        sched::rest();
    }
    Ok(())
}

/// Like [`for_each`], for the children of `parent`. The caller excludes that groups are made and
/// removed meanwhile.
pub(super) fn for_each_child(parent: &Group, mut visit: impl FnMut(&Arc<Group>) -> Result<()>) -> Result<()> {
    for_each(|group| {
        let is_child = group.parent().is_some_and(|above| above.id() == parent.id());
        if is_child && !group.is_removed() { visit(group) } else { Ok(()) }
    })
}

impl Group {
    /// Keeps the group's number beyond the group's removal, for a charge that names it. Another
    /// reference of the caller keeps the group meanwhile.
    pub fn hold(&self) {
        let _tree = lock();
        add(&self.holds, 1);
    }

    /// Releases the reference of [`hold`](Self::hold).
    pub fn release(self: &Receiver<Self>) {
        lock().release(self);
    }

    /// Sets cgroup.freeze. Afterwards the caller makes all processes in the group check it.
    ///
    /// # Errors
    /// `ENODEV` if the group was removed.
    pub fn set_freezes(&self, freezes: Freeze) -> Result<()> {
        let tree = lock();
        if self.is_removed() {
            return Err(Errno::ENODEV);
        }
        self.freezes.store(freezes == Freeze::Yes, Ordering::SeqCst);
        drop(tree);
        // Each group reports its state anew.
        for_each(|group| {
            if group.is_in(self) {
                let tree = lock();
                group.settle();
                drop(tree);
                tell(group);
            }
            Ok(())
        })
    }
}

/// Number of groups that are visited in one step.
const STEP: usize = 16;

/// The values of cgroup.freeze.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Freeze {
    /// Tasks are stopped.
    Yes,
    /// Tasks run.
    No,
}

/// Whether a group is `above` or below it. `number` is the group's number, which something holds.
pub fn is_below(number: u16, above: &Group) -> bool {
    if above.is_root() {
        return true;
    }
    number != 0 && lock().groups.get(&number).is_some_and(|group| group.is_in(above))
}

/// How many groups have a number, without the root.
pub fn count() -> usize {
    lock().len()
}

/// Calls to higher layers.
pub trait Observer: Sync {
    /// Processes in a group and below may now have another payer ([`Group::payer`]). Task context;
    /// the caller holds no lock of this layer.
    fn payers_changed(&self, group: &Group);
    /// Quotas of CPU time are about to be set. Task context; the caller holds no lock of this
    /// layer.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn quotas_begin(&self) -> Result<()>;
    /// Processes in a group and below may have another quota of CPU time. Context as for
    /// `quotas_begin`.
    fn quotas_changed(&self, group: &Group);
    /// A file of a group changed. Task context; the caller holds no lock of this layer.
    fn changed(&self, group: &Group, notice: Notice);
}

static OBSERVER: spin::Once<&'static dyn Observer> = spin::Once::new();

/// Sets the observer; once at boot.
pub fn set_observer(observer: &'static dyn Observer) {
    OBSERVER.call_once(|| observer);
}

/// Tells the observer that processes in `group` and below may have another payer.
pub(super) fn tell_payers(group: &Group) {
    if let Some(observer) = OBSERVER.get() {
        observer.payers_changed(group);
    }
}

/// Tells the observer that quotas of CPU time are about to be set.
///
/// # Errors
/// `ENOMEM`.
pub(super) fn begin_quotas() -> Result<()> {
    OBSERVER.get().map_or(Ok(()), |observer| observer.quotas_begin())
}

/// Tells the observer that the quota of `group` changed. Threads that wait in the group or below
/// check their quota again.
pub(super) fn tell_quota(group: &Group) {
    // `for_each` fails only if its closure does, and this one does not.
    let _ = for_each(|below| {
        if below.is_in(group) {
            below.cpu.wake();
        }
        Ok(())
    });
    if let Some(observer) = OBSERVER.get() {
        observer.quotas_changed(group);
    }
}

/// Reports all changes in `group` and above. The caller holds no lock of this layer.
pub fn tell(group: &Group) {
    for group in group.path() {
        for notice in Notice::ALL {
            if group.take_untold(notice) {
                group.changed.wake_all();
                if let Some(observer) = OBSERVER.get() {
                    observer.changed(group, notice);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_round_and_every_one_but_the_roots_is_found() {
        let mut numbers = GroupNumbers::new();
        for expected in 1..=u16::MAX {
            assert_eq!(numbers.free(), Some(expected));
            numbers.take(expected);
        }
        assert_eq!(numbers.free(), None);
        for last in [0, 1, 63, 64, 65, 40_000, u16::MAX] {
            for only in [1, 62, 63, 64, 127, 39_999, 40_001, u16::MAX] {
                numbers.release(only);
                numbers.last = last;
                assert_eq!(numbers.free(), Some(only), "after {last}");
                numbers.take(only);
            }
        }
        numbers.release(7);
        numbers.release(9);
        numbers.last = 7;
        assert_eq!(numbers.free(), Some(9), "a number is not used again at once");
    }
}
