//! `freehold bench` and `freehold lab`: their measurements and their refusals.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::browser::clean_report;
use crate::common::*;
use crate::errors::fake_kernel;

fn error_line(arguments: &[&str]) -> String {
    let outcome = finish_now(freehold().args(arguments), b"").expect(125);
    assert_eq!(outcome.text(), "", "errors go to stderr");
    assert_eq!(outcome.stderr.lines().count(), 1, "one line: {}", outcome.stderr);
    outcome.stderr
}

#[track_caller]
fn refused(arguments: &[&str], parts: &[&str]) {
    let line = error_line(arguments);
    for part in parts {
        assert!(line.contains(part), "{part:?} is not in {line}");
    }
}

/// Compares our kernel with itself under another command line.
fn comparison(folder: &tempfile::TempDir, more: &[&str]) -> (Outcome, PathBuf, PathBuf) {
    let (json, html) = (folder.path().join("out.json"), folder.path().join("out.html"));
    let mut command = freehold();
    command.args(["bench", "--quick", "--timeout", TIMEOUT, "--against-append", "page_alloc.shuffle=0"]);
    command.arg("--json").arg(&json).arg("--html").arg(&html).args(more);
    let _permit = Permit::take();
    (finish_now(&mut command, b""), json, html)
}

#[test]
fn every_row_is_measured_and_counted_runs_agree_to_the_instruction() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let (outcome, json, html) = comparison(&folder, &[]);
    let outcome = outcome.expect(0);
    let text = outcome.text();
    assert!(text.contains("both runs of every side agree to the instruction"), "{text}");
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(json).expect("a file")).expect("JSON");
    has_schema(&report, "freehold-bench-1");
    assert_eq!(report["differences"], serde_json::json!([]));
    assert_eq!(report["failures"], serde_json::json!([]));
    let rows = report["rows"].as_array().expect("rows");
    let listed = finish_now(freehold().args(["bench", "--list"]), b"").expect(0).text();
    assert_eq!(rows.len(), listed.lines().count(), "every listed row, once");
    for row in rows {
        for cost in row["costs"].as_array().expect("two sides") {
            assert!(cost["cost"].as_f64().is_some_and(|cost| cost > 1.0), "{row}");
            assert_eq!(cost["runs"][0].as_array().map(Vec::len), Some(4), "samples of a quick run: {row}");
        }
        assert!(text.contains(row["name"].as_str().expect("a name")));
    }
    // Two rows with known different costs differ, and in the right direction.
    let cost = |name: &str| {
        let row = rows.iter().find(|row| row["name"] == name).expect("the row");
        row["costs"][0]["cost"].as_f64().expect("a cost")
    };
    assert!(cost("null-call") < cost("pipe") && cost("pipe") < cost("fork-exec"));
    let page = clean_report(&html);
    assert!(page.contains("null-call") && page.contains("page_alloc.shuffle=0") && page.contains("<svg"));
}

#[test]
fn the_experiment_of_costs_compares_three_kernels() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let file = folder.path().join("costs.json");
    let mut command = freehold();
    command.args(["lab", "costs", "--quick", "--json"]).arg(&file);
    let page = folder.path().join("costs.html");
    command.arg("--html").arg(&page);
    let text = finish(command, b"").expect(0).text();
    clean_report(&page);
    assert!(text.contains("both runs of every side agree to the instruction"), "{text}");
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(file).expect("a file")).expect("JSON");
    has_schema(&report, "freehold-bench-1");
    let rows = report["rows"].as_array().expect("rows");
    assert!(rows.len() >= 6, "{text}");
    for row in rows {
        let costs = row["costs"].as_array().expect("ours, a lean Linux, Debian's");
        assert_eq!(
            costs.iter().filter(|cost| cost["cost"].as_f64().is_some_and(|c| c > 1.0)).count(),
            3,
            "{row}"
        );
    }
}

