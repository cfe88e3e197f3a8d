//! Inodes of a merged tree.
//!
//! An inode in use has one node, whether it has been copied up or not. The node is found by its
//! [`NodeKey`]: the identity of the inode in the uppermost lower tree that has it, if there is one.
//! Invariant: `upper` is set once and never changes. A node without `upper` is copied up under its
//! own name, so it knows that name.

use core::any::Any;
use core::sync::atomic::{AtomicBool, Ordering};

use freehold_collections::{
    Arc, Box, Receiver, Vec, Weak,
    reserve::{self, ArcMethods},
};

use super::file::{LowerFile, MergedDirectory};
use super::layers::{Below, UPPER_BIT};
use super::{ORIGIN, OverlayShared, PRIVATE, is_opaque, is_whiteout, looked_up};
use crate::fs::device;
use crate::fs::file::File;
use crate::fs::flags::{OpenFlags, RenameFlags};
use crate::fs::node::{
    DirectoryPlace, Identity, Metadata, Naming, NewNode, Node, NodeKind, Presence, SetMetadata, XattrSet,
    xattrs_without,
};
use crate::fs::notify;
use crate::fs::text::{Permit, Purpose};
use crate::sync::{Deferred, LetGo, Mutex, SpinLock, release};
use crate::{Errno, Result, sched, task};

/// The tree of an inode number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tree {
    Upper,
    /// The lower tree with this number, counted from the uppermost.
    Lower(usize),
}

/// Key by which a node is found.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NodeKey {
    is_upper: bool,
    inode: Identity,
    /// For a file with several names in its lower tree, each of which is copied up separately:
    /// directory and name.
    name: Option<(Identity, Arc<[u8]>)>,
}

/// Nodes of the trees at a visible name.
pub(super) enum Found {
    /// Only a node of the upper tree, perhaps copied from an inode of a lower one.
    Upper { upper: Arc<dyn Node>, origin: Option<(usize, Identity)> },
    /// Only nodes of lower trees: one inode, or directories, the uppermost first.
    Lower { lower: Vec<Below> },
    /// A directory of the upper tree, and the directories below it.
    Merged { upper: Arc<dyn Node>, lower: Vec<Below> },
}

/// Nodes of the trees at a name, visible or not.
pub(super) struct Entry {
    /// The upper tree's node, which may be a whiteout.
    pub upper: Option<Arc<dyn Node>>,
    /// The lower trees' nodes, even where the upper tree covers them: one inode, or directories,
    /// the uppermost first.
    pub lower: Vec<Below>,
}

impl Entry {
    /// Whether a whiteout removes the name.
    pub fn is_whiteout(&self) -> bool {
        self.upper.as_ref().is_some_and(|node| is_whiteout(&**node))
    }

    /// Whether nothing is visible at the name.
    pub fn is_free(&self) -> bool {
        self.is_whiteout() || (self.upper.is_none() && self.lower.is_empty())
    }
}

/// Where a node was found. It keeps the directory alive, to any depth. Dropping such a chain does
/// not recurse.
struct NamedPlace {
    dir: Option<Arc<OverlayNode>>,
    name: Arc<[u8]>,
    presence: Presence,
}

impl LetGo for NamedPlace {
    fn let_go(&mut self) {
        drop(self.dir.take());
    }
}

/// A node's own record of its place.
pub(super) struct Place {
    pub dir: Arc<OverlayNode>,
    pub name: Arc<[u8]>,
    pub presence: Presence,
}

/// An inode of a merged tree.
pub(super) struct OverlayNode {
    pub shared: Arc<OverlayShared>,
    me: Weak<Self>,
    key: NodeKey,
    identity: Identity,
    kind: NodeKind,
    upper: SpinLock<Option<Arc<dyn Node>>>,
    /// The lower trees' nodes: one inode, or directories, the uppermost first.
    lower: Vec<Below>,
    /// Whether the directory of the upper tree became opaque: nothing of the lower trees is visible
    /// in it any more.
    is_opaque: AtomicBool,
    /// Known for directories, and for nodes that may have to be copied up.
    place: SpinLock<Option<Box<Deferred<NamedPlace>>>>,
    pub turn: Mutex<()>,
}

