//! Job control: the session that a terminal controls, and its foreground group.
//!
//! The link between a [`Session`] and its terminal is stored in both. Both sides change together:
//! the session's lock is taken first, then the terminal's. Signals are sent with neither lock held.
//!
//! Source: POSIX.1-2017, 11.1.3 to 11.1.4.

use freehold_collections::{
    Arc,
    reserve::{self, ArcMethods},
};
use linux_raw_sys::general as c;

use super::{LineState, Tty};
use crate::fs::OpenFlags;
use crate::task::{self, Pid, Process, Session, Signal, registry};
use crate::{Errno, Result};

/// Returns the calling process; none for kernel tasks, to which job control does not apply.
fn caller() -> Option<Arc<Process>> {
    Some(task::try_current()?.process().clone())
}

/// Whether the caller has an administrator's rights.
pub(super) fn is_privileged() -> bool {
    caller().is_none_or(|process| process.credentials().is_privileged())
}

/// Returns the caller's controlling terminal.
pub fn controlling() -> Option<Arc<Tty>> {
    terminal_of(&caller()?.session())
}

/// Returns the controlling terminal of `session`.
pub fn terminal_of(session: &Session) -> Option<Arc<Tty>> {
    session.controlling.lock().clone()?.downcast().ok()
}

fn controls(session: &Session, tty: &Arc<Tty>) -> bool {
    session
        .controlling
        .lock()
        .as_ref()
        .is_some_and(|other| core::ptr::addr_eq(other.address(), tty.address()))
}

/// Returns the caller's process and group, if `tty` is its controlling terminal and another group
/// is in the foreground.
fn background(tty: &Arc<Tty>) -> Option<(Arc<Process>, Pid)> {
    let process = caller()?;
    if !controls(&process.session(), tty) {
        return None;
    }
    let (group, foreground) = (process.group(), tty.foreground());
    (foreground != 0 && group != foreground).then_some((process, group))
}

fn stop(group: Pid, signal: Signal) -> Result<()> {
    if task::group_is_orphaned(group) {
        return Err(Errno::EIO);
    }
    task::signal_group(group, signal)?;
    Err(Errno::ERESTARTSYS)
}

/// Permits reading for the foreground group only. Another group is stopped by SIGTTIN.
pub(super) fn check_read(tty: &Arc<Tty>) -> Result<()> {
    match background(tty) {
        None => Ok(()),
        Some(_) if task::current().is_blocked_or_ignored(Signal::TTIN) => Err(Errno::EIO),
        Some((_, group)) => stop(group, Signal::TTIN),
    }
}

/// With TOSTOP, permits writing for the foreground group only.
pub(super) fn check_write(tty: &Arc<Tty>) -> Result<()> {
    let tostop = tty.state.lock().discipline.termios().local(c::TOSTOP);
    if tostop { check_change(tty) } else { Ok(()) }
}

/// Permits changes of the terminal for the foreground group only. Another group is stopped by
/// SIGTTOU, unless it ignores that signal.
pub(super) fn check_change(tty: &Arc<Tty>) -> Result<()> {
    match background(tty) {
        None => Ok(()),
        Some(_) if task::current().is_blocked_or_ignored(Signal::TTOU) => Ok(()),
        Some((_, group)) => stop(group, Signal::TTOU),
    }
}

/// Whether a terminal may be taken from another session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Steal {
    Never,
    /// An administrator requested it (TIOCSCTTY with 1).
    Allowed,
}

/// Makes `tty`, which the caller has opened with `opened`, the controlling terminal of the caller's
/// session (TIOCSCTTY).
pub(super) fn acquire(tty: &Arc<Tty>, steal: Steal, opened: OpenFlags) -> Result<()> {
    let process = caller().ok_or(Errno::EPERM)?;
    let session = process.session();
    if controls(&session, tty) && session.id == process.pid {
        return Ok(());
    }
    if session.id != process.pid || session.controlling.lock().is_some() {
        return Err(Errno::EPERM);
    }
    // The session could read the terminal through /dev/tty.
    if !opened.reads() && !is_privileged() {
        return Err(Errno::EPERM);
    }
    if let Some(other) = tty.control().0 {
        if steal == Steal::Never || !is_privileged() {
            return Err(Errno::EPERM);
        }
        other.controlling.lock().take();
    }
    attach(tty, &session, process.group());
    Ok(())
}

/// Makes the terminal the controlling one of the session whose leader opens it, if the session has
/// none and the terminal is free.
pub(super) fn acquire_on_open(tty: &Arc<Tty>) {
    let Some(process) = caller() else { return };
    let session = process.session();
    let free = session.id == process.pid && session.controlling.lock().is_none() && tty.control().0.is_none();
    if free {
        attach(tty, &session, process.group());
    }
}

/// Links `session` and `tty`, with `group` in the foreground.
pub fn attach(tty: &Arc<Tty>, session: &Arc<Session>, group: Pid) {
    let mut controlling = session.controlling.lock();
    let mut state = tty.state.lock();
    if state.line == LineState::Up {
        *controlling = Some(tty.clone());
        state.session = session.downgrade();
        state.foreground = group;
    }
}

/// Removes the session's terminal, because its leader has ended, or requested it (TIOCNOTTY). The
/// foreground group gets SIGHUP and SIGCONT.
pub fn leave_session(session: &Arc<Session>) {
    let taken = session.controlling.lock().take();
    let Some(Ok(tty)) = taken.map(reserve::downcast::<Tty>) else { return };
    let foreground = {
        let mut state = tty.state.lock();
        state.session = reserve::no_weak();
        core::mem::take(&mut state.foreground)
    };
    if foreground != 0 {
        // The group may have ended.
        let _ = task::signal_group(foreground, Signal::HUP);
        let _ = task::signal_group(foreground, Signal::CONT);
    }
}

/// TIOCNOTTY.
pub(super) fn release(tty: &Arc<Tty>) -> Result<()> {
    let process = caller().ok_or(Errno::ENOTTY)?;
    let session = process.session();
    if !controls(&session, tty) {
        return Err(Errno::ENOTTY);
    }
    if session.id == process.pid {
        leave_session(&session);
    }
    Ok(())
}

/// TIOCGPGRP.
pub(super) fn foreground(tty: &Arc<Tty>) -> Result<Pid> {
    let process = caller().ok_or(Errno::ENOTTY)?;
    if controls(&process.session(), tty) { Ok(registry::shown(tty.foreground())) } else { Err(Errno::ENOTTY) }
}

/// TIOCSPGRP.
pub(super) fn set_foreground(tty: &Arc<Tty>, group: i32) -> Result<()> {
    check_change(tty)?;
    let process = caller().ok_or(Errno::ENOTTY)?;
    let session = process.session();
    if !controls(&session, tty) {
        return Err(Errno::ENOTTY);
    }
    let group = Pid::try_from(group).map_err(|_| Errno::EINVAL)?;
    let group = registry::pid_by_number(group).ok_or(Errno::ESRCH)?;
    match task::group_session(group) {
        None => Err(Errno::ESRCH),
        Some(id) if id != session.id => Err(Errno::EPERM),
        Some(_) => {
            tty.state.lock().foreground = group;
            Ok(())
        }
    }
}

/// TIOCGSID.
pub(super) fn session(tty: &Arc<Tty>) -> Result<Pid> {
    let session = caller().ok_or(Errno::ENOTTY)?.session();
    if controls(&session, tty) { Ok(registry::shown(session.id)) } else { Err(Errno::ENOTTY) }
}
