//! Workloads that simulate programs: streams of page accesses over a heap whose frames are known,
//! fed to the model of a direct-mapped memory-side cache with pages for lines. Random choices are
//! the same for every placement, so only the placements differ.

use freehold_scope_model::{AccessKind, NearCache};

const PAGE: u64 = 4096;
/// Accesses before the count begins and while it runs, as multiples of the heap's pages. All pages
/// are used once before.
const WARM_UP: usize = 2;
const COUNTED: usize = 6;

/// Patterns of a program's accesses to its heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// A heap as large as the cache; all pages are used equally often.
    Fits,
    /// A heap of a quarter of the cache; all pages are used equally often.
    Hot,
    /// STREAM: three arrays, together as large as the cache, swept side by side.
    Stream,
    /// GUPS: a heap of three times the cache; its first part, a quarter of the cache, gets nine
    /// accesses of ten.
    Gups,
    /// The same with the hot part scattered over the heap.
    GupsScattered,
    /// A garbage-collected heap of three times the cache: a nursery that is filled in order again
    /// and again, and old objects, some much more popular than others (Zipf, 0.9).
    Jvm,
}

/// The effect of a placement on a workload.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct MissShare {
    /// Misses for each access.
    pub misses: f64,
    /// Misses that only the placement causes.
    pub conflicts: f64,
}

impl Workload {
    /// All workloads.
    pub const ALL: [Workload; 6] = [
        Workload::Fits,
        Workload::Hot,
        Workload::Stream,
        Workload::Gups,
        Workload::GupsScattered,
        Workload::Jvm,
    ];

    /// Returns a short name.
    pub const fn name(self) -> &'static str {
        match self {
            Workload::Fits => "fits, 1×",
            Workload::Hot => "hot quarter",
            Workload::Stream => "STREAM, 1×",
            Workload::Gups => "GUPS 90/10, 3×",
            Workload::GupsScattered => "GUPS scattered",
            Workload::Jvm => "JVM-like, 3×",
        }
    }

    /// Returns a description in one sentence.
    pub const fn what(self) -> &'static str {
        match self {
            Workload::Fits => "a heap as large as the cache, all pages alike",
            Workload::Hot => "a heap of a quarter of the cache, all pages alike",
            Workload::Stream => "three arrays, together as large as the cache, swept side by side",
            Workload::Gups => {
                "a heap of three times the cache; its first twelfth, a quarter of the cache, gets nine accesses of ten"
            }
            Workload::GupsScattered => "the same, with the hot part scattered over the heap",
            Workload::Jvm => {
                "a heap of three times the cache: a nursery filled in order again and again gets four accesses of ten, old objects \
                 the others, by Zipf's law (0.9)"
            }
        }
    }

    /// Runs the workload over a heap of three times the cache, whose pages are in `frames` in the
    /// order of their addresses.
    pub fn run(self, frames: &[u64], cache_bytes: u64) -> MissShare {
        let cache = (cache_bytes / PAGE) as usize;
        let pages = self.pages(frames.len(), cache);
        let end = (frames.iter().max().copied().unwrap_or(0) + 1) * PAGE;
        let Ok(mut near) = NearCache::new(0, end, cache_bytes, PAGE) else {
            return MissShare { misses: f64::NAN, conflicts: f64::NAN };
        };
        let mut stream = PageStream::new(self, pages);
        for frame in &frames[..pages] {
            near.access(frame * PAGE, AccessKind::Write);
        }
        for _ in 0..WARM_UP * pages {
            near.access(frames[stream.next()] * PAGE, AccessKind::Read);
        }
        near.take_statistics();
        for _ in 0..COUNTED * pages {
            near.access(frames[stream.next()] * PAGE, AccessKind::Read);
        }
        let counts = near.statistics();
        MissShare {
            misses: counts.misses() as f64 / counts.accesses as f64,
            conflicts: counts.conflict as f64 / counts.accesses as f64,
        }
    }

    fn pages(self, heap: usize, cache: usize) -> usize {
        match self {
            Workload::Fits => cache.min(heap),
            Workload::Hot => (cache / 4).min(heap),
            Workload::Stream => (cache / 3 * 3).min(heap),
            Workload::Gups | Workload::GupsScattered | Workload::Jvm => heap,
        }
    }
}

/// Returns frames for so many pages, drawn at random from all of a memory, without any order.
pub fn frames_at_random(memory_bytes: u64, pages: usize) -> Vec<u64> {
    frames_of_a_part_first(memory_bytes, memory_bytes, 0, pages)
}

