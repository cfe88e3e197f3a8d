//! Copies of files' pages on the nodes whose CPUs execute them.

use serde_json::Value;

use crate::common::*;
use crate::conformance::conforms_with;
use crate::replica::watched;

const SWITCH: &str = "/proc/sys/vm/numa_mirror_text";
const NODES: [&str; 6] = ["-m", "256M", "--cpus", "2", "--numa", "2"];

/// A program that spends its time in its own text, twice on the second node's CPU.
const TWICE: &str = "loop='i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done'
for name in first second; do
    phase $name
    busybox taskset 2 busybox ash -c \"$loop\"
done
phase end";

/// Returns the number of instructions that programs fetched on the second CPU in a phase, and how
/// many of them came from the other node.
fn programs_fetches(results: &Value, name: &str) -> (u64, u64) {
    let phases = results["phases"].as_array().expect("phases");
    let phase = phases.iter().find(|phase| phase["name"] == name).expect("the phase");
    let fetches = &phase["cpus"][1]["modes"]["user"]["fetches"];
    let of = |node: usize| fetches[node].as_u64().expect("a count");
    (of(0) + of(1), of(0))
}

#[test]
fn a_programs_second_run_on_another_node_fetches_its_text_there() {
    if kernel() != "freehold" {
        return;
    }
    let (_, results) = watched(&NODES, TWICE);
    let (all, remote) = programs_fetches(&results, "second");
    assert!(all > 1_000_000 && remote * 100 <= all, "{remote} of {all} fetches are remote");
    assert_eq!(results["oracle"]["total"], 0, "{}", results["oracle"]);
    // Without copies, both runs fetch from the node that has the file.
    let (_, results) = watched(&NODES, &format!("echo 0 >{SWITCH}; {TWICE}"));
    for name in ["first", "second"] {
        let (all, remote) = programs_fetches(&results, name);
        assert!(all > 1_000_000 && remote * 100 >= all * 99, "{name}: {remote} of {all} fetches are remote");
    }
}

/// Programs that run on node 1.
const LOAD: &str = "for k in 1 2 3; do busybox taskset 2 busybox true; done";

/// The lines of /proc/vmstat about copies: made, fallen, existing.
fn counters(told: &str) -> Vec<[u64; 3]> {
    let number = |line: &str| line.rsplit(' ').next()?.parse().ok();
    let numbers: Vec<u64> =
        told.lines().filter(|line| line.starts_with("numa_mirror_")).filter_map(number).collect();
    numbers.chunks_exact(3).map(|three| [three[0], three[1], three[2]]).collect()
}

#[test]
fn the_switch_makes_all_copies_fall_and_one_node_has_none() {
    if kernel() != "freehold" {
        return;
    }
    let shown = "grep numa_mirror /proc/vmstat";
    let command =
        format!("{LOAD}; cat {SWITCH}; {shown}; echo 0 >{SWITCH}; cat {SWITCH}; {shown}; {LOAD}; {shown}");
    let command = format!("{command}; echo 2 >{SWITCH}; echo 1 >{SWITCH}; {LOAD}; {shown}");
    let told = run(&NODES, &["busybox", "ash", "-c", &command], b"").expect(0).text();
    let [at_first, off, still_off, on] = counters(&told)[..] else { panic!("{told}") };
    assert!(at_first[0] > 0 && at_first[2] > 0 && at_first[0] == at_first[1] + at_first[2], "{told}");
    assert_eq!((off[2], still_off[2], still_off[0]), (0, 0, off[0]), "{told}");
    assert!(on[0] > off[0] && on[2] > 0, "{told}");
    let switch: Vec<&str> = told.lines().filter(|line| line.len() == 1).collect();
    assert_eq!(switch, ["1", "0"], "{told}");
    let one = format!("cat {SWITCH}; echo 1 >{SWITCH} || echo refused; {LOAD}; {shown}");
    let nodes_of_cpus = ["--cpus", "2", "--node", "mem=128M,cpus=0-1", "--node", "mem=64M"];
    for options in [&["--cpus", "2"][..], &nodes_of_cpus] {
        let told = run(options, &["busybox", "ash", "-c", &one], b"").expect(0).text();
        assert!(told.starts_with("0\nrefused\n"), "{told}");
        assert_eq!(counters(&told), [[0; 3]], "{told}");
    }
}

#[test]
fn a_change_of_a_file_is_executed_on_all_nodes_at_once() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let disk = file_of(&folder, "disk", &[0; 1 << 20]);
    let options = [&NODES[..], &["--disk", text(&disk)]].concat();
    conforms_with("text", &options, &["/dev/vda"], &[]);
    if kernel() == "freehold" {
        let program = guest_program("conformance/text");
        let command = format!("{} /dev/vda; grep numa_mirror /proc/vmstat", text(&program));
        let options = [&options[..], &["-a", text(&program)]].concat();
        let told = run(&options, &["busybox", "ash", "-c", &command], b"").expect(0).text();
        let made = counters(&told)[0][0];
        assert!(made > 150, "copies were made and fell all the time: {told}");
    }
}

#[test]
fn copies_go_before_anything_else_when_memory_is_short() {
    if kernel() != "freehold" {
        return;
    }
    let shown = "grep -E 'numa_mirror|oom_kill' /proc/vmstat";
    let options = ["-m", "96M", "--cpus", "2", "--numa", "2", "--swap", "64M"];
    // The file system's limit ends it.
    let hungry = "busybox dd if=/dev/zero of=/tmp/big bs=1M 2>/dev/null";
    let command = format!("{LOAD}; {shown}; {hungry}; {shown}");
    let told = run(&options, &["busybox", "ash", "-c", &command], b"").expect(0).text();
    let [before, after] = counters(&told)[..] else { panic!("{told}") };
    assert!(before[2] > 0 && after[1] > before[1], "{told}");
    assert!(told.contains("oom_kill 0"), "{told}");
}
