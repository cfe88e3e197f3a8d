//! The directories of processes and threads.
//!
//! A node has only IDs and looks its process up each time: `ESRCH` or `ENOENT` once the process has
//! ended. Opening or following a node is checked twice: by owner and mode like any file, and by
//! [`inspect`](crate::task::inspect) if it shows or changes a process' internal state. A file about
//! memory has a weak reference to the space for which it was opened: after an execve it does not
//! show the new program's memory.

mod descriptor;
mod dir;
mod files;
mod links;

use freehold_collections::{
    Arc, Receiver, Vec, Weak,
    reserve::{self, ArcMethods},
    try_format,
};

use self::dir::{Dir, DirKind};
pub(super) use self::files::FileKind;
pub(super) use self::links::nameless;
use crate::fs::clock;
use crate::fs::file::File;
use crate::fs::flags::OpenFlags;
use crate::fs::generated::ShortLine;
use crate::fs::node::{Identity, Metadata, Node, NodeKind};
use crate::fs::pseudo::{self, Dynamic, PseudoDir};
use crate::mem::ProcessSpace;
use crate::task::inspect::{self, Dumpable, Mode};
use crate::task::pidns::{PidNs, PidView};
use crate::task::{self, INCARNATION_BITS, Pid, Process, Task, registry};
use crate::{Errno, Result};

/// The subject of a directory: a process, or one of its threads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Subject {
    pub pid: Pid,
    pub tid: Option<Pid>,
    /// [`Process::incarnation`].
    pub incarnation: u16,
    /// The PID namespace of the shown numbers.
    pub view: PidView,
}

impl Subject {
    pub fn process(self) -> Result<Arc<Process>> {
        let found = registry::find(self.pid).filter(|found| found.incarnation == self.incarnation);
        found.ok_or(Errno::ESRCH)
    }

    /// Returns the thread, or the first remaining thread of the process; `None` for a process that
    /// has ended.
    pub fn task(self) -> Result<Option<Arc<Task>>> {
        match self.tid {
            None => Ok(self.process()?.leader()),
            Some(tid) => {
                let task = registry::find_task(tid).filter(|task| task.process().pid == self.pid);
                task.map(Some).ok_or(Errno::ESRCH)
            }
        }
    }

    /// The process itself.
    fn of(process: &Process, view: PidView) -> Self {
        Self { pid: process.pid, tid: None, incarnation: process.incarnation, view }
    }

    /// Returns the inode number of this subject's node `index`; 24 bits are for the index, 22 for
    /// the ID. A process whose ID is used again has other numbers, also in their lower halves.
    fn inode(self, index: u64) -> u64 {
        let thread = if self.tid.is_some() { 1 << 62 } else { 0 };
        let subject = u64::from(self.tid.unwrap_or(self.pid)) << 24 | index;
        thread | 1 << 60 | subject << INCARNATION_BITS | u64::from(self.incarnation)
    }
}

/// The numbered directories, "self" and "thread-self" of a /proc for a PID namespace.
pub struct Processes(pub PidNs);

impl Dynamic for Processes {
    fn lookup(&self, dir: &Arc<PseudoDir>, name: &[u8]) -> Result<Arc<dyn Node>> {
        let (device, view) = (dir.identity().device, self.0.view());
        match name {
            b"self" => return Ok(reserve::arc(SelfLink { device, of: Of::Process, view })),
            b"thread-self" => return Ok(reserve::arc(SelfLink { device, of: Of::Thread, view })),
            _ => {}
        }
        let pid = number(name).and_then(|number| registry::pid_in(view, number)).ok_or(Errno::ENOENT)?;
        // A thread's ID also leads to its process' directory, although it is not listed.
        let process = registry::find(pid)
            .or_else(|| registry::find_task(pid).map(|task| task.process().clone()))
            .ok_or(Errno::ENOENT)?;
        let subject = Subject::of(&process, view);
        Ok(Dir::new(device, subject, (DirKind::Whole, LISTED), dir.clone(), name))
    }

