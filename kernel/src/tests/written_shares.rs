//! Folders of the host that programs write to, on a server in the test's memory.

use core::sync::atomic::{AtomicU64, Ordering};
use std::format;
use std::vec::Vec;

use syscalls::Sysno;

use super::machine::on_machine;
use super::program::Program;
use super::server::Lie;
use super::shares::{big, mount, server, with_share};
use super::shortage::count_all_pages;

const CREATE: u64 = 0o101;
const APPEND: u64 = 0o2001;
const READ_WRITE: u64 = 2;
const AT_CWD: u64 = -100i64 as u64;

fn mounted(p: &mut Program) {
    assert_eq!(mount(p, 0), 0);
}

/// Returns the bytes of a file of the server.
fn bytes(path: &str) -> Option<Vec<u8>> {
    server().get(path).map(|(_, bytes)| bytes)
}

fn write(p: &mut Program, file: i64, bytes: &[u8]) -> i64 {
    let from = p.put(bytes);
    p.call(Sysno::write, &[file as u64, from, bytes.len() as u64])
}

/// Makes a call with one or two paths.
fn on(p: &mut Program, call: Sysno, paths: &[&str], more: &[u64]) -> i64 {
    let mut arguments: Vec<u64> = paths.iter().map(|path| p.text(path)).collect();
    arguments.extend(more);
    p.call(call, &arguments)
}

on_machine! {
    /// Files, directories, links and names are created, changed and removed on the server.
    what_a_program_changes_the_server_has, with_share(), |p| {
        mounted(p);
        let file = p.open("/share/new", CREATE | 0o200);
        assert_eq!(write(p, file, b"one"), 3);
        assert_eq!(bytes("new").unwrap(), b"one", "before it is closed");
        p.must(Sysno::close, &[file as u64]);
        assert_eq!(p.open("/share/new", CREATE | 0o200), -17);
        let file = p.open("/share/new", APPEND);
        server().put("new", 0o100_644, b"one of the host's, ");
        assert_eq!(write(p, file, b"two"), 3);
        assert_eq!(bytes("new").unwrap(), b"one of the host's, two");
        assert_eq!(p.read_file("/share/new").unwrap(), b"one of the host's, two");
        assert_eq!(on(p, Sysno::truncate, &["/share/new"], &[3]), 0);
        assert_eq!(on(p, Sysno::chmod, &["/share/new"], &[0o600]), 0);
        assert_eq!(server().get("new").unwrap(), (0o100_600, b"one".to_vec()));
        assert_eq!(on(p, Sysno::mkdir, &["/share/made"], &[0o755]), 0);
        assert_eq!(on(p, Sysno::link, &["/share/new", "/share/made/hard"], &[]), 0);
        assert_eq!(on(p, Sysno::symlink, &["made/hard", "/share/soft"], &[]), 0);
        assert_eq!(p.read_file("/share/soft").unwrap(), b"one");
        assert_eq!(on(p, Sysno::mknod, &["/share/fifo"], &[0o010_644, 0]), 0);
        assert_eq!(server().get("fifo").unwrap().0, 0o010_644);
        assert_eq!(on(p, Sysno::rmdir, &["/share/made"], &[]), -39);
        assert_eq!(on(p, Sysno::rename, &["/share/made", "/share/dir/moved"], &[]), 0);
        assert_eq!(bytes("dir/moved/hard").unwrap(), b"one");
        assert_eq!(on(p, Sysno::chdir, &["/share/dir/moved"], &[]), 0);
        let room = p.room(64);
        let length = p.must(Sysno::getcwd, &[room, 64]) as usize;
        assert_eq!(p.load(room, length), b"/share/dir/moved\0");
        assert_eq!(on(p, Sysno::rename, &["/share/new", "/share/soft"], &[]), 0, "over another name");
        assert_eq!((bytes("new"), bytes("soft").unwrap()), (None, b"one".to_vec()));
        for (to, expected) in [("/share/file", -17), ("/share/free", -22)] {
            let names = [p.text("/share/soft"), p.text(to)];
            let no_replace = p.call(Sysno::renameat2, &[AT_CWD, names[0], AT_CWD, names[1], 1]);
            assert_eq!(no_replace, expected, "as on Linux: the protocol has no flags");
        }
        assert_eq!(on(p, Sysno::unlink, &["/share/soft"], &[]), 0);
        assert_eq!((bytes("soft"), on(p, Sysno::unlink, &["/share/soft"], &[])), (None, -2));
        assert_eq!(on(p, Sysno::link, &["/share/file", "/tmp"], &[]), -17);
        assert_eq!(on(p, Sysno::rename, &["/share/file", "/elsewhere"], &[]), -18);
        0
    }
}

