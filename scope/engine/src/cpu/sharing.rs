//! Lines of the kernel that this CPU stores to.

use freehold_scope_model::AccessKind;

use super::{Cpu, NO_TAG};

impl Cpu {
    /// Notes an access that `pc` has made at `address`, in the page at `base`.
    #[inline(never)]
    pub(super) fn follow_line(&mut self, pc: u64, address: u64, base: u64, access: AccessKind) {
        let now = self.clock();
        let Some(visits) = &mut self.visits else { return };
        let is_kernels = pc >> 63 != 0 && base != NO_TAG && !self.watch.frames.is_programs(base >> 12);
        if access == AccessKind::Write && is_kernels {
            visits.stored(self.phase, (pc, address), base | address & 0xfff, now);
        }
    }
}
