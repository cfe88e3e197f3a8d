//! Marks: the interest of a group in an inode, a mount or a file system.

use core::sync::atomic::{AtomicU32, Ordering};

use bitflags::bitflags;
use freehold_collections::Arc;

use super::super::watches::InodeWatch;
use super::group::FanGroup;
use super::{COUNT, FanMask, Relation, mask_of};
use crate::fs::mount::{FileHandle, FileSystem};
use crate::fs::node::{Identity, NodeKind};
use crate::fs::path::Path;
use crate::{Errno, Result};

bitflags! {
    /// fanotify_mark(2)'s flags.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct MarkFlags: u32 {
        /// Add to a mark.
        const ADD = 0x1;
        /// Remove from a mark.
        const REMOVE = 0x2;
        /// Do not follow a symbolic link.
        const DONT_FOLLOW = 0x4;
        /// Mark directories only.
        const ONLYDIR = 0x8;
        /// Mark a mount.
        const MOUNT = 0x10;
        /// Change the mask of ignored events.
        const IGNORED_MASK = 0x20;
        /// Ignored events stay ignored when the file is changed.
        const SURVIVES_MODIFY = 0x40;
        /// Remove all marks of this kind.
        const FLUSH = 0x80;
        /// Mark a file system.
        const FILESYSTEM = 0x100;
        /// The mark need not keep the inode in memory. It does so here.
        const EVICTABLE = 0x200;
        /// Change the mask of ignored events, whose qualifiers have a meaning of their own.
        const IGNORE = 0x400;

        /// Flags that choose what to do.
        const COMMANDS = 0x83;
        /// Flags that choose the kind of object.
        const KINDS = 0x110;
        /// Flags that choose the mask of ignored events.
        const IGNORES = 0x420;
        /// Flags that a mark keeps.
        const KEPT = 0x640;
    }
}