on_machine! {
    /// A read after a write returns the written bytes: through the same file, another one, or a
    /// mapping, also where the file grew.
    a_read_after_a_write_sees_it, with_share(), |p| {
        mounted(p);
        assert!(p.read_file("/share/big").unwrap() == big());
        let (file, other) = (p.open("/share/big", READ_WRITE) as u64, p.open("/share/big", 0) as u64);
        let memory = p.must(Sysno::mmap, &[0, 300 << 10, 1, 1, other, 0]);
        assert_eq!(p.load(memory + 5000, 4), big()[5000..5004]);
        let from = p.put(b"changed");
        assert_eq!(p.must(Sysno::pwrite64, &[file, from, 7, 4093]), 7, "over two pages");
        let room = p.room(64);
        for file in [file, other] {
            assert_eq!(p.must(Sysno::pread64, &[file, room, 9, 4092]), 9);
            assert_eq!(p.load(room + 1, 7), b"changed");
        }
        assert_eq!(p.load(memory + 4093, 7), b"changed");
        // Beyond the end, after a hole that begins in a cached page.
        assert_eq!(p.must(Sysno::pread64, &[other, room, 64, (300 << 10) - 10]), 10);
        let end = (300 << 10) + 5000;
        assert_eq!(p.must(Sysno::pwrite64, &[file, from, 7, end]), 7);
        assert_eq!(p.must(Sysno::pread64, &[other, room, 64, end - 2]), 9);
        assert_eq!(p.load(room, 9), b"\0\0changed");
        let stat = p.room(144);
        p.must(Sysno::fstat, &[other, stat]);
        assert_eq!(p.load_u64(stat + 48), end + 7);
        // A part that was truncated and then extended again contains zeroes.
        p.must(Sysno::ftruncate, &[file, 4096 + 2]);
        p.must(Sysno::ftruncate, &[file, 4096 + 10]);
        assert_eq!(p.must(Sysno::pread64, &[other, room, 64, 4096]), 10);
        assert_eq!(p.load(room, 10), b"ng\0\0\0\0\0\0\0\0");
        assert_eq!(bytes("big").unwrap().len(), 4096 + 10);
        // The host has extended it meanwhile: the rest of the previously last page must not be
        // assumed to be zeroes.
        server().put("big", 0o100_644, &[b'h'; 4096 + 100]);
        assert_eq!(p.must(Sysno::pwrite64, &[file, from, 7, 9000]), 7);
        assert_eq!(p.must(Sysno::pread64, &[other, room, 64, 4096 + 8]), 64);
        assert_eq!(p.load(room, 64), [b'h'; 64]);
        p.must(Sysno::fsync, &[file]);
        0
    }
}

on_machine! {
    /// A mapping that would store is refused, as on Linux without a cache. Others are permitted,
    /// and cannot be made writable.
    a_shared_mapping_cannot_store, with_share(), |p| {
        mounted(p);
        let file = p.open("/share/big", READ_WRITE) as u64;
        assert_eq!(p.call(Sysno::mmap, &[0, 4096, 3, 1, file, 0]), -22);
        let private = p.must(Sysno::mmap, &[0, 4096, 3, 2, file, 0]);
        p.store(private, b"mine");
        let shared = p.must(Sysno::mmap, &[0, 4096, 1, 1, file, 0]);
        assert_eq!(p.load(shared, 4), big()[..4]);
        assert_eq!(p.call(Sysno::mprotect, &[shared, 4096, 3]), -13);
        assert!(bytes("big").unwrap() == big());
        assert_eq!(p.call(Sysno::fallocate, &[file, 0, 0, 4096]), -95);
        0
    }
}

