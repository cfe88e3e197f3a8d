//! x86-64: `freehold-arch`, under the names of this module.

use freehold_arch::boot_value;
use freehold_buddy::Buddy;
use freehold_frame::{FrameSource as _, FrameTable};

pub use freehold_arch::{
    X86 as Hardware, alternatives, boot, built, cpu, entropy, firmware, heap, irq, memory, mmio, panic,
    plant, power, probes, provoke, serial, speculation, static_keys, sync, thread, time, traps, user,
    usercopy, watch,
};

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

static BUDDY: sync::Once<Buddy<Hardware>> = sync::Once::new();

// Where the allocator and the frame table are, at a place that each node's CPUs have nearby.
boot_value! {
    static ALLOCATOR: Option<&'static Buddy<Hardware>> = None;
}
boot_value! {
    static TABLE: FrameTable = FrameTable::new(&[]);
}

/// Sets the page allocator; once, before a second CPU runs.
///
/// # Panics
/// If there is no memory for a translation table.
pub fn set_frames(buddy: Buddy<Hardware>) {
    let buddy = BUDDY.set(buddy);
    TABLE.set(buddy.table()).and_then(|()| ALLOCATOR.set(Some(buddy))).expect("a frame for a table");
}

/// Returns the page allocator.
///
/// # Panics
/// Before [`set_frames`].
#[inline(always)]
pub(super) fn allocator() -> &'static Buddy<Hardware> {
    ALLOCATOR.get().expect("the page allocator is up before its first user")
}

/// Returns the frame table; before [`set_frames`] it has no records.
#[inline(always)]
pub(super) fn frame_table() -> FrameTable {
    TABLE.get()
}
