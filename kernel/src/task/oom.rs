//! Whom to kill when no memory is left.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_collections::Arc;

use super::process::{ExitStatus, Process};
use super::{Signal, above, current, registry};
use crate::fault_inject::FAULTS_IN_A_ROW;
use crate::mem::find_more;
use crate::mem::hotplug::GrowthOutcome;
use crate::sched::{self, thread};
use crate::sync::Mutex;

static KILLS: AtomicU64 = AtomicU64::new(0);

/// How many processes were killed for want of memory.
pub fn oom_kills() -> u64 {
    KILLS.load(Ordering::Relaxed)
}

/// What [`oom_kill`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OomKill {
    /// A process was killed.
    Killed,
    /// One that was killed before is still ending: its memory will do.
    Ending,
    /// There is nobody to kill.
    Nobody,
}

/// Preference of a process that must not be killed.
const NEVER: i32 = -1000;

/// How much would be won by killing `process`: its pages, in memory and swapped, and page tables,
/// moved by its preference, which counts in thousandths of all memory (as Linux' oom_badness).
pub fn badness(process: &Process, total_pages: u64) -> i64 {
    let adjustment = process.oom_score_adj.load(Ordering::Relaxed);
    if adjustment == NEVER {
        return i64::MIN;
    }
    // Whoever has it locked waits for a device at most: reclaim is never run, nor memory waited
    // for, with a space locked.
    let space = process.space();
    let areas = space.lock();
    let usage = areas.usage();
    let pages =
        usage.rss_anon + usage.rss_file + usage.rss_shmem + usage.swapped + usage.page_table_bytes / 4096;
    drop(areas);
    pages as i64 + i64::from(adjustment) * total_pages as i64 / 1000
}

/// One chooses at a time: whoever comes next finds the first one's victim dying, and kills nobody
/// else.
static TURN: Mutex<()> = Mutex::new(());

/// Kill the process whose death gives most memory back; says who and why in the log.
pub fn oom_kill(doing: &'static str) -> OomKill {
    let turn = TURN.lock();
    let total = crate::mem::frames().managed_frames();
    // There is no memory for a list: the walk needs none.
    let living = registry::processes().filter(|process| process.pid > 1 && process.exit_status().is_none());
    let mut worst: Option<(i64, Arc<Process>)> = None;
    for process in living {
        if process.signals.lock().exit == Some(ExitStatus::Signaled(Signal::KILL)) {
            // It gives its memory back as soon as it runs.
            return OomKill::Ending;
        }
        let score = badness(&process, total);
        if score != i64::MIN && worst.as_ref().is_none_or(|(most, _)| score > *most) {
            worst = Some((score, process));
        }
    }
    let Some((score, victim)) = worst else { return OomKill::Nobody };
    let name = victim.name();
    let name = core::str::from_utf8(&name).unwrap_or("?").trim_end_matches('\0');
    let asker = current();
    let (by, pid) = (asker.process().pid, victim.pid);
    let resident = score.max(0) * 4;
    let adjusted = victim.oom_score_adj.load(Ordering::Relaxed);
    let report = format_args!(
        "out of memory ({doing} by process {by}): killed process {pid} ({name}), {resident} KiB resident, oom_score_adj {adjusted}"
    );
    log::error!("{report}");
    victim.end(ExitStatus::Signaled(Signal::KILL));
    drop(turn);
    // Whoever watches from the host is told without asking for the log: this is why a program is
    // gone.
    above().notice(report);
    OomKill::Killed
}

/// There is no frame left for the current task, whatever it was `doing`: find some, else kill, then
/// let others run.
///
/// Returns to a caller that tries again. The victim may be the current task; it dies before it is
/// back in user mode. A task that is to end already finds nothing and kills none: its own end gives
/// memory back.
pub fn out_of_memory(doing: &'static str) {
    find_or_kill(doing, || above().close_unreachable());
}

/// As [`out_of_memory`], for a caller that may hold locks that sleep: a copy of the kernel's from
/// or to a program.
pub(super) fn out_of_memory_inside(doing: &'static str) {
    find_or_kill(doing, || false);
}

fn find_or_kill(doing: &'static str, close_unreachable: impl FnOnce() -> bool) {
    if thread::current_was_injected() {
        return try_injected_again(doing);
    }
    let is_short = find_more() == GrowthOutcome::None && !thread::is_current_dying();
    if is_short && !close_unreachable() && oom_kill(doing) == OomKill::Killed {
        KILLS.fetch_add(1, Ordering::Relaxed);
    }
    sched::yield_now();
}

/// The current task failed by injection where nobody can be told: it tries again, but not for ever.
#[cold]
fn try_injected_again(doing: &'static str) {
    let task = current();
    if task.injection.fault_failed() {
        let (pid, name) = (task.process().pid, task.name());
        let name = core::str::from_utf8(&name).unwrap_or("?").trim_end_matches('\0');
        let report = format_args!(
            "fault injection: killed process {pid} ({name}): {doing} failed {FAULTS_IN_A_ROW} times in a row"
        );
        log::error!("{report}");
        above().notice(report);
        task.process().end(ExitStatus::Signaled(Signal::KILL));
    }
    sched::yield_now();
}
