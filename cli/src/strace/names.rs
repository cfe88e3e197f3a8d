//! ValueNames of numbers and bits among a system call's arguments, from Linux' headers
//! (include/uapi and arch/x86/include/uapi).

use freehold_tracepoints::calls::ValueNames;

/// Values and their names.
type NameList = &'static [(u32, &'static str)];

/// ValueNames of a set: those of the number in the bits of `mask`, and those of other bits.
struct NameSet {
    mask: u32,
    numbers: NameList,
    bits: NameList,
    /// The name of 0, where no number has it.
    zero: &'static str,
}

const fn numbers(numbers: NameList) -> NameSet {
    NameSet { mask: u32::MAX, numbers, bits: &[], zero: "0" }
}

const fn bits(bits: NameList) -> NameSet {
    NameSet { mask: 0, numbers: &[], bits, zero: "0" }
}

/// Returns the name of `value` as strace shows it: names with `|` between them, and what has no
/// name in hexadecimal.
pub fn show(names: ValueNames, value: u64) -> String {
    // All of these are C's int or unsigned int.
    let value = value as u32;
    match names {
        ValueNames::Signal => signal(value),
        ValueNames::Futex => futex(value),
        ValueNames::Clone => {
            joined(&set(ValueNames::Clone), value & !0xff, (value & 0xff != 0).then(|| signal(value & 0xff)))
        }
        _ => joined(&set(names), value, None),
    }
}

fn joined(set: &NameSet, value: u32, last: Option<String>) -> String {
    let mut parts: Vec<String> = Vec::new();
    let number = value & set.mask;
    let mut rest = value & !set.mask;
    match set.numbers.iter().find(|(known, _)| set.mask != 0 && *known == number) {
        Some((_, name)) => parts.push((*name).to_owned()),
        None if number != 0 => rest |= number,
        None => {}
    }
    for &(bit, name) in set.bits {
        if rest & bit == bit {
            parts.push(name.to_owned());
            rest &= !bit;
        }
    }
    if rest != 0 {
        parts.push(format!("{rest:#x}"));
    }
    parts.extend(last);
    if parts.is_empty() { set.zero.to_owned() } else { parts.join("|") }
}

/// Returns the name of a signal; that of number 0, which asks whether there is a process, is 0.
pub fn signal(number: u32) -> String {
    const SIGNALS: [&str; 32] = [
        "0",
        "SIGHUP",
        "SIGINT",
        "SIGQUIT",
        "SIGILL",
        "SIGTRAP",
        "SIGABRT",
        "SIGBUS",
        "SIGFPE",
        "SIGKILL",
        "SIGUSR1",
        "SIGSEGV",
        "SIGUSR2",
        "SIGPIPE",
        "SIGALRM",
        "SIGTERM",
        "SIGSTKFLT",
        "SIGCHLD",
        "SIGCONT",
        "SIGSTOP",
        "SIGTSTP",
        "SIGTTIN",
        "SIGTTOU",
        "SIGURG",
        "SIGXCPU",
        "SIGXFSZ",
        "SIGVTALRM",
        "SIGPROF",
        "SIGWINCH",
        "SIGIO",
        "SIGPWR",
        "SIGSYS",
    ];
    match number {
        0..32 => SIGNALS[number as usize].to_owned(),
        32 => "SIGRTMIN".into(),
        33..=64 => format!("SIGRT_{}", number - 32),
        _ => number.to_string(),
    }
}

