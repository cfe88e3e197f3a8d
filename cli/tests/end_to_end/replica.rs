//! Copies of the kernel's text and read-only data on the nodes that have CPUs: which CPU fetches
//! text from which node, and how copies are checked.

use serde_json::Value;

use crate::browser::clean_report;
use crate::common::*;

const FILE: &str = "/sys/kernel/debug/replica";

/// Small programs at the same time on all CPUs.
const LOAD: &str =
    "i=0; while [ $i -lt 6 ]; do busybox seq 100 | busybox sort -r >/dev/null & i=$((i+1)); done; wait";

/// Many processes at the same time on the first node's CPU. When they have ended, pairs of small
/// programs on the other node's CPU, one pair after the other.
const TURNS: &str = r#"
busybox taskset 1 busybox ash -c 'k=0; while [ $k -lt 40 ]; do busybox sleep 1 & k=$((k+1)); done; wait'
pairs='i=0; while [ $i -lt 20 ]; do busybox seq 100 | busybox sort -r >/dev/null; i=$((i+1)); done'
export pairs; busybox taskset 2 busybox ash -c 'busybox ash -c "$pairs"; :'"#;

fn said(options: &[&str], command: &str) -> Outcome {
    run(options, &["busybox", "ash", "-c", command], b"")
}

/// Processes of node 0 take turns on node 1's CPU while all their requests for a frame fail for
/// half a second. Prints the kernel's state of roots at that time, and twice when there is memory.
const STARVED: &str = "cd /sys/kernel/debug/fail_page_alloc
echo 0 >verbose; echo 0 >min-order; echo Y >task-filter; echo -1 >times; echo 100 >probability
for k in 1 2 3 4; do
    { echo 1 >/proc/self/make-it-fail; while [ ! -e /tmp/stop ]; do :; done; } & busybox taskset -p 2 $! >/dev/null
done
for k in 1 2 3; do busybox sleep 0.5; grep roots ../replica; echo 0 >probability; done
: >/tmp/stop; wait; echo 1 >../replica && echo equal";

/// Returns the output and the results of a run under `freehold scope`.
pub fn watched(options: &[&str], command: &str) -> (String, Value) {
    watched_by("locality", options, command)
}

/// Does the same with another model.
fn watched_by(model: &str, options: &[&str], command: &str) -> (String, Value) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let json = folder.path().join("r.json");
    let mut scope = freehold();
    scope.args(["scope", "--timeout", TIMEOUT, "--model", model, "--json"]).arg(&json).args(options);
    scope.args(["--", "busybox", "ash", "-c", command]);
    let told = finish(scope, b"").expect(0).text();
    let text = std::fs::read(&json).expect("the record");
    let mut record: Value = serde_json::from_slice(&text).expect("it is JSON");
    (told, record["results"].take())
}

/// Returns results of `freehold scope` for the load. For each CPU: the instructions fetched in the
/// kernel after the start, and how many of these came from another node.
fn fetches(options: &[&str]) -> (Vec<(u64, u64)>, Value) {
    let (_, results) = watched(options, LOAD);
    let homes: Vec<usize> =
        serde_json::from_value(results["settings"]["cpus"].clone()).expect("nodes of CPUs");
    let phases = results["phases"].as_array().expect("phases");
    let after_start =
        phases.iter().filter(|phase| ["program", "closing"].contains(&phase["name"].as_str().unwrap_or("")));
    let mut sums = vec![(0, 0); homes.len()];
    for phase in after_start {
        for ((sum, cpu), &home) in sums.iter_mut().zip(phase["cpus"].as_array().expect("CPUs")).zip(&homes) {
            let by_node: Vec<u64> =
                serde_json::from_value(cpu["modes"]["kernel"]["fetches"].clone()).expect("fetches by node");
            let all: u64 = by_node.iter().sum();
            *sum = (sum.0 + all, sum.1 + all - by_node.get(home).copied().unwrap_or(0));
        }
    }
    (sums, results["oracle"].clone())
}

