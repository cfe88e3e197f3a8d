//! Sockets between this process and QEMU.

use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use rustix::event::PollFlags;
use rustix::fs::OFlags;
use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::LogTo;
use crate::Result;
use crate::failure::Failure;
use crate::terminal;

/// Bytes of the kernel log that are kept for the report of a panic.
const LOG_KEPT: usize = 64 << 10;

fn failed(error: Errno) -> Failure {
    Failure::new(format!("cannot connect to the VM: {error}"), "")
}

/// Makes a socket pair: our end, which does not block, and QEMU's. No started process inherits
/// either end before [`lend`].
pub fn pair() -> Result<(OwnedFd, OwnedFd)> {
    let (near, far) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(failed)?;
    make_non_blocking(near.as_fd())?;
    Ok((near, far))
}

/// Makes `start` start a process that inherits `ends`, and no other process. Sessions of several
/// threads take turns: a QEMU that inherited another's sockets would keep them open after the
/// other's end, and its session would wait for an end of file.
pub fn lend<T>(ends: &[&OwnedFd], start: impl FnOnce() -> Result<T>) -> Result<T> {
    static TURN: Mutex<()> = Mutex::new(());
    // A holder that panics leaves no half-done work.
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mark = |flags| ends.iter().try_for_each(|end| rustix::io::fcntl_setfd(end, flags).map_err(failed));
    mark(FdFlags::empty())?;
    let started = start();
    mark(FdFlags::CLOEXEC)?;
    started
}

/// Returns QEMU's name for an inherited socket.
pub fn place(far: &OwnedFd) -> String {
    format!("fd={}", far.as_raw_fd())
}

/// Returns the command that starts a program which must not outlive us, however we end.
pub fn owned_command(program: &Path) -> Command {
    let Some(setpriv) = on_path("setpriv") else { return Command::new(program) };
    let mut command = Command::new(setpriv);
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// Finds a program of the host.
pub fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

fn make_non_blocking(fd: BorrowedFd<'_>) -> Result<()> {
    let flags = rustix::fs::fcntl_getfl(fd).map_err(failed)?;
    rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK).map_err(failed)
}

/// Makes QEMU's end block when it is full. The flag belongs to the open socket, so it can be set
/// from here.
pub fn make_blocking(far: &OwnedFd) {
    if let Ok(flags) = rustix::fs::fcntl_getfl(far) {
        // After a failure QEMU works as before, except under back pressure.
        let _ = rustix::fs::fcntl_setfl(far, flags - OFlags::NONBLOCK);
    }
}

/// A socket or pipe with its received bytes and its bytes to send.
pub struct Channel {
    fd: Option<OwnedFd>,
    /// Received bytes that were not taken yet.
    pub received: Vec<u8>,
    /// Bytes to go.
    pub to_send: Vec<u8>,
}

impl Channel {
    /// Makes a channel on `fd`, or a closed one.
    pub fn new(fd: Option<OwnedFd>) -> Result<Channel> {
        if let Some(fd) = &fd {
            make_non_blocking(fd.as_fd())?;
        }
        Ok(Channel { fd, received: Vec::new(), to_send: Vec::new() })
    }

    /// Returns whether the other side has closed and everything has been received.
    pub fn is_closed(&self) -> bool {
        self.fd.is_none()
    }

    /// Adds the events to wait for.
    pub fn interest<'a>(&'a self, set: &mut Vec<(BorrowedFd<'a>, PollFlags)>) {
        if let Some(fd) = &self.fd {
            let send = if self.to_send.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            set.push((fd.as_fd(), PollFlags::IN | send));
        }
    }

    /// Receives available bytes. Returns whether there were any.
    pub fn receive(&mut self) -> bool {
        let before = self.received.len();
        let mut bytes = [0; 16384];
        while let Some(fd) = &self.fd {
            match rustix::io::read(fd, &mut bytes) {
                Ok(0) => self.fd = None,
                Ok(size) => self.received.extend_from_slice(&bytes[..size]),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(_) => self.fd = None,
            }
        }
        self.received.len() > before
    }

    /// Sends what can be sent now.
    pub fn send(&mut self) {
        while let Some(fd) = &self.fd
            && !self.to_send.is_empty()
        {
            match rustix::net::send(fd, &self.to_send, rustix::net::SendFlags::NOSIGNAL) {
                Ok(size) => {
                    self.to_send.drain(..size);
                }
                Err(Errno::INTR) => {}
                // AGAIN: later. The reading side reports any other error.
                Err(_) => return,
            }
        }
    }
}

/// The kernel log from the UART (and from LOG frames where the UART is silent).
pub struct Log {
    /// The UART.
    pub channel: Channel,
    kept: Vec<u8>,
    to: LogTo,
    spoke: bool,
}

impl Log {
    /// Makes a log that is received from `fd`.
    pub fn new(fd: OwnedFd, to: LogTo) -> Result<Log> {
        Ok(Log { channel: Channel::new(Some(fd))?, kept: Vec::new(), to, spoke: false })
    }

    /// Receives available text. Returns whether there was any.
    pub fn receive(&mut self) -> bool {
        let came = self.channel.receive();
        if came {
            self.spoke = true;
            let bytes = std::mem::take(&mut self.channel.received);
            self.keep(&bytes);
        }
        came
    }

    /// Adds text from a LOG frame. It is the same log by another way, so it counts only while the
    /// UART is silent.
    pub fn add_text(&mut self, text: &str) {
        if !self.spoke {
            self.keep(text.as_bytes());
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.kept.extend(bytes.iter().filter(|&&byte| byte != b'\r'));
        let excess = self.kept.len().saturating_sub(LOG_KEPT);
        self.kept.drain(..excess);
        if self.to == LogTo::Stderr {
            let mut shown = Vec::with_capacity(bytes.len());
            for &byte in bytes.iter().filter(|&&byte| byte != b'\r') {
                if byte == b'\n' && terminal::is_raw() {
                    shown.push(b'\r');
                }
                shown.push(byte);
            }
            // A closed stderr has no reader for the log.
            let _ = std::io::stderr().write_all(&shown);
        }
    }

    /// Receives the rest at the end.
    pub fn finish(&mut self) {
        self.receive();
    }

    /// Returns whether the guest's UART ever sent anything.
    pub fn spoke(&self) -> bool {
        self.spoke
    }

    /// Returns the last part of the log.
    pub fn tail(&self) -> String {
        String::from_utf8_lossy(&self.kept).into_owned()
    }
}
