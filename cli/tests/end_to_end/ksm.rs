//! Equal pages get one frame, and frames of their own again.

use crate::common::*;
use crate::conformance::conforms_with;

#[test]
fn merging_keeps_its_promises_on_one_cpu_and_on_four_with_swap() {
    conforms_with("ksm", &["--cpus", "1"], &[], &[]);
    conforms_with("ksm", &["--cpus", "4", "--swap", "64M"], &[], &[]);
}

#[test]
fn merged_memory_is_freed_and_counted_exactly() {
    if kernel() != "freehold" {
        return;
    }
    // The run ends while pages are merged: its audit balances to the frame.
    let script =
        "cd /sys/kernel/mm/ksm; echo 0 > sleep_millisecs; echo 1 > use_zero_pages; echo 1 > run; cat run";
    assert_eq!(run(&[], &["busybox", "sh", "-c", script], b"").expect(0).text(), "1\n");
}

/// Promises about frames and costs do not hold for a page that is merged: it gets another frame,
/// and the next store copies it.
const NOT_WHILE_MERGED: [&str; 4] = ["frame", "copy", "copies", "goes out"];

#[test]
fn copies_and_pins_are_right_while_all_memory_is_merged() {
    if kernel() == "linux" {
        return;
    }
    let folder = guest_program("conformance").to_str().expect("a path").to_owned();
    let merging = guest_program("workloads/merging");
    for (program, promises) in [("cow", 60), ("pins", 90)] {
        let inside = format!("/programs/{program}");
        let options = ["-m", "768M", "--cpus", "4", "-v", &format!("{folder}:/programs")];
        let outcome = run(&options, &[text(&merging), &inside], b"");
        let said = outcome.text();
        let broken: Vec<&str> = said
            .lines()
            .filter(|line| line.starts_with("not ok"))
            .filter(|line| !NOT_WHILE_MERGED.iter().any(|promise| line.contains(promise)))
            .collect();
        assert!(broken.is_empty(), "{program}: {}\n{}", broken.join("\n"), outcome.stderr);
        let kept = said.lines().filter(|line| line.starts_with("ok ")).count();
        assert!(kept >= promises, "{program} keeps {kept} promises: {said}\n{}", outcome.stderr);
    }
}
