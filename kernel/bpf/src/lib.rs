//! Classic BPF programs that judge system calls and packets.
//!
//! A program has two registers, A and X, and sixteen words of memory, all of 32 bits; it reads the
//! data of a call ([`CallData`]) by aligned words, or any bytes of a packet ([`PacketData`]). It
//! comes from a program that is not trusted, so it is checked as a whole before it runs
//! ([`Filter::new`], [`PacketFilter::new`]): jumps lead forwards to instructions, the last
//! instruction ends it, no constant divides by zero, and a word of memory is read only where every
//! path to the read has stored there. A program that passes ends after at most as many steps as it
//! has instructions; running allocates nothing and cannot fail.
//!
//! Instructions and checks are Linux' (Documentation/networking/filter.rst; net/core/filter.c
//! `bpf_check_classic`, kernel/seccomp.c `seccomp_check_filter`). A program about calls is refused
//! if it loads from anywhere except the call's data, or takes a remainder.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(test)]
extern crate std;

mod check;
mod code;
mod engine;
mod packet;
#[cfg(test)]
mod tests;

use freehold_collections::{AllocError, Vec};

pub use packet::{HasLink, PacketData};

use check::Rules;
use engine::{Loads, Width};

/// Largest number of instructions of a program (BPF_MAXINSNS).
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
    /// Number of instructions to skip if a comparison holds.
    pub if_true: u8,
    /// Number of instructions to skip if it does not hold.
    pub if_false: u8,
    /// A constant, by the code.
    pub constant: u32,
}

impl Instruction {
    /// Bytes of one instruction.
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

    /// Returns the words of struct seccomp_data.
    pub const fn words(&self) -> &[u32; DATA / 4] {
        &self.0
    }
}

impl Loads for CallData {
    fn length(&self) -> u32 {
        DATA as u32
    }

    fn load(&self, at: u32, _width: Width, _registers: (u32, u32)) -> Option<u32> {
        Some(self.0.get(at as usize / 4).copied().unwrap_or(0))
    }
}

/// The part of a call's data that all calls of a number share.
struct CallNumber([u32; 2]);

impl Loads for CallNumber {
    fn length(&self) -> u32 {
        DATA as u32
    }

    fn load(&self, at: u32, _width: Width, _registers: (u32, u32)) -> Option<u32> {
        self.0.get(at as usize / 4).copied()
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
        check::check(&program, Rules::Call)?;
        Ok(Self(program))
    }

    /// How many instructions it has: at least one.
    pub fn instructions(&self) -> usize {
        self.0.len()
    }

    /// Returns the program's verdict on a call.
    pub fn run(&self, data: &CallData) -> u32 {
        engine::run(&self.0, data)
    }

    /// Returns the program's verdict on all calls by `number` for `architecture`; 0 if it reads
    /// more of them than that.
    pub fn run_for_all(&self, number: u32, architecture: u32) -> u32 {
        engine::run(&self.0, &CallNumber([number, architecture]))
    }
}

/// A program about packets that was checked.
#[derive(Debug)]
pub struct PacketFilter(Vec<Instruction>);

impl PacketFilter {
    /// Checks `program`.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn new(program: Vec<Instruction>) -> Result<Self, Refusal> {
        check::check(&program, Rules::Packet)?;
        Ok(Self(program))
    }

    /// Returns how many bytes of a packet its socket gets; 0 for none of it.
    pub fn run(&self, data: &PacketData<'_>) -> u32 {
        engine::run(&self.0, data)
    }
}
