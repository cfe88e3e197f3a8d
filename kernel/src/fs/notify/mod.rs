//! inotify(7), fanotify(7) and F_NOTIFY: notify programs of events on files.
//!
//! Code that uses a file or changes a name calls one of the hooks here: [`file()`] for an open
//! file, [`place()`] for a path, [`node()`] for an inode alone, [`entry()`] for a name in a
//! directory. Each hook loads the number of watches first and returns if it is 0. Linux' relatives
//! are the hooks of `include/linux/fsnotify.h`. Linux' group is an instance here, its mark a watch.
//!
//! | module | concept |
//! |---|---|
//! | [`queue`] | events that wait to be read |
//! | [`instance`] | an instance as a file: its watches by number, its queue |
//! | [`watches`] | the watches of an inode, found by its identity |
//! | [`dnotify`] | signals to the owner of an open directory (F_NOTIFY) |
//! | [`fanotify`] | marks, and groups that are told of events or asked for permission |
//! | [`account`] | instances, groups, watches and marks per user, and the limits |
//! | [`calls`] | the system calls |
//!
//! **Protocol.** An event is queued while the inode's stripe is locked and the watch is in the
//! inode's entry. Five things end a watch: inotify_rm_watch, an event with IN_ONESHOT, the inode's
//! end, an unmount, the instance's close. Each first takes the watch out of the entry under the
//! stripe's lock. The first to do so ends the watch and queues IN_IGNORED, except for the close. So
//! a watch has at most one IN_IGNORED, and no event follows it. A watch is in its instance's map
//! before it is in an entry. `model.rs` explores these steps.
//!
//! **Names of open files.** On Linux an event goes to the parent of the directory entry through
//! which the file was opened, and a rename moves the entry. Here a path keeps the name by which the
//! file was found ([`PathEntry`]). After any rename that name is looked up again. A file that has
//! another name now is searched for in the same directory. A file that was moved to another
//! directory while it was open is not found there, and no directory is notified. Linux notifies the
//! new directory.
//!
//! **Lock order.** Instance's turn (sleeping) > instance's map; stripe > queue > wait queue;
//! accounts are last. Stripe and map are never held together. All but the turn are spin locks:
//! under them allocations are fallible, nothing sleeps, and no reference to an inode is dropped.
//! Hooks may sleep if a name must be looked up on a share.

mod account;
pub mod calls;
pub mod dnotify;
pub mod fanotify;
mod instance;
#[cfg(test)]
mod model;
mod queue;
#[cfg(test)]
pub(in crate::fs) mod tests;
mod watches;

use core::sync::atomic::{AtomicU32, Ordering, fence};

use bitflags::bitflags;
use freehold_collections::Arc;

pub use account::{
    Limit, MAX_GROUP_EVENTS, MAX_QUEUED_EVENTS, MAX_USER_GROUPS, MAX_USER_INSTANCES, MAX_USER_MARKS,
    MAX_USER_WATCHES,
};
pub use instance::InotifyFile;

use super::metadata::KeptNames;
use super::node::{Identity, Node, NodeKind, Presence, SetMetadata};
use super::open_file::OpenFile;
use super::path::{self, Path, PathEntry};
use super::{OpenFlags, RenameFlags};
use crate::{Errno, Result};
use fanotify::NamePlace;

