//! Mounts of file systems.
//!
//! A mount covers a directory (or file) of the mount it hangs in; the root mount covers nothing.
//! Each mount lists the mounts that hang in it ([`children`]), under a spin lock that is held for a
//! look or a change of the list only. A tree of mounts belongs to a [namespace](super::namespace),
//! whose head says when it goes and which lock orders changes. The lists are let go of one level at
//! a time ([`Deferred`]): a program chooses how deep they are.

mod children;
mod cursor;
mod reference;

use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use bitflags::bitflags;
use freehold_collections::{
    Arc, Box, Receiver, TryCollect, Vec,
    reserve::{self, ArcMethods},
};

use self::children::{ChildKey, Children};
pub use self::cursor::MountCursor;
pub use self::reference::MountRef;
use super::node::Node;
use super::path::{Path, PathEntry, WalkSteps};
use crate::sync::{Deferred, SpinLock, release};
use crate::task::userns::UserNs;
use crate::{Errno, Result, sched};

bitflags! {
    /// Per-mount restrictions, with mount(2)'s MS_* values.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct MountFlags: u32 {
        /// Nothing may be changed through the mount.
        const RDONLY = 1;
        /// The setuid and setgid bits have no effect.
        const NOSUID = 2;
        /// Device nodes cannot be opened.
        const NODEV = 4;
        /// Nothing can be executed.
        const NOEXEC = 8;
        /// Reading does not change access times.
        const NOATIME = 1024;
        /// Reading does not change access times of directories.
        const NODIRATIME = 2048;
        /// Access times are updated only now and then.
        const RELATIME = 1 << 21;
    }
}

/// The types of file systems, as /proc/filesystems lists them. The last [`DISK_TYPES`] need a disk.
pub const TYPES: [&str; 17] = [
    "sysfs",
    "debugfs",
    "tracefs",
    "tmpfs",
    "proc",
    "devtmpfs",
    "devpts",
    "ramfs",
    "mqueue",
    "cgroup2",
    "hugetlbfs",
    "9p",
    "overlay",
    "ext3",
    "ext2",
    "ext4",
    "erofs",
];
/// Number of types of file systems on disks.
pub const DISK_TYPES: usize = 4;

/// Figures of a file system for statfs(2).
#[derive(Clone, Copy, Debug, Default)]
pub struct FsStats {
    /// The magic number (linux/magic.h).
    pub magic: u64,
    /// Bytes per block.
    pub block_size: u64,
    /// Total number of blocks.
    pub blocks: u64,
    /// Number of free blocks.
    pub free_blocks: u64,
    /// Total number of inodes.
    pub inodes: u64,
    /// Number of free inodes.
    pub free_inodes: u64,
}

/// A file's handle (name_to_handle_at(2)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileHandle {
    /// The words; those behind the handle's end are 0.
    pub words: [u32; 3],
    /// Number of words.
    pub count: usize,
}

impl FileHandle {
    /// The type of all handles here, which is that of Linux' tmpfs and cgroup2 (FILEID_INO32_GEN).
    pub const TYPE: u32 = 1;
}

/// The file of a handle, and the name by which it was found.
pub type HandleTarget = (Arc<dyn Node>, Option<Arc<PathEntry>>);

