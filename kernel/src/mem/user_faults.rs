//! Page faults that a program handles (userfaultfd(2)): the waiting faults, and how they end.
//!
//! A [`UserFaults`] is the monitor of areas (`freehold_vm`, module `monitor`; Linux: `struct
//! userfaultfd_ctx`). The file that reads it is `fs::userfault`.
//!
//! **Protocol.** No thread may sleep for a page that is present, or for a monitor that is closed.
//! 1. *Fault*: with the space locked, the thread finds that a monitor must provide the page, and
//!    queues itself ([`UserFaults::enqueue`]). Then it releases the lock, wakes readers, and sleeps
//!    until its [`WaitingFault`] is done.
//! 2. *Resolve*: a change that a fault waits for (a page is provided, or the area leaves the
//!    monitor) is made with the space locked. **Afterwards** the task wakes the faults that wait
//!    for these addresses ([`UserFaults::wake`]). So a fault either queued before the change, and
//!    is woken, or it checks after the change and sees that.
//! 3. *Close*: first marks the queue as closed, under its lock, and then wakes all sleepers. No
//!    fault queues afterwards. Areas may keep the closed monitor for a while, since the task that
//!    closes a file may hold the space: the next fault there removes it.
//! 4. *Wake-up* means a new check: a thread that is woken repeats its access. UFFDIO_WAKE may wake
//!    it at any time.
//!
//! A signal ends the wait of a program's own fault. A fault of the kernel in the thread's context
//! ends only when the thread has to end, because the copy could not be repeated. Unmapping, moving
//! or forking pages that a fault waits for wakes no sleeper, as on Linux.
//!
//! `user_faults_model.rs` explores these steps, and wrong variants.
//!
//! **Locks.** Space > queue (a spin lock; allocations under it may fail) > wait queues.

use core::any::Any;
use core::ops::{Bound, Range};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use freehold_collections::{
    Arc, Map, Weak,
    reserve::{self, ArcMethods},
};
use freehold_machine::VirtAddr;
use freehold_vm::{Access, Lack, Monitor, Wanted};

use super::space::SpaceGuard;
use super::{AddressSpace, ProcessSpace};
use crate::sched::thread;
use crate::sync::{Completion, SpinLock, WaitQueue};
use crate::{Errno, Result};

/// The originator of the faulting access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultBy {
    /// The program.
    Program,
    /// The kernel, in a call of this program or for another one.
    Kernel,
}

/// The faults that the monitor handles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Served {
    /// All faults.
    All,
    /// The program's own faults; the kernel's fail (UFFD_USER_MODE_ONLY).
    ByProgram,
}

/// A waiting fault.
#[derive(Debug)]
pub struct WaitingFault {
    /// The address that is reported to the reader: the page's, or the exact one.
    pub address: u64,
    /// The access that faulted.
    pub access: Access,
    /// The reason for the fault.
    pub lack: Lack,
    /// The thread's number in its PID namespace.
    pub thread: i32,
    number: u64,
    done: Completion,
}

#[derive(Default)]
struct FaultQueue {
    /// In the order of arrival.
    waiting: Map<u64, Arc<WaitingFault>>,
    latest: u64,
    /// Number of the last fault that was read; later ones are unread.
    read: u64,
    is_over: bool,
}

/// See the module's head.
pub struct UserFaults {
    space: Weak<ProcessSpace>,
    served: Served,
    /// Features agreed on by UFFDIO_API, together with [`UserFaults::AGREED`].
    features: AtomicU64,
    queue: SpinLock<FaultQueue>,
    /// A copy of [`FaultQueue::is_over`], for checks without the lock.
    over: AtomicBool,
    news: Arc<WaitQueue>,
}

impl Monitor for UserFaults {}

impl UserFaults {
    /// Set once the interface was agreed on; no feature uses this bit.
    const AGREED: u64 = 1 << 63;
    /// Faults are delivered as bus errors (UFFD_FEATURE_SIGBUS).
    pub const SIGBUS: u64 = 1 << 7;
    /// Threads are reported (UFFD_FEATURE_THREAD_ID).
    pub const THREAD_ID: u64 = 1 << 8;
    /// Exact addresses are reported (UFFD_FEATURE_EXACT_ADDRESS).
    pub const EXACT_ADDRESS: u64 = 1 << 11;

