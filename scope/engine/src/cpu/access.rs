//! The path of an access: comparisons that nearly always succeed, and the handling of the others.

use std::sync::Arc;

use freehold_scope_model::{AccessKind, FirstLevel, PageSize, Scope, TlbKey};
use freehold_scope_record::Rule;

use super::{Choice, Cpu, DIRECT, NO_PAGE, NO_TAG, PAGES, Page, WATCHED};
use crate::frames::{Frames, Mark, User};
use crate::guest::{NOWHERE, walk};

impl Cpu {
    /// Notes that the instruction at `pc` has accessed `address`, and the number of bytes;
    /// `physical` asks the emulator for the physical address.
    #[inline]
    pub fn access<C: Choice>(
        &mut self,
        pc: u64,
        address: u64,
        (access, bytes): (AccessKind, u64),
        physical: impl FnOnce() -> Option<u64>,
    ) {
        let mode = (pc >> 63) as usize;
        let number = address >> 12;
        let slot = number as usize & (PAGES - 1);
        if self.pages[slot].tag != number | self.generation {
            self.fill::<C>(slot, pc, address, physical);
        }
        let page = &mut self.pages[slot];
        page.counts[mode] += 1;
        let Page { base, key, mark, flags, node, mut hint, .. } = *page;
        if C::TLB && !self.tlb.touch(FirstLevel::Data, key, hint) {
            self.tally.tlb_data_misses[mode] += self.look_up(FirstLevel::Data, key, &mut hint, base, mode);
            self.pages[slot].hint = hint;
        }
        let store = access == AccessKind::Write;
        self.tally.stores[mode] += u64::from(store);
        self.tally.stored_bytes[mode] += if store { bytes } else { 0 };
        let Some(now) = self.watch.frames.mark(base >> 12) else { return };
        if now != mark || (store && flags & WATCHED != 0) {
            self.look_closely(slot, pc, address, access);
        }
        if C::STORES {
            self.follow_bytes(pc, address, base, (access, bytes));
            self.follow_line(pc, address, base, access);
        }
        if C::CACHE {
            let line = (base | address & 0xfff) >> self.line_shift;
            let slot = line as usize & (self.first_data.len() - 1);
            let cached = self.first_data[slot];
            let wanted = line << 1 | 1;
            if cached != wanted && (store || cached != line << 1) {
                self.first_level_missed(line, access, mode, node);
            }
        }
    }

    #[inline(never)]
    fn first_level_missed(&mut self, line: u64, access: AccessKind, mode: usize, node: u8) {
        let slot = line as usize & (self.first_data.len() - 1);
        let known = self.first_data[slot] >> 1 == line;
        self.tally.first_misses[mode] += u64::from(!known);
        // The first store to a clean line goes on to the last level too, to make it dirty there.
        if self.last_level(line << self.line_shift, access).is_some() {
            self.tally.data_misses[mode][usize::from(node).min(NOWHERE)] += 1;
        }
        self.first_data[slot] = line << 1 | u64::from(access == AccessKind::Write);
    }

    /// Returns the key of the page, its scope and its size, from the tables. If the kernel does not
    /// publish its tables, scope and size are guessed.
    pub(super) fn key_of(&mut self, address: u64, base: u64) -> TlbKey {
        let upper = address >> 63 != 0;
        let watch = Arc::clone(&self.watch);
        if let Some(publication) = watch.frames.published() {
            let root = if upper { Some(publication.root(self.home)) } else { self.root };
            let walked = root.and_then(|root| walk(&*watch.memory, root, address));
            let leaf = walked.filter(|leaf| leaf.page == base);
            // Devices have no address that QEMU was asked to place.
            let known = walked.is_some_and(|leaf| watch.nodes.of(leaf.page) != NOWHERE);
            self.compared += u64::from(known);
            self.differed += u64::from(known && leaf.is_none());
            let in_windows = address.wrapping_sub(publication.windows) < publication.windows_span;
            return match leaf {
                Some(leaf) if leaf.global => TlbKey::new(address, leaf.size, Scope::Global),
                Some(leaf) => TlbKey::new(address, leaf.size, Scope::Space(0)),
                None if upper && !in_windows => TlbKey::new(address, PageSize::Small, Scope::Global),
                None => TlbKey::new(address, PageSize::Small, Scope::Space(0)),
            };
        }
        // Linux maps its text and its direct map in pages of 2 MiB, whose addresses agree with the
        // frames' modulo that.
        let large = upper && base != NO_TAG && (address & !0xfff ^ base) & 0x1f_ffff == 0;
        let size = if large { PageSize::Large } else { PageSize::Small };
        TlbKey::new(address, size, if upper { Scope::Global } else { Scope::Space(0) })
    }

