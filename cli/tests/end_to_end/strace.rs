//! `--strace`: a line for each system call.

use serde_json::Value;

use crate::common::*;

/// Fails unless a line holds all of `parts`, in this order.
#[track_caller]
fn has(lines: &str, parts: &[&str]) {
    let in_order = |line: &str| {
        let mut rest = line;
        parts.iter().all(|part| match rest.split_once(part) {
            Some((_, behind)) => {
                rest = behind;
                true
            }
            None => false,
        })
    };
    assert!(lines.lines().any(in_order), "no line has {parts:?}:\n{lines}");
}

#[test]
fn calls_of_a_program_are_lines_on_stderr_beside_its_output() {
    if kernel() != "freehold" {
        return;
    }
    let line = "echo hi; cat </nowhere; exec busybox mkdir -m 750 /tmp/made";
    let told = run(&["--strace"], &["busybox", "ash", "-c", line], b"").expect(0);
    assert_eq!(told.text(), "hi\n");
    let lines = &told.stderr;
    has(lines, &["execve(\"/", "busybox\", [\"busybox\", \"ash\", \"-c\", \"echo hi;", "vars */)", " = 0"]);
    has(lines, &["write(1, \"hi\\n\", 3)", " = 3"]);
    has(lines, &["open", "\"/nowhere\", O_RDONLY", " = -1 ENOENT (No such file or directory)"]);
    has(lines, &["execve(\"", "[\"busybox\", \"mkdir\", \"-m\", \"750\", \"/tmp/made\"], 0x", ") = 0"]);
    has(lines, &["mkdir(\"/tmp/made\", 0", " = 0"]);
    has(lines, &["getcwd(\"/\", 4096)", " = 2"]);
    has(lines, &["mprotect(0x", ", PROT_READ)", " = 0"]);
    has(lines, &["prlimit64(0, RLIMIT_STACK, NULL, 0x"]);
    has(lines, &["exit_group(0)", " = ?"]);
    assert_eq!(lines.lines().last(), Some("+++ exited with 0 +++"), "{lines}");
    assert!(!lines.contains("[pid"), "one thread needs no number:\n{lines}");
}

#[test]
fn threads_signals_and_ends_are_told_in_a_file_and_the_record_counts() {
    if kernel() != "freehold" {
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let (lines, json) = (folder.path().join("lines"), folder.path().join("r.json"));
    let option = format!("--strace={}", text(&lines));
    let line = "trap : USR1; (exit 3); kill -USR1 $$; sleep 0.1 & wait; sh -c 'kill -SEGV $$'; true";
    let words = ["busybox", "ash", "-c", line];
    let told = run(&[&option, "--cpus", "2", "--json", text(&json)], &words, b"").expect(0);
    assert!(!told.stderr.contains("execve"), "{}", told.stderr);
    let said = std::fs::read_to_string(&lines).expect("the lines");
    has(&said, &["exit_group(3)", " = ?"]);
    has(&said, &["+++ exited with 3 +++"]);
    has(&said, &["--- SIGUSR1 {si_signo=SIGUSR1, si_code=SI_USER} ---"]);
    has(&said, &["--- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_EXITED} ---"]);
    has(&said, &["kill(", "SIGSEGV)"]);
    has(&said, &["+++ killed by SIGSEGV", "+++"]);
    has(&said, &["wait4(-1, ", "<unfinished ...>"]);
    has(&said, &["<... wait4 resumed>"]);
    let numbered = |line: &str| line.split(' ').next().is_some_and(|pid| pid.parse::<u32>().is_ok());
    assert!(said.lines().all(numbered), "{said}");
    let record: Value = serde_json::from_slice(&std::fs::read(&json).expect("a record")).expect("it is JSON");
    assert_eq!(record["events"], Value::Null);
    assert_eq!(record["strace"]["lost"], 0);
    let calls = said.lines().filter(|line| line.contains(" = ")).count();
    assert_eq!(record["strace"]["calls"], calls, "{said}");
}

#[test]
fn lines_that_cannot_be_written_fail_the_run() {
    if kernel() != "freehold" {
        return;
    }
    let told = run(&["--strace=/dev/full"], &["busybox", "true"], b"").expect(125);
    assert!(told.stderr.contains("cannot write /dev/full: No space left on device"), "{}", told.stderr);
    let told = run(&["--strace=-"], &["busybox", "true"], b"").expect(125);
    assert!(told.stderr.contains("the program's output goes to stdout"), "{}", told.stderr);
    let told = run(&["--strace", "--kernel", "linux"], &["busybox", "true"], b"").expect(125);
    assert_eq!(told.stderr.lines().count(), 1, "{}", told.stderr);
}
