//! The files of a process or a thread, and the right to open them.

use super::super::memory::{self, AreaRecord, AreaRecords};
use super::super::net::{NetContent, NetFile};
use super::super::status;
use super::{Subject, check_inspection, metadata, space_of};
use crate::fs::device::split_device;
use crate::fs::file::Ready;
use crate::fs::file::{File, Seekable};
use crate::fs::flags::OpenFlags;
use crate::fs::generated::{Generate, GeneratedFile, Parts, Text};
use crate::fs::namespace::MountNamespace;
use crate::fs::node::{Identity, Metadata, Node, NodeKind, SetMetadata};
use crate::fs::notify::{InotifyFile, WatchInfo};
use crate::fs::pseudo;
use crate::fs::root;
use crate::fs::userfault::UserFaultFile;
use crate::mem::ProcessSpace;
use crate::sync::PollWaiter;
use crate::task::inspect::{self, Mode};
use crate::task::pidfd::PidFile;
use crate::task::pidns::PidView;
use crate::task::userns::{IdKind, UserNs};
use crate::task::{self, Capability, Credentials, Process};
use crate::{Errno, Result};
use core::sync::atomic::{AtomicU64, Ordering};
use freehold_collections::reserve::ArcMethods as _;
use freehold_collections::{Arc, Box, Receiver, Weak, reserve};
use freehold_machine::VirtAddr;

/// The files.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::fs::procfs) enum FileKind {
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
    OomAdj,
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
    Sessionid,
    Children,
    ClearRefs,
    Memory,
    Pagemap,
    DescriptorInfo(i32),
    MakeItFail,
    FailNth,
    IdMap(IdKind),
    SetGroups,
    Net(NetFile),
}

/// A file of a subject.
pub(super) struct Item {
    pub identity: Identity,
    pub subject: Subject,
    pub kind: FileKind,
    pub mode: u32,
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
    fn open(self: Receiver<Self>, flags: OpenFlags) -> Result<Arc<dyn File>> {
        if flags.writes() && self.mode & 0o222 == 0 {
            return Err(Errno::EACCES);
        }
        let (subject, kind) = (self.subject, self.kind);
        match kind {
            FileKind::Memory => {
                let space = space_of(subject, Mode::ATTACH_FS)?;
                return Ok(memory::SpaceFile::open(self, space, kind));
            }
            FileKind::Pagemap => {
                let space = space_of(subject, Mode::READ_FS)?;
                return Ok(memory::SpaceFile::open(self, space, kind));
            }
            FileKind::Auxv
            | FileKind::Environ
            | FileKind::Maps
            | FileKind::Smaps
            | FileKind::SmapsRollup
            | FileKind::NumaMaps => {
                let space = space_of(subject, Mode::READ_FS)?;
                return Ok(GeneratedFile::new(self, MemoryContent { subject, kind, space }));
            }
            FileKind::DescriptorInfo(_) => {
                check_inspection(subject, Mode::READ_FS)?;
            }
            FileKind::IdMap(of) => {
                let user_ns = subject.process()?.credentials().user_ns.clone();
                let opener = task::current().process().credentials();
                return Ok(GeneratedFile::new(self, IdMapFile { user_ns, of, opener }));
            }
            FileKind::SetGroups => {
                let user_ns = subject.process()?.credentials().user_ns.clone();
                if flags.writes() && !task::may_in(&user_ns, Capability::SysAdmin) {
                    return Err(Errno::EACCES);
                }
                return Ok(GeneratedFile::new(self, SetGroupsFile(user_ns)));
            }
            FileKind::Mounts | FileKind::Mountinfo => {
                return Ok(GeneratedFile::new(self, MountList::open(subject, kind)?));
            }
            FileKind::Net(file) => {
                let network = subject.process()?.namespaces().network.clone();
                return Ok(GeneratedFile::new(self, NetContent { file, network }));
            }
            _ => {}
        }
        Ok(GeneratedFile::new(self, ProcessFile::new(subject, kind)?))
    }
}