bitflags! {
    /// The bits of a watch's mask and of an event, with inotify(7)'s values.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Events: u32 {
        /// Read.
        const ACCESS = 0x1;
        /// Written, or truncated.
        const MODIFY = 0x2;
        /// Metadata changed.
        const ATTRIB = 0x4;
        /// Closed; it was open for writing.
        const CLOSE_WRITE = 0x8;
        /// Closed; it was not open for writing.
        const CLOSE_NOWRITE = 0x10;
        /// Opened.
        const OPEN = 0x20;
        /// A name was moved out of the directory.
        const MOVED_FROM = 0x40;
        /// A name was moved into the directory.
        const MOVED_TO = 0x80;
        /// A name was made in the directory.
        const CREATE = 0x100;
        /// A name was removed from the directory.
        const DELETE = 0x200;
        /// The inode itself has ended.
        const DELETE_SELF = 0x400;
        /// The inode itself was renamed.
        const MOVE_SELF = 0x800;
        /// Opened by execve. Reported by fanotify only.
        const OPENED_TO_RUN = 0x1000;
        /// A name changed to another one of the same directory (Linux: FS_RENAME for F_NOTIFY).
        const RENAMED_WITHIN = 0x80_0000;
        /// The file system was unmounted.
        const UNMOUNT = 0x2000;
        /// Events were lost.
        const Q_OVERFLOW = 0x4000;
        /// The watch has ended.
        const IGNORED = 0x8000;
        /// Watch directories only.
        const ONLYDIR = 0x0100_0000;
        /// Do not follow a symbolic link.
        const DONT_FOLLOW = 0x0200_0000;
        /// Report no events of files whose name was removed.
        const EXCL_UNLINK = 0x0400_0000;
        /// Only make a new watch; do not change one.
        const MASK_CREATE = 0x1000_0000;
        /// Add to the requested events.
        const MASK_ADD = 0x2000_0000;
        /// The event is about a directory.
        const ISDIR = 0x4000_0000;
        /// Report one event only.
        const ONESHOT = 0x8000_0000;

        /// Events that can be requested.
        const ASKABLE = 0xfff;
        /// Events that a watch looks for.
        const ANSWERED = Self::ASKABLE.bits() | Self::RENAMED_WITHIN.bits();
        /// Part of a mask that a watch keeps.
        const KEPT = Self::ASKABLE.bits() | Self::EXCL_UNLINK.bits() | Self::ONESHOT.bits();
    }
}

/// An event, as passed to the watches. Linux' relative is `fsnotify()`'s arguments.
struct FileEvent<'a> {
    events: Events,
    /// Connects the two events of a rename.
    cookie: u32,
    /// The name in the watched directory; empty if the event is about the watched inode itself.
    name: &'a [u8],
    /// Whether the name through which an open file was used still exists.
    presence: Presence,
}

impl FileEvent<'_> {
    const fn of_inode(events: Events) -> Self {
        Self { events, cookie: 0, name: b"", presence: Presence::Linked }
    }
}

/// Returns whether there is any watch. Without watches, this is the whole cost of a hook.
#[inline(always)]
pub fn is_watching() -> bool {
    watches::COUNT.load(Ordering::Relaxed) != 0
}

static COOKIE: AtomicU32 = AtomicU32::new(1);

/// Notifies watches of an event on an open file.
#[inline]
pub fn file(file: &OpenFile, events: Events) {
    if is_watching() {
        tell_file(file, events);
    }
}

#[cold]
fn tell_file(file: &OpenFile, events: Events) {
    if let Some(path) = told_path(file) {
        tell_place(path, events, ByFile::Yes);
    }
}

/// Returns the place of a file whose use is an event.
fn told_path(file: &OpenFile) -> Option<&Path> {
    file.path().filter(|_| !file.flags().intersects(OpenFlags::PATH | OpenFlags::UNNOTIFIED))
}

/// Asks whether the file at `path` may be opened, by execve if `events` says so.
///
/// # Errors
/// `EPERM` if a fanotify group denies it; `EINTR` if the caller is killed.
#[inline]
pub fn before_open(path: &Path, events: Events) -> Result<()> {
    if is_watching() { ask_open(path, events) } else { Ok(()) }
}

#[cold]
fn ask_open(path: &Path, events: Events) -> Result<()> {
    if events.contains(Events::OPENED_TO_RUN) {
        fanotify::ask(path, fanotify::FanMask::OPEN_EXEC_PERM)?;
    }
    fanotify::ask(path, fanotify::FanMask::OPEN_PERM)
}

