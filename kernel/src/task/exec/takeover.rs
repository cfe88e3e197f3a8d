//! Of a process' threads, only the one that executes a program remains. Afterwards it has the
//! process' ID (Linux: `de_thread`).
//!
//! **Protocol.** The thread marks itself as the one that stays, under the lock of `signals`, and
//! all others end. It sleeps until it is alone in the list of threads, and until the registry has
//! no thread with the process' ID. The first thread leaves the list before it releases that ID, and
//! wakes the sleeper afterwards. Then, in one step under the registry's lock, the remaining thread
//! gets the process' ID in the registry, in the list and for its tracer, and releases its own ID.
//! Code that finds a thread by its ID and then relies on the ID takes that lock and checks the ID
//! again: attaching (`Attachment::enter`) and releasing a tracee (`release`).
//!
//! The process itself does not change, nor its relations (parent, children, timers, descriptors of
//! the process).

use freehold_collections::Arc;

use crate::sched::{self, Sleep};
use crate::task::pidns::Numbers;
use crate::task::process::{ExitStatus, Group};
use crate::task::signal::Signal;
use crate::task::{Task, registry};
use crate::{Errno, Result};

impl Task {
    /// Ends all other threads of the caller's process, and waits for them. Afterwards the caller is
    /// the first thread of its process. Returns its previous numbers.
    ///
    /// # Errors
    /// `EAGAIN` if another thread does the same or the process ends; `EINTR` if the caller is to
    /// end; `ENOMEM`.
    pub(super) fn stay_alone(self: &Arc<Self>) -> Result<Numbers> {
        let (process, former) = (self.process(), self.numbers().clone());
        let leads = self.is_leader();
        if !leads {
            self.reserve_for_tracer()?;
        }
        {
            let mut group = process.signals.lock();
            if group.exit.is_some() || group.exec.is_some() {
                return Err(Errno::EAGAIN);
            }
            if leads && group.threads.len() == 1 {
                return Ok(former);
            }
            self.end_others(&mut group);
        }
        let is_alone =
            || process.thread_count() == 1 && (leads || registry::lock().is_without_task(process.pid));
        let outcome = process.thread_ended.wait_killable(|| is_alone().then_some(()));
        process.signals.lock().exec = None;
        outcome?;
        if !leads {
            self.take_over()?;
        }
        Ok(former)
    }

    /// Makes all other threads end.
    pub(in crate::task) fn end_others(&self, group: &mut Group) {
        group.exec = Some(self.tid());
        for thread in group.threads.iter().filter(|thread| !core::ptr::eq(&raw const ***thread, self)) {
            thread.interrupt();
            sched::wake(thread, &[Sleep::Stopped, Sleep::Traced, Sleep::Killable]);
        }
    }

    /// Makes this thread, the only one, the first thread.
    fn take_over(self: &Arc<Self>) -> Result<()> {
        let led = {
            let mut registry = registry::lock();
            let led = self.lead_for_tracer(&registry);
            if led.is_ok() {
                registry.take_over(self);
            }
            led
        };
        // The program cannot continue, because its other threads have ended.
        let led = led.inspect_err(|_| self.process().end(ExitStatus::Signaled(Signal::KILL)))?;
        led.tell();
        Ok(())
    }
}

#[cfg(test)]
#[path = "takeover_model.rs"]
mod model;
