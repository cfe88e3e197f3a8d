//! /sys/kernel/debug/static_keys: a file for each static key. It shows whether the key is on (1) or
//! off (0); writing 1 or 0 switches it.

use freehold_collections::Arc;

use crate::fs::generated::{Generate, Text};
use crate::fs::pseudo::PseudoDir;
use crate::hw::static_keys::{self, KeyState, StaticKey};
use crate::{Errno, Result, mem};

/// Adds the directory to debugfs.
pub(super) fn fill(debug: &Arc<PseudoDir>) {
    let dir = debug.dir(b"static_keys");
    for key in StaticKey::BY_HAND {
        dir.generated(key.name(), 0o600, KeyFile(key));
    }
}

struct KeyFile(StaticKey);

impl Generate for KeyFile {
    fn show(&self, out: &mut Text) -> Result<()> {
        writeln!(out, "{}", static_keys::state(self.0) as u8);
        Ok(())
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        let state = KeyState::parse(bytes).ok_or(Errno::EINVAL)?;
        mem::turn_key(self.0, state)
    }
}