#[test]
fn costs_do_not_grow_with_the_things_that_are_there() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let file = folder.path().join("growth.json");
    let mut command = freehold();
    command.args(["lab", "growth", "--quick", "--json"]).arg(&file);
    let page = folder.path().join("growth.html");
    command.arg("--html").arg(&page);
    let text = finish(command, b"").expect(0).text();
    clean_report(&page);
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(file).expect("a file")).expect("JSON");
    validate(&report, "lab.json");
    has_schema(&report["costs"], "freehold-bench-1");
    let courses = report["courses"].as_array().expect("courses");
    assert_eq!(courses.len(), 8, "four on each kernel: {text}");
    for course in courses.iter().filter(|course| course["side"] == "Freehold") {
        let exponent = course["exponent"].as_f64().expect("an exponent");
        assert!(exponent <= 0.2, "{course}");
    }
}

#[test]
fn ten_thousand_areas_or_watched_files_do_not_make_a_walk() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let file = folder.path().join("bench.json");
    let of = ["map-areas", "map-limited", "epoll-del-add"];
    let names = of.map(|name| ["1", "10000"].map(|count| format!("{name}@{count}")));
    let mut command = freehold();
    command.args(["bench", "--quick", "--runs", "1", "--json"]).arg(&file).args(names.as_flattened());
    finish(command, b"").expect(0);
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(file).expect("a file")).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    let cost = |name: &str| {
        let row = rows.iter().find(|row| row["name"] == name).expect("the row");
        row["costs"][0]["cost"].as_f64().expect("a cost")
    };
    // A tree adds its height; a list would cost a hundred times as much.
    for [one, many] in &names {
        assert!(cost(many) < 5.0 * cost(one), "{rows:?}");
    }
}

#[test]
fn the_experiment_of_copies_counts_them_on_both_kernels_and_tells_what_they_cost() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let (json, html) = (folder.path().join("cow.json"), folder.path().join("cow.html"));
    let mut command = freehold();
    command.args(["lab", "cow", "--quick", "--json"]).arg(&json).arg("--html").arg(&html);
    let text = finish(command, b"").expect(0).text();
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(json).expect("a file")).expect("JSON");
    validate(&report, "lab.json");
    let patterns = report["needless"].as_array().expect("patterns");
    assert_eq!(patterns.len(), 18, "nine on each kernel: {text}");
    for pattern in patterns {
        let count = |what: &str| pattern["boots"][0][what].as_u64().expect("a number");
        assert!(count("stores") > 0, "{pattern}");
        if pattern["side"] == "Freehold" {
            assert_eq!(count("copies"), count("needed"), "{pattern}");
        }
    }
    // The microscope counts rows that wait for a disk, the guest's clock all others, in one table.
    let rows = report["costs"]["rows"].as_array().expect("rows");
    for name in ["cow-copy", "direct-read"] {
        let row = rows.iter().find(|row| row["name"] == name).expect("the row");
        let ratio = row["ratios"][0]["ratio"].as_f64().expect("a ratio");
        assert!((0.05..2.0).contains(&ratio) && text.contains(name), "{row}");
    }
    assert!(report["costs"]["settings"]["microscope"].as_str().is_some_and(|s| s.contains("direct-read")));
    assert!(clean_report(&html).contains("Needless copies in a boot"));
}

#[test]
fn by_the_host_s_clock_rows_are_measured_by_one_and_by_as_many_as_cpus() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let more =
        ["--wall", "--cpus", "2", "--runs", "2", "--accel", "tcg", "null-call", "direct-write", "pipe"];
    let (outcome, json, _) = comparison(&folder, &more);
    let text = outcome.expect(0).text();
    assert!(text.contains("pipe ×2") && text.contains("Student's t"), "{text}");
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(json).expect("a file")).expect("JSON");
    assert_eq!(report["unit"], "nanoseconds");
    assert_eq!(report["rows"].as_array().map(Vec::len), Some(6));
}

