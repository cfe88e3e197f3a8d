//! The file system `cgroup2`: control groups as directories.
//!
//! There is one tree, however often it is mounted. A mount that a process made in another cgroup
//! namespace than the initial one begins at the root of that namespace. [`cgroup`](crate::cgroup)
//! implements the groups; this module has their names, owners and files.
//!
//! | module | concept |
//! |---|---|
//! | [`dir`] | a group as a directory: mkdir and rmdir |
//! | [`file`] | a file of a group, opened |
//! | [`rows`] | which files a group has |
//! | [`procs`] | cgroup.procs and cgroup.threads: listing and moving |
//!
//! **Order of changes.** Each change by a program holds one sleeping lock ([`change`]): a check and
//! the change that it permits are one step. Forks and exits do not take the lock.

mod dir;
mod file;
mod procs;
mod rows;

use core::sync::atomic::{AtomicBool, Ordering};

use freehold_collections::{Arc, Vec, reserve};

use self::dir::GroupDir;
use super::device::unnamed_device;
use super::mount::{FileHandle, FileSystem, FsStats, HandleTarget};
use super::node::{Identity, Node};
use super::path::PathEntry;
use super::{OpenFile, notify};
use crate::cgroup::{self, Group, Notice};
use crate::sync::{Mutex, MutexGuard};
use crate::task::Capability;
use crate::task::namespaces::CgroupNamespace;
use crate::{Errno, Result};

/// The types of handles that Linux' kernfs takes: FILEID_INO32_GEN, FILEID_INO32_GEN_PARENT and
/// FILEID_KERNFS.
const HANDLE_TYPES: [u32; 3] = [1, 2, 0xfe];
/// CGROUP2_SUPER_MAGIC.
const MAGIC: u64 = 0x6367_7270;

static CHANGE: Mutex<()> = Mutex::new(());
/// The option `nsdelegate`: cgroup namespaces are limits of delegation.
static NSDELEGATE: AtomicBool = AtomicBool::new(true);
static DEVICE: spin::Once<u64> = spin::Once::new();
static ROOT: spin::Once<Arc<GroupDir>> = spin::Once::new();

/// Takes the lock of changes.
///
/// # Errors
/// `EINTR` if the caller was killed.
fn change() -> Result<MutexGuard<'static, ()>> {
    CHANGE.lock_killable()
}

fn device() -> u64 {
    *DEVICE.call_once(unnamed_device)
}

fn root() -> &'static Arc<GroupDir> {
    ROOT.call_once(GroupDir::root)
}

/// The tree, from a directory downwards.
struct CgroupFs(Arc<GroupDir>);

/// Makes the file system that is mounted at boot.
///
/// # Errors
/// None now; those of a file system.
pub fn initial() -> Result<Arc<dyn FileSystem>> {
    Ok(reserve::arc(CgroupFs(root().clone())))
}

/// Makes the file system for a mount by a process in `namespace`.
///
/// # Errors
/// `EINVAL` for an unknown option; `ENOENT` if the namespace's root group was removed.
pub fn mount(namespace: &CgroupNamespace, options: &[u8]) -> Result<Arc<dyn FileSystem>> {
    let delegates = parse(options)?;
    let group = namespace.root();
    delegates.hold_for(namespace);
    Ok(reserve::arc(CgroupFs(directory_of(group)?)))
}

#[derive(PartialEq, Eq)]
enum Delegates {
    Yes,
    No,
}

impl Delegates {
    /// Applies the option to the whole machine, if the process is in the initial namespace and may
    /// administer it; otherwise ignores the option. Another namespace may begin at the root group,
    /// too.
    fn hold_for(&self, namespace: &CgroupNamespace) {
        if namespace.head().is_initial() && crate::task::may(Capability::SysAdmin) {
            NSDELEGATE.store(*self == Self::Yes, Ordering::Relaxed);
        }
    }
}

fn parse(options: &[u8]) -> Result<Delegates> {
    let mut delegates = Delegates::No;
    for option in options.split(|&byte| byte == b',').filter(|option| !option.is_empty()) {
        match option {
            b"nsdelegate" => delegates = Delegates::Yes,
            _ => return Err(Errno::EINVAL),
        }
    }
    Ok(delegates)
}

