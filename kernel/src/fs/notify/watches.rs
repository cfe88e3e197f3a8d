//! The watches of all inodes.
//!
//! A watched inode has one entry, which lists its watches by key. Entries are found by the
//! inode's identity in one of several maps, each with a lock of its own (a *stripe*). The entry
//! holds a reference to the inode while the inode has a name. When the last name is removed, the
//! entry drops its reference. The inode then ends with its last user, and this ends the watches.
//! Linux' relatives are `struct fsnotify_mark_connector` and `fsnotify_inoderemove`.

use core::ops::Bound;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};

use freehold_collections::{Arc, Map, Receiver, reserve::ArcMethods};

use super::account::Charge;
use super::fanotify::{FanMask, Mark};
use super::instance::{Instance, Readers};
use super::queue::EventRecord;
use super::{Events, FileEvent};
use crate::Result;
use crate::fs::node::{Identity, Node, NodeKind, Presence};
use crate::sync::{News, SpinLock, SpinLockGuard, Wake};

/// The number of watches in the system.
pub(super) static COUNT: AtomicUsize = AtomicUsize::new(0);

/// The place of a watch among those of its inode: 0 and the number of an instance, or the numbers
/// of a table of descriptors and of an open description, or a number from [`FIRST_MARK`] on and the
/// number of a fanotify group.
pub(super) type WatchKey = [u64; 2];

/// The first key of fanotify's marks.
pub(super) const FIRST_MARK: u64 = u64::MAX - 2;

/// The receiver of a watch's events.
pub(super) enum EventTarget {
    /// An instance, which queues them.
    Instance(Arc<Instance>),
    /// A holder, which is told of each.
    Holder(Arc<dyn Wake>),
    /// A fanotify group, which is told by [`super::fanotify`].
    Mark(Mark),
}

/// A watch of one inode.
pub(super) struct InodeWatch {
    pub key: WatchKey,
    pub target: EventTarget,
    /// The watch descriptor; 0 for a holder.
    pub number: i32,
    pub identity: Identity,
    /// Requested events, and flags.
    pub mask: AtomicU32,
    pub _charge: Option<Charge>,
}

/// Work that remains after an event, to be done without the stripe's lock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    Nothing,
    /// Readers, or the holder, must be notified.
    Tell,
    /// The watch was for one event (IN_ONESHOT) and must be ended, which notifies readers.
    End,
}

impl InodeWatch {
    pub fn mask(&self) -> Events {
        Events::from_bits_retain(self.mask.load(Ordering::Relaxed))
    }

    /// Queues `event` if the mask requests it.
    fn tell(&self, event: &FileEvent<'_>) -> Rest {
        let mask = self.mask();
        let always = match self.target {
            EventTarget::Instance(_) => Events::UNMOUNT,
            EventTarget::Holder(_) => Events::empty(),
            EventTarget::Mark(_) => return Rest::Nothing,
        };
        let is_asked_for = event.events.intersects(mask & Events::ANSWERED | always);
        let is_excluded = mask.contains(Events::EXCL_UNLINK) && event.presence == Presence::Removed;
        if !is_asked_for || is_excluded {
            return Rest::Nothing;
        }
        let readers = match &self.target {
            EventTarget::Instance(instance) => {
                let events = event.events.difference(Events::OPENED_TO_RUN);
                instance.queue(&EventRecord::new(self.number, events, event.cookie, event.name))
            }
            EventTarget::Holder(_) => Readers::Wait,
            EventTarget::Mark(_) => Readers::None,
        };
        match readers {
            _ if mask.contains(Events::ONESHOT) => Rest::End,
            Readers::Wait => Rest::Tell,
            Readers::None => Rest::Nothing,
        }
    }

    /// Notifies readers, or the holder. The caller holds no spin lock.
    fn announce(&self) {
        match &self.target {
            EventTarget::Instance(instance) => instance.tell_readers(),
            EventTarget::Holder(holder) => holder.announce(News::Message),
            EventTarget::Mark(_) => {}
        }
    }

