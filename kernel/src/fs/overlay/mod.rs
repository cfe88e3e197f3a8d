//! The file system overlay: several trees merged into one.
//!
//! A merged tree shows an *upper* tree over one or more *lower* ones. The lower ones are never
//! changed: a file that a program changes is copied up first, and a name that it removes is covered
//! by a *whiteout* in the upper tree (a character device 0/0). A directory that hides the
//! directories of its name in the trees below is *opaque* (an extended attribute). Both have the
//! same meaning in a lower tree above other lower trees. The format is Linux'. So an upper tree can
//! be mounted again later, by either kernel, as an upper or as a lower tree, with the same meaning.
//! A merged tree without an upper tree is read-only (`EROFS`).
//!
//! | module | concept |
//! |---|---|
//! | [`node`] | an inode of the merged tree, and the trees' nodes at a name |
//! | [`layers`] | the lower trees, and how their inode numbers are distinguished |
//! | [`copy_up`] | copying from a lower tree to the upper tree |
//! | [`change`] | making, removing and moving names |
//! | [`listing`] | the entries of a merged directory |
//! | [`file`] | open files |
//! | [`options`] | mount(2)'s options |
//! | [`keep`] | saving an upper tree |
//!
//! **As on Linux** (redirect_dir=off, index=off, metacopy=off, which are the defaults): a directory
//! that has a part in a lower tree cannot be renamed (`EXDEV`). A file with several names in the
//! lower tree is copied up separately for each name. A file that was opened for reading shows bytes
//! that were written later through another open; a mapping of it does not. A running program of the
//! lower tree does not keep others from writing to its copy. A copy-up does not change the inode
//! number; all inodes are on one device.
//!
//! **Locks.** `turn` of an inode (one copy-up of it at a time) > `names` of the file system (one
//! change of names at a time) > locks of the trees below. The first two are sleeping locks; a task
//! that must end does not wait for them. A lookup takes neither: it asks the upper tree first, and
//! each change of names is one step there. The result of a lookup may be outdated at once: a task
//! that changes names looks them up again under `names`.

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
/// Prefix of attributes of the overlay itself: they are not visible through it.
const PRIVATE: &[u8] = b"trusted.overlay.";
/// On a directory of the upper tree: nothing of the lower trees is visible in it.
const OPAQUE: &[u8] = b"trusted.overlay.opaque";
/// On a node that was copied up: identifies the original.
const ORIGIN: &[u8] = b"trusted.overlay.origin";

pub use self::keep::{NotKept, keep};
pub use self::options::mount;

/// The trees that an overlay is made of.
pub struct Layers {
    /// Read-only trees, the uppermost first.
    pub lower: Vec<Path>,
    /// The tree that receives the changes, if changes are possible.
    pub upper: Option<UpperTree>,
}

/// The tree that receives the changes.
pub struct UpperTree {
    /// The tree's root.
    pub root: Path,
    /// An empty directory of the tree's file system, in which nodes are made before they get their
    /// names.
    pub work: Path,
}

/// State that all nodes of one overlay share.
struct OverlayShared {
    device: u64,
    lower: LowerTrees,
    /// The file system of the uppermost tree: the upper tree, if there is one.
    top: Arc<dyn FileSystem>,
    /// The work directory; `None` for a read-only overlay.
    work: Option<Arc<dyn Node>>,
    next_in_work: AtomicU64,
    /// See [`FileSystem::stacking`].
    stacking: u32,
    /// Nodes that are in use.
    nodes: SpinLock<Map<NodeKey, Weak<OverlayNode>>>,
    /// Held while names change.
    names: Mutex<()>,
}

/// Overlays on overlays, at most: each needs its part of a call's stack. Linux permits two
/// (`FILESYSTEM_MAX_STACK_DEPTH`); the root of a VM may be one already.
const MOST_STACKED: u32 = 3;

/// A merged tree.
pub struct OverlayFs {
    shared: Arc<OverlayShared>,
    root: Arc<OverlayNode>,
    options: Vec<u8>,
}

impl OverlayFs {
    /// Makes the merged tree of `layers`; /proc/mounts shows `options`.
    ///
    /// # Errors
    /// `EINVAL` if the upper tree's file system cannot store an overlay's changes, for too many
    /// overlays on overlays, and without a tree; `ENOMEM`; the trees' errors.
    pub fn new(layers: &Layers, options: &[u8]) -> Result<Arc<Self>> {
        let Layers { lower, upper } = layers;
        let options = Vec::try_from_slice(options)?;
        let top = upper.as_ref().map(|upper| &upper.root).or(lower.first()).ok_or(Errno::EINVAL)?;
        let all = lower.iter().chain(upper.as_ref().map(|upper| &upper.root));
        let below = all.map(|root| root.mount.file_system().stacking()).max().unwrap_or(0);
        if below >= MOST_STACKED {
            log::warn!("overlay: more than {MOST_STACKED} overlays on top of each other are refused");
            return Err(Errno::EINVAL);
        }
        let shared = reserve::arc(OverlayShared {
            device: unnamed_device(),
            lower: LowerTrees::new(lower)?,
            top: top.mount.file_system().clone(),
            work: upper.as_ref().map(|upper| work_in(&upper.work.node)).transpose()?,
            next_in_work: AtomicU64::new(1),
            stacking: below + 1,
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
    /// The work directory; `EROFS` for a read-only overlay.
    fn work(&self) -> Result<&Arc<dyn Node>> {
        self.work.as_ref().ok_or(Errno::EROFS)
    }

    /// Returns an unused name in the work directory.
    fn temporary_name(&self) -> Result<Vec<u8>> {
        let number = self.next_in_work.fetch_add(1, Ordering::Relaxed);
        Ok(Vec::try_from_slice(try_format!("#{number:x}")?.as_bytes())?)
    }

    /// Checks that the upper tree's file system supports an overlay: whiteouts, renames that
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

/// Returns the directory "work" in `dir`, emptied.
fn work_in(dir: &Arc<dyn Node>) -> Result<Arc<dyn Node>> {
    let new = NewNode { kind: NodeKind::Directory, mode: 0, uid: 0, gid: 0, rdev: 0 };
    let work = match dir.create(b"work", &new) {
        Err(Errno::EEXIST) => dir.lookup(b"work")?,
        made => return made,
    };
    // An overlay that ends during an operation leaves whiteouts, files, and directories of
    // whiteouts there.
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

/// Whether `node` is a whiteout.
fn is_whiteout(node: &dyn Node) -> bool {
    node.kind() == NodeKind::CharDevice && node.metadata().rdev == 0
}

/// Whether `dir` is opaque: it hides the directories of its name in lower trees.
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

    fn stacking(&self) -> u32 {
        self.shared.stacking
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

    /// A remount changes only the mount's flags.
    fn configure(&self, options: &[u8]) -> Result<()> {
        if options.is_empty() { Ok(()) } else { Err(Errno::EINVAL) }
    }
}

/// Returns a tree's node at `name`; `None` if there is none.
fn looked_up(dir: &dyn Node, name: &[u8]) -> Result<Option<Arc<dyn Node>>> {
    match dir.lookup(name) {
        Ok(node) => Ok(Some(node)),
        Err(Errno::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Flags with which directories of the trees are opened.
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