impl OverlayShared {
    /// The identity that stat(2) shows for an inode of one of the trees.
    fn shown(&self, tree: Tree, inode: Identity) -> Identity {
        match tree {
            Tree::Upper => Identity { device: self.device, inode: inode.inode | UPPER_BIT },
            Tree::Lower(tree) => self.lower.shown(tree, inode.inode, self.device),
        }
    }

    /// The merged tree's inode number for a node of the lower tree `tree`.
    pub fn shown_of_lower(&self, tree: usize, inode: u64) -> u64 {
        self.lower.shown(tree, inode, self.device).inode
    }

    /// The merged tree's inode number for a node of the upper tree.
    pub fn shown_of_upper(&self, upper: &dyn Node) -> Result<u64> {
        Ok(match self.origin(upper)? {
            Some((tree, origin)) => self.shown(Tree::Lower(tree), origin).inode,
            None => self.shown(Tree::Upper, upper.identity()).inode,
        })
    }

    /// Returns the origin of a node that was copied up: the first tree on its device, and its
    /// inode.
    fn origin(&self, upper: &dyn Node) -> Result<Option<(usize, Identity)>> {
        let value = match upper.xattr(ORIGIN) {
            Ok(value) => value,
            Err(Errno::ENODATA | Errno::EOPNOTSUPP) => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some((device, inode)) = value.split_first_chunk::<8>() else { return Ok(None) };
        let Ok(inode) = <[u8; 8]>::try_from(inode) else { return Ok(None) };
        let origin = Identity { device: u64::from_le_bytes(*device), inode: u64::from_le_bytes(inode) };
        // The upper tree may have been mounted over other lower trees before: their numbers have no
        // meaning here.
        Ok(self.lower.on(origin.device).map(|tree| (tree, origin)))
    }

    /// The value of the attribute that identifies the original of a copy: `lower`.
    pub fn origin_of(lower: &dyn Node) -> [u8; 16] {
        let Identity { device, inode } = lower.identity();
        let mut value = [0; 16];
        value[..8].copy_from_slice(&device.to_le_bytes());
        value[8..].copy_from_slice(&inode.to_le_bytes());
        value
    }

    /// Returns the node for `found`, which was found in a directory under a name.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn node(
        self: &Arc<Self>,
        found: Found,
        place: Option<(&Arc<OverlayNode>, &[u8])>,
    ) -> Result<Arc<OverlayNode>> {
        let (upper, origin, lower) = match found {
            Found::Upper { upper, origin } => (Some(upper), origin, Vec::new()),
            Found::Merged { upper, lower } => (Some(upper), None, lower),
            Found::Lower { lower } => (None, None, lower),
        };
        let first = lower.first().map(|below| &below.node);
        let kind = upper.as_ref().or(first).ok_or(Errno::ENOENT)?.kind();
        let of_lower = lower.first().map(|below| (below.tree, below.node.identity())).or(origin);
        let (tree, inode) = match (of_lower, &upper) {
            (Some((tree, inode)), _) => (Tree::Lower(tree), inode),
            (None, Some(upper)) => (Tree::Upper, upper.identity()),
            (None, None) => return Err(Errno::ENOENT),
        };
        let is_one_of_many = upper.is_none() && first.is_some_and(|lower| has_other_names(&**lower));
        let name = place.filter(|_| is_one_of_many).map(|(dir, name)| (dir.identity, reserve::slice(name)));
        let key = NodeKey { is_upper: tree == Tree::Upper, inode, name };
        let known = self.nodes.lock().get(&key).and_then(|node| node.upgrade());
        if let Some(node) = known.filter(|node| node.is_of(kind, upper.as_ref())) {
            return Ok(node);
        }
        let identity = self.shown(tree, inode);
        let node = reserve::cyclic(|me| OverlayNode {
            shared: self.clone(),
            me: me.clone(),
            key: key.clone(),
            identity,
            kind,
            upper: SpinLock::new(upper),
            lower,
            is_opaque: AtomicBool::new(false),
            place: SpinLock::new(None),
            turn: Mutex::new(()),
        });
        if let Some((dir, name)) = place.filter(|_| node.lower().is_some() || kind == NodeKind::Directory) {
            node.set_place(dir, name);
        }
        // If two tasks find an inode at once, they must get the same node, since both must see a
        // copy-up. No node is dropped under the lock: its destructor takes the lock.
        let mut nodes = self.nodes.lock();
        let other = nodes.get(&key).and_then(|node| node.upgrade());
        let is_known = other.as_ref().is_some_and(|other| other.is_of(kind, node.upper().as_ref()));
        let before = if is_known { Ok(None) } else { nodes.try_insert(key, node.downgrade()) };
        drop(nodes);
        drop(before?);
        Ok(other.filter(|_| is_known).unwrap_or(node))
    }
}