#[test]
fn after_the_start_no_cpu_fetches_kernel_code_from_another_node() {
    if kernel() != "freehold" {
        return;
    }
    let uneven = [
        "-m",
        "384M",
        "--cpus",
        "4",
        "--node",
        "mem=128M,cpus=0",
        "--node",
        "mem=128M,cpus=1-2",
        "--node",
        "mem=128M,cpus=3",
    ];
    let machines: [&[&str]; 3] = [
        &["-m", "256M", "--cpus", "2", "--numa", "2"],
        &uneven[2..],
        &["-m", "256M", "--cpus", "4", "--numa", "4", "--append", "nokaslr"],
    ];
    for machine in machines {
        let (sums, oracle) = fetches(machine);
        for (cpu, &(all, remote)) in sums.iter().enumerate() {
            assert!(
                all > 1000 && remote == 0,
                "{machine:?}: CPU {cpu}: {remote} of {all} fetches are remote"
            );
        }
        assert_eq!(oracle["total"], 0, "{oracle}");
    }
    // The negative control: the same load without replicas.
    let (sums, _) = fetches(&["-m", "256M", "--cpus", "2", "--numa", "2", "--numa-replica", "off"]);
    assert!(sums[0].1 == 0 && sums[1].0 == sums[1].1, "{sums:?}");
}

#[test]
fn the_setting_says_which_nodes_have_a_replica_and_each_compares_equal() {
    if kernel() != "freehold" {
        return;
    }
    let replicas = |setting: &str, more: &[&str]| {
        let mut options = vec!["-m", "256M", "--cpus", "3", "--numa", "3", "--numa-replica", setting];
        options.extend(more);
        let text =
            said(&options, &format!("cat {FILE}; {LOAD}; echo 1 > {FILE} && echo equal")).expect(0).text();
        assert!(text.ends_with("equal\n"), "{text}");
        text.lines().filter(|line| line.starts_with("node ")).count()
    };
    assert_eq!(["auto", "on", "off", "1", "9"].map(|setting| replicas(setting, &[])), [2, 2, 0, 1, 2]);
    assert_eq!(
        replicas("on", &["--xpfo", "off"]),
        2,
        "outside the direct map even if all other memory is inside"
    );
    let one = said(&["--numa-replica", "on"], &format!("cat {FILE}")).expect(0).text();
    assert_eq!(one.lines().filter(|line| line.starts_with("node ")).count(), 0, "{one}");
    let refused = said(&["--numa-replica", "all"], "true").expect(125);
    assert!(refused.stderr.contains("it can be auto, on, off or a number of nodes"), "{}", refused.stderr);
}

#[test]
fn a_flipped_bit_fails_the_run_and_is_named() {
    if kernel() != "freehold" {
        return;
    }
    // `finish` would reject a run that does not balance.
    let _permit = Permit::take();
    let mut command = run_command();
    command.args(["-m", "256M", "--cpus", "2", "--numa", "2", "--append", "freehold.plant=replica-flip"]);
    let line = format!("echo 1 > {FILE} || echo differs");
    let ended = command.args(["--", "busybox", "ash", "-c", &line]).output().expect("it runs");
    let told = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!((code(ended.status), &ended.stdout[..]), (125, &b"differs\n"[..]), "{told}");
    let named = "faults of nodes' copies of the kernel: 1 (page ";
    assert!(told.contains(named) && told.contains(" of node 1's replica has changed)"), "{told}");
}

#[test]
fn a_bit_that_was_flipped_before_the_copies_were_made_is_found() {
    if kernel() != "freehold" {
        return;
    }
    let planted = ["--append", "freehold.plant=build-flip"];
    let line = format!("echo 1 > {FILE} || echo differs");
    let on_nodes = [&["-m", "256M", "--cpus", "2", "--numa", "2"], &planted[..]].concat();
    {
        // `finish` would reject a run that does not balance.
        let _permit = Permit::take();
        let mut command = run_command();
        let ended = command.args(on_nodes).args(["--", "busybox", "true"]).output().expect("it runs");
        let told = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(code(ended.status), 125, "{told}");
        let named = "faults of nodes' copies of the kernel: 1 (page ";
        assert!(told.contains(named) && told.contains(" of the image is not as it was built)"), "{told}");
    }
    // On one node the write finds it; without a plant nothing is found, wherever the image lies.
    assert_eq!(said(&planted, &line).expect(0).text(), "differs\n");
    for options in [&[][..], &["--append", "nokaslr"]] {
        assert_eq!(said(options, &line).expect(0).text(), "");
    }
}

