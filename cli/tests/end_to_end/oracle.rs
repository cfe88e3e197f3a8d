//! The oracle finds each rule of memory isolation that our kernel breaks on request, and names the
//! function. Programs that map, fork, run threads on several CPUs, and enter the kernel with
//! RFLAGS.AC set break none.
//!
//! Only our kernel publishes the owners of its frames: other kernels cannot be judged.

use std::process::Command;

use serde_json::Value;

use crate::common::*;

fn is_ours() -> bool {
    kernel() == "freehold"
}

/// Returns `freehold scope` with only the models that the oracle needs.
fn scope(folder: &tempfile::TempDir, options: &[&str]) -> Command {
    scope_with("tlb", folder, options)
}

fn scope_with(models: &str, folder: &tempfile::TempDir, options: &[&str]) -> Command {
    let mut command = freehold();
    command.args(["scope", "--timeout", TIMEOUT, "--model", models, "-m", "128M", "--json"]);
    command.arg(folder.path().join("r.json")).args(options);
    command
}

fn oracle(folder: &tempfile::TempDir) -> Value {
    let text = std::fs::read(folder.path().join("r.json")).expect("the file is there");
    let mut record: Value = serde_json::from_slice(&text).expect("it is JSON");
    record["results"]["oracle"].take()
}

#[test]
fn every_planted_breach_is_found_with_the_function_that_did_it() {
    if !is_ours() {
        return;
    }
    // Each plant with the rules that it breaks, in order: a forbidden mapping is stored before it
    // is used. Inlining decides which function of the direct map and of the dynamic area stores an
    // entry. A block that enters the direct map may contain several frames of programs.
    let read = ("direct-map", "anon", "plant::read_through_direct_map");
    let entered = ("mapped", "", "freehold_arch::");
    let alias = ("writable-image", "reserved", "freehold_arch::");
    let cases: &[(&str, &[(&str, &str, &str)])] = &[
        ("direct-map-read", &[entered, read]),
        ("plugged-read", &[entered, read]),
        ("unused-mapping", &[("mapped", "anon", "freehold_arch::")]),
        ("writable-text", &[alias]),
        ("stale-entry", &[("stale", "free", "plant::use_stale_translation")]),
        ("text-alias", &[alias, ("text", "reserved", "plant::write_text_through_alias")]),
        ("smap-open", &[("smap", "reserved", "plant::leave_smap_open")]),
    ];
    for &(plant, broken) in cases {
        let folder = tempfile::tempdir().expect("temporary folder");
        let parameter = format!("freehold.plant={plant}");
        let mut command = scope(&folder, &["--cpus", "2", "--append", &parameter]);
        if plant == "plugged-read" {
            command.args(["--numa", "2", "--memory-max", "512M"]);
        }
        command.args(["--", "busybox", "echo", "on"]);
        let outcome = finish(command, b"").expect(125);
        assert_eq!(outcome.text(), "on\n", "the program itself runs to its end");
        let oracle = oracle(&folder);
        let violations = oracle["violations"].as_array().expect("a list");
        assert_eq!(violations.len(), broken.len(), "{plant}: {violations:?}");
        let lines: Vec<&str> = outcome.stderr.lines().filter(|line| line.contains("   violation:")).collect();
        for ((violation, line), (rule, owner, function)) in violations.iter().zip(lines).zip(broken) {
            assert_eq!(violation["rule"], *rule, "{plant}: {violation}");
            assert!(line.contains(function), "{plant}: {line}");
            if !owner.is_empty() {
                assert_eq!(violation["owner"], *owner, "{plant}: {violation}");
                assert_eq!(violation["count"], 1, "{plant}: {violation}");
            }
            let is_plugged = violation["frame"].as_u64().expect("a number") >= 4 << 18;
            assert_eq!(is_plugged, plant == "plugged-read", "memory devices begin at 4 GiB: {violation}");
        }
    }
}

#[test]
fn another_nodes_text_its_root_and_stores_to_a_copy_are_found() {
    if !is_ours() {
        return;
    }
    let cases: [(&str, &[&str]); 2] =
        [("wrong-root", &["root", "remote-text"]), ("replica-flip", &["writable-image", "text"])];
    for (plant, broken) in cases {
        let folder = tempfile::tempdir().expect("temporary folder");
        let parameter = format!("freehold.plant={plant}");
        let mut command = scope(&folder, &["--cpus", "2", "--numa", "2", "--append", &parameter]);
        // `finish` would reject a run whose copies differ.
        let _permit = Permit::take();
        let ended = command.args(["--", "busybox", "echo", "on"]).output().expect("it runs");
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!((code(ended.status), &ended.stdout[..]), (125, &b"on\n"[..]), "{told}");
        let oracle = oracle(&folder);
        let violations = oracle["violations"].as_array().expect("a list");
        // There is one violation for each page of text that was fetched.
        let mut rules: Vec<&str> = violations.iter().filter_map(|one| one["rule"].as_str()).collect();
        rules.dedup();
        assert_eq!(rules, broken, "{plant}: {violations:?}");
        let by = if plant == "wrong-root" { "freehold_arch::" } else { "freehold_" };
        let first = told.lines().find(|line| line.contains("   violation:")).expect("a line");
        assert!(first.contains(by), "{first}");
    }
}

