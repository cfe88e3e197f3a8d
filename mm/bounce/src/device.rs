//! Devices and their accounts.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use freehold_machine::{Cpus, DeviceDomain, PAGE_SIZE, Pfn, PfnRange, Tally};
use spin::Once;

use crate::cells::{Cell, Cells};
use crate::domains::Domains;
use crate::in_place::Kept;
use crate::mapping::MappedMemory;
use crate::pool::{Growth, Means, Pool, Runs, Taker};
use crate::published::Published;
use crate::runs::{FrameRuns, Run};
use crate::worker::Worker;
use crate::{
    Constraint, Direction, DmaAddr, DmaError, DmaMapping, DmaSource, HeldFrames, MAX_DEVICES, MAX_MAPPING,
    Original, SLOT_SIZE, Statistics, Transfer, Usage,
};

/// Slots in a page.
const PAGE_SLOTS: usize = PAGE_SIZE / SLOT_SIZE;
/// Counts per device in the tally: bytes taken, bytes given back; then pages taken from the pool,
/// pages given back.
const TAKEN: usize = 0;
const GIVEN: usize = 1;
const POOL_TAKEN: usize = 2 * MAX_DEVICES;
const POOL_GIVEN: usize = POOL_TAKEN + 1;

/// The identity and the limits of a device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceRules {
    /// Its name in reports.
    pub name: &'static str,
    /// The highest address that the device can use (Linux: its DMA mask).
    pub reach: DmaAddr,
    /// Largest number of bytes that the device may hold at once, in slots and coherent frames
    /// together. If several CPUs allocate at once, each may exceed it by a request. `usize::MAX`:
    /// only the total cap applies.
    pub quota: usize,
    /// The memory that the device can access, if it is behind an IOMMU.
    pub domain: Option<&'static dyn DeviceDomain>,
}

/// When bytes are zeroed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Scrub {
    /// When a page moves from one device to another.
    #[default]
    OwnerChange,
    /// Also each time a mapping ends.
    Always,
}

/// Amounts of memory, from the kernel's parameters.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Number of slots of 2 KiB that exist from the start and stay (`swiotlb=SLABS`).
    pub slabs: usize,
    /// Number of areas, whose CPUs share a hint for where to search (`swiotlb=,AREAS`); 0: one per
    /// CPU.
    pub areas: usize,
    /// Largest number of bytes of slots (`swiotlb.max=`).
    pub cap: usize,
    /// See [`Scrub`].
    pub scrub: Scrub,
}

impl Default for Limits {
    /// 256 KiB at first, without an explicit cap.
    fn default() -> Self {
        Self { slabs: 128, areas: 0, cap: usize::MAX, scrub: Scrub::OwnerChange }
    }
}

/// A device's account.
pub(crate) struct Account<S: DmaSource> {
    rules: DeviceRules,
    /// The device's only memory, if it is restricted; `None`: it uses the shared pool.
    pub restricted: Option<Box<Pool<S>>>,
    /// Bytes of coherent frames.
    pub coherent: AtomicUsize,
    /// Bytes of other owners' frames that it accesses in place.
    pub in_place: AtomicUsize,
    /// Bytes that are lost for good.
    lost: AtomicUsize,
    failed: AtomicUsize,
    waits: AtomicUsize,
    grows: AtomicUsize,
    pub cells: Cells,
    /// The device was removed, and its slot is empty.
    pub is_detached: AtomicBool,
    /// `None`: the device never accesses frames in place.
    pub kept: Option<Box<Kept>>,
}

/// All of DMA: one per kernel.
pub struct Dma<S: DmaSource> {
    started: Once<(S, Scrub)>,
    pub(crate) pool: Pool<S>,
    accounts: [Once<Account<S>>; MAX_DEVICES],
    domains: Domains,
    pub(crate) published: Published,
    counts: Tally<{ POOL_GIVEN + 1 }>,
    /// Pages.
    hiwater: AtomicUsize,
    pub(crate) coherent_frames: AtomicUsize,
    /// A caller found too little memory since the worker's last scan.
    pub(crate) is_tight: AtomicBool,
    worker: Once<&'static dyn Worker>,
}

