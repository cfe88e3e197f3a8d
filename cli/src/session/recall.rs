//! Recall of all runs of a group, because the remaining runs are of no use any more.
//!
//! A pipe whose write end is never written to. After the write end is closed, every poll of the
//! read end returns at once.

use std::io::{PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;

use crate::Result;
use crate::failure::Failure;

/// A recall for the runs that share it, each in its own thread.
#[derive(Debug)]
pub struct Recall {
    closed: PipeReader,
    open: Mutex<Option<PipeWriter>>,
}

impl Recall {
    /// Returns a recall that has not happened yet.
    pub fn new() -> Result<Recall> {
        let (closed, open) =
            std::io::pipe().map_err(|e| Failure::new(format!("cannot make a pipe: {e}"), ""))?;
        Ok(Recall { closed, open: Mutex::new(Some(open)) })
    }

    /// Recalls all runs, now and from now on.
    pub fn call(&self) {
        drop(self.open.lock().expect("no holder panics").take());
    }

    /// Returns whether the runs are recalled.
    pub fn called(&self) -> bool {
        self.open.lock().expect("no holder panics").is_none()
    }

    /// Returns a descriptor that hangs up at the recall.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.closed.as_fd()
    }
}
