//! Which function answers which system call: one line per number, sorted by number.

use super::Handler::{self, Plain};

/// The calls that there are.
pub(super) const ENTRIES: &[(u16, Handler)] = &[
    (7, Plain(crate::fs::poll::sys_poll)),
    (22, Plain(crate::fs::pipe::sys_pipe)),
    (23, Plain(crate::fs::poll::sys_select)),
    (24, Plain(crate::task::calls::sys_sched_yield)),
    (103, Plain(crate::dev::sys_syslog)),
    (270, Plain(crate::fs::poll::sys_pselect6)),
    (271, Plain(crate::fs::poll::sys_ppoll)),
    (275, Plain(crate::fs::pipe::sys_splice)),
    (276, Plain(crate::fs::pipe::sys_tee)),
    (278, Plain(crate::fs::pipe::sys_vmsplice)),
    (293, Plain(crate::fs::pipe::sys_pipe2)),
];
