//! Counts which CPUs store to which lines of the kernel, and how often they come to them: see
//! [`Sharing`].
//!
//! Each CPU counts its own visits, by phase, line and instruction. They are joined at the end, when
//! the lines with several CPUs are known.

use std::collections::HashMap;

use freehold_scope_record::{PhaseSharing, SharedStore, Sharing};

use crate::watch::ProgramTime;

/// log2 of the bytes of a line.
const LINE_SHIFT: u32 = 6;

/// Stores of one CPU to one line.
struct AtLine {
    /// Time of its last store there, in its own instructions.
    last: u64,
    /// The instructions that began visits: address, visits, an address that was stored to.
    by: Vec<(u64, u64, u64)>,
}

/// The visits of one CPU, by phase and line.
#[derive(Default)]
pub(crate) struct Visits(HashMap<(usize, u64), AtLine>);

impl Visits {
    /// Notes that the instruction at `pc` has stored at `address`, which is at `physical`; `now` is
    /// the CPU's own clock.
    pub fn stored(&mut self, phase: usize, (pc, address): (u64, u64), physical: u64, now: u64) {
        let away = || AtLine { last: now.wrapping_sub(Sharing::AWAY), by: Vec::new() };
        let line = self.0.entry((phase, physical >> LINE_SHIFT)).or_insert_with(away);
        let since = now.wrapping_sub(line.last);
        line.last = now;
        if since < Sharing::AWAY {
            return;
        }
        match line.by.iter_mut().find(|known| known.0 == pc) {
            Some(known) => known.1 += 1,
            None => line.by.push((pc, 1, address)),
        }
    }
}

/// One CPU's visits in a part of the run: numbers of lines, in any order and each of any number of
/// times.
type Visited<'a> = Vec<(u64, &'a AtLine)>;

impl Visits {
    /// Returns the visits of each phase.
    fn by_phase(&self, phases: usize) -> Vec<Visited<'_>> {
        let mut by_phase = vec![Visited::new(); phases];
        for (&(phase, line), at) in &self.0 {
            by_phase[phase].push((line, at));
        }
        by_phase
    }
}

impl AtLine {
    fn visits(&self) -> u64 {
        self.by.iter().map(|&(_, visits, _)| visits).sum()
    }
}

