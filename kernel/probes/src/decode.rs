//! The length of an instruction of 64-bit code, and whether it can run from another place.
//!
//! The tables are those of the Intel SDM, volume 2, appendix A, without vector encodings (VEX,
//! EVEX, XOP): the kernel has none. An instruction that is not in them has no length here, so no
//! code after it can be probed. Linux' relative is arch/x86/lib/insn.c.

/// Largest number of bytes of an instruction.
pub const LONGEST: usize = 15;

/// An instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decoded {
    /// Its length in bytes, 1 to [`LONGEST`].
    pub length: usize,
    /// The change that lets a copy of it run at another address.
    pub kind: Kind,
}

/// The change that lets a copy of an instruction run at another address. Distances count from the
/// instruction's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// No change: the same bytes do the same at any address.
    Plain,
    /// The distance of 4 bytes at this offset changes.
    RipRelative(usize),
    /// A jump.
    Jump(i32),
    /// A jump under the condition with this number (Intel SDM, volume 1, appendix B).
    Branch(u8, i32),
    /// A call.
    Call(i32),
    /// No copy can run: it depends on its address in another way, on the interrupt flag, or on the
    /// top of the stack.
    Fixed,
}

/// The bytes of an instruction, read from the first on.
struct InstructionBytes<'a> {
    all: &'a [u8],
    at: usize,
}

impl InstructionBytes<'_> {
    fn peek(&self) -> Option<u8> {
        self.all.get(self.at).copied().filter(|_| self.at < LONGEST)
    }
    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }
    fn skip(&mut self, count: usize) -> Option<()> {
        self.at += count;
        (self.at <= LONGEST && self.at <= self.all.len()).then_some(())
    }
    /// The signed number of `size` bytes, 1 or 4, at the end of the instruction.
    fn distance(&mut self, size: usize) -> Option<i32> {
        let start = self.at;
        self.skip(size)?;
        match self.all.get(start..self.at)? {
            &[byte] => Some(i32::from(byte as i8)),
            &[a, b, c, d] => Some(i32::from_le_bytes([a, b, c, d])),
            _ => None,
        }
    }
}

/// The prefixes before an opcode.
#[derive(Clone, Copy, Default)]
struct Prefixes {
    /// 66: operands of 16 bits.
    operand: bool,
    /// 67: addresses of 32 bits.
    address: bool,
    /// F3.
    repeat: bool,
    /// REX.W: operands of 64 bits.
    wide: bool,
}

impl Prefixes {
    /// Size of an immediate that has at most 32 bits.
    const fn immediate(self) -> usize {
        if self.operand && !self.wide { 2 } else { 4 }
    }
}

/// A ModRM byte, its SIB byte and displacement skipped.
#[derive(Clone, Copy)]
struct ModRm {
    mode: u8,
    reg: u8,
    /// Offset of a distance from the instruction's end.
    rip_relative: Option<usize>,
}

impl ModRm {
    fn read(bytes: &mut InstructionBytes<'_>) -> Option<Self> {
        let byte = bytes.next()?;
        let (mode, reg, rm) = (byte >> 6, byte >> 3 & 7, byte & 7);
        let mut rip_relative = None;
        if mode != 3 && rm == 4 {
            let base = bytes.next()? & 7;
            if mode == 0 && base == 5 {
                bytes.skip(4)?;
            }
        } else if mode == 0 && rm == 5 {
            rip_relative = Some(bytes.at);
            bytes.skip(4)?;
        }
        bytes.skip([0, 1, 4, 0][usize::from(mode)])?;
        Some(Self { mode, reg, rip_relative })
    }
    const fn kind(self) -> Kind {
        match self.rip_relative {
            Some(at) => Kind::RipRelative(at),
            None => Kind::Plain,
        }
    }
}

/// Decodes the instruction at the beginning of `bytes`. `None` for one that is not in the tables or
/// not complete.
pub fn decode(bytes: &[u8]) -> Option<Decoded> {
    let mut bytes = InstructionBytes { all: bytes, at: 0 };
    let prefixes = prefixes(&mut bytes)?;
    let kind = match bytes.next()? {
        0x0f => two_bytes(&mut bytes, prefixes)?,
        opcode => one_byte(&mut bytes, prefixes, opcode)?,
    };
    // A relative address of 32 bits, and a relative jump whose size depends on the maker, stay.
    let kind = match kind {
        Kind::RipRelative(_) if prefixes.address => Kind::Fixed,
        Kind::Jump(_) | Kind::Branch(..) | Kind::Call(_) if prefixes.operand => return None,
        kind => kind,
    };
    Some(Decoded { length: bytes.at, kind })
}

fn prefixes(bytes: &mut InstructionBytes<'_>) -> Option<Prefixes> {
    let mut found = Prefixes::default();
    loop {
        match bytes.peek()? {
            0x66 => found.operand = true,
            0x67 => found.address = true,
            0xf3 => found.repeat = true,
            0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0xf0 | 0xf2 => {}
            rex @ 0x40..=0x4f => {
                // REX is the last prefix: an opcode follows.
                found.wide = rex & 8 != 0;
                bytes.next()?;
                let is_prefix = matches!(
                    bytes.peek()?,
                    0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3
                );
                return (!is_prefix).then_some(found);
            }
            _ => return Some(found),
        }
        bytes.next()?;
    }
}

/// Reads a ModRM operand and an immediate of `size` bytes.
fn operand(bytes: &mut InstructionBytes<'_>, size: usize) -> Option<Kind> {
    let modrm = ModRm::read(bytes)?;
    bytes.skip(size)?;
    Some(modrm.kind())
}

