//! The directories of processes and threads.
//!
//! A node holds IDs only and looks its process up each time: `ESRCH` or `ENOENT` once that is gone. What belongs
//! to one user is checked by owner and mode like any file; links to what a process has open, runs or stands
//! in are followed by itself and the privileged only.

mod dir;
mod files;
mod links;

use alloc::sync::Arc;
use alloc::vec::Vec;

use self::dir::{Dir, DirKind};
pub(super) use self::files::FileKind;
pub(super) use self::links::nameless;
use crate::fs::clock;
use crate::fs::file::File;
use crate::fs::flags::OpenFlags;
use crate::fs::node::{Identity, Metadata, Node, NodeKind};
use crate::fs::pseudo::{self, Dynamic, PseudoDir};
use crate::task::{self, Capability, Pid, Process, Task, registry};
use crate::{Errno, Result};

/// Whom a directory is about: a process, or one of its threads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Subject {
    pub pid: Pid,
    pub tid: Option<Pid>,
}

impl Subject {
    pub fn process(self) -> Result<Arc<Process>> {
        registry::find(self.pid).ok_or(Errno::ESRCH)
    }

    /// The thread, or the process' first that is left; `None` for a process that has ended.
    pub fn task(self) -> Result<Option<Arc<Task>>> {
        match self.tid {
            None => Ok(self.process()?.leader()),
            Some(tid) => {
                let task = registry::find_task(tid).filter(|task| task.process().pid == self.pid);
                task.map(Some).ok_or(Errno::ESRCH)
            }
        }
    }

    /// The number of this subject's node `index`; 24 bits for the index.
    fn inode(self, index: u64) -> u64 {
        let thread = if self.tid.is_some() { 1 << 62 } else { 0 };
        thread | u64::from(self.tid.unwrap_or(self.pid)) << 24 | 1 << 60 | index
    }
}

/// The numbered directories, "self" and "thread-self" of a /proc.
pub struct Processes;

impl Dynamic for Processes {
    fn lookup(&self, dir: &Arc<PseudoDir>, name: &[u8]) -> Result<Arc<dyn Node>> {
        let device = dir.identity().device;
        match name {
            b"self" => return Ok(Arc::new(SelfLink { device, of: Of::Process })),
            b"thread-self" => return Ok(Arc::new(SelfLink { device, of: Of::Thread })),
            _ => {}
        }
        let pid: Pid = number(name).ok_or(Errno::ENOENT)?;
        // A thread's number leads to its process' directory, though it is not listed.
        let process = registry::find(pid)
            .or_else(|| registry::find_task(pid).map(|task| task.process().clone()))
            .ok_or(Errno::ENOENT)?;
        let subject = Subject { pid: process.pid, tid: None };
        Ok(Dir::new(device, subject, DirKind::Whole, 0o555, dir.clone(), name))
    }

    fn entry_from(&self, from: u64) -> Option<(u64, Vec<u8>, u64, u8)> {
        let link = NodeKind::Symlink.dirent_kind();
        match from {
            0 => return Some((0, b"self".to_vec(), Of::Process as u64, link)),
            1 => return Some((1, b"thread-self".to_vec(), Of::Thread as u64, link)),
            _ => {}
        }
        let least = Pid::try_from(from - 2).ok()?;
        let pid = registry::processes_from(least).next()?.pid;
        let inode = Subject { pid, tid: None }.inode(0);
        let kind = NodeKind::Directory.dirent_kind();
        Some((u64::from(pid) + 2, alloc::format!("{pid}").into_bytes(), inode, kind))
    }
}

/// A decimal number without leading zeroes.
fn number<T: core::str::FromStr>(name: &[u8]) -> Option<T> {
    let digits = name.iter().all(u8::is_ascii_digit) && (name.len() == 1 || name.first() != Some(&b'0'));
    core::str::from_utf8(name).ok().filter(|_| digits)?.parse().ok()
}

/// Whose own directory a link leads to; the numbers are the links' inodes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Process = 90,
    Thread = 91,
}

/// "self" and "thread-self".
struct SelfLink {
    device: u64,
    of: Of,
}

impl Node for SelfLink {
    fn identity(&self) -> Identity {
        Identity { device: self.device, inode: self.of as u64 }
    }
    fn kind(&self) -> NodeKind {
        NodeKind::Symlink
    }
    fn metadata(&self) -> Metadata {
        pseudo::metadata(self.identity(), NodeKind::Symlink, 0o777, clock::now())
    }
    fn open(self: Arc<Self>, _flags: OpenFlags) -> Result<Arc<dyn File>> {
        Err(Errno::ELOOP)
    }
    fn read_link(&self) -> Result<Vec<u8>> {
        let task = task::current();
        let pid = task.process().pid;
        Ok(match self.of {
            Of::Process => alloc::format!("{pid}"),
            Of::Thread => alloc::format!("{pid}/task/{}", task.tid),
        }
        .into_bytes())
    }
}

/// Metadata of a subject's node: it belongs to whom the process acts as.
fn metadata(subject: Subject, identity: Identity, kind: NodeKind, mode: u32) -> Metadata {
    let mut meta = pseudo::metadata(identity, kind, mode, clock::now());
    if let Ok(process) = subject.process() {
        let credentials = process.credentials();
        (meta.uid, meta.gid) = (credentials.euid, credentials.egid);
    }
    meta
}

/// `EACCES` unless the caller is the subject's process or one that may look into it.
fn check_inspection(subject: Subject) -> Result<Arc<Process>> {
    let process = subject.process()?;
    let own = task::current().process().clone();
    if own.pid == process.pid {
        return Ok(process);
    }
    let (mine, theirs) = (own.credentials(), process.credentials());
    let same = [theirs.uid, theirs.euid, theirs.suid].iter().all(|&uid| uid == mine.fsuid);
    if mine.may(Capability::SysPtrace) || same { Ok(process) } else { Err(Errno::EACCES) }
}
