//! The machine that was asked for is the machine that the program sees.

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
fn a_guest_that_dies_is_255_and_says_why() {
    let outcome =
        run(&[], &["busybox", "ash", "-c", "echo c > /proc/sysrq-trigger; sleep 5"], b"").expect(255);
    assert!(outcome.stderr.contains("panic"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("sysrq"), "the backtrace names a function: {}", outcome.stderr);
}
