//! `freehold diff`, the records that it reads, and figures as CSV.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::common::*;

/// Rows that take little time.
const ROWS: [&str; 2] = ["null-call", "pipe"];

fn read(file: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(file).expect("a file")).expect("JSON")
}

/// Makes a record of bench, and its table as CSV.
fn bench(folder: &tempfile::TempDir, name: &str) -> (PathBuf, PathBuf) {
    let (json, csv) = (folder.path().join(format!("{name}.json")), folder.path().join(format!("{name}.csv")));
    let mut command = freehold();
    command.args(["bench", "--icount", "--quick", "--runs", "1", "--timeout", TIMEOUT]);
    command.args(["--against-append", "page_alloc.shuffle=0", "--json"]).arg(&json).arg("--csv").arg(&csv);
    command.args(ROWS);
    finish(command, b"").expect(0);
    (json, csv)
}

fn diff(arguments: &[&str], input: &[u8]) -> Outcome {
    finish_now(freehold().arg("diff").args(arguments), input)
}

#[track_caller]
fn refused(arguments: &[&str], input: &[u8], parts: &[&str]) {
    let outcome = diff(arguments, input).expect(125);
    assert_eq!(outcome.text(), "", "errors go to stderr");
    assert_eq!(outcome.stderr.lines().count(), 1, "one line: {}", outcome.stderr);
    for part in parts {
        assert!(outcome.stderr.contains(part), "{part:?} is not in {}", outcome.stderr);
    }
}

#[test]
fn two_counted_runs_of_bench_are_equal_and_a_made_up_regression_is_found() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let ((a, csv), (b, _)) = (bench(&folder, "a"), bench(&folder, "b"));
    let equal = diff(&[text(&a), text(&b)], b"").expect(0).text();
    assert!(equal.contains("0 of 2 rows cost less, 0 cost more, 2 are not distinguishable"), "{equal}");
    assert!(equal.contains("no regression") && !equal.contains("not the same"), "{equal}");

    // A line for each row and side, with the record's own figures.
    let record = read(&a);
    validate(&record, "bench.json");
    let lines = std::fs::read_to_string(csv).expect("written");
    let lines: Vec<&str> = lines.split("\r\n").collect();
    assert_eq!(lines.len(), 1 + 2 * ROWS.len() + 1, "{lines:?}");
    assert_eq!(lines[0], "name,workers,side,unit,median,low,high,samples,ratio,ratio_low,ratio_high,failure");
    let cost = &record["rows"][0]["costs"][0];
    let number = |value: &Value| value.as_f64().expect("a number").to_string();
    let numbers = [&cost["cost"], &cost["low"], &cost["high"]].map(number).join(",");
    assert_eq!(
        lines[1],
        format!("null-call,1,{},instructions,{numbers},4,,,,", cost["side"].as_str().expect("text"))
    );
    let ratio = number(&record["rows"][0]["ratios"][0]["ratio"]);
    assert!(lines[2].contains(&format!(",4,{ratio},")), "{}", lines[2]);

    let mut slower = read(&b);
    for sample in slower["rows"][0]["costs"][0]["runs"][0].as_array_mut().expect("samples") {
        *sample = json!(sample.as_f64().expect("a number") * 1.05);
    }
    slower["sides"][0]["parameters"] = json!("made=up");
    let slower = slower.to_string();
    let (json, csv) = (folder.path().join("diff.json"), folder.path().join("diff.csv"));
    let files = ["--json", text(&json), "--csv", text(&csv)];
    let outcome = diff(&[&[text(&a), "-"][..], &files].concat(), slower.as_bytes()).expect(1).text();
    assert!(outcome.contains("regression: row null-call costs 5.00% more"), "{outcome}");
    let unfair = outcome.find("not the same:").expect("it is said");
    assert!(unfair < outcome.find("null-call").expect("a row") && outcome.contains("made=up"), "{outcome}");
    let found = read(&json);
    validate(&found, "diff.json");
    assert_eq!((&found["schema"], &found["status"]), (&json!("freehold-diff-1"), &json!(1)));
    assert_eq!(found["rows"][0]["verdict"], "costs more");
    let sheet = std::fs::read_to_string(csv).expect("written");
    assert!(sheet.starts_with("name,unit,a,b,ratio,low,high,verdict\r\nnull-call,instructions,"), "{sheet}");
    diff(&["--threshold", "10", text(&a), "-"], slower.as_bytes()).expect(0);
    let less = diff(&["-", text(&a)], slower.as_bytes()).expect(0).text();
    assert!(less.contains("1 of 2 rows cost less"), "{less}");
    // One of several outputs may use stdout, and is alone there.
    let alone = diff(&["--csv", "-", text(&a), text(&b)], b"").expect(0).text();
    assert!(alone.starts_with("name,") && alone.lines().count() == 1 + ROWS.len(), "{alone}");
}

