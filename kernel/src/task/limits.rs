//! Resource limits (setrlimit(2)).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// No limit.
pub const INFINITY: u64 = u64::MAX;

/// A resource that has a limit, with RLIMIT_*'s numbers on x86-64.
#[allow(missing_docs)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Resource {
    Cpu = 0,
    FileSize = 1,
    Data = 2,
    Stack = 3,
    Core = 4,
    Rss = 5,
    Processes = 6,
    Files = 7,
    Memlock = 8,
    AddressSpace = 9,
    Locks = 10,
    SigPending = 11,
    MsgQueue = 12,
    Nice = 13,
    RtPriority = 14,
    RtTime = 15,
}

impl Resource {
    /// All resources, by number.
    pub const ALL: [Self; 16] = [
        Self::Cpu,
        Self::FileSize,
        Self::Data,
        Self::Stack,
        Self::Core,
        Self::Rss,
        Self::Processes,
        Self::Files,
        Self::Memlock,
        Self::AddressSpace,
        Self::Locks,
        Self::SigPending,
        Self::MsgQueue,
        Self::Nice,
        Self::RtPriority,
        Self::RtTime,
    ];
    /// Returns the resource with this number.
    pub fn new(number: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }
}

/// A soft limit, which is enforced, and a hard limit, up to which a process may raise the soft one.
/// `struct rlimit64`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Limit {
    /// The limit that is enforced.
    pub soft: u64,
    /// The largest possible value of `soft`.
    pub hard: u64,
}

/// A process' limits.
#[derive(Clone, Copy, Debug)]
pub struct Limits([Limit; 16]);

impl Limits {
    /// Returns the limits of the first process: Linux' defaults, on a machine that permits
    /// `threads` threads.
    pub const fn initial(threads: usize) -> Self {
        const fn limit(soft: u64, hard: u64) -> Limit {
            Limit { soft, hard }
        }
        const ANY: Limit = limit(INFINITY, INFINITY);
        let mut limits = [ANY; 16];
        limits[Resource::Stack as usize] = limit(8 << 20, INFINITY);
        limits[Resource::Core as usize] = limit(0, INFINITY);
        let half = threads as u64 / 2;
        limits[Resource::Processes as usize] = limit(half, half);
        limits[Resource::Files as usize] = limit(1024, 4096);
        limits[Resource::Memlock as usize] = limit(8 << 20, 8 << 20);
        limits[Resource::SigPending as usize] = limit(30_000, 30_000);
        limits[Resource::MsgQueue as usize] = limit(819_200, 819_200);
        limits[Resource::Nice as usize] = limit(0, 0);
        limits[Resource::RtPriority as usize] = limit(0, 0);
        Self(limits)
    }
    /// Returns the limit of `resource`.
    pub const fn get(&self, resource: Resource) -> Limit {
        self.0[resource as usize]
    }
    /// Changes the limit of `resource`.
    pub const fn set(&mut self, resource: Resource, limit: Limit) {
        self.0[resource as usize] = limit;
    }
}