    /// Adds the requests of `other`, which this watch replaces.
    fn take_over(&self, other: &Self) {
        let (own, others) = (self.mask(), other.mask());
        let differing_ends = (own ^ others) & Events::ONESHOT;
        self.mask.store((own | others).difference(differing_ends).bits(), Ordering::Relaxed);
    }
}

/// The reference of an entry to its inode.
enum Pin {
    /// The entry keeps the inode.
    Held(Arc<dyn Node>),
    /// The inode has no name. Its address identifies it until its end.
    Nameless(usize),
    /// The identity stands for a mount or a file system.
    NoInode,
}

struct Watched {
    pin: Pin,
    watches: Map<WatchKey, Arc<InodeWatch>>,
}

/// Number of watches that are visited per acquisition of a stripe's lock: an inode may have as many
/// as there are open files.
const VISITED_AT_ONCE: usize = 64;

/// Visits the watches of an inode from behind `last` on, by key, until `visit` returns a value.
/// Returns it with the locked stripe, and stores the key in `last`.
fn visit<R>(
    identity: Identity,
    last: &mut Option<WatchKey>,
    mut visit: impl FnMut(&Arc<InodeWatch>) -> Option<R>,
) -> Option<(R, SpinLockGuard<'static, Map<Identity, Watched>>)> {
    loop {
        let entries = stripe(identity).lock();
        let watched = entries.get(&identity)?;
        let mut later = watched.watches.iter_from(last.as_ref().map_or(Bound::Unbounded, Bound::Excluded));
        let found = later.by_ref().take(VISITED_AT_ONCE).find_map(|(key, watch)| {
            *last = Some(*key);
            visit(watch)
        });
        if let Some(found) = found {
            return Some((found, entries));
        }
        later.next()?;
        drop(entries);
        crate::sched::cond_resched();
    }
}

const STRIPES: usize = 16;
type Stripe = SpinLock<Map<Identity, Watched>>;
static ENTRIES: [Stripe; STRIPES] = [const { SpinLock::new(Map::new()) }; STRIPES];

fn stripe(identity: Identity) -> &'static Stripe {
    &ENTRIES[identity.inode as usize % STRIPES]
}

fn address(node: &Arc<dyn Node>) -> usize {
    node.address().cast::<()>().addr()
}

/// Returns the union of the masks of an inode's watches.
pub(super) fn interest(identity: Identity) -> Events {
    let mut all = Events::empty();
    let add = |watch: &Arc<InodeWatch>| -> Option<()> {
        all |= watch.mask();
        None
    };
    visit(identity, &mut None, add);
    all
}

/// Queues `event` for all watches of the inode that request it.
pub(super) fn tell(identity: Identity, event: &FileEvent<'_>) {
    let mut last = None;
    loop {
        let told = visit(identity, &mut last, |watch| match watch.tell(event) {
            Rest::Nothing => None,
            rest => Some((watch.clone(), rest)),
        });
        let Some(((watch, rest), mut entries)) = told else { return };
        let gone = if rest == Rest::End { remove(&mut entries, &watch) } else { None };
        drop(entries);
        watch.announce();
        if gone.is_some() {
            watch.end();
        }
    }
}

/// Takes `watch` out of its inode's entry, and removes an empty entry. Returns `None` if the watch
/// is not in the entry any more. The caller drops the result without the lock: it may be the
/// inode's last user.
fn remove(
    entries: &mut Map<Identity, Watched>,
    watch: &InodeWatch,
) -> Option<(Arc<InodeWatch>, Option<Watched>)> {
    let watched = entries.get_mut(&watch.identity)?;
    // Meanwhile the instance may have a new watch of the inode.
    watched.watches.get(&watch.key).filter(|other| other.number == watch.number)?;
    let gone = watched.watches.remove(&watch.key)?;
    let entry = if watched.watches.is_empty() { entries.remove(&watch.identity) } else { None };
    Some((gone, entry))
}