/// Whether an inode of a lower tree has several names.
pub(super) fn has_other_names(lower: &dyn Node) -> bool {
    lower.kind() != NodeKind::Directory && lower.metadata().links > 1
}

impl OverlayNode {
    /// Whether this is the node for `found`: it has this kind and, if `found` is in the upper tree,
    /// this inode.
    fn is_of(&self, kind: NodeKind, found: Option<&Arc<dyn Node>>) -> bool {
        let same = |upper: Arc<dyn Node>| found.is_none_or(|found| found.identity() == upper.identity());
        self.kind == kind && self.upper().is_none_or(same)
    }

    pub fn me(&self) -> Arc<Self> {
        self.me.upgrade().expect("a node is only reached through an Arc of it")
    }

    /// The inode in the upper tree, if there is one.
    pub fn upper(&self) -> Option<Arc<dyn Node>> {
        self.upper.lock().clone()
    }

    /// Records the upper tree's inode after a copy-up. The caller has the node's turn.
    pub fn set_upper(&self, upper: Arc<dyn Node>) {
        let before = self.upper.lock().replace(upper);
        drop(before);
    }

    /// The uppermost lower tree's inode, if the lower trees' part is visible.
    pub fn lower(&self) -> Option<&Arc<dyn Node>> {
        self.all_lower().first().map(|below| &below.node)
    }

    /// The lower trees' inodes, if their part is visible, the uppermost first.
    pub fn all_lower(&self) -> &[Below] {
        if self.is_opaque.load(Ordering::Acquire) { &[] } else { &self.lower }
    }

    /// Notes that the lower trees' part is not visible from now on. The upper tree's directory has
    /// the attribute for this.
    pub fn set_opaque(&self) {
        self.is_opaque.store(true, Ordering::Release);
    }

    /// The inode from which reads are served.
    pub fn real(&self) -> Arc<dyn Node> {
        self.upper().or_else(|| self.lower().cloned()).expect("a node is in one of the trees")
    }

    pub fn is_directory(&self) -> bool {
        self.kind == NodeKind::Directory
    }

    pub fn place(&self) -> Option<Place> {
        let place = self.place.lock();
        let here = place.as_ref()?;
        Some(Place { dir: here.dir.clone()?, name: here.name.clone(), presence: here.presence })
    }

    /// Sets the node's place to `name` in `dir`.
    pub fn set_place(&self, dir: &Arc<Self>, name: &[u8]) {
        let here =
            NamedPlace { dir: Some(dir.clone()), name: reserve::slice(name), presence: Presence::Linked };
        let before = self.place.lock().replace(Deferred::new(here));
        if let Some(before) = before {
            release(before);
        }
    }

    /// Notes that the node's name was removed.
    pub fn lost_its_name(&self) {
        if let Some(here) = &mut *self.place.lock() {
            here.presence = Presence::Removed;
        }
    }

    /// Whether the node is a directory that was removed.
    pub fn is_removed(&self) -> bool {
        self.place.lock().as_ref().is_some_and(|here| here.presence == Presence::Removed)
    }

