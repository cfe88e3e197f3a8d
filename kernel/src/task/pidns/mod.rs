//! PID namespaces (Linux: `struct pid_namespace`): the processes that a program can name, and their
//! numbers.
//!
//! **Numbers.** Inside the kernel every process and thread has one ID, its number in the initial
//! namespace: [`Pid`]. Below the initial namespace it has one more number per level; the last is
//! that of its own namespace: [`Numbers`]. These numbers are allocated and released with the ID.
//! The [registry](super::registry) maps them back to the ID. So a task in the initial namespace has
//! no additional cost: it has no levels, and its number is its ID.
//!
//! **Translation.** IDs are translated when a program passes a number (`registry::find_by_number`,
//! `find_task_by_number`, `pid_by_number`: an unknown number is `ESRCH`, or the error that the call
//! specifies). They are also translated when a program gets a number (`Process::number`,
//! `Numbers::in_view`, `registry::shown`: 0 if there is no number in the namespace). The rules, by
//! interface:
//!
//! | place | the number is that of |
//! |---|---|
//! | getpid, gettid, set_tid_address | the task in its own namespace: one load |
//! | getppid | the parent in the caller's namespace; 0 where it is outside |
//! | fork, clone, CLONE_PARENT_SETTID, PTRACE_GETEVENTMSG | the child in the caller's (tracer's) |
//! | CLONE_CHILD_SETTID, robust list of futexes | the task in its own |
//! | clone3's set_tid | the child per level, innermost first |
//! | wait4, waitid, SIGCHLD | the child in the parent's (tracer's) |
//! | kill, tkill, tgkill, sigqueue, pidfd_open, ptrace | the target in the caller's |
//! | pidfd_send_signal | none; `EINVAL` for a target outside of the caller's namespace |
//! | kill(-1), setpriority and ioprio_set of a user | visible ones only, init and caller left out |
//! | si_pid | the sender in the receiver's; 0 from outside |
//! | getpgid, getsid, setpgid, tcgetpgrp, tcsetpgrp, tcgetsid | the group in the caller's |
//! | F_SETOWN, F_GETOWN, F_GETLK, sched_*, prlimit, kcmp, process_vm_*, capget, move_pages | the caller's |
//! | CPU clocks, SIGEV_THREAD_ID, seccomp's TSYNC | the caller's |
//! | SO_PEERCRED, SCM_CREDENTIALS, IPC figures, mqueue's notifier, /proc/locks | the reader's |
//! | Pid and NSpid of a pidfd's fdinfo, everything below /proc/PID | that of the mounted /proc |
//! | netlink ports that the kernel chooses | the process in its own |
//! | the kernel's log, /sys | the initial namespace |
//!
//! An object that stores an ID (a socket, a semaphore, a lock) shows 0 in a namespace below the
//! initial one once the ID is no longer in use.
//!
//! **Init.** The first process of a namespace has the number 1 there. Before it exists, and from
//! its end on, no other process can be created in the namespace. It adopts orphans, and its end
//! waits for that of all others: see [`super::exit`]. Under the registry's lock the namespace is
//! marked as ending; then each process in it is killed; a new one is entered under the same lock,
//! and refused once the mark is there. So each that was entered is killed, and the wait ends (the
//! model is in `model.rs`). Init is *shielded*: a signal without a handler has no effect, except
//! SIGKILL and SIGSTOP from outside, and its own faults ([`super::signal`]).
//!
//! **Invariant.** The fields of [`Nested`] change under the registry's lock. A namespace refers to
//! the one above it and to no process; its depth is at most [`MOST_LEVELS`].
//!
//! Any context. Only making a namespace allocates memory.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use freehold_collections::{Arc, Vec, reserve};

use super::credentials::Credentials;
use super::signal::Pid;
use super::userns::{NamespaceHead, NamespaceKind, UserNs, count};
use crate::{Errno, Result};

/// Largest number of levels below the initial namespace (Linux: `MAX_PID_NS_LEVEL`).
pub const MOST_LEVELS: usize = 32;

/// The number of a namespace's first process in that namespace.
pub const FIRST: Pid = 1;

/// The identity of a namespace: its number in /proc/PID/ns, which is never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PidView(u64);

impl PidView {
    /// The initial namespace.
    pub const INITIAL: Self = Self(NamespaceKind::Pid.initial_inode());

