//! An inotify instance: its watches by number, and the events that wait in it.

use core::ops::Bound;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use freehold_collections::{Arc, Map, Receiver, reserve};
use linux_raw_sys::ioctl;

use super::Events;
use super::account::{Charge, MAX_QUEUED_EVENTS, Resource};
use super::queue::{EventRecord, Queue, Queued, Taken};
use super::watches::{self, EventTarget, InodeWatch};
use crate::fs::anonymous::AnonymousNode;
use crate::fs::device::split_device;
use crate::fs::file::{Line, NewsOwner, NewsQueues};
use crate::fs::{Blocking, File, Identity, Node, NodeKind, Ready};
use crate::sync::{Mutex, News, PollWaiter, SpinLock, WaitQueue};
use crate::user::{Sink, UserPtr};
use crate::{Errno, Result};

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Whether the readers must be notified: tasks wait for events, or signals report them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Readers {
    None,
    Wait,
}

/// An inotify instance; see the documentation of [`super`].
pub(super) struct Instance {
    /// Unique number, never reused.
    pub id: u64,
    queue: SpinLock<Queue>,
    changed: Arc<WaitQueue>,
    watches: SpinLock<Map<i32, Arc<InodeWatch>>>,
    /// The number of the latest watch. Locked while calls add and remove watches.
    turn: Mutex<i32>,
    user: u32,
    _charge: Charge,
}

impl Instance {
    /// Queues an event. Takes the queue's lock only. Returns whether the caller must
    /// [notify](Self::tell_readers) readers, without holding a lock.
    pub fn queue(&self, event: &EventRecord) -> Readers {
        let queued = self.queue.lock().add(event);
        if queued == Queued::Added && !self.changed.is_empty() { Readers::Wait } else { Readers::None }
    }

    /// Wakes readers, and sends the signals of signal-driven I/O.
    pub fn tell_readers(&self) {
        self.changed.announce(News::Input);
    }

    /// Forgets the number of a watch that has ended.
    pub fn forget(&self, number: i32) {
        let gone = self.watches.lock().remove(&number);
        drop(gone);
    }

    /// Returns the next free number after `latest`.
    fn free_number(&self, latest: i32) -> i32 {
        let watches = self.watches.lock();
        let mut number = latest;
        loop {
            number = number.checked_add(1).unwrap_or(1);
            if !watches.contains_key(&number) {
                return number;
            }
        }
    }

    fn add(self: &Receiver<Self>, node: &Arc<dyn Node>, mask: Events) -> Result<i32> {
        let mut latest = self.turn.lock();
        let identity = node.identity();
        let kept = mask & Events::KEPT;
        let key = [0, self.id];
        let changed = watches::with_watch(identity, key, |watch| {
            if mask.contains(Events::MASK_CREATE) {
                return Err(Errno::EEXIST);
            }
            let before = if mask.contains(Events::MASK_ADD) { watch.mask() } else { Events::empty() };
            watch.mask.store((before | kept).bits(), Ordering::Relaxed);
            Ok(watch.number)
        });
        if let Some(changed) = changed {
            return changed;
        }
        let charge = Charge::new(self.user, Resource::Watch)?;
        let number = self.free_number(*latest);
        let mask = AtomicU32::new(kept.bits());
        let target = EventTarget::Instance(self.clone());
        let watch = InodeWatch { key, target, number, identity, mask, _charge: Some(charge) };
        let watch = reserve::arc(watch);
        // The watch is entered in the map first: it may end as soon as it is attached.
        self.watches.lock().try_insert(number, watch.clone())?;
        if let Err(error) = watch.attach(node) {
            self.forget(number);
            return Err(error);
        }
        *latest = number;
        Ok(number)
    }

    fn remove(&self, number: i32) -> Result<()> {
        let _turn = self.turn.lock();
        let watch = self.watches.lock().get(&number).cloned().ok_or(Errno::EINVAL)?;
        if watch.detach() {
            watch.end();
        }
        Ok(())
    }

    /// Ends all watches without events. The file is closed, so no call adds one.
    fn close(&self) {
        loop {
            let watch = self.watches.lock().pop_first();
            let Some((_, watch)) = watch else { return };
            if watch.detach() {
                watches::COUNT.fetch_sub(1, Ordering::SeqCst);
            }
            crate::sched::cond_resched();
        }
    }
}

