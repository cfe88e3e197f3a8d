//! How a user frame is held: the upper part of the one word that is its
//! [record](crate::FrameRecord).
//!
//! Layout, from the top: exclusive (1 bit), merged (1), pins (13), references (16), the two marks
//! of blocks ([`whole`](crate::whole)), mappings (18); below them the [`Tag`](crate::Tag) (13),
//! which changes of counts leave unchanged. A word whose tag names no owner has no counts: its
//! other bits name the last owner, and a pin that is tried without a hold is refused. Each count is
//! exact and separate. They share a word, with the owner, only so that a change of one can depend
//! on the others without a lock:
//!
//! - *share* (fork) changes "exclusive and not pinned" to "not exclusive, one more mapping";
//! - *pin* changes "exclusive" to "exclusive, one more pin";
//! - *vacate* (swap-out, migration) changes "exclusive and not pinned" to "a reference that cannot
//!   be pinned";
//! - *reuse* changes "one mapping and nothing else" to "exclusive";
//! - *merge* marks a frame that is not exclusive as merged: it has the bytes of several equal pages
//!   (Linux: a KSM page). It is never reused, so these bytes stay as they are while the mark does;
//! - the last holder of any kind must know, when it drops its hold, that it is the last.
//!
//! Each is one compare-exchange, so a pin and a share can never both succeed against the same
//! state. This replaces the bias in a shared count, the fences and the sequence lock that Linux
//! needs for the same promise (`page_maybe_dma_pinned`, `write_protect_seq`).
//! [`transition`](crate::transition) describes how page-table leaves follow it.
//!
//! **Orderings.** Dropping a hold is a release of the holder's accesses; the last holder acquires
//! those of all holders before the frame is reused. Taking a hold is acquire and release, too:
//! callers decide about page-table entries by its result, and a pin may be tried without a hold, on
//! a leaf that was read a moment ago. Such a pin finds the frame without a holder, or it reads a
//! word that was written after the frame got its new owner (so [`Counts::start`] releases). Then it
//! sees that the leaf has changed.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::whole::MARKS;
use crate::{Owner, Tag};

/// A 64-bit atomic as a trait, so that a model checker can use its own type.
pub trait AtomicWord {
    /// Atomic load.
    fn load(&self, order: Ordering) -> u64;
    /// Atomic store.
    fn store(&self, value: u64, order: Ordering);
    /// Atomic compare-exchange; may fail spuriously.
    ///
    /// # Errors
    /// The word's present value.
    fn compare_exchange_weak(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64>;
    /// Called in loops that wait until another thread changes the word.
    fn relax(&self) {
        core::hint::spin_loop();
    }
}

impl AtomicWord for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }
    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
    #[inline]
    fn compare_exchange_weak(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.compare_exchange_weak(current, new, success, failure)
    }
}

/// The bits of the tag, and those of the owner in it.
pub(crate) const TAG: u64 = (1 << Tag::BITS) - 1;
const OWNER: u64 = Tag::OWNER;

pub(crate) const MAPPING: u64 = 1 << Tag::BITS;
const REFERENCE: u64 = 1 << 33;
const PIN: u64 = 1 << 49;
const MERGED: u64 = 1 << 62;
pub(crate) const EXCLUSIVE: u64 = 1 << 63;
const MAX_MAPPINGS: u64 = (1 << 18) - 1;
const MAX_REFERENCES: u64 = (1 << 16) - 1;
const MAX_PINS: u64 = (1 << 13) - 1;

// Every bit belongs to exactly one field.
const _: () = assert!(
    TAG + MAX_MAPPINGS * MAPPING + MARKS + MAX_REFERENCES * REFERENCE + MAX_PINS * PIN + MERGED + EXCLUSIVE
        == u64::MAX
);

/// Reasons why a count did not change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CountError {
    /// The frame is pinned: it may not be shared, only copied.
    Pinned,
    /// The frame is not exclusive: it may not be pinned before it is unshared.
    NotExclusive,
    /// The frame is not merged, or not any more.
    NotMerged,
    /// The frame has no holder.
    Free,
    /// Others hold the frame too.
    Held,
    /// The count is at its maximum (262,143 mappings, 65,535 references, 8,191 pins).
    Overflow,
}

/// One reading of [`Counts`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Holders {
    /// Page-table leaves that map the frame.
    pub mappings: u32,
    /// Kernel objects that hold it: a page-cache slot, a pipe buffer, a handle in flight.
    pub references: u32,
    /// Pins: a device or another long-term user works on the bytes.
    pub pins: u32,
    /// Whether the frame is exclusive or shared; a frame without a holder counts as shared.
    pub belongs: Belongs,
    /// Whether the counts apply to all 512 frames of the block that begins with this frame.
    pub whole: bool,
}

