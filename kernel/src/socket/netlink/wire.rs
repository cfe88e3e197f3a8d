//! Messages of netlink(7) as bytes: reading them as hostile input, and writing them.
//!
//! No length leads to a read beyond the bytes that were sent: a message or an attribute with an
//! impossible length ends the list.

use freehold_collections::Vec;

use crate::Result;

/// Bytes of a message's header.
pub const HEADER_BYTES: usize = 16;
/// Bytes of an attribute's header.
const ATTRIBUTE_BYTES: usize = 4;
/// The bits of an attribute's type that are not flags.
const TYPE_MASK: u16 = 0x3fff;

/// NLM_F_*.
pub mod flag {
    /// The message is a request.
    pub const REQUEST: u16 = 1;
    /// The message is one of several.
    pub const MULTI: u16 = 2;
    /// An answer is requested even on success.
    pub const ACK: u16 = 4;
    /// All entries are requested (NLM_F_ROOT and NLM_F_MATCH).
    pub const DUMP: u16 = 0x300;
    /// In an answer: entries were left out, as requested.
    pub const FILTERED: u16 = 0x20;
    /// In an error: the request is not repeated in full.
    pub const CAPPED: u16 = 0x100;
}

/// Message types that netlink itself defines.
pub mod kind {
    /// An error, or none.
    pub const ERROR: u16 = 2;
    /// The end of several messages.
    pub const DONE: u16 = 3;
    /// The first type that a protocol of netlink can define.
    pub const FIRST: u16 = 16;
}

/// Reads a 2-byte number at `at`.
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes))
}

/// Reads a 4-byte number at `at`.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

const fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

/// Splits the first `length` bytes off `rest`, and also removes their padding.
fn split<'a>(rest: &mut &'a [u8], length: usize, least: usize) -> Option<&'a [u8]> {
    let found = rest.get(..length).filter(|found| found.len() >= least);
    *rest = found.and_then(|_| rest.get(aligned(length)..)).unwrap_or_default();
    found
}

/// One message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetlinkMessage<'a> {
    /// The type of the message.
    pub kind: u16,
    /// [`flag`]s.
    pub flags: u16,
    /// The sender's sequence number of the message.
    pub sequence: u32,
    /// The whole message; at least a header.
    pub whole: &'a [u8],
}

impl<'a> NetlinkMessage<'a> {
    /// Returns the bytes after the header.
    pub fn body(&self) -> &'a [u8] {
        &self.whole[HEADER_BYTES..]
    }

    /// Returns the attributes after the first `skipped` bytes of the body.
    pub fn attributes(&self, skipped: usize) -> Attributes<'a> {
        Attributes(self.body().get(aligned(skipped)..).unwrap_or_default())
    }
}

/// The messages in a send.
pub struct Messages<'a>(pub &'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = NetlinkMessage<'a>;

    fn next(&mut self) -> Option<NetlinkMessage<'a>> {
        let length = u32_at(self.0, 0)?;
        let whole = split(&mut self.0, usize::try_from(length).ok()?, HEADER_BYTES)?;
        Some(NetlinkMessage {
            kind: u16_at(whole, 4)?,
            flags: u16_at(whole, 6)?,
            sequence: u32_at(whole, 8)?,
            whole,
        })
    }
}

/// Attributes: types and values.
pub struct Attributes<'a>(pub &'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<(u16, &'a [u8])> {
        let (length, kind) = (u16_at(self.0, 0)?, u16_at(self.0, 2)?);
        let whole = split(&mut self.0, length.into(), ATTRIBUTE_BYTES)?;
        Some((kind & TYPE_MASK, &whole[ATTRIBUTE_BYTES..]))
    }
}

/// Header fields of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Replied {
    /// The request's number.
    pub sequence: u32,
    /// The port of the requester.
    pub port: u32,
    /// [`flag`]s.
    pub flags: u16,
}

/// Messages being written. If memory runs out, [`Self::finish`] returns the error.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
    failed: bool,
}

impl Writer {
    /// Makes an empty writer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of bytes so far.
    pub fn length(&self) -> usize {
        self.bytes.len()
    }

    /// Adds bytes, and zeroes up to a multiple of 4.
    pub fn put(&mut self, bytes: &[u8]) {
        self.failed |= self.bytes.try_extend_from_slice(bytes).is_err();
        let missing = aligned(self.bytes.len()) - self.bytes.len();
        self.failed |= self.bytes.try_extend_from_slice(&[0; 3][..missing]).is_err();
    }

