//! The names of queues: the single directory of the file system `mqueue`. Each IPC namespace has
//! its own.

use core::ops::Bound;

use freehold_collections::{Arc, Map, Receiver, Weak, reserve};

use super::account::{self, Charge, Maker, QueueCount};
use super::node::{QueueNode, touch};
use super::queue::PosixQueue;
use super::state::QueueShape;
use crate::fs::device::unnamed_device;
use crate::fs::mount::MountFlags;
use crate::fs::node::NewNode;
use crate::fs::tmpfs::attributes::Attributes;
use crate::fs::{
    Blocking, DirEntry, File, FileSystem, FsStats, Identity, Metadata, Mount, Node, NodeKind, OpenFlags,
    Seekable, SetMetadata,
};
use crate::sync::SpinLock;
use crate::task::current;
use crate::user::Sink;
use crate::{Errno, Result};

/// MQUEUE_MAGIC.
const MAGIC: u64 = 0x1980_0202;
const ROOT_INODE: u64 = 1;
/// Bytes that each name adds to the directory's size.
const ENTRY_SIZE: u64 = 20;
/// Number of queue names that are listed per acquisition of the lock.
const LISTED_AT_ONCE: usize = 64;

/// The file system.
pub struct MqueueFs {
    device: u64,
    root: Arc<QueueDirectory>,
}

/// The queues of one IPC namespace.
#[derive(Default)]
pub struct QueueNamespace {
    directory: SpinLock<Option<Arc<QueueDirectory>>>,
    /// The mount in which mq_open and mq_unlink find the names. Mounts on top of others do not hide
    /// it.
    mount: SpinLock<Option<Arc<Mount>>>,
}

impl QueueNamespace {
    /// Returns the namespace's directory.
    pub fn directory(&self) -> Arc<QueueDirectory> {
        self.directory.lock().get_or_insert_with(|| QueueDirectory::new(unnamed_device())).clone()
    }

    /// Returns the namespace's file system, to be mounted.
    pub fn file_system(&self) -> Arc<dyn FileSystem> {
        let root = self.directory();
        reserve::arc(MqueueFs { device: root.device, root })
    }

    /// Returns the mount that is attached to no directory.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn own_mount(&self) -> Result<Arc<Mount>> {
        if let Some(mount) = &*self.mount.lock() {
            return Ok(mount.clone());
        }
        let restrictions = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        let new = Mount::new(self.file_system(), b"mqueue", restrictions)?;
        // Another task may have created the mount first.
        Ok(self.mount.lock().get_or_insert(new).clone())
    }
}

impl FileSystem for MqueueFs {
    fn name(&self) -> &'static str {
        "mqueue"
    }

    fn configure(&self, options: &[u8]) -> Result<()> {
        if options.is_empty() { Ok(()) } else { Err(Errno::EINVAL) }
    }

    fn stats(&self) -> FsStats {
        FsStats { magic: MAGIC, block_size: 4096, blocks: 0, free_blocks: 0, inodes: 0, free_inodes: 0 }
    }

    fn root(&self) -> Arc<dyn Node> {
        self.root.clone()
    }

    fn device(&self) -> u64 {
        self.device
    }
}

#[derive(Default)]
struct QueueNames {
    by_name: Map<Arc<[u8]>, Arc<QueueNode>>,
    /// By inode number. Numbers are never reused, and they are the positions in listings.
    by_inode: Map<u64, Arc<[u8]>>,
    last_inode: u64,
}

/// See the module.
pub struct QueueDirectory {
    device: u64,
    me: Weak<QueueDirectory>,
    count: Arc<QueueCount>,
    names: SpinLock<QueueNames>,
    attributes: SpinLock<Attributes>,
}

impl QueueDirectory {
    fn new(device: u64) -> Arc<Self> {
        let new = NewNode { kind: NodeKind::Directory, mode: 0o1777, uid: 0, gid: 0, rdev: 0 };
        let count = reserve::arc(QueueCount::default());
        reserve::cyclic(|me| Self {
            device,
            me: me.clone(),
            count,
            names: SpinLock::new(QueueNames { last_inode: ROOT_INODE, ..QueueNames::default() }),
            attributes: SpinLock::new(Attributes::new(&new, 2)),
        })
    }

    fn me(&self) -> Arc<Self> {
        self.me.upgrade().expect("a node is only reached through an Arc of it")
    }

    /// Returns the queue with this name.
    ///
    /// # Errors
    /// `ENOENT`.
    pub fn find(&self, name: &[u8]) -> Result<Arc<QueueNode>> {
        self.names.lock().by_name.get(name).cloned().ok_or(Errno::ENOENT)
    }

    /// Creates a queue.
    ///
    /// # Errors
    /// `EEXIST`; those of [`Charge::new`]; `ENOMEM`. Nothing is changed then.
    #[cold]
    pub fn make(
        &self,
        name: &[u8],
        new: &NewNode,
        shape: QueueShape,
        maker: &Maker,
    ) -> Result<Arc<QueueNode>> {
        let charge = Charge::new(maker, shape, &self.count)?;
        let queue = PosixQueue::new(shape);
        let name: Arc<[u8]> = reserve::slice(name);
        let mut names = self.names.lock();
        if names.by_name.contains_key(&*name) {
            // The new queue is dropped after the lock is released.
            drop(names);
            return Err(Errno::EEXIST);
        }
        let room = names.by_name.try_reserve(1).and_then(|()| names.by_inode.try_reserve(1));
        if room.is_err() {
            drop(names);
            return Err(Errno::ENOMEM);
        }
        names.last_inode += 1;
        let inode = names.last_inode;
        let node = QueueNode::new(Identity { device: self.device, inode }, new, queue, charge);
        names.by_inode.insert_reserved(inode, name.clone());
        names.by_name.insert_reserved(name, node.clone());
        drop(names);
        touch(&mut self.attributes.lock());
        Ok(node)
    }

