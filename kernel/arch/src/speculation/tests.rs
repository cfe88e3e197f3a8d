//! The choice on made-up CPUs, and the texts of Linux 6.1 on the emulated CPU.

use super::*;
use alloc::string::{String, ToString};

const INTEL: [u8; 12] = *b"GenuineIntel";
const AMD: [u8; 12] = *b"AuthenticAMD";

/// EAX of leaf 1.
fn signature(family: u32, model: u32) -> u32 {
    let (base, extended) = if family > 0xf { (0xf, family - 0xf) } else { (family, 0) };
    extended << 20 | (model & 0xf0) << 12 | base << 8 | (model & 0xf) << 4
}

/// Haswell of 2013 without new microcode: no later features.
fn old_intel() -> Tables {
    Tables {
        vendor: INTEL,
        signature: signature(6, 0x3c),
        leaf1_ecx: HYPERVISOR | AVX | RDRAND,
        leaf7_ebx: RTM,
        ..Tables::default()
    }
}

/// The same with the microcode of 2019: MD_CLEAR, SPEC_CTRL.
fn patched_intel() -> Tables {
    Tables { leaf7_edx: MD_CLEAR | SPEC_CTRL, ..old_intel() }
}

/// Sapphire Rapids.
fn new_intel() -> Tables {
    let says =
        RDCL_NO | IBRS_ALL | SSB_NO | MDS_NO | PSCHANGE_MC_NO | TAA_NO | MMIO_IMMUNE | GDS_NO | RFDS_NO;
    Tables {
        vendor: INTEL,
        signature: signature(6, 0x8f),
        leaf1_ecx: HYPERVISOR | AVX | RDRAND,
        leaf7_ebx: RDSEED | RTM,
        leaf7_edx: MD_CLEAR | SPEC_CTRL | ARCH_CAPABILITIES,
        capabilities: says,
        ..Tables::default()
    }
}

fn zen(family: u32, model: u32) -> Tables {
    Tables {
        vendor: AMD,
        signature: signature(family, model),
        leaf1_ecx: HYPERVISOR | AVX | RDRAND,
        leaf8_ebx: AMD_IBPB,
        ..Tables::default()
    }
}

/// QEMU's emulator with `-cpu max`.
fn tcg() -> Tables {
    Tables {
        vendor: AMD,
        signature: signature(0xf, 0x6b),
        leaf1_ecx: HYPERVISOR | AVX | RDRAND,
        leaf7_ebx: RDSEED,
        ..Tables::default()
    }
}

fn text_with(tables: &Tables, wanted: WantedMitigations, weakness: Weakness) -> String {
    Text { weakness, tables, done: Mitigations::choose(tables, wanted) }.to_string()
}

fn text(tables: &Tables, weakness: Weakness) -> String {
    text_with(tables, WantedMitigations::Auto, weakness)
}

#[test]
fn families_and_models_are_read_as_the_manuals_say() {
    for (tables, family, model) in [
        (old_intel(), 6, 0x3c),
        (zen(0x17, 0x31), 0x17, 0x31),
        (zen(0x19, 0x61), 0x19, 0x61),
        (tcg(), 0xf, 0x6b),
    ] {
        assert_eq!((tables.family(), tables.model()), (family, model));
    }
}

#[test]
fn the_emulated_cpu_has_what_linux_says_it_has() {
    let tables = tcg();
    for (weakness, _) in ALL {
        let expected = match weakness {
            W::SpectreV1 => "Mitigation: usercopy/swapgs barriers and __user pointer sanitization",
            W::SpectreV2 => "Vulnerable; STIBP: disabled",
            _ => "Not affected",
        };
        assert_eq!(text(&tables, weakness), expected, "{weakness:?}");
    }
    assert_eq!(Mitigations::choose(&tables, WantedMitigations::Auto), Mitigations::NONE);
}

#[test]
fn an_old_intel_cpu_without_microcode_is_vulnerable_to_nearly_all() {
    let tables = old_intel();
    for weakness in [W::Meltdown, W::L1tf, W::SpecStoreBypass] {
        assert_eq!(text(&tables, weakness), "Vulnerable", "{weakness:?}");
    }
    for weakness in [W::Mds, W::TsxAsyncAbort] {
        assert_eq!(text(&tables, weakness), "Vulnerable; SMT Host state unknown", "{weakness:?}");
    }
    assert_eq!(text(&tables, W::MmioStaleData), "Unknown: No mitigations");
    assert_eq!(text(&tables, W::Srbds), "Unknown: Dependent on hypervisor status");
    assert_eq!(text(&tables, W::ItlbMultihit), "Processor vulnerable");
    assert_eq!(text(&tables, W::SpectreV2), "Vulnerable; STIBP: disabled");
    assert_eq!(text(&tables, W::Retbleed), "Not affected");
    assert_eq!(Mitigations::choose(&tables, WantedMitigations::Auto), Mitigations::NONE);
}

#[test]
fn microcode_brings_verw_and_barriers_and_meltdown_stays() {
    let tables = patched_intel();
    let done = Mitigations::choose(&tables, WantedMitigations::Auto);
    assert!(done.clears_buffers && done.barrier_between_users);
    assert_eq!(done.indirect, IndirectBranches::Plain);
    assert_eq!(text(&tables, W::Mds), "Mitigation: Clear CPU buffers; SMT Host state unknown");
    assert_eq!(text(&tables, W::SpectreV2), "Vulnerable; IBPB: conditional; STIBP: disabled");
    assert_eq!(text(&tables, W::Meltdown), "Vulnerable");
}

