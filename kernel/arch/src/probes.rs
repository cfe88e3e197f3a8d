//! Kprobes: INT3 in the place of an instruction's first byte, and the instruction run elsewhere.
//!
//! The caller patches text (`freehold_replica`), so that all nodes have the same bytes. A probe has
//! a *slot* of 16 bytes in text, which no CPU runs while the probe is not armed. A slot has a copy
//! of the instruction and INT3. A CPU that runs the probe's INT3 comes to [`hit`], calls the
//! handler, and then continues by the [effect](Effect): jumps and branches are computed, and every
//! other instruction runs in the slot, whose INT3 leads back here.
//!
//! **Interrupts are off in a slot.** So a CPU that answers an interrupt is in no slot, and once a
//! disarmed probe's byte is back and every CPU has answered, no CPU is in the slot or on the way to
//! it: the slot can be used again.
//!
//! **No recursion.** A probe that a handler runs into is counted as missed, and its instruction
//! runs. The code before this is known is not probed (`tools/seal`), and neither is code that NMIs,
//! double faults and machine checks run: the return from an INT3 would let these events nest.
//!
//! Linux' relative is arch/x86/kernel/kprobes/core.c.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use freehold_probes::{Decoded, Kind, LONGEST};
use freehold_replica::INT3;

use crate::traps::{self, INTERRUPT_FLAG, Registers};
use crate::{cpu, static_keys, usercopy};

/// Largest number of armed probes.
pub const SLOTS: usize = 64;
/// Bytes of a slot: the longest instruction, and INT3.
pub const SLOT_BYTES: usize = LONGEST + 1;
/// The bytes of a slot that is not used.
pub const UNUSED: [u8; SLOT_BYTES] = [INT3; SLOT_BYTES];

/// The way on from a probe's handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// It runs the slot and continues at this address.
    Slot(u64),
    /// It continues at this address.
    Jump(u64),
    /// It continues at the first address under a condition, else at the second one.
    Branch(u8, u64, u64),
}

impl Effect {
    /// The number of the kind, and the addresses.
    const fn words(self) -> [u64; 3] {
        match self {
            Self::Slot(next) => [0, next, 0],
            Self::Jump(target) => [1, target, 0],
            Self::Branch(condition, target, next) => [2 + condition as u64, target, next],
        }
    }
    const fn from_words([kind, first, second]: [u64; 3]) -> Self {
        match kind {
            0 => Self::Slot(first),
            1 => Self::Jump(first),
            _ => Self::Branch((kind - 2) as u8, first, second),
        }
    }
}

/// A slot's probe. The words of the effect change only while the address is 0.
struct Armed {
    /// The address of the instruction; 0: none.
    address: AtomicU64,
    effect: [AtomicU64; 3],
    missed: AtomicU64,
}

static ARMED: [Armed; SLOTS] = [const {
    Armed { address: AtomicU64::new(0), effect: [const { AtomicU64::new(0) }; 3], missed: AtomicU64::new(0) }
}; SLOTS];

#[cfg(target_os = "none")]
core::arch::global_asm!(
    ".section .text.freehold_probe_slots, \"ax\"",
    ".balign 16",
    ".globl freehold_probe_slots",
    "freehold_probe_slots:",
    ".fill {bytes}, 1, {int3}",
    ".text",
    bytes = const SLOTS * SLOT_BYTES,
    int3 = const INT3,
);

#[cfg(target_os = "none")]
unsafe extern "C" {
    static freehold_probe_slots: u8;
}

/// The addresses of all slots.
#[cfg(target_os = "none")]
fn slots() -> Range<u64> {
    let start = &raw const freehold_probe_slots as u64;
    start..start + (SLOTS * SLOT_BYTES) as u64
}
#[cfg(not(target_os = "none"))]
fn slots() -> Range<u64> {
    let start = 0xffff_ffff_8030_0000;
    start..start + (SLOTS * SLOT_BYTES) as u64
}

/// Returns the address of a slot.
pub fn slot_address(slot: usize) -> u64 {
    slots().start + (slot * SLOT_BYTES) as u64
}

