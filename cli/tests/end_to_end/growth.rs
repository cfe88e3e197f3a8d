//! Memory that is plugged in when a program needs it, and unplugged when it does not.

use crate::common::*;

/// Runs a script in a machine that can grow; returns its lines of output and the outcome for
/// machines.
#[track_caller]
fn grow(options: &[&str], script: &str) -> (Vec<String>, serde_json::Value) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let file = folder.path().join("outcome.json");
    let mut all = vec!["--json", text(&file)];
    all.extend(options);
    let outcome = run(&all, &["busybox", "ash", "-c", script], b"").expect(0);
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&file).expect("written")).expect("JSON");
    assert_eq!(json["audit"], "ok", "the frame table balances");
    (outcome.text().lines().map(str::to_owned).collect(), json)
}

/// Returns the first number of a line.
fn number(line: &str) -> u64 {
    let digits = line.split_whitespace().find_map(|word| word.parse().ok());
    digits.unwrap_or_else(|| panic!("no number in {line:?}"))
}

/// Returns an awk program that doubles a string up to 64 MiB (with the one before it: 96 MiB and
/// more), and then prints lines: of each file those that contain a text.
fn eat(lines: &[(&str, &str)]) -> String {
    let print = |(file, text): &(&str, &str)| {
        format!("while ((getline line < \"{file}\") > 0) if (line ~ /{text}/) print line; ")
    };
    format!(
        "awk 'BEGIN {{ s = sprintf(\"%1024s\", \"\"); while (length(s) < 67108864) s = s s; {}print length(s) }}'",
        lines.iter().map(print).collect::<String>()
    )
}
/// Shell functions that wait until the machine has at most `$1` KiB, or until file `$1` has the
/// value `$2`, for at most 100 seconds.
const SHRINK: &str = "total() { set -- $(head -n 1 /proc/meminfo); echo $2; }; \
    shrink() { n=0; while [ $(total) -gt $1 ] && [ $n -lt 200 ]; do sleep 0.5; n=$((n + 1)); done; total; }; \
    says() { n=0; while [ $(cat $1) != $2 ] && [ $n -lt 200 ]; do sleep 0.5; n=$((n + 1)); done; cat $1; }; ";

#[test]
fn a_program_gets_more_memory_than_the_machine_began_with_and_it_goes_back() {
    if kernel() != "freehold" {
        return;
    }
    // Anonymous memory, then a file: each more than the machine has.
    let script = format!(
        "{SHRINK} total; {}; shrink 90000; dd if=/dev/zero of=/tmp/big bs=1M count=100 2> /dev/null; \
         echo $?; cat /sys/devices/system/memory/memory32/state; rm /tmp/big; shrink 90000; \
         says /sys/devices/system/memory/memory33/state offline",
        eat(&[("/proc/meminfo", "MemTotal")])
    );
    let (lines, json) = grow(&["-m", "64M", "--memory-max", "512M"], &script);
    let [start, most, eaten, back, written, state, again, empty] = &lines[..] else { panic!("{lines:?}") };
    assert!(number(start) < 64 << 10, "{start}");
    assert_eq!(eaten, "67108864");
    assert!(number(most) > 100 << 10, "it grew: {most}");
    assert!(number(back) < 90000, "it shrank: {back}");
    assert_eq!((written.as_str(), state.as_str()), ("0", "online"));
    assert!(number(again) < 90000, "it shrank again: {again}");
    assert_eq!(empty, "offline");
    assert_eq!(json["memory"]["oom_kills"], 0);
    assert!(json["memory"]["most_kib"].as_u64().is_some_and(|kib| kib > 100 << 10), "{json}");
}

#[test]
fn a_node_without_memory_gets_some_and_the_ceiling_holds() {
    if kernel() != "freehold" {
        return;
    }
    let nodes = ["--cpus", "2", "--node", "mem=64M,max=96M,cpus=0", "--node", "max=128M,cpus=1"];
    let script = format!(
        "{SHRINK} cd /sys/devices/system/node; cat has_memory node1/cpulist; taskset 2 {}; \
         awk 'BEGIN {{ s = \"x\"; while (1) s = s s }}' 2> /dev/null; echo $?; \
         shrink 150000 > /dev/null; {}",
        eat(&[("has_memory", "-"), ("node1/meminfo", "MemTotal")]),
        eat(&[]),
    );
    let (lines, json) = grow(&nodes, &script);
    let [before, cpus, after, total, eaten, killed, again] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(again, "67108864", "what went back comes again");
    assert_eq!(
        (before.as_str(), cpus.as_str(), eaten.as_str(), after.as_str()),
        ("0", "1", "67108864", "0-1")
    );
    assert!((64 << 10..=128 << 10).contains(&number(total.rsplit(':').next().expect("a part"))), "{total}");
    assert_ne!(killed, "0", "nobody gets more than the ceiling");
    assert!(json["memory"]["most_kib"].as_u64().is_some_and(|kib| kib <= 224 << 10), "{json}");
}

