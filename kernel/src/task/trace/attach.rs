//! Attaching and detaching of tracer and tracee.

use freehold_collections::{Arc, Receiver, Vec};

use super::{Attached, Options, Tracee, TracerPower};
use crate::sched::thread::SIGNAL;
use crate::sched::{self, Sleep};
use crate::task::process::{Collector, ExitStatus, Process, Zombie};
use crate::task::registry::{self, Registry};
use crate::task::signal::{SigInfo, Signal, code};
use crate::task::{Task, wait};
use crate::{Errno, Result};

/// A new tracee. Dropping it undoes the attachment, unless it was kept.
pub(in crate::task) struct Attachment {
    tracer: Arc<Process>,
    tracee: Arc<Tracee>,
    task: Arc<Task>,
    kept: bool,
}

impl Attachment {
    /// Makes `tracer` trace `task`.
    ///
    /// # Errors
    /// `EPERM` if the task has a tracer, `ESRCH` if the tracer has ended, `ENOMEM`.
    pub(in crate::task) fn new(
        tracer: &Arc<Process>,
        task: &Arc<Task>,
        (attached, power): (Attached, TracerPower),
        options: Options,
    ) -> Result<Self> {
        let (pid, by) = (task.process().pid, (tracer.pid, tracer.pid_view()));
        let numbers = task.numbers().clone();
        let tracee = Tracee::new(numbers, (pid, by), (attached, power), options, crate::hw::vector_bytes())?;
        let attachment = Self { tracer: tracer.clone(), tracee, task: task.clone(), kept: false };
        let registry = registry::lock();
        let entered = attachment.enter(&registry);
        drop(registry);
        entered.map(|()| attachment)
    }

    /// Enters the tracee at tracer and thread. Under the registry's lock no thread gets another ID.
    /// A thread that has ended and lost its ID to another thread gets no tracer.
    fn enter(&self, registry: &Registry) -> Result<()> {
        let (task, tracee) = (&self.task, &self.tracee);
        if registry.is_another(task) {
            return Err(Errno::ESRCH);
        }
        tracee.renumber(task.numbers());
        task.traced.set(tracee)?;
        if task.is_leader() {
            *task.process().leader_tracee.lock() = Some(tracee.clone());
        }
        self.tracer.tracees.lock().insert(tracee)
    }

    /// Keeps the attachment. The new thread, which can be found now and does not run yet, begins
    /// with a stop.
    pub(in crate::task) fn keep_from_start(self) {
        match self.tracee.attached {
            Attached::Seized => {
                self.task.traced.ask_for_trap();
                self.task.call_attention(SIGNAL);
            }
            Attached::Classic => {
                self.task.signal(SigInfo::user(Signal::STOP, code::USER, 0, 0));
            }
        }
        self.keep();
    }

    /// Returns the tracee.
    pub(super) fn tracee(&self) -> Arc<Tracee> {
        self.tracee.clone()
    }

    /// Keeps the attachment when this is dropped.
    pub(in crate::task) fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if !self.kept {
            drop(self.tracer.tracees.lock().take(&self.tracee));
            forget(&self.task, &self.tracee);
        }
    }
}

fn forget(task: &Task, tracee: &Tracee) {
    task.traced.clear(tracee);
    let mut first = task.process().leader_tracee.lock();
    let known = first.take_if(|first| core::ptr::eq(&raw const **first, tracee));
    drop(first);
    drop(known);
}

/// Releases a tracee that was removed from its tracer's lists: it continues, and events no longer
/// wait for its tracer.
pub(super) fn release(tracee: &Tracee) {
    let ended = {
        let mut state = tracee.state.lock();
        state.released = true;
        state.ended.take()
    };
    if let Some(task) = registry::lock().traced_task(tracee) {
        forget(&task, tracee);
        sched::wake(&task, &[Sleep::Traced]);
    }
    if ended.is_some()
        && let Some(process) = registry::find(tracee.pid)
    {
        process.tell_held_end(tracee);
    }
}

/// Records for the tracer how the tracee ended. Returns false if there is no tracer any more.
fn note_end(tracee: &Tracee, status: ExitStatus) -> bool {
    let mut state = tracee.state.lock();
    if !state.released {
        state.stop = None;
        // The tracer of an ended tracee cannot request its vector state.
        state.vectors = Vec::new();
        state.ended = Some(status.wait_status());
    }
    !state.released
}

impl Task {
    /// Attaches the tracer of the current thread, `self`, to its child `task`, if there is a
    /// tracer. [`Task::follows`] says whether the tracer requested that.
    ///
    /// # Errors
    /// As [`Attachment::new`]. If the tracer has ended meanwhile, the result is `None`.
    pub(in crate::task) fn followed_by(&self, task: &Arc<Task>) -> Result<Option<Attachment>> {
        let Some(tracee) = self.traced.tracee() else { return Ok(None) };
        let Some(tracer) = registry::find(tracee.tracer) else { return Ok(None) };
        let options = tracee.state.lock().options;
        match Attachment::new(&tracer, task, (tracee.attached, tracee.power.clone()), options) {
            Err(Errno::ESRCH) => Ok(None),
            made => made.map(Some),
        }
    }

