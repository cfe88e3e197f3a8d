//! A remapping unit: its registers (VT-d 11.4), root and context tables (9.1, 9.3), queued
//! invalidation (6.5.2), faults (7.2).

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::hint;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use freehold_frame::{DeviceTable, Frame};
use freehold_machine::{PAGE_SIZE, Pfn, PfnRange, Tables, Unconfirmed};
use spin::Mutex;

use crate::domain::{Domain, table};
use crate::interrupts::{ENTRY_GLOBAL, EntryTable};
use crate::{Interrupts, IommuError, PATIENCE, Registers, TableSource};

/// Offsets of registers.
pub(crate) mod register {
    pub const CAPABILITY: usize = 0x08;
    pub const EXTENDED: usize = 0x10;
    pub const COMMAND: usize = 0x18;
    pub const STATUS: usize = 0x1c;
    pub const ROOT: usize = 0x20;
    pub const FAULT_STATUS: usize = 0x34;
    pub const FAULT_CONTROL: usize = 0x38;
    pub const FAULT_DATA: usize = 0x3c;
    pub const FAULT_ADDRESS: usize = 0x40;
    pub const FAULT_ADDRESS_HIGH: usize = 0x44;
    pub const QUEUE_TAIL: usize = 0x88;
    pub const QUEUE_ADDRESS: usize = 0x90;
    pub const INTERRUPT_TABLE: usize = 0xb8;
}

/// Bytes of registers to map: all that the architecture puts in fixed places, and fault records
/// after them.
pub const REGISTERS: usize = 0x1000;

/// Bits of the command and status registers.
pub(crate) const TRANSLATE: u32 = 1 << 31;
pub(crate) const SET_ROOT: u32 = 1 << 30;
pub(crate) const QUEUE: u32 = 1 << 26;
pub(crate) const REMAP_INTERRUPTS: u32 = 1 << 25;
pub(crate) const SET_INTERRUPT_TABLE: u32 = 1 << 24;
/// Interrupts without an entry pass.
pub(crate) const COMPATIBLE: u32 = 1 << 23;
/// Bits of the status register that a command must write again to keep them: all except one-shot
/// commands.
const KEPT: u32 = 0x96ff_ffff;

/// Bytes in a descriptor of the queue, and how many the queue's page has.
const DESCRIPTOR: usize = 16;
const DESCRIPTORS: usize = PAGE_SIZE / DESCRIPTOR;
/// Kinds of descriptors, with their granularity.
pub(crate) const CONTEXT_GLOBAL: u64 = 1 | 1 << 4;
pub(crate) const IOTLB_GLOBAL: u64 = 2 | 1 << 4;
pub(crate) const IOTLB_DOMAIN: u64 = 2 | 2 << 4;
pub(crate) const IOTLB_PAGES: u64 = 2 | 3 << 4;
/// Wait, and write the status word.
pub(crate) const WAIT: u64 = 5 | 1 << 5;
/// Drain reads and writes that are under way.
const DRAIN: u64 = 1 << 6 | 1 << 7;

/// Present, in root and context entries.
pub(crate) const PRESENT: u64 = 1;

/// How invalidations are sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// Pages that are taken from a device together are flushed together.
    #[default]
    Batched,
    /// Each page is flushed alone.
    Strict,
}

/// The way in which devices get bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transfers {
    /// All are copied through bounce buffers.
    Bounced,
    /// A device accesses held frames directly.
    InPlace,
}

/// An access or an interrupt of a device that the unit refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceFault {
    /// Bus, device and function: 8, 5 and 3 bits.
    pub source_id: u16,
    /// The access or the interrupt that was refused.
    pub deed: Deed,
    /// Why (VT-d 7.1.3): 1 and 2 no domain, 5 write and 6 read of a page that is not mapped so; 33
    /// to 38 an interrupt without an entry, 38 with the entry of another function.
    pub reason: u8,
}

/// An access or an interrupt that a device requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deed {
    /// To read the page at this address.
    Read(u64),
    /// To write the page at this address.
    Write(u64),
    /// To read or write the page at this address: the IOMMU does not say which.
    Reach(u64),
    /// To interrupt by the entry with this index.
    Interrupt(u16),
    /// To interrupt by a message that names no entry.
    PlainInterrupt,
}

/// Reasons of faults: those of interrupts (VT-d 7.1.3), and among them a message without an entry.
const OF_INTERRUPTS: core::ops::RangeInclusive<u8> = 0x20..=0x27;
const PLAIN: u8 = 0x25;

