//! State that a tracer and the thread that it traces share.

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use bitflags::bitflags;
use freehold_collections::{Arc, Map, Vec, reserve};

use super::UserRegisters;
use crate::sync::SpinLock;
use crate::task::Capability;
use crate::task::credentials::Credentials;
use crate::task::pidns::{Numbers, PidView};
use crate::task::signal::{Pid, SigInfo, Signal};
use crate::task::userns::UserNs;
use crate::{Errno, Result};

bitflags! {
    /// PTRACE_O_*.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Options: u32 {
        /// Stops at system calls have bit 7 of the signal set.
        const TRACESYSGOOD = 1;
        /// fork stops, and its child is also traced.
        const TRACEFORK = 1 << 1;
        /// vfork stops, and its child is also traced.
        const TRACEVFORK = 1 << 2;
        /// clone stops, and its child is also traced.
        const TRACECLONE = 1 << 3;
        /// execve stops instead of sending SIGTRAP.
        const TRACEEXEC = 1 << 4;
        /// vfork stops again when its child releases it.
        const TRACEVFORKDONE = 1 << 5;
        /// The thread stops when it ends.
        const TRACEEXIT = 1 << 6;
        /// SECCOMP_RET_TRACE stops.
        const TRACESECCOMP = 1 << 7;
        /// Tracees are killed when their tracer ends.
        const EXITKILL = 1 << 20;
    }
}

/// PTRACE_EVENT_*.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Event {
    /// A fork was made.
    Fork = 1,
    /// A vfork was made.
    Vfork = 2,
    /// Another clone was made.
    Clone = 3,
    /// A program was executed.
    Exec = 4,
    /// The child of a vfork has released its parent.
    VforkDone = 5,
    /// The thread ends.
    Exit = 6,
    /// A filter of seccomp(2) passes a call to the tracer.
    Seccomp = 7,
    /// PTRACE_INTERRUPT, a group stop, or the first stop of a child that is traced from its start.
    Stop = 128,
}

impl Event {
    /// Returns the option that requests the event; none for [`Event::Stop`].
    pub const fn option(self) -> Options {
        match self {
            Self::Fork => Options::TRACEFORK,
            Self::Vfork => Options::TRACEVFORK,
            Self::Clone => Options::TRACECLONE,
            Self::Exec => Options::TRACEEXEC,
            Self::VforkDone => Options::TRACEVFORKDONE,
            Self::Exit => Options::TRACEEXIT,
            Self::Seccomp => Options::TRACESECCOMP,
            Self::Stop => Options::empty(),
        }
    }
}

/// The reason for a tracee's stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopKind {
    /// A signal is about to be delivered.
    Delivery,
    /// Job control stopped the process.
    Group,
    /// See [`Event`].
    Event,
    /// A system call is about to be made.
    Entry,
    /// A system call was made.
    Exit,
}

/// A stop that is reported to the tracer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stop {
    /// The reason for the stop.
    pub kind: StopKind,
    /// Bits 8 and up of wait4's status.
    pub code: i32,
}

impl Stop {
    /// Makes a stop for `signal`.
    pub fn signal(kind: StopKind, signal: Signal) -> Self {
        Self { kind, code: i32::from(signal.number()) }
    }
    /// Makes a stop for an event.
    pub fn event(kind: StopKind, signal: Signal, event: Event) -> Self {
        Self { kind, code: i32::from(signal.number()) | i32::from(event as u8) << 8 }
    }
    /// Returns the status in the format of wait4.
    pub const fn wait_status(self) -> i32 {
        self.code << 8 | 0x7f
    }
}

/// The way in which a tracer resumes a stopped tracee.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resume {
    /// Run (PTRACE_CONT).
    Run,
    /// Run to the next system call or the end of this one (PTRACE_SYSCALL).
    ToCall,
    /// Run one instruction (PTRACE_SINGLESTEP).
    Step,
}

