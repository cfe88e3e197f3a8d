//! Tests that the order in which memory is handed out is statistically random. Each statistic is
//! held to α = 0.001 (two-sided |z| ≤ 3.29), with fixed seeds; the same statistics must detect the
//! biased shuffle that swaps each block with any other.
//!
//! `FREEHOLD_BOOTS=1000000 cargo test -p freehold-buddy --release --test shuffle` boots more often
//! than 10⁵ times.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};

use common::{check, model};
use freehold_buddy::{Buddy, Managed, Options, Pcp, Shuffle};
use freehold_frame::{FrameRecord, FrameSource, FrameState, FrameTable, Order, Owner, Request};
use freehold_machine::model::{Config, Model};
use freehold_machine::{Entropy, Pfn};

/// The critical value of a standard normal at α = 0.001, two-sided.
const CRITICAL: f64 = 3.29;

/// χ² of rank × position over many permutations of `n`, as a standard normal (Wilson and Hilferty
/// 1931).
fn chi_squared(n: usize, permutations: impl Iterator<Item = Vec<usize>>) -> f64 {
    let mut cells = vec![0u64; n * n];
    let mut boots = 0u64;
    for permutation in permutations {
        permutation.iter().enumerate().for_each(|(position, rank)| cells[position * n + rank] += 1);
        boots += 1;
    }
    let expected = boots as f64 / n as f64;
    let chi: f64 = cells.iter().map(|c| (*c as f64 - expected).powi(2) / expected).sum();
    // Rows and columns have fixed sums; for permutations χ²·(n-1)/n has (n-1)² degrees of freedom.
    let (chi, freedom) = (chi * (n as f64 - 1.0) / n as f64, ((n - 1) * (n - 1)) as f64);
    let spread = 2.0 / (9.0 * freedom);
    ((chi / freedom).cbrt() - (1.0 - spread)) / spread.sqrt()
}

/// Spearman's ρ, runs up and down, and successors of one permutation, each as a standard normal
/// (successors as a count).
fn order_statistics(list: &[usize]) -> (f64, f64, usize) {
    let n = list.len() as f64;
    let squares: f64 = list.iter().enumerate().map(|(i, rank)| (i as f64 - *rank as f64).powi(2)).sum();
    let rho = 1.0 - 6.0 * squares / (n * (n * n - 1.0));
    let turns = list.windows(3).filter(|w| (w[0] < w[1]) != (w[1] < w[2])).count() as f64 + 1.0;
    let runs = (turns - (2.0 * n - 1.0) / 3.0) / ((16.0 * n - 29.0) / 90.0).sqrt();
    let successors = list.windows(2).filter(|w| w[1] == w[0] + 1).count();
    (rho * (n - 1.0).sqrt(), runs, successors)
}

fn boot(blocks: u64, seed: u64, shuffle: Shuffle) -> &'static Buddy<Model> {
    let options = Options { shuffle, ..Options::default() };
    model(Config { frames: blocks * 512, seed, ..Config::default() }, &[], options)
}

/// The order in which a fresh machine hands out its pageblocks.
fn pageblocks(blocks: u64, seed: u64, shuffle: Shuffle) -> Vec<usize> {
    let source = boot(blocks, seed, shuffle);
    let request = Request::new(Owner::Anon).order(Order::PAGEBLOCK).from_reserve();
    (0..blocks).map(|_| (source.allocate(request).unwrap().0 / 512) as usize).collect()
}

#[test]
fn the_swap_with_any_other_block_fails_the_same_test() {
    // The biased shuffle that the statistics must detect: each block in turn is swapped with one
    // drawn from all blocks, not from the remaining ones.
    let entropy = Model::new(Config::default());
    let naive = (0..600).map(|_| {
        let mut list: Vec<usize> = (0..12).collect();
        for i in 0..12 {
            list.swap(i, (entropy.random_u64() % 12) as usize);
        }
        list
    });
    let z = chi_squared(12, naive);
    assert!(z > CRITICAL, "z = {z}: the test has no power");
    let (rho, ..) = order_statistics(&pageblocks(512, 1, Shuffle::Off));
    assert!(rho.abs() > 5.0 * CRITICAL, "memory that is not shuffled looks random: {rho}");
}

