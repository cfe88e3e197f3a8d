//! Disks that fail: which processes are told, and how often; and that no other process is blocked.

use crate::common::*;

/// Runs guest/conformance/broken-disk on a disk of 16 MiB with these rules of QEMU's blkdebug.
#[track_caller]
fn broken(way: &str, rules: &str) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let (mut command, disk) = run_with_failing_disk(&folder, 16 << 20, rules);
    let memory = if kernel() == "linux" { "128M" } else { "64M" };
    command.args(["--memory", memory, "--disk", text(&disk)]);
    promises(command, &[], &["broken-disk", way, "/dev/vda"], &[]);
}

/// The rule that matches no sector replaces the failing rule.
#[test]
fn writers_go_on_where_every_second_write_fails_and_each_open_file_is_told_once() {
    broken(
        "writes",
        "set-state.0.event=write_aio,file.set-state.0.state=1,file.set-state.0.new_state=2,\
         file.set-state.1.event=write_aio,file.set-state.1.state=2,file.set-state.1.new_state=1,\
         file.inject-error.0.event=write_aio,file.inject-error.0.state=2,file.inject-error.0.iotype=write,\
         file.inject-error.1.event=write_aio,file.inject-error.1.state=1,file.inject-error.1.iotype=write,\
         file.inject-error.1.sector=1000000000",
    );
}

#[test]
fn writers_go_on_where_every_write_fails() {
    broken("all-writes", "inject-error.0.event=none,file.inject-error.0.iotype=write");
}

#[test]
fn what_cannot_be_read_is_an_error_each_time_and_can_be_written() {
    broken("reads", "inject-error.0.event=none,file.inject-error.0.iotype=read");
}

#[test]
fn what_msync_tells_fsync_does_not_tell_the_same_file_again() {
    broken("once", "inject-error.0.event=none,file.inject-error.0.iotype=write,file.inject-error.0.once=on");
}

#[test]
fn a_disk_that_cannot_promise_to_keep_what_it_has_fails_each_fsync() {
    broken("flushes", "inject-error.0.event=none,file.inject-error.0.iotype=flush");
}

/// QEMU would stop the machine until it is told to go on.
#[test]
fn a_full_disk_of_the_host_is_an_error_to_the_writer_and_a_sentence_to_the_user() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let rules = "inject-error.0.event=none,file.inject-error.0.iotype=write,file.inject-error.0.errno=28";
    let (mut command, disk) = run_with_failing_disk(&folder, 1 << 20, rules);
    command.args(["--memory", "128M", "--disk", text(&disk), "--", "busybox", "sh", "-c"]);
    let script = "dd if=/dev/zero of=/dev/vda bs=64k count=4 conv=fsync || echo failed";
    command.arg(script);
    let outcome = finish(command, b"").expect(0);
    assert_eq!(outcome.text(), "failed\n", "{}", outcome.stderr);
    let told = "the host has no room left for the file behind /dev/vda";
    assert_eq!(outcome.stderr.matches(told).count(), 1, "{}", outcome.stderr);
}

/// Runs guest/workloads/many-io on `disks` slow disks of 4 MiB, and returns its output, and the
/// most slots of bounce memory that were in use.
#[track_caller]
fn many_io(disks: usize, iops: u32, options: &[&str], words: &[&str]) -> String {
    let folder = tempfile::tempdir().expect("temporary folder");
    let program = guest_program("workloads/many-io");
    let mut command = run_command();
    command.args(["--memory", "256M", "--cpus", "2"]).args(options);
    for number in 0..disks {
        let disk = file_of(&folder, &format!("disk{number}"), &vec![7; 4 << 20]);
        command.arg("--disk").arg(format!("{},iops={iops}", text(&disk)));
    }
    let line = "/many-io \"$@\" && echo slots $(cat /sys/kernel/debug/swiotlb/io_tlb_used_hiwater)";
    command.arg("-v").arg(format!("{}:/many-io", text(&program)));
    command.args(["--", "busybox", "sh", "-c", line, "sh"]).args(words);
    command.args((0..disks).map(|number| format!("/dev/vd{}", (b'a' + number as u8) as char)));
    finish(command, b"").expect(0).text()
}

#[test]
fn a_disk_that_keeps_nothing_has_its_size_and_is_zeroes_whatever_is_written() {
    let script = "tr '\\0' x </dev/zero | dd of=/dev/vda bs=4k count=8 oflag=direct 2>/dev/null && \
                  wc -c </dev/vda && dd if=/dev/vda bs=4k count=8 iflag=direct 2>/dev/null | tr -d '\\0' | wc -c";
    let mut command = run_command();
    command.args(["--disk", "null=2M,latency=5ms", "--", "busybox", "ash", "-c", script]);
    assert_eq!(finish(command, b"").expect(0).text(), "2097152\n0\n");
}

