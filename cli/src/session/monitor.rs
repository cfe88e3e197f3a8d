//! QEMU's monitor (QMP, docs/interop/qmp-spec.txt): sets the size of each memory device, reads the
//! CPUs of a kernel that does not answer, and hears of disks whose file the host has no room for.
//!
//! Both sides send lines of JSON. The session announces once that it uses the plain protocol. It
//! then sets sizes as the guest requests them, limited to the size of the device. Commands whose
//! answer is needed have an `id`.

use std::collections::BTreeSet;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use serde_json::{Value, json};

use super::channel::Channel;
use crate::Result;
use crate::qemu::numa::growth_device;
use crate::qemu::{VirtualMachine, swap};

/// Sizes are whole blocks of the devices.
const BLOCK: u64 = 2 << 20;

/// QEMU's text for ENOSPC, in any locale.
const NO_ROOM: &str = "No space left on device";

/// Lowest address of the kernel's image.
const IMAGE: u64 = 0xffff_ffff_8000_0000;
/// Number of words of a CPU's stack that are read, and number of those that are kept.
const STACK_WORDS: usize = 1024;
const KEPT: usize = 40;

/// The part of the monitor that is used.
pub struct Monitor {
    channel: Channel,
    /// The largest size of each device, in bytes.
    limits: Vec<u64>,
    told: bool,
    /// The disks whose files found no room, by their number.
    full: BTreeSet<usize>,
    /// Number of answers about CPUs that have not come yet.
    awaited: usize,
    cpus: Vec<StoppedCpu>,
}

/// News from QEMU for the user.
#[derive(Debug, PartialEq, Eq)]
pub enum Word {
    /// QEMU refused to resize a memory device, in its words.
    Refused(String),
    /// The host has no room for what the guest writes to the disk of this number.
    NoRoom(usize),
}

impl Word {
    /// Returns the sentence for the user.
    pub fn text(&self, machine: &VirtualMachine) -> String {
        match self {
            Word::Refused(words) => format!("QEMU does not change the VM's memory: {words}"),
            Word::NoRoom(number) if *number == machine.disks.len() => {
                "the host has no room left for the VM's swap (TMPDIR names another folder for it)".into()
            }
            Word::NoRoom(number) => {
                let disk = swap::guest_path(*number);
                let disk = disk.display();
                format!(
                    "the host has no room left for the file behind {disk}: the VM's writes there fail (EIO)"
                )
            }
        }
    }
}

/// A CPU, as QEMU shows it.
struct StoppedCpu {
    number: u64,
    /// The CPU's instruction address, and words on its stack that may be return addresses. Empty
    /// for a CPU that runs a program.
    addresses: Vec<u64>,
}

impl Monitor {
    /// Makes a monitor on `fd`, of a machine that has memory devices with these sizes.
    pub fn new(fd: OwnedFd, limits: Vec<u64>) -> Result<Monitor> {
        let channel = Channel::new(Some(fd))?;
        let mut monitor =
            Monitor { channel, limits, told: false, full: BTreeSet::new(), awaited: 0, cpus: Vec::new() };
        monitor.say(&json!({ "execute": "qmp_capabilities" }));
        Ok(monitor)
    }

    /// Sets a device's size to `bytes` in all, or to its limit.
    pub fn resize(&mut self, device: u8, bytes: u64) {
        let device = usize::from(device);
        // A guest gets nothing for a device that does not exist.
        let Some(&limit) = self.limits.get(device) else { return };
        let path = format!("/machine/peripheral/{}", growth_device(device));
        let value = bytes.min(limit) / BLOCK * BLOCK;
        let arguments = json!({ "path": path, "property": "requested-size", "value": value });
        self.say(&json!({ "execute": "qom-set", "arguments": arguments }));
    }

    /// Asks for the state of the CPUs.
    pub fn ask_for_cpus(&mut self) {
        self.ask("registers", "info registers -a", 0);
    }

