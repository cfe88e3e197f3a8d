//! Mount namespaces: each has its own tree of mounts for its processes (Linux: `struct
//! mnt_namespace`).
//!
//! A new namespace begins as a copy of another's tree; from then on neither sees mounts made in the
//! other (private propagation, the only kind here). The file systems are the same.
//!
//! **Locks of a copy.** In a copy for a user namespace with fewer rights, that namespace's root
//! must not reveal or change anything: a mount keeps its restrictions, and covered files stay
//! covered ([`Mount::lock_for_others`]).
//!
//! **Invariant.** Parent and child mounts refer to each other: the parent has a reference to the
//! child, and the child to the place that it covers. So a tree is not freed by itself. The end of
//! its namespace, and the removal of a part of the tree, cut all references upwards
//! ([`Mount::cut_off`]). A mount that is cut off stays covered, and is freed with the last path
//! into it.
//!
//! **Changes.** Every change of a tree holds [`change`], a sleeping lock; readers see each mount's
//! children as they are at that moment. Callers: mount(2) and related calls, unshare, clone, setns.
//! Task context.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use freehold_collections::{
    Arc, Vec,
    reserve::{self, ArcMethods},
};

use super::context::FsContext;
use super::mount::{Keep, Looseness, Mount, MountRef};
use super::path::Path;
use crate::sync::{Mutex, MutexGuard, SpinLock, WaitQueue};
use crate::task::credentials::Credentials;
use crate::task::userns::{NamespaceHead, NamespaceKind};
use crate::{Errno, Result, sched};

/// Default of the largest number of mounts of a namespace.
const FIRST_LIMIT: usize = 100_000;
static LIMIT: AtomicUsize = AtomicUsize::new(FIRST_LIMIT);

/// Largest number of mounts of a namespace (/proc/sys/fs/mount-max).
pub fn limit() -> u64 {
    LIMIT.load(Ordering::Relaxed) as u64
}

/// Sets the limit. Existing mounts stay.
///
/// # Errors
/// `EINVAL` for 0, and for a number that does not fit an int.
pub fn set_limit(limit: u64) -> Result<()> {
    if !(1..=i32::MAX as u64).contains(&limit) {
        return Err(Errno::EINVAL);
    }
    LIMIT.store(limit as usize, Ordering::Relaxed);
    Ok(())
}

/// Number of mounts that can be added to a tree before the tree is counted again. Removed mounts do
/// not add to it: the next count notices them.
#[derive(Clone, Copy, Default)]
struct MountRoom {
    /// The limit that the number was computed from.
    limit: usize,
    left: usize,
}

static CHANGE: Mutex<()> = Mutex::new(());

/// Takes the lock that serialises changes of trees of mounts.
///
/// # Errors
/// `EINTR` if the task must end.
pub fn change() -> Result<MutexGuard<'static, ()>> {
    CHANGE.lock_killable()
}

/// A mount namespace.
pub struct MountNamespace {
    head: NamespaceHead,
    root: SpinLock<Arc<Mount>>,
    /// Changed only by holders of the lock of changes.
    room: SpinLock<MountRoom>,
    /// Number of changes of the namespace's mounts. It is advanced before the queue is woken.
    changes: AtomicU64,
    changed: Arc<WaitQueue>,
}

/// The mounts that a copy includes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyDepth {
    /// The mount at the place.
    One,
    /// That mount, and all mounts below the place.
    All,
}

impl MountNamespace {
    /// Makes the initial namespace with this root.
    pub fn initial(root: Arc<Mount>) -> Arc<Self> {
        Self::with_root(NamespaceHead::initial(NamespaceKind::Mount), root)
    }

    fn with_root(head: NamespaceHead, root: Arc<Mount>) -> Arc<Self> {
        let changed = reserve::arc(WaitQueue::new());
        let room = SpinLock::new(MountRoom::default());
        reserve::arc(Self { head, root: SpinLock::new(root), room, changes: AtomicU64::new(0), changed })
    }

    /// Copies the namespace for processes in the user namespace of `maker`. The root and working
    /// directory of `context`, which no other process uses yet, become the corresponding places in
    /// the copy.
    ///
    /// # Errors
    /// `ENOSPC`, `ENOMEM`, `EINTR`; the copy is then removed completely.
    pub fn copy(&self, maker: &Credentials, context: &FsContext) -> Result<Arc<Self>> {
        let head = NamespaceHead::new(NamespaceKind::Mount, maker)?;
        let _change = change()?;
        let (mut root, mut cwd) = (context.root(), context.cwd());
        let copied = copy_tree(&Path::root_of(self.root()), CopyDepth::All, &mut |old, new| {
            for place in [&mut root, &mut cwd] {
                if place.mount.is_same(old) {
                    place.mount = MountRef::new(new.clone());
                }
            }
        })?;
        let new = Self::with_root(head, copied);
        if maker.user_ns != *self.head.owner() {
            for mount in new.root().tree()? {
                mount.lock_for_others();
                sched::checkpoint()?;
            }
        }
        context.set_root(root);
        context.set_cwd(cwd);
        Ok(new)
    }

