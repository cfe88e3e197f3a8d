//! /sys/kernel/debug/xpfo: the policy, and an audit of the kernel's map on request.

use freehold_collections::Arc;
use freehold_frame::FrameSource as _;

use crate::fs::generated::Text;
use crate::fs::pseudo::PseudoDir;
use crate::{Result, mem};

/// Largest number of violations that are named.
const MOST_NAMED: u64 = 16;

/// Adds the directory to debugfs. Only root can read its files, since they reveal the owners of
/// frames.
pub(super) fn fill(debug: &Arc<PseudoDir>) {
    let dir = debug.dir(b"xpfo");
    dir.generated("check", 0o400, check);
    dir.generated("policy", 0o400, |out: &mut Text| {
        writeln!(out, "{}", mem::xpfo_policy().name());
        Ok(())
    });
}

/// Compares every leaf of the kernel half with the frame table. The last line is `clean` or `N
/// violations`.
fn check(out: &mut Text) -> Result<()> {
    let mut named = 0;
    let report = mem::check_map(mem::frames().table(), &mut |violation| {
        if named < MOST_NAMED {
            writeln!(out, "{violation}");
        }
        named += 1;
    })?;
    writeln!(out, "{} leaves of 4 KiB, {} of 2 MiB, {} tables", report.small, report.large, report.tables);
    match report.violations {
        0 => writeln!(out, "clean"),
        count => writeln!(out, "{count} violations"),
    }
    Ok(())
}
