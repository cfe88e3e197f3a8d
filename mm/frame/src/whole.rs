//! Blocks of frames with common counts, as long as all their frames have the same holders.
//!
//! A block of anonymous frames that one large leaf maps is **whole**: the word of its first frame,
//! the head, applies to all, and the other frames have no owner in their records. As soon as one
//! frame must have other holders (a pin, a small leaf, another holder that drops a part), the block
//! is **shattered**: every frame becomes a separate block with a copy of the head's word. Nothing
//! else changes: large leaves may still map a shattered block, and each then holds one mapping of
//! every frame. So counts that are exact for one frame are exact for each frame of a block, and a
//! block that stays whole costs one word.
//!
//! | word of the head | block | may be changed by |
//! |---|---|---|
//! | WHOLE | one word for all | holders of large leaves |
//! | WHOLE, FROZEN | on its way to pieces | the CPU that froze it; others wait a few hundred stores |
//! | FROZEN | on its way to a whole again | the CPU that froze it, the only holder of every frame |
//! | neither | pieces | as any frame's word |
//!
//! **Shatter.** Freeze the head, write the other frames' words, then publish the head's word
//! without marks. A CPU that reads the head without marks has acquired those words, so no count is
//! lost or invented between the two forms. A share or unmap by another address space either comes
//! before the freeze and is copied to all frames, or finds pieces and works on each.
//!
//! **Gather.** Only the holder of the one mapping of every frame may gather. The head is frozen and
//! no longer exclusive, then each other word goes from "one mapping" to 0 by compare-exchange: an
//! earlier pin makes this fail, and a later pin finds a frame that is not exclusive and is refused.
//! After a failure all words are restored.
//!
//! A leaf of 4 KiB, a reference and a pin exist only on pieces, so operations on single frames
//! never find these marks. The exception is a pin that is tried without a hold (see
//! [`transition`](crate::transition)), which the marks refuse.

use core::sync::atomic::Ordering;

use crate::Tag;
use crate::counts::{AtomicWord, Counts, EXCLUSIVE, Hold, MAPPING, TAG, add};

/// The word applies to a whole block.
const WHOLE: u64 = 1 << 32;
/// The block is changing its form.
const FROZEN: u64 = 1 << 31;

/// A word with one of these marks does not belong to a single frame.
pub(crate) const MARKS: u64 = WHOLE | FROZEN;

/// Reasons why a whole block's count did not change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotWhole {
    /// The block is in pieces: each frame has its own counts.
    Pieces,
    /// The block has other holders, too.
    Held,
    /// The count is at its maximum (262,143 mappings).
    Overflow,
}

/// Whether a dropped hold was the last one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LastHold {
    /// The hold was the last: the caller frees the block.
    Gone,
    /// Other holders remain.
    Others,
}

pub(crate) const fn is_whole(bits: u64) -> bool {
    bits & WHOLE != 0
}

impl<W: AtomicWord> Counts<W> {
    /// Initialises the head of a new whole block with one mapping, exclusive. Only its allocator
    /// calls this, before any other code knows the block.
    pub fn start_whole(&self) {
        self.begin(WHOLE | EXCLUSIVE | MAPPING);
    }

    /// Counts one more large leaf, in another address space (fork). The block is no longer
    /// exclusive.
    ///
    /// # Errors
    /// [`NotWhole::Pieces`], [`NotWhole::Overflow`].
    pub fn share_whole(&self) -> Result<(), NotWhole> {
        self.change_whole(|bits| add(bits & !EXCLUSIVE, Hold::Mapping).map_err(|_| NotWhole::Overflow))
            .map(drop)
    }

    /// Become exclusive again: the only holder is one large leaf (or the block is already
    /// exclusive).
    ///
    /// # Errors
    /// [`NotWhole::Pieces`], [`NotWhole::Held`].
    pub fn reuse_whole(&self) -> Result<(), NotWhole> {
        self.change_whole(|bits| match bits & !TAG {
            counts if counts & EXCLUSIVE != 0 || counts == WHOLE | MAPPING => Ok(bits | EXCLUSIVE),
            _ => Err(NotWhole::Held),
        })
        .map(drop)
    }