impl DeviceFault {
    /// As a record of faults says (11.4.14), in its lower and upper half.
    fn of_record(low: u64, high: u64) -> Self {
        let (source_id, reason) = (high as u16, (high >> 32) as u8);
        let deed = match reason {
            PLAIN => Deed::PlainInterrupt,
            reason if OF_INTERRUPTS.contains(&reason) => Deed::Interrupt((low >> 48) as u16),
            _ if high >> 62 & 1 != 0 => Deed::Read(low & !0xfff),
            _ => Deed::Write(low & !0xfff),
        };
        Self { source_id, deed, reason }
    }
}

/// Largest number of unanswered waits; each has a word of its own. With [`MOST_SENT`] descriptors
/// each they fit the queue.
const WAITS: usize = 32;
/// Largest number of descriptors before a wait.
const MOST_SENT: usize = 2;
const _: () = assert!(WAITS * (MOST_SENT + 1) < DESCRIPTORS);

/// The queue's end. Its lock is held while descriptors are written, and not while the unit answers.
struct Tail {
    next: usize,
    /// The number that the last wait descriptor was told to write.
    number: u32,
}

/// A unit that translates.
pub struct Unit<R: Registers, S: TableSource> {
    registers: R,
    pub(crate) source: S,
    mode: Mode,
    /// Levels of the second-level tables.
    pub(crate) levels: u32,
    capability: u64,
    root: Pfn,
    queue: Pfn,
    status: Pfn,
    tail: Mutex<Tail>,
    /// Whether the unit once did not answer in time: it is not asked again, so that no caller waits
    /// for it twice.
    is_dead: AtomicBool,
    /// Context tables by bus. Orders before `domains`.
    contexts: Mutex<Vec<(u8, Frame<DeviceTable, S>)>>,
    domains: Mutex<Vec<&'static Domain<R, S>>>,
    invalidations: AtomicUsize,
    faults: AtomicUsize,
    /// Domains have windows.
    has_windows: AtomicBool,
    /// `None`: interrupts pass.
    pub(crate) interrupts: Option<EntryTable>,
}

