//! Rights of set-user-ID and set-group-ID files when their content changes: see
//! [`crate::fs::rights`].

use super::{Capability, Process};
use crate::Result;
use crate::fs::metadata;
use crate::fs::node::{ModeChange, Node, NodeKind, SetMetadata};
use crate::fs::rights;

/// Clears the set-user-ID and set-group-ID bits of a regular file whose bytes the calling process
/// is about to change. A process with CAP_FSETID in the initial user namespace keeps them, and so
/// does the kernel itself when it unpacks and copies files.
///
/// # Errors
/// The file system's.
#[cold]
#[inline(never)]
pub fn drop_rights(node: &dyn Node) -> Result<()> {
    let meta = node.metadata();
    if meta.kind != NodeKind::Regular || !rights::in_mode(meta.mode) {
        return Ok(());
    }
    let may_keep = |process: &Process| process.credentials().may(Capability::FSetId);
    if super::try_current().is_none_or(|task| may_keep(task.process())) {
        return Ok(());
    }
    // File systems that compute the new mode from the mode that they know must know the current
    // one.
    let _changes = metadata::lock(node.identity())?;
    node.set_metadata(&SetMetadata { mode: Some(ModeChange::WithoutRights), ..SetMetadata::default() })
}
