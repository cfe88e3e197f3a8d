//! x86-64: `freehold-arch`, under the names of this module.

use freehold_buddy::Buddy;

pub use freehold_arch::{
    X86 as Hardware, alternatives, boot, built, cpu, entropy, firmware, heap, irq, memory, mmio, panic,
    plant, power, probes, provoke, serial, speculation, static_keys, sync, thread, time, traps, user,
    usercopy, watch,
};

use super::Frames;

/// Windows on frames of programs.
pub mod windows {
    pub use freehold_arch::memory::{close_as, forget_closed, lend, policy, take_back};
}

/// Nodes' copies of the kernel's text and read-only data.
pub mod replicas {
    pub use freehold_arch::memory::replica::{
        are_used, forget_shared_text, note_shared_load, shared_load_count,
    };
}

/// How often a waiter checks a held lock before it sleeps.
pub const LOCK_SPINS: usize = 300;

pub(super) static BUDDY: sync::Once<Buddy<Hardware>> = sync::Once::new();

/// Returns the page allocator.
///
/// # Panics
/// Before [`set_frames`](super::set_frames).
#[inline]
pub fn frames() -> Frames {
    BUDDY.get().expect("the page allocator is up before its first user")
}
