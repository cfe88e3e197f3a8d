//! The two ways to count blocks: by a call for each, or by steps that QEMU puts into the code of a
//! block.

use core::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use freehold_scope_engine::{self as engine, Board, Counted, Due, Step, Watch, board_words};
use freehold_scope_record::Counting;

use crate::later::Scoreboard;
use crate::qemu::{ExecCallback, TranslationBlock};

/// Blocks whose runs one scoreboard counts.
const RUNS: usize = 4096;

/// The calls that are made for blocks.
#[derive(Clone, Copy)]
pub struct Calls {
    /// With the block: it runs.
    pub block: ExecCallback,
    /// With the block: [`Due::Page`].
    pub page: ExecCallback,
    /// [`Due::Look`].
    pub look: ExecCallback,
    /// With [`pack`]ed data: [`Due::Line`].
    pub line: ExecCallback,
    /// With the block: [`Due::Smap`].
    pub smap: ExecCallback,
}

/// The way in which blocks are counted.
pub enum Counter {
    /// By calls.
    Calls,
    /// By steps in their code.
    Inline(Arc<Boards>),
}

/// The boards that the steps change.
pub struct Boards {
    cpus: usize,
    /// Each CPU's board.
    own: Scoreboard,
    /// Runs of each block by its number; the list grows with the number of blocks.
    runs: Mutex<Vec<Scoreboard>>,
}

impl Counter {
    /// Chooses the better way that this QEMU offers.
    pub fn choose(watch: &Watch) -> Self {
        let settings = watch.settings();
        let cpus = settings.cpus.len();
        match Scoreboard::new(board_words(settings), cpus) {
            Some(own) => {
                let boards = Arc::new(Boards { cpus, own, runs: Mutex::default() });
                watch.set_counted(Arc::<Boards>::clone(&boards));
                Self::Inline(boards)
            }
            None => Self::Calls,
        }
    }

    /// Returns the name of the way.
    pub const fn name(&self) -> Counting {
        match self {
            Self::Calls => Counting::Calls,
            Self::Inline(_) => Counting::Inline,
        }
    }

    /// Returns the board of a CPU.
    ///
    /// # Safety
    /// The CPU has begun to run.
    pub unsafe fn board(&self, watch: &Watch, cpu: usize) -> Board {
        match self {
            Self::Calls => {
                let words = (0..board_words(watch.settings())).map(|_| AtomicU64::new(0));
                Box::leak(words.collect())
            }
            // SAFETY: the caller's promise.
            Self::Inline(boards) => unsafe { boards.own.of(cpu) },
        }
    }

    /// Counts the runs of a block that is being translated.
    pub fn count(
        &self,
        watch: &Watch,
        calls: Calls,
        block: &TranslationBlock<'_>,
        known: &'static engine::WatchedBlock,
    ) {
        let data = core::ptr::from_ref(known).cast_mut().cast();
        let Self::Inline(boards) = self else { return block.on_run(calls.block, data) };
        let call = |due| match due {
            Due::Page => (calls.page, data),
            Due::Look => (calls.look, core::ptr::null_mut()),
            Due::Line { line, mode } => (calls.line, pack(line, mode)),
            Due::Smap => (calls.smap, data),
        };
        for step in watch.steps(known) {
            match step {
                Step::Add { word, amount } => boards.own.add(block, word, amount),
                Step::Unless { word, equals, due } => {
                    boards.own.call_unless(block, (word, equals), call(due))
                }
                Step::From { word, least, due } => boards.own.call_from(block, (word, least), call(due)),
            }
        }
        // After the call in which a phase may begin: the run then counts in the new phase.
        if let Some(runs) = boards.runs_of(known.number()) {
            runs.add(block, known.number() % RUNS, 1);
        }
    }
}

impl Counted for Boards {
    fn take(&self, cpu: usize, add: &mut dyn FnMut(usize, &[u64])) {
        for (index, runs) in self.all_runs().iter().enumerate() {
            // SAFETY: the trait's callers promise that the CPU has begun to run.
            let words = unsafe { runs.of(cpu) };
            let take = |word: &AtomicU64| {
                let runs = word.load(Ordering::Relaxed);
                word.store(0, Ordering::Relaxed);
                runs
            };
            let words: Vec<u64> = words.iter().map(take).collect();
            add(index * RUNS, &words);
        }
    }
}

impl Boards {
    fn all_runs(&self) -> MutexGuard<'_, Vec<Scoreboard>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Returns the scoreboard that counts the runs of the block of this number.
    fn runs_of(&self, number: usize) -> Option<Scoreboard> {
        let mut runs = self.all_runs();
        while runs.len() <= number / RUNS {
            runs.push(Scoreboard::new(RUNS, self.cpus)?);
        }
        runs.get(number / RUNS).copied()
    }
}

/// Packs a line and a mode into the data that QEMU passes to the callback.
fn pack(line: u64, mode: usize) -> *mut c_void {
    (line << 1 | mode as u64 & 1) as *mut c_void
}

/// Returns the values that [`pack`] packed.
pub fn unpack(data: *mut c_void) -> (u64, usize) {
    (data as u64 >> 1, data as usize & 1)
}
