//! A file of a group.
//!
//! A write checks the rights and the cgroup namespace of the process that opened the file, as on
//! Linux since 5.16. So a descriptor has the same rights after it was passed to another process.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_collections::{Arc, Box, Receiver};

use super::dir::GroupDir;
use super::procs::{self, Listing, ProcsParts};
use super::rows::Row;
use super::{NSDELEGATE, change, identity};
use crate::cgroup::Group;
use crate::cgroup::control::ControlFile;
use crate::cgroup::cpu::CpuStatistics;
use crate::cgroup::tree::Freeze;
use crate::fs::file::{File, Ready};
use crate::fs::flags::OpenFlags;
use crate::fs::generated::{Generate, GeneratedFile, Parts, Text};
use crate::fs::node::{Identity, Metadata, Node, NodeKind, SetMetadata};
use crate::fs::notify;
use crate::fs::procfs::system::busy_times;
use crate::sync::PollWaiter;
use crate::task::cgroup_members::{cpu_time, for_each_member};
use crate::task::namespaces::CgroupNamespace;
use crate::task::signal::{SigInfo, Signal};
use crate::task::{self, Credentials, freeze};
use crate::{Errno, Result};

/// The node of a file. It is made anew at each lookup.
pub(super) struct GroupFile {
    dir: Arc<GroupDir>,
    index: usize,
    row: Row,
}

impl GroupFile {
    pub fn new(dir: Arc<GroupDir>, index: usize, row: Row) -> Self {
        Self { dir, index, row }
    }
}

impl Drop for GroupFile {
    fn drop(&mut self) {
        notify::inode_ended(self);
    }
}

impl Node for GroupFile {
    fn identity(&self) -> Identity {
        identity(self.dir.group(), self.index)
    }

    fn kind(&self) -> NodeKind {
        NodeKind::Regular
    }

    fn metadata(&self) -> Metadata {
        self.dir.file_metadata(self.index, self.row)
    }

    fn is_nameless(&self) -> bool {
        self.dir.group().is_removed()
    }

    fn set_metadata(&self, change: &SetMetadata) -> Result<()> {
        // A shell's ">" truncates the file, which has no length.
        let SetMetadata { mode, uid, gid, size: _, accessed, modified } = change;
        if mode.is_none() && uid.is_none() && gid.is_none() && accessed.is_none() && modified.is_none() {
            return Ok(());
        }
        self.dir.change_file(self.index, self.row, change)
    }

    fn open(self: Receiver<Self>, _flags: OpenFlags) -> Result<Arc<dyn File>> {
        if self.dir.group().is_removed() {
            return Err(Errno::ENODEV);
        }
        let process = task::current().process().clone();
        let content = Content {
            dir: self.dir.clone(),
            row: self.row,
            opener: process.credentials(),
            namespace: process.namespaces().cgroup.clone(),
            seen: AtomicU64::new(0),
        };
        content.see();
        Ok(GeneratedFile::new(self, content))
    }
}

/// An open file.
struct Content {
    dir: Arc<GroupDir>,
    row: Row,
    opener: Arc<Credentials>,
    namespace: Arc<CgroupNamespace>,
    /// Number of changes of the file when it was last read.
    seen: AtomicU64,
}

impl Content {
    fn group(&self) -> &Arc<Group> {
        self.dir.group()
    }

    fn check_presence(&self) -> Result<()> {
        if self.group().is_removed() { Err(Errno::ENODEV) } else { Ok(()) }
    }

    /// Notes that the reader has seen all changes so far.
    fn see(&self) {
        if let Some(notice) = self.row.notice() {
            self.seen.store(self.group().changes(notice), Ordering::Relaxed);
        }
    }

    fn store_row(&self, text: &[u8]) -> Result<()> {
        match self.row {
            Row::Procs => procs::move_process(&self.dir, &self.opener, &self.namespace, text),
            Row::Threads => procs::move_thread(&self.dir, text),
            Row::Freeze => {
                let freezes = match number(text)? {
                    0 => Freeze::No,
                    1 => Freeze::Yes,
                    _ => return Err(Errno::ERANGE),
                };
                let _change = change()?;
                self.group().set_freezes(freezes)?;
                freeze::look_at_all(self.group());
                Ok(())
            }
            Row::Kill if number(text)? != 1 => Err(Errno::ERANGE),
            Row::Kill => {
                self.check_presence()?;
                kill_all(self.group());
                Ok(())
            }
            Row::CpuStat | Row::Control(ControlFile { store: None, .. }) => Err(Errno::EINVAL),
            Row::Control(ControlFile { store: Some(store), .. }) => {
                let _change = change()?;
                self.check_presence()?;
                store(self.group(), text)
            }
        }
    }
}

impl Generate for Content {
    fn show(&self, out: &mut Text) -> Result<()> {
        self.check_presence()?;
        self.see();
        match self.row {
            Row::Procs | Row::Threads | Row::Kill => return Err(Errno::EINVAL),
            Row::Control(file) if file.is_write_only() => return Err(Errno::EINVAL),
            Row::Freeze => writeln!(out, "{}", u8::from(self.group().freezes())),
            Row::CpuStat => cpu_stat(self.group(), out),
            // The only possible error is a lack of memory, which the text remembers.
            Row::Control(file) => drop((file.show)(self.group(), out)),
        }
        Ok(())
    }

    fn parts(&self) -> Option<Box<dyn Parts>> {
        let listing = match self.row {
            Row::Procs => Listing::Processes,
            Row::Threads => Listing::Threads,
            _ => return None,
        };
        Some(ProcsParts::boxed(self.group(), listing))
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        let bounds = NSDELEGATE.load(Ordering::Relaxed) && !self.namespace.root().is_root();
        if bounds && self.namespace.root().id() == self.group().id() && !self.row.is_delegated() {
            return Err(Errno::EPERM);
        }
        self.store_row(bytes.trim_ascii())
    }

    fn poll(&self, waiter: Option<&mut PollWaiter>) -> Ready {
        let always = Ready::IN | Ready::OUT;
        let Some(notice) = self.row.notice() else { return always };
        if let Some(waiter) = waiter {
            waiter.register(&self.group().changed);
        }
        let has_changed = self.group().changes(notice) != self.seen.load(Ordering::Relaxed);
        if has_changed || self.group().is_removed() { always | Ready::PRI | Ready::ERR } else { always }
    }

    fn changes_readiness(&self) -> bool {
        true
    }
}

/// Parses a decimal int, as kstrtoint does.
///
/// # Errors
/// `EINVAL` for any other text.
pub(super) fn number(text: &[u8]) -> Result<i32> {
    let text = core::str::from_utf8(text).map_err(|_| Errno::EINVAL)?;
    text.parse().map_err(|_| Errno::EINVAL)
}

/// Kills all processes in a group and below. A concurrent fork also kills its child.
fn kill_all(group: &Group) {
    group.begin_kill();
    for_each_member(group, |process| process.signal(SigInfo::kernel(Signal::KILL)));
}

/// CPU time in microseconds. User and system time are rounded so that their sum is the total.
fn cpu_stat(group: &Group, out: &mut Text) {
    let [user, system] = if group.is_root() {
        busy_times()
    } else {
        let used = cpu_time(group);
        [used.user, used.system]
    };
    let [user, system] = [user / 1000, system / 1000];
    writeln!(out, "usage_usec {}\nuser_usec {user}\nsystem_usec {system}", user + system);
    if let Some(CpuStatistics { periods, throttled, throttled_time }) = group.cpu_statistics() {
        writeln!(
            out,
            "nr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec {}",
            throttled_time / 1000
        );
    }
}