    /// Drops the hold of one large leaf.
    ///
    /// # Errors
    /// [`NotWhole::Pieces`]: the caller drops the hold of every frame.
    pub fn unmap_whole(&self) -> Result<LastHold, NotWhole> {
        let is_last = |bits: u64| bits & !(EXCLUSIVE | TAG) == WHOLE | MAPPING;
        let before = self.change_whole(|bits| Ok(if is_last(bits) { bits & TAG } else { bits - MAPPING }))?;
        Ok(if is_last(before) { LastHold::Gone } else { LastHold::Others })
    }

    /// Gives every frame of the whole block whose head this is its own word, as a block of one
    /// frame. `tails` are the other frames' words.
    ///
    /// # Errors
    /// [`NotWhole::Pieces`]: another CPU has done it.
    pub fn shatter<'a>(&self, mut tails: impl Iterator<Item = &'a Self>) -> Result<(), NotWhole>
    where
        W: 'a,
    {
        let piece = Tag::of_one_frame(self.change_whole(|bits| Ok(bits | FROZEN))? & !WHOLE);
        // A pin that is tried without a hold may find a tail before the head: see `Counts::start`.
        tails.by_ref().for_each(|tail| tail.word().store(piece, Ordering::Release));
        self.word().store(piece, Ordering::Release);
        Ok(())
    }

    /// Makes the block whole again and exclusive, a block of a pageblock's frames. The caller holds
    /// the only mapping of every frame.
    ///
    /// # Errors
    /// [`NotWhole::Held`]: another holder has a frame of the block. Nothing has changed, except
    /// that frames with the caller as the only holder may have become exclusive.
    pub fn gather<'a>(&self, tails: impl Iterator<Item = &'a Self> + Clone) -> Result<(), NotWhole>
    where
        W: 'a,
    {
        let is_mine = |bits: u64| bits & !(EXCLUSIVE | TAG) == MAPPING;
        let take = |counts: &Self, to: fn(u64) -> u64| {
            counts.exchange(|bits| is_mine(bits).then(|| to(bits))).is_ok()
        };
        // A quick check first: it rejects most blocks that cannot be gathered.
        if !tails.clone().all(|tail| is_mine(tail.word().load(Ordering::Relaxed)))
            || !take(self, |bits| bits & !EXCLUSIVE | FROZEN)
        {
            return Err(NotWhole::Held);
        }
        // Frozen: no other CPU may change it.
        let piece = self.word().load(Ordering::Relaxed) & TAG | MAPPING | EXCLUSIVE;
        let taken = tails.clone().take_while(|tail| take(tail, |_| 0)).count();
        if tails.clone().nth(taken).is_some() {
            tails.take(taken).for_each(|tail| tail.word().store(piece, Ordering::Release));
            self.word().store(piece, Ordering::Release);
            return Err(NotWhole::Held);
        }
        self.word().store(Tag::of_pageblock(piece) | WHOLE, Ordering::Release);
        Ok(())
    }

    /// Changes the word of a whole block. Returns the old word.
    fn change_whole(&self, step: impl Fn(u64) -> Result<u64, NotWhole>) -> Result<u64, NotWhole> {
        let mut bits = self.word().load(Ordering::Acquire);
        loop {
            if bits & FROZEN != 0 {
                self.word().relax();
                bits = self.word().load(Ordering::Acquire);
                continue;
            }
            if bits & WHOLE == 0 {
                return Err(NotWhole::Pieces);
            }
            match self.word().compare_exchange_weak(bits, step(bits)?, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(bits),
                Err(now) => bits = now,
            }
        }
    }

    fn exchange(&self, step: impl Fn(u64) -> Option<u64>) -> Result<(), u64> {
        let mut bits = self.word().load(Ordering::Acquire);
        loop {
            let new = step(bits).ok_or(bits)?;
            match self.word().compare_exchange_weak(bits, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(()),
                Err(now) => bits = now,
            }
        }
    }
}