/// Asks whether an open file may be read.
///
/// # Errors
/// `EPERM` if a fanotify group denies it; `EINTR` if the caller is killed.
#[inline]
pub fn before_read(file: &OpenFile) -> Result<()> {
    if is_watching() { ask_read(file) } else { Ok(()) }
}

#[cold]
fn ask_read(file: &OpenFile) -> Result<()> {
    told_path(file).map_or(Ok(()), |path| fanotify::ask(path, fanotify::FanMask::ACCESS_PERM))
}

/// Notifies watches that an open file was closed for good.
#[inline]
pub fn closed(file: &OpenFile) {
    if is_watching() {
        tell_file(file, if file.flags().writes() { Events::CLOSE_WRITE } else { Events::CLOSE_NOWRITE });
    }
}

/// Notifies watches of an event on the node at `path`.
#[inline]
pub fn place(path: &Path, events: Events) {
    if is_watching() {
        tell_place(path, events, ByFile::No);
    }
}

/// Notifies watches that `change` was made.
#[inline]
pub fn changed(path: &Path, change: &SetMetadata) {
    if is_watching() {
        tell_change(path, change);
    }
}

#[cold]
fn tell_change(path: &Path, change: &SetMetadata) {
    let mut events = Events::empty();
    let is_attribute = change.mode.is_some() || change.uid.is_some() || change.gid.is_some();
    let [accessed, modified] = [change.accessed.is_some(), change.modified.is_some()];
    // For Linux, a change of one time alone is a read or a write.
    events.set(Events::ACCESS, accessed && !modified);
    events.set(Events::MODIFY, change.size.is_some() || (modified && !accessed));
    events.set(Events::ATTRIB, is_attribute || (accessed && modified));
    if !events.is_empty() {
        tell_place(path, events, ByFile::No);
    }
}

/// Whether the event is a use of an open file: IN_EXCL_UNLINK matters only then.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ByFile {
    Yes,
    No,
}

/// Notifies the directory's watches, then the inode's own.
#[cold]
fn tell_place(path: &Path, mut events: Events, by_file: ByFile) {
    fanotify::tell_place(path, events, by_file);
    let mut presence = Presence::Linked;
    if path.node.kind() == NodeKind::Directory {
        events |= Events::ISDIR;
        if let Some(place) = path.node.parent() {
            presence = place.presence;
            tell_directory(place.dir.identity(), events, &place.name, presence_for(by_file, presence));
        }
    } else if let Some(entry) = &path.entry {
        let own = watches::interest(path.node.identity());
        let dir = watches::interest(entry.dir.identity());
        if dir.intersects(events) || own.contains(Events::EXCL_UNLINK) {
            let exactly = (dir | own).contains(Events::EXCL_UNLINK) && by_file == ByFile::Yes;
            let found = name_now(entry, &path.node, exactly);
            presence = found.as_ref().map_or(Presence::Linked, |found| found.presence);
            if let Some(found) = found {
                let name = found.other.as_deref().unwrap_or(&entry.name);
                tell_directory(entry.dir.identity(), events, name, presence_for(by_file, presence));
            }
        }
    }
    let event = FileEvent { presence: presence_for(by_file, presence), ..FileEvent::of_inode(events) };
    watches::tell(path.node.identity(), &event);
}

fn presence_for(by_file: ByFile, presence: Presence) -> Presence {
    if by_file == ByFile::Yes { presence } else { Presence::Linked }
}

fn tell_directory(dir: Identity, events: Events, name: &[u8], presence: Presence) {
    watches::tell(dir, &FileEvent { events, cookie: 0, name, presence });
}

/// The present name of a file in the directory in which it was found.
struct NameNow {
    /// The present name; `None` if it is the name by which the file was found.
    other: Option<Arc<[u8]>>,
    presence: Presence,
}

