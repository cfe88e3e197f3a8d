//! Exclusive page-frame ownership: policies, counters, the check of the kernel's map, and accesses
//! that violate it.

use crate::common::*;

const CHECK: &str = "/sys/kernel/debug/xpfo/check";

/// A load that moves memory between programs and the kernel: many small programs, files, and a
/// process that fills 60 MiB.
const LOAD: &str = "i=0; while [ $i -lt 40 ]; do busybox echo $i > /tmp/$i; i=$((i+1)); done; \
    busybox seq 400000 | busybox sort -r | busybox md5sum >/dev/null; cat /tmp/* >/dev/null; rm /tmp/*";

/// Returns the number behind `name` in a text of lines `name number`.
fn figure(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix([' ', ':']));
    let number = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    number.unwrap_or_else(|| panic!("no {name} in {text}"))
}

fn said(options: &[&str], command: &str) -> Outcome {
    run(options, &["busybox", "ash", "-c", command], b"")
}

#[test]
fn under_every_policy_the_map_is_clean_and_counts_itself() {
    if kernel() != "freehold" {
        return;
    }
    for (policy, cpus) in [("off", "2"), ("lap", "2"), ("on", "1"), ("on", "4"), ("strict", "2")] {
        let command = format!(
            "{LOAD}; cat /sys/kernel/debug/xpfo/policy; tail -n 1 {CHECK}; grep xpfo_ /proc/vmstat; grep DirectMap /proc/meminfo"
        );
        let text = said(&["--xpfo", policy, "--cpus", cpus], &command).expect(0).text();
        let mut lines = text.lines();
        assert_eq!((lines.next(), lines.next()), (Some(policy), Some("clean")), "{text}");
        let (windows, laps) = (figure(&text, "xpfo_windows"), figure(&text, "xpfo_laps"));
        if policy == "off" {
            assert_eq!(windows, 0, "{text}");
            // All memory is in the map: 256 MiB.
            assert!(figure(&text, "DirectMap2M") > 200 << 10, "{text}");
        } else {
            assert!(windows > 500 && laps > windows / 64, "{text}");
            assert!(figure(&text, "DirectMap2M") < 100 << 10, "{text}");
        }
        assert!(figure(&text, "DirectMap4k") > 0, "{text}");
    }
}

#[test]
fn blocks_that_programs_used_are_wiped_on_their_way_to_the_kernel() {
    if kernel() != "freehold" {
        return;
    }
    // A process fills most of memory and ends; then page tables and file names make the kernel
    // grow.
    let command = format!(
        "busybox dd if=/dev/zero of=/dev/null bs=30M count=1 2>/dev/null; mkdir /tmp/d; i=0; \
         while [ $i -lt 7000 ]; do echo > /tmp/d/a-name-that-takes-a-while-to-write-$i; i=$((i+1)); done; \
         grep xpfo_ /proc/vmstat; tail -n 1 {CHECK}"
    );
    let text = said(&["-m", "64M"], &command).expect(0).text();
    assert!(figure(&text, "xpfo_wiped") > 0 && text.ends_with("clean\n"), "{text}");
    assert!(figure(&text, "xpfo_enter") >= figure(&text, "xpfo_wiped"), "{text}");
}

#[test]
fn an_unknown_policy_is_refused_in_one_sentence_and_changes_nothing() {
    let refused = said(&["--xpfo", "eager"], "true").expect(125);
    assert!(refused.stderr.contains("invalid value 'eager' for '--xpfo <POLICY>'"), "{}", refused.stderr);
    if kernel() != "freehold" {
        return;
    }
    let told = said(&["--append", "xpfo=eager", "--verbose"], "cat /sys/kernel/debug/xpfo/policy").expect(0);
    assert_eq!(told.text(), "on\n");
    let sentence = "kernel parameter xpfo=eager ignored: it can be off, lap, on or strict";
    assert!(told.stderr.contains(sentence), "{}", told.stderr);
}

#[test]
fn the_check_is_roots_alone() {
    if kernel() != "freehold" {
        return;
    }
    let told = said(&["--user", "1000"], &format!("cat {CHECK}"));
    assert!(told.stderr.contains("Permission denied"), "{}", told.stderr);
}

