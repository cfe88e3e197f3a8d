//! Editing the line under the cursor: the keys of canonical mode, and their effects on line and
//! screen.

use linux_raw_sys::general as c;

use super::output::TAB;
use super::{CharacterKind, Discipline, is_control};

impl Discipline {
    /// Handles the editing keys of canonical mode. Returns whether `byte` is one of them.
    pub(super) fn edit(&mut self, byte: u8) -> bool {
        let termios = self.termios;
        let extended = termios.local(c::IEXTEN);
        let echo = termios.local(c::ECHO);
        if termios.is(byte, c::VERASE) {
            self.erase_character();
        } else if termios.is(byte, c::VKILL) {
            self.erase_line(byte);
        } else if extended && termios.is(byte, c::VWERASE) {
            self.erase_word();
        } else if extended && termios.is(byte, c::VLNEXT) {
            self.literal_next = true;
            if echo {
                self.finish_erasing();
                if termios.local(c::ECHOCTL) {
                    self.echo_raw(b"^\x08");
                }
            }
        } else if extended && echo && termios.is(byte, c::VREPRINT) {
            self.reprint(byte);
        } else if byte == b'\n' {
            if echo || termios.local(c::ECHONL) {
                self.finish_erasing();
                self.echo_raw(b"\n");
            }
            self.push(byte, CharacterKind::LineEnd);
        } else if termios.is(byte, c::VEOF) {
            self.push(byte, CharacterKind::EndOfFile);
        } else if termios.is(byte, c::VEOL) || (extended && termios.is(byte, c::VEOL2)) {
            if echo {
                self.finish_erasing();
                self.note_line_start();
                self.echo(byte);
            }
            self.push(byte, CharacterKind::LineEnd);
        } else {
            return false;
        }
        true
    }

    /// Returns the number of units after the last complete line.
    pub(super) fn pending(&self) -> usize {
        self.input.len() - self.complete
    }

    pub(super) fn continuation(&self, byte: u8) -> bool {
        self.termios.input(c::IUTF8) && byte & 0xc0 == 0x80
    }

    /// Returns the first byte and the length of the last character before the cursor. `None` at the
    /// line's start, and if the line begins in the middle of a character, because half a character
    /// is never erased.
    pub(super) fn last_character(&self) -> Option<(u8, usize)> {
        let mut units = self.input.iter().skip(self.complete).rev();
        let at = units.position(|unit| !self.continuation(unit.byte))?;
        Some((self.input[self.input.len() - 1 - at].byte, at + 1))
    }

    pub(super) fn erase_character(&mut self) {
        if let Some((first, length)) = self.last_character() {
            if self.termios.local(c::ECHO) && !self.termios.local(c::ECHOE) && !self.termios.local(c::ECHOPRT)
            {
                self.input.truncate(self.input.len() - length);
                if let Some(key) = self.termios.character(c::VERASE) {
                    self.echo(key);
                }
            } else {
                self.rub_out(first, length);
            }
            self.finish_erasing_at_line_start();
        }
    }

    pub(super) fn erase_word(&mut self) {
        let mut inside = false;
        while let Some((first, length)) = self.last_character() {
            let letter = first.is_ascii_alphanumeric() || first == b'_' || first >= 0xc0;
            if inside && !letter {
                break;
            }
            inside |= letter;
            self.rub_out(first, length);
        }
        self.finish_erasing_at_line_start();
    }

    pub(super) fn erase_line(&mut self, key: u8) {
        if self.pending() == 0 {
            return;
        }
        let termios = self.termios;
        if !termios.local(c::ECHO) {
            self.input.truncate(self.complete);
        } else if termios.local(c::ECHOK) && termios.local(c::ECHOKE) && termios.local(c::ECHOE) {
            while let Some((first, length)) = self.last_character() {
                self.rub_out(first, length);
            }
            self.finish_erasing_at_line_start();
        } else {
            self.input.truncate(self.complete);
            self.finish_erasing();
            self.echo(key);
            if termios.local(c::ECHOK) {
                self.echo_raw(b"\n");
            }
        }
    }

    /// Removes the last character, `length` bytes from `first` on, from the line and from the
    /// screen.
    pub(super) fn rub_out(&mut self, first: u8, length: usize) {
        let start = self.input.len() - length;
        let termios = self.termios;
        if termios.local(c::ECHO) && termios.local(c::ECHOPRT) {
            if !core::mem::replace(&mut self.erasing, true) {
                self.echo_raw(b"\\");
            }
            self.echo(first);
            for at in start + 1..self.input.len() {
                let byte = self.input[at].byte;
                self.echo_raw(&[byte]);
            }
        }
        self.input.truncate(start);
        if !termios.local(c::ECHO) || termios.local(c::ECHOPRT) {
            return;
        }
        if first == b'\t' {
            let column = self.column_of_cursor();
            for _ in 0..TAB - column % TAB {
                self.echo_raw(b"\x08");
            }
        } else if is_control(first) {
            if termios.local(c::ECHOCTL) {
                self.echo_raw(b"\x08 \x08\x08 \x08");
            }
        } else {
            self.echo_raw(b"\x08 \x08");
        }
    }

    /// Returns the column of the cursor if its line is shown from where it began.
    pub(super) fn column_of_cursor(&self) -> usize {
        self.input.iter().skip(self.complete).fold(self.line_column, |column, unit| match unit.byte {
            b'\t' => column + TAB - column % TAB,
            byte if is_control(byte) => column + if self.termios.local(c::ECHOCTL) { 2 } else { 0 },
            byte if self.continuation(byte) => column,
            _ => column + 1,
        })
    }

    pub(super) fn finish_erasing(&mut self) {
        if core::mem::take(&mut self.erasing) {
            self.echo_raw(b"/");
        }
    }

    pub(super) fn finish_erasing_at_line_start(&mut self) {
        if self.pending() == 0 && self.termios.local(c::ECHO) {
            self.finish_erasing();
        }
    }

    pub(super) fn reprint(&mut self, key: u8) {
        self.finish_erasing();
        self.echo(key);
        self.echo_raw(b"\n");
        for at in self.complete..self.input.len() {
            let byte = self.input[at].byte;
            self.echo(byte);
        }
    }
}
