//! The line discipline (N_TTY) as a state machine that converts bytes from the wire to bytes for
//! the program, and vice versa.
//!
//! It owns two bounded queues. *Input* holds bytes that the program has not read. In canonical mode
//! its first `complete` units are whole lines, and the rest is the line under the cursor, the only
//! part that erasing changes. *Output* holds processed bytes for the wire. Echoes may use a reserve
//! there that writes may not. The discipline never sleeps, allocates only when it is made, and
//! knows no tasks. The terminal around it protects it with a spin lock, wakes readers and writers,
//! and sends the signals that [`Discipline::receive`] returns.
//!
//! Behaviour: POSIX.1-2017 chapter 11 (general terminal interface) and termios(3) for the additions
//! of Linux.

mod edit;
mod output;

use freehold_collections::VecDeque;
use linux_raw_sys::general as c;

use super::termios::Termios;
use crate::Result;

/// Units of input that a terminal holds; a canonical line has at most one less, and its end.
pub const INPUT_LIMIT: usize = 4096;
/// Bytes of output held for the wire before writers wait.
pub const OUTPUT_LIMIT: usize = 4096;
/// Bytes that echoes may use beyond [`OUTPUT_LIMIT`]. If these are used up too, echoes are lost.
const ECHO_RESERVE: usize = 1024;

/// A signal that a key sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeySignal {
    /// SIGINT.
    Interrupt,
    /// SIGQUIT.
    Quit,
    /// SIGTSTP.
    Suspend,
}

/// Result of a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Read {
    /// The read is over, with this many bytes: a line's end was read, or, outside canonical mode,
    /// there is no more input. 0 is the end of the file.
    Done(usize),
    /// The buffer is full with this many bytes, and its line continues.
    Part(usize),
    /// There is nothing to read yet.
    Empty,
}

/// The reason why output is stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flow {
    Running,
    /// By VSTOP: VSTART resumes it, or with IXANY any key.
    StoppedByKey,
    /// By TCXONC: only TCXONC resumes it.
    StoppedByCall,
}

/// The queue that a flush empties.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlushQueue {
    /// Unread input.
    Input,
    /// Output that was not sent on the wire.
    Output,
    /// Both queues.
    Both,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CharacterKind {
    Plain,
    /// Ends a line and is delivered with it.
    LineEnd,
    /// Ends a line and is not delivered (VEOF).
    EndOfFile,
}

#[derive(Clone, Copy, Debug)]
struct Unit {
    byte: u8,
    kind: CharacterKind,
}

/// The state of one terminal's line discipline.
#[derive(Debug)]
pub struct Discipline {
    termios: Termios,
    input: VecDeque<Unit>,
    complete: usize,
    output: VecDeque<u8>,
    /// Column of the cursor in its line, counted in characters.
    column: usize,
    /// Column of the cursor at the beginning of its line.
    line_column: usize,
    literal_next: bool,
    /// Whether output is between the `\` and the `/` of ECHOPRT.
    erasing: bool,
    flow: Flow,
    packet: u8,
}

/// Status bytes for TIOCPKT.
mod packet {
    use linux_raw_sys::general as c;
    pub(super) const FLUSH_READ: u8 = c::TIOCPKT_FLUSHREAD as u8;
    pub(super) const FLUSH_WRITE: u8 = c::TIOCPKT_FLUSHWRITE as u8;
    pub(super) const STOP: u8 = c::TIOCPKT_STOP as u8;
    pub(super) const START: u8 = c::TIOCPKT_START as u8;
    pub(super) const NO_STOP: u8 = c::TIOCPKT_NOSTOP as u8;
    pub(super) const DO_STOP: u8 = c::TIOCPKT_DOSTOP as u8;
}