    /// Handles the end of the thread. If it is not its process' first thread, its tracer is
    /// notified. The first thread's end counts as that of the process.
    pub(in crate::task) fn ended_for_tracer(&self) {
        let Some(tracee) = self.traced.tracee() else { return };
        self.traced.clear(&tracee);
        if self.is_leader() {
            return;
        }
        let status = self.process().signals.lock().exit.unwrap_or(ExitStatus::Exited(self.exit_code()));
        if note_end(&tracee, status)
            && let Some(tracer) = registry::find(tracee.tracer)
        {
            tracer.child_changed.wake_all();
        }
    }
}

/// A tracee that lost its ID to another thread of its process. The caller drops it without a lock.
pub(in crate::task) struct Displaced(Option<Arc<Tracee>>);

impl Displaced {
    /// Ends the wait of its tracer for it.
    pub(in crate::task) fn tell(self) {
        if let Some(tracer) = self.0.as_ref().and_then(|tracee| registry::find(tracee.tracer)) {
            tracer.child_changed.wake_all();
        }
    }
}

impl Task {
    /// Reserves memory for [`lead_for_tracer`](Self::lead_for_tracer).
    ///
    /// # Errors
    /// `ENOMEM`.
    pub(in crate::task) fn reserve_for_tracer(&self) -> Result<()> {
        let tracer = self.traced.tracee().and_then(|tracee| registry::find(tracee.tracer));
        tracer.map_or(Ok(()), |tracer| tracer.tracees.lock().reserve())
    }

    /// Makes the thread its process' first one for its tracer, too. The tracer of the former first
    /// thread is not notified of an end (Linux: `de_thread`). Under the registry's lock.
    ///
    /// # Errors
    /// `ENOMEM`; nothing has changed.
    pub(in crate::task) fn lead_for_tracer(&self, registry: &Registry) -> Result<Displaced> {
        let (process, own) = (self.process(), self.traced.tracee());
        if let Some(tracee) = &own {
            match registry.process(tracee.tracer) {
                // The displaced tracee is that of the first thread, which is found below.
                Some(tracer) => drop(tracer.tracees.lock().renumber(tracee, process.numbers())?),
                None => tracee.renumber(process.numbers()),
            }
        }
        let first = core::mem::replace(&mut *process.leader_tracee.lock(), own);
        if let Some(first) = &first
            && let Some(tracer) = registry.process(first.tracer)
        {
            drop(tracer.tracees.lock().take(first));
        }
        Ok(Displaced(first))
    }
}

impl Process {
    /// Handles the end of a tracer: its tracees continue, or are killed if the tracer requested
    /// that.
    pub(in crate::task) fn release_tracees(&self) {
        self.tracees.lock().close();
        loop {
            let next = self.tracees.lock().pop();
            let Some(tracee) = next else { return };
            if tracee.wants(Options::EXITKILL)
                && let Some(process) = registry::find(tracee.pid)
            {
                process.end(ExitStatus::Signaled(Signal::KILL));
            }
            release(&tracee);
        }
    }

    /// Handles the end of the process if another process than its parent traces it. That tracer
    /// must be notified first, by [`tell_of_end`](Self::tell_of_end): it is returned, and the
    /// parent waits.
    pub(in crate::task) fn hold_end(&self, status: ExitStatus) -> Option<Arc<Self>> {
        let tracee = self.leader_tracee.lock().take()?;
        let tracer = registry::find(tracee.tracer)?;
        if tracee.tracer == self.parent_pid() {
            drop(tracer.tracees.lock().remove(tracee.tid()));
            return None;
        }
        // One step, since the tracer may collect the tracee as soon as the end is noted.
        let mut zombie = self.zombie.lock();
        if !note_end(&tracee, status) {
            return None;
        }
        *zombie = Some(Zombie { status, awaits: Collector::Tracer });
        Some(tracer)
    }

    /// Notifies this tracer of the end of `process`; see [`hold_end`](Self::hold_end).
    pub(in crate::task) fn tell_of_end(self: &Receiver<Self>, process: &Self, status: ExitStatus) {
        process.ended.wake_all();
        let (code, value) = wait::code_of(status);
        self.signal(wait::child_info(process, self, (code, value), &process.usage()));
        self.child_changed.wake_all();
    }

    /// Called when the tracer has been notified of the end of this process, by its first thread's
    /// `tracee`. Then the parent is notified.
    pub(in crate::task) fn tell_held_end(self: &Arc<Self>, tracee: &Tracee) {
        if tracee.tid() == self.pid
            && let Some(Zombie { status, awaits: Collector::Tracer }) = self.zombie()
        {
            wait::tell_parent_of_end(self, status);
        }
    }

    /// Whether one of its threads has a tracer without [power](TracerPower::covers) over the user
    /// namespace. Then execve gives no other IDs.
    pub(in crate::task) fn is_watched(&self) -> bool {
        let own = self.credentials();
        self.threads()
            .filter_map(|thread| thread.traced.tracee())
            .any(|tracee| !tracee.power.covers(&own.user_ns))
    }
}
