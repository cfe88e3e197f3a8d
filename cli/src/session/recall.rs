//! One word to all runs of a group: the others are of no use any more.
//!
//! The write end of a pipe that nobody writes to. Once it is closed, everybody who polls the read
//! end is woken, and stays so.

use std::io::{PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;

use crate::Result;
use crate::failure::Failure;

/// Ends the runs that were given it, each in its own thread.
#[derive(Debug)]
pub struct Recall {
    closed: PipeReader,
    open: Mutex<Option<PipeWriter>>,
}

impl Recall {
    /// Nobody is recalled yet.
    pub fn new() -> Result<Recall> {
        let (closed, open) =
            std::io::pipe().map_err(|e| Failure::new(format!("cannot make a pipe: {e}"), ""))?;
        Ok(Recall { closed, open: Mutex::new(Some(open)) })
    }

    /// Recalls everybody, now and from now on.
    pub fn call(&self) {
        drop(self.open.lock().expect("no holder panics").take());
    }

    /// Whether somebody has.
    pub fn called(&self) -> bool {
        self.open.lock().expect("no holder panics").is_none()
    }

    /// Hung up once somebody has.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.closed.as_fd()
    }
}
