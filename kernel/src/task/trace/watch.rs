//! Hardware breakpoints and watchpoints of a thread, in the format of PTRACE_PEEKUSER and
//! PTRACE_POKEUSER: `u_debugreg` of `struct user` (Linux: arch/x86/kernel/ptrace.c,
//! hw_breakpoint.c; Intel SDM volume 3, 17.2).
//!
//! The tracer changes them while the thread is in a stop. They are armed only while the thread's
//! program runs ([`run_watched_unless`](UserContext::run_watched_unless)), so the kernel's accesses
//! to the program's memory are no hits. A thread with breakpoints is marked
//! ([`WATCH`](crate::sched::thread::WATCH)) as long as it has any: others pay nothing.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::hw::user::{USER_END, UserContext};
use crate::{Errno, Result};

/// Number of address slots.
const SLOTS: usize = 4;
const STATUS: usize = 6;
const CONTROL: usize = 7;
/// Bits of the status register that read as 1 without an event (Linux: DR6_RESERVED).
const STATUS_AT_RESET: u64 = 0xffff_0ff0;
/// The single-step bit of the status register.
const STEP: u64 = 1 << 14;
const RESUME_FLAG: u64 = 1 << 16;

/// The debug registers of a thread.
#[derive(Debug, Default)]
pub struct Watchpoints {
    addresses: [AtomicU64; SLOTS],
    /// The status of the last hit, without [`STATUS_AT_RESET`]; 0 if there was no hit.
    status: AtomicU64,
    control: AtomicU64,
}

/// The kind of access that a slot detects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WatchKind {
    Execution,
    Access,
}

/// Returns a slot's kind and length in bytes, as `control` describes them. `None` if it is off.
///
/// # Errors
/// `EINVAL` for I/O ports, and for instructions longer than a byte.
fn slot_of(control: u64, slot: usize) -> Result<Option<(WatchKind, u64)>> {
    if control >> (2 * slot) & 3 == 0 {
        return Ok(None);
    }
    let how = control >> (16 + 4 * slot);
    let length = [1, 2, 8, 4][(how >> 2 & 3) as usize];
    match (how & 3, length) {
        (0, 1) => Ok(Some((WatchKind::Execution, 1))),
        (0 | 2, _) => Err(Errno::EINVAL),
        _ => Ok(Some((WatchKind::Access, length))),
    }
}

fn check(address: u64, length: u64) -> Result<()> {
    let is_programs = address.checked_add(length).is_some_and(|end| end <= USER_END);
    if is_programs && address.is_multiple_of(length) { Ok(()) } else { Err(Errno::EINVAL) }
}

impl Watchpoints {
    fn address(&self, slot: usize) -> u64 {
        self.addresses[slot].load(Ordering::Relaxed)
    }

    /// Returns register `index`.
    pub fn peek(&self, index: usize) -> u64 {
        match index {
            0..SLOTS => self.address(index),
            STATUS => self.status.load(Ordering::Relaxed) ^ STATUS_AT_RESET,
            CONTROL => self.control.load(Ordering::Relaxed),
            _ => 0,
        }
    }

    /// Changes register `index`.
    ///
    /// # Errors
    /// `EIO` for DR4 and DR5; `EINVAL` for an address that is no program's or does not fit the
    /// length, for I/O ports and for invalid lengths. Nothing has changed then.
    pub fn poke(&self, index: usize, value: u64) -> Result<()> {
        match index {
            0..SLOTS => {
                let control = self.control.load(Ordering::Relaxed);
                check(value, slot_of(control, index)?.map_or(1, |(_, length)| length))?;
                self.addresses[index].store(value, Ordering::Relaxed);
            }
            STATUS => self.status.store(value ^ STATUS_AT_RESET, Ordering::Relaxed),
            CONTROL => {
                for slot in 0..SLOTS {
                    if let Some((_, length)) = slot_of(value, slot)? {
                        check(self.address(slot), length)?;
                    }
                }
                // As on Linux, all bits are stored and reported. Those without a slot are never
                // armed.
                self.control.store(value, Ordering::Relaxed);
            }
            _ => return Err(Errno::EIO),
        }
        Ok(())
    }

