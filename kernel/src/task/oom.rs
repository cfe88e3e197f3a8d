//! Choice of the process to kill when no memory is left.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_charge::{AccountEvent, AccountLimit};
use freehold_collections::Arc;
use freehold_frame::AccountId;
use freehold_vm::SpaceHandle as _;

use super::process::{ExitStatus, Process};
use super::{Signal, above, current, registry};
use crate::cgroup::memory::{accounts, tell_of};
use crate::fault_inject::FAULTS_IN_A_ROW;
use crate::mem::charge;
use crate::mem::find_more;
use crate::mem::hotplug::GrowthOutcome;
use crate::sched::{self, thread};
use crate::sync::Mutex;

static KILLS: AtomicU64 = AtomicU64::new(0);

/// Returns the number of processes that the OOM killer has killed.
pub fn oom_kills() -> u64 {
    KILLS.load(Ordering::Relaxed)
}

/// Result of [`oom_kill`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OomKill {
    /// A process was killed.
    Killed,
    /// A process that was killed before is still ending: its memory will suffice.
    Ending,
    /// There is no process to kill.
    Nobody,
}

/// The preference (oom_score_adj) of a process that must not be killed.
const NEVER: i32 = -1000;

/// Returns the gain of killing `process`: its pages, in memory and swapped, and page tables. The
/// preference of the process is added, in thousandths of all memory (as in Linux' oom_badness).
pub fn badness(process: &Process, total_pages: u64) -> i64 {
    let adjustment = process.oom_score_adj.load(Ordering::Relaxed);
    if adjustment == NEVER {
        return i64::MIN;
    }
    // The holder of this lock waits for a device at most. It neither runs reclaim nor waits for
    // memory.
    let space = process.space();
    let areas = space.lock();
    let usage = areas.usage();
    let pages =
        usage.rss_anon + usage.rss_file + usage.rss_shmem + usage.swapped + usage.page_table_bytes / 4096;
    drop(areas);
    pages as i64 + i64::from(adjustment) * total_pages as i64 / 1000
}

/// Held while a victim is chosen. The next task finds this victim dying, and kills no other
/// process.
static TURN: Mutex<()> = Mutex::new(());

/// The process to kill, and its badness.
struct Victim(i64, Arc<Process>);

/// Returns the living processes that may be killed and that are charged to `top` or an account
/// below.
fn living(top: AccountId) -> impl Iterator<Item = Arc<Process>> {
    let accounts = accounts();
    let alive = |process: &Arc<Process>| process.pid > 1 && process.exit_status().is_none();
    // The walk needs no memory for a list.
    registry::processes()
        .filter(move |process| alive(process) && accounts.is_below(process.space().account(), top))
}

/// Chooses a process that is charged to `top` or an account below: the one whose end frees most
/// memory. There are `total` pages.
///
/// # Errors
/// The reason why none was chosen: [`OomKill::Ending`], [`OomKill::Nobody`].
fn choose(top: AccountId, total: u64) -> Result<Victim, OomKill> {
    let mut worst: Option<Victim> = None;
    for process in living(top) {
        if process.signals.lock().exit == Some(ExitStatus::Signaled(Signal::KILL)) {
            // It frees its memory as soon as it runs.
            return Err(OomKill::Ending);
        }
        let score = badness(&process, total);
        if score != i64::MIN && worst.as_ref().is_none_or(|Victim(most, _)| score > *most) {
            worst = Some(Victim(score, process));
        }
    }
    worst.ok_or(OomKill::Nobody)
}

/// Kills the victim, and logs its name and the reason. Kprobes find it by Linux' name.
#[cold]
#[inline(never)]
fn oom_kill_process(Victim(score, victim): &Victim, why: core::fmt::Arguments<'_>) {
    let name = victim.name();
    let name = core::str::from_utf8(&name).unwrap_or("?").trim_end_matches('\0');
    let (by, pid) = (current().process().pid, victim.pid);
    let resident = score.max(&0) * 4;
    let adjusted = victim.oom_score_adj.load(Ordering::Relaxed);
    let report = format_args!(
        "out of memory ({why} by process {by}): killed process {pid} ({name}), {resident} KiB resident, oom_score_adj {adjusted}"
    );
    log::error!("{report}");
    victim.end(ExitStatus::Signaled(Signal::KILL));
    // The notice tells an observer on the host why a program ended, without the log.
    above().notice(report);
}

/// Kills the process whose end frees most memory, and logs its name and the reason.
pub fn oom_kill(doing: &'static str) -> OomKill {
    let _turn = TURN.lock();
    match choose(AccountId::ROOT, crate::mem::frames().managed_frames()) {
        Ok(victim) => {
            oom_kill_process(&victim, format_args!("{doing}"));
            OomKill::Killed
        }
        Err(why) => why,
    }
}

/// Kills a process of `top`, which has reached its limit, or of an account below: the one whose end
/// frees most memory. With it all processes end that must end together. Returns whether one ends.
pub fn kill_charged(top: AccountId) -> bool {
    let _turn = TURN.lock();
    let accounts = accounts();
    let victim = match choose(top, accounts.limit(top, AccountLimit::Max)) {
        Ok(victim) => victim,
        Err(why) => return why == OomKill::Ending,
    };
    let account = victim.1.space().account();
    oom_kill_process(&victim, format_args!("memory.max of its group"));
    accounts.note(account, AccountEvent::OomKill);
    tell_of(account);
    if let Some(together) = accounts.ends_together(account, top) {
        accounts.note(together, AccountEvent::OomGroupKill);
        let others =
            living(together).filter(|process| process.oom_score_adj.load(Ordering::Relaxed) != NEVER);
        for process in others.filter(|process| process.pid != victim.1.pid) {
            accounts.note(process.space().account(), AccountEvent::OomKill);
            process.end(ExitStatus::Signaled(Signal::KILL));
        }
    }
    true
}

/// Finds a frame for the current task, which ran out of memory while `doing` something. Otherwise
/// kills a process and lets others run.
///
/// The caller then tries again. The victim may be the current task, which then ends before it
/// returns to user mode. A task that is already ending finds no frame and kills no process: its own
/// end frees memory.
pub fn out_of_memory(doing: &'static str) {
    find_or_kill(doing, || above().close_unreachable());
}

/// As [`out_of_memory`], for a caller that may hold sleeping locks: the kernel copies from or to a
/// program.
pub(super) fn out_of_memory_inside(doing: &'static str) {
    find_or_kill(doing, || false);
}

fn find_or_kill(doing: &'static str, close_unreachable: impl FnOnce() -> bool) {
    if thread::current_was_injected() {
        return try_injected_again(doing);
    }
    // If its account has reached its limit, one of the account's processes was chosen already.
    let was_refused = charge::is_refused();
    let is_short = find_more() == GrowthOutcome::None && !thread::is_current_dying();
    if is_short && !was_refused && !close_unreachable() && oom_kill(doing) == OomKill::Killed {
        KILLS.fetch_add(1, Ordering::Relaxed);
    }
    sched::yield_now();
}

/// Repeats a step of the current task that failed by fault injection and cannot report the failure.
/// The number of repetitions is limited.
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
