//! Controllers, and the files of a group that need nothing of higher layers.

use core::fmt;
use core::sync::atomic::Ordering;

use bitflags::bitflags;
use freehold_collections::Arc;

use super::cpu::CpuController;
use super::group::{Group, Notice, add, sub};
use super::memory::MemoryController;
use super::pids::PidsController;
use super::tree::{self, GroupTree};
use crate::{Errno, Result};

bitflags! {
    /// A set of controllers: one bit for each index in [`CONTROLLERS`].
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct ControllerSet: u8 {
        /// CPU time.
        const CPU = 1;
        /// Memory.
        const MEMORY = 2;
        /// The number of tasks.
        const PIDS = 4;

        /// All.
        const ALL = 7;
    }
}

impl ControllerSet {
    /// The number of controllers.
    pub const COUNT: usize = Self::ALL.bits().count_ones() as usize;

    /// The controller with this name.
    pub fn named(name: &[u8]) -> Option<Self> {
        let at = CONTROLLERS.iter().position(|controller| controller.name().as_bytes() == name)?;
        Some(Self::from_bits_truncate(1 << at))
    }
    /// The indexes of these controllers in [`CONTROLLERS`].
    pub fn indexes(self) -> impl Iterator<Item = usize> {
        (0..Self::COUNT).filter(move |at| self.bits() >> at & 1 != 0)
    }
}

/// Limits or counts for the members of a group. The controller's state is a field of [`Group`]. The
/// controller acts on a group if the parent group passes it on. Each time it is turned on, its
/// state starts afresh.
pub trait Controller: Sync {
    /// The controller's name in cgroup.controllers.
    fn name(&self) -> &'static str;
    /// The controller's files. Each group on which the controller acts has them.
    fn files(&self) -> &'static [ControlFile];
    /// Asks whether a task may be made in `group`. The task is counted there if no controller
    /// refuses. Under the tree's lock.
    ///
    /// # Errors
    /// Those of fork(2).
    fn may_fork(&self, _group: &Group) -> Result<()> {
        Ok(())
    }
    /// Makes the controller act on `group`, for which it has no account yet. May sleep. The caller
    /// makes, removes or changes groups, and holds the lock of such changes.
    ///
    /// # Errors
    /// `ENOMEM`, `ENOSPC`: the controller then does not act.
    fn begin(&self, _group: &Arc<Group>) -> Result<()> {
        Ok(())
    }
    /// Stops the controller acting on `group`: undoes [`begin`](Self::begin), under the same rules.
    fn end(&self, _group: &Group) {}
    /// Notes that tasks have joined `group` and are counted. Under the tree's lock.
    fn came(&self, _group: &Group) {}
}

/// All controllers, in the order of Linux' cgroup.controllers.
pub static CONTROLLERS: [&dyn Controller; ControllerSet::COUNT] =
    [&CpuController, &MemoryController, &PidsController];

/// One file of a group.
pub struct ControlFile {
    /// The file's name.
    pub name: &'static str,
    /// The file's permission bits until a program changes them.
    pub mode: u32,
    /// Whether the root group has the file.
    pub on_root: OnRoot,
    /// The notice by which the file reports changes, if any.
    pub notice: Option<Notice>,
    /// Writes the file's content.
    pub show: fn(&Group, &mut dyn fmt::Write) -> fmt::Result,
    /// Takes the text that a program wrote, without blanks around it; `None` for a read-only file.
    pub store: Option<fn(&Group, &[u8]) -> Result<()>>,
}

impl ControlFile {
    /// Whether the file cannot be read, as Linux' files without a `seq_show`.
    pub const fn is_write_only(&self) -> bool {
        self.mode & 0o444 == 0
    }
}

/// Whether the root group has a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnRoot {
    /// The root group has the file.
    Yes,
    /// The root group does not have the file.
    No,
}

/// Parses the controllers that `text` turns on and off.
fn parse(text: &[u8]) -> Result<(ControllerSet, ControllerSet)> {
    let (mut on, mut off) = (ControllerSet::empty(), ControllerSet::empty());
    for word in text.split(|byte| *byte == b' ').filter(|word| !word.is_empty()) {
        let (sign, name) = word.split_first().ok_or(Errno::EINVAL)?;
        let one = ControllerSet::named(name).ok_or(Errno::EINVAL)?;
        let (set, other) = match sign {
            b'+' => (&mut on, &mut off),
            b'-' => (&mut off, &mut on),
            _ => return Err(Errno::EINVAL),
        };
        set.insert(one);
        other.remove(one);
    }
    Ok((on, off))
}

