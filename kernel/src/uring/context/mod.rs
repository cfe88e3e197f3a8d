//! The contexts of io_setup(2), the base of libaio.
//!
//! A program submits control blocks (`struct iocb`), and gets events (`struct io_event`) in the
//! order in which the requests ended. Requests start and wait like those of a ring
//! ([`super::request`], [`super::work`]). A transfer that would block on a stream waits, too,
//! whereas Linux' io_submit blocks there. A context is named by the address of a page that io_setup
//! maps. Linux keeps a ring of events in it, which libaio reads where it finds the ring's magic
//! number; here it stays zero, so libaio asks the kernel.
//!
//! **Room.** The number of a context's requests is fixed when the context is made, and memory for
//! their events is allocated then. A request counts from its start until its event is taken, so no
//! event is lost. [`crate::fs::requests`] limits the sum of all contexts.
//!
//! **Locks.** `CONTEXTS` is taken alone. `IoContext::readers` (one task takes events at a time) >
//! user memory; `IoContext::events` is taken last. All are sleeping locks of task context.
//!
//! **The end.** Contexts end with their program, at exit and at execve, and by io_destroy. Each
//! time the end waits for requests at disks.

pub mod calls;

use core::ops::Bound;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arrayvec::ArrayVec;
use freehold_collections::{Arc, Map, VecDeque, reserve};
use freehold_machine::{PAGE_SIZE, VirtAddr};
use freehold_vm::{AreaFlags, AreaPlace, Backing, MapRequest, Protection};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::work::{Asker, Tag, Work};
use crate::fs::requests::Room;
use crate::fs::{OpenFile, eventfd};
use crate::sync::{Mutex, WaitQueue};
use crate::task::{self, Pid};
use crate::user::UserPtr;
use crate::{Errno, Result};

/// Number of events that are copied to a program at a time.
const AT_ONCE: usize = 16;

/// All contexts, by their process and address.
static CONTEXTS: Mutex<Map<(Pid, u64), Arc<IoContext>>> = Mutex::new(Map::new());

/// `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct IoEvent {
    data: u64,
    control: u64,
    result: i64,
    more: i64,
}

/// The tag by which a context identifies a request.
pub(super) struct ControlTag {
    /// The control block's address.
    control: u64,
    /// The program's identifier of the request.
    data: u64,
    /// The event counter that is notified of its end.
    counter: Option<Arc<OpenFile>>,
}

impl Tag for ControlTag {
    fn key(&self) -> u64 {
        self.control
    }
}

/// A context.
pub struct IoContext {
    room: Room,
    /// Number of requests that have started and whose events were not taken.
    begun: AtomicUsize,
    /// Events that were not taken. There is room for all.
    events: Mutex<VecDeque<IoEvent>>,
    /// Their number. Readable without the lock.
    available: AtomicUsize,
    /// Held by the task that takes events.
    readers: Mutex<()>,
    /// Woken when events are added, and at the end.
    arrived: Arc<WaitQueue>,
    has_ended: AtomicBool,
    work: Work<IoContext>,
}

impl Asker for IoContext {
    type Tag = ControlTag;
    fn work(&self) -> &Work<Self> {
        &self.work
    }
    fn post(&self, tag: ControlTag, result: i32) {
        let ControlTag { control, data, counter } = tag;
        let mut events = self.events.lock();
        events.push_back_reserved(IoEvent { data, control, result: i64::from(result), more: 0 });
        self.available.store(events.len(), Ordering::Release);
        drop(events);
        self.arrived.wake_all();
        if let Some(counter) = counter {
            eventfd::count(&counter);
        }
    }
    /// No request of a context has a timeout that counts completions.
    fn completed(&self) -> u64 {
        0
    }
}

impl IoContext {
    /// Makes a context with room for `requests` requests.
    ///
    /// # Errors
    /// `EAGAIN` if the sum of all contexts would exceed its limit, `ENOMEM`.
    fn make(requests: u32) -> Result<Arc<Self>> {
        let room = Room::take(requests)?;
        Ok(reserve::arc(Self {
            begun: AtomicUsize::new(0),
            events: Mutex::new(VecDeque::try_with_capacity(requests as usize)?),
            available: AtomicUsize::new(0),
            readers: Mutex::new(()),
            arrived: reserve::arc(WaitQueue::new()),
            has_ended: AtomicBool::new(false),
            work: Work::new(),
            room,
        }))
    }

    /// Returns the current process' context at `id`.
    ///
    /// # Errors
    /// `EINVAL` if there is none.
    fn find(id: u64) -> Result<Arc<Self>> {
        CONTEXTS.lock().get(&(task::current().process().pid, id)).cloned().ok_or(Errno::EINVAL)
    }

    /// Takes a place for a request.
    ///
    /// # Errors
    /// `EAGAIN` if all are taken.
    fn begin(&self) -> Result<()> {
        let room = self.room.requests() as usize;
        let more = |begun: usize| (begun < room).then_some(begun + 1);
        let begun = self.begun.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        begun.map(drop).map_err(|_| Errno::EAGAIN)
    }

