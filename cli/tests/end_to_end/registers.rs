//! Register states of programs, and the effect of traps, signals and switches on them.

use crate::common::*;
use crate::conformance::conforms_with;

#[test]
fn registers() {
    // QEMU's XRSTOR accepts any MXCSR, so a stock Linux has nothing to refuse; our kernel checks
    // the value itself. QEMU also keeps a summary of x87 errors that CPUs would derive anew.
    conforms_with("registers", &[], &[], &["a reserved MXCSR bit", "an x87 summary of errors"]);
}

/// The output of guest/workloads/hostile-registers was the same on Linux 6.1 when this was written;
/// `FREEHOLD_TEST_KERNEL=linux` shows that it still is.
#[test]
fn hostile_register_states_end_as_under_linux() {
    let program = guest_program("workloads/hostile-registers");
    for cpus in ["1", "2"] {
        let outcome = run(&["--cpus", cpus], &[text(&program), "1", "400"], b"").expect(0);
        let said = outcome.text();
        assert_eq!(said.lines().last(), Some("hostile-registers: all states ended"), "{said}");
        let fold = |sum: u64, &byte: &u8| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        let sum = outcome.stdout.iter().fold(0xcbf2_9ce4_8422_2325, fold);
        assert_eq!(sum, LIKE_LINUX, "{cpus} CPUs: {sum:#x}\n{said}");
    }
}

/// FNV-1a of the lines.
const LIKE_LINUX: u64 = 0x419a_2a5d_aff1_748a;
