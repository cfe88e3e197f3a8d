//! Signals: their numbers, the pending signals of threads and processes, sending and delivery.

pub mod calls;
pub mod deliver;
pub mod exception;
pub mod file_news;
pub mod frame;
mod pending;
mod send;
mod set;

pub use pending::{
    Action, Actions, KeptSignal, Pending, SA_NOCLDSTOP, SA_NOCLDWAIT, SA_NODEFER, SA_ONSTACK, SA_RESETHAND,
    SA_RESTART, SA_RESTORER, SA_SIGINFO, SIG_DFL, SIG_IGN,
};
pub(super) use send::Whose;
pub(crate) use send::end_group;
pub use send::{signal_broken_pipe, signal_group, signal_kernel, signal_session_leader};
pub use set::{DefaultAction, Pid, SigInfo, SigSet, Signal, code};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Result;
use crate::user::UserPtr;

/// Writes a complete siginfo_t, 128 bytes, to a program's memory.
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

/// The stack for handlers with SA_ONSTACK: `stack_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AlternateStack {
    /// The stack's lowest address.
    pub base: u64,
    /// SS_*.
    pub flags: i32,
    /// Padding.
    pub pad: u32,
    /// Size in bytes.
    pub size: u64,
}

impl AlternateStack {
    /// No alternate stack.
    pub const NONE: Self = Self { base: 0, flags: SS_DISABLE, pad: 0, size: 0 };
    /// Whether `address` is on this stack.
    pub const fn contains(&self, address: u64) -> bool {
        self.flags & SS_DISABLE == 0 && address.wrapping_sub(self.base).wrapping_sub(1) < self.size
    }
}
