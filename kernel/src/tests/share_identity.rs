//! Folders of the host in which files and directories are exchanged, and numbers are reused.

use core::sync::atomic::Ordering;
use std::vec::Vec;

use syscalls::Sysno;

use super::machine::on_machine;
use super::program::Program;
use super::shares::{mount, server, with_share};

const ENOENT: i64 = -2;
const ELOOP: i64 = -40;
const ESTALE: i64 = -116;
const AT_FDCWD: u64 = -100_i64 as u64;

fn stat(p: &mut Program, path: &str) -> i64 {
    let (path, room) = (p.text(path), p.room(256));
    p.call(Sysno::stat, &[path, room])
}

fn cwd(p: &mut Program) -> Result<Vec<u8>, i64> {
    let room = p.room(256);
    let length = p.call(Sysno::getcwd, &[room, 256]);
    if length < 0 { Err(length) } else { Ok(p.load(room, length as usize - 1)) }
}

fn open_at(p: &mut Program, dir: u64, name: &str) -> i64 {
    let name = p.text(name);
    p.call(Sysno::openat, &[dir, name, 0])
}

/// A working directory, an open directory and a bind mount keep referring to a directory that the
/// host removed, even though another directory gets its number.
fn stays_with_the_old_one(p: &mut Program) {
    assert_eq!(mount(p, 0), 0);
    let server = server();
    server.put("held", 0o040_755, b"");
    server.put("held/own", 0o100_644, b"own");
    server.put("fresh", 0o040_755, b"");
    server.put("fresh/secret", 0o100_644, b"secret");
    let (held, place) = (p.text("/share/held"), p.text("/bound"));
    p.must(Sysno::mkdir, &[place, 0o755]);
    p.must(Sysno::mount, &[held, place, 0, 4096, 0]);
    p.must(Sysno::chdir, &[held]);
    let open = p.open("/share/held", 0o200_000) as u64;
    assert!(open_at(p, AT_FDCWD, "own") > 0 && open_at(p, open, "own") > 0);
    server.bequeath("held", "fresh");
    assert_eq!(p.read_file("/share/fresh/secret").unwrap(), b"secret");
    assert_eq!(open_at(p, AT_FDCWD, "secret"), ESTALE);
    assert_eq!(open_at(p, open, "secret"), ESTALE);
    assert_eq!(p.open("/bound/secret", 0), ESTALE);
    assert_eq!(cwd(p), Err(ENOENT), "its name is gone");
    assert_eq!(p.read_file("/share/fresh/secret").unwrap(), b"secret", "the new one is as any other");
    let fresh = p.text("/share/fresh");
    p.must(Sysno::chdir, &[fresh]);
    assert!(open_at(p, AT_FDCWD, "secret") > 0);
    assert_eq!(cwd(p).unwrap(), b"/share/fresh");
}

on_machine! {
    a_number_that_is_used_again_is_another_directory, with_share(), |p| {
        stays_with_the_old_one(p);
        0
    }
}

on_machine! {
    a_generation_tells_directories_of_one_number_apart, with_share(), |p| {
        server().has_generations.store(true, Ordering::Relaxed);
        stays_with_the_old_one(p);
        0
    }
}

on_machine! {
    /// This holds even if the new directory has the old one's name; no request uses that name then.
    a_generation_tells_files_of_one_name_apart, with_share(), |p| {
        server().has_generations.store(true, Ordering::Relaxed);
        assert_eq!(mount(p, 0), 0);
        let server = server();
        server.put("held", 0o040_755, b"");
        server.put("fresh", 0o040_755, b"");
        server.put("fresh/secret", 0o100_644, b"secret");
        let held = p.text("/share/held");
        p.must(Sysno::chdir, &[held]);
        server.bequeath("held", "fresh");
        server.rename("fresh", "held");
        assert_eq!(p.read_file("/share/held/secret").unwrap(), b"secret");
        assert_eq!(open_at(p, AT_FDCWD, "secret"), ESTALE);
        0
    }
}

