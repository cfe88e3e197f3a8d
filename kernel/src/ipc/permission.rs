//! Permission of a System V IPC object: which users may use it, and how.
//!
//! The rules are those of ipc(7): nine mode bits for owner and creator, their groups, and all
//! others. CAP_IPC_OWNER overrides the mode bits. CAP_SYS_ADMIN permits changes and removal.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::task::userns::{IdKind, UserNs};
use crate::task::{self, Capability, Credentials};
use crate::{Errno, Result};

/// Read access, as a request of [`Permission::check`].
pub const READ: u32 = 0o444;
/// Write access, as a request of [`Permission::check`].
pub const WRITE: u32 = 0o222;
/// The bits of a mode that grant something.
pub const MODE: u32 = 0o777;

/// Owner, creator and mode.
#[derive(Clone, Copy, Debug, Default)]
pub struct Permission {
    /// The owner.
    pub uid: u32,
    /// The owner's group.
    pub gid: u32,
    /// The user that created the object.
    pub cuid: u32,
    /// The group of the user that created the object.
    pub cgid: u32,
    /// Nine permission bits. Shared memory has two more bits.
    pub mode: u32,
}

/// `struct ipc64_perm` of x86-64: 48 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct UserPermission {
    /// The key.
    pub key: i32,
    /// As [`Permission::uid`].
    pub uid: u32,
    /// As [`Permission::gid`].
    pub gid: u32,
    /// As [`Permission::cuid`].
    pub cuid: u32,
    /// As [`Permission::cgid`].
    pub cgid: u32,
    /// As [`Permission::mode`].
    pub mode: u32,
    /// How often the object's place in the table was used before.
    pub sequence: u16,
    pad: [u16; 3],
    unused: [u64; 2],
}

impl UserPermission {
    /// Returns the argument of IPC_SET, translated to the kernel's IDs.
    ///
    /// # Errors
    /// `EINVAL` for a user or group that the caller's user namespace does not map.
    pub fn of_kernel(self) -> Result<Self> {
        let (uid, gid) =
            (task::kernel_id(IdKind::User, self.uid)?, task::kernel_id(IdKind::Group, self.gid)?);
        Ok(Self { uid, gid, ..self })
    }
    /// Returns the permission of an object for IPC_STAT.
    pub fn new(key: i32, permission: &Permission, sequence: u16) -> Self {
        let &Permission { mode, .. } = permission;
        let (uid, gid) = task::shown_ids(permission.uid, permission.gid);
        let (cuid, cgid) = task::shown_ids(permission.cuid, permission.cgid);
        Self { key, uid, gid, cuid, cgid, mode, sequence, pad: [0; 3], unused: [0; 2] }
    }
}

impl Permission {
    /// Returns the permission of an object that `caller` creates with `mode`.
    pub fn new(caller: &Credentials, mode: u32) -> Self {
        let (uid, gid) = (caller.euid, caller.egid);
        Self { uid, gid, cuid: uid, cgid: gid, mode: mode & MODE }
    }

    /// Checks that `caller` has all of the `wanted` access to an object. `wanted` has three bits,
    /// which may stand in any of the three places of a mode. `owner` owns the object's namespace.
    ///
    /// # Errors
    /// `EACCES`.
    pub fn check(&self, caller: &Credentials, owner: &UserNs, wanted: u32) -> Result<()> {
        let wanted = wanted >> 6 | wanted >> 3 | wanted;
        let is_member = |group: u32| caller.is_in_group(group);
        let granted = if self.is_of(caller) {
            self.mode >> 6
        } else if is_member(self.cgid) || is_member(self.gid) {
            self.mode >> 3
        } else {
            self.mode
        };
        let denied = wanted & !granted & 0o7 != 0;
        if denied && !caller.may_in(owner, Capability::IpcOwner) { Err(Errno::EACCES) } else { Ok(()) }
    }

    /// Whether `caller` is the object's owner or creator.
    pub fn is_of(&self, caller: &Credentials) -> bool {
        caller.euid == self.cuid || caller.euid == self.uid
    }

    /// Checks that `caller` may change or remove the object.
    ///
    /// # Errors
    /// `EPERM`.
    pub fn check_owner(&self, caller: &Credentials, owner: &UserNs) -> Result<()> {
        if self.is_of(caller) || caller.may_in(owner, Capability::SysAdmin) {
            Ok(())
        } else {
            Err(Errno::EPERM)
        }
    }

    /// Sets the owner, the group and the nine bits of IPC_SET.
    ///
    /// # Errors
    /// `EINVAL` for the user or group -1.
    pub fn set(&mut self, new: &UserPermission) -> Result<()> {
        if new.uid == u32::MAX || new.gid == u32::MAX {
            return Err(Errno::EINVAL);
        }
        (self.uid, self.gid) = (new.uid, new.gid);
        self.mode = self.mode & !MODE | new.mode & MODE;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_group_and_others_have_their_own_bits() {
        let owner = Credentials::of_user(1000, 100);
        let permission = Permission::new(&owner, 0o1640);
        assert_eq!(permission.mode, 0o640);
        assert_eq!(permission.check(&owner, &UserNs::INITIAL, READ | WRITE), Ok(()));
        let member = Credentials::of_user(1001, 100);
        assert_eq!(permission.check(&member, &UserNs::INITIAL, READ), Ok(()));
        assert_eq!(permission.check(&member, &UserNs::INITIAL, WRITE), Err(Errno::EACCES));
        let other = Credentials::of_user(1002, 101);
        assert_eq!(permission.check(&other, &UserNs::INITIAL, READ), Err(Errno::EACCES));
        assert_eq!(permission.check(&other, &UserNs::INITIAL, 0), Ok(()), "nothing is wanted");
        assert_eq!(permission.check(&Credentials::of_user(0, 0), &UserNs::INITIAL, READ | WRITE), Ok(()));
        assert_eq!(permission.check_owner(&member, &UserNs::INITIAL), Err(Errno::EPERM));
        assert_eq!(permission.check_owner(&Credentials::of_user(0, 0), &UserNs::INITIAL), Ok(()));
    }

    #[test]
    fn a_new_owner_leaves_the_creator_his_rights() {
        let creator = Credentials::of_user(1000, 100);
        let mut permission = Permission::new(&creator, 0o600);
        let wrong = UserPermission { uid: u32::MAX, ..UserPermission::default() };
        assert_eq!(permission.set(&wrong), Err(Errno::EINVAL));
        permission
            .set(&UserPermission { uid: 7, gid: 8, mode: 0o7400, ..UserPermission::default() })
            .unwrap();
        assert_eq!((permission.uid, permission.gid, permission.cuid, permission.mode), (7, 8, 1000, 0o400));
        assert!(permission.is_of(&creator) && permission.is_of(&Credentials::of_user(7, 0)));
    }
}
