//! Runs of one CPU, and the exhaustive model: two CPUs, three frames, and an attacker who caches at
//! any moment.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeSet, VecDeque};
use std::vec::Vec;

use super::*;

fn take<const N: usize>(lap: &Lap<N>, open: u64) -> (usize, Renewal) {
    match lap.take() {
        Some(slot) => (slot, Renewal::SameLap),
        None => {
            let renewal = lap.renew(open);
            (lap.take().unwrap(), renewal)
        }
    }
}

#[test]
fn a_slot_is_never_used_twice_in_one_lap_and_every_window_is_counted() {
    let lap = Lap::<64>::new();
    let mut seen = 0u64;
    for count in 0..1000 {
        let (slot, renewal) = take(&lap, 0);
        if renewal != Renewal::SameLap {
            seen = 0;
        }
        assert_eq!(seen >> slot & 1, 0);
        seen |= 1 << slot;
        assert_eq!(lap.taken(), count + 1);
    }
    assert_eq!(lap.laps(), 1000_u64.div_ceil(64));
}

#[test]
fn a_slot_open_over_a_flush_rests_until_the_next() {
    let lap = Lap::<8>::new();
    for _ in 0..3 {
        take(&lap, 0);
    }
    let (outer, _) = take(&lap, 0);
    let mut laps = Vec::new();
    for _ in 0..40 {
        let (slot, renewal) = take(&lap, 1 << outer);
        assert_ne!(slot, outer, "it is still open");
        laps.extend((renewal == Renewal::NewLap).then_some(slot));
    }
    assert!(laps.len() > 3);
    // Closed in the middle of a lap: its translation may be cached since the flush.
    loop {
        let (slot, renewal) = take(&lap, 0);
        if renewal == Renewal::NewLap {
            break;
        }
        assert_ne!(slot, outer);
    }
    assert!((0..8).any(|_| take(&lap, 0).0 == outer));
}

#[test]
fn a_cpu_that_forgot_begins_a_lap_without_forgetting_again() {
    let lap = Lap::<8>::new();
    assert!(!lap.may_be_cached());
    assert_eq!(take(&lap, 0).1, Renewal::Fresh);
    take(&lap, 0);
    assert!(lap.may_be_cached());
    lap.forget();
    assert!(!lap.may_be_cached());
    assert_eq!((take(&lap, 0), lap.taken()), ((0, Renewal::Fresh), 3));
}

#[test]
fn a_lap_that_is_begun_again_has_all_slots_and_counts_on() {
    let lap = Lap::<8>::new();
    lap.restart();
    assert_eq!(
        (take(&lap, 0).1, lap.laps()),
        (Renewal::Fresh, 1),
        "nothing was cached: nothing to begin again"
    );
    take(&lap, 0);
    lap.restart();
    assert!(lap.may_be_cached());
    assert_eq!((lap.taken(), lap.laps()), (2, 2));
    assert_eq!((0..8).map(|_| lap.take()).collect::<Vec<_>>(), (0..8).map(Some).collect::<Vec<_>>());
    assert_eq!((lap.take(), lap.taken()), (None, 10));
}

#[test]
fn only_slots_that_were_in_use_since_the_cpu_forgot_may_be_cached() {
    let lap = Lap::<64>::new();
    assert_eq!(lap.maybe_cached(), 0);
    (0..3).for_each(|_| assert!(take(&lap, 0).0 < 3));
    assert_eq!(lap.maybe_cached(), 0b111);
    (3..64).for_each(|next| assert_eq!(take(&lap, 0).0, next));
    assert_eq!(lap.maybe_cached(), u64::MAX);
    assert_eq!(take(&lap, 1 << 63), (0, Renewal::NewLap));
    assert_eq!(lap.maybe_cached(), 1 << 63 | 1, "what was open over the flush may be cached");
    lap.restart();
    assert_eq!(lap.maybe_cached(), 0);
    take(&lap, 0);
    lap.forget();
    assert_eq!(lap.maybe_cached(), 0);
}

#[test]
fn an_interrupt_that_forgets_while_a_lap_begins_again_is_not_overruled() {
    const MOMENTS: usize = 6;
    for moment in 0..=MOMENTS {
        let lap = Lap::<4>::new();
        for _ in 0..3 {
            take(&lap, 0);
        }
        let mut passed = 0;
        lap.restart_with(|| {
            if passed == moment {
                lap.forget();
            }
            passed += 1;
        });
        assert_eq!(passed, MOMENTS);
        for round in 0..12 {
            let (_, renewal) = take(&lap, 0);
            assert!(lap.may_be_cached(), "interrupt {moment}, window {round}: nobody knows of it");
            let is_first = round == 0 && moment < MOMENTS;
            assert_eq!(renewal == Renewal::Fresh, is_first, "interrupt {moment}, window {round}");
        }
        assert_eq!(lap.taken(), 15);
    }
}

