//! Output of programs that know the owner of every byte, and which copies were needed.

use crate::common::*;

#[test]
fn no_copy_is_made_that_nobody_needed() {
    let program = guest_program("workloads/needless");
    let outcome = run(&["--cpus", "2", "-m", "128M"], &[text(&program), "8", "0"], b"").expect(0);
    let lines = outcome.text();
    let copies = |line: &str| line.split_whitespace().rev().nth(1).and_then(|word| word.parse::<i64>().ok());
    assert_eq!(lines.lines().count(), 8, "{lines}");
    if kernel() == "linux" {
        // A stock Linux copies pages that two processes store to at the same time for both.
        return;
    }
    assert!(lines.lines().all(|line| copies(line) == Some(0)), "{lines}");
}
