//! The memory that one device can access: second-level tables, as the unit walks them (VT-d 3.7).

use core::fmt;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use freehold_frame::{DeviceTable, Frame, OutOfMemory, Owner, Request};
use freehold_machine::{
    DeviceAccess, DeviceDomain, MAX_WINDOWS, NoTables, PAGE_SHIFT, Pfn, PfnRange, Tables, Unconfirmed,
    WINDOW_PAGES,
};

use crate::{Registers, TableSource, Unit};

/// The device may read, and write.
pub(crate) const READ_WRITE: u64 = 0b11;
/// Bits of an address in an entry.
pub(crate) const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// log2 of the entries in a table.
const INDEX_BITS: u32 = 9;
// A window is within one table.
const _: () = assert!((1usize << INDEX_BITS).is_multiple_of(WINDOW_PAGES));

/// Allocates an empty table.
pub(crate) fn table<S: TableSource>(source: S) -> Result<Frame<DeviceTable, S>, OutOfMemory> {
    let frame = Frame::allocate_with(source, Request::new(Owner::DeviceTable))?;
    source.machine().clear_table(frame.pfn());
    Ok(frame)
}

/// A device's domain. It exists as long as the unit.
pub struct Domain<R: Registers, S: TableSource> {
    pub(crate) unit: &'static Unit<R, S>,
    /// Bus, device and function, as the unit sees them.
    pub(crate) source_id: u16,
    /// The number that identifies it in the unit's caches.
    pub(crate) number: u16,
    /// The first table's frame; 0 while the domain has no device.
    root: AtomicU64,
    name: &'static str,
    pages: AtomicUsize,
    tables: AtomicUsize,
    pub(crate) faults: AtomicUsize,
}

impl<R: Registers, S: TableSource> Domain<R, S> {
    /// An empty domain that owns `root`.
    pub(crate) fn new(
        unit: &'static Unit<R, S>,
        (source_id, name): (u16, &'static str),
        number: u16,
        root: Frame<DeviceTable, S>,
    ) -> Self {
        let root = AtomicU64::new(root.into_raw().0);
        let (pages, tables, faults) = (AtomicUsize::new(0), AtomicUsize::new(1), AtomicUsize::new(0));
        Self { unit, source_id, number, root, name, pages, tables, faults }
    }

    /// Returns the first table; `None` while the domain has no device.
    pub(crate) fn root(&self) -> Option<Pfn> {
        Some(Pfn(self.root.load(Ordering::Relaxed))).filter(|root| root.0 != 0)
    }
    /// Frees a table and those below it: `level` is 0 if it has no tables below.
    fn free_table(&self, table: Pfn, level: u32) {
        let machine = self.unit.source.machine();
        if level > 0 {
            let entries = (0..1 << INDEX_BITS).map(|index| machine.load_entry(table, index));
            for entry in entries.filter(|&entry| entry != 0) {
                self.free_table(Pfn((entry & ADDRESS) >> PAGE_SHIFT), level - 1);
            }
        }
        drop(Frame::<DeviceTable, S>::from_raw(self.unit.source, table));
        self.tables.fetch_sub(1, Ordering::Relaxed);
    }

    /// The device's name.
    pub const fn name(&self) -> &'static str {
        self.name
    }
    /// Bus, device and function: 8, 5 and 3 bits.
    pub const fn source_id(&self) -> u16 {
        self.source_id
    }
    /// Returns how many pages the device can access.
    pub fn pages(&self) -> usize {
        self.pages.load(Ordering::Relaxed)
    }
    /// Frames of its tables.
    pub fn tables(&self) -> usize {
        self.tables.load(Ordering::Relaxed)
    }
    /// Returns the number of refused accesses that were reported.
    pub fn faults(&self) -> usize {
        self.faults.load(Ordering::Relaxed)
    }

    /// Returns the first page of the windows, in the device's addresses: windows are the last pages
    /// that the tables can name.
    pub(crate) fn first_window(&self) -> u64 {
        (1 << (INDEX_BITS * self.unit.levels)) - (MAX_WINDOWS * WINDOW_PAGES) as u64
    }
    /// The pages of a window, as the device counts.
    fn window(&self, number: usize, pages: usize) -> PfnRange {
        let first = Pfn(self.first_window() + (number * WINDOW_PAGES) as u64);
        PfnRange::new(first, first.offset(pages as u64))
    }

    /// Returns the place of the frame's entry: its table and index. Missing tables are made.
    fn place(&self, frame: Pfn) -> Result<(Pfn, usize), NoTables> {
        self.walk(frame, |parent, index| self.grow(parent, index))
    }
    /// Returns the place of the entry of a frame that was mapped. Its tables exist, so none is
    /// made.
    fn entry(&self, frame: Pfn) -> Result<(Pfn, usize), Unconfirmed> {
        self.walk(frame, |_, _| Err(NoTables)).map_err(|NoTables| Unconfirmed)
    }
    /// Follows the tables down to the frame's entry; `missing` returns the entry to use for a
    /// missing table.
    fn walk(
        &self,
        frame: Pfn,
        missing: impl Fn(Pfn, usize) -> Result<u64, NoTables>,
    ) -> Result<(Pfn, usize), NoTables> {
        let machine = self.unit.source.machine();
        let index = |level: u32| (frame.0 >> (INDEX_BITS * level)) as usize & 0x1ff;
        let mut at = self.root().ok_or(NoTables)?;
        for level in (1..self.unit.levels).rev() {
            let entry = match machine.load_entry(at, index(level)) {
                0 => missing(at, index(level))?,
                entry => entry,
            };
            at = Pfn((entry & ADDRESS) >> PAGE_SHIFT);
        }
        Ok((at, index(0)))
    }