#[test]
fn the_check_needs_no_mount_of_debugfs_and_without_sysfs_it_is_missing_in_one_sentence() {
    if kernel() != "freehold" {
        return;
    }
    let command = format!(
        "busybox grep -c debugfs /proc/mounts; tail -n 1 {CHECK}; busybox umount -l /sys || exit 3; cat {CHECK}; echo $?; \
         busybox mount -t sysfs none /sys || exit 4; tail -n 1 {CHECK}"
    );
    let told = said(&[], &command).expect(0);
    assert_eq!(told.text(), "0\nclean\n1\nclean\n");
    assert_eq!(told.stderr, format!("cat: can't open '{CHECK}': No such file or directory\n"));
}

/// Returns the kernel instructions of the check with so much memory: those of a program that reads
/// it, more than of one that reads a line.
fn cost_of_the_check(memory: &str) -> u64 {
    let folder = tempfile::tempdir().expect("temporary folder");
    let json = folder.path().join("r.json");
    let mut scope = freehold();
    scope.args(["scope", "--icount", "--timeout", TIMEOUT, "--model", "locality", "-m", memory, "--json"]);
    let command = "cd /sys/kernel/debug/xpfo; busybox cat policy check >/dev/null || exit; \
        for phase in policy check; do phase $phase; busybox cat $phase >/dev/null || exit; done; phase end";
    scope.arg(&json).args(["--", "busybox", "sh", "-c", command]);
    finish(scope, b"").expect(0);
    let text = std::fs::read(&json).expect("the record");
    let record: serde_json::Value = serde_json::from_slice(&text).expect("it is JSON");
    let phases = record["results"]["phases"].as_array().expect("phases");
    let [check, line] = ["check", "policy"].map(|name| {
        let phase = phases.iter().find(|phase| phase["name"] == name).expect("the phase");
        phase["cpus"][0]["modes"]["kernel"]["instructions"].as_u64().expect("a count")
    });
    check - line
}

#[test]
fn the_check_takes_a_million_instructions_per_gib_at_most() {
    if kernel() != "freehold" {
        return;
    }
    let (small, large) = (cost_of_the_check("1G"), cost_of_the_check("3G"));
    assert!((10_000..=1_000_000).contains(&small) && large <= 3_000_000, "{small}, {large}");
}

#[test]
fn a_port_that_is_taken_is_said_before_the_machine_starts() {
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let port = taken.local_addr().expect("bound").port();
    let told = said(&[&format!("--gdb={port}")], "true");
    assert_ne!(told.status, 0);
    assert!(told.stderr.contains(&format!("cannot wait for a debugger on port {port}")), "{}", told.stderr);
}

/// Returns the largest number of frames with programs' bytes, and of such frames in the kernel's
/// map after the program.
fn residue(policy: &str, command: &str) -> (u64, u64) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let json = folder.path().join("r.json");
    let mut scope = freehold();
    scope.args(["scope", "--timeout", TIMEOUT, "--model", "tlb,residue", "-m", "64M", "--cpus", "2"]);
    scope.args(["--xpfo", policy, "--json"]).arg(&json).args(["--", "busybox", "sh", "-c", command]);
    finish(scope, b"").expect(0);
    let text = std::fs::read(&json).expect("the record");
    let record: serde_json::Value = serde_json::from_slice(&text).expect("it is JSON");
    let samples = record["results"]["residue"].as_array().expect("samples");
    let most = |name: &str| samples.iter().map(|sample| sample[name].as_u64().expect("a count")).max();
    (most("frames").expect("a sample"), most("residue_frames").expect("a sample"))
}

