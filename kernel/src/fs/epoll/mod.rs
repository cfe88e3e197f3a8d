//! epoll: a list of watched files, and a list of those that may be ready.
//!
//! Every watched file has an [`Item`], which observes the file's wait queues for as long as it is
//! watched. A wake-up, in any context, puts the item's slot on the ready list (once) and wakes
//! waiting tasks. Waiting takes slots off that list and polls each file to check that it is ready.
//! A level-triggered item that is ready is put back at the end of the list. So it is polled again,
//! and every item gets a turn.
//!
//! Instances may watch each other. Polls and wake-ups traverse a chain of instances by recursion,
//! so the depth of nesting is bounded, upwards and downwards together ([`nesting`]).
//!
//! A watch ends at once when the last descriptor of its file is closed: the description tells its
//! items ([`Watcher`]).
//!
//! Lock order: `items` (sleeping) > the locks that polling a file takes > `ready` (interrupt-safe).
//! Nothing is allocated under `ready`: adding an item reserves room for its slot in the list.
//!
//! Semantics: epoll(7).

mod account;
mod calls;
mod items;
mod nesting;
#[cfg(test)]
mod tests;

use core::sync::atomic::{AtomicBool, Ordering};

use bitflags::bitflags;
use freehold_collections::{
    Arc, Receiver, Weak,
    reserve::{self, ArcMethods},
};

pub use account::{MAX_USER_WATCHES, init};
pub use calls::{
    sys_epoll_create, sys_epoll_create1, sys_epoll_ctl, sys_epoll_pwait, sys_epoll_pwait2, sys_epoll_wait,
};

use self::account::WatchAccount;
use self::items::{Items, WatchKey, rest_at};
use self::nesting::Nest;
use super::anonymous::AnonymousNode;
use super::device::split_device;
use super::file::Line;
use super::{File, Node, NodeKind, OpenFile, Ready, Watcher};
use crate::sync::{IrqSpinLock, Mutex, MutexGuard, PollWaiter, ReadyList, SpinLock, WaitQueue, Wake, Woken};
use crate::{Errno, Result};

bitflags! {
    /// Trigger modes of a watched file, which a program sets together with its events.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Trigger: u32 {
        /// Report one event only, then wait for EPOLL_CTL_MOD.
        const ONESHOT = 1 << 30;
        /// Report only changes.
        const EDGE = 1 << 31;
    }
}

/// Events that are always reported, even if not requested.
const ALWAYS: u32 = Ready::ERR.bits() | Ready::HUP.bits();
/// The bits of an event mask that name events.
const EVENTS: u32 = 0x0fff_ffff;
/// EPOLLEXCLUSIVE: can only be set when a file is added, and never changed. New input of a file
/// wakes one of the instances that watch it so, and only for input. Other events, such as the end
/// of the input, wake all of them.
const EPOLLEXCLUSIVE: u32 = 1 << 28;

/// Interest of an instance in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Interest {
    /// EPOLLIN… and [`Trigger`]'s bits.
    events: u32,
    /// Returned with every event.
    data: u64,
}

impl Interest {
    /// Returns the events that are reported: the requested ones and those that are always reported.
    /// None if the program requests no events.
    const fn reported(self) -> u32 {
        match self.events & EVENTS {
            0 => 0,
            wanted => wanted | ALWAYS,
        }
    }
}

/// An event that is reported to a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Event {
    events: u32,
    data: u64,
}

/// State that wake-ups of watched files access; outlives every observer.
struct EpollShared {
    /// Slots of items that may be ready. The list has room for all slots.
    ready: IrqSpinLock<ReadyList>,
    waiters: Arc<WaitQueue>,
}

/// One watched file.
struct Item {
    shared: Arc<EpollShared>,
    epoll: Weak<Epoll>,
    slot: usize,
    /// Whether the item's slot is on the ready list.
    listed: AtomicBool,
    fd: i32,
    file: Weak<OpenFile>,
    interest: SpinLock<Interest>,
    /// Whether new input goes to one such item of the file ([`EPOLLEXCLUSIVE`]).
    shares_input: bool,
    /// The item's registrations with the file's queues. They hold a reference to the item, so they
    /// must be removed explicitly.
    observing: SpinLock<Option<PollWaiter>>,
}

fn key(fd: i32, file: *const OpenFile) -> WatchKey {
    (fd, file.addr())
}

impl Item {
    fn key(&self) -> WatchKey {
        key(self.fd, self.file.as_ptr())
    }

    fn list(&self) {
        if !self.listed.swap(true, Ordering::SeqCst) {
            self.shared.ready.lock().push(self.slot);
        }
    }

    /// Returns the events of the item's interest that are ready now.
    fn ready(&self, file: &OpenFile) -> u32 {
        match self.interest.lock().reported() {
            0 => 0,
            reported => file.poll(None).reported(reported),
        }
    }
}

