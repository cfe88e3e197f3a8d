//! Lack of memory: sizes that programs choose, and allocations that fail on request.

use crate::common::*;

/// Runs a scenario of guest/workloads/sizes; returns the number that it reached.
#[track_caller]
fn sizes(scenario: &str, memory: &str) -> i64 {
    let program = guest_program("workloads/sizes");
    let outcome = run(&["-m", memory], &[text(&program), scenario, "40000"], b"").expect(0);
    let said = outcome.text();
    let number = said.trim().strip_prefix(&format!("sizes: {scenario} "));
    number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{said}\n{}", outcome.stderr))
}

#[test]
fn children_that_nobody_waits_for_leave_the_kernel_as_it_was() {
    // -1: the parent was killed for lack of memory, and its children with the VM.
    let made = sizes("forks", "40M");
    assert!(made == -1 || made > 300, "{made}");
}

#[test]
fn signals_to_all_and_lists_of_all_work_without_memory() {
    let made = sizes("signals", "40M");
    assert!(made == -1 || made > 100, "{made}");
}

#[test]
fn a_file_may_have_any_number_of_locks_and_all_are_listed() {
    let set = sizes("locks", "40M");
    assert!(set == -1 || set > 10_000, "{set}");
}

#[test]
fn a_long_list_of_groups_is_shared_by_all_who_have_it() {
    // 400 children with 256 KiB each would exceed memory; with their other memory they fit.
    let made = sizes("groups", "80M");
    assert!(made > 350, "{made}");
}

#[test]
fn threads_end_where_memory_does() {
    let made = sizes("threads", "40M");
    assert!(made == -1 || made > 100, "{made}");
}

#[test]
fn any_number_of_areas_is_copied_or_refused() {
    sizes("areas", "40M");
}

/// Runs a series of guest/workloads/fail-nth, which fails if the kernel loses memory or no
/// allocation failed; returns its line.
#[track_caller]
fn fail_nth(arguments: &[&str]) -> String {
    let program = guest_program("workloads/fail-nth");
    let outcome = run(&["-m", "128M"], &[&[text(&program)], arguments].concat(), b"").expect(0);
    outcome.text()
}

#[test]
fn every_allocation_of_a_program_may_fail() {
    fail_nth(&["1", "150", "calls"]);
    fail_nth(&["1", "150", "tasks"]);
    fail_nth(&["1", "700", "mounts"]);
    fail_nth(&["1", "400", "namespaces"]);
    fail_nth(&["1", "300", "groups"]);
    fail_nth(&["1", "100", "traces"]);
    fail_nth(&["1", "200", "cores"]);
    let said = fail_nth(&[
        "-s",
        "3",
        "1",
        "300",
        "--",
        "busybox",
        "ash",
        "-c",
        "echo x | cat; ls /proc/self; (exit 3); :",
    ]);
    // The program gets the failure: execve returns ENOMEM.
    let errors = said.split(", ").find_map(|part| part.strip_suffix(" with an error"));
    assert!(errors.and_then(|count| count.parse().ok()).is_some_and(|count: u32| count > 0), "{said}");
}

/// A disk that accesses pages directly: a transfer without memory is copied, or the program gets an
/// error.
#[test]
fn every_allocation_of_a_transfer_in_place_may_fail() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let (disk, program) = (file_of(&folder, "disk", &vec![7; 1 << 20]), guest_program("workloads/fail-nth"));
    for (kind, dma) in [("--iommu", "direct"), ("--iommu", "bounce"), ("--iommu=virtio", "direct")] {
        let options = ["-m", "128M", kind, "--dma", dma, "--disk", text(&disk)];
        let said = run(&options, &[text(&program), "1", "250", "disk"], b"").expect(0).text();
        assert!(said.contains(", 0 by another signal, 0 stuck"), "{said}");
    }
    assert!(std::fs::read(&disk).expect("the disk").iter().all(|&byte| byte == 7));
}

#[test]
fn failures_are_asked_for_by_linux_names() {
    let line = "cd /sys/kernel/debug/fail_page_alloc && cat interval probability space times verbose task-filter \
                min-order ignore-gfp-highmem && cat /proc/self/fail-nth /proc/self/make-it-fail && \
                echo 7 > ../failslab/times && cat ../failslab/times && echo Y > task-filter && cat task-filter && \
                echo 1 > /proc/self/make-it-fail && cat /proc/self/make-it-fail && \
                echo 2 > /proc/self/make-it-fail || echo refused";
    let outcome = shell(line).expect(0);
    let said: Vec<&str> = outcome
        .stdout
        .split(|&byte| byte == b'\n')
        .map(|line| std::str::from_utf8(line).unwrap_or("?"))
        .collect();
    assert_eq!(said, ["1", "0", "0", "1", "2", "N", "1", "Y", "0", "0", "7", "Y", "1", "refused", ""]);
}

#[test]
fn a_kernel_whose_heap_always_fails_lives() {
    // Small objects come from the reserve; larger allocations fail, or the program is killed.
    for numbers in ["quiet failslab=1,100,0,-1", "quiet fail_page_alloc=1,50,0,-1"] {
        let outcome = run(&["--append", numbers], &["busybox", "ash", "-c", "ls / | wc -l"], b"");
        assert!(outcome.status < 125 || outcome.status == 126 || outcome.status == 137, "{outcome:?}");
        assert!(!outcome.stderr.contains("panic"), "{}", outcome.stderr);
    }
}
