//! Disks that another process serves, and the effects of their protocol violations.

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;

use freehold_disk::{Disk, Lie, Sightings, serve_on};

use crate::common::*;

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

/// Returns the disk that guest/workloads/disk.c expects: a pattern in page 2.
fn content() -> Vec<u8> {
    let mut bytes = vec![0; MIB];
    bytes[2 * PAGE..3 * PAGE].fill(0x5a);
    bytes
}

/// A disk that a thread serves until this is dropped.
struct Served {
    disk: Arc<Disk>,
    socket: PathBuf,
    thread: Option<JoinHandle<std::io::Result<()>>>,
}

impl Served {
    fn new(folder: &tempfile::TempDir, name: &str, disk: Disk) -> Served {
        let socket = folder.path().join(name);
        let listener = UnixListener::bind(&socket).expect("a socket");
        let disk = Arc::new(disk);
        let thread = std::thread::spawn({
            let disk = disk.clone();
            move || serve_on(&listener, &disk)
        });
        Served { disk, socket, thread: Some(thread) }
    }
    fn option(&self) -> String {
        format!("vhost-user={}", text(&self.socket))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.disk.stop();
        drop(self.thread.take().map(JoinHandle::join));
    }
}

/// Runs the disks' program in a machine that has `disks`.
fn use_disks(command: &mut Command, disks: &[Served]) {
    for disk in disks {
        command.args(["--disk", &disk.option()]);
    }
}

const ALL_OK: &str = "read ok, read ok, write ok, sync ok";
const DEAD: &str = "read EIO, read EIO, write EIO, sync EIO";
const NO_DEVICE: &str = "";

/// The guest's output for each kind of protocol violation; `|` separates alternatives. With an
/// impossible size the kernel refuses the device, so the disks after it move up.
#[rustfmt::skip]
const ENDS: [(Lie, &str); 21] = [
    (Lie::None,               ALL_OK),
    (Lie::IdBeyondRing,       DEAD),
    (Lie::IdInUpperBits,      DEAD),
    (Lie::IdNotInFlight,      DEAD),
    (Lie::IdTwice,            DEAD),
    (Lie::LengthZero,         "read EIO, read EIO, write ok, sync ok"),
    (Lie::LengthHuge,         ALL_OK),
    (Lie::UsedFlags,          ALL_OK),
    (Lie::IndexBack,          DEAD),
    (Lie::IndexForward,       DEAD),
    (Lie::IndexJump,          DEAD),
    (Lie::SizeImpossible,     NO_DEVICE),
    (Lie::SizeZero,           "read short, read short, write ENOSPC, sync ok"),
    (Lie::ConfigNonsense,     ALL_OK),
    (Lie::FeaturesOfAllOnes,  ALL_OK),
    (Lie::SpuriousInterrupts, ALL_OK),
    (Lie::NoAnswer,           DEAD),
    // The second answer comes before the guest looks, or later; then the answer is for a request
    // without a status yet.
    (Lie::DoubleAnswer,       "read EIO, read EIO, write EIO, sync EIO|read ok, read EIO, write EIO, sync EIO"),
    (Lie::LateAnswer,         "read EIO, read EIO, write EIO, sync EIO"),
    (Lie::StatusNonsense,     DEAD),
    (Lie::Disconnect,         DEAD),
];

