//! Static keys: the kernel's text is patched on every node while CPUs run it.

use serde_json::Value;

use crate::common::*;
use crate::replica::watched;

const KEYS: &str = "/sys/kernel/debug/static_keys";

/// Turns the key on and off so often while small programs run on all CPUs; then compares all copies
/// of text, and the kernel's map.
fn turned(times: usize) -> String {
    format!(
        "cd /sys/kernel/debug
for k in 1 2 3; do (while [ ! -e /tmp/stop ]; do busybox seq 50 | busybox sort -r >/dev/null; done) & done
i=0
while [ $i -lt {times} ]; do
    echo 1 >static_keys/syscall_counts && echo 0 >static_keys/syscall_counts || echo failed
    i=$((i+1))
done
: >/tmp/stop; wait; echo 1 >replica && echo equal; busybox tail -n 1 xpfo/check"
    )
}

/// Returns the calls that the outcome for machines lists; `None` if they were not counted.
fn counted(options: &[&str], command: &str) -> Option<Vec<Value>> {
    let folder = tempfile::tempdir().expect("temporary folder");
    let json = folder.path().join("r.json");
    let path = json.to_str().expect("a name");
    let options = [&["--json", path], options].concat();
    run(&options, &["busybox", "ash", "-c", command], b"").expect(0);
    let text = std::fs::read(&json).expect("the outcome");
    let mut outcome: Value = serde_json::from_slice(&text).expect("it is JSON");
    serde_json::from_value(outcome["syscalls"].take()).expect("a list, or null")
}

#[test]
fn while_a_key_is_turned_each_cpu_runs_the_old_instruction_int3_or_the_new_one() {
    if kernel() != "freehold" {
        return;
    }
    let times = turns(60);
    let machine = ["-m", "256M", "--cpus", "4", "--numa", "2"];
    let (told, results) = watched(&machine, &turned(times));
    assert_eq!(told, "equal\nclean\n");
    // Start-up turns keys, too: the one for several nodes.
    let (_, at_first) = watched(&machine, &turned(1));
    let oracle = &results["oracle"];
    assert_eq!(oracle["total"], 0, "{oracle}");
    // The oracle did make checks: six bytes are stored for each site, copy and turn, and CPUs met
    // INT3.
    let count = |of: &Value, what: &str| of["oracle"]["checks"][what].as_u64().expect("a count");
    let stores = count(&results, "text_stores") - count(&at_first, "text_stores");
    let least = (2 * (times - 1) * 2 * 6) as u64;
    assert!(stores >= least && stores.is_multiple_of(least), "{stores} stores: {oracle}");
    assert!(count(&results, "breakpoints") > 0, "{oracle}");
}

#[test]
fn a_key_says_what_it_was_set_to_and_takes_nothing_else() {
    if kernel() != "freehold" {
        return;
    }
    let line = format!(
        "cd {KEYS}; cat *; echo 1 >syscall_counts; cat *; echo 1 >syscall_counts; cat *
for wrong in 2 on ''; do echo $wrong >syscall_counts || cat *; done; echo 0 >syscall_counts; cat *"
    );
    let told = run(&[], &["busybox", "ash", "-c", &line], b"").expect(0);
    assert_eq!(told.text().split_whitespace().collect::<Vec<_>>(), ["0", "1", "1", "1", "1", "1", "0"]);
    assert_eq!(told.stderr.matches("write error: Invalid argument").count(), 3, "{}", told.stderr);
}

#[test]
fn calls_are_counted_where_somebody_asks_and_nowhere_else() {
    if kernel() != "freehold" {
        return;
    }
    let calls = counted(&[], "true").expect("--json asks");
    assert!(calls.iter().any(|call| call["name"] == "exit_group" && call["calls"] == 1), "{calls:?}");
    assert_eq!(counted(&["--append", "syscall_counts=off"], "true"), None);
    let later = format!("echo 1 >{KEYS}/syscall_counts; busybox mkdir /tmp/a");
    let calls = counted(&["--append", "syscall_counts=off"], &later).expect("somebody turned the key");
    assert!(calls.iter().any(|call| call["name"] == "mkdir" && call["calls"] == 1), "{calls:?}");
    assert!(!calls.iter().any(|call| call["name"] == "mount"), "those before were not counted: {calls:?}");
}

#[test]
fn a_key_that_cannot_be_turned_for_want_of_memory_stays_as_it_was() {
    if kernel() != "freehold" {
        return;
    }
    let line = format!(
        "cd /sys/kernel/debug; echo 0 >fail_page_alloc/min-order; echo N >fail_page_alloc/ignore-gfp-highmem
n=1; failed=0
while [ $n -lt 60 ]; do
    echo $n >/proc/self/fail-nth
    if echo 1 >{KEYS}/syscall_counts; then break; fi
    echo 0 >/proc/self/fail-nth
    failed=$((failed+1)); read state <{KEYS}/syscall_counts; [ $state = 0 ] || echo half
    n=$((n+1))
done 2>/tmp/why
echo 0 >/proc/self/fail-nth; cat {KEYS}/syscall_counts; echo 1 >replica && echo equal
[ $failed -gt 0 ] && ! grep -v 'Cannot allocate memory' /tmp/why && echo failed"
    );
    let told = run(&["--cpus", "2", "--numa", "2", "-m", "256M"], &["busybox", "ash", "-c", &line], b"");
    assert_eq!(told.expect(0).text(), "1\nequal\nfailed\n");
}
