//! An inode of a tmpfs.

use core::sync::atomic::{AtomicBool, Ordering};

use freehold_collections::{Arc, Receiver, Vec, Weak, reserve};

use super::TmpfsShared;
use super::attributes::Attributes;
use super::directory::Directory;
use super::regular::Regular;
use crate::fs::content::FileContent;
use crate::fs::file::{Blocking, DirEntry, File, MmapContent, Seekable};
use crate::fs::flags::{OpenFlags, RenameFlags};
use crate::fs::node::{
    DirectoryPlace, Identity, Metadata, Naming, NewNode, Node, NodeKind, Presence, SetMetadata, XattrSet,
};
use crate::fs::notify;
use crate::fs::rights;
use crate::fs::text::TextUse;
use crate::sync::{SpinLock, SpinLockGuard};
use crate::user::{Sink, Source};
use crate::{Errno, Result, sched, task};

/// Size of an entry in its directory's size (Linux' BOGO_DIRENT_SIZE).
const ENTRY_SIZE: u64 = 20;
/// Number of entries that are listed per acquisition of the lock.
const LISTED_AT_ONCE: usize = 64;

/// The place of a directory. Weak: the parent holds the child.
struct Whereabouts {
    parent: Weak<TmpNode>,
    name: Arc<[u8]>,
    presence: Presence,
}

enum Body {
    Regular(Regular),
    Directory { names: SpinLock<Directory>, place: SpinLock<Option<Whereabouts>> },
    Symlink(Vec<u8>),
    Special { rdev: u64 },
}

/// An inode in memory.
pub struct TmpNode {
    pub(super) shared: Arc<TmpfsShared>,
    pub(super) me: Weak<TmpNode>,
    pub(super) inode: u64,
    pub(super) kind: NodeKind,
    attributes: SpinLock<Attributes>,
    /// Whether the mode has [`rights`]. Changes with the mode, under the attributes' lock.
    carries_rights: AtomicBool,
    /// Whether link(2) may give the node its first name: it was made without one.
    may_get_name: AtomicBool,
    /// Whether the node may be in the table of handles.
    pub(super) has_handle: AtomicBool,
    body: Body,
}

impl TmpNode {
    /// Makes a nameless node.
    pub(super) fn new(shared: &Arc<TmpfsShared>, new: &NewNode) -> Result<Arc<Self>> {
        let body = match new.kind {
            NodeKind::Regular => Body::Regular(Regular::new(shared)?),
            NodeKind::Directory => {
                Body::Directory { names: SpinLock::new(Directory::new()), place: SpinLock::new(None) }
            }
            NodeKind::Symlink => return Err(Errno::EINVAL),
            _ => Body::Special { rdev: new.rdev },
        };
        Self::with_body(shared, new, body)
    }

    fn with_body(shared: &Arc<TmpfsShared>, new: &NewNode, body: Body) -> Result<Arc<Self>> {
        let inode = shared.new_inode()?;
        Ok(reserve::cyclic(|me| Self {
            shared: shared.clone(),
            me: me.clone(),
            inode,
            kind: new.kind,
            attributes: SpinLock::new(Attributes::new(new, 0)),
            carries_rights: AtomicBool::new(rights::in_mode(new.mode)),
            may_get_name: AtomicBool::new(false),
            has_handle: AtomicBool::new(false),
            body,
        }))
    }

    /// Makes the node the root of its file system: it is its own parent.
    pub(super) fn become_root(&self) {
        self.attributes.lock().links = 2;
    }

    pub(super) fn set_mode(&self, mode: u32) {
        self.attributes.lock().mode = mode;
    }

    /// Allows seals, with the seals `first` set: for a new memfd.
    pub fn allow_sealing(&self, first: u32) {
        if let Some(regular) = self.regular() {
            regular.seals().open(first);
        }
    }

    /// The file of a regular node.
    pub(super) fn regular(&self) -> Option<&Regular> {
        match &self.body {
            Body::Regular(regular) => Some(regular),
            _ => None,
        }
    }

