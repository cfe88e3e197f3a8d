//! Core files: the memory image of a process that was ended by a signal (core(5); Linux:
//! `fs/coredump.c`, `fs/binfmt_elf.c`).
//!
//! **Protocol.** The thread that received the signal marks itself, under the lock of `signals`, as
//! the one that stays, as at execve, and leaves a [`Meeting`] there. All other threads end. On
//! their way each stores its registers in the meeting and sleeps until the meeting is over. Once
//! all have arrived, or have ended before, memory no longer changes, except through processes that
//! share it. Then the thread writes the file. Then, in one step, the process ends with its status,
//! and the meeting is over. SIGKILL ends the wait and the writing, and then the process ends by
//! SIGKILL.
//!
//! **Permission.** A core file is written for a process with a limit (RLIMIT_CORE) of a page or
//! more. The process must be [`Dumpable::Yes`], or [`Dumpable::RootOnly`] with an absolute name of
//! the file. In the latter case root owns the file, and the name is resolved from the initial root.
//! The file is always new: an existing one is removed first, except if root would own the new one.

pub mod meeting;
mod memory;
mod notes;
mod output;
pub mod pattern;

use freehold_collections::{Arc, Receiver, Vec, reserve};
use freehold_machine::VirtAddr;
use freehold_vm::Rule;
use zerocopy::{Immutable, IntoBytes};

use crate::fs::bytes::SliceSink;
use crate::fs::walk::PathWalk;
use crate::fs::{NodeKind, OpenFile, OpenFlags, clock, names};
use crate::hw::{self, PAGE, user::UserContext};
use crate::mem::{self, ProcessSpace};
use crate::task::credentials::Dumpable;
use crate::task::process::{ExitStatus, Process};
use crate::task::signal::{SigInfo, Signal, end_group};
use crate::task::uts::Name;
use crate::task::{Credentials, Resource, Task, registry, spawn};
use crate::{Errno, Result};
use meeting::{DumpedThread, Meeting};
use memory::Areas;
use notes::{Notes, ProcessInfo};
use output::{CoreOutput, Stopped, Written};

/// Smallest limit with which a core file is written (Linux: `min_coredump`).
const LEAST: u64 = PAGE;

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct Header {
    ident: [u8; 16],
    kind: u16,
    machine: u16,
    version: u32,
    entry: u64,
    programs: u64,
    sections: u64,
    flags: u32,
    sizes: [u16; 6],
}

#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct ProgramHeader {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    physical: u64,
    in_file: u64,
    in_memory: u64,
    align: u64,
}

const HEADER: u64 = size_of::<Header>() as u64;
const PROGRAM_HEADER: u64 = size_of::<ProgramHeader>() as u64;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;

impl Task {
    /// Ends the process by `signal`, described by `info`. Writes a core file if it is permitted.
    #[cold]
    pub(in crate::task) fn end_with_core(
        self: &Receiver<Self>,
        context: &mut UserContext,
        info: &SigInfo,
        signal: Signal,
    ) {
        let process = self.process();
        let limit = process.soft_limit(Resource::Core);
        if limit < LEAST || process.space().dumpable() == Dumpable::No {
            return end_group(&mut process.signals.lock(), ExitStatus::Signaled(signal));
        }
        let meeting = match self.call_together() {
            Ok(Some(meeting)) => meeting,
            // Another thread ended the process first.
            Ok(None) => return,
            Err(_) => return end_group(&mut process.signals.lock(), ExitStatus::Signaled(signal)),
        };
        let written = self.write_core(context, &meeting, (info, signal), limit);
        let status = match written {
            Ok(()) => ExitStatus::Dumped(signal),
            Err(error) => {
                log::info!("process {}: no core file: {error:?}", process.pid);
                ExitStatus::Signaled(signal)
            }
        };
        let dump = {
            let mut group = process.signals.lock();
            group.exec = None;
            // If the process was killed meanwhile, it ends by SIGKILL.
            end_group(&mut group, status);
            group.dump.take()
        };
        drop(dump);
        meeting.over.complete();
    }

