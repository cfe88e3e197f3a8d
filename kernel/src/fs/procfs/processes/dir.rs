//! The directory of a process or a thread, and the directories in it.

use freehold_collections::{Arc, Receiver, Weak, reserve};

use super::super::net;
use super::files::{FileKind, Item};
use super::links::{Link, LinkKind};
use super::{Subject, check_inspection, metadata, number};
use crate::fs::file::{Blocking, DirEntry, File, Seekable};
use crate::fs::flags::OpenFlags;
use crate::fs::generated::ShortLine;
use crate::fs::node::{DirectoryPlace, Identity, Metadata, NewNode, Node, NodeKind, Presence};
use crate::fs::pseudo;
use crate::sync::SpinLock;
use crate::task::inspect::Mode;
use crate::task::pidfd::PidFile;
use crate::task::userns::{IdKind, NamespaceKind};
use crate::task::{self, Pid, registry};
use crate::user::Sink;
use crate::{Errno, Result};

/// The kinds of directories.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DirKind {
    Whole,
    Tasks,
    Descriptors,
    DescriptorInfos,
    Namespaces,
    Net,
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
    ("children", What::File(FileKind::Children, 0o444)),
    ("clear_refs", What::File(FileKind::ClearRefs, 0o200)),
    ("cmdline", What::File(FileKind::Cmdline, 0o444)),
    ("comm", What::File(FileKind::Comm, 0o644)),
    ("coredump_filter", What::File(FileKind::CoredumpFilter, 0o644)),
    ("cwd", What::Link(LinkKind::WorkingDirectory)),
    ("environ", What::File(FileKind::Environ, 0o400)),
    ("exe", What::Link(LinkKind::Executable)),
    ("fail-nth", What::File(FileKind::FailNth, 0o644)),
    ("fd", What::Dir(DirKind::Descriptors, 0o500)),
    ("fdinfo", What::Dir(DirKind::DescriptorInfos, 0o555)),
    ("gid_map", What::File(FileKind::IdMap(IdKind::Group), 0o644)),
    ("io", What::File(FileKind::Io, 0o400)),
    ("ksm_merging_pages", What::File(FileKind::KsmMergingPages, 0o400)),
    ("ksm_stat", What::File(FileKind::KsmStat, 0o400)),
    ("limits", What::File(FileKind::Limits, 0o444)),
    ("loginuid", What::File(FileKind::Loginuid, 0o644)),
    ("make-it-fail", What::File(FileKind::MakeItFail, 0o644)),
    ("maps", What::File(FileKind::Maps, 0o444)),
    ("mem", What::File(FileKind::Memory, 0o600)),
    ("mountinfo", What::File(FileKind::Mountinfo, 0o444)),
    ("mounts", What::File(FileKind::Mounts, 0o444)),
    ("net", What::Dir(DirKind::Net, 0o555)),
    ("ns", What::Dir(DirKind::Namespaces, 0o511)),
    ("numa_maps", What::File(FileKind::NumaMaps, 0o444)),
    ("oom_adj", What::File(FileKind::OomAdj, 0o644)),
    ("oom_score", What::File(FileKind::OomScore, 0o444)),
    ("oom_score_adj", What::File(FileKind::OomScoreAdj, 0o644)),
    ("pagemap", What::File(FileKind::Pagemap, 0o400)),
    ("personality", What::File(FileKind::Personality, 0o400)),
    ("root", What::Link(LinkKind::Root)),
    ("schedstat", What::File(FileKind::Schedstat, 0o444)),
    ("sessionid", What::File(FileKind::Sessionid, 0o444)),
    ("setgroups", What::File(FileKind::SetGroups, 0o644)),
    ("smaps", What::File(FileKind::Smaps, 0o444)),
    ("smaps_rollup", What::File(FileKind::SmapsRollup, 0o444)),
    ("stat", What::File(FileKind::Stat, 0o444)),
    ("statm", What::File(FileKind::Statm, 0o444)),
    ("status", What::File(FileKind::Status, 0o444)),
    ("task", What::Dir(DirKind::Tasks, 0o555)),
    ("timens_offsets", What::File(FileKind::TimeOffsets, 0o644)),
    ("uid_map", What::File(FileKind::IdMap(IdKind::User), 0o644)),
    ("wchan", What::File(FileKind::Wchan, 0o444)),
];

