//! The files of /proc that are about the whole system.

use alloc::sync::Arc;

use crate::fs::pseudo::PseudoDir;
use crate::time;

/// Put all of them into `root`.
pub fn fill(root: &Arc<PseudoDir>) {
    root.file("uptime", |out| {
        let now = time::now() / 10_000_000;
        write!(out, "{}.{:02} {}.{:02}\n", now / 100, now % 100, now / 100, now % 100);
        Ok(())
    });
}
