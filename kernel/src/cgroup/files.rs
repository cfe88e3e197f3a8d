//! The files that every group has and that need nothing of higher layers.

use core::sync::atomic::Ordering;

use super::control::{ControlFile, OnRoot, parse_limit, store_subtree, write_limit, write_names};
use super::group::{Group, NO_LIMIT, Notice};
use crate::{Errno, Result};

/// The files, by name.
pub static FILES: [ControlFile; 7] = [
    ControlFile {
        name: "cgroup.controllers",
        mode: 0o444,
        on_root: OnRoot::Yes,
        notice: None,
        show: |group, out| write_names(group.controllers(), out),
        store: None,
    },
    ControlFile {
        name: "cgroup.events",
        mode: 0o444,
        on_root: OnRoot::No,
        notice: Some(Notice::Events),
        show: |group, out| {
            let (populated, frozen) = (group.is_populated(), group.is_frozen());
            writeln!(out, "populated {}\nfrozen {}", u8::from(populated), u8::from(frozen))
        },
        store: None,
    },
    ControlFile {
        name: "cgroup.max.depth",
        mode: 0o644,
        on_root: OnRoot::Yes,
        notice: None,
        show: |group, out| write_limit(group.max_depth.load(Ordering::Relaxed), NO_LIMIT, out),
        store: Some(|group, text| {
            group.max_depth.store(int_limit(text)?, Ordering::Relaxed);
            Ok(())
        }),
    },
    ControlFile {
        name: "cgroup.max.descendants",
        mode: 0o644,
        on_root: OnRoot::Yes,
        notice: None,
        show: |group, out| write_limit(group.max_descendants.load(Ordering::Relaxed), NO_LIMIT, out),
        store: Some(|group, text| {
            group.max_descendants.store(int_limit(text)?, Ordering::Relaxed);
            Ok(())
        }),
    },
    ControlFile {
        name: "cgroup.stat",
        mode: 0o444,
        on_root: OnRoot::Yes,
        notice: None,
        show: |group, out| {
            let live = group.descendants.load(Ordering::Relaxed);
            let dying = group.dying.load(Ordering::Relaxed);
            writeln!(out, "nr_descendants {live}\nnr_dying_descendants {dying}")
        },
        store: None,
    },
    ControlFile {
        name: "cgroup.subtree_control",
        mode: 0o644,
        on_root: OnRoot::Yes,
        notice: None,
        show: |group, out| write_names(group.passes_on(), out),
        store: Some(store_subtree),
    },
    ControlFile {
        name: "cgroup.type",
        mode: 0o644,
        on_root: OnRoot::No,
        notice: None,
        show: |_, out| writeln!(out, "domain"),
        store: Some(store_type),
    },
];

/// Parses a limit of levels or groups; Linux keeps it in an int.
fn int_limit(text: &[u8]) -> Result<u32> {
    let limit = parse_limit(text, NO_LIMIT)?;
    if limit != NO_LIMIT && limit >= i32::MAX as u32 { Err(Errno::ERANGE) } else { Ok(limit) }
}

/// Refuses every type: there is no threaded mode.
fn store_type(_group: &Group, text: &[u8]) -> Result<()> {
    if text == b"threaded" { Err(Errno::EOPNOTSUPP) } else { Err(Errno::EINVAL) }
}
