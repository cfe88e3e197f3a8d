//! How far programs' bytes were in the kernel's reach: through translations that stay cached, and
//! through what they leave behind.

use serde::{Deserialize, Serialize};

/// Lengths of lives: entry n counts 2^n to 2^(n+1) - 1 instructions of the CPU that held the
/// translation.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Lives {
    /// Those that ended.
    pub ended: Vec<u64>,
    /// Those that had not ended with the run.
    pub alive: Vec<u64>,
}

/// Kernel-half translations of programs' frames in the modelled TLBs. Instructions are those of the
/// CPU that holds the translation.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Exposure {
    /// Windows that were opened, since the kernel published itself.
    pub windows: u64,
    /// Windows whose translation was cached when they closed.
    pub closed_cached: u64,
    /// Frames × instructions for which a translation was cached while its window was open.
    pub open: u64,
    /// The same after its window was closed.
    pub closed: u64,
    /// The same of programs' frames in the direct map, counted when a translation ends.
    pub direct: u64,
    /// From the close of a window to the end of its translation.
    pub lives: Lives,
    /// Frames that a program used after the kernel had used them in the direct map, by the CPU
    /// whose program it was.
    pub aliases: u64,
    /// From then to the end of the direct map's translation of the frame, where that CPU held one:
    /// how long it would stay if its entry were taken away and nothing flushed.
    pub alias_lives: Lives,
    /// The same if the next write to CR3 flushed it at the latest.
    pub alias_until_switch: Vec<u64>,
}

/// Programs' bytes in memory at one moment. A byte is a program's if it is not zero, was stored
/// while a program owned the frame, and nothing was stored over it since. Where the kernel does not
/// say who owns frames, programs' own stores count, and no others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Residue {
    /// When.
    pub time: u64,
    /// Number of the phase that begins or runs then.
    pub phase: usize,
    /// Frames with such bytes.
    pub frames: u64,
    /// The bytes.
    pub bytes: u64,
    /// Frames with such bytes that the kernel half maps outside windows.
    pub reachable_frames: u64,
    /// The bytes in them.
    pub reachable_bytes: u64,
    /// Of the reachable frames, those that no program owns any more: residue.
    pub residue_frames: u64,
    /// The bytes in them.
    pub residue_bytes: u64,
    /// Of the residue's frames, those that are free.
    pub free_frames: u64,
}
