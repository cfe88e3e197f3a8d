//! How many objects of System V IPC there may be, and how large: /proc/sys/kernel/{shm*,sem,msg*}.

use core::sync::atomic::{AtomicU64, Ordering};

use super::ids::MOST;
use super::mqueue::account::{MOST_BYTES, MOST_MESSAGES};
use crate::{Errno, Result};

/// A limit that an administrator can change.
pub struct Limit {
    value: AtomicU64,
    /// The least that it can be set to.
    least: u64,
    /// The most.
    most: u64,
}

impl Limit {
    const fn new(value: u64, most: u64) -> Self {
        Self::between(value, 0, most)
    }
    const fn between(value: u64, least: u64, most: u64) -> Self {
        Self { value: AtomicU64::new(value), least, most }
    }
    /// Returns the limit.
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }
    /// Sets it.
    ///
    /// # Errors
    /// `EINVAL` for less or more than there can be.
    pub fn set(&self, value: u64) -> Result<()> {
        if !(self.least..=self.most).contains(&value) {
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

/// Queues of POSIX, but for makers with CAP_SYS_RESOURCE.
pub static MQ_QUEUES_MAX: Limit = Limit::new(256, INT_MAX);
/// Messages of one of them, for the same makers.
pub static MQ_MSG_MAX: Limit = Limit::between(10, 1, MOST_MESSAGES);
/// Bytes of one of its messages.
pub static MQ_MSGSIZE_MAX: Limit = Limit::between(8192, 128, MOST_BYTES);
/// Messages of one for which none were asked.
pub static MQ_MSG_DEFAULT: Limit = Limit::between(10, 1, MOST_MESSAGES);
/// Bytes of one of its messages.
pub static MQ_MSGSIZE_DEFAULT: Limit = Limit::between(8192, 128, MOST_BYTES);
