//! Random steps of three processes with two CPUs each, against a naive model without page tables:
//! one byte per page. A second variant uses an eighth of a large page as the model's page.
//!
//! After every step no TLB may be stale, the counts of present pages must be exact, and the areas
//! must agree with the model. Some runs let allocations fail at random: then a step may do less,
//! but never something else.

mod apply;
mod moves;
mod swapping;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

use freehold_machine::model::{Config, StaleKind};
use freehold_machine::{CpuId, Cpus, Pfn, PhysicalBytes, Tlb, VirtAddr};
use freehold_paging::model::ModelFrames;
use proptest::prelude::*;

use super::swap::{Disk, Health};
use super::world::*;
use crate::*;

const PROCESSES: usize = 3;
const WINDOW: u64 = 40;
const FILES: usize = 2;
const FILE_PAGES: u64 = 12;
const HEALTH: [Health; 5] =
    [Health::Sound, Health::Unreadable, Health::Unwritable, Health::Dead, Health::Starved];
/// Swap areas.
const AREAS: usize = 2;

/// Pages of a swap area: the first is soon full.
fn slots(area: usize) -> u64 {
    [24, 128 * TOGETHER.get()][area]
}

std::thread_local! {
    /// Number of pages that a page of the model represents, by its first byte: 1, or an eighth of a
    /// large page.
    static TOGETHER: Cell<u64> = const { Cell::new(1) };
}

/// Bytes of one of the model's pages.
fn each() -> u64 {
    TOGETHER.get() * PAGE
}

/// The window straddles two leaf tables, and with an eighth of a large page each begins with one.
fn base() -> u64 {
    0x4000_0000 - 16 * each()
}

#[derive(Clone, Copy, Debug)]
enum What {
    Anonymous,
    SharedAnonymous,
    Private(u8, u8),
    Shared(u8, u8),
}

#[derive(Clone, Debug)]
enum Step {
    Map(u8, u8, u8, u32, What),
    Unmap(u8, u8, u8),
    Protect(u8, u8, u8, u32, KeyChange),
    Load(u8, u8),
    Store(u8, u8, u8),
    Fork(u8, u8),
    Exit(u8),
    /// The last number is the number of pauses before it ends.
    Remap(u8, u8, u8, u8, Option<u8>, RemapSource, u8),
    Advise(u8, u8, u8, Advice),
    Pin(u8, u8, bool),
    Unpin(u8),
    WriteFile(u8, u8, u8),
    Truncate(u8, u8),
    Punch(u8, u8, u8),
    Lazy(u8),
    ClearSoftDirty(u8),
    /// Take some pages of a process out of memory.
    PageOut(u8, u8, u8),
    /// Evicts pages of any process; with the flag, also recently used ones.
    Evict(u8, bool),
    GiveUp(u8, u8, u8),
    SwapOff(u8),
    /// The disks' health from now on.
    Disks(Health),
    Move(u8, u8, u8, SharedPages),
    Evacuate(u8, u8),
    /// Lets the scan for equal pages pass over all processes.
    Merge(MergeRules),
    Unmerge(u8, u8, u8),
}