impl<R: Registers, S: TableSource> Unit<R, S> {
    /// Starts the unit behind `registers`, with no domain: from now on no device can access memory,
    /// nor, if interrupts are remapped, raise interrupts. The unit exists for ever.
    ///
    /// # Errors
    /// [`IommuError`]: the unit translates nothing.
    pub fn start(
        registers: R,
        source: S,
        mode: Mode,
        interrupts: Interrupts,
    ) -> Result<&'static Self, IommuError> {
        let (capability, extended) =
            (registers.read64(register::CAPABILITY), registers.read64(register::EXTENDED));
        if extended & 1 << 1 == 0 {
            return Err(IommuError::Unsupported("queued invalidation"));
        }
        let levels = match capability >> 8 & 0x1f {
            sizes if sizes & 1 << 2 != 0 => 4,
            sizes if sizes & 1 << 1 != 0 => 3,
            _ => return Err(IommuError::Unsupported("tables of 3 or 4 levels")),
        };
        let (root, queue, status) = (table(source)?, table(source)?, table(source)?);
        let (interrupts, entries) = EntryTable::of(source, interrupts, extended)?.unzip();
        let unit = Self {
            registers,
            source,
            mode,
            levels,
            capability,
            root: root.pfn(),
            queue: queue.pfn(),
            status: status.pfn(),
            tail: Mutex::new(Tail { next: 0, number: 0 }),
            is_dead: AtomicBool::new(false),
            contexts: Mutex::new(Vec::new()),
            domains: Mutex::new(Vec::new()),
            invalidations: AtomicUsize::new(0),
            faults: AtomicUsize::new(0),
            has_windows: AtomicBool::new(false),
            interrupts,
        };
        if unit.fault_record(0).is_none() {
            return Err(IommuError::Unsupported("fault records in its page of registers"));
        }
        // From here on the unit may use them, so they stay, whatever happens.
        let _kept = (root.into_raw(), queue.into_raw(), status.into_raw(), entries.map(Frame::into_raw));
        unit.enable()?;
        Ok(Box::leak(Box::new(unit)))
    }

    fn enable(&self) -> Result<(), IommuError> {
        self.registers.write64(register::ROOT, self.root.start().0);
        self.command(SET_ROOT, "root table")?;
        self.registers.write64(register::QUEUE_TAIL, 0);
        self.registers.write64(register::QUEUE_ADDRESS, self.queue.start().0);
        self.command(QUEUE, "queue")?;
        let answered = self.send(&[[CONTEXT_GLOBAL, 0], [IOTLB_GLOBAL | DRAIN, 0]]);
        answered.map_err(|_| IommuError::Dead("first invalidation"))?;
        self.command(TRANSLATE, "translation")?;
        match &self.interrupts {
            Some(entries) => self.remap_interrupts(entries),
            None => Ok(()),
        }
    }

    /// From now on each interrupt needs an entry.
    fn remap_interrupts(&self, entries: &EntryTable) -> Result<(), IommuError> {
        self.registers.write64(register::INTERRUPT_TABLE, entries.register());
        self.command(SET_INTERRUPT_TABLE, "interrupt table")?;
        self.send(&[[ENTRY_GLOBAL, 0]]).map_err(|_| IommuError::Dead("interrupt table"))?;
        self.command(REMAP_INTERRUPTS, "interrupt remapping")?;
        // Firmware may have let the old format pass.
        let now = self.registers.read32(register::STATUS);
        if now & COMPATIBLE == 0 {
            return Ok(());
        }
        self.registers.write32(register::COMMAND, now & KEPT & !COMPATIBLE);
        let is_done = || self.registers.read32(register::STATUS) & COMPATIBLE == 0;
        if eventually(is_done) { Ok(()) } else { Err(IommuError::Dead("interrupts without an entry")) }
    }

    /// Sends a command and waits for its bit in the status.
    fn command(&self, bit: u32, what: &'static str) -> Result<(), IommuError> {
        let now = self.registers.read32(register::STATUS) & KEPT;
        self.registers.write32(register::COMMAND, now | bit);
        let is_done = || self.registers.read32(register::STATUS) & bit != 0;
        if eventually(is_done) { Ok(()) } else { Err(IommuError::Dead(what)) }
    }

    /// Makes a domain for a function: bus, device and function in 8, 5 and 3 bits.
    ///
    /// # Errors
    /// [`IommuError`]; the function then reaches nothing.
    pub fn attach(
        &'static self,
        source_id: u16,
        name: &'static str,
    ) -> Result<&'static Domain<R, S>, IommuError> {
        self.context_of(source_id)?;
        let mut domains = self.domains.lock();
        if domains.iter().any(|domain| domain.source_id == source_id) {
            return Err(IommuError::Taken);
        }
        domains.try_reserve(1).map_err(|_| IommuError::OutOfMemory)?;
        // Number 0 means "no domain" to a unit that caches absent entries.
        let number = u16::try_from(domains.len() + 1).ok().filter(|&number| number < self.most_domains());
        let number = number.ok_or(IommuError::TooManyDomains)?;
        let root = table(self.source)?;
        let domain: &'static _ = Box::leak(Box::new(Domain::new(self, (source_id, name), number, root)));
        domains.push(domain);
        drop(domains);
        self.install(domain)?;
        Ok(domain)
    }

    /// Lets a domain's function access the domain's memory.
    pub(crate) fn install(&self, domain: &Domain<R, S>) -> Result<(), IommuError> {
        let (context, index) = self.context_of(domain.source_id)?;
        let root = domain.root().ok_or(IommuError::OutOfMemory)?;
        // The half that makes the entry present comes last. Translation type 0: untranslated
        // requests only.
        let (machine, width) = (self.source.machine(), u64::from(self.levels - 2));
        machine.store_entry(context, index + 1, width | u64::from(domain.number) << 8);
        machine.store_entry(context, index, root.start().0 | PRESENT);
        if self.caches_absent() {
            let answered = self.send(&[[CONTEXT_GLOBAL, 0], [IOTLB_GLOBAL | DRAIN, 0]]);
            answered.map_err(|_| IommuError::Dead("a new domain"))?;
        }
        Ok(())
    }

    /// Takes away a domain's memory from its function. Returns when the unit has flushed the
    /// domain.
    pub(crate) fn uninstall(&self, domain: &Domain<R, S>) -> Result<(), Unconfirmed> {
        let (context, index) = self.context_of(domain.source_id).map_err(|_| Unconfirmed)?;
        self.source.machine().store_entry(context, index, 0);
        let of_domain = IOTLB_DOMAIN | u64::from(domain.number) << 16 | DRAIN;
        self.send(&[[CONTEXT_GLOBAL, 0], [of_domain, 0]])
    }

    /// Whether the function has a domain that no device is in.
    pub(crate) fn is_empty_place(&self, source_id: u16) -> bool {
        self.domain_of(source_id).is_some_and(|domain| domain.root().is_none())
    }

    /// The context table that has a function's entry, and the index of the entry's lower half.
    fn context_of(&self, source_id: u16) -> Result<(Pfn, usize), IommuError> {
        let context = self.context(&mut self.contexts.lock(), (source_id >> 8) as u8)?;
        Ok((context, 2 * usize::from(source_id & 0xff)))
    }

    /// The context table of `bus`; a new one where there is none.
    fn context(&self, contexts: &mut Vec<(u8, Frame<DeviceTable, S>)>, bus: u8) -> Result<Pfn, IommuError> {
        if let Some((_, context)) = contexts.iter().find(|(number, _)| *number == bus) {
            return Ok(context.pfn());
        }
        contexts.try_reserve(1).map_err(|_| IommuError::OutOfMemory)?;
        let context = table(self.source)?;
        let pfn = context.pfn();
        contexts.push((bus, context));
        self.source.machine().store_entry(self.root, 2 * usize::from(bus), pfn.start().0 | PRESENT);
        Ok(pfn)
    }

    const fn most_domains(&self) -> u16 {
        match self.capability & 7 {
            size @ 0..6 => 1 << (4 + 2 * size),
            _ => u16::MAX,
        }
    }
    const fn caches_absent(&self) -> bool {
        self.capability & (1 << 7 | 1 << 4) != 0
    }

    /// From now on the unit's domains have windows: devices access pinned frames directly.
    pub fn allow_windows(&self) {
        self.has_windows.store(true, Ordering::Relaxed);
    }
    pub(crate) fn has_windows(&self) -> bool {
        self.has_windows.load(Ordering::Relaxed)
    }

    /// Flushes absent entries after pages were mapped.
    pub(crate) fn mapped(&self, domain: u16, frames: PfnRange) {
        if self.caches_absent() {
            // Without an answer the device may fault for longer, but it can access no more than it
            // should.
            let _ = self.forget(domain, frames);
        }
    }

    /// Flushes pages of a domain from the unit's caches.
    pub(crate) fn forget(&self, domain: u16, frames: PfnRange) -> Result<(), Unconfirmed> {
        match self.mode {
            Mode::Batched => self.send(&[self.forgets(domain, frames)]),
            Mode::Strict => frames.iter().try_for_each(|frame| {
                self.send(&[self.forgets(domain, PfnRange::new(frame, frame.offset(1)))])
            }),
        }
    }

    /// Returns the descriptor for that: it covers one aligned power of two of pages that contains
    /// them all, or all of the domain.
    fn forgets(&self, domain: u16, frames: PfnRange) -> [u64; 2] {
        let last = frames.end.0.saturating_sub(1).max(frames.start.0);
        let order = u64::from(u64::BITS - (frames.start.0 ^ last).leading_zeros());
        let domain = u64::from(domain) << 16 | DRAIN;
        let (selective, most) = (self.capability >> 39 & 1 != 0, self.capability >> 48 & 0x3f);
        if !selective || order > most {
            return [IOTLB_DOMAIN | domain, 0];
        }
        [IOTLB_PAGES | domain, (frames.start.0 >> order << order) << 12 | order]
    }

    /// Sends descriptors, at most [`MOST_SENT`], and waits until the unit has done them. After the
    /// first wait without an answer, no other call waits.
    pub(crate) fn send(&self, descriptors: &[[u64; 2]]) -> Result<(), Unconfirmed> {
        let mut number = None;
        let mut is_answered = false;
        let is_over = eventually(|| {
            number = number.or_else(|| self.post(descriptors));
            is_answered = number.is_some_and(|number| self.has_answered(number));
            is_answered || self.is_dead.load(Ordering::Relaxed)
        });
        if !is_over {
            self.is_dead.store(true, Ordering::Relaxed);
        }
        if is_answered { Ok(()) } else { Err(Unconfirmed) }
    }

    /// Writes descriptors and a wait into the queue. Returns the number that the unit will answer
    /// with. `None`: the unit is dead, or the wait that used the word before has no answer yet.
    fn post(&self, descriptors: &[[u64; 2]]) -> Option<u32> {
        let machine = self.source.machine();
        let mut tail = self.tail.lock();
        let number = tail.number.wrapping_add(1);
        let before = number.wrapping_sub(WAITS as u32);
        if self.is_dead.load(Ordering::Relaxed) || tail.number >= WAITS as u32 && !self.has_answered(before) {
            return None;
        }
        tail.number = number;
        let word = self.status.start().0 + 8 * (number as usize % WAITS) as u64;
        for [low, high] in descriptors.iter().copied().chain([[WAIT | u64::from(number) << 32, word]]) {
            machine.store_entry(self.queue, 2 * tail.next, low);
            machine.store_entry(self.queue, 2 * tail.next + 1, high);
            tail.next = (tail.next + 1) % DESCRIPTORS;
        }
        self.registers.write64(register::QUEUE_TAIL, (tail.next * DESCRIPTOR) as u64);
        self.invalidations.fetch_add(descriptors.len(), Ordering::Relaxed);
        Some(number)
    }

    /// Whether wait `number` was answered; the word may have a later answer by now.
    fn has_answered(&self, number: u32) -> bool {
        let answer = self.source.machine().load_entry(self.status, number as usize % WAITS) as u32;
        answer.wrapping_sub(number) < u32::MAX / 2
    }

    /// Offset of fault record `number`.
    fn fault_record(&self, number: usize) -> Option<usize> {
        let at = 16 * ((self.capability >> 24 & 0x3ff) as usize + number);
        (at + 16 <= REGISTERS).then_some(at)
    }

    /// Lets the unit report faults by a message-signalled interrupt.
    pub fn interrupt_by(&self, address: u64, data: u32) {
        self.registers.write32(register::FAULT_DATA, data);
        self.registers.write32(register::FAULT_ADDRESS, address as u32);
        self.registers.write32(register::FAULT_ADDRESS_HIGH, (address >> 32) as u32);
        self.registers.write32(register::FAULT_CONTROL, 0);
    }

    /// Takes a fault from the unit's records, and its domain if the function has one. `None`: there
    /// are no more.
    pub fn take_fault(&self) -> Option<(DeviceFault, Option<&'static Domain<R, S>>)> {
        let count = (self.capability >> 40 & 0xff) as usize + 1;
        for at in (0..count).filter_map(|number| self.fault_record(number)) {
            let high = self.registers.read64(at + 8);
            if high >> 63 == 0 {
                continue;
            }
            let fault = DeviceFault::of_record(self.registers.read64(at), high);
            // Writing the bit clears it.
            self.registers.write32(at + 12, 1 << 31);
            self.faults.fetch_add(1, Ordering::Relaxed);
            let domain = self.domain_of(fault.source_id);
            if let Some(domain) = domain {
                domain.faults.fetch_add(1, Ordering::Relaxed);
            }
            return Some((fault, domain));
        }
        // Faults that found no record: the bit is cleared by writing it, and new faults interrupt
        // again.
        self.registers.write32(register::FAULT_STATUS, 1);
        None
    }

    /// The function's domain.
    pub fn domain_of(&self, source_id: u16) -> Option<&'static Domain<R, S>> {
        self.domains.lock().iter().copied().find(|domain| domain.source_id == source_id)
    }
    /// Calls `f` with each domain whose device is present.
    pub fn each_domain(&self, mut f: impl FnMut(&Domain<R, S>)) {
        self.all_domains().filter(|domain| domain.root().is_some()).for_each(&mut f);
    }
    fn all_domains(&self) -> impl Iterator<Item = &'static Domain<R, S>> {
        let count = self.domains.lock().len();
        (0..count).filter_map(|number| self.domains.lock().get(number).copied())
    }
    /// Invalidations sent, without waits.
    pub fn invalidations(&self) -> usize {
        self.invalidations.load(Ordering::Relaxed)
    }
    /// Faults seen.
    pub fn faults(&self) -> usize {
        self.faults.load(Ordering::Relaxed)
    }
    /// Frames of all tables, the queue and its answers.
    pub fn tables(&self) -> usize {
        let contexts = self.contexts.lock().len();
        let entries = usize::from(self.remaps_interrupts());
        3 + entries + contexts + self.all_domains().map(Domain::tables).sum::<usize>()
    }
}

/// Whether `condition` becomes true soon.
fn eventually(mut condition: impl FnMut() -> bool) -> bool {
    (0..PATIENCE).any(|_| {
        let holds = condition();
        if !holds {
            hint::spin_loop();
        }
        holds
    })
}
