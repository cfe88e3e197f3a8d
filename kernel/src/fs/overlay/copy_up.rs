//! Copying from a lower tree to the upper tree.
//!
//! A copy is made without a name, or in the work directory, and gets its name when it is complete.
//! So a copy-up that fails, or whose task is killed, has no visible effect. A file that lost its
//! name meanwhile gets none.

use freehold_collections::{Arc, Vec};

use super::node::{OverlayNode, Place, has_other_names};
use super::{ORIGIN, OverlayShared, PRIVATE};
use crate::fs::bytes::{SliceSink, SliceSource};
use crate::fs::file::{Blocking, File};
use crate::fs::flags::{OpenFlags, RenameFlags};
use crate::fs::node::{
    Metadata, ModeChange, Naming, NewNode, Node, NodeKind, Presence, SetMetadata, XattrSet,
};
use crate::{Errno, Result, sched};

/// Bytes that are copied at once.
const STEP: usize = 64 << 10;

impl OverlayNode {
    /// Returns the upper tree's inode. If needed, copies the node and all directories above it up;
    /// of a regular file at most `most` bytes.
    ///
    /// # Errors
    /// `EINTR` if the task must end; `ENOENT` for a directory that was removed; the trees' errors.
    pub fn copy_up(&self, most: u64) -> Result<Arc<dyn Node>> {
        if let Some(upper) = self.upper() {
            return Ok(upper);
        }
        let mut above = Vec::new();
        let mut here = self.place();
        while let Some(Place { dir, .. }) = here.filter(|place| place.dir.upper().is_none()) {
            here = dir.place();
            above.try_push(dir)?;
        }
        while let Some(dir) = above.pop() {
            sched::checkpoint()?;
            dir.copy_this_up(0)?;
        }
        self.copy_this_up(most)
    }

    fn copy_this_up(&self, most: u64) -> Result<Arc<dyn Node>> {
        let _turn = self.turn.lock_killable()?;
        if let Some(upper) = self.upper() {
            return Ok(upper);
        }
        let work = self.shared.work()?;
        let lower = self.lower().ok_or(Errno::EIO)?;
        let told = lower.metadata();
        let upper = if told.kind == NodeKind::Regular {
            let upper = work.create_unnamed(&new_like(&told), Naming::Later)?;
            copy_bytes(lower, &upper, told.size.min(most))?;
            copy_attributes(lower, &told, &upper)?;
            self.give_name(&mut |dir, name| dir.link(name, &upper))?;
            upper
        } else {
            let name = self.shared.temporary_name()?;
            let upper = self.shared.make_like(lower, &told, &name)?;
            let mut is_named = false;
            let moved = copy_attributes(lower, &told, &upper).and_then(|()| {
                self.give_name(&mut |dir, wanted| {
                    work.rename(&name, dir, wanted, RenameFlags::NOREPLACE)?;
                    is_named = true;
                    Ok(())
                })
            });
            if !is_named {
                self.shared.remove_from_work(&name, told.kind)?;
                if told.kind == NodeKind::Directory {
                    moved?;
                    return Err(Errno::ENOENT);
                }
            }
            moved?;
            upper
        };
        self.set_upper(upper.clone());
        Ok(upper)
    }

    /// Lets `put` give the copy its name, if the name still leads to this node and the upper tree
    /// has nothing there. The directory's times stay: for programs nothing has changed in it.
    fn give_name(&self, put: &mut dyn FnMut(&Arc<dyn Node>, &[u8]) -> Result<()>) -> Result<()> {
        let _names = self.shared.names.lock_killable()?;
        let Some(Place { dir, name, presence: Presence::Linked }) = self.place() else { return Ok(()) };
        let upper = dir.upper().ok_or(Errno::EIO)?;
        if dir.is_removed() || super::looked_up(&*upper, &name)?.is_some() {
            return Ok(());
        }
        let told = upper.metadata();
        put(&upper, &name)?;
        set_times(&upper, &told)
    }
}