#[test]
fn runs_of_one_slot_use_all_slots_in_turn() {
    let lap = Lap::<8, 16>::new();
    lap.place(0x1000);
    lap.set_longest_run(0);
    for slot in [0, 1, 3, 4, 5, 6, 7].repeat(3) {
        assert_eq!(lap.take(), None, "each window asks for a run");
        assert_eq!(lap.renew(1 << 2) == Renewal::SameLap, slot != 0);
        assert_eq!(lap.take(), Some(slot));
    }
    lap.restart();
    assert_eq!((lap.take(), lap.take()), (Some(0), None));
    lap.set_longest_run(8);
    assert_eq!(lap.renew(0), Renewal::SameLap);
    (1..8).for_each(|slot| assert_eq!(lap.take(), Some(slot)));
    assert_eq!((lap.take(), lap.taken()), (None, 21 + 1 + 7));
}

#[test]
#[should_panic(expected = "all windows of this CPU are in use")]
fn more_windows_than_slots_are_refused() {
    let lap = Lap::<3>::new();
    let mut open = 0;
    for _ in 0..4 {
        open |= 1 << take(&lap, open).0;
    }
}

/// Step that a broken kernel leaves out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mutant {
    None,
    /// The flush between two laps.
    NoFlush,
    /// Slots that were open over a flush are used again at once.
    NoHeldOver,
    /// The entry stays when the window closes.
    NoClear,
    /// The CPU reports a flush while a window is open.
    ForgetsWhileOpen,
    /// When the CPU flushes slot by slot, the held-over ones are left out.
    ForgetsNoHeld,
}

const SLOTS: usize = 3;
const FRAMES: u8 = 3;
const NONE: u8 = 0xff;

/// A CPU of the model: the real [`Lap`]'s numbers, its entries, its TLB's contents, and the open
/// windows.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Cpu {
    next: u64,
    limit: u64,
    fresh: u32,
    held: u64,
    entries: [u8; SLOTS],
    cached: [u8; SLOTS],
    open: Vec<u8>,
}

impl Cpu {
    fn new() -> Self {
        Self {
            next: 0,
            limit: 0,
            fresh: 1,
            held: 0,
            entries: [NONE; SLOTS],
            cached: [NONE; SLOTS],
            open: Vec::new(),
        }
    }
    fn lap(&self) -> Lap<SLOTS> {
        let lap = Lap::new();
        lap.next.store(self.next, Ordering::Relaxed);
        lap.limit.store(self.limit, Ordering::Relaxed);
        lap.fresh.store(self.fresh, Ordering::Relaxed);
        lap.held.store(self.held, Ordering::Relaxed);
        lap
    }
    fn keep(&mut self, lap: &Lap<SLOTS>) {
        self.next = lap.next.load(Ordering::Relaxed);
        self.limit = lap.limit.load(Ordering::Relaxed);
        self.fresh = lap.fresh.load(Ordering::Relaxed);
        self.held = lap.held.load(Ordering::Relaxed);
    }
    fn open_mask(&self) -> u64 {
        self.open.iter().fold(0, |mask, slot| mask | 1 << slot)
    }
    /// The kernel opens a window; returns the slot and its entry in the TLB.
    fn open(&mut self, frame: u8, mutant: Mutant) -> Result<(), &'static str> {
        let lap = self.lap();
        let slot = match lap.take() {
            Some(slot) => slot,
            None => {
                let open = if mutant == Mutant::NoHeldOver { 0 } else { self.open_mask() };
                if lap.renew(open) == Renewal::NewLap && mutant != Mutant::NoFlush {
                    self.cached = [NONE; SLOTS];
                }
                lap.take().unwrap()
            }
        };
        self.keep(&lap);
        if self.open.contains(&(slot as u8)) {
            return Err("a slot is used while its window is open");
        }
        self.entries[slot] = frame;
        self.open.push(slot as u8);
        // The kernel's own accesses use cached translations.
        if ![NONE, frame].contains(&self.cached[slot]) {
            return Err("a window shows another frame");
        }
        Ok(())
    }
    fn close(&mut self, mutant: Mutant) {
        if let Some(slot) = self.open.pop()
            && mutant != Mutant::NoClear
        {
            self.entries[usize::from(slot)] = NONE;
        }
    }
    /// The CPU flushes the slots that may be cached, one by one.
    fn forget_slots(&mut self, mutant: Mutant) {
        let lap = self.lap();
        let held = if mutant == Mutant::ForgetsNoHeld { self.held } else { 0 };
        let slots = lap.maybe_cached() & !held;
        for slot in (0..SLOTS).filter(|slot| slots >> slot & 1 != 0) {
            self.cached[slot] = NONE;
        }
        lap.forget();
        self.keep(&lap);
    }
    fn forget(&mut self, tell: fn(&Lap<SLOTS>)) {
        self.cached = [NONE; SLOTS];
        let lap = self.lap();
        tell(&lap);
        self.keep(&lap);
    }
    /// Whether the attacker can read this frame's bytes on this CPU beyond open windows.
    fn peek(&self, frame: u8) -> bool {
        self.cached.contains(&frame)
    }
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct World {
    cpus: [Cpu; 2],
}

