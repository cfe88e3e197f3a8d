//! F_NOTIFY (dnotify, fcntl(2)): a signal to the owner of an open directory for changes in it.
//!
//! Linux' relative is fs/notify/dnotify. A watch belongs to an open description and to a table of
//! descriptors. It ends when a descriptor of the description is closed in that table, and after one
//! event unless more were requested.

use core::sync::atomic::AtomicU32;

use freehold_collections::{Arc, reserve};

use super::watches::{self, EventTarget, InodeWatch};
use super::{Events, is_watching};
use crate::Result;
use crate::fs::open_file::OpenFile;
use crate::sync::Wake;

/// DN_MULTISHOT.
const MULTISHOT: u32 = 1 << 31;
/// The events of DN_ACCESS, DN_MODIFY, DN_CREATE, DN_DELETE, DN_RENAME and DN_ATTRIB, which are
/// bits 0 to 5.
const EVENTS: [Events; 6] = [
    Events::ACCESS,
    Events::MODIFY,
    Events::CREATE.union(Events::MOVED_TO),
    Events::DELETE.union(Events::MOVED_FROM),
    Events::RENAMED_WITHIN,
    Events::ATTRIB,
];

/// Returns the mask of a watch for `requested`, the argument of F_NOTIFY; `None` if it ends a
/// watch.
pub fn mask(requested: u32) -> Option<Events> {
    if requested & !MULTISHOT == 0 {
        return None;
    }
    let chosen = EVENTS.into_iter().enumerate().filter(|(bit, _)| requested & 1 << bit != 0);
    let once = if requested & MULTISHOT == 0 { Events::ONESHOT } else { Events::empty() };
    Some(chosen.fold(once, |all, (_, events)| all | events))
}

/// Tells `holder` of events in the directory `file`, in addition to those that the table's watch of
/// the description has already. The caller then checks that `table`, a number of a table of
/// descriptors, still has the file.
///
/// # Errors
/// `ENOMEM`.
pub fn watch(file: &OpenFile, table: u64, mask: Events, holder: Arc<dyn Wake>) -> Result<()> {
    let node = file.node();
    let watch = InodeWatch {
        key: [table, file.id()],
        target: EventTarget::Holder(holder),
        number: 0,
        identity: node.identity(),
        mask: AtomicU32::new(mask.bits()),
        _charge: None,
    };
    reserve::arc(watch).attach(&node)
}

/// Ends the watch of `file` that belongs to `table`, if there is one.
pub fn end(file: &OpenFile, table: u64) {
    if is_watching() {
        watches::end(file.node().identity(), [table, file.id()]);
    }
}
