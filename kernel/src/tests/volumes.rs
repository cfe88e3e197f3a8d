//! Disks with ext4 and EROFS, which mke2fs and mkfs.erofs made. Without these on the host there is
//! nothing to test.

use std::format;
use std::path::Path;
use std::process::{Command, Stdio};
use std::vec;
use std::vec::Vec;

use syscalls::Sysno;

use super::disk::MemoryDisk;
use super::machine::{Setup, disk, on_machine};
use super::program::Program;
use super::shares::{big, names};

const PAGES: usize = 1024;

/// Makes a disk with ext4.
fn disks() -> Vec<&'static MemoryDisk> {
    disk_by("ext4", |tree, image| {
        let mut command = Command::new("/usr/sbin/mke2fs");
        command.args(["-q", "-F", "-t", "ext4", "-b", "1024", "-m", "0", "-d"]).args([tree, image]).arg("4m");
        command
    })
}

/// Makes a disk with EROFS.
fn erofs_disks() -> Vec<&'static MemoryDisk> {
    disk_by("erofs", |tree, image| {
        let mut command = Command::new("/usr/bin/mkfs.erofs");
        command.args([image, tree]).stdout(Stdio::null());
        command
    })
}

/// Makes a disk by a tool; it stays empty if the host does not have the tool.
fn disk_by(kind: &str, tool: impl FnOnce(&Path, &Path) -> Command) -> Vec<&'static MemoryDisk> {
    let base = std::env::temp_dir().join(format!("{kind}-{}", std::process::id()));
    let (tree, image) = (base.join("tree"), base.join("image"));
    std::fs::create_dir_all(tree.join("dir/inner")).unwrap();
    std::fs::write(tree.join("big"), big()).unwrap();
    std::fs::write(tree.join("dir/inner/deep"), "deep").unwrap();
    std::os::unix::fs::symlink("dir/inner/deep", tree.join("link")).unwrap();
    let made = tool(&tree, &image).status().is_ok_and(|status| status.success());
    let disk = disk(PAGES);
    if made {
        let image = std::fs::read(&image).unwrap();
        disk.with(|bytes| bytes[..image.len()].copy_from_slice(&image));
    }
    std::fs::remove_dir_all(base).unwrap();
    vec![disk]
}

fn mount(p: &mut Program, source: &str, flags: u64) -> i64 {
    mount_as(p, "ext4", source, flags)
}

fn mount_as(p: &mut Program, kind: &str, source: &str, flags: u64) -> i64 {
    let (source, target, kind) = (p.text(source), p.text("/disk"), p.text(kind));
    p.call(Sysno::mkdir, &[target, 0o755]);
    p.call(Sysno::mount, &[source, target, kind, flags, 0])
}

fn with_disk() -> Setup {
    Setup { disks, audit: Some("ok"), ..Setup::default() }
}

