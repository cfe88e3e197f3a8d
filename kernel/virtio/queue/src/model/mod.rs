//! Memory of the host that plays physical memory, and a device's view of a ring in it, so that
//! drivers can be tested against devices that behave, misbehave, or answer late.
//!
//! The model checks each access of a device: without an IOMMU it touches frames of the DMA API
//! only, behind one ([`as_device`]) only frames that it was given. Any other access panics.

extern crate std;

mod fake;

use core::cell::{Cell, RefCell};
use core::ops::Range;
use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed};
use std::boxed::Box;
use std::sync::{Mutex, OnceLock};
use std::vec::Vec;

use freehold_bounce::{Device, DeviceRules, Dma, DmaAddr, Limits};
use freehold_frame::{FrameRecord, FrameSource, FrameTable, Order, OutOfMemory, Owner, Request, Tag};
use freehold_machine::{CpuId, Cpus, DeviceAccess, NodeId, PAGE_SIZE, Pfn, PhysicalBytes};

pub use fake::Fake;
pub use freehold_machine::model::DeviceView;

/// Frames of the model: 16 MiB.
const FRAMES: usize = 4096;
/// The model's first frame number; there is no memory below it.
const FIRST: u64 = 0x100;

struct QueueModelState {
    base: usize,
    table: FrameTable,
    /// The owner of each frame.
    taken: Mutex<Vec<Option<Owner>>>,
}

fn shared() -> &'static QueueModelState {
    static SHARED: OnceLock<QueueModelState> = OnceLock::new();
    SHARED.get_or_init(|| {
        let layout = Layout::from_size_align(FRAMES * PAGE_SIZE, 1 << 21).expect("a sound layout");
        // SAFETY: the layout's size is not zero.
        let base = unsafe { alloc_zeroed(layout) } as usize;
        assert_ne!(base, 0, "the host has no memory for the model");
        let records: Vec<FrameRecord> =
            (0..FIRST as usize + FRAMES).map(|_| zerocopy::FromZeros::new_zeroed()).collect();
        let table = FrameTable::new(Box::leak(records.into_boxed_slice()));
        QueueModelState { base, table, taken: Mutex::new(std::vec![None; FRAMES]) }
    })
}

std::thread_local! {
    static MEDDLER: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
}

/// From now on calls `meddler` on this thread before the kernel's side accesses bytes that a device
/// may share. So a device can change bytes between any two accesses. `None` ends that. `meddler`
/// calls [`read`] and [`write`] as the device.
pub fn meddle(meddler: Option<Box<dyn FnMut()>>) {
    MEDDLER.with(|place| *place.borrow_mut() = meddler);
}

fn called() {
    // Taken out while it runs: it reads and writes memory too.
    if let Some(mut meddler) = MEDDLER.with(|place| place.borrow_mut().take()) {
        meddler();
        MEDDLER.with(|place| *place.borrow_mut() = Some(meddler));
    }
}

/// Returns the kernel's address of a frame.
pub(crate) fn pointer(frame: Pfn) -> NonNull<u8> {
    called();
    place(frame)
}

fn place(frame: Pfn) -> NonNull<u8> {
    let index = frame.0.checked_sub(FIRST).filter(|&index| index < FRAMES as u64);
    let index = index.unwrap_or_else(|| panic!("{frame:?} is not memory")) as usize;
    NonNull::new((shared().base + index * PAGE_SIZE) as *mut u8).expect("inside an allocation")
}

/// The model's physical memory, and a page allocator on it.
#[derive(Clone, Copy, Debug)]
pub struct HostMemory;

impl PhysicalBytes for HostMemory {
    fn with_bytes<R>(self, frame: Pfn, f: impl FnOnce(&mut [u8; PAGE_SIZE]) -> R) -> R {
        // SAFETY: `pointer` is the start of a page of the model's memory, which is never freed;
        // windows are short and tests play the device only between a driver's calls.
        f(unsafe { pointer(frame).cast().as_mut() })
    }
}

impl Cpus for HostMemory {
    fn current_cpu(self) -> CpuId {
        CpuId(0)
    }
    fn cpu_count(self) -> usize {
        1
    }
    fn node_of_cpu(self, _: CpuId) -> NodeId {
        NodeId(0)
    }
    fn disable_preemption(self) {}
    fn enable_preemption(self) {}
}

