//! A place in the tree of names.
//!
//! There is no tree of directory entries beside the file systems' own: a directory knows its parent
//! and its name there ([`Node::parent`]), and anything else remembers the entry through which it
//! was found. A rename therefore shows at once in the paths of directories; for other files
//! [`Path::display`] looks again.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_collections::{
    Arc, Vec,
    reserve::{self, ArcMethods},
    try_format,
};

use super::flags::OpenFlags;
use super::mount::Mount;
use super::node::{Identity, Node, NodeKind, Presence};
use super::walk::PATH_MAX;
use crate::sync::SpinLock;
use crate::{Errno, Result, sched};

/// The number of renames. A name that was looked up since the last one is right.
static RENAMES: AtomicU64 = AtomicU64::new(1);

/// Returns the number of renames so far.
pub(super) fn renames() -> u64 {
    RENAMES.load(Ordering::Acquire)
}

/// Counts a rename that was made.
pub(super) fn count_rename() {
    RENAMES.fetch_add(1, Ordering::Release);
}

/// The name by which a file that is not a directory was found.
pub struct PathEntry {
    /// The directory that holds the name.
    pub dir: Arc<dyn Node>,
    /// The name.
    pub name: Vec<u8>,
    /// The number of renames when the name was last looked up; see [`super::notify`].
    pub(super) checked: AtomicU64,
    /// The last search for another name.
    searched: SpinLock<Option<Searched>>,
}

/// The outcome of a search for another name.
struct Searched {
    /// The number of renames before it.
    renames: u64,
    /// `None` where the file had no other name there.
    found: Option<Arc<[u8]>>,
}

impl PathEntry {
    /// An entry of `dir`.
    #[inline]
    pub fn new(dir: Arc<dyn Node>, name: Vec<u8>) -> Self {
        Self { dir, name, checked: AtomicU64::new(0), searched: SpinLock::new(None) }
    }

    /// Another name of `node` among the directory's entries, of which there may be many: they are
    /// looked at once for each number of renames.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn other_name(&self, node: &Arc<dyn Node>, renames: u64) -> Result<Option<Arc<[u8]>>> {
        if let Some(searched) = self.searched.lock().as_ref().filter(|last| last.renames == renames) {
            return Ok(searched.found.clone());
        }
        self.search(node, renames)
    }

    /// As [`other_name`](Self::other_name), but true at this time: names also go without a rename.
    /// The name that was found last is looked up before all others.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(super) fn other_name_now(&self, node: &Arc<dyn Node>, renames: u64) -> Result<Option<Arc<[u8]>>> {
        let last = self.searched.lock().as_ref().map(|last| (last.renames, last.found.clone()));
        match last {
            Some((_, Some(name))) if self.leads_to(&name, node) => Ok(Some(name)),
            Some((at, None)) if at == renames => Ok(None),
            _ => self.search(node, renames),
        }
    }

    /// Whether the directory has `name` for `node`.
    fn leads_to(&self, name: &[u8], node: &Arc<dyn Node>) -> bool {
        self.dir.lookup(name).is_ok_and(|found| found.identity() == node.identity())
    }

    /// Looks at the directory's entries for a name of `node`.
    fn search(&self, node: &Arc<dyn Node>, renames: u64) -> Result<Option<Arc<[u8]>>> {
        let inode = node.identity().inode;
        let mut name = None;
        if let Ok(dir) = self.dir.clone().open(OpenFlags::DIRECTORY) {
            // A directory that cannot be listed has no other name to offer.
            let _ = dir.read_dir(0, &mut |candidate| {
                if candidate.inode == inode && candidate.name != b"." && candidate.name != b".." {
                    name = Some(reserve::slice(candidate.name));
                }
                name.is_none()
            });
        }
        let last = self.searched.lock().replace(Searched { renames, found: name.clone() });
        drop(last);
        Ok(name)
    }
}

/// A node, where it is mounted, and the name that led to it.
#[derive(Clone)]
pub struct Path {
    /// The mount it is seen through.
    pub mount: Arc<Mount>,
    /// The node.
    pub node: Arc<dyn Node>,
    /// How it was found; `None` for directories, which know that themselves, and for files without
    /// a name.
    pub entry: Option<Arc<PathEntry>>,
}