impl Wake for Item {
    fn wake(&self) -> Woken {
        self.list();
        if self.shares_input {
            return self.shared.waiters.wake_each();
        }
        self.shared.waiters.wake_all();
        // An observer is no sleeper: a task that sleeps on the file's own queue is woken first.
        Woken::Nobody
    }
}

impl Watcher for Item {
    /// Ends the watch at once. If the items are locked, perhaps by the task that closes the file,
    /// the next wait finds the item on the ready list and ends the watch.
    fn closed(&self) {
        let Some(epoll) = self.epoll.upgrade() else { return };
        match epoll.items.try_lock() {
            Some(mut items) => epoll.retire(&mut items, self),
            None => drop(self.wake()),
        };
    }
}

/// An epoll instance.
pub struct Epoll {
    items: Mutex<Items<Item>>,
    shared: Arc<EpollShared>,
    node: Arc<dyn Node>,
    nest: Nest,
    account: WatchAccount,
}

impl Epoll {
    /// Makes an instance of `user`.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn new(user: u32) -> Result<Arc<Self>> {
        let account = WatchAccount::of(user)?;
        let shared = EpollShared {
            ready: IrqSpinLock::new(ReadyList::new()),
            waiters: reserve::arc(WaitQueue::new()),
        };
        Ok(reserve::arc(Self {
            items: Mutex::new(Items::new()),
            shared: reserve::arc(shared),
            node: AnonymousNode::plain(NodeKind::Regular, "anon_inode:[eventpoll]"),
            nest: Nest::default(),
            account,
        }))
    }

    /// Returns the instance of `file`, if `file` is one.
    fn of(file: &OpenFile) -> Option<&Arc<Self>> {
        file.file().downcast::<EpollFile>().map(|file| &file.0)
    }

    /// Returns the address of description number `nth` among those that the instance `file` watches
    /// as `fd` (kcmp).
    ///
    /// # Errors
    /// `EINVAL` if `file` is no instance, `ENOENT`; `EINTR` if the task must end.
    pub fn watched_address(file: &OpenFile, fd: i32, nth: u32) -> Result<usize> {
        let items = Self::of(file).ok_or(Errno::EINVAL)?.items.lock_killable()?;
        items.nth_of(fd, nth).map(|item| item.file.as_ptr().addr()).ok_or(Errno::ENOENT)
    }

    /// Watches `file`, which the program knows as `fd`.
    fn add(self: &Receiver<Self>, fd: i32, file: &Arc<OpenFile>, interest: Interest) -> Result<()> {
        // Held until the item exists, so that two calls cannot together close a cycle.
        let mut nesting = Epoll::of(file).map(|inner| nesting::enter(self, inner)).transpose()?;
        let mut items = self.items.lock();
        let key = key(fd, file.address());
        let slot = self.claim(&mut items, key)?;
        self.account.charge().inspect_err(|_| items.give_back(slot, key))?;
        let shares_input = interest.events & (EPOLLEXCLUSIVE | Ready::IN.bits() | Ready::OUT.bits())
            == EPOLLEXCLUSIVE | Ready::IN.bits();
        let item = reserve::arc(Item {
            shared: self.shared.clone(),
            epoll: self.downgrade(),
            slot,
            listed: AtomicBool::new(false),
            fd,
            file: file.downgrade(),
            interest: SpinLock::new(interest),
            shares_input,
            observing: SpinLock::new(None),
        });
        let make = if shares_input { PollWaiter::sharing_input } else { PollWaiter::observer };
        let mut observer = make(item.clone());
        let ready = file.poll(Some(&mut observer)).reported(interest.reported()) != 0;
        let observing = observer.complete().and_then(|observer| {
            file.add_watcher(watcher_of(&item))?;
            Ok(observer)
        });
        *item.observing.lock() = match observing {
            Ok(observer) => Some(observer),
            Err(error) => {
                // A queue may have been woken meanwhile. From here on none is observed.
                self.shared.ready.lock().remove(slot);
                items.give_back(slot, key);
                self.account.uncharge(1);
                return Err(error);
            }
        };
        items.put(slot, item.clone());
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

    /// Reserves a slot for the file with `key`, and room for it on the ready list.
    fn claim(&self, items: &mut Items<Item>, key: WatchKey) -> Result<usize> {
        let slot = items.claim(key)?;
        ReadyList::make_room(&self.shared.ready, slot + 1).inspect_err(|_| items.give_back(slot, key))?;
        Ok(slot)
    }

    /// Changes the interest in a watched file.
    #[inline]
    fn modify(&self, fd: i32, file: &Arc<OpenFile>, interest: Interest) -> Result<()> {
        let item = watched(&self.items.lock(), fd, file)?;
        let mut known = item.interest.lock();
        if known.events & EPOLLEXCLUSIVE != 0 {
            return Err(Errno::EINVAL);
        }
        *known = interest;
        drop(known);
        if item.ready(file) != 0 {
            item.wake();
        }
        Ok(())
    }

    /// Stops watching `file`.
    fn remove(self: &Receiver<Self>, fd: i32, file: &Arc<OpenFile>) -> Result<()> {
        let mut items = self.items.lock();
        let item = watched(&items, fd, file)?;
        file.remove_watcher(&watcher_of(&item));
        self.retire(&mut items, &item);
        drop(items);
        if let Some(inner) = Epoll::of(file) {
            nesting::leave(self, inner);
        }
        Ok(())
    }

    fn retire(&self, items: &mut Items<Item>, item: &Item) {
        // No wake-up follows this, so the slot is not listed again before another item has it.
        let observing = item.observing.lock().take();
        drop(observing);
        let Some(_item) = items.take(item.slot, item.key(), item) else { return };
        self.account.uncharge(1);
        self.shared.ready.lock().remove(item.slot);
    }

    /// Takes up to `most` events off the ready list.
    fn harvest(&self, most: usize, mut emit: impl FnMut(Event)) -> usize {
        let mut items = self.items.lock();
        let mut count = 0;
        // Items that are listed meanwhile are left for the next call: otherwise a level-triggered
        // item would be reported endlessly.
        let listed = self.shared.ready.lock().len();
        for at in 0..listed {
            if count == most {
                break;
            }
            rest_at(at);
            let Some(slot) = self.shared.ready.lock().pop() else { break };
            let Some(item) = items.at(slot).cloned() else { continue };
            // Cleared before the file is polled: a change after the poll lists the item again.
            item.listed.store(false, Ordering::SeqCst);
            let Some(file) = item.file.upgrade() else {
                // The file is closed, which ends the watch without a call.
                self.retire(&mut items, &item);
                continue;
            };
            let events = item.ready(&file);
            items = self.let_go(items, file);
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

    /// Whether a listed item is really ready. Items that are not are unlisted.
    fn has_ready(&self) -> bool {
        let mut items = self.items.lock();
        let listed = self.shared.ready.lock().len();
        for at in 0..listed {
            rest_at(at);
            let Some(slot) = self.shared.ready.lock().pop() else { break };
            let Some(item) = items.at(slot).cloned() else { continue };
            item.listed.store(false, Ordering::SeqCst);
            match item.file.upgrade() {
                None => self.retire(&mut items, &item),
                Some(file) => {
                    let is_ready = item.ready(&file) != 0;
                    if is_ready {
                        item.list();
                    }
                    items = self.let_go(items, file);
                    if is_ready {
                        return true;
                    }
                }
            }
        }
        false
    }

    /// Drops a reference to a watched file. Dropping the last one closes the file, and this may
    /// wait for a task that waits for `items`. So `items` is unlocked meanwhile.
    #[inline]
    fn let_go<'a>(
        &'a self,
        items: MutexGuard<'a, Items<Item>>,
        file: Arc<OpenFile>,
    ) -> MutexGuard<'a, Items<Item>> {
        let Some(last) = file.into_last() else { return items };
        drop(items);
        drop(last);
        self.items.lock()
    }

    fn may_have_ready(&self) -> bool {
        self.shared.ready.lock().len() > 0
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        for (at, item) in self.items.get_mut().drain().enumerate() {
            self.account.uncharge(1);
            rest_at(at);
            let observing = item.observing.lock().take();
            drop(observing);
            if let Some(file) = item.file.upgrade() {
                file.remove_watcher(&watcher_of(&item));
            }
        }
    }
}