    fn names(&self) -> Result<&SpinLock<Directory>> {
        match &self.body {
            Body::Directory { names, .. } => Ok(names),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn me(&self) -> Arc<TmpNode> {
        self.me.upgrade().expect("a node is only reached through an Arc of it")
    }

    /// Returns `node` as a node of this file system; `EXDEV` if it belongs to another.
    fn sibling(&self, node: &Arc<dyn Node>) -> Result<Arc<TmpNode>> {
        let node = Self::of(node).filter(|node| node.is_in(&self.shared));
        node.map(Self::me).ok_or(Errno::EXDEV)
    }

    fn is_directory(&self) -> bool {
        self.kind == NodeKind::Directory
    }

    /// Notes that the directory `self` now has `child` as `name`.
    fn adopt(&self, child: &TmpNode, name: Arc<[u8]>) {
        if let Body::Directory { place, .. } = &child.body {
            let whereabouts = Whereabouts { parent: self.me.clone(), name, presence: Presence::Linked };
            *place.lock() = Some(whereabouts);
        }
    }

    fn add(&self, name: &[u8], child: Arc<TmpNode>) -> Result<Arc<dyn Node>> {
        let mut names = self.names()?.lock();
        names.check_free(name)?;
        let name = names.insert(name, child.clone())?;
        self.adopt(&child, name);
        child.attributes.lock().links += if child.is_directory() { 2 } else { 1 };
        self.entries_changed(if child.is_directory() { 1 } else { 0 });
        Ok(child)
    }

    /// Returns the node that a rename leaves at the old name, if any.
    fn left_behind(&self, flags: RenameFlags) -> Result<Option<Arc<TmpNode>>> {
        if !flags.contains(RenameFlags::WHITEOUT) {
            return Ok(None);
        }
        let whiteout = TmpNode::new(&self.shared, &NewNode::WHITEOUT)?;
        whiteout.attributes.lock().links = 1;
        Ok(Some(whiteout))
    }

    /// Notes that names were added or removed; `directories` is the change in the number of
    /// subdirectories.
    fn entries_changed(&self, directories: i32) {
        let mut attributes = self.attributes.lock();
        attributes.links = attributes.links.saturating_add_signed(directories);
        attributes.touch();
    }

    /// Locks the names of two directories. The lower inode number is first, as for all pairs of
    /// directories.
    fn lock_both<'a>(&'a self, other: &'a Self) -> Result<[SpinLockGuard<'a, Directory>; 2]> {
        let (ours, theirs) = (self.names()?, other.names()?);
        if self.inode < other.inode {
            let ours = ours.lock();
            Ok([ours, theirs.lock()])
        } else {
            let theirs = theirs.lock();
            Ok([ours.lock(), theirs])
        }
    }

    /// Notes that `moving` was moved from here to `other`. `came` is the number of directories that
    /// came here in exchange, `went` the number that left `other`.
    fn has_moved(&self, other: &Self, moving: &Self, [came, went]: [i32; 2]) {
        let moved = i32::from(moving.is_directory());
        self.entries_changed(came - moved);
        other.entries_changed(moved - went);
        moving.attributes.lock().changed = crate::fs::clock::now();
    }

    /// Notes that `self` has one name less. A directory's only name is gone then. The caller has
    /// the parent locked.
    fn lose_name(&self) {
        let mut attributes = self.attributes.lock();
        attributes.changed = crate::fs::clock::now();
        if let Body::Directory { place, .. } = &self.body {
            attributes.links = 0;
            if let Some(whereabouts) = &mut *place.lock() {
                whereabouts.presence = Presence::Removed;
            }
        } else {
            attributes.links -= 1;
        }
    }

    /// If `self` is above `other`, returns the inode of the entry of `self` that leads to `other`.
    /// The caller holds `TmpfsShared::renames`, and no directory: there may be many levels.
    fn entry_towards(&self, other: &Arc<TmpNode>) -> Option<u64> {
        let mut here = other.clone();
        loop {
            sched::rest();
            let Body::Directory { place, .. } = &here.body else { return None };
            let parent = place.lock().as_ref().and_then(|whereabouts| whereabouts.parent.upgrade())?;
            if parent.inode == self.inode {
                return Some(here.inode);
            }
            here = parent;
        }
    }

    /// Checks that `moving` may be moved from here to another directory. The two inodes are the
    /// entry here that leads to the other directory, and the entry there that leads here.
    fn check_move(
        [to_other, to_self]: [Option<u64>; 2],
        moving: &TmpNode,
        victim: Option<&Arc<TmpNode>>,
        flags: RenameFlags,
    ) -> Result<()> {
        let exchanges = flags.contains(RenameFlags::EXCHANGE);
        if victim.is_some() && flags.intersects(RenameFlags::NOREPLACE | RenameFlags::FREE) {
            return Err(Errno::EEXIST);
        }
        if victim.is_none() && exchanges {
            return Err(Errno::ENOENT);
        }
        // A directory cannot be moved into itself or a directory below it. With an exchange this
        // holds for the other directory as well. Without one, a victim that is the old directory,
        // or above it, is not empty.
        if to_other == Some(moving.inode) {
            return Err(Errno::EINVAL);
        }
        match victim.filter(|victim| to_self == Some(victim.inode)) {
            Some(_) if exchanges => Err(Errno::EINVAL),
            Some(_) => Err(Errno::ENOTEMPTY),
            None => Ok(()),
        }
    }

    /// Checks that `replacement` may replace `victim` (rename over a name). A replaced directory is
    /// marked as removed.
    fn yield_to(victim: &TmpNode, replacement: &TmpNode) -> Result<()> {
        match (&victim.body, replacement.is_directory()) {
            (Body::Directory { .. }, false) => Err(Errno::EISDIR),
            (Body::Directory { names, .. }, true) => {
                let mut names = names.lock();
                if !names.is_empty() {
                    return Err(Errno::ENOTEMPTY);
                }
                names.set_removed();
                Ok(())
            }
            (_, true) => Err(Errno::ENOTDIR),
            (_, false) => Ok(()),
        }
    }
}

impl Drop for TmpNode {
    fn drop(&mut self) {
        notify::inode_ended(self);
        if *self.has_handle.get_mut() {
            self.shared.handles.forget(self.inode);
        }
        self.shared.inodes.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Node for TmpNode {
    fn identity(&self) -> Identity {
        Identity { device: self.shared.device, inode: self.inode }
    }

    fn kind(&self) -> NodeKind {
        self.kind
    }

    fn metadata(&self) -> Metadata {
        let (size, held) = match &self.body {
            Body::Regular(regular) => (regular.content().size(), regular.content().held()),
            Body::Directory { names, .. } => ((names.lock().len() as u64 + 2) * ENTRY_SIZE, 0),
            Body::Symlink(target) => (target.len() as u64, 0),
            Body::Special { .. } => (0, 0),
        };
        let rdev = if let Body::Special { rdev } = self.body { rdev } else { 0 };
        let told = self.attributes.lock().metadata(self.identity(), self.kind);
        Metadata { rdev, size, blocks: held / 512, block_size: self.shared.unit as u32, ..told }
    }

    fn set_metadata(&self, change: &SetMetadata) -> Result<()> {
        if let Some(size) = change.size {
            let regular = match &self.body {
                Body::Regular(regular) => regular,
                Body::Directory { .. } => return Err(Errno::EISDIR),
                _ => return Err(Errno::EINVAL),
            };
            regular.resize(&self.shared, size)?;
            self.attributes.lock().touch();
        }
        let mut attributes = self.attributes.lock();
        if let (Some(mode), Some(regular)) = (change.mode, self.regular()) {
            regular.seals().check_mode(attributes.mode, mode.of(attributes.mode))?;
        }
        attributes.change(change);
        self.carries_rights.store(rights::in_mode(attributes.mode), Ordering::Relaxed);
        Ok(())
    }

    #[inline]
    fn drop_rights(&self) -> Result<()> {
        if self.carries_rights.load(Ordering::Relaxed) { task::drop_rights(self) } else { Ok(()) }
    }

    fn text_use(&self) -> Option<&TextUse> {
        self.regular().map(Regular::text_use)
    }

    fn may_be_leased(&self) -> bool {
        self.regular().is_some()
    }

    fn open(self: Receiver<Self>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        match self.kind {
            NodeKind::Regular | NodeKind::Directory => Ok(self),
            NodeKind::Symlink => Err(Errno::ELOOP),
            NodeKind::Socket => Err(Errno::ENXIO),
            NodeKind::Fifo => crate::fs::device::open_fifo(self, flags),
            kind @ (NodeKind::CharDevice | NodeKind::BlockDevice) => {
                let Body::Special { rdev } = self.body else { return Err(Errno::ENXIO) };
                crate::fs::device::open(self, kind, rdev, flags)
            }
        }
    }

    fn parent(&self) -> Option<DirectoryPlace> {
        let Body::Directory { place, .. } = &self.body else { return None };
        let place = place.lock();
        let here = place.as_ref()?;
        Some(DirectoryPlace { dir: here.parent.upgrade()?, name: here.name.clone(), presence: here.presence })
    }

    fn parent_dir(&self) -> Option<Arc<dyn Node>> {
        let Body::Directory { place, .. } = &self.body else { return None };
        let parent: Arc<dyn Node> = place.lock().as_ref()?.parent.upgrade()?;
        Some(parent)
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Node>> {
        let names = self.names()?.lock();
        Ok(names.get(name)?.clone())
    }

    fn create(&self, name: &[u8], new: &NewNode) -> Result<Arc<dyn Node>> {
        // Refused before an inode is made; checked again when the name is added.
        self.names()?.lock().check_free(name)?;
        self.add(name, TmpNode::new(&self.shared, new)?)
    }

    fn create_unnamed(&self, new: &NewNode, naming: Naming) -> Result<Arc<dyn Node>> {
        let node = TmpNode::new(&self.shared, new)?;
        node.may_get_name.store(naming == Naming::Later, Ordering::Relaxed);
        Ok(node)
    }

    fn symlink(&self, name: &[u8], target: &[u8], new: &NewNode) -> Result<Arc<dyn Node>> {
        let new = NewNode { kind: NodeKind::Symlink, ..*new };
        self.add(name, TmpNode::with_body(&self.shared, &new, Body::Symlink(Vec::try_from_slice(target)?))?)
    }

    fn link(&self, name: &[u8], node: &Arc<dyn Node>) -> Result<()> {
        let node = self.sibling(node)?;
        if node.is_directory() {
            return Err(Errno::EPERM);
        }
        let mut names = self.names()?.lock();
        names.check_free(name)?;
        let mut attributes = node.attributes.lock();
        // A file whose last name was removed cannot get another one.
        if attributes.links == 0 && !node.may_get_name.load(Ordering::Relaxed) {
            return Err(Errno::ENOENT);
        }
        names.insert(name, node.clone())?;
        node.may_get_name.store(false, Ordering::Relaxed);
        attributes.links += 1;
        attributes.changed = crate::fs::clock::now();
        drop(attributes);
        self.entries_changed(0);
        Ok(())
    }

    fn unlink(&self, name: &[u8]) -> Result<()> {
        let gone = {
            let mut names = self.names()?.lock();
            if names.get(name)?.is_directory() {
                return Err(Errno::EISDIR);
            }
            let gone = names.remove(name)?;
            gone.lose_name();
            self.entries_changed(0);
            gone
        };
        // The last name may have been the last reference: frames are freed outside the lock.
        drop(gone);
        Ok(())
    }

    fn remove_dir(&self, name: &[u8]) -> Result<()> {
        let gone = {
            let mut names = self.names()?.lock();
            let victim = names.get(name)?.clone();
            {
                let mut inner = victim.names()?.lock();
                if !inner.is_empty() {
                    return Err(Errno::ENOTEMPTY);
                }
                inner.set_removed();
            }
            names.remove(name)?;
            victim.lose_name();
            self.entries_changed(-1);
            victim
        };
        drop(gone);
        Ok(())
    }

    fn rename(
        &self,
        name: &[u8],
        new_parent: &Arc<dyn Node>,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        let other = self.sibling(new_parent)?;
        if other.inode == self.inode {
            return self.rename_here(name, new_name, flags);
        }
        let left = self.left_behind(flags)?;
        let _renames = self.shared.renames.lock();
        let ways = [self.entry_towards(&other), other.entry_towards(&self.me())];
        let [mut from, mut to] = self.lock_both(&other)?;
        let moving = from.get(name)?.clone();
        let victim = to.get(new_name).ok().cloned();
        if to.is_removed() {
            return Err(Errno::ENOENT);
        }
        Self::check_move(ways, &moving, victim.as_ref(), flags)?;
        if let Some(victim) = victim.as_ref().filter(|_| flags.contains(RenameFlags::EXCHANGE)) {
            self.adopt(victim, from.replace(name, victim.clone())?);
            other.adopt(&moving, to.replace(new_name, moving.clone())?);
            let came = i32::from(victim.is_directory());
            self.has_moved(&other, &moving, [came, came]);
            return Ok(());
        }
        let mut replaced = 0;
        let new_name = if let Some(victim) = &victim {
            if victim.inode == moving.inode {
                return Ok(());
            }
            TmpNode::yield_to(victim, &moving)?;
            let new_name = to.replace(new_name, moving.clone())?;
            victim.lose_name();
            replaced = i32::from(victim.is_directory());
            new_name
        } else {
            to.insert(new_name, moving.clone())?
        };
        leave(&mut from, name, left)?;
        other.adopt(&moving, new_name);
        self.has_moved(&other, &moving, [0, replaced]);
        drop((from, to));
        drop(victim);
        Ok(())
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        match &self.body {
            Body::Symlink(target) => {
                self.attributes.lock().was_read();
                Ok(target.try_clone()?)
            }
            _ => Err(Errno::EINVAL),
        }
    }

    fn xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.attributes.lock().xattr(name)
    }

    fn set_xattr(&self, name: &[u8], value: &[u8], how: XattrSet) -> Result<()> {
        self.attributes.lock().set_xattr(name, value, how)
    }

    fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        self.attributes.lock().remove_xattr(name)
    }

    fn list_xattrs(&self) -> Result<Vec<u8>> {
        self.attributes.lock().xattr_names()
    }
}

impl TmpNode {
    fn rename_here(&self, name: &[u8], new_name: &[u8], flags: RenameFlags) -> Result<()> {
        let left = self.left_behind(flags)?;
        let mut names = self.names()?.lock();
        let moving = names.get(name)?.clone();
        let victim = names.get(new_name).ok().cloned();
        if victim.is_some() && flags.intersects(RenameFlags::NOREPLACE | RenameFlags::FREE) {
            return Err(Errno::EEXIST);
        }
        if flags.contains(RenameFlags::EXCHANGE) {
            let victim = victim.ok_or(Errno::ENOENT)?;
            self.adopt(&victim, names.replace(name, victim.clone())?);
            self.adopt(&moving, names.replace(new_name, moving.clone())?);
            self.entries_changed(0);
            return Ok(());
        }
        let new_name = match &victim {
            Some(victim) if victim.inode == moving.inode => return Ok(()),
            Some(victim) => {
                TmpNode::yield_to(victim, &moving)?;
                let new_name = names.replace(new_name, moving.clone())?;
                victim.lose_name();
                self.entries_changed(-i32::from(victim.is_directory()));
                new_name
            }
            None => names.insert(new_name, moving.clone())?,
        };
        leave(&mut names, name, left)?;
        self.adopt(&moving, new_name);
        self.entries_changed(0);
        moving.attributes.lock().changed = crate::fs::clock::now();
        drop(names);
        drop(victim);
        Ok(())
    }
}

/// Removes the old name of a moved node, or makes it lead to the node that is left in its place.
fn leave(names: &mut Directory, name: &[u8], left: Option<Arc<TmpNode>>) -> Result<()> {
    match left {
        Some(left) => names.replace(name, left).map(drop),
        None => names.remove(name).map(drop),
    }
}

impl File for TmpNode {
    fn node(&self) -> Arc<dyn Node> {
        self.me()
    }