    #[inline(never)]
    fn fill<C: Choice>(
        &mut self,
        slot: usize,
        pc: u64,
        address: u64,
        physical: impl FnOnce() -> Option<u64>,
    ) {
        self.settle_page(slot);
        self.fills += 1;
        let base = physical().map_or(NO_TAG, |physical| physical & !0xfff);
        let key = self.key_of(address, base);
        let watch = &*self.watch;
        let user = if pc >> 63 != 0 { User::Kernel } else { User::Program };
        watch.frames.used(base >> 12, user);
        let mark = watch.frames.mark(base >> 12).unwrap_or(Mark::NOWHERE);
        let direct = watch.frames.is_direct(address);
        let flags = if direct { DIRECT } else { 0 } | watched(&watch.frames, address, mark);
        let node = if base == NO_TAG { NOWHERE } else { watch.nodes.of(base) };
        let tag = address >> 12 | self.generation;
        let kind = watch.frames.kind(address, mark);
        self.pages[slot] = Page { tag, base, key, mark, flags, node: node as u8, kind, ..NO_PAGE };
        if !direct {
            self.check_cached::<C>(key, base, pc, address);
        } else if watch.frames.is_outside(mark) {
            // A mark that equals no other: every access is checked.
            self.pages[slot].mark = Mark(!mark.0);
        }
        if C::TLB && base != NO_TAG {
            self.watch_alias(address, base);
        }
    }

    /// Checks that the modelled TLB agrees with the tables, which have `key` at `base`: an entry
    /// may lead elsewhere, or date from before the frame changed hands.
    pub(super) fn check_cached<C: Choice>(&mut self, key: TlbKey, base: u64, pc: u64, address: u64) {
        if !C::TLB || base == NO_TAG {
            return;
        }
        for other in TlbKey::all_of(address) {
            let Some(&cached) = self.tlb.peek(other) else { continue };
            let then = Mark(cached.note);
            let now = self.watch.frames.mark(cached.frame).unwrap_or(Mark::NOWHERE);
            let frame = key_frame(other, cached.frame, address);
            if now.generation() == then.generation() && other == key && frame == base >> 12 {
                continue;
            }
            // The entry of a large page has the mark of its first frame that was used; the other
            // frames have marks of their own.
            if now.generation() != then.generation() && self.watch.frames.published().is_some() {
                self.watch.frames.report(
                    Rule::Stale,
                    self.suspect(pc, address, cached.frame),
                    Some((cached.moment, then)),
                );
            }
            self.tlb.flush_key(other, self.clock());
        }
    }

    /// Handles an access to a page that has changed since its entry was made, or whose stores are
    /// watched.
    #[inline(never)]
    fn look_closely(&mut self, slot: usize, pc: u64, address: u64, access: AccessKind) {
        let Page { base, mark, flags, key, .. } = self.pages[slot];
        let watch = Arc::clone(&self.watch);
        let frames = &watch.frames;
        let suspect = self.suspect(pc, address, base >> 12);
        let now = frames.mark(base >> 12).unwrap_or(Mark::NOWHERE);
        if flags & DIRECT != 0 {
            let outside = frames.is_outside(now);
            if outside && pc >> 63 != 0 {
                frames.report(Rule::DirectMap, suspect, None);
            }
            self.pages[slot].mark = if outside { Mark(!now.0) } else { now };
            self.pages[slot].flags = DIRECT | watched(frames, address, now);
        } else if now != mark {
            if now.generation() != mark.generation() {
                let filled = self.tlb.peek(key).map_or(suspect.time, |cached| cached.moment);
                frames.report(Rule::Stale, suspect, Some((filled, mark)));
            }
            self.pages[slot].mark = now;
            self.pages[slot].flags = watched(frames, address, now);
            self.tlb.note(key, now.0);
        }
        if access == AccessKind::Write {
            let physical = base | address & 0xfff;
            if frames.is_table(address) {
                let left = frames.table_store(&*watch.memory, physical, suspect);
                if let Some(residue) = &watch.residue {
                    left.for_each(|frame| residue.carried(&*watch.memory, frame));
                }
            }
            if now.is_table() {
                let (opened, closed) = frames.half_store(&*watch.memory, physical, suspect);
                self.windows_changed(opened, &closed);
            }
            if frames.is_read_only(now)
                && let Some(patching) = frames.patching()
            {
                if patching.may_store(pc, address) {
                    self.checks.text_stores += 1;
                } else {
                    frames.report(Rule::Text, suspect, None);
                }
            }
        }
    }
}

/// Returns the flag for pages whose stores are checked closely.
fn watched(frames: &Frames, address: u64, mark: Mark) -> u8 {
    let is_watched = frames.is_table(address) || frames.is_read_only(mark) || mark.is_table();
    if is_watched { WATCHED } else { 0 }
}

/// Returns the frame of `address` in a cached translation.
fn key_frame(key: TlbKey, frame: u64, address: u64) -> u64 {
    let within = (1u64 << (key.size().shift() - 12)) - 1;
    frame & !within | (address >> 12) & within
}