    /// Adds two numbers of 2 bytes.
    fn pair(&mut self, one: u16, other: u16) {
        let ([a, b], [c, d]) = (one.to_ne_bytes(), other.to_ne_bytes());
        self.put(&[a, b, c, d]);
    }

    /// Adds a message. `write` adds its body.
    pub fn message(&mut self, kind: u16, to: Replied, write: impl FnOnce(&mut Self)) {
        let start = self.length();
        self.put(&[0; 4]);
        self.pair(kind, to.flags);
        self.put(&to.sequence.to_ne_bytes());
        self.put(&to.port.to_ne_bytes());
        write(self);
        let length = (self.length() - start) as u32;
        if let Some(place) = self.bytes.get_mut(start..start + 4) {
            place.copy_from_slice(&length.to_ne_bytes());
        }
    }

    /// Adds an attribute.
    pub fn attribute(&mut self, kind: u16, value: &[u8]) {
        self.attribute_of(kind, &[value]);
    }

    /// Adds an attribute. Its value is the concatenation of `parts`.
    pub fn attribute_of(&mut self, kind: u16, parts: &[&[u8]]) {
        let length = parts.iter().map(|part| part.len()).sum::<usize>() + ATTRIBUTE_BYTES;
        self.pair(length as u16, kind);
        for part in parts {
            self.failed |= self.bytes.try_extend_from_slice(part).is_err();
        }
        self.put(&[]);
    }

    /// Adds an attribute with a number as its value.
    pub fn number(&mut self, kind: u16, value: u32) {
        self.attribute(kind, &value.to_ne_bytes());
    }

    /// Returns all messages.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn finish(self) -> Result<Vec<u8>> {
        if self.failed { Err(crate::Errno::ENOMEM) } else { Ok(self.bytes) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::vec::Vec as Model;

    use super::*;

    /// Each message lies at its position in the sent bytes, after the previous one.
    fn check_places(bytes: &[u8]) {
        let range = bytes.as_ptr_range();
        let mut last = range.start;
        for message in Messages(bytes).take(10_000) {
            let own = message.whole.as_ptr_range();
            assert!(own.start >= last && own.end <= range.end && message.whole.len() >= HEADER_BYTES);
            last = own.end;
            for skipped in [0, 1, 8, 16, usize::MAX - 7] {
                let mut before = own.start;
                for (kind, value) in message.attributes(skipped) {
                    let place = value.as_ptr_range();
                    assert!(place.start > before && place.end <= own.end && kind <= TYPE_MASK);
                    before = place.start;
                }
            }
        }
    }

    proptest! {
        #[test]
        fn no_bytes_lead_beyond_themselves(bytes: Model<u8>) {
            check_places(&bytes);
        }

        /// Lengths that are almost right, in messages and in attributes.
        #[test]
        fn no_lengths_lead_beyond_what_was_sent(
            lengths in prop::collection::vec((0..70_u32, 0..40_u16), 1..8),
            cut in 0..300_usize,
        ) {
            let mut bytes = Model::new();
            for (length, inner) in lengths {
                let at = bytes.len();
                bytes.extend(length.to_ne_bytes());
                bytes.resize(at + HEADER_BYTES, 0xff);
                bytes.extend(inner.to_ne_bytes());
                bytes.resize(at + 40, 1);
            }
            bytes.truncate(cut);
            check_places(&bytes);
        }

        #[test]
        fn what_is_written_is_read_again(
            messages in prop::collection::vec(
                (any::<u16>(), any::<u32>(), prop::collection::vec((0..TYPE_MASK, any::<Model<u8>>()), 0..5)),
                0..5,
            ),
        ) {
            let mut out = Writer::new();
            for (kind, sequence, attributes) in &messages {
                let to = Replied { sequence: *sequence, port: 7, flags: 3 };
                out.message(*kind, to, |out| {
                    out.put(&[1; 8]);
                    attributes.iter().for_each(|(kind, value)| out.attribute(*kind, value));
                });
            }
            let bytes = out.finish().unwrap();
            let read: Model<_> = Messages(&bytes)
                .map(|message| {
                    let attributes: Model<_> = message.attributes(7).map(|(kind, value)| (kind, Model::from(value))).collect();
                    (message.kind, message.sequence, attributes)
                })
                .collect();
            prop_assert_eq!(read, messages);
        }
    }
}
