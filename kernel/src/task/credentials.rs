//! Credentials of a process: its users, groups and capabilities.

use core::ops::Deref;

use freehold_collections::{Arc, Vec, reserve};

use super::capabilities::{Capabilities, Capability};
use super::userns::UserNs;

/// Supplementary groups in ascending order. A copy refers to the same list, because there can be
/// 65,536 groups, and each fork and each change of credentials copies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Groups(Option<Arc<Vec<u32>>>);

impl Groups {
    /// Makes the groups from a list in any order.
    pub fn new(mut list: Vec<u32>) -> Self {
        list.sort_unstable();
        Self((!list.is_empty()).then(|| reserve::arc(list)))
    }
}

impl Deref for Groups {
    type Target = [u32];
    fn deref(&self) -> &[u32] {
        match &self.0 {
            Some(list) => list,
            None => &[],
        }
    }
}

/// Whether processes with the same IDs may inspect an address space (PR_SET_DUMPABLE).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dumpable {
    /// They may inspect it (SUID_DUMP_USER).
    Yes,
    /// Only processes with CAP_SYS_PTRACE may inspect it (SUID_DUMP_DISABLE).
    No,
    /// As [`No`](Self::No), and the core file belongs to root (SUID_DUMP_ROOT).
    RootOnly,
}

impl Dumpable {
    /// Returns the number in PR_GET_DUMPABLE and /proc/sys/fs/suid_dumpable.
    pub const fn number(self) -> u32 {
        match self {
            Self::No => 0,
            Self::Yes => 1,
            Self::RootOnly => 2,
        }
    }
    /// Returns the value with this number; `None` for unknown numbers.
    pub const fn from_number(number: u64) -> Option<Self> {
        match number {
            0 => Some(Self::No),
            1 => Some(Self::Yes),
            2 => Some(Self::RootOnly),
            _ => None,
        }
    }
}

/// User and group identities, and their rights. They are replaced as a whole, never changed in
/// place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// Real user.
    pub uid: u32,
    /// Effective user.
    pub euid: u32,
    /// Saved user.
    pub suid: u32,
    /// User for file access.
    pub fsuid: u32,
    /// Real group.
    pub gid: u32,
    /// Effective group.
    pub egid: u32,
    /// Saved group.
    pub sgid: u32,
    /// Group for file access.
    pub fsgid: u32,
    /// Supplementary groups.
    pub groups: Groups,
    /// Rights in addition to those of the user, in the user namespace and in those below.
    pub capabilities: Capabilities,
    /// The user namespace. All IDs here are the kernel's, independent of its mappings.
    pub user_ns: UserNs,
}

impl Credentials {
    /// Returns the credentials of a user and a group, without supplementary groups. Only root gets
    /// capabilities.
    pub fn of_user(uid: u32, gid: u32) -> Self {
        let capabilities = if uid == 0 { Capabilities::WHOLE } else { Capabilities::NONE };
        Self {
            uid,
            euid: uid,
            suid: uid,
            fsuid: uid,
            gid,
            egid: gid,
            sgid: gid,
            fsgid: gid,
            groups: Groups::default(),
            capabilities,
            user_ns: UserNs::INITIAL,
        }
    }
    /// Whether a capability is effective for objects that belong to no namespace, that is, in the
    /// initial user namespace.
    pub const fn may(&self, what: Capability) -> bool {
        self.user_ns.is_initial() && self.capabilities.has(what)
    }
    /// Whether a capability is effective in the credentials' own user namespace.
    pub const fn may_within(&self, what: Capability) -> bool {
        self.capabilities.has(what)
    }
    /// Whether the process is in `group`, for access to files and objects.
    pub fn is_in_group(&self, group: u32) -> bool {
        self.fsgid == group || self.groups.binary_search(&group).is_ok()
    }
    /// Whether a capability is effective for objects that `owner` owns (Linux: `cap_capable`,
    /// security/commoncap.c).
    pub fn may_in(&self, owner: &UserNs, what: Capability) -> bool {
        let mut here = owner;
        loop {
            if *here == self.user_ns {
                return self.capabilities.has(what);
            }
            let parent = match here.parent() {
                Some(parent) if here.level() > self.user_ns.level() => parent,
                _ => return false,
            };
            // In the namespace above, the user that created a namespace has all rights in it.
            if *parent == self.user_ns && here.owner() == self.euid {
                return true;
            }
            here = parent;
        }
    }
    /// Whether the credentials are an administrator's (CAP_SYS_ADMIN).
    pub const fn is_privileged(&self) -> bool {
        self.may(Capability::SysAdmin)
    }
    /// Whether a process with these credentials may send signals to one with `target`'s (kill(2)).
    pub fn may_signal(&self, target: &Self) -> bool {
        self.may_in(&target.user_ns, Capability::Kill)
            || self.euid == target.suid
            || self.euid == target.uid
            || self.uid == target.suid
            || self.uid == target.uid
    }
}
