//! The signals and siginfos of user-mode exceptions.
//!
//! Sources: Intel SDM volume 3, table 6-1; signal(7); Linux 6.1, arch/x86/kernel/traps.c and
//! fpu/xstate.c (`fpu__exception_code`), arch/x86/mm/fault.c.

use super::{SigInfo, Signal, code};

const DIVIDE: u8 = 0;
/// A debug exception: a single step, or ICEBP.
pub const DEBUG: u8 = 1;
const BREAKPOINT: u8 = 3;
const INVALID_OPCODE: u8 = 6;
/// Double fault. The program's position is unknown, so it ends.
pub const LOST: u8 = 8;
const SEGMENT_NOT_PRESENT: u8 = 11;
const STACK_FAULT: u8 = 12;
/// A page fault.
pub const PAGE_FAULT: u8 = 14;
/// An x87 error.
pub const X87: u8 = 16;
const ALIGNMENT: u8 = 17;
/// A machine check.
pub const MACHINE_CHECK: u8 = 18;
const SIMD: u8 = 19;

/// The bits for watchpoints in the debug status register.
const WATCHPOINTS: u64 = 0xf;
/// The single-step bit of the debug status register.
const SINGLE_STEP: u64 = 1 << 14;

/// Returns the signal for the exception `vector` with error code `error` at `rip`. `fpu` returns
/// the floating-point state in the layout of FXSAVE; it is called only if needed. `None` for a
/// floating-point exception without a remaining cause.
pub fn signal<'a>(vector: u8, error: u64, rip: u64, fpu: impl FnOnce() -> &'a [u8]) -> Option<SigInfo> {
    Some(match vector {
        DIVIDE => SigInfo::fault(Signal::FPE, code::FPE_INTDIV, rip),
        DEBUG if error & SINGLE_STEP != 0 => SigInfo::fault(Signal::TRAP, code::TRAP_TRACE, rip),
        DEBUG if error & WATCHPOINTS != 0 => SigInfo::fault(Signal::TRAP, code::TRAP_HWBKPT, rip),
        DEBUG => SigInfo::fault(Signal::TRAP, code::TRAP_BRKPT, rip),
        BREAKPOINT => SigInfo::kernel(Signal::TRAP),
        INVALID_OPCODE => SigInfo::fault(Signal::ILL, code::ILL_ILLOPN, rip),
        SEGMENT_NOT_PRESENT | STACK_FAULT | MACHINE_CHECK => SigInfo::kernel(Signal::BUS),
        X87 => SigInfo::fault(Signal::FPE, floating_point_code(x87_errors(fpu()))?, rip),
        ALIGNMENT => SigInfo::fault(Signal::BUS, code::BUS_ADRALN, 0),
        SIMD => SigInfo::fault(Signal::FPE, floating_point_code(simd_errors(fpu()))?, rip),
        _ => SigInfo::kernel(Signal::SEGV),
    })
}

/// Returns the error code of a page fault as the program sees it. A kernel address always counts as
/// protected, so that programs learn nothing about the kernel's page tables (Linux'
/// `sanitize_error_code`).
pub fn shown_page_fault_code(error: u64, address: u64, user_end: u64) -> u64 {
    const PROTECTION: u64 = 1;
    const USER: u64 = 1 << 2;
    error | USER | if address >= user_end { PROTECTION } else { 0 }
}

/// Returns the unmasked x87 errors: status word without control word.
fn x87_errors(fpu: &[u8]) -> u32 {
    let word = |at: usize| u32::from(fpu[at]) | u32::from(fpu[at + 1]) << 8;
    word(2) & !word(0)
}

/// Returns the unmasked SSE errors: MXCSR's bits 0 to 5 without its bits 7 to 12.
fn simd_errors(fpu: &[u8]) -> u32 {
    let mxcsr = u32::from(fpu[24]) | u32::from(fpu[25]) << 8;
    mxcsr & !(mxcsr >> 7)
}

