//! Devices and their accounts.

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use freehold_frame::{Bounce, Frame, Order, Owner, Request};
use freehold_machine::{Cpus, PAGE_SIZE, Pfn, Tally};
use spin::Once;

use crate::cells::{Cell, Cells};
use crate::pool::{Growth, Pool, Taker};
use crate::runs::Runs;
use crate::{
    Direction, DmaAddr, DmaError, DmaSource, MAX_DEVICES, MAX_MAPPING, Mapping, Original, SLOT_SIZE,
};

/// Slots in a page.
const PAGE_SLOTS: usize = PAGE_SIZE / SLOT_SIZE;
/// Counts per device in the tally: bytes taken, bytes given back; then pages taken from the pool, pages given back.
const TAKEN: usize = 0;
const GIVEN: usize = 1;
const POOL_TAKEN: usize = 2 * MAX_DEVICES;
const POOL_GIVEN: usize = POOL_TAKEN + 1;

/// What a device is and may do.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRules {
    /// Its name in reports.
    pub name: &'static str,
    /// The highest address it can use (Linux: its DMA mask).
    pub reach: DmaAddr,
    /// The most bytes that it may hold at once, slots and coherent frames together; devices on several CPUs at once may
    /// exceed it by a request per CPU. `usize::MAX`: only the cap of all counts.
    pub quota: usize,
}

/// When bytes are zeroed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Scrub {
    /// When a page goes from one device to another.
    #[default]
    OwnerChange,
    /// Each time a mapping ends, too.
    Always,
}

/// How much memory there is, as the kernel's parameters say.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Slots of 2 KiB that are there from the start and stay (`swiotlb=SLABS`).
    pub slabs: usize,
    /// Hints for where to search, shared by CPUs (`swiotlb=,AREAS`); 0: one per CPU.
    pub areas: usize,
    /// The most bytes of slots (`swiotlb.max=`).
    pub cap: usize,
    /// See [`Scrub`].
    pub scrub: Scrub,
}

impl Default for Limits {
    /// 256 KiB at first, without a cap of its own.
    fn default() -> Self {
        Self { slabs: 128, areas: 0, cap: usize::MAX, scrub: Scrub::OwnerChange }
    }
}

/// Told that slots were added, or are short: the kernel's worker calls [`Dma::tick`] each second while
/// [`Dma::wants_ticks`].
pub trait Worker: Sync {
    /// In a task, without locks of the DMA API.
    fn wake(&self);
}

/// A device's account.
struct Account {
    rules: DeviceRules,
    /// Bytes of coherent frames.
    coherent: AtomicUsize,
    /// Bytes that never come back.
    lost: AtomicUsize,
    failed: AtomicUsize,
    waits: AtomicUsize,
    grows: AtomicUsize,
    cells: Cells,
}

/// What a device holds and did.
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
    /// How often its driver waited for memory.
    pub waits: usize,
    /// Segments that were added because it found too little.
    pub grows: usize,
    /// Bytes of slots that it had, one time after the other.
    pub bytes: usize,
    /// Mappings that failed.
    pub failed: usize,
}

/// Counts over all devices, with Linux' names where it has one (debugfs swiotlb/).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Slots in all segments (io_tlb_nslabs).
    pub nslabs: usize,
    /// Slots in use (io_tlb_used).
    pub used: usize,
    /// The most that ever were, to within a segment for each CPU (io_tlb_used_hiwater).
    pub used_hiwater: usize,
    /// Slots that callers added and that the worker has not looked at (io_tlb_transient_nslabs).
    pub transient: usize,
    /// Segments added and removed.
    pub grows: usize,
    /// Segments that went back to the page allocator.
    pub shrinks: usize,
    /// Frames in coherent use.
    pub coherent_frames: usize,
    /// Mappings that failed.
    pub failed: usize,
    /// Bytes that all devices together have lost: see [`Mapping::lose`].
    pub lost: usize,
    /// Bytes of slots that devices had, one time after the other.
    pub bytes: usize,
}

/// All of DMA: one per kernel.
pub struct Dma<S: DmaSource> {
    started: Once<(S, Scrub)>,
    pool: Pool<S>,
    accounts: [Once<Account>; MAX_DEVICES],
    counts: Tally<{ POOL_GIVEN + 1 }>,
    /// Pages.
    hiwater: AtomicUsize,
    coherent_frames: AtomicUsize,
    /// A caller found too little memory since the worker's last look.
    is_tight: AtomicBool,
    worker: Once<&'static dyn Worker>,
}

