//! Write-backs of a disk that are under way: a sync waits for those that other tasks began.
//!
//! A page counts as clean as soon as a writer has taken it, and the disk's answer is noted when
//! that write has ended. So a sync that finds no dirty page may have to wait for writes that the
//! flusher began a moment before (Linux: `filemap_fdatawait`).
//!
//! **Protocol.** Each write-back counts in the current of two rounds. A waiter makes the other
//! round the current one and waits until the round before is empty: so later write-backs do not
//! delay it, however many there are. One task waits at a time. The round that it makes current is
//! empty first, even if an earlier waiter was killed.

use crate::Result;
use crate::sync::{Mutex, SpinLock, WaitQueue};

/// The write-backs of one disk.
#[derive(Default)]
pub(super) struct WriteBacks {
    rounds: SpinLock<Rounds>,
    turn: Mutex<()>,
    ended: WaitQueue,
}

#[derive(Default)]
struct Rounds {
    current: usize,
    counts: [u32; 2],
}

impl WriteBacks {
    /// Counts the write-back `pass`, from before it takes a page until its errors are noted.
    pub(super) fn count(&self, pass: &mut dyn FnMut()) {
        let round = {
            let mut rounds = self.rounds.lock();
            let round = rounds.current;
            rounds.counts[round] += 1;
            round
        };
        pass();
        let left = {
            let mut rounds = self.rounds.lock();
            rounds.counts[round] -= 1;
            rounds.counts[round]
        };
        if left == 0 {
            self.ended.wake_all();
        }
    }

    /// Waits until all present write-backs have ended. The caller has none itself.
    ///
    /// # Errors
    /// `EINTR` if the task is to end.
    pub(super) fn wait(&self) -> Result<()> {
        if self.rounds.lock().counts == [0; 2] {
            return Ok(());
        }
        let _turn = self.turn.lock_killable()?;
        let begun = self.ended.wait_killable(|| {
            let mut rounds = self.rounds.lock();
            let before = rounds.current;
            (rounds.counts[1 - before] == 0).then(|| {
                rounds.current = 1 - before;
                before
            })
        })?;
        self.ended.wait_killable(|| (self.rounds.lock().counts[begun] == 0).then_some(()))
    }
}