#[test]
fn a_new_intel_cpu_needs_enhanced_ibrs_and_a_barrier_and_no_verw() {
    let tables = new_intel();
    let done = Mitigations::choose(&tables, WantedMitigations::Auto);
    let expected = Mitigations {
        indirect: IndirectBranches::Enhanced,
        barrier_between_users: true,
        clears_buffers: false,
    };
    assert_eq!(done, expected);
    for (weakness, _) in ALL {
        let expected = match weakness {
            W::SpectreV1 => "Mitigation: usercopy/swapgs barriers and __user pointer sanitization",
            W::SpectreV2 => "Mitigation: Enhanced / Automatic IBRS; IBPB: conditional",
            _ => "Not affected",
        };
        assert_eq!(text(&tables, weakness), expected, "{weakness:?}");
    }
}

#[test]
fn register_files_are_cleared_where_the_cpu_says_that_verw_does() {
    // Alder Lake, before and after its microcode.
    let says = RDCL_NO | IBRS_ALL | MDS_NO | PSCHANGE_MC_NO | TAA_NO;
    let mut tables = Tables { signature: signature(6, 0x97), capabilities: says, ..new_intel() };
    assert_eq!(text(&tables, W::RegFileDataSampling), "Vulnerable: No microcode");
    tables.capabilities |= RFDS_CLEAR;
    assert_eq!(text(&tables, W::RegFileDataSampling), "Mitigation: Clear Register File");
    assert!(Mitigations::choose(&tables, WantedMitigations::Auto).clears_buffers);
    assert_eq!(text(&tables, W::SpecStoreBypass), "Vulnerable");
    assert_eq!(text(&tables, W::MmioStaleData), "Not affected");
}

#[test]
fn zen_1_to_3_and_zen_5_differ_in_returns_and_in_store_queues() {
    let second = zen(0x17, 0x31);
    assert_eq!(text(&second, W::Meltdown), "Not affected");
    assert_eq!(text(&second, W::Mds), "Not affected");
    assert_eq!(text(&second, W::Retbleed), "Vulnerable");
    assert_eq!(text(&second, W::SpecRstackOverflow), "Vulnerable");
    assert_eq!(text(&second, W::Tsa), "Not affected");
    assert_eq!(text(&second, W::SpecStoreBypass), "Vulnerable");
    assert_eq!(text(&second, W::SpectreV2), "Vulnerable; IBPB: conditional; STIBP: disabled");

    let third = zen(0x19, 0x01);
    assert_eq!(text(&third, W::Retbleed), "Not affected");
    assert_eq!(text(&third, W::SpecRstackOverflow), "Vulnerable");
    assert_eq!(text(&third, W::Tsa), "Vulnerable: No microcode");

    let fourth = Tables { leaf21_eax: VERW_CLEAR | AUTO_IBRS, ..zen(0x19, 0x61) };
    assert_eq!(text(&fourth, W::Tsa), "Mitigation: Clear CPU buffers");
    assert_eq!(text(&fourth, W::SpectreV2), "Mitigation: Enhanced / Automatic IBRS; IBPB: conditional");
    assert_eq!(Mitigations::choose(&fourth, WantedMitigations::Auto).indirect, IndirectBranches::Automatic);

    let fifth = Tables { leaf21_eax: AUTO_IBRS | SRSO_NO, ..zen(0x1a, 0x44) };
    for weakness in [W::Retbleed, W::SpecRstackOverflow, W::Tsa] {
        assert_eq!(text(&fifth, weakness), "Not affected", "{weakness:?}");
    }
    assert!(!Mitigations::choose(&fifth, WantedMitigations::Auto).clears_buffers);
}

#[test]
fn an_atom_that_does_not_speculate_has_no_weakness() {
    let tables = Tables { signature: signature(6, 0x1c), ..old_intel() };
    assert!(ALL.iter().all(|&(weakness, _)| text(&tables, weakness) == "Not affected"));
}

#[test]
fn with_mitigations_off_nothing_is_done_and_nothing_else_is_said() {
    for tables in [patched_intel(), new_intel(), zen(0x19, 0x61)] {
        assert_eq!(Mitigations::choose(&tables, WantedMitigations::Off), Mitigations::NONE);
        for (weakness, _) in ALL {
            let said = text_with(&tables, WantedMitigations::Off, weakness);
            assert!(!said.contains("Mitigation") || weakness == W::SpectreV1, "{weakness:?}: {said}");
        }
    }
    assert_eq!(
        text_with(&patched_intel(), WantedMitigations::Off, W::SpectreV2),
        "Vulnerable; IBPB: disabled; STIBP: disabled"
    );
}

#[test]
fn a_mitigation_is_told_only_where_it_is_done() {
    // All bits that a CPU may report, each bit and in pairs, on a few models.
    let models = [(INTEL, 6, 0x3c), (INTEL, 6, 0x55), (INTEL, 6, 0x97), (AMD, 0x17, 1), (AMD, 0x19, 1)];
    for (vendor, family, model) in models {
        for (one, two) in (0..64).flat_map(|one| (0..64).map(move |two| (one, two))) {
            let tables = Tables {
                vendor,
                signature: signature(family, model),
                leaf7_edx: (1u64 << one) as u32 | ARCH_CAPABILITIES,
                leaf8_ebx: (1u64 << two) as u32,
                leaf21_eax: (1u64 << one) as u32,
                capabilities: 1 << one | 1 << two,
                ..Tables::default()
            };
            let done = Mitigations::choose(&tables, WantedMitigations::Auto);
            for (weakness, _) in ALL {
                let said = text(&tables, weakness);
                assert!(!said.contains("Clear") || done.clears_buffers || !said.starts_with("Mitigation"));
                assert!(!said.contains("IBRS") || done.indirect != IndirectBranches::Plain);
                assert!(!said.contains("conditional") || done.barrier_between_users);
            }
        }
    }
}
