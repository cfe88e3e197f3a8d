//! The file of a fanotify group: a program reads events, gets descriptors of their files, and
//! answers questions.
//!
//! The groups themselves are in [`crate::fs::notify::fanotify`]. Linux' relative is
//! fs/notify/fanotify/fanotify_user.c.

pub mod calls;

use freehold_collections::Arc;
use linux_raw_sys::ioctl;

use super::anonymous::AnonymousNode;
use super::file::{Line, NewsOwner, NewsQueues};
use super::notify::fanotify::{FanEvent, FanGroup, FanMask, FanSubject, GroupSettings, TakenEvent, Verdict};
use super::table::OnExec;
use super::{Blocking, File, FileTable, Node, NodeKind, OpenFile, OpenFlags, Ready};
use crate::sync::PollWaiter;
use crate::task::pidfd::PidFile;
use crate::task::{self, registry};
use crate::user::{Sink, Source, UserPtr};
use crate::{Errno, Result};

/// Bytes of `struct fanotify_event_metadata`.
const METADATA: usize = 24;
/// FANOTIFY_METADATA_VERSION
const VERSION: u8 = 3;
/// FAN_NOFD
const NO_FILE: i32 = -1;
/// FAN_NOPIDFD, FAN_EPIDFD
const NO_PROCESS: i32 = -1;
const PROCESS_ERROR: i32 = -2;
/// FAN_EVENT_INFO_TYPE_PIDFD, and the bytes of its record.
const OF_PROCESS: u8 = 4;
const PROCESS_RECORD: usize = 8;
/// FAN_ALLOW, FAN_DENY
const ALLOW: u32 = 1;
const DENY: u32 = 2;

/// A group, opened.
pub struct FanotifyFile {
    group: Arc<FanGroup>,
    node: Arc<dyn Node>,
    /// The flags of the descriptors that readers get.
    event_flags: OpenFlags,
}

impl FanotifyFile {
    /// Makes the file of a new group.
    fn new(group: Arc<FanGroup>, event_flags: OpenFlags) -> Self {
        let node = AnonymousNode::plain(NodeKind::Regular, "anon_inode:[fanotify]");
        Self { group, node, event_flags }
    }

    fn settings(&self) -> GroupSettings {
        self.group.settings()
    }

    /// Returns the bytes that an event takes in a reader's buffer.
    #[cold]
    fn length(&self, event: &FanEvent) -> usize {
        let settings = self.settings();
        let process = if settings.contains(GroupSettings::PIDFD) { PROCESS_RECORD } else { 0 };
        let records = match &event.subject {
            FanSubject::Ids(ids) => {
                let records = ids.records(settings, event.mask);
                records.iter().flatten().map(|record| record.length()).sum()
            }
            _ => 0,
        };
        METADATA + process + records
    }

    /// Writes an event, and gives the caller its descriptors. Returns the number of bytes.
    ///
    /// # Errors
    /// Those of opening the file; `EMFILE`, `EFAULT`, `ENOMEM`.
    #[cold]
    fn give(&self, event: &FanEvent, sink: &mut dyn Sink) -> Result<usize> {
        let task = task::current();
        let files = task.with_files(|files| files.clone());
        let limit = task.process().descriptor_limit();
        let mut given = Given { files: &files, numbers: [None; 2] };
        let fd = match &event.subject {
            FanSubject::Place(path) => {
                let file = path.node.clone().open(self.event_flags)?;
                let opened = OpenFile::unnotified(file, path.clone(), self.event_flags)?;
                given.add(0, opened, OnExec::asked_by(self.event_flags), limit)?
            }
            _ => NO_FILE,
        };
        let own = task.process();
        let is_told = !self.settings().contains(GroupSettings::UNPRIVILEGED) || event.pid == own.pid;
        let pid = if is_told { registry::number_in(own.pid_view(), event.pid) } else { 0 };
        let pidfd = if self.settings().contains(GroupSettings::PIDFD) {
            Some(match registry::find(event.pid).filter(|_| pid != 0) {
                None => NO_PROCESS,
                Some(process) => OpenFile::new(PidFile::new(&process), None, OpenFlags::RDWR)
                    .and_then(|file| given.add(1, file, OnExec::Close, limit))
                    .unwrap_or(PROCESS_ERROR),
            })
        } else {
            None
        };
        self.write(event, (fd, pid, pidfd), sink)?;
        if let Some(question) = &event.question {
            self.group.expect_answer(fd, question.clone())?;
        }
        given.keep();
        Ok(self.length(event))
    }

