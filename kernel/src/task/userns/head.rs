//! The part that every namespace has: a number, the user namespace that owns it, and its count
//! among namespaces of its kind.
//!
//! **Invariant.** The numbers in [`COUNTS`] and [`ACCOUNTS`] are those of the existing heads;
//! dropping a head decrements them. The initial namespaces are not counted. The limit of a kind
//! holds for each user of the initial user namespace, together with everything that the users of
//! the namespaces below create. Linux' ucounts have this effect if the namespaces between have no
//! limits. All users together have [`MOST_OF_ALL`], so that several users get a share.
//!
//! Callers: code that makes namespaces, in task context; /proc/sys/user. Nothing here sleeps.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_collections::Map;

use super::UserNs;
use crate::hw::sync::SpinLock;
use crate::task::credentials::Credentials;
use crate::{Errno, Result};

/// The kinds of namespaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NamespaceKind {
    /// Control groups: the root that /proc/PID/cgroup shows.
    Cgroup,
    /// Objects of System V IPC.
    Ipc,
    /// The tree of mounts.
    Mount,
    /// Network interfaces and ports.
    Network,
    /// Process IDs.
    Pid,
    /// Offsets of clocks.
    Time,
    /// Users, groups and capabilities.
    User,
    /// Host and domain name.
    Uts,
}

impl NamespaceKind {
    /// All kinds, in the order of their names.
    pub const ALL: [Self; KINDS] =
        [Self::Cgroup, Self::Ipc, Self::Mount, Self::Network, Self::Pid, Self::Time, Self::User, Self::Uts];

    /// Returns its name in /proc/PID/ns.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cgroup => "cgroup",
            Self::Ipc => "ipc",
            Self::Mount => "mnt",
            Self::Network => "net",
            Self::Pid => "pid",
            Self::Time => "time",
            Self::User => "user",
            Self::Uts => "uts",
        }
    }

    /// Returns its CLONE_NEW* flag.
    pub const fn clone_flag(self) -> u32 {
        match self {
            Self::Cgroup => 0x0200_0000,
            Self::Ipc => 0x0800_0000,
            Self::Mount => 0x0002_0000,
            Self::Network => 0x4000_0000,
            Self::Pid => 0x2000_0000,
            Self::Time => 0x80,
            Self::User => 0x1000_0000,
            Self::Uts => 0x0400_0000,
        }
    }

    /// Returns the number of the initial namespace of this kind, as on Linux (linux/proc_ns.h;
    /// those of network and mounts come from its allocator there).
    pub const fn initial_inode(self) -> u64 {
        match self {
            Self::Cgroup => 0xeffffffb,
            Self::Ipc => 0xefffffff,
            Self::Mount => 0xf0000001,
            Self::Network => 0xf0000000,
            Self::Pid => 0xeffffffc,
            Self::Time => 0xeffffffa,
            Self::User => 0xeffffffd,
            Self::Uts => 0xeffffffe,
        }
    }
}

/// Number of kinds.
const KINDS: usize = 8;

/// Initial limit for the namespaces of a kind per user (/proc/sys/user).
const FIRST_LIMIT: u64 = 8192;
/// Limit for the namespaces of a kind of all users, unless the limit per user is higher.
const MOST_OF_ALL: u64 = 8 * FIRST_LIMIT;

static COUNTS: [AtomicU64; KINDS] = [const { AtomicU64::new(0) }; KINDS];
/// The number of namespaces of each kind, by the user that is charged. Users without namespaces
/// have no entry.
static ACCOUNTS: SpinLock<Map<u32, [u64; KINDS]>> = SpinLock::new(Map::new());
static LIMITS: [AtomicU64; KINDS] = [const { AtomicU64::new(FIRST_LIMIT) }; KINDS];
static NEXT_INODE: AtomicU64 = AtomicU64::new(0xf000_0010);

/// Returns the largest number of namespaces of a kind that one user may have
/// (/proc/sys/user/max_*_namespaces).
pub fn limit(kind: NamespaceKind) -> u64 {
    LIMITS[kind as usize].load(Ordering::Relaxed)
}

/// Sets the largest number of namespaces of a kind.
///
/// # Errors
/// `EINVAL` for a number that does not fit an int.
pub fn set_limit(kind: NamespaceKind, limit: u64) -> Result<()> {
    if limit > i32::MAX as u64 {
        return Err(Errno::EINVAL);
    }
    LIMITS[kind as usize].store(limit, Ordering::Relaxed);
    Ok(())
}

/// Returns the number of namespaces of a kind without the initial one.
#[inline]
pub fn count(kind: NamespaceKind) -> u64 {
    COUNTS[kind as usize].load(Ordering::Relaxed)
}

/// A charge to a user's account. Dropping it removes the charge.
struct NamespacePlace {
    kind: NamespaceKind,
    user: u32,
}

impl NamespacePlace {
    /// # Errors
    /// `ENOSPC` at the limit for the kind, `ENOMEM`.
    fn take(kind: NamespaceKind, user: u32) -> Result<Self> {
        let limit = limit(kind);
        let mut accounts = ACCOUNTS.lock();
        let all = count(kind);
        let before = accounts.get(&user).copied().unwrap_or_default();
        if before[kind as usize] >= limit || all >= limit.max(MOST_OF_ALL) {
            return Err(Errno::ENOSPC);
        }
        let mut counts = before;
        counts[kind as usize] += 1;
        accounts.try_insert(user, counts)?;
        COUNTS[kind as usize].store(all + 1, Ordering::Relaxed);
        Ok(Self { kind, user })
    }
}

impl Drop for NamespacePlace {
    fn drop(&mut self) {
        let mut accounts = ACCOUNTS.lock();
        COUNTS[self.kind as usize].fetch_sub(1, Ordering::Relaxed);
        let Some(counts) = accounts.get_mut(&self.user) else { return };
        counts[self.kind as usize] -= 1;
        if counts.iter().all(|&count| count == 0) {
            accounts.remove(&self.user);
        }
    }
}

/// The part that every namespace has.
pub struct NamespaceHead {
    kind: NamespaceKind,
    inode: u64,
    owner: UserNs,
    /// `None` for an initial namespace.
    _place: Option<NamespacePlace>,
}

impl NamespaceHead {
    /// Returns the head of the initial namespace of a kind.
    pub const fn initial(kind: NamespaceKind) -> Self {
        Self { kind, inode: kind.initial_inode(), owner: UserNs::INITIAL, _place: None }
    }

    /// Makes the head of a new namespace that the user namespace of `maker` owns.
    ///
    /// # Errors
    /// `ENOSPC` at the limit for the kind, `ENOMEM`.
    pub fn new(kind: NamespaceKind, maker: &Credentials) -> Result<Self> {
        let owner = maker.user_ns.clone();
        let place = NamespacePlace::take(kind, owner.answering_user().unwrap_or(maker.euid))?;
        Ok(Self { kind, inode: NEXT_INODE.fetch_add(1, Ordering::Relaxed), owner, _place: Some(place) })
    }

    /// Whether this is the head of an initial namespace.
    pub const fn is_initial(&self) -> bool {
        self.inode == self.kind.initial_inode()
    }

    /// Returns its number in /proc/PID/ns.
    pub const fn inode(&self) -> u64 {
        self.inode
    }

    /// Returns the user namespace that owns it; for a user namespace its parent.
    pub const fn owner(&self) -> &UserNs {
        &self.owner
    }
}
