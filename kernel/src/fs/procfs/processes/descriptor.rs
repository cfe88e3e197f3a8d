//! /proc/PID/fdinfo/FD: an open file, and what it watches, a line each.

use freehold_collections::{Arc, Box, Weak, reserve, reserve::ArcMethods as _};

use super::Subject;
use super::files::ProcessFile;
use crate::fs::file::Seekable;
use crate::fs::flags::OpenFlags;
use crate::fs::generated::{Generate, More, PART, Parts, Text};
use crate::fs::userfault::UserFaultFile;
use crate::fs::{OnExec, OpenFile, root};
use crate::task::Process;
use crate::task::inspect::{self, Mode};
use crate::task::pidfd::PidFile;
use crate::task::pidns::PidView;
use crate::{Errno, Result, sched};

/// The file of descriptor `fd`.
pub(super) struct DescriptorFile {
    pub of: Arc<ProcessFile>,
    pub fd: i32,
}

impl Generate for DescriptorFile {
    fn show(&self, _out: &mut Text) -> Result<()> {
        Ok(())
    }

    fn parts(&self) -> Option<Box<dyn Parts>> {
        Some(reserve::boxed(DescriptorParts { of: self.of.clone(), fd: self.fd, listed: None }))
    }
}

/// The lines about a descriptor. A program can watch any number of files with one.
struct DescriptorParts {
    of: Arc<ProcessFile>,
    fd: i32,
    /// The open file, of which the first lines were shown, and the number from which its list goes
    /// on.
    listed: Option<(Weak<OpenFile>, u64)>,
}

impl Parts for DescriptorParts {
    fn next(&mut self, out: &mut Text) -> Result<More> {
        let process = self.of.process()?;
        inspect::may_inspect(&process, Mode::READ_FS).map_err(|_| Errno::EACCES)?;
        let (file, mut from) = match &self.listed {
            None => {
                let file = process.files().get(self.fd).map_err(|_| Errno::ENOENT)?;
                first_lines(out, &process, self.of.subject(), (self.fd, &file))?;
                (file, 0)
            }
            Some((file, from)) => match file.upgrade() {
                Some(file) => (file, *from),
                None => return Ok(More::No),
            },
        };
        while out.length() < PART {
            let next = file.file().describe_from(from, &mut |line| {
                out.write_fmt(line);
                out.push(b"\n");
            })?;
            let Some(next) = next else { return Ok(More::No) };
            from = next;
            sched::checkpoint()?;
        }
        self.listed = Some((file.downgrade(), from));
        Ok(More::Yes)
    }
}

fn first_lines(
    out: &mut Text,
    process: &Process,
    subject: Subject,
    (fd, file): (i32, &OpenFile),
) -> Result<()> {
    let mut flags = file.flags();
    flags.set(OpenFlags::CLOEXEC, process.files().on_exec(fd) == Ok(OnExec::Close));
    let mount = file.path().map_or_else(root::unnamed_mount, |path| path.mount.clone());
    // A stream has no offset, and its lock may be held for long, so it is not taken.
    let position = if file.file().seekable() == Seekable::Offset { file.position()? } else { 0 };
    writeln!(out, "pos:\t{position}\nflags:\t0{:o}\nmnt_id:\t{}", flags.bits(), mount.id());
    writeln!(out, "ino:\t{}", file.node().identity().inode);
    if let Some(monitor) = file.file().downcast::<UserFaultFile>() {
        user_faults(out, monitor);
    }
    if let Some(opened) = file.file().downcast::<PidFile>() {
        opened_process(out, opened, subject.view);
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
