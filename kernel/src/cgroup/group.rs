//! One control group.
//!
//! All counts change under the lock of the [tree](super::tree). They are atomics so that they can
//! be read without the lock.

use core::iter;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use freehold_collections::{Arc, reserve};
use freehold_frame::AtomicAccountId;

use super::control::ControllerSet;
use super::cpu::CpuQuota;
use super::member::CpuTime;
use super::pids::Pids;
use crate::sync::{SpinLock, WaitQueue};

/// Largest number of levels below the root: a walk to the root takes at most so many steps.
pub const LEVELS_MOST: u16 = 128;

/// The value of cgroup.max.* for no limit.
pub const NO_LIMIT: u32 = u32::MAX;

/// A file that reports changes by poll(2) and inotify(7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// cgroup.events
    Events,
    /// pids.events
    Pids,
    /// pids.events.local
    PidsLocal,
    /// memory.events
    Memory,
    /// memory.events.local
    MemoryLocal,
}

impl Notice {
    /// All.
    pub const ALL: [Self; 5] = [Self::Events, Self::Pids, Self::PidsLocal, Self::Memory, Self::MemoryLocal];
}

/// The changes of a file.
#[derive(Default)]
struct Changes {
    count: AtomicU64,
    /// Whether a change has not been reported yet.
    is_untold: AtomicBool,
}

/// Bits of [`Group::told`].
const POPULATED: u8 = 1;
const FROZEN: u8 = 2;

/// A control group.
pub struct Group {
    id: u64,
    pub(super) number: AtomicU16,
    level: u16,
    name: Arc<[u8]>,
    parent: Option<Arc<Group>>,
    pub(super) is_removed: AtomicBool,
    /// References to the group's number: 1 until the group is removed, and 1 for each member, child
    /// group and charge.
    pub(super) holds: AtomicU32,
    /// Child groups that are not removed.
    pub(super) children: AtomicU32,
    /// Groups below at any level that are not removed.
    pub(super) descendants: AtomicU32,
    /// Removed groups below that still have their number.
    pub(super) dying: AtomicU32,
    /// The group's own processes that have not ended, forks under way included.
    pub(super) processes: AtomicU32,
    /// 1 if the group has such processes, plus 1 for each populated child group.
    pub(super) populated: AtomicU32,
    /// Tasks in the group and below, until their parents wait for them.
    pub(super) tasks: AtomicU32,
    /// Tasks in the group and below that have not ended.
    pub(super) living: AtomicU32,
    /// Tasks of `living` that are stopped because of cgroup.freeze.
    pub(super) frozen: AtomicU32,
    /// The setting cgroup.freeze.
    pub(super) freezes: AtomicBool,
    /// Controllers that are passed on to the child groups.
    pub(super) subtree: AtomicU8,
    /// How often each controller was turned on for the child groups.
    pub(super) epochs: [AtomicU32; ControllerSet::COUNT],
    /// For each controller, the number of child groups that pass it on.
    pub(super) passed_on: [AtomicU32; ControllerSet::COUNT],
    pub(super) max_descendants: AtomicU32,
    pub(super) max_depth: AtomicU32,
    /// How often all processes in the group were killed.
    pub(super) kills: AtomicU64,
    told: AtomicU8,
    changes: [Changes; Notice::ALL.len()],
    /// The queue that is woken when one of the [`Notice`]s changed.
    pub changed: Arc<WaitQueue>,
    pub(super) pids: Pids,
    /// The group's quota of CPU time.
    pub cpu: CpuQuota,
    /// The group's memory account; the root account if the memory controller does not act.
    pub(super) account: AtomicAccountId,
    /// CPU time of members, here and below, that left the group or were waited for.
    pub(super) past: SpinLock<CpuTime>,
    /// How often a value was added to `past`.
    pub(super) departures: AtomicU64,
    /// The largest CPU time that was shown.
    pub(super) shown: SpinLock<CpuTime>,
}

impl Group {
    /// Makes a group that is not in the tree yet.
    pub(super) fn new(id: u64, name: &[u8], parent: Option<&Arc<Group>>) -> Arc<Self> {
        reserve::arc(Self {
            id,
            number: AtomicU16::new(0),
            level: parent.map_or(0, |parent| parent.level + 1),
            name: reserve::slice(name),
            parent: parent.cloned(),
            is_removed: AtomicBool::new(false),
            holds: AtomicU32::new(1),
            children: AtomicU32::new(0),
            descendants: AtomicU32::new(0),
            dying: AtomicU32::new(0),
            processes: AtomicU32::new(0),
            populated: AtomicU32::new(0),
            tasks: AtomicU32::new(0),
            living: AtomicU32::new(0),
            frozen: AtomicU32::new(0),
            freezes: AtomicBool::new(false),
            subtree: AtomicU8::new(0),
            epochs: [const { AtomicU32::new(0) }; ControllerSet::COUNT],
            passed_on: [const { AtomicU32::new(0) }; ControllerSet::COUNT],
            max_descendants: AtomicU32::new(NO_LIMIT),
            max_depth: AtomicU32::new(NO_LIMIT),
            kills: AtomicU64::new(0),
            told: AtomicU8::new(0),
            changes: Default::default(),
            changed: reserve::arc(WaitQueue::new()),
            pids: Pids::default(),
            cpu: CpuQuota::new(),
            account: AtomicAccountId::default(),
            past: SpinLock::new(CpuTime::default()),
            departures: AtomicU64::new(0),
            shown: SpinLock::new(CpuTime::default()),
        })
    }

