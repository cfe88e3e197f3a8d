//! On a terminal the guest has a terminal: size, Ctrl-C, job control; and our terminal is restored.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{self, Termios, Winsize};

use crate::common::*;

/// The command on a terminal of its own.
struct Terminal {
    master: File,
    slave: OwnedFd,
    /// The terminal's settings before the command changed them.
    before: Termios,
    child: Child,
    said: Arc<Mutex<String>>,
    _permit: Permit,
}

impl Terminal {
    fn start(program: &[&str]) -> Terminal {
        let mut command = run_command();
        command.arg("--").args(program);
        Terminal::with(command)
    }

    /// Starts a shell with job control, in whose `script` `$FREEHOLD` begins a run.
    fn of_shell(script: &str) -> Terminal {
        let run = run_command();
        let words = [run.get_program()].into_iter().chain(run.get_args()).map(OsStr::to_owned);
        let words: Vec<_> = words.map(|word| word.into_string().expect("a plain word")).collect();
        let mut command = Command::new("setsid");
        command.args(["--ctty", "sh", "-mc", script]).env("FREEHOLD", words.join(" "));
        Terminal::with(command)
    }

    fn with(mut command: Command) -> Terminal {
        let permit = Permit::take();
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&master).expect("granted");
        unlockpt(&master).expect("unlocked");
        let name = ptsname(&master, Vec::new()).expect("a name");
        let slave = rustix::fs::open(
            &*name,
            rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY,
            rustix::fs::Mode::empty(),
        )
        .expect("it opens");
        resize(&slave, 33, 77);
        let before = termios::tcgetattr(&slave).expect("settings");
        let end = || Stdio::from(slave.try_clone().expect("a copy"));
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("it starts");
        let said = Arc::new(Mutex::new(String::new()));
        let master = File::from(master);
        let (mut reader, heard) = (master.try_clone().expect("a copy"), Arc::clone(&said));
        // The thread ends with the test: the slave is held open until then.
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(size @ 1..) = reader.read(&mut bytes) {
                heard.lock().expect("whole").push_str(&String::from_utf8_lossy(&bytes[..size]));
            }
        });
        Terminal { master, slave, before, child, said, _permit: permit }
    }

    fn key(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    /// Waits until `part` has been printed since the last call, and discards all text up to its
    /// end.
    #[track_caller]
    fn hear(&mut self, part: &str) {
        let started = Instant::now();
        loop {
            {
                let mut said = self.said.lock().expect("whole");
                if let Some(at) = said.find(part) {
                    said.drain(..at + part.len());
                    return;
                }
                assert!(
                    started.elapsed() < Duration::from_secs(250),
                    "{part:?} was never said; but: {said:?}"
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn resize(terminal: &OwnedFd, rows: u16, columns: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    termios::tcsetwinsize(terminal, size).expect("a size");
}

#[test]
fn an_interactive_shell_has_size_interrupts_and_job_control() {
    let mut terminal = Terminal::start(&["busybox", "ash"]);
    terminal.hear("# ");
    terminal.key("stty size\n");
    terminal.hear("33 77");
    resize(&terminal.slave, 40, 100);
    let pid = rustix::process::Pid::from_child(&terminal.child);
    rustix::process::kill_process(pid, rustix::process::Signal::WINCH).expect("it lives");
    terminal.key("until stty size | grep ^40; do sleep 0.1; done\n");
    terminal.hear("40 100");
    let sleeper = "busybox ash -c 'echo up; exec sleep 1000'\n";
    terminal.key(sleeper);
    terminal.hear("up\r\n");
    terminal.key("\x03");
    terminal.hear("^C");
    terminal.key("echo status=$?\n");
    terminal.hear("status=130");
    terminal.key(sleeper);
    terminal.hear("up\r\n");
    terminal.key("\x1a");
    terminal.hear("Stopped");
    // A shell does not exit while it has a stopped job, and its wait skips such a job. fg notices
    // that the job is dead, or resumes it and waits for its end. fg is on a line of its own, as it
    // may fail.
    terminal.key("kill -KILL %1; fg\nexit 6\n");
    assert_eq!(code(wait(&mut terminal.child)), 6);
    let after = termios::tcgetattr(&terminal.slave).expect("settings");
    assert_eq!(after.local_modes, terminal.before.local_modes, "echo and line editing are back");
    assert_eq!(after.input_modes, terminal.before.input_modes);
}

#[test]
fn the_terminal_is_given_back_when_the_command_is_told_to_end() {
    let mut terminal =
        Terminal::start(&["busybox", "ash", "-c", "trap '' TERM; echo up; while :; do sleep 1; done"]);
    terminal.hear("up");
    let pid = rustix::process::Pid::from_child(&terminal.child);
    // The program ignores the signals, so the third one ends the VM. Two that come at once count as
    // one.
    while terminal.child.try_wait().expect("waiting works").is_none() {
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is there");
        std::thread::sleep(Duration::from_millis(150));
    }
    assert_eq!(code(wait(&mut terminal.child)), 143);
    let after = termios::tcgetattr(&terminal.slave).expect("settings");
    assert_eq!(after.local_modes, terminal.before.local_modes);
}

#[test]
fn the_escape_key_leaves_a_program_that_takes_every_key() {
    let line = "stty raw -echo; trap '' INT TERM QUIT HUP; echo up; while :; do sleep 1; done";
    let mut terminal = Terminal::start(&["busybox", "ash", "-c", line]);
    terminal.hear("up");
    terminal.key("\x03\x1c");
    // The program gets two keys.
    terminal.key("\x1d\x1d");
    std::thread::sleep(Duration::from_millis(1500));
    assert!(
        terminal.child.try_wait().expect("waiting works").is_none(),
        "it takes two more than a second ago"
    );
    terminal.key("\x1d\x1d\x1d");
    terminal.hear("ended from the terminal");
    assert_eq!(code(wait(&mut terminal.child)), 130);
    let after = termios::tcgetattr(&terminal.slave).expect("settings");
    assert_eq!(after.local_modes, terminal.before.local_modes);
}

#[test]
fn a_job_in_the_background_leaves_the_terminal_alone_and_comes_to_its_end() {
    let mut terminal = Terminal::of_shell("$FREEHOLD -- busybox echo done & wait $!; echo status=$?");
    terminal.hear("done");
    let during = termios::tcgetattr(&terminal.slave).expect("settings");
    assert_eq!(during.local_modes, terminal.before.local_modes, "the shell has the terminal");
    terminal.hear("status=0");
    assert_eq!(code(wait(&mut terminal.child)), 0);
}

/// Returns the state of a process, as proc_pid_stat(5) names it, and the numbers of its children.
fn state(process: &str) -> (char, Vec<String>) {
    let read = |name: String| std::fs::read_to_string(name).unwrap_or_default();
    let stat = read(format!("/proc/{process}/stat"));
    let children = read(format!("/proc/{process}/task/{process}/children"));
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    (state.unwrap_or('?'), children.split_whitespace().map(str::to_owned).collect())
}

#[test]
fn a_stopped_job_stops_the_vm_and_is_ended_when_it_is_told_to_and_continued() {
    let mut terminal = Terminal::of_shell(
        "$FREEHOLD -- busybox sh -c 'echo up; while :; do sleep 1; done' & echo pid=$!.; \
         read line; kill -TSTP %1; read line; kill -CONT %1; read line; kill -TSTP %1; read line; \
         kill -TERM %1; bg %1; wait $!; echo status=$?",
    );
    terminal.hear("pid=");
    let process = terminal.said.lock().expect("whole").split('.').next().expect("a number").to_owned();
    terminal.hear("up");
    let qemu = state(&process).1.pop().expect("a machine");
    let mut reach = |wanted: bool| {
        terminal.key("\n");
        let started = Instant::now();
        while [&process, &qemu].map(|of| state(of).0 == 'T') != [wanted; 2] {
            assert!(started.elapsed() < Duration::from_secs(250), "{:?} {:?}", state(&process), state(&qemu));
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    reach(true);
    reach(false);
    reach(true);
    terminal.key("\n");
    terminal.hear("status=143");
    assert_eq!(code(wait(&mut terminal.child)), 0);
}
