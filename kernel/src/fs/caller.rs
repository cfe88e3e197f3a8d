//! The caller of an operation on files.

use super::node::{Metadata, Node, NodeKind};
use super::rights::S_ISVTX;
use crate::task::capabilities::{ALL, Capability};
use crate::task::credentials::Credentials;
use crate::task::userns::UserNs;
use crate::{Errno, Result};

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
    /// The effective capabilities, one bit per capability.
    pub capabilities: u64,
    /// The user namespace to which `capabilities` apply.
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
        self.caller_as((self.fsuid, self.fsgid), self.capabilities.effective)
    }

    /// Returns the caller with other IDs and effective capabilities.
    pub fn caller_as(&self, (uid, gid): (u32, u32), capabilities: u64) -> Caller<'_> {
        Caller { uid, gid, groups: &self.groups, capabilities, user_ns: &self.user_ns }
    }
}

/// The user namespace of the kernel itself.
static INITIAL: UserNs = UserNs::INITIAL;

impl Caller<'_> {
    /// The kernel itself, or root.
    pub const ROOT: Caller<'static> =
        Caller { uid: 0, gid: 0, groups: &[], capabilities: ALL, user_ns: &INITIAL };

    const fn has(&self, capability: Capability) -> bool {
        self.capabilities & 1 << capability as u8 != 0
    }

    /// Whether the caller has `capability` for a file with this owner and group: its user namespace
    /// must map both (Linux: `capable_wrt_inode_uidgid`).
    pub fn may_for(&self, capability: Capability, (uid, gid): (u32, u32)) -> bool {
        self.has(capability) && self.user_ns.maps(uid, gid)
    }

    /// Whether the caller has `capability` for every file. Possible in the initial user namespace
    /// only (Linux: `capable`).
    pub fn may_for_all(&self, capability: Capability) -> bool {
        self.has(capability) && self.user_ns.is_initial()
    }

    /// Whether the caller is a member of `group`.
    pub fn in_group(&self, group: u32) -> bool {
        self.gid == group || self.groups.binary_search(&group).is_ok()
    }

    /// Whether the caller may act as the owner of a node (Linux: `inode_owner_or_capable`).
    pub fn owns(&self, meta: &Metadata) -> bool {
        self.uid == meta.uid || self.may_for(Capability::FOwner, (meta.uid, meta.gid))
    }

    /// Whether a capability permits an access that the mode may refuse (Linux:
    /// `generic_permission`).
    fn overrides(&self, meta: &Metadata, want: Access) -> bool {
        let owners = (meta.uid, meta.gid);
        let is_directory = meta.kind == NodeKind::Directory;
        let reads = if is_directory { Access::READ.and(Access::EXECUTE) } else { Access::READ };
        if reads.contains(want) && self.may_for(Capability::DacReadSearch, owners) {
            return true;
        }
        // Executing a file needs at least one x bit, for every caller.
        let is_permitted = is_directory || !want.contains(Access::EXECUTE) || meta.mode & 0o111 != 0;
        is_permitted && self.may_for(Capability::DacOverride, owners)
    }

    /// Permission check of path_resolution(7) and access(2): `EACCES` if refused.
    pub fn may(&self, meta: &Metadata, want: Access) -> Result<()> {
        let class = if self.uid == meta.uid {
            meta.mode >> 6
        } else if self.in_group(meta.gid) {
            meta.mode >> 3
        } else {
            meta.mode
        };
        if class & want.0 == want.0 || self.overrides(meta, want) { Ok(()) } else { Err(Errno::EACCES) }
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