impl<S: DmaSource> Dma<S> {
    /// Returns a DMA API without memory. No device can be attached before [`Dma::start`].
    #[expect(clippy::new_without_default, reason = "statics need a const fn, and one way is enough")]
    pub const fn new() -> Self {
        Self {
            started: Once::new(),
            pool: Pool::new(),
            accounts: [const { Once::new() }; MAX_DEVICES],
            domains: Domains::new(),
            published: Published::new(),
            counts: Tally::new(),
            hiwater: AtomicUsize::new(0),
            coherent_frames: AtomicUsize::new(0),
            is_tight: AtomicBool::new(false),
            worker: Once::new(),
        }
    }

    /// From now on takes memory from `source`, and takes the initial slots of `limits` at once.
    /// Later calls do nothing. Returns the number of slots.
    pub fn start(&self, source: S, limits: Limits) -> usize {
        self.started.call_once(|| (source, limits.scrub));
        let areas = if limits.areas == 0 { source.machine().cpu_count() } else { limits.areas };
        let base = limits.slabs.div_ceil(PAGE_SLOTS);
        let means = Means { source, domains: &self.domains, published: &self.published };
        self.pool.start(means, Taker::ANYONE, areas, (base, limits.cap / PAGE_SIZE)) * PAGE_SLOTS
    }

    /// Sets the worker that is woken for [`Dma::tick`]. Only the first call has an effect.
    pub fn set_worker(&self, worker: &'static dyn Worker) {
        self.worker.call_once(|| worker);
    }

    /// Admits a device; its account stays for ever.
    ///
    /// # Errors
    /// [`DmaError::TooManyDevices`]; [`DmaError::OutOfMemory`] before [`Dma::start`].
    pub fn attach(&'static self, rules: DeviceRules) -> Result<Device<S>, DmaError> {
        self.admit(rules, None)
    }

    /// Admits a device with `bytes` of its own memory, rounded up to pages. This is all memory that
    /// it ever has for mappings, cells and coherent frames; no other device gets any of it.
    /// Coherent frames are allocated elsewhere, and the same number of pages is unused while they
    /// live. (Linux: restricted DMA, a `restricted-dma-pool` in the device tree.)
    ///
    /// # Errors
    /// As [`Dma::attach`]; [`DmaError::OutOfMemory`] or [`DmaError::OutOfReach`] if not all of the
    /// memory is available.
    pub fn attach_restricted(&'static self, rules: DeviceRules, bytes: usize) -> Result<Device<S>, DmaError> {
        let means = self.means().ok_or(DmaError::OutOfMemory)?;
        let (pool, pages) = (Box::new(Pool::new()), bytes.div_ceil(PAGE_SIZE));
        let taker = Taker { reach: rules.reach, ..Taker::ANYONE };
        let found = pool.start(means, taker, 1, (pages, pages));
        if found < pages {
            return Err(DmaError::OutOfMemory);
        }
        self.admit(rules, Some(pool))
    }

    fn admit(
        &'static self,
        rules: DeviceRules,
        mut restricted: Option<Box<Pool<S>>>,
    ) -> Result<Device<S>, DmaError> {
        self.started.get().ok_or(DmaError::OutOfMemory)?;
        for (number, account) in self.accounts.iter().enumerate() {
            let mut mine = false;
            account.call_once(|| {
                mine = true;
                Account {
                    rules,
                    restricted: restricted.take(),
                    coherent: AtomicUsize::new(0),
                    in_place: AtomicUsize::new(0),
                    lost: AtomicUsize::new(0),
                    failed: AtomicUsize::new(0),
                    waits: AtomicUsize::new(0),
                    grows: AtomicUsize::new(0),
                    cells: Cells::new(),
                    is_detached: AtomicBool::new(false),
                    kept: Kept::of(rules.domain),
                }
            });
            if mine {
                self.domains.set(number as u8, rules.domain);
                return Ok(Device { dma: self, number: number as u8 });
            }
        }
        Err(DmaError::TooManyDevices)
    }

