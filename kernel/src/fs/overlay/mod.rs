//! Trees over one another: the file system overlay.
//!
//! A merged tree shows an *upper* tree over one or more *lower* ones. The lower ones are never
//! changed: a file that a program changes is copied up first, and a name that it removes is covered
//! by a *whiteout* in the upper tree (a character device 0/0). A directory that hides those of its
//! name in the trees below is *opaque* (an extended attribute). Both mean the same in a lower tree
//! that has others below it. So an upper tree means the same whenever, and under whichever kernel,
//! it is mounted again, as an upper or as a lower one; the form is Linux'. A merged tree without an
//! upper one is only read (`EROFS`).
//!
//! | module | concept |
//! |---|---|
//! | [`node`] | an inode of the merged tree, and what the trees have at a name |
//! | [`layers`] | the trees, and how the numbers of their inodes are told apart |
//! | [`copy_up`] | from the lower tree to the upper one |
//! | [`change`] | making, removing and moving names |
//! | [`listing`] | what a merged directory lists |
//! | [`file`] | open files |
//! | [`options`] | mount(2)'s options |
//! | [`keep`] | an upper tree, written down |
//!
//! **As on Linux** (redirect_dir=off, index=off, metacopy=off, which are the defaults): a directory
//! that the lower tree has part in is not renamed (`EXDEV`). A file with several names in the lower
//! tree is copied up for each name alone. A file that was opened for reading only shows bytes that
//! were written through another open later, a mapping of it does not. A running program of the
//! lower tree does not keep others from writing to its copy. Numbers of inodes stay over a copy-up;
//! all are of one device.
//!
//! **Locks.** `turn` of an inode (one copy-up of it at a time) > `names` of the file system (one
//! change of names at a time) > locks of the trees below. Both are sleeping locks that a task does
//! not wait for when it is to end. A lookup takes neither: it asks the upper tree first, and each
//! change of names is one step there. The result of a lookup may be outdated at once: a task that
//! changes names looks again under `names`.

mod change;
mod copy_up;
mod file;
mod keep;
mod layers;
mod listing;
mod node;
mod options;
#[cfg(test)]
mod tests;

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use freehold_collections::{Arc, Map, TryCollect, Vec, Weak, reserve, reserve::ArcMethods, try_format};

use self::layers::{Below, LowerTrees};
use self::node::{Found, NodeKey, OverlayNode};
use super::device::unnamed_device;
use super::flags::{OpenFlags, RenameFlags};
use super::mount::{FileSystem, FsStats};
use super::node::{NewNode, Node, NodeKind, XattrSet};
use super::path::Path;
use crate::sync::{Mutex, SpinLock};
use crate::{Errno, Result};

/// The magic number of statfs(2) (linux/magic.h).
const MAGIC: u64 = 0x794c_7630;
/// Attributes that are about the overlay: they are not seen through it.
const PRIVATE: &[u8] = b"trusted.overlay.";
/// On a directory of the upper tree: nothing of the lower tree is seen in it.
const OPAQUE: &[u8] = b"trusted.overlay.opaque";
/// On a node that was copied up: the node that it was copied from.
const ORIGIN: &[u8] = b"trusted.overlay.origin";

pub use self::keep::{NotKept, keep};
pub use self::options::mount;

/// The trees that an overlay is made of.
pub struct Layers {
    /// Trees that are only read, the uppermost first.
    pub lower: Vec<Path>,
    /// The tree that takes the changes, if there may be any.
    pub upper: Option<UpperTree>,
}

/// The tree that takes the changes.
pub struct UpperTree {
    /// Its root.
    pub root: Path,
    /// An empty directory of its file system, in which things are made before they get their names.
    pub work: Path,
}

/// State that all nodes of one overlay share.
struct OverlayShared {
    device: u64,
    lower: LowerTrees,
    /// The uppermost tree's file system: the upper tree's, where there is one.
    top: Arc<dyn FileSystem>,
    /// `None`: nothing changes.
    work: Option<Arc<dyn Node>>,
    next_in_work: AtomicU64,
    /// Nodes that are in use.
    nodes: SpinLock<Map<NodeKey, Weak<OverlayNode>>>,
    /// Held while names change.
    names: Mutex<()>,
}

/// A merged tree.
pub struct OverlayFs {
    shared: Arc<OverlayShared>,
    root: Arc<OverlayNode>,
    options: Vec<u8>,
}

impl OverlayFs {
    /// The tree that `layers` are together; `options` is what /proc/mounts shows.
    ///
    /// # Errors
    /// `EINVAL` where the upper tree's file system cannot hold an overlay's changes, and without a
    /// tree; `ENOMEM`; the trees' errors.
    pub fn new(layers: &Layers, options: &[u8]) -> Result<Arc<Self>> {
        let Layers { lower, upper } = layers;
        let options = Vec::try_from_slice(options)?;
        let top = upper.as_ref().map(|upper| &upper.root).or(lower.first()).ok_or(Errno::EINVAL)?;
        let shared = reserve::arc(OverlayShared {
            device: unnamed_device(),
            lower: LowerTrees::new(lower)?,
            top: top.mount.file_system().clone(),
            work: upper.as_ref().map(|upper| work_in(&upper.work.node)).transpose()?,
            next_in_work: AtomicU64::new(1),
            nodes: SpinLock::new(Map::new()),
            names: Mutex::new(()),
        });
        shared.try_upper()?;
        let nodes = lower.iter().enumerate();
        let lower = nodes.map(|(tree, place)| Below { tree, node: place.node.clone() }).try_collect_vec()?;
        let found = match upper {
            Some(upper) => Found::Merged { upper: upper.root.node.clone(), lower },
            None => Found::Lower { lower },
        };
        let root = shared.node(found, None)?;
        Ok(reserve::arc(Self { shared, root, options }))
    }
}

