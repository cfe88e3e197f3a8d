//! fanotify(7): marks on inodes, mounts and file systems, and the groups that are told of events.
//!
//! Linux' relatives are `fsnotify()` in fs/notify/fsnotify.c and fs/notify/fanotify/fanotify.c. The
//! file of a group, through which a program reads events and answers, is [`crate::fs::fanotify`].
//!
//! | module | concept |
//! |---|---|
//! | [`mark`] | a mark: its masks, and how a program changes them |
//! | [`group`] | a group: its marks, and the operations that wait for its answers |
//! | [`queue`] | events that wait to be read, and how they are merged |
//! | [`ids`] | events with handles of files instead of descriptors |
//!
//! A mark is a watch of the table in [`super::watches`], where a mount and a file system have an
//! entry like an inode's. All marks of one group on the objects of an event are looked at together:
//! a mask that ignores events on a file also applies to the mark on its mount. So the marks of an
//! object are ordered by group, and an event visits the groups in this order. Groups that look at
//! contents before others are first.
//!
//! Limits: an inode that ends is reported to marks on the inode only, and not to marks on its file
//! system.

mod group;
mod ids;
mod mark;
mod queue;
#[cfg(test)]
mod tests;

use core::sync::atomic::{AtomicUsize, Ordering};

use bitflags::bitflags;
use freehold_collections::{Arc, Vec};

pub use group::{FanGroup, GroupSettings};
pub use ids::{FileIds, InfoRecord};
pub(super) use mark::Mark;
pub use mark::{MarkChange, MarkFlags, MarkedObject};
pub use queue::{FanEvent, FanSubject, Permission, TakenEvent, Verdict};

use super::watches::{self, EventTarget, FIRST_MARK, InodeWatch};
use super::{ByFile, Events, name_now};
use crate::Result;
use crate::fs::node::{Identity, Node, NodeKind};
use crate::fs::path::{Path, PathEntry};

bitflags! {
    /// The bits of a mark's masks and of an event, with fanotify(7)'s values.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct FanMask: u32 {
        /// Read.
        const ACCESS = Events::ACCESS.bits();
        /// Written, or truncated.
        const MODIFY = Events::MODIFY.bits();
        /// Metadata changed.
        const ATTRIB = Events::ATTRIB.bits();
        /// Closed; it was open for writing.
        const CLOSE_WRITE = Events::CLOSE_WRITE.bits();
        /// Closed; it was not open for writing.
        const CLOSE_NOWRITE = Events::CLOSE_NOWRITE.bits();
        /// Opened.
        const OPEN = Events::OPEN.bits();
        /// A name was moved out of the directory.
        const MOVED_FROM = Events::MOVED_FROM.bits();
        /// A name was moved into the directory.
        const MOVED_TO = Events::MOVED_TO.bits();
        /// A name was made in the directory.
        const CREATE = Events::CREATE.bits();
        /// A name was removed from the directory.
        const DELETE = Events::DELETE.bits();
        /// The inode itself has ended.
        const DELETE_SELF = Events::DELETE_SELF.bits();
        /// The inode itself was renamed.
        const MOVE_SELF = Events::MOVE_SELF.bits();
        /// Opened to run.
        const OPEN_EXEC = Events::OPENED_TO_RUN.bits();
        /// Events were lost.
        const Q_OVERFLOW = Events::Q_OVERFLOW.bits();
        /// An error of the file system. No file system here reports any.
        const FS_ERROR = 0x8000;
        /// May it be opened?
        const OPEN_PERM = 0x1_0000;
        /// May it be read?
        const ACCESS_PERM = 0x2_0000;
        /// May it be opened to run?
        const OPEN_EXEC_PERM = 0x4_0000;
        /// In a directory's mark: its files are meant, too. In an event: a file of the directory is
        /// meant.
        const EVENT_ON_CHILD = 0x0800_0000;
        /// A name was moved; the event has both names.
        const RENAME = 0x1000_0000;
        /// The event is about a directory, or the mark requests such events.
        const ONDIR = Events::ISDIR.bits();

        /// Events whose answer decides.
        const PERMISSIONS = 0x7_0000;
        /// Changes of the names in a directory.
        const NAMES = 0x1000_03c0;
        /// Events that come with an open file.
        const WITH_FILE = 0x7_103b;
        /// Bits that only qualify others.
        const QUALIFIERS = 0x4800_0000;
        /// All that a program can request.
        const REQUESTABLE = 0x5807_9fff;
    }
}

/// The number of marks.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn is_used() -> bool {
    COUNT.load(Ordering::Relaxed) != 0
}

/// A name in a directory.
#[derive(Clone, Copy)]
pub(super) struct NamePlace<'a> {
    pub dir: &'a Arc<dyn Node>,
    pub name: &'a [u8],
}