    /// Returns whether it is the initial namespace.
    pub const fn is_initial(self) -> bool {
        self.0 == Self::INITIAL.0
    }
}

struct Nested {
    head: NamespaceHead,
    parent: PidNs,
    level: usize,
    /// The last number that was allocated.
    last: AtomicU32,
    /// The ID of its first process; 0 before that exists.
    init: AtomicU32,
    /// Its first process is ending: no process can be created here any more.
    is_ending: AtomicBool,
}

/// A PID namespace. The initial one is the default.
#[derive(Clone, Default)]
pub struct PidNs(Option<Arc<Nested>>);

static INITIAL: PidNs = PidNs(None);

/// Whether the initial namespace is the only one. Then all numbers are IDs.
#[inline]
pub fn is_only_one() -> bool {
    count(NamespaceKind::Pid) == 0
}

impl PartialEq for PidNs {
    fn eq(&self, other: &Self) -> bool {
        self.view() == other.view()
    }
}

impl Eq for PidNs {}

impl core::fmt::Debug for PidNs {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "pid:[{}]", self.view().0)
    }
}

impl PidNs {
    /// The initial namespace.
    pub const INITIAL: Self = Self(None);

    /// Makes a namespace below `self` that the user namespace of `maker` owns, without processes.
    ///
    /// # Errors
    /// `ENOSPC` if it would be too deep, or if there are too many; `EINVAL` if that user namespace
    /// is not in or below the one that owns `self`; `ENOMEM`.
    pub fn make_below(&self, maker: &Credentials) -> Result<Self> {
        if !self.owner().contains(&maker.user_ns) {
            return Err(Errno::EINVAL);
        }
        let level = self.level() + 1;
        if level > MOST_LEVELS {
            return Err(Errno::ENOSPC);
        }
        Ok(Self(Some(reserve::arc(Nested {
            head: NamespaceHead::new(NamespaceKind::Pid, maker)?,
            parent: self.clone(),
            level,
            last: AtomicU32::new(0),
            init: AtomicU32::new(0),
            is_ending: AtomicBool::new(false),
        }))))
    }

    /// Returns the namespace's identity.
    pub fn view(&self) -> PidView {
        self.0.as_ref().map_or(PidView::INITIAL, |nested| PidView(nested.head.inode()))
    }

    /// Returns the namespace's number in /proc/PID/ns.
    pub fn inode(&self) -> u64 {
        self.view().0
    }

