//! The directories of processes and threads.
//!
//! A node holds IDs only and looks its process up each time: `ESRCH` or `ENOENT` once that is gone. What belongs
//! to one user is checked by owner and mode like any file; links to what a process has open, runs or stands
//! in are followed by itself and the privileged only.

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use super::{memory, status};
use crate::fs::clock;
use crate::fs::file::{Blocking, DirEntry, File, Seekable};
use crate::fs::flags::OpenFlags;
use crate::fs::generated::{Generate, GeneratedFile, Text};
use crate::fs::node::{
    Identity, LinkTarget, Metadata, NewNode, Node, NodeKind, Place, Presence, SetMetadata,
};
use crate::fs::open_file::OpenFile;
use crate::fs::path::Path;
use crate::fs::pseudo::{self, Dynamic, PseudoDir};
use crate::fs::{anonymous::AnonymousNode, boot};
use crate::task::{self, Capability, Pid, Process, Task, registry};
use crate::user::Sink;
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

/// The kinds of directories.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DirKind {
    Whole,
    Tasks,
    Descriptors,
    DescriptorInfos,
}

/// The links with a fixed name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LinkKind {
    Executable,
    WorkingDirectory,
    Root,
    Descriptor(i32),
}

/// The files.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FileKind {
    Stat,
    Status,
    Statm,
    Cmdline,
    Environ,
    Comm,
    Limits,
    Io,
    Wchan,
    Cgroup,
    OomScore,
    OomScoreAdj,
    Maps,
    Smaps,
    SmapsRollup,
    NumaMaps,
    Auxv,
    Mounts,
    Mountinfo,
    Personality,
    CoredumpFilter,
    Schedstat,
    Loginuid,
    ClearRefs,
    Memory,
    Pagemap,
    DescriptorInfo(i32),
}

#[derive(Clone, Copy)]
enum What {
    File(FileKind, u32),
    Link(LinkKind),
    Dir(DirKind, u32),
}

const ENTRIES: &[(&str, What)] = &[
    ("auxv", What::File(FileKind::Auxv, 0o400)),
    ("cgroup", What::File(FileKind::Cgroup, 0o444)),
    ("clear_refs", What::File(FileKind::ClearRefs, 0o200)),
    ("cmdline", What::File(FileKind::Cmdline, 0o444)),
    ("comm", What::File(FileKind::Comm, 0o644)),
    ("coredump_filter", What::File(FileKind::CoredumpFilter, 0o644)),
    ("cwd", What::Link(LinkKind::WorkingDirectory)),
    ("environ", What::File(FileKind::Environ, 0o400)),
    ("exe", What::Link(LinkKind::Executable)),
    ("fd", What::Dir(DirKind::Descriptors, 0o500)),
    ("fdinfo", What::Dir(DirKind::DescriptorInfos, 0o555)),
    ("io", What::File(FileKind::Io, 0o400)),
    ("limits", What::File(FileKind::Limits, 0o444)),
    ("loginuid", What::File(FileKind::Loginuid, 0o444)),
    ("maps", What::File(FileKind::Maps, 0o444)),
    ("mem", What::File(FileKind::Memory, 0o600)),
    ("mountinfo", What::File(FileKind::Mountinfo, 0o444)),
    ("mounts", What::File(FileKind::Mounts, 0o444)),
    ("numa_maps", What::File(FileKind::NumaMaps, 0o444)),
    ("oom_score", What::File(FileKind::OomScore, 0o444)),
    ("oom_score_adj", What::File(FileKind::OomScoreAdj, 0o644)),
    ("pagemap", What::File(FileKind::Pagemap, 0o400)),
    ("personality", What::File(FileKind::Personality, 0o400)),
    ("root", What::Link(LinkKind::Root)),
    ("schedstat", What::File(FileKind::Schedstat, 0o444)),
    ("smaps", What::File(FileKind::Smaps, 0o444)),
    ("smaps_rollup", What::File(FileKind::SmapsRollup, 0o444)),
    ("stat", What::File(FileKind::Stat, 0o444)),
    ("statm", What::File(FileKind::Statm, 0o444)),
    ("status", What::File(FileKind::Status, 0o444)),
    ("task", What::Dir(DirKind::Tasks, 0o555)),
    ("wchan", What::File(FileKind::Wchan, 0o444)),
];

/// Node numbers of descriptors begin behind those of the entries above.
const DESCRIPTOR_NODES: u64 = 1 << 12;
const DESCRIPTOR_INFO_NODES: u64 = 1 << 23;