/// Returns frames in the same way, but the first `first` pages are drawn from the first
/// `part_bytes` of memory. A page allocator hands out the smallest pieces first, and these lie
/// where memory has been used in small pieces.
pub fn frames_of_a_part_first(memory_bytes: u64, part_bytes: u64, first: usize, pages: usize) -> Vec<u64> {
    let mut random = Random(7);
    let mut all: Vec<u64> = (0..memory_bytes / PAGE).collect();
    random.shuffle(&mut all[..(part_bytes / PAGE) as usize]);
    random.shuffle(&mut all[first..]);
    all.truncate(pages);
    all
}

/// Returns the miss shares of pages at random places, where each place of the cache can hold any of
/// `frames` frames: of a heap that fits, of a hot quarter, of the 90/10 mix. A memory of eight
/// times the cache has eight frames for each place.
///
/// Each of a place's frames is a page of the heap with the same probability, and an access misses
/// unless it is to the place's most recent page: 1 - sum over places of (sum of p^2 / sum of p).
pub fn by_chance(frames: u32) -> [f64; 3] {
    let alike = |load: f64| 1.0 - (1.0 - (1.0 - load / f64::from(frames)).powi(frames as i32)) / load;
    [alike(1.0), alike(0.25), mix_by_chance(frames)]
}

fn mix_by_chance(frames: u32) -> f64 {
    let (hot, cold) = (0.25, 2.75);
    let (hot_use, cold_use) = (0.9 / hot, 0.1 / cold);
    let of = f64::from(frames);
    let mut hits = 0.0;
    for hots in 0..=frames {
        for colds in 0..=frames - hots {
            // Number of ways to choose these frames in any order: the multinomial coefficient.
            let ways = choose(frames, hots) * choose(frames - hots, colds);
            let rest = (frames - hots - colds) as i32;
            let chance = ways
                * (hot / of).powi(hots as i32)
                * (cold / of).powi(colds as i32)
                * (1.0 - (hot + cold) / of).powi(rest);
            let (hots, colds) = (f64::from(hots), f64::from(colds));
            let uses = hots * hot_use + colds * cold_use;
            if uses > 0.0 {
                hits += chance * (hots * hot_use * hot_use + colds * cold_use * cold_use) / uses;
            }
        }
    }
    1.0 - hits
}

fn choose(of: u32, count: u32) -> f64 {
    (0..count).map(|n| f64::from(of - n) / f64::from(n + 1)).product()
}

/// The pages that a workload uses, one after the other.
struct PageStream {
    workload: Workload,
    pages: usize,
    random: Random,
    step: usize,
    /// The order of popularity.
    order: Vec<u32>,
    /// Cumulative probabilities by popularity, for [`Workload::Jvm`].
    zipf: Vec<f64>,
}

impl PageStream {
    fn new(workload: Workload, pages: usize) -> PageStream {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let mut order: Vec<u32> = (0..pages as u32).collect();
        if matches!(workload, Workload::GupsScattered | Workload::Jvm) {
            random.shuffle(&mut order);
        }
        let mut zipf = Vec::new();
        if workload == Workload::Jvm {
            order.retain(|&page| page as usize >= nursery(pages));
            let mut sum = 0.0;
            for rank in 0..order.len() {
                sum += 1.0 / (rank as f64 + 1.0).powf(0.9);
                zipf.push(sum);
            }
        }
        PageStream { workload, pages, random, step: 0, order, zipf }
    }

    fn next(&mut self) -> usize {
        self.step += 1;
        match self.workload {
            Workload::Fits | Workload::Hot => self.random.below(self.pages),
            Workload::Stream => {
                let array = self.pages / 3;
                self.step % 3 * array + self.step / 3 % array
            }
            Workload::Gups | Workload::GupsScattered => {
                let hot = hot(self.pages);
                let at = match self.random.below(10) {
                    0 => hot + self.random.below(self.pages - hot),
                    _ => self.random.below(hot),
                };
                self.order[at] as usize
            }
            // Four accesses of ten go to new objects.
            Workload::Jvm if self.random.below(10) < 4 => self.step % nursery(self.pages),
            Workload::Jvm => {
                let point = self.random.unit() * self.zipf.last().copied().unwrap_or(0.0);
                let rank = self.zipf.partition_point(|sum| *sum < point);
                self.order[rank.min(self.order.len() - 1)] as usize
            }
        }
    }
}

