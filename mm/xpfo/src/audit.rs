//! An audit of the kernel's map: every leaf of the kernel half is compared with the frame table.
//!
//! The walk takes no lock: tables of the kernel half are never freed, and a leaf that changes while
//! it is checked is read again. Its nearest relative in Linux is `CONFIG_DEBUG_WX` with
//! /sys/kernel/debug/page_tables.
//!
//! Entries have x86-64's four-level format (Intel SDM volume 3A, 4.5).

use core::ops::Range;

use freehold_frame::{FrameTable, Owner};
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

/// Returns the number of tables below the upper half of `root`, each link counted: the room that
/// [`check`] needs, but for tables that are made meanwhile.
pub fn count_tables<M: Tables>(machine: M, root: Pfn) -> u64 {
    links_of(machine, root, 4)
}

/// Links of a table of `level`, which is above 1, and of the tables that it leads to.
fn links_of<M: Tables>(machine: M, table: Pfn, level: u32) -> u64 {
    let mut links = 0;
    machine.each_entry(table, entries_of(level), |_, entry| {
        if entry & (PRESENT | LARGE) == PRESENT {
            links += 1;
            if level > 2 {
                links += links_of(machine, Pfn((entry & FRAME) >> 12), level - 1);
            }
        }
    });
    links
}

/// Entries of a table of `level` that are the kernel's.
const fn entries_of(level: u32) -> Range<usize> {
    if level == 4 { TABLE_ENTRIES / 2..TABLE_ENTRIES } else { 0..TABLE_ENTRIES }
}

/// Walk every leaf of the kernel half; `found` is told of each violation. `tables` is room for the
/// number of each table with leaves that can be written ([`count_tables`]).
pub fn check<M: Tables>(
    machine: M,
    frames: FrameTable,
    rules: &Rules,
    tables: &mut [u64],
    found: &mut dyn FnMut(Violation),
) -> AuditReport {
    let owners = Owners { frames, block: PfnRange::new(Pfn(0), Pfn(0)), owner: Owner::Free };
    let mut walk =
        AuditWalk { machine, owners, rules, tables, known: 0, report: AuditReport::default(), found };
    walk.table(rules.root, 4, 0, 0);
    walk.compare_tables();
    walk.report
}

struct AuditWalk<'a, M> {
    machine: M,
    owners: Owners,
    rules: &'a Rules,
    tables: &'a mut [u64],
    /// How many of `tables` are in use.
    known: usize,
    report: AuditReport,
    found: &'a mut dyn FnMut(Violation),
}