#[test]
fn no_byte_of_a_program_is_in_the_kernels_map_after_it() {
    if kernel() != "freehold" {
        return;
    }
    // Programs end and leave 30 MiB behind. Names of files and page tables make the kernel grow
    // into this memory.
    let load = "busybox dd if=/dev/urandom of=/tmp/big bs=1M count=30 2>/dev/null; rm /tmp/big; \
        busybox dd if=/dev/urandom of=/dev/null bs=20M count=1 2>/dev/null; mkdir /tmp/d; i=0; \
        while [ $i -lt 1500 ]; do echo > /tmp/d/a-name-that-takes-a-while-to-write-$i; i=$((i+1)); done; \
        busybox seq 20000 | busybox sort -r | busybox md5sum >/dev/null";
    for policy in ["on", "strict"] {
        let (frames, left) = residue(policy, load);
        assert!(frames > 2000 && left == 0, "{policy}: {left} of {frames}");
    }
    // The negative control.
    let (frames, left) = residue("off", "busybox seq 20000 | busybox sort | busybox md5sum");
    assert!(left > 100, "{left} of {frames}");
}

/// Returns the bytes of programs, and those that the kernel's map leads to, while a program holds 1
/// MiB of this kind.
fn held(kernel: &str, kind: &str) -> (u64, u64) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let json = folder.path().join("r.json");
    let mut scope = freehold();
    // Before Linux 6.5 memfd_secret has to be asked for; Freehold ignores that.
    scope.args(["scope", "--timeout", TIMEOUT, "--kernel", kernel, "--append", "secretmem.enable=1"]);
    scope.args(["--model", "tlb,residue", "-m", "128M", "--json"]).arg(&json);
    scope.arg("--").arg(guest_program("workloads/held-bytes")).arg(kind);
    finish(scope, b"").expect(0);
    let text = std::fs::read(&json).expect("the record");
    let record: serde_json::Value = serde_json::from_slice(&text).expect("it is JSON");
    let results = &record["results"];
    let phases = results["phases"].as_array().expect("phases");
    let number = phases.iter().position(|phase| phase["name"] == "held").expect("the phase");
    let samples = results["residue"].as_array().expect("samples");
    let sample = samples.iter().find(|sample| sample["phase"] == number).expect("a sample of the phase");
    let figure = |name: &str| sample[name].as_u64().expect("a count");
    (figure("bytes"), figure("reachable_bytes"))
}

#[test]
fn secret_memory_is_out_of_a_kernels_reach_and_other_memory_only_where_it_is_exclusive() {
    for kernel in ["freehold", "linux"] {
        let (bytes, reachable) = held(kernel, "secret");
        assert!(bytes >= 1 << 20 && bytes - reachable >= 1 << 20, "{kernel}: {reachable} of {bytes}");
        let (bytes, reachable) = held(kernel, "plain");
        // The firmware's bytes in low memory are outside a map, too.
        let is_reached = bytes - reachable < 4096;
        assert!(bytes >= 1 << 20 && is_reached == (kernel == "linux"), "{kernel}: {reachable} of {bytes}");
    }
}

/// Returns the exit status of the writer of `name`, and the log.
fn provoke(options: &[&str], name: &str) -> (i32, String) {
    let command = format!("echo {name} > /sys/kernel/debug/provoke-crash/DIRECT");
    let mut all = vec!["--verbose"];
    all.extend(options);
    let ended = said(&all, &command);
    (ended.status, ended.stderr)
}

const READS: [&str; 11] = [
    "XPFO_READ_USER",
    "XPFO_READ_USER_HUGE",
    "READ_PAGECACHE",
    "READ_TMPFS",
    "READ_PIPE",
    "READ_SOCKET",
    "READ_BOUNCE",
    "READ_STACK",
    "READ_URING",
    "READ_FREED",
    "READ_REALLOCATED",
];
const KILLED: i32 = 137;