impl<S: DmaSource> Dma<S> {
    /// Has no memory, and no device can be attached before [`Dma::start`].
    #[expect(clippy::new_without_default, reason = "statics need a const fn, and one way is enough")]
    pub const fn new() -> Self {
        Self {
            started: Once::new(),
            pool: Pool::new(),
            accounts: [const { Once::new() }; MAX_DEVICES],
            counts: Tally::new(),
            hiwater: AtomicUsize::new(0),
            coherent_frames: AtomicUsize::new(0),
            is_tight: AtomicBool::new(false),
            worker: Once::new(),
        }
    }

    /// Takes memory from `source` from now on, and as much at once as `limits` says. Later calls do nothing. Returns the
    /// slots that there are.
    pub fn start(&self, source: S, limits: Limits) -> usize {
        self.started.call_once(|| (source, limits.scrub));
        let areas = if limits.areas == 0 { source.machine().cpu_count() } else { limits.areas };
        let base = limits.slabs.div_ceil(PAGE_SLOTS);
        self.pool.start(source, areas, base, limits.cap / PAGE_SIZE) * PAGE_SLOTS
    }

    /// Sets who is woken for [`Dma::tick`]. Once.
    pub fn set_worker(&self, worker: &'static dyn Worker) {
        self.worker.call_once(|| worker);
    }

    /// Admit a device; it stays.
    ///
    /// # Errors
    /// [`DmaError::TooManyDevices`]; [`DmaError::OutOfMemory`] before [`Dma::start`].
    pub fn attach(&'static self, rules: DeviceRules) -> Result<Device<S>, DmaError> {
        self.started.get().ok_or(DmaError::OutOfMemory)?;
        for (number, account) in self.accounts.iter().enumerate() {
            let mut mine = false;
            account.call_once(|| {
                mine = true;
                Account {
                    rules,
                    coherent: AtomicUsize::new(0),
                    lost: AtomicUsize::new(0),
                    failed: AtomicUsize::new(0),
                    waits: AtomicUsize::new(0),
                    grows: AtomicUsize::new(0),
                    cells: Cells::new(),
                }
            });
            if mine {
                return Ok(Device { dma: self, number: number as u8 });
            }
        }
        Err(DmaError::TooManyDevices)
    }

    /// Whether [`Dma::tick`] has something to do.
    pub fn wants_ticks(&self) -> bool {
        self.pool.has_grown() || self.is_tight.load(Ordering::Relaxed)
    }

    /// The worker's look, once a second: adds memory where little is free, and gives segments back that were idle for five
    /// looks. Returns the bytes that went.
    pub fn tick(&self) -> usize {
        self.is_tight.store(false, Ordering::Relaxed);
        let Some(&(source, _)) = self.started.get() else { return 0 };
        self.pool.tick(self.used_pages(), source) * PAGE_SIZE
    }

    /// Memory is short: gives back what is idle. Returns the bytes that went.
    pub fn shrink(&self) -> usize {
        self.pool.shrink() * PAGE_SIZE
    }

    /// Counts over all devices.
    pub fn statistics(&self) -> Statistics {
        let used = self.note_use();
        let (grows, shrinks) = self.pool.changes();
        let sum = |of: fn(Usage) -> usize| self.usage().map(of).sum();
        Statistics {
            nslabs: self.pool.pages() * PAGE_SLOTS,
            used: used * PAGE_SLOTS,
            used_hiwater: self.hiwater.load(Ordering::Relaxed) * PAGE_SLOTS,
            transient: self.pool.transient() * PAGE_SLOTS,
            grows,
            shrinks,
            coherent_frames: self.coherent_frames.load(Ordering::Relaxed),
            failed: sum(|usage| usage.failed),
            lost: sum(|usage| usage.lost),
            bytes: sum(|usage| usage.bytes),
        }
    }

    /// Begins the high-water mark anew.
    pub fn reset_hiwater(&self) {
        self.hiwater.store(self.used_pages(), Ordering::Relaxed);
    }

    /// What each device holds.
    pub fn usage(&self) -> impl Iterator<Item = Usage> {
        self.accounts.iter().filter_map(Once::get).zip(0..).map(|(account, number)| Usage {
            name: account.rules.name,
            held: self.held(account, number),
            quota: account.rules.quota.min(self.pool.cap() * PAGE_SIZE),
            lost: account.lost.load(Ordering::Relaxed),
            waits: account.waits.load(Ordering::Relaxed),
            grows: account.grows.load(Ordering::Relaxed),
            bytes: self.counts.sum(2 * usize::from(number) + TAKEN) as usize,
            failed: account.failed.load(Ordering::Relaxed),
        })
    }