/// Counted time jumps from timer to timer while the program waits for a disk.
#[test]
fn a_disk_of_a_busy_host_is_waited_for_however_far_counted_time_jumps() {
    let mut command = freehold();
    command.args(["run", "--icount", "--report", "never", "--disk", "null=1M,latency=300ms"]);
    command.args(["--", "busybox", "dd", "if=/dev/vda", "bs=4k", "count=3", "iflag=direct"]);
    assert_eq!(finish(command, b"").expect(0).stdout, [0; 3 * 4096]);
}

/// A process that outlives the program has pages in memory alone. They are stored when its end
/// closes the disk, however long the disk takes. The kernel does not report the process as one that
/// never ends.
#[test]
fn what_a_process_wrote_is_stored_when_the_run_ends() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let disk = file_of(&folder, "disk", &vec![7; 1 << 20]);
    let line = "(exec 3<>/dev/vda; n=0
        while [ $n -lt 24 ]; do busybox dd if=/dev/zero of=/dev/vda bs=4k count=1 seek=$((n*8)) conv=notrunc 2> /dev/null; n=$((n+1)); done
        echo > /ready; exec busybox sleep 100) & while [ ! -e /ready ]; do busybox sleep 0.1; done";
    let mut command = run_command();
    command.arg("--disk").arg(format!("{},iops=5", text(&disk))).args(["--", "busybox", "sh", "-c", line]);
    finish(command, b"").expect(0);
    let bytes = std::fs::read(&disk).expect("the disk");
    let wrong =
        |&page: &usize| bytes[page * 4096] != if page.is_multiple_of(8) && page < 192 { 0 } else { 7 };
    assert_eq!((0..256).find(wrong), None, "the first page that is not as it was written");
}

#[test]
fn a_hundred_threads_on_one_slow_disk_wait_and_none_fails() {
    for way in ["read", "write"] {
        let said = many_io(1, 100, &[], &["100", "128", "2", way]);
        assert!(said.contains("200 transfers, 0 failed"), "{way}: {said}");
    }
}

#[test]
fn nearly_five_hundred_threads_on_four_slow_disks_wait_and_none_fails() {
    let said = many_io(4, 20, &[], &["480", "128", "1", "read"]);
    assert!(said.contains("480 transfers, 0 failed"), "{said}");
    if kernel() == "linux" {
        return;
    }
    // The number of places of the disks limits it, not the number of threads: 10 MiB.
    let (_, most) = said.trim_end().rsplit_once("slots ").expect("the last line");
    let most: usize = most.parse().expect("a number");
    assert!((1 << 10..=5 << 10).contains(&most), "{most} slots of 2 KiB at the most: {said}");
}

#[test]
fn a_task_that_waits_for_a_slow_disk_ends_when_it_is_killed_and_the_disk_goes_on() {
    let said = many_io(1, 5, &[], &["64", "128", "4", "kill"]);
    assert!(said.contains("killed at once") && said.contains("2 transfers, 0 failed"), "{said}");
}

/// With a cap of 2 MiB on all devices together, where stock Linux hangs on the second load.
#[test]
fn slow_disks_under_a_small_cap_of_bounce_buffers_wait_and_none_fails() {
    let cap = ["--append", "swiotlb.max=2M"];
    let said = many_io(1, 100, &cap, &["100", "128", "2", "write"]);
    assert!(said.contains("200 transfers, 0 failed"), "{said}");
    let said = many_io(4, 20, &cap, &["480", "128", "1", "write"]);
    assert!(said.contains("480 transfers, 0 failed"), "{said}");
}

/// The disk has 256 KiB for the rings and all transfers of 100 threads, and this memory is its own:
/// it neither grows nor lends.
#[test]
fn a_restricted_disk_works_with_the_memory_that_it_has() {
    let own = ["--sealed", "--append", "swiotlb.restricted=vda:256K"];
    let said = many_io(1, 1000, &own, &["100", "128", "1", "write"]);
    assert!(said.contains("100 transfers, 0 failed"), "{said}");
    let folder = tempfile::tempdir().expect("temporary folder");
    let disk = file_of(&folder, "disk", &vec![7; 4 << 20]);
    let line = "cd /sys/kernel/debug/swiotlb; dd if=/dev/vda of=/dev/null bs=1M iflag=direct 2>/dev/null
        cat io_tlb_nslabs vda/io_tlb_nslabs; [ $(cat vda/io_tlb_used) -le 16 ] && echo few; ls -F | grep /";
    let mut command = run_command();
    command.args(own).args(["--disk", text(&disk), "--", "busybox", "sh", "-c", line]);
    let said = finish(command, b"").expect(0).text();
    assert_eq!(said.split_whitespace().collect::<Vec<_>>(), ["128", "128", "few", "vda/"]);
}

