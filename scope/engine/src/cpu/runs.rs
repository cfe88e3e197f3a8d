//! How often each block ran: in the program's time, and in what is not that.
//!
//! A phase's runs are put where they belong when the CPU leaves it. Which phases are the program's
//! is known late: what runs after a phase named closing is not, unless another of that name begins
//! later.

use crate::watch::ProgramTime;

/// Whoever takes the steps of blocks, and so counts their runs beside the boards.
pub trait Counted: Send + Sync {
    /// Calls `add` with the number of a block, and the runs of that and those that follow it on
    /// this CPU since the last time. The CPU has begun to run; this is its thread, or none of its
    /// blocks runs.
    fn take(&self, cpu: usize, add: &mut dyn FnMut(usize, &[u64]));
}

/// One CPU's runs, by the number of the block.
#[derive(Default)]
pub(crate) struct CpuRuns {
    /// Of the phase that it is in.
    phase: Vec<u64>,
    program: Vec<u64>,
    /// Before the program.
    before: Vec<u64>,
    /// Since the last phase named closing, which is `closing`.
    after: Vec<u64>,
    closing: usize,
}

impl CpuRuns {
    /// A block ran.
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

    /// Somebody else has counted these runs of the blocks from number `first` on.
    pub fn add(&mut self, first: usize, runs: &[u64]) {
        let end = first + runs.len();
        self.phase.resize(end.max(self.phase.len()), 0);
        self.phase[first..end].iter_mut().zip(runs).for_each(|(sum, more)| *sum += more);
    }

    /// The CPU leaves the phase of this number.
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

    /// The runs of a block: in all, and in the program's time. The CPU has left all phases.
    pub fn of(&self, number: usize, time: ProgramTime) -> (u64, u64) {
        let get = |runs: &Vec<u64>| runs.get(number).copied().unwrap_or(0);
        let (before, program, after) = (get(&self.before), get(&self.program), get(&self.after));
        (before + program + after, if time.has_begun() { program } else { before + program })
    }

    /// All runs of all blocks.
    pub fn sum(&self) -> u64 {
        [&self.phase, &self.program, &self.before, &self.after].into_iter().flatten().sum()
    }
}

/// Add all of `from`, which is nothing then, to `to`.
fn put(from: &mut [u64], to: &mut Vec<u64>) {
    to.resize(from.len().max(to.len()), 0);
    to.iter_mut().zip(from).for_each(|(sum, more)| *sum += core::mem::take(more));
}
