//! The C programs of guest/conformance: each prints one line a promise (`ok …`, `not ok …`) and a closing plan.

use crate::common::*;

/// Runs one program in the VM and checks every line.
#[track_caller]
fn conforms(name: &str) {
    let program = guest_program(&format!("conformance/{name}"));
    let outcome = run(&["--cpus", "2"], &[text(&program)], b"");
    let said = outcome.text();
    let broken: Vec<&str> = said.lines().filter(|line| line.starts_with("not ok")).collect();
    assert!(broken.is_empty(), "{}\n{}", broken.join("\n"), outcome.stderr);
    let promises = said.lines().filter(|line| line.starts_with("ok ")).count();
    assert_eq!(
        said.lines().last(),
        Some(&*format!("1..{promises}")),
        "it stopped half-way: {said}\n{}",
        outcome.stderr
    );
    assert_eq!(outcome.status, 0, "{}", outcome.stderr);
}

#[test]
fn memory() {
    conforms("memory");
}

#[test]
fn processes() {
    conforms("processes");
}

#[test]
fn signals() {
    conforms("signals");
}

#[test]
fn pipes() {
    conforms("pipes");
}

#[test]
fn files() {
    conforms("files");
}

#[test]
fn terminal() {
    conforms("terminal");
}

#[test]
fn threads() {
    conforms("threads");
}

#[test]
fn times() {
    conforms("times");
}

#[test]
fn proc() {
    conforms("proc");
}