/// Node numbers of the files of "net" begin here, after those of the entries above.
const NET_NODES: u64 = 1 << 8;
/// The entries of "ns".
const NAMESPACES: [(&str, LinkKind); 10] = [
    ("cgroup", LinkKind::Namespace(NamespaceKind::Cgroup)),
    ("ipc", LinkKind::Namespace(NamespaceKind::Ipc)),
    ("mnt", LinkKind::Namespace(NamespaceKind::Mount)),
    ("net", LinkKind::Namespace(NamespaceKind::Network)),
    ("pid", LinkKind::Namespace(NamespaceKind::Pid)),
    ("pid_for_children", LinkKind::OfChildren(NamespaceKind::Pid)),
    ("time", LinkKind::Namespace(NamespaceKind::Time)),
    ("time_for_children", LinkKind::OfChildren(NamespaceKind::Time)),
    ("user", LinkKind::Namespace(NamespaceKind::User)),
    ("uts", LinkKind::Namespace(NamespaceKind::Uts)),
];
/// Node numbers of the links of "ns".
const NAMESPACE_NODES: u64 = 1 << 9;
/// Node numbers of descriptors begin here, after those of the entries above.
const DESCRIPTOR_NODES: u64 = 1 << 12;
const DESCRIPTOR_INFO_NODES: u64 = 1 << 23;

/// Whether the directory of `subject` has the entry `what`. A thread has no threads and no offsets
/// of clocks of its own, and only threads have the file of their children.
fn has(subject: Subject, what: What) -> bool {
    match what {
        What::Dir(DirKind::Tasks, _) | What::File(FileKind::TimeOffsets, _) => subject.tid.is_none(),
        What::File(FileKind::Children, _) => subject.tid.is_some(),
        _ => true,
    }
}

/// A directory of a subject.
pub(super) struct Dir {
    device: u64,
    me: Weak<Dir>,
    subject: Subject,
    kind: DirKind,
    mode: u32,
    parent: Arc<dyn Node>,
    name: Arc<[u8]>,
    /// The process of an open directory. It is kept because the ID may be reused.
    process: SpinLock<Option<Arc<dyn File>>>,
}

impl Dir {
    pub(super) fn new(
        device: u64,
        subject: Subject,
        (kind, mode): (DirKind, u32),
        parent: Arc<dyn Node>,
        name: &[u8],
    ) -> Arc<Self> {
        let name = reserve::slice(name);
        reserve::cyclic(|me| {
            let process = SpinLock::new(None);
            Self { device, me: me.clone(), subject, kind, mode, parent, name, process }
        })
    }

    fn me(&self) -> Arc<Dir> {
        self.me.upgrade().expect("a node is only reached through an Arc of it")
    }

    fn entry(&self, index: usize, name: &[u8], what: What) -> Arc<dyn Node> {
        let identity = Identity { device: self.device, inode: self.subject.inode(index as u64 + 1) };
        let subject = self.subject;
        match what {
            What::File(kind, mode) => reserve::arc(Item { identity, subject, kind, mode }),
            What::Link(kind) => reserve::arc(Link { identity, subject, kind }),
            What::Dir(kind, mode) => Dir::new(self.device, subject, (kind, mode), self.me(), name),
        }
    }

    fn descriptor(&self, fd: i32) -> Result<Arc<dyn Node>> {
        let process = self.subject.process()?;
        process.files().get(fd).map_err(|_| Errno::ENOENT)?;
        let subject = self.subject;
        let of = |base| Identity { device: self.device, inode: subject.inode(base + fd as u64) };
        Ok(if self.kind == DirKind::Descriptors {
            reserve::arc(Link { identity: of(DESCRIPTOR_NODES), subject, kind: LinkKind::Descriptor(fd) })
        } else {
            let (identity, kind) = (of(DESCRIPTOR_INFO_NODES), FileKind::DescriptorInfo(fd));
            reserve::arc(Item { identity, subject, kind, mode: 0o444 })
        })
    }

    /// The file of "net" with this index in the list.
    fn net_file(&self, index: usize) -> Arc<dyn Node> {
        let (subject, kind) = (self.subject, FileKind::Net(net::FILES[index].1));
        let identity = Identity { device: self.device, inode: subject.inode(NET_NODES + index as u64) };
        reserve::arc(Item { identity, subject, kind, mode: 0o444 })
    }

