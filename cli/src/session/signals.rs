//! Signals that reach this process: passed on to the program, as if it ran here.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::SigId;
use signal_hook::consts::{
    SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH,
};

use crate::Result;
use crate::failure::Failure;

/// The terminal's size changed.
pub const WINDOW_CHANGED: u8 = SIGWINCH as u8;

/// The job is to stop.
pub const STOP: u8 = SIGTSTP as u8;
/// The job was continued.
pub const CONTINUE: u8 = SIGCONT as u8;

const WATCHED: [i32; 10] =
    [SIGALRM, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP, SIGCONT];
/// Signals that ask the program to end. A program that ignores them must not block the user: see
/// [`Insistence`].
const ENDING: [i32; 3] = [SIGINT, SIGQUIT, SIGTERM];
/// Time that a program has to end after the first signal.
const PATIENCE: Duration = Duration::from_secs(2);
/// Number of signals that end the VM at once.
const TIMES: u32 = 3;

/// Signals noted since the last call.
pub struct Signals {
    wake: UnixStream,
    noted: Vec<(i32, Arc<AtomicBool>)>,
    actions: Vec<SigId>,
    insistence: Insistence,
}

/// Counts the user's requests to end.
#[derive(Default)]
struct Insistence {
    first: Option<Instant>,
    count: u32,
}

impl Insistence {
    /// Notes a request at `now`. Returns whether the VM has to end: the first request is long ago,
    /// or there were many.
    fn note(&mut self, now: Instant) -> bool {
        let first = *self.first.get_or_insert(now);
        self.count += 1;
        self.count >= TIMES || now.duration_since(first) >= PATIENCE
    }
}

impl Signals {
    /// Starts watching, until this is dropped. From then on these signals do nothing: the handlers
    /// themselves stay. A signal that came before counts as one that comes now.
    pub fn register(before: Option<u8>) -> Result<Signals> {
        let failed = |e: std::io::Error| Failure::new(format!("cannot watch signals: {e}"), "");
        let (wake, write) = UnixStream::pair().map_err(failed)?;
        wake.set_nonblocking(true).map_err(failed)?;
        let (mut noted, mut actions) = (Vec::new(), Vec::new());
        for signal in WATCHED {
            let flag = Arc::new(AtomicBool::new(before.map(i32::from) == Some(signal)));
            // The flag comes first: a thread that is woken finds it set.
            actions.push(signal_hook::flag::register(signal, Arc::clone(&flag)).map_err(failed)?);
            let write = write.try_clone().map_err(failed)?;
            actions.push(signal_hook::low_level::pipe::register(signal, write).map_err(failed)?);
            noted.push((signal, flag));
        }
        if before.is_some() {
            (&write).write_all(&[0]).map_err(failed)?;
        }
        Ok(Signals { wake, noted, actions, insistence: Insistence::default() })
    }

    /// Returns a descriptor that is readable when a signal came.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Returns the signals since the last call.
    pub fn pending(&mut self) -> Vec<u8> {
        let mut bytes = [0; 64];
        while matches!(rustix::io::read(&self.wake, &mut bytes), Ok(size) if size > 0) {}
        let came = |(signal, flag): &(i32, Arc<AtomicBool>)| {
            flag.swap(false, Ordering::SeqCst).then_some(*signal as u8)
        };
        self.noted.iter().filter_map(came).collect()
    }

    /// Notes a signal. Returns whether the VM has to end: at the second request, if it comes at
    /// least 2 s after the first, or at the third.
    pub fn insisted(&mut self, signal: u8) -> bool {
        ENDING.contains(&i32::from(signal)) && self.insistence.note(Instant::now())
    }
}

impl Drop for Signals {
    /// Unregisters the actions: a command that runs many VMs would otherwise hold a socket for each
    /// of them.
    fn drop(&mut self) {
        for action in self.actions.drain(..) {
            signal_hook::low_level::unregister(action);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn a_signal_that_came_before_is_pending_once() {
        let mut signals = Signals::register(Some(SIGTERM as u8)).expect("watched");
        let mut wake = [PollFd::new(&signals.wake, PollFlags::IN)];
        assert_eq!(poll(&mut wake, Some(&Timespec::default())), Ok(1), "who waits is woken");
        assert_eq!(signals.pending(), [SIGTERM as u8]);
        assert_eq!(signals.pending(), [0; 0]);
    }

    #[test]
    fn the_second_after_two_seconds_ends_the_vm_and_so_does_the_third() {
        let (start, after) = (Instant::now(), |ms| Duration::from_millis(ms));
        let mut patient = Insistence::default();
        assert!(!patient.note(start));
        assert!(!patient.note(start + after(1999)));
        let mut late = Insistence::default();
        assert!(!late.note(start));
        assert!(late.note(start + after(2000)));
        let mut hammering = Insistence::default();
        assert_eq!([0, 10, 20].map(|ms| hammering.note(start + after(ms))), [false, false, true]);
    }
}