    /// Returns the answer, once it is complete, in the form of a kernel's answer about its threads.
    pub fn cpus(&self) -> Option<Value> {
        if self.awaited > 0 || self.cpus.is_empty() {
            return None;
        }
        let shown = |cpu: &StoppedCpu| {
            let backtrace: Vec<String> =
                cpu.addresses.iter().map(|address| format!("{address:#x}")).collect();
            json!({ "tid": cpu.number, "name": "CPU", "state": "", "backtrace": backtrace })
        };
        Some(json!({ "threads": self.cpus.iter().map(shown).collect::<Vec<_>>(), "left_out": 0 }))
    }

    /// Sends a command for QEMU's other monitor, the one for people.
    fn ask(&mut self, id: &str, line: &str, cpu: u64) {
        self.awaited += 1;
        let arguments = json!({ "command-line": line, "cpu-index": cpu });
        self.say(&json!({ "execute": "human-monitor-command", "id": id, "arguments": arguments }));
    }

    /// Handles an answer to [`Monitor::ask`].
    fn learn(&mut self, id: &str, text: &str) {
        self.awaited = self.awaited.saturating_sub(1);
        if id == "registers" {
            for section in text.split("CPU#").skip(1) {
                let number =
                    section.split(|c: char| !c.is_ascii_digit()).next().and_then(|word| word.parse().ok());
                let (Some(number), Some(rip), Some(rsp)) =
                    (number, register(section, "RIP="), register(section, "RSP="))
                else {
                    continue;
                };
                let in_kernel = rip >= IMAGE;
                self.cpus
                    .push(StoppedCpu { number, addresses: in_kernel.then_some(rip).into_iter().collect() });
                if in_kernel {
                    self.ask(&number.to_string(), &format!("x /{STACK_WORDS}gx {rsp:#x}"), number);
                }
            }
        } else if let Some(cpu) =
            id.parse::<u64>().ok().and_then(|id| self.cpus.iter_mut().find(|cpu| cpu.number == id))
        {
            // A line has an address, a colon, two words.
            let words = text.lines().flat_map(|line| line.split_whitespace().skip(1));
            let words = words.filter_map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok());
            cpu.addresses.extend(words.filter(|&word| word >= IMAGE).take(KEPT));
        }
    }

    fn say(&mut self, command: &Value) {
        self.channel.to_send.extend_from_slice(format!("{command}\r\n").as_bytes());
    }

    /// Adds the events to wait for.
    pub fn interest<'a>(&'a self, set: &mut Vec<(BorrowedFd<'a>, PollFlags)>) {
        self.channel.interest(set);
    }

    /// Sends what can be sent now.
    pub fn send(&mut self) {
        self.channel.send();
    }

    /// Receives QEMU's answers and events. Returns news: the first refusal, and each disk without
    /// room once.
    pub fn receive(&mut self) -> Vec<Word> {
        self.channel.receive();
        let mut news = Vec::new();
        while let Some(end) = self.channel.received.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.channel.received.drain(..=end).collect();
            let answer: Value = serde_json::from_slice(&line).unwrap_or_default();
            if let Some(id) = answer["id"].as_str() {
                self.learn(id, answer["return"].as_str().unwrap_or_default());
                continue;
            }
            let words = answer.pointer("/error/desc").and_then(Value::as_str);
            if let Some(words) = words.filter(|_| !self.told) {
                self.told = true;
                news.push(Word::Refused(words.to_owned()));
            }
            let full = disk_without_room(&answer).filter(|&number| self.full.insert(number));
            news.extend(full.map(Word::NoRoom));
        }
        news
    }
}

/// Returns the number of the disk, if `event` says that a write to it found no room on the host.
fn disk_without_room(event: &Value) -> Option<usize> {
    // QEMU's field `nospace` is there only where it would stop the machine.
    let about = event.get("data").filter(|data| {
        event["event"] == "BLOCK_IO_ERROR" && data["reason"] == NO_ROOM && data["operation"] == "write"
    })?;
    about["device"].as_str()?.strip_prefix("disk")?.parse().ok()
}