on_machine! {
    /// An open file remains the opened one. The next file with its number has separate bytes.
    an_open_file_stays_when_its_number_is_used_again, with_share(), |p| {
        assert_eq!(mount(p, 0), 0);
        let server = server();
        server.put("held", 0o100_644, b"old");
        server.put("fresh", 0o100_644, b"new, and longer");
        let (file, buffer) = (p.open("/share/held", 0) as u64, p.room(64));
        server.bequeath("held", "fresh");
        assert_eq!(p.read_file("/share/fresh").unwrap(), b"new, and longer");
        assert_eq!(p.must(Sysno::read, &[file, buffer, 64]), 3);
        assert_eq!(p.load(buffer, 3), b"old");
        assert_eq!(p.must(Sysno::read, &[file, buffer, 64]), 0, "it ends where it ended");
        0
    }
}

on_machine! {
    /// A file keeps its node under another name. If the host renames it, the generation identifies
    /// it. If a program renames it, or removes one of its names, no generation is needed.
    a_file_is_the_same_under_another_name, with_share(), |p| {
        assert_eq!(mount(p, 0), 0);
        let server = server();
        let (a, b, c) = (p.text("/share/a"), p.text("/share/b"), p.text("/share/c"));
        p.write_file("/share/a", b"bytes");
        p.must(Sysno::rename, &[a, b]);
        p.must(Sysno::link, &[b, c]);
        p.must(Sysno::unlink, &[b]);
        assert_eq!(p.read_file("/share/c").unwrap(), b"bytes");
        server.has_generations.store(true, Ordering::Relaxed);
        server.put("d", 0o040_755, b"");
        server.put("d/inner", 0o100_644, b"inner");
        let d = p.text("/share/d");
        p.must(Sysno::chdir, &[d]);
        server.rename("d", "e");
        assert_eq!(stat(p, "/share/e"), 0);
        assert_eq!(cwd(p).unwrap(), b"/share/e", "the place follows");
        assert!(open_at(p, AT_FDCWD, "inner") > 0);
        0
    }
}

on_machine! {
    /// Directories that the host moves while the guest caches their positions form no cycle: that
    /// is detected as ELOOP, and each walk to the root ends.
    moved_directories_form_no_circle, with_share(), |p| {
        assert_eq!(mount(p, 0), 0);
        let server = server();
        server.put("up", 0o040_755, b"");
        server.put("up/down", 0o040_755, b"");
        let down = p.text("/share/up/down");
        p.must(Sysno::chdir, &[down]);
        server.rename("up/down", "down");
        server.rename("up", "down/up");
        assert_eq!(stat(p, "up"), ELOOP, "it is remembered above");
        assert_eq!(cwd(p).unwrap(), b"/share/up/down");
        assert_eq!(stat(p, "../../dir"), 0, "the way up ends at the share's root");
        assert_eq!(stat(p, "/share/down"), 0);
        assert_eq!(stat(p, "up"), 0);
        assert_eq!(cwd(p).unwrap(), b"/share/down");
        0
    }
}

on_machine! {
    /// A path that exceeds the limit is an error, however deep a directory is.
    a_path_that_is_too_long_is_an_error, with_share(), |p| {
        let name = std::string::String::from_utf8(std::vec![b'n'; 250]).unwrap();
        let step = p.text(&name);
        for _ in 0..20 {
            p.must(Sysno::mkdir, &[step, 0o755]);
            p.must(Sysno::chdir, &[step]);
        }
        let room = p.map(8192);
        assert_eq!(p.call(Sysno::getcwd, &[room, 8192]), -36);
        let link = p.text("/proc/self/cwd");
        assert_eq!(p.call(Sysno::readlink, &[link, room, 8192]), -36);
        for _ in 0..5 {
            let up = p.text("..");
            p.must(Sysno::chdir, &[up]);
        }
        assert_eq!(p.must(Sysno::getcwd, &[room, 8192]), 15 * 251 + 1);
        0
    }
}
