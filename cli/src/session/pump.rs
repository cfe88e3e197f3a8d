//! One direction of one stream: all bytes from a source go to a sink, in order.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::escape::Escape;
use crate::Result;
use crate::failure::Failure;

const BUFFER: usize = 64 << 10;
/// Largest number of bytes that a ready pipe or terminal takes in one write without blocking
/// (PIPE_BUF).
const CAREFUL: usize = 4096;

/// Ends of a pump that other modules ask about.
pub trait Source {
    /// Adds the events that the pump waits for.
    fn interest<'a>(&'a self, set: &mut Vec<(BorrowedFd<'a>, PollFlags)>);
}

/// The end of the pump that is the host's own stream. That stream may block, and must not be made
/// non-blocking.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HostEnd {
    From,
    To,
}

/// A pump. The source is read only while the buffer is empty.
pub struct Pump {
    from: Option<OwnedFd>,
    to: Option<OwnedFd>,
    host: HostEnd,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    moved: u64,
    /// Detector for the escape key, if the source is the user's terminal.
    escape: Option<Escape>,
    escaped: bool,
    refused: Told,
    /// The reason why the sink takes no more bytes.
    refusal: Option<Errno>,
    ended: Told,
}

/// A fact that is reported once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    No,
    Due,
    Done,
}

impl Told {
    fn arise(&mut self) {
        if *self == Told::No {
            *self = Told::Due;
        }
    }

    fn take(&mut self) -> bool {
        let due = *self == Told::Due;
        if due {
            *self = Told::Done;
        }
        due
    }
}

fn copy(fd: BorrowedFd<'_>) -> Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(|e| Failure::new(format!("cannot use a stream: {e}"), ""))
}

impl Pump {
    /// Makes a pump from a stream of ours to the guest. A closed stream counts as empty.
    pub fn from_host(host: BorrowedFd<'_>, guest: &OwnedFd) -> Result<Pump> {
        Ok(Pump::new(copy(host).ok(), Some(copy(guest.as_fd())?), HostEnd::From))
    }

    /// Makes a pump from the guest to a stream of ours.
    pub fn to_host(guest: &OwnedFd, host: BorrowedFd<'_>) -> Result<Pump> {
        Ok(Pump::new(Some(copy(guest.as_fd())?), copy(host).ok(), HostEnd::To))
    }

    /// Makes a pump without work.
    pub fn idle() -> Pump {
        Pump::new(None, None, HostEnd::To)
    }

    fn new(from: Option<OwnedFd>, to: Option<OwnedFd>, host: HostEnd) -> Pump {
        Pump {
            ended: if from.is_none() { Told::Due } else { Told::No },
            from,
            to,
            host,
            buffer: vec![0; BUFFER].into_boxed_slice(),
            start: 0,
            end: 0,
            moved: 0,
            escape: None,
            escaped: false,
            refused: Told::No,
            refusal: None,
        }
    }

    /// Moves the bytes that can be moved without blocking.
    pub fn run(&mut self) {
        loop {
            if self.start == self.end && !self.fill() {
                return;
            }
            if !self.drain() {
                return;
            }
        }
    }

    /// Reads once. Returns false if no bytes are available now.
    fn fill(&mut self) -> bool {
        let Some(from) = &self.from else {
            return false;
        };
        if self.host == HostEnd::From && !is_ready(from.as_fd(), PollFlags::IN) {
            return false;
        }
        match rustix::io::read(from, &mut self.buffer[..]) {
            Ok(size) if size > 0 => {
                self.start = 0;
                self.end = size;
                if let Some(escape) = &mut self.escape {
                    self.escaped |= escape.typed(&self.buffer[..size], Instant::now());
                }
                true
            }
            Err(Errno::AGAIN | Errno::INTR) => false,
            // End of file; an error of a terminal that has gone (EIO) counts as one.
            _ => {
                self.from = None;
                self.ended.arise();
                false
            }
        }
    }

    /// Writes the buffered bytes. Returns false if some of them must wait.
    fn drain(&mut self) -> bool {
        while self.start < self.end {
            let held = &self.buffer[self.start..self.end];
            let Some(to) = &self.to else {
                // The stream has no receiver: the guest's sums still count the bytes as passed.
                self.pass(self.end - self.start);
                continue;
            };
            let result = match self.host {
                HostEnd::To => {
                    if !is_ready(to.as_fd(), PollFlags::OUT) {
                        return false;
                    }
                    rustix::io::write(to, &held[..held.len().min(CAREFUL)])
                }
                HostEnd::From => rustix::net::send(to, held, rustix::net::SendFlags::NOSIGNAL),
            };
            match result {
                Ok(size) => self.pass(size),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return false,
                Err(error) => {
                    self.to = None;
                    self.refusal = Some(error);
                    self.refused.arise();
                }
            }
        }
        true
    }

    fn pass(&mut self, size: usize) {
        self.start += size;
        self.moved += size as u64;
    }

    /// Begins to look for the escape key.
    pub fn watch_keys(&mut self) {
        self.escape = Some(Escape::default());
    }

    /// Returns whether the user typed the escape key.
    pub fn escaped(&self) -> bool {
        self.escaped
    }

    /// Returns, once, the number of bytes when the source has ended and all bytes have been passed
    /// on.
    pub fn newly_ended(&mut self) -> Option<u64> {
        (self.is_empty() && self.ended.take()).then_some(self.moved)
    }

    /// Returns, once, whether the sink has refused (a closed pipe, a full disk).
    pub fn newly_refused(&mut self) -> bool {
        self.refused.take()
    }

    /// Returns the reason why bytes did not reach the sink; `None` if all did.
    pub fn refusal(&self) -> Option<Errno> {
        self.refusal
    }

    /// Returns whether the buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Returns whether the source has ended and the buffer is empty.
    pub fn is_done(&self) -> bool {
        self.from.is_none() && self.is_empty()
    }

    /// Returns whether `total` bytes have been passed on.
    pub fn has_passed(&self, total: u64) -> bool {
        self.moved >= total
    }
}

impl Source for Pump {
    fn interest<'a>(&'a self, set: &mut Vec<(BorrowedFd<'a>, PollFlags)>) {
        if self.start < self.end {
            if let Some(to) = &self.to {
                set.push((to.as_fd(), PollFlags::OUT));
            }
        } else if let Some(from) = &self.from {
            set.push((from.as_fd(), PollFlags::IN));
        }
    }
}

fn is_ready(fd: BorrowedFd<'_>, flags: PollFlags) -> bool {
    let mut set = [PollFd::from_borrowed_fd(fd, flags)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut set, Some(&now)), Ok(count) if count > 0)
}
