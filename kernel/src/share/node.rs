//! Inodes of a share.
//!
//! There is one node for each number that the server gives (`qid.path`), under all names by which
//! it is found; requests use the latest name. So each file has one page cache, and a running
//! program keeps others from writing to its file.

use core::sync::atomic::{AtomicBool, Ordering};

use freehold_collections::reserve::{self, ArcMethods};
use freehold_collections::{Arc, Box, Receiver, Vec, Weak};
use freehold_ninep::{Attributes, NewAttributes, Qid};

use super::Share;
use super::fids::Fid;
use super::file::{DirectoryFile, RegularFile};
use super::identity::{self, AtomicStanding, Known, Standing, Whereabouts};
use super::store::Store;
use crate::fs::clock;
use crate::fs::device::{make_device, open_special};
use crate::fs::flags::RenameFlags;
use crate::fs::node::{
    DirectoryPlace, Identity, Metadata, ModeChange, NewNode, Node, NodeKind, Presence, SetMetadata,
};
use crate::fs::notify;
use crate::fs::rights;
use crate::fs::text::TextUse;
use crate::fs::{File, FileContent, OpenFlags, Timestamp};
use crate::mem::{CacheContent, PageCache, frames};
use crate::stored::CachedNode;
use crate::sync::{Deferred, Mutex, SpinLock, release};
use crate::user::{Source, so_far};
use crate::{Errno, Result, sched, task};

/// Flags of open(2) as the protocol has them.
const READ_ONLY: u32 = 0;
const WRITE_ONLY: u32 = 1;
const NEW_FILE: u32 = 0o302; // O_RDWR | O_CREAT | O_EXCL
const DIRECTORY: u32 = 0o200_000;
/// Bytes that are written at once.
const STEP: usize = 32 << 10;

/// The bytes of a regular file.
pub(super) struct Regular {
    content: Arc<CacheContent>,
    store: Arc<Store>,
    text: TextUse,
    /// The server's attributes of the file when its pages were last up to date.
    turn: Mutex<Seen>,
}

/// Attributes that change when a file's bytes change.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    version: u32,
    size: u64,
    modified: (u64, u64),
    changed: (u64, u64),
}

impl Seen {
    fn of(told: &Attributes) -> Self {
        Self { version: told.qid.version, size: told.size, modified: told.modified, changed: told.changed }
    }
}

pub(super) enum Body {
    Regular(Regular),
    Directory(SpinLock<Option<Box<Deferred<Whereabouts>>>>),
    Other,
}

/// An inode of the server.
pub(super) struct ShareNode {
    pub(super) share: Arc<Share>,
    me: Weak<Self>,
    pub(super) path: u64,
    /// Unique number of the node.
    pub(super) serial: u64,
    pub(super) standing: AtomicStanding,
    pub(super) kind: NodeKind,
    pub(super) known: SpinLock<Known>,
    pub(super) used: AtomicBool,
    pub(super) body: Body,
}

impl ShareNode {
    /// Makes the node for `fid`.
    ///
    /// # Errors
    /// `ENOMEM`; `EIO` for an unknown kind of file.
    pub fn new(
        share: &Arc<Share>,
        fid: Arc<Fid>,
        told: &Attributes,
        found: Option<(&Arc<Self>, &[u8])>,
    ) -> Result<Arc<Self>> {
        let kind = NodeKind::from_mode(told.mode).ok_or(Errno::EIO)?;
        let body = match kind {
            NodeKind::Regular => {
                let store = reserve::arc(Store::new(share.channel(), told.size));
                let cache = PageCache::with_store(frames(), store.clone());
                cache.set_size_grow(told.size);
                let content = reserve::arc(CacheContent::new(cache));
                let (text, turn) = (TextUse::new(), Mutex::new(Seen::of(told)));
                Body::Regular(Regular { content, store, text, turn })
            }
            NodeKind::Directory => Body::Directory(SpinLock::new(None)),
            _ => Body::Other,
        };
        let name = found.map(|(dir, name)| (dir.path, reserve::slice(name)));
        let node = reserve::cyclic(|me| Self {
            share: share.clone(),
            me: me.clone(),
            path: told.qid.path,
            serial: identity::next_serial(),
            standing: AtomicStanding::default(),
            kind,
            known: SpinLock::new(Known { fid, told: *told, name }),
            used: AtomicBool::new(false),
            body,
        });
        // No directory can be below a new directory.
        node.set_place(found);
        Ok(node)
    }

