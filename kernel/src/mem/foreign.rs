//! Windows on memory of other programs.
//!
//! A closed window stays in its CPU's translation cache for a while (`freehold_xpfo::Policy`),
//! where speculative execution can read the bytes of a frame through it. Windows that a task opens
//! on its own program's memory, and on files that it reads, show that program nothing new. A window
//! on another program's memory would. So these windows are flushed when they close, while a
//! [`ForeignWindows`] exists. Then none is cached when the task's own program runs again. A kernel
//! task does not need this: its windows are flushed before a program gets the CPU
//! (`windows::take_back`).

use core::marker::PhantomData;

use freehold_machine::Cpus as _;
use freehold_xpfo::Closing;

use crate::hw::{Hardware, windows};
use crate::sched::thread;

/// While this exists, the running task's windows are flushed when they close. It has an effect only
/// if the policy limits the lifetime of closed windows and the task runs a program.
#[must_use]
pub struct ForeignWindows {
    /// How windows closed before, if that was changed.
    before: Option<Closing>,
    /// Must be dropped by the thread that made it.
    _thread: PhantomData<*const ()>,
}

impl ForeignWindows {
    /// Starts the flushing.
    pub fn begin() -> Self {
        let closing = || {
            thread::with_current(|task| {
                let closing = task.closing();
                (!task.is_kernel() && closing == Closing::ByPolicy).then_some(closing)
            })
        };
        let before = if windows::policy().bounds_time() { closing().flatten() } else { None };
        if before.is_some() {
            close_as(Closing::Forgets);
        }
        Self { before, _thread: PhantomData }
    }
}

impl Drop for ForeignWindows {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            close_as(before);
        }
    }
}

/// Sets how the running task's windows close, on this CPU and on later ones.
fn close_as(closing: Closing) {
    let _pinned = Hardware.pin();
    let _known = thread::with_current(|task| task.set_closing(closing));
    windows::close_as(closing);
}
