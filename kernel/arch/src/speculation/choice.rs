//! A CPU's speculative-execution weaknesses and this kernel's mitigation of each: a pure function
//! of CPUID and IA32_ARCH_CAPABILITIES.
//!
//! Weaknesses and texts are those of Linux 6.1 (arch/x86/kernel/cpu/common.c, `cpu_set_bug_bits`,
//! and bugs.c, `cpu_show_common`; Documentation/admin-guide/hw-vuln). The texts describe this
//! kernel: if Linux has a mitigation that is missing here, the text begins with "Vulnerable". Page
//! tables are not isolated, absent entries are not inverted, stores may be bypassed, and indirect
//! branches are plain ones.

use core::fmt;

/// Properties that a CPU reports of itself. Registers are named as in the manuals: Intel SDM volume
/// 2, CPUID, and volume 4, MSR 10AH; AMD APM volume 3, appendix E.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tables {
    /// EBX, EDX, ECX of leaf 0, as text.
    pub vendor: [u8; 12],
    /// EAX of leaf 1: family, model, stepping.
    pub signature: u32,
    /// ECX of leaf 1.
    pub leaf1_ecx: u32,
    /// EBX of leaf 7.
    pub leaf7_ebx: u32,
    /// EDX of leaf 7.
    pub leaf7_edx: u32,
    /// EBX of leaf 0x80000008.
    pub leaf8_ebx: u32,
    /// EAX of leaf 0x80000021.
    pub leaf21_eax: u32,
    /// ECX of leaf 0x80000021.
    pub leaf21_ecx: u32,
    /// IA32_ARCH_CAPABILITIES; 0 if the CPU does not have it.
    pub capabilities: u64,
}

const HYPERVISOR: u32 = 1 << 31; // leaf 1 ECX
const AVX: u32 = 1 << 28;
const RDRAND: u32 = 1 << 30;
const RTM: u32 = 1 << 11; // leaf 7 EBX
const RDSEED: u32 = 1 << 18;
const MD_CLEAR: u32 = 1 << 10; // leaf 7 EDX
const SPEC_CTRL: u32 = 1 << 26;
/// Leaf 7 EDX: the CPU has IA32_ARCH_CAPABILITIES.
pub(super) const ARCH_CAPABILITIES: u32 = 1 << 29;
const AMD_IBPB: u32 = 1 << 12; // leaf 0x80000008 EBX
const AMD_SSB_NO: u32 = 1 << 26;
const VERW_CLEAR: u32 = 1 << 5; // leaf 0x80000021 EAX
const AUTO_IBRS: u32 = 1 << 8;
const SRSO_NO: u32 = 1 << 29;
const TSA_NO: u32 = 3 << 1; // leaf 0x80000021 ECX

const RDCL_NO: u64 = 1; // IA32_ARCH_CAPABILITIES
const IBRS_ALL: u64 = 1 << 1;
const RSBA: u64 = 1 << 2;
const SSB_NO: u64 = 1 << 4;
const MDS_NO: u64 = 1 << 5;
const PSCHANGE_MC_NO: u64 = 1 << 6;
const TSX_CTRL: u64 = 1 << 7;
const TAA_NO: u64 = 1 << 8;
const MMIO_IMMUNE: u64 = 7 << 13;
const FB_CLEAR: u64 = 1 << 17;
const GDS_NO: u64 = 1 << 26;
const RFDS_NO: u64 = 1 << 27;
const RFDS_CLEAR: u64 = 1 << 28;
const ITS_NO: u64 = 1 << 62;

/// A weakness, in the order of the files that report it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names are those of Linux' documentation")]
#[repr(u8)]
pub enum Weakness {
    GatherDataSampling,
    IndirectTargetSelection,
    ItlbMultihit,
    L1tf,
    Mds,
    Meltdown,
    MmioStaleData,
    RegFileDataSampling,
    Retbleed,
    SpecRstackOverflow,
    SpecStoreBypass,
    SpectreV1,
    SpectreV2,
    Srbds,
    Tsa,
    TsxAsyncAbort,
    Vmscape,
}

