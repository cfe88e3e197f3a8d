//! User namespaces: the scope of capabilities, and the IDs that a program sees.
//!
//! **IDs.** Inside the kernel every ID is that of the initial namespace. IDs are translated only
//! when a program passes one ([`UserNs::kernel_id`]), and when it gets one ([`UserNs::shown_id`]).
//! A program cannot pass an ID without a mapping. A kernel ID without a mapping is shown as
//! [`OVERFLOW_ID`].
//!
//! **Capabilities.** `Credentials::may` checks the initial namespace, where capabilities of other
//! namespaces do not count. `Credentials::may_in` checks the namespace that owns an object. It
//! accepts a process with the capability in that namespace or in one above, and the namespace's
//! owner in the parent namespace. A namespace's root may use the following objects; all others
//! belong to the initial namespace:
//!
//! - its process' own users, groups, root directory and filters of system calls: its user
//!   namespace's;
//! - signals to, and inspection of, a process: the target's user namespace;
//! - files: `may_in` the caller's own namespace, where both the file's user and its group are
//!   mapped there (`Caller::overrides`);
//! - the names of a UTS namespace, the objects of an IPC namespace, the mounts of a mount
//!   namespace, the loopback device and low ports of a network: the owner of that namespace;
//! - maps of IDs and entering a namespace: the namespace itself, or its parent.
//!
//! **Invariant.** A namespace is at most [`MOST_LEVELS`] levels deep, which bounds walks along
//! parents, and recursive drops. A map is written once, and never changes. Any context. Only making
//! a namespace and writing a map allocate memory.

mod head;
mod id_map;
mod writing;

use core::sync::atomic::{AtomicBool, Ordering};

use freehold_collections::{
    Arc,
    reserve::{self, ArcMethods},
};
use spin::Once;

pub use head::{NamespaceHead, NamespaceKind, count, limit, set_limit};
use id_map::IdMap;
pub use id_map::IdRange;

use super::capabilities::Capability;
use super::credentials::Credentials;
use crate::{Errno, Result};

/// Shown for an ID without a mapping (/proc/sys/kernel/overflowuid).
pub const OVERFLOW_ID: u32 = 65_534;
/// Largest number of levels below the initial namespace (Linux: `create_user_ns`).
pub const MOST_LEVELS: u32 = 33;

/// Users or groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IdKind {
    /// Users.
    User,
    /// Groups.
    Group,
}

/// A map that is written once.
#[derive(Default)]
struct WrittenMap {
    is_claimed: AtomicBool,
    map: Once<IdMap>,
}

struct Nested {
    /// Its owner is the parent.
    head: NamespaceHead,
    level: u32,
    /// The effective user that created it.
    owner: u32,
    /// Whether the creator had CAP_SETFCAP. A map with the parent's user 0 requires that.
    maker_set_file_capabilities: bool,
    users: WrittenMap,
    groups: WrittenMap,
    may_set_groups: AtomicBool,
}

/// A user namespace. The initial one is the default.
#[derive(Clone, Default)]
pub struct UserNs(Option<Arc<Nested>>);

impl PartialEq for UserNs {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(one), Some(other)) => one.is_same(other),
            _ => false,
        }
    }
}

impl Eq for UserNs {}

impl core::fmt::Debug for UserNs {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "user:[{}]", self.inode())
    }
}

impl UserNs {
    /// The initial namespace.
    pub const INITIAL: Self = Self(None);

    /// Makes a namespace below that of `maker`, without maps. The creator does not enter it here.
    ///
    /// # Errors
    /// `ENOSPC` if it would be too deep, or if there are too many; `EPERM` if the creator's
    /// effective IDs have no mapping in its own namespace.
    pub fn new(maker: &Credentials) -> Result<Self> {
        let parent = &maker.user_ns;
        let level = parent.level() + 1;
        if level > MOST_LEVELS {
            return Err(Errno::ENOSPC);
        }
        if !parent.maps(maker.euid, maker.egid) {
            return Err(Errno::EPERM);
        }
        let head = NamespaceHead::new(NamespaceKind::User, maker)?;
        Ok(Self(Some(reserve::arc(Nested {
            head,
            level,
            owner: maker.euid,
            maker_set_file_capabilities: maker.capabilities.has(Capability::SetFcap),
            users: WrittenMap::default(),
            groups: WrittenMap::default(),
            may_set_groups: AtomicBool::new(parent.allows_set_groups()),
        }))))
    }