impl InodeWatch {
    /// Adds the watch to the inode's entry. The caller has the turn of the instance, which does not
    /// watch the inode yet. A holder's watch replaces an older one with the same key.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn attach(self: &Receiver<Self>, node: &Arc<dyn Node>) -> Result<()> {
        self.enter(Pin::Held(node.clone()))?;
        // The inode's last name may have been removed before the entry existed, or before COUNT was
        // above 0.
        fence(Ordering::SeqCst);
        let_go_if_nameless(node);
        Ok(())
    }

    /// Like [`attach`](Self::attach), for a mount or a file system.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn attach_to_many(self: &Receiver<Self>) -> Result<()> {
        self.enter(Pin::NoInode)
    }

    fn enter(self: &Receiver<Self>, pin: Pin) -> Result<()> {
        // Counted first: a hook that reads 0 looks for no entry.
        COUNT.fetch_add(1, Ordering::SeqCst);
        let (mut unused, mut spare) = (None, Some(pin));
        let attached = {
            let mut entries = stripe(self.identity).lock();
            let entered = match entries.get(&self.identity) {
                Some(_) => Ok(()),
                None => {
                    let watched = Watched { pin: spare.take().unwrap_or(Pin::NoInode), watches: Map::new() };
                    entries.try_insert(self.identity, watched).map(drop)
                }
            };
            let added = entered.and_then(|()| match entries.get_mut(&self.identity) {
                Some(watched) => {
                    if let Some(before) = watched.watches.get(&self.key) {
                        self.take_over(before);
                    }
                    watched.watches.try_insert(self.key, self.clone())
                }
                None => Ok(None),
            });
            if entries.get(&self.identity).is_some_and(|watched| watched.watches.is_empty()) {
                unused = entries.remove(&self.identity);
            }
            added
        };
        drop((unused, spare));
        if !matches!(attached, Ok(None)) {
            COUNT.fetch_sub(1, Ordering::SeqCst);
        }
        attached.map(drop).map_err(Into::into)
    }

    /// Takes the watch out of its entry. Returns whether it was there. If so, the caller must end
    /// the watch.
    pub fn detach(&self) -> bool {
        let gone = remove(&mut stripe(self.identity).lock(), self);
        gone.is_some()
    }

    /// Queues IN_IGNORED. The watch was detached before, so no event follows.
    pub fn end(&self) {
        COUNT.fetch_sub(1, Ordering::SeqCst);
        let instance = match &self.target {
            EventTarget::Instance(instance) => instance,
            EventTarget::Holder(_) => return,
            EventTarget::Mark(mark) => return mark.ended(self.number),
        };
        instance.forget(self.number);
        instance.queue(&EventRecord::new(self.number, Events::IGNORED, 0, b""));
        instance.tell_readers();
    }
}

/// Calls `change` with the inode's watch that has this key, if there is one.
pub(super) fn with_watch<R>(
    identity: Identity,
    key: WatchKey,
    change: impl FnOnce(&InodeWatch) -> R,
) -> Option<R> {
    let entries = stripe(identity).lock();
    entries.get(&identity)?.watches.get(&key).map(|watch| change(watch))
}

/// Returns the watch of an inode, mount or file system that has this key, if there is one.
pub(super) fn find(identity: Identity, key: WatchKey) -> Option<Arc<InodeWatch>> {
    stripe(identity).lock().get(&identity)?.watches.get(&key).cloned()
}

/// Ends the inode's watch that has this key, if there is one.
pub(super) fn end(identity: Identity, key: WatchKey) {
    let mut entries = stripe(identity).lock();
    let watch = entries.get(&identity).and_then(|watched| watched.watches.get(&key)).cloned();
    let gone = watch.as_ref().and_then(|watch| remove(&mut entries, watch));
    drop(entries);
    if gone.is_some()
        && let Some(watch) = watch
    {
        watch.end();
    }
}

