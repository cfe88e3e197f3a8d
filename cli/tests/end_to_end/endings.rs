//! Each way in which a run ends has a name and a sentence: the same on the terminal and in the
//! record.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::*;
use crate::errors::fake_kernel;

/// Runs a program; returns its record, which matches its schema and says the exit status, and
/// stderr.
fn ended(mut command: Command, words: &[&str]) -> (Value, String) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let file = folder.path().join("run.json");
    command.arg("--json").arg(&file).args(words);
    let outcome = finish(command, b"");
    let record: Value = serde_json::from_slice(&std::fs::read(&file).expect("written")).expect("JSON");
    validate(&record, "run.json");
    assert_eq!(record["status"], outcome.status, "{record}");
    (record, outcome.stderr)
}

/// Checks the name of the end and that its sentence is on stderr; returns record and sentence.
#[track_caller]
fn tells(command: Command, words: &[&str], name: &str) -> (Value, String) {
    let (record, stderr) = ended(command, words);
    assert_eq!(record["outcome"], name, "{record}");
    let sentence = record["sentence"].as_str().expect("a sentence").to_owned();
    assert!(stderr.lines().any(|line| line == format!("freehold: {sentence}")), "{sentence}\n{stderr}");
    (record, sentence)
}

#[test]
fn a_program_killed_for_want_of_memory_is_named_with_its_size() {
    let hog = "s=x; while :; do s=$s$s; done";
    let memory = if kernel() == "linux" { "112M" } else { "64M" };
    let words = ["-m", memory, "--", "busybox", "ash", "-c", hog];
    let (record, sentence) = tells(run_command(), &words, "oom-kill");
    let kib = record["victim"]["resident_kib"].as_u64().expect("a size");
    assert!(kib > 10_000, "{record}");
    assert!(sentence.starts_with("busybox: killed for want of memory") && sentence.contains("KiB"));
    assert_eq!((&record["signal"], &record["status"]), (&9.into(), &137.into()));
    // A child's end is not the program's, nor is every SIGKILL for want of memory.
    let line = format!("busybox ash -c '{hog}'; kill -9 $$");
    let (record, _) = ended(run_command(), &["-m", memory, "--", "busybox", "ash", "-c", &line]);
    assert_eq!((&record["outcome"], &record["victim"]), (&"signal".into(), &Value::Null), "{record}");
}

#[test]
fn a_panic_and_a_time_out_are_told_as_they_are_recorded() {
    let words = ["--", "busybox", "ash", "-c", "echo c > /proc/sysrq-trigger; sleep 5"];
    let (record, sentence) = tells(run_command(), &words, "panic");
    let message = record["panic"]["message"].as_str().expect("the panic's own line");
    assert!(sentence.ends_with(&message.trim_end().replace('\n', " ")), "{sentence}: {message}");
    if kernel() == "linux" {
        assert!(message.contains("sysrq triggered crash"), "{message}");
    }
    let mut command = freehold();
    command.args(["run", "--accel", "tcg", "--timeout", "8", "--kernel"]).arg(kernel());
    let (_, sentence) = tells(command, &["--", "busybox", "sleep", "100"], "timeout");
    assert_eq!(sentence, "busybox did not end within 8s: killed");
}

#[test]
fn a_stock_linux_panic_is_told_by_its_own_line() {
    let mut command = freehold();
    command.args(["run", "--accel", "tcg", "--timeout", TIMEOUT, "--kernel", "linux", "--"]);
    command.args(["busybox", "ash", "-c", "echo c > /proc/sysrq-trigger"]);
    let outcome = finish(command, b"").expect(255);
    let line = "the guest died: Kernel panic - not syncing: sysrq triggered crash";
    assert!(outcome.stderr.contains(line), "{}", outcome.stderr);
}

#[test]
fn what_the_host_did_is_not_the_program_s_end() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let with_qemu = |script: &str| {
        let version = "case $* in *--version*) echo QEMU emulator version 7.2.0; exit;; esac";
        let qemu = file_of(&folder, "qemu", format!("#!/bin/sh\n{version}\n{script}\n").as_bytes());
        std::fs::set_permissions(&qemu, PermissionsExt::from_mode(0o755)).expect("chmod");
        let mut command = run_command();
        command.env_remove("FREEHOLD_COVERAGE").env("FREEHOLD_QEMU", &qemu);
        command.env("FREEHOLD_KERNEL", fake_kernel(&folder));
        command
    };
    let program = ["--", "busybox", "true"];
    let (_, sentence) = tells(with_qemu("kill -9 $$"), &program, "qemu");
    assert!(sentence.contains("killed by signal 9"), "{sentence}");
    // It ends without a word, before any kernel could speak.
    let (record, _) = tells(with_qemu("exit 0"), &program, "firmware");
    assert_eq!(record["status"], 255);

    let file = folder.path().join("run.json");
    let _permit = Permit::take();
    let mut command = with_qemu("exec sleep 1000");
    let mut child = command.arg("--json").arg(&file).args(program).spawn().expect("it starts");
    std::thread::sleep(std::time::Duration::from_secs(2));
    kill_process(Pid::from_child(&child), Signal::TERM).expect("it lives");
    assert_eq!(code(wait(&mut child)), 128 + 15);
    let record: Value = serde_json::from_slice(&std::fs::read(&file).expect("written")).expect("JSON");
    validate(&record, "run.json");
    assert_eq!((&record["outcome"], &record["signal"]), (&"host-signal".into(), &15.into()));
}
