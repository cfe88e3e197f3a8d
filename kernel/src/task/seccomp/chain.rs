//! The chain of filters of a thread, and their combined verdict on a call.

use freehold_bpf::{CallData, Filter};
use freehold_collections::{Arc, reserve::ArcMethods};

use crate::sync::SpinLock;

/// Action for a call (SECCOMP_RET_*), ordered from the strictest on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Action {
    /// The process ends by SIGSYS.
    KillProcess,
    /// The thread ends by SIGSYS.
    KillThread,
    /// The thread gets SIGSYS.
    Trap,
    /// The call fails. The data is the error number.
    Errno,
    /// The call is passed to a listener, which does not exist here.
    Notify,
    /// The tracer decides.
    Trace,
    /// The call is made and logged.
    Log,
    /// The call is made.
    Allow,
}

impl Action {
    /// Returns the action of a filter's result. An unknown result kills.
    pub const fn of(result: u32) -> Self {
        match result & 0xffff_0000 {
            0 => Self::KillThread,
            0x0003_0000 => Self::Trap,
            0x0005_0000 => Self::Errno,
            0x7fc0_0000 => Self::Notify,
            0x7ff0_0000 => Self::Trace,
            0x7ffc_0000 => Self::Log,
            0x7fff_0000 => Self::Allow,
            _ => Self::KillProcess,
        }
    }
}

/// A filter, and the filters that were installed before it.
#[derive(Debug)]
pub struct ChainedFilter {
    /// The program.
    pub program: Filter,
    /// The filters that were installed before this one.
    pub before: Option<Arc<ChainedFilter>>,
    /// Number of filters in the chain from this one on.
    pub count: u64,
    /// Their instructions, and the overhead that counts for each filter.
    pub instructions: usize,
    /// Whether refusals are logged (SECCOMP_FILTER_FLAG_LOG).
    pub logs: bool,
}

impl Drop for ChainedFilter {
    /// Drops the chain in a loop: a recursion could exceed the stack.
    fn drop(&mut self) {
        let mut next = self.before.take();
        while let Some(filter) = next {
            next = filter.into_last().and_then(|mut filter| filter.before.take());
        }
    }
}

/// Restriction of a thread's system calls.
#[derive(Clone, Debug, Default)]
pub enum Confinement {
    /// All calls are permitted.
    #[default]
    Free,
    /// Only the four calls of strict mode are permitted.
    Strict,
    /// These filters decide.
    Filtered(Arc<ChainedFilter>),
}

/// A thread's confinement.
#[derive(Debug, Default)]
pub struct Seccomp(SpinLock<Confinement>);

impl ChainedFilter {
    /// Returns the filters, the newest first.
    pub fn chain(first: &Arc<Self>) -> impl Iterator<Item = &Arc<Self>> {
        core::iter::successors(Some(first), |filter| filter.before.as_ref())
    }

    /// Returns the strictest action of all filters for a call, and its data. Among equal actions
    /// the newest filter counts.
    pub fn judge(first: &Arc<Self>, data: &CallData) -> (Action, u32) {
        let verdicts = Self::chain(first).map(|filter| filter.program.run(data));
        let strictest = verdicts.min_by_key(|&result| Action::of(result)).unwrap_or_default();
        (Action::of(strictest), strictest & 0xffff)
    }
}

impl Confinement {
    /// Returns the mode in the format of prctl(PR_GET_SECCOMP).
    pub fn mode(&self) -> u8 {
        match self {
            Self::Free => 0,
            Self::Strict => 1,
            Self::Filtered(_) => 2,
        }
    }

    /// Returns the newest filter.
    pub fn chain(&self) -> Option<&Arc<ChainedFilter>> {
        match self {
            Self::Filtered(chain) => Some(chain),
            _ => None,
        }
    }

    /// Whether this confinement's filters are part of the chain of `other`.
    pub fn is_part_of(&self, other: &Arc<ChainedFilter>) -> bool {
        match self {
            Self::Free => true,
            Self::Strict => false,
            Self::Filtered(chain) => ChainedFilter::chain(other).any(|filter| filter.is_same(chain)),
        }
    }
}

impl Seccomp {
    /// Returns the confinement.
    pub fn get(&self) -> Confinement {
        self.0.lock().clone()
    }
    /// Sets the confinement.
    pub fn set(&self, confinement: Confinement) {
        let old = core::mem::replace(&mut *self.0.lock(), confinement);
        drop(old);
    }
}
