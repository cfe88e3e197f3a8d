//! User accesses through the TLB, the hardware walker, and the check for stale entries.

use core::sync::atomic::Ordering;
use std::format;
use std::time::{Duration, Instant};
use std::vec::Vec;

use super::tlb::{TlbEntry, TlbState, Upper};
use super::{Model, StaleEntries};
use crate::entry::{
    ACCESSED, DIRTY, FRAME, GLOBAL, KEY, KEY_SHIFT, LARGE, NO_EXECUTE, PRESENT, USER, WRITABLE,
};
use crate::{Access, CpuId, CpuSet, Cpus, PAGE_SHIFT, PAGE_SIZE, Pfn, PhysAddr, VirtAddr};

/// Bits that must be zero in an entry that points to a 2 MiB page.
const LARGE_RESERVED: u64 = 0x001f_e000;

/// Why an access does not complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessFault {
    /// No translation.
    NotPresent,
    /// A translation that does not allow this.
    Protection,
}

/// A cached translation that disagrees with the tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stale {
    /// The CPU that cached it.
    pub cpu: CpuId,
    /// The first address that the entry translates.
    pub addr: VirtAddr,
    /// The frame to which the entry translates; for a cached walk, the leaf table.
    pub leads_to: Pfn,
    /// The fault.
    pub kind: StaleKind,
}

/// Fault of a cached translation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StaleKind {
    /// The tables hold no translation any more.
    Gone,
    /// The tables have another frame.
    Moved,
    /// The tables no longer allow all that the entry allows.
    Weaker,
    /// The page has another protection key.
    OtherKey,
    /// The entry would store without setting the dirty bit, which the tables have cleared.
    Clean,
    /// The walk was cached and the table it leads to is no longer part of it.
    Walk,
}

/// Whether an access may use a translation that the tables no longer have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Late {
    /// No: an access of the kernel, which holds a lock that keeps others from changing the tables.
    Refused,
    /// An access of a program, if [`Model::let_flushes_be_late`] was called.
    AsSet,
}

/// Time that a flush may take: a busy host may delay its threads.
const LATEST: Duration = Duration::from_secs(20);

/// Where a walk ended.
struct Leaf {
    table: Pfn,
    index: usize,
    entry: u64,
    line: TlbEntry,
    upper: Option<Upper>,
}

impl Model {
    /// User code on the current CPU accesses `addr`: through the TLB, else by a walk that sets
    /// accessed and dirty bits and fills the TLB.
    ///
    /// # Errors
    /// The page fault that the CPU would raise.
    ///
    /// # Panics
    /// If a stale entry is used: a flush is missing, or is late where that is not allowed.
    pub fn access(self, addr: VirtAddr, access: Access) -> Result<PhysAddr, AccessFault> {
        self.access_and(addr, access, Late::AsSet, |at| at)
    }

    /// As [`Model::access`], and runs the instruction's effect on the frame. The effect ends before
    /// a flush of this CPU's TLB ends. So after a flush, code sees all stores that used the flushed
    /// translation.
    pub(super) fn access_and<R>(
        self,
        addr: VirtAddr,
        access: Access,
        late: Late,
        f: impl FnOnce(PhysAddr) -> R,
    ) -> Result<R, AccessFault> {
        let cpu = self.current_cpu();
        let mut tlb = self.tlb(cpu);
        if let Some(line) = tlb.find(addr)
            && allows(&line, access)
            && (access != Access::Write || line.dirty)
        {
            self.0.counters.hits.fetch_add(1, Ordering::Relaxed);
            let stale = self.judge(cpu, &tlb, &line);
            let may_be_late = late == Late::AsSet && self.0.is_late.load(Ordering::Relaxed);
            let said = || format!("a stale TLB entry was used for {access:?} at {addr:?}: {stale:?}");
            assert!(stale.is_none() || may_be_late, "{}", said());
            let result = f(physical(&line, addr));
            drop(tlb);
            if stale.is_some() {
                self.0.counters.late.fetch_add(1, Ordering::Relaxed);
                assert!(self.is_forgotten_in_time(cpu, &line), "{}, and no flush came", said());
            }
            return Ok(result);
        }
        self.0.counters.walks.fetch_add(1, Ordering::Relaxed);
        let at = self.fill(&mut tlb, cpu, addr, access).inspect_err(|_| tlb.forget_page(addr))?;
        Ok(f(at))
    }

