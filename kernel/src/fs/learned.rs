//! Names that programs looked up and found, for `freehold run --learn`.
//!
//! Each different name is kept until the program has ended, as an absolute path from the machine's
//! first root: of the files that were opened and run, of those that were only inspected, and of the
//! directories and symbolic links on the way. Generated files and places outside of that root are
//! left out. Names beyond [`MOST`] bytes, and names for which there is no memory, are only counted.
//! As long as [`StaticKey::LEARNING`] is off, this costs a lookup one no-op.
//!
//! The names have a spin lock, which is a leaf in the lock order; no path is built under it.

use freehold_collections::{Map, Vec};

use super::path::{Path, Reach};
use super::root;
use super::walk::PATH_MAX;
use crate::Result;
use crate::hw::static_keys::{self, StaticKey};
use crate::sync::SpinLock;

/// Largest number of bytes of names that are kept.
const MOST: usize = 16 << 20;
/// Bytes that a name takes besides its text: its entry in the map, and the heap's overhead.
const OVERHEAD: usize = 96;

/// Names of files, each once.
pub struct FoundNames {
    /// The names, sorted by their bytes.
    pub found: Map<Vec<u8>, ()>,
    /// How many lookups could not be kept.
    pub lost: u64,
    bytes: usize,
}

static NAMES: SpinLock<FoundNames> = SpinLock::new(FoundNames::new());

/// Notes that `name` was found in `dir`.
#[inline(always)]
pub fn note(dir: &Path, name: &[u8]) {
    if static_keys::is_on::<{ StaticKey::LEARN }>() {
        keep(dir, name);
    }
}

/// Takes the names that were found since the last call.
pub fn take() -> FoundNames {
    core::mem::replace(&mut NAMES.lock(), FoundNames::new())
}

#[cold]
fn keep(dir: &Path, name: &[u8]) {
    match text_of(dir, name) {
        Ok(Some(text)) => NAMES.lock().add(text),
        Ok(None) => {}
        Err(_) => NAMES.lock().lost += 1,
    }
}

/// Returns the path of `name` in `dir`; `None` if the name is not to be kept.
fn text_of(dir: &Path, name: &[u8]) -> Result<Option<Vec<u8>>> {
    let above = dir.describe(&root::root())?;
    let mut text = above.text;
    // The host cannot open a file by such a long path.
    if text.len() + name.len() >= PATH_MAX {
        return Ok(None);
    }
    if text != b"/" {
        text.try_push(b'/')?;
    }
    text.try_extend_from_slice(name)?;
    let is_generated = [&b"/proc/"[..], b"/sys/", b"/dev/"].iter().any(|begin| text.starts_with(begin));
    Ok((above.reach == Reach::Inside && !is_generated).then_some(text))
}

impl FoundNames {
    const fn new() -> Self {
        Self { found: Map::new(), lost: 0, bytes: 0 }
    }

    fn add(&mut self, text: Vec<u8>) {
        if self.found.contains_key(&text[..]) {
            return;
        }
        let cost = text.capacity() + OVERHEAD;
        if self.bytes + cost <= MOST && self.found.try_insert(text, ()).is_ok() {
            self.bytes += cost;
        } else {
            self.lost += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_kept_once_and_what_finds_no_room_is_counted() {
        let mut names = FoundNames::new();
        let copy = |text: &[u8]| Vec::try_from_slice(text).expect("memory");
        [&b"/usr/b"[..], b"/usr/a", b"/usr/b"].iter().for_each(|text| names.add(copy(text)));
        assert!(names.found.keys().map(|text| &text[..]).eq([&b"/usr/a"[..], b"/usr/b"]));
        assert!(names.bytes >= 2 * (OVERHEAD + 6), "what a name takes counts, too");
        names.bytes = MOST - OVERHEAD;
        names.add(copy(b"/usr/c"));
        assert_eq!((names.found.len(), names.lost, names.bytes), (2, 1, MOST - OVERHEAD));
    }
}