/// The entries of a directory that its subject has: a thread has no threads of its own.
fn has(subject: Subject, what: What) -> bool {
    subject.tid.is_none() || !matches!(what, What::Dir(DirKind::Tasks, _))
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
        let pid = registry::processes().iter().map(|process| process.pid).find(|&pid| pid >= least)?;
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

/// A directory about a subject.
struct Dir {
    device: u64,
    me: Weak<Dir>,
    subject: Subject,
    kind: DirKind,
    mode: u32,
    parent: Arc<dyn Node>,
    name: Vec<u8>,
}

impl Dir {
    fn new(
        device: u64,
        subject: Subject,
        kind: DirKind,
        mode: u32,
        parent: Arc<dyn Node>,
        name: &[u8],
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            device,
            me: me.clone(),
            subject,
            kind,
            mode,
            parent,
            name: name.to_vec(),
        })
    }

    fn me(&self) -> Arc<Dir> {
        self.me.upgrade().expect("a node is only reached through an Arc of it")
    }

    fn entry(&self, index: usize, name: &[u8], what: What) -> Arc<dyn Node> {
        let identity = Identity { device: self.device, inode: self.subject.inode(index as u64 + 1) };
        let subject = self.subject;
        match what {
            What::File(kind, mode) => Arc::new(Item { identity, subject, kind, mode }),
            What::Link(kind) => Arc::new(Link { identity, subject, kind }),
            What::Dir(kind, mode) => Dir::new(self.device, subject, kind, mode, self.me(), name),
        }
    }

    fn descriptor(&self, fd: i32) -> Result<Arc<dyn Node>> {
        let process = check_inspection(self.subject)?;
        process.files().get(fd).map_err(|_| Errno::ENOENT)?;
        let subject = self.subject;
        let of = |base| Identity { device: self.device, inode: subject.inode(base + fd as u64) };
        Ok(if self.kind == DirKind::Descriptors {
            Arc::new(Link { identity: of(DESCRIPTOR_NODES), subject, kind: LinkKind::Descriptor(fd) })
        } else {
            let (identity, kind) = (of(DESCRIPTOR_INFO_NODES), FileKind::DescriptorInfo(fd));
            Arc::new(Item { identity, subject, kind, mode: 0o444 })
        })
    }

    /// The first entry with a number of `from` or more: number, name, inode, DT_* value.
    fn next(&self, from: u64) -> Option<(u64, Vec<u8>, u64, u8)> {
        match self.kind {
            DirKind::Whole => {
                let start = usize::try_from(from).ok()?;
                let mut rest = ENTRIES.iter().enumerate().skip(start);
                let (index, (name, what)) = rest.find(|(_, (_, what))| has(self.subject, *what))?;
                let kind = match what {
                    What::File(..) => NodeKind::Regular,
                    What::Link(_) => NodeKind::Symlink,
                    What::Dir(..) => NodeKind::Directory,
                };
                let inode = self.subject.inode(index as u64 + 1);
                Some((index as u64, name.as_bytes().to_vec(), inode, kind.dirent_kind()))
            }
            DirKind::Tasks => {
                let least = Pid::try_from(from).ok()?;
                let threads = self.subject.process().ok()?.threads();
                let tid = threads.iter().map(|task| task.tid).filter(|&tid| tid >= least).min()?;
                let inode = Subject { pid: self.subject.pid, tid: Some(tid) }.inode(0);
                let name = alloc::format!("{tid}").into_bytes();
                Some((u64::from(tid), name, inode, NodeKind::Directory.dirent_kind()))
            }
            DirKind::Descriptors | DirKind::DescriptorInfos => {
                let files = self.subject.process().ok()?.files();
                let (fd, _) = files.next_open(usize::try_from(from).ok()?)?;
                let (base, kind) = if self.kind == DirKind::Descriptors {
                    (DESCRIPTOR_NODES, NodeKind::Symlink)
                } else {
                    (DESCRIPTOR_INFO_NODES, NodeKind::Regular)
                };
                let inode = self.subject.inode(base + fd as u64);
                Some((fd as u64, alloc::format!("{fd}").into_bytes(), inode, kind.dirent_kind()))
            }
        }
    }
}

