//! Open files and directories of a share.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use freehold_collections::{Arc, Vec};
use freehold_ninep::Entries;

use super::fids::Fid;
use super::node::ShareNode;
use crate::fs::file::Allocate;
use crate::fs::{Blocking, DirEntry, File, FileContent, MmapContent, Node, OpenFlags, Seekable};
use crate::user::{Sink, Source, so_far};
use crate::{Errno, Result, sched};

/// Bytes of a directory that are requested at once.
const LISTING: usize = 16 << 10;
/// Bytes that are read at once when the page cache is bypassed.
const DIRECT: usize = 32 << 10;

/// An open regular file.
pub(super) struct RegularFile {
    node: Arc<ShareNode>,
    /// O_DIRECT, which fcntl may change.
    direct: AtomicBool,
}

impl RegularFile {
    pub fn new(node: Arc<ShareNode>, flags: OpenFlags) -> Self {
        Self { node, direct: AtomicBool::new(flags.contains(OpenFlags::DIRECT)) }
    }

    /// Reads from the server, bypassing the page cache.
    fn read_direct(&self, offset: u64, sink: &mut dyn Sink) -> Result<usize> {
        let fid = self.node.reader().ok_or(Errno::EIO)?;
        let channel = self.node.share().channel();
        let mut room = Vec::try_filled(0, DIRECT.min(sink.remaining()))?;
        let mut done = 0;
        while sink.remaining() > 0 {
            let want = room.len().min(sink.remaining());
            let at = offset.checked_add(done as u64).ok_or(Errno::EINVAL)?;
            let step = sched::checkpoint()
                .and_then(|()| channel.read_bytes(&fid, at, &mut room[..want]))
                .and_then(|count| if count == 0 { Ok(0) } else { sink.put(&room[..count]) });
            match step {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) => return so_far(done, error),
            }
        }
        Ok(done)
    }
}

impl File for RegularFile {
    fn node(&self) -> Arc<dyn Node> {
        self.node.clone()
    }
    fn flags_changed(&self, flags: OpenFlags) {
        self.direct.store(flags.contains(OpenFlags::DIRECT), Ordering::Relaxed);
    }
    fn seekable(&self) -> Seekable {
        Seekable::Offset
    }
    fn read_at(&self, offset: u64, sink: &mut dyn Sink, _blocking: Blocking) -> Result<usize> {
        if self.direct.load(Ordering::Relaxed) {
            return self.read_direct(offset, sink);
        }
        self.node.read_at(offset, sink)
    }
    fn write_at(&self, offset: u64, source: &mut dyn Source, _blocking: Blocking) -> Result<usize> {
        self.node.write_at(Some(offset), source).map(|(count, _)| count)
    }
    fn append(&self, source: &mut dyn Source, _blocking: Blocking) -> Result<(usize, u64)> {
        self.node.write_at(None, source)
    }
    fn sync(&self) -> Result<()> {
        self.node.sync()
    }
    fn mapping(&self) -> Result<MmapContent> {
        self.node.content().map(MmapContent::Unstorable).ok_or(Errno::ENODEV)
    }
    fn allocate(&self, _range: Range<u64>, _how: Allocate) -> Result<()> {
        Err(Errno::EOPNOTSUPP)
    }
    fn drop_rights(&self) -> Result<()> {
        self.node.drop_rights()
    }
    fn content(&self) -> Option<Arc<dyn FileContent>> {
        self.node.content()
    }
}

/// An open directory.
pub(super) struct DirectoryFile {
    node: Arc<ShareNode>,
    fid: Fid,
}

impl DirectoryFile {
    pub const fn new(node: Arc<ShareNode>, fid: Fid) -> Self {
        Self { node, fid }
    }
}

impl File for DirectoryFile {
    fn node(&self) -> Arc<dyn Node> {
        self.node.clone()
    }
    fn read_at(&self, _offset: u64, _sink: &mut dyn Sink, _blocking: Blocking) -> Result<usize> {
        Err(Errno::EISDIR)
    }
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    fn seekable(&self) -> Seekable {
        Seekable::Offset
    }

    /// Emits entries; positions are the server's. If a position does not advance, the directory
    /// ends, so that no server keeps a program in this loop.
    fn read_dir(&self, from: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let channel = self.node.share().channel();
        let mut room = Vec::try_filled(0, LISTING.min(channel.most()))?;
        let mut at = from;
        loop {
            let count = channel.list(&self.fid, at, room.as_mut_slice())?;
            let before = at;
            let mut entries = Entries::new(&room[..count]);
            for entry in entries.by_ref() {
                at = entry.next;
                let (name, inode) = (entry.name, entry.qid.path);
                if !emit(DirEntry { name, inode, kind: entry.kind, next: entry.next }) {
                    return Ok(());
                }
            }
            if !entries.is_at_end() {
                return Err(Errno::EIO);
            }
            if count == 0 || at == before {
                return Ok(());
            }
            sched::checkpoint()?;
        }
    }
}
