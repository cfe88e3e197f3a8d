//! Disks with ext2, ext3 and ext4 (on either kernel), and with EROFS: a tree that their tools wrote
//! is read back.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::*;

/// Describes a tree: kinds, modes, names, sizes, times, bytes, texts of links. The root's own mode
/// is not mke2fs' to copy.
const DESCRIBE: &str = "export LC_ALL=C
    find . -name lost+found -prune -o ! -type d -exec stat -c '%n %f %h %s %Y' {} + | sort
    find . -name lost+found -prune -o -type d ! -name . -exec stat -c '%n %f %Y' {} + | sort
    find . -name lost+found -prune -o -type f -exec md5sum {} + | sort
    find . -type l | sort | while read -r name; do readlink $name; done";

/// Makes a tree with files of all forms.
fn tree(root: &Path) {
    let write = |name: &str, bytes: &[u8]| fs::write(root.join(name), bytes).expect("a file");
    write("empty", b"");
    write("one", b"1");
    write("large", &all_bytes(5 << 20));
    let sparse = fs::File::create(root.join("sparse")).expect("a file");
    for at in [0, 100 << 10, 7 << 20, 40 << 20] {
        sparse.write_all_at(b"not a hole", at).expect("bytes between holes");
    }
    fs::hard_link(root.join("one"), root.join("again")).expect("a second name");
    fs::create_dir_all(root.join("deep/er/still")).expect("folders");
    fs::create_dir(root.join("many")).expect("a folder");
    for number in 0..3000 {
        write(&format!("many/one-of-many-names-{number}"), format!("{number}").as_bytes());
    }
    for length in [1, 59, 60, 800] {
        symlink("x".repeat(length), root.join(format!("deep/link{length}"))).expect("a link");
    }
    symlink("../../../large", root.join("deep/er/still/up")).expect("a link");
    fs::create_dir(root.join("bin")).expect("a folder");
    fs::copy("/bin/busybox", root.join("bin/busybox")).expect("the host's busybox");
    fs::set_permissions(root.join("bin/busybox"), fs::Permissions::from_mode(0o4755)).expect("a mode");
}

/// Runs a tool that makes a disk. `None` if the host does not have it.
fn made(command: &mut Command, to: PathBuf) -> Option<PathBuf> {
    match command.output() {
        Ok(output) => assert!(output.status.success(), "{command:?}"),
        Err(_) => {
            println!("skipped: the host has no {}", command.get_program().display());
            return None;
        }
    }
    Some(to)
}

/// Makes a disk of `root` with mke2fs.
pub fn disk_of(root: &Path, to: PathBuf, options: &[&str], size: &str) -> Option<PathBuf> {
    let mut command = Command::new("/usr/sbin/mke2fs");
    command.args(["-q", "-F", "-E", "root_owner=0:0", "-d"]).arg(root).args(options).arg(&to).arg(size);
    made(&mut command, to)
}

/// Makes a disk of `root` with mkfs.erofs.
fn erofs_of(root: &Path, to: PathBuf, options: &[&str]) -> Option<PathBuf> {
    let mut command = Command::new("/usr/bin/mkfs.erofs");
    command.args(options).arg(&to).arg(root);
    made(&mut command, to)
}

/// Runs a shell's lines in a VM with these disks.
#[track_caller]
fn with_disks(disks: &[PathBuf], line: &str) -> Outcome {
    let mut command = run_command();
    command.args(["--memory", "256M", "--cpus", "2"]);
    disks.iter().for_each(|disk| _ = command.arg("--disk").arg(disk));
    command.args(["--", "busybox", "sh", "-c", line]);
    finish(command, b"")
}

/// Makes a tree and a disk of it, and says what is described of both, on the host and in a VM.
#[track_caller]
fn reads_back(kind: &str, disk_of: impl FnOnce(&Path, PathBuf) -> Option<PathBuf>) {
    let (folder, work) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    tree(folder.path());
    let Some(disk) = disk_of(folder.path(), work.path().join("disk")) else { return };
    let list = work.path().join("files");
    let here = DESCRIBE.replace("/tmp/files", text(&list));
    let told =
        Command::new("busybox").args(["sh", "-c", &here]).current_dir(&folder).output().expect("busybox");
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let line = format!(
        "mkdir -p /m && mount -t {kind} -o ro /dev/vda /m && cd /m || exit 9
        {DESCRIBE}
        touch new 2>/dev/null || echo read-only; grep -c ' /m {kind} ro' /proc/mounts
        ./bin/busybox echo it runs; cat deep/er/still/up | ./bin/busybox cmp - large && echo equal
        cd /; umount /m && echo done"
    );
    let said = with_disks(&[disk], &line).expect(0).text();
    let expected =
        String::from_utf8_lossy(&told.stdout).into_owned() + "read-only\n1\nit runs\nequal\ndone\n";
    let differs = said.lines().zip(expected.lines()).find(|(said, expected)| said != expected);
    assert_eq!(differs, None, "{kind}");
    assert_eq!(said.lines().count(), expected.lines().count(), "{kind}");
}

#[test]
fn a_disk_with_ext4_reads_as_the_tree_that_it_was_made_of() {
    reads_back("ext4", |root, to| disk_of(root, to, &["-t", "ext4"], "96m"));
}

#[test]
fn so_does_one_without_64_bits_and_checksums_in_blocks_of_a_kib() {
    reads_back("ext4", |root, to| {
        disk_of(root, to, &["-t", "ext4", "-O", "^64bit,^metadata_csum", "-b", "1024"], "96m")
    });
}