    /// Makes a monitor for the faults of `space`, without agreed features.
    pub fn new(space: &Arc<ProcessSpace>, served: Served) -> Arc<Self> {
        reserve::arc(Self {
            space: space.downgrade(),
            served,
            features: AtomicU64::new(0),
            queue: SpinLock::new(FaultQueue::default()),
            over: AtomicBool::new(false),
            news: reserve::arc(WaitQueue::new()),
        })
    }

    /// Returns an area's monitor as this type, the only kind of monitor.
    fn behind(monitor: &Arc<dyn Monitor>) -> Option<&Self> {
        let any: &dyn Any = &**monitor;
        any.downcast_ref()
    }

    /// Returns the space whose faults are handled, while it exists.
    ///
    /// # Errors
    /// `ESRCH`.
    pub fn space(&self) -> Result<Arc<ProcessSpace>> {
        self.space.upgrade().ok_or(Errno::ESRCH)
    }

    /// Agrees on these features, once.
    ///
    /// # Errors
    /// `EINVAL` at the second call.
    pub fn agree(&self, features: u64) -> Result<()> {
        let agreed = features | Self::AGREED;
        let first = self.features.compare_exchange(0, agreed, Ordering::AcqRel, Ordering::Acquire);
        first.map(drop).map_err(|_| Errno::EINVAL)
    }

    /// Returns the agreed features; `None` before that.
    pub fn agreed(&self) -> Option<u64> {
        let features = self.features.load(Ordering::Acquire);
        (features & Self::AGREED != 0).then_some(features & !Self::AGREED)
    }

    fn has(&self, feature: u64) -> bool {
        self.features.load(Ordering::Acquire) & feature != 0
    }

    /// Returns the queue that is woken when there is an unread fault.
    pub fn news(&self) -> &Arc<WaitQueue> {
        &self.news
    }

    /// Returns whether an unread fault waits.
    pub fn has_news(&self) -> bool {
        let queue = self.queue.lock();
        queue.waiting.first_from(Bound::Excluded(&queue.read)).is_some()
    }

    /// Returns the first unread fault, and marks it as read.
    pub fn read_next(&self) -> Option<Arc<WaitingFault>> {
        let mut queue = self.queue.lock();
        let (&number, fault) = queue.waiting.first_from(Bound::Excluded(&queue.read))?;
        let fault = fault.clone();
        queue.read = number;
        Some(fault)
    }

    /// Returns the number of unread faults, and of all waiting ones.
    pub fn counts(&self) -> (usize, usize) {
        let queue = self.queue.lock();
        (queue.waiting.iter_from(Bound::Excluded(&queue.read)).count(), queue.waiting.len())
    }

    /// Queues a fault of the running thread: step 1, with the space locked. `None` if the monitor
    /// is closed.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn enqueue(&self, wanted: &Wanted, at: VirtAddr) -> Result<Option<Arc<WaitingFault>>> {
        let number = |owner: Arc<dyn thread::ThreadOwner>| owner.number();
        let thread = thread::with_current(|thread| thread.owner()).flatten().map_or(0, number);
        let address = if self.has(Self::EXACT_ADDRESS) { at } else { wanted.page };
        let mut queue = self.queue.lock();
        if queue.is_over {
            return Ok(None);
        }
        let number = queue.latest + 1;
        let fault = reserve::arc(WaitingFault {
            address: address.0,
            access: wanted.access,
            lack: wanted.lack,
            thread,
            number,
            done: Completion::new(),
        });
        queue.waiting.try_insert(number, fault.clone())?;
        queue.latest = number;
        Ok(Some(fault))
    }

    /// Makes the threads that wait for addresses of `range` check again: step 2, after the change.
    pub fn wake(&self, range: &Range<u64>) {
        let mut after = 0;
        loop {
            let next = {
                let mut queue = self.queue.lock();
                let mut later = queue.waiting.iter_from(Bound::Excluded(&after));
                let number =
                    later.find(|(_, fault)| range.contains(&fault.address)).map(|(&number, _)| number);
                number.and_then(|number| queue.waiting.remove(&number))
            };
            let Some(fault) = next else { return };
            after = fault.number;
            fault.done.complete();
        }
    }

    /// Ends the handling of these faults: step 3.
    pub fn close(&self, monitor: &Arc<dyn Monitor>) {
        self.queue.lock().is_over = true;
        self.over.store(true, Ordering::Release);
        self.wake(&(0..u64::MAX));
        // The closing task may have the space locked.
        if let Some(space) = self.space.upgrade()
            && let Some(mut areas) = space.try_lock()
        {
            areas.forget_monitor(monitor);
        }
    }

    /// Whether the monitor is closed.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    fn forget(&self, fault: &WaitingFault) {
        let gone = self.queue.lock().waiting.remove(&fault.number);
        drop(gone);
    }
}