impl Node for Dir {
    fn identity(&self) -> Identity {
        let index = match self.kind {
            DirKind::Whole => 0,
            // As listed among the entries.
            kind => {
                let same = |what: &What| matches!(what, What::Dir(other, _) if *other == kind);
                ENTRIES.iter().position(|(_, what)| same(what)).map_or(0, |index| index as u64 + 1)
            }
        };
        Identity { device: self.device, inode: self.subject.inode(index) }
    }

    fn kind(&self) -> NodeKind {
        NodeKind::Directory
    }

    fn metadata(&self) -> Metadata {
        let mut meta = metadata(self.subject, self.identity(), NodeKind::Directory, self.mode);
        if self.kind == DirKind::Tasks {
            // Programs count threads by the links of this directory.
            let threads = self.subject.process().map_or(0, |process| process.threads().len());
            meta.links = 2 + threads as u32;
        }
        meta
    }

    fn open(self: Arc<Self>, _flags: OpenFlags) -> Result<Arc<dyn File>> {
        if self.kind == DirKind::Descriptors {
            check_inspection(self.subject)?;
        }
        Ok(self)
    }

    fn parent(&self) -> Option<Place> {
        let presence = if self.subject.process().is_ok() { Presence::Linked } else { Presence::Removed };
        Some(Place { dir: self.parent.clone(), name: self.name.clone(), presence })
    }

    fn create(&self, _name: &[u8], _new: &NewNode) -> Result<Arc<dyn Node>> {
        Err(Errno::ENOENT)
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Node>> {
        let process = self.subject.process().map_err(|_| Errno::ENOENT)?;
        match self.kind {
            DirKind::Whole => {
                let found = ENTRIES.iter().position(|(known, _)| known.as_bytes() == name);
                let index = found.ok_or(Errno::ENOENT)?;
                let (_, what) = ENTRIES[index];
                if has(self.subject, what) { Ok(self.entry(index, name, what)) } else { Err(Errno::ENOENT) }
            }
            DirKind::Tasks => {
                let tid: Pid = number(name).ok_or(Errno::ENOENT)?;
                let task = registry::find_task(tid).filter(|task| task.process().pid == process.pid);
                task.ok_or(Errno::ENOENT)?;
                let subject = Subject { pid: process.pid, tid: Some(tid) };
                Ok(Dir::new(self.device, subject, DirKind::Whole, 0o555, self.me(), name))
            }
            DirKind::Descriptors | DirKind::DescriptorInfos => {
                self.descriptor(number(name).ok_or(Errno::ENOENT)?)
            }
        }
    }
}

impl File for Dir {
    fn node(&self) -> Arc<dyn Node> {
        self.me()
    }

    fn seekable(&self) -> Seekable {
        Seekable::Offset
    }

    fn read_at(&self, _offset: u64, _sink: &mut dyn Sink, _blocking: Blocking) -> Result<usize> {
        Err(Errno::EISDIR)
    }

