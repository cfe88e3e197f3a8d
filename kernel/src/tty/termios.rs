//! Terminal settings in the layout of TCGETS, TCGETS2 and related requests.

use linux_raw_sys::general as c;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Control characters in [`Termios::cc`].
pub const NCCS: usize = c::NCCS as usize;
/// A control character with this value is switched off.
pub const DISABLED: u8 = 0;

/// `struct termios` of the kernel interface (asm-generic/termbits.h): 36 bytes.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, IntoBytes, FromBytes, Immutable, KnownLayout)]
pub struct Termios {
    /// Input modes: ICRNL, IXON, …
    pub iflag: u32,
    /// Output modes: OPOST, ONLCR, …
    pub oflag: u32,
    /// Control modes. The speed bits are stored but have no effect.
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
    /// The part that is also in TCGETS.
    pub termios: Termios,
    /// Input speed in baud.
    pub ispeed: u32,
    /// Output speed in baud.
    pub ospeed: u32,
}

/// `struct termio` of System V (asm-generic/termios.h): 18 bytes. The modes are the lower halves of
/// those in [`Termios`].
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, IntoBytes, FromBytes, Immutable, KnownLayout)]
pub struct Termio {
    modes: [u16; 4],
    line: u8,
    cc: [u8; OLD_NCCS],
    pad: u8,
}

/// Control characters in [`Termio`] (NCC).
const OLD_NCCS: usize = 8;

impl Termio {
    /// Returns the part of these settings that the old structure has.
    pub fn of(from: &Termios) -> Self {
        let modes = [from.iflag, from.oflag, from.cflag, from.lflag].map(|mode| mode as u16);
        let mut cc = [0; OLD_NCCS];
        cc.copy_from_slice(&from.cc[..OLD_NCCS]);
        Self { modes, line: from.line, cc, pad: 0 }
    }
    /// Returns the settings `old` with the part that the old structure has replaced.
    pub fn onto(&self, mut old: Termios) -> Termios {
        let modes = [&mut old.iflag, &mut old.oflag, &mut old.cflag, &mut old.lflag];
        for (mode, low) in modes.into_iter().zip(self.modes) {
            *mode = *mode & !0xffff | u32::from(low);
        }
        old.cc[..OLD_NCCS].copy_from_slice(&self.cc);
        old
    }
}

/// Speeds in baud by the low four bits of [`Termios::cflag`]'s speed, without and with CBAUDEX.
const SPEEDS: [u32; 16] =
    [0, 50, 75, 110, 134, 150, 200, 300, 600, 1200, 1800, 2400, 4800, 9600, 19_200, 38_400];
const HIGH_SPEEDS: [u32; 16] = [
    0, 57_600, 115_200, 230_400, 460_800, 500_000, 576_000, 921_600, 1_000_000, 1_152_000, 1_500_000,
    2_000_000, 2_500_000, 3_000_000, 3_500_000, 4_000_000,
];
/// Position of the input speed's bits (IBSHIFT).
const INPUT_SHIFT: u32 = 16;

/// Returns the speed that bits of [`Termios::cflag`] name, or `other` for BOTHER.
const fn speed(bits: u32, other: u32) -> u32 {
    match bits & c::CBAUD {
        c::BOTHER => other,
        bits if bits & c::CBAUDEX != 0 => HIGH_SPEEDS[(bits & 0xf) as usize],
        bits => SPEEDS[(bits & 0xf) as usize],
    }
}

impl Termios2 {
    /// Returns these settings with the speeds that their bits name. Speeds without a name are in
    /// the two numbers (Linux: `tty_termios_baud_rate` and `tty_termios_input_baud_rate`).
    #[must_use]
    pub const fn with_speeds(mut self) -> Self {
        let bits = self.termios.cflag;
        self.ospeed = speed(bits, self.ospeed);
        self.ispeed = match bits >> INPUT_SHIFT & c::CBAUD {
            c::B0 => self.ospeed,
            bits => speed(bits, self.ispeed),
        };
        self
    }
}

impl From<Termios> for Termios2 {
    fn from(termios: Termios) -> Self {
        Self { termios, ispeed: 0, ospeed: 0 }.with_speeds()
    }
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
    /// Returns the settings of a new terminal (drivers/tty's `tty_std_termios`).
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
    /// Returns the control character at `index` (VINTR…), if it is switched on.
    pub fn character(&self, index: u32) -> Option<u8> {
        self.cc.get(index as usize).copied().filter(|&byte| byte != DISABLED)
    }
    /// Whether `byte` is the control character at `index`.
    pub fn is(&self, byte: u8, index: u32) -> bool {
        self.character(index) == Some(byte)
    }
    /// Returns VMIN: the number of bytes that a non-canonical read waits for.
    pub const fn min(&self) -> usize {
        self.cc[c::VMIN as usize] as usize
    }
    /// Returns VTIME in nanoseconds; `None` if it is 0.
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
        assert_eq!(size_of::<Termio>(), 18);
        assert_eq!(size_of::<WindowSize>(), size_of::<c::winsize>());
    }

    #[test]
    fn speeds_are_those_that_the_bits_name_or_the_numbers() {
        let set = |bits: u32, ispeed, ospeed| {
            let termios =
                Termios { cflag: Termios::standard().cflag & !c::CBAUD | bits, ..Termios::standard() };
            let settings = Termios2 { termios, ispeed, ospeed }.with_speeds();
            (settings.ispeed, settings.ospeed)
        };
        assert_eq!(set(c::B38400, 7, 7), (38_400, 38_400));
        assert_eq!(set(c::B115200, 7, 7), (115_200, 115_200));
        assert_eq!(set(c::B4000000, 7, 7), (4_000_000, 4_000_000));
        assert_eq!(set(c::BOTHER, 5, 31_250), (31_250, 31_250), "the input's is the output's");
        assert_eq!(set(c::BOTHER | c::BOTHER << INPUT_SHIFT, 5, 31_250), (5, 31_250));
        assert_eq!(set(c::B9600 | c::B300 << INPUT_SHIFT, 5, 6), (300, 9600));
    }
}
