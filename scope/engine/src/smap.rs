//! Judges RFLAGS.AC. The flag switches SMAP off: a kernel sets it only around its user copies. An
//! interrupt gate does not clear it, so a trap from a program that set it enters the kernel with
//! SMAP off.
//!
//! Version 1 of QEMU's plugin interface shows no registers. Each CPU's AC is therefore derived from
//! - STAC, CLAC, SYSCALL (whose mask clears it), SYSRET, POPF and IRET as they run;
//! - the RFLAGS in each trap frame. The CPU's own pushes are not seen, but the handler's first
//!   instruction is a push right below the frame: the push's address gives the frame's address, and
//!   guest memory what is in it. A CLAC may come before the push: the frame then tells what was
//!   interrupted, and AC is clear already;
//! - PUSHF, which shows the flag. A SYSCALL mask without AC is found by it, or by the next trap
//!   frame.
//!
//! AC is constant inside a block, because each instruction that changes it ends a block (QEMU keys
//! its translations by AC). So a block is judged as a whole, when it begins. AC is allowed in the
//! code that the kernel published for user copies, and for [`ENTRY`] instructions after a trap, in
//! which the handler runs CLAC. In programs AC is theirs and is not followed.
//!
//! AC is a word of the CPU's board; everything else here is used by the CPU's own thread.

use std::collections::{HashMap, HashSet};

use freehold_scope_doorbell::Publication;
use freehold_scope_record::SmapChecks;

use crate::guest::{GuestMemory, walk};

/// RFLAGS.AC (Intel SDM, volume 1, 3.4.3).
pub const AC: u64 = 1 << 18;
/// Instructions in which a trap handler has to run CLAC.
pub const ENTRY: u64 = 16;
/// Largest number of bytes of a kernel's user copies: a publication of more would make the rule
/// void.
const MOST_USER_COPIES: u64 = 4096;

/// CLAC's bytes, the first in the lowest bits (Intel SDM, volume 2).
const CLAC: u64 = 0xca_010f;
const CLAC_BYTES: u64 = 3;

const GATES: u64 = 256;
const GATE_BYTES: u64 = 16;
const GATE_PRESENT: u64 = 1 << 47;

/// Vectors for which the CPU pushes an error code (Intel SDM, volume 3, 6.13; #VC and #HV: AMD APM,
/// volume 2, 8.2).
const fn has_error_code(vector: u64) -> bool {
    matches!(vector, 8 | 10..=14 | 17 | 21 | 29 | 30)
}

/// The first act of a trap handler before its first push.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Opening {
    /// A push: AC is as it was before the trap.
    Push,
    /// CLAC.
    Clac,
}

/// The published facts by which AC is judged.
#[derive(Debug)]
pub struct Rules {
    /// Bytes between a handler's first push and the frame, and the handler's opening, by the push's
    /// address.
    pushes: HashMap<u64, (u64, Opening)>,
    /// First addresses of handlers.
    handlers: HashSet<u64>,
    user_copies: core::ops::Range<u64>,
}

