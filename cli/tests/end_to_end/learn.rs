//! `--learn FILE` and `--files-from FILE`: a sealed run has what an earlier run used.

use super::common::{file_of, finish, freehold, kernel, run, text};

/// Imports a library in Python, whose files no program names.
const PYTHON: &[&str] =
    &["python3", "-c", "import json, decimal; print(json.dumps([1, None]), decimal.Decimal('0.1') * 3)"];

fn has_python() -> bool {
    let is_there = std::path::Path::new("/usr/bin/python3").exists();
    if !is_there {
        eprintln!("python3 is not installed: not tried");
    }
    is_there && kernel() != "linux"
}

#[test]
fn a_sealed_run_has_what_an_earlier_run_used_and_nothing_else() {
    if !has_python() {
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let list = folder.path().join("used");
    let first = run(&["--learn", text(&list), "--report", "always"], PYTHON, b"").expect(0);
    assert_eq!(first.text(), "[1, null] 0.3\n");
    assert!(first.stderr.contains("files used by the run:"), "{}", first.stderr);
    let named = std::fs::read_to_string(&list).expect("a list");
    let has = |name: &str| named.lines().any(|line| line == name);
    assert!(has("/usr/bin/python3") && named.contains("/json/__init__.py\n"), "{named}");
    // Files that are not used, made by the command, generated, or not files of the host.
    assert!(
        !named.contains("/usr/bin/busybox") && !has("/etc/passwd") && !named.contains("/proc/"),
        "{named}"
    );
    run(&["--sealed"], &["/usr/bin/python3", PYTHON[1], PYTHON[2]], b"").expect(1);
    for options in [&["--sealed"][..], &["--icount"]] {
        let options = [options, &["--files-from", text(&list)]].concat();
        assert_eq!(run(&options, PYTHON, b"").expect(0).text(), first.text());
        let words = ["/usr/bin/python3", "-c", "import sqlite3"];
        assert!(run(&options, &words, b"").expect(1).stderr.contains("No module named 'sqlite3'"));
    }
}

#[test]
fn shares_copies_and_programs_from_elsewhere_are_written_down_with_their_places() {
    if kernel() == "linux" {
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let at = |name: &str| folder.path().join(name);
    for name in ["shared", "copied"] {
        std::fs::create_dir(at(name)).expect("mkdir");
    }
    for name in ["shared/used", "shared/unused", "copied/used", "copied/unused", "secret"] {
        std::fs::write(at(name), format!("{name}\n")).expect("written");
    }
    std::os::unix::fs::symlink("used", at("shared/link")).expect("symlink");
    std::os::unix::fs::symlink("../secret", at("shared/out")).expect("symlink");
    let program = at("own");
    std::fs::copy("/usr/bin/cat", &program).expect("copied");
    let volumes = [("shared", "/s:rw"), ("copied", "/c:copy")]
        .map(|(host, guest)| format!("{}:{guest}", at(host).display()));
    let list = at("list");
    let script = format!(
        "echo made > /s/made; {} /s/link /c/used /s/out /s/made 2>/dev/null; ln -s .. /s/up; cat /s/up/secret 2>/dev/null; echo end",
        program.display()
    );
    let options = ["--learn", text(&list), "-v", &volumes[0], "-v", &volumes[1], "-a", text(&program)];
    let outcome = run(&options, &["busybox", "sh", "-c", &script], b"").expect(0);
    assert_eq!(outcome.text(), "shared/used\ncopied/used\nmade\nend\n");
    let named = std::fs::read_to_string(&list).expect("a list");
    for (guest, host) in [("/s/used", "shared/used"), ("/s/link", "shared/link"), ("/c/used", "copied/used")]
    {
        let line = format!("{guest}\t{}", at(host).display());
        assert!(named.lines().any(|other| other == line), "{line}: {named}");
    }
    assert!(named.lines().any(|line| line == text(&program)), "{named}");
    assert!(!named.contains("unused") && !named.contains("secret"), "{named}");
    let script = format!("{} /s/link /c/used; ls /s /c", program.display());
    let sealed = ["--sealed", "--files-from", text(&list)];
    let outcome = run(&sealed, &["busybox", "sh", "-c", &script], b"").expect(0);
    assert_eq!(outcome.text(), "shared/used\ncopied/used\n/c:\nused\n\n/s:\nlink\nmade\nout\nup\nused\n");
}

#[test]
fn what_goes_wrong_with_a_list_is_told() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let refused = |options: &[&str], said: &str| {
        let outcome = run(options, &["busybox", "true"], b"").expect(125);
        assert!(outcome.stderr.contains(said) && outcome.stderr.lines().count() == 1, "{}", outcome.stderr);
    };
    let list = file_of(&folder, "list", b"# a comment\n/etc/hosts\nrelative\n");
    refused(&["--files-from", text(&list)], "line 3 is malformed");
    let list = file_of(&folder, "list", b"/no/such/file\n");
    refused(&["--files-from", text(&list)], "cannot add /no/such/file");
    refused(&["--files-from", text(&folder.path().join("none"))], "cannot read");
    refused(&["--learn", text(&folder.path().join("none/list"))], "cannot write");
    if kernel() == "linux" {
        refused(&["--learn", text(&list)], "a stock Linux does not tell");
        return;
    }
    let fresh = folder.path().join("fresh");
    let mut command = freehold();
    command.args(["run", "--accel", "tcg", "--kernel", &kernel(), "--timeout", "3", "--learn", text(&fresh)]);
    command.args(["--", "busybox", "sleep", "1000"]);
    let outcome = finish(command, b"");
    assert_eq!(outcome.status, 124, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("the run did not come to its end"), "{}", outcome.stderr);
    assert!(!fresh.exists());
}
