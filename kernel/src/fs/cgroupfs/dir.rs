//! A group as a directory.

use core::ops::Bound;

use freehold_collections::{Arc, Map, Receiver, Weak, reserve};

use super::file::GroupFile;
use super::rows::{self, Row};
use super::{change, device, identity};
use crate::cgroup::{self, Group};
use crate::fs::caller::Access;
use crate::fs::file::{Blocking, DirEntry, File, Seekable};
use crate::fs::flags::OpenFlags;
use crate::fs::node::{DirectoryPlace, Identity, Metadata, NewNode, Node, NodeKind, Presence, SetMetadata};
use crate::fs::notify;
use crate::fs::pseudo::emit_dots;
use crate::fs::tmpfs::attributes::Attributes;
use crate::sync::SpinLock;
use crate::task::Credentials;
use crate::user::Sink;
use crate::{Errno, Result};

/// Positions in a listing: files have positions from 2 on; a group has its ID plus this number.
const GROUPS: u64 = 1 << 16;
/// Number of names of groups that are listed per acquisition of the lock.
const LISTED_AT_ONCE: usize = 64;

/// The names of the child groups.
#[derive(Default)]
struct GroupNames {
    by_name: Map<Arc<[u8]>, Arc<GroupDir>>,
    by_id: Map<u64, Arc<[u8]>>,
}

/// The directories of all groups but the root, by the group's ID: for handles.
static BY_ID: SpinLock<Map<u64, Weak<GroupDir>>> = SpinLock::new(Map::new());

/// Returns the directory of the group with this ID, unless the group was removed.
pub(super) fn by_id(id: u64) -> Option<Arc<GroupDir>> {
    let found = BY_ID.lock().get(&id).and_then(|dir| dir.upgrade());
    found.filter(|dir| !dir.group.is_removed())
}

/// A group as a directory.
pub(super) struct GroupDir {
    me: Weak<GroupDir>,
    group: Arc<Group>,
    /// `None` for the root.
    parent: Option<Arc<GroupDir>>,
    names: SpinLock<GroupNames>,
    attributes: SpinLock<Attributes>,
    /// The user and group that made the directory; its files belong to them.
    maker: (u32, u32),
    /// The files, by index, whose mode or owner was changed.
    files: SpinLock<Map<usize, Attributes>>,
}

impl GroupDir {
    /// Makes the directory of the root group.
    pub fn root() -> Arc<Self> {
        let new = NewNode { kind: NodeKind::Directory, mode: 0o555, uid: 0, gid: 0, rdev: 0 };
        Self::new(cgroup::root().clone(), None, &new)
    }

    fn new(group: Arc<Group>, parent: Option<Arc<Self>>, new: &NewNode) -> Arc<Self> {
        reserve::cyclic(|me| Self {
            me: me.clone(),
            group,
            parent,
            names: SpinLock::new(GroupNames::default()),
            attributes: SpinLock::new(Attributes::new(new, 2)),
            maker: (new.uid, new.gid),
            files: SpinLock::new(Map::new()),
        })
    }

    fn me(&self) -> Arc<Self> {
        self.me.upgrade().expect("a node is only reached through an Arc of it")
    }

    /// The group.
    pub fn group(&self) -> &Arc<Group> {
        &self.group
    }

    /// The parent group's directory.
    pub fn above(&self) -> Option<&Arc<Self>> {
        self.parent.as_ref()
    }

    /// Returns the directory of the child group `name`.
    pub fn child(&self, name: &[u8]) -> Option<Arc<Self>> {
        self.names.lock().by_name.get(name).cloned()
    }

    /// Checks that `own` may write to the group's cgroup.procs. A move needs further rights.
    ///
    /// # Errors
    /// `EACCES`.
    pub fn may_write_procs(&self, own: &Credentials) -> Result<()> {
        let index = rows::of(&self.group).find(|(_, row)| matches!(row, Row::Procs)).map(|(index, _)| index);
        let index = index.ok_or(Errno::EACCES)?;
        own.caller().may(&self.file_metadata(index, Row::Procs), Access::WRITE)
    }

    /// The result of stat(2) for a file.
    pub fn file_metadata(&self, index: usize, row: Row) -> Metadata {
        let identity = identity(&self.group, index);
        if let Some(changed) = self.files.lock().get(&index) {
            return changed.metadata(identity, NodeKind::Regular);
        }
        let made = self.attributes.lock().metadata(identity, NodeKind::Regular);
        let (uid, gid) = self.maker;
        Metadata { mode: row.mode(), uid, gid, links: 1, ..made }
    }

