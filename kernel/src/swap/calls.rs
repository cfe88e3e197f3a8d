//! swapon(2), swapoff(2), and the list of areas.

use alloc::sync::Arc;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU64, Ordering};

use bitflags::bitflags;
use freehold_collections::Vec;
use freehold_machine::PAGE_SIZE;
use freehold_vm::{SwapArea, VmError};

use super::header;
use super::store::DiskStore;
use crate::block::{self, Held};
use crate::fs::calls::open_path;
use crate::fs::{NodeKind, OpenFile, OpenFlags};
use crate::mem::{commons, reclaim, stats};
use crate::sync::Mutex;
use crate::syscall::Args;
use crate::{Errno, Result, sched, task};

bitflags! {
    /// swapon's flags (linux/swap.h). Disks here know no discarding, so asking for it changes nothing, as on Linux.
    #[derive(Clone, Copy)]
    struct Flags: u32 {
        const PRIORITY = 0x7fff;
        const PREFER = 0x8000;
        const DISCARD = 0x1_0000;
        const DISCARD_ONCE = 0x2_0000;
        const DISCARD_PAGES = 0x4_0000;
    }
}

/// One area.
struct On {
    area: SwapArea,
    /// The disk's number.
    disk: u64,
    /// The file that it was switched on by, for its name.
    file: Arc<OpenFile>,
}

/// See the module's head.
static AREAS: Mutex<Vec<On>> = Mutex::new(Vec::new());
/// The most pages that were in swap at a time.
static PEAK: AtomicU64 = AtomicU64::new(0);

/// Take note of how much is swapped out.
pub fn note_use() {
    let usage = commons().swap().usage();
    PEAK.fetch_max(usage.slots - usage.free, Ordering::Relaxed);
}

/// The most pages that were in swap at a time; `None` where there never was any swap.
pub fn peak() -> Option<u64> {
    block::was_ever_held().then(|| PEAK.load(Ordering::Relaxed))
}

/// A line of /proc/swaps.
pub struct Listed {
    /// The file's name.
    pub name: alloc::vec::Vec<u8>,
    /// Pages it can hold.
    pub pages: u64,
    /// Pages it holds.
    pub used: u64,
    /// The higher, the sooner it is used.
    pub priority: i32,
}

/// The areas, in the order in which they were switched on.
///
/// # Errors
/// `ENOMEM`.
pub fn list(root: &crate::fs::Path) -> Result<Vec<Listed>> {
    let areas = AREAS.lock();
    let mut lines = Vec::try_with_capacity(areas.len())?;
    for on in areas.iter() {
        let Some(info) = commons().swap().areas().find(|info| info.area == on.area) else { continue };
        let name = on.file.path().map_or(Ok(Default::default()), |path| path.display(root))?;
        lines.push_reserved(Listed { name, pages: info.slots, used: info.used, priority: info.priority });
    }
    Ok(lines)
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
    let mut areas = AREAS.lock();
    let is_block = file.node().kind() == NodeKind::BlockDevice;
    let at = areas.iter().position(|on| is_block && on.disk == disk).ok_or(Errno::EINVAL)?;
    let mut go_on = || {
        sched::cond_resched();
        if task::current().signal_pending() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    loop {
        match commons().swap_off(areas[at].area, &mut go_on) {
            Ok(()) => break,
            Err(VmError::Again) => return Err(Errno::EINTR),
            // What comes in needs room, which can be made as long as another area takes pages.
            Err(VmError::NoMemory) if reclaim::free_some() == reclaim::Outcome::Freed => {}
            Err(error) => return Err(error.into()),
        }
    }
    stats::ceiling_changed();
    let gone = areas.remove(at);
    drop(areas);
    drop(gone);
    Ok(0)
}

/// Switch the area on that the host has prepared.
pub fn on_at_boot(path: &[u8]) {
    let outcome = crate::fs::boot::open_file(path, OpenFlags::RDWR).and_then(|file| switch_on(file, None));
    if let Err(error) = outcome {
        crate::host::notice(format_args!("no swap on {}: {error:?}", path.escape_ascii()));
    }
}

/// CAP_SYS_ADMIN.
fn check_power() -> Result<()> {
    if task::current().process().credentials().is_privileged() { Ok(()) } else { Err(Errno::EPERM) }
}

fn switch_on(file: Arc<OpenFile>, wanted: Option<i32>) -> Result<()> {
    if file.node().kind() != NodeKind::BlockDevice {
        return Err(Errno::EINVAL);
    }
    let mut areas = AREAS.lock();
    areas.try_reserve(1)?;
    let held = Held::new(&*file)?;
    let size = held.disk().sectors() * freehold_virtio::SECTOR_SIZE as u64;
    let mut page = [0; PAGE_SIZE];
    if file.read_kernel(0, &mut page)? < PAGE_SIZE {
        return Err(Errno::EINVAL);
    }
    let header = header::parse(&page, size / PAGE_SIZE as u64).map_err(|why| {
        log::error!("swapon: {why}");
        if why == header::NotSwap::Memory { Errno::ENOMEM } else { Errno::EINVAL }
    })?;
    // One that nobody wished for comes after all others (Linux: from -2 downwards).
    let least = commons().swap().areas().map(|info| info.priority).fold(-1, i32::min);
    let priority = wanted.unwrap_or(least - 1);
    held.take_over()?;
    reclaim::start()?;
    let area = commons().swap().add(Arc::new(DiskStore::new(held)), header.end, &header.bad, priority)?;
    stats::ceiling_changed();
    areas.push_reserved(On { area, disk: file.node().metadata().rdev, file });
    Ok(())
}
