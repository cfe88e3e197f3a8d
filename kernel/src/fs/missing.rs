//! Names of files that a program did not find: usually files that the image lacks.
//!
//! The first [`MOST`] different absolute names are kept, for the report at the end. Their spin lock
//! is a leaf in the lock order.

use freehold_collections::Vec;

use crate::sync::SpinLock;

/// Number of names that are kept.
const MOST: usize = 64;
/// Longer names are not kept.
const LONGEST: usize = 256;

static NAMES: SpinLock<Vec<Vec<u8>>> = SpinLock::new(Vec::new());

/// Notes that `name` was to be opened or executed and does not exist.
pub fn note(name: &[u8]) {
    let generated = [b"/proc/".as_slice(), b"/sys/", b"/dev/"].iter().any(|dir| name.starts_with(dir));
    if !name.starts_with(b"/") || name.len() > LONGEST || generated {
        return;
    }
    // If memory is short, the name is not kept: this is not worth a failure.
    let mut names = NAMES.lock();
    if names.len() < MOST && !names.iter().any(|other| other == name) {
        let _ = Vec::try_from_slice(name).and_then(|copy| names.try_push(copy));
    }
}

/// Takes the names that were not found since the last call, in the order of their first lookups.
pub fn take() -> Vec<Vec<u8>> {
    core::mem::take(&mut NAMES.lock())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_absolute_name_is_kept_once_and_generated_ones_not_at_all() {
        for name in ["/etc/localtime", "relative", "/etc/localtime", "/proc/1/x", "/usr/share/x"] {
            note(name.as_bytes());
        }
        assert_eq!(take(), [b"/etc/localtime".as_slice(), b"/usr/share/x"]);
        assert!(take().is_empty());
    }
}