    fn seekable(&self) -> Seekable {
        Seekable::Offset
    }

    fn read_at(&self, offset: u64, sink: &mut dyn Sink, _blocking: Blocking) -> Result<usize> {
        let regular = self.regular().ok_or(Errno::EISDIR)?;
        let n = regular.content().read_at(offset, sink)?;
        self.attributes.lock().was_read();
        Ok(n)
    }

    fn write_at(&self, offset: u64, source: &mut dyn Source, _blocking: Blocking) -> Result<usize> {
        let regular = self.regular().ok_or(Errno::EISDIR)?;
        let n = regular.write(&self.shared, Some(offset), source)?.0;
        self.attributes.lock().touch();
        Ok(n)
    }

    fn append(&self, source: &mut dyn Source, _blocking: Blocking) -> Result<(usize, u64)> {
        let regular = self.regular().ok_or(Errno::EISDIR)?;
        let written = regular.write(&self.shared, None, source)?;
        self.attributes.lock().touch();
        Ok(written)
    }

    fn read_dir(&self, from: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let names = self.names()?;
        let kind = NodeKind::Directory.dirent_kind();
        if from == 0 && !emit(DirEntry { name: b".", inode: self.inode, kind, next: 1 }) {
            return Ok(());
        }
        if from <= 1 {
            let parent = self.parent().map_or(self.inode, |place| place.dir.identity().inode);
            if !emit(DirEntry { name: b"..", inode: parent, kind, next: 2 }) {
                return Ok(());
            }
        }
        // `emit` gathers entries in kernel memory and does not sleep. The lock is held for a few
        // entries at a time.
        let mut next = Some(from.max(2));
        while let Some(position) = next {
            next = names.lock().list(position, LISTED_AT_ONCE, |at, entry| {
                let kind = entry.kind.dirent_kind();
                emit(DirEntry { name: &entry.name, inode: entry.inode, kind, next: at + 1 })
            });
            sched::rest();
        }
        self.attributes.lock().was_read();
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn mapping(&self) -> Result<MmapContent> {
        self.regular().map(|regular| MmapContent::Content(regular.content().clone())).ok_or(Errno::ENODEV)
    }

    fn unit(&self) -> u64 {
        self.shared.unit
    }

    fn drop_rights(&self) -> Result<()> {
        Node::drop_rights(self)
    }

    fn content(&self) -> Option<Arc<dyn FileContent>> {
        self.regular().map(|regular| regular.content().clone())
    }

    fn allocate(&self, range: core::ops::Range<u64>, how: crate::fs::file::Allocate) -> Result<()> {
        let regular = self.regular().ok_or(Errno::ENODEV)?;
        regular.allocate(&self.shared, range, how)?;
        self.attributes.lock().touch();
        Ok(())
    }

    fn add_seals(&self, bits: u32) -> Result<()> {
        let mode = self.attributes.lock().mode;
        self.regular().ok_or(Errno::EINVAL)?.add_seals(bits, mode)
    }

    fn seals(&self) -> Option<u32> {
        self.regular().map(|regular| regular.seals().bits())
    }
}