#[test]
fn counted_runs_of_a_program_are_equal_and_another_end_is_a_regression() {
    // A stock Linux counts no system calls.
    if kernel() != "freehold" {
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let record = |name: &str, script: &str, status: i32| {
        let file = folder.path().join(name);
        let options = ["--icount", "--syscalls", "--json", text(&file)];
        run(&options, &["busybox", "ash", "-c", script], b"").expect(status);
        validate(&read(&file), "run.json");
        file
    };
    let (a, b) = (record("a.json", "echo hi", 0), record("b.json", "echo hi", 0));
    let equal = diff(&[text(&a), text(&b)], b"").expect(0).text();
    assert!(equal.contains("\n0 of ") && equal.contains("no regression"), "{equal}");
    assert!(!equal.contains("not the same"), "{equal}");
    let other = record("c.json", "echo hi; echo hi; exit 3", 3);
    let text_of = diff(&[text(&a), text(&other)], b"").expect(1).text();
    assert!(text_of.contains("regression: the program ended otherwise: exit 0, exit 3"), "{text_of}");
    assert!(text_of.contains("syscalls[write].calls"), "{text_of}");
    let missing = folder.path().join("missing.json");
    run(&["--json", text(&missing)], &["no-such-program"], b"").expect(127);
    validate(&read(&missing), "run.json");
    let text_of = diff(&[text(&missing), text(&a)], b"").expect(1).text();
    assert!(text_of.contains("error (not-found), exit 0"), "{text_of}");
}

#[test]
fn counted_runs_under_the_microscope_are_equal() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let record = |name: &str, program: &[&str]| {
        let file = folder.path().join(name);
        let mut command = freehold();
        command.args(["scope", "--icount", "--model", "tlb", "--timeout", TIMEOUT, "--json"]).arg(&file);
        command.arg("--").args(program);
        finish(command, b"").expect(0);
        let value = read(&file);
        validate(&value, "scope.json");
        validate(&value["outcome"], "run.json");
        file
    };
    let a = record("a.json", &["busybox", "true"]);
    // The host decides how often the guest checks whether its console is empty: a busy host takes
    // the bytes later.
    let mut told = String::new();
    let has_equal = (0..4).any(|_| {
        let b = record("b.json", &["busybox", "true"]);
        told = diff(&[text(&a), text(&b)], b"").expect(0).text();
        told.contains("\n0 of ") && !told.contains("not the same")
    });
    assert!(has_equal, "{told}");
    let other = record("c.json", &["busybox", "sh", "-c", "busybox true; busybox true"]);
    let more = diff(&[text(&a), text(&other)], b"").expect(0).text();
    assert!(more.contains("results.instructions") || more.contains(" more, with smaller changes"), "{more}");
    assert!(more.contains("program"), "the command is another: {more}");
    let run_record = folder.path().join("run.json");
    run(&["--json", text(&run_record)], &["busybox", "true"], b"").expect(0);
    refused(&[text(&a), text(&run_record)], b"", &["two commands", "a.json of scope", "run.json of run"]);
}

#[test]
fn what_cannot_be_compared_is_refused_in_one_line_with_the_cure() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let file = |name: &str, bytes: &[u8]| file_of(&folder, name, bytes);
    let good = file("good.json", b"{\"schema\": \"freehold-run-2\", \"outcome\": \"exit\", \"exit\": 0}");
    let good = text(&good);
    diff(&[good, good], b"").expect(0);
    refused(&[good, "/nonexistent.json"], b"", &["/nonexistent.json", "No such file"]);
    refused(&[good, "/"], b"", &["cannot read /", "directory"]);
    refused(&["-", "-"], b"{}", &["stdin", "name a file"]);
    refused(&[good], b"", &["B.json", "freehold diff --help"]);
    refused(&[good, good, "--threshold", "-1"], b"", &["--threshold -1", "0 or more"]);
    refused(&[good, good, "--threshold", "much"], b"", &["--threshold much"]);
    refused(&[good, good, "--json", "/"], b"", &["it is a folder"]);
    refused(&[good, good, "--json", "-", "--csv", "-"], b"", &["two outputs"]);
    refused(&[good, "-"], b"hello", &["stdin is not JSON", "--json FILE"]);
    refused(&["-", good], b"{\"schema\": \"freehold-run-9\"}", &["freehold-run-9", "knows freehold-run-2"]);
    refused(&["-", good], b"{\"outcome\": \"exit\"}", &["no field schema", "write it again"]);
    refused(&["-", good], b"{\"schema\": \"freehold-run-2\"}", &["outcome is not text", "damaged"]);
    let large = folder.path().join("large.json");
    std::fs::File::create(&large).and_then(|file| file.set_len(100 << 20)).expect("a sparse file");
    refused(&[text(&large), good], b"", &["larger than 32 MiB"]);
    let mut device = freehold();
    let endless = finish_now(device.args(["diff", "/dev/zero", good]), b"").expect(125);
    assert!(endless.stderr.contains("larger than 32 MiB"), "{}", endless.stderr);
}

#[test]
fn csv_is_refused_where_it_means_nothing() {
    for arguments in [
        &["run", "--csv", "x", "--", "true"][..],
        &["scope", "--csv=x", "--", "true"],
        &["doctor", "--csv", "x"],
    ] {
        let outcome = finish_now(freehold().args(arguments), b"").expect(125);
        let line = "freehold: there is no option --csv (freehold bench, lab, coverage and diff write CSV; --json FILE has the figures of the others)\n";
        assert_eq!(outcome.stderr, line);
    }
    let outcome = finish_now(freehold().args(["bench", "--list", "--csv", "x"]), b"").expect(125);
    assert!(outcome.stderr.contains("--csv") && outcome.stderr.lines().count() == 1, "{}", outcome.stderr);
    let outcome = finish_now(freehold().args(["bench", "--csv", "/nonexistent/x"]), b"").expect(125);
    assert!(outcome.stderr.contains("/nonexistent/x"), "{}", outcome.stderr);
}
