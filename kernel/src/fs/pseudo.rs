//! Directories, files and links that only the kernel makes (/sys, the fixed part of /proc).
//!
//! The tree is made at boot, by drivers, and at each mount of /proc. Programs can write to files
//! that support it, and change nothing else. If there was no memory for an entry, the tree records
//! that ([`PseudoDir::is_complete`]).

use core::fmt::Display;
use core::ops::Bound;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use freehold_collections::{Arc, Box, Map, Receiver, Vec, Weak, reserve};
use spin::Once;

use super::clock;
use super::file::{DirEntry, File, Seekable};
use super::flags::OpenFlags;
use super::generated::{Generate, GeneratedFile, Parts, ShortLine, Text};
use super::node::{
    DirectoryPlace, Identity, Metadata, NewNode, Node, NodeKind, Presence, SetMetadata, Timestamp,
};
use crate::sync::SpinLock;
use crate::{Errno, Result};

/// The next inode number of kernel-made nodes. Those of processes are much larger.
static NEXT_INODE: AtomicU64 = AtomicU64::new(100);

/// An inode number that no other kernel-made node has.
pub fn new_inode() -> u64 {
    NEXT_INODE.fetch_add(1, Ordering::Relaxed)
}

pub use super::node::made_by_kernel as metadata;

/// Permits a truncation (a shell's ">"), which has no effect, and no other change.
pub fn set_metadata(change: &SetMetadata) -> Result<()> {
    let SetMetadata { mode, uid, gid, size: _, accessed: _, modified: _ } = change;
    if mode.is_some() || uid.is_some() || gid.is_some() { Err(Errno::EPERM) } else { Ok(()) }
}

/// Entries of a directory that appear and vanish, such as processes.
pub trait Dynamic: Send + Sync {
    /// Returns the node with the name `name` in `dir`.
    fn lookup(&self, dir: &Arc<PseudoDir>, name: &[u8]) -> Result<Arc<dyn Node>>;
    /// Calls `emit` with the entries with number `from` or more: number, name, inode number, DT_*
    /// value. `emit` returns `false` to stop.
    fn read_dir(&self, from: u64, emit: &mut dyn FnMut(u64, ShortLine, u64, u8) -> bool);
}

/// Positions of dynamic entries in listings begin here.
const DYNAMIC: u64 = 1 << 20;

/// State that the directories of a tree share.
struct Tree {
    device: u64,
    refusal: Refusal,
    /// Whether an entry could not be made.
    incomplete: AtomicBool,
}

/// A directory.
pub struct PseudoDir {
    tree: Arc<Tree>,
    identity: Identity,
    made: Timestamp,
    /// Permission bits.
    mode: AtomicU32,
    me: Weak<PseudoDir>,
    parent: Option<(Weak<PseudoDir>, Arc<[u8]>)>,
    /// Whether the fixed entry with a name is shown now; if not set, all entries are shown.
    filter: Once<fn(&[u8]) -> bool>,
    entries: SpinLock<Map<Arc<[u8]>, Arc<dyn Node>>>,
    dynamic: SpinLock<Option<Arc<dyn Dynamic>>>,
}

/// The error for programs that try to create a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// There is no such name, and there will never be one (`ENOENT`): /proc.
    NoSuchName,
    /// The creation is not permitted (`EACCES` for a file, else `EPERM`): /sys.
    NotPermitted,
}

impl Refusal {
    fn error(self, new: &NewNode) -> Errno {
        match (self, new.kind) {
            (Self::NoSuchName, _) => Errno::ENOENT,
            (Self::NotPermitted, NodeKind::Regular) => Errno::EACCES,
            (Self::NotPermitted, _) => Errno::EPERM,
        }
    }
}

impl PseudoDir {
    /// Makes the root of a tree with device number `device`.
    pub fn new_root(device: u64, refusal: Refusal) -> Arc<Self> {
        Self::make(reserve::arc(Tree { device, refusal, incomplete: AtomicBool::new(false) }), None)
    }

    fn make(tree: Arc<Tree>, parent: Option<(Weak<PseudoDir>, Arc<[u8]>)>) -> Arc<Self> {
        reserve::cyclic(|me| Self {
            identity: Identity { device: tree.device, inode: new_inode() },
            tree,
            made: clock::now(),
            mode: AtomicU32::new(0o555),
            me: me.clone(),
            parent,
            filter: Once::new(),
            entries: SpinLock::new(Map::new()),
            dynamic: SpinLock::new(None),
        })
    }

    /// Sets the permission bits; the default is 0555.
    pub fn set_mode(&self, mode: u32) {
        self.mode.store(mode, Ordering::Relaxed);
    }

    /// Whether there was memory for all entries of the tree so far.
    pub fn is_complete(&self) -> bool {
        !self.tree.incomplete.load(Ordering::Relaxed)
    }