/// An instance, opened.
pub struct InotifyFile {
    instance: Arc<Instance>,
    node: Arc<dyn Node>,
}

impl InotifyFile {
    /// Makes an instance of `user`.
    ///
    /// # Errors
    /// `EMFILE` if the user has reached the limit; `ENOMEM`.
    pub fn open(user: u32) -> Result<Arc<dyn File>> {
        let charge = Charge::new(user, Resource::Instance)?;
        let instance = Instance {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            queue: SpinLock::new(Queue::new(MAX_QUEUED_EVENTS.get() as usize)),
            changed: reserve::arc(WaitQueue::new()),
            watches: SpinLock::new(Map::new()),
            turn: Mutex::new(0),
            user,
            _charge: charge,
        };
        let node = AnonymousNode::plain(NodeKind::Regular, "anon_inode:inotify");
        Ok(reserve::arc(Self { instance: reserve::arc(instance), node }))
    }

    /// Watches `node`, or changes the events of its watch. Returns the watch's number.
    ///
    /// # Errors
    /// `EEXIST` for IN_MASK_CREATE if the node is already watched; `ENOSPC`, `ENOMEM`.
    pub fn add(&self, node: &Arc<dyn Node>, mask: Events) -> Result<i32> {
        self.instance.add(node, mask)
    }

    /// Ends a watch.
    ///
    /// # Errors
    /// `EINVAL` if there is no watch with this number.
    pub fn remove(&self, number: i32) -> Result<()> {
        self.instance.remove(number)
    }
}

impl Drop for InotifyFile {
    fn drop(&mut self) {
        self.instance.close();
    }
}

impl File for InotifyFile {
    fn node(&self) -> Arc<dyn Node> {
        self.node.clone()
    }

    fn read_at(&self, _offset: u64, sink: &mut dyn Sink, blocking: Blocking) -> Result<usize> {
        let mut done = 0;
        loop {
            let room = sink.remaining();
            let take = || self.instance.queue.lock().take(room);
            let taken = match take() {
                Some(taken) => taken,
                None if done > 0 => return Ok(done),
                None => blocking.until(&self.instance.changed, take)?,
            };
            let Taken::Event(event) = taken else {
                return if done > 0 { Ok(done) } else { Err(Errno::EINVAL) };
            };
            // If a part of an event cannot be copied, the event is lost, as on Linux.
            if sink.put(event.bytes())? < event.bytes().len() {
                return Err(Errno::EFAULT);
            }
            done += event.bytes().len();
        }
    }

    fn poll(&self, waiter: Option<&mut PollWaiter>) -> Ready {
        if let Some(waiter) = waiter {
            waiter.register(&self.instance.changed);
        }
        if self.instance.queue.lock().is_empty() { Ready::empty() } else { Ready::IN }
    }

    fn news(&self) -> Option<NewsQueues<'_>> {
        Some(NewsQueues { queues: [Some(&self.instance.changed), None], owner: NewsOwner::None })
    }

    /// The watches, in base 16 as on Linux. It shows no file handles.
    fn describe_from(&self, from: u64, line: Line<'_>) -> Result<Option<u64>> {
        let Ok(from) = i32::try_from(from) else { return Ok(None) };
        let (number, Identity { device, inode }, mask) = {
            let watches = self.instance.watches.lock();
            let Some((&number, watch)) = watches.first_from(Bound::Included(&from)) else { return Ok(None) };
            (number, watch.identity, watch.mask().bits())
        };
        let (major, minor) = split_device(device);
        let device = major << 20 | minor;
        line(format_args!(
            "inotify wd:{number:x} ino:{inode:x} sdev:{device:x} mask:{mask:x} ignored_mask:0 "
        ));
        Ok(Some(number as u64 + 1))
    }

    fn ioctl(&self, request: u32, argument: u64) -> Result<i64> {
        if request != ioctl::FIONREAD {
            return Err(Errno::ENOTTY);
        }
        let bytes = self.instance.queue.lock().bytes();
        UserPtr::new(argument).write(&(bytes as i32)).map(|()| 0)
    }
}
