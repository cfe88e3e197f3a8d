//! Hostile programs.

use crate::common::*;
use crate::volumes::disk_of;

/// `tools/fuzz` runs the same for half an hour.
#[test]
fn random_system_calls_leave_the_kernel_as_it_was() {
    let program = guest_program("workloads/hostile");
    for (options, words) in [
        (["--cpus", "1", "-m", "512M", "--swap", "16M"], ["-j", "1", "-u", "0", "10", "24"]),
        (["--cpus", "4", "-m", "64M", "--swap", "32M"], ["-j", "4", "-u", "1000", "3", "24"]),
        (["--cpus", "2", "-m", "64M", "--memory-max", "256M"], ["-j", "2", "-u", "0", "7", "16"]),
    ] {
        let arguments: Vec<&str> = [text(&program), "-p", "2000"].into_iter().chain(words).collect();
        // The run fails if anything is left of the processes, a frame without its owner for
        // example, or if a process outlives SIGKILL.
        let outcome = run(&options, &arguments, b"").expect(0);
        assert!(outcome.text().starts_with("hostile: "), "{}", outcome.text());
    }
}

/// A group whose last member moves while it forks, children with two waiting threads although one
/// would do, orphans that end while they get a new parent. The closing audit counts groups,
/// sessions and families anew.
#[test]
fn processes_that_come_and_go_at_once_are_counted_once() {
    let program = guest_program("workloads/families");
    for cpus in ["1", "4"] {
        let outcome = run(&["--cpus", cpus], &[text(&program), "30"], b"").expect(0);
        assert_eq!(outcome.text(), "families: 30 rounds, nobody is left\n");
    }
}

/// Weights select the calls: a reader of coverage steers the program by them.
#[test]
fn random_calls_are_drawn_by_the_weights_that_they_are_given() {
    let program = guest_program("workloads/hostile");
    let folder = tempfile::tempdir().expect("temporary folder");
    let lines: String = (0..470).map(|number| format!("{number} {}\n", u8::from(number == 39) * 3)).collect();
    let weights = file_of(&folder, "weights", lines.as_bytes());
    let volume = format!("{}:/weights", text(&weights));
    let words = [text(&program), "-w", "/weights", "-c", "5", "2", "50"];
    // On a busy host the time of a process may be over before its calls are made.
    let called = || {
        let counts = run(&["-v", &volume], &words, b"").expect(0).text();
        let rows = counts.lines().filter(|line| !line.starts_with("hostile") && !line.ends_with(" 0 0"));
        rows.map(String::from).collect::<Vec<_>>()
    };
    let is_done = (0..8).any(|_| {
        let rows = called();
        assert!(rows.iter().all(|row| row.starts_with("39 ")), "{rows:?}");
        rows == ["39 100 100"]
    });
    assert!(is_done, "in none of eight runs all calls were made");
}

#[test]
fn programs_with_random_headers_are_refused_or_run_or_killed() {
    let program = guest_program("workloads/mutated-elf");
    let outcome = run(&["-m", "64M"], &[text(&program), "1", "250"], b"").expect(0);
    let said = outcome.text();
    let numbers: Vec<u32> =
        said.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
    let [refused, ran, _, signalled, _] = numbers[..] else { panic!("{said}") };
    assert!(refused > 50 && ran > 20 && signalled > 10, "too few of a kind to mean anything: {said}");
}

#[test]
fn disks_with_wrong_bytes_are_refused_or_show_some_tree() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let (root, disk) = (folder.path().join("tree"), folder.path().join("disk"));
    std::fs::create_dir_all(root.join("deep/er")).expect("folders");
    (0..60).for_each(|name| std::fs::write(root.join(format!("deep/{name}")), [7; 5000]).expect("a file"));
    let options = ["-t", "ext4", "-O", "^metadata_csum", "-b", "1024"];
    let Some(base) = disk_of(&root, folder.path().join("base"), &options, "4m") else { return };
    std::fs::copy(&base, &disk).expect("a copy");
    let volume = format!("{}:/base", text(&base));
    let program = guest_program("workloads/mutated-disk");
    let words = [text(&program), "1", "80", "/base", "/dev/vda"];
    let outcome = run(&["-m", "64M", "--disk", text(&disk), "-v", &volume], &words, b"").expect(0);
    let said = outcome.text();
    let numbers: Vec<u32> =
        said.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse().ok()).collect();
    let [80, refused, shown, 0] = numbers[..] else { panic!("{said}") };
    assert!(refused >= 3 && shown >= 20, "{said}");
}

#[test]
fn threads_that_fight_over_pages_leave_the_kernel_as_it_was() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let data = folder.path().join("data");
    std::fs::File::create(&data).and_then(|file| file.set_len(16 << 20)).expect("an empty disk");
    let program = guest_program("workloads/hostile-pages");
    for (cpus, seed) in [("1", "1"), ("4", "2")] {
        let options = ["--cpus", cpus, "-m", "256M", "--disk", text(&data), "--swap", "16M"];
        let arguments = [text(&program), seed, "8", "80", "/dev/vda", "/dev/vdb"];
        let outcome = run(&options, &arguments, b"").expect(0);
        assert!(outcome.text().starts_with("hostile-pages: "), "{}", outcome.text());
    }
}

/// The output of guest/workloads/alike was the same on Linux 6.1 when this was written;
/// `FREEHOLD_TEST_KERNEL=linux` shows that it still is. The head of that program says how to find
/// the first difference.
#[test]
fn random_calls_about_memory_are_answered_as_by_linux() {
    let program = guest_program("workloads/alike");
    let outcome = run(&[], &[text(&program), "5", "40", "60"], b"").expect(0);
    let fold = |sum: u64, &byte: &u8| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let sum = outcome.stdout.iter().fold(0xcbf2_9ce4_8422_2325, fold);
    assert_eq!(sum, LIKE_LINUX, "it printed {} lines", outcome.text().lines().count());
}

/// FNV-1a of the lines.
const LIKE_LINUX: u64 = 0x60ec_c725_f919_cc77;