impl FrameSource for HostMemory {
    type Machine = Self;
    fn machine(self) -> Self {
        self
    }
    fn table(self) -> FrameTable {
        shared().table
    }
    fn allocate(self, request: Request) -> Result<Pfn, OutOfMemory> {
        let mut taken = shared().taken.lock().expect("no test panics while it allocates");
        let frames = request.order.frames() as usize;
        let place = taken.chunks_exact(frames).position(|block| block.iter().all(Option::is_none));
        let at = place.ok_or(OutOfMemory)? * frames;
        taken[at..at + frames].fill(Some(request.owner));
        drop(taken);
        let first = Pfn(FIRST + at as u64);
        (0..frames as u64).for_each(|frame| self.zero(first.offset(frame)));
        let tag = Tag::new(request.owner, request.order, NodeId(0));
        let stamped = self.table().get(first).map(|record| record.hand_out(tag));
        stamped.expect("every frame has a record").expect("it was free");
        Ok(first)
    }
    fn release(self, block: Pfn, order: Order) {
        let record = self.table().get(block).expect("every frame has a record");
        record.take_back(record.freeable(order).expect("it was handed out").trace(CpuId(0)));
        let at = (block.0 - FIRST) as usize;
        let mut taken = shared().taken.lock().expect("no test panics while it frees");
        taken[at..at + order.frames() as usize].fill(None);
    }
}

static DMA: Dma<HostMemory> = Dma::new();

/// A device with a DMA API of its own. It may hold `quota` bytes.
pub fn limited_device(quota: usize) -> Device<HostMemory> {
    // Rings are there for all devices.
    device();
    let dma = Box::leak(Box::new(Dma::new()));
    dma.start(HostMemory, Limits::default());
    dma.attach(DeviceRules { name: "limited", reach: DmaAddr(u64::MAX), quota, domain: None })
        .expect("the first device")
}

/// Two devices that share `cap` bytes of slots.
///
/// # Panics
/// Never: they are the first devices of a new DMA API.
pub fn devices_sharing(cap: usize) -> [Device<HostMemory>; 2] {
    device();
    let dma = Box::leak(Box::new(Dma::new()));
    dma.start(HostMemory, Limits { slabs: 0, cap, ..Limits::default() });
    ["one", "two"].map(|name| {
        let rules = DeviceRules { name, reach: DmaAddr(u64::MAX), quota: usize::MAX, domain: None };
        dma.attach(rules).expect("the first devices")
    })
}

/// A device of its own behind a domain with windows, and the frames that it can access.
///
/// # Panics
/// If there are too many such devices.
pub fn windowed_device() -> (Device<HostMemory>, &'static DeviceView) {
    device();
    // No memory is there.
    let view: &'static DeviceView = Box::leak(Box::new(DeviceView::new(Pfn(1 << 32))));
    let rules =
        DeviceRules { name: "windowed", reach: DmaAddr(u64::MAX), quota: usize::MAX, domain: Some(view) };
    (DMA.attach(rules).expect("few such devices"), view)
}

/// The device of the DMA API that all tests of a process share, with rings installed.
pub fn device() -> Device<HostMemory> {
    static DEVICE: OnceLock<Device<HostMemory>> = OnceLock::new();
    let rules = DeviceRules { name: "model", reach: DmaAddr(u64::MAX), quota: usize::MAX, domain: None };
    *DEVICE.get_or_init(|| {
        DMA.start(HostMemory, Limits::default());
        let device = DMA.attach(rules).expect("the first device");
        crate::install(device).expect("the model has memory");
        device
    })
}

/// Returns a page as a device accesses it.
fn with_page<R>(frame: Pfn, f: impl FnOnce(&mut [u8; PAGE_SIZE]) -> R) -> R {
    // SAFETY: `place` is the start of a page of the model's memory, which is never freed; tests
    // play the device only between a driver's looks, so no other reference to the page lives.
    f(unsafe { place(frame).cast().as_mut() })
}

std::thread_local! {
    static ACTING: Cell<Option<&'static DeviceView>> = const { Cell::new(None) };
}

/// Calls `f`; meanwhile [`read`] and [`write`] on this thread act as the device with this view.
pub fn as_device<R>(view: &'static DeviceView, f: impl FnOnce() -> R) -> R {
    let before = ACTING.replace(Some(view));
    let result = f();
    ACTING.set(before);
    result
}

/// Returns the frame that this thread's device accesses at `page` with this access.
fn reached(page: Pfn, access: DeviceAccess) -> Pfn {
    if let Some(view) = ACTING.get() {
        return view.reach(page, access).unwrap_or_else(|violation| panic!("{violation}"));
    }
    let index = page.0.checked_sub(FIRST).filter(|&index| index < FRAMES as u64);
    let index = index.unwrap_or_else(|| panic!("{page:?} is not memory")) as usize;
    let owner = shared().taken.lock().expect("no test panics while it allocates")[index];
    let is_seen = owner.is_some_and(Owner::is_seen_by_devices);
    assert!(is_seen, "a device wants to {access:?} at {page:?}, which is {owner:?}");
    page
}