    /// Device number `number`: see [`Device::number`].
    pub fn device(&'static self, number: u8) -> Option<Device<S>> {
        let account = self.accounts.get(usize::from(number))?.get()?;
        let is_attached = !account.is_detached.load(Ordering::Relaxed);
        is_attached.then_some(Device { dma: self, number })
    }

    /// Counts over all devices.
    pub fn statistics(&self) -> Statistics {
        let used = self.note_use();
        let (grows, shrinks) = self.pool.changes();
        let sum = |of: fn(Usage) -> usize| self.accounts().map(|(_, usage)| of(usage)).sum();
        Statistics {
            nslabs: self.pool.pages() * PAGE_SLOTS,
            used: used * PAGE_SLOTS,
            used_hiwater: self.hiwater.load(Ordering::Relaxed) * PAGE_SLOTS,
            transient: self.pool.transient() * PAGE_SLOTS,
            grows,
            shrinks,
            coherent_frames: self.coherent_frames.load(Ordering::Relaxed),
            failed: sum(|usage| usage.failed),
            lost: sum(|usage| usage.lost) + self.pool.lost() * PAGE_SIZE,
            bytes: sum(|usage| usage.bytes),
        }
    }

    /// Resets the high-water mark.
    pub fn reset_hiwater(&self) {
        self.hiwater.store(self.used_pages(), Ordering::Relaxed);
    }

    /// Returns the use of memory of each device that is attached.
    pub fn usage(&self) -> impl Iterator<Item = Usage> {
        let is_there = |account: &Account<S>| !account.is_detached.load(Ordering::Relaxed);
        self.accounts().filter(move |(account, _)| is_there(account)).map(|(_, usage)| usage)
    }

    /// All accounts, including those of removed devices.
    fn accounts(&self) -> impl Iterator<Item = (&Account<S>, Usage)> {
        self.accounts.iter().filter_map(Once::get).zip(0..).map(|(account, number)| {
            let usage = Usage {
                name: account.rules.name,
                held: self.held(account, number) + account.in_place.load(Ordering::Relaxed),
                quota: account.rules.quota.min(self.pool.cap() * PAGE_SIZE),
                lost: account.lost.load(Ordering::Relaxed),
                waits: account.waits.load(Ordering::Relaxed),
                grows: account.grows.load(Ordering::Relaxed),
                bytes: self.counts.sum(2 * usize::from(number) + TAKEN) as usize,
                failed: account.failed.load(Ordering::Relaxed),
            };
            (account, usage)
        })
    }

    /// Returns the holders of frames that devices may access for ever. They are never released (see
    /// [`InPlace`](crate::InPlace)).
    pub fn kept(&self) -> impl Iterator<Item = &Arc<dyn HeldFrames>> {
        let accounts = self.accounts.iter().filter_map(Once::get);
        accounts.filter_map(|account| account.kept.as_deref()).flat_map(Kept::holders)
    }

    /// Devices with restricted memory: their names, and their numbers of slots and of used slots.
    pub fn restricted(&self) -> impl Iterator<Item = (&'static str, [usize; 2])> {
        self.accounts.iter().filter_map(Once::get).filter_map(|account| {
            let pool = account.restricted.as_ref()?;
            Some((account.rules.name, [pool.pages() * PAGE_SLOTS, pool.used() * PAGE_SLOTS]))
        })
    }

