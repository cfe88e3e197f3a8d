//! Making pages present before they are accessed: MAP_POPULATE, mlock and related calls,
//! MADV_POPULATE_READ and _WRITE.
//!
//! A call first changes its areas, and finally records which addresses are
//! [due](AddressSpace::take_due). These are then made present in steps, as by Linux' mm_populate.
//! The space's lock is free between two steps, so that no thread and no inspector of the process
//! waits for a range whose length a program chose. A task that is being killed stops. A step that
//! finds no memory waits for it without the lock, and only this step is repeated.

use core::ops::Range;

use freehold_machine::VirtAddr;
use freehold_vm::{Populate, VmError};

use super::hotplug::GrowthOutcome;
use super::user_faults::wait_for_monitor;
use super::{AddressSpace, ProcessSpace, find_more, oom};
use crate::{Result, sched};

/// Number of pages that are made present per acquisition of the space's lock.
const STEP: u64 = 256;

/// Runs `call` with the space locked, then makes the addresses present that it recorded as due.
///
/// # Errors
/// The error of making the pages present; else the error of `call`.
pub(super) fn and_populate<T>(
    space: &ProcessSpace,
    how: Populate,
    call: impl FnOnce(&mut AddressSpace) -> Result<T>,
) -> Result<T> {
    let (outcome, due) = with_due(space, call);
    if let Some(due) = due {
        populate(space, due, how)?;
    }
    outcome
}

/// As [`and_populate`], for a call that succeeds even if its pages cannot be made present. They are
/// faulted in later, or fail then.
pub(super) fn and_populate_if_possible<T>(
    space: &ProcessSpace,
    call: impl FnOnce(&mut AddressSpace) -> Result<T>,
) -> Result<T> {
    let (outcome, due) = with_due(space, call);
    if let Some(due) = due {
        let _: Result<()> = populate(space, due, Populate::AsAllowed);
    }
    outcome
}

/// Runs `call` with the space locked. Returns its result, and the addresses that are due.
fn with_due<T>(
    space: &ProcessSpace,
    call: impl FnOnce(&mut AddressSpace) -> Result<T>,
) -> (Result<T>, Option<Range<VirtAddr>>) {
    let mut areas = space.lock();
    let outcome = call(&mut areas);
    let due = areas.take_due();
    (outcome, due)
}

fn populate(space: &ProcessSpace, range: Range<VirtAddr>, how: Populate) -> Result<()> {
    let mut next = range.start;
    while next < range.end {
        sched::checkpoint()?;
        let mut areas = space.lock();
        let step = areas.populate_some(next..range.end, how, STEP);
        if step == Err(VmError::Monitored) {
            wait_for_monitor(areas, next)?;
            continue;
        }
        drop(areas);
        match step {
            Ok(reached) => next = reached,
            Err(VmError::NoMemory) if find_more() == GrowthOutcome::Grown => {}
            Err(error) => {
                // The search for memory has been made already, so the call is not repeated for it.
                oom::forget_denial();
                return Err(error.into());
            }
        }
    }
    Ok(())
}
