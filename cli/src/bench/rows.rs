//! The measured operations: their names, the guest program that measures each, and the goals of our
//! kernel.

use crate::Result;
use crate::failure::Failure;

/// One operation.
#[derive(Debug, PartialEq)]
pub struct BenchRow {
    /// Its name, here and in the guest.
    pub name: &'static str,
    /// The guest program that measures it (guest/bench/PROGRAM.c).
    pub program: &'static str,
    /// The measured operation, in words.
    pub what: &'static str,
    /// Largest allowed cost as a share of the lean Linux' cost.
    pub goal: f64,
    /// The device or event that it waits for.
    pub waits: Waits,
}

/// Kinds of waiting within an operation, besides waiting for other programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// Nothing outside the guest's CPUs: under a clock that counts instructions it repeats.
    Nothing,
    /// A disk, which takes the host's time: a clock that counts instructions jumps ahead while no
    /// CPU runs.
    Disk,
    /// As [`Waits::Disk`], in a machine with an IOMMU (`--dma direct`): our kernel's disks reach
    /// the program's pages in their places. By the host's time the machine is that of the other
    /// rows.
    DiskBehindIommu,
}

const EQUAL: f64 = 1.0;
const HALF: f64 = 0.5;

const fn row(program: &'static str, name: &'static str, goal: f64, what: &'static str) -> BenchRow {
    BenchRow { name, program, what, goal, waits: Waits::Nothing }
}

const fn disk_row(program: &'static str, name: &'static str, goal: f64, what: &'static str) -> BenchRow {
    BenchRow { name, program, what, goal, waits: Waits::Disk }
}

const fn iommu_row(program: &'static str, name: &'static str, goal: f64, what: &'static str) -> BenchRow {
    BenchRow { name, program, what, goal, waits: Waits::DiskBehindIommu }
}

