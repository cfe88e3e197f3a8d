//! Static keys: conditions that rarely change and cost one no-op while they are off.
//!
//! [`is_on`] compiles to a no-op of five bytes. If the key is on, there is a jump instead, to the
//! code for "on". A table in read-only data has the key and the jump's target of each such place
//! (*site*). Turning a key patches all of its sites, on all nodes
//! ([`freehold_replica::Replicas::patch`]).
//!
//! **While a key is turned** a CPU may run the no-op, the jump, or INT3, which acts by the key's
//! new state ([`turn`] comes before the first store). So a key may be on at one site and off at
//! another; its users must accept either, as with a relaxed atomic.
//!
//! **Restriction.** Code that runs in NMIs, double faults and machine checks uses no key: the
//! return from INT3 would allow the next NMI.
//!
//! On a host a key is an atomic. Linux' relative is `static_branch_unlikely`
//! (include/linux/jump_label.h).

use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use freehold_machine::VirtAddr;
use freehold_replica::{Instruction, LENGTH, Patch};
use freehold_tracepoints::table::XpfoWindow;
use freehold_tracepoints::{EVENTS, EventDescription, TraceEvent};

#[cfg(target_os = "none")]
use crate::linker_table;
use crate::linker_table::absolute;

/// A key. All are off at the start.
///
/// Each event of the table of tracepoints has one, whose number is the event's. The first event,
/// which programs write, has none: its number is that of the key `syscall_counts`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StaticKey(usize);

/// The state of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyState {
    /// No.
    Off,
    /// Yes.
    On,
}

impl KeyState {
    /// Reads `0` or `1`, with white space around it.
    pub fn parse(text: &[u8]) -> Option<Self> {
        match text.trim_ascii() {
            b"0" => Some(Self::Off),
            b"1" => Some(Self::On),
            _ => None,
        }
    }
}

impl StaticKey {
    /// The number of the key [`COUNTS_SYSCALLS`](Self::COUNTS_SYSCALLS), for [`is_on`].
    pub const SYSCALL_COUNTS: usize = 0;
    /// System calls are counted by number.
    pub const COUNTS_SYSCALLS: Self = Self(Self::SYSCALL_COUNTS);
    /// The keys that do not belong to an event: those that are turned by hand.
    pub const BY_HAND: [Self; 1] = [Self::COUNTS_SYSCALLS];
    /// The number of the key [`FRAME_CHARGES`](Self::FRAME_CHARGES), for [`is_on`].
    pub const CHARGES: usize = freehold_tracepoints::COUNT;
    /// Frames are charged to accounts.
    pub const FRAME_CHARGES: Self = Self(Self::CHARGES);
    /// The number of the key [`CPU_QUOTAS`](Self::CPU_QUOTAS), for [`is_on`].
    pub const QUOTAS: usize = Self::CHARGES + 1;
    /// Threads check whether their groups have a quota of CPU time.
    pub const CPU_QUOTAS: Self = Self(Self::QUOTAS);
    /// The number of the key [`TASK_NODES`](Self::TASK_NODES), for [`is_on`].
    pub const NODES: usize = Self::QUOTAS + 1;
    /// The machine has several nodes, and a task runs on the node of its stack.
    pub const TASK_NODES: Self = Self(Self::NODES);
    /// The number of the key [`LEARNING`](Self::LEARNING), for [`is_on`].
    pub const LEARN: usize = Self::NODES + 1;
    /// Names that programs find are recorded.
    pub const LEARNING: Self = Self(Self::LEARN);
    /// The number of the key [`TEXT_MIRRORS`](Self::TEXT_MIRRORS), for [`is_on`].
    pub const MIRRORS: usize = Self::LEARN + 1;
    /// Nodes may have copies of the files' pages that they execute.
    pub const TEXT_MIRRORS: Self = Self(Self::MIRRORS);
    /// The key of the event of windows.
    pub(crate) const TRACED_WINDOWS: Self = Self(XpfoWindow::NUMBER);
    /// Number of keys.
    const COUNT: usize = freehold_tracepoints::COUNT + 5;

    /// Returns the key of an event; `None` for an event without a switch.
    pub const fn of_event(event: &EventDescription) -> Option<Self> {
        if event.has_switch() { Some(Self(event.number())) } else { None }
    }
    /// The key's name, as the kernel parameter and the file in debugfs have it; the key of an event
    /// has the event's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::COUNTS_SYSCALLS => "syscall_counts",
            Self::FRAME_CHARGES => "frame_charges",
            Self::CPU_QUOTAS => "cpu_quotas",
            Self::TASK_NODES => "task_nodes",
            Self::LEARNING => "learning",
            Self::TEXT_MIRRORS => "text_mirrors",
            Self(event) => EVENTS[event].name,
        }
    }
}

const _: () = assert!(EVENTS[StaticKey::SYSCALL_COUNTS].is_marker());

/// State of each key; while a key is being turned, its new state.
static STATES: [AtomicBool; StaticKey::COUNT] = [const { AtomicBool::new(false) }; StaticKey::COUNT];

/// `nop dword ptr [rax + rax + 0]`
const NO_OP: Instruction = [0x0f, 0x1f, 0x44, 0, 0];