/// Areas are made of up to `most` pages.
fn step(most: u8) -> impl Strategy<Value = Step> {
    let process = || 0..PROCESSES as u8;
    let page = || 0..WINDOW as u8;
    let count = || 1..12u8;
    let protection = || prop_oneof![1 => Just(0u32), 3 => Just(1), 12 => Just(3), 1 => Just(5)];
    let key = || {
        let set = |number| KeyChange::Set(ProtectionKey::new(number).unwrap());
        prop_oneof![2 => Just(KeyChange::Keep), 1 => (0..3u64).prop_map(set)]
    };
    let what = prop_oneof![
        3 => Just(What::Anonymous),
        1 => Just(What::SharedAnonymous),
        2 => (0..FILES as u8, 0..FILE_PAGES as u8).prop_map(|(f, at)| What::Private(f, at)),
        2 => (0..FILES as u8, 0..FILE_PAGES as u8).prop_map(|(f, at)| What::Shared(f, at)),
    ];
    let patience = prop_oneof![3 => Just(255u8), 1 => 0..6u8];
    let source = prop_oneof![Just(RemapSource::Unmap), Just(RemapSource::Keep)];
    let advice = prop_oneof![
        6 => Just(Advice::DontNeed), 1 => Just(Advice::DontFork), 2 => Just(Advice::DoFork), 1 => Just(Advice::WipeOnFork),
        2 => Just(Advice::KeepOnFork), 1 => Just(Advice::PopulateRead), 1 => Just(Advice::PopulateWrite), 1 => Just(Advice::Random),
        1 => Just(Advice::Collapse), 1 => Just(Advice::Cold), 1 => Just(Advice::WillNeed),
    ];
    prop_oneof![
        6 => (process(), page(), 1..most, protection(), what).prop_map(|(p, a, n, r, w)| Step::Map(p, a, n, r, w)),
        2 => (process(), page(), count()).prop_map(|(p, a, n)| Step::Unmap(p, a, n)),
        3 => (process(), page(), count(), protection(), key())
            .prop_map(|(p, a, n, r, k)| Step::Protect(p, a, n, r, k)),
        8 => (0..2 * PROCESSES as u8, page()).prop_map(|(c, a)| Step::Load(c, a)),
        10 => (0..2 * PROCESSES as u8, page(), 1..=255u8).prop_map(|(c, a, v)| Step::Store(c, a, v)),
        3 => (process(), process()).prop_map(|(p, q)| Step::Fork(p, q)),
        1 => process().prop_map(Step::Exit),
        3 => (process(), page(), count(), count(), prop::option::of(page()), source, patience)
            .prop_map(|(p, a, n, m, to, keep, last)| Step::Remap(p, a, n, m, to, keep, last)),
        3 => (process(), page(), count(), advice).prop_map(|(p, a, n, v)| Step::Advise(p, a, n, v)),
        2 => (process(), page(), any::<bool>()).prop_map(|(p, a, w)| Step::Pin(p, a, w)),
        1 => any::<u8>().prop_map(Step::Unpin),
        2 => (0..FILES as u8, 0..FILE_PAGES as u8, 1..=255u8).prop_map(|(f, a, v)| Step::WriteFile(f, a, v)),
        1 => (0..FILES as u8, 0..=FILE_PAGES as u8).prop_map(|(f, n)| Step::Truncate(f, n)),
        1 => (0..FILES as u8, 0..FILE_PAGES as u8, 1..6u8).prop_map(|(f, a, n)| Step::Punch(f, a, n)),
        1 => (0..2 * PROCESSES as u8).prop_map(Step::Lazy),
        2 => process().prop_map(Step::ClearSoftDirty),
        4 => (process(), page(), count()).prop_map(|(p, a, n)| Step::PageOut(p, a, n)),
        2 => (1..40u8, any::<bool>()).prop_map(|(n, any)| Step::Evict(n, any)),
        2 => (process(), page(), 1..4u8).prop_map(|(p, a, n)| Step::GiveUp(p, a, n)),
        1 => (0..AREAS as u8).prop_map(Step::SwapOff),
        1 => prop::sample::select(HEALTH.as_slice()).prop_map(Step::Disks),
        3 => (process(), page(), count(), prop_oneof![Just(SharedPages::Stay), Just(SharedPages::Move)])
            .prop_map(|(p, a, n, shared)| Step::Move(p, a, n, shared)),
        1 => (process(), page()).prop_map(|(p, a)| Step::Evacuate(p, a)),
        3 => (0..8u32).prop_map(|rules| Step::Merge(MergeRules::from_bits_truncate(rules))),
        1 => (process(), page(), count()).prop_map(|(p, a, n)| Step::Unmerge(p, a, n)),
    ]
}

