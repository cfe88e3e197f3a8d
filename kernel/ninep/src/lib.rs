//! Messages of 9P2000.L as bytes: requests of a client, and replies of a server that it does not
//! trust.
//!
//! Every message begins with its size (4 bytes), its type (1) and its tag (2); numbers are
//! little-endian, a text is a length of 2 bytes followed by the text's bytes. A reply's type is its
//! request's plus one, or [`RLERROR`]. (Facts: Plan 9's intro(5), diod's protocol.md, Linux'
//! include/net/9p/9p.h.)
//!
//! **Hostile servers.** Readers take bytes that were copied first, so that the server cannot change
//! them: each value is read once. No index here comes from a server; a value that does not fit is
//! `None`, and no reader allocates.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod reply;
mod request;
#[cfg(test)]
mod tests;

pub use reply::{
    Attributes, DirectoryEntry, Entries, FileSystemStats, Malformed, Outcome, Qid, check, count, link_target,
    opened, qid, version, walked,
};
pub use request::{MAX_REQUEST, NewAttributes, NinepRequest};

/// Bytes before the body of a message.
pub const HEADER: usize = 7;
/// Bytes before the data of Rread and Rreaddir; a reply that is an error is as long.
pub const DATA_HEADER: usize = HEADER + 4;
/// Where a message's tag is.
pub const TAG_AT: usize = 5;
/// Tag of the first message of a session.
pub const NO_TAG: u16 = 0xffff;
/// Type of a reply that is an error.
pub const RLERROR: u8 = 7;
/// Largest number of bytes of a symbolic link's text.
pub const MAX_LINK: usize = 4095;
/// Largest number of bytes of a reply that carries no data: that of a symbolic link's text.
pub const MAX_REPLY: usize = HEADER + 2 + MAX_LINK;
/// The version of the protocol.
pub const VERSION: &[u8] = b"9P2000.L";

/// Type of [`NinepRequest::Version`].
pub const TVERSION: u8 = 100;
/// Type of [`NinepRequest::Flush`].
pub const TFLUSH: u8 = 108;