/// A mounted file system.
pub trait FileSystem: Send + Sync {
    /// The file system's type, as /proc/mounts shows it.
    fn name(&self) -> &'static str;
    /// The file system's device number.
    fn device(&self) -> u64;
    /// The root directory.
    fn root(&self) -> Arc<dyn Node>;
    /// Returns the result of statfs(2).
    fn stats(&self) -> FsStats;
    /// Writes the file system's own options, as /proc/mounts shows them (",size=1024k").
    fn show_options(&self, _out: &mut dyn fmt::Write) -> fmt::Result {
        Ok(())
    }
    /// Whether nothing can be changed, even if the mounts permit it.
    fn is_read_only(&self) -> bool {
        false
    }
    /// Writes cached data to the device; a file system in memory needs nothing.
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    /// Returns how many file systems it is on top of: each of its calls makes one of theirs.
    fn stacking(&self) -> u32 {
        0
    }
    /// Returns the handle of `node`, which was found by `entry`, if that is known.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the file cannot have one; `ENOMEM`.
    fn handle(&self, _node: &Arc<dyn Node>, _entry: Option<&PathEntry>) -> Result<FileHandle> {
        Err(Errno::EOPNOTSUPP)
    }
    /// Returns the file of a handle of type `kind`.
    ///
    /// # Errors
    /// `ESTALE` if there is no such file; `ENOMEM`.
    fn by_handle(&self, _kind: u32, _words: &[u32]) -> Result<HandleTarget> {
        Err(Errno::ESTALE)
    }
    /// Changes options (a remount, or the data of mount(2)); `EINVAL` for unknown ones.
    fn configure(&self, _options: &[u8]) -> Result<()> {
        Ok(())
    }
}

/// A file system, or a part of one (a bind mount), at one place.
pub struct Mount {
    id: u64,
    /// Whether the mount's root is the file system's root.
    shows_all: bool,
    fs: Arc<dyn FileSystem>,
    root: Arc<dyn Node>,
    source: Vec<u8>,
    flags: AtomicU32,
    /// Descriptions of regular files that were opened for writing through the mount.
    writers: AtomicUsize,
    /// The user namespace in which the file system was mounted first.
    fs_owner: UserNs,
    /// Properties that may not be changed: [`MountFlags`], and the two constants below.
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
    /// 0, or 1 and the number of walks that entered the mount since it was
    /// [marked](Mount::expire).
    expiry: AtomicU32,
    /// Whether it is the root of a tree that belongs to a descriptor.
    is_loose: AtomicBool,
}

/// Where a mount hangs.
struct Covered {
    place: Path,
    /// Its place in the list of the mount that it hangs in.
    key: ChildKey,
}

/// In `locked`: the setting for access times cannot be changed.
const LOCKED_TIMES: u32 = 1 << 30;
/// In `locked`: the mount cannot be moved or removed.
const LOCKED_PLACE: u32 = 1 << 31;
/// The restrictions that a less privileged namespace may not remove.
const RESTRICTIONS: MountFlags =
    MountFlags::RDONLY.union(MountFlags::NOSUID).union(MountFlags::NODEV).union(MountFlags::NOEXEC);
const TIMES: MountFlags = MountFlags::NOATIME.union(MountFlags::NODIRATIME);

/// How a copy treats mounts that must stay in their places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Keep {
    /// The copied mounts must stay, too.
    Place,
    /// The copied mounts may move.
    Nothing,
}