    /// Returns `node` as a node of this file system; `EXDEV` if it belongs to another.
    pub fn sibling(&self, node: &Arc<dyn Node>) -> Result<Arc<Self>> {
        let other = (&**node as &dyn Any).downcast_ref::<Self>();
        let other = other.filter(|other| other.shared.is_same(&self.shared));
        other.map(Self::me).ok_or(Errno::EXDEV)
    }

    /// Returns the trees' nodes at `name` in this directory.
    pub fn entry(&self, name: &[u8]) -> Result<Entry> {
        if !self.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        // The upper tree is looked up first. A file that is copied up meanwhile is then found in
        // the lower tree, where it still is.
        let upper = self.upper().map_or(Ok(None), |dir| looked_up(&*dir, name))?;
        let mut lower = Vec::new();
        for below in self.all_lower() {
            let Some(node) = looked_up(&*below.node, name)? else { continue };
            let is_directory = node.kind() == NodeKind::Directory;
            // A node that is no directory is visible alone, and hides the nodes below it.
            if is_whiteout(&*node) || (!is_directory && !lower.is_empty()) {
                break;
            }
            let is_last = below.tree + 1 == self.shared.lower.count();
            let hides_rest = !is_directory || (!is_last && is_opaque(&*node)?);
            lower.try_push(Below { tree: below.tree, node })?;
            if hides_rest {
                break;
            }
        }
        Ok(Entry { upper, lower })
    }

    /// The node at `name`; `ENOENT` if nothing is visible there.
    pub fn child(&self, name: &[u8]) -> Result<Arc<Self>> {
        sched::checkpoint()?;
        let entry = self.entry(name)?;
        self.node_at(entry, name)
    }

    /// The node for the trees' nodes at `name`.
    pub fn node_at(&self, entry: Entry, name: &[u8]) -> Result<Arc<Self>> {
        if entry.is_free() {
            return Err(Errno::ENOENT);
        }
        let Entry { upper, lower } = entry;
        let is_directory = lower.first().is_some_and(|below| below.node.kind() == NodeKind::Directory);
        let found = match upper {
            None => Found::Lower { lower },
            Some(upper) if is_directory && upper.kind() == NodeKind::Directory && !is_opaque(&*upper)? => {
                Found::Merged { upper, lower }
            }
            Some(upper) => {
                let origin = self.shared.origin(&*upper)?;
                Found::Upper { upper, origin }
            }
        };
        self.shared.node(found, Some((&self.me(), name)))
    }

    /// Changes the metadata of the upper tree's inode. If a file is cut, only the remaining part is
    /// copied up.
    fn change_metadata(&self, change: &SetMetadata) -> Result<()> {
        let Some(size) = change.size else { return self.copy_up(u64::MAX)?.set_metadata(change) };
        match self.kind {
            NodeKind::Regular => {}
            NodeKind::Directory => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
        let upper = self.copy_up(size)?;
        let _permit = Permit::new(&upper, Purpose::Write)?;
        upper.set_metadata(change)
    }
}

impl Drop for OverlayNode {
    fn drop(&mut self) {
        notify::inode_ended(self);
        let mut nodes = self.shared.nodes.lock();
        // Meanwhile another node with this key may have been entered.
        let gone = match nodes.get(&self.key) {
            Some(node) if node.strong_count() == 0 => nodes.remove(&self.key),
            _ => None,
        };
        drop(nodes);
        drop(gone);
        if let Some(place) = self.place.get_mut().take() {
            release(place);
        }
    }
}

impl Node for OverlayNode {
    fn identity(&self) -> Identity {
        self.identity
    }

    fn kind(&self) -> NodeKind {
        self.kind
    }

    /// A directory with parts in several trees has one link, as on Linux: its subdirectories are
    /// not counted.
    fn metadata(&self) -> Metadata {
        let parts = self.all_lower().len() + usize::from(self.upper().is_some());
        let is_merged = self.is_directory() && parts > 1;
        let told = self.real().metadata();
        let links = if is_merged && told.links > 0 { 1 } else { told.links };
        Metadata { device: self.identity.device, inode: self.identity.inode, links, ..told }
    }

    fn set_metadata(&self, change: &SetMetadata) -> Result<()> {
        self.change_metadata(change)
    }

