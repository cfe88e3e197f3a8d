//! Memory of processes: connects the mm crates with tasks, files and programs.
//!
//! One page allocator ([`frames`]) hands out every frame. A process' memory is a [`ProcessSpace`]:
//! an address space of `freehold-vm`, protected by a sleeping lock. File bytes in memory are
//! [`CacheContent`], whose frames are the page cache.
//!
//! Lock order: inode locks > [`ProcessSpace`] > page cache > allocator. Page-cache truncation takes
//! spaces' locks, so its callers hold none. Faults take the space's lock, so a holder of it must
//! not fault (user bytes are copied before or after).

mod boot;
pub mod calls;
pub mod charge;
mod content;
pub mod evacuate;
mod foreign;
mod held;
pub mod hotplug;
mod huge_content;
pub mod hugetlb;
pub mod khugepaged;
pub mod kprobes;
pub mod ksm;
mod map;
mod mapping;
pub mod mirrors;
mod oom;
mod pinned;
mod policy;
mod populate;
pub mod reclaim;
mod remote;
mod remove;
mod replica;
mod segment;
mod space;
pub mod stats;
mod transit;
pub mod user_faults;
#[cfg(test)]
mod user_faults_model;
pub mod vdso;

pub use crate::hw::{Frames, frames};
pub use boot::{commons, init, plant, xpfo_policy};
pub use calls::*;
pub use content::{CacheContent, CacheSource, cache_of};
pub use foreign::ForeignWindows;
pub use held::{HeldRegion, word_in};
pub use huge_content::HugeSource;
pub use map::check_map;
pub use mapping::FileMapping;
pub use oom::{find_more, forget_denial, with_memory_found};
pub use pinned::{PinWay, PinnedBytes, PinnedOne, PinnedRun, are_frames_offered, offer_frames, pin_totals};
pub use policy::PolicyName;
pub use remote::*;
pub use replica::{Checks, check_replicas, replicas, start_late_copies, turn_key};
pub use segment::{SegmentMap, SegmentPlace, SegmentUse, attach, detach};
pub use space::{ProcessSpace, Program, ProgramLayout};
pub use transit::TransitPage;

/// Areas and page tables of one process.
pub type AddressSpace = freehold_vm::AddressSpace<Frames>;
/// The frames of a file.
pub type PageCache = freehold_vm::PageCache<Frames>;
/// A page of a file that the kernel holds.
pub type HeldPage = freehold_vm::HeldPage<Frames>;

impl From<freehold_vm::VmError> for crate::Errno {
    fn from(error: freehold_vm::VmError) -> Self {
        use freehold_vm::VmError;
        match error {
            VmError::Invalid => Self::EINVAL,
            VmError::NoMemory | VmError::NoHugePage | VmError::TooManyHolders => Self::ENOMEM,
            VmError::Exists => Self::EEXIST,
            VmError::Access => Self::EACCES,
            VmError::Permission => Self::EPERM,
            VmError::Again => Self::EAGAIN,
            VmError::Fault | VmError::Monitored => Self::EFAULT,
            VmError::Missing => Self::ENOENT,
            VmError::Io => Self::EIO,
            VmError::Busy => Self::EBUSY,
            VmError::NoDevice => Self::ENODEV,
            VmError::NoSpace => Self::ENOSPC,
            VmError::Overflow => Self::EOVERFLOW,
            VmError::Interrupted => Self::EINTR,
        }
    }
}

impl From<freehold_frame::OutOfMemory> for crate::Errno {
    fn from(_: freehold_frame::OutOfMemory) -> Self {
        Self::ENOMEM
    }
}

impl From<crate::hw::memory::OutOfMemory> for crate::Errno {
    fn from(_: crate::hw::memory::OutOfMemory) -> Self {
        Self::ENOMEM
    }
}
