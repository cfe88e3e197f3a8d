//! Which account a frame is charged to.
//!
//! A kernel that counts memory by groups of processes gives each group an account and has the page
//! allocator charge frames to them. The crate `freehold-charge` manages the limits and the holders
//! of accounts.

use core::sync::atomic::{AtomicU16, Ordering};

/// The number of an account.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct AccountId(u16);

impl AccountId {
    /// Number of bits of an account in a reverse key.
    pub(crate) const BITS: u32 = 13;
    /// The highest number.
    pub const LAST: u16 = (1 << Self::BITS) - 1;
    /// The account for all frames that no group is charged for. It has no limit and no counts.
    pub const ROOT: Self = Self(0);

    /// The account of this number; `None` above [`AccountId::LAST`].
    pub const fn new(number: u16) -> Option<Self> {
        if number <= Self::LAST { Some(Self(number)) } else { None }
    }
    /// `None` for the root.
    pub fn unless_root(self) -> Option<Self> {
        (self != Self::ROOT).then_some(self)
    }
    /// Its number.
    pub const fn number(self) -> u16 {
        self.0
    }
    pub(crate) const fn bits(self) -> u64 {
        self.0 as u64
    }
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits as u16 & Self::LAST)
    }
}

/// An atomic variable for the number of an account, [`AccountId::ROOT`] at first.
#[derive(Debug, Default)]
pub struct AtomicAccountId(AtomicU16);

impl AtomicAccountId {
    /// Returns a variable with `account`.
    pub const fn new(account: AccountId) -> Self {
        Self(AtomicU16::new(account.0))
    }
    /// The stored number.
    #[inline]
    pub fn load(&self, order: Ordering) -> AccountId {
        AccountId(self.0.load(order))
    }
    /// Stores `account`.
    #[inline]
    pub fn store(&self, account: AccountId, order: Ordering) {
        self.0.store(account.0, order);
    }
    /// Stores `account` and returns the previous one.
    pub fn swap(&self, account: AccountId, order: Ordering) -> AccountId {
        AccountId(self.0.swap(account.0, order))
    }
}