/// The directory of a group.
fn directory_of(group: &Group) -> Result<Arc<GroupDir>> {
    let mut dir = root().clone();
    for level in 1..=group.level() {
        let part = group.ancestor(level).ok_or(Errno::ENOENT)?;
        dir = dir.child(part.name()).filter(|dir| dir.group().id() == part.id()).ok_or(Errno::ENOENT)?;
    }
    Ok(dir)
}

impl FileSystem for CgroupFs {
    fn name(&self) -> &'static str {
        "cgroup2"
    }

    fn device(&self) -> u64 {
        device()
    }

    fn root(&self) -> Arc<dyn Node> {
        self.0.clone()
    }

    fn stats(&self) -> FsStats {
        FsStats { magic: MAGIC, block_size: 4096, ..FsStats::default() }
    }

    /// A handle is the inode number, that is, for a directory the group's ID (Linux' kernfs).
    fn handle(&self, node: &Arc<dyn Node>, _entry: Option<&PathEntry>) -> Result<FileHandle> {
        let Identity { device, inode } = node.identity();
        if device != self.device() {
            return Err(Errno::EOPNOTSUPP);
        }
        Ok(FileHandle { words: [inode as u32, (inode >> 32) as u32, 0], count: 2 })
    }

    fn by_handle(&self, kind: u32, words: &[u32]) -> Result<HandleTarget> {
        let (&[low, high, ..], true) = (words, HANDLE_TYPES.contains(&kind)) else {
            return Err(Errno::ESTALE);
        };
        let inode = u64::from(high) << 32 | u64::from(low);
        let (id, file) = (inode & ((1 << FILE_SHIFT) - 1), (inode >> FILE_SHIFT) as usize);
        let is_root = id == root().group().id();
        let dir = if is_root { Some(root().clone()) } else { dir::by_id(id) }.ok_or(Errno::ESTALE)?;
        if file == 0 {
            return Ok((dir, None));
        }
        let row = rows::of(dir.group()).find(|(index, _)| index + 1 == file);
        let (index, row) = row.ok_or(Errno::ESTALE)?;
        let name = Vec::try_from_slice(row.name().as_bytes())?;
        let node = dir.file(index, row);
        Ok((node, Some(reserve::arc(PathEntry::new(dir, name)))))
    }

    fn show_options(&self, out: &mut dyn core::fmt::Write) -> core::fmt::Result {
        if NSDELEGATE.load(Ordering::Relaxed) { out.write_str(",nsdelegate") } else { Ok(()) }
    }

    fn configure(&self, options: &[u8]) -> Result<()> {
        let delegates = parse(options)?;
        delegates.hold_for(&crate::task::current().process().namespaces().cgroup);
        Ok(())
    }
}

/// Returns the control group of an open directory, if the caller may make a child process there.
///
/// # Errors
/// `EBADF` for another file; `ENOENT` for a removed group, and for a group outside the caller's
/// namespace; `EACCES` if the caller may not write to the cgroup.procs of the group and of its
/// nearest common ancestor with the caller's group.
pub fn for_child(directory: &OpenFile) -> Result<Arc<Group>> {
    let node = directory.node();
    let any: &dyn core::any::Any = &*node;
    let dir = any.downcast_ref::<GroupDir>().ok_or(Errno::EBADF)?;
    if dir.group().is_removed() {
        return Err(Errno::ENOENT);
    }
    let process = crate::task::current().process().clone();
    let (own, namespace) = (process.credentials(), process.namespaces().cgroup.clone());
    dir.may_write_procs(&own)?;
    procs::may_move(&process.cgroup.group(), dir, &own, &namespace)?;
    Ok(dir.group().clone())
}

/// Reports events to the watches of groups' files.
pub struct Watches;

impl cgroup::Observer for Watches {
    fn payers_changed(&self, group: &Group) {
        crate::task::payer::look_at_all(group);
    }
    fn quotas_begin(&self) -> Result<()> {
        crate::task::quota::begin()
    }
    fn quotas_changed(&self, group: &Group) {
        crate::task::quota::look_at_all(group);
    }
    fn changed(&self, group: &Group, notice: Notice) {
        if let Some(index) = rows::index_of(notice) {
            notify::changed_by_kernel(identity(group, index));
        }
    }
}

/// Returns the identity of a group's file. The inode of the group's directory is the group's ID.
fn identity(group: &Group, index: usize) -> Identity {
    Identity { device: device(), inode: group.id() | (index as u64 + 1) << FILE_SHIFT }
}

/// Shift of a file's index in its inode number; the bits below are the group's ID.
const FILE_SHIFT: u32 = 48;
