//! The bits of a personality ([`Process::personality`](super::Process)) that have an effect.
//!
//! Source: include/uapi/linux/personality.h.

/// The bits that name a personality; the others are flags.
pub(super) const PER_MASK: u32 = 0xff;
/// The personality of 32-bit programs.
pub(super) const PER_LINUX32: u32 = 8;
/// uname(2) tells a release 2.6.
pub const UNAME26: u32 = 0x2_0000;
/// Programs begin at the same addresses each time.
pub const ADDR_NO_RANDOMIZE: u32 = 0x4_0000;
const MMAP_PAGE_ZERO: u32 = 0x10_0000;
const ADDR_COMPAT_LAYOUT: u32 = 0x20_0000;
/// Memory that can be read is executable.
pub const READ_IMPLIES_EXEC: u32 = 0x40_0000;
/// select, pselect and ppoll do not update their time-outs.
pub const STICKY_TIMEOUTS: u32 = 0x400_0000;
/// The flags that a program with more rights than its caller does not inherit (Linux:
/// PER_CLEAR_ON_SETID).
pub(super) const CLEARED_BY_GAINS: u32 =
    READ_IMPLIES_EXEC | ADDR_NO_RANDOMIZE | ADDR_COMPAT_LAYOUT | MMAP_PAGE_ZERO;
