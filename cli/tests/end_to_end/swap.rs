//! Swap: areas, losses with a failing disk, more memory than the machine has, and the effect of
//! --swap.

use std::process::Command;

use crate::common::*;

/// Returns enough memory for the kernel: a stock Linux needs 76 MiB to boot.
fn memory() -> &'static str {
    if kernel() == "linux" { "128M" } else { "64M" }
}

#[test]
fn areas_are_switched_on_and_off_and_nonsense_is_refused() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let disk = empty_disk(&folder, 1 << 20);
    let options = ["--memory", memory(), "--disk", text(&disk)];
    // Linux keeps up to 64 freed slots of each CPU as used, and lets mappings store to a disk that
    // is swap.
    let lost_by_linux = [
        "leaves nothing in the swap",
        "or stores to it through a mapping",
        "it is none while a mapping may store to it",
    ];
    promises(run_command(), &options, &["swap", "areas", "/dev/vda"], &lost_by_linux);
}

/// Returns a machine whose disk of 64 KiB, /dev/vda, fails every request of one type for its page
/// 5.
fn with_failing_disk(folder: &tempfile::TempDir, requests: &str) -> Command {
    let rules = format!(
        "inject-error.0.event=none,file.inject-error.0.iotype={requests},file.inject-error.0.sector=40"
    );
    let (mut command, disk) = run_with_failing_disk(folder, 64 << 10, &rules);
    command.args(["--memory", memory(), "--disk", text(&disk)]);
    command
}

#[test]
fn only_the_page_is_lost_that_the_disk_has_lost() {
    let folder = tempfile::tempdir().expect("temporary folder");
    // Linux still has the bytes in its swap cache and does not read.
    let lost_by_linux = [
        "a page that cannot be read",
        "one that is not handled kills with SIGBUS",
        "so does a stack that is lost",
        "a handler that would need it cannot run: SIGSEGV",
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

/// Linux keeps slots of pages that are in memory again, including its init's.
const LOST_BY_LINUX: [&str; 1] = ["in the end the swap is empty"];

/// Linux has no counter of needless copies.
#[test]
fn programs_use_more_memory_than_there_is() {
    for (cpus, workers) in [("1", "1"), ("4", "4")] {
        let swap = if kernel() == "linux" { "256M" } else { "160M" };
        let options = ["--memory", memory(), "--cpus", cpus, "--swap", swap];
        promises(run_command(), &options, &["pressure", "private", workers, "2"], &LOST_BY_LINUX);
    }
}

/// Half of it is anonymous, half a file in memory, and all of it is one and a half times the
/// machine's memory.
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

/// With few requests a second all tasks wait for the disk, and none is killed.
#[test]
fn a_slow_disk_takes_time_and_no_lives() {
    let swap = if kernel() == "linux" { "256M,iops=500" } else { "128M,iops=500" };
    let options = ["--memory", memory(), "--cpus", "4", "--swap", swap];
    promises(run_command(), &options, &["pressure", "private", "4", "0"], &LOST_BY_LINUX);
}

/// Here the kernel's own frames are spread, so programs' frames must be moved to make room for
/// them.
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
    let disk = empty_disk(&folder, 1 << 20);
    let options = ["--report", "always", "--disk", text(&disk), "--swap", "8M"];
    let outcome = run(&options, &["busybox", "ash", "-c", script], b"").expect(0);
    let said = outcome.text();
    assert!(said.contains("/dev/vdb") && said.contains("8188"), "behind the user's own disks: {said}");
    assert_eq!(said.lines().count(), 3, "{said}");
    assert!(outcome.stderr.contains("swapped out"), "{}", outcome.stderr);
}

/// Evicted text of a program of the host is read again at once. Then programs' own memory goes to
/// the swap instead, and no program is killed.
#[test]
fn a_program_of_the_host_is_swapped_out_before_it_is_killed() {
    let fill = r#"push @x, "a" x (1 << 20) for 1..200; print scalar @x"#;
    for memory in ["64M", "68M"] {
        let options = ["-m", memory, "--swap", "300M"];
        let outcome = run(&options, &["perl", "-e", fill], b"").expect(0);
        assert_eq!(outcome.text(), "200", "{memory}");
    }
}
