//! cgroup.procs and cgroup.threads: members of a group, and moving processes.

use freehold_collections::{Arc, Box, reserve};

use super::dir::GroupDir;
use super::file::number;
use super::{NSDELEGATE, change};
use crate::cgroup::Group;
use crate::fs::generated::{More, PART, Parts, Text};
use crate::task::namespaces::CgroupNamespace;
use crate::task::pidns::PidView;
use crate::task::{self, Credentials, Pid, Process, registry};
use crate::{Errno, Result, sched};
use core::sync::atomic::Ordering;

/// The kind of a listing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Listing {
    Processes,
    Threads,
}

/// The listing of a group, a part at a time.
pub(super) struct ProcsParts {
    group: Arc<Group>,
    listing: Listing,
    view: PidView,
    next: Pid,
}

impl ProcsParts {
    /// Makes a listing from the beginning, with process numbers of the reader's namespace.
    pub fn boxed(group: &Arc<Group>, listing: Listing) -> Box<dyn Parts> {
        let view = task::current().process().pid_view();
        reserve::boxed(Self { group: group.clone(), listing, view, next: 1 })
    }

    fn show(&self, out: &mut Text, process: &Process, number: Pid) {
        if process.cgroup.has_ended() || process.cgroup.number() != self.group.number() {
            return;
        }
        match self.listing {
            Listing::Processes => writeln!(out, "{number}"),
            Listing::Threads => {
                for thread in process.threads() {
                    writeln!(out, "{}", thread.numbers().in_view(self.view));
                    sched::rest();
                }
            }
        }
    }
}

impl Parts for ProcsParts {
    fn next(&mut self, out: &mut Text) -> Result<More> {
        while out.length() < PART {
            if self.group.is_removed() {
                return Err(Errno::ENODEV);
            }
            if !self.group.may_have_processes() {
                return Ok(More::No);
            }
            let some = registry::pids_from(self.view, self.next);
            let Some(&(last, _)) = some.last() else { return Ok(More::No) };
            for (number, pid) in some {
                if let Some(process) = registry::find(pid) {
                    self.show(out, &process, number);
                }
            }
            self.next = last + 1;
            sched::checkpoint()?;
        }
        Ok(More::Yes)
    }
}

/// Returns the process for a number that a program wrote: 0 is the writer's own process, another
/// number that of a thread or process.
fn meant(text: &[u8]) -> Result<Arc<Process>> {
    match number(text)? {
        0 => Ok(task::current().process().clone()),
        number if number < 0 => Err(Errno::EINVAL),
        number => {
            let number = number.unsigned_abs();
            let thread = registry::find_task_by_number(number).map(|task| task.process().clone());
            thread.or_else(|| registry::find_by_number(number)).ok_or(Errno::ESRCH)
        }
    }
}

/// Checks that `opener` may move a process from a group to the group of `to` (Linux:
/// `cgroup_procs_write_permission`). The caller has checked that `opener` may write to cgroup.procs
/// of `to`.
///
/// # Errors
/// `EACCES` if `opener` may not write to cgroup.procs of the nearest common ancestor; `ENOENT` if a
/// group is outside the namespace and namespaces limit delegation.
pub(super) fn may_move(
    from: &Group,
    to: &GroupDir,
    opener: &Credentials,
    namespace: &CgroupNamespace,
) -> Result<()> {
    let mut common = to;
    while !from.is_in(common.group()) {
        common = common.above().ok_or(Errno::EACCES)?;
    }
    common.may_write_procs(opener)?;
    let root = namespace.root();
    if NSDELEGATE.load(Ordering::Relaxed) && !(from.is_in(root) && to.group().is_in(root)) {
        return Err(Errno::ENOENT);
    }
    Ok(())
}

/// Handles a write to cgroup.procs.
pub(super) fn move_process(
    to: &GroupDir,
    opener: &Credentials,
    namespace: &CgroupNamespace,
    text: &[u8],
) -> Result<()> {
    let process = meant(text)?;
    let _change = change()?;
    if to.group().is_removed() {
        return Err(Errno::ENODEV);
    }
    if process.is_kernel() {
        return Err(Errno::EINVAL);
    }
    let from = process.cgroup.group();
    may_move(&from, to, opener, namespace)?;
    process.cgroup.move_to(to.group(), process.cgroup_usage())?;
    process.look_at_freezer();
    process.look_at_payer();
    process.look_at_quota();
    from.cpu.wake();
    Ok(())
}

/// Handles a write to cgroup.threads. All threads of a process are in one group, so no thread can
/// be moved alone (Linux: there are no threaded groups).
pub(super) fn move_thread(to: &GroupDir, text: &[u8]) -> Result<()> {
    let process = meant(text)?;
    if process.cgroup.group().id() == to.group().id() { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
}