#[test]
fn a_row_that_a_guest_cannot_perform_is_named_with_what_it_printed_and_the_rest_is_reported() {
    let folder = tempfile::tempdir().expect("temporary folder");
    // Too little memory for the resident 256 MiB.
    let (outcome, json, html) = comparison(&folder, &["-m", "96M", "null-call", "fork-256m"]);
    let said = outcome.stderr.clone();
    assert!(said.contains("fork-256m") && said.contains("Freehold"), "{said}");
    assert!(said.contains("the guest printed"), "{said}");
    outcome.expect(1);
    let report: serde_json::Value =
        serde_json::from_slice(&std::fs::read(json).expect("a file")).expect("JSON");
    let failed = &report["failures"][0];
    assert_eq!(failed["row"], "fork-256m");
    assert!(report["rows"][0]["costs"][0]["cost"].is_number(), "null-call was measured");
    assert!(clean_report(&html).contains("failed"));
}

#[test]
fn bad_input_is_refused_before_anything_runs() {
    refused(&["bench", "null-cal"], &["no operation is named null-cal", "null-call"]);
    refused(&["bench", "--runs", "0"], &["--runs 0"]);
    refused(&["bench", "--icount", "--wall"], &["--icount", "--wall"]);
    refused(&["bench", "--cpus", "2"], &["one CPU", "--wall"]);
    refused(&["bench", "--json", "/nonexistent/out.json"], &["/nonexistent/out.json"]);
    refused(&["bench", "--html", "/"], &["/", "folder"]);
    refused(&["bench", "--against", "freehold"], &["same kernel"]);
    refused(&["bench", "--against", "/nonexistent/kernel"], &["/nonexistent/kernel"]);
    refused(&["lab", "cost"], &["no experiment is named cost", "costs"]);
    refused(&["lab", "--quick"], &["which experiment"]);
}

#[test]
fn a_side_that_dies_does_not_wait_for_one_that_goes_on() {
    // With one CPU there are no runs side by side.
    if std::thread::available_parallelism().map_or(1, |count| count.get()) == 1 {
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let kernel = fake_kernel(&folder);
    // One side's QEMU refuses its kernel, the other's never answers.
    let script = format!(
        "#!/bin/sh\ncase $* in *' {} '*) echo qemu: no such kernel >&2; exit 1;; esac\nexec sleep 100000\n",
        kernel.display()
    );
    let qemu = file_of(&folder, "qemu", script.as_bytes());
    std::fs::set_permissions(&qemu, std::fs::Permissions::from_mode(0o755)).expect("an own file");
    let mut command = freehold();
    command.env("FREEHOLD_QEMU", &qemu);
    command.args(["bench", "--quick", "--timeout", TIMEOUT, "null-call", "--against"]).arg(&kernel);
    let _permit = Permit::take();
    // If both have failed, the first side is named first: here it was recalled, and had not timed
    // out.
    let outcome = finish_now(&mut command, b"").expect(125);
    let told = format!("{} does not boot: QEMU refused: no such kernel", kernel.display());
    assert!(outcome.stderr.contains(&told), "{}", outcome.stderr);
}

#[test]
fn a_kernel_that_does_not_boot_is_one_line_and_nothing_is_written() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let kernel = fake_kernel(&folder);
    let json = folder.path().join("out.json");
    let mut command = freehold();
    // Counted runs go side by side: the run that survives must not hide the end of the other.
    command.args(["bench", "--quick", "--timeout", TIMEOUT, "null-call", "--against"]);
    command.arg(&kernel).arg("--json").arg(&json);
    let _permit = Permit::take();
    let outcome = finish_now(&mut command, b"").expect(125);
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    let told = format!("{} does not boot: QEMU refused: Error while loading", kernel.display());
    assert!(outcome.stderr.contains(&told), "{}", outcome.stderr);
    assert_eq!(outcome.text(), "");
    assert!(!json.exists());
}