impl Discipline {
    /// Makes a terminal with these settings.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(termios: Termios) -> Result<Self> {
        let input = VecDeque::try_with_capacity(INPUT_LIMIT)?;
        let output = VecDeque::try_with_capacity(OUTPUT_LIMIT + ECHO_RESERVE)?;
        Ok(Self {
            termios,
            input,
            complete: 0,
            output,
            column: 0,
            line_column: 0,
            literal_next: false,
            erasing: false,
            flow: Flow::Running,
            packet: 0,
        })
    }

    /// Returns the settings.
    pub const fn termios(&self) -> &Termios {
        &self.termios
    }

    /// Changes the settings. Turning canonical mode on makes unread input a line; turning it off
    /// makes the line under the cursor readable.
    pub fn set_termios(&mut self, termios: Termios) {
        let was = core::mem::replace(&mut self.termios, termios);
        if (was.lflag ^ termios.lflag) & c::ICANON != 0 {
            self.input.retain(|unit| unit.kind != CharacterKind::EndOfFile);
            self.input.iter_mut().for_each(|unit| unit.kind = CharacterKind::Plain);
            self.complete = 0;
            if termios.local(c::ICANON) {
                if let Some(last) = self.input.back_mut() {
                    last.kind = CharacterKind::LineEnd;
                }
                self.complete = self.input.len();
            }
            self.erasing = false;
            self.literal_next = false;
        }
        if was.input(c::IXON) && !termios.input(c::IXON) && self.flow == Flow::StoppedByKey {
            self.start();
        }
        if self.flow_by_keys(&was) != self.flow_by_keys(&termios) {
            self.packet &= !(packet::DO_STOP | packet::NO_STOP);
            self.packet |= if self.flow_by_keys(&termios) { packet::DO_STOP } else { packet::NO_STOP };
        }
    }

    /// Returns whether Ctrl-S and Ctrl-Q control the flow, which packet mode reports to a remote
    /// terminal.
    fn flow_by_keys(&self, termios: &Termios) -> bool {
        termios.input(c::IXON) && termios.is(0x13, c::VSTOP) && termios.is(0x11, c::VSTART)
    }

    const fn canonical(&self) -> bool {
        self.termios.local(c::ICANON)
    }

    /// Whether the next byte from the wire can be processed. If not, it must wait on the wire until
    /// the program reads. A canonical line that is too long is still accepted: its surplus is
    /// dropped, so that its end can arrive.
    pub fn accepts(&self) -> bool {
        self.input.len() + 2 <= INPUT_LIMIT || (self.canonical() && self.complete == 0)
    }

    /// Processes one byte from the wire. Returns the signal that the foreground process group must
    /// get.
    pub fn receive(&mut self, mut byte: u8) -> Option<KeySignal> {
        let termios = self.termios;
        if termios.input(c::ISTRIP) {
            byte &= 0x7f;
        }
        if termios.input(c::IUCLC) && termios.local(c::IEXTEN) {
            byte = byte.to_ascii_lowercase();
        }
        if termios.local(c::EXTPROC) {
            self.push(byte, CharacterKind::Plain);
            return None;
        }
        if core::mem::take(&mut self.literal_next) {
            self.receive_plain(byte);
            return None;
        }
        if termios.input(c::IXON) {
            if termios.is(byte, c::VSTART) {
                self.start_by_key();
                return None;
            }
            if termios.is(byte, c::VSTOP) {
                self.stop(Flow::StoppedByKey);
                return None;
            }
        }
        if termios.local(c::ISIG) {
            let keys = [
                (c::VINTR, KeySignal::Interrupt),
                (c::VQUIT, KeySignal::Quit),
                (c::VSUSP, KeySignal::Suspend),
            ];
            if let Some(&(_, signal)) = keys.iter().find(|(index, _)| termios.is(byte, *index)) {
                self.signal_key(byte);
                return Some(signal);
            }
        }
        if termios.input(c::IXON) && termios.input(c::IXANY) {
            self.start_by_key();
        }
        match byte {
            b'\r' if termios.input(c::IGNCR) => return None,
            b'\r' if termios.input(c::ICRNL) => byte = b'\n',
            b'\n' if termios.input(c::INLCR) => byte = b'\r',
            _ => {}
        }
        if !(self.canonical() && self.edit(byte)) {
            self.receive_plain(byte);
        }
        None
    }

    fn signal_key(&mut self, byte: u8) {
        if !self.termios.local(c::NOFLSH) {
            self.flush(FlushQueue::Both);
        }
        if self.termios.input(c::IXON) {
            self.start_by_key();
        }
        if self.termios.local(c::ECHO) {
            self.echo(byte);
        }
    }

    fn receive_plain(&mut self, byte: u8) {
        if self.termios.local(c::ECHO) {
            self.finish_erasing();
            if byte == b'\n' {
                self.echo_raw(b"\n");
            } else {
                self.note_line_start();
                self.echo(byte);
            }
        }
        if self.termios.input(c::PARMRK) && byte == 0xff {
            self.push(byte, CharacterKind::Plain);
        }
        self.push(byte, CharacterKind::Plain);
    }

    fn push(&mut self, byte: u8, kind: CharacterKind) {
        let ends_line = kind != CharacterKind::Plain;
        let room = INPUT_LIMIT - self.input.len();
        // One place is reserved for the end of the line. Otherwise a full line could never be
        // completed.
        if room == 0 || (room == 1 && self.canonical() && !ends_line) {
            if self.termios.input(c::IMAXBEL) {
                self.echo_raw(b"\x07");
            }
            return;
        }
        self.input.push_back_reserved(Unit { byte, kind });
        if ends_line {
            self.complete = self.input.len();
        }
    }

    // Flow.

    fn stop(&mut self, flow: Flow) {
        if self.flow == Flow::Running {
            self.flow = flow;
            self.packet = (self.packet & !packet::START) | packet::STOP;
        }
    }

    fn start(&mut self) {
        if self.flow != Flow::Running {
            self.flow = Flow::Running;
            self.packet = (self.packet & !packet::STOP) | packet::START;
        }
    }

    fn start_by_key(&mut self) {
        if self.flow == Flow::StoppedByKey {
            self.start();
        }
    }

    /// Stops output (TCOOFF).
    pub fn suspend_output(&mut self) {
        self.stop(Flow::StoppedByCall);
    }

    /// Resumes output (TCOON).
    pub fn resume_output(&mut self) {
        self.start();
    }

    /// Discards unread input or unsent output (TCFLSH).
    pub fn flush(&mut self, queue: FlushQueue) {
        if queue != FlushQueue::Output {
            self.input.clear();
            self.complete = 0;
            self.erasing = false;
            self.literal_next = false;
            self.packet |= packet::FLUSH_READ;
        }
        if queue != FlushQueue::Input {
            self.output.clear();
            self.packet |= packet::FLUSH_WRITE;
        }
    }

    /// Returns the status for a pty master in packet mode since the last call; 0 is none.
    pub fn take_packet(&mut self) -> u8 {
        core::mem::take(&mut self.packet)
    }

    /// Whether [`Discipline::take_packet`] would return a status.
    pub const fn has_packet(&self) -> bool {
        self.packet != 0
    }

    // Reading.

    /// Returns the number of bytes that a read could return now (FIONREAD).
    pub fn readable_bytes(&self) -> usize {
        if self.canonical() {
            self.input.iter().take(self.complete).filter(|unit| unit.kind != CharacterKind::EndOfFile).count()
        } else {
            self.input.len()
        }
    }

    /// Returns whether poll reports input: whether a read would succeed, or with VMIN and no VTIME
    /// a read of VMIN bytes.
    pub fn readable(&self) -> bool {
        if self.canonical() {
            return self.complete > 0;
        }
        let wanted = if self.termios.time().is_none() { self.termios.min().max(1) } else { 1 };
        self.input.len() >= wanted
    }

    /// Whether [`Discipline::read`] would return anything.
    pub fn has_input(&self) -> bool {
        if self.canonical() { self.complete > 0 } else { !self.input.is_empty() }
    }

    /// Returns the units of input that a read could return: in canonical mode those of whole lines.
    /// The value grows when input arrives.
    pub fn arrived(&self) -> usize {
        if self.canonical() { self.complete } else { self.input.len() }
    }

    /// Moves input to `bytes`: in canonical mode at most one line, else all that fits. The caller
    /// handles VMIN and VTIME.
    pub fn read(&mut self, bytes: &mut [u8]) -> Read {
        if !self.canonical() {
            if self.input.is_empty() {
                return Read::Empty;
            }
            let count = bytes.len().min(self.input.len());
            for (place, unit) in bytes.iter_mut().zip(self.input.drain(..count)) {
                *place = unit.byte;
            }
            return Read::Done(count);
        }
        if self.complete == 0 {
            return Read::Empty;
        }
        let mut count = 0;
        while count < bytes.len() && self.complete > 0 {
            let unit = self.pop_complete();
            if unit.kind != CharacterKind::EndOfFile {
                bytes[count] = unit.byte;
                count += 1;
            }
            if unit.kind != CharacterKind::Plain {
                return Read::Done(count);
            }
        }
        Read::Part(count)
    }

    /// Removes a VEOF after a read whose last bytes filled the program's buffer exactly. That VEOF
    /// only ended these bytes, and must not also be the end of the file for the next read.
    pub fn skip_end_of_file(&mut self) {
        if self.complete > 0 && self.input[0].kind == CharacterKind::EndOfFile {
            self.pop_complete();
        }
    }

    /// Whether input is edited in lines, so that VMIN and VTIME are ignored.
    pub const fn is_canonical(&self) -> bool {
        self.canonical()
    }

    fn pop_complete(&mut self) -> Unit {
        self.complete -= 1;
        self.input.pop_front().expect("complete units are in the queue")
    }
}

fn is_control(byte: u8) -> bool {
    byte < 0x20 || byte == 0x7f
}

#[cfg(test)]
mod tests;