/// Returns the name of a signal's code.
pub fn signal_code(signal: u32, code: i64) -> String {
    let name = match (signal, code) {
        (_, 0) => "SI_USER",
        (_, 0x80) => "SI_KERNEL",
        (_, -1) => "SI_QUEUE",
        (_, -2) => "SI_TIMER",
        (_, -3) => "SI_MESGQ",
        (_, -4) => "SI_ASYNCIO",
        (_, -5) => "SI_SIGIO",
        (_, -6) => "SI_TKILL",
        (17, 1) => "CLD_EXITED",
        (17, 2) => "CLD_KILLED",
        (17, 3) => "CLD_DUMPED",
        (17, 4) => "CLD_TRAPPED",
        (17, 5) => "CLD_STOPPED",
        (17, 6) => "CLD_CONTINUED",
        (11, 1) => "SEGV_MAPERR",
        (11, 2) => "SEGV_ACCERR",
        (7, 1) => "BUS_ADRALN",
        (7, 2) => "BUS_ADRERR",
        (8, 1) => "FPE_INTDIV",
        (5, 1) => "TRAP_BRKPT",
        (5, 2) => "TRAP_TRACE",
        _ => return code.to_string(),
    };
    name.to_owned()
}

/// An operation on a futex has its flags in its name.
fn futex(value: u32) -> String {
    const OPERATIONS: [&str; 14] = [
        "FUTEX_WAIT",
        "FUTEX_WAKE",
        "FUTEX_FD",
        "FUTEX_REQUEUE",
        "FUTEX_CMP_REQUEUE",
        "FUTEX_WAKE_OP",
        "FUTEX_LOCK_PI",
        "FUTEX_UNLOCK_PI",
        "FUTEX_TRYLOCK_PI",
        "FUTEX_WAIT_BITSET",
        "FUTEX_WAKE_BITSET",
        "FUTEX_WAIT_REQUEUE_PI",
        "FUTEX_CMP_REQUEUE_PI",
        "FUTEX_LOCK_PI2",
    ];
    let Some(name) = OPERATIONS.get((value & 0x7f) as usize) else { return format!("{value:#x}") };
    let private = if value & 0x80 != 0 { "_PRIVATE" } else { "" };
    let rest = value & !0x1ff;
    let clock = if value & 0x100 != 0 { "|FUTEX_CLOCK_REALTIME" } else { "" };
    let rest = if rest != 0 { format!("|{rest:#x}") } else { String::new() };
    format!("{name}{private}{clock}{rest}")
}

fn set(names: ValueNames) -> NameSet {
    match names {
        ValueNames::Access => NameSet { zero: "F_OK", ..bits(&[(4, "R_OK"), (2, "W_OK"), (1, "X_OK")]) },
        ValueNames::Advice => numbers(ADVICE),
        ValueNames::ArchPrctl => numbers(ARCH_PRCTL),
        ValueNames::At => bits(AT),
        ValueNames::AtRemove => bits(&[(0x200, "AT_REMOVEDIR")]),
        ValueNames::Clock => numbers(CLOCK),
        ValueNames::Clone => bits(CLONE),
        ValueNames::Descriptor => {
            bits(&[(0o40000, "O_DIRECT"), (0o4000, "O_NONBLOCK"), (0o2000000, "O_CLOEXEC")])
        }
        ValueNames::EpollOperation => {
            numbers(&[(1, "EPOLL_CTL_ADD"), (2, "EPOLL_CTL_DEL"), (3, "EPOLL_CTL_MOD")])
        }
        ValueNames::Family => numbers(FAMILY),
        ValueNames::Fcntl => numbers(FCNTL),
        ValueNames::Flock => bits(&[(1, "LOCK_SH"), (2, "LOCK_EX"), (4, "LOCK_NB"), (8, "LOCK_UN")]),
        ValueNames::Ioctl => numbers(IOCTL),
        ValueNames::Limit => numbers(LIMIT),
        ValueNames::Map => NameSet { mask: 0xf, numbers: MAP_KIND, bits: MAP, zero: "0" },
        ValueNames::Mask => numbers(&[(0, "SIG_BLOCK"), (1, "SIG_UNBLOCK"), (2, "SIG_SETMASK")]),
        ValueNames::Message => bits(MESSAGE),
        ValueNames::Open => NameSet { mask: 3, numbers: OPEN_MODE, bits: OPEN, zero: "0" },
        ValueNames::Prctl => numbers(PRCTL),
        ValueNames::Protection => NameSet { zero: "PROT_NONE", ..bits(PROTECTION) },
        ValueNames::Remap => bits(&[(1, "MREMAP_MAYMOVE"), (2, "MREMAP_FIXED"), (4, "MREMAP_DONTUNMAP")]),
        ValueNames::Shutdown => numbers(&[(0, "SHUT_RD"), (1, "SHUT_WR"), (2, "SHUT_RDWR")]),
        ValueNames::SocketType => NameSet { mask: 0xf, numbers: SOCKET_TYPE, bits: SOCKET, zero: "0" },
        ValueNames::Sync => bits(&[(1, "MS_ASYNC"), (2, "MS_INVALIDATE"), (4, "MS_SYNC")]),
        ValueNames::Wait => bits(WAIT),
        ValueNames::Whence => numbers(WHENCE),
        // Their names have forms of their own.
        ValueNames::Signal | ValueNames::Futex => bits(&[]),
    }
}

