//! The machine: one model per process, behind a handle of size zero.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::boxed::Box;
use std::sync::OnceLock;
use std::vec::Vec;

use freehold_buddy::{Buddy, Managed, Options};
use freehold_frame::{Beside, FrameTable};
use freehold_machine::model::{Config, Model};
use freehold_machine::{
    CpuId, CpuSet, Cpus, DirectMap, Entropy, Flush, MAX_CPUS, Machine, NodeId, PAGE_SIZE, Pfn, PfnRange,
    PhysicalBytes, Tables, Tlb,
};

use zerocopy::FromZeros;

use super::std;

/// Frames of a machine without a description: 64 MiB.
pub const FRAMES: u64 = 16 << 10;
/// The frame of the kernel's root, among those that [`RESERVED`] keeps from the page allocator.
pub(super) const ROOT: Pfn = Pfn(1);
/// Frames that start-up took: the root.
pub(super) static RESERVED: [PfnRange; 1] = [PfnRange { start: Pfn(0), end: Pfn(2) }];

static MODEL: OnceLock<Model> = OnceLock::new();
/// Whether an address space was ever loaded. Before that there is no user memory.
static HAS_SPACES: AtomicBool = AtomicBool::new(false);

/// The process' machine. A handle of size zero, like the bare machine's.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hardware;

/// Makes the machine, before it is first used.
///
/// # Panics
/// If the machine exists already.
pub fn start_machine(machine: Model) {
    HAS_KERNEL.store(true, Ordering::Relaxed);
    assert!(MODEL.set(machine).is_ok(), "the machine is described before it is used");
}

/// A thread's CPU if no kernel was started. Each thread has its own, so that no other thread uses
/// the CPU's state.
struct Seat(u16);

/// The CPUs that threads have, one bit each.
static SEATS: AtomicU64 = AtomicU64::new(0);

impl Seat {
    fn take() -> Self {
        loop {
            let taken = SEATS.load(Ordering::Relaxed);
            let seat = taken.trailing_ones();
            let wanted = taken | 1u64.checked_shl(seat).unwrap_or(0);
            let order = (Ordering::Acquire, Ordering::Relaxed);
            if wanted != taken && SEATS.compare_exchange(taken, wanted, order.0, order.1).is_ok() {
                return Self(seat as u16);
            }
            std::thread::yield_now();
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        SEATS.fetch_and(!(1 << self.0), Ordering::Release);
    }
}

std::thread_local! {
    static SEAT: Seat = Seat::take();
}

/// Whether a kernel runs on the machine, or is about to.
static HAS_KERNEL: AtomicBool = AtomicBool::new(false);

/// The machine.
pub fn model() -> Model {
    *MODEL.get_or_init(|| Model::new(Config { frames: FRAMES, cpus: MAX_CPUS, ..Config::default() }))
}

/// Whether any address space was loaded, so that user memory can be accessed.
pub(super) fn has_spaces() -> bool {
    HAS_SPACES.load(Ordering::Relaxed)
}

/// Returns `count` zeroes that are never freed.
pub(super) fn zeroes<T: FromZeros>(count: usize) -> &'static [T] {
    Vec::from_iter((0..count).map(|_| T::new_zeroed())).leak()
}

/// Returns a zero value for each frame; never freed.
pub(super) fn per_frame<T: FromZeros>() -> &'static [T] {
    zeroes(model().topology().end().0 as usize)
}

/// Returns the page allocator of a process in which no kernel was started.
pub(super) fn lone_frames() -> &'static Buddy<Hardware> {
    static LONE: OnceLock<Buddy<Hardware>> = OnceLock::new();
    LONE.get_or_init(|| {
        let (topology, cpus) = (model().topology(), model().cpu_count());
        let options = Options::default();
        let metadata = zeroes(Buddy::<Hardware>::metadata_words(topology, cpus, &options));
        let table = FrameTable::new(per_frame()).with(Box::leak(Box::new(Beside::new(per_frame()))));
        let managed = Managed { topology, reserved: &RESERVED, table, metadata, pcps: zeroes(cpus) };
        Buddy::new(Hardware, managed, options).expect("a small machine is one that can be")
    })
}

