//! Restartable sequences: rseq(2) in the form of Linux 6.3 and later (kernel/rseq.c,
//! include/uapi/linux/rseq.h). `sections.rs` has the operations.
//!
//! A thread registers an area of its memory. There the kernel stores the thread's CPU, that CPU's
//! node and the thread's concurrency ID ([`crate::sched::whereabouts`]), and reads the thread's
//! critical section. A thread that was preempted, moved to another CPU or takes a signal in its
//! section continues at the section's abort handler. An error in the memory or the section is
//! SIGSEGV, since the program would go on with a wrong number of its CPU.
//!
//! | offset | bytes | content | written by |
//! |---|---|---|---|
//! | 0 | 4 | the CPU, 0 if nothing is registered | kernel |
//! | 4 | 4 | the CPU, -1 if nothing is registered | kernel |
//! | 8 | 8 | address of a [`Section`], or 0 | both |
//! | 16 | 4 | flags, which are all obsolete: must be 0 | program |
//! | 20 | 4 | the CPU's node | kernel |
//! | 24 | 4 | the concurrency ID | kernel |
//!
//! **Checks.** A section is checked when its thread returns from an interrupt or a fault and had
//! left its CPU meanwhile, and before a signal's handler is entered. A system call does not abort a
//! section: a section must not contain one (Linux kills such a program if it checks, and otherwise
//! continues). The numbers are stored when they have changed. A child of fork inherits its parent's
//! registration and bytes. A child that shares its creator's memory has none.
//!
//! **Cost.** A thread that is not preempted and not moved pays nothing: a CPU that moves it marks
//! it.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// A thread's registered memory. Only the thread itself and its creator access it.
#[derive(Debug, Default)]
pub struct Registration {
    /// The address of the registered memory; 0 if nothing is registered.
    pub(super) address: AtomicU64,
    pub(super) length: AtomicU32,
    pub(super) signature: AtomicU32,
    /// Values last stored in the memory: CPU, node and ID, each + 1 and in 16 bits; 0 if unknown.
    pub(super) told: AtomicU64,
    /// Whether the thread was interrupted and has left its CPU: its section is then aborted.
    pub(super) preempted: AtomicBool,
}

impl Registration {
    /// Whether memory is registered.
    pub(super) fn is_there(&self) -> bool {
        self.address.load(Ordering::Relaxed) != 0
    }
    /// Inherits the registration of `parent`, whose memory was copied.
    pub(super) fn inherit(&self, parent: &Self) {
        self.address.store(parent.address.load(Ordering::Relaxed), Ordering::Relaxed);
        self.length.store(parent.length.load(Ordering::Relaxed), Ordering::Relaxed);
        self.signature.store(parent.signature.load(Ordering::Relaxed), Ordering::Relaxed);
        self.told.store(parent.told.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Size of Linux' first form.
const FIRST_LENGTH: u32 = 32;
/// Alignment of the first form and of every later one (AT_RSEQ_ALIGN).
pub const ALIGNMENT: u64 = 32;
/// Number of bytes that the kernel uses (AT_RSEQ_FEATURE_SIZE).
pub const FEATURE_SIZE: u64 = 28;

/// Whether `length` bytes at `address` may be registered.
pub(super) fn is_acceptable(address: u64, length: u32) -> bool {
    address.is_multiple_of(ALIGNMENT)
        && (length == FIRST_LENGTH || u64::from(length) >= FEATURE_SIZE.max(FIRST_LENGTH.into()))
}

/// `struct rseq_cs`: a critical section.
#[derive(Clone, Copy, Debug, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
#[repr(C)]
pub(super) struct Section {
    version: u32,
    pub(super) flags: u32,
    start: u64,
    length: u64,
    pub(super) abort: u64,
}

impl Section {
    /// Whether the section lies below `end`, and its handler outside of the section.
    pub(super) fn is_sound(&self, end: u64) -> bool {
        let Some(after) = self.start.checked_add(self.length) else { return false };
        self.version == 0 && self.start < end && after < end && self.abort < end && !self.contains(self.abort)
    }
    pub(super) fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.start) < self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: u64 = 0x7fff_ffff_f000;

    fn section(start: u64, length: u64, abort: u64) -> Section {
        Section { version: 0, flags: 0, start, length, abort }
    }

    #[test]
    fn a_section_is_below_the_end_of_addresses_and_its_handler_is_outside() {
        assert!(section(0x1000, 16, 0x2000).is_sound(END));
        assert!(section(0x1000, 16, 0x1010).is_sound(END) && section(0x1000, 16, 0xfff).is_sound(END));
        assert!(!section(0x1000, 16, 0x1000).is_sound(END) && !section(0x1000, 16, 0x100f).is_sound(END));
        assert!(!section(END, 0, 0x1000).is_sound(END) && !section(0x1000, 16, END).is_sound(END));
        assert!(!section(END - 16, 16, 0x1000).is_sound(END));
        assert!(!section(0x1000, u64::MAX, 0x10).is_sound(END), "its end wraps around");
        assert!(!Section { version: 1, ..section(0x1000, 16, 0x2000) }.is_sound(END));
        assert!(
            section(0x1000, 16, 0x2000).contains(0x100f) && !section(0x1000, 16, 0x2000).contains(0x1010)
        );
    }

    #[test]
    fn memory_of_the_first_length_or_longer_is_accepted_where_it_is_aligned() {
        assert!(is_acceptable(0x1000, 32) && is_acceptable(0x1020, 33) && is_acceptable(0x1020, 4096));
        assert!(!is_acceptable(0x1000, 31) && !is_acceptable(0x1000, 28) && !is_acceptable(0x1000, 0));
        assert!(!is_acceptable(0x1010, 32) && !is_acceptable(0x1001, 64));
    }
}