    /// The share to which the node belongs.
    pub fn share(&self) -> &Arc<Share> {
        &self.share
    }

    fn regular(&self) -> Option<&Regular> {
        match &self.body {
            Body::Regular(regular) => Some(regular),
            _ => None,
        }
    }

    fn me(&self) -> Arc<Self> {
        self.me.upgrade().expect("a node is only reached through an Arc of it")
    }

    /// Asks the server for the file's current attributes. Pages that may be out of date are dropped
    /// before it returns.
    ///
    /// # Errors
    /// The server's error; `EINTR`.
    pub fn refresh(&self) -> Result<()> {
        let Some(regular) = self.regular() else { return self.ask_attributes().map(|_| ()) };
        self.refresh_in(regular, &mut *regular.turn.lock_killable()?)
    }

    pub(super) fn ask_attributes(&self) -> Result<Attributes> {
        let told = self.share.channel().attributes(&*self.fid()?)?;
        if !self.is_told_of(&told) {
            // If the file has several names, another one may still lead to it.
            if self.standing.get() == Standing::Named {
                self.standing.set(Standing::Stale);
            }
            return Err(Errno::ESTALE);
        }
        self.known.lock().learn(&told);
        Ok(told)
    }

    /// Like [`ShareNode::refresh`], for a holder of the file's `turn`.
    fn refresh_in(&self, regular: &Regular, seen: &mut Seen) -> Result<()> {
        let told = self.ask_attributes()?;
        let now = Seen::of(&told);
        if *seen == now {
            return Ok(());
        }
        // The name may lead to another file by now, so the server must check access again.
        if regular.store.reader().is_some() {
            let again = self.share.channel().open(&*self.fid()?, READ_ONLY);
            regular.store.set_reader(again.ok().map(reserve::arc));
        }
        regular.store.set_size(told.size);
        let cache = regular.content.cache();
        cache.resized(told.size);
        // If old pages stay, the next refresh drops them.
        if cache.forget(0..u64::MAX)? {
            *seen = now;
        }
        Ok(())
    }

    /// Makes sure that the file can be read: the first open of a file asks the server.
    fn make_readable(&self, regular: &Regular) -> Result<()> {
        if regular.store.reader().is_none() {
            let fid = self.share.channel().open(&*self.fid()?, READ_ONLY)?;
            regular.store.set_reader(Some(reserve::arc(fid)));
        }
        Ok(())
    }

    fn open_regular(self: Arc<Self>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        let regular = self.regular().ok_or(Errno::EINVAL)?;
        self.refresh()?;
        if flags.reads() {
            self.make_readable(regular)?;
        }
        if flags.writes() && regular.store.writer().is_none() {
            let fid = self.share.channel().open(&*self.fid()?, WRITE_ONLY)?;
            regular.store.set_writer(reserve::arc(fid));
        }
        self.used.store(true, Ordering::Relaxed);
        Ok(reserve::arc(RegularFile::new(self, flags)))
    }

    /// Makes the node of a file that was just created here and is open as `opened`.
    fn adopt(&self, opened: Fid, made: Qid, name: &[u8]) -> Result<Arc<Self>> {
        let node = self.find(name)?;
        // The host may already have replaced the file by another one.
        if let Some(regular) = node.regular().filter(|_| node.path == made.path) {
            let opened = reserve::arc(opened);
            regular.store.set_reader(Some(opened.clone()));
            regular.store.set_writer(opened);
        }
        Ok(node)
    }

