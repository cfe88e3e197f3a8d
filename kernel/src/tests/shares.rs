//! Folders of the host, on a server in the test's memory.

use core::sync::atomic::{AtomicU64, Ordering};
use std::boxed::Box;
use std::format;
use std::sync::OnceLock;
use std::vec::Vec;

use syscalls::Sysno;

use super::machine::{Setup, on_machine};
use super::program::Program;
use super::server::{LIES, Lie, Server};
use super::shortage::count_all_pages;
use crate::host::Folder;

const PAGE: u64 = 4096;
const BIG: usize = 300 << 10;
pub const TREAD: u32 = 116;
const TWALK: u32 = 110;

pub fn server() -> &'static Server {
    static SERVER: OnceLock<&'static Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        let server = Box::leak(Box::new(Server::new()));
        server.put("file", 0o100_644, b"content");
        server.put("big", 0o100_644, &big());
        server.put("dir", 0o040_755, b"");
        server.put("dir/inner", 0o040_755, b"");
        server.put("dir/inner/deep", 0o100_600, b"deep");
        server.put("link", 0o120_777, b"dir/inner/deep");
        server.put("nothing", 0o100_644, b"");
        server
    })
}

pub fn big() -> Vec<u8> {
    (0..BIG).map(|at| ((at / 256) ^ at) as u8).collect()
}

pub fn with_share() -> Setup {
    fn folders() -> freehold_collections::Vec<Folder> {
        let mut folders = freehold_collections::Vec::new();
        folders.try_push(freehold_collections::reserve::arc(server()) as Folder).unwrap();
        folders
    }
    Setup { folders, ..Setup::default() }
}

pub fn mount(p: &mut Program, flags: u64) -> i64 {
    let (source, kind) = (p.text("memory"), p.text("9p"));
    let target = p.text("/share");
    p.call(Sysno::mkdir, &[target, 0o755]);
    let options = p.text("trans=virtio,version=9p2000.L,msize=131072");
    p.call(Sysno::mount, &[source, target, kind, flags, options])
}

fn mounted(p: &mut Program) {
    assert_eq!(mount(p, 1), 0);
}

/// Returns the names in a directory, from getdents64(2).
pub fn names(p: &mut Program, path: &str) -> Result<Vec<Vec<u8>>, i64> {
    let dir = p.open(path, 0o200_000);
    if dir < 0 {
        return Err(dir);
    }
    let (buffer, mut found) = (p.room(256), Vec::new());
    // A faulty server may list forever, and a program need not read everything.
    for _ in 0..1000 {
        let count = p.call(Sysno::getdents64, &[dir as u64, buffer, 256]);
        if count <= 0 {
            p.must(Sysno::close, &[dir as u64]);
            return if count == 0 { Ok(found) } else { Err(count) };
        }
        let bytes = p.load(buffer, count as usize);
        let mut at = 0;
        while at < bytes.len() {
            let length = usize::from(u16::from_le_bytes([bytes[at + 16], bytes[at + 17]]));
            let name = &bytes[at + 19..at + length];
            found.push(name.split(|&byte| byte == 0).next().unwrap().to_vec());
            at += length;
        }
    }
    p.must(Sysno::close, &[dir as u64]);
    Ok(found)
}

on_machine! {
    /// The files, directories and links are those of the server.
    a_share_is_what_the_server_has, with_share(), |p| {
        mounted(p);
        assert_eq!(p.read_file("/share/file").unwrap(), b"content");
        assert_eq!(p.read_file("/share/nothing").unwrap(), b"");
        assert_eq!(p.read_file("/share/link").unwrap(), b"deep");
        assert_eq!(p.read_file("/share/dir/inner/../inner/deep").unwrap(), b"deep");
        assert!(p.read_file("/share/big").unwrap() == big());
        assert_eq!(p.open("/share/missing", 0), -2);
        assert_eq!(p.open("/share/file/x", 0), -20);
        assert_eq!(p.open("/share/file", 1), -30, "it is read-only");
        let mut listed = names(p, "/share").unwrap();
        listed.sort();
        let expected: [&[u8]; 7] = [b".", b"..", b"big", b"dir", b"file", b"link", b"nothing"];
        assert_eq!(listed, expected);
        let dir = p.text("/share/dir/inner");
        p.must(Sysno::chdir, &[dir]);
        let room = p.room(64);
        p.must(Sysno::getcwd, &[room, 64]);
        assert_eq!(p.load(room, 17), b"/share/dir/inner\0");
        assert_eq!(p.read_file("../../file").unwrap(), b"content");
        0
    }
}

