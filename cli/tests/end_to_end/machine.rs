//! The program sees the machine that the options describe.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use crate::common::*;

#[test]
fn the_program_sees_the_cpus_and_the_memory() {
    let outcome =
        run(&["--cpus", "3", "-m", "320M"], &["busybox", "ash", "-c", "nproc; head -n 1 /proc/meminfo"], b"");
    let text = outcome.expect(0).text();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("3"));
    let total =
        lines.next().and_then(|line| line.split_whitespace().nth(1)).and_then(|kib| kib.parse::<u64>().ok());
    let total = total.expect("MemTotal in KiB");
    assert!((240 << 10..=320 << 10).contains(&total), "{total} KiB of 320 MiB");
}

#[test]
fn nodes_have_the_memory_and_the_distances_that_were_asked_for() {
    let options =
        ["--cpus", "2", "--node", "mem=128M,cpus=0", "--node", "mem=96M,cpus=1", "--distance", "0,1,27"];
    let line = "cd /sys/devices/system/node; cat node0/distance node1/distance; cat node1/cpulist";
    let outcome = run(&options, &["busybox", "ash", "-c", line], b"").expect(0);
    let words: Vec<String> = outcome.text().split_whitespace().map(str::to_owned).collect();
    assert_eq!(words, ["10", "27", "27", "10", "1"]);
}

#[test]
fn the_kernel_can_be_told_to_see_other_nodes() {
    let line = "cd /sys/devices/system/node; cat online node0/cpulist node0/distance; \
                for node in node*; do head -n 1 $node/meminfo; done | \
                awk '$4 < 90000 { print \"small\" }'; dmesg | grep -o 'parameter numa.*'";
    let told = |numa: &str| {
        let parameter = format!("numa={numa}");
        let options = ["--cpus", "4", "--numa", "2", "-m", "512M", "--append", &parameter];
        run(&options, &["busybox", "ash", "-c", line], b"").expect(0).text()
    };
    let asked = "parameter numa asks";
    assert_eq!(told("fake=4"), format!("0-3\n0\n10 20 10 20\n{asked}\n"));
    assert_eq!(told("fake=2U"), format!("0-3\n0\n10 10 20 20\n{asked}\n"));
    assert_eq!(told("fake=128M"), format!("0-3\n0\n10 20 10 20\n{asked}\n"));
    assert_eq!(told("off"), format!("0\n0-3\n10\n{asked}\n"));
    assert_eq!(told("fake=17"), "0-1\n0-1\n10 20\nparameter numa ignored: there can be 16 nodes at most\n");
}

#[test]
fn disks_keep_what_is_written_and_read_only_ones_refuse() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let bytes = all_bytes(64 << 10);
    let first = file_of(&folder, "first", &bytes);
    let second = file_of(&folder, "second", &[7; 32 << 10]);
    let line = "dd if=/dev/vda of=/dev/vdb bs=1024 count=32 conv=fsync 2> /dev/null; echo $?; \
                dd if=/dev/vdb of=/dev/vda bs=1024 count=1 2> /dev/null; echo $?";
    let disks = ["--disk", &format!("{},ro", text(&first)), "--disk", text(&second)];
    let outcome = run(&disks, &["busybox", "ash", "-c", line], b"").expect(0);
    assert_eq!(outcome.text(), "0\n1\n");
    assert!(std::fs::read(&second).expect("a disk") == bytes[..32 << 10]);
    assert!(std::fs::read(&first).expect("a disk") == bytes);
}

#[test]
fn the_outcome_is_written_for_machines() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let file = folder.path().join("outcome.json");
    run(&["--json", text(&file)], &["busybox", "ash", "-c", "exit 9"], b"").expect(9);
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&file).expect("written")).expect("JSON");
    assert_eq!((&json["outcome"], &json["exit"], &json["status"]), (&"exit".into(), &9.into(), &9.into()));
    assert_eq!(json["audit"], "ok", "{json}");
    assert!(json["boot_ns"].as_u64().is_some_and(|ns| ns > 0), "{json}");
    assert!(json["memory"]["total_kib"].as_u64().is_some_and(|kib| kib > 1024), "{json}");
}