const ADVICE: NameList = &[
    (0, "MADV_NORMAL"),
    (1, "MADV_RANDOM"),
    (2, "MADV_SEQUENTIAL"),
    (3, "MADV_WILLNEED"),
    (4, "MADV_DONTNEED"),
    (8, "MADV_FREE"),
    (9, "MADV_REMOVE"),
    (10, "MADV_DONTFORK"),
    (11, "MADV_DOFORK"),
    (12, "MADV_MERGEABLE"),
    (13, "MADV_UNMERGEABLE"),
    (14, "MADV_HUGEPAGE"),
    (15, "MADV_NOHUGEPAGE"),
    (16, "MADV_DONTDUMP"),
    (17, "MADV_DODUMP"),
    (18, "MADV_WIPEONFORK"),
    (19, "MADV_KEEPONFORK"),
    (20, "MADV_COLD"),
    (21, "MADV_PAGEOUT"),
    (22, "MADV_POPULATE_READ"),
    (23, "MADV_POPULATE_WRITE"),
    (25, "MADV_COLLAPSE"),
];
const ARCH_PRCTL: NameList = &[
    (0x1001, "ARCH_SET_GS"),
    (0x1002, "ARCH_SET_FS"),
    (0x1003, "ARCH_GET_FS"),
    (0x1004, "ARCH_GET_GS"),
    (0x1011, "ARCH_GET_CPUID"),
    (0x1012, "ARCH_SET_CPUID"),
    (0x1021, "ARCH_GET_XCOMP_SUPP"),
    (0x3001, "ARCH_CET_STATUS"),
];
const AT: NameList = &[
    (0x100, "AT_SYMLINK_NOFOLLOW"),
    (0x200, "AT_EACCESS"),
    (0x400, "AT_SYMLINK_FOLLOW"),
    (0x800, "AT_NO_AUTOMOUNT"),
    (0x1000, "AT_EMPTY_PATH"),
    (0x2000, "AT_STATX_FORCE_SYNC"),
    (0x4000, "AT_STATX_DONT_SYNC"),
    (0x8000, "AT_RECURSIVE"),
];
const CLOCK: NameList = &[
    (0, "CLOCK_REALTIME"),
    (1, "CLOCK_MONOTONIC"),
    (2, "CLOCK_PROCESS_CPUTIME_ID"),
    (3, "CLOCK_THREAD_CPUTIME_ID"),
    (4, "CLOCK_MONOTONIC_RAW"),
    (5, "CLOCK_REALTIME_COARSE"),
    (6, "CLOCK_MONOTONIC_COARSE"),
    (7, "CLOCK_BOOTTIME"),
    (8, "CLOCK_REALTIME_ALARM"),
    (9, "CLOCK_BOOTTIME_ALARM"),
    (11, "CLOCK_TAI"),
];
const CLONE: NameList = &[
    (0x80, "CLONE_NEWTIME"),
    (0x100, "CLONE_VM"),
    (0x200, "CLONE_FS"),
    (0x400, "CLONE_FILES"),
    (0x800, "CLONE_SIGHAND"),
    (0x1000, "CLONE_PIDFD"),
    (0x2000, "CLONE_PTRACE"),
    (0x4000, "CLONE_VFORK"),
    (0x8000, "CLONE_PARENT"),
    (0x10000, "CLONE_THREAD"),
    (0x20000, "CLONE_NEWNS"),
    (0x40000, "CLONE_SYSVSEM"),
    (0x80000, "CLONE_SETTLS"),
    (0x100000, "CLONE_PARENT_SETTID"),
    (0x200000, "CLONE_CHILD_CLEARTID"),
    (0x400000, "CLONE_DETACHED"),
    (0x800000, "CLONE_UNTRACED"),
    (0x1000000, "CLONE_CHILD_SETTID"),
    (0x2000000, "CLONE_NEWCGROUP"),
    (0x4000000, "CLONE_NEWUTS"),
    (0x8000000, "CLONE_NEWIPC"),
    (0x10000000, "CLONE_NEWUSER"),
    (0x20000000, "CLONE_NEWPID"),
    (0x40000000, "CLONE_NEWNET"),
    (0x80000000, "CLONE_IO"),
];
const FAMILY: NameList = &[
    (0, "AF_UNSPEC"),
    (1, "AF_UNIX"),
    (2, "AF_INET"),
    (10, "AF_INET6"),
    (16, "AF_NETLINK"),
    (17, "AF_PACKET"),
    (38, "AF_ALG"),
    (40, "AF_VSOCK"),
];
const FCNTL: NameList = &[
    (0, "F_DUPFD"),
    (1, "F_GETFD"),
    (2, "F_SETFD"),
    (3, "F_GETFL"),
    (4, "F_SETFL"),
    (5, "F_GETLK"),
    (6, "F_SETLK"),
    (7, "F_SETLKW"),
    (8, "F_SETOWN"),
    (9, "F_GETOWN"),
    (10, "F_SETSIG"),
    (11, "F_GETSIG"),
    (15, "F_SETOWN_EX"),
    (16, "F_GETOWN_EX"),
    (36, "F_OFD_GETLK"),
    (37, "F_OFD_SETLK"),
    (38, "F_OFD_SETLKW"),
    (1024, "F_SETLEASE"),
    (1025, "F_GETLEASE"),
    (1026, "F_NOTIFY"),
    (1030, "F_DUPFD_CLOEXEC"),
    (1031, "F_SETPIPE_SZ"),
    (1032, "F_GETPIPE_SZ"),
    (1033, "F_ADD_SEALS"),
    (1034, "F_GET_SEALS"),
];
const IOCTL: NameList = &[
    (0x5401, "TCGETS"),
    (0x5402, "TCSETS"),
    (0x5403, "TCSETSW"),
    (0x5404, "TCSETSF"),
    (0x540b, "TCFLSH"),
    (0x540e, "TIOCSCTTY"),
    (0x540f, "TIOCGPGRP"),
    (0x5410, "TIOCSPGRP"),
    (0x5413, "TIOCGWINSZ"),
    (0x5414, "TIOCSWINSZ"),
    (0x541b, "FIONREAD"),
    (0x5421, "FIONBIO"),
    (0x5422, "TIOCNOTTY"),
    (0x5429, "TIOCGSID"),
    (0x5450, "FIONCLEX"),
    (0x5451, "FIOCLEX"),
    (0x5452, "FIOASYNC"),
    (0x8004_5430, "TIOCGPTN"),
    (0x4004_5431, "TIOCSPTLCK"),
    (0x8933, "SIOCGIFINDEX"),
    (0x8912, "SIOCGIFCONF"),
];
const LIMIT: NameList = &[
    (0, "RLIMIT_CPU"),
    (1, "RLIMIT_FSIZE"),
    (2, "RLIMIT_DATA"),
    (3, "RLIMIT_STACK"),
    (4, "RLIMIT_CORE"),
    (5, "RLIMIT_RSS"),
    (6, "RLIMIT_NPROC"),
    (7, "RLIMIT_NOFILE"),
    (8, "RLIMIT_MEMLOCK"),
    (9, "RLIMIT_AS"),
    (10, "RLIMIT_LOCKS"),
    (11, "RLIMIT_SIGPENDING"),
    (12, "RLIMIT_MSGQUEUE"),
    (13, "RLIMIT_NICE"),
    (14, "RLIMIT_RTPRIO"),
    (15, "RLIMIT_RTTIME"),
];
const MAP_KIND: NameList = &[(1, "MAP_SHARED"), (2, "MAP_PRIVATE"), (3, "MAP_SHARED_VALIDATE")];
const MAP: NameList = &[
    (0x10, "MAP_FIXED"),
    (0x20, "MAP_ANONYMOUS"),
    (0x40, "MAP_32BIT"),
    (0x100, "MAP_GROWSDOWN"),
    (0x800, "MAP_DENYWRITE"),
    (0x1000, "MAP_EXECUTABLE"),
    (0x2000, "MAP_LOCKED"),
    (0x4000, "MAP_NORESERVE"),
    (0x8000, "MAP_POPULATE"),
    (0x10000, "MAP_NONBLOCK"),
    (0x20000, "MAP_STACK"),
    (0x40000, "MAP_HUGETLB"),
    (0x80000, "MAP_SYNC"),
    (0x100000, "MAP_FIXED_NOREPLACE"),
];
const MESSAGE: NameList = &[
    (1, "MSG_OOB"),
    (2, "MSG_PEEK"),
    (4, "MSG_DONTROUTE"),
    (8, "MSG_CTRUNC"),
    (0x20, "MSG_TRUNC"),
    (0x40, "MSG_DONTWAIT"),
    (0x80, "MSG_EOR"),
    (0x100, "MSG_WAITALL"),
    (0x2000, "MSG_ERRQUEUE"),
    (0x4000, "MSG_NOSIGNAL"),
    (0x8000, "MSG_MORE"),
    (0x10000, "MSG_WAITFORONE"),
    (0x4000_0000, "MSG_CMSG_CLOEXEC"),
];
const OPEN_MODE: NameList = &[(0, "O_RDONLY"), (1, "O_WRONLY"), (2, "O_RDWR")];
const OPEN: NameList = &[
    (0o100, "O_CREAT"),
    (0o200, "O_EXCL"),
    (0o400, "O_NOCTTY"),
    (0o1000, "O_TRUNC"),
    (0o2000, "O_APPEND"),
    (0o4000, "O_NONBLOCK"),
    (0o4010000, "O_SYNC"),
    (0o10000, "O_DSYNC"),
    (0o20000, "O_ASYNC"),
    (0o40000, "O_DIRECT"),
    (0o100000, "O_LARGEFILE"),
    (0o20200000, "O_TMPFILE"),
    (0o200000, "O_DIRECTORY"),
    (0o400000, "O_NOFOLLOW"),
    (0o1000000, "O_NOATIME"),
    (0o2000000, "O_CLOEXEC"),
    (0o10000000, "O_PATH"),
];
const PRCTL: NameList = &[
    (1, "PR_SET_PDEATHSIG"),
    (2, "PR_GET_PDEATHSIG"),
    (3, "PR_GET_DUMPABLE"),
    (4, "PR_SET_DUMPABLE"),
    (7, "PR_GET_KEEPCAPS"),
    (8, "PR_SET_KEEPCAPS"),
    (15, "PR_SET_NAME"),
    (16, "PR_GET_NAME"),
    (21, "PR_GET_SECCOMP"),
    (22, "PR_SET_SECCOMP"),
    (23, "PR_CAPBSET_READ"),
    (24, "PR_CAPBSET_DROP"),
    (25, "PR_GET_TSC"),
    (26, "PR_SET_TSC"),
    (27, "PR_GET_SECUREBITS"),
    (28, "PR_SET_SECUREBITS"),
    (29, "PR_SET_TIMERSLACK"),
    (30, "PR_GET_TIMERSLACK"),
    (35, "PR_SET_MM"),
    (36, "PR_SET_CHILD_SUBREAPER"),
    (37, "PR_GET_CHILD_SUBREAPER"),
    (38, "PR_SET_NO_NEW_PRIVS"),
    (39, "PR_GET_NO_NEW_PRIVS"),
    (41, "PR_SET_THP_DISABLE"),
    (42, "PR_GET_THP_DISABLE"),
    (47, "PR_CAP_AMBIENT"),
    (67, "PR_SET_MEMORY_MERGE"),
    (68, "PR_GET_MEMORY_MERGE"),
    (0x5356_4d41, "PR_SET_VMA"),
];
const PROTECTION: NameList = &[
    (1, "PROT_READ"),
    (2, "PROT_WRITE"),
    (4, "PROT_EXEC"),
    (0x0100_0000, "PROT_GROWSDOWN"),
    (0x0200_0000, "PROT_GROWSUP"),
];
const SOCKET_TYPE: NameList =
    &[(1, "SOCK_STREAM"), (2, "SOCK_DGRAM"), (3, "SOCK_RAW"), (4, "SOCK_RDM"), (5, "SOCK_SEQPACKET")];
