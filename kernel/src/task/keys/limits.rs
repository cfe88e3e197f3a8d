//! The quotas of keys (kernel.keys.*). Root has more.

use core::sync::atomic::{AtomicU64, Ordering};

/// A limit as a setting.
pub struct KeyQuota(AtomicU64);

impl KeyQuota {
    /// Returns the limit.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    /// Sets the limit.
    pub fn set(&self, most: u64) {
        self.0.store(most, Ordering::Relaxed);
    }
}

/// Keys of a user.
pub static MAX_KEYS: KeyQuota = KeyQuota(AtomicU64::new(200));
/// Bytes of a user's descriptions and payloads.
pub static MAX_BYTES: KeyQuota = KeyQuota(AtomicU64::new(20_000));
/// Keys of root.
pub static ROOT_MAX_KEYS: KeyQuota = KeyQuota(AtomicU64::new(1_000_000));
/// Bytes of root.
pub static ROOT_MAX_BYTES: KeyQuota = KeyQuota(AtomicU64::new(25_000_000));

/// Returns how many keys and bytes a user may have.
pub fn of(user: u32) -> (u64, u64) {
    match user {
        0 => (ROOT_MAX_KEYS.get(), ROOT_MAX_BYTES.get()),
        _ => (MAX_KEYS.get(), MAX_BYTES.get()),
    }
}