/// Drops the entry's reference if the inode has no name. The caller has its own reference.
pub(super) fn let_go_if_nameless(node: &Arc<dyn Node>) {
    if node.is_nameless() {
        let nameless = Pin::Nameless(address(node));
        let before = replace_pin(node, nameless);
        drop(before);
    }
}

/// Gives the entry a reference again, since the inode has got a name.
pub(super) fn keep(node: &Arc<dyn Node>) {
    let before = replace_pin(node, Pin::Held(node.clone()));
    drop(before);
    // Meanwhile all names may have been removed.
    let_go_if_nameless(node);
}

fn replace_pin(node: &Arc<dyn Node>, pin: Pin) -> Option<Pin> {
    let identity = node.identity();
    let mut entries = stripe(identity).lock();
    entries.get_mut(&identity).map(|watched| core::mem::replace(&mut watched.pin, pin))
}

/// Ends all watches of an entry; each gets `event` first.
fn end_all(mut watched: Watched, event: &FileEvent<'_>) {
    while let Some((_, watch)) = watched.watches.pop_first() {
        if let EventTarget::Mark(mark) = &watch.target
            && event.events.contains(Events::DELETE_SELF)
        {
            mark.object_deleted(FanMask::from_bits_retain(watch.mask().bits()));
        }
        if watch.tell(event) != Rest::Nothing {
            watch.announce();
        }
        watch.end();
        crate::sched::cond_resched();
    }
}

/// Ends the watches of the inode that was at `address`.
pub(super) fn inode_ended(identity: Identity, address: usize) {
    let mut entries = stripe(identity).lock();
    let is_it = |watched: &Watched| matches!(watched.pin, Pin::Nameless(ended) if ended == address);
    let gone = if entries.get(&identity).is_some_and(is_it) { entries.remove(&identity) } else { None };
    drop(entries);
    if let Some(watched) = gone {
        end_all(watched, &FileEvent::of_inode(Events::DELETE_SELF));
    }
}

/// The first watched inode of a file system, of those in one stripe.
fn first_in(entries: &Map<Identity, Watched>, device: u64) -> Option<Identity> {
    let first = entries.first_from(Bound::Included(&Identity { device, inode: 0 }));
    first.map(|(&identity, _)| identity).filter(|found| found.device == device)
}

/// Whether an inode of this file system is watched.
pub(super) fn any_in(device: u64) -> bool {
    ENTRIES.iter().any(|stripe| first_in(&stripe.lock(), device).is_some())
}

/// Returns the next fanotify mark of an inode, mount or file system behind the key `last`.
pub(super) fn mark_after(identity: Identity, last: WatchKey) -> Option<Arc<InodeWatch>> {
    let entries = stripe(identity).lock();
    let mut later = entries.get(&identity)?.watches.iter_from(Bound::Excluded(&last));
    later.next().map(|(_, watch)| watch.clone())
}

/// Ends the marks of a mount or of a file system as a whole.
pub(super) fn end_marks(identity: Identity) {
    let gone = stripe(identity).lock().remove(&identity);
    if let Some(watched) = gone {
        end_all(watched, &FileEvent::of_inode(Events::UNMOUNT));
    }
}

/// Ends the watches of all inodes of a file system that is not mounted any more.
pub(super) fn unmounted(device: u64) {
    for stripe in &ENTRIES {
        loop {
            let mut entries = stripe.lock();
            let Some(identity) = first_in(&entries, device) else { break };
            let gone = entries.remove(&identity);
            drop(entries);
            if let Some(watched) = gone {
                let is_directory =
                    matches!(&watched.pin, Pin::Held(node) if node.kind() == NodeKind::Directory);
                let kind = if is_directory { Events::ISDIR } else { Events::empty() };
                end_all(watched, &FileEvent::of_inode(Events::UNMOUNT | kind));
            }
        }
    }
}