impl World {
    /// The stated stale set under `lap`: frames whose window closed since the CPU's last flush. On
    /// a CPU with nothing to flush, only open windows can be read.
    fn check(&self) -> Result<(), &'static str> {
        for cpu in &self.cpus {
            let open: Vec<u8> = cpu.open.iter().map(|slot| cpu.entries[usize::from(*slot)]).collect();
            for frame in 0..FRAMES {
                if cpu.fresh != 0 && cpu.peek(frame) && !open.contains(&frame) {
                    return Err("a CPU that has forgotten everything shows a closed window");
                }
            }
            for slot in 0..SLOTS {
                let is_open = cpu.open.contains(&(slot as u8));
                if !is_open && cpu.entries[slot] != NONE {
                    return Err("a closed window is in the tables");
                }
            }
        }
        Ok(())
    }
    /// Every next state; `Err` names the broken rule.
    fn steps(&self, mutant: Mutant) -> Result<Vec<Self>, &'static str> {
        let mut next = Vec::new();
        for number in 0..2 {
            let cpu = &self.cpus[number];
            for frame in 0..FRAMES {
                let shows = |slot: &u8| cpu.entries[usize::from(*slot)] == frame;
                // Windows nest twice, never on the same frame.
                if cpu.open.len() < 2 && !cpu.open.iter().any(shows) {
                    let mut world = self.clone();
                    world.cpus[number].open(frame, mutant)?;
                    next.push(world);
                }
            }
            if !cpu.open.is_empty() {
                let mut world = self.clone();
                world.cpus[number].close(mutant);
                next.push(world);
            }
            if cpu.open.is_empty() || mutant == Mutant::ForgetsWhileOpen {
                for tell in [Lap::forget, Lap::restart] {
                    let mut world = self.clone();
                    world.cpus[number].forget(tell);
                    next.push(world);
                }
                let mut world = self.clone();
                world.cpus[number].forget_slots(mutant);
                next.push(world);
            }
            // The attacker makes the CPU cache any entry, as speculation may.
            for slot in 0..SLOTS {
                if cpu.entries[slot] != NONE && cpu.cached[slot] == NONE {
                    let mut world = self.clone();
                    world.cpus[number].cached[slot] = cpu.entries[slot];
                    next.push(world);
                }
            }
        }
        next.iter().try_for_each(Self::check)?;
        Ok(next)
    }
}

/// Explores every reachable state; returns their number, or the broken rule.
fn explore(mutant: Mutant) -> Result<usize, &'static str> {
    // The CPUs share nothing. So three steps of the second CPU show all that it adds.
    let first = World { cpus: [Cpu::new(), Cpu::new()] };
    let mut seen = BTreeSet::from([first.cpus[0].clone()]);
    let mut queue = VecDeque::from([first]);
    while let Some(world) = queue.pop_front() {
        for next in world.steps(mutant)? {
            let [one, two] = &next.cpus;
            let fresh = seen.insert(one.clone()) | seen.insert(two.clone());
            if fresh {
                queue.push_back(next);
            }
        }
    }
    Ok(seen.len())
}

#[test]
fn no_window_ever_shows_another_frame_and_what_was_forgotten_stays_so() {
    let states = explore(Mutant::None).unwrap();
    assert!(states > 1000, "{states} states");
}

#[test]
fn what_a_broken_kernel_leaves_out_is_found() {
    for mutant in [
        Mutant::NoFlush,
        Mutant::NoHeldOver,
        Mutant::NoClear,
        Mutant::ForgetsWhileOpen,
        Mutant::ForgetsNoHeld,
    ] {
        assert!(explore(mutant).is_err(), "{mutant:?}");
    }
}
