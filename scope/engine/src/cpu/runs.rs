//! Runs of each block: in the program's time, and in other time.
//!
//! A phase's runs are settled when the CPU leaves it. The program's phases are known late: phases
//! after a phase named closing are not the program's, unless another phase of that name begins
//! later.

use crate::watch::ProgramTime;

/// A caller that takes the steps of blocks, and so counts their runs beside the boards.
pub trait Counted: Send + Sync {
    /// Calls `add` with the number of a block, and the runs of this block and of those after it, on
    /// this CPU since the last call. The CPU has begun to run. The caller is this CPU's thread, or
    /// none of the CPU's blocks runs.
    fn take(&self, cpu: usize, add: &mut dyn FnMut(usize, &[u64]));
}

/// One CPU's runs, by the number of the block.
#[derive(Default)]
pub(crate) struct CpuRuns {
    /// Runs in the present phase.
    phase: Vec<u64>,
    program: Vec<u64>,
    /// Runs before the program.
    before: Vec<u64>,
    /// Runs since the start of the last closing phase.
    after: Vec<u64>,
    /// The number of that phase.
    closing: usize,
}

impl CpuRuns {
    /// Counts a run of a block.
    #[inline]
    pub fn count(&mut self, number: usize) {
        match self.phase.get_mut(number) {
            Some(runs) => *runs += 1,
            None => self.count_first(number),
        }
    }

    #[cold]
    fn count_first(&mut self, number: usize) {
        self.phase.resize((number + 1).next_power_of_two().max(1 << 14), 0);
        self.phase[number] += 1;
    }

    /// Adds runs that were counted elsewhere, of the blocks from number `first` on.
    pub fn add(&mut self, first: usize, runs: &[u64]) {
        let end = first + runs.len();
        self.phase.resize(end.max(self.phase.len()), 0);
        self.phase[first..end].iter_mut().zip(runs).for_each(|(sum, more)| *sum += more);
    }

    /// Leaves the phase of this number.
    pub fn leave(&mut self, phase: usize, time: ProgramTime) {
        if self.closing != time.closing {
            put(&mut self.after, &mut self.program);
            self.closing = time.closing;
        }
        let part = match phase {
            phase if phase < time.program => &mut self.before,
            phase if phase >= time.closing => &mut self.after,
            _ => &mut self.program,
        };
        put(&mut self.phase, part);
    }

    /// Returns the runs of a block: in all, and in the program's time. The CPU has left all phases.
    pub fn of(&self, number: usize, time: ProgramTime) -> (u64, u64) {
        let get = |runs: &Vec<u64>| runs.get(number).copied().unwrap_or(0);
        let (before, program, after) = (get(&self.before), get(&self.program), get(&self.after));
        (before + program + after, if time.has_begun() { program } else { before + program })
    }

    /// Returns the number of all runs of all blocks.
    pub fn sum(&self) -> u64 {
        [&self.phase, &self.program, &self.before, &self.after].into_iter().flatten().sum()
    }
}

/// Adds all of `from` to `to`, and zeroes `from`.
fn put(from: &mut [u64], to: &mut Vec<u64>) {
    to.resize(from.len().max(to.len()), 0);
    to.iter_mut().zip(from).for_each(|(sum, more)| *sum += core::mem::take(more));
}