    #[cold]
    fn write(
        &self,
        event: &FanEvent,
        (fd, pid, pidfd): (i32, u32, Option<i32>),
        sink: &mut dyn Sink,
    ) -> Result<()> {
        let mut put = |bytes: &[u8]| if sink.put(bytes)? < bytes.len() { Err(Errno::EFAULT) } else { Ok(()) };
        let mut head = [0; METADATA];
        head[..4].copy_from_slice(&(self.length(event) as u32).to_le_bytes());
        head[4] = VERSION;
        head[6..8].copy_from_slice(&(METADATA as u16).to_le_bytes());
        head[8..16].copy_from_slice(&u64::from(event.mask.bits()).to_le_bytes());
        head[16..20].copy_from_slice(&fd.to_le_bytes());
        head[20..].copy_from_slice(&pid.to_le_bytes());
        put(&head)?;
        if let FanSubject::Ids(ids) = &event.subject {
            let records = ids.records(self.settings(), event.mask);
            records.iter().flatten().try_for_each(|record| record.write(&mut put))?;
        }
        let Some(pidfd) = pidfd else { return Ok(()) };
        let mut record = [0; PROCESS_RECORD];
        record[0] = OF_PROCESS;
        record[2] = PROCESS_RECORD as u8;
        record[4..].copy_from_slice(&pidfd.to_le_bytes());
        put(&record)
    }
}

/// Descriptors that are closed again unless the event was written.
struct Given<'a> {
    files: &'a FileTable,
    numbers: [Option<i32>; 2],
}

impl Given<'_> {
    fn add(&mut self, at: usize, file: Arc<OpenFile>, on_exec: OnExec, limit: usize) -> Result<i32> {
        let number = self.files.insert(file, on_exec, limit)?;
        self.numbers[at] = Some(number);
        Ok(number)
    }

    fn keep(mut self) {
        self.numbers = [None; 2];
    }
}

impl Drop for Given<'_> {
    fn drop(&mut self) {
        for number in self.numbers.into_iter().flatten() {
            // Another thread may have closed it.
            let _ = self.files.close(number);
        }
    }
}

impl Drop for FanotifyFile {
    fn drop(&mut self) {
        self.group.close();
    }
}

impl File for FanotifyFile {
    #[cold]
    fn read_at(&self, _offset: u64, sink: &mut dyn Sink, blocking: Blocking) -> Result<usize> {
        let mut done = 0;
        loop {
            let room = sink.remaining();
            let take = || self.group.take(room, &|event| self.length(event));
            let taken = if done > 0 { take() } else { Some(blocking.until(&self.group.changed, take)?) };
            let event = match taken {
                Some(TakenEvent::Event(event)) => event,
                Some(TakenEvent::NoRoom) if done == 0 => return Err(Errno::EINVAL),
                _ => return Ok(done),
            };
            let given = self.give(&event, sink);
            if given.is_err()
                && let Some(question) = &event.question
            {
                self.group.decide(question, Verdict::Deny);
            }
            match given {
                Ok(count) => done += count,
                // The file has gone, for example on a share: the event is dropped.
                Err(Errno::ESTALE) => {}
                Err(error) if done == 0 || error == Errno::EFAULT => return Err(error),
                Err(_) => return Ok(done),
            }
            crate::sched::cond_resched();
        }
    }

    fn node(&self) -> Arc<dyn Node> {
        self.node.clone()
    }

    fn poll(&self, waiter: Option<&mut PollWaiter>) -> Ready {
        if let Some(waiter) = waiter {
            waiter.register(&self.group.changed);
        }
        if self.group.waiting() == 0 { Ready::empty() } else { Ready::IN }
    }

    /// Answers a question (`struct fanotify_response`).
    fn write_at(&self, _offset: u64, source: &mut dyn Source, _blocking: Blocking) -> Result<usize> {
        let mut bytes = [0; 8];
        if source.remaining() < bytes.len() {
            return Err(Errno::EINVAL);
        }
        if source.take(&mut bytes)? < bytes.len() {
            return Err(Errno::EFAULT);
        }
        let words = bytes.as_chunks::<4>().0;
        let (fd, response) = (i32::from_le_bytes(words[0]), u32::from_le_bytes(words[1]));
        let verdict = match response {
            ALLOW => Verdict::Allow,
            DENY => Verdict::Deny,
            _ => return Err(Errno::EINVAL),
        };
        if fd < 0 {
            return Err(Errno::EINVAL);
        }
        self.group.answer(fd, verdict).map(|()| bytes.len())
    }

    fn news(&self) -> Option<NewsQueues<'_>> {
        Some(NewsQueues { queues: [Some(&self.group.changed), None], owner: NewsOwner::None })
    }

    fn describe(&self, line: Line<'_>) -> Result<()> {
        let settings = self.settings().difference(GroupSettings::UNPRIVILEGED);
        let flags = self.event_flags.bits();
        line(format_args!("fanotify flags:{:x} event-flags:{flags:x}", settings.bits()));
        Ok(())
    }

    fn describe_from(&self, from: u64, line: Line<'_>) -> Result<Option<u64>> {
        Ok(self.group.describe_mark(from, line))
    }

    fn ioctl(&self, request: u32, argument: u64) -> Result<i64> {
        if request != ioctl::FIONREAD {
            return Err(Errno::ENOTTY);
        }
        // Linux counts no records here.
        let bytes = self.group.waiting() * METADATA;
        UserPtr::new(argument).write(&(bytes as i32)).map(|()| 0)
    }
}

/// Events whose marks need a directory if the group or the call is strict.
const OF_DIRECTORIES: FanMask = FanMask::NAMES.union(FanMask::QUALIFIERS);
