//! Semaphore operations that are undone when a process ends (SEM_UNDO).
//!
//! A process has one list, which fork does not inherit; CLONE_SYSVSEM shares it. The adjustments
//! themselves are in the sets, under the number of the list, so that SETVAL can clear them. The
//! list records which sets have adjustments.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_collections::reserve::ArcMethods as _;
use freehold_collections::{Arc, Map, Weak, reserve};

use super::ids::Object as _;
use super::sem::Set;
use crate::sync::SpinLock;
use crate::task::Process;
use crate::{Result, sched};

static NEXT: AtomicU64 = AtomicU64::new(1);

/// Removed sets stay in a list until it has this many entries, or twice as many as after the last
/// clean-up.
const LEAST_CLEAN: usize = 64;

struct Sets {
    all: Map<i32, Weak<Set>>,
    clean_at: usize,
}

/// See the module.
struct UndoList {
    number: u64,
    sets: SpinLock<Sets>,
}

impl UndoList {
    /// Adds `set` to this list.
    fn enter(&self, set: &Arc<Set>) -> Result<()> {
        {
            let mut sets = self.sets.lock();
            if sets.all.len() >= sets.clean_at {
                sets.all.retain(|_, set| set.strong_count() > 0);
                sets.clean_at = (sets.all.len() * 2).max(LEAST_CLEAN);
            }
            sets.all.try_insert(set.head().id(), set.downgrade())?;
        }
        set.enter_undo(self.number)
    }
}

impl Drop for UndoList {
    fn drop(&mut self) {
        let sets = &mut self.sets.get_mut().all;
        while let Some((_, set)) = sets.pop_first() {
            if let Some(set) = set.upgrade() {
                set.undo(self.number);
            }
            sched::cond_resched();
        }
    }
}

/// Returns the number under which `set` keeps the adjustments of `process`. From now on `set` has
/// memory for them.
///
/// # Errors
/// `ENOMEM`, `EIDRM`.
pub fn enter(process: &Process, set: &Arc<Set>) -> Result<u64> {
    let slot = process.undo_slot();
    let list = {
        let mut list = slot.0.lock();
        let list = list.get_or_insert_with(|| {
            let sets = SpinLock::new(Sets { all: Map::new(), clean_at: LEAST_CLEAN });
            reserve::arc(UndoList { number: NEXT.fetch_add(1, Ordering::Relaxed), sets })
        });
        list.clone()
    };
    let list = list.downcast::<UndoList>().map_err(|_| crate::Errno::ENOMEM)?;
    list.enter(set)?;
    Ok(list.number)
}