/// The way in which a thread became traced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attached {
    /// By PTRACE_TRACEME or PTRACE_ATTACH.
    Classic,
    /// By PTRACE_SEIZE: group stops are events, and PTRACE_INTERRUPT and PTRACE_LISTEN work.
    Seized,
}

/// Power of a tracer over its tracee, recorded when tracing begins. A later check of the tracer
/// could find rights that it has only temporarily, in a set-user-ID program. (Linux:
/// `ptracer_cred`.)
#[derive(Clone, Debug)]
pub struct TracerPower(Arc<Credentials>);

impl TracerPower {
    /// Returns the power of a tracer with these credentials. For PTRACE_TRACEME they are the
    /// tracee's own.
    pub const fn of(credentials: Arc<Credentials>) -> Self {
        Self(credentials)
    }
    /// Whether the tracer had CAP_SYS_PTRACE for objects that `owner` owns. Then it may control a
    /// process there completely, whatever rights a program gives. Otherwise execve gives the tracee
    /// no other IDs and no capabilities (Linux: `ptracer_capable`).
    pub fn covers(&self, owner: &UserNs) -> bool {
        self.0.may_in(owner, Capability::SysPtrace)
    }
}

/// Messages between tracer and tracee. The tracee sets them at a stop. The tracer changes them
/// while the stop lasts.
#[derive(Debug)]
pub struct TraceState {
    /// PTRACE_O_*.
    pub options: Options,
    /// The stop that the tracee is in.
    pub stop: Option<Stop>,
    /// Whether the stop was not reported to the tracer yet.
    pub news: bool,
    /// The tracee's next step, once the tracer has chosen it.
    pub resume: Option<Resume>,
    /// Whether the tracer waits for the end of a group stop (PTRACE_LISTEN).
    pub listens: bool,
    /// Whether the tracer has released the tracee.
    pub released: bool,
    /// The result of PTRACE_GETEVENTMSG.
    pub message: u64,
    /// The siginfo of the signal to be delivered. The tracer may change it.
    pub info: SigInfo,
    /// The signal to be delivered, by number; 0 for none.
    pub inject: u8,
    /// The registers.
    pub image: UserRegisters,
    /// The vector state: an XSAVE area in standard form.
    pub vectors: Vec<u8>,
    /// Whether the tracer has changed `vectors`.
    pub vectors_changed: bool,
    /// Whether TF is set because the tracer requested a step, and not by the program.
    pub forced_trap_flag: bool,
    /// The status of the tracee's end, in the format of wait4, while its end waits for the tracer.
    pub ended: Option<i32>,
}

/// A traced thread, shared by itself and its tracer.
#[derive(Debug)]
pub struct Tracee {
    /// The ID of the thread's process.
    pub pid: Pid,
    /// The process that traces it.
    pub tracer: Pid,
    /// The thread's ID with its numbers in PID namespaces.
    numbers: SpinLock<Numbers>,
    /// The tracer's PID namespace.
    pub view: PidView,
    /// The way in which tracing began.
    pub attached: Attached,
    /// The tracer's power over the thread.
    pub power: TracerPower,
    /// The mutable state.
    pub state: SpinLock<TraceState>,
}

