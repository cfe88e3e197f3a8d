//! Recall of all runs of a group, because the remaining runs are of no use any more.
//!
//! A pipe whose write end is never written to. After the write end is closed, every poll of the
//! read end returns at once.

use std::fs::File;
use std::io::{PipeReader, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::Mutex;

use crate::Result;
use crate::failure::Failure;

/// A recall for the runs that share it, each in its own thread.
#[derive(Debug)]
pub struct Recall {
    closed: PipeReader,
    open: Mutex<Option<PipeWriter>>,
}

/// A run's part in a group.
#[derive(Clone, Copy)]
pub struct GroupMember<'a> {
    /// Ends the run when others of its group have failed.
    pub recall: &'a Recall,
    /// Hears each whole line of a measurement's stdout when it comes.
    pub hear: &'a dyn Fn(&str),
}

impl GroupMember<'_> {
    /// Passes on the lines that `output` has from byte `heard` on; returns their bytes.
    pub(super) fn listen(&self, output: &File, heard: u64) -> u64 {
        let mut bytes = [0; 4096];
        // An error shows up when the whole output is read at the end.
        let count = output.read_at(&mut bytes, heard).unwrap_or(0);
        let Some(end) = bytes[..count].iter().rposition(|&byte| byte == b'\n') else { return 0 };
        String::from_utf8_lossy(&bytes[..end]).lines().for_each(self.hear);
        end as u64 + 1
    }
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io::Write;

    use super::*;

    #[test]
    fn whole_lines_are_heard_once_and_a_part_of_one_waits() {
        let (mut file, heard) = (tempfile::tempfile().expect("a file"), RefCell::new(Vec::new()));
        let recall = Recall::new().expect("a recall");
        let hear = |line: &str| heard.borrow_mut().push(line.to_owned());
        let member = GroupMember { recall: &recall, hear: &hear };
        let mut at = 0;
        for (piece, lines) in [("one\ntw", 1), ("o", 1), ("\nthree\n", 3)] {
            file.write_all(piece.as_bytes()).expect("written");
            at += member.listen(&file, at);
            assert_eq!(heard.borrow().len(), lines, "after {piece:?}");
        }
        assert_eq!(*heard.borrow(), ["one", "two", "three"]);
        assert_eq!(member.listen(&file, at), 0);
    }
}