#[test]
fn so_does_ext2() {
    reads_back("ext2", |root, to| disk_of(root, to, &["-t", "ext2", "-I", "128"], "96m"));
}

#[test]
fn so_does_ext3() {
    reads_back("ext3", |root, to| disk_of(root, to, &["-t", "ext3", "-b", "2048"], "96m"));
}

#[test]
fn so_does_erofs() {
    // The stock Linux has it in a module, which its image does not have.
    if kernel() != "linux" {
        reads_back("erofs", |root, to| erofs_of(root, to, &[]));
    }
}

#[test]
fn so_does_erofs_in_chunks() {
    if kernel() != "linux" {
        reads_back("erofs", |root, to| erofs_of(root, to, &["--chunksize=65536"]));
    }
}

#[test]
fn erofs_is_read_only_without_being_asked_and_a_compressed_file_is_an_error_that_says_so() {
    if kernel() == "linux" {
        return;
    }
    let (folder, work) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    file_of(&folder, "text", "again and again ".repeat(9000).as_bytes());
    file_of(&folder, "small", b"as it is");
    let Some(disk) = erofs_of(folder.path(), work.path().join("disk"), &["-zlz4"]) else { return };
    let line = "mkdir /m; mount -t erofs /dev/vda /m && cat /m/small; stat -c ' %s' /m/text
        cat /m/text > /dev/null 2>&1 || dmesg | grep -o 'not supported: .*' | tail -n 1; echo > /m/x || echo read-only";
    let said = with_disks(&[disk], line).expect(0).text();
    let expected =
        "as it is 144000\nnot supported: a compressed file; make the image without -z\nread-only\n";
    assert_eq!(said, expected);
}

#[test]
fn a_mount_to_write_is_refused_so_that_mount_tries_again_and_a_mounted_disk_is_nobody_elses() {
    if kernel() == "linux" {
        return;
    }
    let (folder, work) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    fs::write(folder.path().join("file"), "of the disk\n").expect("a file");
    let Some(disk) = disk_of(folder.path(), work.path().join("disk"), &["-t", "ext4"], "16m") else { return };
    let line = "mkdir /m /n; mount -t ext4 /dev/vda /m && cat /m/file
        mount -t ext4 -o ro /dev/vda /n && cat /n/file; umount /n
        mount -t ext2 -o ro /dev/vda /n || echo busy
        mount -o remount,rw /m 2> /dev/null || echo stays
        swapon /dev/vda 2> /dev/null || echo no swap
        echo > /dev/vda || echo not written
        grep ext4 /proc/filesystems; stat -f -c '%t %s' /m
        umount /m && echo > /dev/vda && echo written";
    let outcome = with_disks(&[disk], line).expect(0);
    let expected =
        "of the disk\nof the disk\nbusy\nstays\nno swap\nnot written\n\text4\nef53 4096\nwritten\n";
    // 16 MiB have blocks of a KiB or four, by mke2fs' settings.
    assert_eq!(outcome.text().replace("ef53 1024", "ef53 4096"), expected, "{}", outcome.stderr);
}

#[test]
fn a_disk_with_wrong_bytes_is_an_error_and_a_line_of_the_log() {
    let (folder, work) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    fs::write(folder.path().join("file"), all_bytes(100 << 10)).expect("a file");
    for number in 0..700 {
        file_of(&folder, &format!("file{number}"), format!("{number}").as_bytes());
    }
    let options = ["-t", "ext4", "-b", "1024"];
    let Some(disk) = disk_of(folder.path(), work.path().join("a"), &options, "8m") else { return };
    let plain = disk_of(
        folder.path(),
        work.path().join("b"),
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"],
        "8m",
    );
    let good = fs::read(&disk).expect("the disk");
    let put = |name: &str, bytes: &[u8]| file_of(&work, name, bytes);
    let mut superblock = good.clone();
    superblock[1024 + 120] ^= 1;
    let mut journal = fs::read(plain.expect("the other disk")).expect("the other disk");
    journal[1024 + 96] |= 4;
    let mut disks = vec![put("superblock", &superblock), put("journal", &journal)];
    journal[1024 + 96] &= !4;
    let mut state = 1_u64;
    for number in 0..4 {
        let mut bytes = journal.clone();
        for _ in 0..400 << number {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            bytes[2048 + (state >> 33) as usize % (600 << 10)] = (state >> 25) as u8;
        }
        disks.push(put(&format!("random{number}"), &bytes));
    }
    let line = "mkdir /m; mount -t ext4 -o ro /dev/vda /m 2> /dev/null || echo refused
        mount -t ext4 -o ro,noload /dev/vdb /m && cat /m/file | wc -c && umount /m
        for d in c d e f; do mount -t ext4 -o ro,noload /dev/vd$d /m 2> /dev/null || continue
            find /m 2> /dev/null | head -n 1000 | while read -r f; do timeout 5 head -c 1000000 \"$f\"; done > /dev/null 2>&1
            umount /m; done; echo over; dmesg | grep -ci ext4 | sed 's/^[1-9].*/logged/'";
    let outcome = with_disks(&disks, line);
    assert_eq!(outcome.text(), "refused\n102400\nover\nlogged\n", "{}", outcome.stderr);
    if kernel() != "linux" {
        let line = "mkdir /m; mount -t ext4 -o ro /dev/vda /m 2> /dev/null || dmesg | grep -o 'mount with -o noload'";
        assert_eq!(with_disks(&disks[1..2], line).expect(0).text(), "mount with -o noload\n");
    }
}
