//! Where the bytes of a send go, and what happens if the other end is gone.

use freehold_collections::Arc;

use super::ending::note_reset;
use super::{Address, Ancillary, Channel, Credentials, Family, Patience, Socket, SocketKind};
use crate::socket::memory::BUFFER_BYTES;
use crate::socket::message::PassCredentials;
use crate::sync::News;
use crate::user::{Source, take_all};
use crate::{Errno, Result};

impl Socket {
    pub(in crate::socket) fn is_tcp(&self) -> bool {
        self.family.is_ip() && self.kind == SocketKind::Stream
    }

    /// Sends bytes over a TCP connection into `out`. As on Linux, the first bytes after the peer's
    /// end are accepted; the peer answers them with a reset.
    ///
    /// # Errors
    /// As [`Channel::send_stream`]; `ECONNRESET` if the connection was reset in the meantime.
    pub(super) fn send_tcp(
        &self,
        out: &Arc<Channel>,
        source: &mut dyn Source,
        ancillary: Ancillary,
        patience: Patience,
    ) -> Result<usize> {
        if self.channel.has_failed() {
            return Err(Errno::EPIPE);
        }
        match out.send_stream(source, ancillary, patience) {
            Err(Errno::EPIPE) => self.send_in_vain(out, source),
            sent => sent,
        }
    }

    #[cold]
    fn send_in_vain(&self, out: &Channel, source: &mut dyn Source) -> Result<usize> {
        if self.channel.has_failed() {
            return Err(self.channel.take_error().unwrap_or(Errno::EPIPE));
        }
        let length = source.remaining().min(BUFFER_BYTES);
        let count = take_all(source, length)?;
        let reset = |channel: &Channel| {
            note_reset(channel, self.family);
            channel.close_sender(Some(News::Error));
        };
        // A peer that has shut down both directions, and still exists, resets its own end as well.
        if out.is_unread() {
            reset(out);
        }
        reset(&self.channel);
        Ok(count)
    }

    /// Names the senders of bytes that arrive before accept(2), as Linux does.
    pub(super) fn name_early_senders(&self) {
        self.channel.name_senders(PassCredentials::Yes);
    }

    /// Adds the caller's credentials to a message into `channel`, unless it carries some or neither
    /// end has requested them (SO_PASSCRED).
    pub(super) fn sign(&self, ancillary: &mut Ancillary, channel: &Channel) {
        let wants = |channel: &Channel| channel.names_senders() == PassCredentials::Yes;
        if ancillary.credentials == Credentials::NOBODY && (wants(channel) || wants(&self.channel)) {
            ancillary.credentials = Credentials::current();
        }
    }

    /// Returns the channel that a send goes into.
    pub(super) fn destination(&self, to: Option<&Address>) -> Result<Arc<Channel>> {
        let peer = self.state.lock().peer.as_ref().map(|peer| peer.channel.clone());
        match (self.kind, to, peer) {
            (_, None, Some(channel)) => Ok(channel),
            // TCP ignores the address.
            (_, _, peer) if self.family != Family::Unix => peer.ok_or(Errno::EPIPE),
            (SocketKind::Datagram, Some(to), _) => {
                let target = to.find(&self.network)?;
                if target.kind != SocketKind::Datagram {
                    return Err(Errno::EPROTOTYPE);
                }
                Ok(target.channel.clone())
            }
            (SocketKind::Datagram, None, None) => Err(Errno::ENOTCONN),
            (_, Some(_), Some(_)) => Err(Errno::EISCONN),
            (_, Some(_), None) => Err(Errno::EOPNOTSUPP),
            (_, None, None) => Err(Errno::ENOTCONN),
        }
    }
}