#[test]
fn neither_pageblocks_nor_frames_have_an_order() {
    // Also single frames: those of the first opened pageblock, in the order in which the kernel
    // gets them.
    let frames = |seed| -> Vec<usize> {
        let source = boot(160, seed, Shuffle::On);
        let take = || (source.allocate(Request::new(Owner::Anon)).unwrap().0 % 512) as usize;
        // Small lists at first: by the time the list has grown, whole pageblocks are drawn at once.
        let warm: Vec<_> = (0..4 * 512).map(|_| take()).collect();
        warm[..512].to_vec()
    };
    for (name, lists) in [
        ("pageblocks", (1..40).map(|seed| pageblocks(128, seed, Shuffle::On)).collect::<Vec<_>>()),
        ("frames", (1..40).map(|seed| ranked(&frames(seed))).collect()),
    ] {
        let (mut rho, mut runs, mut successors) = (0.0, 0.0, 0);
        for list in &lists {
            let (r, t, s) = order_statistics(list);
            rho += r;
            runs += t;
            successors += s;
        }
        let count = lists.len() as f64;
        assert!((rho / count.sqrt()).abs() < CRITICAL, "{name}: Spearman {}", rho / count.sqrt());
        assert!((runs / count.sqrt()).abs() < CRITICAL, "{name}: runs {}", runs / count.sqrt());
        // Successors are Poisson with mean 1 - 1/n per list.
        let z = (successors as f64 - count) / count.sqrt();
        assert!(z.abs() < CRITICAL, "{name}: {successors} successors in {count} lists");
    }
}

/// How often to boot.
fn boots() -> u64 {
    std::env::var("FREEHOLD_BOOTS").map_or(100_000, |n| n.parse().unwrap())
}

/// Boots a machine of `blocks` pageblocks repeatedly, in the same memory, and calls `look` for
/// each.
fn boot_often(blocks: u64, mut look: impl FnMut(&Buddy<Model>)) {
    let machine = Model::new(Config { frames: blocks * 512, seed: 77, ..Config::default() });
    let options = Options { shuffle: Shuffle::On, ..Options::default() };
    let records: &'static [FrameRecord] =
        (0..blocks * 512).map(|_| FrameRecord::EMPTY).collect::<Vec<_>>().leak();
    let words = Buddy::<Model>::metadata_words(machine.topology(), 1, &options);
    let metadata: &'static [AtomicU64] = (0..words).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().leak();
    let pcps: &'static [Pcp] = vec![Pcp::new()].leak();
    for _ in 0..boots() {
        records.iter().for_each(|record| record.set_state(FrameState::Unowned(None)));
        metadata.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        let table = FrameTable::new(records);
        let managed = Managed { topology: machine.topology(), reserved: &[], table, metadata, pcps };
        look(&Buddy::new(machine, managed, options).unwrap());
    }
}

/// Spearman's ρ, runs and successors over many permutations of the same length, each sum as a
/// standard normal.
fn assert_random(name: &str, lists: &[Vec<usize>]) {
    let (mut rho, mut runs, mut successors) = (0.0, 0.0, 0.0);
    for list in lists {
        let (r, t, s) = order_statistics(list);
        rho += r;
        runs += t;
        successors += s as f64;
    }
    let (count, n) = (lists.len() as f64, lists[0].len() as f64);
    // Successors in a random permutation have the mean 1 - 1/n, and (n-2)/n pairs.
    let mean = (n - 1.0) / n;
    let variance = (n - 2.0) / n + mean - mean * mean;
    let figures = [
        ("Spearman", rho / count.sqrt()),
        ("runs", runs / count.sqrt()),
        ("successors", (successors - count * mean) / (count * variance).sqrt()),
        ("rank by position", chi_squared(lists[0].len(), lists.iter().cloned())),
    ];
    for (statistic, z) in figures {
        assert!(z.abs() < CRITICAL, "{name}, {statistic}: z = {z} over {count} boots");
    }
}

