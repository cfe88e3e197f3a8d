//! Areas whose faults a program serves: single cases, and random steps against a model that knows
//! which pages are present.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::vec;
use std::vec::Vec;

use freehold_machine::{PhysicalBytes, VirtAddr};
use proptest::prelude::*;

use super::world::*;
use crate::*;

struct Nobody(#[expect(dead_code, reason = "so that each is at a place of its own")] u8);
impl Monitor for Nobody {}

fn monitors() -> [Arc<dyn Monitor>; 2] {
    [Arc::new(Nobody(0)), Arc::new(Nobody(1))]
}

fn pages(at: u64, count: u64) -> std::ops::Range<VirtAddr> {
    VirtAddr(at)..VirtAddr(at + count * PAGE)
}

fn watch(p: &Process, at: u64, count: u64, monitor: &Arc<dyn Monitor>) -> Result<(), VmError> {
    p.run(|| p.space().set_monitor(pages(at, count), monitor, AreaFlags::MONITOR_MISSING))
}

/// Provide the page at `at` with `value` in its first byte.
fn provide(p: &Process, at: u64, value: u8) -> Result<(), VmError> {
    provide_as(p, at, value, Watching::Off)
}

fn provide_as(p: &Process, at: u64, value: u8, watching: Watching) -> Result<(), VmError> {
    p.run(|| {
        let whole = pages(at, 1);
        let new = p.space().new_page_for(whole.start, &whole, watching)?;
        p.model.with_bytes(new.held().pfn(), |bytes| {
            bytes.fill(0);
            bytes[0] = value;
        });
        p.space().fill_page(whole.start, &whole, new, watching)
    })
}

fn zeroes(p: &Process, at: u64) -> Result<(), VmError> {
    p.run(|| p.space().fill_zeroes(VirtAddr(at), &pages(at, 1)))
}

const GONE: Result<u8, FaultError> = Err(FaultError::Monitored);

#[test]
fn a_missing_page_is_the_monitors_to_provide_and_nothing_else_fills_it() {
    let world = World::new();
    let p = world.process(0);
    let [monitor, other] = monitors();
    let a = p.anonymous(8);
    p.store(a, 1).unwrap();
    watch(&p, a, 4, &monitor).unwrap();
    assert_eq!((p.load(a), p.load(a + 4 * PAGE)), (Ok(1), Ok(0)), "what is there, and what is beside it");
    assert_eq!(p.load(a + PAGE + 5), GONE);
    let wanted = p.space().take_wanted().unwrap();
    assert_eq!((wanted.page, wanted.access), (VirtAddr(a + PAGE), Access::Read));
    assert!(Arc::ptr_eq(&wanted.monitor, &monitor) && p.space().take_wanted().is_none());
    assert_eq!(p.store(a + PAGE, 3), Err(FaultError::Monitored));
    assert_eq!(p.space().take_wanted().unwrap().access, Access::Write);
    assert_eq!(p.run(|| p.locked.fault_shared(VirtAddr(a + PAGE), Access::Write)), None);
    let pinned = p.run(|| p.space().pin::<LongTerm, ReadOnly>(VirtAddr(a + PAGE), Rule::Asked).map(drop));
    assert_eq!(pinned, Err(FaultError::Monitored));
    let due = p.run(|| p.space().populate_some(pages(a, 4), Populate::Write, 9));
    assert_eq!(due, Err(VmError::Monitored));
    assert_eq!(p.run(|| p.space().read_remote(VirtAddr(a + PAGE), &mut [0])), Err(VmError::Monitored));
    assert_eq!(p.usage().rss_anon, 1, "none of these has made a page");
    assert_eq!(provide(&p, a + PAGE, 9), Ok(()));
    assert_eq!((p.load(a + PAGE), p.usage().rss_anon), (Ok(9), 2));
    assert_eq!((provide(&p, a + PAGE, 8), zeroes(&p, a)), (Err(VmError::Exists), Err(VmError::Exists)));
    assert_eq!(provide(&p, a + 5 * PAGE, 8), Err(VmError::Missing), "no monitor there");
    assert_eq!(zeroes(&p, a + 2 * PAGE), Ok(()));
    p.store(a + 2 * PAGE, 4).unwrap();
    assert_eq!(watch(&p, a + PAGE, 7, &other), Err(VmError::Busy));
    assert_eq!(p.run(|| p.space().end_monitor(pages(a, 8), &other)), Err(VmError::Invalid));
    let child = p.fork(1);
    assert_eq!(child.load(a + 3 * PAGE), Ok(0), "a child's areas are nobody's");
    drop(child);
    p.run(|| p.space().forget_monitor(&monitor));
    assert_eq!((p.load(a + 3 * PAGE), p.load(a + PAGE)), (Ok(0), Ok(9)));
    assert_eq!(p.space().areas().count(), 1, "areas that are alike again are one");
    drop(p);
    assert_eq!(Arc::strong_count(&monitor), 2, "the one here, and what was wanted last");
    drop(wanted);
    world.end();
}

#[test]
fn what_shows_a_file_or_can_never_be_written_has_no_monitor() {
    let world = World::new();
    let p = world.process(0);
    let [monitor, _] = monitors();
    let file = world.file(&[5; 64]);
    let shared = Backing::SharedFile(view(&file, 0), SharedWrite::Denied);
    let at = p.map(AreaPlace::Anywhere, 1, Protection::READ, shared).unwrap();
    assert_eq!(watch(&p, at, 1, &monitor), Err(VmError::Permission));
    assert_eq!(watch(&p, 0x10_0000, 1, &monitor), Err(VmError::Invalid));
    drop((p, file));
    world.end();
}

#[test]
fn a_page_that_finds_no_memory_is_not_there_and_another_may_come() {
    let world = World::new();
    let p = world.process(0);
    let [monitor, _] = monitors();
    for backing in [Backing::Anonymous, Backing::SharedAnonymous] {
        let a = p.map(AreaPlace::Anywhere, 2, RW, backing).unwrap();
        watch(&p, a, 2, &monitor).unwrap();
        let mut failures = 0;
        loop {
            world.frames.fail_after(failures);
            let outcome = provide(&p, a, 7);
            world.frames.fail_never();
            match outcome {
                Ok(()) => break,
                Err(error) => assert_eq!(error, VmError::NoMemory),
            }
            assert_eq!(p.load(a), GONE);
            failures += 1;
        }
        assert!(failures > 0);
        assert_eq!((p.load(a), p.load(a + PAGE)), (Ok(7), GONE));
    }
    drop(p);
    world.end();
}

fn watch_stores(p: &Process, at: u64, count: u64, watching: Watching) -> Result<(), VmError> {
    p.run(|| p.space().watch(pages(at, count), watching))
}

#[test]
fn a_watched_page_that_is_shared_is_told_of_first_and_copied_then() {
    let world = World::new();
    let p = world.process(0);
    let [monitor, _] = monitors();
    let a = p.anonymous(3);
    (0..2).for_each(|page| p.store(a + page * PAGE, 1).unwrap());
    p.run(|| p.space().set_monitor(pages(a, 3), &monitor, AreaFlags::MONITOR_STORES)).unwrap();
    watch_stores(&p, a, 3, Watching::On).unwrap();
    assert_eq!(p.store(a + 2 * PAGE, 1), Ok(()), "what was not there is not watched");
    let child = p.fork(1);
    let frame = p.frame(a);
    assert_eq!((p.load(a), p.store(a, 2)), (Ok(1), Err(FaultError::Monitored)));
    assert_eq!(p.space().take_wanted().unwrap().lack, Lack::Watched);
    assert_eq!((child.store(a, 5), p.load(a)), (Ok(()), Ok(1)), "the child is told nobody");
    // A pin that only looks takes no copy; one for long takes its own frame, and none is a store.
    let looks = p.run(|| p.space().pin::<Transient, ReadOnly>(VirtAddr(a + PAGE), Rule::Asked));
    drop(looks.unwrap());
    let kept = p.run(|| p.space().pin::<LongTerm, ReadOnly>(VirtAddr(a + PAGE), Rule::Asked)).unwrap();
    assert_eq!((p.frame(a + PAGE), p.store(a + PAGE, 2)), (kept.pfn(), Err(FaultError::Monitored)));
    let stores = p.run(|| p.space().pin::<Transient, ReadWrite>(VirtAddr(a), Rule::Asked).map(drop));
    assert_eq!(stores, Err(FaultError::Monitored));
    p.protect(a, 3, Protection::READ).unwrap();
    p.protect(a, 3, RW).unwrap();
    assert_eq!(p.store(a, 2), Err(FaultError::Monitored), "mprotect does not end it");
    watch_stores(&p, a, 3, Watching::Off).unwrap();
    assert_eq!((p.store(a, 2), p.frame(a)), (Ok(()), frame), "the child has a copy, so it is its own again");
    p.store(a + PAGE, 3).unwrap();
    assert_eq!(p.frame(a + PAGE), kept.pfn(), "the pin stays what the program sees");
    drop((kept, child, p));
    world.end();
}

#[test]
fn a_page_that_its_cache_has_is_the_monitors_to_map() {
    let world = World::new();
    let p = world.process(0);
    let [monitor, _] = monitors();
    let file = world.file(&[7; 5000]);
    let map = |backing| p.map(AreaPlace::Anywhere, 4, RW, backing).unwrap();
    let shared = map(Backing::SharedFile(view(&file, 0), SharedWrite::Allowed));
    let private = map(Backing::PrivateFile(view(&file, 0)));
    file.cache().set_size_grow(3 * PAGE);
    for at in [shared, private] {
        p.run(|| p.space().set_monitor(pages(at, 4), &monitor, AreaFlags::MONITOR_MINOR)).unwrap();
        assert_eq!(p.load(at), GONE);
        assert_eq!(p.space().take_wanted().unwrap().lack, Lack::Minor);
        let mapped = |page| p.run(|| p.space().map_cached(VirtAddr(page), &pages(page, 1)));
        assert_eq!((mapped(at), p.load(at), p.load(at + PAGE)), (Ok(()), Ok(7), GONE), "no neighbour");
        assert_eq!((mapped(at), mapped(at + 3 * PAGE)), (Err(VmError::Exists), Err(VmError::Invalid)));
        assert_eq!(mapped(at + 2 * PAGE), if at == shared { Err(VmError::Fault) } else { Ok(()) }, "a hole");
        if at == shared {
            assert_eq!(p.load(at + 2 * PAGE), Ok(0), "is filled as ever");
        }
        assert_eq!(p.load(at + 3 * PAGE), Err(FaultError::Bus));
    }
    p.store(private, 1).unwrap();
    assert_eq!((p.load(shared), p.store(shared, 9)), (Ok(7), Ok(())));
    assert_eq!(read(file.cache(), 0, 1), [9]);
    drop((p, file));
    world.end();
}

const WINDOW: u64 = 24;
const BASE: u64 = 0x4000_0000 - 10 * PAGE;

#[derive(Clone, Debug)]
enum Step {
    Map(usize, u64, u64, bool),
    Unmap(usize, u64, u64),
    Watch(usize, u64, u64, usize, u8),
    Stores(usize, u64, u64, bool),
    Pin(usize, u64, bool),
    Unwatch(usize, u64, u64, usize),
    Forget(usize, usize),
    Load(usize, u64),
    Store(usize, u64, u8),
    Provide(usize, u64, u8, bool),
    Zeroes(usize, u64),
    DontNeed(usize, u64, u64),
    Protect(usize, u64, u64, bool),
    Move(usize, u64, u64),
    Fork(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let (p, at, n) = (|| 0..2usize, || 0..WINDOW, || 1..10u64);
    let (which, value) = (|| 0..2usize, || 1..=255u8);
    prop_oneof![
        3 => (p(), at(), n(), any::<bool>()).prop_map(|(p, a, n, s)| Step::Map(p, a, n, s)),
        1 => (p(), at(), n()).prop_map(|(p, a, n)| Step::Unmap(p, a, n)),
        5 => (p(), at(), n(), which(), 1..4u8).prop_map(|(p, a, n, w, m)| Step::Watch(p, a, n, w, m)),
        5 => (p(), at(), n(), any::<bool>()).prop_map(|(p, a, n, on)| Step::Stores(p, a, n, on)),
        3 => (p(), at(), any::<bool>()).prop_map(|(p, a, w)| Step::Pin(p, a, w)),
        2 => (p(), at(), n(), which()).prop_map(|(p, a, n, w)| Step::Unwatch(p, a, n, w)),
        1 => (p(), which()).prop_map(|(p, w)| Step::Forget(p, w)),
        8 => (p(), at()).prop_map(|(p, a)| Step::Load(p, a)),
        8 => (p(), at(), value()).prop_map(|(p, a, v)| Step::Store(p, a, v)),
        6 => (p(), at(), value(), any::<bool>()).prop_map(|(p, a, v, w)| Step::Provide(p, a, v, w)),
        2 => (p(), at()).prop_map(|(p, a)| Step::Zeroes(p, a)),
        3 => (p(), at(), n()).prop_map(|(p, a, n)| Step::DontNeed(p, a, n)),
        2 => (p(), at(), n(), any::<bool>()).prop_map(|(p, a, n, w)| Step::Protect(p, a, n, w)),
        2 => (p(), at(), at()).prop_map(|(p, a, to)| Step::Move(p, a, to)),
        2 => p().prop_map(Step::Fork),
    ]
}

#[derive(Clone, Debug)]
struct Page {
    /// For shared memory: its number, and the page in it.
    shared: Option<(usize, u64)>,
    /// For private memory: the page's byte, if it is present.
    value: Option<u8>,
    writable: bool,
    monitor: Option<usize>,
    /// Faults that are reported to the monitor.
    modes: AreaFlags,
    /// The next store is reported.
    watched: bool,
}

impl Page {
    fn leave(&mut self) {
        (self.monitor, self.modes, self.watched) = (None, AreaFlags::empty(), false);
    }
}

struct Run {
    world: World,
    processes: Vec<Process>,
    pages: [BTreeMap<u64, Page>; 2],
    shared: BTreeMap<(usize, u64), u8>,
    objects: usize,
    monitors: [Arc<dyn Monitor>; 2],
}

const fn address(page: u64) -> u64 {
    BASE + page * PAGE
}

impl Run {
    fn new() -> Self {
        let world = World::new();
        let processes = (0..2).map(|cpu| world.process(cpu)).collect();
        let (pages, shared) = (Default::default(), BTreeMap::new());
        Self { world, processes, pages, shared, objects: 0, monitors: monitors() }
    }

    fn value(&self, page: &Page) -> Option<u8> {
        match page.shared {
            Some(place) => self.shared.get(&place).copied(),
            None => page.value,
        }
    }

    /// The page is touched: returns its byte, or the error. Afterwards the page is present.
    fn touch(&mut self, p: usize, at: u64, access: Access) -> Result<u8, FaultError> {
        let page = self.pages[p].get(&at).ok_or(FaultError::Segv(SegvCode::MapErr))?.clone();
        if access == Access::Write && !page.writable {
            return Err(FaultError::Segv(SegvCode::AccErr));
        }
        match self.value(&page) {
            Some(_) if page.watched && access == Access::Write => Err(FaultError::Monitored),
            Some(value) => Ok(value),
            None if page.modes.contains(AreaFlags::MONITOR_MISSING) => Err(FaultError::Monitored),
            None => {
                self.set(p, at, 0);
                Ok(0)
            }
        }
    }

    fn set(&mut self, p: usize, at: u64, value: u8) {
        let Some(page) = self.pages[p].get_mut(&at) else { return };
        match page.shared {
            Some(place) => drop(self.shared.insert(place, value)),
            None => page.value = Some(value),
        }
    }

    fn may_fill(&self, p: usize, at: u64, watched: bool) -> Result<(), VmError> {
        let page = self.pages[p].get(&at).filter(|page| page.monitor.is_some()).ok_or(VmError::Missing)?;
        if watched && !page.modes.contains(AreaFlags::MONITOR_STORES) {
            return Err(VmError::Invalid);
        }
        if self.value(page).is_some() { Err(VmError::Exists) } else { Ok(()) }
    }

    fn in_range(&self, p: usize, at: u64, n: u64) -> Vec<u64> {
        self.pages[p].range(at..at + n).map(|(&page, _)| page).collect()
    }

    fn has_other(&self, p: usize, pages: &[u64], which: usize) -> bool {
        pages.iter().any(|page| self.pages[p][page].monitor.is_some_and(|own| own != which))
    }

    fn accesses(&mut self, p: usize, at: u64, stored: Option<u8>) -> Result<(), TestCaseError> {
        let monitor = self.pages[p].get(&at).and_then(|page| page.monitor);
        let access = if stored.is_some() { Access::Write } else { Access::Read };
        let expected = self.touch(p, at, access);
        let process = &self.processes[p];
        match stored {
            Some(value) => {
                prop_assert_eq!(process.store(address(at), value), expected.map(drop));
                if expected.is_ok() {
                    self.set(p, at, value);
                }
            }
            None => prop_assert_eq!(process.load(address(at)), expected),
        }
        if expected == Err(FaultError::Monitored) {
            let wanted = self.processes[p].space().take_wanted().unwrap();
            prop_assert!(Arc::ptr_eq(&wanted.monitor, &self.monitors[monitor.unwrap()]));
            prop_assert_eq!((wanted.page, wanted.access), (VirtAddr(address(at)), access));
        }
        Ok(())
    }

    fn map(&mut self, p: usize, at: u64, n: u64, shared: bool) -> Result<(), TestCaseError> {
        let backing = if shared { Backing::SharedAnonymous } else { Backing::Anonymous };
        let process = &self.processes[p];
        let start = process.run(|| process.map(AreaPlace::Fixed(VirtAddr(address(at))), n, RW, backing));
        prop_assert_eq!(start, Ok(address(at)));
        let object = self.objects;
        self.objects += 1;
        for page in 0..n {
            let shared = shared.then_some((object, page));
            self.pages[p].insert(
                at + page,
                Page {
                    shared,
                    value: None,
                    writable: true,
                    monitor: None,
                    modes: AreaFlags::empty(),
                    watched: false,
                },
            );
        }
        Ok(())
    }

    fn watches(
        &mut self,
        p: usize,
        (at, n): (u64, u64),
        which: usize,
        modes: AreaFlags,
    ) -> Result<(), TestCaseError> {
        let found = self.in_range(p, at, n);
        let refused = found.iter().map(|page| &self.pages[p][page]).find_map(|page| {
            let is_wrong = page.shared.is_some() && modes.contains(AreaFlags::MONITOR_STORES);
            let other = page.monitor.is_some_and(|own| own != which).then_some(VmError::Busy);
            if is_wrong { Some(VmError::Invalid) } else { other }
        });
        let refused = if found.is_empty() { Some(VmError::Invalid) } else { refused };
        let process = &self.processes[p];
        let set = || process.space().set_monitor(pages(address(at), n), &self.monitors[which], modes);
        prop_assert_eq!(process.run(set), refused.map_or(Ok(()), Err));
        if refused.is_none() {
            for page in found {
                let page = self.pages[p].get_mut(&page).unwrap();
                if !page.modes.contains(modes) {
                    page.modes = modes;
                    page.watched &= modes.contains(AreaFlags::MONITOR_STORES);
                }
                page.monitor = Some(which);
            }
        }
        Ok(())
    }

    fn stores(&mut self, p: usize, (at, n): (u64, u64), on: bool) -> Result<(), TestCaseError> {
        let found = self.in_range(p, at, n);
        let told = |page: &&u64| self.pages[p][*page].modes.contains(AreaFlags::MONITOR_STORES);
        let reached: Vec<u64> = found.iter().take_while(told).copied().collect();
        let is_whole = !found.is_empty() && reached.len() == found.len();
        let watching = if on { Watching::On } else { Watching::Off };
        let done = watch_stores(&self.processes[p], address(at), n, watching);
        prop_assert_eq!(done, if is_whole { Ok(()) } else { Err(VmError::Missing) });
        for page in reached {
            let page = self.pages[p].get_mut(&page).unwrap();
            page.watched = on && page.value.is_some();
        }
        Ok(())
    }

    fn pins(&mut self, p: usize, at: u64, writes: bool) -> Result<(), TestCaseError> {
        let expected = self.touch(p, at, if writes { Access::Write } else { Access::Read }).map(drop);
        let (process, addr) = (&self.processes[p], VirtAddr(address(at)));
        let pinned = process.run(|| match writes {
            true => process.space().pin::<LongTerm, ReadWrite>(addr, Rule::Asked).map(drop),
            false => process.space().pin::<LongTerm, ReadOnly>(addr, Rule::Asked).map(drop),
        });
        prop_assert_eq!(pinned, expected);
        Ok(())
    }

    fn unwatches(&mut self, p: usize, (at, n): (u64, u64), which: usize) -> Result<(), TestCaseError> {
        let found = self.in_range(p, at, n);
        let is_wrong = found.is_empty() || self.has_other(p, &found, which);
        let process = &self.processes[p];
        let ended = process.run(|| process.space().end_monitor(pages(address(at), n), &self.monitors[which]));
        prop_assert_eq!(ended, if is_wrong { Err(VmError::Invalid) } else { Ok(()) });
        if !is_wrong {
            found.iter().for_each(|page| self.pages[p].get_mut(page).unwrap().leave());
        }
        Ok(())
    }

    /// Moves one page to an address outside the window, and back: it loses its monitor.
    fn moves(&mut self, p: usize, at: u64, to: u64) -> Result<(), TestCaseError> {
        if at == to || !self.pages[p].contains_key(&at) {
            return Ok(());
        }
        let process = &self.processes[p];
        let (old, place) = (VirtAddr(address(at)), RemapPlace::Fixed(VirtAddr(address(to))));
        let remap = Remap { old, old_len: PAGE, new_len: PAGE, place, source: RemapSource::Unmap };
        let moved = process.run(|| process.space().remap(remap, &process.limits, &mut || Ok(())));
        prop_assert_eq!(moved, Ok(VirtAddr(address(to))));
        if let Some(mut page) = self.pages[p].remove(&at) {
            page.leave();
            self.pages[p].insert(to, page);
        }
        Ok(())
    }

    fn protect(&mut self, p: usize, (at, n): (u64, u64), writable: bool) {
        let protection = if writable { RW } else { Protection::READ };
        let done = self.processes[p].protect(address(at), n, protection);
        let reached = (at..at + n).take_while(|page| self.pages[p].contains_key(page)).collect::<Vec<_>>();
        assert_eq!(done.is_ok(), reached.len() as u64 == n);
        reached.iter().for_each(|page| self.pages[p].get_mut(page).unwrap().writable = writable);
    }

    fn apply(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Map(p, at, n, shared) => self.map(p, at, n, shared)?,
            Step::Unmap(p, at, n) => {
                self.processes[p].unmap(address(at), n).unwrap();
                self.pages[p].retain(|page, _| !(at..at + n).contains(page));
            }
            Step::Watch(p, at, n, which, modes) => {
                let flags = [AreaFlags::MONITOR_MISSING, AreaFlags::MONITOR_STORES];
                let asked = (0..2).filter(|bit| modes >> bit & 1 != 0).map(|bit| flags[bit]);
                let modes = asked.fold(AreaFlags::empty(), |all, flag| all | flag);
                self.watches(p, (at, n), which, modes)?;
            }
            Step::Stores(p, at, n, on) => self.stores(p, (at, n), on)?,
            Step::Pin(p, at, writes) => self.pins(p, at, writes)?,
            Step::Unwatch(p, at, n, which) => self.unwatches(p, (at, n), which)?,
            Step::Forget(p, which) => {
                self.processes[p].run(|| self.processes[p].space().forget_monitor(&self.monitors[which]));
                let own = self.pages[p].values_mut().filter(|page| page.monitor == Some(which));
                own.for_each(Page::leave);
            }
            Step::Load(p, at) => self.accesses(p, at, None)?,
            Step::Store(p, at, value) => self.accesses(p, at, Some(value))?,
            Step::Provide(p, at, value, watched) => {
                let expected = self.may_fill(p, at, watched);
                let watching = if watched { Watching::On } else { Watching::Off };
                let done = provide_as(&self.processes[p], address(at), value, watching);
                prop_assert_eq!(done, expected);
                if expected.is_ok() {
                    self.set(p, at, value);
                    self.pages[p].get_mut(&at).unwrap().watched = watched;
                }
            }
            Step::Zeroes(p, at) => {
                let expected = self.may_fill(p, at, false);
                prop_assert_eq!(zeroes(&self.processes[p], address(at)), expected);
                if expected.is_ok() {
                    self.set(p, at, 0);
                }
            }
            Step::DontNeed(p, at, n) => {
                let process = &self.processes[p];
                let at_once = || process.space().advise(VirtAddr(address(at)), n * PAGE, Advice::DontNeed);
                // A hole is reported, but the rest is done.
                let _: Result<(), VmError> = process.run(at_once);
                self.pages[p].range_mut(at..at + n).for_each(|(_, page)| {
                    (page.value, page.watched) = (None, false);
                });
            }
            Step::Protect(p, at, n, writable) => self.protect(p, (at, n), writable),
            Step::Move(p, at, to) => self.moves(p, at, to)?,
            Step::Fork(p) => {
                let child = self.processes[p].fork(1 - p as u16);
                self.processes[1 - p] = child;
                self.pages[1 - p] = self.pages[p].clone();
                self.pages[1 - p].values_mut().for_each(Page::leave);
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        for (process, pages) in self.processes.iter().zip(&self.pages) {
            let mut space = process.space();
            let mut seen = BTreeMap::new();
            for area in space.areas() {
                for page in 0..(area.end.0 - area.start.0) / PAGE {
                    let flags = area.flags & AreaFlags::MONITORED;
                    seen.insert((area.start.0 - BASE) / PAGE + page, flags);
                }
            }
            let expected = pages.iter().map(|(&at, page)| (at, page.modes)).collect();
            prop_assert_eq!(seen, expected);
            let layout = space.layout;
            space.areas.validate(&layout);
            let areas: Vec<_> = space.areas.iter().collect();
            prop_assert!(areas.windows(2).all(|two| !two[0].joins(two[1])), "neighbours that could be one");
            for (&at, page) in pages {
                let entry = space.resident.tables.entry(VirtAddr(address(at)));
                prop_assert_eq!(entry.is_watched(), page.watched, "page {}", at);
                prop_assert!(!(entry.is_watched() && entry.is_writable()));
            }
            let there = pages.values().filter(|page| page.shared.is_none() && page.value.is_some()).count();
            prop_assert!(space.usage().rss_anon <= there as u64);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn random_steps_are_what_a_model_says_that_knows_which_pages_are_there(
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut run = Run::new();
        for step in steps {
            run.apply(step)?;
            run.check()?;
        }
        let Run { world, processes, .. } = run;
        drop(processes);
        world.end();
    }
}
