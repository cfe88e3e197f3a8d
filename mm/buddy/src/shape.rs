//! The lists that a CPU has, their blocks, and their limits.

use freehold_frame::{Order, Owner, Tag};
use freehold_machine::{NodeId, PAGEBLOCK_FRAMES, PAGEBLOCK_ORDER};

/// Number of lists of one CPU that hand out blocks.
pub(crate) const LISTS: usize = SINGLES + 2 * PAGEBLOCK_ORDER as usize;
/// Number of lists for single frames, which come first; then two lists for each order.
const SINGLES: usize = 5;
/// The list of blocks, each with its tag, that wait to be returned to their pageblocks.
pub(crate) const HOME: usize = LISTS;
/// Number of blocks that can wait to be returned.
pub(crate) const HOMEWARD: u64 = 256;
/// Number of the list for blocks that no list serves.
pub(crate) const NOWHERE: usize = LISTS + 1;
/// Lines of a CPU: more than it has lists, and a power of two, for the mask.
pub(crate) const LINES: usize = 32;
/// Number of entries in all lists of a pcp. A power of two, for the mask.
pub(crate) const PLACES: usize = 4096;

/// Owner and order of a list's blocks.
pub(crate) const fn owner_and_order(list: usize) -> (Owner, u32) {
    match list {
        0 => (Owner::Kernel, 0),
        1 => (Owner::PageTable, 0),
        2 => (Owner::Anon, 0),
        3 => (Owner::PageCache, 0),
        4 => (Owner::Stack, 0),
        _ if (list - SINGLES).is_multiple_of(2) => (Owner::Kernel, ((list - SINGLES) / 2 + 1) as u32),
        _ => (Owner::Anon, ((list - SINGLES) / 2 + 1) as u32),
    }
}

/// The list that serves the blocks of each [`Tag`], by its key; [`NOWHERE`] for blocks without a
/// list.
pub(crate) const SERVES: [u8; Tag::KEYS] = {
    let mut serves = [NOWHERE as u8; Tag::KEYS];
    let mut list = 0;
    while list < LISTS {
        let (owner, log2) = owner_and_order(list);
        let Some(order) = Order::new(log2) else { panic!("lists hold small orders") };
        serves[Tag::new(owner, order, NodeId(0)).key()] = list as u8;
        list += 1;
    }
    serves
};

/// Largest number of single frames in a batch.
pub(crate) const MOST_SINGLES: u64 = PAGEBLOCK_FRAMES;

/// Whether single frames of this owner have the long lists: they are most of all that is used.
const fn holds_programs(owner: Owner) -> bool {
    matches!(owner, Owner::Anon | Owner::PageCache)
}

/// Largest [`Shape::room`] of a list on any machine.
const fn most_room(list: usize) -> usize {
    let (owner, order) = owner_and_order(list);
    2 * match order {
        0 if holds_programs(owner) => MOST_SINGLES as usize,
        0 => MOST_SINGLES as usize / 4,
        PAGEBLOCK_ORDER => MOST_PAGEBLOCKS as usize,
        4.. => MOST_SINGLES as usize >> 5,
        _ => MOST_SINGLES as usize >> (order + 2),
    }
}
/// Largest number of pageblocks in a batch.
const MOST_PAGEBLOCKS: u64 = 32;

/// The place before the first one of each list. The lists of single frames come first, the largest
/// of them not last: the further a list's places are from the end, the less of an index is masked.
pub(crate) const BASES: [usize; LINES] = {
    let mut bases = [0; LINES];
    let (mut list, mut at) = (0, 0);
    while list < LISTS {
        bases[list] = at;
        at += most_room(list);
        list += 1;
    }
    bases[HOME] = at;
    assert!(at + (HOMEWARD as usize) < PLACES);
    bases
};

/// Kind and numbers of a list's blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) owner: Owner,
    pub(crate) order: u32,
    /// Largest number of blocks in one refill.
    pub(crate) batch: u64,
    /// Largest number of blocks in the list: twice the batch. 0: the list is not used on this
    /// machine.
    pub(crate) room: u64,
}

/// The shapes of all pcps of a machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shapes {
    shapes: [Shape; LISTS],
}

impl Shapes {
    /// Lists for a machine with `frames` of memory and `cpus`: at most `most` single frames in a
    /// batch (a quarter for the kernel), and at most 1/128 of a CPU's share.
    pub(crate) fn of(frames: u64, cpus: usize, most: u64) -> Self {
        let share = frames / cpus.max(1) as u64;
        let singles = (share / 128).clamp(8, most);
        let shapes = core::array::from_fn(|list| {
            let (owner, order) = owner_and_order(list);
            let batch = match order {
                0 if holds_programs(owner) => singles,
                0 => (singles / 4).max(8),
                PAGEBLOCK_ORDER => (share / PAGEBLOCK_FRAMES / 64).min(MOST_PAGEBLOCKS),
                // A few blocks of each middle order, 1/128 of a CPU's share at most; none if that
                // would be a single block.
                4.. => ((share / 128) >> order).saturating_sub(1).min(singles >> 5),
                _ => singles >> (order + 2),
            };
            Shape { owner, order, batch, room: 2 * batch }
        });
        Self { shapes }
    }
    /// The list for blocks of an owner and order, if this machine has one.
    #[inline]
    pub(crate) fn serving(&self, tag: Tag) -> Option<usize> {
        let list = usize::from(SERVES[tag.key()]);
        (list < LISTS && self.shapes[list].room > 0).then_some(list)
    }
    #[inline]
    pub(crate) fn shape(&self, list: usize) -> &Shape {
        &self.shapes[list]
    }
}

/// The lists that draw their blocks at random.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Draws {
    /// The lists of this order and above.
    From(u32),
    None,
}

impl Draws {
    pub(crate) fn any(self, order: u32) -> bool {
        matches!(self, Self::From(least) if order >= least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_of_every_machine_fit_their_places() {
        for (frames, cpus) in [(0, 1), (1 << 13, 64), (1 << 18, 2), (1 << 22, 1), (1 << 34, 1), (1 << 34, 64)]
        {
            let shapes = Shapes::of(frames, cpus, MOST_SINGLES);
            for list in 0..LISTS {
                assert!(shapes.shape(list).room <= most_room(list) as u64, "list {list} of {frames} frames");
            }
        }
    }
}
