//! Which function answers which system call: one line per number, sorted by number.

use super::Handler::{self, Plain};

/// The calls that there are.
pub(super) const ENTRIES: &[(u16, Handler)] = &[
    (24, Plain(crate::task::calls::sys_sched_yield)),
];
