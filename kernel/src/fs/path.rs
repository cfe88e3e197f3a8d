//! A place in the tree of names.
//!
//! There is no tree of directory entries (dentries) besides the file systems' own. A directory
//! knows its parent and its name in it ([`Node::parent`]). Any other file's path has the entry by
//! which the file was found. So a rename of a directory shows at once in its path; for other files
//! [`Path::display`] looks the name up again.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_collections::{
    Arc, Vec,
    reserve::{self, ArcMethods},
    try_format,
};

use super::flags::OpenFlags;
use super::mount::{Mount, MountRef};
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
    /// The number of renames before the search.
    renames: u64,
    /// The name; `None` if the file had no other name in the directory.
    found: Option<Arc<[u8]>>,
}

impl PathEntry {
    /// Makes an entry of `dir`.
    #[inline]
    pub fn new(dir: Arc<dyn Node>, name: Vec<u8>) -> Self {
        Self { dir, name, checked: AtomicU64::new(0), searched: SpinLock::new(None) }
    }

    /// Returns another name of `node` among the directory's entries. There may be many entries, so
    /// they are searched again only after a rename (a new value of `renames`).
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
            // If the directory cannot be listed, no other name is found.
            let _ = dir.read_dir(0, &mut |candidate| {
                let is_name = candidate.name != b"." && candidate.name != b"..";
                // A damaged disk may have longer names, which lead nowhere.
                if candidate.inode == inode && is_name && candidate.name.len() <= reserve::SLICE_MOST {
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

/// A node, the mount, and the name that led to the node.
#[derive(Clone)]
pub struct Path {
    /// The mount through which the node is seen.
    pub mount: MountRef,
    /// The node.
    pub node: Arc<dyn Node>,
    /// The entry by which the node was found; `None` for directories, which know their place
    /// themselves, and for nameless files.
    pub entry: Option<Arc<PathEntry>>,
}

/// A path as text, and its state.
pub struct Description {
    /// Absolute path, without a mark such as " (deleted)".
    pub text: Vec<u8>,
    /// Whether the path's last name still exists.
    pub presence: Presence,
    /// Whether the place is below the root from which it was described.
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
        Self::at_root(MountRef::new(mount))
    }

    fn at_root(mount: MountRef) -> Self {
        let node = mount.root().clone();
        Self { mount, node, entry: None }
    }

    /// The place that is visible here: the root of the topmost mount over it, if there is one.
    ///
    /// # Errors
    /// `EINTR` if the caller is killed meanwhile.
    pub fn topmost(mut self) -> Result<Self> {
        let mut steps = WalkSteps::default();
        while let Some(covering) = self.mount.covering(&self.node) {
            steps.advance()?;
            self = Self::root_of(covering);
        }
        Ok(self)
    }

    /// Whether both are the same node seen through the same mount.
    pub fn same_place(&self, other: &Path) -> bool {
        self.mount.is_same(&other.mount) && self.node.identity() == other.node.identity()
    }

    /// Whether the place is the root of its mount.
    pub fn is_mount_root(&self) -> bool {
        self.node.identity() == self.mount.root().identity()
    }

    /// Whether a directory is at or below the root of its mount. It may not be: another program may
    /// have moved it, or a directory above it, out of the part that a bind mount shows.
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

    /// The text of the path as seen from `root`, as /proc shows it: absolute, with " (deleted)" if
    /// the last name was removed.
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

    /// Like [`Path::display`]; empty if the text is longer than a path may be.
    ///
    /// # Errors
    /// The others of [`Path::describe`].
    pub fn display_short(&self, root: &Path) -> Result<Vec<u8>> {
        let text = self.display(root);
        if text.as_ref().is_err_and(|&error| error == Errno::ENAMETOOLONG) { Ok(Vec::new()) } else { text }
    }

    /// Whether the place is a file that is bind-mounted over another file. Its name is then that of
    /// the covered file.
    fn is_bound_file(&self) -> bool {
        self.is_mount_root() && self.mount.mountpoint().is_some()
    }

    /// The text of a directory's path in its file system, whichever part of it the mount shows. A
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
    /// `ENAMETOOLONG` for a text of [`PATH_MAX`] bytes or more; `EINTR` if the caller is killed
    /// meanwhile; `ENOMEM`.
    pub fn describe(&self, root: &Path) -> Result<Description> {
        // Built backwards: each name is pushed reversed, then the whole text is reversed.
        let mut text = Vec::new();
        let mut presence = Presence::Linked;
        let mut reach = Reach::Inside;
        let mut here = self.clone();
        if let Some(entry) = &self.entry {
            presence = push_current_name(&mut text, entry, &self.node)?;
            here = Path { mount: here.mount, node: entry.dir.clone(), entry: None };
        } else if self.node.kind() != NodeKind::Directory && !self.is_bound_file() {
            // Made without a name (O_TMPFILE): like Linux, makes a name from the inode number.
            let name = try_format!("#{}", self.node.identity().inode)?;
            push_reversed(&mut text, name.as_bytes())?;
            presence = Presence::Removed;
            here = Path::at_root(here.mount);
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
                    // A file may be a mount point: then the name of the covered file is used.
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
                // The walk reached the file system's root, and the mount shows only a part to which
                // this place does not belong.
                let is_escaped = here.node.identity() == here.mount.file_system().root().identity();
                if is_escaped {
                    // The caller may not see these names.
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

/// Number of steps between two checks for signals: a program chooses the depth of a directory, and
/// how many mounts cover a place.
const STEPS: usize = 64;

/// The steps of a walk over names or mounts. Each 64th one lets other tasks run.
#[derive(Debug, Default)]
pub struct WalkSteps(usize);

impl WalkSteps {
    /// Makes one more step. The caller holds no spin lock.
    ///
    /// # Errors
    /// `EINTR` if the caller is killed.
    #[inline]
    pub fn advance(&mut self) -> Result<()> {
        self.0 += 1;
        if self.0 % STEPS == 0 { sched::checkpoint() } else { Ok(()) }
    }
}

/// Checks whether a path with the present text `text` may become longer by another step.
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

/// Adds the present name of `node` in the directory in which it was found. Returns whether the name
/// still exists. A renamed file is searched among its directory's entries. A file that was moved to
/// another directory counts as removed.
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