#[test]
fn programs_that_map_and_fork_and_run_threads_break_no_rule() {
    if !is_ours() {
        return;
    }
    for program in ["memory", "processes", "threads"] {
        let folder = tempfile::tempdir().expect("temporary folder");
        let program = repository().join("target/guest/conformance").join(program);
        let mut command = scope(&folder, &["--cpus", "3", "--numa", "2"]);
        command.arg("--").arg(&program);
        finish(command, b"").expect(0);
        let oracle = oracle(&folder);
        assert_eq!(oracle["total"], 0, "{}: {oracle}", program.display());
        // The oracle did make checks.
        let checks = |what: &str| oracle["checks"][what].as_u64().expect("a count");
        assert!(checks("translations") > 1_000_000 && checks("direct_map") > 100_000, "{oracle}");
        assert!(checks("changes") > 100, "{oracle}");
        assert!(checks("leaves") > 1000 && checks("tables") > 10, "{oracle}");
    }
}

/// Bounce memory is added where programs had single pages, so that many records inside its blocks
/// still have the trace of a smaller one.
#[test]
fn a_disk_whose_memory_was_a_programs_breaks_no_rule() {
    if !is_ours() {
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let disk = file_of(&folder, "disk", &vec![7; 16 << 20]);
    let line = "echo never > /sys/kernel/mm/transparent_hugepage/enabled
        /churn 105 2 1; /many-io 64 256 1 read /dev/vda; /many-io 64 256 1 write /dev/vda
        echo grown $(cat /sys/kernel/debug/swiotlb/grows)";
    let mut command = scope_with("tlb,residue", &folder, &["--cpus", "2"]);
    command.arg("--disk").arg(disk);
    for name in ["churn", "many-io"] {
        command.arg("-v").arg(format!("{}:/{name}", text(&guest_program(&format!("workloads/{name}")))));
    }
    command.args(["--", "busybox", "sh", "-c", line]);
    let outcome = finish(command, b"").expect(0);
    let said = outcome.text();
    assert_eq!(said.matches("64 transfers, 0 failed").count(), 2, "{said}");
    let grown = said.trim_end().rsplit_once("grown ").and_then(|(_, count)| count.parse::<u32>().ok());
    assert!(grown.is_some_and(|count| count > 1), "the disk's memory did not grow: {said}");
    assert_eq!(oracle(&folder)["total"], 0);
}

#[test]
fn threads_with_ac_set_enter_the_kernel_in_every_way_and_smap_stays_on() {
    if !is_ours() {
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let mut command = scope(&folder, &["--cpus", "2"]);
    command.arg("--").arg(guest_program("workloads/alignment-flag")).args(["4", "8"]);
    let outcome = finish(command, b"").expect(0);
    assert!(outcome.text().contains("AC lost 0 times"), "{}", outcome.text());
    let line = "SMAP off (RFLAGS.AC) outside user copies: 0 kernel instructions;";
    assert!(outcome.stderr.contains(line), "{}", outcome.stderr);
    let oracle = oracle(&folder);
    let smap = |what: &str| oracle["smap"][what].as_u64().expect("a count");
    assert_eq!((smap("outside"), &oracle["total"]), (0, &0.into()), "{oracle}");
    // The oracle did make checks: each fault, breakpoint and bad address came with AC set, and the
    // calls' buffers were copied.
    assert!(
        smap("program_frames") >= 4 * 8 * (8 + 1 + 2) && smap("frames") > smap("program_frames"),
        "{oracle}"
    );
    // Each of the traps ran the handler's CLAC with AC set.
    assert!(smap("user_copies") > 1000 && smap("entries") >= smap("program_frames"), "{oracle}");
}

#[test]
fn a_plant_that_is_none_is_told_and_breaks_nothing() {
    if !is_ours() {
        return;
    }
    let options = ["--verbose", "--append", "freehold.plant=potatoes"];
    let outcome = run(&options, &["busybox", "true"], b"").expect(0);
    assert!(
        outcome.stderr.contains("freehold.plant=potatoes ignored: it can be build-flip, direct-map-read"),
        "{}",
        outcome.stderr
    );
}
