//! The caller of an operation on files.

use super::node::{Metadata, Node};
use super::rights::S_ISVTX;
use crate::task::capabilities::Capability;
use crate::task::credentials::Credentials;
use crate::task::userns::UserNs;
use crate::{Errno, Result};

/// Whether the caller is subject to file permissions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Power {
    /// The caller is subject to file permissions.
    Ordinary,
    /// The caller may override file permissions for files whose owner and group the user namespace
    /// maps ([`Caller::overrides`]). It has CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_CHOWN and the like in
    /// that namespace.
    Override,
}

/// The identity that permissions are checked against: file system user and group of the calling
/// thread.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// File system user.
    pub uid: u32,
    /// File system group.
    pub gid: u32,
    /// Supplementary groups, in ascending order.
    pub groups: &'a [u32],
    /// Whether the caller is subject to permissions.
    pub power: Power,
    /// The user namespace to which `power` applies.
    pub user_ns: &'a UserNs,
}

/// Requested access, with access(2)'s values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access(u32);

impl Access {
    /// The file exists.
    pub const EXISTS: Self = Self(0);
    /// Execute a file, or search a directory.
    pub const EXECUTE: Self = Self(1);
    /// Write a file, or change a directory.
    pub const WRITE: Self = Self(2);
    /// Read.
    pub const READ: Self = Self(4);

    /// Converts access(2)'s mode; `None` for unknown bits.
    pub fn from_bits(bits: u32) -> Option<Self> {
        (bits <= 7).then_some(Self(bits))
    }

    /// Returns both accesses together.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether this access includes all of `other`.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl Credentials {
    /// Returns the caller for operations on files.
    pub fn caller(&self) -> Caller<'_> {
        let power = if self.may_within(Capability::DacOverride) { Power::Override } else { Power::Ordinary };
        Caller { uid: self.fsuid, gid: self.fsgid, groups: &self.groups, power, user_ns: &self.user_ns }
    }
}

/// The user namespace of the kernel itself.
static INITIAL: UserNs = UserNs::INITIAL;

impl Caller<'_> {
    /// The kernel itself, or root.
    pub const ROOT: Caller<'static> =
        Caller { uid: 0, gid: 0, groups: &[], power: Power::Override, user_ns: &INITIAL };

    /// Whether the caller may override the permissions of a file with this owner and group (Linux:
    /// `capable_wrt_inode_uidgid`).
    pub fn overrides(&self, uid: u32, gid: u32) -> bool {
        self.power == Power::Override && self.user_ns.maps(uid, gid)
    }

    /// Whether the caller may override the permissions of every file. Possible in the initial user
    /// namespace only.
    pub fn overrides_all(&self) -> bool {
        self.power == Power::Override && self.user_ns.is_initial()
    }

    /// Whether the caller is a member of `group`.
    pub fn in_group(&self, group: u32) -> bool {
        self.gid == group || self.groups.binary_search(&group).is_ok()
    }

    /// Whether the caller may act as the owner of a node (Linux: `inode_owner_or_capable`).
    pub fn owns(&self, meta: &Metadata) -> bool {
        self.uid == meta.uid || self.overrides(meta.uid, meta.gid)
    }

    /// Permission check of path_resolution(7) and access(2): `EACCES` if refused.
    pub fn may(&self, meta: &Metadata, want: Access) -> Result<()> {
        if self.overrides(meta.uid, meta.gid) {
            // Executing a file needs at least one x bit, for every caller.
            let runs_plain_file = want.contains(Access::EXECUTE)
                && meta.kind != super::NodeKind::Directory
                && meta.mode & 0o111 == 0;
            return if runs_plain_file { Err(Errno::EACCES) } else { Ok(()) };
        }
        let class = if self.uid == meta.uid {
            meta.mode >> 6
        } else if self.in_group(meta.gid) {
            meta.mode >> 3
        } else {
            meta.mode
        };
        if class & want.0 == want.0 { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// Like [`Self::may`], for `node`. Some nodes may always be used by the running process.
    pub fn may_use(&self, node: &dyn Node, want: Access) -> Result<()> {
        self.may(&node.metadata(), want).or_else(
            |refused| {
                if node.is_callers_own() { Ok(()) } else { Err(refused) }
            },
        )
    }

    /// Whether a name of `victim` may be removed from `dir`. This needs write and search access to
    /// `dir`. If `dir` has the sticky bit, the caller must also own the node or the directory.
    pub fn may_remove(&self, dir: &Metadata, victim: &Metadata) -> Result<()> {
        self.may(dir, Access::WRITE.and(Access::EXECUTE))?;
        if dir.mode & S_ISVTX != 0 && !self.owns(victim) && self.uid != dir.uid {
            return Err(Errno::EPERM);
        }
        Ok(())
    }
}