#[test]
fn bounce_buffers_grow_with_a_load_and_are_what_they_were_ten_seconds_after_it() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let disk = file_of(&folder, "disk", &vec![7; 4 << 20]);
    let line = "cd /sys/kernel/debug/swiotlb; cat io_tlb_nslabs
        dd if=/dev/vda of=/dev/null bs=1M count=4 iflag=direct 2>/dev/null
        grow=$(cat io_tlb_nslabs); [ $grow -ge 640 ] && echo grown; cat io_tlb_used_hiwater
        echo 1 > io_tlb_used_hiwater 2>/dev/null || echo refused; echo 0 > io_tlb_used_hiwater
        sleep 10; cat io_tlb_nslabs";
    let mut command = run_command();
    // The run is sealed, so that the program's own text does not pass through the pool.
    command.args([
        "--sealed",
        "--append",
        "swiotlb=128,2,force",
        "--disk",
        text(&disk),
        "--",
        "busybox",
        "sh",
        "-c",
        line,
    ]);
    let said = finish(command, b"").expect(0).text();
    let words: Vec<_> = said.split_whitespace().collect();
    assert!(
        matches!(words[..], ["128", "grown", most, "refused", "128"] if most.parse::<u32>().unwrap() > 512),
        "{said}"
    );
}

#[test]
fn the_closing_table_says_what_was_bounced() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let disk = file_of(&folder, "disk", &vec![7; 4 << 20]);
    let line = "dd if=/dev/vda of=/dev/null bs=1M iflag=direct 2>/dev/null";
    let options = ["--sealed", "--report", "always", "--disk", text(&disk)];
    let outcome = run(&options, &["busybox", "sh", "-c", line], b"").expect(0);
    let kib = |label: &str| {
        let (number, unit) = outcome.stderr.split_once(label)?.1.trim_start().split_once(' ')?;
        let (number, unit): (f64, _) = (number.parse().ok()?, unit.split_whitespace().next()?);
        Some(if unit == "MiB" { number * 1024.0 } else { number })
    };
    let (bounced, most) = (kib("passed through bounce"), kib("bounce at its most"));
    assert!(bounced.is_some_and(|kib| (4096.0..5120.0).contains(&kib)), "{}", outcome.stderr);
    assert!(most.is_some_and(|kib| (768.0..2048.0).contains(&kib)), "{}", outcome.stderr);
}

/// Kinds of IOMMUs, and their modes.
const KINDS: [(&str, &str); 4] = [
    ("--iommu=vtd", "iommu=on"),
    ("--iommu=vtd", "iommu=strict"),
    ("--iommu=virtio", "iommu=on"),
    ("--iommu=virtio", "iommu=strict"),
];

/// Behind an IOMMU disks work as without one, each function has a domain of its own, and no access
/// is refused.
#[test]
fn disks_work_behind_an_iommu_and_each_device_has_a_domain() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let disk = file_of(&folder, "disk", &vec![7; 4 << 20]);
    let line = "cd /sys/kernel/debug/iommu; cat /dev/vda | md5sum
        dd if=/dev/vda of=/dev/vda bs=1M count=4 iflag=direct oflag=direct 2>/dev/null && md5sum < /dev/vda
        cut -d' ' -f1 domains; cat faults; [ $(cat invalidations) -ge 2 ] && echo told";
    for (kind, mode) in KINDS {
        let mut command = run_command();
        command.args([kind, "--append", mode, "--disk", text(&disk), "--", "busybox", "sh", "-c", line]);
        let said = finish(command, b"").expect(0).text();
        let words: Vec<_> = said.split_whitespace().filter(|&word| word != "-").collect();
        assert!(matches!(words[..], [one, two, ..] if one == two), "{said}");
        assert_eq!(words[2..], ["stream", "error", "control", "vda", "folder", "0", "told"], "{said}");
    }
}

