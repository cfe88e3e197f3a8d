//! An audit of the kernel's map: every leaf of the kernel half is compared with the frame table.
//!
//! The walk takes no lock: tables of the kernel half are never freed, and a leaf that changes while
//! it is checked is read again. Its nearest relative in Linux is `CONFIG_DEBUG_WX` with
//! /sys/kernel/debug/page_tables.
//!
//! Entries have x86-64's four-level format (Intel SDM volume 3A, 4.5).

use core::ops::Range;

use freehold_frame::{FrameState, FrameTable, Owner};
use freehold_machine::entry::{FRAME, LARGE, NO_EXECUTE, PRESENT, USER, WRITABLE};
use freehold_machine::{PAGE_SIZE, PAGEBLOCK_FRAMES, Pfn, PfnRange, TABLE_ENTRIES, Tables, VirtAddr};

/// Rules that the kernel half must keep.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The table whose upper half is the kernel's.
    pub root: Pfn,
    /// Addresses of windows: leaves there belong to windows that are open at this moment.
    pub windows: Range<u64>,
    /// Addresses of kernel stacks: the only addresses at which their frames are mapped.
    pub stacks: Range<u64>,
    /// Frames of the image's text and constants.
    pub read_only: PfnRange,
    /// Whether frames of programs are outside the map
    /// ([`Policy::is_exclusive`](crate::Policy::is_exclusive)).
    pub exclusive: bool,
}

/// A leaf or table that breaks a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Violation {
    /// The map contains a frame of a program or of a replica of the image, or a frame of a kernel
    /// stack outside the stacks' area.
    ProgramFrame {
        /// The address.
        address: VirtAddr,
        /// The frame.
        frame: Pfn,
        /// The frame's owner.
        owner: Owner,
    },
    /// Text or constants are writable at this address.
    WritableImage {
        /// The address.
        address: VirtAddr,
        /// The frame.
        frame: Pfn,
    },
    /// A page can be written and executed.
    WritableCode(VirtAddr),
    /// Programs can use the page.
    ForPrograms(VirtAddr),
    /// A table with writable leaves is linked more than once.
    TableTwice(Pfn),
    /// There were more tables than could be remembered: so it is unknown whether each is linked
    /// only once.
    TooManyTables,
}

impl core::fmt::Display for Violation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::ProgramFrame { frame, owner, .. } => {
                write!(f, "frame {:#x} of {} is in the kernel's map", frame.0, owner.name())
            }
            Self::WritableImage { frame, .. } => {
                write!(f, "frame {:#x} of the kernel's text or constants can be written", frame.0)
            }
            Self::WritableCode(_) => f.write_str("a page can be written and executed"),
            Self::ForPrograms(_) => f.write_str("programs can use a page of the kernel half"),
            Self::TableTwice(table) => write!(f, "the table in frame {:#x} is linked twice", table.0),
            Self::TooManyTables => f.write_str("there are more tables than could be checked"),
        }
    }
}

/// Counts of the walk.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AuditReport {
    /// Leaves of 4 KiB.
    pub small: u64,
    /// Leaves of 2 MiB.
    pub large: u64,
    /// Tables below the root, each link counted.
    pub tables: u64,
    /// Rules broken.
    pub violations: u64,
}

/// Walk every leaf of the kernel half; `found` is called for each violation. `tables` has room for
/// the number of each table with writable leaves.
pub fn check<M: Tables>(
    machine: M,
    frames: FrameTable,
    rules: &Rules,
    tables: &mut [u64],
    found: &mut dyn FnMut(Violation),
) -> AuditReport {
    let mut walk =
        AuditWalk { machine, frames, rules, tables, known: 0, report: AuditReport::default(), found };
    walk.table(rules.root, 4, 0);
    walk.compare_tables();
    walk.report
}

struct AuditWalk<'a, M> {
    machine: M,
    frames: FrameTable,
    rules: &'a Rules,
    tables: &'a mut [u64],
    /// How many of `tables` are in use.
    known: usize,
    report: AuditReport,
    found: &'a mut dyn FnMut(Violation),
}

