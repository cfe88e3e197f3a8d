//! The output file of a core dump: bytes in order, and holes.

use freehold_collections::Arc;

use crate::fs::OpenFile;
use crate::fs::bytes::SliceSource;
use crate::{Errno, sched};

/// The reason why writing has stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stopped {
    /// RLIMIT_CORE: the file is a truncated core file.
    Limit,
    /// Writing failed, or the thread is being killed.
    Error(Errno),
}

/// Result of writing.
pub type Written = core::result::Result<(), Stopped>;

impl From<Errno> for Stopped {
    fn from(error: Errno) -> Self {
        Self::Error(error)
    }
}

/// A core file that is being written.
pub struct CoreOutput {
    file: Arc<OpenFile>,
    limit: u64,
    written: u64,
    /// The position of the next byte.
    at: u64,
    /// The end of the file.
    end: u64,
}

impl CoreOutput {
    /// Starts at the beginning of an empty file. At most `limit` bytes are written; holes do not
    /// count.
    pub fn new(file: Arc<OpenFile>, limit: u64) -> Self {
        Self { file, limit, written: 0, at: 0, end: 0 }
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// The file's error. If the bytes would exceed the limit, [`Stopped::Limit`], and none of them
    /// is written.
    pub fn put(&mut self, bytes: &[u8]) -> Written {
        if self.written + bytes.len() as u64 > self.limit {
            return Err(Stopped::Limit);
        }
        let mut source = SliceSource::new(bytes);
        let mut done = 0;
        while done < bytes.len() {
            sched::checkpoint()?;
            match self.file.write_at(self.at + done as u64, &mut source)? {
                0 => return Err(Errno::EIO.into()),
                count => done += count,
            }
        }
        self.written += bytes.len() as u64;
        self.at += bytes.len() as u64;
        self.end = self.at;
        Ok(())
    }

    /// Leaves a hole.
    pub fn skip(&mut self, bytes: u64) {
        self.at += bytes;
    }

    /// Leaves a hole up to the next multiple of `unit`.
    pub fn align(&mut self, unit: u64) {
        self.at = self.at.next_multiple_of(unit);
    }

    /// Extends the file over a hole at its end.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn finish(&mut self) -> Written {
        if self.at > self.end {
            self.at -= 1;
            self.put(&[0])?;
        }
        Ok(())
    }
}