/// Handles a write to cgroup.subtree_control. The caller holds the lock of changes.
///
/// # Errors
/// `EINVAL` for a name that no controller has; `ENOENT` for a controller that does not act on the
/// group; `EBUSY` for a controller that a child group passes on, and if the group has processes of
/// its own; `ENODEV` if the group was removed; `ENOMEM` and `ENOSPC` if a controller cannot begin.
pub(super) fn store_subtree(group: &Group, text: &[u8]) -> Result<()> {
    let (on, off) = parse(text)?;
    let old = group.passes_on();
    let (on, off) = (on - old, off & old);
    change_subtree(group, on, off)?;
    let begun = begin_below(group, on);
    if begun.is_err() {
        change_subtree(group, off, on)?;
    } else {
        end_below(group, off);
    }
    tree::tell_payers(group);
    begun
}

fn change_subtree(group: &Group, on: ControllerSet, off: ControllerSet) -> Result<()> {
    let _tree = tree::lock();
    if group.is_removed() {
        return Err(Errno::ENODEV);
    }
    if !group.controllers().contains(on) {
        return Err(Errno::ENOENT);
    }
    if off.indexes().any(|at| group.passed_on[at].load(Ordering::Relaxed) != 0) {
        return Err(Errno::EBUSY);
    }
    // Otherwise child groups would share resources with processes of their parent.
    if !on.is_empty() && !group.is_root() && group.processes.load(Ordering::Relaxed) != 0 {
        return Err(Errno::EBUSY);
    }
    group.subtree.store(((group.passes_on() | on) - off).bits(), Ordering::Relaxed);
    on.indexes().for_each(|at| {
        add(&group.epochs[at], 1);
    });
    if let Some(parent) = group.parent() {
        on.indexes().for_each(|at| {
            add(&parent.passed_on[at], 1);
        });
        off.indexes().for_each(|at| {
            sub(&parent.passed_on[at], 1);
        });
    }
    Ok(())
}

/// Makes controllers begin in all child groups of `group`, or in none.
fn begin_below(group: &Group, on: ControllerSet) -> Result<()> {
    if on.is_empty() {
        return Ok(());
    }
    let begun = tree::for_each_child(group, |child| begin(child, on));
    if begun.is_err() {
        end_below(group, on);
    }
    begun
}

fn end_below(group: &Group, off: ControllerSet) {
    if !off.is_empty() {
        let _ = tree::for_each_child(group, |child| {
            end(child, off);
            Ok(())
        });
    }
}

/// Makes all these controllers begin in `group`, or none of them.
pub(super) fn begin(group: &Arc<Group>, on: ControllerSet) -> Result<()> {
    for at in on.indexes() {
        if let Err(error) = CONTROLLERS[at].begin(group) {
            on.indexes().take_while(|&other| other != at).for_each(|other| CONTROLLERS[other].end(group));
            return Err(error);
        }
    }
    Ok(())
}

/// Ends controllers in `group`, including those that did not begin.
pub(super) fn end(group: &Group, off: ControllerSet) {
    off.indexes().for_each(|at| CONTROLLERS[at].end(group));
}

/// Asks all controllers on the way to the root whether a task may be made in `group`.
pub(super) fn may_fork(_tree: &GroupTree, group: &Arc<Group>) -> Result<()> {
    CONTROLLERS.iter().try_for_each(|controller| controller.may_fork(group))
}

/// Tells all controllers that tasks have joined `group`.
pub(super) fn came(_tree: &GroupTree, group: &Arc<Group>) {
    CONTROLLERS.iter().for_each(|controller| controller.came(group));
}

/// Writes the names of controllers, separated by blanks.
pub(super) fn write_names(set: ControllerSet, out: &mut dyn fmt::Write) -> fmt::Result {
    for (count, at) in set.indexes().enumerate() {
        let blank = if count == 0 { "" } else { " " };
        write!(out, "{blank}{}", CONTROLLERS[at].name())?;
    }
    if set.is_empty() { Ok(()) } else { writeln!(out) }
}

/// Parses a limit: a decimal number below `most`, or "max", which is `most` itself.
///
/// # Errors
/// `EINVAL` for any other text.
pub(super) fn parse_limit(text: &[u8], most: u32) -> Result<u32> {
    if text == b"max" {
        return Ok(most);
    }
    let text = core::str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
    let number: i64 = text.parse().map_err(|_| Errno::EINVAL)?;
    if number < 0 || number >= i64::from(most) { Err(Errno::ERANGE) } else { Ok(number as u32) }
}

/// Writes a limit in the format that [`parse_limit`] reads.
pub(super) fn write_limit(limit: u32, most: u32, out: &mut dyn fmt::Write) -> fmt::Result {
    if limit == most { writeln!(out, "max") } else { writeln!(out, "{limit}") }
}
