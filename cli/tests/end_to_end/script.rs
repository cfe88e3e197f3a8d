//! A hundred lines of shell do the same in the VM as on the host.

use std::process::Command;

use crate::common::*;

const DISK_BYTES: usize = 1 << 20;

#[test]
fn a_hundred_line_script_does_the_same_as_on_the_host() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let script = repository().join("cli/tests/scripts/hundred-lines.sh");
    let host_disk = file_of(&folder, "host.img", &[0; DISK_BYTES]);
    let guest_disk = file_of(&folder, "guest.img", &[0; DISK_BYTES]);
    let work = folder.path().join("work");
    std::fs::create_dir(&work).expect("mkdir");
    // A shell cannot trap a signal that was ignored when it began, as SIGINT is for background
    // processes.
    let mut host = Command::new("env");
    host.args(["--default-signal=INT", "busybox", "ash"])
        .arg(&script)
        .arg(&host_disk)
        .current_dir(&work)
        .env_clear();
    host.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    let host = finish_now(&mut host, b"");

    let volume = format!("{}:/script", script.display());
    let guest = run(
        &["--disk", text(&guest_disk), "--cwd", "/work", "-v", &volume],
        &["busybox", "ash", "/script", "/dev/vda"],
        b"",
    );
    for (number, (host, guest)) in host.text().lines().zip(guest.text().lines()).enumerate() {
        assert_eq!(guest, host, "line {} of stdout", number + 1);
    }
    assert_eq!(guest.text(), host.text());
    assert_eq!(guest.stderr, host.stderr);
    assert_eq!(guest.status, host.status);
    assert_eq!(host.status, 42, "the script came to its end");
    let disk = |path| std::fs::read(path).expect("a disk");
    assert!(disk(&guest_disk) == disk(&host_disk), "the disks differ");
}