#[test]
fn over_many_boots_no_statistic_tells_pageblocks_or_frames_from_chance() {
    let request = Request::new(Owner::Anon).order(Order::PAGEBLOCK).from_reserve();
    let mut blocks = Vec::new();
    boot_often(16, |source| {
        blocks.push((0..16).map(|_| (source.allocate(request).unwrap().0 / 512) as usize).collect());
    });
    assert_random("pageblocks", &blocks);

    // The first frames that a program gets: their choice in the pageblock, and their order.
    const FIRST: usize = 8;
    let (mut ranks, mut places) = (Vec::new(), vec![0u64; 512]);
    // A frame is freed among others. The number of frames handed out before it must be uniform over
    // the list.
    let (mut shares, chances) = (Vec::new(), Model::new(Config::default()));
    boot_often(8, |source| {
        let take = || source.allocate(Request::new(Owner::Anon)).unwrap();
        let first: Vec<usize> = (0..FIRST).map(|_| (take().0 % 512) as usize).collect();
        first.iter().for_each(|place| places[*place] += 1);
        ranks.push(ranked(&first));
        let victim = take();
        let len = source.cached_frames() + 1;
        source.release(victim, Order::FRAME);
        assert_eq!(source.cached_frames(), len);
        let before = (0..len).position(|_| take() == victim).unwrap() as f64;
        let chance = chances.random_u64() as f64 / u64::MAX as f64;
        shares.push((before + chance) / len as f64);
    });
    assert_random("frames", &ranks);
    let expected = (FIRST * ranks.len()) as f64 / 512.0;
    let chi: f64 = places.iter().map(|count| (*count as f64 - expected).powi(2) / expected).sum();
    // The draw is without replacement, so the variance is a little less than that of χ² with 511
    // degrees of freedom.
    let spread = 2.0 / (9.0 * 511.0);
    let chi = chi * 511.0 / (512.0 - FIRST as f64);
    let z = ((chi / 511.0).cbrt() - (1.0 - spread)) / f64::sqrt(spread);
    assert!(z.abs() < CRITICAL, "which frames come first: z = {z}");
    assert_uniform(shares);
}

/// Kolmogorov and Smirnov: the largest gap between the shares and the uniform; 1.95/√n at α =
/// 0.001.
fn assert_uniform(mut shares: Vec<f64>) {
    shares.sort_by(f64::total_cmp);
    let n = shares.len() as f64;
    let gap = shares
        .iter()
        .enumerate()
        .map(|(i, s)| (s - i as f64 / n).abs().max((s - (i as f64 + 1.0) / n).abs()))
        .fold(0.0, f64::max);
    assert!(gap < 1.95 / n.sqrt(), "gap {gap} over {n} frames");
}

#[test]
fn the_same_statistics_tell_an_order_that_is_not_random() {
    // Two biased orders: swaps with any other element, and a list rotated by a random number. Each
    // statistic except successors detects one of them.
    let entropy = Model::new(Config::default());
    let mut naive: Vec<Vec<usize>> = Vec::new();
    let mut turned: Vec<Vec<usize>> = Vec::new();
    for _ in 0..2000 {
        let mut list: Vec<usize> = (0..16).collect();
        (0..16).for_each(|i| list.swap(i, (entropy.random_u64() % 16) as usize));
        naive.push(list);
        let mut list: Vec<usize> = (0..16).collect();
        list.rotate_left((entropy.random_u64() % 16) as usize);
        turned.push(list);
    }
    for lists in [naive, turned] {
        let caught = std::panic::catch_unwind(|| assert_random("not random", &lists));
        assert!(caught.is_err(), "the tests have no power");
    }
}

