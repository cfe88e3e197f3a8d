//! Tracepoints: `--events`, and the kernel's text while events are turned on and off.

use std::path::Path;

use serde_json::Value;

use crate::common::*;
use crate::replica::watched;

/// Runs a command with `--events`; returns the trace and the outcome for machines.
fn traced(events: &str, options: &[&str], command: &str) -> (Vec<Value>, Value, Outcome) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let (trace, json) = (folder.path().join("trace.json"), folder.path().join("r.json"));
    let own = ["--events", events, "--events-out", text(&trace), "--json", text(&json)];
    let outcome = run(&[&own, options].concat(), &["busybox", "ash", "-c", command], b"");
    let read = |path: &Path| -> Value {
        serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("it is JSON")
    };
    let events = read(&trace)["traceEvents"].as_array().expect("a list").clone();
    (events, read(&json)["events"].take(), outcome.expect(0))
}

#[test]
fn events_of_a_run_are_in_a_file_that_perfetto_reads() {
    if kernel() != "freehold" {
        return;
    }
    let selection = "sched:*,raw_syscalls:sys_enter,raw_syscalls:sys_exit";
    let (events, counts, outcome) =
        traced(selection, &["--cpus", "2"], "busybox mkdir /tmp/made; busybox seq 9");
    assert_eq!(outcome.text(), "1\n2\n3\n4\n5\n6\n7\n8\n9\n");
    let of = |kind: &str, name: &str| {
        events.iter().filter(|event| event["ph"] == kind && event["name"] == name).collect::<Vec<_>>()
    };
    let made = of("B", "mkdir");
    assert_eq!(made.len(), 1, "the call was made once");
    let thread = &made[0]["tid"];
    let named = of("M", "thread_name");
    assert!(named.iter().any(|event| event["tid"] == *thread), "its thread has a name");
    let ends = events.iter().filter(|event| event["ph"] == "E" && event["tid"] == *thread);
    assert!(ends.count() > 3, "calls end");
    // The shell executes its last command in its own process.
    assert!(of("i", "sched_process_exec").len() >= 2 && !of("i", "sched_process_fork").is_empty());
    assert!(
        events.iter().any(|event| event["ph"] == "X" && event["dur"].as_f64() > Some(0.0)),
        "CPUs run threads"
    );
    let recorded = counts["recorded"].as_u64().expect("a count");
    assert!(recorded as usize + 50 > events.len() / 2 && recorded > 20, "{counts}");
    assert_eq!(counts["lost"], 0);
    assert!(
        outcome.stderr.contains("── events: ") && outcome.stderr.contains(" recorded, none lost"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn what_is_lost_is_counted_and_told() {
    if kernel() != "freehold" {
        return;
    }
    // A ring of 4 KiB, which calls overwrite before its records are taken.
    let command = "echo 4 >/sys/kernel/tracing/buffer_size_kb; busybox dd if=/dev/zero of=/dev/null bs=1 count=20000 2>/dev/null";
    let (_, counts, outcome) = traced("raw_syscalls", &["--cpus", "1"], command);
    let lost = counts["lost"].as_u64().expect("a count");
    assert!(lost > 1000, "{counts}");
    assert!(outcome.stderr.contains(&format!(" recorded, {lost} lost")), "{}", outcome.stderr);
}

#[test]
fn an_event_that_is_not_there_is_told_before_the_machine_starts() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let trace = folder.path().join("trace.json");
    let told =
        run(&["--events", "sched:sched_swich", "--events-out", text(&trace)], &["true"], b"").expect(125);
    assert!(told.stderr.contains("no event is named sched:sched_swich"), "{}", told.stderr);
    assert!(told.stderr.contains("the nearest is sched:sched_switch"), "{}", told.stderr);
    assert_eq!(told.stderr.lines().count(), 1, "{}", told.stderr);
    let told = run(&["--events", "sched"], &["true"], b"").expect(125);
    assert!(told.stderr.contains("--events-out"), "{}", told.stderr);
    let told = run(&["--events", "sched", "--events-out", "-"], &["true"], b"").expect(125);
    assert!(told.stderr.contains("name a file"), "{}", told.stderr);
    assert!(!trace.exists());
}

#[test]
fn a_kernel_parameter_records_from_the_start() {
    if kernel() != "freehold" {
        return;
    }
    let told = run(
        &["--append", "trace_event=sched:sched_process_exec"],
        &[
            "busybox",
            "ash",
            "-c",
            "cat /sys/kernel/tracing/set_event; busybox true; grep -c exec: /sys/kernel/tracing/trace",
        ],
        b"",
    );
    let told = told.expect(0).text();
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines[0], "sched:sched_process_exec");
    assert!(lines[1].parse::<u32>().expect("a number") >= 3, "{told}");
}

#[test]
fn the_kernels_text_is_the_same_on_all_nodes_after_events_were_turned_under_load() {
    if kernel() != "freehold" {
        return;
    }
    let times = turns(5);
    let command = format!(
        "cd /sys/kernel/tracing
for k in 1 2 3; do (while [ ! -e /tmp/stop ]; do busybox seq 50 | busybox sort -r >/dev/null; done) & done
i=0
while [ $i -lt {times} ]; do
    echo 1 >events/enable && echo 0 >events/enable || echo failed
    i=$((i+1))
done
: >/tmp/stop; wait; echo 1 >/sys/kernel/debug/replica && echo equal; busybox tail -n 1 /sys/kernel/debug/xpfo/check"
    );
    let (told, results) = watched(&["-m", "256M", "--cpus", "4", "--numa", "2"], &command);
    assert_eq!(told, "equal\nclean\n");
    let oracle = &results["oracle"];
    assert_eq!(oracle["total"], 0, "{oracle}");
    assert!(oracle["checks"]["text_stores"].as_u64() > Some(1000), "{oracle}");
}

/// Returns the instructions that an event costs a system call that does next to nothing.
fn cost_of(event: &str) -> f64 {
    let folder = tempfile::tempdir().expect("temporary folder");
    let json = folder.path().join("b.json");
    let mut command = freehold();
    command.args(["bench", "--quick", "--runs", "1", "--icount", "--timeout", TIMEOUT, "--json"]).arg(&json);
    command.args([
        "--append",
        &format!("trace_event={event}"),
        "--against-append",
        "trace_event=",
        "null-call",
    ]);
    let _permit = Permit::take();
    finish_now(&mut command, b"").expect(0);
    let report: Value = serde_json::from_slice(&std::fs::read(json).expect("a file")).expect("it is JSON");
    let [on, off] = [0, 1].map(|side| {
        let runs = report["rows"][0]["costs"][side]["runs"][0].as_array().expect("samples");
        runs.iter().map(|sample| sample.as_f64().expect("a number")).sum::<f64>() / runs.len() as f64
    });
    on - off
}

/// The quick kernel is compiled otherwise and checks each entry: it has no limit.
#[test]
fn an_event_that_is_on_costs_at_most_150_instructions() {
    if kernel() != "freehold" || std::env::var_os("FREEHOLD_KERNEL").is_some() {
        return;
    }
    for event in ["raw_syscalls:sys_enter", "raw_syscalls:sys_exit"] {
        let cost = cost_of(event);
        assert!((20.0..=150.0).contains(&cost), "{event}: {cost} instructions");
    }
}