    /// Returns the node that a name leads to in this directory.
    fn find(&self, name: &[u8]) -> Result<Arc<Self>> {
        if self.kind != NodeKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        let channel = self.share.channel();
        let (fid, _) = channel.walk(&*self.fid()?, name)?;
        let told = channel.attributes(&fid)?;
        self.share.node(fid, &told, Some((&self.me(), name)))
    }

    /// Returns a node as a node of the same share.
    fn sibling<'a>(&self, node: &'a Arc<dyn Node>) -> Result<&'a Self> {
        let other = (&**node as &dyn core::any::Any).downcast_ref::<Self>();
        other.filter(|other| other.share.is_same(&self.share)).ok_or(Errno::EXDEV)
    }

    /// Removes a name.
    fn remove_name(&self, name: &[u8], kind: NodeKind) -> Result<()> {
        let (channel, dir) = (self.share.channel(), self.fid()?);
        let (_, found) = channel.walk(&dir, name)?;
        channel.unlink(&dir, name, kind)?;
        self.share.lost_a_name(found.path);
        Ok(())
    }

    /// Writes at an offset, or at the end of the file for `None`. Returns how many bytes were
    /// written, and where they begin. When this returns, the server has them, and no reader sees
    /// the previous bytes in the cache.
    pub fn write_at(&self, offset: Option<u64>, source: &mut dyn Source) -> Result<(usize, u64)> {
        let regular = self.regular().ok_or(Errno::EISDIR)?;
        let mut seen = regular.turn.lock_killable()?;
        let at = match offset {
            Some(at) => at,
            None => {
                named(self.refresh_in(regular, &mut seen))?;
                regular.content.size()
            }
        };
        let left = (source.remaining() as u64).min(task::file_size_left(at)?);
        at.checked_add(left).filter(|&end| i64::try_from(end).is_ok()).ok_or(Errno::EFBIG)?;
        let left = usize::try_from(left).map_err(|_| Errno::EFBIG)?;
        let mut room = Vec::try_filled(0, left.min(STEP).min(self.share.channel().most()))?;
        let mut done = 0;
        while done < left {
            let want = room.len().min(left - done);
            let step = sched::checkpoint().and_then(|()| source.take(&mut room[..want])).and_then(|taken| {
                self.write_part(regular, at + done as u64, &room[..taken]).map(|put| (taken, put))
            });
            match step {
                Ok((taken, put)) => {
                    done += put;
                    if put < want || put < taken {
                        break;
                    }
                }
                Err(error) => return so_far(done, error).map(|done| (done, at)),
            }
        }
        let (now, told) = (stored(clock::now()), &mut self.known.lock().told);
        (told.modified, told.changed) = (now, now);
        Ok((done, at))
    }

    /// Writes a part at the server, while `turn` is held. A concurrent reader may bring old bytes
    /// into the cache, but not after the pages were dropped. The cache grows only after that, so
    /// that no page is zeroes where the server has bytes.
    fn write_part(&self, regular: &Regular, at: u64, bytes: &[u8]) -> Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let writer = regular.store.writer().ok_or(Errno::EBADF)?;
        let count = self.share.channel().write(&writer, at, bytes)?;
        let (end, cache) = (at + count as u64, regular.content.cache());
        let before = cache.size();
        if end > before {
            regular.store.set_size(end);
        }
        cache.forget(at.min(before)..end)?;
        cache.set_size_grow(end);
        Ok(count)
    }

    /// truncate(2), and its effects on the cache. Returns the mode to ask the host for, by the last
    /// known one; a mode that stays is not sent.
    fn mode_after(&self, change: &SetMetadata) -> Option<u32> {
        match change.mode? {
            ModeChange::To(mode) => Some(mode),
            ModeChange::WithoutRights => {
                let known = self.known.lock().told.mode;
                rights::in_mode(known).then_some(rights::without(known))
            }
        }
    }

    fn set_attributes(&self, change: &SetMetadata) -> Result<()> {
        let new = NewAttributes {
            mode: self.mode_after(change),
            uid: change.uid,
            gid: change.gid,
            size: change.size,
            accessed: change.accessed.map(stored),
            modified: change.modified.map(stored),
        };
        let channel = self.share.channel();
        let (Some(size), Some(regular)) = (change.size, self.regular()) else {
            channel.set_attributes(&*self.fid()?, new)?;
            return self.ask_attributes().map(|_| ());
        };
        let mut seen = regular.turn.lock_killable()?;
        if size > regular.content.size() {
            task::check_file_size(size)?;
        }
        channel.set_attributes(&*self.fid()?, new)?;
        self.refresh_in(regular, &mut seen)
    }

    /// Makes the host write the file's data to its disk.
    pub fn sync(&self) -> Result<()> {
        let writer = self.regular().and_then(|regular| regular.store.writer());
        writer.map_or(Ok(()), |writer| self.share.channel().sync(&writer))
    }

    /// Reads bytes of a regular file. If the host changes the file meanwhile, the change is noticed
    /// at the file's end.
    pub fn read_at(&self, offset: u64, sink: &mut dyn crate::user::Sink) -> Result<usize> {
        let regular = self.regular().ok_or(Errno::EISDIR)?;
        let first = regular.content.read_at(offset, sink);
        let is_at_end = first == Ok(0) && sink.remaining() > 0;
        let fell_short = first == Err(Errno::EIO) && regular.store.take_fell_short();
        if !is_at_end && !fell_short {
            return first;
        }
        named(self.refresh())?;
        self.make_readable(regular)?;
        regular.content.read_at(offset, sink)
    }

    /// The content of a regular file.
    pub fn content(&self) -> Option<Arc<dyn FileContent>> {
        let content: Arc<dyn FileContent> = self.regular()?.content.clone();
        Some(content)
    }
    /// Returns the server's number for reading a regular file past its pages.
    pub fn reader(&self) -> Option<Arc<Fid>> {
        self.regular()?.store.reader()
    }
}

