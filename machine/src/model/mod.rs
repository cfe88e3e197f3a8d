//! The software machine: CPUs, TLBs and memory for tests and experiments.
//!
//! It implements every trait of this crate in safe code and checks the memory manager above it:
//! - each CPU's TLB and its cache of table walks remember their entries, so [`Model::stale`] finds
//!   those that a missing flush left behind, and an access that would use one panics. Threads may
//!   be between a change and its flush: with [`Model::let_flushes_be_late`] the access waits for
//!   the flush instead;
//! - translation tables are accessed through the direct map only: a table in a pageblock outside
//!   the map panics. So does removing a pageblock that has a loaded root;
//! - a device can access the pages that it was given, and every other access is a
//!   [`DeviceViolation`] ([`DeviceView`]);
//! - a CPU keeps translations of the direct map and of windows until it forgets them, and an
//!   attacker may read any of them at any step ([`Model::peek`]);
//! - windows nest to a bounded depth, and nothing that may sleep runs inside one
//!   ([`Model::assert_may_sleep`]).
//!
//! Table entries have x86-64's four-level format (Intel SDM volume 3A, 4.5). Everything except the
//! interleaving of threads is deterministic. Any thread may act as any CPU ([`Model::on_cpu`]); a
//! thread that never says so is CPU 0.

mod devices;
mod memory;
mod reach;
mod tlb;
mod walk;

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::boxed::Box;
use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

use crate::{
    Access, CpuId, CpuSet, Cpus, DirectMap, Entropy, Flush, Machine, NodeId, PAGE_SIZE, PAGEBLOCK_FRAMES,
    Pfn, PfnRange, PhysicalBytes, Tables, Tlb, Topology, VirtAddr,
};
pub use devices::{DeviceView, DeviceViolation};
use memory::ModelMemory;
use reach::Reachable;
pub use reach::{Defect, Forgetting, KernelAddress, Peeked, Reach, SLOTS};
use tlb::TlbState;
use walk::Late;
pub use walk::{AccessFault, Stale, StaleKind};

/// How many windows one CPU may have open at once.
pub const WINDOWS: usize = 8;

std::thread_local! {
    static CURRENT: Cell<CpuId> = const { Cell::new(CpuId(0)) };
    static PINS: Cell<usize> = const { Cell::new(0) };
    static OPEN_WINDOWS: Cell<usize> = const { Cell::new(0) };
}

/// Size and random seed of a model machine.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// CPUs, at least 1; dealt out to the nodes in turn.
    pub cpus: usize,
    /// Nodes, at least 1; each has an equal run of frames.
    pub nodes: usize,
    /// Number of frames, from frame 0 on.
    pub frames: u64,
    /// Seed of the random bits.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self { cpus: 1, nodes: 1, frames: 4096, seed: 1 }
    }
}

/// Numbers of expensive events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelCounts {
    /// Remote CPUs that were interrupted for a flush.
    pub interrupts: u64,
    /// Flushes of ranges, one per CPU.
    pub range_flushes: u64,
    /// Flushes of everything (or everything but global entries), one per CPU.
    pub full_flushes: u64,
    /// Accesses that the TLB answered.
    pub hits: u64,
    /// Accesses that walked tables.
    pub walks: u64,
    /// Accesses through old translations, before the flush: [`Model::let_flushes_be_late`].
    pub late: u64,
}

#[derive(Default)]
struct Counters {
    interrupts: AtomicU64,
    range_flushes: AtomicU64,
    full_flushes: AtomicU64,
    hits: AtomicU64,
    walks: AtomicU64,
    late: AtomicU64,
}

struct ModelState {
    topology: Topology,
    cpus: usize,
    memory: ModelMemory,
    in_direct_map: Box<[AtomicU64]>,
    tlbs: Box<[Mutex<TlbState>]>,
    reachable: Box<[Mutex<Reachable>]>,
    forgetting: Mutex<Forgetting>,
    /// See [`Model::break_with`].
    defect: Mutex<Option<Defect>>,
    /// See [`Model::spy`].
    spy: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
    /// For each CPU, a lock that is held while the CPU answers no flush.
    holds: Box<[Mutex<()>]>,
    random: AtomicU64,
    /// See [`Model::shake`].
    is_shaken: AtomicBool,
    /// See [`Model::let_flushes_be_late`].
    is_late: AtomicBool,
    /// See [`Model::charge_frames`].
    charges_frames: AtomicBool,
    /// See [`Model::mirror_text`].
    mirrors_text: AtomicBool,
    /// See [`Model::before_flush`].
    before_flush: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    counters: Counters,
}

