//! Inodes of a mounted disk, and open files.

use core::sync::atomic::{AtomicBool, Ordering};

use freehold_collections::{Arc, Box, Receiver, Vec, Weak, reserve, reserve::ArcMethods};
use freehold_volumes::{DiskEntry, DiskTime, Listing, MAX_LINK, VolumeError};

use super::store::FileStore;
use super::{DiskVolume, MountedDisk};
use crate::fs::device::{make_device, open_special};
use crate::fs::node::{DirectoryPlace, Identity, Metadata, Node, NodeKind, Presence};
use crate::fs::notify;
use crate::fs::text::TextUse;
use crate::fs::{Blocking, DirEntry, File, FileContent, MmapContent, OpenFlags, Seekable, Timestamp};
use crate::mem::{CacheContent, PageCache, frames};
use crate::stored::CachedNode;
use crate::sync::{Deferred, LetGo, SpinLock, release};
use crate::user::Sink;
use crate::{Errno, Result};

/// Where a directory was found. It keeps its parent, to any depth: dropping such a chain does not
/// recurse.
struct FoundPlace<V: DiskVolume>(Option<(Arc<DiskNode<V>>, Arc<[u8]>)>);

impl<V: DiskVolume> LetGo for FoundPlace<V> {
    fn let_go(&mut self) {
        drop(self.0.take());
    }
}

/// An inode of a disk.
pub(super) struct DiskNode<V: DiskVolume> {
    disk: Arc<MountedDisk<V>>,
    me: Weak<Self>,
    inode: V::Inode,
    kind: NodeKind,
    /// A directory's place; `None` for the root and for other nodes. Set once.
    place: SpinLock<Option<Box<Deferred<FoundPlace<V>>>>>,
    /// The bytes of a regular file.
    content: Option<Arc<CacheContent>>,
    text: TextUse,
    used: AtomicBool,
}

impl<V: DiskVolume> DiskNode<V> {
    /// Makes the node of `inode`, which was found in a directory by a name.
    ///
    /// # Errors
    /// `EUCLEAN` for an unknown kind of file.
    pub fn new(
        disk: &Arc<MountedDisk<V>>,
        inode: V::Inode,
        found: Option<(&Arc<Self>, &[u8])>,
    ) -> Result<Arc<Self>> {
        let facts = inode.as_ref();
        let kind = NodeKind::from_mode(facts.mode)
            .ok_or_else(|| disk.failed(VolumeError::Corrupt("inode: kind of file")))?;
        let size = facts.size;
        let content = (kind == NodeKind::Regular).then(|| {
            let store = reserve::arc(FileStore { disk: disk.clone(), inode });
            let cache = PageCache::with_store(frames(), store);
            cache.set_size_grow(size);
            reserve::arc(CacheContent::new(cache))
        });
        let place = found
            .filter(|_| kind == NodeKind::Directory)
            .map(|(dir, name)| Deferred::new(FoundPlace(Some((dir.clone(), reserve::slice(name))))));
        Ok(reserve::cyclic(|me| Self {
            disk: disk.clone(),
            me: me.clone(),
            inode,
            kind,
            place: SpinLock::new(place),
            content,
            text: TextUse::new(),
            used: AtomicBool::new(false),
        }))
    }

    /// Whether the node may be where it was found: a directory has one place.
    pub fn is_at(&self, found: Option<(&Arc<Self>, &[u8])>) -> bool {
        let place = self.place.lock();
        match (place.as_ref().and_then(|place| place.0.as_ref()), found) {
            (Some((dir, name)), Some((found, by))) => dir.is_same(found) && **name == *by,
            (None, None) => true,
            _ => self.kind != NodeKind::Directory,
        }
    }

    /// Returns a buffer for a block of a directory.
    fn block(&self) -> Result<Vec<u8>> {
        Ok(Vec::try_filled(0, self.disk.volume.block_size() as usize)?)
    }
}

impl<V: DiskVolume> CachedNode for DiskNode<V> {
    fn cache(&self) -> Option<&Arc<PageCache>> {
        self.content.as_ref().map(|content| content.cache())
    }
    fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }
}

impl<V: DiskVolume> Drop for DiskNode<V> {
    fn drop(&mut self) {
        notify::inode_ended(self);
        self.disk.nodes.forget(self.inode.as_ref().number);
        if let Some(place) = self.place.get_mut().take() {
            release(place);
        }
    }
}

