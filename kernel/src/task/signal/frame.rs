//! A handler's frame on its stack: `struct rt_sigframe` of x86-64, above it the vector state.
//!
//! Programs read and change these bytes (garbage collectors, unwinders, setjmp in handlers), so
//! every offset is part of the interface. rt_sigreturn checks all of them.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{AlternateStack, SigInfo};

/// Bytes below the stack pointer that a function may use without moving it (the ABI's red zone).
const RED_ZONE: u64 = 128;
/// FP_XSTATE_MAGIC1: the extended state's description is valid.
pub const MAGIC1: u32 = 0x4650_5853;
/// FP_XSTATE_MAGIC2: follows the extended state.
pub const MAGIC2: u32 = 0x4650_5845;
/// Offset of the description in the legacy FXSAVE area (`sw_reserved`).
pub const DESCRIPTION: usize = 464;
/// Size of the legacy area, the smallest vector state.
pub const LEGACY: usize = 512;
/// Size of the header after the legacy area.
const HEADER: usize = 64;
/// An extended state follows the legacy area.
const UC_FP_XSTATE: u64 = 1;
/// The context includes the stack segment's selector.
const UC_SIGCONTEXT_SS: u64 = 2;
/// rt_sigreturn uses the selector as stored, instead of the usual one. Set if 64-bit code was
/// interrupted.
pub const UC_STRICT_RESTORE_SS: u64 = 4;

/// `struct sigcontext`.
#[allow(missing_docs)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SigContext {
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rdi: u64,
    pub rsi: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub rdx: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rsp: u64,
    pub rip: u64,
    pub rflags: u64,
    pub cs: u16,
    pub gs: u16,
    pub fs: u16,
    pub ss: u16,
    pub error: u64,
    pub trap: u64,
    pub old_mask: u64,
    pub cr2: u64,
    pub fpstate: u64,
    pub reserved: [u64; 8],
}

/// `struct ucontext`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FrameContext {
    /// uc_flags.
    pub flags: u64,
    /// uc_link: nothing.
    pub link: u64,
    /// uc_stack.
    pub stack: AlternateStack,
    /// uc_mcontext.
    pub registers: SigContext,
    /// uc_sigmask.
    pub mask: u64,
}

/// `struct rt_sigframe`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Frame {
    /// Address of the restorer, to which the handler returns.
    pub return_address: u64,
    /// The context that rt_sigreturn restores.
    pub context: FrameContext,
    /// The part of siginfo_t that is used.
    pub info: SigInfo,
    /// The rest of siginfo_t.
    pub padding: [u64; 10],
}

/// Bytes of a [`Frame`].
pub const FRAME_SIZE: u64 = size_of::<Frame>() as u64;

/// Addresses of a frame's parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FramePlace {
    /// The frame, which is also the handler's stack pointer.
    pub frame: u64,
    /// The vector state.
    pub fpstate: u64,
}

/// Returns the place of a frame: below the stack pointer `sp`, or on `alternate` if the handler
/// uses that and `sp` is not on it already. `None` if the alternate stack is too small.
pub fn place(
    sp: u64,
    wants_alternate: Wants,
    alternate: &AlternateStack,
    fpstate_size: usize,
) -> Option<FramePlace> {
    let on_it = alternate.contains(sp) && alternate.flags & super::SS_AUTODISARM == 0;
    let enters =
        wants_alternate == Wants::AlternateStack && alternate.flags & super::SS_DISABLE == 0 && !on_it;
    let top = if enters { alternate.base.wrapping_add(alternate.size) } else { sp.wrapping_sub(RED_ZONE) };
    let fpstate = top.wrapping_sub(fpstate_size as u64) & !63;
    let frame = (fpstate.wrapping_sub(FRAME_SIZE) & !15).wrapping_sub(8);
    let fits = !(enters || on_it) || alternate.contains(frame);
    fits.then_some(FramePlace { frame, fpstate })
}