impl<M: Tables> AuditWalk<'_, M> {
    fn note(&mut self, violation: Violation) {
        self.report.violations += 1;
        (self.found)(violation);
    }

    /// Walks the entries of a table of `level` that is linked for the addresses from `base` on. The
    /// recursion is at most four deep.
    fn table(&mut self, table: Pfn, level: u32, base: u64) {
        let range = if level == 4 { TABLE_ENTRIES / 2..TABLE_ENTRIES } else { 0..TABLE_ENTRIES };
        let mut writes = false;
        let mut rest = range;
        while let Some((index, entry)) = self.machine.next_entry(table, rest.clone()) {
            rest.start = index + 1;
            if entry & PRESENT == 0 {
                continue;
            }
            let address = base | (index as u64) << (12 + 9 * (level - 1));
            let canonical = if level == 4 { address | 0xffff << 48 } else { address };
            if level == 1 || entry & LARGE != 0 {
                writes |= entry & WRITABLE != 0;
                self.leaf((table, index), entry, level, VirtAddr(canonical));
            } else {
                self.report.tables += 1;
                writes = true;
                self.table(Pfn((entry & FRAME) >> 12), level - 1, canonical);
            }
        }
        // Holes of the frame table share a table whose leaves are read-only: read-only memory may
        // be shared.
        if writes && level < 4 {
            match self.tables.get_mut(self.known) {
                Some(place) => *place = table.0,
                None => return self.note(Violation::TooManyTables),
            }
            self.known += 1;
        }
    }

    fn leaf(&mut self, (table, index): (Pfn, usize), entry: u64, level: u32, address: VirtAddr) {
        let len = if level == 1 { 1 } else { PAGEBLOCK_FRAMES };
        if level == 1 {
            self.report.small += 1;
        } else {
            self.report.large += len / PAGEBLOCK_FRAMES;
        }
        if entry & USER != 0 {
            self.note(Violation::ForPrograms(address));
        }
        if entry & (WRITABLE | NO_EXECUTE) == WRITABLE {
            self.note(Violation::WritableCode(address));
        }
        let first = Pfn((entry & FRAME) >> 12);
        let shown = PfnRange::new(first, first.offset(len));
        let image = shown.intersection(self.rules.read_only);
        if entry & WRITABLE != 0 && !image.is_empty() {
            self.note(Violation::WritableImage { address, frame: image.start });
        }
        if self.rules.exclusive
            && !self.rules.windows.contains(&address.0)
            && let Some((frame, owner)) = self.first_of_outside(shown)
            && !(owner == Owner::Stack && self.rules.stacks.contains(&address.0))
            // The entry is read again: a pageblock that has left the map meanwhile is no violation.
            && self.machine.load_entry(table, index) == entry
        {
            let offset = (frame.0 - first.0) * PAGE_SIZE as u64;
            self.note(Violation::ProgramFrame { address: VirtAddr(address.0 + offset), frame, owner });
        }
    }

    /// The first frame among these whose owner stays outside the map. Frames that are no memory
    /// have no record.
    fn first_of_outside(&self, shown: PfnRange) -> Option<(Pfn, Owner)> {
        let end = shown.end.min(self.frames.end());
        if shown.len() == 1 {
            let (_, _, owner, _) = if shown.start < end { self.frames.block_of(shown.start) } else { None }?;
            return owner.is_outside().then_some((shown.start, owner));
        }
        let mut frame = shown.start;
        while frame < end {
            frame = match self.frames.look(frame) {
                FrameState::Owned { owner, .. } if owner.is_outside() => return Some((frame, owner)),
                FrameState::Owned { order, .. } => frame.offset(order.frames()),
                FrameState::Unowned(_) => frame.offset(1),
            };
        }
        None
    }

    fn compare_tables(&mut self) {
        self.tables[..self.known].sort_unstable();
        for index in 1..self.known {
            if self.tables[index - 1] == self.tables[index] {
                self.note(Violation::TableTwice(Pfn(self.tables[index])));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use freehold_frame::{FrameRecord, Order};
    use freehold_machine::model::{Config, Model};
    use freehold_machine::{DirectMap, NodeId};

    use super::*;

    const DATA: u64 = PRESENT | WRITABLE | NO_EXECUTE;
    const LINK: u64 = PRESENT | WRITABLE;

    /// Tables in frames 1 to 4 (root first), the image's constants in frame 600, memory of 4
    /// pageblocks.
    struct World {
        machine: Model,
        frames: FrameTable,
        rules: Rules,
    }

    impl World {
        fn new() -> Self {
            let machine = Model::new(Config { frames: 2048, ..Config::default() });
            machine.enter(PfnRange::new(Pfn(0), Pfn(512)));
            let records: Vec<_> = (0..2048).map(|_| FrameRecord::EMPTY).collect();
            for (table, index, next) in [(1, 256, 2), (2, 0, 3), (3, 0, 4)] {
                machine.store_entry(Pfn(table), index, next << 12 | LINK);
            }
            let rules = Rules {
                root: Pfn(1),
                windows: 0xffff_8000_0020_0000 - 0x1000..0xffff_8000_0020_0000,
                stacks: BASE + 0x1f_0000..BASE + 0x1f_8000,
                read_only: PfnRange::new(Pfn(600), Pfn(601)),
                exclusive: true,
            };
            Self { machine, frames: FrameTable::new(records.leak()), rules }
        }
        fn owned(&self, frame: u64, owner: Owner) {
            let state = FrameState::Owned { owner, order: Order::FRAME, node: NodeId(0) };
            self.frames.get(Pfn(frame)).expect("a frame").set_state(state);
        }
        fn check(&self) -> (AuditReport, Vec<Violation>) {
            let mut found = Vec::new();
            let report =
                check(self.machine, self.frames, &self.rules, &mut [0; 8], &mut |one| found.push(one));
            assert_eq!(report.violations, found.len() as u64);
            (report, found)
        }
    }

    const BASE: u64 = 0xffff_8000_0000_0000;

    #[test]
    fn a_map_of_kernel_frames_is_clean() {
        let world = World::new();
        world.owned(700, Owner::Kernel);
        world.owned(701, Owner::Anon);
        world.machine.store_entry(Pfn(4), 0, 700 << 12 | DATA);
        world.machine.store_entry(Pfn(4), 1, 600 << 12 | PRESENT | NO_EXECUTE);
        // An open window shows a frame of a program.
        world.machine.store_entry(Pfn(4), 511, 701 << 12 | DATA);
        // Device registers are above memory.
        world.machine.store_entry(Pfn(4), 2, 0xfee00 << 12 | DATA);
        world.machine.store_entry(Pfn(3), 1, 1024 << 12 | DATA | LARGE);
        let report = AuditReport { small: 4, large: 1, tables: 3, violations: 0 };
        assert_eq!(world.check(), (report, Vec::new()));
    }

    #[test]
    fn frames_of_programs_are_found_in_small_and_in_large_leaves() {
        let world = World::new();
        world.owned(701, Owner::Anon);
        world.owned(1500, Owner::PageCache);
        world.machine.store_entry(Pfn(4), 0, 701 << 12 | DATA);
        world.machine.store_entry(Pfn(3), 1, 1024 << 12 | DATA | LARGE);
        let at = |address, frame, owner| Violation::ProgramFrame {
            address: VirtAddr(address),
            frame: Pfn(frame),
            owner,
        };
        let large = at(BASE + 0x20_0000 + (1500 - 1024) * 0x1000, 1500, Owner::PageCache);
        assert_eq!(world.check().1, [at(BASE, 701, Owner::Anon), large]);
        let off = World { rules: Rules { exclusive: false, ..world.rules.clone() }, ..world };
        assert_eq!(off.check().1, []);
    }

    #[test]
    fn a_kernel_stack_is_mapped_in_its_area_and_nowhere_else() {
        let world = World::new();
        world.owned(701, Owner::Stack);
        world.machine.store_entry(Pfn(4), 0x1f0, 701 << 12 | DATA);
        assert_eq!(world.check().1, []);
        world.machine.store_entry(Pfn(4), 0, 701 << 12 | DATA);
        let alias = Violation::ProgramFrame { address: VirtAddr(BASE), frame: Pfn(701), owner: Owner::Stack };
        assert_eq!(world.check().1, [alias]);
        // A program's frame is a violation there, too.
        world.owned(701, Owner::Anon);
        assert_eq!(world.check().1.len(), 2);
    }

    #[test]
    fn writable_text_writable_code_pages_for_programs_and_shared_tables_are_found() {
        let world = World::new();
        world.machine.store_entry(Pfn(4), 0, 600 << 12 | DATA);
        world.machine.store_entry(Pfn(3), 1, 512 << 12 | DATA | LARGE);
        world.machine.store_entry(Pfn(4), 1, 700 << 12 | PRESENT | WRITABLE);
        world.machine.store_entry(Pfn(4), 2, 700 << 12 | PRESENT | USER | NO_EXECUTE);
        world.machine.store_entry(Pfn(2), 1, 3 << 12 | LINK);
        let (_, found) = world.check();
        for violation in [
            Violation::WritableImage { address: VirtAddr(BASE), frame: Pfn(600) },
            Violation::WritableImage { address: VirtAddr(BASE + 0x20_0000), frame: Pfn(600) },
            Violation::WritableCode(VirtAddr(BASE + 0x1000)),
            Violation::ForPrograms(VirtAddr(BASE + 0x2000)),
            Violation::TableTwice(Pfn(3)),
            Violation::TableTwice(Pfn(4)),
        ] {
            assert!(found.contains(&violation), "{violation:?} of {found:?}");
        }
    }

    #[test]
    fn a_table_of_read_only_leaves_may_be_shared_and_too_little_room_is_told() {
        let world = World::new();
        world.machine.store_entry(Pfn(4), 0, 700 << 12 | PRESENT | NO_EXECUTE);
        world.machine.store_entry(Pfn(3), 1, 4 << 12 | LINK);
        assert_eq!(world.check().1, []);
        let mut found = Vec::new();
        check(world.machine, world.frames, &world.rules, &mut [0], &mut |one| found.push(one));
        assert_eq!(found, [Violation::TooManyTables]);
    }
}