    /// The name of the device that has, or had last, the page of `address`; `None` where no device had it.
    pub fn owner(&self, address: DmaAddr) -> Option<&'static str> {
        let number = self.pool.owner(address)?;
        Some(self.accounts.get(usize::from(number))?.get()?.rules.name)
    }

    /// Bytes that device `number` holds. Counts of other CPUs may come a moment late, the ones of taking too.
    fn held(&self, account: &Account, number: u8) -> usize {
        let at = 2 * usize::from(number);
        let given = self.counts.sum(at + GIVEN);
        let slots = self.counts.sum(at + TAKEN).saturating_sub(given);
        slots as usize + account.coherent.load(Ordering::Relaxed)
    }

    fn used_pages(&self) -> usize {
        let given = self.counts.sum(POOL_GIVEN);
        self.counts.sum(POOL_TAKEN).saturating_sub(given) as usize
    }

    /// Pages in use; raises the high-water mark.
    fn note_use(&self) -> usize {
        let used = self.used_pages();
        self.hiwater.fetch_max(used, Ordering::Relaxed);
        used
    }

    fn source(&self) -> S {
        self.started.get().expect("a device is attached after the start").0
    }
    pub(crate) fn bytes(&self) -> S::Machine {
        self.source().machine()
    }
    pub(crate) fn scrub(&self) -> Scrub {
        self.started.get().map_or(Scrub::OwnerChange, |&(_, scrub)| scrub)
    }
    fn count(&self, which: usize, times: usize) {
        self.counts.add(self.bytes().current_cpu(), which, times as u64);
    }
    fn wake_worker(&self) {
        if let Some(worker) = self.worker.get() {
            worker.wake();
        }
    }
}

/// How much of what is asked for a caller can do with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Amount {
    All,
    /// As much as can be had now: a page, or more.
    Some,
}

/// One device's right to memory.
pub struct Device<S: DmaSource> {
    dma: &'static Dma<S>,
    number: u8,
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

    /// `length` bytes that the driver fills and reads itself ([`Mapping::write`], [`Mapping::read`]). At first they are
    /// zeroes, or what this device was given before: a driver passes on no more than the device says it wrote.
    ///
    /// # Errors
    /// [`DmaError`].
    pub fn buffer(self, length: usize, direction: Direction) -> Result<Mapping<S>, DmaError> {
        self.counted(self.take(length, direction, Amount::All))
    }

    /// As [`Device::buffer`], but shorter where less can be had now: whole pages, one at least.
    ///
    /// # Errors
    /// [`DmaError`]: not even one page.
    pub fn buffer_up_to(self, length: usize, direction: Direction) -> Result<Mapping<S>, DmaError> {
        self.counted(self.take(length.min(MAX_MAPPING), direction, Amount::Some))
    }

    fn counted(self, taken: Result<Mapping<S>, DmaError>) -> Result<Mapping<S>, DmaError> {
        if taken.is_err() {
            self.account().failed.fetch_add(1, Ordering::Relaxed);
        }
        taken
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
        if order.bytes() > self.room() {
            return Err(DmaError::Quota);
        }
        let request = Request::new(Owner::Bounce).order(order).zeroed();
        let frame = Frame::allocate_with(self.dma.source(), request)?;
        if frame.pfn().start().0 + order.bytes() as u64 - 1 > self.rules().reach.0 {
            return Err(DmaError::OutOfReach);
        }
        self.account().coherent.fetch_add(order.bytes(), Ordering::Relaxed);
        self.dma.coherent_frames.fetch_add(order.frames() as usize, Ordering::Relaxed);
        Ok(Coherent { device: self, frame: Some(frame), order })
    }