#[test]
fn provoked_accesses_are_stopped_and_their_process_is_killed() {
    if kernel() != "freehold" {
        return;
    }
    for cpus in ["1", "2", "4"] {
        let others = ["EXEC_PHYSMAP", "WRITE_TEXT_ALIAS", "WRITE_READING_WINDOW", "WINDOW_IN_IRQ"];
        let on_others = if cpus == "1" { &[][..] } else { &["XPFO_SMP"][..] };
        // Each access is made in a shell of its own, which dies; the machine goes on, and its map
        // is clean.
        let names = READS.iter().chain(&others).chain(on_others);
        let each: String = names
            .clone()
            .map(|name| {
                format!(
                    "busybox ash -c 'echo {name} > /sys/kernel/debug/provoke-crash/DIRECT'; echo {name} $?; "
                )
            })
            .collect();
        let command = format!("{each} tail -n 1 {CHECK}; grep xpfo_refused /proc/vmstat");
        let text = said(&["--cpus", cpus], &command).expect(0).text();
        for name in names {
            assert!(text.contains(&format!("{name} {KILLED}\n")), "{cpus} CPUs, {name}: {text}");
        }
        assert!(text.ends_with("clean\nxpfo_refused 1\n"), "{text}");
    }
}

#[test]
fn with_xpfo_off_every_read_succeeds_and_code_is_still_not_executed() {
    if kernel() != "freehold" {
        return;
    }
    for name in READS.iter().chain(&["XPFO_SMP", "STALE_WINDOW", "WRITE_READING_WINDOW"]) {
        let (status, log) = provoke(&["--xpfo", "off", "--cpus", "2"], name);
        assert_eq!(status, 0, "{name}: {log}");
        assert!(log.contains(&format!("provoke-crash: {name}: the access succeeded")), "{log}");
    }
    for name in ["EXEC_PHYSMAP", "WRITE_TEXT_ALIAS"] {
        assert_eq!(provoke(&["--xpfo", "off"], name).0, KILLED, "{name}");
    }
}

#[test]
fn a_closed_window_is_gone_under_on_and_strict_and_may_be_there_under_lap() {
    if kernel() != "freehold" {
        return;
    }
    for cpus in ["1", "2", "4"] {
        assert_eq!(provoke(&["--xpfo", "strict", "--cpus", cpus], "STALE_WINDOW").0, KILLED);
        // A busy host delivers the interrupt late: the access waits for it.
        assert_eq!(provoke(&["--xpfo", "on", "--cpus", cpus], "STALE_WINDOW").0, KILLED);
    }
    // In counted time no interrupt is late.
    let (status, log) = provoke(&["--xpfo", "on", "--icount"], "STALE_WINDOW");
    assert!(status == KILLED && !log.contains(" late"), "{log}");
    // The negative control: no flush happens in that time.
    let (status, log) = provoke(&["--xpfo", "lap", "--icount"], "STALE_WINDOW");
    assert_eq!(status, 0, "{log}");
}

/// Lives of closed windows in one run, with a clock that counts instructions as nanoseconds.
struct ClosedWindows {
    /// Windows by the time for which they stayed cached: a bucket for each power of two.
    lives: Vec<u64>,
    /// The longest such time.
    longest: u64,
    windows: u64,
    /// HLTs, and closed windows that were cached then, summed.
    halts: u64,
    cached_at_halts: u64,
}

/// Runs a program and measures its windows in the modelled TLB.
fn closed_windows(policy: &str, words: &[&str]) -> ClosedWindows {
    let folder = tempfile::tempdir().expect("temporary folder");
    let json = folder.path().join("r.json");
    let mut scope = freehold();
    scope.args(["scope", "--icount", "--timeout", TIMEOUT, "--model", "tlb", "-m", "128M", "--xpfo", policy]);
    scope.arg("--json").arg(&json).arg("--").args(words);
    finish(scope, b"").expect(0);
    let text = std::fs::read(&json).expect("the record");
    let mut record: serde_json::Value = serde_json::from_slice(&text).expect("it is JSON");
    let exposure = record["results"]["exposure"].take();
    let of = |kind: &str| -> Vec<u64> {
        serde_json::from_value(exposure["lives"][kind].clone()).expect("a histogram")
    };
    let figure = |name: &str| exposure[name].as_u64().expect("a count");
    ClosedWindows {
        lives: of("ended").into_iter().zip(of("alive")).map(|(ended, alive)| ended + alive).collect(),
        longest: figure("longest_closed"),
        windows: figure("windows"),
        halts: figure("halts"),
        cached_at_halts: figure("closed_at_halts"),
    }
}

