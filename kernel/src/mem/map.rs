//! The kernel's map compared with the frame table: /sys/kernel/debug/xpfo/check, and a part of the
//! closing audit.

use freehold_collections::Vec;
use freehold_frame::FrameTable;
use freehold_xpfo::{AuditReport, Violation, check, count_tables};

use super::replicas;
use crate::Result;
use crate::hw::{Hardware, memory};
use crate::sync::Mutex;

/// Number of additional entries for tables that are made while the map is walked.
const MORE_TABLES: u64 = 16;

/// Compares every leaf of the kernel half with `frames`. Calls `found` for each violation. Other
/// tasks may run meanwhile, and no CPU patches text.
///
/// # Errors
/// `ENOMEM` if there is no memory for a list of the tables.
pub fn check_map(frames: FrameTable, found: &mut dyn FnMut(Violation)) -> Result<AuditReport> {
    // While this lock is held, the patching window is closed.
    let _unpatched = replicas().map(Mutex::lock);
    let rules = memory::map_rules();
    let room = count_tables(Hardware, rules.root) + MORE_TABLES;
    let mut tables = Vec::new();
    tables.try_resize(room as usize, 0)?;
    Ok(check(Hardware, frames, &rules, &mut tables, found))
}
