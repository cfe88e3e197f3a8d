//! The server as the store of a page cache.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use freehold_bounce::FrameBytes;
use freehold_collections::Arc;
use freehold_frame::{Frame, PageCache as CacheKind};
use freehold_machine::PAGE_SIZE;
use freehold_vm::{BackingStore, VmError};
use freehold_xpfo::Windows;

use super::channel::Channel;
use super::fids::Fid;
use crate::hw::Hardware;
use crate::mem::Frames;
use crate::sched;
use crate::stored::{BYTES_READ, vm_error};
use crate::sync::SpinLock;

/// A file at the server.
pub(super) struct Store {
    channel: &'static Channel,
    /// The fid opened for reading, since the first open of the file here.
    reader: SpinLock<Option<Arc<Fid>>>,
    /// The fid opened for writing, since the first such open of the file here.
    writer: SpinLock<Option<Arc<Fid>>>,
    /// The file's size in bytes, as the server last reported.
    size: AtomicU64,
    /// Whether the server had fewer bytes than it reported.
    fell_short: AtomicBool,
}

impl Store {
    pub fn new(channel: &'static Channel, size: u64) -> Self {
        Self {
            channel,
            reader: SpinLock::new(None),
            writer: SpinLock::new(None),
            size: AtomicU64::new(size),
            fell_short: AtomicBool::new(false),
        }
    }

    /// Returns the fid for reading.
    pub fn reader(&self) -> Option<Arc<Fid>> {
        self.reader.lock().clone()
    }
    /// Sets the fid for reading.
    pub fn set_reader(&self, fid: Option<Arc<Fid>>) {
        let before = core::mem::replace(&mut *self.reader.lock(), fid);
        drop(before);
    }
    /// Returns the fid for writing.
    pub fn writer(&self) -> Option<Arc<Fid>> {
        self.writer.lock().clone()
    }
    /// Sets the fid for writing.
    pub fn set_writer(&self, fid: Arc<Fid>) {
        let before = self.writer.lock().replace(fid);
        drop(before);
    }
    /// Notes the size that the server reported.
    pub fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }
    /// Whether the server had fewer bytes than it reported, since the last call.
    pub fn take_fell_short(&self) -> bool {
        self.fell_short.swap(false, Ordering::AcqRel)
    }

    /// Returns how many of the `length` bytes from `start` on the file has.
    fn part(&self, start: u64, length: usize) -> usize {
        let left = self.size.load(Ordering::Acquire).saturating_sub(start);
        usize::try_from(left).map_or(length, |left| left.min(length))
    }
}

impl BackingStore<Frames> for Store {
    /// Fills the pages. A page of which the server has no byte, although it reported some, is an
    /// error; for a mapping this is SIGBUS.
    fn fill(&self, first: u64, frames: &[Frame<CacheKind, Frames>]) -> Result<(), VmError> {
        let start = first.checked_mul(PAGE_SIZE as u64).ok_or(VmError::Io)?;
        let want = self.part(start, frames.len() * PAGE_SIZE);
        let mut done = 0;
        while done < want {
            let fid = self.reader().ok_or(VmError::Io)?;
            let length = want.min(done + self.channel.most());
            let mut to = FrameBytes::new(Hardware, frames).truncated(length).starting_at(done);
            match self.channel.read(&fid, start + done as u64, &mut to).map_err(vm_error)? {
                0 => break,
                count => done += count,
            }
        }
        BYTES_READ.fetch_add(done as u64, Ordering::Relaxed);
        if done < want {
            self.fell_short.store(true, Ordering::Release);
            if done.next_multiple_of(PAGE_SIZE) < want.next_multiple_of(PAGE_SIZE) {
                return Err(VmError::Io);
            }
        }
        for (page, frame) in frames.iter().enumerate() {
            let filled = done.saturating_sub(page * PAGE_SIZE).min(PAGE_SIZE);
            if filled < PAGE_SIZE {
                Hardware.with_bytes(frame, |bytes| bytes[filled..].fill(0));
            }
        }
        Ok(())
    }

    /// Does nothing: no page is ever dirty, since writes go to the server and no mapping may store.
    fn may_retry(&self) -> Result<(), VmError> {
        if sched::is_current_dying() { Err(VmError::Interrupted) } else { Ok(()) }
    }

    fn write_back(&self, _first: u64, _frames: &[Frame<CacheKind, Frames>]) -> Result<(), VmError> {
        Err(VmError::Io)
    }
}
