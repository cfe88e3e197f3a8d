//! The vDSO's frames, and its place in a program: an image that every program runs, behind the page
//! of time that it reads.
//!
//! Both are made once at boot and are the same in all programs, so mapping them is two areas and no
//! frame. The page of time has an owner of its own ([`Owner::Time`](freehold_frame::Owner::Time)),
//! is in no map of the kernel, and is written through a window: at boot, and when the wall clock is
//! set (`crate::hw::time`).

use freehold_frame::Frame;
use freehold_machine::{PAGE_SIZE, VirtAddr};
use freehold_vdso::{IMAGE_BYTES, Uses, image};
use freehold_vm::{AreaFlags, AreaPlace, Backing, Limits, MapRequest, Protection, Vdso, VdsoPart};
use freehold_xpfo::Windows;

use super::{ProcessSpace, commons, frames};
use crate::hw::Hardware;
use crate::hw::PAGE;
use crate::hw::user::USER_END;
use crate::{Result, time};

/// Pages of the image.
const IMAGE_PAGES: usize = IMAGE_BYTES.div_ceil(PAGE_SIZE);
/// Range of one page table: above the stack the parts lie within the same one, where they fit.
const TABLE_SPAN: u64 = 2 << 20;

/// Make the frames and show the clock in them. Once, after the clock has started.
///
/// # Errors
/// `ENOMEM`.
pub fn init() -> Result<()> {
    let time = Frame::allocate_zeroed(frames())?;
    let mut vdso = Vdso::new(time);
    let uses = if crate::hw::cpu::has_bmi2() { Uses::Bmi2 } else { Uses::Baseline };
    let mut pages = image(uses).chunks(PAGE_SIZE);
    // As many for every image.
    for _ in 0..IMAGE_PAGES {
        let bytes = pages.next().unwrap_or_default();
        let frame = Frame::allocate_zeroed(frames())?;
        Hardware.with_bytes(&frame, |page| page[..bytes.len()].copy_from_slice(bytes));
        vdso.push(frame);
    }
    time::show_in(commons().set_vdso(vdso).time());
    Ok(())
}

/// Bytes that both parts take.
pub const LENGTH: u64 = PAGE + (IMAGE_PAGES * PAGE_SIZE) as u64;

/// Map both parts into a new program, at the place that `random` chooses above its stack, which
/// ends at `stack_top`, at least [`LENGTH`] below the end of addresses: where the image begins.
///
/// # Errors
/// `ENOMEM`.
pub fn map(space: &ProcessSpace, stack_top: u64, random: u64, limits: &Limits) -> Result<u64> {
    // As Linux' vdso_addr.
    let end = (stack_top + LENGTH).next_multiple_of(TABLE_SPAN).min(USER_END);
    let places = (end - LENGTH - stack_top) / PAGE + 1;
    let start = stack_top + random % places * PAGE;
    let part = |start, len, protection, part, flags| {
        let place = AreaPlace::FixedNoReplace(VirtAddr(start));
        MapRequest { place, len, protection, backing: Backing::Vdso(part), flags }
    };
    let (image, code) = (start + PAGE, Protection::READ | Protection::EXEC);
    let mut areas = space.lock();
    areas.map(part(start, PAGE, Protection::READ, VdsoPart::Time, AreaFlags::DONTDUMP), limits)?;
    areas.map(part(image, LENGTH - PAGE, code, VdsoPart::Image, AreaFlags::empty()), limits)?;
    Ok(image)
}
