//! The vDSO's frames, and its place in a program: an image that every program runs, preceded by the
//! pages of time that the image reads.
//!
//! All are made once at boot and are the same in all programs, so mapping them needs two areas and
//! no frames. The pages of time have their own owner
//! ([`Owner::Time`](freehold_frame::Owner::Time)). They are not in the kernel's map, and are
//! written through a window: at boot, and when the wall clock is set (`crate::hw::time`). A time
//! namespace has a page of its own with offsets, which is written once.

use core::mem::offset_of;

use freehold_collections::{Arc, reserve};
use freehold_frame::Frame;
use freehold_machine::{PAGE_SIZE, VirtAddr};
use freehold_vdso::{IMAGE_BYTES, TimeOffsets, Uses, image};
use freehold_vm::{
    AreaFlags, AreaPlace, Backing, Limits, MapRequest, Protection, TIME_PAGES, Vdso, VdsoPart,
};
use freehold_xpfo::Windows;

use super::{Frames, ProcessSpace, commons, frames};
use crate::hw::Hardware;
use crate::hw::PAGE;
use crate::hw::user::USER_END;
use crate::{Result, time};

/// Number of pages of the image.
const IMAGE_PAGES: usize = IMAGE_BYTES.div_ceil(PAGE_SIZE);
/// Range of one page table: both parts, above the stack, lie in the same range if they fit.
const TABLE_SPAN: u64 = 2 << 20;

/// Makes the frames and writes the clock's data to them. Once, after the clock has started.
///
/// # Errors
/// `ENOMEM`.
pub fn init() -> Result<()> {
    let time = [Frame::allocate_zeroed(frames())?, Frame::allocate_zeroed(frames())?];
    let mut vdso = Vdso::new(time);
    let uses = if crate::hw::cpu::has_bmi2() { Uses::Bmi2 } else { Uses::Baseline };
    let mut pages = image(uses).chunks(PAGE_SIZE);
    // The same number for every image.
    for _ in 0..IMAGE_PAGES {
        let bytes = pages.next().unwrap_or_default();
        let frame = Frame::allocate_zeroed(frames())?;
        Hardware.with_bytes(&frame, |page| page[..bytes.len()].copy_from_slice(bytes));
        vdso.push(frame);
    }
    time::show_in(commons().set_vdso(vdso).time());
    Ok(())
}

/// The page with the offsets of a time namespace.
pub type OffsetsPage = Arc<Frame<freehold_frame::Time, Frames>>;

/// Makes a page without offsets.
///
/// # Errors
/// `ENOMEM`.
pub fn offsets_page() -> Result<OffsetsPage> {
    Ok(reserve::arc(Frame::allocate_zeroed(frames())?))
}

/// Writes the offsets of CLOCK_MONOTONIC and CLOCK_BOOTTIME, in nanoseconds, to a page that no
/// program has mapped yet.
pub fn write_offsets(page: &OffsetsPage, monotonic: i64, boottime: i64) {
    Hardware.with_bytes(&**page, |bytes| {
        for (offset, value) in
            [(offset_of!(TimeOffsets, monotonic), monotonic), (offset_of!(TimeOffsets, boottime), boottime)]
        {
            bytes[offset..offset + 8].copy_from_slice(&value.to_ne_bytes());
        }
    });
}

/// Size of the pages of time.
const TIME_BYTES: u64 = TIME_PAGES * PAGE;

/// Size of both parts.
pub const LENGTH: u64 = TIME_BYTES + (IMAGE_PAGES * PAGE_SIZE) as u64;

/// Maps both parts into a new program, above its stack at a place that `random` chooses. The stack
/// ends at `stack_top`, at least [`LENGTH`] below the end of addresses. Returns the start of the
/// image.
///
/// # Errors
/// `ENOMEM`.
pub fn map(space: &ProcessSpace, stack_top: u64, random: u64, limits: &Limits) -> Result<u64> {
    // As in Linux' vdso_addr.
    let end = (stack_top + LENGTH).next_multiple_of(TABLE_SPAN).min(USER_END);
    let places = (end - LENGTH - stack_top) / PAGE + 1;
    let start = stack_top + random % places * PAGE;
    let part = |start, len, protection, part, flags| {
        let place = AreaPlace::FixedNoReplace(VirtAddr(start));
        MapRequest { place, len, protection, backing: Backing::Vdso(part), flags }
    };
    let (image, code) = (start + TIME_BYTES, Protection::READ | Protection::EXEC);
    let mut areas = space.lock();
    areas.map(part(start, TIME_BYTES, Protection::READ, VdsoPart::Time, AreaFlags::DONTDUMP), limits)?;
    areas.map(part(image, LENGTH - TIME_BYTES, code, VdsoPart::Image, AreaFlags::empty()), limits)?;
    Ok(image)
}