    /// Joins the dump of another thread that writes a core file: stores this thread's registers and
    /// waits.
    #[cold]
    pub(in crate::task) fn meet(&self, context: &mut UserContext, meeting: &Meeting) {
        meeting.come(self.dumped(context));
        self.process().thread_ended.wake_all();
        meeting.over.wait_in_any_case();
    }

    fn dumped(&self, context: &mut UserContext) -> DumpedThread {
        let usage = self.usage();
        let signals = [self.blocked().0, self.pending.lock().set().0];
        DumpedThread::new(context, self.number(), signals, [usage.user, usage.system].map(|time| time / 1000))
    }

    /// Makes all other threads join. `None` if the process ends already.
    fn call_together(self: &Receiver<Self>) -> Result<Option<Arc<Meeting>>> {
        let process = self.process();
        let meeting = loop {
            let most = process.thread_count();
            let meeting = reserve::arc(Meeting::new(most)?);
            let mut group = process.signals.lock();
            if group.exit.is_some() || group.exec.is_some() {
                return Ok(None);
            }
            if group.threads.len() <= most {
                group.dump = Some(meeting.clone());
                group.set_stop(None);
                self.end_others(&mut group);
                break meeting;
            }
        };
        Ok(Some(meeting))
    }

    fn write_core(
        &self,
        context: &mut UserContext,
        meeting: &Meeting,
        (info, signal): (&SigInfo, Signal),
        limit: u64,
    ) -> Result<()> {
        let process = self.process();
        let all_came = || (meeting.count() + 1 >= process.thread_count()).then_some(());
        process.thread_ended.wait_killable(all_came)?;
        let space = process.space();
        let mut threads = meeting.take();
        threads.try_insert(0, self.dumped(context))?;
        let areas = Areas::of(&space, &process.fs().root())?;
        let notes = self.notes(&space, (info, signal), (areas.files, threads))?;
        let file = self.open_core(signal, limit, space.dumpable())?;
        let mut out = CoreOutput::new(file, limit);
        let put = put_headers(&mut out, &notes, &areas.segments)
            .and_then(|()| memory::put(&mut out, &space, &areas.segments))
            .and_then(|()| out.finish());
        match put {
            // As on Linux, a truncated file is a core file, too.
            Ok(()) | Err(Stopped::Limit) => Ok(()),
            Err(Stopped::Error(error)) => Err(error),
        }
    }

