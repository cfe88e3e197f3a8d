//! ioctl(2) on terminals: ioctl_tty(2).

use freehold_collections::Receiver;
use linux_raw_sys::general as c;
use linux_raw_sys::ioctl as io;

use super::discipline::FlushQueue;
use super::job::{self, Steal};
use super::termios::{Termio, Termios, Termios2, WindowSize};
use super::{FurtherOpens, Tty, TtyFile, Wire};

use crate::task::Signal;
use crate::user::UserPtr;
use crate::{Errno, Result};

/// The time at which new settings take effect.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    Now,
    /// When all written output has been sent.
    Drained,
    /// As `Drained`; unread input is discarded.
    Flushed,
}

/// Gives the program a value. The value is computed first, so no lock for it is held while the
/// program's memory is accessed.
pub(super) fn put<T: zerocopy::IntoBytes + zerocopy::Immutable>(
    argument: u64,
    value: impl FnOnce() -> T,
) -> Result<i64> {
    let value = value();
    UserPtr::new(argument).write(&value)?;
    Ok(0)
}

impl Tty {
    /// Handles requests that are the same for both sides of a pty. Returns `None` for any other
    /// request.
    pub(super) fn common_control(self: &Receiver<Self>, request: u32, argument: u64) -> Option<Result<i64>> {
        Some(match request {
            io::TCGETS => put(argument, || *self.state.lock().discipline.termios()),
            io::TCGETA => put(argument, || Termio::of(self.state.lock().discipline.termios())),
            io::TCGETS2 => {
                let state = self.state.lock();
                let (termios, (ispeed, ospeed)) = (*state.discipline.termios(), state.speeds);
                drop(state);
                put(argument, || Termios2 { termios, ispeed, ospeed })
            }
            io::TIOCGWINSZ => put(argument, || self.state.lock().window),
            io::TIOCSWINSZ => UserPtr::<WindowSize>::new(argument).read().map(|window| {
                self.resize(window);
                0
            }),
            io::TIOCGETD => put(argument, || 0i32),
            io::TIOCSETD => match UserPtr::<i32>::new(argument).read() {
                Ok(0) => Ok(0),
                Ok(_) => Err(Errno::EINVAL),
                Err(error) => Err(error),
            },
            io::TIOCGDEV => put(argument, || self.device() as u32),
            io::TIOCEXCL => self.set_sharing(FurtherOpens::Exclusive),
            io::TIOCNXCL => self.set_sharing(FurtherOpens::Open),
            io::TIOCGEXCL => {
                let exclusive = self.state.lock().sharing == FurtherOpens::Exclusive;
                put(argument, || i32::from(exclusive))
            }
            // Faked input would let a program type into its parent's shell: refused, as on Linux
            // 6.2 and later.
            io::TIOCSTI => Err(Errno::EIO),
            _ => return None,
        })
    }

    fn set_sharing(&self, sharing: FurtherOpens) -> Result<i64> {
        self.state.lock().sharing = sharing;
        Ok(0)
    }

    pub(super) fn set_termios(&self, settings: Termios2) {
        let Termios2 { mut termios, ispeed, ospeed } = settings.with_speeds();
        termios.line = 0;
        let mut state = self.state.lock();
        state.speeds = (ispeed, ospeed);
        state.discipline.set_termios(termios);
        self.flush_locked(&mut state);
        drop(state);
        self.wake_all();
    }

    /// Reads the settings that a program passes, in the format of its request.
    pub(super) fn read_settings(&self, request: u32, argument: u64) -> Result<Termios2> {
        match request {
            io::TCSETS | io::TCSETSW | io::TCSETSF => {
                UserPtr::<Termios>::new(argument).read().map(Termios2::from)
            }
            io::TCSETA | io::TCSETAW | io::TCSETAF => {
                let old = UserPtr::<Termio>::new(argument).read()?;
                let state = self.state.lock();
                let (ispeed, ospeed) = state.speeds;
                Ok(Termios2 { termios: old.onto(*state.discipline.termios()), ispeed, ospeed })
            }
            _ => UserPtr::new(argument).read(),
        }
    }

