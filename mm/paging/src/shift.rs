//! Moving mappings to other addresses.
//!
//! A step moves the largest possible entry at the start of the range: a table with all below it, 1
//! GiB or 2 MiB of addresses, or a 2 MiB leaf. An entry can be moved as a whole if the old and the
//! new address have the same offset in the entry's size and nothing is mapped there. The rest moves
//! leaf by leaf, at most 2 MiB per step. First all steps are prepared ([`Space::prepare_shift`]),
//! since only that can run out of memory; then they are taken ([`Space::shift`]). Both find the
//! same steps: no step changes anything that a later step checks.
//!
//! **Walkers meanwhile.** A table that moved is still a table of this space with the same leaves.
//! So a CPU that uses a cached upper entry accesses the old pages under the old addresses, as with
//! single leaves, and sets its marks in the right entries. The batch flushes on every CPU, also on
//! lazy ones, before the call returns and before anything else can be mapped at the old addresses.

use core::ops::Range;

use freehold_frame::OutOfMemory;
use freehold_machine::{PAGE_SHIFT, TABLE_ENTRIES, Tables, VirtAddr};

use crate::space::{find_at, shift};
use crate::{Entry, FlushBatch, Memory, Slot, Space};

/// One step of a move.
struct Step {
    range: Range<VirtAddr>,
    /// The level of the entry that is moved as a whole; 1 if the leaves of a table are moved one by
    /// one.
    level: u32,
}

/// Result of preparing a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Prepared {
    /// The next step ends here.
    UpTo(VirtAddr),
    /// The 2 MiB page at this address cannot be moved as a whole: it has to be split first.
    Cut(VirtAddr),
    /// Nothing is mapped up to the end of the range.
    Empty,
}

impl<S: Memory> Space<S> {
    fn next_step(&self, from: &Range<VirtAddr>, distance: u64) -> Option<Step> {
        let machine = self.source().machine();
        let root = self.roots().first();
        let at = self.next_populated(from.clone())?;
        let entry_of = |addr, level| find_at(machine, root, addr, level).map_or(Entry::EMPTY, Slot::load);
        for level in [3, 2] {
            let size = 1 << shift(level);
            let start = VirtAddr(at.0 & !(size - 1));
            let range = start..VirtAddr(start.0 + size);
            let fits = distance.is_multiple_of(size) && from.start <= start && range.end <= from.end;
            if fits && entry_of(VirtAddr(start.0.wrapping_add(distance)), level).is_empty() {
                return Some(Step { range, level });
            }
        }
        let end = VirtAddr((at.0 | ((1 << shift(2)) - 1)) + 1);
        Some(Step { range: at..end.min(from.end), level: 1 })
    }

    /// Makes the tables that the next step of moving `from` by `distance` (added, and wrapping)
    /// needs. The new range has no leaves.
    ///
    /// # Errors
    /// [`OutOfMemory`]; tables that were made stay.
    pub fn prepare_shift(&mut self, from: &Range<VirtAddr>, distance: u64) -> Result<Prepared, OutOfMemory> {
        let Some(Step { range, level }) = self.next_step(from, distance) else { return Ok(Prepared::Empty) };
        let machine = self.source().machine();
        if level > 1 {
            self.make_at(VirtAddr(range.start.0.wrapping_add(distance)), level)?;
            return Ok(Prepared::UpTo(range.end));
        }
        let Some(leaves) = self.leaves(range.start) else { return Ok(Prepared::Cut(range.start)) };
        for (indices, to) in halves(&range, distance) {
            if machine.next_entry(leaves, indices).is_some() {
                self.make_at(to, 1)?;
            }
        }
        Ok(Prepared::UpTo(range.end))
    }

    /// Takes the next step of moving `from` by `distance`; all steps are prepared. Returns the
    /// step's end; `None` if nothing is left.
    ///
    /// # Panics
    /// If a step is not prepared.
    pub fn shift(
        &mut self,
        from: &Range<VirtAddr>,
        distance: u64,
        batch: &mut FlushBatch<S>,
    ) -> Option<VirtAddr> {
        const PREPARED: &str = "a move's tables are made before its first step";
        let Step { range, level } = self.next_step(from, distance)?;
        let machine = self.source().machine();
        let root = self.roots().first();
        if level > 1 {
            let to = VirtAddr(range.start.0.wrapping_add(distance));
            let from = find_at(machine, root, range.start, level).expect("a step begins where something is");
            let to = find_at(machine, root, to, level).expect(PREPARED);
            let entry = from.replace(Entry::EMPTY);
            if entry.is_table() {
                batch.moved_table(&range);
            } else {
                batch.unmapped_large(range.start, entry, None);
            }
            to.fill(entry);
            return Some(range.end);
        }
        let source = self.leaves(range.start).expect(PREPARED);
        for (indices, to) in halves(&range, distance) {
            if machine.next_entry(source, indices.clone()).is_none() {
                continue;
            }
            let first = indices.start;
            let base = VirtAddr(range.start.0 & !((1 << shift(2)) - 1));
            let to = find_at(machine, root, to, 1).expect(PREPARED);
            machine.take_entries(source, indices, |index, entry| {
                let entry = Entry::from_bits(entry);
                batch.restricted(VirtAddr(base.0 + ((index as u64) << PAGE_SHIFT)), entry);
                to.beyond(index - first).fill(entry);
            });
        }
        Some(range.end)
    }
}

/// Divides the entries of `range`, which is inside one table of leaves, into two parts: those for
/// one table at the new addresses, and those for the next table. Each part has the new position of
/// its first entry.
fn halves(range: &Range<VirtAddr>, distance: u64) -> impl Iterator<Item = (Range<usize>, VirtAddr)> + use<> {
    let index = |addr: VirtAddr| (addr.0 >> PAGE_SHIFT) as usize % TABLE_ENTRIES;
    let first = index(range.start);
    let end = first + ((range.end.0 - range.start.0) >> PAGE_SHIFT) as usize;
    let to = VirtAddr(range.start.0.wrapping_add(distance));
    let middle = (first + TABLE_ENTRIES - index(to)).min(end);
    let next = VirtAddr(to.0 + (((middle - first) as u64) << PAGE_SHIFT));
    [(first..middle, to), (middle..end, next)].into_iter().filter(|(part, _)| !part.is_empty())
}