const SOCKET: NameList = &[(0o4000, "SOCK_NONBLOCK"), (0o2000000, "SOCK_CLOEXEC")];
const WAIT: NameList = &[
    (1, "WNOHANG"),
    (2, "WSTOPPED"),
    (4, "WEXITED"),
    (8, "WCONTINUED"),
    (0x100_0000, "WNOWAIT"),
    (0x2000_0000, "__WNOTHREAD"),
    (0x4000_0000, "__WALL"),
    (0x8000_0000, "__WCLONE"),
];
const WHENCE: NameList =
    &[(0, "SEEK_SET"), (1, "SEEK_CUR"), (2, "SEEK_END"), (3, "SEEK_DATA"), (4, "SEEK_HOLE")];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_bits_have_their_names_and_the_rest_is_hexadecimal() {
        for (names, value, shown) in [
            (ValueNames::Open, 0o2000000, "O_RDONLY|O_CLOEXEC"),
            (ValueNames::Open, 0o1101, "O_WRONLY|O_CREAT|O_TRUNC"),
            (ValueNames::Open, 0o4010002, "O_RDWR|O_SYNC"),
            (ValueNames::Open, 3, "0x3"),
            (ValueNames::Map, 0x22, "MAP_PRIVATE|MAP_ANONYMOUS"),
            (ValueNames::Map, 0x20, "MAP_ANONYMOUS"),
            (ValueNames::Protection, 0, "PROT_NONE"),
            (ValueNames::Protection, 3, "PROT_READ|PROT_WRITE"),
            (ValueNames::Access, 0, "F_OK"),
            (ValueNames::Clone, 0x0120_0011, "CLONE_CHILD_CLEARTID|CLONE_CHILD_SETTID|SIGCHLD"),
            (ValueNames::Clone, 0, "0"),
            (ValueNames::Futex, 0x81, "FUTEX_WAKE_PRIVATE"),
            (ValueNames::Futex, 0x189, "FUTEX_WAIT_BITSET_PRIVATE|FUTEX_CLOCK_REALTIME"),
            (ValueNames::SocketType, 0o2000001, "SOCK_STREAM|SOCK_CLOEXEC"),
            (ValueNames::Signal, 9, "SIGKILL"),
            (ValueNames::Signal, 34, "SIGRT_2"),
            (ValueNames::Fcntl, 77, "0x4d"),
            (ValueNames::At, 0x1_0100, "AT_SYMLINK_NOFOLLOW|0x10000"),
            (ValueNames::Whence, u64::MAX, "0xffffffff"),
        ] {
            assert_eq!(show(names, value), shown, "{names:?}");
        }
    }
}
