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