    /// What the device may do.
    pub fn rules(self) -> DeviceRules {
        self.account().rules
    }
    /// Bytes that it holds.
    pub fn held(self) -> usize {
        self.dma.held(self.account(), self.number)
    }
    /// Bytes of those that never come back: see [`Mapping::lose`].
    pub fn lost(self) -> usize {
        self.account().lost.load(Ordering::Relaxed)
    }
    /// Its number among the devices.
    pub const fn number(self) -> u8 {
        self.number
    }
    /// Its driver waits for memory: counted in [`Usage::waits`].
    pub fn count_wait(self) {
        self.account().waits.fetch_add(1, Ordering::Relaxed);
    }
    /// The DMA it is part of.
    pub const fn dma(self) -> &'static Dma<S> {
        self.dma
    }

    fn account(self) -> &'static Account {
        let account = self.dma.accounts[usize::from(self.number)].get();
        account.expect("a device is made after its account")
    }

    pub(crate) fn count_lost(self, bytes: usize) {
        self.account().lost.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that the quota leaves.
    fn room(self) -> usize {
        match self.rules().quota {
            usize::MAX => usize::MAX,
            quota => quota.saturating_sub(self.held()),
        }
    }

    fn take(self, length: usize, direction: Direction, amount: Amount) -> Result<Mapping<S>, DmaError> {
        if length == 0 {
            return Err(DmaError::Empty);
        }
        if length > MAX_MAPPING {
            return Err(DmaError::TooLong);
        }
        if Cells::fits(length)
            && let Some(mapping) = self.take_cell(length, direction)?
        {
            return Ok(mapping);
        }
        let (wanted, room) = (length.div_ceil(PAGE_SIZE), self.room() / PAGE_SIZE);
        let runs = match amount {
            Amount::All if room < wanted => return Err(DmaError::Quota),
            Amount::All => self.pages(wanted, amount)?,
            Amount::Some => self.pages(wanted.min(room).min(self.share()), amount)?,
        };
        let bytes = runs.pages() * PAGE_SIZE;
        self.dma.count(2 * usize::from(self.number) + TAKEN, bytes);
        Ok(Mapping::new(self, (runs, None), length.min(bytes), direction))
    }

    /// A cell, or `None` where the device has as many pages of them as it can.
    fn take_cell(self, length: usize, direction: Direction) -> Result<Option<Mapping<S>>, DmaError> {
        if self.room() < length {
            return Err(DmaError::Quota);
        }
        let cells = &self.account().cells;
        loop {
            if let Some((cell, run)) = cells.take(length) {
                self.dma.count(2 * usize::from(self.number) + TAKEN, cell.bytes());
                return Ok(Some(Mapping::new(self, (Runs::one(run), Some(cell)), length, direction)));
            }
            let page = self.pages(1, Amount::All)?;
            if cells.add(length, *page.first()).is_err() {
                self.give_pages(&page);
                return Ok(None);
            }
        }
    }

    /// Pages that the device may take while memory is tight: it holds no more than what is left for others.
    fn share(self) -> usize {
        if !self.dma.is_tight.load(Ordering::Relaxed) {
            return usize::MAX;
        }
        let free = self.dma.pool.cap().saturating_sub(self.dma.used_pages());
        (free.saturating_sub(self.held() / PAGE_SIZE) / 2).max(1)
    }

    /// Takes pages; adds memory where there is too little.
    fn pages(self, pages: usize, amount: Amount) -> Result<Runs, DmaError> {
        if pages == 0 {
            return Err(DmaError::Quota);
        }
        let (dma, reach) = (self.dma, self.rules().reach);
        let taker = Taker { device: self.number, reach };
        let mut runs = Runs::new();
        let mut report = dma.pool.take(dma.source(), taker, pages, &mut runs);
        let mut outcome = Ok(());
        while runs.pages() < pages && outcome.is_ok() && runs.make_room() {
            outcome = dma.pool.grow(dma.source(), reach, Growth::Transient);
            if outcome.is_ok() {
                self.account().grows.fetch_add(1, Ordering::Relaxed);
            } else {
                dma.is_tight.store(true, Ordering::Relaxed);
            }
            report |= dma.pool.take(dma.source(), taker, pages - runs.pages(), &mut runs);
            dma.wake_worker();
        }
        dma.count(POOL_TAKEN, runs.pages());
        if report {
            dma.note_use();
        }
        let enough = runs.pages() == pages || amount == Amount::Some && runs.pages() > 0;
        if !enough {
            self.give_pages(&runs);
            return Err(outcome.err().unwrap_or(DmaError::OutOfMemory));
        }
        Ok(runs)
    }

    fn give_pages(self, runs: &Runs) {
        self.dma.pool.give(self.dma.source(), runs);
        self.dma.count(POOL_GIVEN, runs.pages());
    }

    /// Takes the memory of a mapping back.
    pub(crate) fn give_back(self, runs: &Runs, cell: Option<Cell>) {
        let which = 2 * usize::from(self.number) + GIVEN;
        let Some(cell) = cell else {
            self.dma.count(which, runs.pages() * PAGE_SIZE);
            return self.give_pages(runs);
        };
        self.dma.count(which, cell.bytes());
        if let Some(run) = self.account().cells.give(cell) {
            self.give_pages(&Runs::one(run));
        }
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
        self.device.account().coherent.fetch_sub(self.order.bytes(), Ordering::Relaxed);
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
