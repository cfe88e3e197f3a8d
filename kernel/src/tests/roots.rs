//! A folder of the host as the root, or as a directory, under a layer that the machine writes.

use core::sync::atomic::{AtomicU64, Ordering};
use std::format;

use syscalls::Sysno;

use super::machine::{Setup, on_machine};
use super::program::Program;
use super::server::{LIES, Lie};
use super::shares::{TREAD, big, names, server, with_share};
use super::shortage::count_all_pages;

/// O_WRONLY, O_APPEND and O_NONBLOCK: a faulty server may report a file as a FIFO.
const APPEND: u64 = 0o6001;

fn over_a_share() -> Setup {
    Setup { below: Some("/"), ..with_share() }
}

fn with_bin_over_a_share() -> Setup {
    Setup { below: Some("/bin"), ..with_share() }
}

/// Appends `bytes` to a file. Returns the error of open(2) or write(2), negative.
fn append(p: &mut Program, path: &str, bytes: &[u8]) -> i64 {
    let file = p.open(path, APPEND);
    if file < 0 {
        return file;
    }
    let buffer = p.put(bytes);
    let done = p.call(Sysno::write, &[file as u64, buffer, bytes.len() as u64]);
    p.must(Sysno::close, &[file as u64]);
    done
}

fn unlink(p: &mut Program, path: &str) -> i64 {
    let path = p.text(path);
    p.call(Sysno::unlink, &[path])
}

on_machine! {
    /// The tree and changes of it are visible, and the server's files are unchanged.
    what_is_written_stays_in_the_machine, over_a_share(), |p| {
        assert_eq!(p.read_file("/dir/inner/deep").unwrap(), b"deep");
        assert!(p.read_file("/bin/0").is_ok(), "what the image brought is there");
        assert_eq!(append(p, "/dir/inner/deep", b"er"), 2);
        assert_eq!(p.read_file("/link").unwrap(), b"deeper");
        assert_eq!(append(p, "/big", b"!"), 1);
        assert!(p.read_file("/big").unwrap() == [big(), b"!".to_vec()].concat());
        assert_eq!((unlink(p, "/file"), unlink(p, "/file")), (0, -2));
        let mut listed = names(p, "/").unwrap();
        listed.sort();
        let expected: [&[u8]; 13] =
            [b".", b"..", b"big", b"bin", b"dev", b"dir", b"etc", b"link", b"mnt", b"nothing", b"proc", b"sys", b"tmp"];
        assert_eq!(listed, expected);
        assert_eq!(server().get("dir/inner/deep").unwrap().1, b"deep");
        assert_eq!(server().get("file").unwrap().1, b"content");
        assert!(server().get("big").unwrap().1 == big());
        0
    }
}

on_machine! {
    /// If a server's listings do not contain the types of files, each file is queried: it may be a
    /// whiteout.
    a_whiteout_is_found_where_kinds_are_not_told, over_a_share(), |p| {
        server().tells_no_kinds.store(true, Ordering::Relaxed);
        server().put("dir/covered", 0o020_000, b"");
        server().put("dir/seen", 0o100_644, b"");
        let mut listed = names(p, "/dir").unwrap();
        listed.sort();
        let expected: [&[u8]; 4] = [b".", b"..", b"inner", b"seen"];
        assert_eq!(listed, expected);
        0
    }
}

on_machine! {
    /// A directory of the image lies over a folder of the host: both are visible, and the rest of
    /// the root is unchanged.
    a_directory_is_over_a_folder, with_bin_over_a_share(), |p| {
        assert_eq!(p.read_file("/bin/dir/inner/deep").unwrap(), b"deep");
        assert!(p.read_file("/bin/0").is_ok(), "what the image brought is there");
        assert_eq!((append(p, "/bin/dir/inner/deep", b"er"), append(p, "/bin/big", b"!")), (2, 1));
        assert_eq!(p.read_file("/bin/dir/inner/deep").unwrap(), b"deeper");
        assert_eq!((p.open("/big", 0), unlink(p, "/bin/file"), unlink(p, "/bin/file")), (-2, 0, -2));
        let mounts = p.read_file("/proc/mounts").unwrap();
        let mounts = std::string::String::from_utf8(mounts).unwrap();
        assert!(mounts.contains("overlay /bin overlay rw,"), "{mounts}");
        assert_eq!(server().get("dir/inner/deep").unwrap().1, b"deep");
        assert_eq!(server().get("file").unwrap().1, b"content");
        0
    }
}