#[test]
fn frames_stay_together_as_shuffle_order_says() {
    for grain in 0..=8u32 {
        let options = Options { shuffle: Shuffle::On, shuffle_order: grain, ..Options::default() };
        let source = model(Config { frames: 160 * 512, ..Config::default() }, &[], options);
        let list: Vec<u64> =
            (0..8192).map(|_| source.allocate(Request::new(Owner::Anon)).unwrap().0).collect();
        // The share of frames, among those that do not begin a group, that directly follow their
        // lower neighbour.
        let next = |wanted: &dyn Fn(u64) -> bool| {
            let pairs = list.windows(2).filter(|pair| wanted(pair[1]));
            let (follow, all) =
                pairs.fold((0, 0), |(f, all), pair| (f + u32::from(pair[1] == pair[0] + 1), all + 1));
            f64::from(follow) / f64::from(all)
        };
        let inside = |frame: u64| !frame.is_multiple_of(1 << grain);
        if grain > 0 {
            assert!(next(&inside) > 0.97, "order {grain}: {:.3} inside", next(&inside));
        }
        let groups = f64::from(512u32 >> grain);
        let across = next(&|frame| !inside(frame));
        assert!(
            across < 2.5 / groups + 0.01,
            "order {grain}: {across:.3} of {groups} groups follow their neighbour"
        );
        (0..8192).zip(&list).for_each(|(_, frame)| source.release(Pfn(*frame), Order::FRAME));
        check(source);
    }
}

/// Replaces distinct numbers by their ranks.
fn ranked(list: &[usize]) -> Vec<usize> {
    let mut sorted: Vec<_> = list.iter().enumerate().map(|(at, n)| (*n, at)).collect();
    sorted.sort_unstable();
    let mut ranks = vec![0; list.len()];
    sorted.iter().enumerate().for_each(|(rank, (_, at))| ranks[*at] = rank);
    ranks
}

#[test]
fn a_freed_frame_comes_back_at_a_time_that_nobody_can_tell() {
    // Frees one frame into a list of about 500, then counts the frames handed out before it. The
    // count must be uniform over the list's length.
    let source = boot(160, 5, Shuffle::On);
    let request = Request::new(Owner::Anon);
    let mut held: Vec<Pfn> = (0..4000).map(|_| source.allocate(request).unwrap()).collect();
    let mut shares = Vec::new();
    while shares.len() < 1500 {
        let victim = held.swap_remove((source.machine().random_u64() % held.len() as u64) as usize);
        let before = source.pcp_info(freehold_machine::CpuId(0)).unwrap().frames;
        source.release(victim, Order::FRAME);
        let len = source.pcp_info(freehold_machine::CpuId(0)).unwrap().frames;
        if len != before + 1 {
            continue; // The frame, or others, returned to their pageblocks.
        }
        let mut distance = 0;
        let mut taken = Vec::new();
        while distance < len {
            let frame = source.allocate(request).unwrap();
            taken.push(frame);
            if frame == victim {
                break;
            }
            distance += 1;
        }
        if distance < len {
            shares.push((distance as f64 + 0.5) / len as f64);
        }
        taken.iter().for_each(|frame| source.release(*frame, Order::FRAME));
        held.push(source.allocate(request).unwrap());
    }
    assert_uniform(shares);
}

#[test]
fn four_mebibyte_blocks_stay_together_where_that_is_asked_for() {
    let options = Options { shuffle: Shuffle::On, shuffle_order: 10, ..Options::default() };
    let source = model(Config { frames: 256 * 512, ..Config::default() }, &[], options);
    let request = Request::new(Owner::Anon).order(Order::PAGEBLOCK).from_reserve();
    let list: Vec<u64> = (0..256).map(|_| source.allocate(request).unwrap().0 / 512).collect();
    assert!(list.chunks(2).all(|pair| pair[0] ^ 1 == pair[1]), "{list:?}");
    assert!(list.chunks(2).any(|pair| pair[0] > pair[1]), "either half may come first");
}
