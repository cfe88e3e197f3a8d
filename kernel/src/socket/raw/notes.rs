//! Notes that travel before the bytes of a packet in a channel, so that messages of other sockets
//! are no longer for them.

use core::net::Ipv6Addr;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::Result;
use crate::user::Sink;

/// Facts about a packet that a receiver may ask for beside its bytes. Every byte is set.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Notes {
    /// Its sender and its receiver; addresses of version 4 are mapped ones.
    pub from: [u8; 16],
    /// See above.
    pub to: [u8; 16],
    /// When it came, in nanoseconds since 1970.
    pub time: i64,
    /// The interface that it came by.
    pub interface: u32,
    /// Time to live, or the hop limit.
    pub ttl: u8,
    /// Type of service, or the traffic class.
    pub tos: u8,
    /// Zeros.
    pub padding: [u8; 2],
}

impl Notes {
    /// Bytes of them.
    pub const BYTES: usize = size_of::<Self>();

    /// The sender.
    pub fn sender(&self) -> Ipv6Addr {
        Ipv6Addr::from(self.from)
    }
}

/// Takes the notes from the front of a message, and hands on the rest.
pub(super) struct NotesSink<'a> {
    notes: [u8; Notes::BYTES],
    filled: usize,
    rest: &'a mut dyn Sink,
}

impl<'a> NotesSink<'a> {
    pub(super) fn new(rest: &'a mut dyn Sink) -> Self {
        Self { notes: [0; Notes::BYTES], filled: 0, rest }
    }

    /// The notes, if a message came.
    pub(super) fn notes(&self) -> Option<Notes> {
        (self.filled == Notes::BYTES)
            .then(|| Notes::read_from_bytes(&self.notes).unwrap_or_else(|_| Notes::new_zeroed()))
    }
}

impl Sink for NotesSink<'_> {
    fn remaining(&self) -> usize {
        (Notes::BYTES - self.filled).saturating_add(self.rest.remaining())
    }

    fn put_without_fault(&mut self, bytes: &[u8]) -> usize {
        let own = bytes.len().min(Notes::BYTES - self.filled);
        self.notes[self.filled..self.filled + own].copy_from_slice(&bytes[..own]);
        self.filled += own;
        if bytes.len() > own { own + self.rest.put_without_fault(&bytes[own..]) } else { own }
    }

    fn fault_in(&mut self) -> Result<()> {
        if self.filled < Notes::BYTES { Ok(()) } else { self.rest.fault_in() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::bytes::SliceSink;

    #[test]
    fn notes_are_taken_off_whatever_the_parts_are() {
        let notes = Notes { time: 7, ttl: 64, interface: 3, ..Notes::default() };
        let message = [notes.as_bytes(), b"bytes"].concat();
        for part in 1..=message.len() {
            let mut room = [0; 9];
            let mut inner = SliceSink::new(&mut room);
            let mut sink = NotesSink::new(&mut inner);
            for piece in message.chunks(part) {
                assert_eq!(sink.put_without_fault(piece), piece.len());
            }
            assert_eq!((sink.notes(), sink.remaining()), (Some(notes), 4));
            assert_eq!(&room[..5], b"bytes");
        }
    }
}