/// Result of queueing a fault for the monitor of its area.
pub enum Outcome {
    /// The monitor is closed: the fault is to be repeated.
    Again,
    /// The fault fails with a bus error.
    Refused,
    /// There is no memory to queue the fault.
    OutOfMemory,
    /// The fault is queued.
    Queued(Sleeper),
}

/// A queued fault, before its thread sleeps.
pub struct Sleeper {
    monitor: Arc<dyn Monitor>,
    fault: Arc<WaitingFault>,
}

impl Sleeper {
    /// Sleeps until the access is to be repeated. The sleeper does not hold the space.
    ///
    /// # Errors
    /// `ERESTARTSYS` for a signal, `EINTR` if the thread is being killed, depending on `by`.
    pub fn sleep(self, by: FaultBy) -> Result<()> {
        let Some(faults) = UserFaults::behind(&self.monitor) else { return Ok(()) };
        faults.news.wake_all();
        let outcome = match by {
            FaultBy::Program => self.fault.done.wait(),
            FaultBy::Kernel => self.fault.done.wait_killable(),
        };
        if outcome.is_err() {
            faults.forget(&self.fault);
        }
        outcome
    }
}

/// Queues the last fault in `areas`, at `at`, which a monitor must handle.
#[cold]
#[inline(never)]
pub fn queue_fault(areas: &mut AddressSpace, at: VirtAddr, by: FaultBy) -> Outcome {
    let Some(wanted) = areas.take_wanted() else { return Outcome::Refused };
    let Some(faults) = UserFaults::behind(&wanted.monitor) else { return Outcome::Refused };
    if faults.is_over() {
        areas.forget_monitor(&wanted.monitor);
        return Outcome::Again;
    }
    if faults.has(UserFaults::SIGBUS) || (by == FaultBy::Kernel && faults.served == Served::ByProgram) {
        return Outcome::Refused;
    }
    match faults.enqueue(&wanted, at) {
        Ok(Some(fault)) => Outcome::Queued(Sleeper { monitor: wanted.monitor, fault }),
        // The next check finds that the monitor is closed.
        Ok(None) => Outcome::Again,
        Err(_) => Outcome::OutOfMemory,
    }
}

/// As [`queue_fault`], for the kernel: sleeps until the access is to be repeated.
///
/// # Errors
/// `EFAULT`; `ENOMEM`; `EINTR` if the thread is being killed.
pub(super) fn wait_for_monitor(mut areas: SpaceGuard<'_>, at: VirtAddr) -> Result<()> {
    let outcome = queue_fault(&mut areas, at, FaultBy::Kernel);
    drop(areas);
    match outcome {
        Outcome::Again => Ok(()),
        Outcome::Refused => Err(Errno::EFAULT),
        Outcome::OutOfMemory => Err(Errno::ENOMEM),
        Outcome::Queued(sleeper) => {
            sleeper.sleep(FaultBy::Kernel)?;
            // One of many pages, each of which takes a small object.
            crate::sched::checkpoint()
        }
    }
}
