//! Operations of programs on names: open, make, remove, rename, link.
//!
//! Each function resolves the path, checks permissions and mount flags, and then calls the
//! directory's node. The check and the change are not one step: the node itself checks again that a
//! name is free or a directory empty. Meanwhile the names are locked against removal
//! ([`metadata::keep_names`]).

use freehold_collections::{
    Arc, Vec,
    reserve::{self, ArcMethods},
};

use super::caller::Access;
use super::flags::{OpenFlags, RenameFlags};
use super::leases;
use super::metadata::{self, KeptNames};
use super::mount::{MountFlags, MountWriter};
use super::node::{LinkTarget, Naming, NewNode, Node, NodeKind, SetMetadata};
use super::notify::{self, Events, NamedNode};
use super::open_file::OpenFile;
use super::path::{Path, PathEntry};
use super::rights::{S_ISGID, S_IXGRP};
use super::text::{Permit, Purpose};
use super::walk::{Final, Last, Parent, PathWalk, Trailing};
use crate::task::Capability;
use crate::{Errno, Result};

/// open(2). `mode` has the permissions of a new file, after the umask.
pub fn open(walk: &PathWalk<'_>, text: &[u8], flags: OpenFlags, mode: u32) -> Result<Arc<OpenFile>> {
    let nofollow = flags.contains(OpenFlags::NOFOLLOW);
    let last = if nofollow { Final::Stop } else { Final::Follow };
    if flags.contains(OpenFlags::PATH) {
        return open_path(walk.find(text, last)?, flags);
    }
    if flags.is_tmpfile() {
        return open_unnamed(walk, &walk.find(text, last)?, flags, mode);
    }
    if flags.contains(OpenFlags::CREAT) {
        return open_or_create(walk, text, flags, mode);
    }
    let place = walk.find(text, last).inspect_err(|&error| {
        if error == Errno::ENOENT {
            super::missing::note(text);
        }
    })?;
    open_place(walk, place, flags, Origin::Existing)
}

/// Opens a place that was found without a path (Linux: `do_file_open_root` with an empty name).
///
/// # Errors
/// As open(2).
pub fn open_found(walk: &PathWalk<'_>, place: Path, flags: OpenFlags) -> Result<Arc<OpenFile>> {
    if flags.contains(OpenFlags::PATH) {
        return open_path(place, flags);
    }
    if flags.is_tmpfile() {
        return open_unnamed(walk, &place, flags, 0);
    }
    if flags.contains(OpenFlags::CREAT | OpenFlags::EXCL) && place.node.kind() != NodeKind::Symlink {
        return Err(Errno::EEXIST);
    }
    open_place(walk, place, flags, Origin::Existing)
}

/// Opens a place with O_PATH.
fn open_path(place: Path, flags: OpenFlags) -> Result<Arc<OpenFile>> {
    if flags.contains(OpenFlags::DIRECTORY) && place.node.kind() != NodeKind::Directory {
        return Err(Errno::ENOTDIR);
    }
    let file = reserve::arc(super::path_file::PathFile::new(place.node.clone()));
    OpenFile::new(file, Some(place), flags)
}

/// Whether the opened file was just created: then its permissions do not apply.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Existing,
    Created,
}

fn open_unnamed(walk: &PathWalk<'_>, dir: &Path, flags: OpenFlags, mode: u32) -> Result<Arc<OpenFile>> {
    if !flags.writes() {
        return Err(Errno::EINVAL);
    }
    if dir.node.kind() != NodeKind::Directory {
        return Err(Errno::ENOTDIR);
    }
    let new = new_node(walk, dir, NodeKind::Regular, mode, 0)?;
    let naming = if flags.contains(OpenFlags::EXCL) { Naming::Never } else { Naming::Later };
    let node = dir.node.create_unnamed(&new, naming)?;
    let place = Path { mount: dir.mount.clone(), node, entry: None };
    open_place(walk, place, flags.difference(OpenFlags::DIRECTORY), Origin::Created)
}

