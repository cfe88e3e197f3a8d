//! epoll: a kept list of files, and those of them that may be ready.
//!
//! Every watched file has an [`Item`], which observes the file's wait queues for as long as it is watched. A
//! wake-up, in any context, puts the item's slot on the ready list (once) and wakes who waits. Waiting takes slots off that
//! list and asks each file whether it is ready indeed; a level-triggered item that is goes back to the end of the
//! list, so that it is asked again, and everybody gets a turn.
//!
//! Instances may watch each other: nesting is bounded upwards and downwards together ([`nesting`]),
//! since polls and wake-ups go through a chain of instances by recursion.
//!
//! Lock order: `items` (sleeping) > what polling a file takes > `ready` (interrupt-safe). Nothing is allocated under
//! `ready`: adding an item makes the room that its slot may need there.
//!
//! Semantics: epoll(7).

mod calls;
mod nesting;
#[cfg(test)]
mod tests;

use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

use bitflags::bitflags;
use freehold_collections::VecDeque;

pub use calls::{
    sys_epoll_create, sys_epoll_create1, sys_epoll_ctl, sys_epoll_pwait, sys_epoll_pwait2, sys_epoll_wait,
};

use self::nesting::Nest;
use super::anonymous::AnonymousNode;
use super::{File, Node, NodeKind, OpenFile, Ready};
use crate::fallible::Grow as _;
use crate::sync::{IrqSpinLock, Mutex, PollWaiter, SpinLock, WaitQueue, Wake, Woken};
use crate::{Errno, Result};

bitflags! {
    /// What a program asks of a watched file beside its events.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Trigger: u32 {
        /// One wake-up only, then a change is needed.
        const ONESHOT = 1 << 30;
        /// Only what is new.
        const EDGE = 1 << 31;
    }
}

/// Events that are reported whether or not they are asked for.
const ALWAYS: u32 = Ready::ERR.bits() | Ready::HUP.bits();
/// The bits of an event mask that name events.
const EVENTS: u32 = 0x0fff_ffff;

/// What one call asks about one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Interest {
    /// EPOLLIN… and [`Trigger`]'s bits.
    events: u32,
    /// Handed back with every event.
    data: u64,
}

/// One event on its way to the program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Event {
    events: u32,
    data: u64,
}

/// What wakes of watched files touch; outlives every observer.
struct Shared {
    /// Slots of items that may be ready, each at most once. Its room is that of all slots.
    ready: IrqSpinLock<VecDeque<usize>>,
    waiters: Arc<WaitQueue>,
}

/// One watched file.
struct Item {
    shared: Arc<Shared>,
    slot: usize,
    /// Its slot is on the ready list.
    listed: AtomicBool,
    fd: i32,
    file: Weak<OpenFile>,
    interest: SpinLock<Interest>,
    /// Its registrations with the file's queues; they hold the item, so that it has to be taken out by hand.
    observing: SpinLock<Option<PollWaiter>>,
}

impl Item {
    fn list(&self) {
        if !self.listed.swap(true, Ordering::SeqCst) {
            self.shared.ready.lock().push_back_reserved(self.slot);
        }
    }

    fn is_for(&self, fd: i32, file: &Arc<OpenFile>) -> bool {
        self.fd == fd && core::ptr::eq(self.file.as_ptr(), Arc::as_ptr(file))
    }

    /// What of its interest is there now.
    fn ready(&self, file: &OpenFile) -> u32 {
        let wanted = self.interest.lock().events & EVENTS;
        if wanted == 0 { 0 } else { file.poll(None).poll_bits() & (wanted | ALWAYS) }
    }
}

impl Wake for Item {
    fn wake(&self) -> Woken {
        self.list();
        self.shared.waiters.wake_all();
        // Nobody slept on the file's own queue: whoever does comes first.
        Woken::Nobody
    }
}

/// An epoll instance.
pub struct Epoll {
    items: Mutex<Vec<Option<Arc<Item>>>>,
    shared: Arc<Shared>,
    node: Arc<dyn Node>,
    nest: Nest,
}

impl Epoll {
    fn new() -> Arc<Self> {
        let shared = Shared { ready: IrqSpinLock::new(VecDeque::new()), waiters: Arc::new(WaitQueue::new()) };
        Arc::new(Self {
            items: Mutex::new(Vec::new()),
            shared: Arc::new(shared),
            node: AnonymousNode::plain(NodeKind::Regular, "anon_inode:[eventpoll]"),
            nest: Nest::default(),
        })
    }

    /// Returns the instance behind `file`, where it is one.
    fn of(file: &OpenFile) -> Option<&Arc<Self>> {
        file.file().downcast::<EpollFile>().map(|file| &file.0)
    }

