//! A record of bad input: each command line of `bad_input.txt` gets the sentence and the status
//! that stand below it, prints nothing to stdout, and leaves all files as they were.

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::*;
use crate::errors::fake_kernel;

/// A command line; its status and its sentence, in which FOLDER is the folder of the test.
const RECORD: &str = include_str!("bad_input.txt");

/// Splits a command line at blanks; `''` is an empty word.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split(' ').map(|word| if word == "''" { "" } else { word })
}

/// Makes the files that the command lines name.
fn fill(folder: &tempfile::TempDir) {
    for (name, content) in [
        ("note", &b"x"[..]),
        ("empty", b""),
        ("plain", b"#!/bin/sh\n"),
        ("junk", b"\x7fELF junk"),
        ("image.tar", b"hello"),
        ("odd.img", &[0; 700]),
        ("other.json", b"{\"a\":1}"),
        ("broken.json", b"not json"),
        ("bad.toml", b"programs = 3\n"),
        ("broken.toml", b"x=\n"),
        ("none.toml", b"[programs]\n"),
    ] {
        file_of(folder, name, content);
    }
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path().join("junk"), executable).expect("chmod");
    std::fs::create_dir(folder.path().join("folder")).expect("a folder");
}

/// Returns the names in a folder, with the contents of files.
fn contents(folder: &Path) -> BTreeMap<std::ffi::OsString, Option<Vec<u8>>> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    entries.map(|entry| (entry.file_name(), std::fs::read(entry.path()).ok())).collect()
}

#[test]
fn each_gets_its_sentence_and_its_status_and_changes_nothing() {
    let folder = tempfile::tempdir().expect("temporary folder");
    fill(&folder);
    let kernel_file = fake_kernel(&folder);
    let before = contents(folder.path());
    let mut lines = RECORD.lines();
    let mut count = 0;
    while let (Some(line), Some(expected)) = (lines.next(), lines.next()) {
        let arguments = line.strip_prefix("$ freehold ").expect("a command line");
        let mut command = freehold();
        // Errors come before the boot, so a kernel that cannot boot is not noticed.
        command.env("FREEHOLD_KERNEL", &kernel_file).env_remove("FREEHOLD_COVERAGE");
        let outcome = finish_now(command.args(words(arguments)).current_dir(folder.path()), b"");
        let told = outcome.stderr.replace(text(&folder.path()), "FOLDER");
        let told = told.strip_prefix("freehold: ").unwrap_or(&told);
        assert_eq!(format!("{} {told}", outcome.status), format!("{expected}\n"), "{line}");
        assert!(outcome.stdout.is_empty(), "{line}: errors go to stderr");
        assert!(contents(folder.path()) == before, "{line}: it changed a file");
        count += 1;
    }
    assert!(count >= 100 && lines.next().is_none(), "{count} command lines");
}
