//! Transfer of registers between a program's context and its tracer's view.

use super::{TraceState, UserRegisters};
use crate::hw::traps::Registers;
use crate::hw::user::{self, FpuImage, USER_DATA, UserContext};

/// The bytes of an XSAVE area that are for software: the components that the area has room for, as
/// in XCR0 (Linux: `xstate_fx_sw_bytes`).
const SOFTWARE: core::ops::Range<usize> = 464..512;
const TRAP_FLAG: u64 = 1 << 8;

/// Returns the registers of the running thread outside of a stop, in the format of [`show`], and
/// the vector state.
pub fn registers_of(context: &mut UserContext) -> (UserRegisters, &[u8]) {
    let registers = *context.regs();
    let image = UserRegisters {
        orig_rax: context.called().unwrap_or(u64::MAX),
        fs_base: context.fs_base(),
        gs_base: context.gs_base(),
        ..image_of(&registers, context.data_selectors())
    };
    (image, context.noted_fpu(&user::xfeatures().to_le_bytes()))
}

/// Copies the registers of the running thread for its tracer. `call` is the value of orig_rax;
/// `result` is the value of rax, if the context does not have it yet.
pub(super) fn show(context: &mut UserContext, state: &mut TraceState, call: u64, result: Option<u64>) {
    if state.forced_trap_flag {
        state.forced_trap_flag = false;
        context.regs_mut().rflags &= !TRAP_FLAG;
    }
    let registers = *context.regs();
    state.image = UserRegisters {
        rax: result.unwrap_or(registers.rax),
        orig_rax: call,
        fs_base: context.fs_base(),
        gs_base: context.gs_base(),
        ..image_of(&registers, context.data_selectors())
    };
    state.vectors.copy_from_slice(context.noted_fpu(&user::xfeatures().to_le_bytes()));
    state.vectors_changed = false;
}

/// Loads the registers that the tracer left into the running thread.
pub(super) fn take_back(context: &mut UserContext, state: &mut TraceState, shown: &UserRegisters) {
    let image = state.image;
    if image != *shown {
        put(context.regs_mut(), &image);
        if image.fs_base != shown.fs_base {
            // The bases were checked when the tracer set them.
            let _ = context.set_fs_base(image.fs_base);
        }
        if image.gs_base != shown.gs_base {
            let _ = context.set_gs_base(image.gs_base);
        }
        let selectors = |image: &UserRegisters| [image.ds, image.es, image.fs, image.gs];
        if selectors(&image) != selectors(shown) {
            context.set_data_selectors(selectors(&image).map(loadable));
        }
    }
    if core::mem::take(&mut state.vectors_changed) {
        let bytes = &mut state.vectors;
        bytes[SOFTWARE].fill(0);
        let components = user::xfeatures();
        let loaded = context.load_fpu(|area| {
            area.copy_from_slice(bytes);
            FpuImage { bytes: area.len(), components }
        });
        debug_assert!(loaded.is_ok(), "what a tracer leaves was checked");
    }
}

/// Makes the thread run one instruction. Returns whether the program had not set the trap flag
/// itself.
pub(super) fn set_trap_flag(context: &mut UserContext) -> bool {
    let flags = &mut context.regs_mut().rflags;
    let forced = *flags & TRAP_FLAG == 0;
    *flags |= TRAP_FLAG;
    forced
}

/// Whether the vector state is valid for a program.
pub(super) fn is_acceptable(vectors: &[u8]) -> bool {
    user::is_acceptable_fpu(vectors)
}

/// Returns only selectors that every CPU can load at any time.
fn loadable(selector: u64) -> u16 {
    if selector == USER_DATA { USER_DATA as u16 } else { 0 }
}

fn image_of(r: &Registers, [ds, es, fs, gs]: [u16; 4]) -> UserRegisters {
    UserRegisters {
        r15: r.r15,
        r14: r.r14,
        r13: r.r13,
        r12: r.r12,
        rbp: r.rbp,
        rbx: r.rbx,
        r11: r.r11,
        r10: r.r10,
        r9: r.r9,
        r8: r.r8,
        rax: r.rax,
        rcx: r.rcx,
        rdx: r.rdx,
        rsi: r.rsi,
        rdi: r.rdi,
        orig_rax: u64::MAX,
        rip: r.rip,
        cs: r.cs,
        rflags: r.rflags,
        rsp: r.rsp,
        ss: r.ss,
        fs_base: 0,
        gs_base: 0,
        ds: ds.into(),
        es: es.into(),
        fs: fs.into(),
        gs: gs.into(),
    }
}

fn put(registers: &mut Registers, image: &UserRegisters) {
    // The reason for the kernel entry is kept, with the number of the call, which the tracer may
    // have changed.
    let old = *registers;
    *registers = Registers {
        r15: image.r15,
        r14: image.r14,
        r13: image.r13,
        r12: image.r12,
        rbp: image.rbp,
        rbx: image.rbx,
        r11: image.r11,
        r10: image.r10,
        r9: image.r9,
        r8: image.r8,
        rax: image.rax,
        rcx: image.rcx,
        rdx: image.rdx,
        rsi: image.rsi,
        rdi: image.rdi,
        vector: old.vector,
        error: if old.vector == user::VECTOR_SYSCALL { image.orig_rax } else { old.error },
        rip: image.rip,
        cs: image.cs,
        rflags: image.rflags,
        rsp: image.rsp,
        ss: image.ss,
    };
}