impl CachedNode for ShareNode {
    fn cache(&self) -> Option<&Arc<PageCache>> {
        self.regular().map(|regular| regular.content.cache())
    }
    fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }
}

impl Drop for ShareNode {
    fn drop(&mut self) {
        notify::inode_ended(self);
        self.share.nodes.forget(self.key());
        if let Body::Directory(place) = &mut self.body
            && let Some(place) = place.get_mut().take()
        {
            release(place);
        }
    }
}

/// Ignores an error that the server does not find the file. A file that has lost its name cannot be
/// asked for any more: its last known state, updated by the writes here, counts.
fn named(told: Result<()>) -> Result<()> {
    told.or_else(|error| if matches!(error, Errno::ENOENT | Errno::ESTALE) { Ok(()) } else { Err(error) })
}

fn timestamp((seconds, nanoseconds): (u64, u64)) -> Timestamp {
    let nanoseconds = u32::try_from(nanoseconds).ok().filter(|&count| count < 1_000_000_000).unwrap_or(0);
    Timestamp { seconds: seconds.cast_signed(), nanoseconds }
}

fn stored(time: Timestamp) -> (u64, u64) {
    (time.seconds.cast_unsigned(), time.nanoseconds.into())
}

impl Node for ShareNode {
    fn identity(&self) -> Identity {
        Identity { device: self.share.device, inode: self.path }
    }
    fn kind(&self) -> NodeKind {
        self.kind
    }
    fn metadata(&self) -> Metadata {
        let told = self.known.lock().told;
        Metadata {
            device: self.share.device,
            inode: self.path,
            kind: self.kind,
            mode: told.mode & 0o7777,
            links: u32::try_from(told.links).unwrap_or(u32::MAX),
            uid: told.uid,
            gid: told.gid,
            // The server's makedev has the low 8 bits of the minor number at the bottom, as ours.
            rdev: make_device((told.rdev >> 8 & 0xfff) as u32, (told.rdev & 0xff) as u32),
            size: self.regular().map_or(told.size, |regular| regular.content.size()),
            block_size: u32::try_from(told.block_size).unwrap_or(4096).max(1),
            blocks: told.blocks,
            accessed: timestamp(told.accessed),
            modified: timestamp(told.modified),
            changed: timestamp(told.changed),
            // The server does not report this time.
            born: None,
        }
    }
    fn text_use(&self) -> Option<&TextUse> {
        self.regular().map(|regular| &regular.text)
    }