/// Returns the bytes of a slot for an instruction at `address`, and its effect; `None` for one that
/// cannot be probed. `bytes` are the instruction's.
pub fn plan(slot: usize, address: u64, bytes: &[u8], decoded: Decoded) -> Option<([u8; SLOT_BYTES], Effect)> {
    let next = address + decoded.length as u64;
    let to = |distance: i32| next.wrapping_add_signed(distance.into());
    let mut code = UNUSED;
    let effect = match decoded.kind {
        Kind::Plain => {
            code[..decoded.length].copy_from_slice(bytes);
            Effect::Slot(next)
        }
        Kind::RipRelative(at) => {
            code[..decoded.length].copy_from_slice(bytes);
            let place = code[..decoded.length].get_mut(at..at + 4)?;
            let distance = i32::from_le_bytes([place[0], place[1], place[2], place[3]]);
            let moved = i64::from(distance) + address.wrapping_sub(slot_address(slot)) as i64;
            place.copy_from_slice(&i32::try_from(moved).ok()?.to_le_bytes());
            Effect::Slot(next)
        }
        // A push of the return address, which its 32 bits with their sign are.
        Kind::Call(distance) => {
            code[0] = 0x68;
            code[1..5].copy_from_slice(&i32::try_from(next as i64).ok()?.to_le_bytes());
            Effect::Slot(to(distance))
        }
        Kind::Jump(distance) => Effect::Jump(to(distance)),
        Kind::Branch(condition, distance) => Effect::Branch(condition, to(distance), next),
        Kind::Fixed => return None,
    };
    Some((code, effect))
}

/// Whether no instruction in these addresses may be probed, whatever function has them.
pub fn is_refused(instruction: Range<u64>) -> bool {
    let touches = |other: Range<u64>| other.start < instruction.end && instruction.start < other.end;
    touches(slots()) || touches(usercopy::code()) || static_keys::site_ranges().any(touches)
}

/// From now on INT3 at `address` calls the handler with the number of this unused slot.
pub fn arm(slot: usize, address: u64, effect: Effect) {
    let armed = &ARMED[slot];
    for (place, word) in armed.effect.iter().zip(effect.words()) {
        place.store(word, Ordering::Relaxed);
    }
    armed.missed.store(0, Ordering::Relaxed);
    armed.address.store(address, Ordering::Release);
}

/// Gives up a slot: no CPU runs its INT3, or the slot, any more.
pub fn release(slot: usize) {
    ARMED[slot].address.store(0, Ordering::Release);
}

/// Returns how often a handler ran into this slot's probe since it was armed.
pub fn missed(slot: usize) -> u64 {
    ARMED[slot].missed.load(Ordering::Relaxed)
}

/// Handles an INT3 in kernel mode. Returns whether it is a probe's or a slot's. Interrupts are off.
pub(crate) fn hit(frame: &mut Registers) -> bool {
    let address = frame.rip.wrapping_sub(1);
    let slots = slots();
    if slots.contains(&address) {
        return leave((address - slots.start) as usize / SLOT_BYTES, frame);
    }
    let is_here = |armed: &Armed| armed.address.load(Ordering::Acquire) == address;
    let Some(slot) = ARMED.iter().position(is_here) else { return false };
    let busy = &cpu::this().is_in_probe;
    if busy.load(Ordering::Relaxed) {
        ARMED[slot].missed.fetch_add(1, Ordering::Relaxed);
    } else {
        busy.store(true, Ordering::Relaxed);
        traps::handlers().probe_hit(slot);
        busy.store(false, Ordering::Relaxed);
    }
    go_on(slot, frame);
    true
}

/// Whether the INT3 that this CPU ran into at `address`, in kernel mode, is gone: its probe was
/// disarmed meanwhile. The CPU then runs the instruction in its place (Linux:
/// `kprobe_int3_handler`).
pub(crate) fn is_gone(address: u64) -> bool {
    // SAFETY: the CPU has just run this byte, and text stays mapped.
    unsafe { (address as *const u8).read_volatile() != INT3 }
}

fn effect_of(slot: usize) -> Effect {
    Effect::from_words([0, 1, 2].map(|word: usize| ARMED[slot].effect[word].load(Ordering::Relaxed)))
}

