//! Debian's tracers, used as by a user.

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

/// Returns the output of gdb in the VM about a program after these steps.
fn gdb_says(program: &std::path::Path, steps: &[&str]) -> Outcome {
    let mut command = vec!["gdb", "-nx", "-batch", "-ex", "set startup-with-shell off"];
    for step in steps {
        command.extend(["-ex", step]);
    }
    let there = format!("{}:/program", text(&program));
    command.push("/program");
    let mut options = vec!["-v".to_string(), there];
    // A gdb that was built with Python does not start without Python's own files.
    for folder in std::fs::read_dir("/usr/lib").into_iter().flatten().flatten() {
        if folder.file_name().to_string_lossy().starts_with("python3.") {
            let path = folder.path();
            options.extend(["-v".to_string(), format!("{}:{}", text(&path), text(&path))]);
        }
    }
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    run(&options, &command, b"").expect(0)
}

#[test]
fn gdb_watches_a_variable_and_stops_at_hardware_breakpoints() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let source = file_of(&folder, "counts.c", COUNTS);
    let program = folder.path().join("counts");
    let arguments = ["-g", "-O0", "-static", "-o", text(&program), text(&source)];
    finish_now(std::process::Command::new("cc").args(arguments), b"").expect(0);
    let steps = [
        "break main",
        "run",
        "hbreak counts",
        "continue",
        "watch counter",
        "continue",
        "delete 3",
        "rwatch shown",
        "continue",
        "delete",
        "continue",
    ];
    let told = gdb_says(&program, &steps);
    let said = told.text();
    for what in [
        "Hardware assisted breakpoint 2",
        "Breakpoint 2, counts",
        "Hardware watchpoint 3: counter",
        "Old value = 3",
        "New value = 4",
        "Hardware read watchpoint 4: shown",
        "Value = 7",
        "exited normally]",
    ] {
        assert!(said.contains(what), "{what} is not in:\n{said}\n{}", told.stderr);
    }
}

const COUNTS: &[u8] = b"volatile int counter = 3, shown = 7, sum;
void counts(void) { counter++; sum = shown; }
int main(void) { counts(); return 0; }
";

#[test]
fn gdb_stops_at_a_breakpoint_walks_the_stack_calls_and_goes_on() {
    let steps = [
        "handle SIGPIPE nostop noprint",
        "break main",
        "run",
        "backtrace",
        "print $rip == (unsigned long)&main || 1",
        "call (int)getpid() > 1",
        "stepi",
        "delete",
        "continue",
    ];
    let told = gdb_says(&guest_program("conformance/pipes"), &steps);
    let said = told.text();
    for what in ["Breakpoint 1, ", "#0  ", " in main ()", "$2 = 1", "exited normally]"] {
        assert!(said.contains(what), "{what} is not in:\n{said}\n{}", told.stderr);
    }
    assert!(!told.stderr.contains("randomization"), "{}", told.stderr);
}

/// A program that crashes two calls deep, with a variable that it has changed and
/// another thread.
const CRASHES: &[u8] = b"#include <pthread.h>
#include <unistd.h>
volatile int answer = 41;
static void *rests(void *unused) { for (;;) pause(); return unused; }
__attribute__((noinline)) void inner(volatile int *nowhere) { answer++; *nowhere = 1; answer++; }
__attribute__((noinline)) void outer(volatile int *nowhere) { inner(nowhere); answer++; }
int main(void)
{
    pthread_t thread;
    pthread_create(&thread, 0, rests, 0);
    outer((volatile int *)8);
    return 0;
}
";

#[test]
fn gdb_on_the_host_reads_the_core_file_that_a_program_left_in_a_share() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let source = file_of(&folder, "crashes.c", CRASHES);
    let program = folder.path().join("crashes");
    let arguments = ["-g", "-O1", "-static", "-o", text(&program), text(&source)];
    finish_now(std::process::Command::new("cc").args(arguments), b"").expect(0);
    let share = format!("{}:/share:rw", text(&folder.path()));
    let line = "cd /share && ulimit -c unlimited && ./crashes; echo $?";
    let told =
        run(&["-a", BUSYBOX, "--cpus", "2", "-v", &share], &["busybox", "ash", "-c", line], b"").expect(0);
    assert_eq!(told.text(), "139\n", "{}", told.stderr);
    assert!(told.stderr.contains("core dumped"), "{}", told.stderr);
    let mut gdb = std::process::Command::new("gdb");
    gdb.args(["-nx", "-batch", "-ex", "backtrace", "-ex", "print answer", "-ex", "info threads"]);
    gdb.args([&program, &folder.path().join("core")]);
    let told = finish_now(&mut gdb, b"").expect(0);
    let said = told.text();
    for what in ["#0  ", "inner (nowhere=", " in outer (", " in main ()", "$1 = 42", "* 1    ", "  2    "] {
        assert!(said.contains(what), "{what} is not in:\n{said}\n{}", told.stderr);
    }
}
