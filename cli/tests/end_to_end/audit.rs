//! The audit of all frames at a program's end: a finding fails the run, and churn gives no finding.

use serde_json::Value;

use crate::common::*;

/// `finish` would reject a run that does not balance, but this run must not balance.
#[test]
fn a_run_whose_frames_do_not_balance_fails_whatever_the_program_returned() {
    if kernel() != "freehold" {
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let file = folder.path().join("outcome.json");
    for (line, outcome, value) in [("exit 7", "exit", 7), ("kill -TERM $$", "signal", 15)] {
        let _permit = Permit::take();
        let mut command = run_command();
        command.args(["--append", "freehold.plant=lost-frame", "--json", text(&file)]);
        let ended = command.args(["--", "busybox", "ash", "-c", line]).output().expect("it runs");
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(code(ended.status), 125, "{told}");
        let sentences: Vec<&str> = told.lines().filter(|line| line.contains("does not balance")).collect();
        let [sentence] = sentences[..] else { panic!("{told}") };
        assert!(sentence.contains("anonymous frames without a process: 1"), "{sentence}");
        assert!(sentence.contains("run it again with --verbose"), "it says what to do: {sentence}");
        let json: Value =
            serde_json::from_slice(&std::fs::read(&file).expect("the file is there")).expect("JSON");
        assert_eq!((&json["outcome"], &json["status"]), (&"audit".into(), &125.into()), "{json}");
        assert_eq!(json[outcome], value, "how the program itself ended: {json}");
        assert!(json["audit"].as_str().is_some_and(|audit| audit.contains("anonymous frames")), "{json}");
        assert!(
            json["sentence"].as_str().is_some_and(|told| sentence == format!("freehold: {told}")),
            "{json}"
        );
    }
    // Such a measurement does not count.
    let _permit = Permit::take();
    let mut bench = freehold();
    bench.args(["bench", "null-call", "--runs", "1", "--against-append", "freehold.plant=lost-frame"]);
    let ended = bench.output().expect("it runs");
    let told = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(told.contains("does not balance"), "{told}");
    assert_eq!(code(ended.status), 125, "{told}");
}

/// Areas of random size are mapped and unmapped in half of memory, with a memory-side cache. The
/// run counts instructions, so each run is the same.
#[test]
fn churn_before_a_near_cache_leaves_every_pageblock_where_it_belongs() {
    let program = guest_program("workloads/churn");
    let options = ["--icount", "-m", "256M", "--near-cache", "32M"];
    let outcome = run(&options, &[text(&program), "150", "4"], b"").expect(0);
    assert_eq!(outcome.text(), "churn: 4 rounds of 4 processes, 0 failed\n");
}
