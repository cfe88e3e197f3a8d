//! A process' root, working directory and umask (shared by CLONE_FS).

use core::ops::Deref;
use core::sync::atomic::{AtomicU32, Ordering};

use freehold_collections::{
    Arc,
    reserve::{self, ArcMethods},
};

use super::mount::MountRef;
use super::path::Path;
use crate::sync::SpinLock;

/// A root and a working directory.
#[derive(Clone)]
pub struct Places {
    /// The root directory.
    pub root: Path,
    /// The working directory.
    pub cwd: Path,
}

/// Root, working directory and umask.
pub struct FsContext {
    places: SpinLock<Places>,
    umask: AtomicU32,
    /// Number of processes that share this context: [`FsMember`]s.
    members: AtomicU32,
}

/// A process' membership of its context. Members are counted separately from references of code
/// that uses a context for a while.
///
/// Only cloning a member makes another member. So a context with one member keeps just this member
/// as long as the member makes no process.
pub struct FsMember(Arc<FsContext>);

impl FsMember {
    /// Makes a process a member of `context`. The threads of a process that was the only member
    /// must then forget the places that they keep ([`Kept`](crate::sync::Kept)).
    pub fn new(context: Arc<FsContext>) -> Self {
        context.members.fetch_add(1, Ordering::SeqCst);
        Self(context)
    }

    /// Whether other processes share the context (CLONE_FS).
    pub fn is_shared(&self) -> bool {
        self.0.members.load(Ordering::SeqCst) > 1
    }
}

impl Deref for FsMember {
    type Target = Arc<FsContext>;
    fn deref(&self) -> &Arc<FsContext> {
        &self.0
    }
}

impl Drop for FsMember {
    fn drop(&mut self) {
        self.0.members.fetch_sub(1, Ordering::SeqCst);
    }
}

impl FsContext {
    /// Makes a context with root and working directory at `root` and umask 022.
    pub fn new(root: Path) -> Arc<Self> {
        Self::with(Places { cwd: root.clone(), root }, 0o022)
    }

    fn with(places: Places, umask: u32) -> Arc<Self> {
        reserve::arc(Self {
            places: SpinLock::new(places),
            umask: AtomicU32::new(umask),
            members: AtomicU32::new(0),
        })
    }

    /// Copies the context (fork without CLONE_FS, unshare).
    pub fn duplicate(&self) -> Arc<Self> {
        Self::with(self.places.lock().clone(), self.umask())
    }

    /// Returns root and working directory with references to mounts that are counted apart
    /// ([`MountRef`]).
    pub fn own_places(&self) -> Places {
        let Places { mut root, mut cwd } = self.places.lock().clone();
        let is_same = cwd.mount.is_same(&root.mount);
        root.mount = MountRef::new(root.mount.arc());
        cwd.mount = if is_same { root.mount.clone() } else { MountRef::new(cwd.mount.arc()) };
        Places { root, cwd }
    }

    /// The root directory.
    pub fn root(&self) -> Path {
        self.places.lock().root.clone()
    }

    /// The working directory.
    pub fn cwd(&self) -> Path {
        self.places.lock().cwd.clone()
    }

    /// Changes the working directory. For [`change_places`](crate::task::Process::change_places),
    /// as long as other code uses the context.
    pub fn set_cwd(&self, cwd: Path) {
        let old = core::mem::replace(&mut self.places.lock().cwd, cwd);
        drop(old);
    }

    /// Changes the root (chroot); the working directory stays. As [`set_cwd`](Self::set_cwd).
    pub fn set_root(&self, root: Path) {
        let old = core::mem::replace(&mut self.places.lock().root, root);
        drop(old);
    }

    /// Replaces `old` by `new` as root and as working directory (pivot_root). As
    /// [`set_cwd`](Self::set_cwd).
    pub fn replace(&self, old: &Path, new: &Path) {
        let mut places = self.places.lock();
        let stands = |place: &Path| place.mount.is_same(&old.mount) && place.same_place(old);
        let root = stands(&places.root).then(|| core::mem::replace(&mut places.root, new.clone()));
        let cwd = stands(&places.cwd).then(|| core::mem::replace(&mut places.cwd, new.clone()));
        drop(places);
        drop((root, cwd));
    }

    /// Permission bits that new files do not get.
    pub fn umask(&self) -> u32 {
        self.umask.load(Ordering::Relaxed)
    }

    /// Sets the umask; returns the old one.
    pub fn set_umask(&self, mask: u32) -> u32 {
        self.umask.swap(mask & 0o777, Ordering::Relaxed)
    }
}