/// Two disks under load, each of which looks at every page of its requests: data, headers, status
/// bytes. Transfers have all sizes from a sector on, so that cells and pages change hands.
#[test]
fn no_page_is_seen_by_two_disks() {
    if kernel() == "linux" {
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let sightings = Arc::new(Sightings::default());
    let disks = [0, 1].map(|number| {
        Served::new(&folder, &format!("{number}"), Disk::new(content()).watched(number, sightings.clone()))
    });
    let line = "for disk in vda vdb; do for kib in 4 16 64; do /transfers $kib 3 20 both /dev/$disk & done
        dd if=/dev/$disk of=/dev/null bs=512 count=64 iflag=direct 2>/dev/null & done; wait; echo done";
    let mut command = run_command();
    use_disks(&mut command, &disks);
    let program = guest_program("workloads/transfers");
    command.args(["-m", "64M", "--cpus", "2", "-v", &format!("{}:/transfers", text(&program))]);
    command.args(["--append", "swiotlb.max=512K", "--", "busybox", "sh", "-c", line]);
    let said = finish(command, b"").expect(0).text();
    assert_eq!(said.matches("60 transfers, 0 failed").count(), 6, "{said}");
    let (looks, by_two) = sightings.looks();
    assert!(looks > 1000, "{looks} looks");
    assert_eq!(by_two, 0, "of {looks} looks");
}

#[test]
fn a_disk_that_lies_ends_as_named_and_takes_nothing_with_it() {
    if kernel() == "linux" {
        // A stock Linux waits for ever for a disk that does not answer, and accepts some of these
        // invalid answers.
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let disks: Vec<Served> = (ENDS.iter().enumerate())
        .map(|(number, &(lie, _))| {
            Served::new(&folder, &format!("{number}"), Disk::new(content()).lying(lie, 0))
        })
        .collect();
    let mut command = run_command();
    use_disks(&mut command, &disks);
    let present = ENDS.iter().filter(|(_, end)| *end != NO_DEVICE);
    let names: Vec<String> =
        present.clone().zip('a'..='z').map(|(_, letter)| format!("/dev/vd{letter}")).collect();
    let program = guest_program("workloads/disk");
    // Each disk has a time limit of half a second, and no disk costs more than one time limit.
    let script = format!(
        "/disk {}; cat /sys/kernel/debug/swiotlb/lost_bytes; ls /dev/vd* | wc -l",
        names.iter().map(|name| format!("500= {name}")).collect::<Vec<_>>().join(" ")
    );
    command.args(["-v", &format!("{}:/disk", text(&program)), "--", "busybox", "ash", "-c", &script]);
    let outcome = finish(command, b"").expect(0);
    let said = outcome.text();
    let mut lines = said.lines();
    for ((lie, end), name) in present.zip(&names) {
        let line = lines.next().and_then(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let named = line.is_some_and(|line| end.split('|').any(|end| end == line));
        assert!(named, "{lie:?}: {line:?} is not {end}\n{said}\n{}", outcome.stderr);
    }
    assert_eq!(lines.next(), Some("0"), "lost bytes: QEMU's devices confirm resets");
    assert_eq!(lines.next(), Some(&*format!("{}", names.len())));
}

#[test]
fn a_disk_that_another_process_serves_is_a_disk() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let disks = [Served::new(&folder, "disk", Disk::new(content()))];
    let mut command = run_command();
    use_disks(&mut command, &disks);
    let script = "dd if=/dev/urandom of=/a bs=64k count=8 2>/dev/null; dd if=/a of=/dev/vda conv=fsync 2>/dev/null; \
                  echo 3 > /proc/sys/vm/drop_caches; cmp -n 524288 /a /dev/vda && echo same";
    command.args(["--", "busybox", "ash", "-c", script]);
    assert_eq!(finish(command, b"").expect(0).text(), "same\n");
    assert!(disks[0].disk.served() > 0);
}

#[test]
fn pages_that_a_dead_disk_does_not_take_are_errors_and_the_machine_ends() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let disks = [Served::new(&folder, "disk", Disk::new(content()).lying(Lie::IdNotInFlight, 3))];
    let mut command = run_command();
    use_disks(&mut command, &disks);
    let script = "dd if=/dev/zero of=/dev/vda bs=4k count=200 conv=fsync 2>/dev/null || echo error; \
                  dd if=/dev/zero of=/dev/vda bs=4k count=1 2>/dev/null; sync; echo on";
    command.args(["--", "busybox", "ash", "-c", script]);
    assert_eq!(finish(command, b"").expect(0).text(), "error\non\n");
}

#[test]
fn a_socket_that_is_none_is_one_clear_sentence() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let file = file_of(&folder, "file", b"");
    for (path, part) in [(folder.path().join("nothing"), "no such socket"), (file, "not a socket")] {
        let mut command = freehold();
        command.args(["run", "--disk", &format!("vhost-user={}", text(&path)), "--", "true"]);
        let outcome = finish_now(&mut command, b"").expect(125);
        assert!(outcome.stderr.contains(part) && outcome.stderr.contains("server"), "{}", outcome.stderr);
    }
}