impl OverlayShared {
    /// The work directory; `EROFS` where nothing changes.
    fn work(&self) -> Result<&Arc<dyn Node>> {
        self.work.as_ref().ok_or(Errno::EROFS)
    }

    /// Returns an unused name in the work directory.
    fn temporary_name(&self) -> Result<Vec<u8>> {
        let number = self.next_in_work.fetch_add(1, Ordering::Relaxed);
        Ok(Vec::try_from_slice(try_format!("#{number:x}")?.as_bytes())?)
    }

    /// Whether the upper tree's file system has what an overlay needs: whiteouts, renames that
    /// exchange, attributes.
    fn try_upper(&self) -> Result<()> {
        let Some(work) = &self.work else { return Ok(()) };
        let attempt = || {
            work.set_xattr(OPAQUE, b"y", XattrSet::Any)?;
            work.remove_xattr(OPAQUE)?;
            let names = [self.temporary_name()?, self.temporary_name()?];
            for name in &names {
                work.create(name, &NewNode::WHITEOUT)?;
            }
            work.rename(&names[0], work, &names[1], RenameFlags::EXCHANGE)?;
            names.iter().try_for_each(|name| work.unlink(name))
        };
        attempt().map_err(|error| match error {
            Errno::ENOMEM | Errno::ENOSPC | Errno::EINTR => error,
            error => {
                let kind = self.top.name();
                log::warn!("overlay: a {kind} cannot be the upper tree: {error:?}");
                Errno::EINVAL
            }
        })
    }
}

/// The directory "work" in `dir`, empty.
fn work_in(dir: &Arc<dyn Node>) -> Result<Arc<dyn Node>> {
    let new = NewNode { kind: NodeKind::Directory, mode: 0, uid: 0, gid: 0, rdev: 0 };
    let work = match dir.create(b"work", &new) {
        Err(Errno::EEXIST) => dir.lookup(b"work")?,
        made => return made,
    };
    // An overlay that ends in the middle of an operation leaves whiteouts, files, and directories
    // of whiteouts there.
    for left in listing::Listing::of_tree(&work)?.names() {
        if work.lookup(left)?.kind() == NodeKind::Directory {
            remove_whiteouts(&work.lookup(left)?)?;
            work.remove_dir(left)?;
        } else {
            work.unlink(left)?;
        }
    }
    Ok(work)
}

/// Removes the whiteouts in a directory of the upper tree.
fn remove_whiteouts(dir: &Arc<dyn Node>) -> Result<()> {
    for name in listing::Listing::of_tree(dir)?.names() {
        crate::sched::checkpoint()?;
        if dir.lookup(name).is_ok_and(|node| is_whiteout(&*node)) {
            dir.unlink(name)?;
        }
    }
    Ok(())
}

/// Whether `node` says that a name is not there.
fn is_whiteout(node: &dyn Node) -> bool {
    node.kind() == NodeKind::CharDevice && node.metadata().rdev == 0
}

/// Whether `dir` hides the directories of its name in the trees below its own.
fn is_opaque(dir: &dyn Node) -> Result<bool> {
    match dir.xattr(OPAQUE) {
        Ok(value) => Ok(&*value == b"y"),
        Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(false),
        Err(error) => Err(error),
    }
}

impl FileSystem for OverlayFs {
    fn name(&self) -> &'static str {
        "overlay"
    }

    fn device(&self) -> u64 {
        self.shared.device
    }

    fn root(&self) -> Arc<dyn Node> {
        self.root.clone()
    }

    fn stats(&self) -> FsStats {
        FsStats { magic: MAGIC, ..self.shared.top.stats() }
    }

    fn show_options(&self, out: &mut dyn fmt::Write) -> fmt::Result {
        self.options.iter().try_for_each(|&byte| out.write_char(char::from(byte)))
    }

    fn is_read_only(&self) -> bool {
        self.shared.work.is_none()
    }

    fn sync(&self) -> Result<()> {
        if self.shared.work.is_some() { self.shared.top.sync() } else { Ok(()) }
    }

    /// A remount changes the mount's flags only.
    fn configure(&self, options: &[u8]) -> Result<()> {
        if options.is_empty() { Ok(()) } else { Err(Errno::EINVAL) }
    }
}

/// Returns a tree's node at `name`; `None` where there is none.
fn looked_up(dir: &dyn Node, name: &[u8]) -> Result<Option<Arc<dyn Node>>> {
    match dir.lookup(name) {
        Ok(node) => Ok(Some(node)),
        Err(Errno::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// How directories of the trees are opened.
const LIST: OpenFlags = OpenFlags::DIRECTORY;

/// Whether `dir` is `above`, or below it, in one tree.
fn is_within(dir: &Arc<dyn Node>, above: &Arc<dyn Node>) -> bool {
    let mut here = dir.clone();
    loop {
        if here.is_same(above) || here.identity() == above.identity() {
            return true;
        }
        let Some(place) = here.parent() else { return false };
        here = place.dir;
    }
}