/// State of one page in the model.
#[derive(Clone, Debug)]
struct Page {
    protection: u32,
    key: ProtectionKey,
    bytes: Bytes,
    dont_fork: bool,
    wipe: bool,
    /// The present leaf was written through since the last clearing.
    written: bool,
    /// The page was marked as discardable and not written since: it may be zero by now.
    lazy: bool,
}

#[derive(Clone, Debug)]
enum Bytes {
    Private(u8),
    /// Not written yet: the file's.
    Copy(usize, u64, Option<u8>),
    Shared(Object, u64),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Object {
    File(usize),
    Anonymous(usize),
}

enum Pinned {
    Reads(PinnedPage<ModelFrames, ReadOnly>),
    Writes(PinnedPage<ModelFrames, ReadWrite>),
}

impl Pinned {
    fn pfn(&self) -> Pfn {
        match self {
            Self::Reads(page) => page.pfn(),
            Self::Writes(page) => page.pfn(),
        }
    }
}

struct Held {
    pin: Pinned,
    /// The place of its pin, as long as the page keeps its frame.
    at: Option<(usize, u64)>,
}

struct Run {
    world: World,
    files: Vec<File>,
    processes: Vec<Process>,
    pages: Vec<BTreeMap<u64, Page>>,
    shared: BTreeMap<(Object, u64), u8>,
    sizes: [u64; FILES],
    /// By number: how many pages each piece of shared anonymous memory was made with.
    objects: Vec<u64>,
    pins: Vec<Held>,
    lazy: [bool; 2 * PROCESSES],
    /// Whether allocations fail now and then.
    failing: bool,
    disks: Vec<std::sync::Arc<Disk>>,
    scan: MergeScan,
    swap_areas: Vec<SwapArea>,
}

fn address(page: u64) -> VirtAddr {
    VirtAddr(base() + page * each())
}

impl Run {
    fn new() -> Self {
        let world = World::with(Config { cpus: 2 * PROCESSES, nodes: 2, frames: 16 * 512, seed: 11 });
        if TOGETHER.get() > 1 {
            world.commons.set_huge_mode(HugeMode::Always);
        }
        let files: Vec<_> = (0..FILES).map(|_| world.file(&[])).collect();
        files.iter().for_each(|file| world.commons.list(file.cache()));
        let processes = (0..PROCESSES).map(|p| world.process(2 * p as u16)).collect();
        let mut run = Self {
            world,
            files,
            processes,
            pages: std::vec![BTreeMap::new(); PROCESSES],
            shared: BTreeMap::new(),
            sizes: [0; FILES],
            objects: Vec::new(),
            pins: Vec::new(),
            lazy: [false; 2 * PROCESSES],
            failing: false,
            disks: Vec::new(),
            scan: MergeScan::new(),
            swap_areas: Vec::new(),
        };
        run.add_disks();
        run.processes.iter().for_each(|p| p.space().merge_all());
        (0..2 * PROCESSES).for_each(|cpu| run.load_root(cpu));
        run
    }

    fn load_root(&self, cpu: usize) {
        let model = self.world.model();
        model.on_cpu(CpuId(cpu as u16), || self.processes[cpu / 2].roots.load(&model.pin(), &mut None));
    }

    fn unload_root(&self, cpu: usize) {
        let model = self.world.model();
        model.on_cpu(CpuId(cpu as u16), || {
            let pinned = model.pin();
            model.load_root(Pfn(0));
            self.processes[cpu / 2].roots.unload(&pinned);
        });
    }

    /// Run `f` on the process' first CPU.
    fn on<R>(&mut self, p: usize, f: impl FnOnce(&mut AddressSpace<ModelFrames>, &Limits) -> R) -> R {
        self.load_root(2 * p);
        self.lazy[2 * p] = false;
        let model = self.world.model();
        let process = &self.processes[p];
        model.on_cpu(CpuId(2 * p as u16), || f(&mut process.space(), &process.limits))
    }

