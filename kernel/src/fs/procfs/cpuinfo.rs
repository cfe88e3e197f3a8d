//! /proc/cpuinfo: CPUID's data under Linux' names.

use core::arch::x86_64::__cpuid_count;

use crate::fs::generated::{ShortLine, Text};

/// Names of the bits of a CPUID register, from bit 0 on. Empty names are not shown.
struct FeatureWord {
    leaf: u32,
    register: fn(u32) -> u32,
    names: &'static str,
}

/// Bits by their Linux names (Intel SDM volume 2, CPUID; AMD APM volume 3, appendix E); "-" for
/// none.
const WORDS: &[FeatureWord] = &[
    FeatureWord {
        leaf: 1,
        register: |leaf| cpuid(leaf)[3],
        names: "fpu vme de pse tsc msr pae mce cx8 apic - sep mtrr pge mca cmov pat pse36 pn clflush - dts acpi \
                mmx fxsr sse sse2 ss ht tm ia64 pbe",
    },
    FeatureWord {
        leaf: 0x8000_0001,
        register: |leaf| cpuid(leaf)[3],
        names: "- - - - - - - - - - - syscall - - - - - - - mp nx - mmxext - - fxsr_opt pdpe1gb rdtscp - lm \
                3dnowext 3dnow",
    },
    FeatureWord {
        leaf: 1,
        register: |leaf| cpuid(leaf)[2],
        names: "pni pclmulqdq dtes64 monitor ds_cpl vmx smx est tm2 ssse3 cid sdbg fma cx16 xtpr pdcm - pcid dca \
                sse4_1 sse4_2 x2apic movbe popcnt tsc_deadline_timer aes xsave osxsave avx f16c rdrand hypervisor",
    },
    FeatureWord {
        leaf: 0x8000_0001,
        register: |leaf| cpuid(leaf)[2],
        names: "lahf_lm cmp_legacy svm extapic cr8_legacy abm sse4a misalignsse 3dnowprefetch osvw ibs xop skinit \
                wdt - lwp fma4 tce",
    },
    FeatureWord {
        leaf: 7,
        register: |leaf| cpuid(leaf)[1],
        names: "fsgsbase tsc_adjust sgx bmi1 hle avx2 - smep bmi2 erms invpcid rtm cqm - mpx rdt_a avx512f \
                avx512dq rdseed adx smap avx512ifma - clflushopt clwb intel_pt avx512pf avx512er avx512cd sha_ni \
                avx512bw avx512vl",
    },
    FeatureWord {
        leaf: 7,
        register: |leaf| cpuid(leaf)[2],
        names: "- avx512vbmi umip pku ospke waitpkg avx512_vbmi2 - gfni vaes vpclmulqdq avx512_vnni \
                avx512_bitalg tme avx512_vpopcntdq - la57 - - - - - rdpid",
    },
];

/// EAX, EBX, ECX and EDX of a leaf; zeroes if the CPU does not have the leaf.
fn cpuid(leaf: u32) -> [u32; 4] {
    let highest = __cpuid_count(leaf & 0x8000_0000, 0).eax;
    if leaf > highest {
        return [0; 4];
    }
    let result = __cpuid_count(leaf, 0);
    [result.eax, result.ebx, result.ecx, result.edx]
}

/// The text in these registers, without NULs and blanks around it.
fn text_of(words: impl IntoIterator<Item = u32>) -> ShortLine {
    let mut whole = ShortLine::new();
    words.into_iter().for_each(|word| whole.push(&word.to_le_bytes()));
    let is_text = |&byte: &u8| byte != 0 && byte != b' ';
    let bytes = whole.bytes();
    let start = bytes.iter().position(is_text).unwrap_or(bytes.len());
    let end = bytes.iter().rposition(is_text).map_or(start, |last| last + 1);
    ShortLine::of(&bytes[start..end])
}

/// The vendor's name ("AuthenticAMD").
fn vendor() -> ShortLine {
    let [_, b, c, d] = cpuid(0);
    text_of([b, d, c])
}

/// The product's name.
fn brand() -> ShortLine {
    text_of((0x8000_0002..=0x8000_0004).flat_map(cpuid))
}

/// Family, model and stepping.
fn signature() -> (u32, u32, u32) {
    let eax = cpuid(1)[0];
    let base = eax >> 8 & 0xf;
    let family = if base == 0xf { base + (eax >> 20 & 0xff) } else { base };
    let extended = if base == 0xf || base == 6 { eax >> 16 & 0xf } else { 0 };
    (family, extended << 4 | eax >> 4 & 0xf, eax & 0xf)
}

/// Writes one paragraph for CPU `index` of `count`, whose counter runs at `frequency` Hz.
pub fn show(out: &mut Text, index: usize, count: usize, frequency: u64) {
    let (family, model, stepping) = signature();
    let brand = brand();
    let addresses = cpuid(0x8000_0008)[0];
    let khz = frequency / 1000;
    write!(out, "processor\t: {index}\nvendor_id\t: ");
    out.push(vendor().bytes());
    write!(out, "\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: ");
    out.push(if brand.bytes().is_empty() { b"unknown" } else { brand.bytes() });
    writeln!(out, "\nstepping\t: {stepping}");
    writeln!(out, "cpu MHz\t\t: {}.{:03}", khz / 1000, khz % 1000);
    writeln!(out, "physical id\t: 0\nsiblings\t: {count}\ncore id\t\t: {index}\ncpu cores\t: {count}");
    writeln!(out, "apicid\t\t: {index}\ninitial apicid\t: {index}");
    write!(
        out,
        "fpu\t\t: yes\nfpu_exception\t: yes\ncpuid level\t: {}\nwp\t\t: yes\nflags\t\t:",
        cpuid(0)[0]
    );
    for word in WORDS {
        let bits = (word.register)(word.leaf);
        for (bit, name) in word.names.split_whitespace().enumerate() {
            if bits & 1 << bit != 0 && name != "-" {
                write!(out, " {name}");
            }
        }
    }
    let bogo = frequency / 5000;
    write!(out, "\nbugs\t\t:");
    for name in crate::hw::bugs() {
        write!(out, " {name}");
    }
    writeln!(out, "\nbogomips\t: {}.{:02}\nclflush size\t: 64", bogo / 100, bogo % 100);
    writeln!(out, "cache_alignment\t: 64");
    let (physical, linear) = (addresses & 0xff, addresses >> 8 & 0xff);
    writeln!(out, "address sizes\t: {physical} bits physical, {linear} bits virtual\npower management:\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every x86-64 CPU has the bits that the architecture requires, under Linux' names.
    #[test]
    fn the_flags_of_x86_64_are_named() {
        let mut out = Text::new();
        show(&mut out, 3, 4, 2_100_000_000);
        let text = out.finish().unwrap();
        let text = core::str::from_utf8(&text).unwrap();
        let flags = text.lines().find(|line| line.starts_with("flags")).unwrap();
        for flag in ["fpu", "tsc", "cx8", "cmov", "fxsr", "sse2", "syscall", "nx", "lm"] {
            assert!(flags.split(' ').any(|name| name == flag), "{flag} in {flags}");
        }
        assert!(text.contains("cpu MHz\t\t: 2100.000\n") && text.contains("processor\t: 3\n"));
        assert!(!vendor().bytes().is_empty());
        let words = [b"  ab", b"c d\0"].map(|word| u32::from_le_bytes(*word));
        assert_eq!(text_of(words).bytes(), b"abc d");
        assert_eq!(text_of([0, 0]).bytes(), b"");
    }
}
