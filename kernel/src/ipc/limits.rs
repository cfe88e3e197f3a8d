//! Limits for the number and the size of System V IPC objects: /proc/sys/kernel/{shm*,sem,msg*}.

use core::sync::atomic::{AtomicU64, Ordering};

use super::ids::MOST;
use super::mqueue::account::{MOST_BYTES, MOST_MESSAGES};
use crate::{Errno, Result};

/// A limit that an administrator can change.
pub struct Limit {
    value: AtomicU64,
    /// The lowest value that it can be set to.
    least: u64,
    /// The highest value that it can be set to.
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
    /// Sets the limit.
    ///
    /// # Errors
    /// `EINVAL` for a value outside the permitted range.
    pub fn set(&self, value: u64) -> Result<()> {
        if !(self.least..=self.most).contains(&value) {
            return Err(Errno::EINVAL);
        }
        self.value.store(value, Ordering::Relaxed);
        Ok(())
    }
}

const INT_MAX: u64 = i32::MAX as u64;

/// Largest size of a segment, in bytes.
pub static SHMMAX: Limit = Limit::new(u64::MAX - (1 << 24), u64::MAX);
/// Largest number of pages of all segments.
pub static SHMALL: Limit = Limit::new(u64::MAX - (1 << 24), u64::MAX);
/// Largest number of segments.
pub static SHMMNI: Limit = Limit::new(4096, MOST as u64);
/// The group whose members may make segments of huge pages.
pub static HUGE_GROUP: Limit = Limit::new(0, INT_MAX);
/// Largest number of semaphores in a set.
pub static SEMMSL: Limit = Limit::new(32_000, INT_MAX);
/// Largest number of semaphores in all sets.
pub static SEMMNS: Limit = Limit::new(1_024_000_000, INT_MAX);
/// Largest number of operations in a call.
pub static SEMOPM: Limit = Limit::new(500, INT_MAX);
/// Largest number of sets.
pub static SEMMNI: Limit = Limit::new(32_000, MOST as u64);
/// Largest size of a message, in bytes.
pub static MSGMAX: Limit = Limit::new(8192, INT_MAX);
/// Bytes that a new queue can hold.
pub static MSGMNB: Limit = Limit::new(16_384, INT_MAX);
/// Largest number of queues.
pub static MSGMNI: Limit = Limit::new(32_000, MOST as u64);

/// Largest number of POSIX queues. Creators with CAP_SYS_RESOURCE may exceed it.
pub static MQ_QUEUES_MAX: Limit = Limit::new(256, INT_MAX);
/// Largest number of messages in a POSIX queue. Creators with CAP_SYS_RESOURCE may exceed it.
pub static MQ_MSG_MAX: Limit = Limit::between(10, 1, MOST_MESSAGES);
/// Largest size of a message in a POSIX queue, in bytes. CAP_SYS_RESOURCE may exceed it.
pub static MQ_MSGSIZE_MAX: Limit = Limit::between(8192, 128, MOST_BYTES);
/// Number of messages of a POSIX queue that is created without attributes.
pub static MQ_MSG_DEFAULT: Limit = Limit::between(10, 1, MOST_MESSAGES);
/// Message size in bytes of a POSIX queue that is created without attributes.
pub static MQ_MSGSIZE_DEFAULT: Limit = Limit::between(8192, 128, MOST_BYTES);
