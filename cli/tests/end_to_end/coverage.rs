//! Coverage of the kernel's code: records grow run by run, name the code that never ran, and are of
//! one kernel.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::browser::clean_report;
use crate::common::*;

fn is_ours() -> bool {
    kernel() == "freehold"
}

fn record(path: &Path) -> Value {
    let text = std::fs::read(path).expect("the record is there");
    let record = serde_json::from_slice(&text).expect("it is JSON");
    validate(&record, "coverage.json");
    record
}

/// Returns the bytes that ran in functions whose name ends so.
fn ran(record: &Value, name: &str) -> u64 {
    let functions = record["functions"].as_array().expect("a list");
    let named = |function: &&Value| function["name"].as_str().is_some_and(|own| own.ends_with(name));
    functions.iter().filter(named).map(|function| function["ran"].as_u64().expect("bytes")).sum()
}

fn watched(path: &Path, program: &[&str]) -> Command {
    let mut command = freehold();
    command
        .args(["scope", "--timeout", TIMEOUT, "-m", "64M", "--coverage"])
        .arg(path)
        .arg("--")
        .args(program);
    command
}

#[test]
fn a_record_grows_by_what_a_run_reaches_for_the_first_time() {
    if !is_ours() {
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("code.json");
    let outcome = finish(watched(&path, &["busybox", "true"]), b"").expect(0);
    assert!(outcome.stderr.contains("1 run in the record"), "{}", outcome.stderr);
    let first = record(&path);
    // Start-up in 32-bit mode at physical addresses, trap handlers, and Rust behind the slide.
    for name in ["pvh_start", "syscall_entry", "trap_common", "boot::early"] {
        assert!(ran(&first, name) > 0, "{name} ran");
    }
    assert_eq!(ran(&first, "secondary_high"), 0, "one CPU");
    // The same with a second CPU, added by the environment alone.
    let mut command = run_command();
    command.env("FREEHOLD_COVERAGE", &path).args(["--cpus", "2", "--", "busybox", "sh", "-c", "exit 7"]);
    finish(command, b"").expect(7);
    let second = record(&path);
    assert_eq!((&second["runs"], &second["lost"], &second["bytes"]), (&2.into(), &0.into(), &first["bytes"]));
    assert!(ran(&second, "secondary_high") > 0, "two CPUs");
    assert!(second["ran"].as_u64() > first["ran"].as_u64());

    let mut command = freehold();
    command.arg("coverage").arg(&path).args(["--least", "95", "--html"]).arg(folder.path().join("r.html"));
    let outcome = finish_now(&mut command, b"").expect(1);
    let text = outcome.text();
    assert!(text.contains("freehold_kernel::") && text.contains("functions that never ran"), "{text}");
    assert!(outcome.stderr.contains("at least 95% is asked for"), "{}", outcome.stderr);
    let page = clean_report(&folder.path().join("r.html"));
    assert!(page.contains("Functions that did not run whole"));
}

#[test]
fn what_cannot_be_recorded_is_refused_before_the_machine_starts() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("code.json");
    let refused = |options: &[&str], why: &str| {
        let mut command = freehold();
        command.args(["scope", "--coverage"]).arg(&path).args(options).args(["--", "busybox", "true"]);
        let outcome = finish_now(&mut command, b"").expect(125);
        assert!(outcome.stderr.contains(why), "{}", outcome.stderr);
        assert!(!path.exists());
    };
    refused(&["--accel", "kvm"], "cannot watch KVM");
    refused(&["--model", "tlb"], "cannot be used with");
    std::fs::write(&path, "{}").expect("a file");
    let outcome = finish_now(freehold().arg("coverage").arg(&path), b"").expect(125);
    assert!(outcome.stderr.contains("no record of freehold scope --coverage"), "{}", outcome.stderr);
}