use Weakness as W;

/// Each weakness with the name of its file.
pub const ALL: [(Weakness, &str); 17] = [
    (W::GatherDataSampling, "gather_data_sampling"),
    (W::IndirectTargetSelection, "indirect_target_selection"),
    (W::ItlbMultihit, "itlb_multihit"),
    (W::L1tf, "l1tf"),
    (W::Mds, "mds"),
    (W::Meltdown, "meltdown"),
    (W::MmioStaleData, "mmio_stale_data"),
    (W::RegFileDataSampling, "reg_file_data_sampling"),
    (W::Retbleed, "retbleed"),
    (W::SpecRstackOverflow, "spec_rstack_overflow"),
    (W::SpecStoreBypass, "spec_store_bypass"),
    (W::SpectreV1, "spectre_v1"),
    (W::SpectreV2, "spectre_v2"),
    (W::Srbds, "srbds"),
    (W::Tsa, "tsa"),
    (W::TsxAsyncAbort, "tsx_async_abort"),
    (W::Vmscape, "vmscape"),
];

impl Weakness {
    /// The weakness' name among the bugs of /proc/cpuinfo (arch/x86/include/asm/cpufeatures.h,
    /// X86_BUG_*).
    pub const fn bug(self) -> &'static str {
        match self {
            W::GatherDataSampling => "gds",
            W::IndirectTargetSelection => "its",
            W::ItlbMultihit => "itlb_multihit",
            W::L1tf => "l1tf",
            W::Mds => "mds",
            W::Meltdown => "cpu_meltdown",
            W::MmioStaleData => "mmio_stale_data",
            W::RegFileDataSampling => "rfds",
            W::Retbleed => "retbleed",
            W::SpecRstackOverflow => "srso",
            W::SpecStoreBypass => "spec_store_bypass",
            W::SpectreV1 => "spectre_v1",
            W::SpectreV2 => "spectre_v2",
            W::Srbds => "srbds",
            W::Tsa => "tsa",
            W::TsxAsyncAbort => "taa",
            W::Vmscape => "vmscape",
        }
    }
}

/// A set of weaknesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Set(u32);

impl Set {
    const NONE: Self = Self(0);
    const fn of(list: &[Weakness]) -> Self {
        let mut bits = 0;
        let mut at = 0;
        while at < list.len() {
            bits |= 1 << list[at] as u8;
            at += 1;
        }
        Self(bits)
    }
    /// Whether `weakness` is in it.
    pub const fn has(self, weakness: Weakness) -> bool {
        self.0 & 1 << weakness as u8 != 0
    }
    fn put(&mut self, weakness: Weakness, is_there: bool) {
        self.0 |= u32::from(is_there) << weakness as u8;
    }
}

/// Intel models of family 6 without some of the weaknesses that are otherwise assumed
/// (`cpu_vuln_whitelist`). SpectreV1 stands for "does not speculate at all".
const SPARED: &[(&[u32], Set)] = &[
    (&[0x1c, 0x26, 0x27, 0x35, 0x36], Set::of(&[W::SpectreV1, W::ItlbMultihit])),
    (&[0x37, 0x4a, 0x4c, 0x4d, 0x57, 0x85], Set::of(&[W::SpecStoreBypass, W::L1tf, W::ItlbMultihit])),
    (&[0x0e], Set::of(&[W::SpecStoreBypass])),
    (&[0x5a, 0x75], Set::of(&[W::L1tf, W::ItlbMultihit])),
    (&[0x5c, 0x5f, 0x7a], Set::of(&[W::Mds, W::L1tf, W::ItlbMultihit, W::MmioStaleData])),
    (&[0x86, 0x96, 0x9c], Set::of(&[W::ItlbMultihit])),
    (&[0x8c, 0x8d, 0x97, 0x9a], Set::of(&[W::MmioStaleData])),
];