/// A software machine; the handle is copied freely. The machine lives as long as the process.
#[derive(Clone, Copy)]
pub struct Model(&'static ModelState);

impl core::fmt::Debug for Model {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Model({} CPUs, {} frames)", self.0.cpus, self.0.memory.len())
    }
}

impl Model {
    /// A machine with all its memory outside the direct map and no root loaded.
    ///
    /// # Panics
    /// If the numbers exceed the limits of a [`Topology`].
    pub fn new(config: Config) -> Self {
        let mut topology = Topology::new(config.nodes).expect("too many nodes");
        let share = config.frames / config.nodes as u64;
        for node in 0..config.nodes as u64 {
            let end = if node + 1 == config.nodes as u64 { config.frames } else { (node + 1) * share };
            let frames = PfnRange::new(Pfn(node * share), Pfn(end));
            topology.add_range(frames, NodeId(node as u8)).expect("too many ranges");
        }
        for cpu in 0..config.cpus as u16 {
            let node = NodeId((usize::from(cpu) % config.nodes) as u8);
            topology.set_cpu_node(CpuId(cpu), node).expect("too many CPUs");
        }
        Self::with_topology(topology, config.cpus, config.seed)
    }

    /// From now on frames are charged to accounts.
    pub fn charge_frames(self) {
        self.0.charges_frames.store(true, Ordering::Relaxed);
    }

    /// From now on nodes may have copies of the files' pages that they execute.
    pub fn mirror_text(self) {
        self.0.mirrors_text.store(true, Ordering::Relaxed);
    }

    /// A machine with the memory that `topology` describes.
    pub fn with_topology(topology: Topology, cpus: usize, seed: u64) -> Self {
        let frames = topology.end().0;
        let blocks = frames.div_ceil(PAGEBLOCK_FRAMES);
        let state = ModelState {
            cpus,
            memory: ModelMemory::new(frames),
            in_direct_map: (0..blocks).map(|_| AtomicU64::new(0)).collect(),
            tlbs: (0..cpus).map(|_| Mutex::new(TlbState::new())).collect(),
            reachable: (0..cpus).map(|_| Mutex::new(Reachable::new(blocks))).collect(),
            forgetting: Mutex::default(),
            defect: Mutex::default(),
            spy: Mutex::default(),
            holds: (0..cpus).map(|_| Mutex::new(())).collect(),
            random: AtomicU64::new(seed),
            is_shaken: AtomicBool::new(false),
            is_late: AtomicBool::new(false),
            charges_frames: AtomicBool::new(false),
            mirrors_text: AtomicBool::new(false),
            before_flush: Mutex::new(None),
            counters: Counters::default(),
            topology,
        };
        Self(Box::leak(Box::new(state)))
    }

    /// From now on the kernel may not read the frame's bytes: a window on it, or a copy of it,
    /// panics. Programs can still access the bytes, and the kernel may fill them with zeroes.
    pub fn withhold(self, frame: Pfn) {
        self.0.memory.withhold(frame);
    }

    /// From now on a thread that changes an entry of a table sleeps there now and then, so that
    /// others run in between. So the interleavings that a test meets do not depend on the number of
    /// the host's CPUs or on their load.
    pub fn shake(self) {
        self.0.is_shaken.store(true, Ordering::Relaxed);
    }

    /// From now on a program's access may use a translation that the tables no longer have, because
    /// another CPU is between the change and its flush. The accessing CPU waits for that flush, and
    /// panics if none arrives.
    pub fn let_flushes_be_late(self) {
        self.0.is_late.store(true, Ordering::Relaxed);
    }