    /// Changes a file's mode or owner.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn change_file(&self, index: usize, row: Row, change: &SetMetadata) -> Result<()> {
        let Metadata { mode, uid, gid, .. } = self.file_metadata(index, row);
        let mut files = self.files.lock();
        if !files.contains_key(&index) {
            let new = NewNode { kind: NodeKind::Regular, mode, uid, gid, rdev: 0 };
            files.try_insert(index, Attributes::new(&new, 1))?;
        }
        if let Some(attributes) = files.get_mut(&index) {
            attributes.change(change);
        }
        Ok(())
    }

    /// The group's file with this index.
    pub fn file(&self, index: usize, row: Row) -> Arc<dyn Node> {
        reserve::arc(GroupFile::new(self.me(), index, row))
    }

    fn enter(&self, name: &[u8], child: &Arc<Self>) -> Result<()> {
        let name: Arc<[u8]> = reserve::slice(name);
        BY_ID.lock().try_insert(child.group.id(), child.me.clone())?;
        let mut names = self.names.lock();
        names.by_name.try_reserve(1)?;
        names.by_id.try_reserve(1)?;
        names.by_id.insert_reserved(child.group.id(), name.clone());
        names.by_name.insert_reserved(name, child.clone());
        Ok(())
    }

    /// Lists a limited number of groups from an ID on, until `emit` returns `false`. Returns the
    /// next ID; `None` if all groups are listed.
    fn list(&self, from: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Option<u64> {
        let names = self.names.lock();
        let mut next = None;
        let mut entries = names.by_id.iter_from(Bound::Included(&from));
        for _ in 0..LISTED_AT_ONCE {
            let (&id, name) = entries.next()?;
            let kind = NodeKind::Directory.dirent_kind();
            if !emit(DirEntry { name, inode: id, kind, next: GROUPS + id + 1 }) {
                return None;
            }
            next = Some(id + 1);
        }
        next
    }
}

impl Drop for GroupDir {
    fn drop(&mut self) {
        notify::inode_ended(self);
        let gone = BY_ID.lock().remove(&self.group.id());
        drop(gone);
    }
}

impl Node for GroupDir {
    fn identity(&self) -> Identity {
        Identity { device: device(), inode: self.group.id() }
    }

    fn kind(&self) -> NodeKind {
        NodeKind::Directory
    }

    fn metadata(&self) -> Metadata {
        let below = self.names.lock().by_name.len() as u32;
        let told = self.attributes.lock().metadata(self.identity(), NodeKind::Directory);
        Metadata { links: if self.group.is_removed() { 0 } else { 2 + below }, ..told }
    }

    fn open(self: Receiver<Self>, _flags: OpenFlags) -> Result<Arc<dyn File>> {
        Ok(self)
    }

    fn set_metadata(&self, change: &SetMetadata) -> Result<()> {
        self.attributes.lock().change(change);
        Ok(())
    }

    fn parent(&self) -> Option<DirectoryPlace> {
        let presence = if self.group.is_removed() { Presence::Removed } else { Presence::Linked };
        let dir = self.parent.as_ref()?.clone();
        Some(DirectoryPlace { dir, name: self.group.name().clone(), presence })
    }

    fn lookup(&self, name: &[u8]) -> Result<Arc<dyn Node>> {
        if self.group.is_removed() {
            return Err(Errno::ENOENT);
        }
        if let Some((index, row)) = rows::of(&self.group).find(|(_, row)| row.name().as_bytes() == name) {
            return Ok(self.file(index, row));
        }
        Ok(self.child(name).ok_or(Errno::ENOENT)?)
    }

    fn create(&self, name: &[u8], new: &NewNode) -> Result<Arc<dyn Node>> {
        match new.kind {
            NodeKind::Directory => {}
            NodeKind::Regular => return Err(Errno::EACCES),
            _ => return Err(Errno::EPERM),
        }
        // A newline would split the group's line in /proc/PID/cgroup.
        if name.contains(&b'\n') {
            return Err(Errno::EINVAL);
        }
        let _change = change()?;
        if rows::is_known(name) || self.child(name).is_some() {
            return Err(Errno::EEXIST);
        }
        let group = cgroup::make(&self.group, name)?;
        let child = Self::new(group.clone(), Some(self.me()), new);
        self.enter(name, &child).or_else(|error| cgroup::remove(&group).and(Err(error)))?;
        self.attributes.lock().touch();
        Ok(child)
    }

    fn remove_dir(&self, name: &[u8]) -> Result<()> {
        let change = change()?;
        let child = self.child(name).ok_or(Errno::ENOENT)?;
        cgroup::remove(&child.group)?;
        let gone = {
            let mut names = self.names.lock();
            (names.by_id.remove(&child.group.id()), names.by_name.remove(name))
        };
        self.attributes.lock().touch();
        drop(change);
        for (index, row) in rows::of(&child.group) {
            notify::lost_name(&child.file(index, row));
        }
        drop(gone);
        Ok(())
    }
}

impl File for GroupDir {
    fn node(&self) -> Arc<dyn Node> {
        self.me()
    }

    fn seekable(&self) -> Seekable {
        Seekable::Offset
    }

    fn read_at(&self, _: u64, _: &mut dyn Sink, _: Blocking) -> Result<usize> {
        Err(Errno::EISDIR)
    }

    fn read_dir(&self, from: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        if self.group.is_removed() {
            return Err(Errno::ENOENT);
        }
        let (mut at, own) = (from, self.group.id());
        let above = self.parent.as_ref().map_or(own, |parent| parent.group.id());
        if !emit_dots(&mut at, own, above, emit) {
            return Ok(());
        }
        let kind = NodeKind::Regular.dirent_kind();
        for (index, row) in rows::of(&self.group).filter(|(index, _)| *index as u64 + 2 >= at) {
            let inode = identity(&self.group, index).inode;
            if !emit(DirEntry { name: row.name().as_bytes(), inode, kind, next: index as u64 + 3 }) {
                return Ok(());
            }
        }
        let mut next = Some(at.saturating_sub(GROUPS));
        while let Some(from) = next {
            next = self.list(from, emit);
        }
        Ok(())
    }
}
