//! Every file of /proc and /sys is read while all kinds of objects exist.

use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

use syscalls::Sysno;

use super::machine::{Setup, disk, on_machine};
use super::program::Program;

/// Returns the names in a directory, and whether each is a directory.
pub fn list(p: &mut Program, path: &str) -> Vec<(String, bool)> {
    let directory = p.open(path, 0o200000);
    let mut found = Vec::new();
    if directory < 0 {
        return found;
    }
    let buffer = p.room(16384);
    loop {
        let read = p.call(Sysno::getdents64, &[directory as u64, buffer, 16384]);
        if read <= 0 {
            break;
        }
        let bytes = p.load(buffer, read as usize);
        let mut at = 0;
        while at < bytes.len() {
            let length = usize::from(u16::from_le_bytes([bytes[at + 16], bytes[at + 17]]));
            let name = bytes[at + 19..at + length].split(|&byte| byte == 0).next().unwrap_or_default();
            let name = String::from_utf8_lossy(name).to_string();
            if name != "." && name != ".." {
                found.push((name, bytes[at + 18] == 4));
            }
            at += length;
        }
    }
    p.must(Sysno::close, &[directory as u64]);
    found
}

/// Reads every file below `path`. Returns how many were not empty.
fn read_below(p: &mut Program, path: &str, depth: usize) -> usize {
    const WAITS: [&str; 4] = ["kmsg", "trace_pipe", "provoke", "pagemap"];
    let mut told = 0;
    for (name, is_directory) in list(p, path) {
        let inner = format!("{path}/{name}");
        if is_directory && name != "fd" {
            if depth > 0 {
                told += read_below(p, &inner, depth - 1);
            }
        } else if !WAITS.contains(&name.as_str()) {
            told += usize::from(p.read_file(&inner).is_ok_and(|bytes| !bytes.is_empty()));
        }
    }
    told
}

on_machine! {
    /// Root can read all of /proc while programs have memory of all kinds, files and locks.
    all_of_proc_can_be_read,
    Setup { nodes: &[16 << 10, 16 << 10], disks: || std::vec![disk(256), disk(1024)], ..Setup::default() },
    |p| {
        let memory = p.map(4 << 20);
        for page in 0..64 {
            p.store(memory + page * 4096, &[1]);
        }
        let file = p.open("/tmp/mapped", 0o102);
        p.must(Sysno::ftruncate, &[file as u64, 1 << 16]);
        let view = p.must(Sysno::mmap, &[0, 1 << 16, 3, 1, file as u64, 0]);
        p.store(view, b"shared");
        let lock = p.words(&[1, 0, 10]);
        p.must(Sysno::fcntl, &[file as u64, 6, lock]);
        p.must(Sysno::shmget, &[7, 8192, 0o1600]);
        p.must(Sysno::semget, &[7, 3, 0o1600]);
        p.must(Sysno::msgget, &[7, 0o1600]);
        let nodes = p.words(&[2]);
        p.must(Sysno::mbind, &[memory, 1 << 20, 2, nodes, 8, 0]);
        let child = p.fork(|p| {
            p.call(Sysno::pause, &[]);
            0
        });
        let told = read_below(p, "/proc", 8);
        assert!(told > 150, "{told} files told something");
        let own = p.read_file("/proc/self/maps").unwrap();
        assert!(String::from_utf8(own).unwrap().contains("/tmp/mapped"));
        let meminfo = String::from_utf8(p.read_file("/proc/meminfo").unwrap()).unwrap();
        assert!(meminfo.contains("MemTotal:         131072 kB"), "{meminfo}");
        p.must(Sysno::kill, &[child, 9]);
        assert_eq!(p.wait_for(child), 9);
        0
    }
}

on_machine! {
    /// Root can read all of /sys, and values written to its files are read back.
    all_of_sys_can_be_read,
    Setup { nodes: &[16 << 10, 16 << 10], disks: || std::vec![disk(256)], ..Setup::default() },
    |p| {
        let root = p.text("/sys/kernel/debug");
        let kind = p.text("debugfs");
        p.call(Sysno::mount, &[kind, root, kind, 0, 0]);
        let told = read_below(p, "/sys", 10);
        assert!(told > 50, "{told} files told something");
        for mode in ["always", "madvise", "never"] {
            assert!(p.write_file("/sys/kernel/mm/transparent_hugepage/enabled", mode.as_bytes()) > 0);
            let now = p.read_file("/sys/kernel/mm/transparent_hugepage/enabled").unwrap();
            assert!(String::from_utf8(now).unwrap().contains(&format!("[{mode}]")), "{mode}");
        }
        assert!(p.write_file("/sys/kernel/mm/transparent_hugepage/enabled", b"nonsense") < 0);
        for (name, _) in list(p, "/sys/devices/system/memory") {
            let online = format!("/sys/devices/system/memory/{name}/online");
            p.write_file(&online, b"0");
            p.write_file(&online, b"1");
        }
        0
    }
}

on_machine! {
    /// Each writable file of /proc and /sys accepts nonsense, numbers and empty writes without
    /// harm, and can be read afterwards.
    what_can_be_written_takes_nonsense, Setup { disks: || std::vec![disk(256)], ..Setup::default() },
    |p| {
        for root in ["/proc/sys", "/sys/kernel", "/sys/devices", "/sys/block"] {
            write_below(p, root, 8);
        }
        let own = list(p, "/proc/self");
        for (name, is_directory) in own {
            if !is_directory && name != "mem" && name != "fail-nth" {
                write_to(p, &format!("/proc/self/{name}"));
            }
        }
        let memory = p.map(4096);
        p.store(memory, &[1]);
        0
    }
}

fn write_to(p: &mut Program, path: &str) {
    // A read of trace_pipe waits for records.
    if path.contains("fail") || path.ends_with("probability") || path.ends_with("trace_pipe") {
        return;
    }
    let before = p.read_file(path);
    for content in [&b"nonsense"[..], b"-1", b"18446744073709551616", b"0", b"1", b"", b"\n"] {
        p.write_file(path, content);
    }
    // An accepted setting may prevent the test from continuing: vm.max_map_count of 0.
    if let Ok(before) = before
        && path.starts_with("/proc/sys/")
    {
        p.write_file(path, &before);
    }
    p.read_file(path).ok();
}

fn write_below(p: &mut Program, path: &str, depth: usize) {
    for (name, is_directory) in list(p, path) {
        let inner = format!("{path}/{name}");
        if !is_directory {
            write_to(p, &inner);
        } else if depth > 0 {
            write_below(p, &inner, depth - 1);
        }
    }
}

on_machine! {
    /// The kernel's log, by all actions of syslog(2), also into memory that is not present yet.
    the_log, Setup::default(), |p| {
        const LENGTH: u64 = 16 << 10;
        p.write_file("/dev/kmsg", b"<4>a line of the test\n");
        for action in [10, 9, 3, 4, 3, 2, 5, 9, 6, 7, 8] {
            // Action 8 has a log level as its argument.
            let length = if action == 8 { 7 } else { LENGTH };
            let fresh = p.map(LENGTH);
            p.must(Sysno::syslog, &[action, fresh, length]);
        }
        let fresh = p.map(LENGTH);
        assert_eq!(p.must(Sysno::syslog, &[3, fresh, LENGTH]), 0, "all is cleared");
        0
    }
}
