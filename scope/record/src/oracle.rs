//! Results of the oracle.

use serde::{Deserialize, Serialize};

/// A rule that the oracle checks.
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
    /// The kernel reached a freed frame without an owner, other than by a store of zeroes through a
    /// window. Judged with the residue model.
    FreeFrame,
    /// A CPU fetched another node's text, according to the tables that its kernel published.
    RemoteText,
    /// A CPU loaded a root that has another node's image in its kernel half.
    Root,
    /// The kernel ran with RFLAGS.AC set, which switches SMAP off, outside its copies to and from
    /// programs.
    Smap,
    /// At a place that the kernel patches, a CPU ran an instruction that is neither the old one nor
    /// INT3 nor the new one.
    Patch,
}

impl Rule {
    /// Returns the rule in words.
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

/// The life of a translation that was used after its frame changed hands.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stale {
    /// Time when the translation was cached.
    pub filled: u64,
    /// The frame's owner at that time.
    pub owner: String,
    /// Time when the frame first changed hands after that.
    pub changed: u64,
}

/// A broken rule. Repetitions by the same instruction are one violation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// Time of the first violation.
    pub time: u64,
    /// The CPU.
    pub cpu: usize,
    /// The instruction's address.
    pub pc: u64,
    /// The address that it used. For [`Rule::Smap`]: the instruction's own.
    pub address: u64,
    /// The frame that it reached, or that a stale translation leads to. For [`Rule::Root`]: the
    /// root. For [`Rule::Smap`]: the frame of the code.
    pub frame: u64,
    /// The frame's owner.
    pub owner: String,
    /// Details for [`Rule::Stale`].
    pub stale: Option<Stale>,
    /// Number of violations by this instruction.
    pub count: u64,
}

/// Counts of the oracle's checks.
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
    /// INT3s that ran at places where an instruction was being patched.
    #[serde(default)]
    pub breakpoints: u64,
    /// Changes of ownership that were seen.
    pub changes: u64,
    /// Leaves of the kernel half that were judged, windows included.
    pub leaves: u64,
    /// Translation tables of the kernel half at the end.
    pub tables: u64,
}

/// RFLAGS.AC in kernel mode, which switches SMAP off. All counts except those of trap frames are
/// kernel instructions that ran with AC set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SmapChecks {
    /// Trap frames that were read.
    pub frames: u64,
    /// Trap frames that interrupted a program with AC set.
    pub program_frames: u64,
    /// Instructions in the code that copies to and from programs.
    pub user_copies: u64,
    /// Instructions between a trap and the handler's CLAC, if that comes in time.
    pub entries: u64,
    /// Instructions elsewhere: each breaks [`Rule::Smap`].
    pub outside: u64,
}

impl SmapChecks {
    /// Returns the sums of both.
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

/// Layout that our kernel published: half-open ranges of virtual addresses, as they run (slide
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
    /// Distance of the image from its link address.
    pub slide: u64,
}

/// The oracle's part of the results.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Oracle {
    /// The kernel's publication; `None`: it published nothing, and nothing was checked.
    pub layout: Option<KernelLayout>,
    /// Time of the publication: checks begin there.
    pub since: u64,
    /// Numbers of checks.
    pub checks: Checks,
    /// Results about RFLAGS.AC.
    pub smap: SmapChecks,
    /// Broken rules, in order of time; at most as many as the settings allow.
    pub violations: Vec<Violation>,
    /// Number of all violations, repetitions included.
    pub total: u64,
    /// Ages of stale translations when they were used: entry n counts 2^n to 2^(n+1) - 1
    /// instructions.
    pub stale_windows: Vec<u64>,
}