/// Continues behind the handler.
fn go_on(slot: usize, frame: &mut Registers) {
    match effect_of(slot) {
        Effect::Slot(_) => {
            cpu::this().probed_flags.store(frame.rflags & INTERRUPT_FLAG, Ordering::Relaxed);
            frame.rflags &= !INTERRUPT_FLAG;
            frame.rip = slot_address(slot);
        }
        Effect::Jump(target) => frame.rip = target,
        Effect::Branch(condition, target, next) => {
            frame.rip = if holds(condition, frame.rflags) { target } else { next };
        }
    }
}

/// Continues behind the instruction in a slot. Returns whether the slot has one.
fn leave(slot: usize, frame: &mut Registers) -> bool {
    let Effect::Slot(next) = effect_of(slot) else { return false };
    frame.rip = next;
    frame.rflags |= cpu::this().probed_flags.load(Ordering::Relaxed);
    ARMED[slot].address.load(Ordering::Acquire) != 0
}

/// Whether a condition holds with these flags (Intel SDM volume 1, appendix B).
fn holds(condition: u8, flags: u64) -> bool {
    let flag = |bit: u32| flags >> bit & 1 != 0;
    let (carry, parity, zero, sign, overflow) = (flag(0), flag(2), flag(6), flag(7), flag(11));
    let holds = match condition >> 1 {
        0 => overflow,
        1 => carry,
        2 => zero,
        3 => carry || zero,
        4 => sign,
        5 => parity,
        6 => sign != overflow,
        _ => zero || sign != overflow,
    };
    holds != (condition & 1 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use freehold_probes::decode;

    const AT: u64 = 0xffff_ffff_8020_1000;

    fn planned(bytes: &[u8]) -> Option<([u8; SLOT_BYTES], Effect)> {
        plan(3, AT, bytes, decode(bytes).unwrap())
    }

    #[test]
    fn a_moved_instruction_reaches_the_same_address() {
        // lea rax, [rip + 0x100]
        let (code, effect) = planned(&[0x48, 0x8d, 0x05, 0, 1, 0, 0]).unwrap();
        assert_eq!(effect, Effect::Slot(AT + 7));
        let distance = i32::from_le_bytes([code[3], code[4], code[5], code[6]]);
        assert_eq!((slot_address(3) + 7).wrapping_add_signed(distance.into()), AT + 7 + 0x100);
        assert_eq!(code[7..], UNUSED[7..]);
        // push rbp
        assert_eq!(planned(&[0x55]).unwrap().0[..2], [0x55, INT3]);
    }

    #[test]
    fn a_call_pushes_the_address_behind_it_and_a_jump_needs_no_slot() {
        let (code, effect) = planned(&[0xe8, 0x10, 0, 0, 0]).unwrap();
        assert_eq!((code[0], effect), (0x68, Effect::Slot(AT + 5 + 0x10)));
        assert_eq!(i32::from_le_bytes([code[1], code[2], code[3], code[4]]) as i64 as u64, AT + 5);
        assert_eq!(planned(&[0xeb, 0xfe]).unwrap(), (UNUSED, Effect::Jump(AT)));
        assert_eq!(planned(&[0x74, 4]).unwrap(), (UNUSED, Effect::Branch(4, AT + 6, AT + 2)));
        assert_eq!(planned(&[0xc3]), None);
        for effect in [Effect::Slot(7), Effect::Jump(8), Effect::Branch(0, 1, 2), Effect::Branch(15, 1, 2)] {
            assert_eq!(Effect::from_words(effect.words()), effect);
        }
    }

    #[test]
    fn conditions_are_those_of_the_manual() {
        const ZERO: u64 = 1 << 6;
        const SIGN: u64 = 1 << 7;
        const OVERFLOW: u64 = 1 << 11;
        for (condition, flags) in [
            (0, OVERFLOW),
            (2, 1),
            (4, ZERO),
            (6, 1),
            (6, ZERO),
            (8, SIGN),
            (10, 4),
            (12, SIGN),
            (12, OVERFLOW),
            (14, ZERO),
        ] {
            assert!(holds(condition, flags) && !holds(condition + 1, flags), "{condition} {flags:#x}");
            assert!(!holds(condition, 0) && holds(condition + 1, 0), "{condition}");
        }
        assert!(!holds(12, SIGN | OVERFLOW) && holds(13, SIGN | OVERFLOW));
    }
}
