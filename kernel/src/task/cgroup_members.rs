//! The processes in a control group and below, and their CPU time.

use freehold_collections::Arc;

use super::{Process, registry};
use crate::cgroup::{CpuTime, Group, is_below};
use crate::sched;

/// Calls `f` for each process in `group` and below, ended ones included until they are waited for.
/// Other tasks may run in between. A process that is made or moved meanwhile may be left out: the
/// caller has made the change that such processes see for themselves.
pub fn for_each_member(group: &Group, mut f: impl FnMut(&Arc<Process>)) {
    if !group.may_have_members() {
        return;
    }
    for process in registry::processes() {
        if is_below(process.cgroup.number(), group) {
            f(&process);
        }
        sched::rest();
    }
}

/// Returns the CPU time of all processes that were ever in a group or below.
pub fn cpu_time(group: &Group) -> CpuTime {
    group.usage(|| {
        let mut sum = CpuTime::default();
        for_each_member(group, |process| {
            let came_with = process.cgroup.came_with();
            sum.add(process.cgroup_usage().since(came_with));
        });
        sum
    })
}