/// An event, as passed to the groups. Linux' relative is `fsnotify()`'s arguments.
pub(super) struct Occurrence<'a> {
    mask: FanMask,
    /// The place of the open file that was used.
    path: Option<&'a Path>,
    /// The object of the event, if it is known, and the entry by which it was found.
    node: Option<&'a Arc<dyn Node>>,
    entry: Option<&'a PathEntry>,
    /// The directory of its name.
    place: Option<NamePlace<'a>>,
    /// The new name of a rename.
    new_place: Option<NamePlace<'a>>,
}

/// The relation of an object's mark to an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Relation {
    /// The inode of the event, or the directory whose names change.
    Inode,
    /// The directory of the inode's name.
    Parent,
    /// The directory of the new name.
    NewDirectory,
    Mount,
    FileSystem,
}

const RELATIONS: usize = 4;
/// Objects whose marks an event looks at.
type Objects = [Option<(Relation, Identity)>; RELATIONS];
/// The marks of one group on them.
type GroupMarks<'a> = [Option<(Relation, &'a InodeWatch, &'a Mark)>; RELATIONS];

/// Returns the union of the masks of an object's marks.
#[cold]
fn requested(identity: Identity) -> FanMask {
    let mut all = FanMask::empty();
    let mut last = [FIRST_MARK, 0];
    while let Some(watch) = watches::mark_after(identity, last) {
        last = watch.key;
        all |= mask_of(&watch);
        if let EventTarget::Mark(mark) = &watch.target {
            all |= mark.ignored() & FanMask::EVENT_ON_CHILD;
        }
    }
    all
}

/// Whether the file system with this device number has a mark.
pub(super) fn is_marked(device: u64) -> bool {
    watches::mark_after(MarkedObject::device_identity(device), [FIRST_MARK, 0]).is_some()
}

fn mask_of(watch: &InodeWatch) -> FanMask {
    FanMask::from_bits_retain(watch.mask().bits())
}

/// Tells the groups of `events` at `path`.
pub(super) fn tell_place(path: &Path, events: Events, by_file: ByFile) {
    if is_used() {
        let mask = FanMask::from_bits_truncate(events.bits()) & FanMask::from_bits_retain(0x1fff);
        // Only permissions have an answer.
        let _ = tell_path(path, mask, by_file);
    }
}

/// Asks the groups whether the file at `path` may be used so.
///
/// # Errors
/// `EPERM` if one denies it; `EINTR` if the caller is killed.
pub(super) fn ask(path: &Path, permission: FanMask) -> Result<()> {
    if is_used() { tell_path(path, permission, ByFile::Yes) } else { Ok(()) }
}

#[cold]
fn tell_path(path: &Path, mut mask: FanMask, by_file: ByFile) -> Result<()> {
    let inode = path.node.identity();
    let is_directory = path.node.kind() == NodeKind::Directory;
    mask.set(FanMask::ONDIR, is_directory);
    let mount =
        (by_file == ByFile::Yes).then(|| (Relation::Mount, MarkedObject::mount_identity(path.mount.id())));
    let whole = Some((Relation::FileSystem, MarkedObject::device_identity(inode.device)));
    let mut objects = [Some((Relation::Inode, inode)), None, mount, whole];
    let own_wish =
        objects.iter().flatten().fold(FanMask::empty(), |all, (_, object)| all | requested(*object));
    let named = FoundName::of(path);
    let parent_wish = named.as_ref().map_or(FanMask::empty(), |named| requested(named.dir.identity()));
    let wishes = |wish: FanMask| wish.contains(FanMask::EVENT_ON_CHILD);
    let is_for_parent =
        wishes(parent_wish) && (parent_wish.intersects(mask) || mask.contains(FanMask::MODIFY));
    let needs_name = !is_directory && wishes(own_wish) && own_wish.intersects(mask);
    let named = named.filter(|_| is_for_parent || needs_name).and_then(|named| named.now(path));
    if let Some(named) = named.as_ref().filter(|_| is_for_parent) {
        mask |= FanMask::EVENT_ON_CHILD;
        objects[1] = Some((Relation::Parent, named.dir.identity()));
    }
    let place = named.as_ref().map(|named| NamePlace { dir: &named.dir, name: &named.name });
    let event = Occurrence {
        mask,
        path: (by_file == ByFile::Yes).then_some(path),
        node: Some(&path.node),
        entry: path.entry.as_deref(),
        place,
        new_place: None,
    };
    deliver(&event, &objects)
}

/// A directory and the name in it that leads to a file.
struct FoundName {
    dir: Arc<dyn Node>,
    name: Vec<u8>,
}

