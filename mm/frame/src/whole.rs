//! Blocks of frames that are counted as one for as long as all of them are held alike.
//!
//! A block of anonymous frames that one large leaf maps is **whole**: the word of its first frame,
//! the head, speaks for all, and the other frames have no owner of their own. As soon as one frame
//! must be held otherwise (a pin, a leaf of its own, a partner that lets go of a part), the block
//! is **shattered**: every frame is a block of its own, with the head's word. Nothing else changes:
//! large leaves may go on mapping a shattered block, and each then holds one mapping of every
//! frame. So counts that are exact for one frame are exact for each frame of a block, and a block
//! that stays whole costs one word.
//!
//! | word of the head | block | may be changed by |
//! |---|---|---|
//! | WHOLE | one word for all | holders of large leaves |
//! | WHOLE, FROZEN | on its way to pieces | the CPU that froze it; others wait a few hundred stores |
//! | FROZEN | on its way to a whole again | the CPU that froze it, the only holder of every frame |
//! | neither | pieces | as any frame's word |
//!
//! **Shatter.** Freeze the head, write the other frames' words, then publish the head's word as a
//! piece's. A CPU that reads the head with neither mark has acquired those words, so no count is
//! lost or made up between the two forms: a share or an unmap by another address space comes before
//! the freeze and is copied to all, or finds pieces and does its work on each.
//!
//! **Gather.** Only the holder of the one mapping of every frame may gather. The head is frozen and
//! no longer exclusive, then each other word goes from "one mapping" to 0 by compare-exchange: a
//! pin that was faster makes it fail, and one that is late finds a frame that is not exclusive, as
//! it would anywhere. A failure gives every word back.
//!
//! A leaf of 4 KiB, a reference and a pin exist only on pieces, so the operations of single frames
//! never meet these marks; but for a pin that is tried without a hold (see
//! [`transition`](crate::transition)), which they refuse.

use core::sync::atomic::Ordering;

use crate::Tag;
use crate::counts::{AtomicWord, Counts, EXCLUSIVE, Hold, MAPPING, TAG, add};

/// The word speaks for a whole block.
const WHOLE: u64 = 1 << 32;
/// The block changes its form.
const FROZEN: u64 = 1 << 31;

/// A word with one of these is no single frame's.
pub(crate) const MARKS: u64 = WHOLE | FROZEN;

/// Why a whole block's count did not change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotWhole {
    /// The block is in pieces: each frame has its own counts.
    Pieces,
    /// Other holders have it too.
    Held,
    /// The count is at its maximum (262,143 mappings).
    Overflow,
}

/// Whether the last holder let go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LastHold {
    /// The last holder let go: the block is the caller's to free.
    Gone,
    /// Other holders remain.
    Others,
}

pub(crate) const fn is_whole(bits: u64) -> bool {
    bits & WHOLE != 0
}

impl<W: AtomicWord> Counts<W> {
    /// Begins as the head of a whole block with one mapping, exclusive. Only its allocator calls
    /// this, before any other code knows the block.
    pub fn start_whole(&self) {
        self.begin(WHOLE | EXCLUSIVE | MAPPING);
    }

    /// One more large leaf in another address space (fork): no longer exclusive.
    ///
    /// # Errors
    /// [`NotWhole::Pieces`], [`NotWhole::Overflow`].
    pub fn share_whole(&self) -> Result<(), NotWhole> {
        self.change_whole(|bits| add(bits & !EXCLUSIVE, Hold::Mapping).map_err(|_| NotWhole::Overflow))
            .map(drop)
    }

    /// Become exclusive again: the only holder is one large leaf (or already exclusive).
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

    /// One large leaf is gone.
    ///
    /// # Errors
    /// [`NotWhole::Pieces`]: let go of every frame.
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

    /// Makes the block whole again and exclusive, a block of a pageblock's frames. The caller has
    /// the one mapping of every frame.
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
        // Most blocks that cannot be gathered show it at a glance.
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