impl Tracee {
    /// Makes a running tracee. `vector_bytes` is the size of its vector state.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(
        numbers: Numbers,
        (pid, (tracer, view)): (Pid, (Pid, PidView)),
        (attached, power): (Attached, TracerPower),
        options: Options,
        vector_bytes: usize,
    ) -> Result<Arc<Self>> {
        let vectors = Vec::try_filled(0, vector_bytes)?;
        let info = SigInfo { number: 0, errno: 0, code: 0, pad: 0, fields: [0; 4] };
        let state = TraceState {
            options,
            stop: None,
            news: false,
            resume: None,
            listens: false,
            released: false,
            message: 0,
            info,
            inject: 0,
            image: UserRegisters::default(),
            vectors,
            vectors_changed: false,
            forced_trap_flag: false,
            ended: None,
        };
        let state = SpinLock::new(state);
        Ok(reserve::arc(Self { pid, tracer, numbers: SpinLock::new(numbers), view, attached, power, state }))
    }

    /// Calls `f` with the state of a tracee that is in a stop and not listening.
    ///
    /// # Errors
    /// `ESRCH` if it is not; the error of `f`.
    pub fn stopped<T>(&self, f: impl FnOnce(&mut TraceState) -> Result<T>) -> Result<T> {
        let mut state = self.state.lock();
        if state.stop.is_none() || state.resume.is_some() || state.listens || state.released {
            return Err(Errno::ESRCH);
        }
        f(&mut state)
    }

    /// Returns the thread's ID. It changes under the registry's lock and that of its tracer's
    /// tracees.
    pub fn tid(&self) -> Pid {
        self.numbers.lock().id()
    }

    /// Returns the thread's number in its own PID namespace.
    pub fn number(&self) -> Pid {
        self.numbers.lock().own()
    }

    /// Returns the thread's number in its tracer's PID namespace.
    pub fn shown(&self) -> Pid {
        self.numbers.lock().in_view(self.view)
    }

    /// Sets another ID of the thread. Under the registry's lock.
    pub fn renumber(&self, numbers: &Numbers) {
        *self.numbers.lock() = numbers.clone();
    }

    /// Whether an event with this option stops the tracee.
    pub fn wants(&self, option: Options) -> bool {
        self.state.lock().options.contains(option)
    }
}

/// The threads that a process traces, by thread ID.
#[derive(Debug, Default)]
pub struct Tracees {
    all: Map<Pid, Arc<Tracee>>,
    closed: bool,
}

/// Largest number of threads that one process traces. Ended threads that were not waited for count,
/// too, because nothing else limits them.
const MOST_TRACEES: usize = 4096;

impl Tracees {
    /// Adds a tracee.
    ///
    /// # Errors
    /// `ESRCH` if the tracer is ending, `EAGAIN` for too many, `ENOMEM`.
    pub fn insert(&mut self, tracee: &Arc<Tracee>) -> Result<()> {
        if self.closed {
            return Err(Errno::ESRCH);
        }
        if self.all.len() >= MOST_TRACEES {
            return Err(Errno::EAGAIN);
        }
        self.all.try_insert(tracee.tid(), tracee.clone())?;
        Ok(())
    }
    /// Returns the tracee with this ID.
    pub fn get(&self, tid: Pid) -> Option<&Arc<Tracee>> {
        self.all.get(&tid)
    }
    /// Returns the first tracee with an ID of `least` or more.
    pub fn next(&self, least: Pid) -> Option<&Arc<Tracee>> {
        self.all.first_from(core::ops::Bound::Included(&least)).map(|(_, tracee)| tracee)
    }
    /// Removes the tracee with this ID.
    pub fn remove(&mut self, tid: Pid) -> Option<Arc<Tracee>> {
        self.all.remove(&tid)
    }
    /// Reserves memory for [`renumber`](Self::renumber), which fails if others have used it
    /// meanwhile.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn reserve(&mut self) -> Result<()> {
        Ok(self.all.try_reserve(1)?)
    }
    /// Gives `tracee`, which may have been removed, another ID. Returns the tracee that had that
    /// ID.
    ///
    /// # Errors
    /// `ENOMEM`; nothing has changed.
    pub fn renumber(&mut self, tracee: &Tracee, numbers: &Numbers) -> Result<Option<Arc<Tracee>>> {
        self.reserve()?;
        let known = self.all.remove(&tracee.tid());
        tracee.renumber(numbers);
        Ok(known.and_then(|known| self.all.insert_reserved(numbers.id(), known)))
    }
    /// Removes this tracee.
    pub fn take(&mut self, tracee: &Tracee) -> Option<Arc<Tracee>> {
        let tid = tracee.tid();
        let is_known = self.all.get(&tid).is_some_and(|known| core::ptr::eq(&raw const **known, tracee));
        if is_known { self.all.remove(&tid) } else { None }
    }
    /// Removes any tracee.
    pub fn pop(&mut self) -> Option<Arc<Tracee>> {
        self.all.pop_first().map(|(_, tracee)| tracee)
    }
    /// Refuses further tracees.
    pub fn close(&mut self) {
        self.closed = true;
    }
    /// Whether there are no tracees.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

