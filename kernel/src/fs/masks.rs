//! Sets of CPUs and nodes as text.

use core::fmt::{self, Display, Formatter};

/// Formats a mask of `count` bits as Linux does: groups of 32 bits in hexadecimal, separated by
/// commas.
pub fn mask(bits: u64, count: usize) -> Mask {
    Mask { bits, count }
}

/// Result of [`mask`].
#[derive(Clone, Copy, Debug)]
pub struct Mask {
    bits: u64,
    count: usize,
}

impl Display for Mask {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { bits, count } = *self;
        let groups = count.div_ceil(32).clamp(1, 2);
        (0..groups).rev().try_for_each(|group| {
            let width = if group + 1 == groups { (count - group * 32).div_ceil(4).max(1) } else { 8 };
            let comma = if group == 0 { "" } else { "," };
            write!(f, "{:0width$x}{comma}", bits >> (32 * group) & 0xffff_ffff)
        })
    }
}

/// Formats a bit mask as a list of ranges: "0-3,8".
pub fn list(bits: u64) -> List {
    List(bits)
}

/// Result of [`list`].
#[derive(Clone, Copy, Debug)]
pub struct List(u64);

impl Display for List {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (mut left, mut comma) = (self.0, "");
        while left != 0 {
            let start = left.trailing_zeros();
            let end = start + (left >> start).trailing_ones() - 1;
            if end == start {
                write!(f, "{comma}{start}")?
            } else {
                write!(f, "{comma}{start}-{end}")?
            }
            comma = ",";
            // Adding 1 at the run's start clears the run. The carry sets a zero bit, which the AND
            // clears, or is lost.
            left &= left.wrapping_add(1 << start);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use freehold_collections::try_format;

    use super::*;

    /// Masks have as many digits as there are bits, in groups of 32; lists name runs.
    #[test]
    fn sets_read_as_linux_prints_them() {
        assert_eq!(try_format!("{}", mask(1, 1)).unwrap(), "1");
        assert_eq!(try_format!("{}", mask(0x5, 6)).unwrap(), "05");
        assert_eq!(try_format!("{}", mask(1 << 35 | 1, 40)).unwrap(), "08,00000001");
        assert_eq!(try_format!("{}", mask(u64::MAX, 64)).unwrap(), "ffffffff,ffffffff");
        assert_eq!(try_format!("{}", list(0)).unwrap(), "");
        assert_eq!(try_format!("{}", list(1)).unwrap(), "0");
        assert_eq!(try_format!("{}", list(0b1110_1011)).unwrap(), "0-1,3,5-7");
        assert_eq!(try_format!("{}", list(u64::MAX)).unwrap(), "0-63");
        assert_eq!(try_format!("{}", list(1 << 63)).unwrap(), "63");
    }
}