/// A path as text, and what is true of it.
pub struct Description {
    /// Absolute, without any mark.
    pub text: Vec<u8>,
    /// Whether its last name still is there.
    pub presence: Presence,
    /// Whether it leads to the root it was described from.
    pub reach: Reach,
}

/// Whether a place can be reached from a root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// The place is below the root.
    Inside,
    /// The place is outside a chroot, or in a mount that is attached nowhere.
    Outside,
}

impl Path {
    /// The root directory of `mount`.
    pub fn root_of(mount: Arc<Mount>) -> Self {
        let node = mount.root().clone();
        Self { mount, node, entry: None }
    }

    /// The place that is seen here: the root of the topmost mount over it, if there is one.
    pub fn topmost(mut self) -> Self {
        while let Some(covering) = self.mount.covering(&self.node) {
            self = Self::root_of(covering);
        }
        self
    }

    /// Whether both are the same node seen through the same mount.
    pub fn same_place(&self, other: &Path) -> bool {
        self.mount.is_same(&other.mount) && self.node.identity() == other.node.identity()
    }

    /// Whether it is where its mount begins.
    pub fn is_mount_root(&self) -> bool {
        self.node.identity() == self.mount.root().identity()
    }

    /// Whether a directory is at or below the root of its mount. It is not where another program
    /// moved it, or a directory above it, out of what a bind mount shows.
    ///
    /// # Errors
    /// `EINTR` if the caller is killed meanwhile.
    pub fn is_below_mount_root(&self) -> Result<bool> {
        Ok(self.mount.shows_all() || climb(self.node.clone(), &|node| node == self.mount.root().identity())?)
    }

    /// Whether a directory is at `top` or below it.
    ///
    /// # Errors
    /// `EINTR` if the caller is killed meanwhile.
    pub fn is_below(&self, top: &Self) -> Result<bool> {
        let mut here = self.clone();
        for step in 1.. {
            if step % STEPS == 0 {
                sched::checkpoint()?;
            }
            let is_top_mount = here.mount.is_same(&top.mount);
            if is_top_mount && climb(here.node, &|node| node == top.node.identity())? {
                return Ok(true);
            }
            match here.mount.mountpoint() {
                Some(below) => here = below,
                None => break,
            }
        }
        Ok(false)
    }

    /// The text of the path as seen from `root`, as /proc shows it: absolute, with " (deleted)"
    /// when the last name is gone.
    ///
    /// # Errors
    /// Those of [`Path::describe`].
    pub fn display(&self, root: &Path) -> Result<Vec<u8>> {
        let Description { mut text, presence, .. } = self.describe(root)?;
        if presence == Presence::Removed {
            text.try_extend_from_slice(b" (deleted)")?;
        }
        Ok(text)
    }

    /// The same; empty where it is longer than a path may be.
    ///
    /// # Errors
    /// The others of [`Path::describe`].
    pub fn display_short(&self, root: &Path) -> Result<Vec<u8>> {
        let text = self.display(root);
        if text.as_ref().is_err_and(|&error| error == Errno::ENAMETOOLONG) { Ok(Vec::new()) } else { text }
    }

    /// Whether it is a file that a mount lays over another: the place of that one is its name.
    fn is_bound_file(&self) -> bool {
        self.is_mount_root() && self.mount.mountpoint().is_some()
    }

    /// The text of a directory's path in its file system, whatever part of that its mount shows. A
    /// file that a mount shows alone has no name there: "/".
    pub fn within_file_system(&self) -> Result<Vec<u8>> {
        let (mut text, mut here) = (Vec::new(), self.node.clone());
        for step in 1.. {
            let Some(place) = here.parent() else { break };
            push_reversed(&mut text, &place.name)?;
            here = place.dir;
            if step % STEPS == 0 {
                sched::checkpoint()?;
            }
        }
        if text.is_empty() {
            text.try_push(b'/')?;
        }
        text.reverse();
        Ok(text)
    }