fn open_or_create(walk: &PathWalk<'_>, text: &[u8], flags: OpenFlags, mode: u32) -> Result<Arc<OpenFile>> {
    let mut links = 0;
    let mut parent = walk.parent(text)?;
    loop {
        let Last::Name(name) = &parent.last else {
            return Err(if flags.contains(OpenFlags::EXCL) { Errno::EEXIST } else { Errno::EISDIR });
        };
        if parent.trailing == Trailing::Slash {
            return Err(Errno::EISDIR);
        }
        match walk.child(&parent.dir, name) {
            Ok(_) if flags.contains(OpenFlags::EXCL) => return Err(Errno::EEXIST),
            Ok(place) if place.node.kind() == NodeKind::Symlink => {
                if flags.contains(OpenFlags::NOFOLLOW) {
                    return Err(Errno::ELOOP);
                }
                match walk.read_for_follow(&place.node, &mut links)? {
                    LinkTarget::Jump(place) => return open_place(walk, place, flags, Origin::Existing),
                    LinkTarget::Text(text) => parent = walk.parent_from(parent.dir, &text, &mut links)?,
                }
            }
            Ok(place) => return open_place(walk, place, flags, Origin::Existing),
            Err(Errno::ENOENT) => {
                let new = new_node(walk, &parent.dir, NodeKind::Regular, mode, 0)?;
                let create = || parent.dir.node.create(name, &new);
                match report_new(&parent.dir, name, create) {
                    Ok(node) => {
                        let place = place_of(&parent.dir, node, name)?;
                        return open_place(walk, place, flags, Origin::Created);
                    }
                    // Another task has created the file: open that file.
                    Err(Errno::EEXIST) => {}
                    Err(error) => return Err(error),
                }
            }
            Err(error) => return Err(error),
        }
    }
}

fn place_of(dir: &Path, node: Arc<dyn Node>, name: &[u8]) -> Result<Path> {
    let entry = PathEntry::new(dir.node.clone(), Vec::try_from_slice(name)?);
    Ok(Path { mount: dir.mount.clone(), node, entry: Some(reserve::arc(entry)) })
}

fn open_place(walk: &PathWalk<'_>, place: Path, flags: OpenFlags, origin: Origin) -> Result<Arc<OpenFile>> {
    let kind = place.node.kind();
    match kind {
        NodeKind::Symlink => return Err(Errno::ELOOP),
        NodeKind::Directory if flags.writes() || flags.intersects(OpenFlags::CREAT | OpenFlags::TRUNC) => {
            return Err(Errno::EISDIR);
        }
        NodeKind::CharDevice | NodeKind::BlockDevice if place.mount.flags().contains(MountFlags::NODEV) => {
            return Err(Errno::EACCES);
        }
        _ => {}
    }
    if flags.contains(OpenFlags::DIRECTORY) && kind != NodeKind::Directory {
        return Err(Errno::ENOTDIR);
    }
    let truncates =
        flags.contains(OpenFlags::TRUNC) && kind == NodeKind::Regular && origin == Origin::Existing;
    if origin == Origin::Existing {
        let mut want = Access::EXISTS;
        if flags.reads() {
            want = want.and(Access::READ);
        }
        if flags.writes() || truncates {
            want = want.and(Access::WRITE);
            if kind == NodeKind::Regular {
                place.mount.writable()?;
            }
        }
        if !walk.caller.may_for_all(Capability::DacOverride) {
            walk.caller.may_use(&*place.node, want)?;
        }
        if flags.contains(OpenFlags::NOATIME) && !walk.caller.owns(&place.node.metadata()) {
            return Err(Errno::EPERM);
        }
    }
    notify::before_open(&place, Events::OPEN)?;
    let _permit = if truncates { Permit::new(&place.node, Purpose::Write)? } else { None };
    // Counted until the description counts itself: waiting for a lease may take long.
    let _writer = truncates.then(|| MountWriter::new(&place.mount)).transpose()?;
    if truncates {
        leases::before_open(&*place.node, flags)?;
        place.node.drop_rights()?;
        place.node.set_metadata(&SetMetadata { size: Some(0), ..SetMetadata::default() })?;
    }
    let file = place.node.clone().open(flags)?;
    let opened = OpenFile::new(file, Some(place), flags)?;
    if !truncates && leases::are_there() {
        leases::before_open(&*opened.node(), flags)?;
    }
    if truncates && let Some(path) = opened.path() {
        notify::place(path, Events::MODIFY);
    }
    Ok(opened)
}

