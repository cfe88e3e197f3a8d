//! Kinds of keys, and their payloads.

use freehold_collections::{Arc, Map, Vec};

use super::store::Serial;
use crate::{Errno, Result};

/// The description of a key: up to 4095 bytes.
pub type Description = Arc<Vec<u8>>;
/// A key's kind and description, by which a keyring links it.
pub type KeyName = (KeyKind, Description);

/// The kind of a key. Keyrings are the first in the order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum KeyKind {
    /// A keyring: it links other keys.
    Keyring,
    /// Bytes that programs can read.
    User,
    /// Bytes that no program can read.
    Logon,
    /// Up to a megabyte that programs can read.
    BigKey,
}

/// The longest payload of each kind but [`KeyKind::BigKey`].
const MAX_BYTES: usize = 32767;

impl KeyKind {
    /// The kinds that programs can make.
    pub const ALL: [Self; 4] = [Self::Keyring, Self::User, Self::Logon, Self::BigKey];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Keyring => "keyring",
            Self::User => "user",
            Self::Logon => "logon",
            Self::BigKey => "big_key",
        }
    }
    /// Returns the kind with a name.
    ///
    /// # Errors
    /// `ENODEV`.
    pub fn by_name(name: &[u8]) -> Result<Self> {
        Self::ALL.into_iter().find(|kind| kind.name().as_bytes() == name).ok_or(Errno::ENODEV)
    }
    /// Whether programs can read its payload.
    pub const fn is_readable(self) -> bool {
        !matches!(self, Self::Logon)
    }
    /// Whether its payload can be replaced.
    pub const fn is_updatable(self) -> bool {
        !matches!(self, Self::Keyring)
    }
    /// Checks the payload and the description of a new key.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn check(self, description: &[u8], payload: &[u8]) -> Result<()> {
        let is_valid = match self {
            Self::Keyring => payload.is_empty(),
            Self::User => (1..=MAX_BYTES).contains(&payload.len()),
            // "service:name"
            Self::Logon => {
                (1..=MAX_BYTES).contains(&payload.len())
                    && description.iter().position(|&byte| byte == b':').is_some_and(|at| at > 0)
            }
            Self::BigKey => !payload.is_empty(),
        };
        if is_valid { Ok(()) } else { Err(Errno::EINVAL) }
    }
}

/// The content of a key.
pub enum Payload {
    /// Bytes.
    Bytes(Vec<u8>),
    /// The keys that a keyring links, by kind and description.
    Links(Map<KeyName, Serial>),
}

impl Payload {
    /// No bytes.
    pub const fn empty() -> Self {
        Self::Bytes(Vec::new())
    }
    /// No links.
    pub const fn no_links() -> Self {
        Self::Links(Map::new())
    }
    /// Bytes of quota, links left out.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Links(_) => 0,
        }
    }
    /// Returns the links.
    ///
    /// # Panics
    /// If this is no keyring's.
    pub fn links(&self) -> &Map<KeyName, Serial> {
        match self {
            Self::Links(links) => links,
            Self::Bytes(_) => panic!("only a keyring's links are asked for"),
        }
    }
    /// As [`links`](Self::links), to be changed.
    ///
    /// # Panics
    /// If this is no keyring's.
    pub fn links_mut(&mut self) -> &mut Map<KeyName, Serial> {
        match self {
            Self::Links(links) => links,
            Self::Bytes(_) => panic!("only a keyring's links are asked for"),
        }
    }
    /// Removes a link; `None` if there is none.
    pub fn pop_link(&mut self) -> Option<Serial> {
        match self {
            Self::Links(links) => links.pop_first().map(|(_, serial)| serial),
            Self::Bytes(_) => None,
        }
    }
}