on_machine! {
    /// An open sees the host's changes; pages of unchanged files are kept.
    an_open_sees_what_the_host_changed, with_share(), |p| {
        mounted(p);
        let server = server();
        assert!(p.read_file("/share/big").unwrap() == big());
        // Bytes that are read again are in memory: a Tread is sent only at the end.
        server.held.store(TREAD, Ordering::Relaxed);
        assert!(p.read_file("/share/big").unwrap() == big());
        server.let_go();
        server.put("big", 0o100_644, b"other");
        assert_eq!(p.read_file("/share/big").unwrap(), b"other");
        let file = p.open("/share/big", 0) as u64;
        let buffer = p.room(64);
        assert_eq!(p.must(Sysno::read, &[file, buffer, 64]), 5);
        server.put("big", 0o100_644, b"other and more");
        assert_eq!(p.must(Sysno::read, &[file, buffer, 64]), 9, "a read at the end looks again");
        assert_eq!(p.load(buffer, 9), b" and more");
        server.put("big", 0o100_644, b"x");
        assert_eq!(p.must(Sysno::pread64, &[file, buffer, 64, 0]), 14, "as it was when it was opened");
        assert_eq!(p.read_file("/share/big").unwrap(), b"x");
        assert_eq!(p.must(Sysno::pread64, &[file, buffer, 64, 0]), 1);
        server.remove("file");
        assert_eq!(p.open("/share/file", 0), -2);
        0
    }
}

on_machine! {
    /// A mapping shows the file's bytes. After the host has truncated the file, an access is
    /// SIGBUS, and a read ends at the new end.
    a_mapping_ends_where_the_host_cuts_the_file, with_share(), |p| {
        mounted(p);
        let file = p.open("/share/big", 0) as u64;
        let memory = p.must(Sysno::mmap, &[0, BIG as u64, 1, 1, file, 0]);
        assert_eq!(p.load(memory + 100, 50), big()[100..150]);
        server().put("big", 0o100_644, &big()[..2 * PAGE as usize]);
        // No program has opened it since: an absent page is requested from the server.
        let child = p.fork(|p| {
            let file = p.open("/proc/self/maps", 0);
            assert!(file > 0);
            0
        });
        assert_eq!(p.wait_for(child), 0);
        let far = memory + 200 * 1024;
        p.store(super::elf::ROOM, &far.to_le_bytes());
        let child = p.fork(|p| {
            let far = p.load_u64(super::elf::ROOM);
            p.load(far, 1);
            0
        });
        assert_eq!(p.wait_for(child) & 0x7f, 7, "SIGBUS");
        let buffer = p.room(64);
        assert_eq!(p.must(Sysno::pread64, &[file, buffer, 64, 250 << 10]), 0, "the file ends before");
        // Now that the truncation is known, the cached page is removed, too.
        let near = memory + 3 * PAGE;
        p.store(super::elf::ROOM, &near.to_le_bytes());
        let child = p.fork(|p| {
            let near = p.load_u64(super::elf::ROOM);
            p.load(near, 1);
            0
        });
        assert_eq!(p.wait_for(child) & 0x7f, 7, "SIGBUS");
        assert_eq!(p.load(memory + PAGE, 8), big()[4096..4104]);
        0
    }
}

on_machine! {
    /// O_DIRECT reads the server's present data, at any offset and with any size.
    a_direct_read_asks_the_server, with_share(), |p| {
        mounted(p);
        let file = p.open("/share/big", 0o40_000) as u64;
        let buffer = p.map(128 << 10);
        assert_eq!(p.must(Sysno::pread64, &[file, buffer, 70 << 10, 7]), 70 << 10);
        assert!(p.load(buffer, 70 << 10) == big()[7..7 + (70 << 10)]);
        server().put("big", 0o100_644, b"short");
        assert_eq!(p.must(Sysno::pread64, &[file, buffer, 64, 2]), 3);
        assert_eq!(p.load(buffer, 3), b"ort");
        0
    }
}

on_machine! {
    /// A device is mounted once at a time; mounting anything else is an error. Afterwards the
    /// server has no open fids.
    a_share_is_mounted_once, with_share(), |p| {
        mounted(p);
        assert_eq!(mount(p, 1), -16);
        let (none, kind) = (p.text("none"), p.text("9p"));
        let target = p.text("/share");
        assert_eq!(p.call(Sysno::mount, &[none, target, kind, 0, 0]), -2);
        let (memory, options) = (p.text("memory"), p.text("trans=tcp"));
        assert_eq!(p.call(Sysno::mount, &[memory, target, kind, 0, options]), -22);
        assert!(p.read_file("/share/big").unwrap() == big());
        p.must(Sysno::umount2, &[target, 0]);
        assert_eq!(mount(p, 1), 0, "what was unmounted can be mounted");
        assert_eq!(p.read_file("/share/link").unwrap(), b"deep");
        p.must(Sysno::umount2, &[target, 0]);
        for _ in 0..1000 {
            if server().fids() == (0, 0) {
                return 0;
            }
            p.must(Sysno::sched_yield, &[]);
        }
        let (all, open) = server().fids();
        assert!(open == 0 && all < 64, "{all} fids, {open} of them open");
        0
    }
}