/// Whether a tree of mounts belongs to a descriptor or to a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Looseness {
    /// It belongs to a descriptor.
    Loose,
    /// It belongs to a namespace, or to nothing any more.
    Attached,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Mount {
    /// Makes a mount of all of `fs`, not attached yet; `source` is the device or name to show.
    pub fn new(fs: Arc<dyn FileSystem>, source: &[u8], flags: MountFlags) -> Result<Arc<Self>> {
        let root = fs.root();
        Self::of_part(fs, root, source, flags)
    }

    /// Makes a mount of the part of `fs` below `root` (a bind mount).
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

    /// Makes a mount that is not attached yet.
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
            expiry: AtomicU32::new(0),
            is_loose: AtomicBool::new(false),
        })
    }

    /// Returns a copy of this mount, not attached yet, as a mount of a file system that was first
    /// mounted in `owner`.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn owned_by(&self, owner: &UserNs) -> Result<Arc<Self>> {
        self.again(self.root.clone(), owner.clone(), self.locked.load(Ordering::Relaxed))
    }

    /// Returns a copy that shows `root`, may be moved, and is not attached yet.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn copy(&self, root: Arc<dyn Node>) -> Result<Arc<Self>> {
        self.copy_with_locks(root, Keep::Nothing)
    }

    /// Like [`copy`](Self::copy); `keep` says whether the copy must stay in its place.
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

    /// Locks the properties that a namespace with fewer rights must not change: the present
    /// restrictions and, unless the mount is the root, its place (Linux: `lock_mnt_tree`,
    /// fs/namespace.c).
    pub fn lock_for_others(&self) {
        let mut locked = (self.flags() & RESTRICTIONS).bits() | LOCKED_TIMES;
        if self.covers.lock().is_some() {
            locked |= LOCKED_PLACE;
        }
        self.locked.fetch_or(locked, Ordering::Relaxed);
    }

    /// Whether the mount must stay in its place.
    pub fn is_locked(&self) -> bool {
        self.locked.load(Ordering::Relaxed) & LOCKED_PLACE != 0
    }

    /// Takes over the place lock of `other`, whose place this mount has taken.
    pub fn take_lock_of(&self, other: &Mount) {
        let lock = other.locked.fetch_and(!LOCKED_PLACE, Ordering::Relaxed) & LOCKED_PLACE;
        self.locked.fetch_or(lock, Ordering::Relaxed);
    }

    /// Checks that the mount's restrictions may become `new`.
    ///
    /// # Errors
    /// `EPERM` if that would remove a locked restriction (Linux: `can_change_locked_flags`).
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

    /// The directory that is visible at the mount point.
    pub fn root(&self) -> &Arc<dyn Node> {
        &self.root
    }

    /// Whether the mount's root is the file system's root: no directory of the file system lies
    /// outside the mount.
    pub fn shows_all(&self) -> bool {
        self.shows_all
    }

    /// The device or name that was mounted.
    pub fn source(&self) -> &[u8] {
        &self.source
    }

    /// The mount's present restrictions.
    pub fn flags(&self) -> MountFlags {
        MountFlags::from_bits_truncate(self.flags.load(Ordering::SeqCst))
    }

    /// Changes the restrictions (remount). Requires the lock of mount changes.
    ///
    /// # Errors
    /// `EBUSY` if the mount becomes read-only and a file is open for writing.
    pub fn set_flags(&self, flags: MountFlags) -> Result<()> {
        let flags = if self.fs.is_read_only() { flags | MountFlags::RDONLY } else { flags };
        // A writer first counts itself and then checks the flags. So either it sees the new flags,
        // or it is counted here.
        let before = self.flags.swap(flags.bits(), Ordering::SeqCst);
        let becomes_read_only = flags.bits() & !before & MountFlags::RDONLY.bits() != 0;
        if becomes_read_only && self.writers.load(Ordering::SeqCst) > 0 {
            self.flags.store(before, Ordering::Relaxed);
            return Err(Errno::EBUSY);
        }
        Ok(())
    }

    /// Counts a description that writes through the mount, until
    /// [`remove_writer`](Self::remove_writer).
    pub fn add_writer(&self) {
        self.writers.fetch_add(1, Ordering::SeqCst);
    }

    /// Undoes [`add_writer`](Self::add_writer).
    pub fn remove_writer(&self) {
        self.writers.fetch_sub(1, Ordering::Relaxed);
    }

    /// `EROFS` if nothing may be changed. A longer change must be counted ([`MountWriter`]).
    pub fn writable(&self) -> Result<()> {
        if self.flags().contains(MountFlags::RDONLY) { Err(Errno::EROFS) } else { Ok(()) }
    }

    /// The place that the mount covers; `None` for the root mount and for a removed mount.
    pub fn mountpoint(&self) -> Option<Path> {
        self.covers.lock().as_ref().map(|covered| covered.place.clone())
    }

    /// Whether the mount is in the tree with the root `root`. A mount that was removed from the
    /// tree is not.
    ///
    /// # Errors
    /// `EINTR` if the caller is killed meanwhile.
    pub fn hangs_in(self: &Receiver<Self>, root: &Arc<Mount>) -> Result<bool> {
        let (mut here, mut steps) = (self.clone(), WalkSteps::default());
        while let Some(below) = here.mountpoint() {
            steps.advance()?;
            here = below.mount.arc();
        }
        Ok(here.is_same(root))
    }

    /// Whether anything refers to the mount besides its place in the tree and one reference of the
    /// caller: an open file, a working directory, a mapping, or a call under way.
    pub fn is_in_use(self: &Receiver<Self>) -> bool {
        self.references() > children::REFERENCES + 1
    }

    /// Whether the mount was marked before, and only the caller's own walk has entered it since.
    /// Otherwise marks it (MNT_EXPIRE).
    pub fn expire(&self) -> bool {
        const ONLY_OWN_WALK: u32 = 2;
        self.expiry.swap(1, Ordering::Relaxed) == ONLY_OWN_WALK
    }

    /// Whether the mount is the root of a tree that belongs to a descriptor, and to no namespace
    /// (open_tree, fsmount).
    pub fn is_loose(&self) -> bool {
        self.is_loose.load(Ordering::Relaxed)
    }

    /// Sets whether the mount [is loose](Self::is_loose). Returns whether it was. Requires the lock
    /// of mount changes, unless no other task has the mount yet.
    pub fn set_loose(&self, is_loose: Looseness) -> Looseness {
        let was = self.is_loose.swap(is_loose == Looseness::Loose, Ordering::Relaxed);
        if was { Looseness::Loose } else { Looseness::Attached }
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

    /// Like [`attach`](Self::attach), after [`make_room`](Self::make_room).
    pub fn attach_reserved(&self, child: &Arc<Mount>, place: Path) {
        self.attach(child, place).expect("room was made");
        if let Some(list) = &mut *self.children.lock() {
            list.give_room_back();
        }
    }

    /// Removes the mount whose root this mount shows at its mount point. `EBUSY` while `child` has
    /// child mounts.
    pub fn detach(&self, child: &Arc<Mount>) -> Result<()> {
        if child.children.lock().as_ref().is_some_and(|list| !list.is_empty()) {
            return Err(Errno::EBUSY);
        }
        self.remove(child)
    }

    /// Removes `child` with all mounts in it, which stay attached to it.
    ///
    /// # Errors
    /// `EINVAL` if it is not attached here.
    pub fn detach_tree(&self, child: &Arc<Mount>) -> Result<()> {
        self.remove(child)?;
        child.cut_off();
        Ok(())
    }

    /// Takes `child`, with all mounts in it, out of the list.
    ///
    /// # Errors
    /// `EINVAL` if it is not attached here.
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

    /// Moves `child`, with all mounts in it, from this mount to `place`.
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
        let covering = self.children.lock().as_ref()?.topmost(identity)?;
        if covering.expiry.load(Ordering::Relaxed) > 0 {
            covering.expiry.fetch_add(1, Ordering::Relaxed);
        }
        Some(covering)
    }

    /// Cuts all references upwards from the mounts below this one, which is itself no longer
    /// mounted. Files under a mount stay covered: an open directory in the tree shows no more than
    /// before. Needs no memory; one caller at a time per tree.
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
                here = covered.place.mount.arc();
                drop(covered);
            }
            sched::cond_resched();
        }
    }

    /// The child mounts.
    ///
    /// # Errors
    /// `ENOMEM`: their number is not bounded.
    pub fn children(&self) -> Result<Vec<Arc<Mount>>> {
        let children = self.children.lock();
        let list = children.iter().flat_map(|list| list.by_order());
        list.cloned().try_collect_vec().map_err(Errno::from)
    }

    /// This mount and all mounts below it, parents first.
    ///
    /// # Errors
    /// `ENOMEM`: their number is not bounded.
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

/// Counts a change of a file through a mount without a description for writing (truncation). The
/// mount does not become read-only meanwhile.
pub struct MountWriter(Arc<Mount>);

impl MountWriter {
    /// Counts the writer until the value is dropped.
    ///
    /// # Errors
    /// `EROFS` if nothing may be changed.
    pub fn new(mount: &Arc<Mount>) -> Result<Self> {
        mount.add_writer();
        let writer = Self(mount.clone());
        // The writer is counted before this check: see `Mount::set_flags`.
        writer.0.writable()?;
        Ok(writer)
    }
}

impl Drop for MountWriter {
    fn drop(&mut self) {
        self.0.remove_writer();
    }
}
