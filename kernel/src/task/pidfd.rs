//! Descriptors of processes: pidfd_open, pidfd_send_signal, pidfd_getfd, CLONE_PIDFD.
//!
//! A [`PidFile`] permanently names one process, even if the process' ID is used again. It keeps
//! neither the process nor its memory alive. It can be polled for the process' end, and stays
//! readable after the process was waited for.

use super::inspect::{self, Mode};
use super::process::Process;
use super::{Pid, current, install, registry};
use crate::fs::anonymous::AnonymousNode;
use crate::fs::{File, Node, NodeKind, OnExec, OpenFile, OpenFlags, Ready};
use crate::sync::{PollWaiter, WaitQueue};
use crate::syscall::Args;
use crate::user::UserPtr;
use crate::{Errno, Result};
use freehold_collections::reserve::ArcMethods as _;
use freehold_collections::{Arc, Weak, reserve};

/// An open process (pidfd).
pub struct PidFile {
    pid: Pid,
    process: Weak<Process>,
    ended: Arc<WaitQueue>,
    node: Arc<dyn Node>,
}

impl PidFile {
    /// Makes a file that names `process`.
    pub fn new(process: &Arc<Process>) -> Arc<Self> {
        reserve::arc(Self {
            pid: process.pid,
            process: process.downgrade(),
            ended: process.ended.clone(),
            node: AnonymousNode::plain(NodeKind::Regular, "anon_inode:[pidfd]"),
        })
    }

    /// Returns the process' ID.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns the process, until it was waited for.
    ///
    /// # Errors
    /// `ESRCH` after that.
    pub fn process(&self) -> Result<Arc<Process>> {
        let process = self.process.upgrade().ok_or(Errno::ESRCH)?;
        let named = registry::find(self.pid).ok_or(Errno::ESRCH)?;
        if process.is_same(&named) { Ok(process) } else { Err(Errno::ESRCH) }
    }
}

impl File for PidFile {
    fn node(&self) -> Arc<dyn Node> {
        self.node.clone()
    }

    fn poll(&self, waiter: Option<&mut PollWaiter>) -> Ready {
        if let Some(waiter) = waiter {
            waiter.register(&self.ended);
        }
        let lives = self.process.upgrade().is_some_and(|process| process.exit_status().is_none());
        if lives { Ready::empty() } else { Ready::IN }
    }
}

/// A descriptor of a process that is being created. It is closed again if the creation fails.
pub(super) struct Given(Option<i32>);

impl Given {
    /// Opens `process`, and writes the number of the descriptor to `place`, if a descriptor is
    /// requested.
    ///
    /// # Errors
    /// `EFAULT`, `EMFILE`, `ENOMEM`.
    pub fn open(process: &Arc<Process>, place: Option<u64>) -> Result<Self> {
        let Some(place) = place else { return Ok(Self(None)) };
        let fd = install(PidFile::new(process), OpenFlags::RDWR | OpenFlags::CLOEXEC)?;
        let given = Self(Some(fd));
        UserPtr::new(place).write(&fd)?;
        Ok(given)
    }
    /// Keeps the descriptor: the process was created.
    pub fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        if let Some(fd) = self.0.take() {
            let _ = current().process().files().close(fd);
        }
    }
}

/// Runs `f` on the process file of a descriptor.
///
/// # Errors
/// `EBADF` if the descriptor has no such file.
pub(super) fn with_file<R>(fd: i32, f: impl FnOnce(&OpenFile, &PidFile) -> Result<R>) -> Result<R> {
    let file = current().process().file(fd)?;
    let process = file.file().downcast::<PidFile>().ok_or(Errno::EBADF)?;
    f(&file, process)
}

/// Returns the ID and, unless it has ended, the process that a descriptor names. The descriptor is
/// a pidfd or a directory in /proc, which pidfd_send_signal accepts, too.
///
/// # Errors
/// `EBADF` for any other.
pub(super) fn meant_by(fd: i32) -> Result<(Pid, Result<Arc<Process>>)> {
    let file = current().process().file(fd)?;
    if let Some(opened) = file.file().downcast::<PidFile>() {
        return Ok((opened.pid(), opened.process()));
    }
    file.check_not_path()?;
    let of_directory = file.node().pidfd().ok_or(Errno::EBADF)?;
    let opened = of_directory.downcast::<PidFile>().ok_or(Errno::EBADF)?;
    Ok((opened.pid(), opened.process()))
}

/// Returns the process that a descriptor names.
///
/// # Errors
/// `EBADF`, `ESRCH`.
pub fn process_of(fd: i32) -> Result<Arc<Process>> {
    with_file(fd, |_, file| file.process())
}

/// pidfd_open(pid, flags)
///
/// # Errors
/// As in the manual.
pub fn sys_pidfd_open(args: &Args) -> Result<i64> {
    let flags = OpenFlags::from_bits_retain(args.uint(1));
    if !OpenFlags::NONBLOCK.contains(flags) || args.int(0) <= 0 {
        return Err(Errno::EINVAL);
    }
    let Some(process) = registry::find_by_number(args.uint(0)) else {
        // Only the first thread of a process can have a descriptor.
        let is_thread = registry::find_task_by_number(args.uint(0)).is_some();
        return Err(if is_thread { Errno::EINVAL } else { Errno::ESRCH });
    };
    let flags = flags | OpenFlags::RDWR | OpenFlags::CLOEXEC;
    install(PidFile::new(&process), flags).map(i64::from)
}

/// pidfd_getfd(pidfd, fd, flags): copies a descriptor of another process.
///
/// # Errors
/// As in the manual.
pub fn sys_pidfd_getfd(args: &Args) -> Result<i64> {
    if args.uint(2) != 0 {
        return Err(Errno::EINVAL);
    }
    let target = process_of(args.fd(0))?;
    let file = inspect::act_on(&target, Mode::ATTACH_REAL, || target.file(args.fd(1)))?;
    let process = current().process().clone();
    let limit = process.descriptor_limit();
    process.files().insert(file, OnExec::Close, limit).map(i64::from)
}
