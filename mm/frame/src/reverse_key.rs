//! Where a user frame's page is found, and who writes it past its leaves: 16 bytes beside the
//! record, in a table of their own.
//!
//! Whoever allocates, maps, shares or frees a frame reads its record and not this. So the records
//! lie as closely as they can: eight to a cache line.

use core::sync::atomic::{AtomicU64, Ordering};

/// An object's number, and the page's index in it: what that means is the owner's affair, and the
/// page allocator leaves it as it is. And how many may write the frame through a pin: nobody, when
/// its last pin is gone.
#[derive(Debug, zerocopy::FromBytes)]
#[repr(C)]
pub struct ReverseKey {
    /// The object's number (48 bits), and above it the writers, of which there are no more than
    /// pins.
    object: AtomicU64,
    index: AtomicU64,
}

const WRITER: u64 = 1 << 48;

const _: () = assert!(size_of::<ReverseKey>() == 16);

impl ReverseKey {
    /// That of a frame that never had an owner.
    #[allow(clippy::declare_interior_mutable_const, reason = "a value to build tables from, never borrowed")]
    pub const EMPTY: Self = Self { object: AtomicU64::new(0), index: AtomicU64::new(0) };

    /// The highest number of an object.
    pub const LAST_OBJECT: u64 = WRITER - 1;

    /// Make it that of a frame that never had an owner, whatever it was.
    pub(crate) fn clear(&self) {
        self.object.store(0, Ordering::Relaxed);
        self.index.store(0, Ordering::Relaxed);
    }
    /// The object's number and the page's index.
    pub fn get(&self) -> (u64, u64) {
        (self.object.load(Ordering::Acquire) & Self::LAST_OBJECT, self.index.load(Ordering::Relaxed))
    }
    /// Only the frame's owner calls this, before others can find the frame. Of `object` the lowest
    /// 48 bits are kept.
    pub fn set(&self, object: u64, index: u64) {
        self.index.store(index, Ordering::Relaxed);
        let with_writers = |now| Some(now & !Self::LAST_OBJECT | object & Self::LAST_OBJECT);
        let was = self.object.fetch_update(Ordering::Release, Ordering::Relaxed, with_writers);
        debug_assert!(was.is_ok(), "it never refuses");
    }
    /// Someone will write the frame without a leaf, through a pin, until
    /// [`ReverseKey::remove_writer`].
    pub fn add_writer(&self) {
        self.object.fetch_add(WRITER, Ordering::AcqRel);
    }
    /// They are done: before the pin is let go of.
    pub fn remove_writer(&self) {
        self.object.fetch_sub(WRITER, Ordering::AcqRel);
    }
    /// Whether someone may be writing the frame through a pin.
    pub fn has_writers(&self) -> bool {
        self.object.load(Ordering::Acquire) >= WRITER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_is_told_apart_from_its_writers() {
        let reverse_key = ReverseKey::EMPTY;
        reverse_key.set(ReverseKey::LAST_OBJECT, u64::MAX);
        assert!(!reverse_key.has_writers());
        reverse_key.add_writer();
        reverse_key.add_writer();
        assert_eq!(
            (reverse_key.get(), reverse_key.has_writers()),
            ((ReverseKey::LAST_OBJECT, u64::MAX), true)
        );
        reverse_key.set(7, 8);
        reverse_key.remove_writer();
        assert!(reverse_key.has_writers());
        reverse_key.remove_writer();
        assert_eq!((reverse_key.get(), reverse_key.has_writers()), ((7, 8), false));
    }
}