#[test]
fn a_dynamic_program_runs_with_the_libraries_that_were_packed() {
    let outcome = run(&[], &["/bin/ls", "-d", "/proc", "/tmp"], b"").expect(0);
    assert_eq!(outcome.text(), "/proc\n/tmp\n");
}

#[test]
fn programs_that_are_added_bring_their_libraries() {
    let outcome = run(
        &["-a", "/bin/cat", "-a", "/bin/ls", "-a", "/bin/sed"],
        &["/bin/bash", "-c", "ls -d /proc | cat | sed s/proc/done/"],
        b"",
    );
    assert_eq!(outcome.expect(0).text(), "/done\n");
}

#[test]
fn a_guest_that_dies_is_255_and_says_why() {
    let outcome =
        run(&[], &["busybox", "ash", "-c", "echo c > /proc/sysrq-trigger; sleep 5"], b"").expect(255);
    assert!(outcome.stderr.contains("panic"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("sysrq"), "the backtrace names a function: {}", outcome.stderr);
}

/// Debian's 6.1 cloud kernel takes 1.6 thousand million instructions to the same program in the
/// same VM.
const LINUX_BOOT_INSTRUCTIONS: u64 = 1_600_000_000;

#[test]
fn boot_takes_less_than_a_fifth_of_linux_and_the_same_each_time() {
    if kernel() != "freehold" {
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let mut counts = Vec::new();
    for name in ["first", "second"] {
        let file = folder.path().join(name);
        let mut command = freehold();
        command.args([
            "run",
            "--icount",
            "--timeout",
            TIMEOUT,
            "--json",
            text(&file),
            "--",
            "busybox",
            "true",
        ]);
        finish(command, b"").expect(0);
        let json: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&file).expect("written")).expect("JSON");
        // With --icount a nanosecond is an instruction.
        counts.push(json["boot_ns"].as_u64().expect("a number"));
    }
    assert!(counts[0] * 5 < LINUX_BOOT_INSTRUCTIONS, "{} instructions", counts[0]);
    assert_eq!(counts[0], counts[1], "the same image boots in the same number of instructions");
}

#[test]
fn a_vm_that_sleeps_lets_its_host_sleep() {
    if kernel() != "freehold" {
        return;
    }
    for options in
        [&["--cpus", "1"][..], &["--cpus", "4", "--memory-max", "1G", "--swap", "64M", "--net", "user"]]
    {
        let mut vm = Dialogue::begin(options, &["busybox", "ash", "-c", "sleep 2; echo on; read line"]);
        vm.hear();
        // Wake-ups from the program's own work do not count as an idle VM's.
        std::thread::sleep(Duration::from_secs(1));
        let (before, started) = (vm.sleeps(), Instant::now());
        std::thread::sleep(Duration::from_secs(4));
        let (after, seconds) = (vm.sleeps(), started.elapsed().as_secs_f64());
        // Threads of QEMU that came or went meanwhile served no interrupt of the guest.
        let count = |(thread, &sleeps)| Some(sleeps - before.get::<OsString>(thread)?);
        let wakes = after.iter().filter_map(count).sum::<u64>() as f64 / seconds;
        vm.go_on();
        assert_eq!(vm.end(), 0);
        assert!(wakes <= 10.0, "{wakes:.1} wake-ups a second with {options:?}");
    }
}

#[test]
fn thirty_two_mebibytes_are_enough_for_a_program() {
    if kernel() == "freehold" {
        assert_eq!(run(&["-m", "32M"], &["busybox", "echo", "small"], b"").expect(0).text(), "small\n");
    }
}

#[test]
fn a_kernel_parameter_that_does_not_exist_is_told_and_does_no_harm() {
    if kernel() == "freehold" {
        let options = ["--append", "no_such.parameter=1", "--verbose", "--report", "never"];
        let outcome = run(&options, &["busybox", "echo", "on"], b"").expect(0);
        assert_eq!(outcome.text(), "on\n");
        assert!(outcome.stderr.contains("no_such.parameter"), "{}", outcome.stderr);
    }
}