/// Returns the number of hot pages: a twelfth of the heap, a quarter of the cache.
fn hot(pages: usize) -> usize {
    (pages / 12).max(1)
}

/// Returns the number of pages of the nursery: a sixth of the heap, half the cache.
fn nursery(pages: usize) -> usize {
    (pages / 6).max(1)
}

/// Marsaglia's xorshift with Vigna's multiplication: repeatable, and no secret.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: usize) -> usize {
        ((u128::from(self.next()) * end as u128) >> 64) as usize
    }

    fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last + 1));
        }
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CACHE: u64 = 16384 * PAGE;
    const PAGES: usize = 3 * 16384;

    fn in_order() -> Vec<u64> {
        (1000..1000 + PAGES as u64).collect()
    }

    fn at_random() -> Vec<u64> {
        frames_at_random(8 * CACHE, PAGES)
    }

    #[track_caller]
    fn about(share: f64, expected: f64) {
        assert!((share - expected).abs() < 0.01, "{share}, not {expected}");
    }

    #[test]
    fn memory_in_order_has_no_conflicts_where_it_fits() {
        for workload in [Workload::Fits, Workload::Hot, Workload::Stream] {
            assert_eq!(workload.run(&in_order(), CACHE).misses, 0.0, "{}", workload.name());
        }
    }

    #[test]
    fn random_placement_misses_as_the_formulas_say() {
        // A place's eight frames are each used with probability λ / 8, for λ = 1 and 1/4: 1 - (1 -
        // (1 - λ/8)^8) / λ. (Of endless memory, 1 - (1 - e^-λ) / λ: 36.8% and 11.5%.) A sweep loses
        // every page that is not alone in its place, 1 - (7/8)^7.
        about(Workload::Fits.run(&at_random(), CACHE).misses, 0.344);
        about(Workload::Hot.run(&at_random(), CACHE).misses, 0.103);
        about(Workload::Stream.run(&at_random(), CACHE).misses, 0.607);
    }

    #[test]
    fn a_hot_part_of_three_caches_misses_as_computed() {
        // 1 - sum over places of (sum of p^2 / sum of p), with p = 0.9 over a quarter of the cache
        // and 0.1 over the rest; at random, each of a place's eight frames is a hot page with
        // probability 0.25 / 8 and a cold one with 2.75 / 8; in order, each of its three pages is a
        // hot one with probability 1 / 12 if those are scattered.
        about(Workload::Gups.run(&in_order(), CACHE).misses, 0.090);
        about(Workload::Gups.run(&at_random(), CACHE).misses, 0.183);
        about(Workload::GupsScattered.run(&in_order(), CACHE).misses, 0.160);
        about(Workload::GupsScattered.run(&at_random(), CACHE).misses, 0.183);
    }

    #[test]
    fn what_is_computed_of_chance_is_what_random_frames_miss() {
        let workloads = [Workload::Fits, Workload::Hot, Workload::Gups];
        for (frames, memory) in [(8, 8 * CACHE), (4, 4 * CACHE)] {
            let placed = frames_at_random(memory, PAGES);
            for (workload, share) in workloads.into_iter().zip(by_chance(frames)) {
                about(workload.run(&placed, CACHE).misses, share);
            }
        }
        // Of endless memory.
        about(by_chance(1000)[0], 0.368);
        about(by_chance(1000)[1], 0.115);
    }

    #[test]
    fn a_part_that_is_drawn_from_first_lowers_what_its_pages_miss_and_not_the_rest() {
        let quarter = PAGES / 12;
        let placed = frames_of_a_part_first(8 * CACHE, 3 * CACHE, quarter, PAGES);
        assert!(placed[..quarter].iter().all(|frame| frame * PAGE < 3 * CACHE));
        about(Workload::Hot.run(&placed, CACHE).misses, by_chance(3)[1]);
        about(Workload::Fits.run(&placed, CACHE).misses, by_chance(8)[0]);
        about(Workload::Gups.run(&placed, CACHE).misses, by_chance(3)[2]);
    }

    #[test]
    fn conflicts_are_never_more_than_misses() {
        for workload in Workload::ALL {
            let share = workload.run(&at_random(), CACHE);
            assert!(share.conflicts <= share.misses && share.misses < 1.0, "{workload:?} {share:?}");
        }
    }
}
