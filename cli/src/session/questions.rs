//! The socket of `run --control`: carries questions of `freehold owns` to the guest's kernel.
//!
//! A question is a line of text, an answer is the kernel's JSON in a line. There is one asker at a
//! time; others wait in the socket's queue. Every process that may open the socket may ask, so only
//! the user who started the run may open it.

use std::fmt::Write as _;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::event::PollFlags;
use serde_json::Value;

use super::channel::Channel;
use crate::Result;
use crate::failure::Failure;
use crate::owns::OwnerQuestion;

/// The longest question.
const LONGEST: usize = 256;

/// The socket, and the process that asks.
pub struct Questions {
    listener: UnixListener,
    path: PathBuf,
    asker: Option<Asker>,
}

struct Asker {
    channel: Channel,
    state: AskerState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum AskerState {
    /// It has not asked yet.
    Asking,
    /// The kernel has its question.
    Waiting,
    /// It has its answer, as far as it has received it.
    Answered,
}

impl Questions {
    /// Makes the socket.
    ///
    /// # Errors
    /// There is a file of that name, or none can be made.
    pub fn listen(path: &Path) -> Result<Questions> {
        let failed = |error: std::io::Error| {
            let hint = match error.kind() {
                std::io::ErrorKind::AddrInUse => "remove it, if no other run uses it",
                std::io::ErrorKind::NotFound => "make the folder first that it is to be in",
                _ => "",
            };
            Failure::new(format!("--control {}: {}", path.display(), crate::failure::words(&error)), hint)
        };
        let listener = UnixListener::bind(path).map_err(failed)?;
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Questions { listener, path: path.to_owned(), asker: None })
    }

    /// Adds the events to wait for.
    pub fn interest<'a>(&'a self, set: &mut Vec<(BorrowedFd<'a>, PollFlags)>) {
        match &self.asker {
            Some(asker) => asker.channel.interest(set),
            None => set.push((self.listener.as_fd(), PollFlags::IN)),
        }
    }

    /// Returns a question that has arrived.
    pub fn take(&mut self) -> Option<OwnerQuestion> {
        if self.asker.is_none() {
            let (stream, _) = self.listener.accept().ok()?;
            let channel = Channel::new(Some(OwnedFd::from(stream))).ok()?;
            self.asker = Some(Asker { channel, state: AskerState::Asking });
        }
        let asker = self.asker.as_mut()?;
        asker.channel.receive();
        asker.channel.send();
        let is_answered = asker.state == AskerState::Answered && asker.channel.to_send.is_empty();
        if asker.channel.is_closed() || is_answered || asker.channel.received.len() > LONGEST {
            self.asker = None;
            return None;
        }
        if asker.state != AskerState::Asking {
            return None;
        }
        let end = asker.channel.received.iter().position(|&byte| byte == b'\n')?;
        let line = String::from_utf8_lossy(&asker.channel.received[..end]).into_owned();
        asker.state = AskerState::Waiting;
        let question = OwnerQuestion::parse(&line);
        if question.is_none() {
            self.answer(&serde_json::json!({ "error": "not a question" }));
        }
        question
    }

    /// Sends the kernel's answer to the process that asked, if it still waits.
    pub fn answer(&mut self, answer: &Value) {
        if let Some(asker) = self.asker.as_mut().filter(|asker| asker.state == AskerState::Waiting) {
            let mut line = String::new();
            let _ = writeln!(line, "{answer}");
            asker.channel.to_send.extend_from_slice(line.as_bytes());
            asker.channel.send();
            asker.state = AskerState::Answered;
        }
    }
}

impl Drop for Questions {
    fn drop(&mut self) {
        self.answer(&serde_json::json!({ "error": "the run has ended" }));
        let _ = std::fs::remove_file(&self.path);
    }
}
