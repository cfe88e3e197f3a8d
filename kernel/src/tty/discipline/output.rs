//! Output processing and echo: turns written and typed bytes into bytes for the wire.

use linux_raw_sys::general as c;

use super::{Discipline, ECHO_RESERVE, Flow, OUTPUT_LIMIT, is_control};

/// Largest number of bytes that one written byte becomes (a tab as spaces).
const LONGEST_EXPANSION: usize = TAB;
/// Columns between tab stops.
pub(super) const TAB: usize = 8;

impl Discipline {
    pub(super) fn note_line_start(&mut self) {
        if self.pending() == 0 {
            self.line_column = self.column;
        }
    }

    /// Echoes a byte visibly: with ECHOCTL a control character as ^X.
    pub(super) fn echo(&mut self, byte: u8) {
        if self.termios.local(c::ECHOCTL) && is_control(byte) && byte != b'\t' {
            self.emit(b"^", ECHO_RESERVE);
            self.emit(&[byte ^ 0x40], ECHO_RESERVE);
            self.column += 2;
        } else {
            self.echo_raw(&[byte]);
        }
    }

    pub(super) fn echo_raw(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.process(byte, ECHO_RESERVE);
        }
    }

    /// Processes one byte of output. `reserve` is the room that it may use beyond [`OUTPUT_LIMIT`].
    pub(super) fn process(&mut self, mut byte: u8, reserve: usize) {
        let termios = self.termios;
        if !termios.output(c::OPOST) {
            self.emit(&[byte], reserve);
            return;
        }
        match byte {
            b'\n' => {
                if termios.output(c::ONLCR) {
                    self.column = 0;
                    self.line_column = 0;
                    self.emit(b"\r\n", reserve);
                    return;
                }
                if termios.output(c::ONLRET) {
                    self.column = 0;
                }
                self.line_column = self.column;
            }
            b'\r' => {
                if termios.output(c::ONOCR) && self.column == 0 {
                    return;
                }
                if termios.output(c::OCRNL) {
                    byte = b'\n';
                }
                if !termios.output(c::OCRNL) || termios.output(c::ONLRET) {
                    self.column = 0;
                    self.line_column = 0;
                }
            }
            b'\t' => {
                let spaces = TAB - self.column % TAB;
                self.column += spaces;
                if termios.oflag & c::TABDLY == c::XTABS {
                    self.emit(&[b' '; TAB][..spaces], reserve);
                    return;
                }
            }
            0x08 => self.column = self.column.saturating_sub(1),
            _ if is_control(byte) => {}
            _ => {
                if termios.output(c::OLCUC) {
                    byte = byte.to_ascii_uppercase();
                }
                if !self.continuation(byte) {
                    self.column += 1;
                }
            }
        }
        self.emit(&[byte], reserve);
    }

    pub(super) fn emit(&mut self, bytes: &[u8], reserve: usize) {
        if self.output.len() + bytes.len() <= OUTPUT_LIMIT + reserve {
            bytes.iter().for_each(|&byte| self.output.push_back_reserved(byte));
        }
    }

    /// Takes bytes that the program writes. Returns how many there was room for.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        for &byte in bytes {
            if !self.writable() {
                break;
            }
            self.process(byte, 0);
            taken += 1;
        }
        taken
    }

    /// Whether [`Discipline::write`] would take a byte.
    pub fn writable(&self) -> bool {
        self.output.len() + LONGEST_EXPANSION <= OUTPUT_LIMIT
    }

    /// Returns the number of bytes that wait for the wire (TIOCOUTQ).
    pub fn output_length(&self) -> usize {
        self.output.len()
    }

    /// Returns the next bytes for the wire; none while output is stopped.
    pub fn wire(&self) -> &[u8] {
        if self.flow == Flow::Running { self.output.as_slices().0 } else { &[] }
    }

    /// Removes the first `bytes` bytes of [`Discipline::wire`], because they were sent.
    pub fn sent(&mut self, bytes: usize) {
        self.output.drain(..bytes);
    }
}
