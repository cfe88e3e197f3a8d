//! swapon(2) and swapoff(2).

use core::ops::ControlFlow;

use bitflags::bitflags;
use freehold_vm::{SwapArea, VmError};

use super::areas::{AREAS, switch_on};
use crate::fs::calls::open_path;
use crate::fs::{NodeKind, OpenFlags};
use crate::mem::charge::without_limits;
use crate::mem::hotplug::{self, GrowthOutcome};
use crate::mem::{self, commons, reclaim, stats};
use crate::syscall::Args;
use crate::{Errno, Result, sched, task};

bitflags! {
    /// The flags of swapon (linux/swap.h). Disks here do not support discarding, so a request for
    /// it has no effect, as on Linux.
    #[derive(Clone, Copy)]
    struct Flags: u32 {
        const PRIORITY = 0x7fff;
        const PREFER = 0x8000;
        const DISCARD = 0x1_0000;
        const DISCARD_ONCE = 0x2_0000;
        const DISCARD_PAGES = 0x4_0000;
    }
}

/// swapon(path, flags)
pub fn sys_swapon(args: &Args) -> Result<i64> {
    let flags = Flags::from_bits(args.uint(1)).ok_or(Errno::EINVAL)?;
    check_power()?;
    let file = open_path(args[0], OpenFlags::RDWR)?;
    let wanted = flags.contains(Flags::PREFER).then(|| (flags & Flags::PRIORITY).bits() as i32);
    switch_on(file, wanted)?;
    Ok(0)
}

/// swapoff(path)
pub fn sys_swapoff(args: &Args) -> Result<i64> {
    check_power()?;
    let file = open_path(args[0], OpenFlags::RDWR)?;
    let disk = file.node().metadata().rdev;
    let mut areas = AREAS.lock_killable()?;
    let is_block = file.node().kind() == NodeKind::BlockDevice;
    let at = areas.iter().position(|on| is_block && on.disk == disk).ok_or(Errno::EINVAL)?;
    let mut go_on = || {
        sched::cond_resched();
        if task::current().signal_pending() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let area = areas[at].area;
    // This applies even to a group at its limit, because its pages cannot stay in the area.
    let emptied = without_limits(|| commons().swap_off(area, &mut go_on, &mut || find_room(area)));
    emptied.map_err(|error| match error {
        VmError::Again => Errno::EINTR,
        VmError::NoMemory if task::current().signal_pending() => Errno::EINTR,
        error => {
            // The call has searched for memory already, which is no reason to repeat it as a whole.
            mem::forget_denial();
            error.into()
        }
    })?;
    stats::ceiling_changed();
    let gone = areas.remove(at);
    drop(areas);
    drop(gone);
    Ok(0)
}

/// Finds memory for the pages of `area`, if memory and the other areas have room for all of them.
/// Meanwhile `area` takes no pages.
fn find_room(area: SwapArea) -> ControlFlow<()> {
    if hotplug::grow() == GrowthOutcome::Grown {
        return ControlFlow::Continue(());
    }
    let left = commons().swap().areas().find(|info| info.area == area).map_or(0, |info| info.used);
    let room = stats::memory().available() + commons().swap().usage().free;
    let is_over = left > room
        || task::current().signal_pending()
        || reclaim::free_some(reclaim::Sources::All) != reclaim::ReclaimOutcome::Freed;
    if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
}

/// Requires CAP_SYS_ADMIN.
fn check_power() -> Result<()> {
    if task::current().process().credentials().is_privileged() { Ok(()) } else { Err(Errno::EPERM) }
}
