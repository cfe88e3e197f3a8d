//! Code of the kernel that is chosen by the CPU's features: programs behave the same on every CPU.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::common::*;

/// The CPU that `freehold` asks QEMU for.
const USUAL: &str = "max,-erms,-fsrm,-la57";

/// CPUs, and the code that is chosen for them. QEMU's emulator has no FSRM before 8.1, and never
/// needs VERW.
const CPUS: [(&str, &[&str]); 4] = [
    ("max,-la57,-fsrm", &["erms", "xsaveopt"]),
    ("max,-la57,-erms,-fsrm,-xsaveopt", &[]),
    ("max,-la57,-fsrm,-xsave", &["erms"]),
    ("max,-la57,-erms,-fsrm,-fsgsbase", &["xsaveopt"]),
];

/// `freehold run` with another CPU.
fn on_cpu(folder: &tempfile::TempDir, cpu: &str) -> Command {
    let qemu = std::env::var("FREEHOLD_QEMU").unwrap_or_else(|_| "qemu-system-x86_64".into());
    let script = format!(
        "#!/bin/sh\nn=$#\nwhile [ $n -gt 0 ]; do a=$1; shift; n=$((n - 1)); \
         [ \"${{a#{USUAL}}}\" = \"$a\" ] || a='{cpu}'; set -- \"$@\" \"$a\"; done\nexec {qemu} \"$@\"\n"
    );
    let wrapper = file_of(folder, "qemu", script.as_bytes());
    std::fs::set_permissions(&wrapper, PermissionsExt::from_mode(0o755)).expect("chmod");
    let mut command = run_command();
    command.env("FREEHOLD_QEMU", wrapper);
    command
}

#[test]
fn every_node_runs_what_was_chosen_for_the_cpu() {
    if kernel() != "freehold" {
        return;
    }
    let line = "busybox dmesg | grep -o 'alternatives: .*'; busybox seq 20000 | busybox sort -r | busybox md5sum; \
                echo 1 >/sys/kernel/debug/replica && echo equal";
    for (cpu, chosen) in CPUS {
        let folder = tempfile::tempdir().expect("temporary folder");
        let mut command = on_cpu(&folder, cpu);
        command.args(["-m", "256M", "--cpus", "2", "--numa", "2", "--", "busybox", "ash", "-c", line]);
        let said = finish(command, b"").expect(0).text();
        let lines: Vec<&str> = said.lines().collect();
        let [told @ .., sum, "equal"] = &lines[..] else { panic!("{cpu}: {said}") };
        let names: Vec<&str> = told.iter().filter_map(|line| line.split_whitespace().nth(1)).collect();
        assert_eq!(names, chosen, "{cpu}: {said}");
        assert!(told.iter().all(|line| !line.ends_with("(0 places)")), "{said}");
        assert_eq!(*sum, "c7345da82422f5bbfb30e41a05540dc3  -", "{cpu}");
    }
}

#[test]
fn a_cpu_without_random_bits_is_named_and_one_with_them_is_not() {
    if kernel() != "freehold" {
        return;
    }
    let line = "busybox dmesg | grep -c 'random bits were drawn that the CPU could not give'; busybox true";
    for (cpu, told) in [("max,-la57,-rdrand,-rdseed", "1\n"), ("max,-la57,-rdseed", "0\n")] {
        let folder = tempfile::tempdir().expect("temporary folder");
        let mut command = on_cpu(&folder, cpu);
        command.args(["--sealed", "--", "busybox", "ash", "-c", line]);
        assert_eq!(finish(command, b"").expect(0).text(), told, "{cpu}");
    }
}

#[test]
fn registers_signals_and_copies_are_the_same_on_every_cpu() {
    if kernel() != "freehold" {
        return;
    }
    for (cpu, _) in CPUS {
        let folder = tempfile::tempdir().expect("temporary folder");
        for program in ["registers", "signals", "pipes", "pkeys"] {
            promises(on_cpu(&folder, cpu), &[], &[program], &[]);
        }
    }
}