/// Transfers in place are correct, through the cache and past it, in whole pages and parts of
/// pages. Only parts of pages pass through bounce buffers. No access is refused, and nothing stays
/// reachable.
#[test]
fn disks_reach_programs_pages_in_their_places() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let bytes: Vec<u8> = (0..8 << 20).map(|at: usize| (at / 7 + at / 4096) as u8).collect();
    let disk = file_of(&folder, "disk", &bytes);
    let line = "md5sum < /dev/vda; dd if=/dev/vda of=/a bs=1M iflag=direct 2>/dev/null; md5sum < /a
        dd if=/a of=/dev/vda bs=1M oflag=direct 2>/dev/null; dd if=/dev/vda bs=4608 iflag=direct 2>/dev/null | md5sum
        dd if=/a of=/dev/vda bs=256k 2>/dev/null; sync; md5sum < /dev/vda
        cd /sys/kernel/debug; cat iommu/faults; grep ^vda iommu/domains | cut -d' ' -f4
        [ $(grep ^vda swiotlb/devices | cut -d' ' -f7) -lt 9000000 ] && echo few; grep ^vda swiotlb/devices | cut -d' ' -f4";
    for (kind, mode) in KINDS {
        let mut command = run_command();
        command.args([kind, "--dma", "direct", "--append", mode, "--disk", text(&disk)]);
        command.args(["--", "busybox", "sh", "-c", line]);
        let said = finish(command, b"").expect(0).text();
        let words: Vec<_> = said.split_whitespace().filter(|&word| word != "-").collect();
        assert!(words.len() == 8 && words[..4].iter().all(|sum| *sum == words[0]), "{said}");
        assert_eq!((words[4], words[6], words[7]), ("0", "few", "0"), "{said}");
        // These are rings, headers and the spare buffer.
        assert!(words[5].parse::<u32>().is_ok_and(|pages| pages < 8), "{said}");
    }
    assert!(std::fs::read(&disk).expect("the disk") == bytes);
}

/// A program that is killed while a slow disk has its pages ends when the disk has answered, and
/// the closing audit finds no page missing.
#[test]
fn pages_of_a_killed_program_stay_with_the_disk_until_it_answers() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let disk = file_of(&folder, "disk", &vec![7; 8 << 20]);
    let slow = format!("{},iops=4", text(&disk));
    let line = "for i in 1 2 3 4 5 6; do dd if=/dev/vda of=/dev/null bs=1M count=8 iflag=direct 2>/dev/null &
        pids=\"$pids $!\"; done; busybox sleep 1; kill -9 $pids; wait; busybox sleep 4
        cd /sys/kernel/debug; cat iommu/faults; grep ^vda iommu/domains | cut -d' ' -f4
        grep ^nr_foll_pin /proc/vmstat | cut -d' ' -f2 | uniq | wc -l";
    for kind in ["--iommu=vtd", "--iommu=virtio"] {
        let mut command = run_command();
        command.args([kind, "--dma", "direct", "--cpus", "2", "--disk", &slow]);
        command.args(["--", "busybox", "sh", "-c", line]);
        let said = finish(command, b"").expect(0).text();
        let words: Vec<_> = said.split_whitespace().collect();
        assert!(words.len() == 3 && words[0] == "0" && words[2] == "1", "{said}");
        assert!(words[1].parse::<u32>().is_ok_and(|pages| pages < 8), "{said}");
    }
}

/// With an IOMMU that stays off, devices work as without one.
#[test]
fn disks_work_with_an_iommu_that_stays_off() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let disk = file_of(&folder, "disk", &vec![7; 1 << 20]);
    let line = "wc -c < /dev/vda; [ -e /sys/kernel/debug/iommu ] || echo off";
    for kind in ["--iommu=vtd", "--iommu=virtio"] {
        let options = [kind, "--append", "iommu=off", "--disk", text(&disk)];
        let said = run(&options, &["busybox", "sh", "-c", line], b"").expect(0).text();
        assert_eq!(said, "1048576\noff\n", "{kind}");
    }
}

