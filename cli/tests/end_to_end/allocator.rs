//! The page allocator's statistics, in the places and formats that tools for Linux know.

use std::collections::BTreeMap;

use crate::common::*;

/// Parses lines of `name value`, or `Node N name value`.
fn figures(text: &str) -> BTreeMap<String, u64> {
    let pair = |line: &str| {
        let mut words = line.split_whitespace().rev();
        let value = words.next()?.parse().ok()?;
        Some((words.next()?.to_owned(), value))
    };
    text.lines().filter_map(pair).collect()
}

/// Returns the output of a script, split at lines of `--`.
#[track_caller]
fn parts(script: &str) -> Vec<String> {
    let options = ["--cpus", "2", "--numa", "2", "-m", "256M"];
    let outcome = run(&options, &["busybox", "ash", "-c", script], b"").expect(0);
    outcome.text().split("--\n").map(str::to_owned).collect()
}

#[test]
fn nodes_count_what_they_hand_out_and_to_whom() {
    if kernel() != "freehold" {
        return;
    }
    let parts = parts(
        "cd /sys/devices/system/node; cat node1/numastat; echo --; cat /proc/vmstat; echo --; \
         taskset 2 dd if=/dev/zero of=/tmp/file bs=1M count=20 2> /dev/null; \
         cat node1/numastat; echo --; cat node0/numastat; echo --; cat /proc/vmstat; echo --; cat node1/vmstat",
    );
    let [before, all_before, after, other, all, node] =
        &parts.iter().map(|p| figures(p)).collect::<Vec<_>>()[..]
    else {
        panic!("{parts:?}")
    };
    // 20 MiB for a CPU of node 1, on node 1.
    for name in ["numa_hit", "local_node"] {
        let grown = after[name] - before[name];
        assert!((5120..8000).contains(&grown), "{name} grew by {grown}");
    }
    for node in [after, other] {
        assert_eq!(node["numa_hit"] + node["numa_miss"], node["local_node"] + node["other_node"]);
        assert_eq!((node["numa_miss"], node["numa_foreign"], node["interleave_hit"]), (0, 0, 0));
    }
    let held = |stat: &BTreeMap<String, u64>| stat["pgalloc_normal"] - stat["pgfree"];
    assert!((5120..6000).contains(&(held(all) - held(all_before))), "pages, not blocks");
    assert!(all["numa_hit"] >= after["numa_hit"] + other["numa_hit"]);
    assert_eq!((all["allocstall_normal"], all["compact_stall"], all["oom_kill"]), (0, 0, 0));
    assert!((5120..6000).contains(&node["nr_file_pages"]), "the file is on node 1: {node:?}");
}

#[test]
fn free_memory_is_shown_as_linux_shows_it() {
    if kernel() != "freehold" {
        return;
    }
    let parts = parts(
        "taskset 1 true; taskset 2 true; cat /proc/buddyinfo; echo --; cat /proc/pagetypeinfo; echo --; cat /proc/zoneinfo; echo --; \
         cd /sys/kernel/debug/extfrag; cat unusable_index; echo --; cat extfrag_index; echo --; \
         cd /sys/module/page_alloc/parameters; stat -c %a shuffle; cat shuffle",
    );
    let [buddy, types, zones, unusable, fragmentation, shuffle] = &parts[..] else { panic!("{parts:?}") };
    let numbers = |line: &str| -> Vec<f64> {
        let (_, counts) = line.split_once("Normal").expect("a zone");
        counts.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    for (node, line) in buddy.lines().enumerate() {
        assert!(line.starts_with(&format!("Node {node}, zone   Normal ")), "{line}");
        assert_eq!(numbers(line).len(), 11, "{line}");
    }
    let heads = types.lines().filter(|line| {
        *line == "Free pages count per migrate type at order       0      1      2      3      4      5      6      7      8      9     10 "
    });
    assert_eq!((buddy.lines().count(), heads.count()), (2, 2), "{types}");
    // Untouched memory is free in the largest blocks.
    let free = types.lines().find(|line| line.starts_with("Node    1") && line.contains("type         Free"));
    assert!(numbers(free.expect("wholly free pageblocks"))[10] > 20.0, "{types}");
    // Each CPU's lists are shown with the node whose frames they hold.
    let counts: Vec<u64> = zones
        .lines()
        .filter_map(|line| line.trim().strip_prefix("count:"))
        .map(|count| count.trim().parse().expect("a number"))
        .collect();
    assert_eq!((counts.len(), counts[1], counts[2]), (4, 0, 0), "{counts:?}");
    assert!(counts[0] > 0 && counts[3] > 0, "{counts:?}");
    for line in unusable.lines().chain(fragmentation.lines()) {
        let shares = numbers(line);
        assert_eq!(shares.len(), 11, "{line}");
        assert!(shares.iter().all(|share| (-1.0..=1.0).contains(share)), "{line}");
    }
    assert!(unusable.starts_with("Node 0, zone   Normal 0.000 "), "{unusable}");
    assert_eq!(shuffle, "400\nN\n");
}

#[test]
fn the_closing_table_says_how_much_is_free_in_whole_pageblocks() {
    if kernel() == "freehold" {
        let outcome = run(&["--report", "always"], &["busybox", "true"], b"").expect(0);
        assert!(outcome.stderr.contains("in whole 2 MiB blocks"), "{}", outcome.stderr);
    }
}
