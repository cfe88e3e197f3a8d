//! Sends of UDP that are a part of a datagram, or several datagrams ([`cork`](super::cork)), and
//! the options for them.
//!
//! Sources: udp(7), `udp_sendmsg`, `udp_send_skb` and `udp_lib_setsockopt` in net/ipv4/udp.c.

use core::sync::atomic::Ordering;

use freehold_collections::Receiver;

use super::address::inet::InetAddress;
use super::beside::wishes::{Follows, SEGMENT, UDP, Wishes};
use super::channel::Ancillary;
use super::cork::{Begun, MOST_DATAGRAM_BYTES};
use super::endpoint::{Socket, SocketKind};
use crate::fs::bytes::SliceSource;
use crate::user::{Source, UserPtr, read_all};
use crate::{Errno, Result, sched};

/// UDP_CORK.
const CORK: u32 = 1;
/// Largest number of datagrams of one send (UDP_MAX_SEGMENTS).
const MOST_SEGMENTS: usize = 128;
/// Bytes of the headers of a datagram: UDP's and IP's, by version.
const HEADERS: [usize; 2] = [28, 48];

impl Socket {
    pub(super) fn is_udp(&self) -> bool {
        self.family().is_ip() && self.kind() == SocketKind::Datagram && self.raw.is_none()
    }

    /// Sends a part of a datagram, or several datagrams. `first` determines the destination of a
    /// datagram that begins.
    ///
    /// # Errors
    /// As [`Socket::send_datagram`]; `EINVAL` for segments that are too long or too many.
    #[cold]
    pub(super) fn send_corked(
        self: &Receiver<Self>,
        source: &mut dyn Source,
        first: impl FnOnce() -> Result<InetAddress>,
        wishes: Option<&Wishes>,
    ) -> Result<usize> {
        let length = source.remaining();
        let bytes = if length > MOST_DATAGRAM_BYTES { Err(Errno::EMSGSIZE) } else { read_all(source) };
        let bytes = bytes.inspect_err(|_| drop(self.cork.take()))?;
        let begin = |bytes| {
            let InetAddress { ip, port } = first()?;
            Ok(Begun { bytes, to: (ip, port), wishes: wishes.copied() })
        };
        let follows = wishes.map_or(Follows::Nothing, |wishes| wishes.follows);
        if let Some(datagram) = self.cork.add(bytes, begin, follows)? {
            self.send_begun(&datagram)?;
        }
        Ok(length)
    }

    /// Sends a datagram, or the datagrams that it consists of.
    fn send_begun(self: &Receiver<Self>, datagram: &Begun) -> Result<()> {
        let (bytes, wishes) = (&datagram.bytes[..], datagram.wishes.as_ref());
        let (ip, port) = datagram.to;
        let to = InetAddress { ip, port };
        let own = self.cork.segment.load(Ordering::Relaxed);
        let segment = usize::from(wishes.and_then(|wishes| wishes.segment).unwrap_or(own));
        let send = |bytes: &[u8]| {
            let source = &mut SliceSource::new(bytes);
            self.send_one_datagram(source, Ancillary::default(), to, wishes).map(|_| ())
        };
        if segment == 0 {
            return send(bytes);
        }
        let is_too_long =
            HEADERS[usize::from(!to.is_v4())] + segment > self.network().loopback_mtu() as usize;
        if is_too_long || bytes.len() > segment * MOST_SEGMENTS {
            return Err(Errno::EINVAL);
        }
        if bytes.is_empty() {
            return send(bytes);
        }
        for part in bytes.chunks(segment) {
            send(part)?;
            sched::checkpoint()?;
        }
        Ok(())
    }

    /// setsockopt(2) of IPPROTO_UDP. Returns whether the option is one of these.
    ///
    /// # Errors
    /// `EINVAL` for an invalid value, `EFAULT`.
    pub fn set_udp_option(
        self: &Receiver<Self>,
        (level, name): (u32, u32),
        value: u64,
        length: usize,
    ) -> Result<bool> {
        if level != UDP || !self.is_udp() || ![CORK, SEGMENT].contains(&name) {
            return Ok(false);
        }
        if length < size_of::<i32>() {
            return Err(Errno::EINVAL);
        }
        let value = UserPtr::<i32>::new(value).read()?;
        if name == SEGMENT {
            let segment = u16::try_from(value).map_err(|_| Errno::EINVAL)?;
            self.cork.segment.store(segment, Ordering::Relaxed);
            return Ok(true);
        }
        self.cork.is_set.store(value != 0, Ordering::Relaxed);
        if value == 0
            && let Some(datagram) = self.cork.take()
        {
            // As on Linux, the option is set even if the datagram cannot be sent.
            let _ = self.send_begun(&datagram);
        }
        Ok(true)
    }

    /// Returns the value of an option of IPPROTO_UDP, if it is one of these.
    pub(super) fn udp_option(&self, name: u32) -> Option<i32> {
        match name {
            CORK => Some(i32::from(self.cork.is_set.load(Ordering::Relaxed))),
            SEGMENT => Some(self.cork.segment.load(Ordering::Relaxed).into()),
            _ => None,
        }
    }
}