/// The object of a mark.
#[derive(Clone, Copy)]
pub enum MarkedObject<'a> {
    /// The inode at the place.
    Inode(&'a Path),
    /// The place's mount.
    Mount(&'a Path),
    /// The place's file system.
    FileSystem(&'a Path),
}

/// Numbers of no file system, under which mounts and file systems have entries in the table of
/// watches.
const MOUNTS: u64 = u64::MAX;
const DEVICES: u64 = u64::MAX - 1;

impl MarkedObject<'_> {
    /// Returns the identity under which a mount has marks.
    pub const fn mount_identity(id: u64) -> Identity {
        Identity { device: MOUNTS, inode: id }
    }

    /// Returns the identity under which a file system has marks.
    pub const fn device_identity(device: u64) -> Identity {
        Identity { device: DEVICES, inode: device }
    }

    pub(super) fn identity(&self) -> Identity {
        match self {
            Self::Inode(path) => path.node.identity(),
            Self::Mount(path) => Self::mount_identity(path.mount.id()),
            Self::FileSystem(path) => Self::device_identity(path.node.identity().device),
        }
    }

    /// Returns the place.
    pub const fn path(&self) -> &Path {
        match self {
            Self::Inode(path) | Self::Mount(path) | Self::FileSystem(path) => path,
        }
    }
}

/// Returns the flags that choose objects such as that of `identity`.
pub(super) const fn kind_of(identity: Identity) -> MarkFlags {
    match identity.device {
        MOUNTS => MarkFlags::MOUNT,
        DEVICES => MarkFlags::FILESYSTEM,
        _ => MarkFlags::empty(),
    }
}

/// A change of a mark, as fanotify_mark(2) requests it.
#[derive(Clone, Copy, Debug)]
pub struct MarkChange {
    /// The events.
    pub mask: FanMask,
    /// The flags of the call.
    pub flags: MarkFlags,
    /// Bits that do not keep a mark that has no other.
    pub idle: FanMask,
}

/// The part of a fanotify mark that other watches do not have.
pub struct Mark {
    pub(super) group: Arc<FanGroup>,
    /// Events that are not reported, although a mark of the group requests them.
    ignored: AtomicU32,
    flags: AtomicU32,
    is_directory: bool,
    /// The file system, and the handle of the marked inode, for groups that report handles.
    pub(super) source: Option<(Arc<dyn FileSystem>, FileHandle)>,
}

impl Mark {
    pub(super) fn new(
        group: &Arc<FanGroup>,
        object: &MarkedObject<'_>,
        source: Option<(Arc<dyn FileSystem>, FileHandle)>,
    ) -> Self {
        let is_directory = object.path().node.kind() == NodeKind::Directory;
        COUNT.fetch_add(1, Ordering::SeqCst);
        let [ignored, flags] = [0; 2].map(AtomicU32::new);
        Self { group: group.clone(), ignored, flags, is_directory, source }
    }

    /// Returns the ignored events.
    pub(super) fn ignored(&self) -> FanMask {
        FanMask::from_bits_retain(self.ignored.load(Ordering::Relaxed))
    }

    pub(super) fn flags(&self) -> MarkFlags {
        MarkFlags::from_bits_retain(self.flags.load(Ordering::Relaxed))
    }

    /// Returns the ignored events, as they apply to `event`, which may be on a directory or on a
    /// directory's child (Linux: `fsnotify_effective_ignore_mask`). `own` is the mark's mask.
    #[cold]
    pub(super) fn ignores(&self, own: FanMask, event: FanMask, relation: Relation) -> FanMask {
        let (on_directory, by_parent) = (event.contains(FanMask::ONDIR), relation == Relation::Parent);
        let mut ignored = self.ignored();
        if ignored.is_empty() || (!on_directory && !by_parent) {
            return ignored;
        }
        if !self.flags().contains(MarkFlags::IGNORE) {
            ignored |= FanMask::ONDIR;
            ignored.set(FanMask::EVENT_ON_CHILD, own.contains(FanMask::EVENT_ON_CHILD));
        }
        let applies = (!on_directory || ignored.contains(FanMask::ONDIR))
            && (!by_parent || ignored.contains(FanMask::EVENT_ON_CHILD));
        // The qualifiers themselves hide nothing.
        if applies { ignored.difference(FanMask::QUALIFIERS) } else { FanMask::empty() }
    }

    /// Forgets ignored events, since the content has changed.
    pub(super) fn file_modified(&self) {
        if !self.flags().contains(MarkFlags::SURVIVES_MODIFY) {
            self.ignored.store(0, Ordering::Relaxed);
        }
    }

    /// Adds to the mark `watch`.
    ///
    /// # Errors
    /// `EEXIST` if the flags contradict those that the mark has.
    #[cold]
    pub(super) fn add(&self, watch: &InodeWatch, change: &MarkChange) -> Result<()> {
        let (own, new) = (self.flags(), change.flags);
        let is_kept = mask_of(watch) != FanMask::empty() || !self.ignored().is_empty();
        let forgets = new.contains(MarkFlags::IGNORE) && !new.contains(MarkFlags::SURVIVES_MODIFY);
        if is_kept && new.contains(MarkFlags::EVICTABLE) && !own.contains(MarkFlags::EVICTABLE)
            || new.contains(MarkFlags::IGNORED_MASK) && own.contains(MarkFlags::IGNORE)
            || forgets && own.contains(MarkFlags::SURVIVES_MODIFY)
        {
            return Err(Errno::EEXIST);
        }
        let mut flags = new & MarkFlags::EVICTABLE;
        if new.intersects(MarkFlags::IGNORES) {
            flags |= new & (MarkFlags::IGNORE | MarkFlags::SURVIVES_MODIFY);
            self.ignored.fetch_or(change.mask.bits(), Ordering::Relaxed);
        } else {
            watch.mask.fetch_or(change.mask.bits(), Ordering::Relaxed);
        }
        self.flags.fetch_or(flags.bits(), Ordering::Relaxed);
        Ok(())
    }

    /// Removes from the mark `watch`. Returns whether nothing is left of it.
    #[cold]
    pub(super) fn reduce(&self, watch: &InodeWatch, change: &MarkChange) -> bool {
        let of_ignored = change.flags.intersects(MarkFlags::IGNORES);
        let reduced = if of_ignored { &self.ignored } else { &watch.mask };
        reduced.fetch_and(!change.mask.bits(), Ordering::Relaxed);
        (mask_of(watch) | self.ignored()).difference(change.idle).is_empty()
    }

    /// Tells the group that the marked inode has ended.
    #[cold]
    pub fn object_deleted(&self, own: FanMask) {
        let mut event = FanMask::DELETE_SELF;
        event.set(FanMask::ONDIR, self.is_directory);
        let is_requested = !self.is_directory || own.contains(FanMask::ONDIR);
        if is_requested && (own & !self.ignored()).contains(FanMask::DELETE_SELF) {
            self.group.tell_end(event, self);
        }
    }

    /// Takes the mark out of its group, since it has ended.
    pub fn ended(&self, number: i32) {
        self.group.forget(number);
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        COUNT.fetch_sub(1, Ordering::SeqCst);
    }
}