on_machine! {
    /// Files, directories and links are those of the disk, and nothing can be changed.
    a_mounted_disk_is_what_its_maker_wrote, with_disk(), |p| {
        assert_eq!(mount(p, "/dev/null", 1), -15, "ENOTBLK");
        assert_eq!(mount(p, "/dev/vda", 0), -30, "EROFS");
        if mount(p, "/dev/vda", 1) != 0 {
            return i32::from(Path::new("/usr/sbin/mke2fs").exists());
        }
        assert!(p.read_file("/disk/big").unwrap() == big());
        assert_eq!(p.read_file("/disk/link").unwrap(), b"deep");
        assert_eq!(p.read_file("/disk/dir/inner/../inner/deep").unwrap(), b"deep");
        assert_eq!(p.open("/disk/missing", 0), -2);
        assert_eq!(p.open("/disk/big/x", 0), -20);
        assert_eq!(p.open("/disk/big", 1), -30, "it is read-only");
        assert_eq!(p.open("/dev/vda", 0o200), -16, "O_EXCL");
        let mut listed = names(p, "/disk").unwrap();
        listed.sort();
        let expected: [&[u8]; 6] = [b".", b"..", b"big", b"dir", b"link", b"lost+found"];
        assert_eq!(listed, expected);
        let dir = p.text("/disk/dir/inner");
        p.must(Sysno::chdir, &[dir]);
        let room = p.room(64);
        p.must(Sysno::getcwd, &[room, 64]);
        assert_eq!(p.load(room, 16), b"/disk/dir/inner\0");
        assert_eq!(p.read_file("../../link").unwrap(), b"deep");
        let file = p.open("/disk/big", 0) as u64;
        let mapped = p.must(Sysno::mmap, &[0, 4096, 1, 1, file, 4096]);
        assert!(p.load(mapped, 4096) == big()[4096..8192]);
        p.must(Sysno::munmap, &[mapped, 4096]);
        p.must(Sysno::close, &[file]);
        let (root, target) = (p.text("/"), p.text("/disk"));
        assert_eq!(p.call(Sysno::umount2, &[target, 0]), -16, "a working directory is in it");
        p.must(Sysno::chdir, &[root]);
        p.must(Sysno::umount2, &[target, 0]);
        let other = p.open("/dev/vda", 0o200 | 2);
        assert!(other >= 0, "the disk is free again");
        0
    }
}

on_machine! {
    /// Bytes beside inodes, in blocks and of links are those of the disk.
    so_is_a_disk_with_erofs, Setup { disks: erofs_disks, audit: Some("ok"), ..Setup::default() }, |p| {
        if mount_as(p, "erofs", "/dev/vda", 0) != 0 {
            return i32::from(Path::new("/usr/bin/mkfs.erofs").exists());
        }
        assert!(p.read_file("/disk/big").unwrap() == big());
        assert_eq!(p.read_file("/disk/link").unwrap(), b"deep");
        let listed = names(p, "/disk").unwrap();
        let expected: [&[u8]; 5] = [b".", b"..", b"big", b"dir", b"link"];
        assert_eq!(listed, expected, "in order");
        assert_eq!(p.open("/disk/big", 1), -30, "it is read-only");
        let file = p.open("/disk/dir/inner/deep", 0) as u64;
        let mapped = p.must(Sysno::mmap, &[0, 4096, 1, 1, file, 0]);
        assert!(p.load(mapped, 8) == b"deep\0\0\0\0", "the rest of the page is cleared");
        p.must(Sysno::munmap, &[mapped, 4096]);
        p.must(Sysno::close, &[file]);
        assert_eq!(mount(p, "/dev/vda", 1), -16, "it is mounted as something else");
        0
    }
}

on_machine! {
    /// Wrong bytes are errors for the program, and the machine goes on.
    wrong_bytes_of_a_disk_are_errors, with_disk(), |p| {
        if mount(p, "/dev/vda", 1) != 0 {
            return i32::from(Path::new("/usr/sbin/mke2fs").exists());
        }
        let target = p.text("/disk");
        p.must(Sysno::umount2, &[target, 0]);
        let file = p.open("/dev/vda", 2) as u64;
        // Superblock, group descriptors, and the beginning of the bitmaps and inodes.
        for (at, errno) in [(1024 + 120, -117), (2048 + 8, -117), (1024 + 56, -22)] {
            let room = p.room(8);
            p.must(Sysno::pread64, &[file, room, 1, at]);
            let right = p.load(room, 1)[0];
            p.store(room, &[!right]);
            p.must(Sysno::pwrite64, &[file, room, 1, at]);
            assert_eq!(mount(p, "/dev/vda", 1), errno);
            p.store(room, &[right]);
            p.must(Sysno::pwrite64, &[file, room, 1, at]);
        }
        assert_eq!(mount(p, "/dev/vda", 1), 0);
        assert_eq!(p.read_file("/disk/link").unwrap(), b"deep");
        0
    }
}
