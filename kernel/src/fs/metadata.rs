//! Changes of metadata that programs ask for: chmod, chown, utimensat.
//!
//! The node's owner and mode decide whether a change is allowed. Between this check and the change
//! no other program may change the file's owner: otherwise the former owner's chmod could set the
//! set-user-ID bit of a file of root. So changes of one node are serialised ([`lock`]), as Linux
//! does with the inode's lock.
//!
//! Source: `chmod_common`, `chown_common` in fs/open.c; `setattr_prepare` in fs/attr.c.

use super::caller::Access;
use super::node::{Identity, ModeChange, NodeKind, SetMetadata, Timestamp};
use super::notify;
use super::path::Path;
use super::rights::{self, S_ISGID};
use super::walk::PathWalk;
use crate::sync::{Mutex, MutexGuard};
use crate::task::Capability;
use crate::{Errno, Result};

/// A lock for each stripe of nodes.
static CHANGES: [Mutex<()>; Identity::STRIPES] = [const { Mutex::new(()) }; Identity::STRIPES];

/// Keeps other programs from changing the node's metadata.
///
/// # Errors
/// `EINTR` if the caller is killed while it waits.
pub fn lock(node: Identity) -> Result<MutexGuard<'static, ()>> {
    CHANGES[node.stripe()].lock_killable()
}

/// The names of one or two directories, locked against removal.
pub type KeptNames = (MutexGuard<'static, ()>, Option<MutexGuard<'static, ()>>);

/// Locks the names in directories against removal; names may be added meanwhile. So the caller
/// removes the file that it checked and reports, not one that was made in its place since. For a
/// rename both directories are given.
///
/// # Errors
/// `EINTR` if the caller is killed while it waits.
pub fn keep_names(dirs: [&Path; 2]) -> Result<KeptNames> {
    let [first, second] = dirs.map(|dir| dir.node.identity().stripe());
    let (low, high) = (first.min(second), first.max(second));
    let lower = CHANGES[low].lock_killable()?;
    let upper = (low != high).then(|| CHANGES[high].lock_killable()).transpose()?;
    Ok((lower, upper))
}

/// Changes metadata and notifies watches.
pub fn change(place: &Path, change: &SetMetadata) -> Result<()> {
    if change.size.is_some() {
        place.node.drop_rights()?;
    }
    place.node.set_metadata(change)?;
    notify::changed(place, change);
    Ok(())
}

/// chmod(2): only the owner may, and setgid needs membership.
pub fn change_mode(walk: &PathWalk<'_>, place: &Path, mode: u32) -> Result<()> {
    place.mount.writable()?;
    if place.node.kind() == NodeKind::Symlink {
        return Err(Errno::EOPNOTSUPP);
    }
    let _changes = lock(place.node.identity())?;
    let meta = place.node.metadata();
    if !walk.caller.owns(&meta) {
        return Err(Errno::EPERM);
    }
    let mut mode = mode & 0o7777;
    let owners = (meta.uid, meta.gid);
    if !walk.caller.in_group(meta.gid) && !walk.caller.may_for(Capability::FSetId, owners) {
        mode &= !S_ISGID;
    }
    change(place, &SetMetadata { mode: Some(ModeChange::To(mode)), ..SetMetadata::default() })
}

/// chown(2): `None` leaves an id unchanged. An ordinary owner may only give the file to one of its
/// own groups.
pub fn change_owner(walk: &PathWalk<'_>, place: &Path, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    place.mount.writable()?;
    let _changes = lock(place.node.identity())?;
    let meta = place.node.metadata();
    let caller = walk.caller;
    if !caller.may_for(Capability::Chown, (meta.uid, meta.gid)) {
        let keeps_owner = uid.is_none_or(|uid| uid == meta.uid);
        let own_group = gid.is_none_or(|gid| gid == meta.gid || caller.in_group(gid));
        let changes_nothing = uid.is_none() && gid.is_none();
        if changes_nothing {
            return Ok(());
        }
        if caller.uid != meta.uid || !keeps_owner || !own_group {
            return Err(Errno::EPERM);
        }
    }
    // An executable must not get the new owner's rights.
    let carries = meta.kind == NodeKind::Regular && rights::in_mode(meta.mode);
    let mode = carries.then_some(ModeChange::WithoutRights);
    change(place, &SetMetadata { mode, uid, gid, ..SetMetadata::default() })
}

/// The times that [`change_times`] sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Times {
    /// Both are the time of the call.
    Now,
    /// At least one time is given by the program, or stays.
    Given,
}

/// utimensat(2): "now" for both times requires write access; anything else requires the owner.
pub fn change_times(
    walk: &PathWalk<'_>,
    place: &Path,
    [accessed, modified]: [Option<Timestamp>; 2],
    times: Times,
) -> Result<()> {
    place.mount.writable()?;
    let _changes = lock(place.node.identity())?;
    let meta = place.node.metadata();
    if !walk.caller.owns(&meta) {
        if times == Times::Given {
            return Err(Errno::EPERM);
        }
        walk.caller.may(&meta, Access::WRITE)?;
    }
    change(place, &SetMetadata { accessed, modified, ..SetMetadata::default() })
}
