//! The right of a file to run as its owner or its group (set-user-ID, set-group-ID), which it loses
//! when a program changes its bytes: otherwise whoever may write the file could act as its owner.
//!
//! The bits go before the first byte changes, so that no other process executes changed bytes with
//! them. Every call that changes bytes comes through [`OpenFile`](super::OpenFile) or
//! [`names`](super::names), and asks the file ([`File::drop_rights`](super::File::drop_rights)) or
//! the node ([`Node::drop_rights`](super::Node::drop_rights)). File systems whose files can be
//! written and executed answer by one look at the mode, and
//! [`task::drop_rights`](crate::task::drop_rights) where it has the bits. Stores to a shared
//! mapping are not seen, as on Linux.
//!
//! Source: `file_remove_privs` in fs/inode.c, `setattr_should_drop_suidgid` in fs/attr.c.

/// In a mode: a program runs as its owner.
pub const S_ISUID: u32 = 0o4000;
/// In a mode: a program runs as its group, if [`S_IXGRP`] is set, too; a directory hands its group
/// on.
pub const S_ISGID: u32 = 0o2000;
/// In a mode of a directory: its files are removed by their owners only.
pub const S_ISVTX: u32 = 0o1000;
/// In a mode: the group may execute the file.
pub const S_IXGRP: u32 = 0o010;

/// Whether a file of this mode runs as its owner or its group. Set-group-ID without the group's
/// right to execute asks for mandatory locks instead.
pub const fn in_mode(mode: u32) -> bool {
    mode & S_ISUID != 0 || runs_as_group(mode)
}

/// Whether a program of this mode runs as its group.
pub const fn runs_as_group(mode: u32) -> bool {
    mode & (S_ISGID | S_IXGRP) == S_ISGID | S_IXGRP
}

/// Returns `mode` without the right to run as the owner or the group.
pub const fn without(mode: u32) -> u32 {
    let mode = mode & !S_ISUID;
    if mode & S_IXGRP != 0 { mode & !S_ISGID } else { mode }
}