    fn notes(
        &self,
        space: &ProcessSpace,
        (info, signal): (&SigInfo, Signal),
        (files, threads): (Vec<u8>, Vec<DumpedThread>),
    ) -> Result<Notes> {
        let process = self.process();
        let program = space.program();
        let mut auxiliary = Vec::new();
        for (key, value) in program.auxiliary.iter().flat_map(|vector| vector.iter()) {
            auxiliary.try_extend_from_slice([*key, *value].as_bytes())?;
        }
        let mut whole = [0; 128];
        whole[..size_of::<SigInfo>()].copy_from_slice(info.as_bytes());
        let mut arguments = [0; 80];
        let length = (program.arguments.end - program.arguments.start).min(79) as usize;
        let mut sink = SliceSink::new(&mut arguments[..length]);
        let _ = mem::read_space(space, VirtAddr(program.arguments.start), length, Rule::Forced, &mut sink);
        arguments[..length].iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b' ');
        let children = process.children_usage();
        Ok(Notes {
            signal: signal.number(),
            process: ProcessInfo {
                state: [0, b'R' as i8, 0, self.schedule.nice() as i8],
                pad: 0,
                flags: 0,
                ids: process.with_credentials(|own| {
                    [own.user_ns.shown_user(own.uid), own.user_ns.shown_group(own.gid)]
                }),
                numbers: numbers_of(process),
                name: self.name(),
                arguments,
            },
            info: whole,
            auxiliary,
            files,
            threads,
            children: [children.user, children.system].map(|time| time / 1000),
        })
    }

    /// Returns the new, empty core file.
    fn open_core(&self, signal: Signal, limit: u64, dumpable: Dumpable) -> Result<Arc<OpenFile>> {
        let process = self.process();
        let name = self.core_name(signal, limit, dumpable)?;
        let is_roots = dumpable == Dumpable::RootOnly;
        if is_roots && name.first() != Some(&b'/') {
            log::warn!("core_pattern: a program with other ids has a core file only under an absolute name");
            return Err(Errno::EPERM);
        }
        let mut credentials = Credentials::clone(&process.credentials());
        let mut fs = process.fs();
        let mask = fs.umask();
        if is_roots {
            credentials.fsuid = 0;
            fs = spawn::kernel_process().fs();
        }
        let caller = credentials.caller();
        let (root, cwd) = (fs.root(), fs.cwd());
        let walk = PathWalk::new(&root, &cwd, &caller);
        if !is_roots {
            // A link of this name must not lead to another user's file. If the file cannot be
            // removed, the open below fails.
            let _ = names::unlink(&walk, &name);
        }
        let flags = OpenFlags::CREAT
            | OpenFlags::EXCL
            | OpenFlags::WRONLY
            | OpenFlags::NOFOLLOW
            | OpenFlags::LARGEFILE;
        let file = names::open(&walk, &name, flags, 0o600 & !mask)?;
        let made = file.node().metadata();
        // Some file systems set another owner or mode than requested.
        if made.kind != NodeKind::Regular
            || made.links > 1
            || made.uid != caller.uid
            || made.mode & 0o677 != 0o600
        {
            return Err(Errno::EPERM);
        }
        Ok(file)
    }

    fn core_name(&self, signal: Signal, limit: u64, dumpable: Dumpable) -> Result<Vec<u8>> {
        let process = self.process();
        let executable = match process.space().program().executable {
            Some(file) => file.path().map(|path| path.display_short(&process.fs().root())).transpose()?,
            None => None,
        };
        let host = process.namespaces().uts.names();
        let comm = self.name();
        let facts = pattern::Facts {
            numbers: [process.number(), process.pid, self.number(), self.tid()],
            ids: process.with_credentials(|own| [own.uid, own.gid]),
            dumpable: dumpable.number(),
            signal: signal.number(),
            time: clock::now().seconds as u64,
            host: host.bytes(Name::Host),
            comm: comm.split(|&byte| byte == 0).next().unwrap_or_default(),
            executable: executable.as_deref().unwrap_or_default(),
            limit,
            cpu: hw::current_cpu().0.into(),
        };
        pattern::name(&pattern::pattern(), pattern::uses_pid(), &facts)
    }
}

/// Returns the numbers of the process, its parent, group and session, in its own PID namespace.
fn numbers_of(process: &Process) -> [u32; 4] {
    let view = process.pid_view();
    let shown = |pid| registry::number_in(view, pid);
    [process.number(), shown(process.parent_pid()), shown(process.group()), shown(process.session().id)]
}

#[cold]
fn put_headers(out: &mut CoreOutput, notes: &Notes, segments: &[memory::CoreSegment]) -> Written {
    let count = u16::try_from(segments.len() + 1).ok().filter(|&count| count < u16::MAX);
    // The header cannot count more areas. There are more only if vm.max_map_count was raised.
    let count = count.ok_or(Errno::EOVERFLOW)?;
    let header = Header {
        ident: *b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0",
        kind: 4,
        machine: 62,
        version: 1,
        entry: 0,
        programs: HEADER,
        sections: 0,
        flags: 0,
        sizes: [HEADER as u16, PROGRAM_HEADER as u16, count, 0, 0, 0],
    };
    out.put(header.as_bytes())?;
    let at = HEADER + PROGRAM_HEADER * u64::from(count);
    let note = ProgramHeader {
        kind: PT_NOTE,
        flags: 0,
        offset: at,
        address: 0,
        physical: 0,
        in_file: notes.size(),
        in_memory: 0,
        align: 4,
    };
    out.put(note.as_bytes())?;
    let mut offset = (at + notes.size()).next_multiple_of(PAGE);
    for segment in segments {
        let load = ProgramHeader {
            kind: PT_LOAD,
            flags: segment.flags,
            offset,
            address: segment.start,
            physical: 0,
            in_file: segment.bytes,
            in_memory: segment.end - segment.start,
            align: PAGE,
        };
        out.put(load.as_bytes())?;
        offset += segment.bytes;
    }
    notes.put(out)?;
    out.align(PAGE);
    Ok(())
}