impl<M: Tables> AuditWalk<'_, M> {
    #[cold]
    fn note(&mut self, violation: Violation) {
        self.report.violations += 1;
        (self.found)(violation);
    }

    /// Walks the entries of a table of `level` that is linked for the addresses from `base` on. The
    /// entries above it forbid execution if `above` contains [`NO_EXECUTE`]. The recursion is at
    /// most four deep.
    fn table(&mut self, table: Pfn, level: u32, base: u64, above: u64) {
        let mut writes = false;
        self.machine.each_entry(table, entries_of(level), |index, entry| {
            if entry & PRESENT == 0 {
                return;
            }
            let address = base | (index as u64) << (12 + 9 * (level - 1));
            let canonical = if level == 4 { address | 0xffff << 48 } else { address };
            let forbidden = (above | entry) & NO_EXECUTE;
            if level == 1 || entry & LARGE != 0 {
                writes |= entry & WRITABLE != 0;
                self.leaf((table, index), (entry, forbidden), level, VirtAddr(canonical));
            } else {
                self.report.tables += 1;
                writes = true;
                self.table(Pfn((entry & FRAME) >> 12), level - 1, canonical, forbidden);
            }
        });
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

    /// Judges a leaf; `forbidden` is [`NO_EXECUTE`] if it, or an entry above it, has that bit.
    fn leaf(
        &mut self,
        (table, index): (Pfn, usize),
        (entry, forbidden): (u64, u64),
        level: u32,
        address: VirtAddr,
    ) {
        let len = if level == 1 { 1 } else { PAGEBLOCK_FRAMES };
        if level == 1 {
            self.report.small += 1;
        } else {
            self.report.large += 1;
        }
        if entry & USER != 0 {
            self.note(Violation::ForPrograms(address));
        }
        if entry & WRITABLE != 0 && forbidden == 0 {
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
            && let Some((frame, owner)) = self.owners.first_of_outside(shown)
            && !(owner == Owner::Stack && self.rules.stacks.contains(&address.0))
            // The entry is read again: a pageblock that has left the map meanwhile is no violation.
            && self.machine.load_entry(table, index) == entry
        {
            let offset = (frame.0 - first.0) * PAGE_SIZE as u64;
            self.note(Violation::ProgramFrame { address: VirtAddr(address.0 + offset), frame, owner });
        }
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

/// Owners whose frames stay outside the map, a bit each.
const OUTSIDE: u64 = {
    let (mut owners, mut number) = (0, 0);
    while number < Owner::COUNT {
        owners |= (Owner::ALL[number].is_outside() as u64) << number;
        number += 1;
    }
    owners
};

/// The frame table, and the block that was looked at last: most leaves show the frame behind that
/// of the leaf before.
struct Owners {
    frames: FrameTable,
    /// Frames of one owner, or free ones. Behind them a block starts, or a frame is free.
    block: PfnRange,
    owner: Owner,
}

impl Owners {
    /// The first frame among these whose owner stays outside the map. Frames that are no memory
    /// have no owner.
    fn first_of_outside(&mut self, shown: PfnRange) -> Option<(Pfn, Owner)> {
        let mut rest = shown;
        if rest.len() > 1 && !self.frames.has_owner_of(rest, OUTSIDE) {
            // Only a block that began before is left.
            rest.end = rest.start.offset(1);
        }
        while rest.start < rest.end {
            if !self.block.contains(rest.start) {
                (self.block, self.owner) = self.block_at(rest);
            }
            if self.owner.is_outside() {
                return Some((rest.start, self.owner));
            }
            rest.start = self.block.end;
        }
        None
    }

    /// The block of the first of these frames, or the free ones among them up to the next block.
    fn block_at(&self, rest: PfnRange) -> (PfnRange, Owner) {
        if rest.start != self.block.end
            && let Some((first, order, owner, _)) = self.frames.block_of(rest.start)
        {
            return (PfnRange::new(first, first.offset(order.frames())), owner);
        }
        match self.frames.next_owned(rest) {
            Some((block, owner)) if block.start == rest.start => (block, owner),
            Some((block, _)) => (PfnRange::new(rest.start, block.start), Owner::Free),
            None => (rest, Owner::Free),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use freehold_frame::{FrameRecord, FrameState, Order};
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
            self.block(frame, 0, owner);
        }
        fn block(&self, frame: u64, log2: u32, owner: Owner) {
            let state =
                FrameState::Owned { owner, order: Order::new(log2).expect("a size"), node: NodeId(0) };
            self.frames.get(Pfn(frame)).expect("a frame").set_state(state);
        }
        fn check(&self) -> (AuditReport, Vec<Violation>) {
            let mut found = Vec::new();
            let report =
                check(self.machine, self.frames, &self.rules, &mut [0; 8], &mut |one| found.push(one));
            assert_eq!(report.violations, found.len() as u64);
            assert_eq!(report.tables, count_tables(self.machine, self.rules.root));
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

    /// Frames 700 to 719 in leaves next to each other: blocks of 1, 4 and 8 frames with and without
    /// a program, and free frames. Whichever leaf is the first, all from there on are judged alike.
    #[test]
    fn each_frame_of_blocks_in_adjacent_leaves_is_judged_by_its_own_block() {
        let blocks = [
            (700, 2, Owner::Kernel),
            (704, 3, Owner::Anon),
            (712, 0, Owner::Kernel),
            (714, 0, Owner::PageCache),
            (716, 2, Owner::Anon),
        ];
        for first in 700..720 {
            let world = World::new();
            blocks.iter().for_each(|&(frame, log2, owner)| world.block(frame, log2, owner));
            for frame in first..720 {
                world.machine.store_entry(Pfn(4), (frame - 700) as usize, frame << 12 | DATA);
            }
            let programs = (704..712).chain(714..715).chain(716..720).filter(|&frame| frame >= first);
            let found = world.check().1.into_iter().map(|violation| match violation {
                Violation::ProgramFrame { frame, .. } => frame.0,
                other => panic!("{other:?}"),
            });
            assert_eq!(found.collect::<Vec<_>>(), programs.collect::<Vec<_>>(), "from {first}");
        }
    }

    #[test]
    fn a_large_leaf_is_looked_through_block_by_block_to_its_last_frame() {
        for last in [1024, 1025, 1300, 1535] {
            let world = World::new();
            world.machine.store_entry(Pfn(3), 1, 1024 << 12 | DATA | LARGE);
            world.block(1028, 2, Owner::Kernel);
            // Inside of another's block, and behind the leaf.
            world.owned(1030, Owner::Anon);
            world.owned(1536, Owner::Anon);
            assert_eq!(world.check().1, []);
            world.owned(last, Owner::Anon);
            assert_eq!(world.check().1.len(), 1, "{last}");
        }
        for owner in Owner::ALL {
            let world = World::new();
            world.machine.store_entry(Pfn(3), 1, 1024 << 12 | DATA | LARGE);
            world.owned(1100, owner);
            assert_eq!(world.check().1.len(), usize::from(owner.is_outside()), "{}", owner.name());
        }
        // A block of several leaves.
        let world = World::new();
        world.machine.store_entry(Pfn(3), 1, 1536 << 12 | DATA | LARGE);
        world.block(1024, 10, Owner::Anon);
        assert_eq!(world.check().1.len(), 1);
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
    fn an_entry_above_a_leaf_may_forbid_execution() {
        let world = World::new();
        world.machine.store_entry(Pfn(4), 1, 700 << 12 | PRESENT | WRITABLE);
        assert_eq!(world.check().1, [Violation::WritableCode(VirtAddr(BASE + 0x1000))]);
        for (table, next) in [(2, 3), (3, 4)] {
            world.machine.store_entry(Pfn(table), 0, next << 12 | LINK | NO_EXECUTE);
            assert_eq!(world.check().1, []);
            world.machine.store_entry(Pfn(table), 0, next << 12 | LINK);
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
