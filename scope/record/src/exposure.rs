//! Programs' bytes within the kernel's reach: through translations that stay cached, and through
//! bytes that programs leave behind.

use serde::{Deserialize, Serialize};

/// Lengths of lives: entry n counts 2^n to 2^(n+1) - 1 instructions of the CPU that held the
/// translation.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Lives {
    /// Lives that ended.
    pub ended: Vec<u64>,
    /// Lives that had not ended with the run.
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
    /// Frames × instructions for which a translation was cached after its window was closed.
    pub closed: u64,
    /// The same for programs' frames in the direct map, counted when a translation ends.
    pub direct: u64,
    /// Lives from the close of a window to the end of its translation.
    pub lives: Lives,
    /// The longest such life in instructions of all CPUs, those alive at the end included: with a
    /// clock that counts instructions it is nanoseconds of the machine's time, except for the time
    /// in which all CPUs halt ([`Exposure::closed_at_halts`] says whether one lasted through it).
    #[serde(default)]
    pub longest_closed: u64,
    /// The longest such life in instructions of the CPU that held the translation.
    #[serde(default)]
    pub longest_closed_own: u64,
    /// HLTs of the kernel.
    #[serde(default)]
    pub halts: u64,
    /// Closed windows that were cached on the CPU that halts, summed over [`Exposure::halts`].
    #[serde(default)]
    pub closed_at_halts: u64,
    /// Frames that a program used after the kernel had used them in the direct map, counted by the
    /// CPU that ran the program.
    pub aliases: u64,
    /// Lives from then to the end of the direct map's translation of the frame, if that CPU held
    /// one: the time for which it would stay cached if its entry were removed without a flush.
    pub alias_lives: Lives,
    /// Lives of that translation on the other CPUs, in instructions of all CPUs: they would go on
    /// if the CPU that runs the program flushed its own.
    #[serde(default)]
    pub other_alias_lives: Lives,
    /// The same lives as in `alias_lives`, if the next write to CR3 flushed the translation at the
    /// latest.
    pub alias_until_switch: Vec<u64>,
}

/// Programs' bytes in memory at one moment. A byte is a program's if it is not zero, was stored
/// while a program owned the frame, and was not overwritten since. If the kernel does not publish
/// owners, only programs' own stores count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Residue {
    /// Time of the sample.
    pub time: u64,
    /// Number of the phase that begins or runs then.
    pub phase: usize,
    /// Frames with such bytes.
    pub frames: u64,
    /// The bytes.
    pub bytes: u64,
    /// Frames with such bytes that the kernel half maps outside windows.
    pub reachable_frames: u64,
    /// The bytes in the reachable frames.
    pub reachable_bytes: u64,
    /// Reachable frames that no program owns any more: residue.
    pub residue_frames: u64,
    /// The bytes in the residue's frames.
    pub residue_bytes: u64,
    /// Frames of the residue that are free.
    pub free_frames: u64,
}
