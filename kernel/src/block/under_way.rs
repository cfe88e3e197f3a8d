//! Write-backs of a disk that are under way: who syncs waits for those that others began.
//!
//! A page counts as clean as soon as somebody has taken it to write it, and what the disk says of it is noted when that
//! write has ended. So a sync that finds nothing dirty has not seen the end of what the flusher took a moment before
//! (Linux: `filemap_fdatawait`).
//!
//! **Protocol.** Each write-back counts in the current of two rounds. Who waits begins the other round and waits until
//! the one before is empty: later write-backs do not hold it up, however many there are. One waits at a time; the round
//! that it begins is empty first, also where an earlier one was killed while it waited.

use crate::Result;
use crate::sync::{Mutex, SpinLock, WaitQueue};

/// The write-backs of one disk.
#[derive(Default)]
pub(super) struct UnderWay {
    rounds: SpinLock<Rounds>,
    turn: Mutex<()>,
    ended: WaitQueue,
}

#[derive(Default)]
struct Rounds {
    current: usize,
    counts: [u32; 2],
}

/// A write-back; it ends when this is dropped, after its errors were noted.
pub(super) struct WriteBack<'a> {
    all: &'a UnderWay,
    round: usize,
}

impl UnderWay {
    /// One begins, before it takes a page.
    pub(super) fn begin(&self) -> WriteBack<'_> {
        let mut rounds = self.rounds.lock();
        let round = rounds.current;
        rounds.counts[round] += 1;
        WriteBack { all: self, round }
    }

    /// Waits until all that have begun have ended. The caller has none under way itself.
    ///
    /// # Errors
    /// `EINTR` where the task is to end.
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

impl Drop for WriteBack<'_> {
    fn drop(&mut self) {
        self.all.rounds.lock().counts[self.round] -= 1;
        self.all.ended.wake_all();
    }
}
