//! Which file system is seen where.
//!
//! A mount covers a directory (or file) of the mount it hangs in; the root mount covers nothing. Each mount
//! lists the mounts that hang in it, under a spin lock that is held for a look or a change of the list only.
//! Mount namespaces: there is one, for all processes.

use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bitflags::bitflags;
use freehold_collections::{
    Arc, Receiver, TryCollect, Vec,
    reserve::{self, ArcMethods},
};

use super::node::{Identity, Node};
use super::path::Path;
use crate::sync::SpinLock;
use crate::{Errno, Result};

bitflags! {
    /// Per-mount restrictions, with mount(2)'s MS_* values.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct MountFlags: u32 {
        /// Nothing may be changed through it.
        const RDONLY = 1;
        /// setuid and setgid bits mean nothing.
        const NOSUID = 2;
        /// Device nodes cannot be opened.
        const NODEV = 4;
        /// Nothing can be executed.
        const NOEXEC = 8;
        /// Reading leaves access times.
        const NOATIME = 1024;
        /// Reading leaves access times of directories.
        const NODIRATIME = 2048;
        /// Access times follow only now and then.
        const RELATIME = 1 << 21;
    }
}

/// What statfs(2) tells of a file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct FsStats {
    /// The magic number (linux/magic.h).
    pub magic: u64,
    /// Bytes per block.
    pub block_size: u64,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks not in use.
    pub free_blocks: u64,
    /// Inodes in all.
    pub inodes: u64,
    /// Inodes not in use.
    pub free_inodes: u64,
}

/// A mounted file system.
pub trait FileSystem: Send + Sync {
    /// Its type, as /proc/mounts shows it.
    fn name(&self) -> &'static str;
    /// Its device number.
    fn device(&self) -> u64;
    /// The directory it begins with.
    fn root(&self) -> Arc<dyn Node>;
    /// What statfs(2) tells.
    fn stats(&self) -> FsStats;
    /// Writes options of its own, as /proc/mounts shows them (",size=1024k").
    fn show_options(&self, _out: &mut dyn fmt::Write) -> fmt::Result {
        Ok(())
    }
    /// Whether nothing in it can be changed, whatever its mounts allow.
    fn is_read_only(&self) -> bool {
        false
    }
    /// Push what was written to the device; memory needs nothing.
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    /// Change options (a remount, or the data of mount(2)); `EINVAL` for ones it does not know.
    fn configure(&self, _options: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// One file system (or a part of one: a bind mount) at one place.
pub struct Mount {
    id: u64,
    fs: Arc<dyn FileSystem>,
    root: Arc<dyn Node>,
    source: Vec<u8>,
    flags: AtomicU32,
    covers: SpinLock<Option<Path>>,
    children: SpinLock<Vec<(Identity, Arc<Mount>)>>,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Mount {
    /// A mount of all of `fs` that hangs nowhere yet; `source` is the device or name to show.
    pub fn new(fs: Arc<dyn FileSystem>, source: &[u8], flags: MountFlags) -> Result<Arc<Self>> {
        let root = fs.root();
        Self::of_part(fs, root, source, flags)
    }

    /// A mount of what is below `root` in `fs` (a bind mount).
    pub fn of_part(
        fs: Arc<dyn FileSystem>,
        root: Arc<dyn Node>,
        source: &[u8],
        flags: MountFlags,
    ) -> Result<Arc<Self>> {
        let source = Vec::try_from_slice(source)?;
        let flags = if fs.is_read_only() { flags | MountFlags::RDONLY } else { flags };
        Ok(reserve::arc(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            fs,
            root,
            source,
            flags: AtomicU32::new(flags.bits()),
            covers: SpinLock::new(None),
            children: SpinLock::new(Vec::new()),
        }))
    }

    /// The number that mountinfo shows.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// What is mounted.
    pub fn file_system(&self) -> &Arc<dyn FileSystem> {
        &self.fs
    }

    /// The directory that is seen at the mount point.
    pub fn root(&self) -> &Arc<dyn Node> {
        &self.root
    }

    /// The device or name it was mounted from.
    pub fn source(&self) -> &[u8] {
        &self.source
    }

    /// Its restrictions now.
    pub fn flags(&self) -> MountFlags {
        MountFlags::from_bits_truncate(self.flags.load(Ordering::Relaxed))
    }

    /// Change its restrictions (remount).
    pub fn set_flags(&self, flags: MountFlags) {
        self.flags.store(flags.bits(), Ordering::Relaxed);
    }

    /// `EROFS` where nothing may be changed.
    pub fn writable(&self) -> Result<()> {
        if self.flags().contains(MountFlags::RDONLY) { Err(Errno::EROFS) } else { Ok(()) }
    }

    /// The place it covers; `None` for the root mount and for one that was taken away.
    pub fn mountpoint(&self) -> Option<Path> {
        self.covers.lock().clone()
    }

    /// Whether it hangs in the tree that begins with `root`: what was taken away from there does
    /// not.
    pub fn hangs_in(self: &Receiver<Self>, root: &Arc<Mount>) -> bool {
        let mut here = self.clone();
        while let Some(below) = here.mountpoint() {
            here = below.mount;
        }
        here.is_same(root)
    }

    /// Hang `child` over `place`, which is seen through this mount.
    pub fn attach(&self, child: &Arc<Mount>, place: Path) -> Result<()> {
        let mut children = self.children.lock();
        children.try_reserve(1)?;
        let identity = place.node.identity();
        *child.covers.lock() = Some(place);
        children.push_reserved((identity, child.clone()));
        Ok(())
    }

    /// Take away the mount whose root this mount shows at its mount point. `EBUSY` while others hang in `child`.
    pub fn detach(&self, child: &Arc<Mount>) -> Result<()> {
        if !child.children.lock().is_empty() {
            return Err(Errno::EBUSY);
        }
        let mut children = self.children.lock();
        let index = children.iter().position(|(_, m)| m.is_same(child)).ok_or(Errno::EINVAL)?;
        let gone = children.swap_remove(index);
        drop(children);
        let covered = gone.1.covers.lock().take();
        drop(covered);
        Ok(())
    }

    /// Move `child` from this mount to `place`, with all that hangs in it.
    pub fn hand_over(&self, child: &Arc<Mount>, place: Path) -> Result<()> {
        let mut children = self.children.lock();
        let index = children.iter().position(|(_, m)| m.is_same(child)).ok_or(Errno::EINVAL)?;
        children.swap_remove(index);
        drop(children);
        place.mount.clone().attach(child, place)
    }

    /// The mount that covers `node` of this mount, if any.
    pub fn covering(&self, node: &Arc<dyn Node>) -> Option<Arc<Mount>> {
        let children = self.children.lock();
        if children.is_empty() {
            return None;
        }
        let identity = node.identity();
        children.iter().rev().find(|(covered, _)| *covered == identity).map(|(_, m)| m.clone())
    }

    /// This mount and all that hang in it, parents first.
    ///
    /// # Errors
    /// `ENOMEM`: there may be any number.
    pub fn tree(self: &Receiver<Self>) -> Result<Vec<Arc<Mount>>> {
        let mut all = [self.clone()].into_iter().try_collect_vec()?;
        let mut next = 0;
        while let Some(mount) = all.get(next).cloned() {
            let children = mount.children.lock();
            all.try_extend(children.iter().map(|(_, m)| m.clone()))?;
            next += 1;
        }
        Ok(all)
    }
}
