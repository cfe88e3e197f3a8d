//! Computes figures from counts: sums over phases, shares, medians. The summary and the report both
//! use these figures.

use freehold_scope_record::{
    CpuCounts, CpuPhase, Half, KernelData, LifetimeGroup, NearCounts, Page, Phase, Results,
};

/// Buckets of lengths of life: entry n is 2^n to 2^(n+1) - 1 instructions.
const BUCKETS: usize = 64;

/// Results, and the start of the program in them.
pub struct Digest<'a> {
    /// All results.
    pub results: &'a Results,
    first: usize,
    /// One past the last phase of the program.
    end: usize,
}

/// TLB entries of one kind, all CPUs together.
pub struct Lives {
    /// The half of the address space.
    pub half: Half,
    /// The page size.
    pub page: Page,
    /// Entries made.
    pub fills: u64,
    /// (longest age of the bucket, died, alive at the end).
    pub ages: Vec<(f64, u64, u64)>,
}

impl<'a> Digest<'a> {
    /// Finds the program in `results`: its phase and all later ones except the closing one, in
    /// which the kernel makes its audit. If no program began, all phases count.
    pub fn of(results: &'a Results) -> Digest<'a> {
        let phases = &results.phases;
        let Some(first) = phases.iter().position(|phase| phase.name == Phase::PROGRAM) else {
            return Digest { results, first: 0, end: phases.len() };
        };
        let closing = phases.iter().rposition(|phase| phase.name == Phase::CLOSING).filter(|at| *at > first);
        Digest { results, first, end: closing.unwrap_or(phases.len()) }
    }

    /// Returns the program's phases.
    pub fn phases(&self) -> &'a [Phase] {
        &self.results.phases[self.first..self.end]
    }

    /// Returns a count of all CPUs while the program ran.
    pub fn total(&self, count: impl Fn(&CpuPhase) -> u64) -> u64 {
        self.phases().iter().flat_map(|phase| &phase.cpus).map(count).sum()
    }

    /// Returns the number of nodes of the machine.
    pub fn nodes(&self) -> usize {
        self.results.settings.memory.backends.len()
    }

    /// Returns the counts of `cpu` in one half of the address space while the program ran.
    pub fn counts(&self, cpu: usize, half: Half) -> CpuCounts {
        sum(self.phases().iter().filter_map(|phase| Some(of_half(phase.cpus.get(cpu)?, half))))
    }

    /// Returns the kernel's loads and stores on `cpu` by kind of data while the program ran.
    pub fn kernel_data(&self, cpu: usize) -> KernelData {
        let mut sum = KernelData::default();
        let cpus = self.phases().iter().filter_map(|phase| phase.cpus.get(cpu));
        cpus.for_each(|cpu| sum.join(&cpu.kernel_data));
        sum
    }

    /// Returns the counts of all CPUs while the program ran.
    pub fn all_counts(&self, half: Half) -> CpuCounts {
        sum(self.phases().iter().flat_map(|phase| phase.cpus.iter().map(|cpu| of_half(cpu, half))))
    }

    /// Returns the shares of the kernel's instructions that were fetched from each node while the
    /// program ran; `None` if there were none.
    pub fn kernel_code(&self) -> Option<Vec<f64>> {
        let by_node = self.all_counts(Half::Kernel).fetches;
        let all = by_node.iter().sum();
        (0..self.nodes()).map(|node| share(by_node.get(node).copied().unwrap_or(0), all)).collect()
    }

    /// Returns the counts of each node's memory-side cache while the program ran.
    pub fn near(&self) -> Vec<NearCounts> {
        let mut sums = vec![NearCounts::default(); self.results.near.len()];
        for phase in self.phases() {
            for (sum, near) in sums.iter_mut().zip(&phase.near) {
                add_near(sum, near);
            }
        }
        sums
    }

    /// Returns the lives of TLB entries by half and page size; kinds with most fills first.
    pub fn lives(&self) -> Vec<Lives> {
        let mut all: Vec<Lives> = Vec::new();
        for group in self.results.tlb.iter().flat_map(|tlb| &tlb.groups) {
            let at = all.iter().position(|lives| (lives.half, lives.page) == (group.half, group.page));
            let lives = match at {
                Some(at) => &mut all[at],
                None => {
                    let ages = (0..BUCKETS).map(|n| (2f64.powi(n as i32 + 1), 0, 0)).collect();
                    all.push(Lives { half: group.half, page: group.page, fills: 0, ages });
                    all.last_mut().expect("just pushed")
                }
            };
            add_group(lives, group);
        }
        for lives in &mut all {
            lives.ages.retain(|(_, died, alive)| died + alive > 0);
        }
        all.sort_by_key(|lives| std::cmp::Reverse(lives.fills));
        all
    }
}