/// All of them, in the order in which they run and are shown.
pub const ROWS: &[BenchRow] = &[
    row("syscalls", "null-call", EQUAL, "getppid"),
    row("syscalls", "sigaction", EQUAL, "install a signal handler"),
    row("syscalls", "signal", EQUAL, "send a signal to oneself, handle it, return"),
    row("syscalls", "futex-wake", EQUAL, "futex wake where nobody waits"),
    row("files", "read-4k", EQUAL, "read 4 KiB of a tmpfs file"),
    row("files", "write-4k", EQUAL, "write 4 KiB of a tmpfs file"),
    row("files", "open-close", EQUAL, "open a tmpfs file and close it"),
    row("files", "open-own", EQUAL, "the same for a file in the working directory"),
    row("processes", "fork-exit", HALF, "fork, exit, wait"),
    row("processes", "fork-exec", HALF, "fork, exec of a small static program, exit, wait"),
    row("processes", "vfork-exec", HALF, "vfork, exec of the same, exit, wait"),
    row("processes", "thread", EQUAL, "create a thread and join it"),
    row("processes", "fork-256m", HALF, "fork, exit, wait with 256 MiB resident, huge pages where it likes"),
    row("processes", "fork-256m-4k", HALF, "the same with 256 MiB resident in pages of 4 KiB"),
    row("memory", "fault-4k", EQUAL, "first store to an anonymous page of 4 KiB"),
    row("memory", "fault-zero", EQUAL, "first load from an anonymous page of 4 KiB"),
    row("memory", "fault-2m", EQUAL, "first stores to all of 2 MiB of anonymous memory, huge page advised"),
    row("memory", "fault-file", EQUAL, "first load from a page of a mapped tmpfs file, pages in order"),
    row("memory", "cow-reuse", HALF, "store to a page that was shared and is so no more"),
    row("memory", "cow-copy", HALF, "store to a page that another process shares"),
    row("memory", "mmap-4k", HALF, "map and unmap 4 KiB, untouched"),
    row("memory", "mmap-1m", HALF, "map and unmap 1 MiB, untouched"),
    row("memory", "mmap-64m", HALF, "map and unmap 64 MiB, untouched"),
    row("memory", "mmap-4m-touched", HALF, "map 4 MiB of a tmpfs file, 26 stores, unmap (as lat_mmap)"),
    row("memory", "unmap-4k", HALF, "unmap 400 resident pages of 4 KiB, a page"),
    row("memory", "mprotect", EQUAL, "change the protection of a resident page"),
    row("memory", "brk", EQUAL, "grow the heap by a page and store there"),
    row("memory", "mremap", EQUAL, "move 16 resident pages to another address"),
    row("pins", "vmsplice", EQUAL, "a page of memory into a pipe by vmsplice, and away unread"),
    disk_row("pins", "direct-read", EQUAL, "read 4 KiB of a disk with O_DIRECT"),
    disk_row("pins", "direct-write", EQUAL, "write 4 KiB to a disk with O_DIRECT"),
    iommu_row(
        "pins",
        "direct-read-1m",
        EQUAL,
        "read 1 MiB of a disk with O_DIRECT, behind an IOMMU (--dma direct)",
    ),
    row("switches", "switch-2", HALF, "switch between 2 processes, without the pipe's read and write"),
    row("switches", "switch-16", HALF, "switch among 16 processes, without the pipe's read and write"),
    row("switches", "pipe", EQUAL, "a byte to another process and back, by pipes"),
    row("switches", "unix", EQUAL, "the same by an AF_UNIX socket pair"),
    row("switches", "futex-round-trip", EQUAL, "wake another thread by futex and be woken by it"),
    row("calls", "clock", EQUAL, "clock_gettime"),
    row("calls", "time", EQUAL, "time"),
    row("calls", "getcpu", EQUAL, "sched_getcpu"),
    row("calls", "getrusage", EQUAL, "getrusage of the process"),
    row("calls", "sigprocmask", EQUAL, "block no signal more"),
    row("calls", "getrandom-4k", EQUAL, "getrandom, 4 KiB"),
    row("calls", "process-vm-64k", EQUAL, "process_vm_readv, 64 KiB"),
    row("calls", "stat", EQUAL, "stat of a tmpfs file by its name"),
    row("calls", "fstat", EQUAL, "fstat of the same, open"),
    row("calls", "lseek", EQUAL, "lseek to the start"),
    row("calls", "access", EQUAL, "access to a tmpfs file by its name"),
    row("calls", "readlink", EQUAL, "readlink on tmpfs"),
    row("calls", "rename", EQUAL, "rename of a tmpfs file"),
    row("calls", "mkdir-rmdir", EQUAL, "mkdir, rmdir on tmpfs"),
    row("calls", "getcwd", EQUAL, "getcwd"),
    row("calls", "dup-close", EQUAL, "dup, close"),
    row("calls", "fcntl", EQUAL, "fcntl F_GETFL"),
    row("calls", "pipe-close", HALF, "make a pipe, close both ends"),
    row("calls", "socketpair-close", HALF, "make an AF_UNIX socket pair, close both ends"),
    row("calls", "eventfd", EQUAL, "write and read an eventfd"),
    row("calls", "writev", EQUAL, "writev of two pieces to /dev/null"),
    row("calls", "poll-16", EQUAL, "poll of 16 pipes, none ready"),
    row("calls", "select-16", EQUAL, "select of the same"),
    row("calls", "epoll-wait", EQUAL, "epoll_wait with one eventfd ready"),
    row("calls", "msync", EQUAL, "msync of an anonymous page, MS_ASYNC"),
    row("calls", "dontneed", EQUAL, "store to a page and MADV_DONTNEED"),
    row("calls", "meminfo", EQUAL, "open, read, close /proc/meminfo"),
    row("calls", "self-status", EQUAL, "the same with /proc/self/status"),
    row("calls", "self-stat", EQUAL, "the same with /proc/self/stat"),
    row("calls", "pread-4k", EQUAL, "pread of 4 KiB of a tmpfs file"),
    row("calls", "pwrite-4k", EQUAL, "pwrite of 4 KiB of a tmpfs file"),
    row("calls", "ioctl", EQUAL, "isatty of a file: TCGETS, ENOTTY"),
    row("calls", "prctl", EQUAL, "prctl PR_SET_NAME"),
    row("calls", "prlimit", EQUAL, "prlimit, reading RLIMIT_NOFILE"),
    row("calls", "robust-list", EQUAL, "set_robust_list"),
    row("calls", "yield", EQUAL, "sched_yield where nobody waits"),
    row("calls", "setpgid", EQUAL, "setpgid to the group that it is in"),
    row("calls", "getpgid", EQUAL, "getpgid of itself"),
    row("calls", "uname", EQUAL, "uname"),
    row("calls", "umask", EQUAL, "umask"),
    row("calls", "getuid", EQUAL, "getuid"),
    row("calls", "kill-0", EQUAL, "kill of itself with no signal"),
    row("calls", "sleep-past", EQUAL, "clock_nanosleep until a time that is past"),
    row("calls", "statx", EQUAL, "statx of a tmpfs file by its name"),
    row("calls", "fallocate", EQUAL, "fallocate of 4 KiB that a tmpfs file has"),
    row("calls", "send-recv", HALF, "send and receive 64 bytes by an AF_UNIX socket pair"),
    row("calls", "send-message", HALF, "the same by sendmsg and recvmsg"),
    row("calls", "tcp-byte", EQUAL, "send and receive a byte over TCP on 127.0.0.1"),
    row("calls", "tcp-64k", EQUAL, "the same with 64 KiB"),
    row("calls", "tcp-connect", EQUAL, "connect and accept over TCP, and close both ends"),
    row("calls", "udp", EQUAL, "send and receive a datagram of 64 bytes over UDP"),
    row("calls", "sendfile", EQUAL, "sendfile of 4 KiB of tmpfs to /dev/null"),
    row("calls", "getaffinity", EQUAL, "sched_getaffinity"),
    row("calls", "fdatasync", EQUAL, "fdatasync of a tmpfs file"),
    row("calls", "setsid", EQUAL, "setsid by the leader of a group: EPERM"),
    row("calls", "vhangup", EQUAL, "vhangup where the session has no terminal"),
    row("calls", "uring-nop", EQUAL, "an io_uring NOP, in batches of 32"),
    row("calls", "uring-readv", EQUAL, "an io_uring READV of 4 KiB of tmpfs"),
    row("crowds", "map-areas@30000", HALF, "map and unmap two pages among 30,000 areas with holes of a page"),
    row("crowds", "smaps@2000", EQUAL, "read /proc/self/smaps with 2,000 areas, per area"),
    row("crowds", "maps@2000", EQUAL, "read /proc/self/maps with 2,000 areas, an area"),
    row("crowds", "mincore@10000", EQUAL, "mincore of 10,000 pages, a page"),
    row("crowds", "mprotect-pages@10000", EQUAL, "change the protection of 10,000 pages, a page"),
    row("crowds", "epoll-mod@10000", EQUAL, "EPOLL_CTL_MOD among 10,000 eventfds"),
    row("crowds", "epoll-del-add@10000", EQUAL, "EPOLL_CTL_DEL and ADD among 10,000 eventfds"),
    row("crowds", "epoll-close@10000", EQUAL, "make, watch and close an eventfd among 10,000"),
    row("crowds", "epoll-ready@10000", EQUAL, "one of 10,000 eventfds is written, found, read"),
    row("crowds", "open-among@100000", EQUAL, "open and close /dev/null with 100,000 descriptors"),
    row("crowds", "lock-among@1000", EQUAL, "set and remove one more of 1,000 locks of a file"),
    row("crowds", "sigtimedwait@3000", EQUAL, "sigtimedwait with 3,000 signals queued"),
    row("crowds", "timer@1000", EQUAL, "make, arm and delete one more of 1,000 timers"),
    row("crowds", "list-proc@2000", EQUAL, "list /proc with 2,000 processes, an entry"),
    row("crowds", "list-files@2000", EQUAL, "list a tmpfs folder of 2,000 files, an entry"),
    row("crowds", "make-file@2000", EQUAL, "create and remove one more of 2,000 files of a folder"),
    row("crowds", "children-end@1000", HALF, "1,000 children end and are waited for, a child"),
    row("crowds", "fork-among@2000", HALF, "fork, exit, wait with 2,000 other children"),
    row("crowds", "vfork-chain@1000", HALF, "a chain of 1,000 vforks, a process"),
    disk_row("crowds", "fsync-clean@10000", EQUAL, "fsync of a disk with 10,000 clean pages cached"),
    disk_row("crowds", "fsync-page@10000", EQUAL, "write 4 KiB and fsync, 10,000 pages of the disk cached"),
];

