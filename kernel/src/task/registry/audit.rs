//! An audit of the registry: its counts and links, recomputed from the processes.
//!
//! Callers: the closing audit and tests, in task context.

use core::result::Result;

use super::{IdSlot, REGISTRY, get};
use crate::task::Pid;

/// Recounts the members of all groups and sessions, and walks all families. Needs no memory.
///
/// # Errors
/// The inconsistency that was found.
pub fn validate() -> Result<(), &'static str> {
    let registry = REGISTRY.lock();
    let known = || registry.slots.values().filter_map(|slot| slot.process.as_ref());
    // A checksum over the IDs, because a list of counts would need memory.
    let mark = |pid: Pid| u64::from(pid + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let sum = |marks: &mut dyn Iterator<Item = u64>| marks.fold(0, u64::wrapping_add);
    let counted = |of: fn(&IdSlot) -> usize| {
        sum(&mut registry.slots.iter().map(|(&pid, slot)| mark(pid).wrapping_mul(of(slot) as u64)))
    };
    if counted(|slot| slot.members) != sum(&mut known().map(|process| mark(process.group()))) {
        return Err("members of groups are miscounted");
    }
    if registry.grouped.len() != known().count()
        || known().any(|process| !registry.grouped.contains_key(&(process.group(), process.pid)))
    {
        return Err("groups do not list their members");
    }
    if counted(|slot| slot.session_members) != sum(&mut known().map(|process| mark(process.session().id))) {
        return Err("members of sessions are miscounted");
    }
    if registry.slots.values().any(IdSlot::is_free) {
        return Err("an ID is kept for nobody");
    }
    let mut numbers = 0;
    for (pid, slot) in registry.slots.iter() {
        for (namespace, number) in slot.levels.iter().flat_map(|levels| levels.iter()) {
            numbers += 1;
            if registry.below.get(&(namespace.view(), number)) != Some(pid) {
                return Err("a number in a namespace leads elsewhere");
            }
        }
    }
    if numbers != registry.below.len() {
        return Err("a number in a namespace is nobody's");
    }
    for process in known() {
        let mut before = 0;
        for child in registry.children(process) {
            if child.parent_pid() != process.pid || get(&child.family.previous_sibling) != before {
                return Err("children are not linked");
            }
            before = child.pid;
        }
        if get(&process.family.last_child) != before {
            return Err("the youngest child is another");
        }
    }
    Ok(())
}