    /// Returns the user that is charged for namespaces made here. It is the user of the initial
    /// namespace that created the outermost of the namespaces around. `None` in the initial
    /// namespace.
    fn answering_user(&self) -> Option<u32> {
        let (mut here, mut user) = (self, None);
        while let Some(nested) = &here.0 {
            user = Some(nested.owner);
            here = nested.head.owner();
        }
        user
    }

    /// Whether this is the initial namespace.
    pub const fn is_initial(&self) -> bool {
        self.0.is_none()
    }

    /// Returns its number in /proc/PID/ns.
    pub fn inode(&self) -> u64 {
        let initial = NamespaceKind::User.initial_inode();
        self.0.as_ref().map_or(initial, |nested| nested.head.inode())
    }

    /// Returns the number of levels above it.
    pub fn level(&self) -> u32 {
        self.0.as_ref().map_or(0, |nested| nested.level)
    }

    /// Returns the namespace above it; `None` for the initial one.
    pub fn parent(&self) -> Option<&UserNs> {
        self.0.as_ref().map(|nested| nested.head.owner())
    }

    /// Returns the user that created it, as a kernel ID.
    pub fn owner(&self) -> u32 {
        self.0.as_ref().map_or(0, |nested| nested.owner)
    }

    /// Whether this namespace is `other` or above it.
    pub fn contains(&self, other: &UserNs) -> bool {
        let mut here = other;
        while here.level() > self.level() {
            let Some(parent) = here.parent() else { break };
            here = parent;
        }
        here == self
    }

    fn map(&self, kind: IdKind) -> Option<&WrittenMap> {
        let nested = self.0.as_ref()?;
        Some(if kind == IdKind::User { &nested.users } else { &nested.groups })
    }

    /// Returns the kernel's ID for one that a program in this namespace passed.
    pub fn kernel_id(&self, kind: IdKind, id: u32) -> Option<u32> {
        match self.map(kind) {
            None => (id != u32::MAX).then_some(id),
            Some(written) => written.map.get()?.outside(id),
        }
    }

    /// Returns this namespace's ID for a kernel ID, if there is one.
    pub fn mapped_id(&self, kind: IdKind, kernel: u32) -> Option<u32> {
        match self.map(kind) {
            None => (kernel != u32::MAX).then_some(kernel),
            Some(written) => written.map.get()?.inside(kernel),
        }
    }

    /// Returns the ID that a program in this namespace sees for a kernel ID. -1, which is no ID,
    /// does not change.
    pub fn shown_id(&self, kind: IdKind, kernel: u32) -> u32 {
        if self.is_initial() { kernel } else { self.mapped_id(kind, kernel).unwrap_or(OVERFLOW_ID) }
    }

    /// [`shown_id`](Self::shown_id) of a user.
    pub fn shown_user(&self, kernel: u32) -> u32 {
        self.shown_id(IdKind::User, kernel)
    }

    /// [`shown_id`](Self::shown_id) of a group.
    pub fn shown_group(&self, kernel: u32) -> u32 {
        self.shown_id(IdKind::Group, kernel)
    }

    /// Returns the kernel's ID of this namespace's user 0, if it is mapped.
    pub fn root(&self) -> Option<u32> {
        self.kernel_id(IdKind::User, 0)
    }

    /// Whether both a user and a group have a mapping.
    pub fn maps(&self, uid: u32, gid: u32) -> bool {
        self.is_initial()
            || (self.mapped_id(IdKind::User, uid).is_some() && self.mapped_id(IdKind::Group, gid).is_some())
    }

    /// Returns whether /proc/PID/setgroups says "allow".
    pub fn allows_set_groups(&self) -> bool {
        self.0.as_ref().is_none_or(|nested| nested.may_set_groups.load(Ordering::Relaxed))
    }

    /// Returns whether setgroups(2) may be called. Before groups have a map it may not, so that no
    /// process drops a group unnoticed.
    pub fn may_set_groups(&self) -> bool {
        let has_map = self.map(IdKind::Group).is_none_or(|written| written.map.is_completed());
        has_map && self.allows_set_groups()
    }

    /// Visits the lines of a map, translated for a program of `reader`.
    pub fn each_range(&self, kind: IdKind, reader: &UserNs, mut f: impl FnMut(IdRange)) {
        let Some(written) = self.map(kind) else {
            return f(IdRange { first: 0, outside: 0, count: u32::MAX });
        };
        // Inside the namespace, IDs are shown relative to the namespace above.
        let reader = if reader == self { self.parent().unwrap_or(reader) } else { reader };
        for &range in written.map.get().map_or(&[][..], IdMap::ranges) {
            let outside = reader.mapped_id(kind, range.outside).unwrap_or(u32::MAX);
            f(IdRange { outside, ..range });
        }
    }
}

#[cfg(test)]
mod tests;
