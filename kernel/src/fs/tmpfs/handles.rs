//! Handles of files (name_to_handle_at(2), open_by_handle_at(2)): the inode number, and a random
//! number of the file system, so that a handle leads to no file of another one (Linux:
//! `shmem_encode_fh`, where each file has a number of its own).
//!
//! A file with a handle is in a table by its inode number. The table does not keep it, and the file
//! leaves the table at its end. So a file system without handles has an empty table.

use core::any::Any;
use core::sync::atomic::Ordering;

use freehold_collections::reserve::{self, ArcMethods};
use freehold_collections::{Arc, Map, Vec, Weak};

use super::TmpfsShared;
use super::node::TmpNode;
use crate::fs::Node;
use crate::fs::mount::{FileHandle, HandleTarget};
use crate::fs::path::PathEntry;
use crate::sync::SpinLock;
use crate::{Errno, Result, hw};

/// A file with a handle.
struct HandleEntry {
    node: Weak<TmpNode>,
    /// The directory and the name by which the file was found; `None` for a directory.
    found: Option<(Weak<TmpNode>, Arc<[u8]>)>,
}

/// The files of a file system that a handle was made for.
pub(super) struct Handles {
    generation: spin::Once<u32>,
    files: SpinLock<Map<u64, HandleEntry>>,
}

impl Handles {
    pub const fn new() -> Self {
        Self { generation: spin::Once::new(), files: SpinLock::new(Map::new()) }
    }

    /// Makes the handle of `node`, which was found by `entry`. Without one, an entry that is known
    /// from before stays.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn make(&self, node: &TmpNode, entry: Option<&PathEntry>) -> Result<FileHandle> {
        let generation = *self.generation.call_once(|| {
            let mut bytes = [0; 4];
            hw::fill_random(&mut bytes);
            u32::from_le_bytes(bytes)
        });
        let found =
            entry.and_then(|entry| Some((TmpNode::of(&entry.dir)?.me.clone(), reserve::slice(&entry.name))));
        node.has_handle.store(true, Ordering::Relaxed);
        let before = {
            let mut files = self.files.lock();
            let is_known = found.is_none() && files.contains_key(&node.inode);
            if is_known {
                None
            } else {
                files.try_insert(node.inode, HandleEntry { node: node.me.clone(), found })?
            }
        };
        drop(before);
        Ok(FileHandle { words: [generation, node.inode as u32, (node.inode >> 32) as u32], count: 3 })
    }

    /// Returns the file of a handle, with the name that it was found by, if that still exists.
    ///
    /// # Errors
    /// `ESTALE` if there is no such file; `ENOMEM`.
    pub fn find(&self, words: &[u32]) -> Result<HandleTarget> {
        let &[generation, low, high, ..] = words else { return Err(Errno::ESTALE) };
        if self.generation.get() != Some(&generation) {
            return Err(Errno::ESTALE);
        }
        let inode = u64::from(high) << 32 | u64::from(low);
        let known = self.files.lock().get(&inode).map(|entry| (entry.node.clone(), entry.found.clone()));
        let (node, found) = known.ok_or(Errno::ESTALE)?;
        let node: Arc<dyn Node> = node.upgrade().ok_or(Errno::ESTALE)?;
        let found = found.and_then(|(dir, name)| Some((dir.upgrade()?, name)));
        let entry = match found {
            Some((dir, name)) => Some(reserve::arc(PathEntry::new(dir, Vec::try_from_slice(&name)?))),
            None => None,
        };
        Ok((node, entry))
    }

    /// Forgets a file, which ends.
    pub fn forget(&self, inode: u64) {
        let gone = self.files.lock().remove(&inode);
        drop(gone);
    }
}

impl TmpNode {
    /// Returns `node` as a node of any tmpfs.
    pub(super) fn of(node: &Arc<dyn Node>) -> Option<&Self> {
        let any: &dyn Any = &**node;
        any.downcast_ref()
    }

    /// Whether the node belongs to the file system of `shared`.
    pub(super) fn is_in(&self, shared: &Arc<TmpfsShared>) -> bool {
        self.shared.is_same(shared)
    }
}

#[cfg(test)]
mod tests {
    use freehold_collections::inject::each_fails;
    use std::format;

    use crate::Errno;
    use crate::fs::flags::OpenFlags;
    use crate::fs::mount::FileSystem;
    use crate::fs::tests::World;
    use crate::fs::walk::Final;
    use crate::fs::{names, tmpfs::TmpFs};

    fn known(fs: &TmpFs) -> usize {
        fs.shared.handles.files.lock().len()
    }

    #[test]
    fn a_handle_leads_to_its_file_until_the_file_ends_and_leaves_nothing() {
        let (world, other) = (World::new(), World::new());
        let (mut failures, mut handles) = (0, std::vec::Vec::new());
        for number in 0..100 {
            world.write(&format!("/{number}"), "x");
            other.write(&format!("/{number}"), "x");
            let place = world.walk().find(format!("/{number}").as_bytes(), Final::Stop).unwrap();
            let (handle, failed) = each_fails(|| world.fs.handle(&place.node, place.entry.as_deref()));
            failures += failed;
            handles.push(handle.unwrap());
        }
        let find = |world: &World, number: usize| world.fs.by_handle(1, &handles[number].words);
        assert!(failures > 0);
        assert_eq!((known(&world.fs), known(&other.fs)), (100, 0));
        let place = other.walk().find(b"/5", Final::Stop).unwrap();
        other.fs.handle(&place.node, place.entry.as_deref()).unwrap();
        assert_eq!(
            world.fs.handle(&place.node, place.entry.as_deref()).err(),
            Some(Errno::EOPNOTSUPP),
            "it is another's file"
        );
        assert_eq!(find(&other, 5).err(), Some(Errno::ESTALE), "it is another's handle");
        let (node, entry) = find(&world, 5).unwrap();
        assert_eq!(node.identity(), world.walk().find(b"/5", Final::Stop).unwrap().node.identity());
        assert_eq!(&entry.unwrap().name[..], b"5");
        drop(node);
        let open = world.open("/7", OpenFlags::empty()).unwrap();
        for number in 0..100 {
            names::unlink(&world.walk(), format!("/{number}").as_bytes()).unwrap();
        }
        assert_eq!(known(&world.fs), 1);
        assert!(find(&world, 7).is_ok(), "a file that is open has not ended");
        drop(open);
        assert_eq!(find(&world, 7).err(), Some(Errno::ESTALE));
        assert_eq!(known(&world.fs), 0);
    }
}