    /// Returns the part that namespaces of all kinds have in common.
    pub const fn head(&self) -> &NamespaceHead {
        &self.head
    }

    /// The root mount.
    pub fn root(&self) -> Arc<Mount> {
        self.root.lock().clone()
    }

    /// Sets the root mount.
    pub fn set_root(&self, root: Arc<Mount>) {
        let old = core::mem::replace(&mut *self.root.lock(), root);
        drop(old);
    }

    /// Reserves room for mounts that are added to the tree. Requires the lock of changes. If the
    /// room is used up, the whole tree is counted anew.
    ///
    /// # Errors
    /// `ENOSPC` if the limit would be exceeded, `ENOMEM`.
    pub fn take_room(&self, mounts: usize) -> Result<()> {
        let limit = LIMIT.load(Ordering::Relaxed);
        let MountRoom { limit: known, left } = *self.room.lock();
        let left = if known == limit && left >= mounts {
            left - mounts
        } else {
            let there = self.root().tree()?.len();
            limit.checked_sub(there + mounts).ok_or(Errno::ENOSPC)?
        };
        *self.room.lock() = MountRoom { limit, left };
        Ok(())
    }

    /// Notifies the watchers of the namespace's mounts that these have changed (Linux:
    /// `touch_mnt_namespace`).
    pub fn tell_change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.changed.wake_all();
    }

    /// The number of changes of the namespace's mounts.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// The queue that each change wakes.
    pub const fn changed(&self) -> &Arc<WaitQueue> {
        &self.changed
    }

    /// Whether the mount is in this tree.
    ///
    /// # Errors
    /// `EINTR` if the caller is killed meanwhile.
    pub fn contains(&self, mount: &Arc<Mount>) -> Result<bool> {
        mount.hangs_in(&self.root())
    }

    /// The place where a process that enters begins: the root directory, or the root of the topmost
    /// mount that covers it.
    ///
    /// # Errors
    /// `EINTR` if the caller is killed meanwhile.
    pub fn entrance(&self) -> Result<Path> {
        Path::root_of(self.root()).topmost()
    }
}

impl Drop for MountNamespace {
    fn drop(&mut self) {
        self.root().cut_off();
    }
}

/// Ends the tree of a descriptor that was closed, if no namespace has it.
pub fn dissolve(tree: &Arc<Mount>) {
    let _change = CHANGE.lock();
    if tree.set_loose(Looseness::Attached) == Looseness::Loose {
        tree.cut_off();
    }
}

/// Whether `place` is `above` or below it in the same mount.
///
/// # Errors
/// `EINTR`: a program chooses the depth of `place`.
pub fn is_below(place: &Path, above: &Path) -> Result<bool> {
    let wanted = above.node.identity();
    let mut here = place.node.clone();
    if here.identity() == wanted {
        return Ok(true);
    }
    if let Some(entry) = &place.entry {
        here = entry.dir.clone();
    }
    let root = place.mount.root().identity();
    while here.identity() != wanted {
        if here.identity() == root {
            return Ok(false);
        }
        let Some(parent) = here.parent() else { return Ok(false) };
        here = parent.dir;
        sched::checkpoint()?;
    }
    Ok(true)
}

/// Copies the mounts at and below `from`; the copies are not attached. `note` gets each mount with
/// its copy.
///
/// # Errors
/// `ENOSPC` for too many, `ENOMEM`, `EINTR`; the copies are then removed completely.
pub fn copy_tree(
    from: &Path,
    depth: CopyDepth,
    note: &mut dyn FnMut(&Arc<Mount>, &Arc<Mount>),
) -> Result<Arc<Mount>> {
    let top = from.mount.copy(from.node.clone())?;
    let copied = (|| {
        note(&from.mount, &top);
        let mut pairs = Vec::new();
        pairs.try_push((from.mount.arc(), top.clone()))?;
        let mut next = 0;
        while depth == CopyDepth::All
            && let Some((old, new)) = pairs.get(next).cloned()
        {
            for child in old.children()? {
                sched::checkpoint()?;
                let Some(place) = child.mountpoint() else { continue };
                if next == 0 && !is_below(&place, from)? {
                    continue;
                }
                if pairs.len() >= FIRST_LIMIT.max(LIMIT.load(Ordering::Relaxed)) {
                    return Err(Errno::ENOSPC);
                }
                let copy = child.copy_with_locks(child.root().clone(), Keep::Place)?;
                new.attach(&copy, Path { mount: MountRef::new(new.clone()), ..place })?;
                note(&child, &copy);
                pairs.try_push((child, copy))?;
            }
            next += 1;
        }
        Ok(())
    })();
    match copied {
        Ok(()) => Ok(top),
        Err(error) => {
            top.cut_off();
            Err(error)
        }
    }
}

/// Whether a mount that must stay is attached below `place` in its mount: a copy without that mount
/// would reveal the covered files.
///
/// # Errors
/// `ENOMEM`, `EINTR`.
pub fn has_locked_below(place: &Path) -> Result<bool> {
    for child in place.mount.children()? {
        if child.is_locked()
            && let Some(at) = child.mountpoint()
            && is_below(&at, place)?
        {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests;