on_machine! {
    /// A file without a name is written and read by a program that has it open.
    a_file_without_a_name_is_written_and_read, with_share(), |p| {
        mounted(p);
        let file = p.open("/share/gone", CREATE | 0o202) as u64;
        assert_eq!(on(p, Sysno::unlink, &["/share/gone"], &[]), 0);
        assert_eq!(write(p, file as i64, b"still here"), 10);
        let room = p.room(64);
        for count in [10, 0] {
            assert_eq!(p.must(Sysno::pread64, &[file, room, 64, 10 - count]), count);
        }
        assert_eq!(p.load(room, 10), b"still here");
        let stat = p.room(144);
        p.must(Sysno::fstat, &[file, stat]);
        assert_eq!((p.load_u64(stat + 16), p.load_u64(stat + 48)), (0, 10), "no name, ten bytes");
        p.must(Sysno::fcntl, &[file, 4, APPEND]);
        assert_eq!(write(p, file as i64, b"!"), 1);
        assert_eq!(p.must(Sysno::pread64, &[file, room, 64, 9]), 2);
        p.must(Sysno::close, &[file]);
        // Wait until the server has no open fid of it.
        for _ in 0..1000 {
            if server().fids().1 == 0 {
                return 0;
            }
            p.must(Sysno::sched_yield, &[]);
        }
        panic!("{:?}", server().fids());
    }
}

on_machine! {
    /// The program gets the error of writes that the server refuses, or accepts only in part.
    what_the_server_refuses_is_told, with_share(), |p| {
        mounted(p);
        let file = p.open("/share/file", 1);
        server().most_written.store(2, Ordering::Relaxed);
        assert_eq!(write(p, file, b"abcdef"), 2);
        server().most_written.store(usize::MAX, Ordering::Relaxed);
        assert_eq!(write(p, file, b"cd"), 2);
        assert_eq!(bytes("file").unwrap(), b"abcdent");
        for lie in [Lie::More, Lie::Empty, Lie::Ones] {
            server().lie(lie);
            assert_eq!(write(p, file, b"x"), -5, "{lie:?}");
        }
        server().lie(Lie::None);
        server().is_read_only.store(true, Ordering::Relaxed);
        assert_eq!(write(p, file, b"x"), -30);
        assert_eq!(p.open("/share/another", CREATE), -30);
        for (call, paths, more) in [
            (Sysno::mkdir, &["/share/x"][..], &[0o755][..]),
            (Sysno::symlink, &["a", "/share/x"], &[]),
            (Sysno::link, &["/share/file", "/share/x"], &[]),
            (Sysno::rename, &["/share/file", "/share/x"], &[]),
            (Sysno::unlink, &["/share/file"], &[]),
            (Sysno::rmdir, &["/share/dir/inner"], &[]),
            (Sysno::truncate, &["/share/file"], &[1]),
            (Sysno::chmod, &["/share/file"], &[0]),
            (Sysno::mknod, &["/share/x"], &[0o010_600, 0]),
        ] {
            assert_eq!(on(p, call, paths, more), -30, "{call}");
        }
        server().is_read_only.store(false, Ordering::Relaxed);
        assert_eq!(write(p, file, b"!"), 1, "and the truth works again");
        0
    }
}

/// Number of bytes that needs more than one message.
const LONG: usize = 100_000;
/// Number of the page whose write is refused in the next child.
static NTH: AtomicU64 = AtomicU64::new(0);

on_machine! {
    /// Whichever page is refused, a call that writes succeeds or reports the error, and succeeds
    /// the next time.
    any_page_may_be_refused_while_it_is_written, with_share(), |p| {
        mounted(p);
        count_all_pages(p);
        let mut failed = 0;
        for nth in 1..40 {
            NTH.store(nth, Ordering::Relaxed);
            server().remove("target");
            let child = p.fork(|p| {
                let file = p.open("/share/target", READ_WRITE | CREATE);
                let bytes = p.map(LONG as u64);
                p.store(bytes, &std::vec![7; LONG]);
                let nth = format!("{}", NTH.load(Ordering::Relaxed));
                p.write_file("/proc/self/fail-nth", nth.as_bytes());
                let wanted = [file as u64, bytes, LONG as u64, 0];
                let done = p.call(Sysno::pwrite64, &wanted) == LONG as i64
                    // The file's pages are in the cache when it is written once more.
                    && p.call(Sysno::pread64, &wanted) == LONG as i64
                    && p.call(Sysno::pwrite64, &wanted) == LONG as i64
                    && on(p, Sysno::symlink, &["target", "/share/target2"], &[]) == 0;
                on(p, Sysno::unlink, &["/share/target2"], &[]);
                i32::from(!done)
            });
            let ok = p.wait_for(child) == 0;
            failed += u32::from(!ok);
            assert!(!ok || bytes("target").unwrap() == [7; LONG], "{nth}");
        }
        assert!(failed > 0, "no call was told of a refused page");
        0
    }
}
