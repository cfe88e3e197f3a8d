//! The domain of one device behind a virtio IOMMU, which keeps the mappings.

use core::fmt;
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use freehold_bounce::DmaSource;
use freehold_iommu::{IommuError, Mode};
use freehold_machine::{
    DeviceAccess, DeviceDomain, MAX_WINDOWS, NoTables, PAGE_SHIFT, PAGE_SIZE, Pfn, PfnRange, Unconfirmed,
    WINDOW_PAGES,
};
use freehold_virtqueue::Transport;
use spin::Mutex;

use super::request::{IommuRequest, READ, WRITE};
use super::{MAX_RESERVED, NotDone, VirtioIommu};

/// Bytes of addresses of all windows.
pub(super) const WINDOW_BYTES: u64 = (MAX_WINDOWS * WINDOW_PAGES * PAGE_SIZE) as u64;
const _: () = assert!(MAX_WINDOWS <= u32::BITS as usize);

/// Whether a domain's device is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Occupied {
    /// It is.
    Now,
    /// The device may come: [`DeviceDomain::reattach`].
    Later,
}

/// A device's domain. It stays for as long as the IOMMU.
pub struct MappedDomain<S: DmaSource, T: Transport + 'static> {
    unit: &'static VirtioIommu<S, T>,
    source_id: u16,
    endpoint: u32,
    /// The domain's number at the IOMMU.
    number: u32,
    name: &'static str,
    is_occupied: AtomicBool,
    /// Addresses that the device cannot use for memory.
    reserved: Mutex<[Option<(u64, u64)>; MAX_RESERVED]>,
    /// A bit for each window that is open, or was closed without an answer.
    open: AtomicU32,
    pages: AtomicUsize,
    faults: AtomicUsize,
}

impl<S: DmaSource, T: Transport + 'static> MappedDomain<S, T> {
    pub(super) fn new(
        unit: &'static VirtioIommu<S, T>,
        source_id: u16,
        (endpoint, number): (u32, u32),
        name: &'static str,
    ) -> Self {
        Self {
            unit,
            source_id,
            endpoint,
            number,
            name,
            is_occupied: AtomicBool::new(false),
            reserved: Mutex::new([None; MAX_RESERVED]),
            open: AtomicU32::new(0),
            pages: AtomicUsize::new(0),
            faults: AtomicUsize::new(0),
        }
    }
    /// Attaches the domain, which is empty, to the present function of its endpoint.
    pub(super) fn enter(&self) -> Result<(), IommuError> {
        let mut reserved = [None; MAX_RESERVED];
        let mut places = reserved.iter_mut();
        self.unit.probe(self.endpoint, |region| {
            let place = places.next().ok_or(IommuError::Unsupported("room for so many reserved regions"))?;
            *place = Some((*region.start(), *region.end()));
            Ok(())
        })?;
        *self.reserved.lock() = reserved;
        let request = IommuRequest::Attach { domain: self.number, endpoint: self.endpoint };
        self.unit.send([request]).map_err(|error| match error {
            NotDone::Refused => IommuError::Unsupported("a domain for this function"),
            NotDone::Dead | NotDone::Lost => IommuError::Dead("a new domain"),
        })?;
        self.is_occupied.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Bus, device and function: 8, 5 and 3 bits.
    pub const fn source_id(&self) -> u16 {
        self.source_id
    }
    pub(super) const fn endpoint(&self) -> u32 {
        self.endpoint
    }
    /// The device's name.
    pub const fn name(&self) -> &'static str {
        self.name
    }
    /// Number of refused accesses that were reported.
    pub fn faults(&self) -> usize {
        self.faults.load(Ordering::Relaxed)
    }
    /// Number of pages that the device can access.
    pub fn pages(&self) -> usize {
        self.pages.load(Ordering::Relaxed)
    }
    pub(super) fn is_occupied(&self) -> bool {
        self.is_occupied.load(Ordering::Relaxed)
    }
    pub(super) fn note_fault(&self) {
        self.faults.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the first page of the windows, in the device's addresses.
    fn first_window(&self) -> u64 {
        (self.unit.limits.last + 1 - WINDOW_BYTES) >> PAGE_SHIFT
    }
    fn window(&self, number: usize, pages: usize) -> PfnRange {
        let first = Pfn(self.first_window() + (number * WINDOW_PAGES) as u64);
        PfnRange::new(first, first.offset(pages as u64))
    }
    /// Returns whether none of these addresses is reserved.
    fn is_usable(&self, addresses: &RangeInclusive<u64>) -> bool {
        let reserved = self.reserved.lock();
        reserved.iter().flatten().all(|&(first, last)| last < *addresses.start() || first > *addresses.end())
    }

    /// Maps `pages`. If one mapping fails, the others are taken back. If the IOMMU neither does
    /// that nor confirms a reset, they count as mapped: their frames must not be reused.
    fn add(
        &self,
        pages: PfnRange,
        requests: impl Iterator<Item = IommuRequest>,
        count: usize,
    ) -> Result<(), NoTables> {
        let addresses = bytes(pages);
        if pages.is_empty() {
            return Ok(());
        }
        if !self.is_occupied() || !self.is_usable(&addresses) || *addresses.start() < self.unit.limits.first {
            return Err(NoTables);
        }
        let is_undone = match self.unit.send(requests) {
            Ok(()) => false,
            Err(NotDone::Dead) => true,
            Err(NotDone::Lost) => false,
            Err(NotDone::Refused) => {
                let (first, last) = addresses.into_inner();
                let undo = IommuRequest::Unmap { domain: self.number, first, last };
                self.unit.send([undo]).is_ok() || self.unit.give_up()
            }
        };
        if is_undone {
            return Err(NoTables);
        }
        self.pages.fetch_add(count, Ordering::Relaxed);
        Ok(())
    }

    /// Takes the mappings of `pages` away, by one request or by one for each page.
    fn remove(&self, pages: PfnRange) -> Result<(), Unconfirmed> {
        if pages.is_empty() {
            return Ok(());
        }
        let domain = self.number;
        let unmap = |pages| {
            let (first, last) = bytes(pages).into_inner();
            IommuRequest::Unmap { domain, first, last }
        };
        let sent = match self.unit.mode {
            Mode::Batched => self.unit.send([unmap(pages)]),
            Mode::Strict => {
                self.unit.send(pages.iter().map(|page| unmap(PfnRange::new(page, page.offset(1)))))
            }
        };
        self.pages.fetch_sub(pages.len() as usize, Ordering::Relaxed);
        sent.map_err(|_| Unconfirmed)
    }
}

