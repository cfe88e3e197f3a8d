//! User namespaces: the reach of capabilities, and the ids that a program sees.
//!
//! **Ids.** Inside the kernel every id is the kernel's own, which is the initial namespace's. Ids
//! are translated only where a program passes one ([`UserNs::kernel_id`]), and where it is told one
//! ([`UserNs::shown_id`]). A program cannot pass an id without a mapping; such an id is shown as
//! [`OVERFLOW_ID`].
//!
//! **Capabilities.** `Credentials::may` asks the initial namespace: capabilities that a process has
//! in another are nothing there. `Credentials::may_in` asks the namespace that owns an object, and
//! says yes to a process with the capability in it or in one above it, and to the owner of a
//! namespace from the parent. These are the objects that a namespace's root may use, all others are
//! the initial one's:
//!
//! - its process' own users, groups, root directory and filters of system calls: its user
//!   namespace's;
//! - signals to, and inspection of, a process: the target's user namespace;
//! - files: `may_in` the caller's own namespace, where both the file's user and its group are
//!   mapped there (`Caller::overrides`);
//! - the names of a UTS namespace, the objects of an IPC namespace, the mounts of a mount
//!   namespace, the loopback device and low ports of a network: the owner of that namespace;
//! - maps of ids and entering a namespace: the namespace itself, or its parent.
//!
//! **Invariant.** A namespace is at most [`MOST_LEVELS`] levels deep, so that what follows parents
//! ends, drops too. A map is written once, and never changes. Callers in any context; only making
//! and writing allocate.

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
/// The most levels below the initial namespace (Linux: `create_user_ns`).
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
    /// The effective user that made it.
    owner: u32,
    /// Whether its maker had CAP_SETFCAP: a map of the parent's user 0 asks for it.
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

    /// A namespace below that of `maker`, without maps. It is no namespace of the maker's yet.
    ///
    /// # Errors
    /// `ENOSPC` where it were too deep, or there are too many; `EPERM` where the maker's effective
    /// ids have no mapping in its own namespace.
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

    /// The user of the initial namespace that made the highest of those that this is in, and that
    /// answers for what is made here; `None` in the initial one.
    fn answering_user(&self) -> Option<u32> {
        let (mut here, mut user) = (self, None);
        while let Some(nested) = &here.0 {
            user = Some(nested.owner);
            here = nested.head.owner();
        }
        user
    }

    /// Whether it is the initial one.
    pub const fn is_initial(&self) -> bool {
        self.0.is_none()
    }

    /// Its number in /proc/PID/ns.
    pub fn inode(&self) -> u64 {
        let initial = NamespaceKind::User.initial_inode();
        self.0.as_ref().map_or(initial, |nested| nested.head.inode())
    }

    /// The levels above it.
    pub fn level(&self) -> u32 {
        self.0.as_ref().map_or(0, |nested| nested.level)
    }

    /// The namespace above it; `None` for the initial one.
    pub fn parent(&self) -> Option<&UserNs> {
        self.0.as_ref().map(|nested| nested.head.owner())
    }

    /// The kernel's id of the user that made it.
    pub fn owner(&self) -> u32 {
        self.0.as_ref().map_or(0, |nested| nested.owner)
    }

    /// Whether it is `other` or above it.
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

    /// The kernel's id for one that a program in this namespace passed.
    pub fn kernel_id(&self, kind: IdKind, id: u32) -> Option<u32> {
        match self.map(kind) {
            None => (id != u32::MAX).then_some(id),
            Some(written) => written.map.get()?.outside(id),
        }
    }

    /// The id here for one of the kernel's, if it has one.
    pub fn mapped_id(&self, kind: IdKind, kernel: u32) -> Option<u32> {
        match self.map(kind) {
            None => (kernel != u32::MAX).then_some(kernel),
            Some(written) => written.map.get()?.inside(kernel),
        }
    }

    /// Returns the ID that a program in this namespace sees for a kernel ID. -1, which is no ID,
    /// stays.
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

    /// The kernel's id of user 0 here, if it is mapped.
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

    /// Returns whether setgroups(2) may be called: not before groups have a map, so that no process
    /// leaves a group unseen.
    pub fn may_set_groups(&self) -> bool {
        let has_map = self.map(IdKind::Group).is_none_or(|written| written.map.is_completed());
        has_map && self.allows_set_groups()
    }

    /// Visits the lines of a map as a program of `reader` sees them.
    pub fn each_range(&self, kind: IdKind, reader: &UserNs, mut f: impl FnMut(IdRange)) {
        let Some(written) = self.map(kind) else {
            return f(IdRange { first: 0, outside: 0, count: u32::MAX });
        };
        // From inside one sees the ids of the namespace above.
        let reader = if reader == self { self.parent().unwrap_or(reader) } else { reader };
        for &range in written.map.get().map_or(&[][..], IdMap::ranges) {
            let outside = reader.mapped_id(kind, range.outside).unwrap_or(u32::MAX);
            f(IdRange { outside, ..range });
        }
    }
}

#[cfg(test)]
mod tests;