/// Numbers of things in the rows of a growth row.
pub const COUNTS: [u32; 4] = [1, 100, 1_000, 10_000];

/// The same operation with one, 100, 1,000 and 10,000 things present.
pub type GrowthRows = [BenchRow; COUNTS.len()];

macro_rules! growth {
    ($make:ident, $program:literal, $name:literal, $what:literal) => {
        [
            $make($program, concat!($name, "@1"), EQUAL, $what),
            $make($program, concat!($name, "@100"), EQUAL, $what),
            $make($program, concat!($name, "@1000"), EQUAL, $what),
            $make($program, concat!($name, "@10000"), EQUAL, $what),
        ]
    };
}

/// Rows of `freehold lab growth`: costs that should not depend on how many things there are.
pub const GROWTH: &[GrowthRows] = &[
    growth!(row, "crowds", "map-areas", "map and unmap, by areas"),
    growth!(row, "crowds", "map-limited", "map and unmap within RLIMIT_DATA and RLIMIT_MEMLOCK, by areas"),
    growth!(row, "crowds", "smaps", "read smaps, an area"),
    growth!(row, "crowds", "maps", "read maps, an area"),
    growth!(row, "crowds", "mincore", "mincore, a page"),
    growth!(row, "crowds", "mprotect-pages", "mprotect, a page"),
    growth!(row, "crowds", "epoll-mod", "EPOLL_CTL_MOD, by watched files"),
    growth!(row, "crowds", "epoll-del-add", "EPOLL_CTL_DEL and ADD, by watched files"),
    growth!(row, "crowds", "epoll-close", "watch and close an eventfd, by watched files"),
    growth!(row, "crowds", "epoll-ready", "find the ready one, by watched files"),
    growth!(row, "crowds", "open-among", "open and close, by open descriptors"),
    growth!(row, "crowds", "lock-among", "set and remove a lock, by locks of the file"),
    growth!(row, "crowds", "sigtimedwait", "take a signal, by queued signals"),
    growth!(row, "crowds", "timer", "make, arm and delete a timer, by timers"),
    growth!(row, "crowds", "list-proc", "an entry of /proc, by processes"),
    growth!(row, "crowds", "list-files", "an entry of a folder, by files"),
    growth!(row, "crowds", "make-file", "create and remove a file, by files of the folder"),
    growth!(row, "crowds", "children-end", "the end of a child, by children"),
    growth!(row, "crowds", "fork-among", "fork, exit, wait, by other children"),
    growth!(row, "crowds", "vfork-chain", "vfork in a vfork, by depth"),
    growth!(row, "growth", "uring-event", "an event of one io_uring request, by requests that wait"),
    growth!(row, "growth", "uring-cancel", "cancel an io_uring request, by requests that wait"),
    growth!(row, "growth", "futex-nobody", "FUTEX_WAKE of no waiter, by waits for other words"),
    growth!(row, "growth", "futex-one", "wake one of the waiters for a word, which waits again"),
    growth!(row, "growth", "semop-besides", "semop there and back, by waiters of another semaphore"),
    growth!(row, "growth", "dup-above", "F_DUPFD above a hole, by open descriptors"),
    growth!(row, "growth", "fork-after-high", "fork, exit, wait, after ten times so large a descriptor"),
    growth!(row, "growth", "stat-mounts", "stat in a folder, by mounts in it"),
    growth!(row, "growth", "mount-mounts", "mount and unmount in a folder, by the number of mounts in it"),
    growth!(row, "growth", "shmdt-areas", "shmat and shmdt, by areas above"),
    growth!(row, "growth", "setxattr", "replace an attribute, by attributes of the file"),
    growth!(row, "growth", "name-deleted", "name of an open deleted file, by names in its folder"),
    growth!(row, "growth", "name-renamed", "name of an open renamed file, by names in its folder"),
    growth!(row, "growth", "exit-locks", "exit after F_GETLK, by files that others lock"),
    growth!(row, "growth", "kill-group", "signal a group of two, by other processes"),
    growth!(row, "growth", "fork-limited", "fork, exit, wait of a user with a limit, by others' processes"),
    growth!(row, "growth", "statm", "read /proc/self/statm, by areas"),
    growth!(row, "growth", "cpu-times", "read /proc/stat, by processes"),
    growth!(row, "growth", "group-empty", "read cpu.stat of an empty group, by processes"),
    growth!(row, "growth", "setuid-same", "setresuid to the same user, by threads"),
    growth!(row, "growth", "signal-ignored", "send an ignored signal to itself, by threads"),
    growth!(row, "growth", "wait-stopped", "look at a stopped child, by its threads"),
    growth!(disk_row, "crowds", "fsync-clean", "fsync of a clean disk, by cached pages"),
    growth!(disk_row, "crowds", "fsync-page", "write a page and fsync, by cached pages"),
];