#[test]
fn a_node_that_is_too_small_shares_and_says_so() {
    if kernel() != "freehold" {
        return;
    }
    let options = ["--cpus", "2", "--node", "mem=120M,cpus=0", "--node", "mem=2M,cpus=1", "--verbose"];
    let told = said(&options, &format!("cat {FILE}; {LOAD}; echo 1 > {FILE} && echo equal")).expect(0);
    assert!(told.text().ends_with("equal\n") && !told.text().contains("node 1:"), "{}", told.text());
    let line = "numa_replica: node 1 shares the kernel's text with another: too little memory";
    assert!(told.stderr.contains(line), "{}", told.stderr);
}

/// Prints the state of copies, uses more memory than node 0 has on the CPU of node 1, and prints
/// the state when node 1 has got its copy. Then turns static keys in all copies and compares them.
const GROWN: &str = r#"
cd /sys/kernel/debug; cat replica; echo 1 >static_keys/syscall_counts
busybox taskset 2 busybox awk 'BEGIN { s = sprintf("%1024s", ""); while (length(s) < 67108864) s = s s }'
n=0; while grep -q waits replica && [ $n -lt 300 ]; do busybox sleep 0.2; n=$((n+1)); done
cat replica; phase copied; busybox taskset 2 busybox seq 100 | busybox taskset 2 busybox sort -r >/dev/null
phase end; echo 0 >static_keys/syscall_counts; busybox taskset 2 busybox seq 9 >/dev/null; echo 1 >replica && echo equal"#;

#[test]
fn a_node_that_gets_memory_gets_its_copy_and_no_patch_is_lost() {
    if kernel() != "freehold" {
        return;
    }
    let options = ["--cpus", "2", "--node", "mem=96M,cpus=0", "--node", "mem=2M,max=128M,cpus=1"];
    let (told, results) = watched(&options, GROWN);
    let nodes: Vec<&str> = told.lines().filter(|line| line.starts_with("node ")).collect();
    let [before, after] = nodes[..] else { panic!("{told}") };
    assert_eq!(before, "node 1 waits for memory and shares node 0's");
    assert!(after.starts_with("node 1: ") && told.ends_with("equal\n"), "{told}");
    // The programs after the copy run from node 1's copy.
    let phases = results["phases"].as_array().expect("phases");
    let copied = phases.iter().find(|phase| phase["name"] == "copied").expect("the phase");
    let fetched = &copied["cpus"][1]["modes"]["kernel"]["fetches"];
    assert!(fetched[0].as_u64() == Some(0) && fetched[1].as_u64() > Some(0), "{fetched}");
    assert_eq!(results["oracle"]["total"], 0, "{}", results["oracle"]);
}