impl Rules {
    /// Reads the interrupt descriptor table that a kernel published.
    ///
    /// # Errors
    /// The publication describes something that is not in memory; the text names it.
    pub fn read(memory: &dyn GuestMemory, p: &Publication) -> Result<Self, &'static str> {
        let user_copies = p.user_copies..p.user_copies_end;
        let bytes = user_copies.end.wrapping_sub(user_copies.start);
        if bytes > MOST_USER_COPIES || user_copies.start < p.text || user_copies.end > p.text_end {
            return Err("code of that size copies to no program");
        }
        let (mut pushes, mut handlers) = (HashMap::new(), HashSet::new());
        for vector in 0..GATES {
            let gate = p.interrupts + GATE_BYTES * vector;
            let leaf = walk(memory, p.root(0), gate).ok_or("its interrupt table is not mapped")?;
            let word = |offset| memory.load(leaf.page | (gate + offset) & 0xfff);
            let (low, high) = word(0).zip(word(8)).ok_or("its interrupt table is not in memory")?;
            if low & GATE_PRESENT == 0 {
                continue;
            }
            let handler = high << 32 | low >> 32 & 0xffff_0000 | low & 0xffff;
            let frame = if has_error_code(vector) { 16 } else { 8 };
            handlers.insert(handler);
            if begins_with_clac(memory, p.root(0), handler) {
                pushes.insert(handler + CLAC_BYTES, (frame, Opening::Clac));
            } else {
                pushes.insert(handler, (frame, Opening::Push));
            }
        }
        Ok(Self { pushes, handlers, user_copies })
    }

    /// Returns the frame's address, when a handler's first push goes to `pushed`; `None` for any
    /// other instruction.
    pub fn frame(&self, pc: u64, pushed: u64) -> Option<(u64, Opening)> {
        self.pushes.get(&pc).map(|&(bytes, opening)| (pushed.wrapping_add(bytes), opening))
    }
    /// Returns whether a trap handler begins there.
    pub fn is_handler(&self, pc: u64) -> bool {
        self.handlers.contains(&pc)
    }
    /// Returns whether the instruction there may run with AC set.
    pub fn is_user_copy(&self, pc: u64) -> bool {
        self.user_copies.contains(&pc)
    }
}

fn begins_with_clac(memory: &dyn GuestMemory, root: u64, handler: u64) -> bool {
    let byte = |at: u64| {
        let leaf = walk(memory, root, at)?;
        let word = memory.load(leaf.page | at & 0xff8)?;
        Some(word >> (at % 8 * 8) & 0xff)
    };
    let bytes = (0..CLAC_BYTES).rev().try_fold(0, |all, at| Some(all << 8 | byte(handler + at)?));
    bytes == Some(CLAC)
}

/// SMAP state of a CPU.
#[derive(Clone, Copy, Debug, Default)]
pub struct Smap {
    /// Instructions that the trap handler may still run before its CLAC.
    pub entry_left: u64,
    /// The present breach was reported: one for each time that AC is left set.
    pub reported: bool,
    /// An IRET is about to read its frame.
    pub returning: bool,
    pub checks: SmapChecks,
}

