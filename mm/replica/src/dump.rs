//! Mappings of the kernel half, as runs of addresses with equal rights: the text of Linux'
//! `/sys/kernel/debug/page_tables/kernel` (`arch/x86/mm/dump_pagetables.c`).

use core::fmt;

use freehold_machine::{PAGE_SHIFT, Pfn, TABLE_ENTRIES, Tables, VirtAddr};

use crate::tables::{GLOBAL, LARGE, NO_EXECUTE, PRESENT, UPPER, USER, WRITABLE, frame_of};

/// Rights that an address has if each entry of its walk grants them.
const GRANTED: u64 = USER | WRITABLE;
/// Bits that the leaf alone determines; rights depend on the upper levels too.
const LEAF: u64 = PRESENT | WRITE_THROUGH | UNCACHED | LARGE | GLOBAL;
const WRITE_THROUGH: u64 = 1 << 3;
const UNCACHED: u64 = 1 << 4;

/// Contiguous addresses that are mapped by entries of one level with equal rights, or not mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The first.
    pub start: VirtAddr,
    /// One past the last address; 0 at the end of the address space.
    pub end: VirtAddr,
    /// The level of the entries: 4 is the top.
    level: u32,
    /// Bits of a leaf; 0 if nothing is mapped.
    rights: u64,
}

impl Run {
    /// Whether the run can be both written and executed.
    pub const fn is_writable_code(&self) -> bool {
        self.rights & (PRESENT | WRITABLE | NO_EXECUTE) == PRESENT | WRITABLE
    }
}

/// Linux' line, without its end.
impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut size, mut unit) = (self.end.0.wrapping_sub(self.start.0) >> 10, 0);
        while size.is_multiple_of(1024) && unit < 5 {
            (size, unit) = (size >> 10, unit + 1);
        }
        let unit = ["K", "M", "G", "T", "P", "E"][unit];
        write!(f, "{:#018x}-{:#018x}   {size:>9}{unit} ", self.start.0, self.end.0)?;
        let level = ["pte", "pmd", "pud", "pgd"][self.level as usize - 1];
        if self.rights == 0 {
            return write!(f, "{:30}{level}", "");
        }
        let large = self.level > 1;
        for (bit, set, clear) in [
            (USER, "USR ", "    "),
            (WRITABLE, "RW ", "ro "),
            (WRITE_THROUGH, "PWT ", "    "),
            (UNCACHED, "PCD ", "    "),
            (if large { LARGE } else { 0 }, "PSE ", "    "),
            (if large { 0 } else { LARGE }, "PAT ", "    "),
            (GLOBAL, "GLB ", "    "),
            (NO_EXECUTE, "NX ", "x  "),
        ] {
            f.write_str(if self.rights & bit != 0 { set } else { clear })?;
        }
        f.write_str(level)
    }
}

/// Calls `f` for the whole kernel half below `root`, upwards. Others may change entries meanwhile,
/// but free no tables.
pub fn dump<M: Tables>(machine: M, root: Pfn, f: &mut dyn FnMut(Run)) {
    let start = VirtAddr(0xffff << 48 | (UPPER as u64) << (PAGE_SHIFT + 27));
    let run = Run { start, end: start, level: 4, rights: 0 };
    let mut walk = DumpWalk { machine, run, f };
    walk.table(root, 4, start, GRANTED);
    walk.run.end = VirtAddr(0);
    (walk.f)(walk.run);
}

struct DumpWalk<'a, M> {
    machine: M,
    /// The run so far; its end is not known.
    run: Run,
    f: &'a mut dyn FnMut(Run),
}

impl<M: Tables> DumpWalk<'_, M> {
    /// Walks a table. The entries above it grant `granted`, and forbid execution if that contains
    /// [`NO_EXECUTE`]. The recursion is at most four deep.
    fn table(&mut self, table: Pfn, level: u32, base: VirtAddr, granted: u64) {
        let first = if level == 4 { UPPER } else { 0 };
        let at = |index: usize| {
            VirtAddr(base.0.wrapping_add(((index - first) as u64) << (PAGE_SHIFT + 9 * (level - 1))))
        };
        let mut next = first;
        while next < TABLE_ENTRIES {
            let found = self.machine.next_entry(table, next..TABLE_ENTRIES);
            let (index, entry) = found.unwrap_or((TABLE_ENTRIES, 0));
            if index > next {
                self.note(at(next), level, 0);
            }
            if index < TABLE_ENTRIES {
                self.entry(entry, level, at(index), granted);
            }
            next = index + 1;
        }
    }

    fn entry(&mut self, entry: u64, level: u32, address: VirtAddr, granted: u64) {
        let way = granted & entry & GRANTED | (granted | entry) & NO_EXECUTE;
        if entry & PRESENT == 0 {
            self.note(address, level, 0);
        } else if level == 1 || entry & LARGE != 0 {
            self.note(address, level, entry & LEAF | way);
        } else {
            self.table(frame_of(entry), level - 1, address, way);
        }
    }

    /// Notes the level and the rights from `address` on.
    fn note(&mut self, address: VirtAddr, level: u32, rights: u64) {
        if (self.run.level, self.run.rights) == (level, rights) {
            return;
        }
        if self.run.start != address {
            (self.f)(Run { end: address, ..self.run });
        }
        self.run = Run { start: address, end: address, level, rights };
    }
}