    /// Lists a limited number of names from inode number `from` on: calls `emit` for each, until it
    /// returns false. Returns the number after the last one, or `None` at the end of the list.
    fn list(&self, from: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Option<u64> {
        let names = self.names.lock();
        let mut next = None;
        let mut entries = names.by_inode.iter_from(Bound::Included(&from));
        for _ in 0..LISTED_AT_ONCE {
            let (&inode, name) = entries.next()?;
            let kind = NodeKind::Regular.dirent_kind();
            if !emit(DirEntry { name, inode, kind, next: inode + 1 }) {
                return None;
            }
            next = Some(inode + 1);
        }
        next
    }
}

impl Node for QueueDirectory {
    fn identity(&self) -> Identity {
        Identity { device: self.device, inode: ROOT_INODE }
    }

    fn kind(&self) -> NodeKind {
        NodeKind::Directory
    }

    fn metadata(&self) -> Metadata {
        let size = (self.names.lock().by_name.len() as u64 + 2) * ENTRY_SIZE;
        let told = self.attributes.lock().metadata(self.identity(), NodeKind::Directory);
        Metadata { size, ..told }
    }

    fn set_metadata(&self, change: &SetMetadata) -> Result<()> {
        self.attributes.lock().change(change);
        Ok(())
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Node>> {
        Ok(self.find(name)?)
    }

    fn open(self: Receiver<Self>, _flags: OpenFlags) -> Result<Arc<dyn File>> {
        Ok(self)
    }

    /// open(2) with O_CREAT: a queue of the default size.
    fn create(&self, name: &[u8], new: &NewNode) -> Result<Arc<dyn Node>> {
        if new.kind != NodeKind::Regular {
            return Err(Errno::EPERM);
        }
        let maker = Maker::of(current().process());
        Ok(self.make(name, new, account::default_shape(), &maker)?)
    }

    fn unlink(&self, name: &[u8]) -> Result<()> {
        let gone = {
            let mut names = self.names.lock();
            let node = names.by_name.remove(name).ok_or(Errno::ENOENT)?;
            let entry = names.by_inode.remove(&node.identity().inode);
            (node, entry)
        };
        gone.0.lose_name();
        touch(&mut self.attributes.lock());
        // If the name was the last reference to the queue, it ends here, without the lock.
        drop(gone);
        Ok(())
    }
}

impl File for QueueDirectory {
    fn seekable(&self) -> Seekable {
        Seekable::Offset
    }

    fn node(&self) -> Arc<dyn Node> {
        self.me()
    }

    fn read_dir(&self, from: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let kind = NodeKind::Directory.dirent_kind();
        for (at, name) in [b".".as_slice(), b".."].into_iter().enumerate().skip(from as usize) {
            if !emit(DirEntry { name, inode: ROOT_INODE, kind, next: at as u64 + 1 }) {
                return Ok(());
            }
        }
        let mut next = Some(from.max(2));
        while let Some(from) = next {
            next = self.list(from, emit);
        }
        Ok(())
    }

    fn read_at(&self, _: u64, _: &mut dyn Sink, _: Blocking) -> Result<usize> {
        Err(Errno::EISDIR)
    }
}

#[cfg(test)]
mod tests {
    use freehold_collections::inject::each_fails;
    use freehold_collections::reserve::ArcMethods as _;

    use super::*;

    const SHAPE: QueueShape = QueueShape { messages: 2, bytes: 16 };
    const NEW: NewNode = NewNode { kind: NodeKind::Regular, mode: 0o600, uid: 7, gid: 8, rdev: 0 };

    fn maker(user: u32) -> Maker {
        Maker { user, most_bytes: 1 << 30, exceeds_limits: true }
    }

    #[test]
    fn a_name_without_memory_is_not_there_and_charges_nothing() {
        let directory = QueueDirectory::new(77);
        let mut failures = 0;
        for number in 0..200u16 {
            let name = [number >> 7, number & 0x7f].map(|bits| bits as u8 | 0x80);
            let (made, failed) = each_fails(|| {
                let made = directory.make(&name, &NEW, SHAPE, &maker(91_001));
                if made.is_err() {
                    assert_eq!(directory.find(&name).err(), Some(Errno::ENOENT));
                }
                made
            });
            assert!(made.is_ok() && directory.find(&name).is_ok());
            failures += failed;
        }
        assert!(failures > 20, "{failures}");
    }

    #[test]
    fn a_queue_lives_as_long_as_it_is_held_and_names_are_listed_once() {
        let directory = QueueDirectory::new(78);
        let [first, second] =
            [b"one", b"two"].map(|name| directory.make(name, &NEW, SHAPE, &maker(91_002)).unwrap());
        assert_eq!(directory.make(b"one", &NEW, SHAPE, &maker(91_002)).err(), Some(Errno::EEXIST));
        let mut seen = std::vec::Vec::new();
        directory
            .read_dir(0, &mut |entry| {
                seen.push((std::vec::Vec::from(entry.name), entry.inode));
                true
            })
            .unwrap();
        let listed = [(".", 1), ("..", 1), ("one", 2), ("two", 3)];
        assert_eq!(seen, listed.map(|(name, inode)| (std::vec::Vec::from(name.as_bytes()), inode)));
        assert_eq!(directory.metadata().size, 80);
        let weak = first.downgrade();
        Node::unlink(&*directory, b"one").unwrap();
        assert_eq!((first.metadata().links, second.metadata().links), (0, 1));
        assert_eq!(Node::unlink(&*directory, b"one"), Err(Errno::ENOENT));
        drop(first);
        assert_eq!(weak.strong_count(), 0);
    }
}
