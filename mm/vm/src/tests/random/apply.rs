//! Effect of each step on the process and on the model.

use std::vec::Vec;

use freehold_machine::{CpuId, Cpus};
use proptest::prelude::*;

use super::{Bytes, Copies, Exit, Held, Object, PROCESSES, Page, Pinned, Run, Step, What, address, each};
use crate::tests::merge::{WISH, pass};
use crate::tests::world::*;
use crate::*;

impl Run {
    pub(super) fn apply(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Map(p, at, count, rights, what) => {
                self.map(usize::from(p), at.into(), count.into(), rights, what)
            }
            Step::Unmap(p, at, count) => {
                let (p, range) = (usize::from(p), u64::from(at)..u64::from(at) + u64::from(count));
                let outcome =
                    self.on(p, |space, _| space.unmap(address(range.start), each() * u64::from(count)));
                if self.may_not_split(outcome) {
                    return Ok(());
                }
                prop_assert_eq!(outcome, Ok(()));
                self.pages[p].retain(|page, _| !range.contains(page));
                self.separate(p, |page| range.contains(&page));
                Ok(())
            }
            Step::Protect(p, at, count, rights, key) => {
                let (p, range) = (usize::from(p), u64::from(at)..u64::from(at) + u64::from(count));
                let protection = Protection::from_bits_truncate(rights);
                if self.is_ambiguous(p, range.clone()) {
                    return Ok(());
                }
                let len = each() * u64::from(count);
                let outcome = self.on(p, |space, limits| {
                    let (start, extent) = (address(range.start), ProtectExtent::Exact);
                    space.protect(Protect { start, len, protection, extent, key }, || limits.data)
                });
                let mapped = range.clone().take_while(|page| self.pages[p].contains_key(page)).count();
                if mapped == usize::from(count) && self.may_not_split(outcome) {
                    return Ok(());
                }
                let expected = if mapped == usize::from(count) { Ok(()) } else { Err(VmError::NoMemory) };
                prop_assert_eq!(outcome, expected);
                for page in range.take(mapped) {
                    self.pages[p].entry(page).and_modify(|page| {
                        page.protection = rights;
                        page.key = if let KeyChange::Set(key) = key { key } else { page.key };
                    });
                }
                Ok(())
            }
            Step::Load(cpu, page) => {
                let (cpu, page) = (usize::from(cpu), u64::from(page));
                let model = self.world.model();
                let got = self.touch(cpu, page, Access::Read, || model.load(address(page)));
                if !self.is_excused(cpu / 2, page, got) {
                    prop_assert_eq!(got, self.expect(cpu / 2, page));
                }
                Ok(())
            }
            Step::Store(cpu, page, value) => self.store(cpu.into(), page.into(), value),
            Step::Fork(p, q) if p != q => {
                let (p, q) = (usize::from(p), usize::from(q));
                match self.on(p, |space, _| space.fork()) {
                    Ok(child) => {
                        let mut pages = self.pages[p].clone();
                        pages.retain(|_, page| !page.dont_fork);
                        for page in pages.values_mut() {
                            page.written &= !matches!(page.bytes, Bytes::Shared(..));
                        }
                        for page in pages.values_mut().filter(|page| page.wipe) {
                            page.bytes = Bytes::Private(0);
                            (page.written, page.lazy) = (false, false);
                        }
                        self.replace(q, child, pages, Exit::SwitchFirst);
                    }
                    Err(error) => prop_assert_eq!(error, VmError::NoMemory),
                }
                Ok(())
            }
            Step::Fork(p, _) | Step::Exit(p) => {
                // With failing allocations the next process could not be made.
                self.world.frames.fail_never();
                self.exit(p.into(), if self.lazy[0] { Exit::DropFirst } else { Exit::SwitchFirst });
                Ok(())
            }
            Step::Remap(p, at, old, new, to, keep, patience) => {
                let count = (old.into(), new.into());
                self.remap(p.into(), at.into(), count, to.map(u64::from), keep, patience)
            }
            Step::Advise(p, at, count, advice) => self.advise(p.into(), at.into(), count.into(), advice),
            Step::Pin(p, page, write) => {
                let (p, page) = (usize::from(p), u64::from(page));
                let pinned = if write {
                    self.pin(p, page).map(Pinned::Writes)
                } else {
                    self.pin(p, page).map(Pinned::Reads)
                };
                if let Ok(pin) = pinned {
                    // Pinning for reading takes a private page's own copy, too.
                    if let Some(Page { bytes: Bytes::Copy(f, index, copy @ None), .. }) =
                        self.pages[p].get_mut(&page)
                    {
                        *copy = Some(self.shared.get(&(Object::File(*f), *index)).copied().unwrap_or(0));
                    }
                    self.pins.push(Held { pin, at: Some((p, page)) });
                }
                Ok(())
            }
            Step::Merge(rules) => {
                let wish = MergeWish { rules, ..WISH };
                let (commons, scan) = (self.world.commons.clone(), &mut self.scan);
                self.world.model().on_cpu(CpuId(0), || pass(&commons, scan, &wish, 2));
                Ok(())
            }
            Step::Unmerge(p, at, count) => {
                let range = address(at.into())..address(u64::from(at) + u64::from(count));
                let done =
                    self.on(p.into(), |space, _| space.populate_some(range.clone(), Populate::Unmerge, 5000));
                prop_assert!(done == Ok(range.end) || self.failing && done == Err(VmError::NoMemory));
                Ok(())
            }
            Step::Unpin(n) => {
                if !self.pins.is_empty() {
                    let n = usize::from(n) % self.pins.len();
                    self.pins.swap_remove(n);
                }
                Ok(())
            }
            Step::WriteFile(f, page, value) => {
                let (f, page) = (usize::from(f), u64::from(page));
                let done = self.files[f].cache().write_at(page * each(), PAGE as usize, |to| {
                    to.fill(0);
                    to[0] = value;
                    to.len()
                });
                if done.is_ok() {
                    self.shared.insert((Object::File(f), page), value);
                    self.sizes[f] = self.sizes[f].max(page + 1);
                }
                Ok(())
            }
            Step::Truncate(f, pages) => {
                let (f, pages) = (usize::from(f), u64::from(pages));
                prop_assert_eq!(self.files[f].cache().truncate(pages * each()), Ok(()));
                self.sizes[f] = pages;
                self.cut(f, |index| index >= pages, Copies::Go);
                Ok(())
            }
            Step::Punch(f, at, count) => {
                let (f, range) = (usize::from(f), u64::from(at)..u64::from(at) + u64::from(count));
                prop_assert_eq!(
                    self.files[f].cache().punch_hole(range.start * each()..range.end * each()),
                    Ok(())
                );
                self.cut(f, |index| range.contains(&index), Copies::Stay);
                Ok(())
            }
            Step::ClearSoftDirty(p) => {
                let p = usize::from(p);
                self.on(p, |space, _| space.clear_references(ClearRefs::SoftDirty));
                self.pages[p].values_mut().for_each(|page| page.written = false);
                Ok(())
            }
            Step::PageOut(..) | Step::Evict(..) | Step::GiveUp(..) | Step::SwapOff(..) | Step::Disks(..) => {
                self.apply_swap(step)
            }
            Step::Move(p, at, count, shared) => self.move_pages(p.into(), at.into(), count.into(), shared),
            Step::Evacuate(p, page) => self.evacuate(p.into(), page.into()),
            Step::Lazy(cpu) => {
                let model = self.world.model();
                let roots = &self.processes[usize::from(cpu) / 2].roots;
                model.on_cpu(CpuId(cpu.into()), || roots.lazy(&model.pin()));
                self.lazy[usize::from(cpu)] = true;
                Ok(())
            }
        }
    }

    fn cut(&mut self, f: usize, gone: impl Fn(u64) -> bool, copies: Copies) {
        self.shared.retain(|&(object, index), _| object != Object::File(f) || !gone(index));
        for p in 0..PROCESSES {
            let mut separated = Vec::new();
            for (&page, what) in &mut self.pages[p] {
                what.written &= matches!(what.bytes, Bytes::Private(_));
                match &mut what.bytes {
                    Bytes::Copy(g, index, copy) if *g == f && gone(*index) && copies == Copies::Go => {
                        *copy = None;
                        separated.push(page);
                    }
                    Bytes::Shared(Object::File(g), index) if *g == f && gone(*index) => separated.push(page),
                    _ => {}
                }
            }
            self.separate(p, |page| separated.contains(&page));
        }
    }

    fn map(&mut self, p: usize, at: u64, count: u64, rights: u32, what: What) -> Result<(), TestCaseError> {
        let file = |f: u8, at: u8| view(&self.files[usize::from(f)], u64::from(at) * each());
        let backing = match what {
            What::Anonymous => Backing::Anonymous,
            What::SharedAnonymous => Backing::SharedAnonymous,
            What::Private(f, at) => Backing::PrivateFile(file(f, at)),
            What::Shared(f, at) => Backing::SharedFile(file(f, at), SharedWrite::Allowed),
        };
        let request = MapRequest {
            place: AreaPlace::Fixed(address(at)),
            len: count * each(),
            protection: Protection::from_bits_truncate(rights),
            backing,
            flags: AreaFlags::empty(),
        };
        let outcome = self.on(p, |space, limits| space.map(request, limits));
        if self.may_not_split(outcome) {
            return Ok(());
        }
        prop_assert_eq!(outcome, Ok(address(at)));
        self.separate(p, |page| (at..at + count).contains(&page));
        self.objects.push(count);
        for n in 0..count {
            let bytes = match what {
                What::Anonymous => Bytes::Private(0),
                What::SharedAnonymous => Bytes::Shared(Object::Anonymous(self.objects.len() - 1), n),
                What::Private(f, first) => Bytes::Copy(f.into(), u64::from(first) + n, None),
                What::Shared(f, first) => Bytes::Shared(Object::File(f.into()), u64::from(first) + n),
            };
            let page = Page {
                protection: rights,
                key: ProtectionKey::DEFAULT,
                bytes,
                dont_fork: false,
                wipe: false,
                written: false,
                lazy: false,
            };
            self.pages[p].insert(at + n, page);
        }
        Ok(())
    }

    fn store(&mut self, cpu: usize, page: u64, value: u8) -> Result<(), TestCaseError> {
        let p = cpu / 2;
        let model = self.world.model();
        let got = self.touch(cpu, page, Access::Write, || model.store(address(page), value));
        if got.is_err() && self.is_excused(p, page, got.map(|()| 0)) {
            return Ok(());
        }
        let expected = match self.pages[p].get(&page) {
            None => Err(MAPERR),
            Some(page) if page.protection & 2 == 0 => Err(ACCERR),
            Some(page) => self.value(page).map(drop),
        };
        prop_assert_eq!(got, expected);
        if got.is_ok() {
            let page = self.pages[p].get_mut(&page).unwrap();
            (page.written, page.lazy) = (true, false);
            match &mut page.bytes {
                Bytes::Private(old) => *old = value,
                Bytes::Copy(_, _, copy) => *copy = Some(value),
                Bytes::Shared(object, index) => {
                    self.shared.insert((*object, *index), value);
                }
            }
        }
        Ok(())
    }

    fn remap(
        &mut self,
        p: usize,
        at: u64,
        (old, new): (u64, u64),
        to: Option<u64>,
        source: RemapSource,
        mut patience: u8,
    ) -> Result<(), TestCaseError> {
        let place = to.map_or(RemapPlace::InPlace, |to| RemapPlace::Fixed(address(to)));
        let source = if to.is_some() { source } else { RemapSource::Unmap };
        let wish = Remap { old: address(at), old_len: old * each(), new_len: new * each(), place, source };
        let mut pause = || {
            patience = patience.checked_sub(1).ok_or(VmError::Interrupted)?;
            Ok(())
        };
        match self.on(p, |space, limits| space.remap(wish, limits, &mut pause)) {
            Ok(start) => {
                let to = to.unwrap_or(at);
                prop_assert_eq!(start, address(to));
                if to == at && new <= old {
                    // A range that only shrinks may have holes.
                    self.pages[p].retain(|page, _| !(at + new..at + old).contains(page));
                    self.separate(p, |page| (at + new..at + old).contains(&page));
                    return Ok(());
                }
                self.carry(p, at, to, (old, new), source);
            }
            Err(VmError::Interrupted) => {
                let to = to.unwrap();
                let mut moved = 0;
                while moved < old.min(new) && self.processes[p].space().area_at(address(to + moved)).is_some()
                {
                    moved += 1;
                }
                self.pages[p].retain(|page, _| !(to..to + new).contains(page));
                self.separate(p, |page| (to..to + new).contains(&page));
                if moved > 0 {
                    self.carry(p, at, to, (moved, moved), source);
                }
            }
            // The model does not know whether a range is one area. If it is not, only the
            // destination has changed.
            Err(_) => self.after_failure(p),
        }
        Ok(())
    }

    /// Moves the model's pages from `at` to `to`; their number may have changed.
    fn carry(&mut self, p: usize, at: u64, to: u64, (old, new): (u64, u64), source: RemapSource) {
        // Areas that are not private name the byte where their content goes on.
        let grown = |last: &Page, by: u64| match last.bytes {
            Bytes::Private(_) => Bytes::Private(0),
            Bytes::Copy(f, index, _) => Bytes::Copy(f, index + by, None),
            Bytes::Shared(object, index) => Bytes::Shared(object, index + by),
        };
        // Pages that are cut off first may have holes, so only the others are read.
        let source_pages: Vec<_> = (0..old.min(new)).map(|n| self.pages[p][&(at + n)].clone()).collect();
        if to != at {
            self.separate(p, |page| (to..to + new).contains(&page) || (at..at + old).contains(&page));
        }
        for n in 0..new {
            let page = source_pages.get(n as usize).cloned().unwrap_or_else(|| {
                let last = &source_pages[old as usize - 1];
                Page { bytes: grown(last, n + 1 - old), written: false, lazy: false, ..last.clone() }
            });
            self.pages[p].insert(to + n, page);
        }
        if to != at {
            for n in 0..old {
                if source == RemapSource::Keep {
                    let page = self.pages[p].get_mut(&(at + n)).unwrap();
                    (page.written, page.lazy) = (false, false);
                    match &mut page.bytes {
                        Bytes::Private(value) => *value = 0,
                        Bytes::Copy(_, _, copy) => *copy = None,
                        Bytes::Shared(..) => {}
                    }
                } else {
                    self.pages[p].remove(&(at + n));
                }
            }
        }
    }

    fn advise(&mut self, p: usize, at: u64, count: u64, advice: Advice) -> Result<(), TestCaseError> {
        if self.is_ambiguous(p, at..at + count) {
            return Ok(());
        }
        let outcome =
            self.on(p, |space, _| super::super::world::advise(space, address(at), count * each(), advice));
        let range = at..at + count;
        let whole = range.clone().all(|page| self.pages[p].contains_key(&page));
        if whole && self.may_not_split(outcome) {
            return Ok(());
        }
        match advice {
            // It shows only as memory.
            Advice::Collapse => return Ok(()),
            // A refused area ends it; the pages before it are populated, which shows only as
            // memory.
            Advice::PopulateRead => return Ok(()),
            Advice::PopulateWrite => {
                let (pages, shared, sizes) = (&mut self.pages[p], &self.shared, &self.sizes);
                let space = self.processes[p].space();
                let own = |at| {
                    let entry = space.resident.tables.entry(address(at));
                    entry.is_leaf() && space.resident.is_exclusive(entry)
                };
                for (&at, page) in pages.range_mut(range) {
                    if let Bytes::Copy(f, index, copy @ None) = &mut page.bytes
                        && page.protection & 2 != 0
                        && *index < sizes[*f]
                        && own(at)
                    {
                        *copy = Some(shared.get(&(Object::File(*f), *index)).copied().unwrap_or(0));
                    }
                }
                return Ok(());
            }
            Advice::WipeOnFork => {
                // Only private anonymous memory; areas before a refused one have it.
                let pages: Vec<u64> = range.clone().filter(|page| self.pages[p].contains_key(page)).collect();
                for page in pages {
                    let wiped = self.processes[p]
                        .space()
                        .area_at(address(page))
                        .unwrap()
                        .flags
                        .contains(AreaFlags::WIPEONFORK);
                    self.pages[p].get_mut(&page).unwrap().wipe = wiped;
                    if wiped {
                        prop_assert!(matches!(self.pages[p][&page].bytes, Bytes::Private(_)));
                    }
                }
                return Ok(());
            }
            _ => {}
        }
        prop_assert_eq!(outcome, if whole { Ok(()) } else { Err(VmError::NoMemory) });
        for (_, page) in self.pages[p].range_mut(range.clone()) {
            match advice {
                Advice::DontFork => page.dont_fork = true,
                Advice::DoFork => page.dont_fork = false,
                Advice::KeepOnFork => page.wipe = false,
                Advice::DontNeed => {
                    (page.written, page.lazy) = (false, false);
                    match &mut page.bytes {
                        Bytes::Private(value) => *value = 0,
                        Bytes::Copy(_, _, copy) => *copy = None,
                        Bytes::Shared(..) => {}
                    }
                }
                _ => {}
            }
        }
        if advice == Advice::DontNeed {
            self.separate(p, |page| range.contains(&page));
        }
        Ok(())
    }
}
