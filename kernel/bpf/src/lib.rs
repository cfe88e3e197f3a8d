//! Classic BPF programs that judge system calls.
//!
//! A program has two registers, A and X, and sixteen words of memory, all of 32 bits; it reads the
//! data of a call ([`CallData`]) by aligned words. It comes from a program that is not trusted, so
//! it is checked as a whole before it runs ([`Filter::new`]): jumps lead forwards to instructions,
//! the last instruction ends it, no constant divides by zero, and a word of memory is read only
//! where every path to the read has stored there. A program that passes ends after at most as many
//! steps as it has instructions; running allocates nothing and cannot fail.
//!
//! Instructions and checks are Linux' (Documentation/networking/filter.rst; net/core/filter.c
//! `bpf_check_classic`, kernel/seccomp.c `seccomp_check_filter`), which refuses loads from anywhere
//! but the call's data, and the remainder.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(test)]
extern crate std;

mod check;
mod code;
#[cfg(test)]
mod tests;

use freehold_collections::{AllocError, Vec};

/// The most instructions of a program (BPF_MAXINSNS).
pub const MOST: usize = 4096;
/// Words of memory that a program has (BPF_MEMWORDS).
const WORDS: usize = 16;
/// Bytes of a call's data.
pub const DATA: usize = 64;

/// One instruction, as programs hand it over (struct sock_filter).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Instruction {
    /// The operation.
    pub code: u16,
    /// Instructions to pass over where a comparison holds.
    pub if_true: u8,
    /// The same where it does not.
    pub if_false: u8,
    /// A constant, by the code.
    pub constant: u32,
}

impl Instruction {
    /// Bytes of one.
    pub const BYTES: usize = 8;

    /// The instruction that these bytes are.
    pub const fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        let [c0, c1, if_true, if_false, k0, k1, k2, k3] = bytes;
        let (code, constant) = (u16::from_le_bytes([c0, c1]), u32::from_le_bytes([k0, k1, k2, k3]));
        Self { code, if_true, if_false, constant }
    }
}

/// Data that a program reads (struct seccomp_data).
#[derive(Clone, Copy, Debug)]
pub struct CallData([u32; DATA / 4]);

impl CallData {
    /// A call by `number` for `architecture` (AUDIT_ARCH_*), made by the instruction before
    /// `address`, with its argument registers.
    pub const fn new(number: u32, architecture: u32, address: u64, arguments: [u64; 6]) -> Self {
        let mut words = [0; DATA / 4];
        (words[0], words[1]) = (number, architecture);
        (words[2], words[3]) = (address as u32, (address >> 32) as u32);
        let mut at = 0;
        while at < arguments.len() {
            words[4 + 2 * at] = arguments[at] as u32;
            words[5 + 2 * at] = (arguments[at] >> 32) as u32;
            at += 1;
        }
        Self(words)
    }
}

/// The reason why a program is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The program has no instruction, or more than [`MOST`].
    Length,
    /// The instruction at this place is invalid.
    Instruction(usize),
    /// There is no memory to check it.
    NoMemory,
}

impl From<AllocError> for Refusal {
    fn from(_: AllocError) -> Self {
        Self::NoMemory
    }
}

/// A program that was checked.
#[derive(Debug)]
pub struct Filter(Vec<Instruction>);

impl Filter {
    /// Checks `program`.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn new(program: Vec<Instruction>) -> Result<Self, Refusal> {
        check::check(&program)?;
        Ok(Self(program))
    }

    /// How many instructions it has: at least one.
    pub fn instructions(&self) -> usize {
        self.0.len()
    }

    /// Returns the program's verdict on a call.
    pub fn run(&self, data: &CallData) -> u32 {
        let (mut a, mut x, mut words) = (0u32, 0u32, [0u32; WORDS]);
        let mut at = 0;
        // No jump leads backwards, so each instruction runs once at most. Nothing that was checked
        // leaves the program.
        while let Some(&Instruction { code, if_true, if_false, constant: k }) = self.0.get(at) {
            at += 1;
            let word = k as usize % WORDS;
            match code {
                code::LOAD_DATA => a = data.0.get(k as usize / 4).copied().unwrap_or(0),
                code::LOAD_LENGTH => a = DATA as u32,
                code::LOAD_X_LENGTH => x = DATA as u32,
                code::LOAD => a = k,
                code::LOAD_X => x = k,
                code::LOAD_WORD => a = words[word],
                code::LOAD_X_WORD => x = words[word],
                code::STORE => words[word] = a,
                code::STORE_X => words[word] = x,
                code::TO_X => x = a,
                code::TO_A => a = x,
                code::RETURN => return k,
                code::RETURN_A => return a,
                code::JUMP => at += k as usize,
                code::NEGATE => a = a.wrapping_neg(),
                _ => {
                    let by = if code & code::BY_X == 0 { k } else { x };
                    match code & !code::BY_X {
                        code::ADD => a = a.wrapping_add(by),
                        code::SUBTRACT => a = a.wrapping_sub(by),
                        code::MULTIPLY => a = a.wrapping_mul(by),
                        // A division by zero ends the program with 0.
                        code::DIVIDE if by == 0 => return 0,
                        code::DIVIDE => a /= by,
                        code::AND => a &= by,
                        code::OR => a |= by,
                        code::XOR => a ^= by,
                        code::SHIFT_LEFT => a = a.wrapping_shl(by),
                        code::SHIFT_RIGHT => a = a.wrapping_shr(by),
                        comparison => {
                            let holds = match comparison {
                                code::IF_EQUAL => a == by,
                                code::IF_GREATER => a > by,
                                code::IF_AT_LEAST => a >= by,
                                _ => a & by != 0,
                            };
                            at += usize::from(if holds { if_true } else { if_false });
                        }
                    }
                }
            }
        }
        0
    }
}
