//! A place in the tree of names.
//!
//! There is no tree of directory entries beside the file systems' own: a directory knows its parent and its
//! name there ([`Node::parent`]), and anything else remembers the entry through which it was found. A rename
//! therefore shows at once in the paths of directories; for other files [`Path::display`] looks again.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::flags::OpenFlags;
use super::mount::Mount;
use super::node::{Node, NodeKind, Presence};
use crate::{Errno, Result};

/// The name by which a file that is not a directory was found.
pub struct Entry {
    /// The directory that holds the name.
    pub dir: Arc<dyn Node>,
    /// The name.
    pub name: Vec<u8>,
}

/// A node, where it is mounted, and the name that led to it.
#[derive(Clone)]
pub struct Path {
    /// The mount it is seen through.
    pub mount: Arc<Mount>,
    /// What is there.
    pub node: Arc<dyn Node>,
    /// How it was found; `None` for directories, which know that themselves, and for files without a name.
    pub entry: Option<Arc<Entry>>,
}

impl Path {
    /// The root directory of `mount`.
    pub fn root_of(mount: Arc<Mount>) -> Self {
        let node = mount.root().clone();
        Self { mount, node, entry: None }
    }

    /// Whether both are the same node seen through the same mount.
    pub fn same_place(&self, other: &Path) -> bool {
        Arc::ptr_eq(&self.mount, &other.mount) && self.node.identity() == other.node.identity()
    }

    /// Whether it is where its mount begins.
    pub fn is_mount_root(&self) -> bool {
        self.node.identity() == self.mount.root().identity()
    }

    /// The text of the path as seen from `root`, as /proc shows it: absolute, with " (deleted)" when
    /// the last name is gone, with "(unreachable)" in front when it does not lead to `root`.
    pub fn display(&self, root: &Path) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        let mut deleted = false;
        let mut here = self.clone();
        // Built backwards: each name is pushed reversed, then the whole is turned round.
        if here.node.kind() != NodeKind::Directory {
            match &here.entry {
                None => return Ok(text),
                Some(entry) => {
                    let (name, presence) = current_name(entry, &here.node);
                    deleted = presence == Presence::Removed;
                    push_reversed(&mut text, &name)?;
                    here = Path { mount: here.mount.clone(), node: entry.dir.clone(), entry: None };
                }
            }
        }
        let mut reachable = true;
        while !here.same_place(root) {
            if here.is_mount_root() {
                match here.mount.mountpoint() {
                    Some(up) => {
                        // A file may be a mount point: its name counts.
                        if let Some(entry) = &up.entry {
                            push_reversed(&mut text, &entry.name)?;
                            here = Path { mount: up.mount.clone(), node: entry.dir.clone(), entry: None };
                        } else {
                            here = up;
                        }
                    }
                    None => {
                        reachable = false;
                        break;
                    }
                }
            } else {
                match here.node.parent() {
                    Some(place) => {
                        deleted |= place.presence == Presence::Removed;
                        push_reversed(&mut text, &place.name)?;
                        here.node = place.dir;
                    }
                    None => {
                        deleted = true;
                        break;
                    }
                }
            }
        }
        if text.is_empty() {
            text.push(b'/');
        }
        if !reachable {
            text.extend(b"(unreachable)".iter().rev());
        }
        text.reverse();
        if deleted {
            text.extend_from_slice(b" (deleted)");
        }
        Ok(text)
    }
}

/// What `node` is called now in the directory where it was found, and whether it still is there. A renamed
/// file is looked for among its directory's entries, one that moved elsewhere counts as removed.
fn current_name(entry: &Entry, node: &Arc<dyn Node>) -> (Vec<u8>, Presence) {
    let identity = node.identity();
    if entry.dir.lookup(&entry.name).is_ok_and(|found| found.identity() == identity) {
        return (entry.name.clone(), Presence::Linked);
    }
    let mut renamed = None;
    if let Ok(dir) = entry.dir.clone().open(OpenFlags::DIRECTORY) {
        // A directory that cannot be listed has no other name to offer.
        let _ = dir.read_dir(0, &mut |candidate| {
            if candidate.inode == identity.inode && candidate.name != b"." && candidate.name != b".." {
                renamed = Some(candidate.name.to_vec());
            }
            renamed.is_none()
        });
    }
    match renamed {
        Some(name) => (name, Presence::Linked),
        None => (entry.name.clone(), Presence::Removed),
    }
}

fn push_reversed(text: &mut Vec<u8>, name: &[u8]) -> Result<()> {
    text.try_reserve(name.len() + 16).map_err(|_| Errno::ENOMEM)?;
    text.extend(name.iter().rev());
    text.push(b'/');
    Ok(())
}