on_machine! {
    /// A task that waits for a server is killed at once, and leaves nothing there.
    who_waits_for_a_server_can_be_killed, with_share(), |p| {
        mounted(p);
        let before = server().fids();
        for kind in [TREAD, TWALK] {
            server().is_asked.store(false, Ordering::Relaxed);
            server().held.store(kind, Ordering::Relaxed);
            let child = p.fork(|p| {
                let _ = p.read_file("/share/big");
                0
            });
            while !server().is_asked.load(Ordering::Relaxed) {
                p.must(Sysno::sched_yield, &[]);
            }
            p.must(Sysno::kill, &[child, 9]);
            assert_eq!(p.wait_for(child) & 0x7f, 9);
            server().let_go();
        }
        assert!(p.read_file("/share/big").unwrap() == big(), "others go on");
        for _ in 0..10_000 {
            p.must(Sysno::sched_yield, &[]);
        }
        let after = server().fids();
        // The file's own fid, and that of its first reader. Fids that were only walked to are
        // clunked over time.
        assert!(after.1 <= before.1 + 1 && after.0 < 64, "{before:?} {after:?}");
        0
    }
}

on_machine! {
    /// Each look-up of a name takes a new number. If the kernel's task is slow to release unneeded
    /// numbers at the server, the programs that look names up release them.
    looks_never_use_up_the_numbers_of_a_server, with_share(), |p| {
        mounted(p);
        server().task_waits.store(true, Ordering::Relaxed);
        let (path, room) = (p.text("/share/file"), p.room(256));
        let failed = (0..70_000).find(|_| p.call(Sysno::stat, &[path, room]) != 0);
        let (all, _) = server().fids();
        server().let_go();
        assert_eq!((failed, all < 2000), (None, true), "{all} fids");
        0
    }
}

on_machine! {
    /// A server that violates the protocol causes errors or wrong data. Correct answers work again
    /// afterwards.
    a_server_that_lies_breaks_nothing, with_share(), |p| {
        mounted(p);
        for lie in LIES {
            server().lie(lie);
            for path in ["/share/file", "/share/big", "/share/link", "/share/dir/inner/deep", "/share/dir/.."] {
                let text = p.text(path);
                let (room, long) = (p.room(4096), format!("{path}/x/x/x/x/x/x/x/x/x/x/x/x/x/x/x/x/x/x"));
                let _ = p.read_file(path);
                let _ = p.read_file(&long);
                p.call(Sysno::stat, &[text, room]);
                p.call(Sysno::readlink, &[text, room, 4096]);
                p.call(Sysno::statfs, &[text, room]);
            }
            let _ = names(p, "/share");
            if lie == Lie::Names {
                assert_eq!(names(p, "/share"), Err(-5));
            }
            if lie == Lie::Short {
                assert_eq!(p.read_file("/share/dir/inner/deep").unwrap(), b"deep");
            }
            server().lie(Lie::None);
            assert_eq!(p.read_file("/share/file").unwrap(), b"content", "{lie:?}");
            assert!(p.read_file("/share/big").unwrap() == big(), "{lie:?}");
        }
        0
    }
}

/// The page of the next child that is refused. A static, because programs are functions of one host
/// process.
static NTH: AtomicU64 = AtomicU64::new(0);

on_machine! {
    /// Whichever page is refused, a call succeeds or reports the error, and succeeds the next time.
    any_page_may_be_refused, with_share(), |p| {
        mounted(p);
        count_all_pages(p);
        let mut failed = 0;
        for nth in 1..40 {
            NTH.store(nth, Ordering::Relaxed);
            server().put("big", 0o100_644, &big());
            let child = p.fork(|p| {
                let nth = format!("{}", NTH.load(Ordering::Relaxed));
                p.write_file("/proc/self/fail-nth", nth.as_bytes());
                let listed = names(p, "/share/dir").is_ok();
                i32::from(!listed || p.read_file("/share/big").is_err())
            });
            failed += u32::from(p.wait_for(child) != 0);
            assert!(p.read_file("/share/big").unwrap() == big(), "{nth}");
            assert_eq!(names(p, "/share/dir").unwrap().len(), 3, "{nth}");
        }
        assert!(failed > 0, "no call was told of a refused page");
        0
    }
}