/// Finds the present name of `node`. Returns `None` if the file is in another directory. With
/// `exactly` a removed name is noticed, too.
fn name_now(entry: &PathEntry, node: &Arc<dyn Node>, exactly: bool) -> Option<NameNow> {
    let as_found = |presence| Some(NameNow { other: None, presence });
    let renames = path::renames();
    if !exactly && entry.checked.load(Ordering::Relaxed) == renames {
        return as_found(Presence::Linked);
    }
    match entry.dir.lookup(&entry.name) {
        Ok(found) if found.identity() == node.identity() => {
            entry.checked.store(renames, Ordering::Relaxed);
            return as_found(Presence::Linked);
        }
        Ok(_) | Err(Errno::ENOENT) => {}
        // If the server does not answer, the name is assumed to be right.
        Err(_) => return as_found(Presence::Linked),
    }
    if node.is_nameless() {
        return as_found(Presence::Removed);
    }
    let other = if exactly { entry.other_name_now(node, renames) } else { entry.other_name(node, renames) };
    let other = other.ok().flatten()?;
    Some(NameNow { other: Some(other), presence: Presence::Linked })
}

/// Notifies watches of an event on an inode, for all of its names.
#[inline]
pub fn node(node: &Arc<dyn Node>, events: Events) {
    if is_watching() {
        tell_node(node, events);
    }
}

#[cold]
fn tell_node(node: &Arc<dyn Node>, mut events: Events) {
    // Linux reports these without IN_ISDIR.
    let is_plain = events.intersects(Events::MOVE_SELF | Events::DELETE_SELF);
    events.set(Events::ISDIR, node.kind() == NodeKind::Directory && !is_plain);
    watches::tell(node.identity(), &FileEvent::of_inode(events));
    fanotify::tell_node(node, events);
}

/// Notifies watches that a name of `target` was made or removed in `dir`.
#[inline]
pub fn entry(dir: &Path, name: &[u8], target: &Arc<dyn Node>, events: Events) {
    if is_watching() {
        tell_entry(dir, name, target, events, 0);
    }
}

#[cold]
fn tell_entry(dir: &Path, name: &[u8], target: &Arc<dyn Node>, mut events: Events, cookie: u32) {
    events.set(Events::ISDIR, target.kind() == NodeKind::Directory);
    watches::tell(dir.node.identity(), &FileEvent { events, cookie, name, presence: Presence::Linked });
    fanotify::tell_entry(NamePlace { dir: &dir.node, name }, target, events);
}

/// Notifies watches that `target` has got the name `name` in `dir`.
#[inline]
pub fn linked(dir: &Path, name: &[u8], target: &Arc<dyn Node>) {
    if is_watching() {
        watches::keep(target);
        node(target, Events::ATTRIB);
        entry(dir, name, target, Events::CREATE);
    }
}

/// Notifies watches that `name` was removed from `dir`, then unlocks `names`. `gone` may be the
/// last reference to the inode, whose end is reported first. Without watches it ends unlocked.
#[inline]
pub fn unlinked(dir: &Path, name: &[u8], gone: Arc<dyn Node>, names: KeptNames) {
    // Orders the removal before the load; see `InodeWatch::attach`.
    fence(Ordering::SeqCst);
    if is_watching() {
        tell_unlinked(dir, name, gone);
        drop(names);
    } else {
        drop(names);
        drop(gone);
    }
}

#[cold]
fn tell_unlinked(dir: &Path, name: &[u8], gone: Arc<dyn Node>) {
    let mut events = Events::DELETE;
    if gone.kind() == NodeKind::Directory {
        events |= Events::ISDIR;
    } else {
        node(&gone, Events::ATTRIB);
    }
    watches::let_go_if_nameless(&gone);
    fanotify::tell_entry(NamePlace { dir: &dir.node, name }, &gone, events);
    drop(gone);
    watches::tell(dir.node.identity(), &FileEvent { events, cookie: 0, name, presence: Presence::Linked });
}

