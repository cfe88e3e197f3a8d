//! Records which code of the kernel ran. Each block has a word, to which the code that QEMU makes
//! for it adds when it runs. If QEMU cannot add (version 3 of its interface removed that), a call
//! does. Only the doorbell's accesses are watched.
//!
//! Words are never freed. A block that is translated again, for other flags of the CPU or after
//! QEMU emptied its buffer, keeps its word.

use std::collections::HashMap;
use std::ffi::{c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use freehold_scope_engine::{Special, special};
use freehold_scope_record::{Executed, Ranges, VERSION};

use crate::Running;
use crate::qemu::TranslationBlock;

/// A block, and when it was translated.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct BlockSpan {
    start: u64,
    end: u64,
    /// Whether our kernel had not published itself yet.
    early: bool,
}

/// Runs of each block; only zero or not zero matters.
type RunsByBlock = HashMap<BlockSpan, &'static AtomicU64>;

static RUNS: Mutex<Option<RunsByBlock>> = Mutex::new(None);

fn runs() -> MutexGuard<'static, Option<RunsByBlock>> {
    RUNS.lock().unwrap_or_else(PoisonError::into_inner)
}

extern "C" fn on_run(_: c_uint, data: *mut c_void) {
    // SAFETY: `translate` registered a word that lives for ever.
    let runs = unsafe { &*data.cast::<AtomicU64>() };
    runs.store(1, Ordering::Relaxed);
}

/// Handles a block that is being translated.
pub fn translate(running: &Running, block: &TranslationBlock<'_>) {
    let early = running.watch.slide().is_none();
    let mut ends: Option<(u64, u64)> = None;
    // Only the doorbell is watched, until the kernel has published its address.
    let mut rings = false;
    for (index, instruction) in block.instructions().enumerate() {
        let pc = instruction.address();
        let bytes = instruction.bytes();
        let (start, _) = ends.unwrap_or((pc, pc));
        ends = Some((start, pc + bytes.len() as u64));
        if early {
            if rings || index == 0 && running.awaits(pc) {
                instruction.on_access(crate::on_ring, pc as *mut c_void);
            }
            rings = special(&bytes) == Some(Special::Marker);
        }
    }
    let Some((start, end)) = ends else { return };
    if rings {
        running.pending().insert(end);
    }
    if !early && start >> 63 == 0 {
        return;
    }
    let mut runs = runs();
    let place = BlockSpan { start, end, early };
    let word =
        *runs.get_or_insert_default().entry(place).or_insert_with(|| Box::leak(Box::new(AtomicU64::new(0))));
    if !block.count_runs(word) {
        block.on_run(on_run, core::ptr::from_ref(word).cast_mut().cast());
    }
}

/// Returns the code that ran.
pub fn executed(running: &Running) -> Executed {
    let runs = runs();
    let ran = |wanted: fn(&BlockSpan) -> bool| -> Ranges {
        let all =
            runs.iter().flatten().filter(|(place, runs)| wanted(place) && runs.load(Ordering::Relaxed) > 0);
        all.map(|(place, _)| (place.start, place.end)).collect()
    };
    Executed {
        version: VERSION,
        kernel: ran(|place| place.start >> 63 != 0),
        early: ran(|place| place.start >> 63 == 0 && place.early),
        slide: running.watch.slide(),
    }
}