/// Reads the interrupted program's or kernel's flags and code selector from a frame at `frame`;
/// `None` if it is not mapped. `here` is a virtual address near it and its physical address: tables
/// are walked only if the frame is in another page.
pub fn read_frame(
    memory: &dyn GuestMemory,
    root: Option<u64>,
    here: (u64, Option<u64>),
    frame: u64,
) -> Option<(u64, u64)> {
    let word = |address: u64| {
        let page = match here {
            (near, Some(physical)) if near >> 12 == address >> 12 => physical & !0xfff,
            _ => walk(memory, root?, address)?.page,
        };
        memory.load(page | address & 0xfff)
    };
    Some((word(frame.wrapping_add(16))?, word(frame.wrapping_add(8))?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guest::tests::Words;
    use freehold_scope_doorbell::{VERSION, WORDS};
    use freehold_scope_model::PageSize;

    const ROOT: u64 = 0x10_0000;
    const TABLE: u64 = 0xffff_ffff_8030_0000;
    const HANDLERS: u64 = 0xffff_ffff_8020_0220;

    fn publication(change: impl FnOnce(&mut Publication)) -> Publication {
        let words = core::array::from_fn::<u64, WORDS, _>(|n| if n == 0 { VERSION } else { 0 });
        let mut p = Publication::from_words(&words).unwrap();
        p.roots[0] = ROOT;
        p.interrupts = TABLE;
        (p.text, p.text_end) = (0xffff_ffff_8020_0000, 0xffff_ffff_8020_8000);
        (p.user_copies, p.user_copies_end) = (p.text + 0x1000, p.text + 0x1200);
        change(&mut p);
        p
    }

    #[test]
    fn a_frame_is_found_above_the_first_push_of_a_handler() {
        let words = Words::default();
        words.map(ROOT, TABLE, 0x5000, PageSize::Small, 0);
        for vector in 0..256 {
            let handler = HANDLERS + 16 * vector;
            let low = handler & 0xffff | 0x10 << 16 | 0x8e << 40 | (handler >> 16 & 0xffff) << 48;
            words.store(0x5000 + 16 * vector, if vector == 200 { 0 } else { low });
            words.store(0x5008 + 16 * vector, handler >> 32);
        }
        let rules = Rules::read(&words, &publication(|_| ())).unwrap();
        assert_eq!(
            rules.frame(HANDLERS + 16 * 3, 0x7ff0),
            Some((0x7ff8, Opening::Push)),
            "#BP has no error code"
        );
        assert_eq!(rules.frame(HANDLERS + 16 * 14, 0x7ff0), Some((0x8000, Opening::Push)), "#PF has one");
        assert_eq!(rules.frame(HANDLERS + 16 * 200, 0x7ff0), None, "a gate that is not present");
        assert!(rules.is_handler(HANDLERS) && !rules.is_handler(HANDLERS + 4));
        assert!(rules.is_user_copy(0xffff_ffff_8020_1000) && !rules.is_user_copy(0xffff_ffff_8020_1200));
    }

    #[test]
    fn a_handler_that_begins_with_clac_pushes_next_and_only_that_one() {
        let words = Words::default();
        words.map(ROOT, TABLE, 0x5000, PageSize::Small, 0);
        words.map(ROOT, HANDLERS, 0x7000, PageSize::Small, 0);
        let gate = |vector: u64, handler: u64| {
            words.store(0x5000 + 16 * vector, handler & 0xffff | 0x8e << 40 | (handler >> 16 & 0xffff) << 48);
            words.store(0x5008 + 16 * vector, handler >> 32);
        };
        // The CLAC goes on in the next word.
        let (clears, pushes) = (HANDLERS + 6, HANDLERS + 16);
        gate(3, clears);
        gate(14, pushes);
        words.store(0x7000 + (HANDLERS & 0xfff), 0x010f << 48);
        words.store(0x7008 + (HANDLERS & 0xfff), 0x6aca);
        let rules = Rules::read(&words, &publication(|_| ())).unwrap();
        assert_eq!(rules.frame(clears + 3, 0x7ff0), Some((0x7ff8, Opening::Clac)));
        assert_eq!(rules.frame(clears, 0x7ff0), None, "that is no push");
        assert_eq!(rules.frame(pushes, 0x7ff0), Some((0x8000, Opening::Push)));
        assert!(rules.is_handler(clears) && rules.is_handler(pushes) && !rules.is_handler(clears + 3));
    }

    #[test]
    fn a_publication_that_would_allow_ac_everywhere_is_refused() {
        let words = Words::default();
        words.map(ROOT, TABLE, 0x5000, PageSize::Small, 0);
        let refused = |change: fn(&mut Publication)| Rules::read(&words, &publication(change)).err();
        assert_eq!(refused(|_| ()), None);
        assert!(refused(|p| p.user_copies_end = p.text_end).is_some());
        assert!(refused(|p| (p.user_copies, p.user_copies_end) = (0, 16)).is_some(), "outside text");
        assert!(refused(|p| p.interrupts = 0x1000).is_some(), "not mapped");
    }

    #[test]
    fn a_frame_that_begins_in_another_page_than_the_push_is_read_all_the_same() {
        let words = Words::default();
        words.map(ROOT, TABLE, 0x5000, PageSize::Small, 0);
        words.map(ROOT, TABLE + 0x1000, 0x9000, PageSize::Small, 0);
        words.store(0x9008, 0x33);
        words.store(0x9010, AC);
        let push = (TABLE + 0xff8, Some(0x5ff8));
        assert_eq!(read_frame(&words, Some(ROOT), push, TABLE + 0x1000), Some((AC, 0x33)));
        assert_eq!(read_frame(&words, None, push, TABLE + 0x1000), None);
        let near = (TABLE + 0x1000, Some(0x9000));
        assert_eq!(read_frame(&words, None, near, TABLE + 0x1000), Some((AC, 0x33)));
    }
}