    /// The next [`flush_on`](Tlb::flush_on) begins with a call of `f`: the tables have changed, and
    /// no CPU has flushed yet.
    pub fn before_flush(self, f: impl FnOnce() + Send + 'static) {
        *self.0.before_flush.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(f));
    }

    /// The memory, nodes and CPUs as firmware would describe them.
    pub fn topology(self) -> &'static Topology {
        &self.0.topology
    }

    /// Runs `f` as CPU `cpu`.
    ///
    /// # Panics
    /// If the machine has no such CPU, or the caller is pinned to another.
    pub fn on_cpu<R>(self, cpu: CpuId, f: impl FnOnce() -> R) -> R {
        assert!(usize::from(cpu.0) < self.0.cpus, "no {cpu:?}");
        let before = CURRENT.get();
        assert!(before == cpu || PINS.get() == 0, "changed CPU while pinned to {before:?}");
        CURRENT.set(cpu);
        let result = f();
        CURRENT.set(before);
        result
    }

    /// Returns the counts of events so far.
    pub fn counts(self) -> ModelCounts {
        let c = &self.0.counters;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ModelCounts {
            interrupts: load(&c.interrupts),
            range_flushes: load(&c.range_flushes),
            full_flushes: load(&c.full_flushes),
            hits: load(&c.hits),
            walks: load(&c.walks),
            late: load(&c.late),
        }
    }

    /// Panics if the caller is pinned or has a window open. Code that may sleep calls this first.
    pub fn assert_may_sleep(self) {
        assert_eq!(PINS.get(), 0, "would sleep while pinned");
        assert_eq!(OPEN_WINDOWS.get(), 0, "would sleep inside a window");
    }

    /// Checks that the kernel may access `frame` through the direct map.
    ///
    /// # Panics
    /// If the frame's pageblock is not in the map.
    pub fn assert_in_direct_map(self, frame: Pfn) {
        assert!(
            self.is_in_direct_map(frame),
            "{frame:?} reached through the direct map, but its pageblock is not in it"
        );
    }

    /// Whether `frame`'s pageblock is in the direct map.
    pub fn is_in_direct_map(self, frame: Pfn) -> bool {
        let block = self.0.in_direct_map.get((frame.0 / PAGEBLOCK_FRAMES) as usize);
        block.is_some_and(|b| b.load(Ordering::Acquire) != 0)
    }

    fn tlb(self, cpu: CpuId) -> MutexGuard<'static, TlbState> {
        // A poisoned TLB belongs to a test that has failed already.
        self.0.tlbs[usize::from(cpu.0)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn be_shaken(self) {
        if self.0.is_shaken.load(Ordering::Relaxed) && self.random_u64().is_multiple_of(32) {
            std::thread::sleep(core::time::Duration::from_micros(1));
        }
    }

    fn hold(self, cpu: CpuId) -> MutexGuard<'static, ()> {
        self.0.holds[usize::from(cpu.0)].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_membership(self, blocks: PfnRange, member: u64) {
        let aligned =
            blocks.start.0.is_multiple_of(PAGEBLOCK_FRAMES) && blocks.end.0.is_multiple_of(PAGEBLOCK_FRAMES);
        let clipped = blocks.end == self.0.topology.end();
        assert!(aligned || clipped, "{blocks:?} is not whole pageblocks");
        for block in blocks.start.0 / PAGEBLOCK_FRAMES..blocks.end.0.div_ceil(PAGEBLOCK_FRAMES) {
            let before = self.0.in_direct_map[block as usize].swap(member, Ordering::AcqRel);
            assert_ne!(before, member, "pageblock {block:#x} enters or leaves the direct map twice");
        }
    }

    fn flush_one(self, cpu: CpuId, what: Flush) {
        let counter = match what {
            Flush::Range { .. } | Flush::Blocks { .. } => &self.0.counters.range_flushes,
            Flush::NonGlobal | Flush::All => &self.0.counters.full_flushes,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        self.tlb(cpu).flush(what);
        self.reachable(cpu).flush(what);
    }
}

impl Cpus for Model {
    fn current_cpu(self) -> CpuId {
        CURRENT.get()
    }
    fn cpu_count(self) -> usize {
        self.0.cpus
    }
    fn node_of_cpu(self, cpu: CpuId) -> NodeId {
        self.0.topology.node_of_cpu(cpu)
    }
    fn disable_preemption(self) {
        PINS.set(PINS.get() + 1);
    }
    fn enable_preemption(self) {
        PINS.set(PINS.get().checked_sub(1).expect("preemption enabled more often than disabled"));
    }
    fn relax(self) {
        std::thread::yield_now();
    }
    fn charges_frames(self) -> bool {
        self.0.charges_frames.load(Ordering::Relaxed)
    }
    fn mirrors_text(self) -> bool {
        self.0.mirrors_text.load(Ordering::Relaxed)
    }
}

impl Tables for Model {
    fn load_entry(self, table: Pfn, index: usize) -> u64 {
        self.assert_in_direct_map(table);
        self.0.memory.word(table, index).load(Ordering::Acquire)
    }
    fn store_entry(self, table: Pfn, index: usize, value: u64) {
        self.assert_in_direct_map(table);
        self.0.memory.word(table, index).store(value, Ordering::Release);
        self.be_shaken();
    }
    fn swap_entry(self, table: Pfn, index: usize, value: u64) -> u64 {
        self.assert_in_direct_map(table);
        let old = self.0.memory.word(table, index).swap(value, Ordering::AcqRel);
        self.be_shaken();
        old
    }
    fn compare_exchange_entry(self, table: Pfn, index: usize, current: u64, new: u64) -> Result<u64, u64> {
        self.assert_in_direct_map(table);
        self.0.memory.word(table, index).compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire)
    }
    fn clear_table(self, table: Pfn) {
        self.assert_in_direct_map(table);
        self.0.memory.zero(table);
    }
}

