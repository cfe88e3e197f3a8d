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
    /// A store that patches nothing reached kernel text, read-only data or a node's replica of
    /// them.
    Text,
    /// The kernel half mapped a frame, outside the windows, whose owner has to stay outside, or a
    /// replica elsewhere than at the image's addresses. Whether it was used does not matter.
    Mapped,
    /// The kernel half mapped text, read-only data or a replica with a leaf that allows stores.
    WritableImage,
    /// A translation table of the kernel half was linked a second time.
    SharedTable,
    /// The kernel reached a frame that was given back and is nobody's, other than by a store of
    /// zeroes through a window. Judged with the residue model.
    FreeFrame,
    /// A CPU fetched text that is another node's, by the tables that its kernel published.
    RemoteText,
    /// A CPU loaded a root that has another node's image in its kernel half.
    Root,
    /// The kernel ran with RFLAGS.AC set, which switches SMAP off, where it does not copy to or
    /// from a program.
    Smap,
    /// A CPU ran an instruction, where the kernel patches one, that is neither the old one nor INT3
    /// nor the new one.
    Patch,
}

impl Rule {
    /// The rule in words.
    pub const fn description(self) -> &'static str {
        match self {
            Self::DirectMap => "the kernel reached a user's frame through the direct map",
            Self::Stale => "a translation was used after its frame had changed hands",
            Self::Text => "a store reached kernel text, read-only data or a replica",
            Self::Mapped => {
                "the kernel half mapped a user's frame outside a window, or a replica outside the image"
            }
            Self::WritableImage => "a writable leaf mapped kernel text, read-only data or a replica",
            Self::SharedTable => "a translation table of the kernel half was linked twice",
            Self::FreeFrame => "the kernel reached a free frame other than to wipe it",
            Self::RemoteText => "a CPU fetched another node's kernel text",
            Self::Root => "a CPU loaded a root with another node's kernel text",
            Self::Patch => "a CPU ran a part of an instruction that was being patched",
            Self::Smap => "the kernel ran with SMAP off (RFLAGS.AC) outside a user copy",
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
    /// The address that it used. For [`Rule::Smap`]: the instruction's own.
    pub address: u64,
    /// The frame that it reached, or that a stale translation leads to. For [`Rule::Root`]: the
    /// root. For [`Rule::Smap`]: the frame of the code.
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
    /// Stores to text by the code that patches it.
    #[serde(default)]
    pub text_stores: u64,
    /// INT3s that were run where an instruction was being patched.
    #[serde(default)]
    pub breakpoints: u64,
    /// Changes of ownership that were seen.
    pub changes: u64,
    /// Leaves of the kernel half that were judged, windows included.
    pub leaves: u64,
    /// Translation tables of the kernel half at the end.
    pub tables: u64,
}

/// RFLAGS.AC in kernel mode, which switches SMAP off. All but the trap frames are kernel
/// instructions that ran with AC set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SmapChecks {
    /// Trap frames that were read.
    pub frames: u64,
    /// Those of them that interrupted a program that had AC set.
    pub program_frames: u64,
    /// In the code that copies to and from programs.
    pub user_copies: u64,
    /// Between a trap and the handler's CLAC, as far as that is in time.
    pub entries: u64,
    /// Elsewhere: each is a breach of [`Rule::Smap`].
    pub outside: u64,
}

impl SmapChecks {
    /// The sums of both.
    #[must_use]
    pub const fn plus(self, more: Self) -> Self {
        Self {
            frames: self.frames + more.frames,
            program_frames: self.program_frames + more.program_frames,
            user_copies: self.user_copies + more.user_copies,
            entries: self.entries + more.entries,
            outside: self.outside + more.outside,
        }
    }
}

/// What our kernel published of itself: half-open ranges of virtual addresses, as they run (slide
/// included).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KernelLayout {
    /// The exclusion policy, as the kernel parameter `xpfo` names it.
    pub policy: String,
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
    /// What it saw of RFLAGS.AC.
    pub smap: SmapChecks,
    /// What was broken, in order of time; no more than were asked for.
    pub violations: Vec<Violation>,
    /// How many there were in all, repetitions included.
    pub total: u64,
    /// How long stale translations had been stale when they were used: entry n counts 2^n to
    /// 2^(n+1) - 1 instructions.
    pub stale_windows: Vec<u64>,
}
