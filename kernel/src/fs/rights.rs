//! The right of a file to run as its owner or its group (set-user-ID, set-group-ID), which it loses
//! when a program changes its bytes: otherwise whoever may write the file could act as its owner.
//!
//! The bits go before the first byte changes, so that no other process executes changed bytes with
//! them. A process with CAP_FSETID in the initial user namespace keeps them, and so does the kernel
//! itself, which unpacks and copies files. Every call that changes bytes comes through
//! [`OpenFile`](super::OpenFile) or [`names`](super::names); the check is one look at a flag of the
//! node ([`File::carries_rights`](super::File::carries_rights)). Stores to a shared mapping are not
//! seen, as on Linux.
//!
//! Source: `file_remove_privs` in fs/inode.c, `setattr_should_drop_suidgid` in fs/attr.c.

use freehold_collections::Arc;

use super::node::{Node, NodeKind, SetMetadata};
use crate::Result;
use crate::task;
use crate::task::capabilities::Capability;

const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
const S_IXGRP: u32 = 0o010;

/// Whether a file of this mode runs as its owner or its group. Set-group-ID without the group's
/// right to execute asks for mandatory locks instead.
pub const fn in_mode(mode: u32) -> bool {
    mode & S_ISUID != 0 || mode & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP
}

/// Returns `mode` without the right to run as the owner or the group.
pub const fn without(mode: u32) -> u32 {
    let mode = mode & !S_ISUID;
    if mode & S_IXGRP != 0 { mode & !S_ISGID } else { mode }
}

/// Takes the right from a file whose bytes the calling process is about to change.
///
/// # Errors
/// The file system's.
#[cold]
#[inline(never)]
pub fn drop_from(node: &Arc<dyn Node>) -> Result<()> {
    let meta = node.metadata();
    if meta.kind != NodeKind::Regular || !in_mode(meta.mode) {
        return Ok(());
    }
    let may_keep = |task: &task::Task| task.process().credentials().may(Capability::FSetId);
    if task::try_current().is_none_or(|task| may_keep(&task)) {
        return Ok(());
    }
    node.set_metadata(&SetMetadata { mode: Some(without(meta.mode)), ..SetMetadata::default() })
}