    /// Without the lock, if that is possible.
    fn pin<P: Purpose>(&mut self, p: usize, page: u64) -> Result<PinnedPage<ModelFrames, P>, FaultError> {
        self.load_root(2 * p);
        let (model, roots) = (self.world.model(), self.processes[p].roots.clone());
        match model.on_cpu(CpuId(2 * p as u16), || pin_fast(&roots, address(page))) {
            Some(pinned) => Ok(pinned),
            None => self.on(p, |space, _| space.pin::<LongTerm, P>(address(page), Rule::Asked)),
        }
    }

    /// Returns the expected result of a load there.
    fn expect(&self, p: usize, page: u64) -> Result<u8, FaultError> {
        let page = self.pages[p].get(&page).ok_or(MAPERR)?;
        if page.protection == 0 {
            return Err(ACCERR);
        }
        self.value(page)
    }

    fn value(&self, page: &Page) -> Result<u8, FaultError> {
        let of = |object: Object, index: u64| match object {
            Object::File(f) if index >= self.sizes[f] => Err(FaultError::Bus),
            // Longer by mremap only: as on Linux, the memory keeps its first size.
            Object::Anonymous(n) if index >= self.objects[n] => Err(FaultError::Bus),
            _ => Ok(self.shared.get(&(object, index)).copied().unwrap_or(0)),
        };
        match page.bytes {
            Bytes::Private(value) | Bytes::Copy(_, _, Some(value)) => Ok(value),
            Bytes::Copy(f, index, None) => of(Object::File(f), index),
            Bytes::Shared(object, index) => of(object, index),
        }
    }

    fn touch<R>(
        &mut self,
        cpu: usize,
        page: u64,
        access: Access,
        f: impl Fn() -> Result<R, freehold_machine::model::AccessFault>,
    ) -> Result<R, FaultError> {
        self.load_root(cpu);
        self.lazy[cpu] = false;
        let process = &self.processes[cpu / 2];
        self.world.model().on_cpu(CpuId(cpu as u16), || {
            for _ in 0..3 {
                if let Ok(result) = f() {
                    return Ok(result);
                }
                // Half of the pages are filled beside others, the rest alone.
                let (at, limits) = (address(page), &process.limits);
                if page.is_multiple_of(2) {
                    process.locked.fault(at, access, limits)?;
                } else {
                    process.space().fault(at, access, limits)?;
                }
            }
            panic!("{access:?} of page {page} on CPU {cpu} faults for ever");
        })
    }

    fn separate(&mut self, p: usize, gone: impl Fn(u64) -> bool) {
        for held in &mut self.pins {
            if held.at.is_some_and(|(q, page)| q == p && gone(page)) {
                held.at = None;
            }
        }
    }

    /// Whether a call has done nothing because there was no table for the pieces of a large page.
    fn may_not_split<T>(&self, outcome: Result<T, VmError>) -> bool {
        self.failing && TOGETHER.get() > 1 && outcome.is_err_and(|error| error == VmError::NoMemory)
    }

    /// Whether a failure would be ambiguous: because of a hole, with the rest done, or because
    /// there was no table, with nothing done.
    fn is_ambiguous(&self, p: usize, mut range: core::ops::Range<u64>) -> bool {
        self.failing && TOGETHER.get() > 1 && !range.all(|page| self.pages[p].contains_key(&page))
    }

    /// A step failed because memory was short: it may have unmapped the pages that it was to
    /// replace. The other pages must be as before.
    fn after_failure(&mut self, p: usize) {
        let mapped: Vec<u64> = {
            let space = self.processes[p].space();
            (0..3 * WINDOW).filter(|&page| space.area_at(address(page)).is_some()).collect()
        };
        self.pages[p].retain(|page, _| mapped.contains(page));
        self.separate(p, |page| !mapped.contains(&page));
    }

    fn exit(&mut self, p: usize, order: Exit) {
        let mut fresh = self.world.frames.model().on_cpu(CpuId(2 * p as u16), || self.world.space());
        fresh.merge_all();
        self.replace(p, fresh, BTreeMap::new(), order);
    }