    /// Links a new table. Returns the entry that is there afterwards.
    fn grow(&self, parent: Pfn, index: usize) -> Result<u64, NoTables> {
        let machine = self.unit.source.machine();
        let new = table(self.unit.source).map_err(|_| NoTables)?;
        let entry = new.pfn().start().0 | READ_WRITE;
        match machine.compare_exchange_entry(parent, index, 0, entry) {
            Ok(_) => {
                new.into_raw();
                self.tables.fetch_add(1, Ordering::Relaxed);
                Ok(entry)
            }
            // Another CPU was first; this table is freed.
            Err(theirs) => Ok(theirs),
        }
    }
}

impl<R: Registers, S: TableSource> DeviceDomain for Domain<R, S> {
    fn map(&self, frames: PfnRange) -> Result<(), NoTables> {
        if frames.end.0 > self.first_window() {
            return Err(NoTables);
        }
        // All tables first: after that nothing fails.
        for frame in frames.iter() {
            self.place(frame)?;
        }
        for frame in frames.iter() {
            let (table, index) = self.place(frame)?;
            self.unit.source.machine().store_entry(table, index, frame.start().0 | READ_WRITE);
        }
        self.pages.fetch_add(frames.len() as usize, Ordering::Relaxed);
        self.unit.mapped(self.number, frames);
        Ok(())
    }

    fn unmap(&self, frames: PfnRange) -> Result<(), Unconfirmed> {
        for frame in frames.iter() {
            let (table, index) = self.entry(frame)?;
            self.unit.source.machine().store_entry(table, index, 0);
        }
        self.pages.fetch_sub(frames.len() as usize, Ordering::Relaxed);
        self.unit.forget(self.number, frames)
    }

    fn detach(&self) -> Result<(), Unconfirmed> {
        let Some(root) = self.root() else { return Ok(()) };
        self.unit.silence(self.source_id)?;
        self.unit.uninstall(self)?;
        self.root.store(0, Ordering::Relaxed);
        self.free_table(root, self.unit.levels - 1);
        self.pages.store(0, Ordering::Relaxed);
        Ok(())
    }

    fn reattach(&self) -> Result<(), NoTables> {
        if self.root().is_some() {
            return Ok(());
        }
        let root = table(self.unit.source).map_err(|_| NoTables)?.into_raw();
        self.root.store(root.0, Ordering::Relaxed);
        self.tables.fetch_add(1, Ordering::Relaxed);
        let is_in = self.unit.install(self).is_ok() && self.unit.revive(self.source_id).is_ok();
        if is_in {
            return Ok(());
        }
        // A unit that does not answer is out of use; its entries may not name the slot any more.
        let _unconfirmed = self.unit.silence(self.source_id);
        // The unit may have cached the table, which stays; nothing is ever mapped in it.
        self.root.store(0, Ordering::Relaxed);
        Err(NoTables)
    }

    fn windows(&self) -> usize {
        if self.unit.has_windows() { MAX_WINDOWS } else { 0 }
    }

    fn open(
        &self,
        window: usize,
        frames: &mut dyn Iterator<Item = Pfn>,
        access: DeviceAccess,
    ) -> Result<u64, NoTables> {
        if window >= self.windows() {
            return Err(NoTables);
        }
        let machine = self.unit.source.machine();
        let first = self.window(window, 0).start;
        let (table, index) = self.place(first)?;
        let bits = match access {
            DeviceAccess::Read => 0b01,
            DeviceAccess::Write => 0b10,
            DeviceAccess::ReadWrite => READ_WRITE,
        };
        // A window that was closed without an answer still has an entry.
        if machine.load_entry(table, index) != 0 {
            return Err(NoTables);
        }
        let mut pages = 0;
        for frame in frames.take(WINDOW_PAGES) {
            machine.store_entry(table, index + pages, frame.start().0 | bits);
            pages += 1;
        }
        self.pages.fetch_add(pages, Ordering::Relaxed);
        self.unit.mapped(self.number, self.window(window, pages));
        Ok(first.start().0)
    }

    fn close(&self, window: usize, pages: usize) -> Result<(), Unconfirmed> {
        let machine = self.unit.source.machine();
        let frames = self.window(window, pages);
        let (table, index) = self.entry(frames.start)?;
        for page in 0..pages {
            machine.store_entry(table, index + page, 0);
        }
        self.pages.fetch_sub(pages, Ordering::Relaxed);
        let answered = self.unit.forget(self.number, frames);
        if answered.is_err() {
            // Not present, and not 0: the window stays taken.
            machine.store_entry(table, index, CLOSED);
        }
        answered
    }
}

/// An entry without access, of a window that is never opened again.
const CLOSED: u64 = 1 << 63;

impl<R: Registers, S: TableSource> fmt::Debug for Domain<R, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Domain({}, {:#06x}, number {})", self.name, self.source_id, self.number)
    }
}
