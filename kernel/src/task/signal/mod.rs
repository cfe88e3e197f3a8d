//! Signals: their numbers, the pending ones of threads and processes, sending and delivering them.

pub mod calls;
pub mod deliver;
pub mod exception;
pub mod file_news;
pub mod frame;
mod pending;
mod send;
mod set;

pub use pending::{
    Action, Actions, Pending, SA_NOCLDSTOP, SA_NOCLDWAIT, SA_NODEFER, SA_ONSTACK, SA_RESETHAND, SA_RESTART,
    SA_RESTORER, SA_SIGINFO, SIG_DFL, SIG_IGN,
};
pub(super) use send::Whose;
pub(crate) use send::end_group;
pub use send::{signal_broken_pipe, signal_group, signal_kernel, signal_session_leader};
pub use set::{DefaultAction, Pid, SigInfo, SigSet, Signal, code};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Result;
use crate::user::UserPtr;

/// Writes a whole siginfo_t, 128 bytes, to a program's memory.
///
/// # Errors
/// `EFAULT`.
pub(super) fn write_whole(info: &SigInfo, address: u64) -> Result<()> {
    let pointer = UserPtr::<SigInfo>::new(address);
    pointer.write(info)?;
    pointer.add(1).cast::<[u64; 10]>().write(&[0; 10])
}

/// SS_ONSTACK.
pub const SS_ONSTACK: i32 = 1;
/// SS_DISABLE.
pub const SS_DISABLE: i32 = 2;
/// SS_AUTODISARM.
pub const SS_AUTODISARM: i32 = i32::MIN;

/// The stack that handlers with SA_ONSTACK run on: `stack_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AlternateStack {
    /// Its lowest address.
    pub base: u64,
    /// SS_*.
    pub flags: i32,
    /// Alignment.
    pub pad: u32,
    /// Bytes.
    pub size: u64,
}

impl AlternateStack {
    /// No such stack.
    pub const NONE: Self = Self { base: 0, flags: SS_DISABLE, pad: 0, size: 0 };
    /// Whether `address` is on it.
    pub const fn contains(&self, address: u64) -> bool {
        self.flags & SS_DISABLE == 0 && address.wrapping_sub(self.base).wrapping_sub(1) < self.size
    }
}
