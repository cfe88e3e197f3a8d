//! The location of a user frame's page, the number of writers that bypass its leaves, and the
//! account that it is charged to: 16 bytes in a table separate from the records.
//!
//! Code that allocates, maps, shares or frees a frame reads its record and not its reverse key,
//! unless frames are charged to accounts. So the records are dense: eight per cache line.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::AccountId;

/// An object's number, and the page's index in it: the owner defines their meaning, and the page
/// allocator does not change them. Also the number of writers that store to the frame through a
/// pin, which is 0 when the last pin is gone, and the [`AccountId`] that the frame is charged to,
/// which the page allocator sets.
#[derive(Debug, zerocopy::FromBytes)]
#[repr(C)]
pub struct ReverseKey {
    /// The object's number (48 bits), and above it the number of writers, which is at most the
    /// number of pins.
    object: AtomicU64,
    /// The page's index (51 bits), and above it the account.
    index: AtomicU64,
}

const WRITER: u64 = 1 << 48;
/// The shift of the account in the second word. A file of 2^63 bytes has 2^51 pages.
const ACCOUNT: u32 = 64 - AccountId::BITS;

const _: () = assert!(size_of::<ReverseKey>() == 16);

impl ReverseKey {
    /// The key of a frame that never had an owner.
    #[allow(clippy::declare_interior_mutable_const, reason = "a value to build tables from, never borrowed")]
    pub const EMPTY: Self = Self { object: AtomicU64::new(0), index: AtomicU64::new(0) };

    /// The highest number of an object.
    pub const LAST_OBJECT: u64 = WRITER - 1;
    /// The highest index of a page.
    pub const LAST_INDEX: u64 = (1 << ACCOUNT) - 1;

    /// Makes the key that of a frame that never had an owner.
    pub(crate) fn clear(&self) {
        self.object.store(0, Ordering::Relaxed);
        self.index.store(0, Ordering::Relaxed);
    }
    /// The object's number and the page's index.
    pub fn get(&self) -> (u64, u64) {
        let object = self.object.load(Ordering::Acquire) & Self::LAST_OBJECT;
        (object, self.index.load(Ordering::Relaxed) & Self::LAST_INDEX)
    }
    /// Sets both. Only the frame's owner calls this, before others can find the frame. The lowest
    /// 48 bits of `object` and the lowest 51 of `index` are kept.
    pub fn set(&self, object: u64, index: u64) {
        // Only the owner writes this word while the frame has an owner.
        let account = self.index.load(Ordering::Relaxed) & !Self::LAST_INDEX;
        self.index.store(account | index & Self::LAST_INDEX, Ordering::Relaxed);
        let with_writers = |now| Some(now & !Self::LAST_OBJECT | object & Self::LAST_OBJECT);
        let was = self.object.fetch_update(Ordering::Release, Ordering::Relaxed, with_writers);
        debug_assert!(was.is_ok(), "it never refuses");
    }
    /// The account that the frame is charged to: the one that was last
    /// [set](ReverseKey::set_account).
    pub fn account(&self) -> AccountId {
        AccountId::from_bits(self.index.load(Ordering::Relaxed) >> ACCOUNT)
    }
    /// Sets the account. Only the frame's owner calls this, before others can find the frame, or
    /// while its key leads to no page.
    pub fn set_account(&self, account: AccountId) {
        let index = self.index.load(Ordering::Relaxed) & Self::LAST_INDEX;
        self.index.store(account.bits() << ACCOUNT | index, Ordering::Relaxed);
    }
    /// Counts a writer that will store to the frame without a leaf, through a pin, until
    /// [`ReverseKey::remove_writer`].
    pub fn add_writer(&self) {
        self.object.fetch_add(WRITER, Ordering::AcqRel);
    }
    /// Removes a writer: before its pin is released.
    pub fn remove_writer(&self) {
        self.object.fetch_sub(WRITER, Ordering::AcqRel);
    }
    /// Returns whether a writer may be storing to the frame through a pin.
    pub fn has_writers(&self) -> bool {
        self.object.load(Ordering::Acquire) >= WRITER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_is_told_apart_from_its_writers_and_its_account() {
        let reverse_key = ReverseKey::EMPTY;
        let last = (ReverseKey::LAST_OBJECT, ReverseKey::LAST_INDEX);
        reverse_key.set(last.0, u64::MAX);
        assert!(!reverse_key.has_writers() && reverse_key.account() == AccountId::ROOT);
        reverse_key.add_writer();
        reverse_key.add_writer();
        let account = AccountId::new(AccountId::LAST).unwrap();
        reverse_key.set_account(account);
        assert_eq!((reverse_key.get(), reverse_key.has_writers()), (last, true));
        reverse_key.set(7, 8);
        assert_eq!(reverse_key.account(), account);
        reverse_key.remove_writer();
        assert!(reverse_key.has_writers());
        reverse_key.remove_writer();
        assert_eq!((reverse_key.get(), reverse_key.has_writers()), ((7, 8), false));
    }
}
