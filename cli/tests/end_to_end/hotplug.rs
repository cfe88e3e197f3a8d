//! Disks that are plugged in and out while programs use them, by QEMU's monitor.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::*;

/// QEMU has ended.
#[derive(Debug)]
struct Closed;

/// QEMU's monitor, as a user reaches it.
struct Monitor {
    to: UnixStream,
    from: BufReader<UnixStream>,
    /// Events that came before the answer to a command.
    events: Vec<Value>,
}

impl Monitor {
    fn connect(path: &Path) -> Self {
        let started = std::time::Instant::now();
        let to = loop {
            match UnixStream::connect(path) {
                Ok(stream) => break stream,
                Err(error) => assert!(started.elapsed().as_secs() < 60, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        to.set_read_timeout(Some(Duration::from_secs(120))).expect("a socket");
        let from = BufReader::new(to.try_clone().expect("a socket"));
        let mut this = Self { to, from, events: Vec::new() };
        assert!(this.next().expect("a greeting")["QMP"].is_object());
        this.tell("qmp_capabilities", json!({})).expect("QEMU runs");
        this
    }
    fn next(&mut self) -> Result<Value, Closed> {
        let mut line = String::new();
        // QEMU that ends with a command unread resets the connection.
        match self.from.read_line(&mut line) {
            Ok(0) => return Err(Closed),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Err(Closed),
            length => length.expect("QEMU answers"),
        };
        Ok(serde_json::from_str(&line).unwrap_or_else(|_| panic!("QEMU says {line:?}")))
    }
    /// Sends a command, which QEMU must accept.
    fn tell(&mut self, command: &str, arguments: Value) -> Result<(), Closed> {
        let order = json!({ "execute": command, "arguments": arguments });
        self.to.write_all(format!("{order}\n").as_bytes()).map_err(|_| Closed)?;
        loop {
            let said = self.next()?;
            assert!(said.get("error").is_none(), "{command}: {said}");
            if said.get("return").is_some() {
                return Ok(());
            }
            self.events.push(said);
        }
    }
    /// Waits until a device has been removed.
    fn until_deleted(&mut self, id: &str) -> Result<(), Closed> {
        let tells = |said: &Value| said["event"] == "DEVICE_DELETED" && said["data"]["device"] == id;
        // The event may have come before the command's answer.
        let mut has_come = std::mem::take(&mut self.events).iter().any(tells);
        while !has_come {
            has_come = tells(&self.next()?);
        }
        Ok(())
    }
    /// Plugs in a disk of zeroes that takes two milliseconds for each request.
    fn plug(&mut self, number: usize, slot: usize) -> Result<(), Closed> {
        let node = format!("node{number}");
        let disk = json!({ "driver": "null-co", "node-name": node, "size": 16 << 20,
            "latency-ns": 2_000_000, "read-zeroes": true });
        self.tell("blockdev-add", disk)?;
        let device = json!({ "driver": "virtio-blk-pci", "id": format!("hot{number}"), "drive": node,
            "bus": format!("slot{slot}"), "disable-legacy": "on" });
        self.tell("device_add", device)
    }
    fn unplug(&mut self, number: usize) -> Result<(), Closed> {
        let id = format!("hot{number}");
        self.tell("device_del", json!({ "id": id }))?;
        self.until_deleted(&id)?;
        self.tell("blockdev-del", json!({ "node-name": format!("node{number}") }))
    }
}

/// Runs a line of the shell with `/hotplug`, a program that asks for disks. Each disk is in the
/// next of `slots` slots. Returns the program's output.
#[track_caller]
fn plugged(slots: usize, options: &[&str], line: &str) -> String {
    let folder = tempfile::tempdir().expect("temporary folder");
    let socket = folder.path().join("qmp");
    let program = format!("{}:/hotplug", text(&guest_program("conformance/hotplug")));
    let mut command = run_command();
    command.args(["--slots", &slots.to_string(), "--qmp", text(&socket), "-v", &program]).args(options);
    command.args(["--", "busybox", "sh", "-c", line]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut output = BufReader::new(child.stdout.take().expect("piped"));
    let mut monitor = Monitor::connect(&socket);
    let (mut said, mut number) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if output.read_line(&mut line).expect("it speaks") == 0 {
            break;
        }
        let told = match line.trim_end() {
            "HOST plug" => monitor.plug(number, number % slots),
            "HOST unplug" => {
                number += 1;
                monitor.unplug(number - 1)
            }
            _ => {
                said += &line;
                Ok(())
            }
        };
        // The monitor is closed: the rest of the output tells the reason.
        if let Err(Closed) = told {
            said += &std::io::read_to_string(&mut output).expect("it speaks");
            break;
        }
    }
    let errors = std::io::read_to_string(child.stderr.take().expect("piped")).expect("it speaks");
    assert!(wait(&mut child).success(), "{said}\n{errors}");
    assert!(!socket.exists(), "the socket is gone with the machine");
    said
}

/// Shell lines that print the remains: lost bytes, accounts and domains of slots.
const LEFT: &str = "cd /sys/kernel/debug; cat swiotlb/lost_bytes; grep -c slot swiotlb/devices
    grep -c slot iommu/domains; exit $status";

#[track_caller]
fn forty_disks(options: &[&str]) {
    if kernel() != "freehold" {
        return;
    }
    let said = plugged(2, options, &format!("/hotplug 40; status=$?; {LEFT}"));
    let kept = said.lines().filter(|line| line.starts_with("ok ")).count();
    assert!(kept == 6 && said.contains("1..6\n"), "{said}");
    let left = said.split_once("1..6\n").expect("the plan").1;
    // Without an IOMMU there is no list of domains.
    assert!(left == "0\n0\n0\n" || left == "0\n0\n", "left behind: {said}");
}

#[test]
fn forty_disks_come_and_go_under_load_and_leave_nothing_behind() {
    forty_disks(&["--cpus", "2"]);
}

#[test]
fn forty_disks_come_and_go_behind_an_iommu() {
    forty_disks(&["--iommu"]);
}

#[test]
fn forty_disks_come_and_go_behind_a_virtio_iommu() {
    forty_disks(&["--iommu=virtio"]);
}

#[test]
fn forty_disks_that_reach_pages_in_their_places_come_and_go_behind_a_virtio_iommu() {
    forty_disks(&["--iommu=virtio", "--dma", "direct", "--cpus", "2"]);
}

#[test]
fn forty_disks_that_reach_pages_in_their_places_come_and_go() {
    forty_disks(&["--dma", "direct", "--cpus", "2"]);
}
