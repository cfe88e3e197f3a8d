//! Mount namespaces: a tree of mounts of its own for the processes in it (Linux: `struct
//! mnt_namespace`).
//!
//! A new namespace begins as a copy of another's tree; from then on neither sees mounts made in the
//! other (private propagation, the only kind here). The file systems are the same.
//!
//! **Locks of a copy.** A copy for a user namespace with fewer rights keeps everything that its
//! root must not undo: restrictions that a mount has stay, and what a mount covers stays covered
//! ([`Mount::lock_for_others`]).
//!
//! **Invariant.** Mounts of a tree know each other in both directions: the mount below holds the
//! one above, and that one holds the place that it covers. So a tree is not freed by itself; the
//! end of its namespace, and the removal of a part of it, cut all references upwards
//! ([`Mount::cut_off`]). A mount that is cut off stays covered, and is freed with the last path
//! that leads there.
//!
//! **Changes.** Every change of a tree holds [`change`], a sleeping lock; readers see each mount's
//! children as they are at that moment. Callers: mount(2) and its like, unshare, clone, setns. Task
//! context.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use freehold_collections::{
    Arc, Vec,
    reserve::{self, ArcMethods},
};

use super::context::FsContext;
use super::mount::{Keep, Mount};
use super::path::Path;
use crate::sync::{Mutex, MutexGuard, SpinLock, WaitQueue};
use crate::task::credentials::Credentials;
use crate::task::userns::{NamespaceHead, NamespaceKind};
use crate::{Errno, Result, sched};

/// The most mounts of a namespace, until /proc/sys/fs/mount-max says otherwise.
const FIRST_LIMIT: usize = 100_000;
static LIMIT: AtomicUsize = AtomicUsize::new(FIRST_LIMIT);

/// The most mounts of a namespace (/proc/sys/fs/mount-max).
pub fn limit() -> u64 {
    LIMIT.load(Ordering::Relaxed) as u64
}

/// Changes that. Mounts that are there stay.
///
/// # Errors
/// `EINVAL` for 0, and for what is no int.
pub fn set_limit(limit: u64) -> Result<()> {
    if !(1..=i32::MAX as u64).contains(&limit) {
        return Err(Errno::EINVAL);
    }
    LIMIT.store(limit as usize, Ordering::Relaxed);
    Ok(())
}

/// Mounts that may come to a tree for sure before it is counted again. Mounts that go make no room
/// here: the next count finds it.
#[derive(Clone, Copy, Default)]
struct MountRoom {
    /// The limit that this is a part of.
    limit: usize,
    left: usize,
}

static CHANGE: Mutex<()> = Mutex::new(());

/// The right to change trees of mounts.
///
/// # Errors
/// `EINTR` for a task that is to end.
pub fn change() -> Result<MutexGuard<'static, ()>> {
    CHANGE.lock_killable()
}

/// A mount namespace.
pub struct MountNamespace {
    head: NamespaceHead,
    root: SpinLock<Arc<Mount>>,
    /// Changed by holders of the right to change trees only.
    room: SpinLock<MountRoom>,
    /// How often its mounts have changed, counted before the queue is woken.
    changes: AtomicU64,
    changed: Arc<WaitQueue>,
}

/// The mounts that a copy has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopyDepth {
    /// The mount at the place.
    One,
    /// That mount, and all mounts below the place.
    All,
}

impl MountNamespace {
    /// The initial one, with this root.
    pub fn initial(root: Arc<Mount>) -> Arc<Self> {
        Self::with_root(NamespaceHead::initial(NamespaceKind::Mount), root)
    }

    fn with_root(head: NamespaceHead, root: Arc<Mount>) -> Arc<Self> {
        let changed = reserve::arc(WaitQueue::new());
        let room = SpinLock::new(MountRoom::default());
        reserve::arc(Self { head, root: SpinLock::new(root), room, changes: AtomicU64::new(0), changed })
    }

    /// Copies the namespace for processes in the user namespace of `maker`. The places of
    /// `context`, which no other process has yet, become those in the copy.
    ///
    /// # Errors
    /// `ENOSPC`, `ENOMEM`, `EINTR`; nothing is left of the copy then.
    pub fn copy(&self, maker: &Credentials, context: &FsContext) -> Result<Arc<Self>> {
        let head = NamespaceHead::new(NamespaceKind::Mount, maker)?;
        let _change = change()?;
        let (mut root, mut cwd) = (context.root(), context.cwd());
        let copied = copy_tree(&Path::root_of(self.root()), CopyDepth::All, &mut |old, new| {
            for place in [&mut root, &mut cwd] {
                if place.mount.is_same(old) {
                    place.mount = new.clone();
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

    /// Returns the part that namespaces of every kind have.
    pub const fn head(&self) -> &NamespaceHead {
        &self.head
    }

    /// The mount that everything hangs in.
    pub fn root(&self) -> Arc<Mount> {
        self.root.lock().clone()
    }

    /// Has everything hang in another mount from now on.
    pub fn set_root(&self, root: Arc<Mount>) {
        let old = core::mem::replace(&mut *self.root.lock(), root);
        drop(old);
    }

    /// Takes room for mounts that come to the tree. Holders of the right to change trees only. Each
    /// count of the whole tree makes room for all that may come.
    ///
    /// # Errors
    /// `ENOSPC` where they were too many, `ENOMEM`.
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

    /// Tells those who watch its mounts that these have changed (Linux: `touch_mnt_namespace`).
    pub fn tell_change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.changed.wake_all();
    }

    /// How often its mounts have changed.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    /// Woken by each change.
    pub const fn changed(&self) -> &Arc<WaitQueue> {
        &self.changed
    }

    /// Whether the mount hangs in this tree.
    pub fn contains(&self, mount: &Arc<Mount>) -> bool {
        mount.hangs_in(&self.root())
    }

    /// Where a process begins that enters: the root directory with all that covers it.
    pub fn entrance(&self) -> Path {
        Path::root_of(self.root()).topmost()
    }
}

impl Drop for MountNamespace {
    fn drop(&mut self) {
        self.root().cut_off();
    }
}

/// Whether `place` is `above` or below it in the same mount.
///
/// # Errors
/// `EINTR`: a program chooses how deep it is.
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

/// Copies of the mounts at and below `from`, which hang nowhere; `note` gets each mount with its
/// copy.
///
/// # Errors
/// `ENOSPC` for too many, `ENOMEM`, `EINTR`; nothing is left of the copies then.
pub fn copy_tree(
    from: &Path,
    depth: CopyDepth,
    note: &mut dyn FnMut(&Arc<Mount>, &Arc<Mount>),
) -> Result<Arc<Mount>> {
    let top = from.mount.copy(from.node.clone())?;
    let copied = (|| {
        note(&from.mount, &top);
        let mut pairs = Vec::new();
        pairs.try_push((from.mount.clone(), top.clone()))?;
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
                new.attach(&copy, Path { mount: new.clone(), ..place })?;
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

/// Whether a mount that must stay hangs below `place`, in its mount: a copy without it would show
/// what it covers.
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
