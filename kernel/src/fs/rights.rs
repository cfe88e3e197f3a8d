//! The set-user-ID and set-group-ID bits of a file, by which it runs as its owner or its group. The
//! file loses them when a program changes its bytes: otherwise a user who may write the file could
//! act as its owner.
//!
//! The bits are removed before the first byte changes, so that no other process executes changed
//! bytes with them. Every call that changes bytes uses [`OpenFile`](super::OpenFile) or
//! [`names`](super::names), and calls the file ([`File::drop_rights`](super::File::drop_rights)) or
//! the node ([`Node::drop_rights`](super::Node::drop_rights)). File systems whose files can be
//! written and executed check the mode, and call [`task::drop_rights`](crate::task::drop_rights) if
//! it has the bits. Stores to a shared mapping are not noticed, as on Linux.
//!
//! Source: `file_remove_privs` in fs/inode.c, `setattr_should_drop_suidgid` in fs/attr.c.

/// In a mode: a program runs as its owner.
pub const S_ISUID: u32 = 0o4000;
/// In a mode: a program runs as its group, if [`S_IXGRP`] is set, too. New files in a directory get
/// the directory's group.
pub const S_ISGID: u32 = 0o2000;
/// In the mode of a directory: files can be removed only by their owners.
pub const S_ISVTX: u32 = 0o1000;
/// In a mode: the group may execute the file.
pub const S_IXGRP: u32 = 0o010;

/// Whether a file of this mode runs as its owner or its group. Set-group-ID without the group's
/// execute permission means mandatory locks instead.
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