impl Holders {
    #[inline]
    const fn from_bits(bits: u64) -> Self {
        if bits & OWNER == 0 {
            return Self { mappings: 0, references: 0, pins: 0, belongs: Belongs::Shared, whole: false };
        }
        Self {
            mappings: ((bits / MAPPING) & MAX_MAPPINGS) as u32,
            references: ((bits / REFERENCE) & MAX_REFERENCES) as u32,
            pins: ((bits / PIN) & MAX_PINS) as u32,
            belongs: Belongs::from_bits(bits),
            whole: crate::whole::is_whole(bits),
        }
    }
    /// Whether only one address space uses the frame.
    pub const fn is_exclusive(self) -> bool {
        matches!(self.belongs, Belongs::Exclusive)
    }
    /// Whether nothing holds the frame.
    pub const fn is_none(self) -> bool {
        self.mappings == 0 && self.references == 0 && self.pins == 0
    }
}

/// Kind of hold that is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Hold {
    Mapping,
    Reference,
    Pin,
}

impl Hold {
    #[inline]
    const fn one(self) -> u64 {
        match self {
            Self::Mapping => MAPPING,
            Self::Reference => REFERENCE,
            Self::Pin => PIN,
        }
    }
    #[inline]
    const fn max(self) -> u64 {
        match self {
            Self::Mapping => MAX_MAPPINGS,
            Self::Reference => MAX_REFERENCES,
            Self::Pin => MAX_PINS,
        }
    }
    #[inline]
    const fn count(self, bits: u64) -> u64 {
        (bits / self.one()) & self.max()
    }
}

/// Mappings, references, pins and the exclusive mark of one user frame. See the module's head.
#[derive(Debug, Default, zerocopy::FromBytes)]
#[repr(transparent)]
pub struct Counts<W = AtomicU64>(W);

impl Counts {
    /// The counts of a frame that never had an owner.
    #[allow(clippy::declare_interior_mutable_const, reason = "a value to build records from, never borrowed")]
    pub(crate) const NONE: Self = Self(AtomicU64::new(0));
}

