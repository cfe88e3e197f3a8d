//! Signals, signal sets, and the siginfo of a signal.

use core::fmt;

use freehold_machine::ProtectionKey;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A process or thread ID; no process has ID 0.
pub type Pid = u32;

/// A signal number, 1..=64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Signal(u8);

macro_rules! signals {
    ($($name:ident = $number:literal,)*) => {
        impl Signal {
            $(#[doc = concat!("SIG", stringify!($name))] pub const $name: Self = Self($number);)*

            /// Returns the name without "SIG"; `None` for real-time signals.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

signals! {
    HUP = 1, INT = 2, QUIT = 3, ILL = 4, TRAP = 5, ABRT = 6, BUS = 7, FPE = 8, KILL = 9, USR1 = 10,
    SEGV = 11, USR2 = 12, PIPE = 13, ALRM = 14, TERM = 15, STKFLT = 16, CHLD = 17, CONT = 18, STOP = 19,
    TSTP = 20, TTIN = 21, TTOU = 22, URG = 23, XCPU = 24, XFSZ = 25, VTALRM = 26, PROF = 27, WINCH = 28,
    IO = 29, PWR = 30, SYS = 31,
}

/// Effect of a signal without a handler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DefaultAction {
    /// The process ends.
    Terminate,
    /// The process ends, and would leave a core file.
    Core,
    /// No effect.
    Ignore,
    /// The process stops.
    Stop,
    /// The process continues. (Sending the signal has already done that.)
    Continue,
}

impl Signal {
    /// The first real-time signal.
    pub const RT_MIN: Self = Self(32);
    /// The last signal.
    pub const MAX: Self = Self(64);

    /// Returns the signal with this number, if it exists.
    pub const fn new(number: i64) -> Option<Self> {
        if number >= 1 && number <= 64 { Some(Self(number as u8)) } else { None }
    }
    /// Returns the number, 1..=64.
    pub const fn number(self) -> u8 {
        self.0
    }
    /// Whether the signal is a real-time signal (32 and up), which is queued each time it is sent.
    pub const fn is_real_time(self) -> bool {
        self.0 >= 32
    }
    /// Returns the signal's effect without a handler (signal(7)).
    pub const fn default_action(self) -> DefaultAction {
        match self {
            Self::CHLD | Self::URG | Self::WINCH => DefaultAction::Ignore,
            Self::CONT => DefaultAction::Continue,
            Self::STOP | Self::TSTP | Self::TTIN | Self::TTOU => DefaultAction::Stop,
            Self::QUIT
            | Self::ILL
            | Self::TRAP
            | Self::ABRT
            | Self::BUS
            | Self::FPE
            | Self::SEGV
            | Self::XCPU
            | Self::XFSZ
            | Self::SYS => DefaultAction::Core,
            _ => DefaultAction::Terminate,
        }
    }
    /// Whether an instruction causes the signal: it is delivered before others, and cannot be
    /// ignored.
    pub const fn is_synchronous(self) -> bool {
        matches!(self, Self::SEGV | Self::BUS | Self::ILL | Self::TRAP | Self::FPE | Self::SYS)
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "SIG{name}"),
            None => write!(f, "SIGRT{}", self.0 - 32),
        }
    }
}

/// A set of signals; bit n - 1 is signal n, as in sigset_t.
#[derive(Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct SigSet(pub u64);

impl SigSet {
    /// No signal.
    pub const EMPTY: Self = Self(0);
    /// SIGKILL and SIGSTOP, which no process can block, catch or ignore.
    pub const UNSTOPPABLE: Self = Self::of(&[Signal::KILL, Signal::STOP]);
    /// The signals that stop a process.
    pub const STOPPING: Self = Self::of(&[Signal::STOP, Signal::TSTP, Signal::TTIN, Signal::TTOU]);
    /// The signals that an instruction causes.
    pub const SYNCHRONOUS: Self =
        Self::of(&[Signal::SEGV, Signal::BUS, Signal::ILL, Signal::TRAP, Signal::FPE, Signal::SYS]);

    /// Makes the set of `signals`.
    pub const fn of(signals: &[Signal]) -> Self {
        let mut bits = 0;
        let mut at = 0;
        while at < signals.len() {
            bits |= 1 << (signals[at].0 - 1);
            at += 1;
        }
        Self(bits)
    }
    /// Whether `signal` is a member.
    pub const fn contains(self, signal: Signal) -> bool {
        self.0 & (1 << (signal.0 - 1)) != 0
    }
    /// Returns the set with `signal`.
    #[must_use]
    pub const fn with(self, signal: Signal) -> Self {
        Self(self.0 | 1 << (signal.0 - 1))
    }
    /// Returns the set without `signal`.
    #[must_use]
    pub const fn without(self, signal: Signal) -> Self {
        Self(self.0 & !(1 << (signal.0 - 1)))
    }
    /// Returns the members of either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// Returns the members that are not in `other`.
    #[must_use]
    pub const fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
    /// Returns the members of both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
    /// Returns the member to deliver first: signals that an instruction caused come first, then the
    /// lowest number.
    pub const fn first(self) -> Option<Signal> {
        let urgent = self.0 & Self::SYNCHRONOUS.0;
        let bits = if urgent != 0 { urgent } else { self.0 };
        if bits == 0 { None } else { Some(Signal(bits.trailing_zeros() as u8 + 1)) }
    }
    /// Returns the members, by number.
    pub fn iter(self) -> impl Iterator<Item = Signal> {
        (1..=64).map(Signal).filter(move |&signal| self.contains(signal))
    }
}

impl fmt::Debug for SigSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// Origins of a signal (si_code of siginfo).
pub mod code {
    /// kill.
    pub const USER: i32 = 0;
    /// The kernel.
    pub const KERNEL: i32 = 0x80;
    /// sigqueue.
    pub const QUEUE: i32 = -1;
    /// A POSIX timer.
    pub const TIMER: i32 = -2;
    /// A message arrived at an empty queue.
    pub const MESGQ: i32 = -3;
    /// tkill, tgkill.
    pub const TKILL: i32 = -6;
    /// An event of a file, sent as a signal whose own codes have another meaning.
    pub const SIGIO: i32 = -5;
    /// SIGCHLD: the child exited.
    pub const CLD_EXITED: i32 = 1;
    /// SIGCHLD: the child was killed.
    pub const CLD_KILLED: i32 = 2;
    /// SIGCHLD: the child was killed and left a core file.
    pub const CLD_DUMPED: i32 = 3;
    /// SIGCHLD: a tracee is in a stop.
    pub const CLD_TRAPPED: i32 = 4;
    /// SIGCHLD: the child stopped.
    pub const CLD_STOPPED: i32 = 5;
    /// SIGCHLD: the child continues.
    pub const CLD_CONTINUED: i32 = 6;
    /// SIGSEGV: nothing is mapped at the address.
    pub const SEGV_MAPERR: i32 = 1;
    /// SIGSEGV: the mapping forbids the access.
    pub const SEGV_ACCERR: i32 = 2;
    /// SIGSEGV: the protection key of the page forbids the access.
    pub const SEGV_PKUERR: i32 = 4;
    /// SIGBUS: misaligned access.
    pub const BUS_ADRALN: i32 = 1;
    /// SIGBUS: the address is beyond the end of the file.
    pub const BUS_ADRERR: i32 = 2;
    /// SIGILL: no such instruction.
    pub const ILL_ILLOPN: i32 = 2;
    /// SIGFPE: integer division by zero.
    pub const FPE_INTDIV: i32 = 1;
    /// SIGFPE: integer overflow.
    pub const FPE_INTOVF: i32 = 2;
    /// SIGFPE: floating-point division by zero.
    pub const FPE_FLTDIV: i32 = 3;
    /// SIGFPE: floating-point overflow.
    pub const FPE_FLTOVF: i32 = 4;
    /// SIGFPE: floating-point underflow, or a denormal operand.
    pub const FPE_FLTUND: i32 = 5;
    /// SIGFPE: inexact floating-point result.
    pub const FPE_FLTRES: i32 = 6;
    /// SIGFPE: invalid floating-point operation.
    pub const FPE_FLTINV: i32 = 7;
    /// SIGSYS: a filter of seccomp(2) refused the call.
    pub const SYS_SECCOMP: i32 = 1;
    /// SIGTRAP: breakpoint.
    pub const TRAP_BRKPT: i32 = 1;
    /// SIGTRAP: single step.
    pub const TRAP_TRACE: i32 = 2;
    /// SIGTRAP: a hardware breakpoint or watchpoint.
    pub const TRAP_HWBKPT: i32 = 4;
}

/// The 48 bytes of siginfo_t that are used (as in Linux' kernel_siginfo); the rest is zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SigInfo {
    /// si_signo.
    pub number: i32,
    /// si_errno.
    pub errno: i32,
    /// si_code.
    pub code: i32,
    /// Padding.
    pub pad: i32,
    /// The union: its members depend on the code.
    pub fields: [u64; 4],
}