/// A thread's link to its tracer. The hot paths check only the flags.
#[derive(Debug)]
pub struct Traced {
    flags: AtomicU8,
    /// The number of the group stop during which the tracer resumed it; see `Group::stops`.
    pub passed: AtomicU64,
    tracee: SpinLock<Option<Arc<Tracee>>>,
}

const TRACED: u8 = 1;
const CALLS: u8 = 2;
const STEPS: u8 = 4;
const TRAP: u8 = 8;
/// Independent of the tracer: this flag stays when a tracer attaches or detaches.
const JUDGED: u8 = 16;

impl Traced {
    /// Returns the state of a thread without a tracer.
    pub const fn new() -> Self {
        Self { flags: AtomicU8::new(0), passed: AtomicU64::new(0), tracee: SpinLock::new(None) }
    }
    fn has(&self, flag: u8) -> bool {
        self.flags.load(Ordering::Relaxed) & flag != 0
    }
    /// Whether the thread has a tracer.
    pub fn is_traced(&self) -> bool {
        self.has(TRACED)
    }
    /// Whether its system calls need more work: it stops at them, steps over them, or seccomp
    /// filters check them.
    #[inline]
    pub fn watches_calls(&self) -> bool {
        self.has(CALLS | STEPS | JUDGED)
    }
    /// From now on its seccomp filters check each of its system calls.
    pub fn judge_calls(&self) {
        self.flags.fetch_or(JUDGED, Ordering::SeqCst);
    }
    /// Whether seccomp filters check its system calls.
    pub fn are_calls_judged(&self) -> bool {
        self.has(JUDGED)
    }
    /// Whether the thread stops at system calls.
    pub fn stops_at_calls(&self) -> bool {
        self.has(CALLS)
    }
    /// Whether the thread is single-stepped.
    pub fn steps(&self) -> bool {
        self.has(STEPS)
    }
    /// Returns the shared part.
    pub fn tracee(&self) -> Option<Arc<Tracee>> {
        if self.is_traced() { self.tracee.lock().clone() } else { None }
    }
    /// Returns the PID namespace of the thread's tracer.
    pub fn view(&self) -> Option<PidView> {
        self.tracee().map(|tracee| tracee.view)
    }
    /// Sets the shared part to `tracee`.
    ///
    /// # Errors
    /// `EPERM` if the thread has a tracer already.
    pub fn set(&self, tracee: &Arc<Tracee>) -> Result<()> {
        let mut place = self.tracee.lock();
        if place.is_some() {
            return Err(Errno::EPERM);
        }
        *place = Some(tracee.clone());
        self.passed.store(0, Ordering::Relaxed);
        self.flags.fetch_or(TRACED, Ordering::SeqCst);
        Ok(())
    }
    /// Removes the shared part, if it is `tracee`.
    pub fn clear(&self, tracee: &Tracee) {
        let mut place = self.tracee.lock();
        if place.as_ref().is_some_and(|here| core::ptr::eq(&raw const **here, tracee)) {
            self.flags.fetch_and(JUDGED, Ordering::SeqCst);
            let old = place.take();
            drop(place);
            drop(old);
        }
    }
    /// Requests a stop for PTRACE_EVENT_STOP; the caller interrupts the thread.
    pub fn ask_for_trap(&self) {
        self.flags.fetch_or(TRAP, Ordering::SeqCst);
    }
    /// Takes the request for a PTRACE_EVENT_STOP. Returns whether there was one.
    pub fn take_trap(&self) -> bool {
        self.has(TRAP) && self.flags.fetch_and(!TRAP, Ordering::SeqCst) & TRAP != 0
    }
    /// Records how the thread, the caller, continues.
    pub fn go_on(&self, how: Resume) {
        self.flags.fetch_and(!(CALLS | STEPS), Ordering::SeqCst);
        let flag = match how {
            Resume::Run => 0,
            Resume::ToCall => CALLS,
            Resume::Step => STEPS,
        };
        if flag != 0 {
            self.flags.fetch_or(flag, Ordering::SeqCst);
        }
    }
}