/// Returns the attributes of a new node in `dir`: `EROFS` and `EACCES` if none may be made. In a
/// setgid directory a new node gets the directory's group, and a new directory also the bit.
fn new_node(walk: &PathWalk<'_>, dir: &Path, kind: NodeKind, mode: u32, rdev: u64) -> Result<NewNode> {
    dir.mount.writable()?;
    let meta = dir.node.metadata();
    walk.caller.may(&meta, Access::WRITE.and(Access::EXECUTE))?;
    let mut new = NewNode { kind, mode: mode & 0o7777, uid: walk.caller.uid, gid: walk.caller.gid, rdev };
    if meta.mode & S_ISGID != 0 {
        new.gid = meta.gid;
        if kind == NodeKind::Directory {
            new.mode |= S_ISGID;
        } else if new.mode & S_IXGRP != 0
            && !walk.caller.in_group(meta.gid)
            && !walk.caller.may_for(Capability::FSetId, (meta.uid, meta.gid))
        {
            new.mode &= !S_ISGID;
        }
    }
    Ok(new)
}

/// Locks the directory's names against removal while files are watched, so that a new name is
/// reported before its removal.
///
/// # Errors
/// `EINTR` if the caller is killed while it waits.
pub fn order_of_events(dir: &Path) -> Result<Option<KeptNames>> {
    notify::is_watching().then(|| metadata::keep_names([dir, dir])).transpose()
}

/// Makes a name in a directory by `make`, and notifies watches.
fn report_new(
    dir: &Path,
    name: &[u8],
    make: impl FnOnce() -> Result<Arc<dyn Node>>,
) -> Result<Arc<dyn Node>> {
    let _order = order_of_events(dir)?;
    let made = make()?;
    notify::entry(dir, name, &made, Events::CREATE);
    Ok(made)
}

/// Returns the directory and the name for a new file at `text`: `EEXIST` for "/", "." and "..", and
/// if the name exists.
fn free_name(walk: &PathWalk<'_>, text: &[u8]) -> Result<(Parent, Vec<u8>)> {
    let mut parent = walk.parent(text)?;
    let last = core::mem::replace(&mut parent.last, Last::Dot);
    let Last::Name(name) = last else { return Err(Errno::EEXIST) };
    match walk.child(&parent.dir, &name) {
        Ok(_) => Err(Errno::EEXIST),
        Err(Errno::ENOENT) => Ok((parent, name)),
        Err(error) => Err(error),
    }
}

/// mkdir(2).
pub fn make_dir(walk: &PathWalk<'_>, text: &[u8], mode: u32) -> Result<()> {
    let (parent, name) = free_name(walk, text)?;
    let new = new_node(walk, &parent.dir, NodeKind::Directory, mode & 0o1777, 0)?;
    report_new(&parent.dir, &name, || parent.dir.node.create(&name, &new)).map(drop)
}

