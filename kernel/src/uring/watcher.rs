//! The task that attends to a process' requests which wait for files and clocks.
//!
//! A process has one watcher, however many rings and contexts it uses. Its task exists while
//! requests wait, and for [`LINGER`] after that.
//!
//! Each request has a slot. A wake-up of a queue of its file, or the end of its time, puts the slot
//! on the ready list, in any context and at most once. The task takes slots off the list and looks
//! at their requests alone, so an event costs the same however many requests wait.
//!
//! The task acts on behalf of the process ([`Task::stand_in`]; Linux' workers are threads of that
//! process). This matters because a socket reports the sender to the receiver, and a terminal
//! checks which process reads. A process cancels all its requests before it ends or executes
//! another program, and its watcher goes with them. So no request runs with the rights of a program
//! that did not make it.
//!
//! **Locks.** `slots` (sleeping) > `ready` (interrupt-safe). Nothing is allocated under `ready`:
//! claiming a slot reserves room for it in the list.

use core::sync::atomic::{AtomicUsize, Ordering};

use freehold_collections::{Arc, Map, Receiver, Vec, Weak, reserve};

use crate::sync::{IrqSpinLock, Mutex, ReadyList, WaitQueue};
use crate::task::{self, Helper, HelperKind, Pid, Task};
use crate::{Result, sched, time};

/// Nanoseconds that the task waits for another request after the last: starting a task for each
/// would cost more than most requests.
const LINGER: u64 = 100_000_000;

/// All watchers, by process.
static WATCHERS: Mutex<Map<Pid, Arc<RequestWatcher>>> = Mutex::new(Map::new());

/// A request that a watcher attends to.
pub(super) trait Attend: Send + Sync {
    /// Looks whether the request can end, and ends it. Called by the watcher's task, which acts as
    /// `stand_in` where it touches the request's file.
    fn attend(self: Receiver<Self>, stand_in: &Arc<Task>);
}

/// See the module.
pub(super) struct RequestWatcher {
    stand_in: Arc<Task>,
    slots: Mutex<RequestSlots>,
    ready: IrqSpinLock<ReadyList>,
    /// Number of claimed slots; changed under `slots`.
    used: AtomicUsize,
    /// Woken when a slot is listed, and when the last one is given back while the task sleeps
    /// without an end.
    woken: WaitQueue,
}

#[derive(Default)]
struct RequestSlots {
    requests: Vec<Option<Weak<dyn Attend>>>,
    free: Vec<usize>,
    /// Whether the task exists.
    is_running: bool,
    /// Whether the task sleeps until a slot is listed, however long that takes.
    sleeps_on: bool,
}

/// The watcher of the running process.
///
/// # Errors
/// `ENOMEM`.
pub(super) fn of_current() -> Result<Arc<RequestWatcher>> {
    let process = task::current().process().clone();
    let pid = process.pid;
    let mut watchers = WATCHERS.lock();
    if let Some(watcher) = watchers.get(&pid) {
        return Ok(watcher.clone());
    }
    let watcher = reserve::arc(RequestWatcher {
        stand_in: Task::stand_in(process),
        slots: Mutex::new(RequestSlots::default()),
        ready: IrqSpinLock::new(ReadyList::new()),
        used: AtomicUsize::new(0),
        woken: WaitQueue::new(),
    });
    watchers.try_insert(pid, watcher.clone())?;
    Ok(watcher)
}

/// Forgets the watcher of a process whose requests have all ended. Its task ends by itself.
pub(super) fn forget(process: Pid) {
    let watcher = WATCHERS.lock().remove(&process);
    drop(watcher);
}

impl RequestWatcher {
    /// Claims a slot, and starts the task if there is none.
    ///
    /// # Errors
    /// `ENOMEM`; `EAGAIN` at the machine's limit of tasks.
    pub fn claim(self: &Receiver<Self>) -> Result<RequestSlot> {
        let mut slots = self.slots.lock();
        if !slots.is_running {
            let watcher = self.clone();
            task::spawn_helper("io-watch", HelperKind::OfProcess, move |helper| watcher.run(helper))?;
            slots.is_running = true;
        }
        if slots.free.is_empty() {
            let count = slots.requests.len();
            slots.free.try_reserve(count + 1)?;
            slots.requests.try_reserve(1)?;
            ReadyList::make_room(&self.ready, count + 1)?;
            slots.requests.push_reserved(None);
            slots.free.push_reserved(count);
        }
        let index = slots.free.pop().expect("there is one");
        self.used.fetch_add(1, Ordering::SeqCst);
        Ok(RequestSlot { watcher: self.clone(), index })
    }

    /// The task's main loop.
    fn run(&self, helper: &mut Helper) {
        loop {
            let next = self.ready.lock().pop();
            let Some(slot) = next else { if self.sleep() { continue } else { return } };
            let request = self.slots.lock().requests.get(slot).and_then(|place| place.as_ref()?.upgrade());
            if let Some(request) = request {
                request.attend(&self.stand_in);
            }
            helper.charge_time(|| self.used.load(Ordering::SeqCst) == 0);
            sched::rest();
        }
    }

    /// Sleeps until a slot is listed. Returns `false` if the task ends instead: no request came for
    /// [`LINGER`].
    fn sleep(&self) -> bool {
        let sleeps_on = {
            let mut slots = self.slots.lock();
            slots.sleeps_on = self.used.load(Ordering::SeqCst) > 0;
            slots.sleeps_on
        };
        let deadline = (!sleeps_on).then(|| time::now().saturating_add(LINGER));
        // A kernel task gets no signals.
        let woken = self.woken.wait_until_deadline(deadline, || {
            let is_last = sleeps_on && self.used.load(Ordering::SeqCst) == 0;
            (is_last || self.ready.lock().len() > 0).then_some(())
        });
        if !matches!(woken, Ok(None)) {
            return true;
        }
        let mut slots = self.slots.lock();
        slots.is_running = self.used.load(Ordering::SeqCst) > 0;
        slots.is_running
    }
}

/// A request's place with a watcher, until this is dropped.
pub(super) struct RequestSlot {
    watcher: Arc<RequestWatcher>,
    index: usize,
}

impl RequestSlot {
    /// Puts the request into its place: it can be listed from now on.
    pub fn fill(&self, request: Weak<dyn Attend>) {
        self.watcher.slots.lock().requests[self.index] = Some(request);
    }

    /// Lists the request, which may be able to end. Any context.
    pub fn list(&self) {
        self.watcher.ready.lock().push(self.index);
        self.watcher.woken.wake_all();
    }
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        let watcher = &self.watcher;
        let mut slots = watcher.slots.lock();
        let request = slots.requests[self.index].take();
        watcher.ready.lock().remove(self.index);
        slots.free.push_reserved(self.index);
        let is_last = watcher.used.fetch_sub(1, Ordering::SeqCst) == 1;
        // The task lingers before it ends, and is not woken again meanwhile.
        let wakes = is_last && core::mem::take(&mut slots.sleeps_on);
        drop(slots);
        if wakes {
            watcher.woken.wake_all();
        }
        drop(request);
    }
}
