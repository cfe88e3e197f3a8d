//! Devices, their rights, and the pools they share.

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use freehold_frame::{Bounce, Frame, Order, Owner, Request};
use freehold_machine::{PAGE_SIZE, Pfn};
use spin::Mutex;

use crate::pool::{Pool, Run};
use crate::{
    Direction, DmaAddr, DmaError, DmaSource, MAX_DEVICES, MAX_MAPPING, Mapping, Original, SLOT_SIZE,
};

/// The most pools: 32 MiB of slots.
const MAX_POOLS: usize = 128;
/// log2 of the frames in a whole segment.
const SEGMENT_ORDER: u32 = 6;

/// What a device is and may do.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRules {
    /// Its name in reports.
    pub name: &'static str,
    /// The highest address it can use (Linux: its DMA mask).
    pub reach: DmaAddr,
    /// The most bytes that it may hold at once, slots and coherent frames together.
    pub quota: usize,
}

/// One device's entry.
struct Seat {
    rules: DeviceRules,
    /// Bytes it holds.
    held: AtomicUsize,
    /// Bytes of those that never come back.
    lost: AtomicUsize,
}

/// What a device holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Usage {
    /// Its name.
    pub name: &'static str,
    /// Bytes of slots and coherent frames.
    pub held: usize,
    /// The most that it may hold.
    pub quota: usize,
    /// Bytes of `held` that stay out of use for ever: the device may still write to them.
    pub lost: usize,
}

/// Counts over all devices, with Linux' names where it has one (debugfs swiotlb/).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Slots in all pools (io_tlb_nslabs).
    pub nslabs: usize,
    /// Slots in use (io_tlb_used).
    pub used: usize,
    /// The most that ever were (io_tlb_used_hiwater).
    pub used_hiwater: usize,
    /// Frames in coherent use.
    pub coherent_frames: usize,
    /// Mappings that failed.
    pub failed: usize,
    /// Bytes that all devices together have lost: see [`Mapping::lose`].
    pub lost: usize,
}

/// The pools, under their lock.
struct Pools<S: DmaSource> {
    pools: [Option<Pool<S>>; MAX_POOLS],
    used: usize,
    used_hiwater: usize,
}

/// All of DMA: one per kernel.
pub struct Dma<S: DmaSource> {
    source: S,
    /// Innermost: held for a few instructions, nothing is taken under it. Orders with no other lock.
    pools: Mutex<Pools<S>>,
    seats: [spin::Once<Seat>; MAX_DEVICES],
    coherent_frames: AtomicUsize,
    failed: AtomicUsize,
}

impl<S: DmaSource> Dma<S> {
    /// DMA memory from `source`. Takes no memory yet.
    pub const fn new(source: S) -> Self {
        let pools = Pools { pools: [const { None }; MAX_POOLS], used: 0, used_hiwater: 0 };
        Self {
            source,
            pools: Mutex::new(pools),
            seats: [const { spin::Once::new() }; MAX_DEVICES],
            coherent_frames: AtomicUsize::new(0),
            failed: AtomicUsize::new(0),
        }
    }

    /// Admit a device; it stays.
    ///
    /// # Errors
    /// [`DmaError::TooManyDevices`].
    pub fn attach(&'static self, rules: DeviceRules) -> Result<Device<S>, DmaError> {
        for (number, seat) in self.seats.iter().enumerate() {
            let mut mine = false;
            seat.call_once(|| {
                mine = true;
                Seat { rules, held: AtomicUsize::new(0), lost: AtomicUsize::new(0) }
            });
            if mine {
                return Ok(Device { dma: self, number });
            }
        }
        Err(DmaError::TooManyDevices)
    }

    /// Counts over all devices.
    pub fn statistics(&self) -> Statistics {
        let pools = self.pools.lock();
        Statistics {
            nslabs: pools.pools.iter().flatten().map(Pool::slots).sum(),
            used: pools.used,
            used_hiwater: pools.used_hiwater,
            coherent_frames: self.coherent_frames.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
            lost: self.usage().map(|usage| usage.lost).sum(),
        }
    }

    /// What each device holds.
    pub fn usage(&self) -> impl Iterator<Item = Usage> {
        self.seats.iter().filter_map(spin::Once::get).map(|seat| Usage {
            name: seat.rules.name,
            held: seat.held.load(Ordering::Relaxed),
            quota: seat.rules.quota,
            lost: seat.lost.load(Ordering::Relaxed),
        })
    }

    pub(crate) fn bytes(&self) -> S::Machine {
        self.source.machine()
    }
}

