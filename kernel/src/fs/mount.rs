//! Which file system is seen where.
//!
//! A mount covers a directory (or file) of the mount it hangs in; the root mount covers nothing.
//! Each mount lists the mounts that hang in it ([`children`]), under a spin lock that is held for a
//! look or a change of the list only. A tree of mounts belongs to a [namespace](super::namespace),
//! whose head says when it goes and which lock orders changes. The lists are let go of one level at
//! a time ([`Deferred`]): a program chooses how deep they are.

mod children;

use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use bitflags::bitflags;
use freehold_collections::{
    Arc, Box, Receiver, TryCollect, Vec,
    reserve::{self, ArcMethods},
};

use self::children::{ChildKey, Children};
use super::node::Node;
use super::path::Path;
use crate::sync::{Deferred, SpinLock, release};
use crate::task::userns::UserNs;
use crate::{Errno, Result, sched};

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

/// The types of file systems, none of which is on a disk, as /proc/filesystems lists them.
pub const TYPES: [&str; 12] = [
    "sysfs", "debugfs", "tracefs", "tmpfs", "proc", "devtmpfs", "devpts", "ramfs", "mqueue", "cgroup2", "9p",
    "overlay",
];

/// Figures of a file system for statfs(2).
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
    /// Returns the result of statfs(2).
    fn stats(&self) -> FsStats;
    /// Writes options of its own, as /proc/mounts shows them (",size=1024k").
    fn show_options(&self, _out: &mut dyn fmt::Write) -> fmt::Result {
        Ok(())
    }
    /// Whether nothing in it can be changed, even where its mounts would allow it.
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
    /// Its root is the file system's.
    shows_all: bool,
    fs: Arc<dyn FileSystem>,
    root: Arc<dyn Node>,
    source: Vec<u8>,
    flags: AtomicU32,
    /// Descriptions of regular files that were opened for writing through the mount.
    writers: AtomicUsize,
    /// The user namespace in which the file system was mounted first.
    fs_owner: UserNs,
    /// Properties that may not be undone: [`MountFlags`], and the two below.
    locked: AtomicU32,
    covers: SpinLock<Option<Covered>>,
    /// `None` before anything was mounted here.
    children: SpinLock<Option<Box<Deferred<Children>>>>,
    /// A bit for each child's place ([`children::place_bit`]), so that most names are looked up
    /// without the lock above. It is set and cleared under that lock. A lookup without the lock
    /// sees the child at the next name at the latest.
    covered: AtomicU64,
    /// Children that came before this number were [cut off](Mount::cut_off).
    cut: AtomicU64,
}

/// Where a mount hangs.
struct Covered {
    place: Path,
    /// Its place in the list of the mount that it hangs in.
    key: ChildKey,
}

/// In `locked`: whether access times are noted stays as it is.
const LOCKED_TIMES: u32 = 1 << 30;
/// In `locked`: the mount stays where it is.
const LOCKED_PLACE: u32 = 1 << 31;
/// The restrictions that a less privileged namespace may not take back.
const RESTRICTIONS: MountFlags =
    MountFlags::RDONLY.union(MountFlags::NOSUID).union(MountFlags::NODEV).union(MountFlags::NOEXEC);
const TIMES: MountFlags = MountFlags::NOATIME.union(MountFlags::NODIRATIME);