/// Whether a handler was set with SA_ONSTACK.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wants {
    /// The handler was set with SA_ONSTACK.
    AlternateStack,
    /// The handler was set without SA_ONSTACK.
    AnyStack,
}

/// Returns the size of the vector state in a frame. A second magic number follows an extended
/// state.
pub const fn fpstate_size(image: usize) -> usize {
    if image > LEGACY { image + 4 } else { image }
}

/// Returns uc_flags of a frame with a vector state of `image` bytes.
pub const fn context_flags(image: usize) -> u64 {
    let extended = if image > LEGACY { UC_FP_XSTATE } else { 0 };
    extended | UC_SIGCONTEXT_SS
}

/// The description of the state after the legacy area: `struct _fpx_sw_bytes`, at [`DESCRIPTION`]
/// in the vector state.
#[allow(missing_docs)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, packed)]
pub struct Description {
    pub magic: u32,
    /// Includes the second magic number.
    pub extended_size: u32,
    /// Components, as in XCR0.
    pub features: u64,
    pub size: u32,
}

impl Description {
    /// Describes a vector state of `image` bytes with the components `features`.
    pub const fn new(image: usize, features: u64) -> Self {
        let size = image as u32;
        Self { magic: MAGIC1, extended_size: size + 4, features, size }
    }
    /// Whether this describes an extended state. The CPU's own has `image` bytes; a shorter one is
    /// accepted, too (Linux' `check_xstate_in_sigframe`).
    pub const fn is_extended(self, image: usize) -> bool {
        let size = self.size as usize;
        self.magic == MAGIC1 && LEGACY + HEADER <= size && size <= image && self.size <= self.extended_size
    }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn offsets_are_those_that_programs_were_compiled_with() {
        assert_eq!(FRAME_SIZE, 440);
        assert_eq!(offset_of!(Frame, context), 8);
        assert_eq!(offset_of!(FrameContext, registers), 40);
        assert_eq!(offset_of!(SigContext, rip), 16 * 8);
        assert_eq!(offset_of!(SigContext, fpstate), 184);
        assert_eq!(size_of::<SigContext>(), 256);
        assert_eq!(offset_of!(FrameContext, mask), 296);
        assert_eq!(offset_of!(Frame, info), 312);
        assert_eq!(size_of::<Description>(), 20);
        assert_eq!(Description::new(832, 7).as_bytes()[16..], 832u32.to_le_bytes());
    }

    #[test]
    fn a_frame_goes_to_the_alternate_stack_only_if_wanted_and_not_there_yet() {
        let alternate = AlternateStack { base: 0x10000, flags: 0, pad: 0, size: 0x4000 };
        let place_at = |sp, wants| place(sp, wants, &alternate, 512).unwrap().frame;
        assert!(alternate.contains(place_at(0x7f0000, Wants::AlternateStack)));
        assert!(place_at(0x7f0000, Wants::AnyStack) > 0x700000);
        assert!(place_at(0x12000, Wants::AlternateStack) < 0x12000);
        assert_eq!(place(0x10100, Wants::AlternateStack, &alternate, 512), None);
        assert!(place(0x7f0000, Wants::AlternateStack, &AlternateStack::NONE, 512).is_some());
    }

    proptest! {
        /// The stack is aligned as at a function's entry. The frame is below the red zone and the
        /// vector state.
        #[test]
        fn a_handler_finds_its_stack_aligned(sp in 0x10000u64..0x7fff_ffff_0000, size in 512usize..4096) {
            let at = place(sp, Wants::AnyStack, &AlternateStack::NONE, size).unwrap();
            prop_assert_eq!(at.frame % 16, 8);
            prop_assert_eq!(at.fpstate % 64, 0);
            prop_assert!(at.frame + FRAME_SIZE <= at.fpstate);
            prop_assert!(at.fpstate + size as u64 <= sp - 128);
        }
    }
}