impl Tlb for Model {
    fn flush_local(self, what: Flush) {
        assert_ne!(PINS.get(), 0, "local flush without being pinned");
        self.flush_one(self.current_cpu(), what);
    }
    fn flush_on(self, cpus: CpuSet, what: Flush) {
        let before = self.0.before_flush.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(before) = before {
            before();
        }
        for cpu in cpus.iter() {
            if cpu != self.current_cpu() {
                self.0.counters.interrupts.fetch_add(1, Ordering::Relaxed);
            }
            let answers = self.hold(cpu);
            self.flush_one(cpu, what);
            drop(answers);
        }
    }
    fn hold_flushes<R>(self, f: impl FnOnce() -> R) -> R {
        let _pinned = self.pin();
        let _hold = self.hold(self.current_cpu());
        f()
    }
    fn load_root(self, root: Pfn) {
        assert_ne!(PINS.get(), 0, "root loaded without being pinned");
        self.assert_in_direct_map(root);
        self.tlb(self.current_cpu()).load_root(root);
        self.reachable(self.current_cpu()).flush(Flush::NonGlobal);
    }
    fn current_root(self) -> Pfn {
        self.tlb(self.current_cpu()).root.expect("no root loaded")
    }
}

impl PhysicalBytes for Model {
    fn with_bytes<R>(self, frame: Pfn, f: impl FnOnce(&mut [u8; PAGE_SIZE]) -> R) -> R {
        let depth = OPEN_WINDOWS.get() + 1;
        assert!(depth <= WINDOWS, "more than {WINDOWS} windows open at once");
        OPEN_WINDOWS.set(depth);
        let window = self.open_window(frame);
        let result = self.0.memory.with_bytes(frame, f);
        drop(window);
        OPEN_WINDOWS.set(depth - 1);
        result
    }
    fn zero(self, frame: Pfn) {
        let _window = self.open_window(frame);
        self.0.memory.zero(frame);
    }
    fn zero_run(self, first: Pfn, count: u64) {
        let frames = (0..count).map(|index| first.offset(index));
        if count != PAGEBLOCK_FRAMES {
            frames.for_each(|frame| self.zero(frame));
        } else if self.defect() != Some(Defect::Unwiped) {
            // A machine uses one separate window for this, and flushes it as it closes.
            frames.for_each(|frame| self.0.memory.zero(frame));
        }
    }
    fn copy(self, from: Pfn, to: Pfn) {
        let _windows = (self.open_window(to), self.open_window(from));
        self.0.memory.copy(from, to);
    }
    fn zero_at(self, addr: VirtAddr) -> bool {
        let zero = |at| self.0.memory.zero(Pfn::containing(at));
        self.access_and(addr, Access::Write, Late::Refused, zero).is_ok()
    }
    fn copy_at(self, from: Pfn, addr: VirtAddr) -> bool {
        let copy = |at| self.0.memory.copy(from, Pfn::containing(at));
        self.access_and(addr, Access::Write, Late::Refused, copy).is_ok()
    }
    fn has_windows(self) -> bool {
        true
    }
}

impl DirectMap for Model {
    fn enter(self, blocks: PfnRange) {
        self.set_membership(blocks, 1);
        self.spied();
    }
    fn leave(self, blocks: PfnRange) {
        for cpu in CpuSet::first(self.0.cpus).iter() {
            let root = self.tlb(cpu).root;
            assert!(!root.is_some_and(|r| blocks.contains(r)), "{root:?} is loaded on {cpu:?}");
        }
        self.set_membership(blocks, 0);
        self.forget_blocks(blocks);
        self.spied();
    }
}

impl Entropy for Model {
    /// SplitMix64 (Steele, Lea, Flood 2014): deterministic, not secret.
    fn random_u64(self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let z = self.0.random.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn is_seeded(self) -> bool {
        true
    }
}

impl Machine for Model {
    fn node_count(self) -> usize {
        self.0.topology.node_count()
    }
}

/// The entries of all TLBs that a missing flush left behind; see [`Model::assert_coherent`].
pub type StaleEntries = Vec<Stale>;

#[cfg(test)]
mod tests;