/// Calls `f` with each page of the `length` bytes at `address`, as this thread's device accesses
/// it, the bytes' places in the page, and the number of bytes before.
fn each_page(
    address: u64,
    length: usize,
    access: DeviceAccess,
    mut f: impl FnMut(&mut [u8; PAGE_SIZE], Range<usize>, usize),
) {
    let mut done = 0;
    while done < length {
        let at = address + done as u64;
        let first = at as usize % PAGE_SIZE;
        let count = (PAGE_SIZE - first).min(length - done);
        with_page(reached(Pfn(at >> 12), access), |page| f(page, first..first + count, done));
        done += count;
    }
}

/// Read physical memory as a device does.
pub fn read(address: u64, bytes: &mut [u8]) {
    each_page(address, bytes.len(), DeviceAccess::Read, |page, part, done| {
        bytes[done..done + part.len()].copy_from_slice(&page[part]);
    });
}

/// Write physical memory as a device does.
pub fn write(address: u64, bytes: &[u8]) {
    each_page(address, bytes.len(), DeviceAccess::Write, |page, part, done| {
        let count = part.len();
        page[part].copy_from_slice(&bytes[done..done + count]);
    });
}

/// A part of a chain as a device sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// The address.
    pub address: u64,
    /// The number of bytes.
    pub length: u32,
    /// Whether the device may write.
    pub writable: bool,
}

/// The device's side of a split ring (virtio 1.2, 2.7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceRing {
    /// Descriptors.
    pub size: u16,
    /// Address of the descriptor table.
    pub descriptors: u64,
    /// Address of the available ring.
    pub available: u64,
    /// Address of the used ring.
    pub used: u64,
    /// Number of available entries already seen.
    pub seen: u16,
    /// Number of used entries already written.
    pub given: u16,
}

fn read_u16(address: u64) -> u16 {
    let mut bytes = [0; 2];
    read(address, &mut bytes);
    u16::from_le_bytes(bytes)
}

impl DeviceRing {
    /// The head of the next chain that the driver made available.
    fn next_head(&mut self) -> Option<u16> {
        if read_u16(self.available + 2) == self.seen {
            return None;
        }
        let head = read_u16(self.available + 4 + 2 * u64::from(self.seen % self.size));
        self.seen = self.seen.wrapping_add(1);
        Some(head)
    }
    /// Returns the descriptor at `index` of the table, and the index of the next in its chain.
    fn descriptor(&self, index: u16) -> (Descriptor, Option<u16>) {
        let mut bytes = [0; 16];
        read(self.descriptors + 16 * u64::from(index), &mut bytes);
        let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let address = u64::from_le_bytes(bytes[..8].try_into().expect("8 of 16 bytes"));
        let length = u32::from_le_bytes(bytes[8..12].try_into().expect("4 of 16 bytes"));
        let descriptor = Descriptor { address, length, writable: word(12) & 2 != 0 };
        (descriptor, (word(12) & 1 != 0).then(|| word(14)))
    }
    /// The next chain that the driver made available: its head and its parts.
    pub fn take(&mut self) -> Option<(u16, Vec<Descriptor>)> {
        let head = self.next_head()?;
        let (mut parts, mut next) = (Vec::new(), Some(head));
        while let Some(index) = next {
            let (descriptor, following) = self.descriptor(index);
            parts.push(descriptor);
            next = following;
        }
        Some((head, parts))
    }
    /// As [`DeviceRing::take`], but for a ring whose bytes may be invalid: also `None` for an
    /// invalid chain, or a chain that is not in memory.
    pub fn take_checked(&mut self) -> Option<(u16, Vec<Descriptor>)> {
        let head = self.next_head()?;
        let (mut parts, mut next) = (Vec::new(), Some(head));
        while let Some(index) = next {
            if index >= self.size || parts.len() >= crate::MAX_DESCRIPTORS {
                return None;
            }
            let (descriptor, following) = self.descriptor(index);
            let frames = FIRST..FIRST + FRAMES as u64;
            if !frames.contains(&(descriptor.address >> 12)) {
                return None;
            }
            parts.push(descriptor);
            next = following;
        }
        Some((head, parts))
    }
    /// Give the chain that starts at `head` back, saying that `written` bytes were written.
    pub fn give(&mut self, head: u32, written: u32) {
        let entry = self.used + 4 + 8 * u64::from(self.given % self.size);
        write(entry, &head.to_le_bytes());
        write(entry + 4, &written.to_le_bytes());
        self.given = self.given.wrapping_add(1);
        write(self.used + 2, &self.given.to_le_bytes());
    }
    /// Whether the driver has interrupts on.
    pub fn wants_interrupt(&self) -> bool {
        read_u16(self.available) & 1 == 0
    }
}