    /// Returns the directory `name` in this one; makes it if it does not exist.
    pub fn dir(&self, name: &[u8]) -> Arc<PseudoDir> {
        if let Some(there) = self.entries.lock().get(name) {
            let any: &dyn core::any::Any = &**there;
            if let Some(there) = any.downcast_ref::<PseudoDir>().and_then(|dir| dir.me.upgrade()) {
                return there;
            }
        }
        let name = reserve::slice(name);
        let new = Self::make(self.tree.clone(), Some((self.me.clone(), name.clone())));
        self.put(name, new.clone());
        new
    }

    /// Returns the directory at `path` below this one; makes it and its parents if needed. A path
    /// is no longer than a [`ShortLine`].
    pub fn dirs(self: &Receiver<Self>, path: impl Display) -> Arc<PseudoDir> {
        let path = ShortLine::displaying(path);
        let parts = path.bytes().split(|&byte| byte == b'/').filter(|part| !part.is_empty());
        parts.fold(self.clone(), |dir, part| dir.dir(part))
    }

    /// Adds a node.
    pub fn add(&self, name: impl Display, node: Arc<dyn Node>) {
        self.put(reserve::slice(ShortLine::displaying(name).bytes()), node);
    }

    /// Removes the fixed entry `name`. Open files of it stay as they are.
    pub fn remove(&self, name: &[u8]) {
        let removed = self.entries.lock().remove(name);
        drop(removed);
    }

    fn put(&self, name: Arc<[u8]>, node: Arc<dyn Node>) {
        if self.entries.lock().try_insert(name, node).is_err() {
            self.tree.incomplete.store(true, Ordering::Relaxed);
        }
    }

    /// Adds a read-only file.
    pub fn file(&self, name: impl Display, show: impl Fn(&mut Text) -> Result<()> + Send + Sync + 'static) {
        self.generated(name, 0o444, show);
    }

    /// Adds a file with its own mode. It can be written if `source` supports that.
    pub fn generated(&self, name: impl Display, mode: u32, source: impl Generate + 'static) {
        let identity = Identity { device: self.identity.device, inode: new_inode() };
        let source: Arc<dyn Generate> = reserve::arc(source);
        self.add(name, reserve::arc(PseudoFile { identity, mode, made: self.made, source }));
    }

    /// Adds a file whose content is always `text` and a line feed.
    pub fn constant(&self, name: impl Display, text: impl Display + Send + Sync + 'static) {
        self.file(name, move |out| {
            writeln!(out, "{text}");
            Ok(())
        });
    }

    /// Adds a symbolic link. A target is no longer than a [`ShortLine`].
    pub fn link(&self, name: impl Display, target: impl Display) {
        let identity = Identity { device: self.identity.device, inode: new_inode() };
        let target = reserve::slice(ShortLine::displaying(target).bytes());
        self.add(name, reserve::arc(PseudoLink { identity, made: self.made, target }));
    }

    /// Makes `dynamic` provide the names that are not fixed.
    pub fn set_dynamic(&self, dynamic: Arc<dyn Dynamic>) {
        *self.dynamic.lock() = Some(dynamic);
    }

    /// Shows a fixed entry only while `is_there` returns `true` for its name, for entries whose
    /// objects appear and vanish. Called once.
    pub fn show_only(&self, is_there: fn(&[u8]) -> bool) {
        self.filter.call_once(|| is_there);
    }

    fn shows(&self, name: &[u8]) -> bool {
        self.filter.get().is_none_or(|is_there| is_there(name))
    }

    fn dynamic(&self) -> Option<Arc<dyn Dynamic>> {
        self.dynamic.lock().clone()
    }

    /// The fixed entry after `last`; for `None`, the first entry from number `from` on.
    fn next_entry(&self, from: u64, last: Option<&[u8]>) -> Option<(Arc<[u8]>, Arc<dyn Node>)> {
        let entries = self.entries.lock();
        let next = match last {
            Some(last) => entries.iter_from(Bound::Excluded(last)).find(|(name, _)| self.shows(name)),
            None => entries.iter().filter(|(name, _)| self.shows(name)).nth(usize::try_from(from).ok()?),
        };
        next.map(|(name, node)| (name.clone(), node.clone()))
    }
}

impl Node for PseudoDir {
    fn identity(&self) -> Identity {
        self.identity
    }

    fn kind(&self) -> NodeKind {
        NodeKind::Directory
    }

    fn metadata(&self) -> Metadata {
        metadata(self.identity, NodeKind::Directory, self.mode.load(Ordering::Relaxed), self.made)
    }

    fn open(self: Receiver<Self>, _flags: OpenFlags) -> Result<Arc<dyn File>> {
        Ok(self)
    }

    fn parent(&self) -> Option<DirectoryPlace> {
        let (parent, name) = self.parent.as_ref()?;
        Some(DirectoryPlace { dir: parent.upgrade()?, name: name.clone(), presence: Presence::Linked })
    }