impl<W: AtomicWord> Counts<W> {
    /// Counts kept in `word`, which is 0, or the [`Tag`](crate::Tag) of a frame without a holder.
    pub const fn with_word(word: W) -> Self {
        Self(word)
    }
    pub(crate) const fn word(&self) -> &W {
        &self.0
    }
    /// The counts at this moment.
    pub fn load(&self) -> Holders {
        Holders::from_bits(self.0.load(Ordering::Acquire))
    }
    /// Gives a new frame its first reference. Only its allocator calls this, before any other code
    /// knows the frame.
    pub fn start(&self, belongs: Belongs) {
        self.begin(REFERENCE | belongs.mark());
    }
    /// Give a new exclusive frame its first mapping, as [`Counts::start`] its first reference.
    #[inline]
    pub fn start_mapped(&self) {
        self.begin(MAPPING | EXCLUSIVE);
    }
    /// Sets the first counts of a frame that only its allocator knows. No other CPU changes the
    /// word meanwhile: a pin by mistake is refused.
    #[inline]
    pub(crate) fn begin(&self, counts: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) | counts, Ordering::Release);
    }
    /// One more mapping, without a change to the exclusive mark: for shared memory.
    ///
    /// # Errors
    /// [`CountError::Overflow`].
    pub fn map(&self) -> Result<(), CountError> {
        self.change(|bits| add(bits, Hold::Mapping))
    }
    /// One more reference.
    ///
    /// # Errors
    /// [`CountError::Overflow`].
    pub fn reference(&self) -> Result<(), CountError> {
        self.change(|bits| add(bits, Hold::Reference))
    }
    /// Turn one reference into one mapping. If the frame is mapped already, it becomes shared.
    ///
    /// # Errors
    /// [`CountError::Pinned`] if a pinned exclusive frame is mapped already;
    /// [`CountError::Overflow`].
    pub fn reference_to_mapping(&self) -> Result<(), CountError> {
        self.change(|bits| {
            let mapped = Hold::Mapping.count(bits) > 0;
            match bits & EXCLUSIVE {
                EXCLUSIVE if mapped && Hold::Pin.count(bits) > 0 => Err(CountError::Pinned),
                EXCLUSIVE if mapped => add((bits & !EXCLUSIVE) - REFERENCE, Hold::Mapping),
                _ => add(bits - REFERENCE, Hold::Mapping),
            }
        })
    }
    /// Turns the mapping of a frame that will be removed from its page into a reference. The frame
    /// is not exclusive afterwards, so it cannot be pinned. Returns whether it was exclusive.
    ///
    /// # Errors
    /// [`CountError::Pinned`]; [`CountError::Held`] if there are references to an exclusive frame;
    /// [`CountError::Overflow`].
    pub fn vacate(&self) -> Result<Belongs, CountError> {
        let before = self.change_from(|bits| {
            match (bits & EXCLUSIVE != 0, Hold::Pin.count(bits), Hold::Reference.count(bits)) {
                (true, 1.., _) => Err(CountError::Pinned),
                (true, 0, 1..) => Err(CountError::Held),
                _ => add((bits & !EXCLUSIVE) - MAPPING, Hold::Reference),
            }
        })?;
        Ok(Belongs::from_bits(before))
    }
    /// Undoes [`Counts::vacate`]: turns one reference into one mapping of a frame that is exclusive
    /// or shared as that call returned. A frame that becomes exclusive is not merged any more.
    ///
    /// # Errors
    /// [`CountError::Held`] if the frame has to be exclusive and is mapped;
    /// [`CountError::Overflow`].
    pub fn occupy(&self, belongs: Belongs) -> Result<(), CountError> {
        self.change(|bits| match belongs {
            Belongs::Exclusive if Hold::Mapping.count(bits) > 0 => Err(CountError::Held),
            Belongs::Exclusive => {
                add((bits & !MERGED) - REFERENCE, Hold::Mapping).map(|bits| bits | EXCLUSIVE)
            }
            Belongs::Shared => add((bits & !EXCLUSIVE) - REFERENCE, Hold::Mapping),
        })
    }
    /// Turn one mapping into one reference.
    ///
    /// # Errors
    /// [`CountError::Overflow`].
    pub fn mapping_to_reference(&self) -> Result<(), CountError> {
        self.change(|bits| add(bits - MAPPING, Hold::Reference))
    }
    /// One more mapping in another address space (fork): no longer exclusive.
    ///
    /// # Errors
    /// [`CountError::Pinned`]: the frame stays where it is, the other space gets a copy.
    /// [`CountError::Overflow`].
    pub fn share(&self) -> Result<(), CountError> {
        self.change(|bits| {
            if Hold::Pin.count(bits) > 0 {
                return Err(CountError::Pinned);
            }
            add(bits & !EXCLUSIVE, Hold::Mapping)
        })
    }
    /// Undoes an unused share: the frame is as before.
    pub(crate) fn unshare(&self, was: Belongs) {
        let outcome = self.change(|bits| Ok((bits - MAPPING) | was.mark()));
        debug_assert_eq!(outcome, Ok(()));
    }
    /// Becomes exclusive again: the only holder is one mapping (or the frame is already exclusive).
    ///
    /// # Errors
    /// [`CountError::Held`]: another holder may look at the bytes; copy them.
    pub fn reuse(&self) -> Result<(), CountError> {
        self.change(|bits| match bits {
            bits if bits & EXCLUSIVE != 0 || bits & !TAG == MAPPING => Ok(bits | EXCLUSIVE),
            _ => Err(CountError::Held),
        })
    }
    /// As [`Counts::reuse`], but allows up to `references` whose holders never read the bytes
    /// again.
    ///
    /// # Errors
    /// As [`Counts::reuse`].
    pub fn reuse_beside(&self, references: u32) -> Result<(), CountError> {
        self.change(|bits| {
            let idle = Hold::Reference.count(bits).min(references.into());
            match bits {
                bits if bits & EXCLUSIVE != 0 => Ok(bits),
                bits if (bits & !TAG) - idle * REFERENCE == MAPPING => Ok(bits | EXCLUSIVE),
                _ => Err(CountError::Held),
            }
        })
    }
    /// One more pin on an exclusive frame.
    ///
    /// # Errors
    /// [`CountError::NotExclusive`]: unshare first. [`CountError::Overflow`].
    pub fn pin_exclusive(&self) -> Result<(), CountError> {
        let alone = |bits| bits & (EXCLUSIVE | MARKS) == EXCLUSIVE;
        self.change(|bits| if alone(bits) { add(bits, Hold::Pin) } else { Err(CountError::NotExclusive) })
    }
    /// One more pin on a frame of shared memory, which fork never copies.
    ///
    /// # Errors
    /// [`CountError::Free`] if the frame has no holder; [`CountError::Overflow`].
    pub fn pin_shared(&self) -> Result<(), CountError> {
        let held = |bits| bits & OWNER == Owner::PageCache as u64 && bits & !TAG != 0 && bits & MARKS == 0;
        self.change(|bits| if held(bits) { add(bits, Hold::Pin) } else { Err(CountError::Free) })
    }
    /// Marks a frame as merged, to which the caller has a reference.
    ///
    /// # Errors
    /// [`CountError::Held`] if it is exclusive: its bytes may change.
    pub fn merge(&self) -> Result<(), CountError> {
        let fits = |bits| bits & (EXCLUSIVE | MARKS) == 0;
        self.change(|bits| if fits(bits) { Ok(bits | MERGED) } else { Err(CountError::Held) })
    }
    /// Undoes [`Counts::merge`]. Spaces that map the frame share it as after a fork.
    pub fn unmerge(&self) {
        let outcome = self.change(|bits| Ok(bits & !MERGED));
        debug_assert_eq!(outcome, Ok(()));
    }
    /// Whether the frame is merged.
    #[inline]
    pub fn is_merged(&self) -> bool {
        is_merged(self.0.load(Ordering::Acquire))
    }
    /// One more reference to a merged frame. May be tried without a hold.
    ///
    /// # Errors
    /// [`CountError::NotMerged`]; [`CountError::Overflow`].
    pub fn reference_merged(&self) -> Result<(), CountError> {
        self.change(|bits| add_merged(bits, Hold::Reference))
    }
    /// One more mapping of a merged frame, to which the caller has a reference.
    ///
    /// # Errors
    /// As [`Counts::reference_merged`].
    pub fn map_merged(&self) -> Result<(), CountError> {
        self.change(|bits| add_merged(bits, Hold::Mapping))
    }
    /// Drops one hold. `true` if it was the last: the caller now owns the frame alone and frees it.
    #[must_use = "the last holder frees the frame"]
    #[inline]
    pub(crate) fn drop_hold(&self, hold: Hold) -> bool {
        let mut bits = self.0.load(Ordering::Relaxed);
        loop {
            if hold.count(bits) == 0 || bits & OWNER == 0 {
                nobody_has(hold, bits);
            }
            let left = bits - hold.one();
            let last = left & !(EXCLUSIVE | MERGED | TAG) == 0;
            let new = if last { left & TAG } else { left };
            match self.0.compare_exchange_weak(bits, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return last,
                Err(now) => bits = now,
            }
        }
    }
    /// Drops one mapping. Returns whether the frame now has no holder, so that the caller frees it.
    #[must_use = "the last holder frees the frame"]
    pub fn unmap(&self) -> bool {
        self.drop_hold(Hold::Mapping)
    }
    /// Drops one reference; see [`Counts::unmap`].
    #[must_use = "the last holder frees the frame"]
    pub fn unreference(&self) -> bool {
        self.drop_hold(Hold::Reference)
    }
    /// Drops one pin; see [`Counts::unmap`].
    #[must_use = "the last holder frees the frame"]
    pub fn unpin(&self) -> bool {
        self.drop_hold(Hold::Pin)
    }

    fn change(&self, step: impl Fn(u64) -> Result<u64, CountError>) -> Result<(), CountError> {
        self.change_from(step).map(drop)
    }
    /// Changes the word. Returns the old word.
    fn change_from(&self, step: impl Fn(u64) -> Result<u64, CountError>) -> Result<u64, CountError> {
        let mut bits = self.0.load(Ordering::Acquire);
        loop {
            match self.0.compare_exchange_weak(bits, step(bits)?, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(bits),
                Err(now) => bits = now,
            }
        }
    }
}

