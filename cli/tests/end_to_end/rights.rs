//! Rights of one user's programs over another's, and attempts to harm the kernel by closing objects
//! that own others: `--user`, and the conformance programs about inspection and about chains of
//! owners.

use crate::common::*;
use crate::conformance::{conforms, conforms_with};

/// The rules of inspection: a table of calls, files of /proc, inspectors and targets.
#[test]
fn rights() {
    conforms("rights");
}

/// The bounding set, ambient capabilities, secure bits, and the sets that a program begins with.
#[test]
fn capabilities() {
    conforms("capabilities");
}

/// Objects that own each other to any depth are dropped without recursion.
#[test]
fn drops() {
    for cpus in ["1", "4"] {
        conforms_with("drops", &["--cpus", cpus], &[], &[]);
    }
}

const USER: [&str; 2] = ["--user", "1000:100"];

#[test]
fn a_program_runs_as_the_user_of_the_command_line() {
    let script = "id -u; id -g; grep -E '^(Uid|Gid|Groups|CapPrm)' /proc/self/status; echo $HOME $USER; whoami; pwd; touch /tmp/mine && stat -c %u:%g /tmp/mine";
    let said = run(&USER, &["busybox", "sh", "-c", script], b"").expect(0).text();
    let words: Vec<&str> = said.split_whitespace().collect();
    let expected = "1000 100 Uid: 1000 1000 1000 1000 Gid: 100 100 100 100 Groups: CapPrm: 0000000000000000 /tmp user user / 1000:100";
    assert_eq!(words.join(" "), expected);
}

#[test]
fn a_user_may_not_do_what_only_root_may() {
    let script = "cat /.freehold/spec || mkdir /mine || mount -t tmpfs none /tmp || chown 0 /tmp || kill -9 1 || cat /proc/1/environ || echo refused";
    let said = run(&USER, &["busybox", "sh", "-c", script], b"").expect(0);
    assert_eq!(said.text(), "refused\n", "{}", said.stderr);
}

/// The streams belong to the user, also under their names.
#[test]
fn a_users_streams_can_be_opened_by_name() {
    let script = "cat /dev/stdin; echo out > /dev/stdout; echo error > /dev/stderr; cat /proc/self/fd/0";
    let outcome = run(&USER, &["busybox", "sh", "-c", script], b"in\n").expect(0);
    assert_eq!(outcome.text(), "in\nout\n");
    assert!(outcome.stderr.contains("error"), "{}", outcome.stderr);
}

/// If only root may run a program on the host, it is refused with this reason.
#[test]
fn a_program_that_the_user_may_not_run_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("temporary folder");
    let program = folder.path().join("program");
    std::fs::copy(guest_program("conformance/drops"), &program).expect("copied");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).expect("chmod");
    let outcome = run(&USER, &[text(&program)], b"").expect(126);
    assert!(outcome.stderr.contains("user 1000") && outcome.stderr.contains("chmod"), "{}", outcome.stderr);
}

#[test]
fn a_user_is_given_by_number() {
    for (user, why) in [
        ("nobody", "not UID or UID:GID in numbers"),
        ("1000:", "not UID or UID:GID in numbers"),
        ("-1", "not UID or UID:GID in numbers"),
        ("4294967295", "too large"),
    ] {
        let mut command = freehold();
        let arguments = ["run", "--user", user, "--", "busybox", "true"];
        let outcome = finish_now(command.args(arguments), b"").expect(125);
        assert!(outcome.stderr.contains(&format!("--user {user}: {why}")), "{}", outcome.stderr);
        assert!(
            outcome.stderr.contains("1000:100") && outcome.stderr.lines().count() == 1,
            "{}",
            outcome.stderr
        );
    }
}