/// Treatment, in a copy, of mounts that must stay in their places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// The copied mounts must stay, too.
    Place,
    /// The copied mounts may move.
    Nothing,
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
        Ok(Self::make(fs, (root, source), flags.bits(), (UserNs::INITIAL, 0)))
    }

    /// A mount that hangs nowhere yet.
    fn make(
        fs: Arc<dyn FileSystem>,
        (root, source): (Arc<dyn Node>, Vec<u8>),
        flags: u32,
        (fs_owner, locked): (UserNs, u32),
    ) -> Arc<Self> {
        let shows_all = root.identity() == fs.root().identity();
        reserve::arc(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            shows_all,
            fs,
            root,
            source,
            flags: AtomicU32::new(flags),
            writers: AtomicUsize::new(0),
            fs_owner,
            locked: AtomicU32::new(locked),
            covers: SpinLock::new(None),
            children: SpinLock::new(None),
            covered: AtomicU64::new(0),
            cut: AtomicU64::new(0),
        })
    }

    /// This mount, which hangs nowhere yet, of a file system that was mounted in `owner`.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn owned_by(&self, owner: &UserNs) -> Result<Arc<Self>> {
        self.again(self.root.clone(), owner.clone(), self.locked.load(Ordering::Relaxed))
    }

    /// A copy that shows `root`, need not stay, and hangs nowhere yet.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn copy(&self, root: Arc<dyn Node>) -> Result<Arc<Self>> {
        self.copy_with_locks(root, Keep::Nothing)
    }

    /// As [`copy`](Self::copy), for one that may have to stay.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn copy_with_locks(&self, root: Arc<dyn Node>, keep: Keep) -> Result<Arc<Self>> {
        let locked = self.locked.load(Ordering::Relaxed);
        let locked = if keep == Keep::Place { locked } else { locked & !LOCKED_PLACE };
        self.again(root, self.fs_owner.clone(), locked)
    }

    fn again(&self, root: Arc<dyn Node>, fs_owner: UserNs, locked: u32) -> Result<Arc<Self>> {
        let source = Vec::try_from_slice(&self.source)?;
        Ok(Self::make(
            self.fs.clone(),
            (root, source),
            self.flags.load(Ordering::Relaxed),
            (fs_owner, locked),
        ))
    }

    /// The user namespace in which the file system was mounted first.
    pub const fn fs_owner(&self) -> &UserNs {
        &self.fs_owner
    }

    /// Keeps what a namespace with fewer rights must not undo: the restrictions that there are,
    /// and, unless it is the root, the mount itself (Linux: `lock_mnt_tree`, fs/namespace.c).
    pub fn lock_for_others(&self) {
        let mut locked = (self.flags() & RESTRICTIONS).bits() | LOCKED_TIMES;
        if self.covers.lock().is_some() {
            locked |= LOCKED_PLACE;
        }
        self.locked.fetch_or(locked, Ordering::Relaxed);
    }

    /// Whether it must stay where it is.
    pub fn is_locked(&self) -> bool {
        self.locked.load(Ordering::Relaxed) & LOCKED_PLACE != 0
    }

    /// It stands where `other` stood that had to stay, and which need not any more.
    pub fn take_lock_of(&self, other: &Mount) {
        let lock = other.locked.fetch_and(!LOCKED_PLACE, Ordering::Relaxed) & LOCKED_PLACE;
        self.locked.fetch_or(lock, Ordering::Relaxed);
    }

    /// Whether its restrictions may become these.
    ///
    /// # Errors
    /// `EPERM` where that would undo what is locked (Linux: `can_change_locked_flags`).
    pub fn check_flags(&self, new: MountFlags) -> Result<()> {
        let locked = self.locked.load(Ordering::Relaxed);
        let lost = locked & RESTRICTIONS.bits() & !new.bits() != 0;
        let changed = locked & LOCKED_TIMES != 0 && self.flags() & TIMES != new & TIMES;
        if lost || changed { Err(Errno::EPERM) } else { Ok(()) }
    }

    /// The number that mountinfo shows.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the file system that is mounted.
    pub fn file_system(&self) -> &Arc<dyn FileSystem> {
        &self.fs
    }

    /// The directory that is seen at the mount point.
    pub fn root(&self) -> &Arc<dyn Node> {
        &self.root
    }

    /// Whether its root is the file system's: no directory of that lies outside it.
    pub fn shows_all(&self) -> bool {
        self.shows_all
    }

    /// The device or name it was mounted from.
    pub fn source(&self) -> &[u8] {
        &self.source
    }

    /// Its restrictions now.
    pub fn flags(&self) -> MountFlags {
        MountFlags::from_bits_truncate(self.flags.load(Ordering::SeqCst))
    }

    /// Change its restrictions (remount). Holders of the mounts' change lock only.
    ///
    /// # Errors
    /// `EBUSY` where it becomes read-only and a file is open for writing.
    pub fn set_flags(&self, flags: MountFlags) -> Result<()> {
        // A writer is counted and then looks at the flags: whichever comes second sees the other.
        let before = self.flags.swap(flags.bits(), Ordering::SeqCst);
        let becomes_read_only = flags.bits() & !before & MountFlags::RDONLY.bits() != 0;
        if becomes_read_only && self.writers.load(Ordering::SeqCst) > 0 {
            self.flags.store(before, Ordering::Relaxed);
            return Err(Errno::EBUSY);
        }
        Ok(())
    }

    /// Counts a description that writes through the mount until
    /// [`remove_writer`](Self::remove_writer).
    pub fn add_writer(&self) {
        self.writers.fetch_add(1, Ordering::SeqCst);
    }

    /// Undoes [`add_writer`](Self::add_writer).
    pub fn remove_writer(&self) {
        self.writers.fetch_sub(1, Ordering::Relaxed);
    }

    /// `EROFS` where nothing may be changed. A change that lasts is counted ([`MountWriter`]).
    pub fn writable(&self) -> Result<()> {
        if self.flags().contains(MountFlags::RDONLY) { Err(Errno::EROFS) } else { Ok(()) }
    }

    /// The place it covers; `None` for the root mount and for one that was taken away.
    pub fn mountpoint(&self) -> Option<Path> {
        self.covers.lock().as_ref().map(|covered| covered.place.clone())
    }

    /// Whether it hangs in the tree that begins with `root`. A mount that was taken away from there
    /// does not.
    pub fn hangs_in(self: &Receiver<Self>, root: &Arc<Mount>) -> bool {
        let mut here = self.clone();
        while let Some(below) = here.mountpoint() {
            here = below.mount;
        }
        here.is_same(root)
    }

    /// Makes room for one more child.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn make_room(&self) -> Result<()> {
        let mut children = self.children.lock();
        Ok(children.get_or_insert_with(|| Deferred::new(Children::default())).make_room()?)
    }

    /// Hang `child` over `place`, which is seen through this mount.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn attach(&self, child: &Arc<Mount>, place: Path) -> Result<()> {
        let mut children = self.children.lock();
        let list = children.get_or_insert_with(|| Deferred::new(Children::default()));
        let key = list.add(place.node.identity(), child)?;
        *child.covers.lock() = Some(Covered { place, key });
        self.covered.store(list.covered(), Ordering::Release);
        Ok(())
    }

    /// As [`attach`](Self::attach), after [`make_room`](Self::make_room).
    pub fn attach_reserved(&self, child: &Arc<Mount>, place: Path) {
        self.attach(child, place).expect("room was made");
        if let Some(list) = &mut *self.children.lock() {
            list.give_room_back();
        }
    }

    /// Take away the mount whose root this mount shows at its mount point. `EBUSY` while others
    /// hang in `child`.
    pub fn detach(&self, child: &Arc<Mount>) -> Result<()> {
        if child.children.lock().as_ref().is_some_and(|list| !list.is_empty()) {
            return Err(Errno::EBUSY);
        }
        self.remove(child)
    }

    /// Take away `child` with all that hangs in it, which stays covered as it is.
    ///
    /// # Errors
    /// `EINVAL` where it does not hang here.
    pub fn detach_tree(&self, child: &Arc<Mount>) -> Result<()> {
        self.remove(child)?;
        child.cut_off();
        Ok(())
    }

    /// Take `child` out of the list, with all that hangs in it.
    ///
    /// # Errors
    /// `EINVAL` where it does not hang here.
    pub fn remove(&self, child: &Arc<Mount>) -> Result<()> {
        let (gone, covered) = {
            let mut children = self.children.lock();
            let list = children.as_mut().ok_or(Errno::EINVAL)?;
            let mut covers = child.covers.lock();
            let key = covers.as_ref().map(|covered| covered.key).ok_or(Errno::EINVAL)?;
            let gone = list.remove(key, child).ok_or(Errno::EINVAL)?;
            self.covered.store(list.covered(), Ordering::Release);
            (gone, covers.take())
        };
        drop((gone, covered));
        Ok(())
    }

    /// Move `child` from this mount to `place`, with all that hangs in it.
    pub fn hand_over(&self, child: &Arc<Mount>, place: Path) -> Result<()> {
        place.mount.make_room()?;
        self.remove(child)?;
        place.mount.clone().attach_reserved(child, place);
        Ok(())
    }

    /// The mount that covers `node` of this mount, if any.
    pub fn covering(&self, node: &Arc<dyn Node>) -> Option<Arc<Mount>> {
        let covered = self.covered.load(Ordering::Acquire);
        if covered == 0 {
            return None;
        }
        let identity = node.identity();
        if covered & children::place_bit(identity) == 0 {
            return None;
        }
        self.children.lock().as_ref()?.topmost(identity)
    }

    /// Cuts all ways up from the mounts below this one, which is itself mounted nowhere any more.
    /// Files under a mount stay covered: an open directory in the tree shows no more than before.
    /// Needs no memory; one caller at a time per tree.
    pub fn cut_off(self: &Receiver<Self>) {
        let mut here = self.clone();
        loop {
            let at = here.cut.load(Ordering::Relaxed);
            let next = here.children.lock().as_ref().and_then(|list| list.next(at));
            if let Some((order, child)) = next {
                here.cut.store(order + 1, Ordering::Relaxed);
                here = child;
            } else if here.is_same(self) {
                return;
            } else {
                let Some(covered) = here.covers.lock().take() else { return };
                here = covered.place.mount.clone();
                drop(covered);
            }
            sched::cond_resched();
        }
    }

    /// The mounts that hang in this one.
    ///
    /// # Errors
    /// `ENOMEM`: there may be any number.
    pub fn children(&self) -> Result<Vec<Arc<Mount>>> {
        let children = self.children.lock();
        let list = children.iter().flat_map(|list| list.by_order());
        list.cloned().try_collect_vec().map_err(Errno::from)
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
            all.try_extend(children.iter().flat_map(|list| list.by_order()).cloned())?;
            next += 1;
        }
        Ok(all)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let children = self.children.lock().take();
        if let Some(children) = children {
            release(children);
        }
    }
}

/// A program that changes a file through a mount without a description for writing (truncation):
/// the mount does not become read-only meanwhile.
pub struct MountWriter(Arc<Mount>);

impl MountWriter {
    /// Is counted until the end of the value.
    ///
    /// # Errors
    /// `EROFS` where nothing may be changed.
    pub fn new(mount: &Arc<Mount>) -> Result<Self> {
        mount.add_writer();
        let writer = Self(mount.clone());
        // It is counted: see `Mount::set_flags`.
        writer.0.writable()?;
        Ok(writer)
    }
}

impl Drop for MountWriter {
    fn drop(&mut self) {
        self.0.remove_writer();
    }
}