/// If the requested IOMMU is missing, no program starts: devices could access all memory.
#[test]
fn an_iommu_that_is_wanted_and_cannot_be_used_is_one_sentence() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let qemu = file_of(&folder, "qemu", b"#!/bin/sh\nexec qemu-system-x86_64 \"$@\" $MORE_OPTIONS\n");
    std::fs::set_permissions(&qemu, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("chmod");
    let none = (&["--append", "iommu=on"][..], "", "firmware tells of none");
    let useless =
        (&["--iommu"][..], "-global intel-iommu.dma-translation=off", "it lacks tables of 3 or 4 levels");
    let off = (
        &["--dma", "direct", "--append", "iommu=off"][..],
        "",
        "iommu=off leaves it off, and dma=direct needs it",
    );
    for (options, more, reason) in [none, useless, off] {
        let mut command = run_command();
        command.env("FREEHOLD_QEMU", &qemu).env("MORE_OPTIONS", more);
        command.args(options).args(["--", "busybox", "echo", "started"]);
        let outcome = finish(command, b"").expect(125);
        let sentence = format!("the IOMMU that devices were to be behind cannot be used: {reason}");
        assert!(
            outcome.stderr.contains(&sentence) && outcome.stderr.lines().count() == 1,
            "{}",
            outcome.stderr
        );
        assert_eq!(outcome.text(), "");
    }
}

/// Returns the differences of the 17 figures between two lines of /sys/block/vda/stat.
fn differences(before: &str, after: &str) -> Vec<u64> {
    let figures = |line: &str| -> Vec<u64> {
        line.split_whitespace().map(|figure| figure.parse().expect("a number")).collect()
    };
    figures(after).iter().zip(figures(before)).map(|(after, before)| after - before).collect()
}

#[test]
fn requests_are_counted_as_linux_does() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let disk = file_of(&folder, "disk", &vec![0; 4 << 20]);
    let script = "cd /sys/block/vda; cat stat; /usr/bin/dd if=/dev/vda of=/dev/null bs=64k count=16 iflag=direct; \
                  cat stat; /usr/bin/dd if=/dev/zero of=/dev/vda bs=4k count=8 oflag=direct conv=fsync; \
                  cat stat; grep ' vda ' /proc/diskstats";
    let disk = format!("{},iops=40", text(&disk));
    let options = ["--disk", &disk, "-a", "/usr/bin/dd"];
    let said = run(&options, &["busybox", "sh", "-c", script], b"").expect(0).text();
    let [first, second, third, all] = said.lines().collect::<Vec<_>>()[..] else { panic!("{said}") };
    let read = differences(first, second);
    assert_eq!((read[0], read[2], read[4], read[8]), (16, 2048, 0, 0), "{said}");
    // QEMU lets a tenth of a second's requests pass at once.
    assert!(read[3] >= 200 && read[9] >= 200 && read[10] >= 200, "at 40 a second: {said}");
    let written = differences(second, third);
    assert_eq!((written[0], written[4], written[6], written[8]), (0, 8, 64, 0), "{said}");
    assert!(written[15] >= 1, "it was flushed: {said}");
    let third: Vec<&str> = third.split_whitespace().collect();
    let all: Vec<&str> = all.split_whitespace().collect();
    assert_eq!((&all[..3], &all[3..]), (&["254", "0", "vda"][..], &third[..]));
}

/// The programs of util-linux and procps that list disks, on a disk and one that is read-only.
#[test]
fn lsblk_and_vmstat_list_the_disks() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let disk = file_of(&folder, "disk", &vec![0; 4 << 20]);
    let read_only = format!("{},ro", text(&file_of(&folder, "read-only", &vec![0; 8 << 20])));
    let programs = ["-a", "/usr/bin/lsblk", "-a", "/usr/bin/vmstat"];
    let disks = ["--disk", text(&disk), "--disk", &read_only];
    let script = "lsblk && lsblk -o NAME,MIN-IO,PHY-SEC,LOG-SEC,RA,ZONED,HOTPLUG && \
                  dd if=/dev/vdb of=/dev/null bs=8k count=1 iflag=direct && vmstat -d && vmstat -p vdb";
    let words = ["busybox", "sh", "-c", script];
    let said = run(&[&programs[..], &disks].concat(), &words, b"").expect(0).text();
    let rows: Vec<Vec<&str>> = said.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[1], ["vda", "254:0", "0", "4M", "0", "disk"], "{said}");
    assert_eq!(rows[2], ["vdb", "254:16", "0", "8M", "1", "disk"], "{said}");
    assert_eq!(rows[4], ["vda", "512", "512", "512", "128", "none", "0"], "{said}");
    assert_eq!(rows[9][0], "vdb", "{said}");
    let count = |row: usize, column: usize| rows[row][column].parse::<u64>().expect("a number");
    assert!(count(9, 1) >= 1 && count(9, 3) >= 16, "{said}");
    assert_eq!((count(11, 0), count(11, 1), count(11, 2)), (count(9, 1), count(9, 3), 0), "{said}");
}