/// One device's right to memory.
pub struct Device<S: DmaSource> {
    dma: &'static Dma<S>,
    number: usize,
}

impl<S: DmaSource> Clone for Device<S> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<S: DmaSource> Copy for Device<S> {}

impl<S: DmaSource> Device<S> {
    /// Let the device at a copy of `original`. The copy is made whatever the direction, so that a device which
    /// writes less than it may leaves the original's bytes and nothing else.
    ///
    /// # Errors
    /// [`DmaError`]; the device then sees nothing.
    pub fn map<O: Original + ?Sized>(
        self,
        original: &O,
        direction: Direction,
    ) -> Result<Mapping<S>, DmaError> {
        let mapping = self.buffer(original.length(), direction)?;
        mapping.copy_in(original, 0, mapping.len());
        Ok(mapping)
    }

    /// `length` bytes of zeroes that the driver fills and reads itself ([`Mapping::write`], [`Mapping::read`]).
    ///
    /// # Errors
    /// [`DmaError`].
    pub fn buffer(self, length: usize, direction: Direction) -> Result<Mapping<S>, DmaError> {
        let taken = self.take(length);
        if taken.is_err() {
            self.dma.failed.fetch_add(1, Ordering::Relaxed);
        }
        let (pool, first, run) = taken?;
        let byte = run.first as usize * SLOT_SIZE;
        let frame = first.offset((byte / PAGE_SIZE) as u64);
        let (offset, is_lost) = (byte % PAGE_SIZE, AtomicBool::new(false));
        Ok(Mapping { device: self, pool, run, frame, offset, length, direction, is_lost })
    }

    /// Whole zeroed frames that device and driver use at the same time: rings.
    ///
    /// # Errors
    /// [`DmaError`].
    pub fn coherent(self, bytes: usize) -> Result<Coherent<S>, DmaError> {
        if bytes == 0 {
            return Err(DmaError::Empty);
        }
        let order = Order::holding(bytes.div_ceil(PAGE_SIZE) as u64).ok_or(DmaError::TooLong)?;
        self.charge(order.bytes())?;
        match self.block(order) {
            Ok(frame) => {
                self.dma.coherent_frames.fetch_add(order.frames() as usize, Ordering::Relaxed);
                Ok(Coherent { device: self, frame: Some(frame), order })
            }
            Err(error) => {
                self.refund(order.bytes());
                Err(error)
            }
        }
    }