    /// Whether any slot is on.
    pub fn is_any(&self) -> bool {
        self.control.load(Ordering::Relaxed) & 0xff != 0
    }

    /// Turns all slots off, and clears the status.
    pub fn clear(&self) {
        for register in self.addresses.iter().chain([&self.status, &self.control]) {
            register.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the addresses and the control register to arm.
    pub fn armed(&self) -> ([u64; SLOTS], u64) {
        (core::array::from_fn(|slot| self.address(slot)), self.control.load(Ordering::Relaxed))
    }

    /// Handles a debug exception with `status` in the CPU's register. Returns the part of it that
    /// belongs to the thread: a hit of a slot that is off does not. After a breakpoint the program
    /// continues with the next instruction.
    pub fn hit(&self, context: &mut UserContext, status: u64) -> u64 {
        let control = self.control.load(Ordering::Relaxed);
        let mut own = status & !0xf & !STATUS_AT_RESET;
        for slot in 0..SLOTS {
            if status & 1 << slot == 0 {
                continue;
            }
            let Ok(Some((kind, _))) = slot_of(control, slot) else { continue };
            own |= 1 << slot;
            if kind == WatchKind::Execution {
                context.regs_mut().rflags |= RESUME_FLAG;
            }
        }
        self.status.store(own & (0xf | STEP), Ordering::Relaxed);
        own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_fit_their_lengths_and_are_a_programs() {
        let watch = Watchpoints::default();
        assert_eq!([USER_END, u64::MAX].map(|at| watch.poke(0, at)), [Err(Errno::EINVAL); 2]);
        watch.poke(0, 0x1001).expect("an odd address");
        assert_eq!(watch.poke(7, 1 | 0xd << 16), Err(Errno::EINVAL), "four bytes at an odd address");
        watch.poke(7, 1 | 1 << 16).expect("one byte");
        assert!(watch.is_any());
        watch.poke(0, 0x1000).expect("an even one");
        watch.poke(7, 1 | 0xd << 16).expect("four bytes");
        assert_eq!(watch.poke(0, 0x1002), Err(Errno::EINVAL));
        assert_eq!(watch.peek(0), 0x1000, "what is refused changes nothing");
    }

    #[test]
    fn ports_long_instructions_and_protection_are_no_ones() {
        let watch = Watchpoints::default();
        assert_eq!(watch.poke(7, 1 | 2 << 16), Err(Errno::EINVAL));
        assert_eq!(watch.poke(7, 1 | 0xc << 16), Err(Errno::EINVAL));
        assert_eq!([watch.poke(4, 0), watch.poke(5, 0)], [Err(Errno::EIO); 2]);
        watch.poke(7, !0xffff_00ff).expect("nothing is on");
        assert_eq!((watch.peek(7), watch.is_any()), (!0xffff_00ff, false));
    }

    #[test]
    fn the_status_has_the_slots_that_are_on() {
        let (watch, mut context) = (Watchpoints::default(), UserContext::new().expect("memory"));
        assert_eq!(watch.peek(6), STATUS_AT_RESET);
        watch.poke(1, 0x2000).expect("an address");
        watch.poke(7, 4).expect("a breakpoint");
        assert_eq!(watch.hit(&mut context, STATUS_AT_RESET | 3), 2);
        assert_eq!((watch.peek(6), context.regs().rflags & RESUME_FLAG), (STATUS_AT_RESET | 2, RESUME_FLAG));
        assert_eq!(watch.hit(&mut context, STATUS_AT_RESET | STEP), STEP);
        watch.clear();
        assert_eq!((watch.peek(1), watch.peek(6), watch.is_any()), (0, STATUS_AT_RESET, false));
    }
}