#[test]
fn a_closed_window_lives_4_ms_at_most_under_on_however_long_a_program_computes_or_sleeps() {
    if kernel() != "freehold" {
        return;
    }
    // 100 ms and more without a system call.
    let compute = "busybox cat /proc/meminfo >/dev/null; exec busybox awk 'BEGIN { for (i = 0; i < 30000; i++) x += i }'";
    // It reads, and then waits, and no other address space is loaded between the two.
    let idle = "busybox mkfifo /tmp/p; exec 3<>/tmp/p; \
        for i in 1 2 3 4 5; do echo $i >/tmp/f; read x </tmp/f; read -t 0.02 y <&3; done; true";
    for command in [compute, idle] {
        let words = ["busybox", "sh", "-c", command];
        let on = closed_windows("on", &words);
        assert!(on.windows > 300 && on.longest <= 4_000_000, "{} of {}: {command}", on.longest, on.windows);
        // The time from the store that closes a window to the INVLPG after it.
        let strict = closed_windows("strict", &words);
        assert!(strict.windows > 300 && strict.longest <= 16, "{} of {}", strict.longest, strict.windows);
        // No instruction runs while the CPU halts: no window may be cached then.
        assert_eq!((on.cached_at_halts, strict.cached_at_halts), (0, 0), "{command}");
        assert!(command != idle || on.halts >= 5, "{} halts", on.halts);
    }
    // The negative controls.
    assert!(closed_windows("lap", &["busybox", "sh", "-c", compute]).longest > 1 << 24);
    assert!(closed_windows("lap", &["busybox", "sh", "-c", idle]).cached_at_halts > 0);
}

/// A closed window on another program's memory is in no translation cache when the task's own
/// program runs again.
#[test]
fn windows_on_another_programs_memory_are_forgotten_as_they_close() {
    if kernel() != "freehold" {
        return;
    }
    let program = guest_program("workloads/foreign");
    let words = [program.to_str().expect("a path in UTF-8"), "2000"];
    // Longer than from the store that closes a window to the INVLPG after it.
    let kept = |policy| closed_windows(policy, &words).lives[4..].iter().sum::<u64>();
    let (kept_on, kept_by_lap) = (kept("on"), kept("lap"));
    assert!(kept_by_lap > 2000, "the negative control: {kept_by_lap}");
    assert!(kept_on < 1000, "{kept_on} windows were cached after they closed");
}

#[test]
fn a_program_that_asks_for_it_has_its_windows_forgotten_as_they_close() {
    if kernel() != "freehold" {
        return;
    }
    let strict = guest_program("workloads/strict");
    let strict = strict.to_str().expect("a path in UTF-8");
    let provoke = "echo STALE_WINDOW > /sys/kernel/debug/provoke-crash/DIRECT";
    // Children inherit the setting, and execve keeps it; other programs do not get it.
    let words = [strict, "/bin/busybox", "ash", "-c", &format!("busybox ash -c '{provoke}'; echo $?")];
    let told = run(&["--xpfo", "lap", "--icount", "--add", "/bin/busybox"], &words, b"").expect(0);
    assert_eq!(told.text(), format!("{KILLED}\n"));
    let told = said(&["--xpfo", "lap", "--icount"], &format!("{provoke}; echo $?")).expect(0);
    assert_eq!(told.text(), "0\n");
    // Without windows the call fails with EOPNOTSUPP.
    run(&["--xpfo", "off", "--add", "/bin/busybox"], &words, b"").expect(95);
}

#[test]
fn provoking_is_roots_alone_and_names_are_checked() {
    if kernel() != "freehold" {
        return;
    }
    let file = "/sys/kernel/debug/provoke-crash/DIRECT";
    let refused = said(&["--user", "1000"], &format!("echo XPFO_READ_USER > {file}"));
    assert!(refused.stderr.contains("Permission denied"), "{}", refused.stderr);
    let listed = said(&[], &format!("cat {file}; echo NOTHING > {file}"));
    assert!(listed.text().starts_with("Available crash types:\n") && listed.text().contains("\nXPFO_SMP\n"));
    assert!(listed.stderr.contains("Invalid argument"), "{}", listed.stderr);
}