#[test]
fn a_program_that_takes_all_memory_is_killed_and_the_machine_lives_on() {
    let line = "busybox awk 'BEGIN { s = \"x\"; while (1) s = s s }'; echo status $?";
    let outcome = run(&["-m", "112M"], &["busybox", "ash", "-c", line], b"").expect(0);
    let said = outcome.text();
    assert!(said.starts_with("status ") && said != "status 0\n", "{said} {}", outcome.stderr);
}

/// The program's text could otherwise be evicted and read again for ever.
#[test]
fn so_is_one_whose_text_is_in_a_folder_of_the_host() {
    if kernel() == "linux" {
        return; // Trees of the host are copied for it.
    }
    let line =
        "busybox awk 'BEGIN { s = \"x\"; while (1) s = s s }'; echo status $?; grep oom_kill /proc/vmstat";
    let outcome = run(&["-m", "112M", "--root", "/"], &["busybox", "ash", "-c", line], b"").expect(0);
    assert_eq!(outcome.text(), "status 137\noom_kill 1\n", "{}", outcome.stderr);
}

#[test]
fn system_calls_are_counted_and_those_that_are_missing_marked() {
    if kernel() == "freehold" {
        let outcome = run(&["--syscalls"], &["busybox", "rmmod", "nothing"], b"").expect(1);
        assert!(outcome.stderr.contains("exit_group"), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("delete_module  (not implemented)"), "{}", outcome.stderr);
        let line =
            "cat /no/such/file 2> /dev/null; cd /nowhere 2> /dev/null; cd /etc/passwd 2> /dev/null; true";
        let stderr = run(&["--syscalls"], &["busybox", "ash", "-c", line], b"").expect(0).stderr;
        let row = |name: &str| {
            let lines = stderr.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
            lines.filter(|line| line.contains(&format!(" {name}"))).collect::<Vec<_>>().join("")
        };
        assert!(row("openat").contains("ENOENT"), "{stderr}");
        assert_eq!(row("chdir"), "2 2 chdir (ENOENT 1, ENOTDIR 1)", "{stderr}");
    }
}

#[test]
fn times_of_system_calls_are_told_where_instructions_are_counted() {
    if kernel() == "freehold" {
        let folder = tempfile::tempdir().expect("temporary folder");
        let file = folder.path().join("run.json");
        let options = ["--icount", "--syscalls", "--json", text(&file)];
        let line = "sleep 0.02; echo > /tmp/x; pwd > /dev/null";
        let stderr = run(&options, &["busybox", "ash", "-c", line], b"").expect(0).stderr;
        assert!(stderr.contains("errors     instructions  system call"), "{stderr}");
        let record: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&file).expect("written")).expect("JSON");
        validate(&record, "run.json");
        let calls = record["syscalls"].as_array().expect("calls");
        let of = |name: &str| calls.iter().find(|call| call["name"] == name).expect("it was made");
        let time = |name: &str| of(name)["time_ns"].as_u64().expect("a time");
        // The shell waits 20 ms for its child, which sleeps; a name takes longer to open than
        // getcwd.
        assert!(time("wait4") >= 20_000_000, "{calls:?}");
        assert!(time("openat") > 100 && time("openat") < 5_000_000, "{calls:?}");
        assert!(time("getcwd") < time("execve"), "{calls:?}");
        let plain = run(&["--syscalls"], &["busybox", "true"], b"").expect(0).stderr;
        assert!(plain.contains("errors  system call"), "{plain}");
    }
}

#[test]
fn files_that_were_not_found_are_named() {
    if kernel() == "freehold" {
        let outcome = run(&["--report", "always"], &["busybox", "cat", "/no/such/file"], b"").expect(1);
        assert!(
            outcome.stderr.contains("/no/such/file (") || outcome.stderr.contains(": /no/such/file"),
            "{}",
            outcome.stderr
        );
    }
}