    /// The group's unique number, which is never reused; the root's is 1.
    pub const fn id(&self) -> u64 {
        self.id
    }
    /// The group's number. No other group has it as long as something [holds](Self::hold) it; the
    /// root's is 0.
    pub fn number(&self) -> u16 {
        self.number.load(Ordering::Relaxed)
    }
    /// The number of groups on the way to the root.
    pub const fn level(&self) -> u16 {
        self.level
    }
    /// The group's name; the root's is empty.
    pub const fn name(&self) -> &Arc<[u8]> {
        &self.name
    }
    /// The parent group; the root has none.
    pub const fn parent(&self) -> Option<&Arc<Group>> {
        self.parent.as_ref()
    }
    /// Whether the group is the root.
    pub const fn is_root(&self) -> bool {
        self.parent.is_none()
    }
    /// Whether the group was removed.
    pub fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Relaxed)
    }
    /// Returns the group and the groups on the way to the root, the root included.
    pub fn path(&self) -> impl Iterator<Item = &Group> {
        iter::successors(Some(self), |group| group.parent.as_deref())
    }
    /// Like [`Self::path`], without the root, which counts nothing.
    pub(super) fn counted(&self) -> impl Iterator<Item = &Group> {
        self.path().filter(|group| !group.is_root())
    }
    /// The group's ancestor at a level.
    pub fn ancestor(&self, level: u16) -> Option<&Group> {
        self.path().find(|group| group.level == level)
    }
    /// Whether the group is `above`, or a group below `above`.
    pub fn is_in(&self, above: &Group) -> bool {
        self.ancestor(above.level).is_some_and(|ancestor| ancestor.id == above.id)
    }
    /// Writes the group's path as a process sees it whose namespace begins at `root`. Components
    /// above `root` are "..".
    pub fn write_path(&self, root: &Group, mut push: impl FnMut(&[u8])) {
        let mut common = self.level.min(root.level);
        while self.ancestor(common).map(Group::id) != root.ancestor(common).map(Group::id) {
            common -= 1;
        }
        (common..root.level).for_each(|_| push(b"/.."));
        for level in common + 1..=self.level {
            if let Some(part) = self.ancestor(level) {
                push(b"/");
                push(&part.name);
            }
        }
        if self.level == common && common == root.level {
            push(b"/");
        }
    }
    /// The controllers that act on the group.
    pub fn controllers(&self) -> ControllerSet {
        self.parent.as_ref().map_or(ControllerSet::ALL, |parent| parent.passes_on())
    }
    /// The controllers that act on the child groups.
    pub fn passes_on(&self) -> ControllerSet {
        ControllerSet::from_bits_truncate(self.subtree.load(Ordering::Relaxed))
    }
    /// Whether the group, or a group below, has a process that has not ended.
    pub fn is_populated(&self) -> bool {
        self.populated.load(Ordering::Relaxed) != 0
    }
    /// Whether the group itself may have a process that has not ended. The root does not count its
    /// own.
    pub fn may_have_processes(&self) -> bool {
        self.is_root() || self.processes.load(Ordering::Relaxed) != 0
    }
    /// Whether the group, or a group below, may have a process that was not waited for.
    pub fn may_have_members(&self) -> bool {
        self.is_root() || self.tasks.load(Ordering::Relaxed) != 0
    }
    /// Whether the group's tasks must be stopped: cgroup.freeze is set for it or for a group above.
    pub fn is_freezing(&self) -> bool {
        self.path().any(|group| group.freezes.load(Ordering::SeqCst))
    }
    /// Whether all tasks of the group are stopped.
    pub fn is_frozen(&self) -> bool {
        self.is_freezing() && self.frozen.load(Ordering::Relaxed) == self.living.load(Ordering::Relaxed)
    }
    /// The setting cgroup.freeze.
    pub fn freezes(&self) -> bool {
        self.freezes.load(Ordering::Relaxed)
    }
    /// Returns how often all processes of the group were killed.
    pub fn kills(&self) -> u64 {
        self.path().map(|group| group.kills.load(Ordering::SeqCst)).sum()
    }
    /// Counts a kill of all processes, so that a concurrent fork notices it. The caller looks for
    /// processes afterwards.
    pub fn begin_kill(&self) {
        self.kills.fetch_add(1, Ordering::SeqCst);
    }
    /// Returns how often a file changed.
    pub fn changes(&self, notice: Notice) -> u64 {
        self.changes[notice as usize].count.load(Ordering::SeqCst)
    }
    /// Notes that a file changed. The holder of the tree's lock [reports](super::tell) it
    /// afterwards.
    pub(super) fn note(&self, notice: Notice) {
        self.changes[notice as usize].is_untold.store(true, Ordering::SeqCst);
    }
    /// Notes a change of cgroup.events if its content differs from the last one.
    pub(super) fn settle(&self) {
        let populated = if self.is_populated() { POPULATED } else { 0 };
        let now = populated | if self.is_frozen() { FROZEN } else { 0 };
        if self.told.swap(now, Ordering::Relaxed) != now {
            self.note(Notice::Events);
        }
    }
    /// Returns whether a change of a file must be reported, and counts the change.
    pub(super) fn take_untold(&self, notice: Notice) -> bool {
        let changes = &self.changes[notice as usize];
        let is_untold =
            changes.is_untold.load(Ordering::SeqCst) && changes.is_untold.swap(false, Ordering::SeqCst);
        if is_untold {
            changes.count.fetch_add(1, Ordering::SeqCst);
        }
        is_untold
    }
}

/// Adds to a count under the tree's lock. Returns the previous value.
pub(super) fn add(count: &AtomicU32, more: u32) -> u32 {
    count.fetch_add(more, Ordering::SeqCst)
}

/// Subtracts from a count under the tree's lock. Returns the new value.
pub(super) fn sub(count: &AtomicU32, less: u32) -> u32 {
    let before = count.fetch_sub(less, Ordering::SeqCst);
    debug_assert!(before >= less, "a count of a control group fell below 0");
    before - less
}
