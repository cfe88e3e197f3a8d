//! The chain of filters of a thread, and their combined verdict on a call.

use freehold_bpf::{CallData, Filter};
use freehold_collections::reserve::ArcMethods;
use freehold_collections::{Arc, Vec};

use super::listener::Listener;
use crate::sync::IrqSpinLock;

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
    /// The listener of the filter decides.
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

/// Numbers of calls.
const CALLS: u32 = 512;

/// The calls, by number, that filters allow whatever their arguments are: a bit each. Linux'
/// relative is `struct action_cache`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllowedCalls([u64; CALLS as usize / 64]);

impl AllowedCalls {
    /// No call.
    pub const NONE: Self = Self([0; CALLS as usize / 64]);

    /// Returns the calls that `filter` allows. It runs once for each number.
    pub fn by(filter: &Filter, architecture: u32) -> Self {
        let mut allowed = Self::NONE;
        for number in 0..CALLS {
            if Action::of(filter.run_for_all(number, architecture)) == Action::Allow {
                allowed.0[number as usize / 64] |= 1 << (number % 64);
            }
            crate::sched::rest();
        }
        allowed
    }
    /// Returns the calls that both allow.
    pub fn and(self, other: Self) -> Self {
        Self(core::array::from_fn(|at| self.0[at] & other.0[at]))
    }
    /// Whether a call is among them.
    pub fn contain(&self, number: u64) -> bool {
        usize::try_from(number / 64)
            .ok()
            .and_then(|at| self.0.get(at))
            .is_some_and(|word| word >> (number % 64) & 1 != 0)
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
    /// The calls that this filter allows.
    pub allowed: AllowedCalls,
    /// The calls that this filter and all before it allow.
    pub allowed_by_all: AllowedCalls,
    /// Whether refusals are logged (SECCOMP_FILTER_FLAG_LOG).
    pub logs: bool,
    /// The process that decides on calls of which the filter notifies it.
    pub listener: Option<Arc<Listener>>,
}

impl Drop for ChainedFilter {
    /// Drops the chain in a loop: a recursion could exceed the stack.
    fn drop(&mut self) {
        if let Some(listener) = &self.listener {
            listener.leave();
        }
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

/// A thread's confinement. The lock is taken under a process' `signals`, which is interrupt-safe,
/// so this one is, too.
#[derive(Debug)]
pub struct Seccomp(IrqSpinLock<Confinement>);

impl Default for Seccomp {
    fn default() -> Self {
        Self(IrqSpinLock::new(Confinement::Free))
    }
}

/// The filters of a chain, the newest first: the filter at a depth is found in one step.
#[derive(Debug)]
pub struct Ancestors<'a>(Vec<&'a Arc<ChainedFilter>>);

impl<'a> Ancestors<'a> {
    /// Lists the filters of `newest`; none if there is no filter.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn of(newest: Option<&'a Arc<ChainedFilter>>) -> crate::Result<Self> {
        let mut all = Vec::try_with_capacity(newest.map_or(0, |newest| newest.count as usize))?;
        newest.into_iter().flat_map(ChainedFilter::chain).for_each(|filter| all.push_reserved(filter));
        Ok(Self(all))
    }

    /// Whether these filters contain all of `confinement`'s. A chain is part of another one if it
    /// is the part of the same length.
    pub fn include(&self, confinement: &Confinement) -> bool {
        match confinement {
            Confinement::Free => true,
            Confinement::Strict => false,
            Confinement::Filtered(chain) => {
                let newer = self.0.len().checked_sub(chain.count as usize);
                newer.and_then(|at| self.0.get(at)).is_some_and(|filter| filter.is_same(chain))
            }
        }
    }
}

impl ChainedFilter {
    /// Returns a filter that is in no chain yet.
    pub fn alone(program: Filter, architecture: u32) -> Self {
        Self {
            allowed: AllowedCalls::by(&program, architecture),
            allowed_by_all: AllowedCalls::NONE,
            program,
            before: None,
            count: 1,
            instructions: 0,
            logs: false,
            listener: None,
        }
    }

    /// Returns the filters, the newest first.
    pub fn chain(first: &Arc<Self>) -> impl Iterator<Item = &Arc<Self>> {
        core::iter::successors(Some(first), |filter| filter.before.as_ref())
    }

    /// Returns the strictest action of all filters for a call, its data, and the filter. Among
    /// equal actions the newest filter counts.
    pub fn judge<'a>(first: &'a Arc<Self>, data: &CallData) -> (Action, u32, &'a Arc<Self>) {
        let verdicts = Self::chain(first).map(|filter| (filter.program.run(data), filter));
        let strictest = verdicts.min_by_key(|&(result, _)| Action::of(result));
        let (result, filter) = strictest.unwrap_or((0, first));
        (Action::of(result), result & 0xffff, filter)
    }

    /// Whether a file listens to this filter or an older one.
    pub fn has_listener(first: &Arc<Self>) -> bool {
        Self::chain(first).any(|filter| filter.listener.as_ref().is_some_and(|listener| listener.is_open()))
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

    /// Whether both are the same, with the same newest filter.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self.chain(), other.chain()) {
            (Some(own), Some(others)) => own.is_same(others),
            _ => self.mode() == other.mode(),
        }
    }
}

impl Seccomp {
    /// Returns the confinement.
    pub fn get(&self) -> Confinement {
        self.0.lock().clone()
    }
    /// Sets the confinement. The filters of the old one must have another holder if the caller
    /// holds an interrupt-safe lock: freeing uses the heap.
    pub fn set(&self, confinement: Confinement) {
        let old = core::mem::replace(&mut *self.0.lock(), confinement);
        drop(old);
    }
}

#[cfg(test)]
mod tests {
    use freehold_bpf::Instruction;
    use freehold_collections::reserve;

    use super::*;

    /// Puts a filter that allows everything in front of `before`.
    fn chained(before: Option<&Arc<ChainedFilter>>) -> Arc<ChainedFilter> {
        let allow = Instruction::from_bytes([6, 0, 0, 0, 0, 0, 0xff, 0x7f]);
        let program = Filter::new(Vec::try_from_slice(&[allow]).unwrap()).unwrap();
        let mut filter = ChainedFilter::alone(program, 7);
        filter.count += before.map_or(0, |before| before.count);
        filter.before = before.cloned();
        reserve::arc(filter)
    }

    #[test]
    fn a_chain_contains_its_own_older_parts_and_no_other_chain() {
        let mut chains: std::vec::Vec<Arc<ChainedFilter>> = std::vec::Vec::new();
        let mut seed = 1u64;
        for _ in 0..40 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let before = chains.get((seed >> 33) as usize % (chains.len() + 2)).cloned();
            chains.push(chained(before.as_ref()));
        }
        for newest in &chains {
            let ancestors = Ancestors::of(Some(newest)).unwrap();
            assert!(ancestors.include(&Confinement::Free) && !ancestors.include(&Confinement::Strict));
            for other in &chains {
                let is_part = ChainedFilter::chain(newest).any(|filter| filter.is_same(other));
                assert_eq!(ancestors.include(&Confinement::Filtered(other.clone())), is_part);
            }
        }
        assert!(!Ancestors::of(None).unwrap().include(&Confinement::Filtered(chains[0].clone())));
    }
}
