//! The time for which the kernel keeps a CPU busy, in instructions: with `--icount` a nanosecond of
//! the machine is one instruction.

use crate::common::*;

/// The limit, in instructions.
const MOST: u64 = 5_000_000;

#[test]
fn no_call_keeps_the_cpu_however_much_it_is_asked_for() {
    if kernel() != "freehold" {
        return;
    }
    let long_calls = guest_program("workloads/long-calls");
    // One row for each kind of work; make test-long has all rows.
    let rows = [
        "unlink",
        "mmap-populate",
        "mprotect-areas",
        "fork-areas",
        "maps",
        "exec-arguments",
        "unlock",
        "stacked-mounts",
    ];
    let words: Vec<&str> = [text(&long_calls), "-l", "5000"].into_iter().chain(rows).collect();
    run(&["--icount", "-m", "1G"], &words, b"").expect(0);
}

#[test]
fn a_machine_that_is_pressed_gives_the_cpu_away() {
    if kernel() != "freehold" {
        return;
    }
    let stay = format!("{}:/stay", text(&guest_program("workloads/stay")));
    // Memory is plugged in and out, blocks are emptied, the kernel's map is compared with the frame
    // table; then a program takes nearly all memory.
    let load = "echo 0 > /sys/kernel/debug/latency
        busybox sh -c 'while :; do :; done' & computes=$!
        busybox sh -c 'while :; do busybox usleep 1000; done' & wakes=$!
        /stay 150 400 > /tmp/stay & stays=$!
        i=0; while [ $i -lt 8 ]; do
            tail -n 1 /sys/kernel/debug/xpfo/check; echo 1 > /proc/sys/vm/compact_memory; busybox usleep 100000; i=$((i+1))
        done
        wait $stays; echo stay $?
        mib=$(busybox awk '/MemAvailable/{print int($2/1024*97/100)}' /proc/meminfo)
        busybox dd if=/dev/zero of=/dev/null bs=${mib}M count=1 2>/dev/null && echo full
        busybox seq 20000 | busybox sort -r | busybox md5sum > /tmp/sum
        tail -n 1 /sys/kernel/debug/xpfo/check
        kill $computes $wakes; cat /sys/kernel/debug/latency";
    let options = ["--icount", "-m", "64M", "--memory-max", "512M", "--swap", "64M", "-v", &stay];
    let said = run(&options, &["busybox", "ash", "-c", load], b"").expect(0).text();
    let (checks, figures): (Vec<&str>, Vec<&str>) = said.lines().partition(|line| !line.starts_with("cpu"));
    assert_eq!(checks, [vec!["clean"; 8], vec!["stay 0", "full", "clean"]].concat(), "{said}");
    assert_eq!(figures.len(), 2, "{said}");
    for line in figures {
        let nanoseconds: u64 = line.split([' ', ':']).find_map(|word| word.parse().ok()).expect("a figure");
        assert!(nanoseconds <= MOST, "{said}");
    }
    assert!(
        said.contains("another task waited: ") && !said.contains("waited: 0 ns"),
        "nothing was seen: {said}"
    );
}

#[test]
fn the_figures_of_lateness_are_roots_and_are_set_back() {
    if kernel() != "freehold" {
        return;
    }
    let file = "/sys/kernel/debug/latency";
    let line = format!(
        "busybox seq 100000 | busybox sort >/tmp/x; echo 0 > {file}; echo $?; echo 1 2>&1 > {file}; echo $?; cat {file}"
    );
    let said = run(&["--cpus", "2"], &["busybox", "ash", "-c", &line], b"").text();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!((lines[0], lines[2], lines.len()), ("0", "1", 7), "{said}");
    assert!(lines[1].ends_with("Invalid argument"), "{said}");
    let refused = run(&["--user", "1000"], &["busybox", "cat", file], b"");
    assert_ne!(refused.status, 0);
}

/// A release of a lock wakes the waits that can have it, so all are served in about linear time.
#[test]
fn waits_for_locks_cost_what_they_cost_one_by_one() {
    let program = guest_program("workloads/lock-waits");
    let spent = |count: &str| -> u64 {
        let said = run(&["--icount", "-m", "512M"], &[text(&program), count], b"").expect(0).text();
        said.trim().parse().expect("microseconds")
    };
    let (few, many) = (spent("50"), spent("200"));
    assert!(many < 8 * few, "50 waits: {few} thousand instructions, 200: {many}");
}

/// Requests of a ring that one event ends are taken out of its list together.
#[test]
fn requests_that_end_together_cost_what_they_cost_one_by_one() {
    let program = guest_program("workloads/ring-waits");
    let spent = |count: &str| -> u64 {
        let said = run(&["--icount", "-m", "512M"], &[text(&program), count], b"").expect(0).text();
        said.trim().parse().expect("microseconds")
    };
    let (few, many) = (spent("1000"), spent("4000"));
    assert!(many < 6 * few, "1,000 requests: {few} thousand instructions, 4,000: {many}");
}

/// The operations of `freehold lab growth` that other threads' and users' things could make dear.
#[test]
fn more_things_around_an_operation_do_not_make_it_dear() {
    if kernel() != "freehold" {
        return;
    }
    const FEW: u32 = 16;
    const MANY: u32 = 1600;
    let program = format!("{}:/growth", text(&guest_program("bench/growth")));
    let line = format!(
        "for row in $(/growth --list); do for things in {FEW} {MANY}; do /growth $row@$things 1 1 tsc 1; done; done"
    );
    let options = ["--icount", "-m", "1G", "-v", &program];
    let said = run(&options, &["busybox", "ash", "-c", &line], b"").expect(0).text();
    let costs: Vec<(&str, u64)> = said
        .lines()
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let ["sample", row, _, _, instructions] = words[..] else { panic!("{said}") };
            (row, instructions.parse().expect("instructions"))
        })
        .collect();
    assert!(costs.len() > 20, "{said}");
    for pair in costs.chunks(2) {
        let [(_, few), (row, many)] = pair else { panic!("{said}") };
        assert!(*many < 2 * few, "{row}: {many} instructions, with {FEW} things: {few}\n{said}");
    }
}
