//! Messages of the kernel to an observer of the whole machine (`freehold scope`): the address of
//! its frame table, and the beginning and end of the program. Each message costs a no-op and a
//! load, once. No code inside the machine receives them.
//!
//! The form is `scope/doorbell`'s: a marker, and right after it a load from the message.

use core::arch::asm;

pub use freehold_scope_doorbell::Records;
use freehold_scope_doorbell::{
    self as doorbell, KERNEL, MARKER, MAX_NODES, MAX_OWNERS, NAME_BYTES, PROCESS, Policy, Publication, WORDS,
};

use crate::memory::layout::WINDOWS_SPAN;
use crate::memory::{frame_table_end, layout, patching, replica, windows, wiping};
use crate::sync::Once;
use crate::{X86, boot, static_keys, traps, usercopy};
use freehold_machine::{Machine as _, NodeId, Pfn};

/// Its alignment is a power of two and as large as the message, so the message is within one page.
#[repr(C, align(1024))]
struct DoorbellMessage([u64; 1 + WORDS]);
const _: () = assert!(size_of::<DoorbellMessage>() == 1024);

#[repr(C, align(16))]
struct Phase([u64; 2]);

static MESSAGE: Once<DoorbellMessage> = Once::new();
static PROGRAM: Phase = Phase(doorbell::phase("program"));
static CLOSING: Phase = Phase(doorbell::phase("closing"));

/// Sends a message: the marker, and a load of the message's first word.
fn ring(message: &[u64]) {
    // SAFETY: a no-op, and a load of a word that is there: every message has its head.
    unsafe {
        asm!(".byte {0}, {1}, {2}, {3}, {4}, {5}, {6}", "mov {at}, [{at}]",
            const MARKER[0], const MARKER[1], const MARKER[2], const MARKER[3], const MARKER[4], const MARKER[5],
            const MARKER[6], at = inout(reg) message.as_ptr() => _, options(nostack, preserves_flags, readonly))
    };
}

/// Announces where everything is. The frame table is in use and the policy set; `owners` are the
/// owners' names by number.
///
/// # Panics
/// When called twice.
pub fn publish(records: Records, owners: impl Iterator<Item = &'static str>) {
    let mut names = [[0; NAME_BYTES]; MAX_OWNERS];
    names.iter_mut().zip(owners).for_each(|(to, name)| *to = Publication::name(name));
    let areas = layout();
    let (text, rodata) = boot::read_only_parts();
    let user_copies = usercopy::code();
    let wiping = wiping::wiping_code();
    let storing = patching::storing_code();
    let sites = static_keys::table();
    let mut roots = [0; MAX_NODES];
    for (node, root) in (0..X86.node_count() as u8).zip(&mut roots) {
        *root = X86.kernel_root(NodeId(node)).start().0;
    }
    let publication = Publication {
        roots,
        policy: Policy::ALL[windows::policy().number() as usize],
        direct_map: areas.direct_map,
        direct_span: areas.direct_span,
        windows: areas.windows,
        windows_span: WINDOWS_SPAN,
        frame_table: areas.frame_table,
        frames: frame_table_end().0,
        records,
        text: text.start,
        text_end: text.end,
        rodata: rodata.start,
        rodata_end: rodata.end,
        slide: boot::slide(),
        interrupts: traps::interrupt_table().0,
        user_copies: user_copies.start,
        user_copies_end: user_copies.end,
        wiping: wiping.start,
        wiping_end: wiping.end,
        shared_loads: replica::shared_loads().0,
        patching: storing.start,
        patching_end: storing.end,
        patch_window: patching::window().0,
        sites: sites.start,
        sites_end: sites.end,
        owners: names,
    };
    let mut words = [0; 1 + WORDS];
    words[0] = doorbell::head(KERNEL, 8 * WORDS as u32);
    words[1..].copy_from_slice(&publication.words());
    ring(&MESSAGE.set(DoorbellMessage(words)).0);
}

/// Announces that the program begins.
pub fn program_begins() {
    ring(&PROGRAM.0);
}

/// Announces that the program has ended: only the kernel's closing audit follows.
pub fn program_ended() {
    ring(&CLOSING.0);
}

/// Tells the tables of a process, by a root that stays allocated meanwhile.
pub fn process(pid: u32, root: Pfn) {
    #[repr(C, align(32))]
    struct Process([u64; 3]);
    ring(&Process([doorbell::head(PROCESS, 16), u64::from(pid), root.start().0]).0);
}
