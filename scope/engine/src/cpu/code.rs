//! The path of a block of code: its [`Step`](crate::Step)s, taken by a call, and the calls that are
//! due in them.

use freehold_scope_model::{AccessKind, FirstLevel};
use freehold_scope_record::Rule;

use super::{CODE_PAGES, Choice, Cpu, NO_PAGE, NO_TAG, Page};
use crate::board::LOOK;
use crate::frames::Mark;
use crate::tally::KERNEL;
use crate::watch::{FIRMWARE, WatchedBlock};

impl Cpu {
    /// Takes the steps of a block that is about to run. The caller takes none of them itself.
    #[inline]
    pub fn block<C: Choice>(&mut self, block: &WatchedBlock) {
        let recent = self.board.add_recent(block.instructions);
        if !self.board.is_in(block.page) {
            self.page::<C>(block);
        }
        if recent >= LOOK {
            self.look();
        }
        self.board.add_fetches(block.mode, block.node, block.instructions);
        self.runs.count(block.number);
        if block.mode == KERNEL && self.board.has_ac() {
            self.smap(block);
        }
        if C::CACHE && block.only_line != self.last_line {
            for (first, end) in block.lines {
                for line in first..end {
                    self.last_line = line;
                    if !self.board.put_line(line) {
                        self.first_fetch_missed(line, block.mode);
                    }
                }
            }
        }
    }

    /// Handles a due call of a step: this line is not in the first level.
    pub fn line(&mut self, line: u64, mode: usize) {
        self.board.put_line(line);
        self.first_fetch_missed(line, mode);
    }

    /// Handles code of another page than before, or of the same after a flush or the begin of a
    /// phase.
    #[inline(never)]
    pub fn page<C: Choice>(&mut self, block: &WatchedBlock) {
        if self.phase == FIRMWARE && block.mode == KERNEL {
            self.watch.end_of_firmware();
        }
        if self.watch.phase() != self.phase {
            self.look();
        }
        self.board.enter(block.page);
        let tag = block.page | self.generation;
        let slot = block.page as usize & (CODE_PAGES - 1);
        let base = block.frame.unwrap_or(NO_TAG);
        if self.codes[slot].tag != tag || self.codes[slot].base != base {
            let key = self.key_of(block.pc, base);
            let mark = self.watch.frames.mark(base >> 12).unwrap_or(Mark::NOWHERE);
            self.codes[slot] = Page { tag, base, key, mark, node: block.node as u8, ..NO_PAGE };
            self.check_cached::<C>(key, base, block.pc, block.pc);
            if self.is_home && !self.is_sharing && block.mode == KERNEL {
                self.check_text(block.pc, base >> 12);
            }
        }
        if C::TLB {
            let Page { key, mut hint, .. } = self.codes[slot];
            if !self.tlb.touch(FirstLevel::Fetch, key, hint) {
                self.tally.tlb_fetch_misses[block.mode & 1] +=
                    self.look_up(FirstLevel::Fetch, key, &mut hint, base, block.mode);
                self.codes[slot].hint = hint;
            }
        }
    }

    fn check_text(&self, pc: u64, frame: u64) {
        let frames = &self.watch.frames;
        if frames.is_anothers_text(self.home, pc, frame, self.text_version) {
            frames.report(Rule::RemoteText, self.suspect(pc, pc, frame), None);
        }
    }

    #[inline(never)]
    fn first_fetch_missed(&mut self, line: u64, mode: usize) {
        self.tally.first_fetch_misses[mode & 1] += 1;
        if let Some(node) = self.last_level(line << self.line_shift, AccessKind::Read) {
            self.tally.fetch_misses[mode & 1][node] += 1;
        }
    }
}