    /// Whether this is the initial namespace.
    pub const fn is_initial(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the number of levels above the namespace.
    pub fn level(&self) -> usize {
        self.0.as_ref().map_or(0, |nested| nested.level)
    }

    /// Returns the namespace above; `None` for the initial one.
    pub fn parent(&self) -> Option<&Self> {
        self.0.as_ref().map(|nested| &nested.parent)
    }

    /// Returns the user namespace that owns the namespace.
    pub fn owner(&self) -> UserNs {
        self.0.as_ref().map_or(UserNs::INITIAL, |nested| nested.head.owner().clone())
    }

    /// Whether `other` is this namespace or one below it.
    pub fn contains(&self, other: &Self) -> bool {
        let mut here = Some(other);
        while let Some(namespace) = here.filter(|namespace| namespace.level() > self.level()) {
            here = namespace.parent();
        }
        here == Some(self)
    }

    /// Returns the ID of the namespace's first process; 0 for the initial namespace, and before
    /// there is one.
    pub fn init(&self) -> Pid {
        self.0.as_ref().map_or(0, |nested| nested.init.load(Ordering::Relaxed))
    }

    /// Whether the first process has been created; it may have ended.
    pub fn has_init(&self) -> bool {
        self.is_initial() || self.init() != 0
    }

    /// Sets the ID of the first process. Under the registry's lock.
    pub(super) fn set_init(&self, init: Pid) {
        if let Some(nested) = &self.0 {
            nested.init.store(init, Ordering::Relaxed);
        }
    }

    /// Whether no process can be created in the namespace any more, because it or one above it is
    /// ending.
    pub fn is_ending(&self) -> bool {
        self.0
            .as_ref()
            .is_some_and(|nested| nested.is_ending.load(Ordering::Relaxed) || nested.parent.is_ending())
    }

    /// Forbids new processes in the namespace from now on. Under the registry's lock.
    pub(super) fn set_ending(&self) {
        if let Some(nested) = &self.0 {
            nested.is_ending.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the last number that was allocated in the namespace; `None` for the initial one.
    pub(super) fn last(&self) -> Option<Pid> {
        self.0.as_ref().map(|nested| nested.last.load(Ordering::Relaxed))
    }

    /// Records the last number that was allocated. Under the registry's lock.
    pub(super) fn set_last(&self, last: Pid) {
        if let Some(nested) = &self.0 {
            nested.last.store(last, Ordering::Relaxed);
        }
    }
}

/// The numbers of one ID below the initial namespace. They are 0 until they are allocated, and
/// never change after that.
pub struct Levels {
    namespace: PidNs,
    /// From the outermost level, level 1, to the level of `namespace`.
    numbers: Vec<(PidNs, AtomicU32)>,
}

impl Levels {
    /// Makes room for the numbers of an ID in `namespace`; `None` for the initial one.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(namespace: &PidNs) -> Result<Option<Arc<Self>>> {
        if namespace.is_initial() {
            return Ok(None);
        }
        let mut numbers = Vec::try_with_capacity(namespace.level())?;
        let mut here = Some(namespace);
        while let Some(at) = here.filter(|at| !at.is_initial()) {
            numbers.push_reserved((at.clone(), AtomicU32::new(0)));
            here = at.parent();
        }
        numbers.as_mut_slice().reverse();
        Ok(Some(reserve::arc(Self { namespace: namespace.clone(), numbers })))
    }

    /// Returns the namespaces with the number in each, from the outermost.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&PidNs, Pid)> {
        self.numbers.iter().map(|(namespace, number)| (namespace, number.load(Ordering::Relaxed)))
    }

    /// Sets the number in the namespace at `index`, counted from the outermost.
    pub(super) fn set(&self, index: usize, number: Pid) {
        self.numbers[index].1.store(number, Ordering::Relaxed);
    }
}

/// The ID of a process or thread, with its numbers in its namespace and in those above.
#[derive(Clone)]
pub struct Numbers {
    id: Pid,
    own: Pid,
    levels: Option<Arc<Levels>>,
}

impl core::fmt::Debug for Numbers {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} ({} in {:?})", self.id, self.own, self.namespace())
    }
}

impl Numbers {
    /// Returns the numbers of an ID in the initial namespace.
    pub const fn initial(id: Pid) -> Self {
        Self { id, own: id, levels: None }
    }

    /// Returns the numbers of an ID, all of which have been allocated.
    pub(super) fn new(id: Pid, levels: Option<Arc<Levels>>) -> Self {
        let own = levels.as_ref().and_then(|levels| levels.iter().last());
        Self { id, own: own.map_or(id, |(_, number)| number), levels }
    }

    /// Returns the ID.
    pub const fn id(&self) -> Pid {
        self.id
    }

    /// Returns the number in the ID's own namespace.
    #[inline]
    pub const fn own(&self) -> Pid {
        self.own
    }

    /// Returns the ID's own namespace.
    pub fn namespace(&self) -> &PidNs {
        self.levels.as_ref().map_or(&INITIAL, |levels| &levels.namespace)
    }

    /// Whether the ID's own namespace is the initial one.
    #[inline]
    pub const fn is_initial(&self) -> bool {
        self.levels.is_none()
    }

    /// Returns the number in a namespace; 0 if it has none there.
    #[inline]
    pub fn in_view(&self, view: PidView) -> Pid {
        if view.is_initial() { self.id } else { self.below(view) }
    }

    #[cold]
    fn below(&self, view: PidView) -> Pid {
        let mut levels = self.levels.iter().flat_map(|levels| levels.iter());
        levels.find(|(namespace, _)| namespace.view() == view).map_or(0, |(_, number)| number)
    }

    /// Visits the numbers from that in a namespace down to that in the ID's own namespace (NSpid),
    /// each with its namespace.
    pub fn each_from(&self, view: PidView, mut f: impl FnMut(PidView, Pid)) {
        if view.is_initial() {
            f(view, self.id);
        }
        let levels = self.levels.iter().flat_map(|levels| levels.iter());
        let seen = levels.skip_while(|(namespace, _)| !view.is_initial() && namespace.view() != view);
        seen.for_each(|(namespace, number)| f(namespace.view(), number));
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