    fn drop_rights(&self) -> Result<()> {
        match self.upper() {
            Some(upper) => upper.drop_rights(),
            None => task::drop_rights(self),
        }
    }

    /// A file that is only in the lower tree keeps its links there.
    fn is_nameless(&self) -> bool {
        let is_copied = !self.is_directory() && self.upper().is_some();
        self.metadata().links == 0 || (!is_copied && self.is_removed())
    }

    fn open(self: Receiver<Self>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        match self.kind {
            NodeKind::Regular => {
                if flags.writes() {
                    return self.copy_up(u64::MAX)?.open(flags);
                }
                match self.upper() {
                    Some(upper) => upper.open(flags),
                    None => LowerFile::open(self, flags),
                }
            }
            kind @ (NodeKind::CharDevice | NodeKind::BlockDevice) => {
                let rdev = self.metadata().rdev;
                device::open(self, kind, rdev, flags)
            }
            NodeKind::Fifo => device::open_fifo(self, flags),
            NodeKind::Directory => Ok(reserve::arc(MergedDirectory::new(self))),
            NodeKind::Socket => Err(Errno::ENXIO),
            NodeKind::Symlink => Err(Errno::ELOOP),
        }
    }

    fn parent(&self) -> Option<DirectoryPlace> {
        if !self.is_directory() {
            return None;
        }
        let Place { dir, name, presence } = self.place()?;
        Some(DirectoryPlace { dir, name, presence })
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Node>> {
        let node: Arc<dyn Node> = self.child(name)?;
        Ok(node)
    }

    fn create(&self, name: &[u8], new: &NewNode) -> Result<Arc<dyn Node>> {
        let made = self.make(name, new.kind, &|dir, name| dir.create(name, new))?;
        Ok(made)
    }

    fn create_unnamed(&self, new: &NewNode, naming: Naming) -> Result<Arc<dyn Node>> {
        let upper = self.copy_up(u64::MAX)?.create_unnamed(new, naming)?;
        let node: Arc<dyn Node> = self.shared.node(Found::Upper { upper, origin: None }, None)?;
        Ok(node)
    }

    fn symlink(&self, name: &[u8], target: &[u8], new: &NewNode) -> Result<Arc<dyn Node>> {
        let made = self.make(name, NodeKind::Symlink, &|dir, name| dir.symlink(name, target, new))?;
        Ok(made)
    }

    fn link(&self, name: &[u8], node: &Arc<dyn Node>) -> Result<()> {
        let node = self.sibling(node)?;
        let upper = match node.kind {
            NodeKind::Directory => return Err(Errno::EPERM),
            _ => node.copy_up(u64::MAX)?,
        };
        self.make(name, node.kind, &|dir, name| dir.link(name, &upper).map(|()| upper.clone())).map(drop)
    }

    fn unlink(&self, name: &[u8]) -> Result<()> {
        self.remove_file(name)
    }

    fn remove_dir(&self, name: &[u8]) -> Result<()> {
        self.remove_directory(name)
    }

    fn rename(
        &self,
        name: &[u8],
        new_parent: &Arc<dyn Node>,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        self.move_name(name, &self.sibling(new_parent)?, new_name, flags)
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        self.real().read_link()
    }

    fn xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        check_public(name)?;
        self.real().xattr(name)
    }

    fn set_xattr(&self, name: &[u8], value: &[u8], how: XattrSet) -> Result<()> {
        check_public(name)?;
        self.copy_up(u64::MAX)?.set_xattr(name, value, how)
    }

    fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        check_public(name)?;
        // Checked first: nothing is copied up for an attribute that does not exist.
        self.real().xattr(name)?;
        self.copy_up(u64::MAX)?.remove_xattr(name)
    }

    fn list_xattrs(&self) -> Result<Vec<u8>> {
        xattrs_without(&self.real().list_xattrs()?, PRIVATE)
    }
}

/// `EOPNOTSUPP` for attributes of the overlay itself.
fn check_public(name: &[u8]) -> Result<()> {
    if name.starts_with(PRIVATE) { Err(Errno::EOPNOTSUPP) } else { Ok(()) }
}
