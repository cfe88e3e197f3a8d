//! The registers at the moment of a trap.

use freehold_machine::Access;

/// General registers, and those that the CPU itself saves, in the order in which `entry.s` lays
/// them out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C, align(16))]
#[allow(missing_docs, reason = "registers are named as the manual names them")]
pub struct Registers {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    /// The reason: the vector, or 0x100 for a system call.
    pub vector: u64,
    /// The exception's error code, or the system call's number.
    pub error: u64,
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
}

const _: () = assert!(size_of::<Registers>() == 22 * 8);

/// In a page fault's error code: the page's protection key denies the access.
pub const PROTECTION_KEY: u64 = 1 << 5;

/// Returns the access in a page fault's error code (Intel SDM volume 3, 4.7): bit 1 write, bit 4
/// fetch.
pub(crate) fn decode_page_fault(error: u64) -> Access {
    match error {
        e if e & 1 << 4 != 0 => Access::Execute,
        e if e & 1 << 1 != 0 => Access::Write,
        _ => Access::Read,
    }
}