    /// The text of the path as seen from `root`.
    ///
    /// # Errors
    /// `ENAMETOOLONG` for one of [`PATH_MAX`] bytes or more; `EINTR` if the caller is killed
    /// meanwhile; `ENOMEM`.
    pub fn describe(&self, root: &Path) -> Result<Description> {
        // Built backwards: each name is pushed reversed, then the whole is turned round.
        let mut text = Vec::new();
        let mut presence = Presence::Linked;
        let mut reach = Reach::Inside;
        let mut here = self.clone();
        if let Some(entry) = &self.entry {
            presence = push_current_name(&mut text, entry, &self.node)?;
            here = Path { mount: here.mount, node: entry.dir.clone(), entry: None };
        } else if self.node.kind() != NodeKind::Directory && !self.is_bound_file() {
            // Made without a name (O_TMPFILE): Linux invents one from the inode number.
            let name = try_format!("#{}", self.node.identity().inode)?;
            push_reversed(&mut text, name.as_bytes())?;
            presence = Presence::Removed;
            here = Path::root_of(here.mount);
        }
        for step in 1.. {
            go_on(step, &text)?;
            if here.same_place(root) {
                break;
            }
            if here.is_mount_root() {
                let Some(below) = here.mount.mountpoint() else {
                    reach = Reach::Outside;
                    break;
                };
                here = match &below.entry {
                    // A file may be a mount point: its name counts.
                    Some(entry) => {
                        push_reversed(&mut text, &entry.name)?;
                        Path { mount: below.mount.clone(), node: entry.dir.clone(), entry: None }
                    }
                    None => below,
                };
            } else if let Some(place) = here.node.parent() {
                if place.presence == Presence::Removed {
                    presence = Presence::Removed;
                }
                push_reversed(&mut text, &place.name)?;
                here.node = place.dir;
            } else {
                // The file system's root, where the mount shows only a part that this is not in.
                let is_escaped = here.node.identity() == here.mount.file_system().root().identity();
                if is_escaped {
                    // Its names are none of the caller's.
                    text.clear();
                    reach = Reach::Outside;
                } else {
                    presence = Presence::Removed;
                }
                break;
            }
        }
        if text.is_empty() {
            text.try_push(b'/')?;
        }
        text.reverse();
        Ok(Description { text, presence, reach })
    }
}

/// Steps between looks at signals on the way up: a program chooses how deep a directory is.
const STEPS: usize = 64;

/// Whether a path that is `text` so far may become longer by another step.
fn go_on(step: usize, text: &[u8]) -> Result<()> {
    if text.len() >= PATH_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    if step % STEPS == 0 { sched::checkpoint() } else { Ok(()) }
}

/// Whether `is_it` holds for the identity of directory `node` or of one above it.
///
/// # Errors
/// `EINTR` if the caller is killed meanwhile.
fn climb(mut node: Arc<dyn Node>, is_it: &dyn Fn(Identity) -> bool) -> Result<bool> {
    for step in 1.. {
        if is_it(node.identity()) {
            return Ok(true);
        }
        let Some(parent) = node.parent_dir() else { break };
        node = parent;
        if step % STEPS == 0 {
            sched::checkpoint()?;
        }
    }
    Ok(false)
}

/// Adds what `node` is called now in the directory where it was found. Returns whether it still is
/// there. A renamed file is looked for among its directory's entries, one that moved elsewhere
/// counts as removed.
fn push_current_name(text: &mut Vec<u8>, entry: &PathEntry, node: &Arc<dyn Node>) -> Result<Presence> {
    if entry.leads_to(&entry.name, node) {
        push_reversed(text, &entry.name)?;
        return Ok(Presence::Linked);
    }
    // A file without any name is in no directory, which may be a large one.
    let other = if node.is_nameless() { None } else { entry.other_name_now(node, renames())? };
    match other {
        Some(name) => push_reversed(text, &name).map(|()| Presence::Linked),
        None => push_reversed(text, &entry.name).map(|()| Presence::Removed),
    }
}

fn push_reversed(text: &mut Vec<u8>, name: &[u8]) -> Result<()> {
    text.try_reserve(name.len() + 16)?;
    text.try_extend_from_slice(name)?;
    let start = text.len() - name.len();
    text[start..].reverse();
    Ok(text.try_push(b'/')?)
}