impl OverlayShared {
    /// Makes a node like `lower`, which is no regular file, named `name` in the work directory.
    fn make_like(&self, lower: &Arc<dyn Node>, told: &Metadata, name: &[u8]) -> Result<Arc<dyn Node>> {
        let (work, new) = (self.work()?, new_like(told));
        match told.kind {
            NodeKind::Symlink => work.symlink(name, &lower.read_link()?, &new),
            _ => work.create(name, &new),
        }
    }

    /// Removes a node from the work directory.
    pub fn remove_from_work(&self, name: &[u8], kind: NodeKind) -> Result<()> {
        let work = self.work()?;
        if kind == NodeKind::Directory { work.remove_dir(name) } else { work.unlink(name) }
    }
}

fn new_like(told: &Metadata) -> NewNode {
    NewNode { kind: told.kind, mode: told.mode, uid: told.uid, gid: told.gid, rdev: told.rdev }
}

/// Copies the first `size` bytes; holes, and runs of zeroes, become holes.
pub(super) fn copy_bytes(lower: &Arc<dyn Node>, upper: &Arc<dyn Node>, size: u64) -> Result<()> {
    if size == 0 {
        return Ok(());
    }
    let from = lower.clone().open(OpenFlags::LARGEFILE)?;
    let to = upper.clone().open(OpenFlags::LARGEFILE | OpenFlags::WRONLY)?;
    let content = from.content();
    let mut room = Vec::try_filled(0, STEP.min(usize::try_from(size).unwrap_or(STEP)))?;
    let mut at = 0;
    while at < size {
        sched::checkpoint()?;
        match content.as_ref().map_or(Some(at), |content| content.seek_data(at)) {
            Some(data) => at = data,
            None => break,
        }
        let want = room.len().min(usize::try_from(size.saturating_sub(at)).unwrap_or(STEP));
        let got = from.read_at(at, &mut SliceSink::new(&mut room[..want]), Blocking::Wait)?;
        if got == 0 {
            break;
        }
        if room[..got].iter().any(|&byte| byte != 0) {
            write_all(&*to, at, &room[..got])?;
        }
        at += got as u64;
    }
    upper.set_metadata(&SetMetadata { size: Some(size), ..SetMetadata::default() })
}

/// Writes all of `bytes` from offset `at` on.
pub(super) fn write_all(file: &dyn File, at: u64, bytes: &[u8]) -> Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let mut source = SliceSource::new(&bytes[done..]);
        done += match file.write_at(at + done as u64, &mut source, Blocking::Wait)? {
            0 => return Err(Errno::EIO),
            count => count,
        };
    }
    Ok(())
}

/// Sets a node's times to those in `told`.
pub(super) fn set_times(node: &Arc<dyn Node>, told: &Metadata) -> Result<()> {
    let (accessed, modified) = (Some(told.accessed), Some(told.modified));
    node.set_metadata(&SetMetadata { accessed, modified, ..SetMetadata::default() })
}

/// Gives the copy the original's attributes, and records the original's inode.
fn copy_attributes(lower: &Arc<dyn Node>, told: &Metadata, upper: &Arc<dyn Node>) -> Result<()> {
    let names = match lower.list_xattrs() {
        Err(Errno::EOPNOTSUPP) => Vec::new(),
        names => names?,
    };
    for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty() && !name.starts_with(PRIVATE)) {
        sched::checkpoint()?;
        upper.set_xattr(name, &lower.xattr(name)?, XattrSet::Any)?;
    }
    if !has_other_names(&**lower) {
        upper.set_xattr(ORIGIN, &OverlayShared::origin_of(&**lower), XattrSet::Any)?;
    }
    upper.set_metadata(&SetMetadata {
        mode: (told.kind != NodeKind::Symlink).then_some(ModeChange::To(told.mode)),
        accessed: Some(told.accessed),
        modified: Some(told.modified),
        ..SetMetadata::default()
    })
}