    /// Watch `file`, known to the program as `fd`.
    fn add(self: &Arc<Self>, fd: i32, file: &Arc<OpenFile>, interest: Interest) -> Result<()> {
        // Held until the item is there, so that two calls cannot close a circle together.
        let mut nesting = Epoll::of(file).map(|inner| nesting::enter(self, inner)).transpose()?;
        let mut items = self.items.lock();
        if items.iter().flatten().any(|item| item.is_for(fd, file)) {
            return Err(Errno::EEXIST);
        }
        let slot = self.free_slot(&mut items)?;
        let item = Arc::new(Item {
            shared: self.shared.clone(),
            slot,
            listed: AtomicBool::new(false),
            fd,
            file: Arc::downgrade(file),
            interest: SpinLock::new(interest),
            observing: SpinLock::new(None),
        });
        let mut observer = PollWaiter::observer(item.clone());
        file.poll(Some(&mut observer));
        *item.observing.lock() = Some(observer);
        let ready = item.ready(file) != 0;
        items[slot] = Some(item.clone());
        drop(items);
        if let Some(nesting) = &mut nesting {
            nesting.keep();
        }
        drop(nesting);
        if ready {
            item.wake();
        }
        Ok(())
    }

    /// A slot that no item has, with room for it on the ready list.
    fn free_slot(&self, items: &mut Vec<Option<Arc<Item>>>) -> Result<usize> {
        if let Some(slot) = items.iter().position(Option::is_none) {
            return Ok(slot);
        }
        items.make_room(1)?;
        let wanted = items.capacity();
        if self.shared.ready.lock().capacity() < wanted {
            let roomier = VecDeque::try_with_capacity(wanted)?;
            // The old list is freed when the lock is open.
            let _old = self.shared.ready.lock().move_to(roomier);
        }
        items.push(None);
        Ok(items.len() - 1)
    }

    fn find(items: &[Option<Arc<Item>>], fd: i32, file: &Arc<OpenFile>) -> Result<Arc<Item>> {
        items.iter().flatten().find(|item| item.is_for(fd, file)).cloned().ok_or(Errno::ENOENT)
    }

    /// Change what is asked about a watched file.
    fn modify(&self, fd: i32, file: &Arc<OpenFile>, interest: Interest) -> Result<()> {
        let item = Self::find(&self.items.lock(), fd, file)?;
        *item.interest.lock() = interest;
        if item.ready(file) != 0 {
            item.wake();
        }
        Ok(())
    }

    /// Watch `file` no more.
    fn remove(self: &Arc<Self>, fd: i32, file: &Arc<OpenFile>) -> Result<()> {
        let mut items = self.items.lock();
        let item = Self::find(&items, fd, file)?;
        self.retire(&mut items, &item);
        drop(items);
        if let Some(inner) = Epoll::of(file) {
            nesting::leave(self, inner);
        }
        Ok(())
    }

    fn retire(&self, items: &mut [Option<Arc<Item>>], item: &Arc<Item>) {
        // No wake-up comes after this, so nobody lists the slot again before it is somebody else's.
        let observing = item.observing.lock().take();
        drop(observing);
        self.shared.ready.lock().retain(|&slot| slot != item.slot);
        items[item.slot] = None;
    }

    /// Take up to `most` events off the ready list.
    fn harvest(&self, most: usize, mut emit: impl FnMut(Event)) -> usize {
        let mut items = self.items.lock();
        let mut count = 0;
        // What is listed while this goes on is for the next call: a level-triggered item would never end.
        let listed = self.shared.ready.lock().len();
        for _ in 0..listed {
            if count == most {
                break;
            }
            let Some(slot) = self.shared.ready.lock().pop_front() else { break };
            let Some(item) = items[slot].clone() else { continue };
            // Before looking: a change after the look lists it again.
            item.listed.store(false, Ordering::SeqCst);
            let Some(file) = item.file.upgrade() else {
                // Closed everywhere: closing is what ends a watch without a call.
                self.retire(&mut items, &item);
                continue;
            };
            let events = item.ready(&file);
            if events == 0 {
                continue;
            }
            let trigger = {
                let mut interest = item.interest.lock();
                emit(Event { events, data: interest.data });
                let trigger = Trigger::from_bits_truncate(interest.events);
                if trigger.contains(Trigger::ONESHOT) {
                    interest.events &= !EVENTS;
                }
                trigger
            };
            count += 1;
            if trigger.is_empty() {
                item.list();
            }
        }
        count
    }

    /// Whether an item is ready indeed; those that are not leave the list.
    fn has_ready(&self) -> bool {
        let mut items = self.items.lock();
        let listed = self.shared.ready.lock().len();
        for _ in 0..listed {
            let Some(slot) = self.shared.ready.lock().pop_front() else { break };
            let Some(item) = items[slot].clone() else { continue };
            item.listed.store(false, Ordering::SeqCst);
            match item.file.upgrade() {
                None => self.retire(&mut items, &item),
                Some(file) if item.ready(&file) != 0 => {
                    item.list();
                    return true;
                }
                Some(_) => {}
            }
        }
        false
    }

    fn may_have_ready(&self) -> bool {
        !self.shared.ready.lock().is_empty()
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        for item in self.items.get_mut().drain(..).flatten() {
            let observing = item.observing.lock().take();
            drop(observing);
        }
    }
}

/// An epoll instance, opened.
struct EpollFile(Arc<Epoll>);

impl File for EpollFile {
    fn node(&self) -> Arc<dyn Node> {
        self.0.node.clone()
    }

    fn poll(&self, waiter: Option<&mut PollWaiter>) -> Ready {
        if let Some(waiter) = waiter {
            waiter.register(&self.0.shared.waiters);
        }
        let mut ready = Ready::empty();
        ready.set(Ready::IN, self.0.has_ready());
        ready
    }
}
