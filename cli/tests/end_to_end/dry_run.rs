//! `--dry-run` prints the QEMU line and starts nothing. The expected lines are kept beside the
//! tests.

use crate::common::*;
use crate::errors::fake_kernel;

/// Compares the printed line with tests/golden/NAME; `BLESS=1` writes it anew.
#[track_caller]
fn golden(name: &str, options: &[&str]) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let kernel = fake_kernel(&folder);
    let disk = file_of(&folder, "disk,1.img", &[0; 512]);
    let mut command = freehold();
    command.env("FREEHOLD_KERNEL", &kernel).env("FREEHOLD_QEMU", "/bin/true");
    command.args(["run", "--dry-run", "--accel", "tcg"]);
    for option in options {
        command.arg(option.replace("DISK", text(&disk)));
    }
    let outcome = finish_now(command.args(["--", "busybox", "true"]), b"").expect(0);
    let line = outcome.text().replace(text(&folder.path()), "FOLDER");
    let file = repository().join("cli/tests/golden").join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&file, &line).expect("write");
    }
    let expected = std::fs::read_to_string(&file).expect("BLESS=1 makes it");
    assert_eq!(line, expected, "{} differs; BLESS=1 writes it anew", file.display());
}

#[test]
fn the_plain_machine() {
    golden("plain.txt", &[]);
}

#[test]
fn nodes_distances_and_near_caches() {
    golden(
        "numa.txt",
        &[
            "--sealed",
            "--cpus",
            "2",
            "--node",
            "mem=256M,cpus=0",
            "--node",
            "mem=128M,cpus=1",
            "--node",
            "mem=128M",
            "--distance",
            "0,1,21",
            "--distance",
            "0,2,31",
            "--near-cache",
            "64M",
        ],
    );
}

#[test]
fn an_even_split() {
    golden("even.txt", &["--sealed", "--cpus", "4", "--numa", "2", "-m", "1G"]);
}

#[test]
fn machines_that_grow() {
    golden("growing.txt", &["--sealed", "-m", "128M", "--numa", "2", "--cpus", "2", "--memory-max", "1G"]);
    golden(
        "empty-node.txt",
        &["--sealed", "--cpus", "2", "--node", "mem=128M,cpus=0", "--node", "max=256M,cpus=1"],
    );
}

#[test]
fn disks_instructions_and_a_debugger() {
    golden(
        "disks.txt",
        &[
            "--disk",
            "DISK,ro,iops=20",
            "--disk",
            "DISK",
            "--disk",
            "null=3M,latency=2ms",
            "--icount",
            "--seed",
            "7",
            "--gdb",
            "--append",
            "a=1 b",
        ],
    );
}