    fn replace(
        &mut self,
        p: usize,
        space: AddressSpace<ModelFrames>,
        pages: BTreeMap<u64, Page>,
        order: Exit,
    ) {
        let cpus = [2 * p, 2 * p + 1];
        self.separate(p, |_| true);
        let new = Process::around(self.world.model(), space, 2 * p as u16);
        if order == Exit::DropFirst {
            // The address space is dropped while both CPUs have its roots loaded.
            self.processes[p].locked = new.locked.clone();
            self.world.model().assert_coherent_but(&self.lazy);
        }
        cpus.iter().for_each(|&cpu| self.unload_root(cpu));
        self.processes[p] = new;
        self.pages[p] = pages;
        cpus.iter().for_each(|&cpu| {
            self.load_root(cpu);
            self.lazy[cpu] = false;
        });
    }

    /// Everything that must hold between steps.
    fn check(&self) -> Result<(), TestCaseError> {
        let excused = |cpu: CpuId, kind| self.lazy[usize::from(cpu.0)] && kind != StaleKind::Walk;
        let stale: Vec<_> =
            self.world.model().stale().into_iter().filter(|s| !excused(s.cpu, s.kind)).collect();
        prop_assert_eq!(stale, Vec::new());
        for p in 0..PROCESSES {
            let mut space = self.processes[p].space();
            let mut seen = BTreeMap::new();
            for area in space.areas() {
                for page in 0..(area.end.0 - area.start.0) / each() {
                    let rights = (area.protection.bits(), area.key);
                    seen.insert((area.start.0 - base()) / each() + page, rights);
                }
            }
            let expected: BTreeMap<_, _> =
                self.pages[p].iter().map(|(&at, page)| (at, (page.protection, page.key))).collect();
            prop_assert_eq!(seen, expected);
            let layout = space.layout;
            space.areas.validate(&layout);
            let areas: Vec<_> = space.areas.iter().collect();
            prop_assert!(areas.windows(2).all(|two| two[0].end <= two[1].start && !two[0].joins(two[1])));
            let usage = space.usage();
            prop_assert_eq!(usage.total_pages, self.pages[p].len() as u64 * TOGETHER.get());
            let mut present = (0, 0);
            space.resident.tables.visit(VirtAddr(0)..VirtAddr(u64::MAX), |addr, _, entry, size| {
                let pages = size.bytes() / PAGE;
                assert!(
                    entry.rights().is_none() || entry.key() == space.key_at(addr),
                    "a leaf with another protection key than its area's"
                );
                match space.resident.kind_of(entry) {
                    crate::resident::LeafKind::Anon => {
                        present.0 += pages;
                        assert!(
                            !entry.is_writable() || space.resident.is_exclusive(entry),
                            "writable and not exclusive"
                        );
                    }
                    crate::resident::LeafKind::Cache => present.1 += pages,
                    crate::resident::LeafKind::Zero => assert!(!entry.is_writable()),
                }
            });
            for (&at, page) in self.pages[p].iter().filter(|(_, page)| page.written) {
                let newer = space.area_at(address(at)).unwrap().flags.contains(AreaFlags::SOFTDIRTY);
                let marked = space.resident.tables.entry(address(at)).is_soft_dirty();
                prop_assert!(newer || marked, "page {} of {} was written: {:?}", at, p, page);
            }
            prop_assert_eq!((usage.rss_anon, usage.rss_file + usage.rss_shmem), present);
        }
        self.check_slots()?;
        for held in &self.pins {
            if let Some((p, page)) = held.at {
                let entry = self.processes[p].space_entry(page);
                if !entry.is_empty() {
                    prop_assert_eq!(
                        entry.frame(),
                        held.pin.pfn(),
                        "page {} of {} left its pinned frame",
                        page,
                        p
                    );
                }
            }
        }
        Ok(())
    }

