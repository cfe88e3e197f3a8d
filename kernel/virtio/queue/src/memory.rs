//! Memory for rings, and the way from a buffer's pointer to its address and back.
//!
//! A ring lives in coherent frames of its own device. Frames of the bounce kind are in the direct map, which is linear:
//! pointer = base + physical address.
//!
//! **Protocol.** The crate's [`Hal`] has no word for the device that a ring is for. [`with_ring_device`] notes it while
//! the crate sets a ring up, one at a time: the crate asks for memory in that time only.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ptr::NonNull;

use freehold_bounce::{Coherent, Device, Dma, DmaAddr, DmaSource};
use freehold_machine::{PAGE_SIZE, Pfn};
use spin::{Mutex, Once};
use virtio_drivers::{BufferDirection, Hal, PhysAddr};

/// There is no memory to set up rings with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoRings;

/// Lends whole frames, whatever the page allocator.
trait Lender: Send + Sync {
    /// Zeroed frames of device number `device`, physically contiguous.
    fn lend(&self, device: u8, pages: usize) -> Option<(DmaAddr, Pfn)>;
    /// Take back what starts at `address`. Returns whether it was lent.
    fn take_back(&self, address: DmaAddr) -> bool;
    /// Keep what starts at `address` from all further use. Returns how many bytes were lost.
    fn lose(&self, address: DmaAddr) -> usize;
}

/// Holds what is lent. The lock is taken while queues are made and dropped, orders with nothing.
struct Lent<S: DmaSource> {
    dma: &'static Dma<S>,
    frames: Mutex<Vec<Coherent<S>>>,
}

impl<S: DmaSource> Lender for Lent<S> {
    fn lend(&self, device: u8, pages: usize) -> Option<(DmaAddr, Pfn)> {
        let frames = self.dma.device(device)?.coherent(pages.checked_mul(PAGE_SIZE)?).ok()?;
        let result = (frames.address(), frames.pfn());
        let mut lent = self.frames.lock();
        lent.try_reserve(1).ok()?;
        lent.push(frames);
        Some(result)
    }
    fn take_back(&self, address: DmaAddr) -> bool {
        self.remove(address).is_some()
    }
    fn lose(&self, address: DmaAddr) -> usize {
        self.remove(address).map_or(0, Coherent::lose)
    }
}

impl<S: DmaSource> Lent<S> {
    fn remove(&self, address: DmaAddr) -> Option<Coherent<S>> {
        let mut lent = self.frames.lock();
        let place = lent.iter().position(|frames| frames.address() == address);
        place.map(|place| lent.swap_remove(place))
    }
}

/// Keeps the frames of a ring that start at `address` from all further use: the device may still write to them.
/// Returns how many bytes were lost.
pub(crate) fn lose(address: DmaAddr) -> usize {
    LENDER.get().map_or(0, |(lender, _)| lender.lose(address))
}

static LENDER: Once<(Box<dyn Lender>, usize)> = Once::new();

/// The device that a ring is being set up for.
static RING_DEVICE: Mutex<Option<u8>> = Mutex::new(None);

/// Held while a ring is set up, by start-up only. Orders before the locks of the DMA API.
static SETTING_UP: Mutex<()> = Mutex::new(());

/// Calls `set_up`, which takes a ring's memory from `device`.
pub(crate) fn with_ring_device<S: DmaSource, R>(device: Device<S>, set_up: impl FnOnce() -> R) -> R {
    let _one_at_a_time = SETTING_UP.lock();
    *RING_DEVICE.lock() = Some(device.number());
    let result = set_up();
    *RING_DEVICE.lock() = None;
    result
}

/// Takes rings from the DMA API of `device` from now on. Later calls change nothing.
///
/// # Errors
/// [`NoRings`] if the device has no frame to show where the direct map is.
pub fn install<S: DmaSource>(device: Device<S>) -> Result<(), NoRings> {
    let lender = Lent { dma: device.dma(), frames: Mutex::new(Vec::new()) };
    // One frame shows where the direct map is.
    let (address, frame) = lender.lend(device.number(), 1).ok_or(NoRings)?;
    let base = (ask(frame).as_ptr() as usize).wrapping_sub(address.0 as usize);
    lender.take_back(address);
    LENDER.call_once(|| (Box::new(lender), base));
    Ok(())
}

/// How far the direct map's addresses are from physical ones.
fn base() -> usize {
    LENDER.get().expect("a queue exists only after install").1
}

/// Where the kernel reaches the first byte of a frame of the bounce kind; bytes of the following frames of its
/// block follow. Such a frame is in the direct map for as long as it is of that kind, so that nobody has to look.
#[inline]
pub(crate) fn pointer(frame: Pfn) -> NonNull<u8> {
    #[cfg(feature = "model")]
    return crate::model::pointer(frame);
    #[cfg(not(feature = "model"))]
    {
        let pointer = base().wrapping_add(frame.start().0 as usize) as *mut u8;
        NonNull::new(pointer).expect("the direct map is not at 0")
    }
}

/// The same, from those who made the direct map: it panics where the frame is not in it.
fn ask(frame: Pfn) -> NonNull<u8> {
    #[cfg(feature = "model")]
    return crate::model::pointer(frame);
    #[cfg(all(target_os = "none", not(feature = "model")))]
    {
        // Made only to ask where the frame is: the owner of the frame stays who it was.
        let pages = freehold_arch::memory::KernelPages::from_frames(frame, 0);
        NonNull::new(pages.as_ptr()).expect("the direct map is not at 0")
    }
    #[cfg(all(not(target_os = "none"), not(feature = "model")))]
    panic!("{frame:?}: this build has neither the machine nor its model")
}

/// The [`Hal`]: rings from the DMA API, buffers that are in it already.
pub(crate) struct Memory;

// SAFETY: `dma_alloc` returns zeroed frames of the bounce kind, page-aligned, that the lender keeps from every
// other use until `dma_dealloc`; `share` and `unshare` only translate.
unsafe impl Hal for Memory {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        let device = *RING_DEVICE.lock();
        match LENDER.get().zip(device).and_then(|((lender, _), device)| lender.lend(device, pages)) {
            Some((address, frame)) => (address.0, pointer(frame)),
            // Address 0 is the crate's sign of failure.
            None => (0, NonNull::dangling()),
        }
    }

    unsafe fn dma_dealloc(paddr: PhysAddr, _: NonNull<u8>, _: usize) -> i32 {
        let lent = LENDER.get().is_some_and(|(lender, _)| lender.take_back(DmaAddr(paddr)));
        if lent { 0 } else { -1 }
    }

    unsafe fn mmio_phys_to_virt(_: PhysAddr, _: usize) -> NonNull<u8> {
        // Our transport has its registers from the platform; the crate's own PCI transport is not used.
        panic!("registers are not mapped through the memory of rings")
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        (buffer.as_ptr().cast::<u8>() as usize).wrapping_sub(base()) as PhysAddr
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {
        // The driver reads the bytes where the device wrote them.
    }
}
