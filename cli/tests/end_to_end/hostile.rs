//! Programs that mean harm.

use crate::common::*;

#[test]
fn random_system_calls_leave_the_kernel_as_it_was() {
    let program = guest_program("workloads/hostile");
    for (cpus, seed) in [("1", "10"), ("2", "3")] {
        let options = ["--cpus", cpus, "-m", "512M"];
        // Whatever is left of the processes, a frame without its owner for example, fails the run.
        let outcome = run(&options, &[text(&program), seed, "40"], b"").expect(0);
        assert!(outcome.text().starts_with("hostile: "), "{}", outcome.text());
    }
}

#[test]
fn threads_that_fight_over_pages_leave_the_kernel_as_it_was() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let data = folder.path().join("data");
    std::fs::File::create(&data).and_then(|file| file.set_len(16 << 20)).expect("an empty disk");
    let program = guest_program("workloads/hostile-pages");
    for (cpus, seed) in [("1", "1"), ("4", "2")] {
        let options = ["--cpus", cpus, "-m", "256M", "--disk", text(&data), "--swap", "16M"];
        let arguments = [text(&program), seed, "8", "80", "/dev/vda", "/dev/vdb"];
        let outcome = run(&options, &arguments, b"").expect(0);
        assert!(outcome.text().starts_with("hostile-pages: "), "{}", outcome.text());
    }
}

/// What guest/workloads/alike prints was the same on Linux 6.1 when this was written; `FREEHOLD_TEST_KERNEL=linux` shows that it still is.
/// The head of that program says how to see where they part.
#[test]
fn random_calls_about_memory_are_answered_as_by_linux() {
    let program = guest_program("workloads/alike");
    let outcome = run(&[], &[text(&program), "5", "40", "60"], b"").expect(0);
    let fold = |sum: u64, &byte: &u8| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let sum = outcome.stdout.iter().fold(0xcbf2_9ce4_8422_2325, fold);
    assert_eq!(sum, LIKE_LINUX, "it printed {} lines", outcome.text().lines().count());
}

/// FNV-1a of the lines.
const LIKE_LINUX: u64 = 0x60ec_c725_f919_cc77;
