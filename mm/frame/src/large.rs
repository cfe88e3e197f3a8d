//! The hold of one 2 MiB leaf on a pageblock of anonymous frames. The protocol is in
//! [`whole`](crate::whole).

use core::fmt;
use core::mem::ManuallyDrop;

use freehold_machine::{PAGEBLOCK_FRAMES, PAGEBLOCK_ORDER, Pfn};

use crate::whole::{LastHold, NotWhole};
use crate::{
    Anon, Belongs, CountError, Counts, FrameRecord, FrameSource, Holders, LeafMapping, Order, OutOfMemory,
    Owner, Payer, Request,
};

/// The hold of one large leaf on 512 anonymous frames. Dropping it releases them.
#[must_use = "dropping it unmaps the block"]
pub struct LargeMapping<S: FrameSource> {
    source: S,
    head: Pfn,
}

impl<S: FrameSource> LargeMapping<S> {
    /// A new block, exclusive. The request's owner and order are replaced.
    ///
    /// # Errors
    /// [`OutOfMemory`]: there is no free pageblock.
    pub fn allocate(source: S, request: Request) -> Result<Self, OutOfMemory> {
        Self::allocate_for(source, Payer::Asker, request)
    }
    /// As [`LargeMapping::allocate`], but charges `payer`.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn allocate_for(source: S, payer: Payer, request: Request) -> Result<Self, OutOfMemory> {
        let request = Request { owner: Owner::Anon, order: Order::PAGEBLOCK, ..request };
        let head = source.allocate_for(payer, request)?;
        let this = Self { source, head };
        this.counts(0).start_whole();
        Ok(this)
    }
    /// The block's first frame.
    pub const fn pfn(&self) -> Pfn {
        self.head
    }
    /// Put the hold into a page-table entry: from now on the entry is the holder.
    pub fn into_leaf(self) -> Pfn {
        ManuallyDrop::new(self).head
    }
    /// Take the hold out of a page-table entry that no longer has it. Called once for each
    /// [`LargeMapping::into_leaf`]. The hold is dropped only after the TLBs have flushed the entry.
    /// `None` if `head` starts no pageblock of anonymous frames.
    pub fn from_leaf(source: S, head: Pfn) -> Option<Self> {
        let anonymous = source.table().state(head).owner() == Owner::Anon;
        (head.is_aligned(PAGEBLOCK_ORDER) && anonymous).then_some(Self { source, head })
    }
    /// Look at the hold of a page-table entry in place; the entry stays the holder. `None` as for
    /// [`LargeMapping::from_leaf`].
    pub fn borrow_leaf(source: S, head: Pfn) -> Option<ManuallyDrop<Self>> {
        Self::from_leaf(source, head).map(ManuallyDrop::new)
    }

    fn record(&self, index: u64) -> &'static FrameRecord {
        let record = self.source.table().get(self.head.offset(index));
        record.expect("a handle's frames were in the table when the handle was made")
    }
    fn counts(&self, index: u64) -> &'static Counts {
        self.record(index).counts()
    }
    fn tails(&self) -> impl Iterator<Item = &'static Counts> + Clone + use<S> {
        let (table, head) = (self.source.table(), self.head);
        (1..PAGEBLOCK_FRAMES).filter_map(move |index| table.get(head.offset(index)).map(FrameRecord::counts))
    }

    /// How frame `index` of the block is held.
    pub fn holders(&self, index: u64) -> Holders {
        let head = self.counts(0).load();
        if head.whole { head } else { self.counts(index).load() }
    }
    /// Whether any frame of it is pinned.
    pub fn is_pinned(&self) -> bool {
        // Only frames of a block in pieces can be pinned.
        !self.counts(0).load().whole && (0..PAGEBLOCK_FRAMES).any(|index| self.counts(index).load().pins > 0)
    }
    /// Exclusive if only this address space uses every frame.
    pub fn belongs(&self) -> Belongs {
        let head = self.counts(0).load();
        let mut rest = self.tails().map(Counts::load);
        if head.whole || rest.all(Holders::is_exclusive) { head.belongs } else { Belongs::Shared }
    }

    /// One more large leaf for another address space: no frame is exclusive any more.
    ///
    /// # Errors
    /// [`CountError::Pinned`]: a frame is pinned, so this leaf must be split, and the frames shared
    /// or copied one by one. [`CountError::Overflow`].
    pub fn share(&self) -> Result<Self, CountError> {
        let twin = || Self { source: self.source, head: self.head };
        if let Err(NotWhole::Pieces) = self.counts(0).share_whole().or_else(|error| self.after_gather(error))
        {
            return self.share_pieces().map(|()| twin());
        }
        Ok(twin())
    }
    /// A block in pieces without other holders becomes whole again, and is then shared as a whole.
    fn after_gather(&self, error: NotWhole) -> Result<(), NotWhole> {
        if error == NotWhole::Pieces && self.gather().is_ok() {
            self.counts(0).share_whole()
        } else {
            Err(error)
        }
    }
    fn share_pieces(&self) -> Result<(), CountError> {
        if self.is_pinned() {
            return Err(CountError::Pinned);
        }
        // One bit a frame: whether it was exclusive.
        let mut exclusive = [0u64; PAGEBLOCK_FRAMES as usize / 64];
        for index in 0..PAGEBLOCK_FRAMES {
            let counts = self.counts(index);
            exclusive[index as usize / 64] |= u64::from(counts.load().is_exclusive()) << (index % 64);
            if let Err(error) = counts.share() {
                for done in 0..index {
                    let was = exclusive[done as usize / 64] >> (done % 64) & 1;
                    self.counts(done).unshare(if was != 0 { Belongs::Exclusive } else { Belongs::Shared });
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Becomes exclusive again where this leaf is the only holder of the frames.
    ///
    /// # Errors
    /// [`CountError::Held`]: another holder has a frame; split the leaf and decide frame by frame.
    pub fn reuse(&self) -> Result<(), CountError> {
        match self.counts(0).reuse_whole() {
            Ok(()) => Ok(()),
            Err(NotWhole::Pieces) if self.gather().is_ok() => Ok(()),
            // Pinned frames are exclusive and keep the block in pieces.
            Err(NotWhole::Pieces) => (0..PAGEBLOCK_FRAMES).try_for_each(|index| self.counts(index).reuse()),
            Err(NotWhole::Held | NotWhole::Overflow) => Err(CountError::Held),
        }
    }

    /// Give every frame its own counts, so that each may be mapped, pinned and shared separately.
    /// Returns whether the block was whole before.
    pub fn shatter(&self) -> Shattered {
        match self.counts(0).shatter(self.tails()) {
            Ok(()) => Shattered::Now,
            Err(_) => Shattered::Before,
        }
    }

    /// The inverse of [`LargeMapping::shatter`], if this leaf is the only holder of the frames.
    /// They are exclusive afterwards.
    ///
    /// # Errors
    /// [`CountError::Held`].
    pub fn gather(&self) -> Result<(), CountError> {
        self.counts(0).gather(self.tails()).map_err(|_| CountError::Held)
    }

    /// Combines 512 mappings with adjacent leaves into one block, if these mappings are its only
    /// holders.
    ///
    /// # Errors
    /// [`CountError::Held`]: the leaves stay as they are.
    pub fn from_pieces(source: S, head: Pfn) -> Result<Self, CountError> {
        let block = Self::borrow_leaf(source, head).ok_or(CountError::Held)?;
        block.gather()?;
        Ok(ManuallyDrop::into_inner(block))
    }

    /// The mapping of one frame, for the leaf of 4 KiB that takes its place.
    ///
    /// # Panics
    /// If the block is whole.
    pub fn piece(&self, index: u64) -> ManuallyDrop<LeafMapping<Anon, S>> {
        LeafMapping::borrow_leaf(self.source, self.head.offset(index))
            .expect("the block was shattered before")
    }
}

/// Whether a block was whole until now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shattered {
    /// The block was whole.
    Now,
    /// The block was in pieces.
    Before,
}

impl<S: FrameSource> Drop for LargeMapping<S> {
    fn drop(&mut self) {
        let head = self.counts(0);
        let outcome = match head.unmap_whole() {
            // Freed as one block if possible: that is cheaper, and the next large page can use it.
            Err(NotWhole::Pieces) if self.gather().is_ok() => head.unmap_whole(),
            outcome => outcome,
        };
        match outcome {
            Ok(LastHold::Gone) => self.source.release_of(Owner::Anon, self.head, Order::PAGEBLOCK),
            Ok(LastHold::Others) => {}
            Err(_) => {
                for index in 0..PAGEBLOCK_FRAMES {
                    if self.counts(index).unmap() {
                        self.source.release_of(Owner::Anon, self.head.offset(index), Order::FRAME);
                    }
                }
            }
        }
    }
}

impl<S: FrameSource> fmt::Debug for LargeMapping<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LargeMapping({:?}, {:?})", self.head, self.counts(0).load())
    }
}