/// Returns the rows of these names; all of [`ROWS`] for none. A name may end with `*`. [`GROWTH`]
/// is found by whole names only.
pub fn select(names: &[String]) -> Result<Vec<&'static BenchRow>> {
    if names.is_empty() {
        return Ok(ROWS.iter().collect());
    }
    let matches = |name: &str, row: &BenchRow| match name.strip_suffix('*') {
        Some(start) => row.name.starts_with(start),
        None => row.name == name,
    };
    let growth = || GROWTH.iter().flatten();
    let known =
        |name: &String| ROWS.iter().any(|row| matches(name, row)) || growth().any(|row| row.name == name);
    if let Some(unknown) = names.iter().find(|name| !known(name)) {
        return Err(Failure::new(format!("no operation is named {unknown}"), suggestion(unknown)));
    }
    let chosen = ROWS.iter().filter(|row| names.iter().any(|name| matches(name, row)));
    let in_both = |row: &&BenchRow| ROWS.iter().any(|other| other.name == row.name);
    let grown = growth().filter(|row| names.iter().any(|name| row.name == name) && !in_both(row));
    Ok(chosen.chain(grown).collect())
}

/// Returns names that the user may have meant.
fn suggestion(name: &str) -> String {
    let name = name.trim_end_matches('*');
    let near = |row: &&BenchRow| {
        strsim::damerau_levenshtein(name, row.name) <= 2
            || (name.len() > 2 && (row.name.contains(name) || row.what.contains(name)))
    };
    let near: Vec<&str> = ROWS.iter().filter(near).map(|row| row.name).collect();
    match near.as_slice() {
        [] => "freehold bench --list names all".into(),
        near => format!("did you mean {}?", near.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(of: &[&str]) -> Result<Vec<&'static str>> {
        let of: Vec<String> = of.iter().map(|name| (*name).to_owned()).collect();
        Ok(select(&of)?.iter().map(|row| row.name).collect())
    }

    #[test]
    fn rows_are_chosen_by_name_or_by_their_beginning_in_the_order_of_the_table() {
        assert_eq!(names(&[]).expect("all").len(), ROWS.len());
        assert_eq!(names(&["pipe", "null-call"]).expect("two"), ["null-call", "pipe"]);
        assert_eq!(names(&["cow*"]).expect("two"), ["cow-reuse", "cow-copy"]);
    }

    #[test]
    fn an_unknown_row_is_refused_with_what_was_perhaps_meant() {
        let error = names(&["nul-call"]).expect_err("unknown").to_string();
        assert!(error.contains("nul-call") && error.contains("did you mean null-call"), "{error}");
        let error = names(&["fork"]).expect_err("unknown").to_string();
        assert!(error.contains("fork-exit") && error.contains("vfork-exec"), "{error}");
        let error = names(&["quxx"]).expect_err("unknown").to_string();
        assert!(error.contains("--list"), "{error}");
    }

    #[test]
    fn no_two_rows_have_one_name() {
        for (at, row) in ROWS.iter().enumerate() {
            assert!(ROWS[..at].iter().all(|other| other.name != row.name), "{} is there twice", row.name);
        }
    }
}