    pub(super) fn flush_queue(&self, selector: u64) -> Result<i64> {
        let queue = match selector as u32 {
            c::TCIFLUSH => FlushQueue::Input,
            c::TCOFLUSH => FlushQueue::Output,
            c::TCIOFLUSH => FlushQueue::Both,
            _ => return Err(Errno::EINVAL),
        };
        self.state.lock().discipline.flush(queue);
        self.wake_all();
        Ok(0)
    }
}

impl TtyFile {
    pub(super) fn control(&self, request: u32, argument: u64) -> Result<i64> {
        let tty = self.tty();
        if self.is_dead() {
            return Err(if request == io::TIOCSPGRP { Errno::ENOTTY } else { Errno::EIO });
        }
        // Only the foreground group may change the terminal.
        match request {
            io::TCSETS
            | io::TCSETSW
            | io::TCSETSF
            | io::TCSETS2
            | io::TCSETSW2
            | io::TCSETSF2
            | io::TCSETA
            | io::TCSETAW
            | io::TCSETAF
            | io::TCFLSH
            | io::TCXONC
            | io::TCSBRK
            | io::TCSBRKP
            | io::TIOCSETD => job::check_change(tty)?,
            _ => {}
        }
        if let Some(answer) = tty.common_control(request, argument) {
            return answer;
        }
        match request {
            io::TCSETS | io::TCSETS2 | io::TCSETA => self.set(request, argument, When::Now),
            io::TCSETSW | io::TCSETSW2 | io::TCSETAW => self.set(request, argument, When::Drained),
            io::TCSETSF | io::TCSETSF2 | io::TCSETAF => self.set(request, argument, When::Flushed),
            io::FIONREAD => put(argument, || tty.state.lock().discipline.readable_bytes() as i32),
            io::TIOCOUTQ => put(argument, || tty.state.lock().discipline.output_length() as i32),
            io::TCFLSH => tty.flush_queue(argument),
            io::TCXONC => self.flow(argument),
            // A break has no meaning on these terminals; tcdrain is TCSBRK with 1.
            io::TCSBRK | io::TCSBRKP => self.drain().map(|()| 0),
            io::TIOCSCTTY => {
                let steal = if argument == 1 { Steal::Allowed } else { Steal::Never };
                job::acquire(tty, steal, self.opened).map(|()| 0)
            }
            io::TIOCNOTTY => job::release(tty).map(|()| 0),
            io::TIOCGPGRP => job::foreground(tty).and_then(|group| put(argument, || group as i32)),
            io::TIOCSPGRP => job::set_foreground(tty, UserPtr::new(argument).read()?).map(|()| 0),
            io::TIOCGSID => job::session(tty).and_then(|session| put(argument, || session as i32)),
            io::TIOCVHANGUP if job::is_privileged() => {
                tty.hang_up();
                Ok(0)
            }
            io::TIOCVHANGUP => Err(Errno::EPERM),
            io::TIOCGPTN if matches!(tty.wire, Wire::Master) => put(argument, || tty.minor),
            _ => Err(Errno::ENOTTY),
        }
    }

    fn set(&self, request: u32, argument: u64, when: When) -> Result<i64> {
        let settings = self.tty().read_settings(request, argument)?;
        if when != When::Now {
            self.drain()?;
        }
        if when == When::Flushed {
            self.tty().state.lock().discipline.flush(FlushQueue::Input);
        }
        self.tty().set_termios(settings);
        Ok(0)
    }

    fn flow(&self, action: u64) -> Result<i64> {
        let tty = self.tty();
        let mut state = tty.state.lock();
        match action as u32 {
            c::TCOOFF => state.discipline.suspend_output(),
            c::TCOON => state.discipline.resume_output(),
            // The other end has no flow control of its own.
            c::TCIOFF | c::TCION => {}
            _ => return Err(Errno::EINVAL),
        }
        drop(state);
        tty.flush();
        Ok(0)
    }
}

/// TIOCSIG on a pty master: sends a signal to the slave's foreground group.
pub(super) fn signal_by_master(tty: &Tty, number: u64) -> Result<i64> {
    let signal = i64::try_from(number).ok().and_then(Signal::new).ok_or(Errno::EINVAL)?;
    if ![Signal::INT, Signal::QUIT, Signal::TSTP].contains(&signal) {
        return Err(Errno::EINVAL);
    }
    tty.signal_foreground(signal);
    Ok(0)
}
