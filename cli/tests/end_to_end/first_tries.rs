//! Programs as a new user tries them first: each script of `cli/tests/first-tries` has the same
//! output and status in the VM as on the host.
//!
//! `tools/first-tries` runs the scripts that take long, and those whose programs are rarely
//! installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::common::{Outcome, finish, finish_now, kernel, repository, run_command, text};

/// The search path of a program in the VM.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

fn is_installed(program: &str) -> bool {
    std::env::split_paths(PATH).any(|folder| folder.join(program).exists())
}

fn scripts() -> PathBuf {
    repository().join("cli/tests/first-tries").canonicalize().expect("the scripts")
}

/// Returns a command of the host in surroundings like the VM's.
fn on_the_host(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", PATH).env("HOME", "/root").env("USER", "root");
    command.stdin(std::process::Stdio::null());
    command
}

#[track_caller]
fn same(name: &str, host: &Outcome, guest: &Outcome) {
    assert_eq!(guest.text(), host.text(), "{name}: {}", guest.stderr);
    assert_eq!((guest.status, guest.stderr.as_str()), (host.status, host.stderr.as_str()), "{name}");
}

#[track_caller]
fn the_same_as_on_the_host(name: &str, options: &[&str]) {
    if kernel() == "linux" {
        return; // A stock Linux does not see the host's /usr.
    }
    let script = scripts().join(format!("{name}.sh"));
    let head = std::fs::read_to_string(&script).expect("a script");
    let needs = head.lines().next().and_then(|line| line.strip_prefix("# needs: ")).expect("a first line");
    if let Some(missing) = needs.split(' ').find(|program| !is_installed(program)) {
        eprintln!("{missing} is not installed: {name} is not tried");
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let mut host = on_the_host("bash");
    let host = finish_now(host.arg(&script).arg(folder.path()), b"");
    let mut guest = run_command();
    let volume = format!("{}:/tries:ro", text(&scripts()));
    let line = format!("mkdir /tmp/try && exec bash /tries/{name}.sh /tmp/try");
    guest.args(options).args(["-v", &volume, "--", "bash", "-c", &line]);
    same(name, &host, &finish(guest, b""));
}

#[test]
fn a_shell_script() {
    the_same_as_on_the_host("bash", &[]);
}

#[test]
fn python_with_sqlite_processes_and_sockets() {
    the_same_as_on_the_host("python", &[]);
}

#[test]
fn compilers_and_make() {
    the_same_as_on_the_host("gcc", &[]);
}

#[test]
fn git_with_two_servers() {
    the_same_as_on_the_host("git", &[]);
}

#[test]
fn tmux() {
    the_same_as_on_the_host("tmux", &[]);
}

#[test]
fn node_with_an_http_server() {
    the_same_as_on_the_host("node", &[]);
}

#[test]
fn a_go_program() {
    let go = Path::new("/usr/local/go/bin/go");
    let go = if go.exists() { go } else { Path::new("go") };
    let folder = tempfile::tempdir().expect("temporary folder");
    let program = folder.path().join("server");
    let source = scripts().join("server.go");
    let mut build = Command::new(go);
    build.args(["build", "-o"]).arg(&program).arg(source).env("CGO_ENABLED", "0");
    match build.output() {
        Ok(built) if built.status.success() => {}
        Ok(built) => panic!("{}", String::from_utf8_lossy(&built.stderr)),
        Err(_) => return eprintln!("go is not installed: not tried"),
    }
    let host = finish_now(&mut on_the_host(text(&program)), b"");
    let mut guest = run_command();
    guest.arg("--").arg(&program);
    same("go", &host, &finish(guest, b""));
}