    fn read_dir(&self, from: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        self.subject.process().map_err(|_| Errno::ENOENT)?;
        let mut at = from;
        if !pseudo::emit_dots(&mut at, self.identity().inode, self.parent.identity().inode, emit) {
            return Ok(());
        }
        while let Some((number, name, inode, kind)) = self.next(at - 2) {
            at = number + 3;
            if !emit(DirEntry { name: &name, inode, kind, next: at }) {
                break;
            }
        }
        Ok(())
    }
}

/// A file about a subject.
struct Item {
    identity: Identity,
    subject: Subject,
    kind: FileKind,
    mode: u32,
}

impl Node for Item {
    fn identity(&self) -> Identity {
        self.identity
    }
    fn kind(&self) -> NodeKind {
        NodeKind::Regular
    }
    fn metadata(&self) -> Metadata {
        metadata(self.subject, self.identity, NodeKind::Regular, self.mode)
    }
    fn set_metadata(&self, change: &SetMetadata) -> Result<()> {
        pseudo::set_metadata(change)
    }
    fn open(self: Arc<Self>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        if flags.writes() && self.mode & 0o222 == 0 {
            return Err(Errno::EACCES);
        }
        let (subject, kind) = (self.subject, self.kind);
        match kind {
            FileKind::Memory | FileKind::Pagemap => {
                let process = check_inspection(subject)?;
                return Ok(memory::SpaceFile::open(self, &process, kind));
            }
            FileKind::Auxv
            | FileKind::Environ
            | FileKind::Maps
            | FileKind::Smaps
            | FileKind::SmapsRollup
            | FileKind::NumaMaps
            | FileKind::Io
            | FileKind::Personality
            | FileKind::ClearRefs => {
                check_inspection(subject)?;
            }
            _ => {}
        }
        Ok(GeneratedFile::new(self, Content { subject, kind }))
    }
}

/// What a file says.
struct Content {
    subject: Subject,
    kind: FileKind,
}

impl Generate for Content {
    fn show(&self, out: &mut Text) -> Result<()> {
        let Self { subject, kind } = *self;
        let process = subject.process()?;
        match kind {
            FileKind::DescriptorInfo(fd) => descriptor_info(out, &process, fd),
            kind => status::show(out, subject, &process, kind),
        }
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        status::store(self.subject, self.kind, bytes)
    }
}

fn descriptor_info(out: &mut Text, process: &Process, fd: i32) -> Result<()> {
    let files = process.files();
    let file = files.get(fd).map_err(|_| Errno::ENOENT)?;
    let mut flags = file.flags();
    flags.set(OpenFlags::CLOEXEC, files.on_exec(fd) == Ok(crate::fs::OnExec::Close));
    let mount = file.path().map_or_else(boot::unnamed_mount, |path| path.mount.clone());
    // A stream has no offset, and its lock may be held for long: it is not taken.
    let position = if file.file().seekable() == Seekable::Offset { file.position() } else { 0 };
    writeln!(out, "pos:\t{position}\nflags:\t0{:o}\nmnt_id:\t{}", flags.bits(), mount.id());
    writeln!(out, "ino:\t{}", file.node().identity().inode);
    Ok(())
}

/// A link to what a subject has.
struct Link {
    identity: Identity,
    subject: Subject,
    kind: LinkKind,
}

/// What a link leads to.
enum Target {
    Place(Path),
    Nameless(Arc<OpenFile>),
}

impl Link {
    fn target(&self) -> Result<Target> {
        let process = check_inspection(self.subject)?;
        Ok(match self.kind {
            LinkKind::WorkingDirectory => Target::Place(process.fs().cwd()),
            LinkKind::Root => Target::Place(process.fs().root()),
            LinkKind::Executable => {
                let executable = process.space().program().executable.ok_or(Errno::ENOENT)?;
                Target::Place(executable.path().cloned().ok_or(Errno::ENOENT)?)
            }
            LinkKind::Descriptor(fd) => {
                let file = process.files().get(fd).map_err(|_| Errno::ENOENT)?;
                match file.path() {
                    Some(path) => Target::Place(path.clone()),
                    None => Target::Nameless(file),
                }
            }
        })
    }
}

/// What /proc/PID/fd shows of a file without a path: "pipe:[7]", "socket:[8]", "anon_inode:[eventfd]".
pub(super) fn nameless(file: &OpenFile) -> Vec<u8> {
    let node = file.node();
    let any: &dyn core::any::Any = &*node;
    let label = any.downcast_ref::<AnonymousNode>().map_or("file", AnonymousNode::label);
    if label.contains('[') {
        return label.as_bytes().to_vec();
    }
    alloc::format!("{label}:[{}]", node.identity().inode).into_bytes()
}

impl Node for Link {
    fn identity(&self) -> Identity {
        self.identity
    }
    fn kind(&self) -> NodeKind {
        NodeKind::Symlink
    }
    fn metadata(&self) -> Metadata {
        let mut mode = 0o777;
        if let LinkKind::Descriptor(fd) = self.kind
            && let Ok(file) = self.subject.process().and_then(|process| process.files().get(fd))
        {
            let flags = file.flags();
            mode = 0o100 | if flags.reads() { 0o400 } else { 0 } | if flags.writes() { 0o200 } else { 0 };
        }
        let mut meta = metadata(self.subject, self.identity, NodeKind::Symlink, mode);
        meta.size = 64;
        meta
    }
    fn open(self: Arc<Self>, _flags: OpenFlags) -> Result<Arc<dyn File>> {
        Err(Errno::ELOOP)
    }
    fn read_link(&self) -> Result<Vec<u8>> {
        match self.target()? {
            Target::Place(path) => path.display(&task::current().process().fs().root()),
            Target::Nameless(file) => Ok(nameless(&file)),
        }
    }
    fn follow(&self) -> Result<LinkTarget> {
        Ok(LinkTarget::Jump(match self.target()? {
            Target::Place(path) => path,
            Target::Nameless(file) => boot::unnamed_place(file.node()),
        }))
    }
}
