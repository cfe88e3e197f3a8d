//! Names of numbers and bits among a system call's arguments, from Linux' headers
//! (include/uapi and arch/x86/include/uapi).

use freehold_tracepoints::calls::Names;

/// Values and their names.
type Table = &'static [(u32, &'static str)];

/// Names of a set: those of the number in the bits of `mask`, and those of other bits.
struct NameSet {
    mask: u32,
    numbers: Table,
    bits: Table,
    /// The name of 0, where no number has it.
    zero: &'static str,
}

const fn numbers(numbers: Table) -> NameSet {
    NameSet { mask: u32::MAX, numbers, bits: &[], zero: "0" }
}

const fn bits(bits: Table) -> NameSet {
    NameSet { mask: 0, numbers: &[], bits, zero: "0" }
}

/// Returns the name of `value` as strace shows it: names with `|` between them, and what has no
/// name in hexadecimal.
pub fn show(names: Names, value: u64) -> String {
    // All of these are C's int or unsigned int.
    let value = value as u32;
    match names {
        Names::Signal => signal(value),
        Names::Futex => futex(value),
        Names::Clone => {
            joined(&set(Names::Clone), value & !0xff, (value & 0xff != 0).then(|| signal(value & 0xff)))
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

fn set(names: Names) -> NameSet {
    match names {
        Names::Access => NameSet { zero: "F_OK", ..bits(&[(4, "R_OK"), (2, "W_OK"), (1, "X_OK")]) },
        Names::Advice => numbers(ADVICE),
        Names::ArchPrctl => numbers(ARCH_PRCTL),
        Names::At => bits(AT),
        Names::AtRemove => bits(&[(0x200, "AT_REMOVEDIR")]),
        Names::Clock => numbers(CLOCK),
        Names::Clone => bits(CLONE),
        Names::Descriptor => bits(&[(0o40000, "O_DIRECT"), (0o4000, "O_NONBLOCK"), (0o2000000, "O_CLOEXEC")]),
        Names::EpollOperation => numbers(&[(1, "EPOLL_CTL_ADD"), (2, "EPOLL_CTL_DEL"), (3, "EPOLL_CTL_MOD")]),
        Names::Family => numbers(FAMILY),
        Names::Fcntl => numbers(FCNTL),
        Names::Flock => bits(&[(1, "LOCK_SH"), (2, "LOCK_EX"), (4, "LOCK_NB"), (8, "LOCK_UN")]),
        Names::Ioctl => numbers(IOCTL),
        Names::Limit => numbers(LIMIT),
        Names::Map => NameSet { mask: 0xf, numbers: MAP_KIND, bits: MAP, zero: "0" },
        Names::Mask => numbers(&[(0, "SIG_BLOCK"), (1, "SIG_UNBLOCK"), (2, "SIG_SETMASK")]),
        Names::Message => bits(MESSAGE),
        Names::Open => NameSet { mask: 3, numbers: OPEN_MODE, bits: OPEN, zero: "0" },
        Names::Prctl => numbers(PRCTL),
        Names::Protection => NameSet { zero: "PROT_NONE", ..bits(PROTECTION) },
        Names::Remap => bits(&[(1, "MREMAP_MAYMOVE"), (2, "MREMAP_FIXED"), (4, "MREMAP_DONTUNMAP")]),
        Names::Shutdown => numbers(&[(0, "SHUT_RD"), (1, "SHUT_WR"), (2, "SHUT_RDWR")]),
        Names::SocketType => NameSet { mask: 0xf, numbers: SOCKET_TYPE, bits: SOCKET, zero: "0" },
        Names::Sync => bits(&[(1, "MS_ASYNC"), (2, "MS_INVALIDATE"), (4, "MS_SYNC")]),
        Names::Wait => bits(WAIT),
        Names::Whence => numbers(WHENCE),
        // Their names have forms of their own.
        Names::Signal | Names::Futex => bits(&[]),
    }
}

const ADVICE: Table = &[
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
const ARCH_PRCTL: Table = &[
    (0x1001, "ARCH_SET_GS"),
    (0x1002, "ARCH_SET_FS"),
    (0x1003, "ARCH_GET_FS"),
    (0x1004, "ARCH_GET_GS"),
    (0x1011, "ARCH_GET_CPUID"),
    (0x1012, "ARCH_SET_CPUID"),
    (0x1021, "ARCH_GET_XCOMP_SUPP"),
    (0x3001, "ARCH_CET_STATUS"),
];
const AT: Table = &[
    (0x100, "AT_SYMLINK_NOFOLLOW"),
    (0x200, "AT_EACCESS"),
    (0x400, "AT_SYMLINK_FOLLOW"),
    (0x800, "AT_NO_AUTOMOUNT"),
    (0x1000, "AT_EMPTY_PATH"),
    (0x2000, "AT_STATX_FORCE_SYNC"),
    (0x4000, "AT_STATX_DONT_SYNC"),
    (0x8000, "AT_RECURSIVE"),
];
const CLOCK: Table = &[
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
const CLONE: Table = &[
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
const FAMILY: Table = &[
    (0, "AF_UNSPEC"),
    (1, "AF_UNIX"),
    (2, "AF_INET"),
    (10, "AF_INET6"),
    (16, "AF_NETLINK"),
    (17, "AF_PACKET"),
    (38, "AF_ALG"),
    (40, "AF_VSOCK"),
];
const FCNTL: Table = &[
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
const IOCTL: Table = &[
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
const LIMIT: Table = &[
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
const MAP_KIND: Table = &[(1, "MAP_SHARED"), (2, "MAP_PRIVATE"), (3, "MAP_SHARED_VALIDATE")];
const MAP: Table = &[
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
const MESSAGE: Table = &[
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
const OPEN_MODE: Table = &[(0, "O_RDONLY"), (1, "O_WRONLY"), (2, "O_RDWR")];
const OPEN: Table = &[
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
const PRCTL: Table = &[
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
    (0x5356_4d41, "PR_SET_VMA"),
];
const PROTECTION: Table = &[
    (1, "PROT_READ"),
    (2, "PROT_WRITE"),
    (4, "PROT_EXEC"),
    (0x0100_0000, "PROT_GROWSDOWN"),
    (0x0200_0000, "PROT_GROWSUP"),
];
const SOCKET_TYPE: Table =
    &[(1, "SOCK_STREAM"), (2, "SOCK_DGRAM"), (3, "SOCK_RAW"), (4, "SOCK_RDM"), (5, "SOCK_SEQPACKET")];
const SOCKET: Table = &[(0o4000, "SOCK_NONBLOCK"), (0o2000000, "SOCK_CLOEXEC")];
const WAIT: Table = &[
    (1, "WNOHANG"),
    (2, "WSTOPPED"),
    (4, "WEXITED"),
    (8, "WCONTINUED"),
    (0x100_0000, "WNOWAIT"),
    (0x2000_0000, "__WNOTHREAD"),
    (0x4000_0000, "__WALL"),
    (0x8000_0000, "__WCLONE"),
];
const WHENCE: Table =
    &[(0, "SEEK_SET"), (1, "SEEK_CUR"), (2, "SEEK_END"), (3, "SEEK_DATA"), (4, "SEEK_HOLE")];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_bits_have_their_names_and_the_rest_is_hexadecimal() {
        for (names, value, shown) in [
            (Names::Open, 0o2000000, "O_RDONLY|O_CLOEXEC"),
            (Names::Open, 0o1101, "O_WRONLY|O_CREAT|O_TRUNC"),
            (Names::Open, 0o4010002, "O_RDWR|O_SYNC"),
            (Names::Open, 3, "0x3"),
            (Names::Map, 0x22, "MAP_PRIVATE|MAP_ANONYMOUS"),
            (Names::Map, 0x20, "MAP_ANONYMOUS"),
            (Names::Protection, 0, "PROT_NONE"),
            (Names::Protection, 3, "PROT_READ|PROT_WRITE"),
            (Names::Access, 0, "F_OK"),
            (Names::Clone, 0x0120_0011, "CLONE_CHILD_CLEARTID|CLONE_CHILD_SETTID|SIGCHLD"),
            (Names::Clone, 0, "0"),
            (Names::Futex, 0x81, "FUTEX_WAKE_PRIVATE"),
            (Names::Futex, 0x189, "FUTEX_WAIT_BITSET_PRIVATE|FUTEX_CLOCK_REALTIME"),
            (Names::SocketType, 0o2000001, "SOCK_STREAM|SOCK_CLOEXEC"),
            (Names::Signal, 9, "SIGKILL"),
            (Names::Signal, 34, "SIGRT_2"),
            (Names::Fcntl, 77, "0x4d"),
            (Names::At, 0x1_0100, "AT_SYMLINK_NOFOLLOW|0x10000"),
            (Names::Whence, u64::MAX, "0xffffffff"),
        ] {
            assert_eq!(show(names, value), shown, "{names:?}");
        }
    }
}