/// Reads an immediate of `size` bytes.
fn immediate(bytes: &mut InstructionBytes<'_>, size: usize, kind: Kind) -> Option<Kind> {
    bytes.skip(size)?;
    Some(kind)
}

fn one_byte(bytes: &mut InstructionBytes<'_>, prefixes: Prefixes, opcode: u8) -> Option<Kind> {
    let full = prefixes.immediate();
    match opcode {
        0x00..=0x3f => match opcode & 7 {
            0..=3 => operand(bytes, 0),
            4 => immediate(bytes, 1, Kind::Plain),
            5 => immediate(bytes, full, Kind::Plain),
            _ => None,
        },
        0x50..=0x5f | 0x90..=0x99 | 0x9b | 0x9e | 0x9f | 0xa4..=0xa7 | 0xaa..=0xaf | 0xc9 | 0xd7 => {
            Some(Kind::Plain)
        }
        0xec..=0xef | 0xf5 | 0xf8 | 0xf9 | 0xfc | 0xfd => Some(Kind::Plain),
        0x63 | 0x84..=0x8b | 0x8d | 0x8f | 0xd0..=0xd3 => operand(bytes, 0),
        0x68 => immediate(bytes, full, Kind::Plain),
        0x6a | 0xa8 | 0xb0..=0xb7 | 0xe4..=0xe7 => immediate(bytes, 1, Kind::Plain),
        0x69 | 0x81 => operand(bytes, full),
        0x6b | 0x80 | 0x83 | 0xc0 | 0xc1 => operand(bytes, 1),
        0x70..=0x7f => Some(Kind::Branch(opcode & 15, bytes.distance(1)?)),
        0xa0..=0xa3 => immediate(bytes, if prefixes.address { 4 } else { 8 }, Kind::Plain),
        0xa9 => immediate(bytes, full, Kind::Plain),
        0xb8..=0xbf => immediate(bytes, if prefixes.wide { 8 } else { full }, Kind::Plain),
        0xc6 | 0xc7 => {
            let modrm = ModRm::read(bytes)?;
            bytes.skip(if opcode == 0xc6 { 1 } else { full })?;
            (modrm.reg == 0).then(|| modrm.kind())
        }
        0xe8 => Some(Kind::Call(bytes.distance(4)?)),
        0xe9 => Some(Kind::Jump(bytes.distance(4)?)),
        0xeb => Some(Kind::Jump(bytes.distance(1)?)),
        0xf6 | 0xf7 => {
            let modrm = ModRm::read(bytes)?;
            let size = if opcode == 0xf6 { 1 } else { full };
            bytes.skip(if modrm.reg < 2 { size } else { 0 })?;
            Some(modrm.kind())
        }
        0xfe | 0xff => {
            let modrm = ModRm::read(bytes)?;
            match modrm.reg {
                0 | 1 => Some(modrm.kind()),
                6 if opcode == 0xff => Some(modrm.kind()),
                2..=5 if opcode == 0xff => Some(Kind::Fixed),
                _ => None,
            }
        }
        _ => fixed(bytes, opcode),
    }
}

/// Instructions of one opcode byte that stay where they are.
fn fixed(bytes: &mut InstructionBytes<'_>, opcode: u8) -> Option<Kind> {
    match opcode {
        0x6c..=0x6f | 0x9c | 0x9d | 0xc3 | 0xcb | 0xcc | 0xcf | 0xf1 | 0xf4 | 0xfa | 0xfb => {
            Some(Kind::Fixed)
        }
        0xcd | 0xe0..=0xe3 => immediate(bytes, 1, Kind::Fixed),
        0xc2 | 0xca => immediate(bytes, 2, Kind::Fixed),
        0xc8 => immediate(bytes, 3, Kind::Fixed),
        0x8c | 0x8e | 0xd8..=0xdf => operand(bytes, 0).map(|_| Kind::Fixed),
        _ => None,
    }
}

fn two_bytes(bytes: &mut InstructionBytes<'_>, prefixes: Prefixes) -> Option<Kind> {
    let opcode = bytes.next()?;
    match opcode {
        0x00 | 0x01 | 0x20..=0x23 | 0xb2 | 0xb4 | 0xb5 | 0xb9 | 0xff => {
            operand(bytes, 0).map(|_| Kind::Fixed)
        }
        0x05..=0x09 | 0x0b | 0x30 | 0x32 | 0x34 | 0x35 | 0x77 | 0xa0 | 0xa1 | 0xa8 | 0xa9 | 0xaa => {
            Some(Kind::Fixed)
        }
        0x31 | 0x33 | 0xa2 | 0xc8..=0xcf => Some(Kind::Plain),
        0x38 => {
            bytes.next()?;
            operand(bytes, 0)
        }
        0x3a => {
            bytes.next()?;
            operand(bytes, 1)
        }
        0x70..=0x73 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6 => operand(bytes, 1),
        0x80..=0x8f => Some(Kind::Branch(opcode & 15, bytes.distance(4)?)),
        0xae => {
            let modrm = ModRm::read(bytes)?;
            // With F3 and a register: the bases of FS and GS.
            Some(if prefixes.repeat && modrm.mode == 3 { Kind::Fixed } else { modrm.kind() })
        }
        0x02 | 0x03 | 0x0d | 0x10..=0x1f | 0x28..=0x2f | 0x40..=0x6f | 0x74..=0x76 | 0x7c..=0x7f => {
            operand(bytes, 0)
        }
        0x90..=0x9f | 0xa3 | 0xa5 | 0xab | 0xad | 0xaf..=0xb1 | 0xb3 | 0xb6..=0xb8 | 0xbb..=0xc1 => {
            operand(bytes, 0)
        }
        0xc3 | 0xc7 | 0xd0..=0xfe => operand(bytes, 0),
        _ => None,
    }
}
