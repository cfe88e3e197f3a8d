//! A device that attacks: QEMU's `edu` reads and writes any address by DMA, and sends any message
//! as an interrupt. A debugger drives the device from outside the guest, through its registers
//! (QEMU, docs/specs/edu.txt). No driver of the kernel's is involved, and the attacker turns bus
//! mastering on itself.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Stdio};

use crate::common::*;

/// PCI's configuration space in memory, at SeaBIOS's address for q35, and the device's function in
/// it: 00:1e.0.
const CONFIG: u64 = 0xb000_0000 + (0x1e << 15);
/// The device's DMA registers, and its buffer's address in the device.
const SOURCE: u64 = 0x80;
const TARGET: u64 = 0x88;
const COUNT: u64 = 0x90;
const COMMAND: u64 = 0x98;
const BUFFER: u64 = 0x4_0000;
/// The registers that raise its interrupt, and end it.
const RAISE: u64 = 0x60;
const END: u64 = 0x64;
/// Commands: start, from the device to memory.
const START: u64 = 1;
const TO_MEMORY: u64 = 2;

/// Bytes of memory, and bytes of each target that the test compares.
const MEMORY: u64 = 64 << 20;
const STEP: u64 = 2048;

/// A debugger's end of QEMU's gdbstub (GDB manual, Remote Protocol), which sees physical memory.
struct Debugger(TcpStream);

impl Debugger {
    fn connect(port: u16) -> Self {
        let started = std::time::Instant::now();
        let stream = loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => break stream,
                Err(error) => assert!(started.elapsed().as_secs() < 60, "{error}"),
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        };
        stream.set_nodelay(true).expect("a socket");
        stream.set_read_timeout(Some(std::time::Duration::from_secs(60))).expect("a socket");
        let mut this = Self(stream);
        assert_eq!(this.ask("Qqemu.PhyMemMode:1"), "OK");
        this
    }
    fn send(&mut self, packet: &str) {
        let sum = packet.bytes().fold(0u8, u8::wrapping_add);
        self.0.write_all(format!("${packet}#{sum:02x}").as_bytes()).expect("QEMU listens");
    }
    /// Receives and acknowledges the next packet.
    fn receive(&mut self) -> String {
        let mut bytes = Vec::new();
        let mut one = [0];
        while bytes.len() < 3 || bytes[bytes.len() - 3] != b'#' {
            self.0.read_exact(&mut one).expect("QEMU answers");
            if one[0] == b'$' {
                bytes.clear();
            } else {
                bytes.push(one[0]);
            }
        }
        self.0.write_all(b"+").expect("QEMU listens");
        String::from_utf8_lossy(&bytes[..bytes.len() - 3]).into_owned()
    }
    fn ask(&mut self, packet: &str) -> String {
        self.send(packet);
        self.receive()
    }
    fn resume(&mut self) {
        self.send("c");
    }
    fn stop(&mut self) {
        self.0.write_all(&[3]).expect("QEMU listens");
        assert!(self.receive().starts_with('T'));
    }
    fn read(&mut self, address: u64, length: u64) -> Vec<u8> {
        let text = self.ask(&format!("m{address:x},{length:x}"));
        let digits = |at: usize| u8::from_str_radix(&text[at..at + 2], 16);
        (0..text.len())
            .step_by(2)
            .map(|at| digits(at).unwrap_or_else(|_| panic!("{address:#x}: {text}")))
            .collect()
    }
    fn word(&mut self, address: u64) -> u32 {
        u32::from_le_bytes(self.read(address, 4).try_into().expect("4 bytes"))
    }
    fn write(&mut self, address: u64, bytes: &[u8]) {
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(self.ask(&format!("M{address:x},{:x}:{text}", bytes.len())), "OK");
    }
    /// The vectors that wait for the CPU, as QEMU's monitor says.
    fn pending(&mut self) -> Vec<u8> {
        let command: String = "info lapic".bytes().map(|byte| format!("{byte:02x}")).collect();
        let mut packet = self.ask(&format!("qRcmd,{command}"));
        let mut said = Vec::new();
        while packet != "OK" {
            let digits = packet.strip_prefix('O').expect("output").as_bytes();
            let byte = |two: &[u8]| u8::from_str_radix(&String::from_utf8_lossy(two), 16).expect("hex");
            said.extend(digits.chunks(2).map(byte));
            packet = self.receive();
        }
        let said = String::from_utf8_lossy(&said);
        let line = said.lines().find_map(|line| line.trim().strip_prefix("IRR")).expect("a controller");
        line.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    }
    /// Returns the pages of memory that begin with each of the markers.
    fn pages_with<const N: usize>(&mut self, markers: [&[u8]; N]) -> [Vec<u64>; N] {
        let mut pages = [const { Vec::new() }; N];
        let length = markers.iter().map(|marker| marker.len()).max().expect("a marker") as u64;
        for page in (0..MEMORY).step_by(4096) {
            let bytes = self.read(page, length);
            for (pages, _) in pages.iter_mut().zip(markers).filter(|(_, marker)| bytes.starts_with(marker)) {
                pages.push(page);
            }
        }
        pages
    }
}