    /// Returns the first entry with number `from` or more: number, name, inode, DT_* value.
    fn next(&self, from: u64) -> Option<(u64, ShortLine, u64, u8)> {
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
                Some((index as u64, ShortLine::of(name.as_bytes()), inode, kind.dirent_kind()))
            }
            DirKind::Tasks => {
                let least = Pid::try_from(from).ok()?;
                let task = self.subject.process().ok()?.threads_from(least).next()?;
                let inode = Subject { tid: Some(task.tid()), ..self.subject }.inode(0);
                let name = ShortLine::of_number(task.numbers().in_view(self.subject.view).into());
                Some((u64::from(task.tid()), name, inode, NodeKind::Directory.dirent_kind()))
            }
            DirKind::Namespaces => {
                let (name, _) = NAMESPACES.get(usize::try_from(from).ok()?)?;
                let inode = self.subject.inode(NAMESPACE_NODES + from);
                Some((from, ShortLine::of(name.as_bytes()), inode, NodeKind::Symlink.dirent_kind()))
            }
            DirKind::Net => {
                let (name, _) = net::FILES.get(usize::try_from(from).ok()?)?;
                let inode = self.subject.inode(NET_NODES + from);
                Some((from, ShortLine::of(name.as_bytes()), inode, NodeKind::Regular.dirent_kind()))
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
                Some((fd as u64, ShortLine::of_number(fd as u64), inode, kind.dirent_kind()))
            }
        }
    }
}

impl Node for Dir {
    fn identity(&self) -> Identity {
        let index = match self.kind {
            DirKind::Whole => 0,
            // As in the list of entries.
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
            // Programs determine the number of threads from this directory's links.
            let threads = self.subject.process().map_or(0, |process| process.thread_count());
            meta.links = 2 + threads as u32;
        }
        meta
    }

    fn open(self: Receiver<Self>, _flags: OpenFlags) -> Result<Arc<dyn File>> {
        if self.kind == DirKind::DescriptorInfos {
            check_inspection(self.subject, Mode::READ_FS)?;
        }
        if self.kind == DirKind::Whole
            && self.subject.tid.is_none()
            && let Ok(process) = self.subject.process()
        {
            let file: Arc<dyn File> = PidFile::new(&process);
            let mut opened = self.process.lock();
            if opened.is_none() {
                *opened = Some(file);
            }
        }
        Ok(self)
    }

    /// A process may list its own descriptors even if the directory belongs to root (Linux:
    /// `proc_fd_permission`).
    fn is_callers_own(&self) -> bool {
        self.kind == DirKind::Descriptors && task::with_current(|task| task.process().pid == self.subject.pid)
    }

    fn pidfd(&self) -> Option<Arc<dyn File>> {
        self.process.lock().clone()
    }

    fn parent(&self) -> Option<DirectoryPlace> {
        let presence = if self.subject.process().is_ok() { Presence::Linked } else { Presence::Removed };
        Some(DirectoryPlace { dir: self.parent.clone(), name: self.name.clone(), presence })
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
                let tid = number(name).and_then(|number| registry::pid_in(self.subject.view, number));
                let tid = tid.ok_or(Errno::ENOENT)?;
                let task = registry::find_task(tid).filter(|task| task.process().pid == process.pid);
                task.ok_or(Errno::ENOENT)?;
                let subject = Subject { tid: Some(tid), ..self.subject };
                Ok(Dir::new(self.device, subject, (DirKind::Whole, 0o555), self.me(), name))
            }
            DirKind::Namespaces => {
                let found = NAMESPACES.iter().position(|(known, _)| known.as_bytes() == name);
                let index = found.ok_or(Errno::ENOENT)?;
                let inode = self.subject.inode(NAMESPACE_NODES + index as u64);
                let (identity, subject) = (Identity { device: self.device, inode }, self.subject);
                Ok(reserve::arc(Link { identity, subject, kind: NAMESPACES[index].1 }))
            }
            DirKind::Net => {
                let found = net::FILES.iter().position(|(known, _)| known.as_bytes() == name);
                found.map(|index| self.net_file(index)).ok_or(Errno::ENOENT)
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
            if !emit(DirEntry { name: name.bytes(), inode, kind, next: at }) {
                break;
            }
        }
        Ok(())
    }
}
