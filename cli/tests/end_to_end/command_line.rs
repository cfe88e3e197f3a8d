//! The command as people type it: habits, typing errors, streams that cannot be written to, JSON on
//! stdout.

use std::fs::File;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use crate::common::*;

/// Returns stdout of a command that starts no VM and succeeds.
#[track_caller]
fn says(arguments: &[&str]) -> String {
    finish_now(freehold().args(arguments), b"").expect(0).text()
}

/// Returns the line of a command that fails with 125 before it starts a VM.
#[track_caller]
fn refuses(arguments: &[&str]) -> String {
    let outcome = finish_now(freehold().args(arguments), b"").expect(125);
    assert_eq!(outcome.text(), "", "errors go to stderr");
    assert_eq!(outcome.stderr.lines().count(), 1, "one line: {}", outcome.stderr);
    outcome.stderr
}

/// Runs `arguments` with stdout on a full device; returns the status.
#[track_caller]
fn into_full(arguments: &[&str]) -> (i32, String) {
    let full = || Stdio::from(File::options().write(true).open("/dev/full").expect("it is everywhere"));
    let output = freehold().args(arguments).stdout(full()).stderr(Stdio::piped()).output().expect("it runs");
    (code(output.status), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Runs `arguments` with stdout on a pipe without a reader; returns the status and stderr.
#[track_caller]
fn into_closed(arguments: &[&str]) -> (i32, String) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = freehold().args(arguments).stdout(writer).stderr(Stdio::piped()).output().expect("it runs");
    (code(output.status), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn help_comes_without_an_option_and_by_its_name() {
    let help = says(&[]);
    assert!(help.contains("Usage: freehold"), "{help}");
    assert_eq!(help, says(&["help"]));
    assert!(says(&["help", "run"]).contains("Usage: freehold run"));
    assert_eq!(says(&["version"]), says(&["--version"]));
    assert_eq!(says(&["lab"]), says(&["lab", "--list"]));
}

#[test]
fn a_mistyped_command_is_answered_with_what_was_meant() {
    for (typed, meant) in [
        ("rnu", "freehold run"),
        ("bnech", "freehold bench"),
        ("docter", "freehold doctor"),
        ("dif", "freehold diff"),
    ] {
        let line = refuses(&[typed]);
        assert!(line.contains(&format!("did you mean {meant}?")), "{line}");
    }
    let line = refuses(&["busybox"]);
    assert!(line.contains("freehold run -- busybox"), "{line}");
    let line = refuses(&["no-such-command"]);
    assert!(line.contains("freehold --help"), "{line}");
}

#[test]
fn output_that_nobody_can_take_is_never_a_success() {
    for arguments in [
        &["doctor"][..],
        &["completion", "bash"],
        &["man"],
        &["man", "run"],
        &["version"],
        &["--help"],
        &[],
        &["bench", "--list"],
        &["lab"],
    ] {
        let (status, line) = into_full(arguments);
        assert_eq!(status, 125, "{arguments:?}: {line}");
        assert_eq!(line, "freehold: cannot write to stdout: No space left on device\n", "{arguments:?}");
        assert_eq!(into_closed(arguments), (141, String::new()), "{arguments:?}");
    }
}

#[test]
fn a_program_whose_output_is_lost_has_not_succeeded() {
    let _permit = Permit::take();
    let accel = ["run", "--accel", "tcg", "--timeout", TIMEOUT, "--", "busybox"];
    let words = |program: &[&'static str]| [&accel[..], program].concat();
    let (status, line) = into_full(&words(&["echo", "hi"]));
    assert_eq!(status, 125, "{line}");
    assert_eq!(line, "freehold: cannot write the program's output to stdout: No space left on device\n");
    // The program's own status does not matter: its output is missing.
    let (status, line) = into_full(&words(&["ash", "-c", "echo hi; exit 3"]));
    assert_eq!(status, 125, "{line}");
    assert_eq!(into_closed(&words(&["echo", "hi"])), (141, String::new()));
    // A program that writes nothing loses nothing.
    assert_eq!(into_full(&words(&["true"])), (0, String::new()));
    assert_eq!(into_closed(&words(&["false"])), (1, String::new()));
}

#[test]
fn a_stderr_that_takes_nothing_is_no_panic() {
    let _permit = Permit::take();
    let full = Stdio::from(File::options().write(true).open("/dev/full").expect("it is everywhere"));
    let mut command = run_command();
    command.args(["--", "busybox", "ash", "-c", "echo lost >&2"]).stdout(Stdio::piped()).stderr(full);
    assert_eq!(code(command.output().expect("it runs").status), 125);
}

#[test]
fn the_json_tells_a_missing_program_from_a_program_that_returned_127() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let file = folder.path().join("outcome.json");
    let outcome_of = |program: &[&str], status: i32| -> Value {
        let mut command = run_command();
        command.args(["--json", text(&file), "--"]).args(program);
        finish(command, b"").expect(status);
        serde_json::from_slice(&std::fs::read(&file).expect("written")).expect("JSON")
    };
    let missing = outcome_of(&["no-such-program"], 127);
    assert_eq!((&missing["outcome"], &missing["reason"]), (&"error".into(), &"not-found".into()));
    let closed = outcome_of(&["/etc/passwd"], 126);
    assert_eq!(closed["reason"], "not-executable");
    let own = outcome_of(&["busybox", "ash", "-c", "exit 127"], 127);
    assert_eq!((&own["outcome"], &own["exit"], &own["reason"]), (&"exit".into(), &127.into(), &Value::Null));
}

#[test]
fn json_goes_to_stdout_where_stdout_is_free() {
    let record: Value = serde_json::from_str(&says(&["doctor", "--json", "-"])).expect("JSON alone");
    validate(&record, "doctor.json");
    let network = record["findings"].as_array().expect("a list").iter().find(|one| one["about"] == "network");
    assert_eq!(network.expect("it is looked for")["verdict"], "ok");
    let line = refuses(&["run", "--json", "-", "--", "busybox", "true"]);
    assert!(line.contains("--json -") && line.contains("stdout"), "{line}");
    let line = refuses(&["bench", "--json", "-", "--html", "-"]);
    assert!(line.contains("two outputs"), "{line}");
    let mut command = freehold();
    command.args(["scope", "--model", "locality", "--json", "-", "--", "busybox", "echo", "hi"]);
    let outcome = finish(command, b"").expect(0);
    let record: Value = serde_json::from_slice(&outcome.stdout).expect("JSON alone");
    assert_eq!(record["outcome"]["exit"], 0);
    assert!(outcome.stderr.contains("hi\n"), "the program's own output: {}", outcome.stderr);
}

#[test]
fn a_program_that_ignores_signals_ends_at_the_second_that_comes_late() {
    let _permit = Permit::take();
    let mut command = run_command();
    let line = "trap '' TERM; echo ready; while :; do sleep 0.1; done";
    command.args(["--", "busybox", "ash", "-c", line]).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut stdout = std::io::BufReader::new(child.stdout.take().expect("piped"));
    let mut said = String::new();
    std::io::BufRead::read_line(&mut stdout, &mut said).expect("text");
    let term = |child: &std::process::Child| {
        let pid = rustix::process::Pid::from_child(child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it lives");
    };
    term(&child);
    std::thread::sleep(Duration::from_millis(2500));
    assert!(child.try_wait().expect("waiting works").is_none(), "one signal is the program's to ignore");
    term(&child);
    assert_eq!(code(wait(&mut child)), 128 + 15);
}

#[test]
fn runs_that_are_repeated_are_lines_of_one_file() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let file = folder.path().join("runs.jsonl");
    for status in [0, 3] {
        run(&["--json-lines", text(&file)], &["busybox", "ash", "-c", &format!("exit {status}")], b"")
            .expect(status);
    }
    run(&["--json-lines", text(&file)], &["no-such-program"], b"").expect(127);
    let lines = std::fs::read_to_string(&file).expect("written");
    let records: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    records.iter().for_each(|record| validate(record, "run.json"));
    let statuses: Vec<_> = records.iter().filter_map(|record| record["status"].as_u64()).collect();
    assert_eq!(statuses, [0, 3, 127]);
    assert!(records[0]["machine"]["kernel_build"].is_string(), "{}", records[0]);
}

#[test]
fn every_schema_of_the_book_is_a_json_schema_and_each_command_that_writes_json_has_one() {
    let folder = repository().join("docs/schema");
    let mut names: Vec<String> = Vec::new();
    for entry in std::fs::read_dir(folder).expect("docs/schema").flatten() {
        let schema: Value =
            serde_json::from_slice(&std::fs::read(entry.path()).expect("readable")).expect("JSON");
        assert!(jsonschema::meta::is_valid(&schema), "{:?}", entry.path());
        names.push(schema["properties"]["schema"]["const"].as_str().expect("a name").to_owned());
    }
    let help = |command: &str| finish_now(freehold().args([command, "--help"]), b"").expect(0).text();
    for command in ["run", "scope", "coverage", "bench", "lab", "diff", "doctor", "owns"] {
        assert!(help(command).contains("--json"), "{command}");
        assert!(names.iter().any(|name| name.starts_with(&format!("freehold-{command}-"))), "{command}");
    }
}

#[test]
fn a_killed_command_leaves_no_image_behind() {
    let _permit = Permit::take();
    let folder = tempfile::tempdir().expect("temporary folder");
    let mut command = run_command();
    // A measurement in the form of tools/coverage keeps files of its own until the end.
    command.env_remove("FREEHOLD_COVERAGE").env("TMPDIR", folder.path());
    command.args(["--swap", "64M", "--", "busybox", "ash", "-c"]);
    let mut child = command.arg("echo up; sleep 1000").stdout(Stdio::piped()).spawn().expect("it starts");
    let mut stdout = std::io::BufReader::new(child.stdout.take().expect("piped"));
    std::io::BufRead::read_line(&mut stdout, &mut String::new()).expect("text");
    child.kill().expect("it lives");
    wait(&mut child);
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("readable").flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}