    fn read_dir(&self, from: u64, emit: &mut dyn FnMut(u64, ShortLine, u64, u8) -> bool) {
        let link = NodeKind::Symlink.dirent_kind();
        for (number, name, of) in [(0, "self", Of::Process), (1, "thread-self", Of::Thread)] {
            if number >= from && !emit(number, ShortLine::of(name.as_bytes()), of as u64, link) {
                return;
            }
        }
        let Ok(mut least) = Pid::try_from(from.saturating_sub(2)) else { return };
        loop {
            let view = self.0.view();
            let pids = registry::pids_from(view, least);
            let Some(&(last, _)) = pids.last() else { return };
            for (number, pid) in pids {
                let Some(process) = registry::find(pid) else { continue };
                let inode = Subject::of(&process, view).inode(0);
                let name = ShortLine::of_number(number.into());
                if !emit(u64::from(number) + 2, name, inode, NodeKind::Directory.dirent_kind()) {
                    return;
                }
            }
            least = last + 1;
        }
    }
}

/// Parses a decimal number without leading zeroes.
fn number<T: core::str::FromStr>(name: &[u8]) -> Option<T> {
    let digits = name.iter().all(u8::is_ascii_digit) && (name.len() == 1 || name.first() != Some(&b'0'));
    core::str::from_utf8(name).ok().filter(|_| digits)?.parse().ok()
}

/// The process or thread to whose directory a link leads. The values are the links' inodes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Process = 90,
    Thread = 91,
}

/// "self" and "thread-self".
struct SelfLink {
    device: u64,
    of: Of,
    view: PidView,
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
    fn open(self: Receiver<Self>, _flags: OpenFlags) -> Result<Arc<dyn File>> {
        Err(Errno::ELOOP)
    }
    fn read_link(&self) -> Result<Vec<u8>> {
        let task = task::current();
        let pid = task.process().number_in(self.view);
        if pid == 0 {
            return Err(Errno::ENOENT);
        }
        let target = match self.of {
            Of::Process => try_format!("{pid}")?,
            Of::Thread => try_format!("{pid}/task/{}", task.numbers().in_view(self.view))?,
        };
        Ok(target.into_bytes())
    }
}

/// Mode of the directories that all users may list.
const LISTED: u32 = 0o555;

/// Returns the metadata of a subject's node. Its owner is the user that the process acts as, or
/// root if other processes with the same IDs may not inspect the process. Directories that all
/// users may list always belong to the user (Linux: `task_dump_owner`).
fn metadata(subject: Subject, identity: Identity, kind: NodeKind, mode: u32) -> Metadata {
    let mut meta = pseudo::metadata(identity, kind, mode, clock::now());
    if let Ok(process) = subject.process() {
        let inspectable = || process.exit_status().is_none() && process.space().dumpable() == Dumpable::Yes;
        if (kind == NodeKind::Directory && mode == LISTED) || inspectable() {
            let credentials = process.credentials();
            (meta.uid, meta.gid) = (credentials.euid, credentials.egid);
        }
    }
    meta
}

/// `EACCES` unless the caller may inspect the subject's process with this `mode`.
fn check_inspection(subject: Subject, mode: Mode) -> Result<Arc<Process>> {
    let process = subject.process()?;
    match inspect::may_inspect(&process, mode) {
        Ok(()) => Ok(process),
        Err(_) => Err(Errno::EACCES),
    }
}

/// Returns a weak reference to the memory of the subject's process, if the caller may inspect it
/// with this `mode`. The reference is empty if the process has ended.
fn space_of(subject: Subject, mode: Mode) -> Result<Weak<ProcessSpace>> {
    match inspect::space_of(&*subject.process()?, mode) {
        Ok(space) => Ok(space.downgrade()),
        Err(Errno::ESRCH) => Ok(reserve::no_weak()),
        Err(_) => Err(Errno::EACCES),
    }
}