fn add_group(lives: &mut Lives, group: &LifetimeGroup) {
    lives.fills += group.fills;
    for (bucket, count) in group.deaths.iter().flat_map(|death| death.lived.iter().enumerate()) {
        lives.ages[bucket.min(BUCKETS - 1)].1 += count;
    }
    for (bucket, count) in group.alive.iter().enumerate() {
        lives.ages[bucket.min(BUCKETS - 1)].2 += count;
    }
}

/// Returns one half of a CPU's counts.
pub fn of_half(cpu: &freehold_scope_record::CpuPhase, half: Half) -> &CpuCounts {
    match half {
        Half::User => &cpu.modes.user,
        Half::Kernel => &cpu.modes.kernel,
    }
}

/// Returns the sum of `counts`.
pub fn sum<'a>(counts: impl Iterator<Item = &'a CpuCounts>) -> CpuCounts {
    let mut sum = CpuCounts::default();
    for one in counts {
        for (to, from) in [
            (&mut sum.instructions, one.instructions),
            (&mut sum.loads, one.loads),
            (&mut sum.stores, one.stores),
            (&mut sum.stored_bytes, one.stored_bytes),
            (&mut sum.elsewhere, one.elsewhere),
            (&mut sum.first_misses, one.first_misses),
            (&mut sum.first_fetch_misses, one.first_fetch_misses),
            (&mut sum.tlb_data_misses, one.tlb_data_misses),
            (&mut sum.tlb_fetch_misses, one.tlb_fetch_misses),
            (&mut sum.tlb_walks, one.tlb_walks),
        ] {
            *to += from;
        }
        for (to, from) in [
            (&mut sum.data, &one.data),
            (&mut sum.fetches, &one.fetches),
            (&mut sum.data_misses, &one.data_misses),
            (&mut sum.fetch_misses, &one.fetch_misses),
        ] {
            to.resize(to.len().max(from.len()), 0);
            for (to, from) in to.iter_mut().zip(from) {
                *to += from;
            }
        }
    }
    sum
}

/// Adds `more` to `sum`.
pub fn add_near(sum: &mut NearCounts, more: &NearCounts) {
    sum.accesses += more.accesses;
    sum.hits += more.hits;
    sum.cold += more.cold;
    sum.capacity += more.capacity;
    sum.conflict += more.conflict;
    sum.written_back += more.written_back;
}

/// Returns `part` of `whole`; `None` if `whole` is 0.
pub fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Returns the share that is not on node `home`, of counts by node.
pub fn remote(by_node: &[u64], home: usize) -> Option<f64> {
    let all: u64 = by_node.iter().sum();
    share(all - by_node.get(home).copied().unwrap_or(0), all)
}

/// Returns the age that half of all entries reach: from a survival curve.
pub fn median(curve: &[(f64, f64)]) -> Option<f64> {
    curve.iter().find(|(_, alive)| *alive <= 0.5).map(|(age, _)| *age)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remote_is_all_that_is_not_at_home() {
        assert_eq!(remote(&[25, 75], 1), Some(0.25));
        assert_eq!(remote(&[10, 0], 1), Some(1.0));
        assert_eq!(remote(&[0, 0], 1), None, "no access is not a share");
        assert_eq!(remote(&[5], 3), Some(1.0));
    }

    #[test]
    fn sums_take_nodes_that_only_some_counts_have() {
        let one = CpuCounts { instructions: 1, data: vec![1], ..CpuCounts::default() };
        let two = CpuCounts { instructions: 2, data: vec![1, 5], ..CpuCounts::default() };
        let sum = sum([&one, &two].into_iter());
        assert_eq!((sum.instructions, sum.data), (3, vec![2, 5]));
    }

    #[test]
    fn a_median_is_unknown_while_most_live() {
        assert_eq!(median(&[(1.0, 0.9), (8.0, 0.4)]), Some(8.0));
        assert_eq!(median(&[(1.0, 0.9), (8.0, 0.6)]), None);
    }
}
