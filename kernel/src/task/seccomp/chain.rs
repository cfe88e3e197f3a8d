//! The chain of filters of a thread, and their joint verdict on a call.

use freehold_bpf::{CallData, Filter};
use freehold_collections::{Arc, reserve::ArcMethods};

use crate::sync::SpinLock;

/// Action for a call (SECCOMP_RET_*), the strictest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Action {
    /// The process ends by SIGSYS.
    KillProcess,
    /// The thread ends by SIGSYS.
    KillThread,
    /// The thread gets SIGSYS.
    Trap,
    /// The call fails with the data as its error.
    Errno,
    /// A listener would be asked.
    Notify,
    /// The tracer is asked.
    Trace,
    /// The call is made and logged.
    Log,
    /// The call is made.
    Allow,
}

impl Action {
    /// The action of a filter's result; one that is not known kills.
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
    /// Filters of the chain from here on.
    pub count: u64,
    /// Their instructions, and what each filter counts beside them.
    pub instructions: usize,
    /// Whether refusals are logged (SECCOMP_FILTER_FLAG_LOG).
    pub logs: bool,
}

impl Drop for ChainedFilter {
    /// One after the other: a chain may be longer than the stack is deep.
    fn drop(&mut self) {
        let mut next = self.before.take();
        while let Some(filter) = next {
            next = filter.into_last().and_then(|mut filter| filter.before.take());
        }
    }
}

/// System calls that a thread may not make.
#[derive(Clone, Debug, Default)]
pub enum Confinement {
    /// Nothing was given up.
    #[default]
    Free,
    /// All but the four calls of strict mode.
    Strict,
    /// The calls that these filters refuse.
    Filtered(Arc<ChainedFilter>),
}

/// A thread's confinement.
#[derive(Debug, Default)]
pub struct Seccomp(SpinLock<Confinement>);

impl ChainedFilter {
    /// The filters, the newest first.
    pub fn chain(first: &Arc<Self>) -> impl Iterator<Item = &Arc<Self>> {
        core::iter::successors(Some(first), |filter| filter.before.as_ref())
    }

    /// The strictest of what all filters say of a call, and its data. Of equals the newest counts.
    pub fn judge(first: &Arc<Self>, data: &CallData) -> (Action, u32) {
        let verdicts = Self::chain(first).map(|filter| filter.program.run(data));
        let strictest = verdicts.min_by_key(|&result| Action::of(result)).unwrap_or_default();
        (Action::of(strictest), strictest & 0xffff)
    }
}

impl Confinement {
    /// As prctl(PR_GET_SECCOMP) says it.
    pub fn mode(&self) -> u8 {
        match self {
            Self::Free => 0,
            Self::Strict => 1,
            Self::Filtered(_) => 2,
        }
    }

    /// The newest filter.
    pub fn chain(&self) -> Option<&Arc<ChainedFilter>> {
        match self {
            Self::Filtered(chain) => Some(chain),
            _ => None,
        }
    }

    /// Whether all that this gave up is part of what `other` did.
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
    /// Lets it be another.
    pub fn set(&self, confinement: Confinement) {
        let old = core::mem::replace(&mut *self.0.lock(), confinement);
        drop(old);
    }
}