#[cold]
fn nobody_has(hold: Hold, bits: u64) -> ! {
    panic!("a {hold:?} was let go that nobody has: {:?}", Holders::from_bits(bits));
}

/// The holders of a frame; for a block, of its 512 frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Belongs {
    /// Only one address space uses the frame, or every frame of the block. It may be pinned, and is
    /// copied or shared at fork.
    Exclusive,
    /// Several address spaces use it, or none: page cache, anonymous memory shared by a fork, or a
    /// block with such a frame.
    #[default]
    Shared,
}

impl Belongs {
    #[inline]
    const fn from_bits(bits: u64) -> Self {
        if bits & EXCLUSIVE != 0 { Self::Exclusive } else { Self::Shared }
    }
    #[inline]
    const fn mark(self) -> u64 {
        match self {
            Self::Exclusive => EXCLUSIVE,
            Self::Shared => 0,
        }
    }
}

#[inline]
const fn is_merged(bits: u64) -> bool {
    bits & MERGED != 0 && bits & OWNER == Owner::Anon as u64
}

/// One more hold of a merged frame.
fn add_merged(bits: u64, hold: Hold) -> Result<u64, CountError> {
    if is_merged(bits) { add(bits, hold) } else { Err(CountError::NotMerged) }
}

#[inline]
pub(crate) fn add(bits: u64, hold: Hold) -> Result<u64, CountError> {
    if hold.count(bits) == hold.max() { Err(CountError::Overflow) } else { Ok(bits + hold.one()) }
}