/// Intel models of family 6 with weaknesses that are otherwise not assumed (`cpu_vuln_blacklist`).
const STRICKEN: &[(&[u32], Set)] = &[
    (&[0x3a, 0x3c, 0x45, 0x46, 0x47, 0x3d], Set::of(&[W::Srbds])),
    (&[0x3f, 0x56, 0x4f], Set::of(&[W::MmioStaleData])),
    (&[0x55], Set::of(&[W::MmioStaleData, W::Retbleed, W::GatherDataSampling, W::IndirectTargetSelection])),
    (&[0x4e, 0x5e], Set::of(&[W::Srbds, W::MmioStaleData, W::Retbleed, W::GatherDataSampling])),
    (
        &[0x8e, 0x9e],
        Set::of(&[
            W::Srbds,
            W::MmioStaleData,
            W::Retbleed,
            W::GatherDataSampling,
            W::IndirectTargetSelection,
        ]),
    ),
    (&[0x66], Set::of(&[W::Retbleed])),
    (
        &[0x7e, 0xa5, 0xa6, 0xa7],
        Set::of(&[W::MmioStaleData, W::Retbleed, W::GatherDataSampling, W::IndirectTargetSelection]),
    ),
    (&[0x6a, 0x6c], Set::of(&[W::MmioStaleData, W::GatherDataSampling, W::IndirectTargetSelection])),
    (&[0x8c, 0x8d], Set::of(&[W::GatherDataSampling, W::IndirectTargetSelection])),
    (&[0x8a], Set::of(&[W::MmioStaleData, W::Retbleed])),
    (&[0x97, 0x9a, 0xb7, 0xba, 0xbf, 0xbe, 0x5c, 0x5f, 0x7a], Set::of(&[W::RegFileDataSampling])),
    (&[0x86, 0x96, 0x9c], Set::of(&[W::MmioStaleData, W::RegFileDataSampling])),
];

fn listed(lists: &[(&[u32], Set)], model: u32) -> Set {
    lists
        .iter()
        .filter(|(models, _)| models.contains(&model))
        .fold(Set::NONE, |all, (_, set)| Set(all.0 | set.0))
}

impl Tables {
    fn is_intel(&self) -> bool {
        self.vendor == *b"GenuineIntel"
    }
    fn is_amd(&self) -> bool {
        [b"AuthenticAMD", b"HygonGenuine"].contains(&&self.vendor)
    }
    fn family(&self) -> u32 {
        let base = self.signature >> 8 & 0xf;
        if base == 0xf { base + (self.signature >> 20 & 0xff) } else { base }
    }
    fn model(&self) -> u32 {
        self.signature >> 12 & 0xf0 | self.signature >> 4 & 0xf
    }
    fn says(&self, capability: u64) -> bool {
        self.capabilities & capability != 0
    }
    fn is_guest(&self) -> bool {
        self.leaf1_ecx & HYPERVISOR != 0
    }
    fn has_ibpb(&self) -> bool {
        self.leaf7_edx & SPEC_CTRL != 0 || self.leaf8_ebx & AMD_IBPB != 0
    }
    /// Whether VERW clears buffers (Intel SDM volume 3, "Microarchitectural Data Sampling"; AMD's
    /// note on TSA).
    fn has_clearing_verw(&self) -> bool {
        self.leaf7_edx & MD_CLEAR != 0
            || self.says(FB_CLEAR | RFDS_CLEAR)
            || self.leaf21_eax & VERW_CLEAR != 0
    }

    /// Whether stale data of devices' registers are a weakness that is neither confirmed nor denied
    /// for this model.
    fn is_mmio_unknown(&self) -> bool {
        !(self.is_intel() && self.family() == 6 && listed(STRICKEN, self.model()).has(W::MmioStaleData))
    }