    fn create(&self, _name: &[u8], new: &NewNode) -> Result<Arc<dyn Node>> {
        Err(self.tree.refusal.error(new))
    }

    fn symlink(&self, _name: &[u8], _target: &[u8], new: &NewNode) -> Result<Arc<dyn Node>> {
        Err(self.tree.refusal.error(new))
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Node>> {
        if let Some(there) = self.entries.lock().get(name) {
            return if self.shows(name) { Ok(there.clone()) } else { Err(Errno::ENOENT) };
        }
        let me = self.me.upgrade().ok_or(Errno::ENOENT)?;
        self.dynamic().ok_or(Errno::ENOENT)?.lookup(&me, name)
    }
}

impl File for PseudoDir {
    fn node(&self) -> Arc<dyn Node> {
        self.me.upgrade().expect("a node is only reached through an Arc of it")
    }

    fn seekable(&self) -> Seekable {
        Seekable::Offset
    }

    fn read_at(
        &self,
        _offset: u64,
        _sink: &mut dyn crate::user::Sink,
        _blocking: super::Blocking,
    ) -> Result<usize> {
        Err(Errno::EISDIR)
    }

    fn read_dir(&self, from: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let parent = self.parent().map_or(self.identity, |place| place.dir.identity());
        let mut at = from;
        if !emit_dots(&mut at, self.identity.inode, parent.inode, emit) {
            return Ok(());
        }
        let mut last = None;
        while at < DYNAMIC {
            let Some((name, node)) = self.next_entry(at - 2, last.as_deref()) else { break };
            at += 1;
            let (inode, kind) = (node.identity().inode, node.kind().dirent_kind());
            if !emit(DirEntry { name: &name, inode, kind, next: at }) {
                return Ok(());
            }
            last = Some(name);
        }
        let Some(dynamic) = self.dynamic() else { return Ok(()) };
        dynamic.read_dir(at.saturating_sub(DYNAMIC), &mut |number, name, inode, kind| {
            emit(DirEntry { name: name.bytes(), inode, kind, next: DYNAMIC + number + 1 })
        });
        Ok(())
    }
}

/// Emits "." and ".." if a listing from `at` still needs them. Returns `false` if `emit` stopped.
/// Afterwards `at` is 2 or more.
pub fn emit_dots(at: &mut u64, own: u64, parent: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> bool {
    let kind = NodeKind::Directory.dirent_kind();
    for (position, name, inode) in [(0, b".".as_slice(), own), (1, b"..", parent)] {
        if *at == position {
            if !emit(DirEntry { name, inode, kind, next: position + 1 }) {
                return false;
            }
            *at = position + 1;
        }
    }
    true
}

/// A file whose content is written when it is read.
pub struct PseudoFile {
    identity: Identity,
    mode: u32,
    made: Timestamp,
    source: Arc<dyn Generate>,
}

impl Generate for Arc<dyn Generate> {
    fn show(&self, text: &mut Text) -> Result<()> {
        (**self).show(text)
    }
    fn parts(&self) -> Option<Box<dyn Parts>> {
        (**self).parts()
    }
    fn store(&self, bytes: &[u8]) -> Result<()> {
        (**self).store(bytes)
    }
    fn truncate(&self) -> Result<()> {
        (**self).truncate()
    }
}

impl Node for PseudoFile {
    fn identity(&self) -> Identity {
        self.identity
    }

    fn kind(&self) -> NodeKind {
        NodeKind::Regular
    }

    fn metadata(&self) -> Metadata {
        metadata(self.identity, NodeKind::Regular, self.mode, self.made)
    }

    fn set_metadata(&self, change: &SetMetadata) -> Result<()> {
        set_metadata(change)?;
        if change.size == Some(0) { self.source.truncate() } else { Ok(()) }
    }

    fn open(self: Receiver<Self>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        // Root may open any file, but a file without write permission has no code for writes.
        if flags.writes() && self.mode & 0o222 == 0 {
            return Err(Errno::EACCES);
        }
        if flags.writes() {
            self.source.may_write()?;
        }
        let source = self.source.clone();
        Ok(GeneratedFile::new(self, source))
    }
}

/// A symbolic link.
struct PseudoLink {
    identity: Identity,
    made: Timestamp,
    target: Arc<[u8]>,
}

impl Node for PseudoLink {
    fn identity(&self) -> Identity {
        self.identity
    }

    fn kind(&self) -> NodeKind {
        NodeKind::Symlink
    }

    fn metadata(&self) -> Metadata {
        metadata(self.identity, NodeKind::Symlink, 0o777, self.made)
    }

    fn open(self: Receiver<Self>, _flags: OpenFlags) -> Result<Arc<dyn File>> {
        Err(Errno::ELOOP)
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        Ok(Vec::try_from_slice(&self.target)?)
    }
}