    /// What the device may do.
    pub fn rules(self) -> DeviceRules {
        self.seat().rules
    }
    /// Bytes that it holds.
    pub fn held(self) -> usize {
        self.seat().held.load(Ordering::Relaxed)
    }
    /// Bytes of those that never come back: see [`Mapping::lose`].
    pub fn lost(self) -> usize {
        self.seat().lost.load(Ordering::Relaxed)
    }
    /// The DMA it is part of.
    pub const fn dma(self) -> &'static Dma<S> {
        self.dma
    }

    fn seat(self) -> &'static Seat {
        self.dma.seats[self.number].get().expect("a device is made after its seat is taken")
    }

    fn charge(self, bytes: usize) -> Result<(), DmaError> {
        let Seat { rules, held, .. } = self.seat();
        held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
            held.checked_add(bytes).filter(|&sum| sum <= rules.quota)
        })
        .map_or(Err(DmaError::Quota), |_| Ok(()))
    }

    pub(crate) fn count_lost(self, bytes: usize) {
        self.seat().lost.fetch_add(bytes, Ordering::Relaxed);
    }

    fn refund(self, bytes: usize) {
        self.seat().held.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// A zeroed block of this order within reach.
    fn block(self, order: Order) -> Result<Frame<Bounce, S>, DmaError> {
        let request = Request::new(Owner::Bounce).order(order).zeroed();
        let block = Frame::allocate_with(self.dma.source, request)?;
        if self.reaches(block.pfn(), order.bytes()) { Ok(block) } else { Err(DmaError::OutOfReach) }
    }

    fn reaches(self, first: Pfn, bytes: usize) -> bool {
        first.start().0 + bytes as u64 - 1 <= self.seat().rules.reach.0
    }

    /// Slots for `length` bytes: the pool's number, its first frame, the slots in it.
    fn take(self, length: usize) -> Result<(usize, Pfn, Run), DmaError> {
        if length == 0 {
            return Err(DmaError::Empty);
        }
        if length > MAX_MAPPING {
            return Err(DmaError::TooLong);
        }
        let count = length.div_ceil(SLOT_SIZE) as u32;
        let bytes = count as usize * SLOT_SIZE;
        self.charge(bytes)?;
        let taken = match self.take_from_pools(count) {
            Some(taken) => Ok(taken),
            None => self.grow(bytes).and_then(|pool| self.take_from_new_pool(pool, count)),
        };
        if taken.is_err() {
            self.refund(bytes);
        }
        taken
    }

    fn take_from_pools(self, count: u32) -> Option<(usize, Pfn, Run)> {
        let mut pools = self.dma.pools.lock();
        let found = pools.pools.iter_mut().enumerate().find_map(|(number, pool)| {
            let pool = pool.as_mut()?;
            if !self.reaches(pool.pfn(), pool.slots() * SLOT_SIZE) {
                return None;
            }
            Some((number, pool.pfn(), pool.take(count)?))
        })?;
        pools.count(count);
        Some(found)
    }

    /// A new pool of a whole segment, or of what `bytes` need where memory is short.
    fn grow(self, bytes: usize) -> Result<Pool<S>, DmaError> {
        let least = Order::holding(bytes.div_ceil(PAGE_SIZE) as u64).ok_or(DmaError::TooLong)?.log2();
        let mut order = SEGMENT_ORDER;
        loop {
            let wanted = Order::new(order).ok_or(DmaError::TooLong)?;
            match self.block(wanted) {
                Ok(block) => return Ok(Pool::new(block)),
                Err(error) if order == least => return Err(error),
                Err(_) => order -= 1,
            }
        }
    }

    fn take_from_new_pool(self, mut pool: Pool<S>, count: u32) -> Result<(usize, Pfn, Run), DmaError> {
        let first = pool.pfn();
        let run = pool.take(count).ok_or(DmaError::OutOfMemory)?;
        let mut pools = self.dma.pools.lock();
        let Some(number) = pools.pools.iter().position(Option::is_none) else {
            // The pool is dropped after the lock: giving frames back takes the allocator's.
            drop(pools);
            return Err(DmaError::OutOfMemory);
        };
        pools.pools[number] = Some(pool);
        pools.count(count);
        Ok((number, first, run))
    }

    /// Take slots back. The second idle pool goes back to the page allocator: one stays for the next burst.
    pub(crate) fn give_back(self, number: usize, run: Run) {
        self.refund(run.count as usize * SLOT_SIZE);
        let mut pools = self.dma.pools.lock();
        pools.used -= run.count as usize;
        let pool = pools.pools[number].as_mut().expect("a pool with slots in use stays");
        pool.give_back(run);
        let idle = pools.pools.iter().flatten().filter(|pool| pool.is_idle()).count();
        let surplus = if idle > 1 { pools.pools[number].take_if(|pool| pool.is_idle()) } else { None };
        drop(pools);
        drop(surplus);
    }
}

impl<S: DmaSource> Pools<S> {
    fn count(&mut self, slots: u32) {
        self.used += slots as usize;
        self.used_hiwater = self.used_hiwater.max(self.used);
    }
}

/// Frames that a device and its driver share until this is dropped.
#[must_use = "dropping it takes the memory from the device"]
pub struct Coherent<S: DmaSource> {
    device: Device<S>,
    /// `None` only while it is dropped.
    frame: Option<Frame<Bounce, S>>,
    order: Order,
}

impl<S: DmaSource> Coherent<S> {
    /// What to tell the device.
    pub fn address(&self) -> DmaAddr {
        DmaAddr(self.pfn().start().0)
    }
    /// The first of the frames, which follow each other.
    pub fn pfn(&self) -> Pfn {
        self.frame.as_ref().expect("held until dropped").pfn()
    }
    /// How many frames: 2^order.
    pub const fn order(&self) -> Order {
        self.order
    }
    /// Takes the frames out of use for ever, as [`Mapping::lose`] does. Returns the bytes lost.
    pub fn lose(self) -> usize {
        let bytes = self.order.bytes();
        self.device.count_lost(bytes);
        core::mem::forget(self);
        bytes
    }
}

impl<S: DmaSource> Drop for Coherent<S> {
    fn drop(&mut self) {
        self.device.refund(self.order.bytes());
        self.device.dma.coherent_frames.fetch_sub(self.order.frames() as usize, Ordering::Relaxed);
    }
}

impl<S: DmaSource> fmt::Debug for Coherent<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Coherent({:?}, order {})", self.address(), self.order.log2())
    }
}

impl<S: DmaSource> fmt::Debug for Device<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.rules().name)
    }
}