/// Joins the counts of all CPUs, of lines that several of them stored to: in the program's time,
/// and in each of `phases` phases.
pub(crate) fn join(cpus: &[&Visits], time: ProgramTime, phases: usize) -> Sharing {
    let cpus: Vec<Vec<Visited<'_>>> = cpus.iter().map(|cpu| cpu.by_phase(phases)).collect();
    let is_programs = |phase: &usize| match time.has_begun() {
        true => (time.program..time.closing).contains(phase),
        false => *phase < time.closing,
    };
    // The visits of each CPU in these phases.
    let within = |phases: &[usize]| {
        let mut all = Vec::new();
        for cpu in &cpus {
            let some = phases.iter().flat_map(|&phase| cpu[phase].iter().copied());
            all.push(some.collect::<Visited<'_>>());
        }
        all
    };
    let of_phase = |phase: usize| {
        let (_, moves, stores) = moves(&within(&[phase]), PhaseSharing::STORES);
        PhaseSharing { moves, stores }
    };
    let programs: Vec<usize> = (0..phases).filter(is_programs).collect();
    let (lines, moves, stores) = moves(&within(&programs), Sharing::STORES);
    Sharing { lines, moves, stores, phases: (0..phases).map(of_phase).collect() }
}

/// Returns the number of lines that several CPUs stored to, how often they can move, and the `most`
/// instructions with most moves.
fn moves(cpus: &[Visited<'_>], most: usize) -> (u64, u64, Vec<SharedStore>) {
    // By line: visits of all CPUs, and of the CPU with most visits.
    let mut lines: HashMap<u64, (u64, u64)> = HashMap::new();
    for cpu in cpus {
        let mut own: HashMap<u64, u64> = HashMap::new();
        for (line, at) in cpu {
            *own.entry(*line).or_default() += at.visits();
        }
        for (line, visits) in own {
            let (all, most) = lines.entry(line).or_default();
            *all += visits;
            *most = visits.max(*most);
        }
    }
    let moves_of = |(all, most): (u64, u64)| all.min(2 * (all - most));
    let mut stores: HashMap<u64, (f64, u64)> = HashMap::new();
    for (line, at) in cpus.iter().flatten() {
        let visits = lines[line];
        let part = moves_of(visits) as f64 / visits.0.max(1) as f64;
        for &(by, visits, address) in at.by.iter().filter(|_| part > 0.0) {
            let (moves, at) = stores.entry(by).or_default();
            *moves += visits as f64 * part;
            *at = address;
        }
    }
    let row =
        |(by, (moves, address)): (u64, (f64, u64))| SharedStore { by, address, moves: moves.round() as u64 };
    let mut stores: Vec<SharedStore> = stores.into_iter().map(row).collect();
    stores.sort_by_key(|store| (u64::MAX - store.moves, store.by));
    stores.truncate(most);
    let moves = lines.values().map(|&visits| moves_of(visits));
    (moves.clone().filter(|&moves| moves > 0).count() as u64, moves.sum(), stores)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: u64 = 0xffff_ffff_8000_0010;
    const SECOND: u64 = 0xffff_ffff_8000_0020;
    const NO_PROGRAM: ProgramTime = ProgramTime { program: usize::MAX, closing: usize::MAX };

    fn stores(seen: &Sharing) -> Vec<(u64, u64)> {
        seen.stores.iter().map(|store| (store.by, store.moves)).collect()
    }

    #[test]
    fn visits_to_lines_of_several_cpus_are_counted_by_who_began_them() {
        let (mut one, mut other) = (Visits::default(), Visits::default());
        for now in [0, 199, 398, 598, 1000] {
            one.stored(2, (FIRST, 0x1000), 0x1000, now);
            one.stored(2, (SECOND, 0x1008), 0x1008, now);
            one.stored(2, (FIRST, 0x1040), 0x1040, now);
        }
        other.stored(2, (SECOND, 0x1038), 0x1038, 5);
        let seen = join(&[&one, &other], NO_PROGRAM, 6);
        // Visits at 0, 598 and 1000, and one on the other CPU, which can move the line there and
        // back.
        assert_eq!((seen.lines, seen.moves), (1, 2));
        assert_eq!(stores(&seen), [(FIRST, 2), (SECOND, 1)], "three quarters and one, rounded");
        other.stored(2, (SECOND, 0x1038), 0x1038, 500);
        other.stored(2, (SECOND, 0x1038), 0x1038, 900);
        let seen = join(&[&one, &other], NO_PROGRAM, 6);
        assert_eq!((seen.moves, stores(&seen)), (6, vec![(FIRST, 3), (SECOND, 3)]), "no more than visits");
    }

    #[test]
    fn only_the_programs_time_counts() {
        let (mut one, mut other) = (Visits::default(), Visits::default());
        for phase in 0..6 {
            one.stored(phase, (FIRST, 0x1000), 0x1000, 0);
            one.stored(phase, (FIRST, 0x2000), 0x2000, 0);
        }
        other.stored(4, (SECOND, 0x1000), 0x1000, 0);
        other.stored(5, (SECOND, 0x2000), 0x2000, 0);
        let seen = join(&[&one, &other], ProgramTime { program: 2, closing: 5 }, 6);
        assert_eq!((seen.lines, seen.moves), (1, 2));
        let of_phases: Vec<u64> = seen.phases.iter().map(|phase| phase.moves).collect();
        assert_eq!(of_phases, [0, 0, 0, 0, 2, 2]);
        let by: Vec<_> = seen.phases[4].stores.iter().map(|store| (store.by, store.moves)).collect();
        assert_eq!(by, [(FIRST, 1), (SECOND, 1)]);
        assert_eq!(join(&[&one, &other], NO_PROGRAM, 6).moves, 4);
    }
}
