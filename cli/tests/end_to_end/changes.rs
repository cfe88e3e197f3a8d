//! `--changes DIR`: the changes that a run leaves on the host, and their use by a later run.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::common::{Dialogue, finish, freehold, kernel, run, text};

/// Shows the files that the first run makes.
const LOOK: &str = "cd /; stat -c '%n %a %u:%g %h %t:%T %F' etc/new etc/hard srv/d srv/link srv/null srv/pipe srv/tool; \
    readlink srv/link; cat etc/new usr/bin/env etc/group; ls -d etc/hostname usr/bin/perl* 2>&1; ls srv/d usr/share/doc";

#[test]
fn a_later_run_goes_on_where_one_ended() {
    if kernel() == "linux" {
        return; // It has no way to write them down.
    }
    let parent = tempfile::tempdir().expect("temporary folder");
    let folder = parent.path().join("kept");
    let options = ["--changes", text(&folder)];
    let script = "cd /; echo one > etc/new; ln etc/new etc/hard; chown 1000:7 etc/new; mkdir -m 1777 srv/d 2>/dev/null || mkdir -p srv/d; \
        chmod 1777 srv/d; ln -s /nowhere srv/link; mknod srv/null c 1 3; mkfifo -m 600 srv/pipe; cp bin/busybox srv/tool; \
        chmod 6751 srv/tool; echo mine > usr/bin/env; echo more:x:9: >> etc/group; rm etc/hostname; rm -f usr/bin/perl*; \
        rm -rf usr/share/doc; mkdir usr/share/doc; echo 'sly name' > \"srv/d/a$(printf '\\n\\t\\\\')b\"; echo gone > tmp/gone; rm tmp/gone";
    let shown = run(&options, &["busybox", "sh", "-c", &format!("{script}; {LOOK}")], b"").expect(0).text();
    assert_eq!(shown.matches("No such file").count(), 2, "{shown}");

    // The changes on the host: the bytes, and no rights.
    let at = |path: &str| folder.join("files").join(path);
    let meta = |path: &str| fs::symlink_metadata(at(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    assert_eq!(fs::read_to_string(at("etc/new")).expect("read"), "one\n");
    assert_eq!(fs::read_to_string(at("usr/bin/env")).expect("read"), "mine\n");
    assert_eq!(fs::read_link(at("srv/link")).expect("read"), Path::new("/nowhere"));
    assert_eq!(meta("etc/new").ino(), meta("etc/hard").ino());
    assert_eq!((meta("srv/tool").mode() & 0o7777, meta("srv/d").mode() & 0o7777), (0o751, 0o777));
    assert!(meta("srv/tool").uid() == rustix::process::getuid().as_raw());
    for path in ["srv/null", "srv/pipe", "etc/hostname", "tmp/gone", ".freehold", "dev", "proc"] {
        assert!(fs::symlink_metadata(at(path)).is_err(), "{path}");
    }
    let lines = fs::read_to_string(folder.join("changes")).expect("read");
    for line in ["file\t6751\t0:0\t/srv/tool", "removed\t/etc/hostname", "char\t0644\t0:0\t1:3\t/srv/null"] {
        assert!(lines.lines().any(|said| said == line), "{line:?} of {lines}");
    }
    assert_eq!(fs::read_dir(parent.path()).expect("listed").count(), 1, "nothing is left beside it");

    let again = run(&options, &["busybox", "sh", "-c", LOOK], b"").expect(0).text();
    assert_eq!(again, shown);
    // The third run, which changed nothing, left the same.
    assert_eq!(fs::read_to_string(folder.join("changes")).expect("read"), lines);
}

#[test]
fn changes_of_a_tree_and_of_a_sealed_image_are_kept_too() {
    if kernel() == "linux" {
        return;
    }
    let parent = tempfile::tempdir().expect("temporary folder");
    for (name, options) in [("tree", &["--root", "/"][..]), ("sealed", &["--sealed"])] {
        let folder = parent.path().join(name);
        let options = [options, &["--changes", text(&folder)]].concat();
        let first = "echo kept > /var/kept; rm /etc/hostname; exit 3";
        run(&options, &["busybox", "sh", "-c", first], b"").expect(3);
        let then = "cat /var/kept; test -e /etc/hostname || echo gone";
        assert_eq!(
            run(&options, &["busybox", "sh", "-c", then], b"").expect(0).text(),
            "kept\ngone\n",
            "{name}"
        );
        assert!(!folder.join("files/usr").exists(), "{name}: nothing was changed there");
    }
}

/// Processes that a program leaves behind end with it, as in a container: the kept changes are of
/// one moment.
#[test]
fn processes_that_still_change_files_are_ended_first() {
    if kernel() == "linux" {
        return;
    }
    let parent = tempfile::tempdir().expect("temporary folder");
    let folder = parent.path().join("kept");
    let script = "cd /srv 2>/dev/null || { mkdir /srv; cd /srv; }; for w in 1 2 3; do (while :; do mkdir d$w; echo x > d$w/f; \
        mv d$w/f d$w/g; rm -r d$w; done 2>/dev/null) & done; sleep 0.2; echo kept > own";
    let options = ["--cpus", "2", "--changes", text(&folder)];
    for _ in 0..3 {
        run(&options, &["busybox", "sh", "-c", script], b"").expect(0);
        assert_eq!(fs::read_to_string(folder.join("files/srv/own")).expect("read"), "kept\n");
    }
}

#[test]
fn a_run_that_is_killed_leaves_the_folder_as_it_was() {
    if kernel() == "linux" {
        return;
    }
    let parent = tempfile::tempdir().expect("temporary folder");
    let folder = parent.path().join("kept");
    let options = ["--changes", text(&folder)];
    run(&options, &["busybox", "sh", "-c", "echo first > /srv"], b"").expect(0);
    let mut command = freehold();
    command.args(["run", "--accel", "tcg", "--timeout", "4", "--changes", text(&folder), "--"]);
    command.args(["busybox", "sh", "-c", "echo second > /srv; sleep 1000"]);
    let outcome = finish(command, b"").expect(124);
    assert!(outcome.stderr.contains("changes of this run are not kept"), "{}", outcome.stderr);
    assert_eq!(fs::read_to_string(folder.join("files/srv")).expect("read"), "first\n");
    assert_eq!(fs::read_dir(parent.path()).expect("listed").count(), 1, "nothing is left beside it");
}

#[test]
fn what_cannot_be_kept_is_refused_at_once() {
    if kernel() == "linux" {
        return;
    }
    let parent = tempfile::tempdir().expect("temporary folder");
    let (folder, other) = (parent.path().join("kept"), parent.path().join("other"));
    let mut talk = Dialogue::begin(&["--changes", text(&folder)], &["busybox", "sh", "-c", "echo; read x"]);
    assert_eq!(talk.hear(), "");
    fs::create_dir(&other).expect("mkdir");
    fs::write(other.join("thesis.txt"), "").expect("written");
    let file = other.join("thesis.txt");
    let missing = other.join("no/such");
    let cases: [(&[&str], &str); 5] = [
        (&["--changes", text(&folder)], "another run keeps its changes there"),
        (&["--changes", text(&other)], "it has files that no run kept there"),
        (&["--changes", text(&missing)], "No such file or directory"),
        (&["--changes", text(&file)], "it is a file"),
        (&["--changes", text(&folder), "--icount"], "a counted run"),
    ];
    for (options, said) in cases {
        let outcome = run(options, &["busybox", "true"], b"").expect(125);
        assert!(outcome.stderr.contains(said), "{options:?}: {}", outcome.stderr);
        assert_eq!(outcome.stderr.lines().count(), 1, "{options:?}: {}", outcome.stderr);
    }
    talk.go_on();
    assert_eq!(talk.end(), 0);
}