impl Default for Traced {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracee() -> Arc<Tracee> {
        Tracee::new(
            Numbers::initial(5),
            (4, (3, PidView::INITIAL)),
            (Attached::Classic, TracerPower::of(reserve::arc(Credentials::of_user(5, 5)))),
            Options::empty(),
            512,
        )
        .expect("memory")
    }

    #[test]
    fn statuses_are_linux() {
        assert_eq!(Stop::signal(StopKind::Delivery, Signal::TRAP).wait_status(), 0x57f);
        let exec = Stop::event(StopKind::Event, Signal::TRAP, Event::Exec);
        assert_eq!(exec.wait_status(), 0x57f | 4 << 16);
        let group = Stop::event(StopKind::Group, Signal::STOP, Event::Stop);
        assert_eq!(group.wait_status(), 0x137f | 128 << 16);
    }

    #[test]
    fn a_thread_has_one_tracer_and_loses_its_flags_with_it() {
        let (traced, first, second) = (Traced::new(), tracee(), tracee());
        assert!(traced.tracee().is_none());
        traced.set(&first).expect("nobody traces it");
        assert_eq!(traced.set(&second), Err(Errno::EPERM));
        traced.go_on(Resume::ToCall);
        assert!(traced.watches_calls() && traced.stops_at_calls() && !traced.steps());
        traced.clear(&second);
        assert!(traced.is_traced(), "another's detach changes nothing");
        traced.clear(&first);
        assert!(!traced.is_traced() && !traced.watches_calls());
        traced.set(&second).expect("nobody traces it any more");
    }

    #[test]
    fn only_a_tracee_in_a_stop_is_looked_at() {
        let tracee = tracee();
        let look = || tracee.stopped(|state| Ok(state.image.rip));
        assert_eq!(look(), Err(Errno::ESRCH), "it runs");
        tracee.state.lock().stop = Some(Stop::signal(StopKind::Delivery, Signal::TRAP));
        assert_eq!(look(), Ok(0));
        tracee.state.lock().resume = Some(Resume::Run);
        assert_eq!(look(), Err(Errno::ESRCH), "it was let go");
        tracee.state.lock().resume = None;
        tracee.state.lock().listens = true;
        assert_eq!(look(), Err(Errno::ESRCH), "it listens");
    }

    #[test]
    fn a_tracer_has_a_bounded_number_of_tracees_and_none_when_it_ends() {
        let mut tracees = Tracees::default();
        let numbered = |tid| {
            Tracee::new(
                Numbers::initial(tid),
                (tid, (3, PidView::INITIAL)),
                (Attached::Classic, TracerPower::of(reserve::arc(Credentials::of_user(5, 5)))),
                Options::empty(),
                0,
            )
            .expect("memory")
        };
        for tid in 0..MOST_TRACEES as Pid {
            assert_eq!(tracees.insert(&numbered(tid)), Ok(()));
        }
        assert_eq!(tracees.insert(&numbered(9000)), Err(Errno::EAGAIN));
        assert!(tracees.remove(7).is_some() && tracees.next(7).is_some_and(|next| next.tid() == 8));
        tracees.close();
        assert_eq!(tracees.insert(&numbered(7)), Err(Errno::ESRCH));
        while tracees.pop().is_some() {}
        assert!(tracees.is_empty());
    }

    #[test]
    fn a_trap_is_taken_once() {
        let traced = Traced::new();
        traced.set(&tracee()).expect("nobody traces it");
        traced.ask_for_trap();
        assert!(traced.take_trap() && !traced.take_trap());
    }
}