/// The device, while the machine is stopped.
struct Rogue {
    debugger: Debugger,
    registers: u64,
}

impl Rogue {
    /// Takes the device over: from now on it answers to memory accesses and is a bus master.
    fn new(mut debugger: Debugger) -> Self {
        assert_eq!(debugger.word(CONFIG), 0x11e8_1234, "QEMU's edu is at 00:1e.0");
        debugger.write(CONFIG + 4, &[6, 0]);
        let registers = u64::from(debugger.word(CONFIG + 0x10) & !0xf);
        Self { debugger, registers }
    }
    /// Copies `count` bytes by DMA. The machine runs meanwhile.
    fn copy(&mut self, source: u64, target: u64, count: u64, direction: u64) {
        let order = [(SOURCE, source), (TARGET, target), (COUNT, count), (COMMAND, START | direction)];
        for (register, value) in order {
            self.debugger.write(self.registers + register, &value.to_le_bytes());
        }
        let started = std::time::Instant::now();
        while self.debugger.word(self.registers + COMMAND) & START as u32 != 0 {
            assert!(started.elapsed().as_secs() < 60, "the device does not end");
            self.debugger.resume();
            std::thread::sleep(std::time::Duration::from_millis(120));
            self.debugger.stop();
        }
    }
    /// Interrupts by a message of its own (MSI); returns the vectors that wait for the CPU then.
    fn interrupt(&mut self, address: u32, data: u16) -> Vec<u8> {
        let mut at = u64::from(self.debugger.read(CONFIG + 0x34, 1)[0]);
        while self.debugger.read(CONFIG + at, 1)[0] != 5 {
            at = u64::from(self.debugger.read(CONFIG + at + 1, 1)[0]);
            assert_ne!(at, 0, "QEMU's edu has MSI");
        }
        let debugger = &mut self.debugger;
        debugger.write(CONFIG + at + 4, &address.to_le_bytes());
        debugger.write(CONFIG + at + 8, &[0; 4]);
        debugger.write(CONFIG + at + 12, &data.to_le_bytes());
        debugger.write(CONFIG + at + 2, &[1]);
        debugger.write(self.registers + RAISE, &1u32.to_le_bytes());
        debugger.write(self.registers + END, &1u32.to_le_bytes());
        debugger.pending()
    }
    /// Reads 8 bytes of `from` and writes them to `to`.
    fn steal(&mut self, from: u64, to: u64) {
        self.copy(from, BUFFER, 8, 0);
        self.copy(BUFFER, to, 8, TO_MEMORY);
    }
}

/// A machine with the device, a disk and a program that waits for a line.
struct Victim {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    rogue: Rogue,
    /// Entries for interrupts, their devices, and their vectors.
    entries: Vec<(u32, String, u8)>,
    folder: tempfile::TempDir,
}

