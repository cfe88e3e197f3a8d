//! Terminals.
//!
//! A [`Tty`] has a line discipline, a window size, job control state, and a wire to the other end:
//! the host's terminal ([`console`]) or a program that holds a pty master ([`pty`]). Programs have
//! it open as a [`TtyFile`].
//!
//! One plain spin lock protects the state. It is never held while sleeping, sending a signal or
//! copying user bytes. Four queues are woken after the state changed: `input_ready` (readers),
//! `output_room` (writers, drainers), `wire_ready` (the other end: bytes to fetch, or end of it),
//! `wire_room` (the other end: bytes are accepted).

pub mod calls;
pub mod console;
mod control;
pub mod devpts;
pub mod discipline;
mod file;
pub mod job;
pub mod pty;
pub mod termios;
#[cfg(test)]
mod tests;

use core::fmt;

use freehold_collections::{Arc, Receiver, Weak, reserve};

pub use file::TtyFile;
pub use job::{leave_session, terminal_of};

use self::discipline::{Discipline, KeySignal};
use self::termios::{Termios, WindowSize};
use crate::dev::stream::HostStream;
use crate::sync::{News, SpinLock, WaitQueue};
use crate::task::{Pid, Session, Signal};
use crate::{Errno, Result};

/// The other end of a terminal.
pub enum Wire {
    /// The host's terminal.
    Host(Arc<HostStream>),
    /// A pty master.
    Master,
}

/// Whether the other end exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LineState {
    Up,
    /// Permanently gone: a pty's master was closed.
    Down,
}

/// Whether further opens are refused (TIOCEXCL).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FurtherOpens {
    Open,
    Exclusive,
}

/// Whether signals report room for output. They do so only after a write that was shortened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WantsRoom {
    No,
    Yes,
}

struct TerminalState {
    discipline: Discipline,
    window: WindowSize,
    /// Input and output speed in baud. They have no effect.
    speeds: (u32, u32),
    line: LineState,
    /// Incremented by a hang-up: files that were opened before are unusable.
    hangups: u32,
    sharing: FurtherOpens,
    /// Number of open files of the program's side, and of all opens so far.
    opens: u32,
    opened_ever: u32,
    /// Whether a write found no room, and no signal has reported room since.
    wants_room: WantsRoom,
    /// The session that it controls.
    session: Weak<Session>,
    /// The group that may read and gets the keys' signals; 0 for none.
    foreground: Pid,
}

impl TerminalState {
    /// Returns whether signals must report room now, if there is room. They do so once.
    fn take_wanted(&mut self) -> WantsRoom {
        if self.discipline.writable() {
            core::mem::replace(&mut self.wants_room, WantsRoom::No)
        } else {
            WantsRoom::No
        }
    }
}

/// A terminal.
pub struct Tty {
    /// Device number.
    major: u32,
    minor: u32,
    wire: Wire,
    state: SpinLock<TerminalState>,
    input_ready: Arc<WaitQueue>,
    output_room: Arc<WaitQueue>,
    wire_ready: Arc<WaitQueue>,
    wire_room: Arc<WaitQueue>,
}

impl fmt::Debug for Tty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tty {}:{}", self.major, self.minor)
    }
}

