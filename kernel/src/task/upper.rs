//! Services that a task uses from the layers above it.

use core::fmt;

use freehold_collections::Arc;

use super::{Pid, Session, Task};
use crate::Result;
use crate::cgroup::Group;
use crate::fs::{FileTable, OpenFile};
use crate::hw::user::UserContext;

/// Services of the layers above a task. A task uses them once in its life, or where it is slow
/// anyway.
pub trait Above: Sync {
    /// Runs the task's program from `context` until the thread ends: its system calls, faults and
    /// signals.
    fn run_program(&self, task: &Arc<Task>, context: &mut UserContext);
    /// Cancels the operations that a process has under way in rings and contexts: it ends, or
    /// becomes another program.
    fn cancel_operations(&self, process: Pid);
    /// Closes all files of a table that no process uses any more.
    fn close_files(&self, files: &FileTable);
    /// Closes files that no process can reach any more, if there are any. The caller holds no lock.
    fn close_unreachable(&self) -> bool;
    /// Takes the terminal from a session whose leader ends.
    fn leave_terminal(&self, session: &Arc<Session>);
    /// Returns the control group behind an open directory, where the caller may make a child.
    ///
    /// # Errors
    /// `EBADF` for another file, `EACCES`, `ENODEV`, `ENOENT`.
    fn cgroup_for_child(&self, directory: &OpenFile) -> Result<Arc<Group>>;
    /// Tells the user of the machine why a program is gone.
    fn notice(&self, text: fmt::Arguments<'_>);
}

static ABOVE: spin::Once<&'static dyn Above> = spin::Once::new();

/// Sets what tasks ask; once at boot, before the first task.
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
