//! Limits for the number of a namespace's queues, and for the bytes of a user's queues in all
//! namespaces (RLIMIT_MSGQUEUE).
//!
//! A [`Charge`] is a queue's share of both accounts; dropping it returns the share. As on Linux, a
//! queue is charged for the largest content that it may hold. The charged user is the real user of
//! its creator. The account's lock is the last in the order.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_collections::{Arc, Map};

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

/// Bytes of each user's queues. The lock also orders changes of the namespaces' counts.
static BYTES: SpinLock<Map<u32, u64>> = SpinLock::new(Map::new());

/// Number of queues of a namespace.
#[derive(Debug, Default)]
pub struct QueueCount(AtomicU64);

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
    queues: Arc<QueueCount>,
    user: u32,
    bytes: u64,
}

impl Charge {
    /// Charges `maker` for a queue of the namespace that `queues` counts for.
    ///
    /// # Errors
    /// `ENOSPC` at the limit for the number of queues; `EMFILE` beyond RLIMIT_MSGQUEUE, `ENOMEM`.
    pub fn new(maker: &Maker, shape: QueueShape, queues: &Arc<QueueCount>) -> Result<Self> {
        let mut users = BYTES.lock();
        if queues.0.load(Ordering::Relaxed) >= MQ_QUEUES_MAX.get() && !maker.exceeds_limits {
            return Err(Errno::ENOSPC);
        }
        let own = users.get(&maker.user).copied().unwrap_or_default();
        let bytes = charged_bytes(shape);
        let sum = own.checked_add(bytes).filter(|&sum| sum <= maker.most_bytes).ok_or(Errno::EMFILE)?;
        users.try_insert(maker.user, sum)?;
        queues.0.fetch_add(1, Ordering::Relaxed);
        Ok(Self { queues: queues.clone(), user: maker.user, bytes })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut users = BYTES.lock();
        self.queues.0.fetch_sub(1, Ordering::Relaxed);
        let Some(own) = users.get_mut(&self.user) else { return };
        *own -= self.bytes;
        if *own == 0 {
            users.remove(&self.user);
        }
    }
}

#[cfg(test)]
mod tests {
    use freehold_collections::reserve;

    use super::*;

    fn maker(user: u32, most_bytes: u64) -> Maker {
        Maker { user, most_bytes, exceeds_limits: false }
    }

    #[test]
    fn a_user_has_as_many_bytes_as_the_limit_says_and_gets_them_back() {
        let shape = QueueShape { messages: 10, bytes: 8192 };
        assert_eq!(charged_bytes(shape), 82_880, "as Linux charges");
        let (here, there) = (reserve::arc(QueueCount::default()), reserve::arc(QueueCount::default()));
        let charge = |user, most, queues| Charge::new(&maker(user, most), shape, queues);
        let first = charge(90_001, 2 * 82_880, &here).unwrap();
        let second = charge(90_001, 2 * 82_880, &there).unwrap();
        assert_eq!(charge(90_001, 2 * 82_880, &here).err(), Some(Errno::EMFILE));
        assert!(charge(90_002, 82_880, &here).is_ok(), "another user");
        drop(first);
        assert!(charge(90_001, 2 * 82_880, &here).is_ok());
        drop(second);
        assert_eq!(BYTES.lock().get(&90_001), None);
    }

    #[test]
    fn a_namespace_with_all_its_queues_leaves_others_theirs() {
        let shape = QueueShape { messages: 1, bytes: 1 };
        let (here, there) = (reserve::arc(QueueCount::default()), reserve::arc(QueueCount::default()));
        let charge = |queues| Charge::new(&maker(90_003, u64::MAX), shape, queues);
        let all: std::vec::Vec<_> = (0..MQ_QUEUES_MAX.get()).map(|_| charge(&here).unwrap()).collect();
        assert_eq!(charge(&here).err(), Some(Errno::ENOSPC));
        assert!(charge(&there).is_ok());
        drop(all);
        assert!(charge(&here).is_ok(), "they are given back");
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