/// Returns the addresses of `pages`, of which there is one at least.
fn bytes(pages: PfnRange) -> RangeInclusive<u64> {
    pages.start.start().0..=pages.end.start().0.wrapping_sub(1)
}

impl<S, T> DeviceDomain for MappedDomain<S, T>
where
    S: DmaSource,
    T: Transport + Send + 'static,
{
    fn map(&self, frames: PfnRange) -> Result<(), NoTables> {
        if frames.end.0 > self.first_window() {
            return Err(NoTables);
        }
        let domain = self.number;
        let requests = frames.iter().map(|frame| {
            let first = frame.start().0;
            let last = first + PAGE_SIZE as u64 - 1;
            IommuRequest::Map { domain, first, last, physical: first, flags: READ | WRITE }
        });
        self.add(frames, requests, frames.len() as usize)
    }

    fn unmap(&self, frames: PfnRange) -> Result<(), Unconfirmed> {
        self.remove(frames)
    }

    fn detach(&self) -> Result<(), Unconfirmed> {
        if !self.is_occupied() {
            return Ok(());
        }
        let request = IommuRequest::Detach { domain: self.number, endpoint: self.endpoint };
        self.unit.send([request]).map_err(|_| Unconfirmed)?;
        self.is_occupied.store(false, Ordering::Relaxed);
        self.open.store(0, Ordering::Relaxed);
        self.pages.store(0, Ordering::Relaxed);
        Ok(())
    }

    fn reattach(&self) -> Result<(), NoTables> {
        if self.is_occupied() { Ok(()) } else { self.enter().map_err(|_| NoTables) }
    }

    fn windows(&self) -> usize {
        if self.unit.has_windows.load(Ordering::Relaxed) { MAX_WINDOWS } else { 0 }
    }

    fn open(
        &self,
        place: usize,
        frames: &mut dyn Iterator<Item = Pfn>,
        access: DeviceAccess,
    ) -> Result<u64, NoTables> {
        let bit = 1u32.checked_shl(place as u32).filter(|_| place < self.windows()).ok_or(NoTables)?;
        if self.open.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            return Err(NoTables);
        }
        let flags = match access {
            DeviceAccess::Read => READ,
            DeviceAccess::Write => WRITE,
            DeviceAccess::ReadWrite => READ | WRITE,
        };
        let (domain, all) = (self.number, self.window(place, WINDOW_PAGES));
        let mut count = 0;
        let requests = all.iter().zip(&mut *frames).map(|(page, frame)| {
            count += 1;
            let first = page.start().0;
            let last = first + PAGE_SIZE as u64 - 1;
            IommuRequest::Map { domain, first, last, physical: frame.start().0, flags }
        });
        let opened = self.add(all, requests, 0);
        if opened.is_err() {
            self.open.fetch_and(!bit, Ordering::Relaxed);
        } else {
            // An IOMMU that failed may not have been asked for all of them.
            self.pages.fetch_add(count + frames.count(), Ordering::Relaxed);
        }
        opened.map(|()| all.start.start().0)
    }

    fn close(&self, window: usize, pages: usize) -> Result<(), Unconfirmed> {
        // Without an answer the window stays taken.
        self.remove(self.window(window, pages))?;
        self.open.fetch_and(!(1 << window), Ordering::Relaxed);
        Ok(())
    }
}

impl<S: DmaSource, T: Transport + 'static> fmt::Debug for MappedDomain<S, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedDomain({}, endpoint {:#x}, number {})", self.name, self.endpoint, self.number)
    }
}