/// mknod(2), and bind(2) of a socket to a path. Returns the new node's place.
pub fn make_node(walk: &PathWalk<'_>, text: &[u8], kind: NodeKind, mode: u32, rdev: u64) -> Result<Path> {
    let (parent, name) = free_name(walk, text)?;
    if parent.trailing == Trailing::Slash {
        return Err(Errno::ENOENT);
    }
    let is_device = matches!(kind, NodeKind::CharDevice | NodeKind::BlockDevice);
    // Linux: `is_whiteout`. It is no device, so it needs no capability.
    let is_whiteout = kind == NodeKind::CharDevice && rdev == 0;
    if is_device && !is_whiteout && !walk.caller.may_for_all(Capability::MkNod) {
        return Err(Errno::EPERM);
    }
    let new = new_node(walk, &parent.dir, kind, mode, rdev)?;
    let node = report_new(&parent.dir, &name, || parent.dir.node.create(&name, &new))?;
    place_of(&parent.dir, node, &name)
}

/// symlink(2).
pub fn symlink(walk: &PathWalk<'_>, target: &[u8], text: &[u8]) -> Result<()> {
    if target.is_empty() {
        return Err(Errno::ENOENT);
    }
    let (parent, name) = free_name(walk, text)?;
    if parent.trailing == Trailing::Slash {
        return Err(Errno::ENOENT);
    }
    let new = new_node(walk, &parent.dir, NodeKind::Symlink, 0o777, 0)?;
    let make = || parent.dir.node.symlink(&name, target, &new);
    report_new(&parent.dir, &name, make).map(drop)
}

/// link(2): gives `old` another name.
pub fn link(old: &Path, walk: &PathWalk<'_>, text: &[u8]) -> Result<()> {
    let (parent, name) = free_name(walk, text)?;
    if parent.trailing == Trailing::Slash {
        return Err(Errno::ENOENT);
    }
    if !parent.dir.mount.is_same(&old.mount) {
        return Err(Errno::EXDEV);
    }
    new_node(walk, &parent.dir, NodeKind::Regular, 0, 0)?;
    if old.node.kind() == NodeKind::Directory {
        return Err(Errno::EPERM);
    }
    let _order = order_of_events(&parent.dir)?;
    parent.dir.node.link(&name, &old.node)?;
    notify::linked(&parent.dir, &name, &old.node);
    Ok(())
}

/// Returns the node to be removed or renamed: the node itself, not the root of a mount that covers
/// it.
fn victim(walk: &PathWalk<'_>, parent: &Parent, name: &[u8]) -> Result<Arc<dyn Node>> {
    parent.dir.mount.writable()?;
    if name.len() > super::walk::NAME_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    let node = parent.dir.node.lookup(name)?;
    walk.caller.may_remove(&parent.dir.node.metadata(), &node.metadata())?;
    Ok(node)
}

/// unlink(2).
pub fn unlink(walk: &PathWalk<'_>, text: &[u8]) -> Result<()> {
    let parent = walk.parent(text)?;
    let Last::Name(name) = &parent.last else { return Err(Errno::EISDIR) };
    let names = metadata::keep_names([&parent.dir, &parent.dir])?;
    let node = victim(walk, &parent, name)?;
    if parent.trailing == Trailing::Slash {
        return Err(if node.kind() == NodeKind::Directory { Errno::EISDIR } else { Errno::ENOTDIR });
    }
    if parent.dir.mount.covering(&node).is_some() {
        return Err(Errno::EBUSY);
    }
    parent.dir.node.unlink(name)?;
    notify::unlinked(&parent.dir, name, node, names);
    Ok(())
}

/// rmdir(2).
pub fn remove_dir(walk: &PathWalk<'_>, text: &[u8]) -> Result<()> {
    let parent = walk.parent(text)?;
    let name = match &parent.last {
        Last::Name(name) => name,
        Last::Dot => return Err(Errno::EINVAL),
        Last::DotDot => return Err(Errno::ENOTEMPTY),
        Last::Root => return Err(Errno::EBUSY),
    };
    let names = metadata::keep_names([&parent.dir, &parent.dir])?;
    let node = victim(walk, &parent, name)?;
    if node.kind() != NodeKind::Directory {
        return Err(Errno::ENOTDIR);
    }
    if parent.dir.mount.covering(&node).is_some() {
        return Err(Errno::EBUSY);
    }
    parent.dir.node.remove_dir(name)?;
    notify::unlinked(&parent.dir, name, node, names);
    Ok(())
}