    /// Waits until the CPU has flushed `line`, or the tables have it again; returns whether that
    /// happened in time.
    fn is_forgotten_in_time(self, cpu: CpuId, line: &TlbEntry) -> bool {
        let end = Instant::now() + LATEST;
        loop {
            let tlb = self.tlb(cpu);
            if !tlb.lines().any(|other| other == line) || self.judge(cpu, &tlb, line).is_none() {
                return true;
            }
            drop(tlb);
            if Instant::now() > end {
                return false;
            }
            std::thread::yield_now();
        }
    }

    /// User code loads a byte.
    ///
    /// # Errors
    /// As [`Model::access`].
    pub fn load(self, addr: VirtAddr) -> Result<u8, AccessFault> {
        self.access_and(addr, Access::Read, Late::AsSet, |at| {
            self.0.memory.byte(Pfn::containing(at), at.0 as usize % PAGE_SIZE)
        })
    }

    /// User code stores a byte.
    ///
    /// # Errors
    /// As [`Model::access`].
    pub fn store(self, addr: VirtAddr, value: u8) -> Result<(), AccessFault> {
        self.access_and(addr, Access::Write, Late::AsSet, |at| {
            self.0.memory.set_byte(Pfn::containing(at), at.0 as usize % PAGE_SIZE, value);
        })
    }

    /// Every cached translation that disagrees with the tables. Empty whenever no operation is
    /// between its change of the tables and its flush.
    pub fn stale(self) -> StaleEntries {
        let mut found = Vec::new();
        for cpu in CpuSet::first(self.0.cpus).iter() {
            let tlb = self.tlb(cpu);
            found.extend(tlb.lines().filter_map(|line| self.judge(cpu, &tlb, line)));
            found.extend(tlb.uppers().iter().filter_map(|upper| self.judge_upper(cpu, &tlb, upper)));
        }
        found
    }

    /// # Panics
    /// If [`Model::stale`] finds an entry.
    pub fn assert_coherent(self) {
        let stale = self.stale();
        assert!(stale.is_empty(), "stale translations: {stale:x?}");
    }

    fn fill(
        self,
        tlb: &mut TlbState,
        cpu: CpuId,
        addr: VirtAddr,
        access: Access,
    ) -> Result<PhysAddr, AccessFault> {
        loop {
            let upper = tlb.find_upper(addr);
            if let Some(upper) = upper {
                let stale = self.judge_upper(cpu, tlb, &upper);
                assert!(stale.is_none(), "a stale walk was used for {access:?} at {addr:?}: {stale:?}");
            }
            let root = tlb.root.expect("user code runs without a root");
            let leaf = self.walk(root, addr, upper)?;
            if !allows(&leaf.line, access) {
                return Err(AccessFault::Protection);
            }
            let dirty = if access == Access::Write { DIRTY } else { 0 };
            let marked = leaf.entry | ACCESSED | dirty;
            let word = self.0.memory.word(leaf.table, leaf.index);
            // Another CPU may have changed the entry since it was read: then walk again, as
            // hardware does.
            if word.compare_exchange(leaf.entry, marked, Ordering::AcqRel, Ordering::Acquire).is_err() {
                continue;
            }
            let line = TlbEntry { dirty: marked & DIRTY != 0, ..leaf.line };
            tlb.insert(line);
            if let Some(upper) = leaf.upper {
                tlb.insert_upper(upper);
            }
            return Ok(physical(&line, addr));
        }
    }

