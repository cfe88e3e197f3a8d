//! How many objects of System V IPC there may be, and how large: /proc/sys/kernel/{shm*,sem,msg*}.

use core::sync::atomic::{AtomicU64, Ordering};

use super::ids::MOST;
use crate::{Errno, Result};

/// A limit that an administrator can change.
pub struct Limit {
    value: AtomicU64,
    /// The most that it can be set to.
    most: u64,
}

impl Limit {
    const fn new(value: u64, most: u64) -> Self {
        Self { value: AtomicU64::new(value), most }
    }
    /// What it is.
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }
    /// Sets it.
    ///
    /// # Errors
    /// `EINVAL` for more than there can be.
    pub fn set(&self, value: u64) -> Result<()> {
        if value > self.most {
            return Err(Errno::EINVAL);
        }
        self.value.store(value, Ordering::Relaxed);
        Ok(())
    }
}

const INT_MAX: u64 = i32::MAX as u64;

/// Bytes of one segment.
pub static SHMMAX: Limit = Limit::new(u64::MAX - (1 << 24), u64::MAX);
/// Pages of all segments.
pub static SHMALL: Limit = Limit::new(u64::MAX - (1 << 24), u64::MAX);
/// Segments.
pub static SHMMNI: Limit = Limit::new(4096, MOST as u64);
/// Semaphores of one set.
pub static SEMMSL: Limit = Limit::new(32_000, INT_MAX);
/// Semaphores of all sets.
pub static SEMMNS: Limit = Limit::new(1_024_000_000, INT_MAX);
/// Operations of one call.
pub static SEMOPM: Limit = Limit::new(500, INT_MAX);
/// Sets.
pub static SEMMNI: Limit = Limit::new(32_000, MOST as u64);
/// Bytes of one message.
pub static MSGMAX: Limit = Limit::new(8192, INT_MAX);
/// Bytes that a new queue takes.
pub static MSGMNB: Limit = Limit::new(16_384, INT_MAX);
/// Queues.
pub static MSGMNI: Limit = Limit::new(32_000, MOST as u64);