on_machine! {
    /// A mapping for reading uses the tree's own page cache: no page is copied for it.
    a_mapping_copies_nothing, over_a_share(), |p| {
        let file = p.open("/big", 0) as u64;
        let memory = p.must(Sysno::mmap, &[0, big().len() as u64, 1, 2, file, 0]);
        assert_eq!(p.load(memory + 5000, 50), big()[5000..5050]);
        server().held.store(TREAD, Ordering::Relaxed);
        let buffer = p.room(4096);
        assert_eq!(p.must(Sysno::pread64, &[file, buffer, 4096, 4096]), 4096, "read and mapped pages are the same");
        server().let_go();
        assert_eq!(append(p, "/big", b"!"), 1);
        assert_eq!(p.load(memory + 5000, 50), big()[5000..5050]);
        0
    }
}

on_machine! {
    /// A task that copies a file up is killed while the server does not answer. No trace of the
    /// copy is visible.
    who_copies_up_can_be_killed, over_a_share(), |p| {
        server().is_asked.store(false, Ordering::Relaxed);
        server().held.store(TREAD, Ordering::Relaxed);
        let child = p.fork(|p| append(p, "/big", b"!") as i32);
        while !server().is_asked.load(Ordering::Relaxed) {
            p.must(Sysno::sched_yield, &[]);
        }
        p.must(Sysno::kill, &[child, 9]);
        assert_eq!(p.wait_for(child) & 0x7f, 9);
        server().let_go();
        assert!(p.read_file("/big").unwrap() == big());
        assert_eq!(append(p, "/big", b"!"), 1, "others go on");
        assert_eq!(p.read_file("/big").unwrap().len(), big().len() + 1);
        0
    }
}

/// The page of the next child that is refused.
static NTH: AtomicU64 = AtomicU64::new(0);

on_machine! {
    /// Whichever page is refused, a file is copied up and changed, or neither. The next attempt
    /// succeeds.
    any_page_of_a_copy_may_be_refused, over_a_share(), |p| {
        count_all_pages(p);
        let mut failed = 0;
        for nth in 1..40 {
            NTH.store(nth, Ordering::Relaxed);
            let path = format!("/copy{nth}");
            server().put(&path[1..], 0o100_644, &big()[..40_000]);
            let child = p.fork(|p| {
                let nth = NTH.load(Ordering::Relaxed);
                p.write_file("/proc/self/fail-nth", format!("{nth}").as_bytes());
                i32::from(append(p, &format!("/copy{nth}"), b"!") != 1)
            });
            let is_done = p.wait_for(child) == 0;
            failed += u32::from(!is_done);
            assert_eq!(p.read_file(&path).unwrap().len(), 40_000 + usize::from(is_done), "{nth}");
            assert_eq!((append(p, &path, b"?"), unlink(p, &path), p.open(&path, 0)), (1, 0, -2), "{nth}");
        }
        assert!(failed > 0, "no call was told of a refused page");
        0
    }
}

on_machine! {
    /// A server that violates the protocol causes errors or wrong data. Correct answers work again
    /// afterwards.
    a_lying_tree_breaks_nothing, over_a_share(), |p| {
        for (number, lie) in LIES.into_iter().enumerate() {
            let (fresh, room) = (format!("fresh{number}"), p.room(4096));
            server().put(&fresh, 0o100_644, b"fresh");
            server().lie(lie);
            for path in ["/dir/inner/deep", "/big", "/link", "/dir/inner"] {
                let (text, other) = (p.text(path), p.text("/dir/other"));
                let _ = p.read_file(path);
                append(p, path, b"!");
                p.call(Sysno::rename, &[text, other]);
                p.call(Sysno::rename, &[other, text]);
                p.call(Sysno::stat, &[text, room]);
                p.call(Sysno::readlink, &[text, room, 4096]);
            }
            let _ = names(p, "/dir");
            server().lie(Lie::None);
            assert_eq!(p.read_file(&format!("/{fresh}")).unwrap(), b"fresh", "{lie:?}");
            assert_eq!(append(p, &format!("/{fresh}"), b"!"), 1, "{lie:?}");
            assert!(names(p, "/").unwrap().contains(&fresh.into_bytes()), "{lie:?}");
        }
        0
    }
}