impl Hardware {
    /// Returns the root whose kernel half the roots of `node`'s CPUs copy.
    pub fn kernel_root(self, _node: NodeId) -> Pfn {
        ROOT
    }
}

impl Cpus for Hardware {
    fn current_cpu(self) -> CpuId {
        if HAS_KERNEL.load(Ordering::Relaxed) {
            return model().current_cpu();
        }
        CpuId(SEAT.try_with(|seat| seat.0).unwrap_or_default())
    }
    fn cpu_count(self) -> usize {
        model().cpu_count()
    }
    fn node_of_cpu(self, cpu: CpuId) -> NodeId {
        model().node_of_cpu(cpu)
    }
    fn disable_preemption(self) {
        model().disable_preemption();
    }
    fn enable_preemption(self) {
        model().enable_preemption();
    }
    fn relax(self) {
        model().relax();
    }
    fn is_traced<const EVENT: usize>(self) -> bool {
        freehold_arch::static_keys::is_on::<EVENT>()
    }
    fn charges_frames(self) -> bool {
        freehold_arch::static_keys::is_on::<{ freehold_arch::static_keys::StaticKey::CHARGES }>()
    }
    fn mirrors_text(self) -> bool {
        freehold_arch::static_keys::is_on::<{ freehold_arch::static_keys::StaticKey::MIRRORS }>()
    }
    fn record_event(self, event: usize, fields: &[u64]) {
        if let Some(handlers) = super::traps::handlers() {
            handlers.record_event(event, fields);
        }
    }
}

impl Tables for Hardware {
    fn load_entry(self, table: Pfn, index: usize) -> u64 {
        model().load_entry(table, index)
    }
    fn store_entry(self, table: Pfn, index: usize, value: u64) {
        model().store_entry(table, index, value);
    }
    fn swap_entry(self, table: Pfn, index: usize, value: u64) -> u64 {
        model().swap_entry(table, index, value)
    }
    fn compare_exchange_entry(self, table: Pfn, index: usize, current: u64, new: u64) -> Result<u64, u64> {
        model().compare_exchange_entry(table, index, current, new)
    }
    fn clear_table(self, table: Pfn) {
        model().clear_table(table);
    }
}

impl Tlb for Hardware {
    fn flush_local(self, what: Flush) {
        model().flush_local(what);
    }
    fn flush_on(self, cpus: CpuSet, what: Flush) {
        model().flush_on(cpus, what);
    }
    fn hold_flushes<R>(self, f: impl FnOnce() -> R) -> R {
        model().hold_flushes(f)
    }
    fn load_root(self, root: Pfn) {
        HAS_SPACES.store(true, Ordering::Relaxed);
        model().load_root(root);
    }
    fn current_root(self) -> Pfn {
        model().current_root()
    }
}

impl PhysicalBytes for Hardware {
    fn with_bytes<R>(self, frame: Pfn, f: impl FnOnce(&mut [u8; PAGE_SIZE]) -> R) -> R {
        model().with_bytes(frame, f)
    }
    fn zero(self, frame: Pfn) {
        model().zero(frame);
    }
    fn copy(self, from: Pfn, to: Pfn) {
        model().copy(from, to);
    }
}

impl DirectMap for Hardware {
    fn enter(self, blocks: PfnRange) {
        model().enter(blocks);
    }
    fn leave(self, blocks: PfnRange) {
        model().leave(blocks);
    }
}

impl Entropy for Hardware {
    fn random_u64(self) -> u64 {
        model().random_u64()
    }
    fn is_seeded(self) -> bool {
        model().is_seeded()
    }
}

impl Machine for Hardware {
    fn node_count(self) -> usize {
        model().node_count()
    }
}