impl Victim {
    fn start(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let qemu = file_of(
            &folder,
            "qemu",
            b"#!/bin/sh\nexec qemu-system-x86_64 \"$@\" -device edu,addr=1e,dma_mask=0xffffffffffffffff \\
                -trace 'vtd_ir_remap_msi*' 2> \"${0%/*}/told\"\n",
        );
        std::fs::set_permissions(&qemu, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("chmod");
        let disk = file_of(&folder, "disk", &b"a page of the disk ".repeat(4096));
        let taken = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = taken.local_addr().expect("bound").port();
        drop(taken);
        let line = "printf '%s' 'a page of a file, which no device may see' > /tmp/file
            dd if=/dev/vda of=/dev/null bs=4k count=1 iflag=direct 2>/dev/null
            cat /sys/kernel/debug/iommu/interrupts 2>/dev/null; echo ready; read line; cat /tmp/file; echo
            cat /sys/kernel/debug/iommu/faults 2>/dev/null; dmesg | grep 'may not'; echo end";
        let mut command = run_command();
        command.env("FREEHOLD_QEMU", &qemu).arg(format!("--gdb={port}")).args(["-m", "64M"]).args(options);
        command.args(["--disk", text(&disk), "--", "busybox", "sh", "-c", line]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut debugger = Debugger::connect(port);
        debugger.resume();
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let lines = output.by_ref().lines().map(|line| line.expect("it speaks"));
        let entries = lines.take_while(|line| line != "ready").map(|line| {
            let words: Vec<_> = line.split(' ').collect();
            let vector = words[2].strip_prefix("0x").map(|digits| u8::from_str_radix(digits, 16));
            (words[0].parse().expect("a number"), words[1].to_owned(), vector.expect("hex").expect("hex"))
        });
        let entries = entries.collect();
        debugger.stop();
        Self { child, output, rogue: Rogue::new(debugger), entries, folder }
    }
    /// Returns QEMU's error output, where its trace of remapped interrupts is.
    fn told(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("told")).expect("QEMU's words")
    }
    /// Lets the program end; returns its output.
    fn end(mut self) -> String {
        self.rogue.debugger.resume();
        self.child.stdin.take().expect("piped").write_all(b"end\n").expect("it reads");
        let mut said = String::new();
        self.output.read_to_string(&mut said).expect("it speaks");
        assert!(said.ends_with("end\n"), "{said}");
        wait(&mut self.child);
        said
    }
}

const FILE: &[u8] = b"a page of a file, which no device may see";
const DISK: &[u8] = b"a page of the disk a page of the disk ";
/// Address of the kernel's text without a slide: a debugger finds it at its link address.
const TEXT: u64 = 0x20_0000;

/// Behind an IOMMU the device reads nothing and writes nothing, and each attempt is logged with the
/// frame's owner.
#[test]
fn a_rogue_device_behind_an_iommu_reaches_nothing_and_is_told_of() {
    let told = |did: &str, at: u64, owner: &str| format!("{did} {at:#x} ({owner}): reason 2");
    refused("--iommu", told);
}

/// The same behind a virtio IOMMU. QEMU's reports neither the kind of the access nor the reason.
#[test]
fn a_rogue_device_behind_a_virtio_iommu_reaches_nothing_and_is_told_of() {
    let told = |_: &str, at: u64, owner: &str| format!("reach {at:#x} ({owner}): reason 0");
    refused("--iommu=virtio", told);
}

#[track_caller]
fn refused(kind: &str, sentence: impl Fn(&str, u64, &str) -> String) {
    if kernel() != "freehold" {
        return;
    }
    let _permit = Permit::take();
    let mut victim = Victim::start(&[kind]);
    let rogue = &mut victim.rogue;
    let [files, disks] = rogue.debugger.pages_with([FILE, DISK]);
    let file = files[0];
    let targets: Vec<u64> = disks.into_iter().chain([file, TEXT]).collect();
    let before: Vec<_> = targets.iter().map(|&at| rogue.debugger.read(at, STEP)).collect();
    for &target in &targets {
        rogue.steal(file, target);
    }
    for (&target, before) in targets.iter().zip(&before) {
        assert_eq!(&rogue.debugger.read(target, STEP), before, "{target:#x}");
    }
    let said = victim.end();
    assert!(said.starts_with("a page of a file, which no device may see\n"), "{said}");
    let told = |did: &str, at: u64, owner: &str| {
        let line = format!("iommu: 00:1e.0 (no domain) may not {}", sentence(did, at, owner));
        assert!(said.contains(&line), "{line}\nis not in\n{said}");
    };
    told("read", file, "pagecache");
    told("write", file, "pagecache");
    told("write", TEXT, "reserved");
    assert!(said.contains("(bounce of vda): reason "), "{said}");
}

/// A message that names an entry: bits 5 to 19 of its address.
fn naming(entry: u32) -> u32 {
    0xfee0_0010 | entry << 5
}

/// Behind an IOMMU the device's messages do not arrive, whichever entry they name: entries of other
/// devices, or a number without an entry. QEMU 7.2 reports a refused message in its own output and
/// records no fault. The tests of a unit in software (`kernel/iommu/src/interrupt_tests.rs`) check
/// that the kernel gets faults.
#[test]
fn a_rogue_device_behind_an_iommu_cannot_raise_interrupts_of_others() {
    if kernel() != "freehold" {
        return;
    }
    let _permit = Permit::take();
    let mut victim = Victim::start(&["--iommu"]);
    let entries = victim.entries.clone();
    let places: Vec<_> = entries.iter().map(|(_, place, _)| place.as_str()).collect();
    assert_eq!(places[..4], ["00:04.0", "00:05.0", "00:06.0", "00:08.0"], "consoles, and the disk");
    let (disk, _, vector) = entries[3];
    for (entry, ..) in &entries {
        assert!(!victim.rogue.interrupt(naming(*entry), 0xabc).contains(&vector), "{entry}");
    }
    victim.rogue.interrupt(naming(200), 0xabc);
    // By DMA, too: 4 bytes that are the message.
    victim.rogue.copy(BUFFER, u64::from(naming(201)), 4, TO_MEMORY);
    let told = victim.told();
    let asked =
        |entry: u32, data: u32| format!("vtd_ir_remap_msi_req addr {:#x} data {data:#x}", naming(entry));
    let sent: Vec<u32> = entries.iter().map(|(entry, ..)| *entry).chain([200]).collect();
    assert!(sent.iter().all(|&entry| told.contains(&asked(entry, 0xabc))), "{told}");
    assert!(told.contains(&asked(201, 0)), "{told}");
    // 240 is 00:1e.0. QEMU says once of each kind.
    assert!(told.contains("invalid IRTE SID (index=0, sid=240, source_id=32)"), "{told}");
    assert!(told.contains("detected non-present IRTE (index=200"), "{told}");
    let passed: Vec<_> = told.lines().filter(|line| line.contains("remap_msi (addr ")).collect();
    assert!(!passed.iter().any(|line| line.contains("data 0xabc)")), "{passed:#?}");
    // The disk's own messages name its entry. (QEMU adds bit 14, the level.)
    let own = format!("(addr {:#x}, data 0x0) -> (addr 0xfee00000, data 0x40{vector:x})", naming(disk));
    assert!(passed.iter().any(|line| line.contains(&own)), "{own}\nis not in\n{passed:#?}");
    assert!(passed.iter().all(|line| line.contains(", data 0x0) -> ")), "{passed:#?}");
    victim.end();
}

/// The negative control: without an IOMMU the same device raises the disk's vector.
#[test]
fn a_rogue_device_without_an_iommu_raises_any_interrupt() {
    if kernel() != "freehold" {
        return;
    }
    let _permit = Permit::take();
    let mut victim = Victim::start(&[]);
    assert_eq!(victim.entries, []);
    assert!(victim.rogue.interrupt(0xfee0_0000, 0x33).contains(&0x33));
    victim.end();
}

/// The negative control: without an IOMMU the same device reads and writes any memory.
#[test]
fn a_rogue_device_without_an_iommu_writes_memory() {
    if kernel() != "freehold" {
        return;
    }
    let _permit = Permit::take();
    let mut victim = Victim::start(&[]);
    let rogue = &mut victim.rogue;
    let [files] = rogue.debugger.pages_with([FILE]);
    let file = files[0];
    rogue.steal(file + 2, file);
    let said = victim.end();
    assert!(said.starts_with("page of f a file, which no device may see\n"), "{said}");
}
