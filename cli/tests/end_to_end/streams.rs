//! The three streams and the exit status of a program in the VM are those of a program on the host.

use std::process::Stdio;
use std::time::Duration;

use crate::common::*;

#[test]
fn a_program_prints_and_ends_with_its_status() {
    let outcome = run(&[], &["busybox", "echo", "hi"], b"").expect(0);
    assert_eq!(outcome.text(), "hi\n");
    assert_eq!(outcome.stderr, "", "a run that went well says nothing of its own");
}

#[test]
fn every_exit_status_arrives_whole() {
    for status in [1, 2, 77, 124, 127, 255] {
        shell(&format!("exit {status}")).expect(status);
    }
}

#[test]
fn a_signal_that_ends_the_program_is_128_and_its_number() {
    shell("kill -KILL $$").expect(137);
    shell("kill -SEGV $$").expect(139);
}

#[test]
fn stdout_and_stderr_stay_apart() {
    let outcome = shell("echo to stdout; echo to stderr >&2; echo more").expect(0);
    assert_eq!(outcome.text(), "to stdout\nmore\n");
    assert_eq!(outcome.stderr, "to stderr\n");
}

#[test]
fn a_megabyte_of_any_bytes_comes_back_as_it_went() {
    let bytes = all_bytes(1 << 20);
    let outcome = run(&[], &["busybox", "cat"], &bytes).expect(0);
    assert!(outcome.stdout == bytes, "{} bytes came back", outcome.stdout.len());
}

#[test]
fn the_last_bytes_before_the_end_are_not_lost() {
    let bytes = all_bytes(200_001);
    let line = "cat > f; cat f; cat f >&2; exit 3";
    let mut command = run_command();
    command.args(["--", "busybox", "ash", "-c", line]);
    let outcome = finish(command, &bytes).expect(3);
    assert!(outcome.stdout == bytes, "{} bytes of stdout", outcome.stdout.len());
}

#[test]
fn an_empty_stdin_is_an_end_of_file_at_once() {
    let outcome = run(&[], &["busybox", "wc", "-c"], b"").expect(0);
    assert_eq!(outcome.text(), "0\n");
}

#[test]
fn a_reader_that_is_slow_slows_the_program_and_loses_nothing() {
    let _permit = Permit::take();
    let mut command = run_command();
    command.args(["--", "busybox", "seq", "1", "150000"]).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut stdout = child.stdout.take().expect("piped");
    std::thread::sleep(Duration::from_secs(4));
    let mut output = String::new();
    std::io::Read::read_to_string(&mut stdout, &mut output).expect("text");
    assert_eq!(code(wait(&mut child)), 0);
    assert!(output.lines().zip(1..).all(|(line, number)| line == number.to_string()));
    assert_eq!(output.lines().count(), 150_000);
}

#[test]
fn a_reader_that_goes_away_ends_the_program_with_sigpipe() {
    let _permit = Permit::take();
    let mut command = run_command();
    command.args(["--", "busybox", "yes"]).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut stdout = child.stdout.take().expect("piped");
    std::io::Read::read_exact(&mut stdout, &mut [0; 4]).expect("y comes");
    drop(stdout);
    assert_eq!(code(wait(&mut child)), 128 + 13);
}

#[test]
fn time_out_is_124_and_says_so() {
    let late = |timeout: &str| {
        let mut command = freehold();
        command.args(["run", "--accel", "tcg", "--timeout", timeout, "--kernel", &kernel()]);
        command.args(["--", "busybox", "sh", "-c", "echo up; exec busybox sleep 1000"]);
        let outcome = finish(command, b"").expect(124);
        assert!(outcome.stderr.contains(&format!("did not end within {timeout}")), "{}", outcome.stderr);
        outcome
    };
    // A busy host boots slowly, and a guest that has not booted has no threads.
    let outcome = ["4s", "16s", "1m"].into_iter().map(late).find(|outcome| outcome.text() == "up\n");
    let stderr = outcome.expect("it boots within a minute").stderr;
    let line = stderr.lines().skip(1).find(|line| line.split_whitespace().nth(1) == Some("busybox"));
    let line = line.unwrap_or_else(|| panic!("where it was: {stderr}"));
    assert!(line.contains("sleeps in") && line.contains("sys_clock_nanosleep"), "{line}");
}

#[test]
fn a_signal_to_the_command_reaches_the_program() {
    let _permit = Permit::take();
    let mut command = run_command();
    let line = "trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep 0.1; done";
    command.args(["--", "busybox", "ash", "-c", line]).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut stdout = std::io::BufReader::new(child.stdout.take().expect("piped"));
    let mut said = String::new();
    std::io::BufRead::read_line(&mut stdout, &mut said).expect("text");
    assert_eq!(said, "ready\n");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it lives");
    std::io::Read::read_to_string(&mut stdout, &mut said).expect("text");
    assert_eq!(said, "ready\ncaught\n");
    assert_eq!(code(wait(&mut child)), 9);
}

#[test]
fn environment_and_folder_are_as_asked() {
    let options = ["-e", "COLOUR=dark blue", "-e", "PATH=/nowhere", "--cwd", "/some/where"];
    let line = "echo $COLOUR; echo $PATH; pwd; echo $0 $1 $#";
    let outcome = run(&options, &["busybox", "ash", "-c", line, "zero", "one", ""], b"").expect(0);
    assert_eq!(outcome.text(), "dark blue\n/nowhere\n/some/where\nzero one 2\n");
}

#[test]
fn files_and_folders_are_found_where_they_were_put() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let file = file_of(&folder, "data", b"contents\n");
    std::os::unix::fs::symlink("data", folder.path().join("link")).expect("symlink");
    let volume = format!("{}:/put/here", folder.path().display());
    let line = format!("cat {} /put/here/link; readlink /put/here/link", file.display());
    let outcome = run(&["-a", text(&file), "-v", &volume], &["busybox", "ash", "-c", &line], b"").expect(0);
    assert_eq!(outcome.text(), "contents\ncontents\ndata\n");
}

#[test]
fn a_whole_tree_can_be_the_root() {
    let folder = tempfile::tempdir().expect("temporary folder");
    std::fs::create_dir(folder.path().join("bin")).expect("mkdir");
    let busybox = String::from_utf8(
        finish_now(std::process::Command::new("sh").args(["-c", "command -v busybox"]), b"").stdout,
    )
    .expect("a path");
    std::fs::copy(busybox.trim(), folder.path().join("bin/busybox")).expect("copy");
    std::os::unix::fs::symlink("busybox", folder.path().join("bin/ls")).expect("symlink");
    let outcome = run(&["--root", text(&folder.path())], &["ls", "/bin"], b"").expect(0);
    assert_eq!(outcome.text(), "busybox\nls\n");
}
