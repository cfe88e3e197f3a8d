//! Windows on memory of other programs.
//!
//! A closed window stays in its CPU's translation cache for a while (`freehold_xpfo::Policy`),
//! where it shows the bytes of a frame to speculation. Windows that a task opens on its own
//! program's memory, and on files that it reads, show that program nothing new. One that it opens
//! on another program's memory would: those are forgotten as they close, for as long as
//! [`ForeignWindows`] exist, so that none is cached when the task's own program runs again. A task
//! of the kernel needs none: what it opened is forgotten before a program gets the CPU
//! (`windows::take_back`).

use core::marker::PhantomData;

use freehold_machine::Cpus as _;
use freehold_xpfo::Closing;

use crate::hw::{Hardware, windows};
use crate::sched::thread;

/// While it exists the running task's windows are forgotten as they close, where the policy bounds
/// their time and the task runs a program.
#[must_use]
pub struct ForeignWindows {
    /// How they closed before, if that was changed.
    before: Option<Closing>,
    /// Of the thread that made it.
    _thread: PhantomData<*const ()>,
}

impl ForeignWindows {
    /// From now on.
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

/// Has the running task's windows close like this, on this CPU and on those that it comes to.
fn close_as(closing: Closing) {
    let _pinned = Hardware.pin();
    let _known = thread::with_current(|task| task.set_closing(closing));
    windows::close_as(closing);
}