    /// Frees `count` places.
    fn give_up(&self, count: usize) {
        self.begun.fetch_sub(count, Ordering::Relaxed);
    }

    /// Gives the program up to `most` of the queued events, at `to`. Returns their number.
    ///
    /// # Errors
    /// `EFAULT` if none could be stored. Events that could not be stored stay queued.
    fn take(&self, to: UserPtr<IoEvent>, most: usize) -> Result<usize> {
        let _reader = self.readers.lock();
        let mut taken = 0;
        while taken < most {
            let wanted = (most - taken).min(AT_ONCE);
            let some: ArrayVec<IoEvent, AT_ONCE> = self.events.lock().iter().take(wanted).copied().collect();
            if some.is_empty() {
                break;
            }
            let placed = some.iter().enumerate().try_for_each(|(at, event)| to.add(taken + at).write(event));
            if let Err(error) = placed {
                return if taken > 0 { Ok(taken) } else { Err(error) };
            }
            let mut events = self.events.lock();
            for _ in &some {
                events.pop_front();
            }
            self.available.store(events.len(), Ordering::Release);
            drop(events);
            self.give_up(some.len());
            taken += some.len();
        }
        Ok(taken)
    }

    /// Gives the program between `least` and `most` events at `to`; fewer than `least` if
    /// `deadline` has passed. Returns their number.
    ///
    /// # Errors
    /// `EINTR`, `EFAULT`, and `EINVAL` if the context ends. These are returned only if there is no
    /// event.
    fn wait_for_events(
        &self,
        to: UserPtr<IoEvent>,
        least: usize,
        most: usize,
        deadline: Option<u64>,
    ) -> Result<usize> {
        let mut taken = 0;
        loop {
            let outcome = self.take(to.add(taken), most - taken).and_then(|more| {
                taken += more;
                if taken >= least {
                    return Ok(None);
                }
                self.arrived.wait_until_deadline(deadline, || {
                    let has_ended = self.has_ended.load(Ordering::Acquire);
                    (has_ended || self.available.load(Ordering::Acquire) > 0).then_some(has_ended)
                })
            });
            match outcome {
                Ok(Some(false)) => {}
                Ok(Some(true)) if taken == 0 => return Err(Errno::EINVAL),
                Err(Errno::ERESTARTSYS) if taken == 0 => return Err(Errno::EINTR),
                Err(error) if taken == 0 => return Err(error),
                _ => return Ok(taken),
            }
        }
    }

    /// Drops waiting requests, and waits for requests that disks have.
    fn close(&self) {
        self.has_ended.store(true, Ordering::Release);
        self.close_work();
        self.arrived.wake_all();
    }
}

/// Makes a context for `requests` requests in the current process. Returns its address.
///
/// # Errors
/// `EAGAIN`, `ENOMEM`.
fn enter(requests: u32) -> Result<u64> {
    let process = task::current().process().clone();
    let context = IoContext::make(requests)?;
    let request = MapRequest {
        place: AreaPlace::Anywhere,
        len: PAGE_SIZE as u64,
        protection: Protection::READ | Protection::WRITE,
        backing: Backing::Anonymous,
        flags: AreaFlags::empty(),
    };
    let id = process.space().lock().map(request, &process.memory_limits())?.0;
    let entered = CONTEXTS.lock().try_insert((process.pid, id), context);
    // A program may have unmapped the page of an old context, so that the new one has its address.
    let (entered, replaced) = match entered {
        Ok(replaced) => (Ok(id), replaced),
        Err(error) => (Err(error.into()), None),
    };
    if let Some(replaced) = replaced {
        replaced.close();
    }
    entered.inspect_err(|_| unmap(id))
}

/// Unmaps the page of a context.
fn unmap(id: u64) {
    // Unmapping may fail at the limit of areas, because the program can have changed the mapping.
    // Then the page stays.
    let _ = task::current().process().space().unmap(VirtAddr(id), PAGE_SIZE as u64);
}

/// Ends the context at `id` of the current process.
///
/// # Errors
/// `EINVAL` if there is none.
fn end(id: u64) -> Result<()> {
    let context = CONTEXTS.lock().remove(&(task::current().process().pid, id)).ok_or(Errno::EINVAL)?;
    context.close();
    unmap(id);
    Ok(())
}

/// Ends all contexts of `process`. May sleep.
pub(super) fn leave(process: Pid) {
    loop {
        let mut contexts = CONTEXTS.lock();
        let first = contexts.first_from(Bound::Included(&(process, 0))).map(|(&key, _)| key);
        let Some(key) = first.filter(|&(owner, _)| owner == process) else { return };
        let context = contexts.remove(&key);
        drop(contexts);
        if let Some(context) = context {
            context.close();
        }
    }
}