/// Returns the register after `name` in the output of `info registers`.
fn register(text: &str, name: &str) -> Option<u64> {
    let digits = text.split_once(name)?.1;
    u64::from_str_radix(digits.split(|c: char| !c.is_ascii_hexdigit()).next()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn sizes_are_set_within_what_the_devices_have_and_a_refusal_is_told_once() {
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let mut monitor = Monitor::new(near.into(), vec![64 << 20, 10 << 20]).expect("a monitor");
        monitor.resize(0, (32 << 20) + 5);
        monitor.resize(1, u64::MAX);
        monitor.resize(2, 2 << 20);
        monitor.send();
        let mut bytes = [0; 4096];
        let count = far.read(&mut bytes).expect("commands");
        let said: Vec<Value> = bytes[..count]
            .split(|&byte| byte == b'\n')
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect();
        assert_eq!(said[0]["execute"], "qmp_capabilities");
        let set: Vec<_> =
            said[1..].iter().map(|c| (&c["arguments"]["path"], c["arguments"]["value"].as_u64())).collect();
        let (first, second) = ("/machine/peripheral/vmem0".into(), "/machine/peripheral/vmem1".into());
        assert_eq!(set, [(&first, Some(32 << 20)), (&second, Some(10 << 20))]);
        far.write_all(b"{\"QMP\": {}}\r\n{\"return\": {}}\r\n{\"error\": {\"desc\": \"no room\"}}\r\n{\"err")
            .expect("answers");
        assert_eq!(monitor.receive(), [Word::Refused("no room".into())]);
        far.write_all(b"or\": {\"desc\": \"again\"}}\r\n").expect("the rest");
        assert_eq!(monitor.receive(), []);
    }

    #[test]
    fn a_disk_without_room_is_told_once() {
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let mut monitor = Monitor::new(near.into(), vec![]).expect("a monitor");
        let event = |device: &str, reason: &str| {
            let data =
                json!({ "device": device, "reason": reason, "operation": "write", "action": "report" });
            format!("{}\r\n", json!({ "event": "BLOCK_IO_ERROR", "data": data }))
        };
        let events = [("disk1", NO_ROOM), ("disk1", NO_ROOM), ("disk0", "Bad address"), ("more", NO_ROOM)];
        let events: String = events.iter().map(|(device, reason)| event(device, reason)).collect();
        far.write_all(events.as_bytes()).expect("events");
        assert_eq!(monitor.receive(), [Word::NoRoom(1)]);
        let machine = VirtualMachine::small(64 << 20);
        assert!(Word::NoRoom(0).text(&machine).contains("TMPDIR"));
        assert!(Word::NoRoom(1).text(&machine).contains("/dev/vdb"));
    }

    #[test]
    fn cpus_in_the_kernel_are_shown_with_what_may_be_return_addresses() {
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let mut monitor = Monitor::new(near.into(), vec![]).expect("a monitor");
        monitor.ask_for_cpus();
        monitor.send();
        let registers = "\r\nCPU#0\r\nRAX=1 RSP=ffffc90000000f00\r\nRIP=ffffffff80001234 RFL=2\r\n\
                         CPU#1\r\nRAX=1 RSP=00007fff00000000\r\nRIP=0000000000401000 RFL=2\r\n";
        let answer = |id: &str, text: &str| format!("{}\r\n", json!({ "return": text, "id": id }));
        far.write_all(answer("registers", registers).as_bytes()).expect("answers");
        assert_eq!((monitor.receive(), monitor.cpus()), (vec![], None));
        let stack = "ffffc90000000f00: 0x0000000000000001 0xffffffff80005678\r\nffffc90000000f10: 0xffff888000000000 0xffffffff80009abc\r\n";
        far.write_all(answer("0", stack).as_bytes()).expect("answers");
        monitor.receive();
        let cpus = monitor.cpus().expect("all answers have come");
        assert_eq!(
            cpus["threads"][0]["backtrace"],
            json!(["0xffffffff80001234", "0xffffffff80005678", "0xffffffff80009abc"])
        );
        assert_eq!(cpus["threads"][1], json!({ "tid": 1, "name": "CPU", "state": "", "backtrace": [] }));
    }
}
