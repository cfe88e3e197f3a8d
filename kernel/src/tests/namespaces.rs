//! Namespaces are made, entered and left on the software machine, so that all this code runs on a
//! host.

use std::format;
use std::string::String;

use syscalls::Sysno;

use super::machine::{Setup, on_machine};
use super::program::Program;

const NEW_TIME: u64 = 0x80;
const NEW_NS: u64 = 0x2_0000;
const NEW_CGROUP: u64 = 0x200_0000;
const NEW_UTS: u64 = 0x400_0000;
const NEW_IPC: u64 = 0x800_0000;
const NEW_USER: u64 = 0x1000_0000;
const NEW_PID: u64 = 0x2000_0000;
const NEW_NET: u64 = 0x4000_0000;
const BIND_ALL: u64 = 0x1000 | 0x4000;
const DETACH: u64 = 2;

fn text(p: &mut Program, path: &str) -> String {
    String::from_utf8(p.read_file(path).unwrap()).unwrap()
}

fn mount(p: &mut Program, source: &str, target: &str, kind: &str, flags: u64) -> i64 {
    let [source, target, kind] = [source, target, kind].map(|text| p.text(text));
    p.call(Sysno::mount, &[source, target, kind, flags, 0])
}

/// User 1000 makes all kinds. It is root in these namespaces and nowhere else.
fn make_all(p: &mut Program) -> i32 {
    p.must(Sysno::setresgid, &[1000, 1000, 1000]);
    p.must(Sysno::setresuid, &[1000, 1000, 1000]);
    p.must(Sysno::prctl, &[4, 1]);
    assert_eq!(p.call(Sysno::unshare, &[NEW_NS]), -1);
    assert_eq!(p.call(Sysno::unshare, &[NEW_PID]), -1);
    p.must(Sysno::unshare, &[NEW_USER]);
    assert_eq!(p.must(Sysno::getuid, &[]), 65_534);
    assert!(p.write_file("/proc/self/uid_map", b"0 1000 1\n") > 0);
    assert!(p.write_file("/proc/self/uid_map", b"0 1000 1\n") < 0);
    assert!(p.write_file("/proc/self/setgroups", b"deny") > 0);
    assert!(p.write_file("/proc/self/gid_map", b"0 1000 1") > 0);
    assert_eq!((p.must(Sysno::getuid, &[]), p.must(Sysno::getgid, &[])), (0, 0));
    assert_eq!(text(p, "/proc/self/uid_map"), "         0       1000          1\n");
    assert_eq!(text(p, "/proc/self/setgroups"), "deny\n");
    let name = p.text("inside");
    assert_eq!(p.call(Sysno::sethostname, &[name, 6]), -1, "the host's name is not its");
    p.must(Sysno::unshare, &[NEW_NS | NEW_UTS | NEW_IPC | NEW_CGROUP | NEW_NET]);
    p.must(Sysno::sethostname, &[name, 6]);
    assert_eq!(text(p, "/proc/sys/kernel/hostname"), "inside\n");
    p.must(Sysno::shmget, &[7, 8192, 0o1600]);
    assert_eq!(text(p, "/proc/sysvipc/shm").lines().count(), 2);
    assert_eq!(text(p, "/proc/self/net/dev").lines().count(), 3, "lo alone");
    assert_eq!(mount(p, "none", "/tmp", "proc", 0), -1);
    assert_eq!(mount(p, "none", "/tmp", "tmpfs", 0), 0);
    let folder = p.text("/tmp/all");
    p.must(Sysno::mkdir, &[folder, 0o700]);
    assert_eq!(mount(p, "/", "/tmp/all", "", BIND_ALL), 0);
    assert!(text(p, "/proc/self/mountinfo").contains(" /tmp/all/tmp "));
    let [tmp, dot] = ["/tmp", "."].map(|text| p.text(text));
    p.must(Sysno::chdir, &[tmp]);
    p.must(Sysno::pivot_root, &[dot, dot]);
    p.must(Sysno::umount2, &[dot, DETACH]);
    assert!(p.open("/all/proc/self/status", 0) >= 0);
    for kind in ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"] {
        let path = format!("/all/proc/self/ns/{kind}");
        let file = p.open(&path, 0);
        assert!(file >= 0, "{path}");
        let entered = p.call(Sysno::setns, &[file as u64, 0]);
        let wanted = match kind {
            "pid" => -1,
            "user" => -22,
            _ => 0,
        };
        assert_eq!(entered, wanted, "{path}");
        let kind_flag = p.call(Sysno::ioctl, &[file as u64, 0xb703]);
        assert!(kind_flag > 0, "{path}");
    }
    0
}

/// Runs in a process that is not the first of its namespace. The first process adopts its orphan.
fn inside(p: &mut Program) -> i32 {
    assert_eq!((p.must(Sysno::getpid, &[]), p.must(Sysno::getppid, &[])), (1, 0));
    let middle = p.fork(|p| {
        assert_eq!((p.must(Sysno::getpid, &[]), p.must(Sysno::getppid, &[])), (2, 1));
        assert_eq!(p.call(Sysno::kill, &[1, 9]), 0);
        let below = p.fork(|p| {
            while p.must(Sysno::getppid, &[]) != 1 {
                p.must(Sysno::sched_yield, &[]);
            }
            7
        });
        assert_eq!(below, 3);
        0
    });
    assert_eq!(p.wait_for(middle), 0);
    assert_eq!(p.wait_for(3), 7 << 8);
    assert_eq!(mount(p, "none", "/tmp", "proc", 0), 0);
    assert!(text(p, "/tmp/self/status").contains("\nPid:\t1\n"));
    assert!(text(p, "/tmp/1/stat").starts_with("1 ("));
    // This process remains, in a namespace below.
    p.must(Sysno::unshare, &[NEW_PID]);
    p.fork_idle();
    5
}