    /// Walks the tables from `root`, or from a cached upper part. Changes nothing.
    fn walk(self, root: Pfn, addr: VirtAddr, cached: Option<Upper>) -> Result<Leaf, AccessFault> {
        let (mut table, mut level, mut write, mut execute) = match cached {
            Some(upper) => (upper.table, 1, upper.write, upper.execute),
            None => (root, 4, true, true),
        };
        loop {
            let index = (addr.0 >> (PAGE_SHIFT + 9 * (level - 1))) as usize & 511;
            let entry = self.0.memory.word(table, index).load(Ordering::Acquire);
            if entry & PRESENT == 0 {
                return Err(AccessFault::NotPresent);
            }
            if entry & USER == 0 {
                return Err(AccessFault::Protection);
            }
            let region = addr.0 >> (PAGE_SHIFT + 9);
            let upper = (level == 1).then_some(Upper { region, table, write, execute });
            write &= entry & WRITABLE != 0;
            execute &= entry & NO_EXECUTE == 0;
            let is_large = level == 2 && entry & LARGE != 0;
            assert!(level <= 2 || entry & LARGE == 0, "a page of level {level} at {addr:?}");
            if level == 1 || is_large {
                assert!(
                    !is_large || entry & LARGE_RESERVED == 0,
                    "reserved bits set: {entry:#x} at {addr:?}"
                );
                let pages = if is_large { 512 } else { 1 };
                let line = TlbEntry {
                    page: (addr.0 >> PAGE_SHIFT) / pages * pages,
                    pages,
                    pfn: Pfn::containing(PhysAddr(entry & FRAME)),
                    write,
                    execute,
                    key: (entry & KEY) >> KEY_SHIFT,
                    dirty: entry & DIRTY != 0,
                    global: entry & GLOBAL != 0,
                };
                return Ok(Leaf { table, index, entry, line, upper });
            }
            table = Pfn::containing(PhysAddr(entry & FRAME));
            level -= 1;
        }
    }

    fn judge(self, cpu: CpuId, tlb: &TlbState, line: &TlbEntry) -> Option<Stale> {
        let addr = VirtAddr(line.page << PAGE_SHIFT);
        let root = tlb.root.expect("a TLB has entries only after a root was loaded");
        let kind = match self.walk(root, addr, None) {
            Err(_) => StaleKind::Gone,
            Ok(leaf) if leaf.line.pfn != line.pfn || leaf.line.pages != line.pages => StaleKind::Moved,
            Ok(leaf) if (line.write && !leaf.line.write) || (line.execute && !leaf.line.execute) => {
                StaleKind::Weaker
            }
            Ok(leaf) if line.key != leaf.line.key => StaleKind::OtherKey,
            Ok(leaf) if line.dirty && !leaf.line.dirty => StaleKind::Clean,
            Ok(_) => return None,
        };
        Some(Stale { cpu, addr, leads_to: line.pfn, kind })
    }

    fn judge_upper(self, cpu: CpuId, tlb: &TlbState, upper: &Upper) -> Option<Stale> {
        let root = tlb.root.expect("a walk is cached only after a root was loaded");
        let addr = VirtAddr(upper.region << (PAGE_SHIFT + 9));
        let mut table = root;
        let (mut write, mut execute, mut gone) = (true, true, false);
        for level in (2..=4u32).rev() {
            let index = (addr.0 >> (PAGE_SHIFT + 9 * (level - 1))) as usize & 511;
            let entry = self.0.memory.word(table, index).load(Ordering::Acquire);
            gone |= entry & PRESENT == 0 || (level == 2 && entry & LARGE != 0);
            if gone {
                break;
            }
            write &= entry & WRITABLE != 0;
            execute &= entry & NO_EXECUTE == 0;
            table = Pfn::containing(PhysAddr(entry & FRAME));
        }
        let weaker = (upper.write && !write) || (upper.execute && !execute);
        let stale = gone || table != upper.table || weaker;
        stale.then_some(Stale { cpu, addr, leads_to: upper.table, kind: StaleKind::Walk })
    }
}

fn allows(line: &TlbEntry, access: Access) -> bool {
    match access {
        Access::Read => true,
        Access::Write => line.write,
        Access::Execute => line.execute,
    }
}

fn physical(line: &TlbEntry, addr: VirtAddr) -> PhysAddr {
    let start = line.pfn.start().0;
    PhysAddr(start + (addr.0 - (line.page << PAGE_SHIFT)))
}
