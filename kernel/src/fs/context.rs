//! Where a process stands in the tree of names: root, working directory and umask (shared by
//! CLONE_FS).

use core::sync::atomic::{AtomicU32, Ordering};

use freehold_collections::{
    Arc,
    reserve::{self, ArcMethods},
};

use super::path::Path;
use crate::sync::SpinLock;

struct RootAndCwd {
    root: Path,
    cwd: Path,
}

/// Root, working directory and umask.
pub struct FsContext {
    places: SpinLock<RootAndCwd>,
    umask: AtomicU32,
}

impl FsContext {
    /// A context with root and working directory at `root` and umask 022.
    pub fn new(root: Path) -> Arc<Self> {
        reserve::arc(Self {
            places: SpinLock::new(RootAndCwd { cwd: root.clone(), root }),
            umask: AtomicU32::new(0o022),
        })
    }

    /// A context of its own with the same places (fork without CLONE_FS, unshare).
    pub fn duplicate(&self) -> Arc<Self> {
        let places = self.places.lock();
        reserve::arc(Self {
            places: SpinLock::new(RootAndCwd { root: places.root.clone(), cwd: places.cwd.clone() }),
            umask: AtomicU32::new(self.umask()),
        })
    }

    /// The root directory.
    pub fn root(&self) -> Path {
        self.places.lock().root.clone()
    }

    /// The working directory.
    pub fn cwd(&self) -> Path {
        self.places.lock().cwd.clone()
    }

    /// Go to another working directory.
    pub fn set_cwd(&self, cwd: Path) {
        let old = core::mem::replace(&mut self.places.lock().cwd, cwd);
        drop(old);
    }

    /// Take another root (chroot); the working directory stays.
    pub fn set_root(&self, root: Path) {
        let old = core::mem::replace(&mut self.places.lock().root, root);
        drop(old);
    }

    /// Have what stands at `old` stand at `new` (pivot_root).
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

    /// Set the umask; returns the old one.
    pub fn set_umask(&self, mask: u32) -> u32 {
        self.umask.swap(mask & 0o777, Ordering::Relaxed)
    }
}
