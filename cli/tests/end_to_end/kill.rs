//! SIGKILL ends a process soon in any call; limits and seals are enforced.

use crate::common::*;
use crate::conformance::conforms_with;

/// With --icount a nanosecond is an instruction, and guest/workloads/kill-any fails above a hundred
/// million of them.
#[test]
fn sigkill_ends_a_process_within_a_hundred_million_instructions_whatever_call_it_makes() {
    if kernel() != "freehold" {
        return;
    }
    let program = guest_program("workloads/kill-any");
    run(&["--icount", "-m", "256M"], &[text(&program), "-q"], b"").expect(0);
}

#[test]
fn each_system_call_that_is_answered_has_a_row_in_the_table_of_kills() {
    if kernel() == "freehold" {
        let outcome = run(&[], &[text(&guest_program("workloads/kill-any")), "-t"], b"");
        assert!(outcome.status == 0, "{}{}", outcome.text(), outcome.stderr);
    }
}

/// Linux holds a pipe locked while a splice waits for a socket.
#[test]
fn a_task_that_waits_holds_up_no_call_beside_it() {
    let program = guest_program("workloads/beside");
    for cpus in ["1", "4"] {
        let outcome = run(&["--cpus", cpus], &[text(&program), "-l"], b"");
        let said = outcome.text();
        let lost = |line: &str| kernel() == "linux" && line.contains("splice from a");
        let broken: Vec<&str> =
            said.lines().filter(|line| line.starts_with("not ok") && !lost(line)).collect();
        assert!(broken.is_empty(), "{said}{}", outcome.stderr);
        assert_eq!(said.lines().last(), Some("1..66"), "it stopped half-way: {said}");
    }
}

#[test]
fn sealing() {
    conforms_with("sealing", &[], &[], &[]);
}

#[test]
fn secret() {
    // Linux before 6.5 supports it only on request.
    let options: &[&str] = if kernel() == "freehold" { &[] } else { &["--append", "secretmem.enable=1"] };
    conforms_with("secret", options, &[], &[]);
}

#[test]
fn limits() {
    // Linux' rootfs has no limit.
    let arguments: &[&str] = if kernel() == "freehold" { &["root"] } else { &[] };
    conforms_with("limits", &[], arguments, &[]);
}
