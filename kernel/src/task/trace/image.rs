//! A program's registers in the format of ptrace(2): Linux' `struct user` of x86-64.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{Errno, Result};

/// Size of `struct user`: offsets of PTRACE_PEEKUSER and PTRACE_POKEUSER are below.
pub const USER_BYTES: u64 = 928;

/// The registers in the order of `struct user_regs_struct`, 27 words of 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[expect(missing_docs, reason = "they are the processor's")]
pub struct UserRegisters {
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
    /// The number of the system call that the thread made; -1 if another trap entered the kernel.
    pub orig_rax: u64,
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
    pub fs_base: u64,
    pub gs_base: u64,
    pub ds: u64,
    pub es: u64,
    pub fs: u64,
    pub gs: u64,
}

/// Flags that a tracer can change: CF PF AF ZF SF TF DF OF NT RF AC (Linux: FLAG_MASK).
const FLAGS_OF_TRACERS: u64 = 0x0005_4dd5;
/// The privilege level of programs, as in selectors.
const USER_LEVEL: u64 = 3;
/// One past the highest base of FS and GS (Linux: TASK_SIZE_MAX).
const BASE_END: u64 = 0x7fff_ffff_f000;

const CS: usize = 17;
const FLAGS: usize = 18;
const SS: usize = 20;
const FS_BASE: usize = 21;
const DS: usize = 23;

impl UserRegisters {
    /// The number of registers.
    pub const WORDS: usize = size_of::<Self>() / 8;

    /// Returns the registers as an array, in the order of their offsets.
    pub fn words(&self) -> [u64; Self::WORDS] {
        zerocopy::transmute!(*self)
    }

    /// Changes the register with index `index`, by Linux' rules for tracers.
    ///
    /// # Errors
    /// `EIO` for a selector that a program cannot use, a base outside the user half, or an index
    /// without register.
    pub fn put(&mut self, index: usize, value: u64) -> Result<()> {
        let mut words = self.words();
        let word = words.get_mut(index).ok_or(Errno::EIO)?;
        *word = match index {
            CS | SS if value & 0xffff & USER_LEVEL != USER_LEVEL => return Err(Errno::EIO),
            DS.. if value & 0xffff != 0 && value & USER_LEVEL != USER_LEVEL => return Err(Errno::EIO),
            CS | SS | DS.. => value & 0xffff,
            FLAGS => *word & !FLAGS_OF_TRACERS | value & FLAGS_OF_TRACERS,
            FS_BASE..DS if value >= BASE_END => return Err(Errno::EIO),
            _ => value,
        };
        *self = zerocopy::transmute!(words);
        Ok(())
    }

    /// Changes all registers, in order, until one is refused.
    ///
    /// # Errors
    /// As [`put`](Self::put). As on Linux, the registers before it are changed.
    pub fn put_all(&mut self, values: &[u64]) -> Result<()> {
        values.iter().enumerate().try_for_each(|(index, &value)| self.put(index, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_lie_where_linux_has_them() {
        use core::mem::offset_of;
        assert_eq!(UserRegisters::WORDS, 27);
        assert_eq!(offset_of!(UserRegisters, orig_rax), 120);
        assert_eq!(offset_of!(UserRegisters, rip), 128);
        let at =
            [offset_of!(UserRegisters, cs), offset_of!(UserRegisters, rflags), offset_of!(UserRegisters, ss)];
        assert_eq!(at.map(|at| at / 8), [CS, FLAGS, SS]);
        assert_eq!(
            [offset_of!(UserRegisters, fs_base), offset_of!(UserRegisters, ds)].map(|at| at / 8),
            [FS_BASE, DS]
        );
    }

    #[test]
    fn a_tracer_gives_no_kernel_selector_flag_or_base() {
        let before = UserRegisters { cs: 0x33, ss: 0x2b, rflags: 0x202, ..UserRegisters::default() };
        let mut image = before;
        for (index, value) in [(CS, 0x10), (CS, 0), (SS, 0x18), (DS, 0x10), (FS_BASE, BASE_END), (27, 0)] {
            assert_eq!(image.put(index, value), Err(Errno::EIO), "{index} {value:#x}");
        }
        assert_eq!(image, before);
        image.put(FLAGS, u64::MAX).expect("flags are cut");
        assert_eq!(image.rflags, 0x202 | FLAGS_OF_TRACERS);
        image.put(FLAGS, 0).expect("flags are cut");
        assert_eq!(image.rflags, 0x202, "interrupts stay on");
        image.put(DS, 0).expect("null is a selector");
        image.put(FS_BASE, BASE_END - 1).expect("the last address");
    }

    #[test]
    fn what_comes_before_a_refused_register_is_changed() {
        let mut image = UserRegisters { cs: 0x33, ..UserRegisters::default() };
        let mut values = [7; UserRegisters::WORDS];
        values[CS] = 0;
        assert_eq!(image.put_all(&values), Err(Errno::EIO));
        assert_eq!((image.r15, image.rip, image.cs, image.rsp), (7, 7, 0x33, 0));
    }
}
