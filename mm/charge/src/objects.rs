//! Objects smaller than a frame, which are charged by the byte.
//!
//! **Protocol.** An account has one word for objects: their bytes, and the frames that are charged
//! for them. If the frames have no room for more bytes, more frames are charged first. One
//! compare-exchange then adds both to the word; if it fails, the frames are uncharged. When bytes
//! are freed, one compare-exchange removes bytes and frames from the word, and then the frames are
//! uncharged. So the account is always charged for at least the frames in the word, and an account
//! to which nothing is charged has no bytes. `tests/loom.rs` explores this, and a variant that is
//! wrong.
//!
//! One frame more than the bytes need stays charged while there are bytes, so that a repeated
//! allocation and release of one object does not charge a frame each time.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_frame::AtomicWord;

/// The bytes of an account's objects, and the frames that are charged for them.
#[derive(Debug)]
pub struct ObjectBytes<W = AtomicU64>(W);

/// Bytes of a frame.
const FRAME: u64 = 4096;
/// The lowest bit of the frames in the word; the bytes are in the bits below.
const HELD: u32 = 38;
const BYTES: u64 = (1 << HELD) - 1;
const MOST_HELD: u64 = (1 << (u64::BITS - HELD)) - 1;

impl ObjectBytes {
    /// No objects.
    #[allow(clippy::declare_interior_mutable_const, reason = "a value to build tables from, never borrowed")]
    pub const NONE: Self = Self(AtomicU64::new(0));
}

impl<W: AtomicWord> ObjectBytes<W> {
    /// Returns the objects in `word`; 0 means none.
    pub const fn with_word(word: W) -> Self {
        Self(word)
    }
    /// Adds `bytes`, fewer than 2^30. `charge` charges the given number of frames, and `uncharge`
    /// undoes that.
    ///
    /// # Errors
    /// The error of `charge`, or `full` if there would be 2^38 bytes; nothing is added.
    pub fn add<T, E>(
        &self,
        bytes: u64,
        full: E,
        mut charge: impl FnMut(u64) -> Result<T, E>,
        mut uncharge: impl FnMut(T, u64),
    ) -> Result<Option<T>, E> {
        let mut now = self.0.load(Ordering::Acquire);
        loop {
            let (held, sum) = (now >> HELD, (now & BYTES) + bytes);
            let needed = sum.div_ceil(FRAME);
            if sum > BYTES || needed > MOST_HELD {
                return Err(full);
            }
            let more = needed.saturating_sub(held);
            let charged = if more > 0 { Some(charge(more)?) } else { None };
            let new = (held + more) << HELD | sum;
            match self.0.compare_exchange_weak(now, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(charged),
                Err(other) => now = other,
            }
            if let Some(charged) = charged {
                uncharge(charged, more);
            }
            self.0.relax();
        }
    }
    /// Removes `bytes` that were added. Returns the number of frames that the caller has to
    /// uncharge.
    ///
    /// # Panics
    /// If fewer were added: an object's account is wrong.
    pub fn take(&self, bytes: u64) -> u64 {
        let mut now = self.0.load(Ordering::Acquire);
        loop {
            let held = now >> HELD;
            let left = (now & BYTES).checked_sub(bytes).expect("no more is given back than was added");
            let keep = if left == 0 { 0 } else { held.min(left.div_ceil(FRAME) + 1) };
            let new = keep << HELD | left;
            match self.0.compare_exchange_weak(now, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return held - keep,
                Err(other) => now = other,
            }
            self.0.relax();
        }
    }
    /// The number of frames that are charged for the objects.
    pub fn held(&self) -> u64 {
        self.0.load(Ordering::Acquire) >> HELD
    }
    /// The number of bytes of all objects.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Acquire) & BYTES
    }
}
