//! The active swap areas.

use freehold_collections::{Arc, Vec, reserve};
use freehold_machine::PAGE_SIZE;
use freehold_vm::SwapArea;

use super::header;
use super::store::DiskStore;
use crate::block::{self, HeldDisk};
use crate::fs::{NodeKind, OpenFile, OpenFlags};
use crate::hw::heap;
use crate::mem::{commons, reclaim, stats};
use crate::sync::Mutex;
use crate::{Errno, Result};

/// One active area.
pub(super) struct On {
    pub area: SwapArea,
    /// The disk's number.
    pub disk: u64,
    /// The file through which it was switched on, for its name.
    pub file: Arc<OpenFile>,
}

/// See the module's head.
pub(super) static AREAS: Mutex<Vec<On>> = Mutex::new(Vec::new());
/// Returns the largest number of pages that were in swap at a time; `None` if there never was any
/// swap.
pub fn peak() -> Option<u64> {
    block::was_ever_held().then(reclaim::peak_swapped)
}

/// A line of /proc/swaps.
pub struct Listed {
    /// The file's name.
    pub name: Vec<u8>,
    /// Number of pages that it can hold.
    pub pages: u64,
    /// Number of pages that it holds.
    pub used: u64,
    /// Areas with a higher priority are used first.
    pub priority: i32,
}

/// Returns the areas, in the order in which they were switched on.
///
/// # Errors
/// `ENOMEM`; `EINTR` if the caller is killed while an area is being switched off.
pub fn list(root: &crate::fs::Path) -> Result<Vec<Listed>> {
    let areas = AREAS.lock_killable()?;
    let mut lines = Vec::try_with_capacity(areas.len())?;
    for on in areas.iter() {
        let Some(info) = commons().swap().areas().find(|info| info.area == on.area) else { continue };
        let name = on.file.path().map_or(Ok(Vec::new()), |path| path.display_short(root))?;
        lines.push_reserved(Listed { name, pages: info.slots, used: info.used, priority: info.priority });
    }
    Ok(lines)
}

/// Switches on the area that the host has prepared.
pub fn on_at_boot(path: &[u8]) {
    let outcome = crate::fs::root::open_file(path, OpenFlags::RDWR).and_then(|file| switch_on(file, None));
    if let Err(error) = outcome {
        crate::host::notice(format_args!("no swap on {}: {error:?}", path.escape_ascii()));
    }
}

pub(super) fn switch_on(file: Arc<OpenFile>, wanted: Option<i32>) -> Result<()> {
    if file.node().kind() != NodeKind::BlockDevice {
        return Err(Errno::EINVAL);
    }
    let mut areas = AREAS.lock_killable()?;
    areas.try_reserve(1)?;
    let held = HeldDisk::new(&file)?;
    let size = held.disk().sectors() * freehold_virtio::SECTOR_SIZE as u64;
    let mut page = [0; PAGE_SIZE];
    if file.read_kernel(0, &mut page)? < PAGE_SIZE {
        return Err(Errno::EINVAL);
    }
    let header = header::parse(&page, size / PAGE_SIZE as u64).map_err(|why| {
        log::error!("swapon: {why}");
        if why == header::NotSwap::Memory { Errno::ENOMEM } else { Errno::EINVAL }
    })?;
    // An area without a requested priority comes after all others (Linux: from -2 downwards).
    let least = commons().swap().areas().map(|info| info.priority).fold(-1, i32::min);
    let priority = wanted.unwrap_or(least - 1);
    held.take_over()?;
    reclaim::start()?;
    let store = reserve::arc(DiskStore::new(held));
    // The tables grow with the area. If that fails, the disk is released with this call's
    // reference.
    let tables = || commons().swap().add(store.clone(), header.end, &header.bad, priority);
    let area = heap::fallibly(tables)?;
    stats::ceiling_changed();
    areas.push_reserved(On { area, disk: file.node().metadata().rdev, file });
    Ok(())
}