/// Whether the key of this number is on.
#[cfg(target_os = "none")]
#[inline(always)]
pub fn is_on<const KEY: usize>() -> bool {
    const { assert!(KEY < StaticKey::COUNT) };
    // SAFETY: a no-op, or a jump to the label in its place; both change nothing.
    unsafe {
        core::arch::asm!(
            "2: .byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
            ".pushsection .static_keys, \"a\"",
            ".balign 4",
            ".long 2b - .",
            ".long {} - .",
            ".long {}",
            ".popsection",
            label { return true }, const KEY, options(nomem, nostack, preserves_flags));
    }
    false
}

/// Whether the key of this number is on.
#[cfg(not(target_os = "none"))]
pub fn is_on<const KEY: usize>() -> bool {
    STATES[KEY].load(Ordering::Relaxed)
}

/// The state of a key.
pub fn state(key: StaticKey) -> KeyState {
    if STATES[key.0].load(Ordering::Acquire) { KeyState::On } else { KeyState::Off }
}

/// From now on an INT3 at a site of `key` acts by `state`; on a host, the key has that state. The
/// caller patches the key's sites afterwards.
pub fn turn(key: StaticKey, state: KeyState) {
    STATES[key.0].store(state == KeyState::On, Ordering::Release);
    #[cfg(target_os = "none")]
    if key == StaticKey::TRACED_WINDOWS {
        crate::memory::windows::heed_tracing();
    }
}

/// Returns the patches that turn `key` from the other state to `state`.
pub fn patches(key: StaticKey, state: KeyState) -> impl Iterator<Item = Patch> {
    sites().filter(move |site| site.key as usize == key.0).map(move |site| site.patch(state))
}

/// Returns where to continue after an INT3, whose next instruction is at `rip`; `None` if there is
/// no site.
pub(crate) fn resume(rip: u64) -> Option<u64> {
    let address = rip.wrapping_sub(1);
    let site = sites().find(|site| site.address == address)?;
    let is_on = STATES.get(site.key as usize)?.load(Ordering::Acquire);
    Some(if is_on { site.target } else { site.end() })
}

/// A place that tests a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Site {
    address: u64,
    target: u64,
    key: u32,
}

impl Site {
    const fn end(&self) -> u64 {
        self.address + LENGTH as u64
    }
    /// `jmp target`
    fn jump(&self) -> Instruction {
        let [a, b, c, d] = (self.target.wrapping_sub(self.end()) as u32).to_le_bytes();
        [0xe9, a, b, c, d]
    }
    fn patch(&self, state: KeyState) -> Patch {
        let address = VirtAddr(self.address);
        match state {
            KeyState::On => Patch { address, from: NO_OP, to: self.jump() },
            KeyState::Off => Patch { address, from: self.jump(), to: NO_OP },
        }
    }
}

/// An entry of the table, as [`is_on`] writes it. Addresses are relative to the field that contains
/// them.
#[repr(C)]
struct SiteEntry {
    address: i32,
    target: i32,
    key: u32,
}
const _: () = assert!(size_of::<SiteEntry>() as u64 == freehold_scope_doorbell::SITE_BYTES);

impl SiteEntry {
    fn site(&self) -> Site {
        Site { address: absolute(&self.address), target: absolute(&self.target), key: self.key }
    }
}

#[cfg(target_os = "none")]
unsafe extern "C" {
    static __static_keys_start: [SiteEntry; 0];
    static __static_keys_end: [SiteEntry; 0];
}

/// The table of sites.
#[cfg(target_os = "none")]
fn entries() -> &'static [SiteEntry] {
    // SAFETY: the linker script puts the entries, and nothing else, between the two symbols, in
    // read-only data.
    unsafe { linker_table::entries(&raw const __static_keys_start, &raw const __static_keys_end) }
}
/// On a host keys have no sites.
#[cfg(not(target_os = "none"))]
fn entries() -> &'static [SiteEntry] {
    &[]
}

/// The address of the table of sites.
pub(crate) fn table() -> Range<u64> {
    let table = entries().as_ptr_range();
    table.start as u64..table.end as u64
}

/// The addresses of each site's instruction.
pub(crate) fn site_ranges() -> impl Iterator<Item = Range<u64>> {
    sites().map(|site| site.address..site.end())
}

fn sites() -> impl Iterator<Item = Site> {
    entries().iter().map(SiteEntry::site)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_leads_to_its_target_forwards_and_backwards() {
        let address = 0xffff_ffff_8020_1000;
        for target in [address + 0x1234, address - 0x1234, address + 5] {
            let site = Site { address, target, key: 0 };
            let [opcode, rest @ ..] = site.jump();
            assert_eq!(opcode, 0xe9);
            let distance = i32::from_le_bytes(rest);
            assert_eq!(site.end().wrapping_add_signed(distance.into()), target);
            let (on, off) = (site.patch(KeyState::On), site.patch(KeyState::Off));
            assert_eq!((on.from, on.to), (off.to, off.from), "there and back");
        }
    }

    #[test]
    fn an_entry_is_relative_to_its_own_fields() {
        let entry = SiteEntry { address: -64, target: 32, key: 7 };
        let at = core::ptr::from_ref(&entry) as u64;
        assert_eq!(entry.site(), Site { address: at - 64, target: at + 4 + 32, key: 7 });
    }

    #[test]
    fn an_int3_that_is_nobodys_is_not_resumed() {
        assert_eq!(resume(0xffff_ffff_8020_1000), None);
    }
}
