//! Counts of a CPU between two settlements, in plain arrays.

use freehold_scope_model::Join;
use freehold_scope_record::{CpuCounts, CpuPhase, KernelData, Locality, Modes};

use crate::guest::{MAX_NODES, NOWHERE};

/// Index of the kernel in counts by mode; programs are 0.
pub const KERNEL: usize = 1;
/// Counts by mode and node; the last entry is for addresses without memory.
pub type ByNode = [[u64; MAX_NODES + 1]; 2];

#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub stores: [u64; 2],
    pub stored_bytes: [u64; 2],
    pub data: ByNode,
    pub fetches: ByNode,
    pub first_misses: [u64; 2],
    pub first_fetch_misses: [u64; 2],
    pub data_misses: ByNode,
    pub fetch_misses: ByNode,
    pub tlb_data_misses: [u64; 2],
    pub tlb_fetch_misses: [u64; 2],
    pub tlb_walks: [u64; 2],
    pub space_flushes: u64,
    pub full_flushes: u64,
    pub page_flushes: u64,
    pub kernel_data: KernelData,
}

impl Tally {
    fn counts(&self, mode: usize, nodes: usize) -> CpuCounts {
        let own = |by_node: &ByNode| by_node[mode][..nodes].to_vec();
        let accesses: u64 = self.data[mode].iter().sum();
        CpuCounts {
            instructions: self.fetches[mode].iter().sum(),
            loads: accesses - self.stores[mode].min(accesses),
            stores: self.stores[mode].min(accesses),
            stored_bytes: self.stored_bytes[mode],
            elsewhere: self.data[mode][NOWHERE],
            data: own(&self.data),
            fetches: own(&self.fetches),
            first_misses: self.first_misses[mode],
            first_fetch_misses: self.first_fetch_misses[mode],
            data_misses: own(&self.data_misses),
            fetch_misses: own(&self.fetch_misses),
            tlb_data_misses: self.tlb_data_misses[mode],
            tlb_fetch_misses: self.tlb_fetch_misses[mode],
            tlb_walks: self.tlb_walks[mode],
        }
    }

    /// Adds the counts to a phase.
    pub fn add_to(&self, phase: &mut CpuPhase, nodes: usize) {
        add(&mut phase.modes.user, self.counts(0, nodes));
        add(&mut phase.modes.kernel, self.counts(KERNEL, nodes));
        phase.space_flushes += self.space_flushes;
        phase.full_flushes += self.full_flushes;
        phase.page_flushes += self.page_flushes;
        phase.kernel_data.join(&self.kernel_data);
    }

    /// Returns the counts of near and far accesses, for a CPU of node `home`.
    pub fn locality(&self, home: usize) -> Modes<Locality> {
        let split = |counts: &[u64; MAX_NODES + 1]| {
            let all: u64 = counts[..NOWHERE].iter().sum();
            (counts[home], all - counts[home])
        };
        let of = |mode: usize| {
            let (data_local, data_remote) = split(&self.data[mode]);
            let (fetch_local, fetch_remote) = split(&self.fetches[mode]);
            Locality { data_local, data_remote, fetch_local, fetch_remote }
        };
        Modes { user: of(0), kernel: of(KERNEL) }
    }
}

fn add(counts: &mut CpuCounts, more: CpuCounts) {
    let each = |sums: &mut Vec<u64>, more: Vec<u64>| {
        sums.resize(more.len().max(sums.len()), 0);
        sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
    };
    counts.instructions += more.instructions;
    counts.loads += more.loads;
    counts.stores += more.stores;
    counts.stored_bytes += more.stored_bytes;
    counts.elsewhere += more.elsewhere;
    each(&mut counts.data, more.data);
    each(&mut counts.fetches, more.fetches);
    counts.first_misses += more.first_misses;
    counts.first_fetch_misses += more.first_fetch_misses;
    each(&mut counts.data_misses, more.data_misses);
    each(&mut counts.fetch_misses, more.fetch_misses);
    counts.tlb_data_misses += more.tlb_data_misses;
    counts.tlb_fetch_misses += more.tlb_fetch_misses;
    counts.tlb_walks += more.tlb_walks;
}

/// Counts of a slice of time.
#[derive(Clone, Debug, Default)]
pub struct SliceTally {
    /// By CPU.
    pub cpus: Vec<Modes<Locality>>,
    /// By region.
    pub heat: Vec<u64>,
}

impl SliceTally {
    pub fn new(cpus: usize, regions: usize) -> Self {
        Self { cpus: vec![Modes::default(); cpus], heat: vec![0; regions] }
    }
}

fn add_locality(sum: &mut Locality, more: Locality) {
    sum.data_local += more.data_local;
    sum.data_remote += more.data_remote;
    sum.fetch_local += more.fetch_local;
    sum.fetch_remote += more.fetch_remote;
}

impl Join for SliceTally {
    fn join(&mut self, later: Self) {
        for (sum, more) in self.cpus.iter_mut().zip(later.cpus) {
            add_locality(&mut sum.user, more.user);
            add_locality(&mut sum.kernel, more.kernel);
        }
        self.heat.iter_mut().zip(later.heat).for_each(|(sum, more)| *sum += more);
    }
}