    /// Checks every byte through the page tables and the files; then drops everything.
    fn finish(mut self) -> Result<(), TestCaseError> {
        self.world.frames.fail_never();
        self.disks.iter().for_each(|disk| disk.set_health(Health::Sound));
        for p in 0..PROCESSES {
            for page in 0..WINDOW {
                self.apply(&Step::Load((2 * p + page as usize % 2) as u8, page as u8))?;
            }
        }
        for held in &self.pins {
            if let Some((p, page)) = held.at
                && let Ok(value) = self.expect(p, page)
                && !self.pages[p][&page].lazy
            {
                let seen = self.world.model().with_bytes(held.pin.pfn(), |bytes| bytes[0]);
                prop_assert_eq!(seen, value, "the device sees page {} of {}", page, p);
            }
        }
        for f in 0..FILES {
            for page in 0..self.sizes[f] {
                let expected = self.shared.get(&(Object::File(f), page)).copied().unwrap_or(0);
                prop_assert_eq!(read(self.files[f].cache(), page * each(), 1), [expected]);
            }
        }
        self.check()?;
        self.world.frames.assert_consistent();
        let frames = self.world.frames;
        drop(self);
        frames.assert_all_free();
        Ok(())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        (0..2 * PROCESSES).for_each(|cpu| self.unload_root(cpu));
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Exit {
    SwitchFirst,
    DropFirst,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Copies {
    Go,
    Stay,
}

impl Process {
    fn space_entry(&self, page: u64) -> freehold_paging::Entry {
        self.space().resident.tables.entry(address(page))
    }
}

trait CoherentBut {
    fn assert_coherent_but(self, lazy: &[bool]);
}

impl CoherentBut for freehold_machine::model::Model {
    fn assert_coherent_but(self, lazy: &[bool]) {
        let left: Vec<_> = self
            .stale()
            .into_iter()
            .filter(|s| !lazy[usize::from(s.cpu.0)] || s.kind == StaleKind::Walk)
            .collect();
        assert_eq!(left, [], "stale after exit");
    }
}

fn run(steps: &[Step], budgets: Option<&[u64]>) -> Result<(), TestCaseError> {
    let mut run = Run::new();
    run.failing = budgets.is_some();
    for (n, step) in steps.iter().enumerate() {
        if let Some(budgets) = budgets {
            run.world.frames.fail_after(budgets[n % budgets.len()]);
        }
        run.apply(step)?;
        run.check()?;
    }
    run.finish()
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 4000, ..ProptestConfig::default() })]

    #[test]
    fn random_steps_agree_with_the_naive_model(steps in prop::collection::vec(step(12), 1..150)) {
        run(&steps, None)?;
    }

    #[test]
    fn steps_that_run_out_of_memory_do_less_but_nothing_else(
        steps in prop::collection::vec(step(12), 1..120),
        budgets in prop::collection::vec(0..6u64, 1..20),
    ) {
        run(&steps, Some(&budgets))?;
    }
}

proptest! {
    // Each case touches many frames, which the software machine never gives back.
    #![proptest_config(ProptestConfig { cases: 256, max_shrink_iters: 4000, ..ProptestConfig::default() })]

    #[test]
    fn random_steps_on_large_pages_agree_with_the_naive_model(steps in prop::collection::vec(step(WINDOW as u8), 1..150)) {
        on_large_pages(&steps, None)?;
    }

    #[test]
    fn steps_on_large_pages_that_run_out_of_memory_do_less_but_nothing_else(
        steps in prop::collection::vec(step(WINDOW as u8), 1..120),
        budgets in prop::collection::vec(0..6u64, 1..20),
    ) {
        on_large_pages(&steps, Some(&budgets))?;
    }
}

fn on_large_pages(steps: &[Step], budgets: Option<&[u64]>) -> Result<(), TestCaseError> {
    TOGETHER.set(64);
    let outcome = run(steps, budgets);
    TOGETHER.set(1);
    outcome
}

#[test]
fn the_random_world_begins_and_ends_clean() {
    run(&[], None).unwrap();
}