/// A map of ids, for the process' user namespace at the time when the file was opened.
struct IdMapFile {
    user_ns: UserNs,
    of: IdKind,
    /// The opener. A write needs the opener's rights as well as the writer's.
    opener: Arc<Credentials>,
}

impl Generate for IdMapFile {
    fn show(&self, out: &mut Text) -> Result<()> {
        self.user_ns.each_range(self.of, &self.opener.user_ns, |range| {
            writeln!(out, "{:10} {:10} {:10}", range.first, range.outside, range.count);
        });
        Ok(())
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        // A text of this length may be incomplete.
        if bytes.len() >= 4096 {
            return Err(Errno::EINVAL);
        }
        let writer = task::current().process().credentials();
        self.user_ns.write_map(self.of, bytes, &writer, &self.opener)
    }
}

/// Whether setgroups(2) is allowed in a user namespace.
struct SetGroupsFile(UserNs);

impl Generate for SetGroupsFile {
    fn show(&self, out: &mut Text) -> Result<()> {
        out.push(if self.0.allows_set_groups() { b"allow\n" } else { b"deny\n" });
        Ok(())
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        self.0.write_set_groups(bytes)
    }
}

/// The content of a file about memory.
struct MemoryContent {
    subject: Subject,
    kind: FileKind,
    /// The space that the opener was allowed to inspect. The process may have another one by now.
    space: Weak<ProcessSpace>,
}

impl Generate for MemoryContent {
    fn show(&self, out: &mut Text) -> Result<()> {
        let process = self.subject.process()?;
        match self.space.upgrade() {
            Some(space) => memory::show(out, &process, &space, self.kind),
            None => Ok(()),
        }
    }

    fn parts(&self) -> Option<Box<dyn Parts>> {
        let record = match self.kind {
            FileKind::Maps => AreaRecord::Line,
            FileKind::Smaps => AreaRecord::Counts,
            FileKind::NumaMaps => AreaRecord::Nodes,
            _ => return None,
        };
        let (subject, space, next) = (self.subject, self.space.clone(), VirtAddr(0));
        Some(reserve::boxed(AreaRecords { subject, space, record, next }))
    }
}

/// The mounts that a process sees. Poll reports each change, once, in the process' namespace at the
/// time when the file was opened (Linux: `mounts_poll`).
struct MountList {
    shown: ProcessFile,
    namespace: Arc<MountNamespace>,
    /// The namespace's changes that poll has reported.
    told: AtomicU64,
}

impl MountList {
    fn open(subject: Subject, kind: FileKind) -> Result<Self> {
        let namespace = subject.process()?.namespaces().mount.clone();
        let told = AtomicU64::new(namespace.changes());
        Ok(Self { shown: ProcessFile::new(subject, kind)?, namespace, told })
    }
}

impl Generate for MountList {
    fn show(&self, out: &mut Text) -> Result<()> {
        self.shown.show(out)
    }

    fn poll(&self, waiter: Option<&mut PollWaiter>) -> Ready {
        if let Some(waiter) = waiter {
            waiter.register(self.namespace.changed());
        }
        let changes = self.namespace.changes();
        let always = Ready::IN | Ready::OUT;
        if self.told.swap(changes, Ordering::SeqCst) == changes {
            always
        } else {
            always | Ready::PRI | Ready::ERR
        }
    }

    fn changes_readiness(&self) -> bool {
        true
    }
}

/// The content of a file.
struct ProcessFile {
    subject: Subject,
    kind: FileKind,
    /// The process at the time when the file was opened. Its number may be another one's by now.
    opened: Weak<Process>,
}

impl ProcessFile {
    fn new(subject: Subject, kind: FileKind) -> Result<Self> {
        Ok(Self { subject, kind, opened: subject.process()?.downgrade() })
    }

