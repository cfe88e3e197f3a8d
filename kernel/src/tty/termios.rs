//! Terminal settings in the layout that TCGETS, TCGETS2 and their kin copy to programs.

use linux_raw_sys::general as c;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Control characters in [`Termios::cc`].
pub const NCCS: usize = c::NCCS as usize;
/// A control character of this value is switched off.
pub const DISABLED: u8 = 0;

/// `struct termios` of the kernel interface (asm-generic/termbits.h): 36 bytes.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, IntoBytes, FromBytes, Immutable, KnownLayout)]
pub struct Termios {
    /// Input modes: ICRNL, IXON, …
    pub iflag: u32,
    /// Output modes: OPOST, ONLCR, …
    pub oflag: u32,
    /// Control modes; the speed bits are kept and mean nothing here.
    pub cflag: u32,
    /// Local modes: ICANON, ECHO, ISIG, …
    pub lflag: u32,
    /// Line discipline; always 0 (N_TTY).
    pub line: u8,
    /// Control characters, by VINTR, VEOF, ….
    pub cc: [u8; NCCS],
}

/// `struct termios2`: 44 bytes.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, IntoBytes, FromBytes, Immutable, KnownLayout)]
pub struct Termios2 {
    /// The part that TCGETS has, too.
    pub termios: Termios,
    /// Input speed in baud.
    pub ispeed: u32,
    /// Output speed in baud.
    pub ospeed: u32,
}

/// `struct winsize`: 8 bytes.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, IntoBytes, FromBytes, Immutable, KnownLayout)]
pub struct WindowSize {
    /// Lines of text.
    pub rows: u16,
    /// Characters in a line.
    pub columns: u16,
    /// Width in pixels; 0 is unknown.
    pub width: u16,
    /// Height in pixels; 0 is unknown.
    pub height: u16,
}

impl Termios {
    /// Returns the settings of a fresh terminal (drivers/tty's `tty_std_termios`).
    pub const fn standard() -> Self {
        let mut cc = [DISABLED; NCCS];
        cc[c::VINTR as usize] = 3;
        cc[c::VQUIT as usize] = 0x1c;
        cc[c::VERASE as usize] = 0x7f;
        cc[c::VKILL as usize] = 0x15;
        cc[c::VEOF as usize] = 4;
        cc[c::VMIN as usize] = 1;
        cc[c::VSTART as usize] = 0x11;
        cc[c::VSTOP as usize] = 0x13;
        cc[c::VSUSP as usize] = 0x1a;
        cc[c::VREPRINT as usize] = 0x12;
        cc[c::VDISCARD as usize] = 0x0f;
        cc[c::VWERASE as usize] = 0x17;
        cc[c::VLNEXT as usize] = 0x16;
        Self {
            iflag: c::ICRNL | c::IXON,
            oflag: c::OPOST | c::ONLCR,
            cflag: c::B38400 | c::CS8 | c::CREAD | c::HUPCL,
            lflag: c::ISIG | c::ICANON | c::ECHO | c::ECHOE | c::ECHOK | c::ECHOCTL | c::ECHOKE | c::IEXTEN,
            line: 0,
            cc,
        }
    }
    /// Whether an input mode is on.
    pub const fn input(&self, flag: u32) -> bool {
        self.iflag & flag != 0
    }
    /// Whether an output mode is on.
    pub const fn output(&self, flag: u32) -> bool {
        self.oflag & flag != 0
    }
    /// Whether a local mode is on.
    pub const fn local(&self, flag: u32) -> bool {
        self.lflag & flag != 0
    }
    /// The control character at `index` (VINTR…), if it is switched on.
    pub fn character(&self, index: u32) -> Option<u8> {
        self.cc.get(index as usize).copied().filter(|&byte| byte != DISABLED)
    }
    /// Whether `byte` is the control character at `index`.
    pub fn is(&self, byte: u8, index: u32) -> bool {
        self.character(index) == Some(byte)
    }
    /// VMIN: bytes that a non-canonical read waits for.
    pub const fn min(&self) -> usize {
        self.cc[c::VMIN as usize] as usize
    }
    /// VTIME in nanoseconds; `None` when it is 0.
    pub const fn time(&self) -> Option<u64> {
        match self.cc[c::VTIME as usize] {
            0 => None,
            tenths => Some(tenths as u64 * 100_000_000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_are_those_of_the_kernel_interface() {
        assert_eq!(size_of::<Termios>(), 36);
        assert_eq!(size_of::<Termios2>(), size_of::<c::termios2>());
        assert_eq!(size_of::<WindowSize>(), size_of::<c::winsize>());
    }
}