/// Returns the item of `items` that watches `file` as `fd`. If the file has a single watcher, the
/// item is found through the file.
fn watched(items: &Items<Item>, fd: i32, file: &OpenFile) -> Result<Arc<Item>> {
    let sole = file.sole_watcher::<Item>().filter(|item| item.fd == fd && items.has(item.slot, item));
    match sole {
        Some(item) => Ok(item),
        None => items.find(key(fd, file)).cloned(),
    }
}

fn watcher_of(item: &Arc<Item>) -> Weak<dyn Watcher> {
    let weak: Weak<Item> = item.downgrade();
    weak
}

/// An epoll instance, opened.
struct EpollFile(Arc<Epoll>);

impl File for EpollFile {
    fn node(&self) -> Arc<dyn Node> {
        self.0.node.clone()
    }

    fn describe_from(&self, from: u64, line: Line<'_>) -> Result<Option<u64>> {
        // Locks `items` only for this lookup: the file may end afterwards, with `items` unlocked.
        let (item, slots) = {
            let items = self.0.items.lock_killable()?;
            (usize::try_from(from).ok().and_then(|slot| items.at(slot).cloned()), items.slots())
        };
        if let Some(item) = item
            && let Some(file) = item.file.upgrade()
        {
            let Interest { events, data } = *item.interest.lock();
            let identity = file.node().identity();
            let (major, minor) = split_device(identity.device);
            line(format_args!(
                "tfd: {:8} events: {events:8x} data: {data:16x}  pos:0 ino:{:x} sdev:{:x}",
                item.fd,
                identity.inode,
                major << 20 | minor
            ));
        }
        Ok((from + 1 < slots as u64).then_some(from + 1))
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
