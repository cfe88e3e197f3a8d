//! Figures of memory usage.

use core::sync::atomic::{AtomicBool, Ordering};

use freehold_buddy::ORDERS;
use freehold_frame::Owner;

use super::reclaim::caches;
use super::{commons, frames, hotplug};
use crate::hw::PAGE;
use crate::hw::heap;
use crate::hw::thread::STACK_PAGES;
use crate::sched::thread;
use crate::{Errno, Result};

/// Numbers of frames by use. Each figure is exact; their sum is exact only if nothing changes
/// meanwhile.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryStats {
    /// Frames that the page allocator manages.
    pub total: u64,
    /// Frames without an owner.
    pub free: u64,
    /// Anonymous memory of processes.
    pub anonymous: u64,
    /// Files and shared memory.
    pub page_cache: u64,
    /// Pages of disks, a part of `page_cache`.
    pub disks: caches::Cached,
    /// Translation tables.
    pub page_tables: u64,
    /// The kernel's own frames: heap, stacks, tables of its own half.
    pub kernel: u64,
    /// Kernel stacks of tasks, a part of `kernel`.
    pub stacks: u64,
    /// Bounce memory of devices.
    pub bounce: u64,
}

impl MemoryStats {
    /// Returns the number of pages of shared memory, and of files that are only in memory.
    pub const fn shared(&self) -> u64 {
        self.page_cache.saturating_sub(self.disks.pages)
    }
    /// Returns the frames that programs can still get without swapping, by Linux' estimate. Half of
    /// the disks' pages, but at most the low watermark, are assumed to be needed by programs.
    pub fn available(&self) -> u64 {
        let low = frames().watermarks().low;
        let disks = self.disks.pages - (self.disks.pages / 2).min(low);
        (self.free + disks).saturating_sub(low)
    }
}

/// Returns the number of bytes that the page allocator manages.
pub fn total_bytes() -> u64 {
    frames().total_frames() * PAGE
}

/// Whether a request for memory that could never be backed is refused at once
/// (vm.overcommit_memory).
static ASKS: AtomicBool = AtomicBool::new(true);

/// Updates the limit of requests when the possible amount of memory and swap has changed. A request
/// above it is refused at once, unless overcommit allows all.
pub fn ceiling_changed() {
    let there_can_be = hotplug::ceiling() + commons().swap().usage().slots * PAGE;
    commons().set_commit_limit(if ASKS.load(Ordering::Relaxed) { there_can_be } else { u64::MAX });
}

/// Returns 0 if a request that could never be backed is refused at once, 1 if all are allowed.
pub fn overcommit() -> u64 {
    u64::from(!ASKS.load(Ordering::Relaxed))
}

/// Changes [`overcommit`].
///
/// # Errors
/// `EOPNOTSUPP` for 2, because the sum of all programs' requests is not counted. `EINVAL`.
pub fn set_overcommit(mode: u64) -> Result<()> {
    match mode {
        0 | 1 => ASKS.store(mode == 0, Ordering::Relaxed),
        2 => return Err(Errno::EOPNOTSUPP),
        _ => return Err(Errno::EINVAL),
    }
    ceiling_changed();
    Ok(())
}

/// Returns the largest possible number of pages, in memory and in swap areas.
pub fn all_there_can_be() -> u64 {
    hotplug::ceiling() / PAGE + commons().swap().usage().slots
}

/// Returns figures of the present use of memory.
pub fn memory() -> MemoryStats {
    let owned = frames();
    MemoryStats {
        total: frames().total_frames(),
        free: frames().free_frames(),
        anonymous: owned.frames_of(Owner::Anon),
        page_cache: owned.frames_of(Owner::PageCache),
        disks: caches::counts(),
        page_tables: owned.frames_of(Owner::PageTable),
        kernel: owned.frames_of(Owner::Kernel),
        stacks: STACK_PAGES * thread::stacks() as u64,
        bounce: seen_by_devices(|owner| owned.frames_of(owner)),
    }
}

/// Returns the number of frames that devices can access for as long as the kernel gives them some.
/// `count` returns the number for an owner.
pub fn seen_by_devices(count: impl Fn(Owner) -> u64) -> u64 {
    Owner::ALL.into_iter().filter(|owner| owner.is_seen_by_devices()).map(count).sum()
}

/// Returns how often a task had to find memory before it could continue.
pub fn stalls() -> u64 {
    super::oom::stalls()
}

/// Returns the number of free frames in whole pageblocks, which can be used as 2 MiB pages and can
/// change sides.
pub fn free_in_pageblocks() -> u64 {
    frames()
        .zone_info()
        .map(|zone| frames().zone_blocks(zone.node).free_blocks)
        .map(|free| (9..ORDERS).map(|order| free[order] << order).sum::<u64>())
        .sum()
}

/// Returns the number of allocated bytes of the kernel's heap.
pub fn heap_bytes() -> u64 {
    heap::stats().allocated_bytes as u64
}
