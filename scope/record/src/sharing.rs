//! Lines of the kernel's memory that several CPUs store to.

use serde::{Deserialize, Serialize};

/// Lines of 64 bytes to which the kernel stored on several CPUs in the program's time: on hardware
/// a line moves to the CPU that stores, which waits for it.
///
/// What is counted does not depend on how the emulator's host put the CPUs' times together. All
/// that a CPU stores to a line is one visit until it has stored nothing there for [`Sharing::AWAY`]
/// of its own instructions. A line moves at the most as often as it is visited, and at the most
/// twice for each visit of a CPU other than the one that visits it most. Frames of programs are
/// left out where the kernel tells which these are.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Sharing {
    /// How many lines there are.
    pub lines: u64,
    /// How often they move at the most.
    pub moves: u64,
    /// By the instruction that stores first when the line has moved, most first, at most
    /// [`Sharing::STORES`].
    pub stores: Vec<SharedStore>,
}

impl Sharing {
    /// Instructions of a CPU without a store to the line, after which its next one begins another
    /// visit.
    pub const AWAY: u64 = 200;
    /// The most instructions in the results.
    pub const STORES: usize = 1024;
}

/// An instruction that stores to lines of several CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SharedStore {
    /// Its address.
    pub by: u64,
    /// The address of one of its stores.
    pub address: u64,
    /// Its part of the moves.
    pub moves: u64,
}