/// Root makes a PID namespace, and all processes in it end with the first.
fn number(p: &mut Program) -> i32 {
    p.must(Sysno::unshare, &[NEW_PID | NEW_NS]);
    let own = p.must(Sysno::getpid, &[]);
    let first = p.fork(inside);
    assert_eq!(p.must(Sysno::getpid, &[]), own);
    assert_eq!(p.wait_for(first), 5 << 8);
    let file = p.open("/proc/self/ns/pid_for_children", 0);
    assert_eq!(p.call(Sysno::ioctl, &[file as u64, 0xb703]), NEW_PID as i64);
    assert!(p.call(Sysno::ioctl, &[file as u64, 0xb702]) >= 0);
    assert_eq!(p.call(Sysno::ioctl, &[file as u64, 0x8004_b706, 1]), -3);
    assert_eq!(p.call(Sysno::fork, &[]), -12);
    0
}

/// Root makes namespaces by clone, and enters those of a child by its pidfd.
fn enter(p: &mut Program) -> i32 {
    let child = p.fork(|p| {
        p.must(Sysno::unshare, &[NEW_UTS | NEW_IPC | NEW_NS | NEW_NET]);
        let name = p.text("child");
        p.must(Sysno::sethostname, &[name, 5]);
        p.call(Sysno::pause, &[]);
        0
    });
    let file = p.must(Sysno::pidfd_open, &[child, 0]);
    while text(p, &format!("/proc/{child}/mounts")).is_empty() {
        p.must(Sysno::sched_yield, &[]);
    }
    for _ in 0..1000 {
        p.must(Sysno::setns, &[file, NEW_UTS | NEW_IPC | NEW_NS | NEW_NET]);
        if text(p, "/proc/sys/kernel/hostname") == "child\n" {
            break;
        }
        p.must(Sysno::sched_yield, &[]);
    }
    assert_eq!(text(p, "/proc/sys/kernel/hostname"), "child\n");
    p.must(Sysno::kill, &[child, 9]);
    assert_eq!(p.wait_for(child), 9);
    assert_eq!(p.call(Sysno::setns, &[file, NEW_UTS]), -3);
    0
}

/// Seconds that a clock shows.
fn seconds(p: &mut Program, clock: u64) -> u64 {
    let time = p.room(16);
    p.must(Sysno::clock_gettime, &[clock, time]);
    p.load_u64(time)
}

/// Root makes a time namespace, and its child and then it itself are inside.
fn shift(p: &mut Program) -> i32 {
    const OFFSETS: &str = "/proc/self/timens_offsets";
    let [outside, other] = ["time", "time_for_children"].map(|name| {
        let file = p.open(&format!("/proc/self/ns/{name}"), 0) as u64;
        p.must(Sysno::unshare, &[NEW_TIME]);
        file
    });
    assert_eq!(p.write_file(OFFSETS, b"monotonic 1000 5\nboottime 3000 7\n"), 33);
    let inside = p.open("/proc/self/ns/time_for_children", 0) as u64;
    assert_eq!(seconds(p, 1), 0);
    let child = p.fork(|p| {
        let shown = [1, 4, 6, 7, 9].map(|clock| seconds(p, clock));
        assert_eq!(shown, [1000, 1000, 1000, 3000, 3000]);
        assert!(text(p, "/proc/uptime").starts_with("3000."));
        let until = p.words(&[1000, 900_000_000]);
        p.must(Sysno::clock_nanosleep, &[1, 1, until, 0]);
        assert!(seconds(p, 7) < 3002, "it slept too long");
        0
    });
    assert_eq!(p.wait_for(child), 0);
    assert_eq!(p.write_file(OFFSETS, b"monotonic 1 0\n"), -13);
    assert_eq!(text(p, OFFSETS), "monotonic        1000         5\nboottime         3000         7\n");
    for (file, shown) in [(inside, 1000), (outside, 0), (other, 0), (inside, 1000)] {
        p.must(Sysno::setns, &[file, NEW_TIME]);
        assert!((shown..shown + 2).contains(&seconds(p, 1)));
    }
    0
}

on_machine! {
    /// Objects made in a namespace are visible there and not outside, and nothing is leaked.
    namespaces_are_made_entered_and_left,
    Setup::default(),
    |p| {
        for part in [make_all, enter, number, shift] {
            let child = p.fork(part);
            assert_eq!(p.wait_for(child), 0);
        }
        let host = text(p, "/proc/sys/kernel/hostname");
        assert!(host != "inside\n" && host != "child\n");
        assert_eq!(text(p, "/proc/sysvipc/shm").lines().count(), 1);
        assert!(!text(p, "/proc/self/mounts").contains("/tmp/all"));
        0
    }
}