/// Returns the si_code of the first error, in this order: invalid, division by zero, overflow,
/// denormal or underflow, precision.
fn floating_point_code(errors: u32) -> Option<i32> {
    const CODES: [(u32, i32); 5] = [
        (1 << 0, code::FPE_FLTINV),
        (1 << 2, code::FPE_FLTDIV),
        (1 << 3, code::FPE_FLTOVF),
        (1 << 1 | 1 << 4, code::FPE_FLTUND),
        (1 << 5, code::FPE_FLTRES),
    ];
    CODES.iter().find(|(bits, _)| errors & bits != 0).map(|&(_, code)| code)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(control: u16, status: u16, mxcsr: u32) -> [u8; 512] {
        let mut area = [0; 512];
        area[0..2].copy_from_slice(&control.to_le_bytes());
        area[2..4].copy_from_slice(&status.to_le_bytes());
        area[24..28].copy_from_slice(&mxcsr.to_le_bytes());
        area
    }

    fn code_of(vector: u8, area: &[u8]) -> Option<i32> {
        signal(vector, 0, 0x1000, || area).map(|info| info.code)
    }

    #[test]
    fn an_x87_error_has_the_code_of_its_first_unmasked_cause() {
        assert_eq!(code_of(X87, &state(0x37f & !1, 1, 0)), Some(code::FPE_FLTINV));
        assert_eq!(code_of(X87, &state(0x37f & !4, 1 | 4, 0)), Some(code::FPE_FLTDIV));
        assert_eq!(code_of(X87, &state(0x37f & !8, 8 | 0x20, 0)), Some(code::FPE_FLTOVF));
        assert_eq!(code_of(X87, &state(0x37f & !0x10, 0x10, 0)), Some(code::FPE_FLTUND));
        assert_eq!(code_of(X87, &state(0x37f & !2, 2, 0)), Some(code::FPE_FLTUND));
        assert_eq!(code_of(X87, &state(0x37f & !0x20, 0x20, 0)), Some(code::FPE_FLTRES));
        assert_eq!(code_of(X87, &state(0x37f, 0x3f, 0)), None, "all are masked by now");
    }

    #[test]
    fn an_sse_error_has_the_code_of_its_first_unmasked_cause() {
        let unmasked = |bit: u32| 0x1f80 & !(1 << (bit + 7));
        assert_eq!(code_of(SIMD, &state(0, 0, unmasked(0) | 0x3f)), Some(code::FPE_FLTINV));
        assert_eq!(code_of(SIMD, &state(0, 0, unmasked(2) | 0x3f)), Some(code::FPE_FLTDIV));
        assert_eq!(code_of(SIMD, &state(0, 0, unmasked(3) | 0x3f)), Some(code::FPE_FLTOVF));
        assert_eq!(code_of(SIMD, &state(0, 0, unmasked(1) | 0x3f)), Some(code::FPE_FLTUND));
        assert_eq!(code_of(SIMD, &state(0, 0, unmasked(5) | 0x3f)), Some(code::FPE_FLTRES));
        assert_eq!(code_of(SIMD, &state(0, 0, 0x1f80 | 0x3f)), None);
    }

    #[test]
    fn a_misaligned_access_is_sigbus_with_its_code() {
        let info = signal(ALIGNMENT, 0, 0x1000, || &[]).unwrap();
        assert_eq!((info.signal(), info.code), (Some(Signal::BUS), code::BUS_ADRALN));
    }

    #[test]
    fn a_single_step_and_icebp_differ_by_their_code() {
        let code_of = |status| signal(DEBUG, status, 0, || &[]).map(|info| info.code);
        assert_eq!(code_of(0xffff_4ff0), Some(code::TRAP_TRACE));
        assert_eq!(code_of(0xffff_0ff0), Some(code::TRAP_BRKPT));
        assert_eq!(code_of(0xffff_0ff4), Some(code::TRAP_HWBKPT));
        assert_eq!(code_of(0xffff_4ff4), Some(code::TRAP_TRACE));
    }

    #[test]
    fn a_kernel_address_always_looks_protected() {
        assert_eq!(shown_page_fault_code(4, 0x1000, 0x8000), 4);
        assert_eq!(shown_page_fault_code(0x14, 0x8000, 0x8000), 0x15);
        assert_eq!(shown_page_fault_code(6, 0xffff_8000_0000_0000, 0x8000), 7);
    }
}
