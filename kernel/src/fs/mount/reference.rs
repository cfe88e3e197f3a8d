//! The reference that a path has to its mount.

use core::ops::Deref;

use freehold_collections::{Arc, reserve};

use super::Mount;

/// A reference to a mount. It and its clones are counted apart from all other references: all tasks
/// use the same few mounts, and each open file has a path. So each thread opens files by clones of
/// references of its own ([`FsContext::own_places`](crate::fs::FsContext::own_places)), whose count
/// is on a cache line that no other CPU writes to. (Linux counts per CPU: `mnt_pcp`.)
#[derive(Clone)]
pub struct MountRef(Arc<Arc<Mount>>);

impl MountRef {
    /// Makes a reference that is counted apart from others.
    pub fn new(mount: Arc<Mount>) -> Self {
        Self(reserve::arc(mount))
    }

    /// Returns the mount.
    pub fn arc(&self) -> Arc<Mount> {
        (*self.0).clone()
    }
}

impl Deref for MountRef {
    type Target = Arc<Mount>;
    #[inline]
    fn deref(&self) -> &Arc<Mount> {
        &self.0
    }
}
