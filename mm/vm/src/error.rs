//! Reasons for failures, in Linux' terms.

use core::fmt;

use freehold_frame::OutOfMemory;
use freehold_tree::NoMemory;

/// Why a memory call fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VmError {
    /// EPERM.
    Permission,
    /// EIO: the backing store failed, or a forced access is not allowed.
    Io,
    /// EAGAIN: more locked memory than allowed.
    Again,
    /// ENOMEM: no frame, no address range, or a limit; also a hole where there must not be one.
    NoMemory,
    /// EACCES: the file was not opened for this.
    Access,
    /// EFAULT: no memory at this address that allows this.
    Fault,
    /// EBUSY: locked pages are in the way.
    Busy,
    /// EEXIST: something is mapped there already.
    Exists,
    /// ENODEV: this cannot be mapped.
    NoDevice,
    /// EINVAL.
    Invalid,
    /// ENOSPC: a file in memory may have no further page ([`PromiseLimit`](crate::PromiseLimit)).
    NoSpace,
    /// EOVERFLOW: the file offset does not fit.
    Overflow,
    /// EINTR: the calling task has to end.
    Interrupted,
    /// ENOENT: the address to fill is in no area with a monitor.
    Missing,
    /// EFAULT: a monitor must provide the page ([`Monitor`](crate::Monitor)), and the caller does
    /// not wait for it.
    Monitored,
    /// ENOMEM: the pool of huge pages ([`Commons::huge_pool`](crate::Commons::huge_pool)) has too
    /// few, which more memory would not change.
    NoHugePage,
    /// ENOMEM: a frame has as many holders as can be counted, which more memory would not change.
    TooManyHolders,
}

impl VmError {
    /// Linux' positive error number.
    pub const fn errno(self) -> i32 {
        match self {
            Self::Permission => 1,
            Self::Missing => 2,
            Self::Interrupted => 4,
            Self::Io => 5,
            Self::Again => 11,
            Self::NoMemory | Self::NoHugePage | Self::TooManyHolders => 12,
            Self::Access => 13,
            Self::Fault | Self::Monitored => 14,
            Self::Busy => 16,
            Self::Exists => 17,
            Self::NoDevice => 19,
            Self::Invalid => 22,
            Self::NoSpace => 28,
            Self::Overflow => 75,
        }
    }
}

impl fmt::Display for VmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl core::error::Error for VmError {}

impl From<OutOfMemory> for VmError {
    fn from(_: OutOfMemory) -> Self {
        Self::NoMemory
    }
}

impl From<NoMemory> for VmError {
    fn from(_: NoMemory) -> Self {
        Self::NoMemory
    }
}

impl From<FaultError> for VmError {
    fn from(error: FaultError) -> Self {
        match error {
            FaultError::Segv(_) | FaultError::Bus => Self::Fault,
            FaultError::OutOfMemory => Self::NoMemory,
            FaultError::Monitored => Self::Monitored,
        }
    }
}

/// SIGSEGV's `si_code`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SegvCode {
    /// SEGV_MAPERR (1): nothing is mapped there.
    MapErr,
    /// SEGV_ACCERR (2): the area does not allow it.
    AccErr,
}

/// Reasons why a page fault cannot be handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultError {
    /// SIGSEGV.
    Segv(SegvCode),
    /// SIGBUS with BUS_ADRERR: past the end of the file, or its store failed, or the frame has as
    /// many holders as can be counted.
    Bus,
    /// There is no frame. The program is not at fault: the caller frees some memory and tries
    /// again.
    OutOfMemory,
    /// The area's monitor has to provide the page:
    /// [`AddressSpace::take_wanted`](crate::AddressSpace::take_wanted).
    Monitored,
}

impl fmt::Display for FaultError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl core::error::Error for FaultError {}

impl From<OutOfMemory> for FaultError {
    fn from(_: OutOfMemory) -> Self {
        Self::OutOfMemory
    }
}

impl From<VmError> for FaultError {
    fn from(error: VmError) -> Self {
        match error {
            VmError::NoMemory => Self::OutOfMemory,
            VmError::Monitored => Self::Monitored,
            _ => Self::Bus,
        }
    }
}

/// How a page fault was handled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// From memory.
    Minor,
    /// A device was read.
    Major,
}