    /// Returns the process that the file was opened for.
    ///
    /// # Errors
    /// `ESRCH` once it was waited for.
    fn process(&self) -> Result<Arc<Process>> {
        let opened = self.opened.upgrade().ok_or(Errno::ESRCH)?;
        if opened.is_same(&self.subject.process()?) { Ok(opened) } else { Err(Errno::ESRCH) }
    }
}

impl Generate for ProcessFile {
    fn show(&self, out: &mut Text) -> Result<()> {
        let Self { subject, kind, .. } = *self;
        let process = self.process()?;
        // These are checked when they are read.
        match kind {
            FileKind::Io | FileKind::DescriptorInfo(_) => {
                inspect::may_inspect(&process, Mode::READ_FS).map_err(|_| Errno::EACCES)?;
            }
            FileKind::Personality => inspect::may_inspect(&process, Mode::ATTACH_FS)?,
            _ => {}
        }
        match kind {
            FileKind::DescriptorInfo(fd) => descriptor_info(out, &process, subject.view, fd),
            kind => status::show(out, subject, &process, kind),
        }
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        status::store(self.subject, &*self.process()?, self.kind, bytes)
    }
}

fn descriptor_info(out: &mut Text, process: &Process, view: PidView, fd: i32) -> Result<()> {
    let files = process.files();
    let file = files.get(fd).map_err(|_| Errno::ENOENT)?;
    let mut flags = file.flags();
    flags.set(OpenFlags::CLOEXEC, files.on_exec(fd) == Ok(crate::fs::OnExec::Close));
    let mount = file.path().map_or_else(root::unnamed_mount, |path| path.mount.clone());
    // A stream has no offset, and its lock may be held for long, so it is not taken.
    let position = if file.file().seekable() == Seekable::Offset { file.position()? } else { 0 };
    writeln!(out, "pos:\t{position}\nflags:\t0{:o}\nmnt_id:\t{}", flags.bits(), mount.id());
    writeln!(out, "ino:\t{}", file.node().identity().inode);
    if let Some(instance) = file.file().downcast::<InotifyFile>() {
        watches(out, instance);
    }
    if let Some(monitor) = file.file().downcast::<UserFaultFile>() {
        user_faults(out, monitor);
    }
    if let Some(opened) = file.file().downcast::<PidFile>() {
        opened_process(out, opened, view);
    }
    file.file().describe(&mut |line| {
        out.write_fmt(line);
        out.push(b"\n");
    })
}

/// Writes the faults of a userfaultfd that wait to be read or served, and its interface.
fn user_faults(out: &mut Text, monitor: &UserFaultFile) {
    let ((pending, total), (api, features, requests)) = (monitor.counts(), monitor.interface());
    writeln!(out, "pending:\t{pending}\ntotal:\t{total}\nAPI:\t{api:x}:{features:x}:{requests:x}");
}

/// Writes the process of a pidfd; -1 once it was waited for, 0 if it has no number in the reader's
/// /proc.
fn opened_process(out: &mut Text, opened: &PidFile, view: PidView) {
    let Ok(process) = opened.process() else {
        writeln!(out, "Pid:\t-1\nNSpid:\t-1");
        return;
    };
    let number = process.number_in(view);
    write!(out, "Pid:\t{number}\nNSpid:");
    if number == 0 {
        out.push(b"\t0");
    }
    process.numbers().each_from(view, |_, number| write!(out, "\t{number}"));
    out.push(b"\n");
}

/// Writes the watches of an inotify instance, in base 16 as on Linux. There are no file handles.
fn watches(out: &mut Text, instance: &InotifyFile) {
    let mut from = 0;
    while let Some(WatchInfo { number, identity, mask }) = instance.next_watch(from) {
        let (major, minor) = split_device(identity.device);
        let (inode, device, mask) = (identity.inode, major << 20 | minor, mask.bits());
        writeln!(out, "inotify wd:{number:x} ino:{inode:x} sdev:{device:x} mask:{mask:x} ignored_mask:0 ");
        let Some(next) = number.checked_add(1) else { return };
        from = next;
        crate::sched::cond_resched();
    }
}
