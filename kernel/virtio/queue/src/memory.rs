//! The kernel's addresses of devices' memory.
//!
//! Rings lie in coherent frames of their own device. Frames of the ring kind are in the direct map,
//! which is linear: pointer = base + physical address.

use core::ptr::NonNull;

use freehold_bounce::{Device, DmaSource};
use freehold_machine::{PAGE_SIZE, Pfn};
use spin::Once;

/// There is no memory to set up rings with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoRings;

static BASE: Once<usize> = Once::new();

/// Finds out where the direct map is, by one frame of `device`. Later calls change nothing.
///
/// # Errors
/// [`NoRings`] if the device has no frame to show it.
pub fn install<S: DmaSource>(device: Device<S>) -> Result<(), NoRings> {
    let frame = device.coherent(PAGE_SIZE).map_err(|_| NoRings)?;
    let place = ask(frame.pfn()).as_ptr() as usize;
    BASE.call_once(|| place.wrapping_sub(frame.pfn().start().0 as usize));
    Ok(())
}

/// Returns the kernel's address of the first byte of a frame of the ring kind; bytes of the
/// following frames of its block follow. Such a frame is in the direct map for as long as it is of
/// that kind, so no lookup is needed.
#[inline]
pub(crate) fn pointer(frame: Pfn) -> NonNull<u8> {
    #[cfg(feature = "model")]
    return crate::model::pointer(frame);
    #[cfg(not(feature = "model"))]
    {
        let base = *BASE.get().expect("a queue exists only after install");
        let pointer = base.wrapping_add(frame.start().0 as usize) as *mut u8;
        NonNull::new(pointer).expect("the direct map is not at 0")
    }
}

/// The same, from the code that made the direct map: it panics where the frame is not in it.
fn ask(frame: Pfn) -> NonNull<u8> {
    #[cfg(feature = "model")]
    return crate::model::pointer(frame);
    #[cfg(all(target_os = "none", not(feature = "model")))]
    {
        // Made only to get the frame's address: the owner of the frame stays the same.
        let pages = freehold_arch::memory::KernelPages::from_frames(frame, 0);
        NonNull::new(pages.as_ptr()).expect("the direct map is not at 0")
    }
    #[cfg(all(not(target_os = "none"), not(feature = "model")))]
    panic!("{frame:?}: this build has neither the machine nor its model")
}
