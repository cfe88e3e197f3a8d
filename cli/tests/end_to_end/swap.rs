//! Swap: areas, what is lost with a failing disk, more memory than there is, and what --swap makes of it.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::common::*;

/// Runs a program of guest/conformance, which `words` begin with, and checks every promise; a stock Linux may break those that `lost_by_linux` names.
#[track_caller]
fn promises(mut command: Command, options: &[&str], words: &[&str], lost_by_linux: &[&str]) {
    let program = guest_program(&format!("conformance/{}", words[0]));
    command.args(options).arg("--").arg(&program).args(&words[1..]);
    let outcome = finish(command, b"");
    assert!(!outcome.stderr.contains("does not balance"), "{}", outcome.stderr);
    let said = outcome.text();
    let lost = |line: &str| kernel() == "linux" && lost_by_linux.iter().any(|promise| line.contains(promise));
    let broken: Vec<&str> = said.lines().filter(|line| line.starts_with("not ok") && !lost(line)).collect();
    assert!(broken.is_empty(), "{}\n{}", broken.join("\n"), outcome.stderr);
    let count = said.lines().filter(|line| line.starts_with("ok ") || lost(line)).count();
    assert_eq!(
        said.lines().last(),
        Some(&*format!("1..{count}")),
        "it stopped half-way: {said}\n{}",
        outcome.stderr
    );
}

fn disk(folder: &tempfile::TempDir, bytes: u64) -> std::path::PathBuf {
    let file = folder.path().join("disk");
    std::fs::File::create(&file).and_then(|file| file.set_len(bytes)).expect("an empty disk");
    file
}

/// A stock Linux needs 76 MiB to boot.
fn memory() -> &'static str {
    if kernel() == "linux" { "128M" } else { "64M" }
}

#[test]
fn areas_are_switched_on_and_off_and_nonsense_is_refused() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let disk = disk(&folder, 1 << 20);
    let options = ["--memory", memory(), "--disk", text(&disk)];
    // Linux keeps up to 64 slots of each CPU as used that were given back.
    let lost_by_linux = ["leaves nothing in the swap"];
    promises(run_command(), &options, &["swap", "areas", "/dev/vda"], &lost_by_linux);
}

/// A machine whose disk of 64 KiB, /dev/vda, fails every request of one type for its page 5, by QEMU's blkdebug.
fn with_failing_disk(folder: &tempfile::TempDir, requests: &str) -> Command {
    let disk = disk(folder, 64 << 10);
    let wrapper = folder.path().join("qemu");
    let plain = format!("if=none,id=disk0,format=raw,file={}", text(&disk));
    let failing = format!(
        "if=none,id=disk0,driver=raw,file.driver=blkdebug,file.image.driver=file,file.image.filename={},\
         file.inject-error.0.event=none,file.inject-error.0.iotype={requests},file.inject-error.0.sector=40",
        text(&disk)
    );
    let qemu = std::env::var("FREEHOLD_QEMU").unwrap_or_else(|_| "qemu-system-x86_64".into());
    let script = format!(
        "#!/bin/sh\nn=$#\nwhile [ $n -gt 0 ]; do a=$1; shift; n=$((n - 1)); \
         [ \"$a\" != '{plain}' ] || a='{failing}'; set -- \"$@\" \"$a\"; done\nexec {qemu} \"$@\"\n"
    );
    std::fs::write(&wrapper, script).expect("a script");
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).expect("made executable");
    let mut command = run_command();
    command.env("FREEHOLD_QEMU", &wrapper).args(["--memory", memory(), "--disk", text(&disk)]);
    command
}

#[test]
fn only_the_page_is_lost_that_the_disk_has_lost() {
    let folder = tempfile::tempdir().expect("temporary folder");
    // Linux still has the bytes in its swap cache and does not read.
    let lost_by_linux = [
        "a page that cannot be read",
        "storing to it is one too",
        "a page of a file that cannot be read",
        "the same page is a bus error",
    ];
    promises(with_failing_disk(&folder, "read"), &[], &["swap", "lost", "/dev/vda"], &lost_by_linux);
}

/// Linux keeps all pages in its swap cache for a while, and tries the same place again.
#[test]
fn a_page_that_the_disk_does_not_take_goes_elsewhere() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let lost_by_linux = ["is the only one that stays", "goes elsewhere", "is not used again"];
    promises(with_failing_disk(&folder, "write"), &[], &["swap", "refused", "/dev/vda"], &lost_by_linux);
}

/// Linux keeps slots of pages that are in memory again, its init's among them.
const LOST_BY_LINUX: [&str; 1] = ["in the end the swap is empty"];

/// Linux has no counter of copies that were not needed.
#[test]
fn programs_use_more_memory_than_there_is() {
    for (cpus, workers) in [("1", "1"), ("4", "4")] {
        let swap = if kernel() == "linux" { "256M" } else { "160M" };
        let options = ["--memory", memory(), "--cpus", cpus, "--swap", swap];
        promises(run_command(), &options, &["pressure", "private", workers, "2"], &LOST_BY_LINUX);
    }
}

/// Half of it is anonymous, half a file in memory, and all of it is one and a half times the machine's memory.
#[test]
fn programs_share_more_memory_than_there_is() {
    let swap = if kernel() == "linux" { "256M" } else { "128M" };
    let options = ["--memory", memory(), "--cpus", "4", "--swap", swap];
    promises(run_command(), &options, &["pressure", "shared", "4"], &["in the end the swap is empty"]);
}

#[test]
fn a_file_in_memory_may_be_larger_than_memory() {
    let swap = if kernel() == "linux" { "256M" } else { "128M" };
    let options = ["--memory", memory(), "--swap", swap];
    promises(run_command(), &options, &["pressure", "file"], &["what is cut off leaves the swap"]);
}

/// With few requests a second everybody waits for the disk, and nobody is killed for it.
#[test]
fn a_slow_disk_takes_time_and_no_lives() {
    let swap = if kernel() == "linux" { "256M,iops=500" } else { "128M,iops=500" };
    let options = ["--memory", memory(), "--cpus", "4", "--swap", swap];
    promises(run_command(), &options, &["pressure", "private", "4", "0"], &LOST_BY_LINUX);
}

/// The kernel's own frames lie apart from programs' here, so those have to make room for them.
#[test]
fn forks_find_memory_for_the_kernel_too() {
    for (cpus, children) in [("1", "64"), ("4", "32")] {
        let options = ["--memory", memory(), "--cpus", cpus, "--swap", "256M"];
        promises(
            run_command(),
            &options,
            &["pressure", "forks", children],
            &["pageblocks were made whole for it"],
        );
    }
}

#[test]
fn who_wants_more_than_memory_and_swap_is_killed_alone() {
    let options = ["--memory", memory(), "--swap", "32M"];
    promises(run_command(), &options, &["pressure", "full"], &[]);
}

#[test]
fn the_closing_table_says_what_was_swapped() {
    let script = "cat /proc/swaps; swapoff /dev/vdb; cat /proc/swaps";
    let folder = tempfile::tempdir().expect("temporary folder");
    let disk = disk(&folder, 1 << 20);
    let options = ["--report", "always", "--disk", text(&disk), "--swap", "8M"];
    let outcome = run(&options, &["busybox", "ash", "-c", script], b"").expect(0);
    let said = outcome.text();
    assert!(said.contains("/dev/vdb") && said.contains("8188"), "behind the user's own disks: {said}");
    assert_eq!(said.lines().count(), 3, "{said}");
    assert!(outcome.stderr.contains("swapped out"), "{}", outcome.stderr);
}
