//! Arguments of a system call.

use core::ops::Index;

/// The number and the six argument registers.
#[derive(Clone, Copy, Debug)]
pub struct Args {
    /// The system call's number.
    pub number: u64,
    values: [u64; 6],
}

impl Args {
    /// Makes the arguments of call `number` with `values`.
    pub const fn new(number: u64, values: [u64; 6]) -> Self {
        Self { number, values }
    }
    /// Returns all six arguments.
    pub const fn all(&self) -> [u64; 6] {
        self.values
    }
    /// Returns argument `index` as a C `int`: the upper half of the register is ignored.
    pub const fn int(&self, index: usize) -> i32 {
        self.values[index] as i32
    }
    /// Returns argument `index` as a C `unsigned int`.
    pub const fn uint(&self, index: usize) -> u32 {
        self.values[index] as u32
    }
    /// Returns argument `index` as a file descriptor.
    pub const fn fd(&self, index: usize) -> i32 {
        self.values[index] as i32
    }
    /// Returns argument `index` as a signed 64-bit number.
    pub const fn long(&self, index: usize) -> i64 {
        self.values[index] as i64
    }
    /// Returns argument `index` as a count of bytes or elements.
    pub const fn size(&self, index: usize) -> usize {
        self.values[index] as usize
    }
}

impl Index<usize> for Args {
    type Output = u64;
    fn index(&self, index: usize) -> &u64 {
        &self.values[index]
    }
}
