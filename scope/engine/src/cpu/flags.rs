//! RFLAGS.AC of a CPU: instructions that change or show it, and blocks that run with it set. The
//! rule is in `smap`.

use freehold_scope_record::Rule;

use super::{Cpu, NO_TAG, PAGES};
use crate::decode::Flags;
use crate::smap::{AC, ENTRY, Opening, read_frame};
use crate::watch::WatchedBlock;

impl Cpu {
    /// Notes that an instruction about RFLAGS.AC is about to run.
    pub fn flags(&mut self, flags: Flags) {
        match flags {
            Flags::Set => self.set_ac(true),
            Flags::Clear | Flags::Leave => self.set_ac(false),
            Flags::Return => self.smap.returning = true,
            // The accesses of these instructions tell the flag.
            Flags::Pop | Flags::Push | Flags::Constant => {}
        }
    }

    /// Notes that the same instruction has accessed `address`; `physical` asks the emulator for the
    /// physical address.
    pub fn flags_at(&mut self, flags: Flags, address: u64, physical: impl FnOnce() -> Option<u64>) {
        match flags {
            Flags::Pop | Flags::Push => {
                let physical = self.physical_of(address).or_else(physical);
                if let Some(shown) = self.told(physical) {
                    self.set_ac(shown & AC != 0);
                }
            }
            // IRET reads its frame upwards.
            Flags::Return if core::mem::take(&mut self.smap.returning) => {
                let Some((flags, code)) = self.frame_at(address, address, physical) else { return };
                self.set_ac(code & 3 == 0 && flags & AC != 0);
            }
            _ => {}
        }
    }

    /// Notes that the instruction at `pc`, the first of its block, has pushed at `address`. If that
    /// is a trap handler's first push, the trap frame is above.
    pub fn handler_pushed(&mut self, pc: u64, address: u64, physical: impl FnOnce() -> Option<u64>) {
        let found = self.watch.frames.rules().and_then(|rules| rules.frame(pc, address));
        let Some((frame, opening)) = found else { return };
        let Some((flags, code)) = self.frame_at(frame, address, physical) else { return };
        let is_set = flags & AC != 0;
        self.smap.checks.frames += 1;
        let from_program = u64::from(is_set && code & 3 != 0);
        self.smap.checks.program_frames += from_program;
        match opening {
            Opening::Push => {
                self.set_ac(is_set);
                self.smap.entry_left = ENTRY;
            }
            // CLAC itself ran with the program's AC, which is not followed.
            Opening::Clac => self.smap.checks.entries += from_program,
        }
    }

    /// Handles a block of the kernel that runs with AC set.
    #[inline(never)]
    pub fn smap(&mut self, block: &WatchedBlock) {
        let Some(rules) = self.watch.frames.rules() else { return };
        let instructions = block.instructions;
        let smap = &mut self.smap;
        if rules.is_user_copy(block.pc) {
            smap.checks.user_copies += instructions;
            return;
        }
        if rules.is_handler(block.pc) {
            smap.entry_left = ENTRY;
        }
        if let Some(left) = smap.entry_left.checked_sub(instructions) {
            smap.entry_left = left;
            smap.checks.entries += instructions;
            return;
        }
        smap.entry_left = 0;
        smap.checks.outside += instructions;
        if !core::mem::replace(&mut smap.reported, true) {
            let frame = block.frame.unwrap_or(NO_TAG) >> 12;
            let suspect = self.suspect(block.pc, block.pc, frame);
            self.watch.frames.report(Rule::Smap, suspect, None);
        }
    }

    fn set_ac(&mut self, value: bool) {
        if self.board.has_ac() != value {
            self.board.flip_ac();
            self.smap.reported = false;
            // The next handler does not inherit the rest of the last handler's allowance.
            self.smap.entry_left = 0;
        }
    }

    fn frame_at(&self, frame: u64, near: u64, physical: impl FnOnce() -> Option<u64>) -> Option<(u64, u64)> {
        let watch = &*self.watch;
        let root = watch.frames.published().map(|publication| publication.root(self.home));
        let physical = self.physical_of(near).or_else(physical);
        read_frame(&*watch.memory, root, (near, physical), frame)
    }

    /// Returns the physical address of an access just made; `None` if its page is not kept.
    fn physical_of(&self, address: u64) -> Option<u64> {
        let number = address >> 12;
        let page = &self.pages[number as usize & (PAGES - 1)];
        let is_kept = page.tag == number | self.generation && page.base != NO_TAG;
        is_kept.then_some(page.base | address & 0xfff)
    }
}