const fn pair(low: u32, high: u32) -> u64 {
    low as u64 | (high as u64) << 32
}

impl SigInfo {
    fn new(signal: Signal, code: i32, fields: [u64; 4]) -> Self {
        Self { number: i32::from(signal.number()), errno: 0, code, pad: 0, fields }
    }
    /// Makes the siginfo of a signal from the kernel itself.
    pub fn kernel(signal: Signal) -> Self {
        Self::new(signal, code::KERNEL, [0; 4])
    }
    /// Makes the siginfo of a signal from a process: kill, tkill or sigqueue, given by `code`.
    pub fn user(signal: Signal, code: i32, pid: Pid, uid: u32) -> Self {
        Self::new(signal, code, [pair(pid, uid), 0, 0, 0])
    }
    /// Makes the siginfo of a fault at `address`.
    pub fn fault(signal: Signal, code: i32, address: u64) -> Self {
        Self::new(signal, code, [address, 0, 0, 0])
    }
    /// Makes the siginfo of a fault at `address`, whose protection key denies the access.
    pub fn denied_by_key(address: u64, key: ProtectionKey) -> Self {
        Self::new(Signal::SEGV, code::SEGV_PKUERR, [address, 0, key.number().into(), 0])
    }
    /// Makes the siginfo of SIGSYS for a call that a filter refused: its address, number and
    /// architecture, and the filter's data.
    pub fn refused_call(address: u64, (number, architecture): (u32, u32), data: u32) -> Self {
        let info = Self::new(Signal::SYS, code::SYS_SECCOMP, [address, pair(number, architecture), 0, 0]);
        Self { errno: data as i32, ..info }
    }
    /// Makes the siginfo of SIGCHLD for a child.
    pub fn child(code: i32, pid: Pid, uid: u32, status: i32) -> Self {
        Self::new(Signal::CHLD, code, [pair(pid, uid), pair(status as u32, 0), 0, 0])
    }
    /// Adds the CPU time of a SIGCHLD's child, in user mode and in the kernel.
    #[must_use]
    pub fn with_ticks(mut self, user: u64, system: u64) -> Self {
        (self.fields[2], self.fields[3]) = (user, system);
        self
    }
    /// Replaces the process of a SIGCHLD by the thread `tid`.
    pub fn about(mut self, tid: Pid) -> Self {
        self.fields[0] = self.fields[0] >> 32 << 32 | u64::from(tid);
        self
    }
    /// Whether the siginfo names a process and a user: it comes from a program, or is about a
    /// child.
    pub fn names_user(&self) -> bool {
        let from_program = matches!(self.code, code::USER | code::QUEUE | code::TKILL);
        from_program || (self.number == i32::from(Signal::CHLD.number()) && self.code > 0)
    }
    /// Replaces the user that the siginfo names.
    #[must_use]
    pub fn with_user(mut self, uid: u32) -> Self {
        self.fields[0] = pair(self.fields[0] as u32, uid);
        self
    }
    /// Returns the user that the siginfo names.
    pub fn user_id(&self) -> u32 {
        (self.fields[0] >> 32) as u32
    }
    /// Makes the siginfo of a POSIX timer's expiry.
    pub fn timer(signal: Signal, timer: i32, overrun: i32, value: u64) -> Self {
        Self::new(signal, code::TIMER, [pair(timer as u32, overrun as u32), value, 0, 0])
    }
    /// Whether a timer may have sent it: a POSIX timer, or ITIMER_REAL.
    #[inline]
    pub fn may_be_timer(&self) -> bool {
        self.code == code::TIMER || self.number == i32::from(Signal::ALRM.number())
    }
    /// Returns the ID of the timer in the siginfo of its expiry.
    pub fn timer_id(&self) -> i32 {
        self.fields[0] as i32
    }
    /// Makes the siginfo of an event of the descriptor `fd`, for any signal: a code of SIGIO, and
    /// the events of poll(2).
    pub fn of_file(signal: Signal, code: i32, band: u64, fd: i32) -> Self {
        let is_ambiguous = SigSet::SYNCHRONOUS.with(Signal::CHLD).contains(signal);
        Self::new(signal, if is_ambiguous { code::SIGIO } else { code }, [band, pair(fd as u32, 0), 0, 0])
    }
    /// Returns the events and the descriptor of a signal about a file.
    pub fn file_news(&self) -> Option<(u64, i32)> {
        let has_own_codes =
            self.signal().is_some_and(|own| SigSet::SYNCHRONOUS.with(Signal::CHLD).contains(own));
        let is_news = self.code == code::SIGIO || !has_own_codes && (1..=6).contains(&self.code);
        is_news.then_some((self.fields[0], self.fields[1] as i32))
    }
    /// Returns the signal.
    pub fn signal(&self) -> Option<Signal> {
        Signal::new(i64::from(self.number))
    }
    /// Returns the sender of a signal from a process, or the child of a SIGCHLD.
    pub fn sender(&self) -> Pid {
        self.fields[0] as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_that_an_instruction_caused_come_first() {
        let set = SigSet::of(&[Signal::HUP, Signal::SEGV, Signal::TERM]);
        assert_eq!(set.first(), Some(Signal::SEGV));
        assert_eq!(set.without(Signal::SEGV).first(), Some(Signal::HUP));
        assert_eq!(SigSet::EMPTY.first(), None);
    }

    #[test]
    fn siginfo_has_the_layout_that_programs_read() {
        let info = SigInfo::child(code::CLD_EXITED, 7, 1000, 3).with_ticks(11, 12);
        let bytes = info.as_bytes();
        assert_eq!(bytes.len(), 48);
        let word = |at: usize| i32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(8), word(16), word(20), word(24)), (17, 1, 7, 1000, 3));
        assert_eq!((word(32), word(40)), (11, 12));
        let bytes = SigInfo::fault(Signal::SEGV, code::SEGV_MAPERR, 0x1234);
        assert_eq!(bytes.as_bytes()[16..18], [0x34, 0x12]);
        let denied = SigInfo::denied_by_key(0x1234, ProtectionKey::new(5).unwrap());
        assert_eq!((denied.code, denied.fields[0], denied.as_bytes()[32]), (4, 0x1234, 5));
        let news = SigInfo::of_file(Signal::IO, 1, 0x41, 7);
        assert_eq!((news.code, news.as_bytes()[16], news.as_bytes()[24]), (1, 0x41, 7));
        assert_eq!(news.file_news(), Some((0x41, 7)));
        assert_eq!(SigInfo::of_file(Signal::TRAP, 1, 0x41, 7).code, code::SIGIO);
        assert_eq!(SigInfo::child(code::CLD_EXITED, 7, 1000, 3).file_news(), None);
        let timer = SigInfo::timer(Signal::ALRM, 5, 6, 7);
        assert_eq!((timer.fields[0], timer.fields[1]), (5 | 6 << 32, 7));
    }

    #[test]
    fn there_are_signals_1_to_64() {
        assert_eq!(Signal::new(0), None);
        assert_eq!(Signal::new(65), None);
        assert_eq!(Signal::new(64), Some(Signal::MAX));
        assert_eq!(SigSet::UNSTOPPABLE.iter().collect::<std::vec::Vec<_>>(), [Signal::KILL, Signal::STOP]);
    }
}