    /// Returns the weaknesses of the CPU, before any mitigation.
    pub fn weaknesses(&self) -> Set {
        let intel_6 = self.is_intel() && self.family() == 6;
        let model = self.model();
        let spared = if intel_6 { listed(SPARED, model) } else { Set::NONE };
        let stricken = if intel_6 { listed(STRICKEN, model) } else { Set::NONE };
        let amd = self.is_amd();
        let assumed = |weakness| !amd && !spared.has(weakness);
        let mut set = Set::NONE;
        set.put(W::ItlbMultihit, assumed(W::ItlbMultihit) && !self.says(PSCHANGE_MC_NO));
        if spared.has(W::SpectreV1) {
            return set;
        }
        set.put(W::SpectreV1, true);
        set.put(W::SpectreV2, true);
        let amd_without_bypass = amd && (0xf..=0x12).contains(&self.family());
        set.put(
            W::SpecStoreBypass,
            !spared.has(W::SpecStoreBypass)
                && !amd_without_bypass
                && !self.says(SSB_NO)
                && self.leaf8_ebx & AMD_SSB_NO == 0,
        );
        set.put(W::Mds, assumed(W::Mds) && !self.says(MDS_NO));
        let has_transactions = self.leaf7_ebx & RTM != 0 || self.says(TSX_CTRL);
        set.put(W::TsxAsyncAbort, has_transactions && !self.says(TAA_NO));
        let draws = self.leaf1_ecx & RDRAND != 0 || self.leaf7_ebx & RDSEED != 0;
        set.put(W::Srbds, draws && stricken.has(W::Srbds));
        let immune = self.capabilities & MMIO_IMMUNE == MMIO_IMMUNE;
        set.put(W::MmioStaleData, !immune && (stricken.has(W::MmioStaleData) || assumed(W::MmioStaleData)));
        let gathers = self.leaf1_ecx & AVX != 0;
        set.put(W::GatherDataSampling, gathers && stricken.has(W::GatherDataSampling) && !self.says(GDS_NO));
        set.put(W::IndirectTargetSelection, stricken.has(W::IndirectTargetSelection) && !self.says(ITS_NO));
        set.put(
            W::RegFileDataSampling,
            !self.says(RFDS_NO) && (self.says(RFDS_CLEAR) || stricken.has(W::RegFileDataSampling)),
        );
        let zen_1_2 = amd && (0x17..=0x18).contains(&self.family());
        let zen_3_4 = amd && self.family() == 0x19;
        let amd_returns = amd && (0x15..=0x18).contains(&self.family());
        set.put(W::Retbleed, amd_returns || stricken.has(W::Retbleed) || self.says(RSBA));
        set.put(W::SpecRstackOverflow, (zen_1_2 || zen_3_4) && self.leaf21_eax & SRSO_NO == 0);
        set.put(W::Tsa, zen_3_4 && self.leaf21_ecx & TSA_NO != TSA_NO);
        set.put(W::Meltdown, !amd && !self.says(RDCL_NO));
        set.put(W::L1tf, assumed(W::L1tf) && !self.says(RDCL_NO));
        set
    }
}

/// Mitigations that the command line requests (`mitigations=`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WantedMitigations {
    /// Mitigations that the CPU needs.
    #[default]
    Auto,
    /// No mitigations.
    Off,
}

/// Protection of the kernel's indirect branches from a program's predictions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IndirectBranches {
    /// No protection.
    Plain,
    /// IA32_SPEC_CTRL.IBRS, set once.
    Enhanced,
    /// EFER.AutomaticIBRS, set once.
    Automatic,
}

/// Mitigations in use. The LFENCEs after SWAPGS and STAC are always there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mitigations {
    /// Indirect branches of the kernel.
    pub indirect: IndirectBranches,
    /// Whether predictions are cleared (IBPB) when a CPU switches from one user's program to
    /// another's.
    pub barrier_between_users: bool,
    /// Whether buffers are cleared (VERW) on the way to user mode.
    pub clears_buffers: bool,
}

impl Mitigations {
    /// No mitigation.
    pub const NONE: Self =
        Self { indirect: IndirectBranches::Plain, barrier_between_users: false, clears_buffers: false };

