//! The watches of all inodes.
//!
//! A watched inode has one entry, which lists its watches by instance. Entries are found by the
//! inode's identity in one of several maps, each with a lock of its own (a *stripe*). The entry
//! holds a reference to the inode while the inode has a name. When the last name is removed, the
//! entry drops its reference. The inode then ends with its last user, and this ends the watches.
//! Linux' relatives are `struct fsnotify_mark_connector` and `fsnotify_inoderemove`.

use core::ops::Bound;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use freehold_collections::{Arc, Map, Receiver, reserve::ArcMethods};

use super::account::Charge;
use super::instance::{Instance, Readers};
use super::queue::EventRecord;
use super::{Events, FileEvent};
use crate::Result;
use crate::fs::node::{Identity, Node, NodeKind, Presence};
use crate::sync::SpinLock;

/// The number of watches in the system.
pub(super) static COUNT: AtomicUsize = AtomicUsize::new(0);

/// One instance's watch of one inode.
pub(super) struct InodeWatch {
    pub instance: Arc<Instance>,
    /// The watch descriptor.
    pub number: i32,
    pub identity: Identity,
    /// Requested events, and flags.
    pub mask: AtomicU32,
    pub _charge: Charge,
}

/// Work that remains after an event, to be done without the stripe's lock.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    Nothing,
    /// Readers must be notified.
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
        let is_asked_for = event.events.intersects(mask & Events::ASKABLE | Events::UNMOUNT);
        let is_excluded = mask.contains(Events::EXCL_UNLINK) && event.presence == Presence::Removed;
        if !is_asked_for || is_excluded {
            return Rest::Nothing;
        }
        let record = EventRecord::new(self.number, event.events, event.cookie, event.name);
        match self.instance.queue(&record) {
            _ if mask.contains(Events::ONESHOT) => Rest::End,
            Readers::Wait => Rest::Tell,
            Readers::None => Rest::Nothing,
        }
    }
}

/// The reference of an entry to its inode.
enum Pin {
    /// The entry keeps the inode.
    Held(Arc<dyn Node>),
    /// The inode has no name. Its address identifies it until its end.
    Nameless(usize),
}

struct Watched {
    pin: Pin,
    /// Watches by the instance's number.
    watches: Map<u64, Arc<InodeWatch>>,
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
    let entries = stripe(identity).lock();
    entries.get(&identity).map_or(Events::empty(), |watched| {
        watched.watches.values().fold(Events::empty(), |all, watch| all | watch.mask())
    })
}

/// Queues `event` for all watches of the inode that request it.
pub(super) fn tell(identity: Identity, event: &FileEvent<'_>) {
    let mut next = 0;
    loop {
        let mut entries = stripe(identity).lock();
        let Some(watched) = entries.get(&identity) else { return };
        let mut later = watched.watches.iter_from(Bound::Included(&next));
        let found = later.find_map(|(_, watch)| match watch.tell(event) {
            Rest::Nothing => None,
            rest => Some((watch.clone(), rest)),
        });
        let Some((watch, rest)) = found else { return };
        let gone = if rest == Rest::End { remove(&mut entries, &watch) } else { None };
        drop(entries);
        next = watch.instance.id + 1;
        watch.instance.tell_readers();
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
    watched.watches.get(&watch.instance.id).filter(|other| other.number == watch.number)?;
    let gone = watched.watches.remove(&watch.instance.id)?;
    let entry = if watched.watches.is_empty() { entries.remove(&watch.identity) } else { None };
    Some((gone, entry))
}

impl InodeWatch {
    /// Adds the watch to the inode's entry. The caller has the turn of the instance, which does not
    /// watch the inode yet.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn attach(self: &Receiver<Self>, node: &Arc<dyn Node>) -> Result<()> {
        // Counted first: a hook that reads 0 looks for no entry.
        COUNT.fetch_add(1, Ordering::SeqCst);
        let mut unused = None;
        let attached = {
            let mut entries = stripe(self.identity).lock();
            let entered = match entries.get(&self.identity) {
                Some(_) => Ok(()),
                None => {
                    let watched = Watched { pin: Pin::Held(node.clone()), watches: Map::new() };
                    entries.try_insert(self.identity, watched).map(drop)
                }
            };
            let added = entered.and_then(|()| match entries.get_mut(&self.identity) {
                Some(watched) => watched.watches.try_insert(self.instance.id, self.clone()).map(drop),
                None => Ok(()),
            });
            if entries.get(&self.identity).is_some_and(|watched| watched.watches.is_empty()) {
                unused = entries.remove(&self.identity);
            }
            added
        };
        drop(unused);
        if let Err(error) = attached {
            COUNT.fetch_sub(1, Ordering::SeqCst);
            return Err(error.into());
        }
        // The inode's last name may have been removed before the entry existed.
        let_go_if_nameless(node);
        Ok(())
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
        self.instance.forget(self.number);
        self.instance.queue(&EventRecord::new(self.number, Events::IGNORED, 0, b""));
        self.instance.tell_readers();
    }
}

/// Calls `change` with the instance's watch of the inode, if there is one.
pub(super) fn with_watch<R>(
    identity: Identity,
    instance: u64,
    change: impl FnOnce(&InodeWatch) -> R,
) -> Option<R> {
    let entries = stripe(identity).lock();
    entries.get(&identity)?.watches.get(&instance).map(|watch| change(watch))
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
}

fn replace_pin(node: &Arc<dyn Node>, pin: Pin) -> Option<Pin> {
    let identity = node.identity();
    let mut entries = stripe(identity).lock();
    entries.get_mut(&identity).map(|watched| core::mem::replace(&mut watched.pin, pin))
}

/// Ends all watches of an entry; each gets `event` first.
fn end_all(mut watched: Watched, event: &FileEvent<'_>) {
    while let Some((_, watch)) = watched.watches.pop_first() {
        if watch.tell(event) != Rest::Nothing {
            watch.instance.tell_readers();
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
