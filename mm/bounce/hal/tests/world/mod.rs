//! A machine's memory and a disk in it, for the crate's drivers.
#![allow(unsafe_code, dead_code, missing_docs, clippy::unwrap_used)]

use std::alloc::{Layout, alloc_zeroed};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use freehold_bounce::{Device, DeviceRules, Dma, DmaAddr, Limits};
use freehold_frame::{FrameRecord, FrameSource, FrameTable, Order, OutOfMemory, Request};
use freehold_machine::{CpuId, Cpus, NodeId, PAGE_SIZE, Pfn, PhysicalBytes};
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
use virtio_drivers::{Error, PhysAddr};
use zerocopy::{FromBytes, Immutable, IntoBytes};

const FRAMES: usize = 1024;
const FIRST: u64 = 0x100;
pub const SECTOR: usize = 512;
/// VIRTIO_F_VERSION_1 and VIRTIO_BLK_F_FLUSH.
const FEATURES: u64 = 1 << 32 | 1 << 9;

/// Physical memory, and a page allocator of the simplest kind.
pub struct Memory {
    base: usize,
    table: FrameTable,
    taken: Mutex<Vec<bool>>,
}

#[derive(Clone, Copy)]
pub struct Source(pub &'static Memory);

pub fn memory() -> Source {
    let layout = Layout::from_size_align(FRAMES * PAGE_SIZE, 1 << 21).unwrap();
    // SAFETY: the layout's size is not zero.
    let base = unsafe { alloc_zeroed(layout) } as usize;
    assert_ne!(base, 0);
    let records: Vec<FrameRecord> =
        (0..FIRST as usize + FRAMES).map(|_| zerocopy::FromZeros::new_zeroed()).collect();
    let table = FrameTable::new(Box::leak(records.into_boxed_slice()));
    Source(Box::leak(Box::new(Memory { base, table, taken: Mutex::new(vec![false; FRAMES]) })))
}

impl Source {
    /// The pointer to a byte; `None` if there is no memory.
    fn place(self, address: u64) -> Option<NonNull<u8>> {
        let offset = address.checked_sub(FIRST * PAGE_SIZE as u64)? as usize;
        if offset >= FRAMES * PAGE_SIZE {
            return None;
        }
        NonNull::new((self.0.base + offset) as *mut u8)
    }
    pub fn pointer(self, frame: Pfn) -> NonNull<u8> {
        self.place(frame.start().0).expect("a frame of this memory")
    }
    pub fn taken(self) -> usize {
        self.0.taken.lock().unwrap().iter().filter(|&&taken| taken).count()
    }
    /// Takes the next `frames` frames, as if other code used them.
    pub fn occupy(self, frames: usize) -> Vec<usize> {
        let mut taken = self.0.taken.lock().unwrap();
        let free: Vec<usize> = (0..FRAMES).filter(|&at| !taken[at]).take(frames).collect();
        free.iter().for_each(|&at| taken[at] = true);
        free
    }
    pub fn vacate(self, frames: &[usize]) {
        let mut taken = self.0.taken.lock().unwrap();
        frames.iter().for_each(|&at| taken[at] = false);
    }
    /// Reads as a device does; `None` if there is no memory.
    fn read(self, address: u64, length: usize) -> Option<Vec<u8>> {
        (0..length as u64)
            .map(|at| {
                let place = self.place(address.checked_add(at)?)?;
                // SAFETY: a byte of memory that is never freed; the driver waits while the device
                // works.
                Some(unsafe { place.read_volatile() })
            })
            .collect()
    }
    fn write(self, address: u64, bytes: &[u8]) -> Option<()> {
        (address..).zip(bytes).try_for_each(|(at, &byte)| {
            // SAFETY: as above.
            unsafe { self.place(at)?.write_volatile(byte) };
            Some(())
        })
    }
    fn word(self, address: u64) -> u16 {
        let bytes = self.read(address, 2).expect("rings are memory");
        u16::from_le_bytes([bytes[0], bytes[1]])
    }
}

impl PhysicalBytes for Source {
    fn with_bytes<R>(self, frame: Pfn, f: impl FnOnce(&mut [u8; PAGE_SIZE]) -> R) -> R {
        // SAFETY: a page of memory that is never freed, and its owner calls; devices work between
        // such calls only.
        f(unsafe { self.pointer(frame).cast().as_mut() })
    }
}

impl Cpus for Source {
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

impl FrameSource for Source {
    type Machine = Self;
    fn machine(self) -> Self {
        self
    }
    fn table(self) -> FrameTable {
        self.0.table
    }
    fn allocate(self, request: Request) -> Result<Pfn, OutOfMemory> {
        let mut taken = self.0.taken.lock().unwrap();
        let frames = request.order.frames() as usize;
        let place = taken.chunks_exact(frames).position(|block| block.iter().all(|&taken| !taken));
        let at = place.ok_or(OutOfMemory)? * frames;
        taken[at..at + frames].fill(true);
        drop(taken);
        let first = Pfn(FIRST + at as u64);
        (0..frames as u64).for_each(|frame| self.zero(first.offset(frame)));
        Ok(first)
    }
    fn release(self, block: Pfn, order: Order) {
        let at = (block.0 - FIRST) as usize;
        self.0.taken.lock().unwrap()[at..at + order.frames() as usize].fill(false);
    }
}

/// A DMA API with one device in it.
pub fn device(source: Source, slabs: usize, quota: usize) -> Device<Source> {
    let dma: &'static Dma<Source> = Box::leak(Box::new(Dma::new()));
    dma.start(source, Limits { slabs, ..Limits::default() });
    dma.attach(DeviceRules { name: "disk", reach: DmaAddr(u64::MAX), quota, domain: None }).unwrap()
}

/// How the disk treats the data of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Manner {
    Honest,
    /// The disk writes only so many bytes and reports success.
    Short(usize),
    /// The disk writes once more into a buffer after the driver has freed it.
    Late,
}

/// The disk.
pub struct DiskState {
    pub contents: Vec<u8>,
    pub manner: Manner,
    /// Data descriptors that the disk got: address and length.
    pub seen: Vec<(u64, usize)>,
    /// Rings: descriptors, available, used, entries seen.
    rings: Option<(u64, u64, u64, u16)>,
    size: u16,
    status: DeviceStatus,
}

/// The disk, and its transport; clones are the same one.
#[derive(Clone)]
pub struct Disk {
    device: Device<Source>,
    source: Source,
    pub state: Arc<Mutex<DiskState>>,
}

impl Disk {
    pub fn new(source: Source, device: Device<Source>, contents: Vec<u8>) -> Self {
        let state = DiskState {
            contents,
            manner: Manner::Honest,
            seen: Vec::new(),
            rings: None,
            size: 0,
            status: DeviceStatus::empty(),
        };
        Self { device, source, state: Arc::new(Mutex::new(state)) }
    }

    /// Checks that the memory belongs to the device or does not exist: any other memory has another
    /// owner.
    fn judge(&self, address: u64, length: usize) {
        for page in address / PAGE_SIZE as u64..=(address + length as u64 - 1) / PAGE_SIZE as u64 {
            let owner = self.device.dma().owner(DmaAddr(page * PAGE_SIZE as u64));
            let is_memory = self.source.place(page * PAGE_SIZE as u64).is_some();
            assert!(owner == Some("disk") || !is_memory, "the device was told {page:#x} of {owner:?}");
        }
    }

    /// The chain that begins at `head`: address, length, and whether the device writes.
    fn chain(&self, descriptors: u64, head: u16) -> Vec<(u64, usize, bool)> {
        let (mut parts, mut next) = (Vec::new(), Some(head));
        while let Some(index) = next {
            let at = descriptors + 16 * u64::from(index);
            let entry = self.source.read(at, 16).expect("rings are memory");
            let address = u64::from_le_bytes(entry[..8].try_into().unwrap());
            let length = u32::from_le_bytes(entry[8..12].try_into().unwrap()) as usize;
            let flags = u16::from_le_bytes([entry[12], entry[13]]);
            self.judge(address, length);
            parts.push((address, length, flags & 2 != 0));
            next = (flags & 1 != 0).then(|| u16::from_le_bytes([entry[14], entry[15]]));
        }
        parts
    }

    /// Serves a request; `None` if the disk cannot access its parts.
    fn serve(&self, state: &mut DiskState, parts: &[(u64, usize, bool)]) -> Option<()> {
        let header = self.source.read(parts[0].0, 16)?;
        let kind = u32::from_le_bytes(header[..4].try_into().unwrap());
        let sector = u64::from_le_bytes(header[8..16].try_into().unwrap()) as usize;
        let Some(&(address, length, is_written)) = parts.get(1).filter(|_| parts.len() == 3) else {
            return Some(());
        };
        assert_eq!(is_written, kind == 0);
        let range = sector * SECTOR..sector * SECTOR + length;
        if kind == 1 {
            let bytes = self.source.read(address, length)?;
            state.contents[range].copy_from_slice(&bytes);
        } else {
            let most = if let Manner::Short(most) = state.manner { most.min(length) } else { length };
            self.source.write(address, &state.contents[range][..most])?;
        }
        state.seen.push((address, length));
        Some(())
    }

    fn work(&self) {
        let mut state = self.state.lock().unwrap();
        let Some((descriptors, available, used, mut seen)) = state.rings else { return };
        if let (Manner::Late, Some(&(address, length))) = (state.manner, state.seen.last()) {
            _ = self.source.write(address, &vec![0xee; length]);
        }
        while self.source.word(available + 2) != seen {
            let slot = u64::from(seen % state.size);
            let head = self.source.word(available + 4 + 2 * slot);
            let parts = self.chain(descriptors, head);
            let status = if self.serve(&mut state, &parts).is_some() { 0 } else { 1 };
            _ = self.source.write(parts.last().unwrap().0, &[status]);
            let entry = [u32::from(head).to_le_bytes(), 1u32.to_le_bytes()].concat();
            self.source.write(used + 4 + 8 * slot, &entry).unwrap();
            seen = seen.wrapping_add(1);
            self.source.write(used + 2, &seen.to_le_bytes()).unwrap();
        }
        state.rings = Some((descriptors, available, used, seen));
    }
}

impl Transport for Disk {
    fn device_type(&self) -> DeviceType {
        DeviceType::Block
    }
    fn read_device_features(&mut self) -> u64 {
        FEATURES
    }
    fn write_driver_features(&mut self, features: u64) {
        assert_eq!(features, FEATURES);
    }
    fn max_queue_size(&mut self, _: u16) -> u32 {
        16
    }
    fn notify(&mut self, _: u16) {
        self.work();
    }
    fn get_status(&self) -> DeviceStatus {
        self.state.lock().unwrap().status
    }
    fn set_status(&mut self, status: DeviceStatus) {
        self.state.lock().unwrap().status = status;
    }
    fn set_guest_page_size(&mut self, _: u32) {}
    fn requires_legacy_layout(&self) -> bool {
        false
    }
    fn queue_set(&mut self, _: u16, size: u32, descriptors: PhysAddr, driver: PhysAddr, device: PhysAddr) {
        let mut state = self.state.lock().unwrap();
        (state.rings, state.size) = (Some((descriptors, driver, device, 0)), size as u16);
    }
    fn queue_unset(&mut self, _: u16) {
        self.state.lock().unwrap().rings = None;
    }
    fn queue_used(&mut self, _: u16) -> bool {
        self.state.lock().unwrap().rings.is_some()
    }
    fn ack_interrupt(&mut self) -> InterruptStatus {
        InterruptStatus::empty()
    }
    fn read_config_generation(&self) -> u32 {
        0
    }
    fn read_config_space<T: FromBytes + IntoBytes>(&self, offset: usize) -> Result<T, Error> {
        let sectors = (self.state.lock().unwrap().contents.len() / SECTOR) as u64;
        let mut config = [0; 64];
        config[..8].copy_from_slice(&sectors.to_le_bytes());
        T::read_from_prefix(&config[offset..]).map(|(value, _)| value).map_err(|_| Error::ConfigSpaceTooSmall)
    }
    fn write_config_space<T: IntoBytes + Immutable>(&mut self, _: usize, _: T) -> Result<(), Error> {
        Err(Error::Unsupported)
    }
}
