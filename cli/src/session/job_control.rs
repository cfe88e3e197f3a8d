//! Job control: this process is a job of the user's shell, and the VM belongs to it.
//!
//! The terminal's modes are changed, and its keys read, only while this process is in the
//! terminal's foreground: the terminal would stop a background process for either (SIGTTOU,
//! SIGTTIN). A job that is stopped (SIGTSTP) stops QEMU first, and lets it run again when the job
//! is continued. SIGSTOP cannot be noticed: QEMU then runs on.

use std::io::IsTerminal;
use std::time::Duration;

use rustix::process::{
    Pid, Signal, getpgid, getpgrp, getpid, getppid, getsid, kill_process, pidfd_send_signal,
};

use super::{Purpose, VmSession, signals};
use crate::image::spec::ProgramStream;
use crate::protocol::ToGuest;
use crate::terminal::{self, JobPlace};

/// Time between two checks of a terminal in whose background this process is: a shell that brings a
/// running job to the foreground need not send SIGCONT.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Returns whether no shell could continue this process: no ancestor in its session is in another
/// process group. The system ignores SIGTSTP then.
fn is_orphaned() -> bool {
    let (session, group) = (getsid(None), getpgrp());
    let mut parent = getppid();
    while let Some(at) = parent {
        if getsid(Some(at)) != session {
            return true;
        }
        if getpgid(Some(at)) != Ok(group) {
            return false;
        }
        parent = parent_of(at);
    }
    true
}

/// Returns the parent of a process, if it has one that can be seen.
fn parent_of(process: Pid) -> Option<Pid> {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).ok()?;
    // The name before it may have blanks and brackets.
    let (_, rest) = stat.rsplit_once(") ")?;
    Pid::from_raw(rest.split(' ').nth(1)?.parse().ok()?)
}

impl VmSession<'_> {
    /// Returns whether the program reads the keys of the user's terminal.
    fn has_keys(&self) -> bool {
        self.job.purpose == Purpose::Program && self.job.streams[0] == ProgramStream::Terminal
    }

    /// Returns whether stdin may be read now. A terminal stops those who read it from the
    /// background, even where the program has no keys of it because stdout goes elsewhere.
    pub(super) fn may_read(&self) -> bool {
        if self.has_keys() {
            terminal::is_raw()
        } else {
            !std::io::stdin().is_terminal() || terminal::place() == JobPlace::Foreground
        }
    }

    /// Returns the time after which the terminal is looked at again.
    pub(super) fn next_look(&self) -> Option<Duration> {
        (self.ready.is_some() && !self.may_read()).then_some(LOOK_INTERVAL)
    }

    /// Makes the terminal raw if it is the program's and this process has come to its foreground.
    pub(super) fn take_terminal(&mut self) {
        if !self.has_keys() || self.ready.is_none() || terminal::is_raw() {
            return;
        }
        if terminal::place() == JobPlace::Foreground {
            terminal::make_raw();
            self.input.watch_keys();
            // The size may have changed while the guest booted or another job had the terminal.
            let (rows, columns) = terminal::window();
            self.tell(ToGuest::WindowSize(rows, columns));
        }
    }

    /// Handles the signals of job control among `came`, and removes them.
    pub(super) fn control_job(&mut self, came: &mut Vec<u8>) {
        let has = |signal: u8| came.contains(&signal);
        // A session of another thread stopped this process, which was continued since.
        let stops = has(signals::STOP) && !has(signals::CONTINUE);
        if has(signals::CONTINUE) {
            // The shell had the terminal meanwhile, in modes of its own.
            terminal::forget_modes();
        }
        came.retain(|signal| ![signals::STOP, signals::CONTINUE].contains(signal));
        if stops {
            self.stop();
        }
    }

    /// Stops QEMU and this process, until it is continued.
    fn stop(&mut self) {
        if is_orphaned() {
            return;
        }
        terminal::restore();
        // An error means that QEMU has ended; the session notices that next.
        let _ = pidfd_send_signal(&self.exited, Signal::STOP);
        let _ = kill_process(getpid(), Signal::STOP);
        let _ = pidfd_send_signal(&self.exited, Signal::CONT);
    }
}
