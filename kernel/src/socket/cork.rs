//! UDP datagrams that consist of several sends (UDP_CORK, MSG_MORE), and sends that consist of
//! several datagrams (UDP_SEGMENT).
//!
//! The first send of a begun datagram determines its destination, as on Linux. A socket keeps at
//! most one begun datagram, of at most 65,507 bytes. A failed send drops it, and so does the end of
//! the socket.
//!
//! **Locks.** A socket's begun datagram is taken with no other lock held. No program's memory is
//! accessed under it.
//!
//! [`corked`](super::corked) sends them.
//!
//! Source: udp(7), `udp_sendmsg` in net/ipv4/udp.c.

use core::net::Ipv6Addr;
use core::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use freehold_collections::{Box, Vec, reserve};

use super::beside::wishes::{Follows, Wishes};
use crate::sync::Mutex;
use crate::{Errno, Result};

/// Bytes of the longest datagram: an IP packet of 65,535 bytes without both headers.
pub(super) const MOST_DATAGRAM_BYTES: usize = 65_507;

/// A datagram that is not sent yet.
pub(super) struct Begun {
    pub(super) bytes: Vec<u8>,
    /// The destination's address and port.
    pub(super) to: (Ipv6Addr, u16),
    pub(super) wishes: Option<Wishes>,
}

/// A UDP socket's settings, and its begun datagram.
pub(super) struct Cork {
    /// UDP_CORK.
    pub(super) is_set: AtomicBool,
    /// UDP_SEGMENT: bytes of each datagram; 0 for one datagram per send.
    pub(super) segment: AtomicU16,
    has_begun: AtomicBool,
    begun: Mutex<Option<Box<Begun>>>,
}

impl Cork {
    pub(super) const fn new() -> Self {
        Self {
            is_set: AtomicBool::new(false),
            segment: AtomicU16::new(0),
            has_begun: AtomicBool::new(false),
            begun: Mutex::new(None),
        }
    }

    /// Whether a send with these requests is more or less than one datagram.
    #[inline]
    pub(super) fn concerns(&self, wishes: Option<&Wishes>) -> bool {
        self.is_set.load(Ordering::Relaxed)
            || self.has_begun.load(Ordering::Relaxed)
            || self.segment.load(Ordering::Relaxed) != 0
            || wishes.is_some_and(|wishes| wishes.segment.is_some() || wishes.follows == Follows::More)
    }

    /// Takes the begun datagram, if there is one.
    pub(super) fn take(&self) -> Option<Box<Begun>> {
        let mut begun = self.begun.lock();
        self.has_begun.store(false, Ordering::Relaxed);
        begun.take()
    }

    /// Adds `bytes` to the begun datagram, or begins one with what `first` returns. Returns the
    /// datagram if it is complete.
    pub(super) fn add(
        &self,
        bytes: Vec<u8>,
        first: impl FnOnce(Vec<u8>) -> Result<Begun>,
        follows: Follows,
    ) -> Result<Option<Box<Begun>>> {
        let mut begun = self.begun.lock();
        let mut datagram = match begun.take() {
            Some(mut datagram) => {
                self.has_begun.store(false, Ordering::Relaxed);
                datagram.bytes.try_extend_from_slice(&bytes)?;
                datagram
            }
            None => reserve::boxed(first(bytes)?),
        };
        if datagram.bytes.len() > MOST_DATAGRAM_BYTES {
            return Err(Errno::EMSGSIZE);
        }
        if follows == Follows::Nothing && !self.is_set.load(Ordering::Relaxed) {
            return Ok(Some(datagram));
        }
        let segment = self.segment.load(Ordering::Relaxed);
        // As on Linux, the first send determines the size of the segments.
        datagram.wishes.get_or_insert_default().segment.get_or_insert(segment);
        *begun = Some(datagram);
        self.has_begun.store(true, Ordering::Relaxed);
        Ok(None)
    }
}