impl FoundName {
    /// Returns the name by which the node at `path` was found; `None` without memory.
    #[cold]
    fn of(path: &Path) -> Option<Self> {
        if path.node.kind() == NodeKind::Directory {
            let place = path.node.parent()?;
            return Some(Self { dir: place.dir, name: Vec::try_from_slice(&place.name).ok()? });
        }
        let entry = path.entry.as_ref()?;
        Some(Self { dir: entry.dir.clone(), name: Vec::try_from_slice(&entry.name).ok()? })
    }

    /// Returns the present name; `None` if the file is in another directory.
    #[cold]
    fn now(mut self, path: &Path) -> Option<Self> {
        if let Some(entry) = &path.entry
            && let Some(other) = name_now(entry, &path.node, false)?.other
        {
            self.name = Vec::try_from_slice(&other).ok()?;
        }
        Some(self)
    }
}

/// Tells the groups of an event on an inode, for all of its names.
#[cold]
pub(super) fn tell_node(node: &Arc<dyn Node>, events: Events) {
    if !is_used() {
        return;
    }
    let mut mask = FanMask::from_bits_truncate(events.bits());
    mask.set(FanMask::ONDIR, node.kind() == NodeKind::Directory);
    let identity = node.identity();
    let whole = MarkedObject::device_identity(identity.device);
    let objects = [Some((Relation::Inode, identity)), None, None, Some((Relation::FileSystem, whole))];
    let event = Occurrence { mask, path: None, node: Some(node), entry: None, place: None, new_place: None };
    let _ = deliver(&event, &objects);
}

/// Tells the groups of a change of a directory's names. `target` is the inode that the name leads
/// or led to.
#[cold]
pub(super) fn tell_entry(place: NamePlace<'_>, target: &Arc<dyn Node>, events: Events) {
    if is_used() && !events.contains(Events::RENAMED_WITHIN) {
        deliver_names(place, None, target, FanMask::from_bits_truncate(events.bits()));
    }
}

/// Tells the groups that `target` was renamed.
#[cold]
pub(super) fn tell_rename(old: NamePlace<'_>, new: NamePlace<'_>, target: &Arc<dyn Node>) {
    if is_used() {
        let mut mask = FanMask::RENAME;
        mask.set(FanMask::ONDIR, target.kind() == NodeKind::Directory);
        deliver_names(old, Some(new), target, mask);
    }
}

#[cold]
fn deliver_names(
    place: NamePlace<'_>,
    new_place: Option<NamePlace<'_>>,
    target: &Arc<dyn Node>,
    mask: FanMask,
) {
    let dir = place.dir.identity();
    let new_dir = new_place.map(|new| (Relation::NewDirectory, new.dir.identity()));
    let whole = (Relation::FileSystem, MarkedObject::device_identity(dir.device));
    let objects = [Some((Relation::Inode, dir)), new_dir, None, Some(whole)];
    let event =
        Occurrence { mask, path: None, node: Some(target), entry: None, place: Some(place), new_place };
    let _ = deliver(&event, &objects);
}

/// Visits the groups with marks on `objects`.
///
/// # Errors
/// The first answer that denies a permission.
#[cold]
fn deliver(event: &Occurrence<'_>, objects: &Objects) -> Result<()> {
    let mut last = [FIRST_MARK, 0];
    loop {
        let found = objects.map(|object| {
            let (relation, identity) = object?;
            Some((relation, watches::mark_after(identity, last)?))
        });
        let Some(key) = found.iter().flatten().map(|(_, watch)| watch.key).min() else { return Ok(()) };
        last = key;
        let marks: GroupMarks<'_> = found.each_ref().map(|found| {
            let (relation, watch) = found.as_ref().filter(|(_, watch)| watch.key == key)?;
            let EventTarget::Mark(mark) = &watch.target else { return None };
            Some((*relation, &**watch, mark))
        });
        if event.mask.contains(FanMask::MODIFY) {
            marks.iter().flatten().for_each(|(_, _, mark)| mark.file_modified());
        }
        if let Some((_, _, mark)) = marks.iter().flatten().next() {
            mark.group.tell(event, &marks)?;
        }
        crate::sched::cond_resched();
    }
}

/// Returns the events of `mask` that the marks of one group request (Linux:
/// `fanotify_group_event_mask`).
#[cold]
fn wanted(mask: FanMask, marks: &GroupMarks<'_>) -> FanMask {
    let is_directory = mask.contains(FanMask::ONDIR);
    let (mut requested, mut ignored) = (FanMask::empty(), FanMask::empty());
    for (relation, watch, mark) in marks.iter().flatten() {
        let own = mask_of(watch);
        ignored |= mark.ignores(own, mask, *relation);
        let is_blind = (is_directory && !own.contains(FanMask::ONDIR))
            || (*relation == Relation::Parent && !own.contains(FanMask::EVENT_ON_CHILD));
        if !is_blind {
            requested |= own;
        }
    }
    mask & requested & !ignored
}