const fn timestamp((seconds, nanoseconds): DiskTime) -> Timestamp {
    Timestamp { seconds, nanoseconds }
}

impl<V: DiskVolume> Node for DiskNode<V> {
    fn identity(&self) -> Identity {
        Identity { device: self.disk.device, inode: self.inode.as_ref().number }
    }
    fn kind(&self) -> NodeKind {
        self.kind
    }
    fn metadata(&self) -> Metadata {
        let inode = self.inode.as_ref();
        let is_device = matches!(self.kind, NodeKind::CharDevice | NodeKind::BlockDevice);
        let (major, minor) = if is_device { inode.device } else { (0, 0) };
        Metadata {
            device: self.disk.device,
            inode: inode.number,
            kind: self.kind,
            mode: inode.mode & 0o7777,
            links: inode.links,
            uid: inode.uid,
            gid: inode.gid,
            rdev: make_device(major, minor),
            size: inode.size,
            block_size: self.disk.volume.block_size(),
            blocks: inode.sectors,
            accessed: timestamp(inode.accessed),
            modified: timestamp(inode.modified),
            changed: timestamp(inode.changed),
            born: inode.born.map(timestamp),
        }
    }
    fn text_use(&self) -> Option<&TextUse> {
        self.content.as_ref().map(|_| &self.text)
    }

    fn open(self: Receiver<Self>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        match self.kind {
            NodeKind::Regular | NodeKind::Directory => {
                self.used.store(true, Ordering::Relaxed);
                Ok(reserve::arc(OpenNode(self)))
            }
            _ => open_special(self, flags),
        }
    }

    fn parent(&self) -> Option<DirectoryPlace> {
        let place = self.place.lock();
        let (dir, name) = place.as_ref()?.0.as_ref()?;
        Some(DirectoryPlace { dir: dir.clone(), name: name.clone(), presence: Presence::Linked })
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Node>> {
        if self.kind != NodeKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        let found = self.disk.volume.lookup(&self.inode, name, self.block()?.as_mut_slice());
        let number = found.map_err(|error| self.disk.failed(error))?.ok_or(Errno::ENOENT)?;
        let me = self.me.upgrade().ok_or(Errno::ENOENT)?;
        Ok(self.disk.node(number, Some((&me, name)))?)
    }

    fn read_link(&self) -> Result<Vec<u8>> {
        if self.kind != NodeKind::Symlink {
            return Err(Errno::EINVAL);
        }
        let mut text = Vec::try_filled(0, MAX_LINK)?;
        let room = text.first_chunk_mut().ok_or(Errno::ENOMEM)?;
        let length = self.disk.volume.link(&self.inode, room).map_err(|error| self.disk.failed(error))?;
        text.truncate(length);
        Ok(text)
    }
}

/// An open file or directory. O_DIRECT has no effect.
struct OpenNode<V: DiskVolume>(Arc<DiskNode<V>>);

impl<V: DiskVolume> File for OpenNode<V> {
    fn node(&self) -> Arc<dyn Node> {
        self.0.clone()
    }
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    fn read_at(&self, offset: u64, sink: &mut dyn Sink, _blocking: Blocking) -> Result<usize> {
        self.0.content.as_ref().ok_or(Errno::EISDIR)?.read_at(offset, sink)
    }
    fn seekable(&self) -> Seekable {
        Seekable::Offset
    }
    fn mapping(&self) -> Result<MmapContent> {
        self.content().map(MmapContent::Unstorable).ok_or(Errno::ENODEV)
    }
    fn content(&self) -> Option<Arc<dyn FileContent>> {
        let content: Arc<dyn FileContent> = self.0.content.clone()?;
        Some(content)
    }
    fn read_dir(&self, from: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let node = &self.0;
        if node.kind != NodeKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        let mut show = |entry: DiskEntry<'_>| {
            let (name, inode) = (entry.name, entry.inode);
            emit(DirEntry { name, inode, kind: entry.kind, next: entry.next })
        };
        let mut room = node.block()?;
        let listing = Listing { from, room: room.as_mut_slice(), show: &mut show };
        let listed = node.disk.volume.entries(&node.inode, listing);
        listed.map_err(|error| node.disk.failed(error))
    }
}