/// A name in a directory and the inode there.
pub struct NamedNode<'a> {
    /// The directory.
    pub dir: &'a Path,
    /// The name.
    pub name: &'a [u8],
    /// The inode.
    pub node: Arc<dyn Node>,
}

/// Notifies watches of a rename from `old` to the name in `new`, which `replaced` had before. Then
/// unlocks `names`. Without watches `replaced` ends unlocked.
#[inline]
pub fn renamed(
    old: NamedNode<'_>,
    new: (&Path, &[u8]),
    replaced: Option<Arc<dyn Node>>,
    flags: RenameFlags,
    names: KeptNames,
) {
    path::count_rename();
    fence(Ordering::SeqCst);
    if is_watching() {
        tell_renamed(old, new, replaced, flags);
        drop(names);
    } else {
        drop(names);
        drop(replaced);
    }
}

#[cold]
fn tell_renamed(
    old: NamedNode<'_>,
    (dir, name): (&Path, &[u8]),
    replaced: Option<Arc<dyn Node>>,
    flags: RenameFlags,
) {
    let moved =
        |from: (&Path, &[u8]), to: (&Path, &[u8]), target: &Arc<dyn Node>, victim: Option<&Arc<dyn Node>>| {
            let cookie = COOKIE.fetch_add(1, Ordering::Relaxed);
            if from.0.node.identity() == to.0.node.identity() {
                tell_entry(from.0, from.1, target, Events::RENAMED_WITHIN, 0);
            }
            let [old, new] = [from, to].map(|(dir, name)| NamePlace { dir: &dir.node, name });
            fanotify::tell_rename(old, new, target);
            tell_entry(from.0, from.1, target, Events::MOVED_FROM, cookie);
            tell_entry(to.0, to.1, target, Events::MOVED_TO, cookie);
            if let Some(victim) = victim {
                node(victim, Events::ATTRIB);
            }
            node(target, Events::MOVE_SELF);
        };
    let source = (old.dir, old.name);
    let Some(other) = replaced else { return moved(source, (dir, name), &old.node, None) };
    if flags.contains(RenameFlags::EXCHANGE) {
        moved(source, (dir, name), &old.node, None);
        moved((dir, name), source, &other, None);
    } else if other.identity() != old.node.identity() {
        moved(source, (dir, name), &old.node, Some(&other));
        watches::let_go_if_nameless(&other);
    }
}

/// Notifies watches that an inode ends. The destructor of every inode that can lose its last name
/// calls this.
#[inline]
pub fn inode_ended<T: Node>(inode: &T) {
    if is_watching() {
        watches::inode_ended(inode.identity(), core::ptr::from_ref(inode).addr());
    }
}

/// Notifies watches that the kernel changed the content of one of its own files.
#[inline]
pub fn changed_by_kernel(identity: Identity) {
    if is_watching() {
        watches::tell(identity, &FileEvent::of_inode(Events::MODIFY));
    }
}

/// Notifies watches that a kernel-made inode has lost its name.
#[inline]
pub fn lost_name(node: &Arc<dyn Node>) {
    if is_watching() {
        watches::let_go_if_nameless(node);
    }
}

/// Whether the file system with this device number, or an inode of it, is watched.
pub fn watches_in(device: u64) -> bool {
    is_watching() && (watches::any_in(device) || fanotify::is_marked(device))
}

/// Tells that the file system with this device number is mounted nowhere any more.
pub fn unmounted(device: u64) {
    if is_watching() {
        watches::end_marks(fanotify::MarkedObject::device_identity(device));
        watches::unmounted(device);
    }
}

/// Tells that a mount has ended.
#[inline]
pub fn mount_ended(id: u64) {
    if is_watching() {
        watches::end_marks(fanotify::MarkedObject::mount_identity(id));
    }
}
