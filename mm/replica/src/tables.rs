//! A node's own tables for the slot that holds the image. Entries have x86-64's four-level format
//! (Intel SDM volume 3A, 4.5).

use alloc::vec::Vec;

use freehold_frame::{Frame, Kernel, NodePolicy, NodeSet, Order, OutOfMemory, Owner, Request};
use freehold_machine::entry::{ACCESSED, DIRTY, FRAME};
pub(crate) use freehold_machine::entry::{GLOBAL, LARGE, NO_EXECUTE, PRESENT, USER, WRITABLE};
use freehold_machine::{
    NodeId, PAGE_SHIFT, PAGEBLOCK_FRAMES, PAGEBLOCK_ORDER, Pfn, TABLE_ENTRIES, Tables, VirtAddr,
};

use crate::{KernelImage, ReplicaMemory};

/// Bits that the CPU sets.
pub(crate) const MARKS: u64 = ACCESSED | DIRTY;

/// The first entry of the kernel half.
pub(crate) const UPPER: usize = TABLE_ENTRIES / 2;

pub(crate) const fn frame_of(entry: u64) -> Pfn {
    Pfn((entry & FRAME) >> PAGE_SHIFT)
}

const fn with_frame(entry: u64, frame: Pfn) -> u64 {
    entry & !FRAME | frame.0 << PAGE_SHIFT
}

/// Level 4 is the top; level 1 holds 4 KiB leaves.
pub(crate) const fn index_at(address: VirtAddr, level: u32) -> usize {
    (address.0 >> (PAGE_SHIFT + 9 * (level - 1))) as usize & (TABLE_ENTRIES - 1)
}

/// The leaf for `address` below `root`, of 4 KiB or 2 MiB, with the frame of that page; 0 if there
/// is none.
pub(crate) fn leaf<M: Tables>(machine: M, root: Pfn, address: VirtAddr) -> u64 {
    let mut table = root;
    for level in (2..=4).rev() {
        let entry = machine.load_entry(table, index_at(address, level));
        if level == 2 && entry & (PRESENT | LARGE) == PRESENT | LARGE {
            return with_frame(entry, frame_of(entry).offset(index_at(address, 1) as u64));
        }
        if entry & PRESENT == 0 || entry & LARGE != 0 {
            return 0;
        }
        table = frame_of(entry);
    }
    machine.load_entry(table, index_at(address, 1))
}

/// Allocates `order` frames for `K` on `node` and no other.
pub(crate) fn on_node<K: freehold_frame::FrameKind, S: ReplicaMemory>(
    source: S,
    node: NodeId,
    order: Order,
) -> Result<Frame<K, S>, OutOfMemory> {
    let policy = NodePolicy::Bind(NodeSet(1 << node.0));
    Frame::allocate_with(source, Request::new(Owner::Kernel).order(order).policy(policy))
}

/// A root with tables of its own for the image's slot.
pub(crate) struct NodeTables<S: ReplicaMemory> {
    /// The tables, beginning with the root.
    pub frames: Vec<Frame<Kernel, S>>,
    pub root: Pfn,
}

impl<S: ReplicaMemory> NodeTables<S> {
    /// Makes tables that map `frame`'s frames at the pages of the image.
    pub(crate) fn new(
        source: S,
        policy: NodePolicy,
        image: &KernelImage,
        frame: &dyn Fn(u64) -> Pfn,
    ) -> Result<Self, OutOfMemory> {
        let mut copier = Copier { source, policy, image, frame, made: Vec::new() };
        let root = copier.root()?;
        Ok(Self { frames: copier.made, root })
    }

    /// Makes the tables map `frame`'s frames, which have the same bytes as the present ones. CPUs
    /// may use the tables meanwhile, and have the old translations cached.
    pub(crate) fn lead_to<M: Tables>(&self, machine: M, image: &KernelImage, frame: &dyn Fn(u64) -> Pfn) {
        let mut page = 0;
        while page < image.pages {
            let address = image.address(page);
            let mut table = self.root;
            for level in (3..=4).rev() {
                table = frame_of(machine.load_entry(table, index_at(address, level)));
            }
            let (mut level, entry) = (2, machine.load_entry(table, index_at(address, 2)));
            if entry & LARGE == 0 {
                (level, table) = (1, frame_of(entry));
            }
            let index = index_at(address, level);
            let entry = machine.load_entry(table, index);
            machine.store_entry(table, index, with_frame(entry, frame(page)));
            page += if level == 2 { PAGEBLOCK_FRAMES } else { 1 };
        }
    }
}

/// Tables that are being copied.
struct Copier<'a, S: ReplicaMemory> {
    source: S,
    /// Where the tables' frames come from.
    policy: NodePolicy,
    image: &'a KernelImage,
    /// The node's frame of each page of the image.
    frame: &'a dyn Fn(u64) -> Pfn,
    /// The frames of the tables that were made, the root first.
    made: Vec<Frame<Kernel, S>>,
}

impl<S: ReplicaMemory> Copier<'_, S> {
    /// Makes a root with its own tables for the image's slot. They map the node's frames at the
    /// addresses of text and read-only data.
    fn root(&mut self) -> Result<Pfn, OutOfMemory> {
        let machine = self.source.machine();
        let root = self.table(self.image.root, UPPER)?;
        let top = index_at(self.image.start, 4);
        let entry = machine.load_entry(root, top);
        let base = self.image.start.0 & !((1 << (PAGE_SHIFT + 27)) - 1);
        let below = self.below(frame_of(entry), 3, base)?;
        machine.store_entry(root, top, with_frame(entry, below));
        Ok(root)
    }

    /// A new table with the entries of `from` from `first` on, and zeroes before.
    fn table(&mut self, from: Pfn, first: usize) -> Result<Pfn, OutOfMemory> {
        self.made.try_reserve(1).map_err(|_| OutOfMemory)?;
        let table = Frame::allocate_with(self.source, Request::new(Owner::Kernel).policy(self.policy))?;
        let (machine, number) = (self.source.machine(), table.pfn());
        self.made.push(table);
        (0..first).for_each(|index| machine.store_entry(number, index, 0));
        machine.copy_entries(from, number, first..TABLE_ENTRIES);
        Ok(number)
    }

    /// Copies the table of `level` that maps from `base` on, and all tables below it. The recursion
    /// is at most three deep.
    fn below(&mut self, from: Pfn, level: u32, base: u64) -> Result<Pfn, OutOfMemory> {
        let machine = self.source.machine();
        let copy = self.table(from, 0)?;
        for index in 0..TABLE_ENTRIES {
            let entry = machine.load_entry(copy, index);
            if entry & PRESENT == 0 {
                continue;
            }
            let address = base + ((index as u64) << (PAGE_SHIFT + 9 * (level - 1)));
            let frame = if level == 1 || entry & LARGE != 0 {
                let Some(page) = self.image.page_at(address) else { continue };
                (self.frame)(page)
            } else {
                self.below(frame_of(entry), level - 1, address)?
            };
            let whole = level == 1 || entry & LARGE == 0 || level == 2 && frame.is_aligned(PAGEBLOCK_ORDER);
            assert!(whole, "{address:#x}: a leaf of the image is 2 MiB or 4 KiB");
            machine.store_entry(copy, index, with_frame(entry, frame));
        }
        Ok(copy)
    }
}
