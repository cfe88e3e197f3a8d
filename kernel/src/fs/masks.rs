//! Sets of CPUs and nodes as text.

use alloc::string::String;
use core::fmt::Write as _;

/// A bit mask as Linux prints one of `bits` bits: groups of 32 in hexadecimal, comma between.
pub fn mask(bits: u64, count: usize) -> String {
    let mut text = String::new();
    let groups = count.div_ceil(32).clamp(1, 2);
    for group in (0..groups).rev() {
        let width = if group + 1 == groups { (count - group * 32).div_ceil(4).max(1) } else { 8 };
        let comma = if group == 0 { "" } else { "," };
        // Writing to a string cannot fail.
        let _ = write!(text, "{:0width$x}{comma}", bits >> (32 * group) & 0xffff_ffff);
    }
    text
}

/// A bit mask as a list of ranges: "0-3,8".
pub fn list(bits: u64) -> String {
    let mut text = String::new();
    let mut at = 0;
    while at < 64 {
        if bits >> at & 1 == 0 {
            at += 1;
            continue;
        }
        let length = (bits >> at).trailing_ones();
        let comma = if text.is_empty() { "" } else { "," };
        let end = at + length - 1;
        // Writing to a string cannot fail.
        let _ = if end == at { write!(text, "{comma}{at}") } else { write!(text, "{comma}{at}-{end}") };
        at += length;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Masks have as many digits as there are bits, in groups of 32; lists name runs.
    #[test]
    fn sets_read_as_linux_prints_them() {
        assert_eq!(mask(1, 1), "1");
        assert_eq!(mask(0x5, 6), "05");
        assert_eq!(mask(1 << 35 | 1, 40), "08,00000001");
        assert_eq!(mask(u64::MAX, 64), "ffffffff,ffffffff");
        assert_eq!(list(0), "");
        assert_eq!(list(1), "0");
        assert_eq!(list(0b1110_1011), "0-1,3,5-7");
        assert_eq!(list(u64::MAX), "0-63");
        assert_eq!(list(1 << 63), "63");
    }
}
