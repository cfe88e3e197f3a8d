//! Signals that reach this process: passed on to the program, as if it ran here.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};

use crate::Result;
use crate::failure::Failure;

/// The terminal's size changed.
pub const WINDOW_CHANGED: u8 = SIGWINCH as u8;

const WATCHED: [i32; 7] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH];
/// The third of these in a row ends the VM: a program that ignores them must not hold the user.
const INSISTENT: [i32; 3] = [SIGINT, SIGQUIT, SIGTERM];
const TIMES: usize = 3;
const IN_A_ROW: Duration = Duration::from_secs(2);

/// Signals noted since the last look.
pub struct Signals {
    wake: UnixStream,
    noted: Vec<(i32, Arc<AtomicBool>)>,
    actions: Vec<SigId>,
    insistence: Vec<Instant>,
}

impl Signals {
    /// Starts watching, until this is dropped. From then on these signals do nothing: the handlers themselves stay.
    pub fn register() -> Result<Signals> {
        let failed = |e: std::io::Error| Failure::new(format!("cannot watch signals: {e}"), "");
        let (wake, write) = UnixStream::pair().map_err(failed)?;
        wake.set_nonblocking(true).map_err(failed)?;
        let (mut noted, mut actions) = (Vec::new(), Vec::new());
        for signal in WATCHED {
            let flag = Arc::new(AtomicBool::new(false));
            // The flag first: whoever is woken finds it set.
            actions.push(signal_hook::flag::register(signal, Arc::clone(&flag)).map_err(failed)?);
            let write = write.try_clone().map_err(failed)?;
            actions.push(signal_hook::low_level::pipe::register(signal, write).map_err(failed)?);
            noted.push((signal, flag));
        }
        Ok(Signals { wake, noted, actions, insistence: Vec::new() })
    }

    /// Readable when a signal came.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Signals that came since the last call.
    pub fn pending(&mut self) -> Vec<u8> {
        let mut bytes = [0; 64];
        while matches!(rustix::io::read(&self.wake, &mut bytes), Ok(size) if size > 0) {}
        let came = |(signal, flag): &(i32, Arc<AtomicBool>)| {
            flag.swap(false, Ordering::SeqCst).then_some(*signal as u8)
        };
        self.noted.iter().filter_map(came).collect()
    }

    /// Notes a signal; true when the user has asked so often that the VM is to end.
    pub fn insisted(&mut self, signal: u8) -> bool {
        if !INSISTENT.contains(&i32::from(signal)) {
            return false;
        }
        self.insistence.retain(|at| at.elapsed() < IN_A_ROW);
        self.insistence.push(Instant::now());
        self.insistence.len() >= TIMES
    }
}

impl Drop for Signals {
    /// A command that runs many VMs would else hold seven sockets for each.
    fn drop(&mut self) {
        for action in self.actions.drain(..) {
            signal_hook::low_level::unregister(action);
        }
    }
}
