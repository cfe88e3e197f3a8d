//! What the oracle saw.

use serde::{Deserialize, Serialize};

/// What was broken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// The kernel reached a user's frame through the direct map.
    DirectMap,
    /// A translation was used after the frame that it leads to had changed hands.
    Stale,
    /// A store reached kernel text, read-only data or a node's replica of them.
    Text,
}

impl Rule {
    /// The rule in words.
    pub const fn description(self) -> &'static str {
        match self {
            Self::DirectMap => "the kernel reached a user's frame through the direct map",
            Self::Stale => "a translation was used after its frame had changed hands",
            Self::Text => "a store reached kernel text, read-only data or a replica",
        }
    }
}

/// The life of a translation that outlived what it was made under.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stale {
    /// When the translation was cached.
    pub filled: u64,
    /// Who owned the frame then.
    pub owner: String,
    /// When the frame first changed hands after that.
    pub changed: u64,
}

/// A broken rule. Repetitions by the same instruction are one violation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Violation {
    /// Which rule.
    pub rule: Rule,
    /// When it was first broken.
    pub time: u64,
    /// By which CPU.
    pub cpu: usize,
    /// The instruction's address.
    pub pc: u64,
    /// The address that it used.
    pub address: u64,
    /// The frame that it reached, or that a stale translation leads to.
    pub frame: u64,
    /// Who owned the frame.
    pub owner: String,
    /// For [`Rule::Stale`].
    pub stale: Option<Stale>,
    /// How often this instruction broke it.
    pub count: u64,
}

/// How often the oracle looked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Checks {
    /// Kernel accesses through the direct map.
    pub direct_map: u64,
    /// Uses of translations that were compared with the frame's present owner.
    pub translations: u64,
    /// Stores.
    pub stores: u64,
    /// Changes of ownership that were seen.
    pub changes: u64,
}

/// What our kernel published of itself: half-open ranges of virtual addresses, as they run (slide included).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KernelLayout {
    /// The direct map.
    pub direct_map: (u64, u64),
    /// All CPUs' windows.
    pub windows: (u64, u64),
    /// The frame table.
    pub frame_table: (u64, u64),
    /// Text.
    pub text: (u64, u64),
    /// Read-only data.
    pub rodata: (u64, u64),
    /// How far the image was moved.
    pub slide: u64,
}

/// The oracle's part of the results.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Oracle {
    /// What the kernel published; `None`: it published nothing, and nothing was checked.
    pub layout: Option<KernelLayout>,
    /// When it did: checks begin there.
    pub since: u64,
    /// How often it looked.
    pub checks: Checks,
    /// What was broken, in order of time; no more than were asked for.
    pub violations: Vec<Violation>,
    /// How many there were in all, repetitions included.
    pub total: u64,
    /// How long stale translations had been stale when they were used: entry n counts 2^n to 2^(n+1) - 1 instructions.
    pub stale_windows: Vec<u64>,
}
