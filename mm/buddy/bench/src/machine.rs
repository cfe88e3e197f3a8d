//! A machine without bytes: thread-local CPU numbers and nothing else, so that the allocator alone
//! is timed.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use freehold_machine::{
    CpuId, CpuSet, Cpus, DirectMap, Entropy, Flush, Machine, NodeId, PAGE_SIZE, Pfn, PfnRange, PhysicalBytes,
    Tables, Tlb,
};

thread_local! {
    // Of a type that says how many there are, as a kernel's number of its CPU does.
    static CPU: Cell<bool> = const { Cell::new(false) };
}

static RANDOM: AtomicU64 = AtomicU64::new(1);

/// Two CPUs, one node, no bytes.
#[derive(Clone, Copy, Debug)]
pub struct Bare;

/// From now on this thread is CPU `cpu`, 0 or 1.
pub fn become_cpu(cpu: u16) {
    CPU.set(cpu != 0);
    let mut set = rustix::thread::CpuSet::new();
    set.set(usize::from(cpu));
    // On a machine with fewer CPUs the thread stays where it is, which is visible in the figures.
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

impl Cpus for Bare {
    #[inline]
    fn current_cpu(self) -> CpuId {
        CpuId(CPU.get().into())
    }
    fn cpu_count(self) -> usize {
        2
    }
    fn node_of_cpu(self, _cpu: CpuId) -> NodeId {
        NodeId(0)
    }
    // A kernel that does not preempt itself has nothing to do here, and a thread here stays on its
    // CPU anyway.
    #[inline]
    fn disable_preemption(self) {}
    #[inline]
    fn enable_preemption(self) {}
}

impl Tables for Bare {
    fn load_entry(self, _table: Pfn, _index: usize) -> u64 {
        0
    }
    fn store_entry(self, _table: Pfn, _index: usize, _value: u64) {}
    fn swap_entry(self, _table: Pfn, _index: usize, _value: u64) -> u64 {
        0
    }
    fn compare_exchange_entry(self, _table: Pfn, _index: usize, current: u64, _new: u64) -> Result<u64, u64> {
        Ok(current)
    }
    fn clear_table(self, _table: Pfn) {}
}

impl Tlb for Bare {
    fn flush_local(self, _what: Flush) {}
    fn flush_on(self, _cpus: CpuSet, _what: Flush) {}
    fn hold_flushes<R>(self, f: impl FnOnce() -> R) -> R {
        f()
    }
    fn load_root(self, _root: Pfn) {}
    fn current_root(self) -> Pfn {
        Pfn(0)
    }
}

impl PhysicalBytes for Bare {
    fn with_bytes<R>(self, _frame: Pfn, f: impl FnOnce(&mut [u8; PAGE_SIZE]) -> R) -> R {
        f(&mut [0; PAGE_SIZE])
    }
}

impl DirectMap for Bare {
    fn enter(self, _blocks: PfnRange) {}
    fn leave(self, _blocks: PfnRange) {}
}

impl Entropy for Bare {
    fn random_u64(self) -> u64 {
        let z = RANDOM.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z ^ (z >> 31)
    }
    fn is_seeded(self) -> bool {
        true
    }
}

impl Machine for Bare {
    fn node_count(self) -> usize {
        1
    }
}