impl Tty {
    /// Makes a terminal with the device number `major:minor`.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(major: u32, minor: u32, wire: Wire, termios: Termios) -> Result<Arc<Self>> {
        Ok(reserve::arc(Self {
            major,
            minor,
            wire,
            state: SpinLock::new(TerminalState {
                discipline: Discipline::new(termios)?,
                window: WindowSize::default(),
                speeds: (38_400, 38_400),
                line: LineState::Up,
                hangups: 0,
                sharing: FurtherOpens::Open,
                opens: 0,
                opened_ever: 0,
                wants_room: WantsRoom::No,
                session: reserve::no_weak(),
                foreground: 0,
            }),
            input_ready: reserve::arc(WaitQueue::new()),
            output_room: reserve::arc(WaitQueue::new()),
            wire_ready: reserve::arc(WaitQueue::new()),
            wire_room: reserve::arc(WaitQueue::new()),
        }))
    }

    /// Returns its device number in the format of stat(2).
    pub const fn device(&self) -> u64 {
        crate::fs::device::make_device(self.major, self.minor)
    }

    /// Returns the session that it controls and the foreground group, 0 for none, for
    /// /proc/PID/stat.
    pub fn control(&self) -> (Option<Arc<Session>>, Pid) {
        let state = self.state.lock();
        (state.session.upgrade(), state.foreground)
    }

    fn foreground(&self) -> Pid {
        self.state.lock().foreground
    }

    fn signal_foreground(&self, signal: Signal) {
        let group = self.foreground();
        if group != 0 {
            // A group that has ended meanwhile needs no signal.
            let _ = crate::task::signal_group(group, signal);
        }
    }

    /// Processes bytes from the other end. Returns how many could be processed before the input was
    /// full.
    pub fn receive(&self, bytes: &[u8]) -> usize {
        let mut done = 0;
        while done < bytes.len() {
            let mut signal = None;
            let mut state = self.state.lock();
            let arrived = state.discipline.arrived();
            while done < bytes.len() && signal.is_none() && state.discipline.accepts() {
                signal = state.discipline.receive(bytes[done]);
                done += 1;
            }
            let full = signal.is_none() && done < bytes.len();
            self.flush_locked(&mut state);
            let (readable, writable) = (state.discipline.has_input(), state.discipline.writable());
            let has_news = state.discipline.arrived() > arrived;
            let has_output = !state.discipline.wire().is_empty();
            drop(state);
            if has_news {
                self.input_ready.announce(News::Input);
            } else if readable || signal.is_some() {
                self.input_ready.wake_all();
            }
            if writable {
                self.output_room.wake_all();
            }
            self.tell_wire(has_output);
            if let Some(signal) = signal {
                self.signal_foreground(match signal {
                    KeySignal::Interrupt => Signal::INT,
                    KeySignal::Quit => Signal::QUIT,
                    KeySignal::Suspend => Signal::TSTP,
                });
            }
            if full {
                break;
            }
        }
        done
    }

    /// Whether [`Tty::receive`] would accept a byte.
    pub fn accepts(&self) -> bool {
        self.state.lock().discipline.accepts()
    }

    /// Sends processed output on the wire, as far as there is room.
    fn flush_locked(&self, state: &mut TerminalState) {
        if let Wire::Host(stream) = &self.wire {
            loop {
                let bytes = state.discipline.wire();
                let count = if bytes.is_empty() { 0 } else { stream.try_write(bytes) };
                if count == 0 {
                    break;
                }
                state.discipline.sent(count);
            }
        }
    }

    /// Wakes tasks at the other end. `has_output` says whether there are bytes to fetch.
    fn tell_wire(&self, has_output: bool) {
        if has_output {
            self.wire_ready.announce(News::Input);
        } else {
            self.wire_ready.wake_all();
        }
    }

    /// Wakes tasks that wait for room, and sends the signals of writers that found none before.
    fn tell_room(&self, room: WantsRoom) {
        match room {
            WantsRoom::Yes => self.output_room.announce(News::Room),
            WantsRoom::No => self.output_room.wake_all(),
        }
    }

    /// Sends output on the wire and wakes tasks that wait for room.
    fn flush(&self) {
        let mut state = self.state.lock();
        self.flush_locked(&mut state);
        let room = state.discipline.writable();
        let wanted = state.take_wanted();
        drop(state);
        self.wire_ready.wake_all();
        if room {
            self.tell_room(wanted);
        }
    }

    /// Takes up to `bytes.len()` bytes of output, for a pty's master.
    fn fetch(&self, bytes: &mut [u8]) -> usize {
        let mut state = self.state.lock();
        let wire = state.discipline.wire();
        let count = wire.len().min(bytes.len());
        bytes[..count].copy_from_slice(&wire[..count]);
        state.discipline.sent(count);
        let wanted = state.take_wanted();
        drop(state);
        if count > 0 {
            self.tell_room(wanted);
        }
        count
    }

    /// Changes the window size. The foreground group is notified of a change.
    pub fn resize(&self, window: WindowSize) {
        let changed = {
            let mut state = self.state.lock();
            core::mem::replace(&mut state.window, window) != window
        };
        if changed {
            self.signal_foreground(Signal::WINCH);
        }
    }

    /// Hangs up: open files become unusable, the session loses its terminal, its leader and the
    /// foreground group get SIGHUP and SIGCONT.
    pub fn hang_up(&self) {
        let (session, foreground) = {
            let mut state = self.state.lock();
            state.hangups += 1;
            state.discipline.flush(discipline::FlushQueue::Both);
            (core::mem::take(&mut state.session), core::mem::take(&mut state.foreground))
        };
        self.wake_all();
        if let Some(session) = session.upgrade() {
            session.controlling.lock().take();
            crate::task::signal_session_leader(session.id, Signal::HUP);
            crate::task::signal_session_leader(session.id, Signal::CONT);
        }
        if foreground != 0 {
            let _ = crate::task::signal_group(foreground, Signal::HUP);
            let _ = crate::task::signal_group(foreground, Signal::CONT);
        }
    }

    fn wake_all(&self) {
        for queue in [&self.input_ready, &self.output_room, &self.wire_ready, &self.wire_room] {
            queue.wake_all();
        }
    }

    /// Opens the program's side.
    ///
    /// # Errors
    /// `EBUSY` if a program uses it exclusively, `EIO` if the other end was closed, `ENOMEM`.
    pub fn open(
        self: &Receiver<Self>,
        node: Arc<dyn crate::fs::Node>,
        flags: crate::fs::OpenFlags,
    ) -> Result<Arc<TtyFile>> {
        let generation = {
            let mut state = self.state.lock();
            if state.line == LineState::Down {
                return Err(Errno::EIO);
            }
            if state.sharing == FurtherOpens::Exclusive && !job::is_privileged() {
                return Err(Errno::EBUSY);
            }
            state.opens += 1;
            state.opened_ever = state.opened_ever.wrapping_add(1);
            state.hangups
        };
        let file = TtyFile::new(self.clone(), node, (generation, flags));
        // A session reads its terminal through /dev/tty, so the leader must have opened it to read.
        if flags.reads() && !flags.contains(crate::fs::OpenFlags::NOCTTY) {
            job::acquire_on_open(self);
        }
        self.wire_ready.wake_all();
        Ok(file)
    }
}