    /// The name of the device that has, or had last, the page of `address`, which may be a ring's;
    /// `None` if no device had it. This takes one load.
    pub fn owner(&self, address: DmaAddr) -> Option<&'static str> {
        let &(source, _) = self.started.get()?;
        let number = source.table().device(Pfn(address.0 / PAGE_SIZE as u64))?;
        Some(self.accounts.get(usize::from(number))?.get()?.rules.name)
    }

    /// Bytes of slots and coherent frames that device `number` holds. Counts of other CPUs, also
    /// those of takes, may be a moment out of date.
    fn held(&self, account: &Account<S>, number: u8) -> usize {
        let at = 2 * usize::from(number);
        let given = self.counts.sum(at + GIVEN);
        let slots = self.counts.sum(at + TAKEN).saturating_sub(given);
        slots as usize + account.coherent.load(Ordering::Relaxed)
    }

    pub(crate) fn used_pages(&self) -> usize {
        let given = self.counts.sum(POOL_GIVEN);
        self.counts.sum(POOL_TAKEN).saturating_sub(given) as usize
    }

    /// Pages in use; raises the high-water mark.
    fn note_use(&self) -> usize {
        let used = self.used_pages();
        self.hiwater.fetch_max(used, Ordering::Relaxed);
        used
    }

    pub(crate) fn source(&self) -> S {
        self.started.get().expect("a device is attached after the start").0
    }
    pub(crate) const fn domains(&self) -> &Domains {
        &self.domains
    }
    pub(crate) fn means(&self) -> Option<Means<'_, S>> {
        let &(source, _) = self.started.get()?;
        Some(Means { source, domains: &self.domains, published: &self.published })
    }
    /// Lets device `number` access `frames`.
    pub(crate) fn join(&self, number: u8, frames: PfnRange) -> Result<(), DmaError> {
        self.domains.join(number, frames).map_err(|_| DmaError::OutOfMemory)
    }
    /// Ends the access of device `number` to `frames`. Returns whether they may be used for
    /// something else.
    pub(crate) fn leave(&self, number: u8, frames: PfnRange) -> bool {
        self.domains.leave(number, frames).is_ok()
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

/// How much of a request must be met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Amount {
    All,
    /// As much as is available now: a page, or more.
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
    /// Gives the device access to a copy of `original`. The copy is filled for each direction. So
    /// if the device writes less than it may, the rest has the original's bytes and nothing else.
    ///
    /// # Errors
    /// [`DmaError`]; the device then sees nothing.
    pub fn map<O: Original + ?Sized>(
        self,
        original: &O,
        direction: Direction,
    ) -> Result<DmaMapping<S>, DmaError> {
        let mapping = self.buffer(original.length(), direction)?;
        mapping.copy_in(original, 0, mapping.len());
        Ok(mapping)
    }

    /// `length` bytes that the driver fills and reads itself ([`DmaMapping::write`],
    /// [`DmaMapping::read`]). At first they are zeroes, or bytes of earlier transfers of this
    /// device. So a driver must not pass on more bytes than the device reports to have written.
    ///
    /// # Errors
    /// [`DmaError`].
    pub fn buffer(self, length: usize, direction: Direction) -> Result<DmaMapping<S>, DmaError> {
        self.counted(self.take(Transfer::of(length), direction, Amount::All))
    }

    /// As [`Device::buffer`], with addresses that meet the transfer's constraint.
    ///
    /// # Errors
    /// [`DmaError`].
    pub fn bounce(self, transfer: Transfer, direction: Direction) -> Result<DmaMapping<S>, DmaError> {
        self.counted(self.take(transfer, direction, Amount::All))
    }

    /// Returns the longest transfer under `constraint` that is possible now, for any address of its
    /// original, within quota, cap and the device's share. Memory may still run out.
    pub fn longest(self, constraint: Constraint) -> usize {
        let step = constraint.step().max(PAGE_SIZE);
        let free = self.free().min(self.share());
        let most = MAX_MAPPING.min(self.room()).min(free * PAGE_SIZE);
        (most / step * step).saturating_sub(constraint.keeps.mask() as usize)
    }

    /// As [`Device::buffer`], but shorter if less is available now: whole pages, one at least.
    ///
    /// # Errors
    /// [`DmaError`]: not even one page.
    pub fn buffer_up_to(self, length: usize, direction: Direction) -> Result<DmaMapping<S>, DmaError> {
        self.counted(self.take(Transfer::of(length.min(MAX_MAPPING)), direction, Amount::Some))
    }

    fn counted(self, taken: Result<DmaMapping<S>, DmaError>) -> Result<DmaMapping<S>, DmaError> {
        if taken.is_err() {
            self.account().failed.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    /// Returns the device's identity and limits.
    pub fn rules(self) -> DeviceRules {
        self.account().rules
    }
    /// Returns the bytes that the device holds: its own, and those of other owners' frames that it
    /// accesses in place.
    pub fn held(self) -> usize {
        self.own() + self.account().in_place.load(Ordering::Relaxed)
    }
    /// Bytes of slots and coherent frames.
    fn own(self) -> usize {
        self.dma.held(self.account(), self.number)
    }
    /// The held bytes that are lost for good: see [`DmaMapping::lose`].
    pub fn lost(self) -> usize {
        self.account().lost.load(Ordering::Relaxed)
    }
    /// Its number among the devices.
    pub const fn number(self) -> u8 {
        self.number
    }
    /// Counts in [`Usage::waits`] that the device's driver waits for memory.
    pub fn count_wait(self) {
        self.account().waits.fetch_add(1, Ordering::Relaxed);
    }
    /// The DMA API of which the device is part.
    pub const fn dma(self) -> &'static Dma<S> {
        self.dma
    }

    pub(crate) fn account(self) -> &'static Account<S> {
        let account = self.dma.accounts[usize::from(self.number)].get();
        account.expect("a device is made after its account")
    }

    /// Counts `bytes` once more, for a mapping that is used again without having been freed.
    pub(crate) fn count_again(self, bytes: usize) {
        let at = 2 * usize::from(self.number);
        self.dma.count(at + TAKEN, bytes);
        self.dma.count(at + GIVEN, bytes);
    }

    pub(crate) fn count_lost(self, bytes: usize) {
        self.account().lost.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Remaining bytes of the quota.
    pub(crate) fn room(self) -> usize {
        match self.rules().quota {
            usize::MAX => usize::MAX,
            quota => quota.saturating_sub(self.own()),
        }
    }

    fn take(
        self,
        transfer: Transfer,
        direction: Direction,
        amount: Amount,
    ) -> Result<DmaMapping<S>, DmaError> {
        let Transfer { length, constraint, .. } = transfer;
        if length == 0 {
            return Err(DmaError::Empty);
        }
        let (start, span) = (transfer.start(), transfer.span().ok_or(DmaError::TooLong)?);
        let reach = constraint.reach.min(self.rules().reach);
        // Cells are aligned to their sizes. Their pages were allocated below the device's address
        // limit.
        let small = span.max(constraint.step());
        if Cells::fits(small)
            && reach == self.rules().reach
            && let Some((run, cell)) = self.take_cell(small)?
        {
            let memory = MappedMemory { runs: FrameRuns::one(run), cell: Some(cell), start };
            return Ok(DmaMapping::new(self, memory, (length, constraint.boundary), direction));
        }
        let step = constraint.step().div_ceil(PAGE_SIZE);
        let taker = Taker { device: self.number, reach, step: step as u32 };
        let (wanted, room) = (span.div_ceil(PAGE_SIZE).next_multiple_of(step), self.room() / PAGE_SIZE);
        let runs = match amount {
            Amount::All if room < wanted => return Err(DmaError::Quota),
            Amount::All => self.pages(taker, wanted, amount)?,
            Amount::Some => self.pages(taker, wanted.min(room).min(self.share()), amount)?,
        };
        let bytes = runs.pages() * PAGE_SIZE;
        self.dma.count(2 * usize::from(self.number) + TAKEN, bytes);
        let memory = MappedMemory { runs, cell: None, start };
        Ok(DmaMapping::new(self, memory, (length.min(bytes - start), constraint.boundary), direction))
    }

    /// Takes a cell; returns it and its page, or `None` if the device has the largest number of
    /// cell pages.
    fn take_cell(self, length: usize) -> Result<Option<(Run, Cell)>, DmaError> {
        if self.room() < length {
            return Err(DmaError::Quota);
        }
        let cells = &self.account().cells;
        loop {
            if let Some((cell, run)) = cells.take(length) {
                self.dma.count(2 * usize::from(self.number) + TAKEN, cell.bytes());
                return Ok(Some((run, cell)));
            }
            if !cells.has_vacancy(length) {
                return Ok(None);
            }
            let taker = Taker { device: self.number, reach: self.rules().reach, step: 1 };
            let page = self.pages(taker, 1, Amount::All)?;
            if cells.add(length, *page.first()).is_err() {
                self.give_pages(&page);
                return Ok(None);
            }
        }
    }

    /// The pool from which the device gets its pages.
    pub(crate) fn pool(self) -> &'static Pool<S> {
        self.account().restricted.as_deref().unwrap_or(&self.dma.pool)
    }

    /// Pages of the pool that no device has.
    fn free(self) -> usize {
        match &self.account().restricted {
            Some(pool) => pool.pages() - pool.used(),
            None => self.dma.pool.cap().saturating_sub(self.dma.used_pages()),
        }
    }

    /// Pages that the device may take while memory is tight. It may hold no more than it leaves for
    /// others.
    fn share(self) -> usize {
        if !self.dma.is_tight.load(Ordering::Relaxed) || self.account().restricted.is_some() {
            return usize::MAX;
        }
        (self.free().saturating_sub(self.own() / PAGE_SIZE) / 2).max(1)
    }

    /// Takes pages; adds memory to the pool if there is too little.
    pub(crate) fn pages(self, taker: Taker, pages: usize, amount: Amount) -> Result<FrameRuns, DmaError> {
        if pages == 0 {
            return Err(DmaError::Quota);
        }
        let (dma, pool) = (self.dma, self.pool());
        let means = Means { source: dma.source(), domains: &dma.domains, published: &dma.published };
        let mut runs = FrameRuns::new();
        let is_restricted = !core::ptr::eq(pool, &raw const dma.pool);
        // More memory is better than a transfer that short runs split.
        let accepted = if is_restricted { Runs::Any } else { Runs::Long };
        let taken = pool.take(means, taker, pages, (accepted, &mut runs));
        let mut report = taken.unwrap_or(false);
        let mut outcome = if is_restricted { Err(DmaError::Cap) } else { taken.map(drop) };
        while runs.pages() < pages && outcome.is_ok() && runs.make_room() {
            outcome = pool.grow(means, taker, pages - runs.pages(), Growth::Transient);
            let is_grown = outcome.is_ok();
            match pool.take(means, taker, pages - runs.pages(), (Runs::Any, &mut runs)) {
                Ok(more) => report |= more,
                Err(error) => outcome = Err(error),
            }
            if is_grown {
                self.account().grows.fetch_add(1, Ordering::Relaxed);
            } else if runs.pages() < pages {
                dma.is_tight.store(true, Ordering::Relaxed);
            }
            dma.wake_worker();
        }
        if !is_restricted {
            dma.count(POOL_TAKEN, runs.pages());
            if report {
                dma.note_use();
                if pool.is_crowded() {
                    dma.wake_worker();
                }
            }
        }
        let enough = runs.pages() == pages || amount == Amount::Some && runs.pages() > 0;
        if !enough {
            self.give_pages(&runs);
            return Err(outcome.err().unwrap_or(DmaError::OutOfMemory));
        }
        Ok(runs)
    }

    pub(crate) fn give_pages(self, runs: &FrameRuns) {
        let pool = self.pool();
        pool.give(self.dma.source(), runs);
        if core::ptr::eq(pool, &raw const self.dma.pool) {
            self.dma.count(POOL_GIVEN, runs.pages());
        }
    }

    /// Frees the memory of a mapping.
    pub(crate) fn give_back(self, memory: &MappedMemory) {
        let which = 2 * usize::from(self.number) + GIVEN;
        let Some(cell) = memory.cell else {
            self.dma.count(which, memory.runs.pages() * PAGE_SIZE);
            return self.give_pages(&memory.runs);
        };
        self.dma.count(which, cell.bytes());
        if let Some(run) = self.account().cells.give(cell) {
            self.give_pages(&FrameRuns::one(run));
        }
    }
}

impl<S: DmaSource> fmt::Debug for Device<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.rules().name)
    }
}
