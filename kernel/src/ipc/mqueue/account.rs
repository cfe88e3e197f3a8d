//! Limits for the number of queues, and for the bytes of a user's queues (RLIMIT_MSGQUEUE).
//!
//! A [`Charge`] is a queue's share of both accounts; dropping it returns the share. As on Linux, a
//! queue is charged for the largest content that it may hold. The charged user is the real user of
//! its creator. The account's lock is the last in the order.

use freehold_collections::Map;

use super::super::limits::{MQ_MSG_DEFAULT, MQ_MSG_MAX, MQ_MSGSIZE_DEFAULT, MQ_MSGSIZE_MAX, MQ_QUEUES_MAX};
use super::state::QueueShape;
use crate::sync::SpinLock;
use crate::task::{Capability, Process, Resource};
use crate::{Errno, Result};

/// Limit for the messages of a queue, even with capabilities (HARD_MSGMAX).
pub const MOST_MESSAGES: u64 = 65_536;
/// Limit for the bytes of a message, even with capabilities (HARD_MSGSIZEMAX).
pub const MOST_BYTES: u64 = 16 << 20;
/// Priorities are below this (MQ_PRIO_MAX).
pub const PRIORITIES: u64 = 32_768;

/// Bytes that Linux needs in addition for each message and for each priority (`struct msg_msg`,
/// `struct posix_msg_tree_node`).
const OVERHEAD: u64 = 48;

struct Accounts {
    queues: u64,
    bytes: Map<u32, u64>,
}

static ACCOUNTS: SpinLock<Accounts> = SpinLock::new(Accounts { queues: 0, bytes: Map::new() });

/// The creator of a queue.
#[derive(Clone, Copy, Debug)]
pub struct Maker {
    /// The real user.
    pub user: u32,
    /// Largest number of bytes of that user's queues together.
    pub most_bytes: u64,
    /// Whether the creator may exceed the administrator's limits (CAP_SYS_RESOURCE).
    pub exceeds_limits: bool,
}

impl Maker {
    /// Returns `process` as a creator.
    pub fn of(process: &Process) -> Self {
        Self {
            user: process.uid(),
            most_bytes: process.soft_limit(Resource::MsgQueue),
            exceeds_limits: process.credentials().may(Capability::SysResource),
        }
    }
}

/// Returns the size of a queue that is created without attributes.
pub fn default_shape() -> QueueShape {
    QueueShape {
        messages: MQ_MSG_DEFAULT.get().min(MQ_MSG_MAX.get()) as usize,
        bytes: MQ_MSGSIZE_DEFAULT.get().min(MQ_MSGSIZE_MAX.get()) as usize,
    }
}

/// Returns the size that `maker` requests (mq_maxmsg, mq_msgsize).
///
/// # Errors
/// `EINVAL` for a size that `maker` may not have.
pub fn shape_of(messages: i64, bytes: i64, maker: &Maker) -> Result<QueueShape> {
    let (most_messages, most_bytes) = if maker.exceeds_limits {
        (MOST_MESSAGES, MOST_BYTES)
    } else {
        (MQ_MSG_MAX.get(), MQ_MSGSIZE_MAX.get())
    };
    let within = |value: i64, most: u64| {
        u64::try_from(value).ok().filter(|value| (1..=most).contains(value)).ok_or(Errno::EINVAL)
    };
    let shape = (within(messages, most_messages)?, within(bytes, most_bytes)?);
    Ok(QueueShape { messages: shape.0 as usize, bytes: shape.1 as usize })
}

/// Returns the bytes that a queue of this shape is charged for.
const fn charged_bytes(shape: QueueShape) -> u64 {
    let messages = shape.messages as u64;
    let priorities = if messages < PRIORITIES { messages } else { PRIORITIES };
    messages * shape.bytes as u64 + (messages + priorities) * OVERHEAD
}

/// See the module.
#[derive(Debug)]
pub struct Charge {
    user: u32,
    bytes: u64,
}

impl Charge {
    /// Charges `maker` for a queue.
    ///
    /// # Errors
    /// `ENOSPC` at the limit for the number of queues; `EMFILE` beyond RLIMIT_MSGQUEUE, `ENOMEM`.
    pub fn new(maker: &Maker, shape: QueueShape) -> Result<Self> {
        let mut accounts = ACCOUNTS.lock();
        if accounts.queues >= MQ_QUEUES_MAX.get() && !maker.exceeds_limits {
            return Err(Errno::ENOSPC);
        }
        let own = accounts.bytes.get(&maker.user).copied().unwrap_or_default();
        let bytes = charged_bytes(shape);
        let sum = own.checked_add(bytes).filter(|&sum| sum <= maker.most_bytes).ok_or(Errno::EMFILE)?;
        accounts.bytes.try_insert(maker.user, sum)?;
        accounts.queues += 1;
        Ok(Self { user: maker.user, bytes })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut accounts = ACCOUNTS.lock();
        accounts.queues -= 1;
        let Some(own) = accounts.bytes.get_mut(&self.user) else { return };
        *own -= self.bytes;
        if *own == 0 {
            accounts.bytes.remove(&self.user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn maker(user: u32, most_bytes: u64) -> Maker {
        Maker { user, most_bytes, exceeds_limits: false }
    }

    #[test]
    fn a_user_has_as_many_bytes_as_the_limit_says_and_gets_them_back() {
        let shape = QueueShape { messages: 10, bytes: 8192 };
        assert_eq!(charged_bytes(shape), 82_880, "as Linux charges");
        let first = Charge::new(&maker(90_001, 2 * 82_880), shape).unwrap();
        let second = Charge::new(&maker(90_001, 2 * 82_880), shape).unwrap();
        assert_eq!(Charge::new(&maker(90_001, 2 * 82_880), shape).err(), Some(Errno::EMFILE));
        assert!(Charge::new(&maker(90_002, 82_880), shape).is_ok(), "another user");
        drop(first);
        assert!(Charge::new(&maker(90_001, 2 * 82_880), shape).is_ok());
        drop(second);
        assert_eq!(ACCOUNTS.lock().bytes.get(&90_001), None);
    }

    #[test]
    fn sizes_are_bounded_for_all_and_more_so_for_most() {
        let few = maker(1, 0);
        let root = Maker { exceeds_limits: true, ..few };
        for (messages, bytes) in [(0, 1), (1, 0), (-1, 1), (1, -1), (65_537, 1), (1, (16 << 20) + 1)] {
            assert_eq!(shape_of(messages, bytes, &root), Err(Errno::EINVAL));
        }
        assert_eq!(shape_of(65_536, 16 << 20, &root), Ok(QueueShape { messages: 65_536, bytes: 16 << 20 }));
        assert_eq!(shape_of(11, 1, &few), Err(Errno::EINVAL));
        assert_eq!(shape_of(10, 8193, &few), Err(Errno::EINVAL));
        assert_eq!(shape_of(10, 8192, &few), Ok(default_shape()));
    }
}