/// Returns the node that a rename to `name` in `target` replaces, if the caller may do this.
fn replaceable(
    walk: &PathWalk<'_>,
    target: &Parent,
    name: &[u8],
    flags: RenameFlags,
) -> Result<Option<Arc<dyn Node>>> {
    match target.dir.node.lookup(name) {
        Ok(_) if flags.contains(RenameFlags::NOREPLACE) => Err(Errno::EEXIST),
        Ok(replaced) => {
            walk.caller.may_remove(&target.dir.node.metadata(), &replaced.metadata())?;
            if target.dir.mount.covering(&replaced).is_some() {
                return Err(Errno::EBUSY);
            }
            Ok(Some(replaced))
        }
        Err(Errno::ENOENT) => {
            new_node(walk, &target.dir, NodeKind::Regular, 0, 0)?;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// renameat2(2): `old` is resolved by one walk, `new` by the other.
pub fn rename(
    from: &PathWalk<'_>,
    old: &[u8],
    to: &PathWalk<'_>,
    new: &[u8],
    flags: RenameFlags,
) -> Result<()> {
    if flags.contains(RenameFlags::EXCHANGE)
        && flags.intersects(RenameFlags::NOREPLACE | RenameFlags::WHITEOUT)
    {
        return Err(Errno::EINVAL);
    }
    let source = from.parent(old)?;
    let target = to.parent(new)?;
    if !source.dir.mount.is_same(&target.dir.mount) {
        return Err(Errno::EXDEV);
    }
    let Last::Name(old_name) = &source.last else { return Err(Errno::EBUSY) };
    let Last::Name(new_name) = &target.last else {
        return Err(if flags.contains(RenameFlags::NOREPLACE) { Errno::EEXIST } else { Errno::EBUSY });
    };
    if new_name.len() > super::walk::NAME_MAX {
        return Err(Errno::ENAMETOOLONG);
    }
    let names = metadata::keep_names([&source.dir, &target.dir])?;
    loop {
        let node = victim(from, &source, old_name)?;
        let needs_directory = source.trailing == Trailing::Slash || target.trailing == Trailing::Slash;
        if needs_directory && node.kind() != NodeKind::Directory {
            return Err(Errno::ENOTDIR);
        }
        let replaced = replaceable(to, &target, new_name, flags)?;
        let found = if replaced.is_none() { RenameFlags::FREE } else { RenameFlags::empty() };
        if source.dir.mount.covering(&node).is_some() {
            return Err(Errno::EBUSY);
        }
        match source.dir.node.rename(old_name, &target.dir.node, new_name, flags | found) {
            // The name was made after the lookup. Whether it may be replaced is checked again.
            Err(Errno::EEXIST) if replaced.is_none() && !flags.contains(RenameFlags::NOREPLACE) => {
                crate::sched::checkpoint()?;
                continue;
            }
            renamed => renamed?,
        }
        let moved = NamedNode { dir: &source.dir, name: old_name, node };
        notify::renamed(moved, (&target.dir, new_name), replaced, flags, names);
        return Ok(());
    }
}

/// truncate(2).
pub fn truncate(walk: &PathWalk<'_>, place: &Path, size: u64) -> Result<()> {
    match place.node.kind() {
        NodeKind::Directory => return Err(Errno::EISDIR),
        NodeKind::Regular => {}
        _ => return Err(Errno::EINVAL),
    }
    walk.caller.may(&place.node.metadata(), Access::WRITE)?;
    let _writer = MountWriter::new(&place.mount)?;
    let _permit = Permit::new(&place.node, Purpose::Write)?;
    leases::before_truncate(&*place.node)?;
    metadata::change(place, &SetMetadata { size: Some(size), ..SetMetadata::default() })
}