    fn open(self: Receiver<Self>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        match self.kind {
            NodeKind::Regular => self.open_regular(flags),
            NodeKind::Directory => {
                let fid = self.share.channel().open(&*self.fid()?, DIRECTORY)?;
                Ok(reserve::arc(DirectoryFile::new(self, fid)))
            }
            _ => open_special(self, flags),
        }
    }

    fn parent(&self) -> Option<DirectoryPlace> {
        let Body::Directory(place) = &self.body else { return None };
        let place = place.lock();
        let (dir, name) = place.as_ref()?.place.as_ref()?;
        let presence = match self.standing.get() {
            Standing::Named | Standing::Loose => Presence::Linked,
            Standing::Removed | Standing::Stale => Presence::Removed,
        };
        Some(DirectoryPlace { dir: dir.clone(), name: name.clone(), presence })
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Node>> {
        let node: Arc<dyn Node> = self.find(name)?;
        Ok(node)
    }

    fn set_metadata(&self, change: &SetMetadata) -> Result<()> {
        self.set_attributes(change)
    }

    /// Uses the last known mode.
    fn drop_rights(&self) -> Result<()> {
        let carries = rights::in_mode(self.known.lock().told.mode);
        if carries { task::drop_rights(self) } else { Ok(()) }
    }

    fn create(&self, name: &[u8], new: &NewNode) -> Result<Arc<dyn Node>> {
        let (channel, dir) = (self.share.channel(), self.fid()?);
        let node: Arc<dyn Node> = if new.kind == NodeKind::Regular {
            let (opened, made) = channel.create(&dir, name, NEW_FILE, new)?;
            self.adopt(opened, made, name)?
        } else {
            channel.make_node(&dir, name, new)?;
            self.find(name)?
        };
        Ok(node)
    }

    fn symlink(&self, name: &[u8], target: &[u8], new: &NewNode) -> Result<Arc<dyn Node>> {
        self.share.channel().symlink(&*self.fid()?, name, target, new.gid)?;
        self.lookup(name)
    }

    fn link(&self, name: &[u8], node: &Arc<dyn Node>) -> Result<()> {
        let file = self.sibling(node)?;
        self.share.channel().link(&*self.fid()?, &*file.fid()?, name)?;
        // The file's other name stays when this one is removed.
        let told = &mut file.known.lock().told;
        told.links = told.links.saturating_add(1);
        Ok(())
    }

    fn unlink(&self, name: &[u8]) -> Result<()> {
        self.remove_name(name, NodeKind::Regular)
    }

    fn remove_dir(&self, name: &[u8]) -> Result<()> {
        self.remove_name(name, NodeKind::Directory)
    }

    /// Renames without flags: the protocol has none (`EINVAL` for flags, as on Linux).
    fn rename(
        &self,
        name: &[u8],
        new_parent: &Arc<dyn Node>,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        if flags.intersects(RenameFlags::ASKABLE) {
            return Err(Errno::EINVAL);
        }
        let (channel, dir, new_dir) = (self.share.channel(), self.fid()?, self.sibling(new_parent)?.fid()?);
        let replaced = channel.walk(&new_dir, new_name);
        channel.rename(&dir, name, &new_dir, new_name)?;
        // A directory remembers its place. If the server cannot be asked, the old place stays until
        // the directory is found again.
        let moved = new_parent.lookup(new_name);
        if let Ok((_, replaced)) = replaced
            // If both names are the same file's, both stay.
            && moved.is_ok_and(|moved| moved.identity().inode != replaced.path)
        {
            self.share.lost_a_name(replaced.path);
        }
        Ok(())
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        if self.kind != NodeKind::Symlink {
            return Err(Errno::EINVAL);
        }
        self.share.channel().read_link(&*self.fid()?)
    }
}
