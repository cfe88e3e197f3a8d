//! CPUs, sets of them, and staying on one.

use core::sync::atomic::{AtomicU64, Ordering};

/// Largest number of CPUs of a machine.
pub const MAX_CPUS: usize = 64;

/// A logical CPU number, dense from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct CpuId(pub u16);

/// A NUMA node number, dense from 0 (not the firmware's proximity domain).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct NodeId(pub u8);

/// The CPUs as a memory manager sees them.
///
/// The handle is copied freely: zero-sized in a kernel, a reference in the software machine.
pub trait Cpus: Copy + Send + Sync + 'static {
    /// The CPU this runs on. Only a hint unless the caller holds a [`Pinned`].
    fn current_cpu(self) -> CpuId;
    /// How many CPUs the machine has; constant after boot, at most [`MAX_CPUS`].
    fn cpu_count(self) -> usize;
    /// The node whose memory is nearest to `cpu`.
    fn node_of_cpu(self, cpu: CpuId) -> NodeId;
    /// Stay on this CPU and do not switch tasks until [`Cpus::enable_preemption`]; nests.
    fn disable_preemption(self);
    /// Undo one [`Cpus::disable_preemption`].
    fn enable_preemption(self);
    /// Pauses between two looks at a contended lock.
    fn relax(self) {
        core::hint::spin_loop();
    }
    /// The caller will take a spin lock, and holds none. A machine does nothing here; a scheduler
    /// that tries interleavings lets other threads run first.
    #[inline(always)]
    fn about_to_lock(self) {}
    /// Whether event number `EVENT` of the table of tracepoints is on; a no-op in a kernel's text
    /// while it is off.
    #[inline(always)]
    fn is_traced<const EVENT: usize>(self) -> bool {
        false
    }
    /// Whether frames are charged to accounts; a no-op in a kernel's text until they are. The
    /// answer changes once, from "no" to "yes". During the change some CPUs may still get "no".
    #[inline(always)]
    fn charges_frames(self) -> bool {
        false
    }
    /// Whether nodes that execute a file's page may have a copy of it; a no-op in a kernel's text
    /// where none is made. The answer may change to "yes" while no program runs, and never back.
    #[inline(always)]
    fn mirrors_text(self) -> bool {
        false
    }
    /// Records an event that is on. Any context but NMIs, double faults and machine checks.
    fn record_event(self, _event: usize, _fields: &[u64]) {}
    /// Stay on this CPU until the guard is dropped.
    fn pin(self) -> Pinned<Self> {
        self.disable_preemption();
        Pinned { cpus: self }
    }
}

/// Proof that the holder stays on one CPU and that no other task runs there meanwhile.
#[must_use = "the CPU is only held while the guard lives"]
#[derive(Debug)]
pub struct Pinned<C: Cpus> {
    cpus: C,
}

impl<C: Cpus> Pinned<C> {
    /// The CPU on which the holder stays.
    pub fn cpu(&self) -> CpuId {
        self.cpus.current_cpu()
    }
}

impl<C: Cpus> Drop for Pinned<C> {
    fn drop(&mut self) {
        self.cpus.enable_preemption();
    }
}

/// A set of CPUs that many CPUs change at once.
#[derive(Debug, Default)]
pub struct AtomicCpuSet(AtomicU64);

impl AtomicCpuSet {
    /// The empty set.
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }
    /// Adds `cpu`; ordered before the caller's next loads (sequentially consistent).
    #[inline]
    pub fn insert(&self, cpu: CpuId) {
        self.0.fetch_or(1 << cpu.0, Ordering::SeqCst);
    }
    /// Remove `cpu`.
    #[inline]
    pub fn remove(&self, cpu: CpuId) {
        self.0.fetch_and(!(1 << cpu.0), Ordering::SeqCst);
    }
    /// The members at this moment.
    #[inline]
    pub fn load(&self) -> CpuSet {
        CpuSet(self.0.load(Ordering::SeqCst))
    }
}

/// A set of CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CpuSet(pub u64);

impl CpuSet {
    /// The empty set.
    pub const EMPTY: Self = Self(0);
    /// CPUs 0 to `count` - 1; `count` is at most [`MAX_CPUS`].
    pub const fn first(count: usize) -> Self {
        if count >= 64 { Self(u64::MAX) } else { Self((1 << count) - 1) }
    }
    /// The set of one CPU.
    pub const fn single(cpu: CpuId) -> Self {
        Self(1 << cpu.0)
    }
    /// Whether `cpu` is a member.
    pub const fn contains(self, cpu: CpuId) -> bool {
        self.0 & (1 << cpu.0) != 0
    }
    /// The set with `cpu` added.
    #[must_use]
    pub const fn with(self, cpu: CpuId) -> Self {
        Self(self.0 | (1 << cpu.0))
    }
    /// The set without `cpu`.
    #[must_use]
    pub const fn without(self, cpu: CpuId) -> Self {
        Self(self.0 & !(1 << cpu.0))
    }
    /// Whether no CPU is a member.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// How many CPUs are members.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }
    /// The members, upwards.
    pub fn iter(self) -> impl Iterator<Item = CpuId> {
        let mut rest = self.0;
        core::iter::from_fn(move || {
            let next = (rest != 0).then(|| CpuId(rest.trailing_zeros() as u16));
            rest &= rest.wrapping_sub(1);
            next
        })
    }
}