    /// Returns the mitigations that the CPU of `tables` needs and supports.
    pub fn choose(tables: &Tables, wanted: WantedMitigations) -> Self {
        if wanted == WantedMitigations::Off {
            return Self::NONE;
        }
        let weak = tables.weaknesses();
        let indirect = if tables.says(IBRS_ALL) && tables.leaf7_edx & SPEC_CTRL != 0 {
            IndirectBranches::Enhanced
        } else if tables.leaf21_eax & AUTO_IBRS != 0 {
            IndirectBranches::Automatic
        } else {
            IndirectBranches::Plain
        };
        let is_sampled = [W::Mds, W::TsxAsyncAbort, W::RegFileDataSampling, W::Tsa]
            .iter()
            .any(|&weakness| weak.has(weakness))
            || weak.has(W::MmioStaleData) && !tables.is_mmio_unknown();
        Self {
            indirect,
            barrier_between_users: weak.has(W::SpectreV2) && tables.has_ibpb(),
            clears_buffers: is_sampled && tables.has_clearing_verw(),
        }
    }
}

/// The text of a weakness' file, without a newline.
pub struct Text<'a> {
    /// The weakness.
    pub weakness: Weakness,
    /// The CPU.
    pub tables: &'a Tables,
    /// Mitigations in use.
    pub done: Mitigations,
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.tables.weaknesses().has(self.weakness) {
            return f.write_str("Not affected");
        }
        match self.weakness {
            W::ItlbMultihit => f.write_str("Processor vulnerable"),
            W::SpectreV1 => {
                f.write_str("Mitigation: usercopy/swapgs barriers and __user pointer sanitization")
            }
            W::SpectreV2 => self.spectre_v2(f),
            W::Retbleed if self.done.indirect == IndirectBranches::Enhanced => {
                f.write_str("Mitigation: Enhanced IBRS")
            }
            // Microcode mitigates these two, and the host decides what a guest sees of it.
            W::Srbds | W::GatherDataSampling if self.tables.is_guest() => {
                f.write_str("Unknown: Dependent on hypervisor status")
            }
            W::Mds | W::TsxAsyncAbort => self.buffers(f, self.tables.leaf7_edx & MD_CLEAR != 0),
            W::MmioStaleData if self.tables.is_mmio_unknown() => f.write_str("Unknown: No mitigations"),
            W::MmioStaleData => {
                let means = self.tables.says(FB_CLEAR) || self.tables.leaf7_edx & MD_CLEAR != 0;
                self.buffers(f, means)
            }
            W::RegFileDataSampling if !self.tables.says(RFDS_CLEAR) => {
                f.write_str("Vulnerable: No microcode")
            }
            W::RegFileDataSampling if self.done.clears_buffers => {
                f.write_str("Mitigation: Clear Register File")
            }
            W::Tsa if self.tables.leaf21_eax & VERW_CLEAR == 0 => f.write_str("Vulnerable: No microcode"),
            W::Tsa if self.done.clears_buffers => f.write_str("Mitigation: Clear CPU buffers"),
            _ => f.write_str("Vulnerable"),
        }
    }
}

impl Text<'_> {
    fn spectre_v2(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.done.indirect {
            IndirectBranches::Plain => "Vulnerable",
            IndirectBranches::Enhanced | IndirectBranches::Automatic => {
                "Mitigation: Enhanced / Automatic IBRS"
            }
        })?;
        if self.tables.has_ibpb() {
            let barrier = if self.done.barrier_between_users { "conditional" } else { "disabled" };
            write!(f, "; IBPB: {barrier}")?;
        }
        if self.done.indirect == IndirectBranches::Plain { f.write_str("; STIBP: disabled") } else { Ok(()) }
    }

    /// A weakness that VERW mitigates, if the CPU has the `means` for it.
    fn buffers(&self, f: &mut fmt::Formatter<'_>, means: bool) -> fmt::Result {
        f.write_str(match (self.done.clears_buffers, means) {
            (true, true) => "Mitigation: Clear CPU buffers",
            (true, false) => "Vulnerable: Clear CPU buffers attempted, no microcode",
            (false, _) => "Vulnerable",
        })?;
        f.write_str(if self.tables.is_guest() { "; SMT Host state unknown" } else { "; SMT vulnerable" })
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
