//! The files of a process or a thread, and the right to open them.

use super::super::memory::{self, AreaRecord, AreaRecords, StringParts, Strings};
use super::super::mounts::{MountForm, MountRecords};
use super::super::net::{NetContent, NetFile};
use super::super::status;
use super::descriptor::DescriptorFile;
use super::{Subject, check_inspection, metadata, space_of};
use crate::fs::file::{File, Ready};
use crate::fs::flags::OpenFlags;
use crate::fs::generated::{Generate, GeneratedFile, Parts, Text};
use crate::fs::mount::MountCursor;
use crate::fs::namespace::MountNamespace;
use crate::fs::node::{Identity, Metadata, Node, NodeKind, SetMetadata};
use crate::fs::path::Path;
use crate::fs::pseudo;
use crate::mem::ProcessSpace;
use crate::sync::PollWaiter;
use crate::task::inspect::{self, Mode};
use crate::task::userns::{IdKind, UserNs};
use crate::task::{self, Capability, Credentials, Process};
use crate::{Errno, Result, time};
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
    KsmMergingPages,
    KsmStat,
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
    TimeOffsets,
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
            FileKind::DescriptorInfo(fd) => {
                check_inspection(subject, Mode::READ_FS)?;
                let of = reserve::arc(ProcessFile::new(subject, kind)?);
                return Ok(GeneratedFile::new(self, DescriptorFile { of, fd }));
            }
            FileKind::IdMap(of) => {
                let user_ns = subject.process()?.credentials().user_ns.clone();
                let opener = task::current().process().credentials();
                return Ok(GeneratedFile::new(self, IdMapFile { user_ns, of, opener }));
            }
            FileKind::TimeOffsets => {
                let opener = task::current().process().credentials();
                return Ok(GeneratedFile::new(self, TimeOffsetsFile { subject, opener }));
            }
            FileKind::SetGroups => {
                let user_ns = subject.process()?.credentials().user_ns.clone();
                if flags.writes() && !task::may_in(&user_ns, Capability::SysAdmin) {
                    return Err(Errno::EACCES);
                }
                return Ok(GeneratedFile::new(self, SetGroupsFile(user_ns)));
            }
            FileKind::Mounts => {
                return Ok(GeneratedFile::new(self, MountList::open(subject, MountForm::Mounts)?));
            }
            FileKind::Mountinfo => {
                return Ok(GeneratedFile::new(self, MountList::open(subject, MountForm::Mountinfo)?));
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

/// Checks that `bytes` are a whole text: a text of 4096 bytes may be incomplete.
///
/// # Errors
/// `EINVAL`.
const fn check_whole(offset: u64, bytes: &[u8]) -> Result<()> {
    if offset != 0 || bytes.len() >= 4096 { Err(Errno::EINVAL) } else { Ok(()) }
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

    fn store_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        check_whole(offset, bytes)?;
        let writer = task::current().process().credentials();
        self.user_ns.write_map(self.of, bytes, &writer, &self.opener)
    }
}

/// The offsets of the time namespace for a process' children.
struct TimeOffsetsFile {
    subject: Subject,
    /// The opener, whose rights a write needs.
    opener: Arc<Credentials>,
}

impl Generate for TimeOffsetsFile {
    fn show(&self, out: &mut Text) -> Result<()> {
        let offsets = self.subject.process()?.namespaces().time_for_children.offsets();
        for (name, offset) in [("monotonic", offsets.monotonic), ("boottime", offsets.boottime)] {
            let second = time::SECOND as i64;
            writeln!(out, "{name:<10} {:10} {:9}", offset.div_euclid(second), offset.rem_euclid(second));
        }
        Ok(())
    }

    fn store_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        check_whole(offset, bytes)?;
        self.subject.process()?.namespaces().time_for_children.write(bytes, &self.opener)
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
            FileKind::Environ => {
                let process = self
                    .subject
                    .process()
                    .map_or_else(|_| <Weak<Process>>::new(), |process| process.downgrade());
                return Some(StringParts::boxed(process, Some(self.space.clone()), Strings::Environment));
            }
            _ => return None,
        };
        let (subject, space, next) = (self.subject, self.space.clone(), VirtAddr(0));
        Some(reserve::boxed(AreaRecords { subject, space, record, next }))
    }
}

/// The mounts that a process sees, in its namespace and from its root at the time when the file was
/// opened. Poll reports each change of the namespace, once (Linux: `mounts_open_common`,
/// `mounts_poll`).
struct MountList {
    form: MountForm,
    namespace: Arc<MountNamespace>,
    root: Path,
    /// The namespace's changes that poll has reported.
    told: AtomicU64,
}

impl MountList {
    fn open(subject: Subject, form: MountForm) -> Result<Self> {
        let process = subject.process()?;
        let namespace = process.namespaces().mount.clone();
        let told = AtomicU64::new(namespace.changes());
        Ok(Self { form, namespace, root: process.fs().root(), told })
    }
}

impl Generate for MountList {
    fn show(&self, _out: &mut Text) -> Result<()> {
        Ok(())
    }

    fn parts(&self) -> Option<Box<dyn Parts>> {
        let (namespace, root) = (self.namespace.clone(), self.root.clone());
        let records = MountRecords { form: self.form, namespace, root, cursor: MountCursor::new() };
        Some(reserve::boxed(records))
    }

    fn poll(&self, waiter: Option<&mut PollWaiter>) -> Ready {
        if let Some(waiter) = waiter {
            waiter.register(self.namespace.changed());
        }
        let changes = self.namespace.changes();
        let always = Ready::IN;
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
pub(super) struct ProcessFile {
    subject: Subject,
    kind: FileKind,
    /// The process at the time when the file was opened. Its number may be another one's by now.
    opened: Weak<Process>,
}

impl ProcessFile {
    fn new(subject: Subject, kind: FileKind) -> Result<Self> {
        Ok(Self { subject, kind, opened: subject.process()?.downgrade() })
    }

    pub const fn subject(&self) -> Subject {
        self.subject
    }

    /// Returns the process that the file was opened for.
    ///
    /// # Errors
    /// `ESRCH` once it was waited for.
    pub fn process(&self) -> Result<Arc<Process>> {
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
            FileKind::Io => {
                inspect::may_inspect(&process, Mode::READ_FS).map_err(|_| Errno::EACCES)?;
            }
            FileKind::Personality => inspect::may_inspect(&process, Mode::ATTACH_FS)?,
            _ => {}
        }
        status::show(out, subject, &process, kind)
    }

    fn parts(&self) -> Option<Box<dyn Parts>> {
        let process = self.opened.clone();
        (self.kind == FileKind::Cmdline).then(|| StringParts::boxed(process, None, Strings::Arguments))
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        status::store(self.subject, &*self.process()?, self.kind, bytes)
    }
}
