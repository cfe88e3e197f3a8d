//! Figures of memory usage.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use freehold_buddy::ORDERS;
use freehold_frame::Owner;
use freehold_vm::PromiseLimit;

use super::hugetlb::HUGE_FRAMES;
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
    /// Anonymous memory of processes, without huge pages on request.
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

/// The memory that programs are promised (vm.overcommit_memory).
static OVERCOMMIT: AtomicU8 = AtomicU8::new(HEURISTIC);
/// A request that could never be backed is refused.
const HEURISTIC: u8 = 0;
/// Every request is accepted.
const ALWAYS: u8 = 1;
/// The sum of all promises is limited ([`commit_limit`]).
const NEVER: u8 = 2;
/// The percentage of memory that may be promised, with all swap (vm.overcommit_ratio).
static RATIO: AtomicU64 = AtomicU64::new(50);
/// The KiB of memory that may be promised instead; 0: the percentage counts
/// (vm.overcommit_kbytes).
static KBYTES: AtomicU64 = AtomicU64::new(0);

/// Computes the limits again: a setting, or the possible amount of memory and swap, has changed.
pub fn ceiling_changed() {
    let limit = match OVERCOMMIT.load(Ordering::Relaxed) {
        HEURISTIC => PromiseLimit::Request(hotplug::ceiling() + commons().swap().usage().slots * PAGE),
        ALWAYS => PromiseLimit::None,
        _ => PromiseLimit::Sum(commit_limit()),
    };
    commons().set_promise_limit(limit);
}

/// Returns the pages that programs can be promised where the sum is limited: a part of the memory
/// that there can be, and all swap (Linux: `vm_commit_limit`).
pub fn commit_limit() -> u64 {
    let memory = match KBYTES.load(Ordering::Relaxed) {
        0 => u128::from(hotplug::ceiling() / PAGE) * u128::from(RATIO.load(Ordering::Relaxed)) / 100,
        kbytes => (kbytes / (PAGE / 1024)).into(),
    };
    u64::try_from(memory).unwrap_or(u64::MAX).saturating_add(commons().swap().usage().slots)
}

/// Returns the setting vm.overcommit_memory.
pub fn overcommit() -> u64 {
    OVERCOMMIT.load(Ordering::Relaxed).into()
}

/// Changes [`overcommit`].
///
/// # Errors
/// `EINVAL` above 2.
pub fn set_overcommit(mode: u64) -> Result<()> {
    let mode = u8::try_from(mode).ok().filter(|&mode| mode <= NEVER).ok_or(Errno::EINVAL)?;
    OVERCOMMIT.store(mode, Ordering::Relaxed);
    ceiling_changed();
    Ok(())
}

/// Returns the setting vm.overcommit_ratio, in percent; 0 if kilobytes are set instead.
pub fn overcommit_ratio() -> u64 {
    RATIO.load(Ordering::Relaxed)
}

/// Changes [`overcommit_ratio`]; then kilobytes are not set.
///
/// # Errors
/// `EINVAL` above the largest 32-bit number.
pub fn set_overcommit_ratio(percent: u64) -> Result<()> {
    set_part(i32::try_from(percent).map_err(|_| Errno::EINVAL)?.cast_unsigned().into(), 0)
}

/// Returns the setting vm.overcommit_kbytes, in KiB; 0 if a percentage is set instead.
pub fn overcommit_kbytes() -> u64 {
    KBYTES.load(Ordering::Relaxed)
}

/// Changes [`overcommit_kbytes`]; then no percentage is set.
///
/// # Errors
/// None.
pub fn set_overcommit_kbytes(kbytes: u64) -> Result<()> {
    set_part(0, kbytes)
}

fn set_part(percent: u64, kbytes: u64) -> Result<()> {
    RATIO.store(percent, Ordering::Relaxed);
    KBYTES.store(kbytes, Ordering::Relaxed);
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
        anonymous: owned.frames_of(Owner::Anon).saturating_sub(commons().huge_pool(None).total * HUGE_FRAMES),
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