/// The CPU is on node 1 and the image on node 0, so that one CPU has a copy: instructions are
/// counted on one CPU.
#[test]
fn a_copy_delays_the_start_by_at_most_a_million_instructions() {
    if kernel() != "freehold" {
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let start = |setting: &str, nodes: usize| -> u64 {
        let json = folder.path().join("r.json");
        let options = [
            "--icount",
            "--append",
            "nokaslr",
            "--node",
            "mem=128M",
            "--node",
            "mem=128M,cpus=0",
            "--json",
            text(&json),
            "--numa-replica",
            setting,
        ];
        let told = said(&options, &format!("cat {FILE}")).expect(0).text();
        assert_eq!(told.lines().filter(|line| line.starts_with("node 1: ")).count(), nodes, "{told}");
        let record: Value =
            serde_json::from_slice(&std::fs::read(&json).expect("a file")).expect("it is JSON");
        record["boot_ns"].as_u64().expect("instructions until the program runs")
    };
    let (with, without) = (start("on", 1), start("off", 0));
    assert!(with > without && with - without <= 1_000_000, "{with} and {without}");
}

#[test]
fn a_cpu_without_memory_for_a_root_shares_until_there_is_some() {
    if kernel() != "freehold" {
        return;
    }
    let command = format!("busybox taskset 1 busybox ash -c '{STARVED}'");
    let (told, results) = watched(&["-m", "256M", "--cpus", "2", "--numa", "2"], &command);
    let numbers = |line: &str| -> Vec<u64> {
        line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect()
    };
    let roots: Vec<Vec<u64>> = told.lines().filter(|line| line.starts_with("roots: ")).map(numbers).collect();
    let [starved, fed, later] = &roots[..] else { panic!("{told}") };
    assert!(starved[1] > 0 && starved[2] > 0, "{told}");
    assert_eq!(fed[1..], later[1..], "nobody shares any more: {told}");
    assert!(told.ends_with("equal\n"), "{told}");
    assert_eq!(results["oracle"]["total"], 0, "the kernel has said who shares: {}", results["oracle"]);
}

#[test]
fn the_lab_tells_what_copies_save_and_what_they_cost() {
    if kernel() != "freehold" {
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let (json, html) = (folder.path().join("r.json"), folder.path().join("r.html"));
    let mut command = freehold();
    command.args(["lab", "replica", "--quick", "--json"]).arg(&json).arg("--html").arg(&html);
    let text = finish(command, b"").expect(0).text();
    let record: Value = serde_json::from_slice(&std::fs::read(json).expect("a file")).expect("it is JSON");
    validate(&record, "lab.json");
    let rows = record["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 28, "seven calls, with hot and cold caches, on and off: {text}");
    let number = |row: &Value, name: &str| row[name].as_f64().expect("a number");
    for row in rows {
        let (all, remote) = (number(row, "instructions"), number(row, "remote"));
        assert_eq!(remote, if row["side"] == "on" { 0.0 } else { all }, "{row}");
    }
    // Lines of data stay remote where the allocator put them: a tenth to four tenths of all misses,
    // by the boot's chance.
    let cold = |side: &str| -> Vec<&Value> {
        let is_cold = |row: &&Value| row["call"].as_str().is_some_and(|call| call.ends_with(" cold"));
        rows.iter().filter(|row| row["side"] == side).filter(is_cold).collect()
    };
    for (on, off) in cold("on").into_iter().zip(cold("off")) {
        let (mine, without) = (number(on, "remote_misses"), number(off, "remote_misses"));
        assert_eq!(on["call"], off["call"]);
        assert!(mine < 0.8 * without, "cold code comes from the own node: {on} {off} {text}");
    }
    let storm = &record["storms"][0];
    assert!(number(storm, "percent").abs() <= 0.1 && storm["is_met"] == true, "{storm}");
    let page = clean_report(&html);
    assert!(page.contains("break-even") && page.contains("has memory and no CPU"));
}

#[test]
fn on_one_node_the_setting_changes_no_instruction() {
    if kernel() != "freehold" {
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let json = folder.path().join("b.json");
    // Numbers of one digit: parameters of one length, which are read in the same number of
    // instructions.
    let sides = ["--append", "numa_replica=9", "--against-append", "numa_replica=0"];
    let mut command = freehold();
    command
        .args(["bench", "--quick", "--runs", "1", "--timeout", TIMEOUT])
        .args(sides)
        .arg("--json")
        .arg(&json);
    command.args(["null-call", "fork-exit", "fork-exec", "thread", "fault-4k", "mmap-4k", "switch-2"]);
    let _permit = Permit::take();
    finish_now(&mut command, b"").expect(0);
    let report: Value = serde_json::from_slice(&std::fs::read(json).expect("a file")).expect("it is JSON");
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 7);
    for row in rows {
        let [on, off] = [0, 1].map(|side| &row["costs"][side]["runs"]);
        assert!(on == off && on[0].as_array().is_some_and(|samples| samples.len() == 4), "{row}");
    }
}

#[test]
fn a_node_of_cpus_alone_runs_the_image_or_the_nearest_copy() {
    if kernel() != "freehold" {
        return;
    }
    let nodes = ["--cpus", "3", "--node", "mem=128M,cpus=0", "--node", "mem=64M,cpus=1", "--node", "cpus=2"];
    let far = [&nodes[..], &["--distance", "2,0,40", "--distance", "2,1,15"]].concat();
    for options in [&nodes[..], &far] {
        let line = format!("{LOAD}; cat {FILE}; echo 1 > {FILE} && echo equal");
        let told = said(options, &line).expect(0).text();
        assert!(told.contains("\nnode 1: ") && !told.contains("\nnode 2: "), "{told}");
        assert!(told.ends_with("equal\n"), "{told}");
        let (sums, oracle) = fetches(options);
        assert!(sums.iter().all(|&(all, _)| all > 1000) && oracle["total"] == 0, "{sums:?} {oracle}");
        let remote: Vec<u64> = sums.iter().map(|&(_, remote)| remote).collect();
        assert_eq!(remote, [0, 0, sums[2].0], "{sums:?}");
    }
}

#[test]
fn a_stack_waits_for_its_next_user_on_its_node() {
    if kernel() != "freehold" {
        return;
    }
    let options = ["-m", "256M", "--cpus", "2", "--numa", "2"];
    let (_, results) = watched(&options, TURNS);
    let cpu = &own_data(&results)[1];
    assert!(cpu.all > 1_000_000 && cpu.remote_stacks * 20 < cpu.all, "{cpu:?}");
    assert_eq!(results["oracle"]["total"], 0, "{}", results["oracle"]);
}

/// A CPU's accesses to the kernel's own data in the program's time.
#[derive(Debug)]
struct OwnData {
    all: u64,
    remote: u64,
    remote_stacks: u64,
}

fn own_data(results: &Value) -> Vec<OwnData> {
    let phases = results["phases"].as_array().expect("phases");
    let program = phases.iter().find(|phase| phase["name"] == "program").expect("the program's time");
    let cpus = program["cpus"].as_array().expect("CPUs").iter().map(|cpu| {
        let of = |kind: &str, side: &str| cpu["kernel_data"][kind][side].as_u64().expect("a number");
        let sum = |side: &str| -> u64 {
            ["image", "frame_table", "stacks", "tables", "heap"].iter().map(|kind| of(kind, side)).sum()
        };
        let remote = sum("remote");
        OwnData { all: sum("local") + remote, remote, remote_stacks: of("stacks", "remote") }
    });
    cpus.collect()
}

/// A shell that was moved to a node starts programs there, and threads fork on all CPUs. The
/// image's variables are on node 0, and so is what start-up allocated.
#[test]
fn most_of_the_kernels_own_data_is_on_the_node_of_its_cpu() {
    if kernel() != "freehold" {
        return;
    }
    let line = "i=0; while [ $i -lt 60 ]; do i=$((i+1)); busybox ls / | busybox wc -l >/dev/null; (exit 3); done; true";
    for cpu in [0, 1] {
        let line = format!("busybox taskset -p {} $$ >/dev/null; {line}", 1 << cpu);
        let (_, results) = watched(&["--cpus", "2", "--numa", "2"], &line);
        let data = &own_data(&results)[cpu];
        assert!(data.all > 1_000_000 && data.remote * 100 <= data.all * 20, "CPU {cpu}: {data:?}");
    }
    let storm = guest_program("workloads/fork-storm");
    let add = format!("{}:/fork-storm", text(&storm));
    let (_, results) = watched(&["--cpus", "4", "--numa", "2", "-v", &add], "/fork-storm 2");
    let data = own_data(&results);
    let (all, remote): (Vec<u64>, Vec<u64>) = data.iter().map(|cpu| (cpu.all, cpu.remote)).unzip();
    assert!(remote.iter().sum::<u64>() * 100 <= all.iter().sum::<u64>() * 35, "{data:?}");
}

#[test]
fn an_idle_cpu_of_another_node_takes_a_task_that_waits_for_longer_than_a_slice() {
    // The shell stays on the second CPU, so that one loop waits on the first, and never two tasks.
    let command = r#"
busybox taskset -p 2 $$ >/dev/null
for k in 1 2; do
    busybox ash -c "busybox taskset -p 1 \$\$ >/dev/null; : >/tmp/on$k; while :; do :; done" & pids="$pids $!"
done
while [ ! -e /tmp/on1 ] || [ ! -e /tmp/on2 ]; do busybox sleep 0.1; done
for p in $pids; do busybox taskset -p 3 $p >/dev/null; done
n=0; while [ $n -lt 100 ]; do
    cpus=; for p in $pids; do read -r stat </proc/$p/stat; set -- $stat; cpus="$cpus ${39}"; done
    case $cpus in " 0 1"|" 1 0") break;; esac
    busybox sleep 0.1; n=$((n+1))
done
kill $pids; for k in $cpus; do echo $k; done"#;
    let told = said(&["-m", "256M", "--cpus", "2", "--numa", "2"], command).expect(0).text();
    let mut cpus: Vec<&str> = told.lines().collect();
    cpus.sort_unstable();
    assert_eq!(cpus, ["0", "1"]);
}

#[test]
fn kernel_text_takes_next_to_no_tlb_entry_of_its_own() {
    if kernel() != "freehold" {
        return;
    }
    for options in [&["-m", "128M"][..], &["-m", "256M", "--cpus", "2", "--numa", "2"]] {
        let (_, results) = watched_by("tlb", options, LOAD);
        let phases = results["phases"].as_array().expect("phases");
        let program = phases.iter().find(|phase| phase["name"] == "program").expect("the program's time");
        for cpu in program["cpus"].as_array().expect("CPUs") {
            let number = |name: &str| cpu["modes"]["kernel"][name].as_u64().expect("a number");
            let (all, missed) = (number("instructions"), number("tlb_fetch_misses"));
            assert!(all > 100_000 && missed * 100_000 <= all, "{missed} misses in {all} instructions");
        }
        assert_eq!(results["oracle"]["total"], 0, "{}", results["oracle"]);
    }
}

/// Text is a run of 2 MiB pages; one of 4 KiB pages follows, unless the first ends where text does.
fn assert_text(runs: &[&str]) {
    let rights = |run: &str| run.split_whitespace().skip(2).map(str::to_owned).collect::<Vec<_>>();
    let (large, small) = runs.split_first().expect("text");
    assert_eq!(rights(large), ["ro", "PSE", "GLB", "x", "pmd"], "{runs:?}");
    let Some((small, others)) = small.split_first() else { return };
    assert_eq!(rights(small), ["ro", "GLB", "x", "pte"], "{runs:?}");
    assert!(others.is_empty() && small[..18] == large[19..37], "{runs:?}");
}

#[test]
fn a_small_machine_has_large_pages_of_text_and_an_image_at_its_place_does() {
    if kernel() != "freehold" {
        return;
    }
    let shown = "grep -h ' x ' /sys/kernel/debug/page_tables/*; tail -n 1 /sys/kernel/debug/xpfo/check";
    for options in [&["-m", "32M"][..], &["-m", "32M", "--append", "nokaslr"], &["--append", "xpfo=off"]] {
        let text = said(options, shown).expect(0).text();
        let lines = text.lines().collect::<Vec<_>>();
        let (check, code) = lines.split_last().expect("lines");
        assert_text(code);
        assert_eq!(*check, "clean");
    }
}

#[test]
fn what_a_node_maps_is_told_as_linux_does_and_nothing_is_writable_and_executable() {
    if kernel() != "freehold" {
        return;
    }
    let options = ["-m", "256M", "--cpus", "2", "--numa", "2"];
    let text = said(&options, "cd /sys/kernel/debug/page_tables; head -n 99999 node0 node1").expect(0).text();
    let (mut code, mut nodes, mut next) = ([vec![], vec![]], 0, None);
    for line in text.lines().filter(|line| line.starts_with("0x")) {
        let (start, rest) = (&line[..18], &line[19..]);
        if next.as_deref() != Some(start) {
            assert_eq!(start, "0xffff800000000000", "a gap or an overlap: {line}");
            nodes += 1;
        }
        next = Some(rest[..18].to_owned());
        let words: Vec<&str> = rest[18..].split_whitespace().collect();
        let executable = words.contains(&"x");
        assert!(!(executable && words.contains(&"RW")), "{line}");
        assert!(!words.contains(&"USR"), "{line}");
        if executable {
            code[nodes - 1].push(line);
        }
    }
    assert_eq!(nodes, 2);
    code.iter().for_each(|runs| assert_text(runs));
    assert_eq!(next.as_deref(), Some("0x0000000000000000"));
}
