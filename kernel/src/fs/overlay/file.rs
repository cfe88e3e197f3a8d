//! Open files of a merged tree that are not the upper tree's own.

use core::ops::Range;

use freehold_collections::{Arc, reserve};

use super::listing::Listing;
use super::node::OverlayNode;
use crate::fs::content::FileContent;
use crate::fs::file::{Allocate, Blocking, DirEntry, File, MmapContent, Seekable};
use crate::fs::flags::OpenFlags;
use crate::fs::node::{Node, NodeKind};
use crate::sync::{Mutex, SpinLock};
use crate::user::Sink;
use crate::{Errno, Result};

/// Positions of "." and ".." come first.
const FIRST_POSITION: u64 = 2;

/// A regular file that was in the lower tree when it was opened, for reading. After a copy-up,
/// reads use the copy, while mappings keep the lower tree's pages.
pub(super) struct LowerFile {
    node: Arc<OverlayNode>,
    lower: Arc<dyn File>,
    copy: SpinLock<CopyOpened>,
}

struct CopyOpened {
    flags: OpenFlags,
    file: Option<Arc<dyn File>>,
}

impl LowerFile {
    /// Opens the lower tree's file.
    ///
    /// # Errors
    /// The lower tree's error.
    pub fn open(node: Arc<OverlayNode>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        let lower = node.lower().cloned().ok_or(Errno::EIO)?.open(flags)?;
        Ok(reserve::arc(Self { node, lower, copy: SpinLock::new(CopyOpened { flags, file: None }) }))
    }

    /// Returns the file that serves reads now.
    fn now(&self) -> Result<Arc<dyn File>> {
        let Some(upper) = self.node.upper() else { return Ok(self.lower.clone()) };
        let flags = {
            let copy = self.copy.lock();
            if let Some(file) = &copy.file {
                return Ok(file.clone());
            }
            copy.flags
        };
        let opened = upper.open(flags)?;
        let before = self.copy.lock().file.replace(opened.clone());
        drop(before);
        Ok(opened)
    }
}

impl File for LowerFile {
    /// The lower tree's node. This is the file that programs run from, and that may not be written
    /// while they run.
    fn node(&self) -> Arc<dyn Node> {
        self.lower.node()
    }

    fn seekable(&self) -> Seekable {
        Seekable::Offset
    }

    fn read_at(&self, offset: u64, sink: &mut dyn Sink, blocking: Blocking) -> Result<usize> {
        self.now()?.read_at(offset, sink, blocking)
    }

    fn end(&self) -> Result<u64> {
        self.now()?.end()
    }

    fn sync(&self) -> Result<()> {
        self.now()?.sync()
    }

    fn mapping(&self) -> Result<MmapContent> {
        self.lower.mapping()
    }

    fn content(&self) -> Option<Arc<dyn FileContent>> {
        self.now().ok()?.content()
    }

    fn allocate(&self, _range: Range<u64>, _how: Allocate) -> Result<()> {
        Err(Errno::EBADF)
    }

    fn flags_changed(&self, flags: OpenFlags) {
        let file = {
            let mut copy = self.copy.lock();
            copy.flags = flags;
            copy.file.clone()
        };
        self.lower.flags_changed(flags);
        if let Some(file) = file {
            file.flags_changed(flags);
        }
    }
}

/// An open directory.
pub(super) struct MergedDirectory {
    node: Arc<OverlayNode>,
    listing: Mutex<Option<Listing>>,
}

impl MergedDirectory {
    pub const fn new(node: Arc<OverlayNode>) -> Self {
        Self { node, listing: Mutex::new(None) }
    }
}

impl File for MergedDirectory {
    fn node(&self) -> Arc<dyn Node> {
        self.node.clone()
    }

    fn read_dir(&self, from: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let mut kept = self.listing.lock_killable()?;
        if from == 0 {
            *kept = None;
        }
        let listing = match &mut *kept {
            Some(listing) => listing,
            none => none.insert(Listing::of_merged(&self.node)?),
        };
        let kind = NodeKind::Directory.dirent_kind();
        let inode = self.node.identity().inode;
        if from == 0 && !emit(DirEntry { name: b".", inode, kind, next: 1 }) {
            return Ok(());
        }
        if from <= 1 {
            let parent = self.node.parent().map_or(inode, |place| place.dir.identity().inode);
            if !emit(DirEntry { name: b"..", inode: parent, kind, next: FIRST_POSITION }) {
                return Ok(());
            }
        }
        listing.emit(from.saturating_sub(FIRST_POSITION), FIRST_POSITION, emit)
    }
    fn read_at(&self, _offset: u64, _sink: &mut dyn Sink, _blocking: Blocking) -> Result<usize> {
        Err(Errno::EISDIR)
    }

    fn seekable(&self) -> Seekable {
        Seekable::Offset
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}
