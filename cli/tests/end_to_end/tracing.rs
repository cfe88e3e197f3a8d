//! Debian's tracers, as a user runs them.

use crate::common::*;

const BUSYBOX: &str = "/usr/bin/busybox";
const STRACE: &str = "/usr/bin/strace";

#[test]
fn strace_follows_processes_and_names_calls_signals_and_ends() {
    let line = "echo first; (exit 3); kill -USR1 $$; wait";
    let command = [
        "strace",
        "-f",
        "-o",
        "/dev/stderr",
        "busybox",
        "ash",
        "-c",
        "trap : USR1; eval \"$1\"",
        "ash",
        line,
    ];
    let told = run(&["-a", BUSYBOX, "--cpus", "2"], &command, b"").expect(0);
    assert_eq!(told.text(), "first\n");
    let has = |what: &str| {
        assert!(told.stderr.lines().any(|line| line.contains(what)), "{what} is not in:\n{}", told.stderr);
    };
    has("execve(");
    has("write(1, \"first\\n\", 6)");
    has("exit_group(3");
    has("+++ exited with 3 +++");
    has("si_status=3");
    has("--- SIGUSR1 {si_signo=SIGUSR1, si_code=SI_USER, si_pid=");
    has("rt_sigreturn({mask=[]}");
    has("+++ exited with 0 +++");
}

#[test]
fn strace_attaches_to_what_runs_and_leaves_it_running() {
    let line = "busybox ash -c 'while [ ! -e /tmp/stop ]; do sleep 0.05; done; echo done' & \
                strace -o /tmp/said -p $! & sleep 0.5; kill $!; wait $!; touch /tmp/stop; wait; \
                grep -q 'wait4(' /tmp/said && echo seen";
    let told = run(&["-a", STRACE, "--cpus", "2"], &["busybox", "ash", "-c", line], b"").expect(0);
    assert_eq!(told.text(), "done\nseen\n", "{}", told.stderr);
}

#[test]
fn gdb_stops_at_a_breakpoint_walks_the_stack_calls_and_goes_on() {
    let program = guest_program("conformance/pipes");
    let mut command = vec!["gdb", "-nx", "-batch"];
    for step in [
        "set startup-with-shell off",
        "handle SIGPIPE nostop noprint",
        "break main",
        "run",
        "backtrace",
        "print $rip == (unsigned long)&main || 1",
        "call (int)getpid() > 1",
        "stepi",
        "delete",
        "continue",
    ] {
        command.extend(["-ex", step]);
    }
    let there = format!("{}:/program", text(&program));
    command.push("/program");
    let mut options = vec!["-v".to_string(), there];
    // A gdb that was built with Python does not begin without Python's own files.
    for folder in std::fs::read_dir("/usr/lib").into_iter().flatten().flatten() {
        if folder.file_name().to_string_lossy().starts_with("python3.") {
            let path = folder.path();
            options.extend(["-v".to_string(), format!("{}:{}", text(&path), text(&path))]);
        }
    }
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let told = run(&options, &command, b"").expect(0);
    let said = told.text();
    for what in ["Breakpoint 1, ", "#0  ", " in main ()", "$2 = 1", "exited normally]"] {
        assert!(said.contains(what), "{what} is not in:\n{said}\n{}", told.stderr);
    }
    assert!(!told.stderr.contains("randomization"), "{}", told.stderr);
}
