//! Measurements that a signal ends: progress, and what is kept.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::browser::clean_report;
use crate::common::*;

/// Starts a measurement, sends it `signal` after its first line on stderr that tells of a finished
/// part, and returns that line, the exit status, and all of stdout.
fn interrupt(mut command: Command, signal: Signal) -> (String, i32, String) {
    let _permit = Permit::take();
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    while !line.contains(": done, ") {
        line.clear();
        assert_ne!(stderr.read_line(&mut line).expect("text"), 0, "nothing was finished");
    }
    kill_process(Pid::from_child(&child), signal).expect("it lives");
    let rest = std::thread::spawn(move || std::io::copy(&mut stderr, &mut std::io::sink()));
    let mut told = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut told).expect("text");
    let status = code(wait(&mut child));
    rest.join().expect("joins").expect("reads");
    (line, status, told)
}

fn record(path: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("JSON")
}

#[test]
fn an_interrupted_comparison_keeps_finished_rows_and_is_marked() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let [json, html, csv] = ["out.json", "out.html", "out.csv"].map(|name| folder.path().join(name));
    let mut command = freehold();
    command.args(["bench", "--quick", "--runs", "500", "--timeout", TIMEOUT, "null-call", "pipe"]);
    command.args(["--against-append", "page_alloc.shuffle=0"]);
    command.arg("--json").arg(&json).arg("--html").arg(&html).arg("--csv").arg(&csv);
    let (line, status, told) = interrupt(command, Signal::INT);
    assert!(line.starts_with("freehold: null-call, Freehold") && line.contains("of 2000"), "{line}");
    assert!(line.contains(", about ") && line.contains(" remain"), "{line}");
    assert_eq!(status, 128 + 2, "{told}");
    assert!(told.contains("partial: ended by signal 2") && told.contains("null-call"), "{told}");
    let record = record(&json);
    validate(&record, "bench.json");
    assert_eq!(record["partial"], true);
    assert_eq!(record["rows"][0]["name"], "null-call");
    let costs = record["rows"][0]["costs"].as_array().expect("two sides");
    assert!(costs.iter().any(|cost| cost["cost"].as_f64().is_some_and(|cost| cost > 1.0)), "{costs:?}");
    assert_eq!(record["failures"], serde_json::json!([]), "a row that was not measured has not failed");
    assert!(clean_report(&html).contains("partial: ended by signal 2"));
    assert!(std::fs::read_to_string(csv).expect("a sheet").contains("null-call"));
}

#[test]
fn an_interrupted_experiment_keeps_its_finished_rows_and_is_marked() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let json = folder.path().join("out.json");
    let mut command = freehold();
    command.args(["lab", "replica", "--quick", "--json"]).arg(&json);
    let (line, status, told) = interrupt(command, Signal::TERM);
    assert!(line.starts_with("freehold: 2 nodes, on: done, 1 of 2, about "), "{line}");
    assert_eq!(status, 128 + 15, "{told}");
    assert!(told.contains("partial: ended by signal 15"), "{told}");
    let record = record(&json);
    assert_eq!((&record["partial"], &record["rows"][0]["side"]), (&true.into(), &"on".into()));
    let rows = record["rows"].as_array().expect("rows");
    assert!(rows.iter().all(|row| row["side"] == "on"), "{rows:?}");
}
