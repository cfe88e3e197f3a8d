//! Services that a task uses from the layers above.

use core::fmt;

use freehold_collections::Arc;

use super::process::Process;
use super::{Pid, Session, Task};
use crate::Result;
use crate::cgroup::Group;
use crate::fs::{FileTable, OpenFile};
use crate::hw::user::UserContext;

/// Services of the layers above a task. A task uses them once in its life, or in slow operations.
pub trait Above: Sync {
    /// Runs the task's program from `context` until the thread ends. This includes its system
    /// calls, faults and signals.
    fn run_program(&self, task: &Arc<Task>, context: &mut UserContext);
    /// The process ends, and still has its memory and files. Called by its last thread.
    fn process_ends(&self, process: &Process);
    /// Cancels the operations that a process has under way in rings and contexts, because it ends
    /// or executes another program.
    fn cancel_operations(&self, process: Pid);
    /// Closes all files of a table that no process uses any more.
    fn close_files(&self, files: &FileTable);
    /// Closes files that no process can access any more, if there are any. The caller holds no
    /// lock.
    fn close_unreachable(&self) -> bool;
    /// Removes the terminal from a session whose leader ends.
    fn leave_terminal(&self, session: &Arc<Session>);
    /// Returns the control group of an open directory, in which the caller may create a child.
    ///
    /// # Errors
    /// `EBADF` for another file, `EACCES`, `ENODEV`, `ENOENT`.
    fn cgroup_for_child(&self, directory: &OpenFile) -> Result<Arc<Group>>;
    /// Tells the machine's user why a program has ended.
    fn notice(&self, text: fmt::Arguments<'_>);
}

static ABOVE: spin::Once<&'static dyn Above> = spin::Once::new();

/// Sets the services of the layers above; once at boot, before the first task.
pub fn set_above(above: &'static dyn Above) {
    ABOVE.call_once(|| above);
}

/// Returns the services that [`set_above`] registered.
///
/// # Panics
/// Before that.
pub(super) fn above() -> &'static dyn Above {
    *ABOVE.get().expect("the layers above are known before the first task")
}