#[test]
fn memory_that_is_plugged_in_is_handed_out_shuffled() {
    if kernel() != "freehold" {
        return;
    }
    let placement = guest_program("workloads/placement");
    // Most of the heap is above 4 GiB, where memory is plugged in. Without shuffle successive pages
    // are neighbours.
    for (shuffle, few) in [("on", true), ("off", false)] {
        let parameter = format!("page_alloc.shuffle={shuffle}");
        let options = ["-m", "64M", "--memory-max", "512M", "--append", &parameter];
        let outcome = run(&options, &[text(&placement), "cache=192", "age=0"], b"").expect(0);
        let json: serde_json::Value = serde_json::from_slice(&outcome.stdout).expect("a line of JSON");
        assert!(json["last"].as_u64().is_some_and(|frame| frame > 1 << 20), "{json}");
        let neighbours = json["neighbours"].as_f64().expect("a number");
        assert_eq!(neighbours < 0.2, few, "shuffle {shuffle}: {neighbours} of the pages are neighbours");
    }
}

#[test]
fn memory_goes_from_under_a_program_that_stays_and_keeps_its_bytes() {
    if kernel() != "freehold" {
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let file = folder.path().join("outcome.json");
    let stay = guest_program("workloads/stay");
    let options = ["--json", text(&file), "--cpus", "2", "-m", "64M", "--memory-max", "512M"];
    let outcome = run(&options, &[text(&stay), "192", "180"], b"").expect(0);
    let said = outcome.text();
    assert!(said.ends_with("every byte is right\n"), "{said}");
    let numbers: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [most, least] = numbers[..] else { panic!("{said}") };
    // A quarter of its pages remains, spread over the plugged memory: every block of memory had
    // some.
    assert!(most > 200 && least <= 180, "{said}");
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&file).expect("written")).expect("JSON");
    assert_eq!((&json["audit"], &json["memory"]["oom_kills"]), (&"ok".into(), &0.into()));
}

#[test]
fn blocks_of_memory_are_taken_out_and_put_back_by_hand() {
    if kernel() != "freehold" {
        return;
    }
    let script = format!(
        "{SHRINK} cd /sys/devices/system/memory; total; busy=0; went=; \
         for block in memory*; do \
             if echo offline 2> /dev/null > $block/state; then went=\"$went $block\"; else busy=$((busy + 1)); fi; \
         done; total; for block in $went; do cat $block/state; done | sort -u; \
         [ $busy -gt 0 ] && echo some are busy; for block in $went; do echo online > $block/state; done; total; \
         echo nonsense > memory1/state || cat memory1/state"
    );
    // Allocated in order, the kernel's own frames lie in the same blocks at every boot.
    let options = ["--cpus", "2", "-m", "1G", "--numa", "2", "--append", "page_alloc.shuffle=off"];
    let (lines, _) = grow(&options, &script);
    let [all, left, state, busy, again, kept] = &lines[..] else { panic!("{lines:?}") };
    assert!(number(all) - number(left) >= 128 << 10, "one went at least: {lines:?}");
    assert_eq!((state.as_str(), busy.as_str(), kept.as_str()), ("offline", "some are busy", "online"));
    assert_eq!(again, all);
}

/// Returns the number of instructions up to the program's first, with so much memory.
fn boot(gib: u64) -> u64 {
    let folder = tempfile::tempdir().expect("temporary folder");
    let file = folder.path().join("outcome.json");
    let memory = format!("{gib}G");
    run(&["--icount", "--json", text(&file), "-m", &memory], &["busybox", "true"], b"").expect(0);
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&file).expect("written")).expect("JSON");
    assert_eq!(json["audit"], "ok", "the frame table balances");
    json["boot_ns"].as_u64().expect("with --icount an instruction is a nanosecond")
}

#[test]
fn a_machine_starts_as_soon_with_much_memory_as_with_little() {
    if kernel() != "freehold" {
        return;
    }
    let host = std::fs::read_to_string("/proc/meminfo").expect("a host that says how much memory it has");
    // A large machine, if the host allows it: QEMU reserves all of the memory, and the guest
    // touches little.
    let large = if number(&host) > 21 << 20 { 20 } else { 3 };
    let more = boot(large).saturating_sub(boot(1)) / (large - 1);
    assert!(more <= 200_000, "{more} instructions for each further GiB");
}
