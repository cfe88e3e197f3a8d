//! Sizes, lists of CPUs and the other small languages of the command line.

use std::collections::BTreeSet;

use crate::Result;
use crate::failure::Failure;

/// Bytes in a mebibyte.
pub const MIB: u64 = 1 << 20;

/// Parses `512M`, `1.5G`, `65536K`; a bare number is MiB, as in QEMU. Returns bytes, always more
/// than 0.
///
/// # Errors
/// Any other text, sizes of more than 64 bits, and fractions that are no whole number of bytes.
pub fn parse_size(option: &str, text: &str) -> Result<u64> {
    let wrong = || {
        Failure::new(
            format!("{option} {text}: not a size"),
            "write a number and K, M or G, for example 512M or 1.5G",
        )
    };
    let text_trimmed = text.trim();
    let digits = text_trimmed.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match &text_trimmed[digits.len()..].to_ascii_uppercase()[..] {
        "K" | "KB" | "KIB" => 1 << 10,
        "" | "M" | "MB" | "MIB" => MIB,
        "G" | "GB" | "GIB" => 1 << 30,
        "T" | "TB" | "TIB" => 1 << 40,
        _ => return Err(wrong()),
    };
    match times(digits, unit) {
        Some(bytes) if bytes > 0 => Ok(bytes),
        _ => Err(wrong()),
    }
}

/// Multiplies a decimal number by `unit`, exactly; `None` if the text is no number, or the result
/// is too large or not whole.
fn times(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) {
        return None;
    }
    let scale = 10u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let parts = whole.parse::<u128>().ok()?.checked_mul(scale)?.checked_add(fraction.parse().ok()?)?;
    let scaled = parts.checked_mul(u128::from(unit))?;
    scaled.is_multiple_of(scale).then(|| u64::try_from(scaled / scale).ok())?
}

/// Formats a size in the largest unit that divides it: the form of QEMU's options.
pub fn show_size(bytes: u64) -> String {
    for (unit, name) in [(1 << 30, "G"), (MIB, "M"), (1 << 10, "K")] {
        if bytes.is_multiple_of(unit) {
            return format!("{}{name}", bytes / unit);
        }
    }
    format!("{bytes}B")
}

/// Parses `0-3,7`: CPU numbers below `cpus`.
pub fn parse_cpus(text: &str, cpus: u32) -> Result<BTreeSet<u32>> {
    let wrong = |why: &str| Failure::new(format!("cpus={text}: {why}"), "write CPU numbers like 0-1 or 0,2");
    let mut set = BTreeSet::new();
    for part in text.split([',', '+']).filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: u32 = first.parse().map_err(|_| wrong("not a list of CPUs"))?;
        let last: u32 = last.parse().map_err(|_| wrong("not a list of CPUs"))?;
        if first > last {
            return Err(wrong("the range runs backwards"));
        }
        if last >= cpus {
            return Err(wrong(&match cpus {
                1 => "there is only 1 CPU (see --cpus)".into(),
                _ => format!("there are only {cpus} CPUs (see --cpus)"),
            }));
        }
        set.extend(first..=last);
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_a_bare_number_is_mib() {
        assert_eq!(parse_size("-m", "512M").expect("size"), 512 * MIB);
        assert_eq!(parse_size("-m", "512").expect("size"), 512 * MIB);
        assert_eq!(parse_size("-m", "1g").expect("size"), 1 << 30);
        assert_eq!(parse_size("-m", "64KiB").expect("size"), 65536);
        assert_eq!(parse_size("-m", "1.5G").expect("size"), 1536 * MIB);
        assert_eq!(parse_size("-m", "0.25M").expect("size"), 256 << 10);
        let long = format!("1.{}G", "0".repeat(60));
        for bad in [
            "",
            "M",
            "0",
            "12Q",
            "-3M",
            "+3M",
            "1.G",
            ".5G",
            "1.2.3G",
            "0.3K",
            "0.0M",
            "99999999999999999T",
            &long,
        ] {
            assert!(parse_size("-m", bad).is_err(), "{bad} is no size");
        }
    }

    #[test]
    fn a_size_is_shown_in_its_largest_whole_unit() {
        assert_eq!(show_size(512 * MIB), "512M");
        assert_eq!(show_size(2 << 30), "2G");
        assert_eq!(show_size(1536), "1536B");
    }

    #[test]
    fn cpu_lists_stay_within_the_machine() {
        let set = parse_cpus("0-2,5", 8).expect("list");
        assert_eq!(set.into_iter().collect::<Vec<_>>(), [0, 1, 2, 5]);
        assert!(parse_cpus("0-8", 8).is_err());
        assert!(parse_cpus("3-1", 8).is_err());
        assert!(parse_cpus("x", 8).is_err());
    }
}
