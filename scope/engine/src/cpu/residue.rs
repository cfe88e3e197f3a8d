//! Tracks the effect of this CPU's accesses on programs' bytes, and checks that the kernel keeps
//! away from free frames.

use freehold_scope_model::AccessKind;
use freehold_scope_record::Rule;

use super::{Cpu, NO_TAG};
use crate::residue::StoredFor;

impl Cpu {
    /// Notes an access of `bytes` bytes that `pc` has made at `address`, in the page at `base`.
    #[inline(never)]
    pub(super) fn follow_bytes(&mut self, pc: u64, address: u64, base: u64, access: (AccessKind, u64)) {
        if base == NO_TAG {
            return;
        }
        let watch = &*self.watch;
        let Some(residue) = &watch.residue else { return };
        let physical = base | address & 0xfff;
        let (frame, in_kernel) = (base >> 12, pc >> 63 != 0);
        if access.0 == AccessKind::Write {
            let by_program = match watch.frames.published() {
                Some(_) => watch.frames.is_programs(frame),
                None => !in_kernel,
            };
            let stored_for = if by_program { StoredFor::Program } else { StoredFor::Kernel };
            residue.stored(&*watch.memory, physical, access.1, stored_for);
        }
        if in_kernel && watch.frames.was_given_back(frame) {
            let wipes = access.0 == AccessKind::Write
                && (watch.frames.is_window(address) || watch.frames.is_wiping(pc))
                && residue.is_zero(&*watch.memory, physical, access.1);
            if !wipes {
                watch.frames.report(Rule::FreeFrame, self.suspect(pc, address, frame), None);
            }
        }
    }
}
