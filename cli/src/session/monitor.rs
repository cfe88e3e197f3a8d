//! QEMU's monitor (QMP, docs/interop/qmp-spec.txt): how much memory each memory device is to plug in.
//!
//! A line of JSON each way. The session says once that it wants no more than the plain protocol, and then sets sizes as the
//! guest asks for them, limited to what the device has.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use serde_json::{Value, json};

use super::channel::Channel;
use crate::Result;
use crate::qemu::numa::growth_device;

/// Sizes are whole blocks of the devices.
const BLOCK: u64 = 2 << 20;

/// The monitor, as far as it is used.
pub struct Monitor {
    channel: Channel,
    /// Bytes that each device has at most.
    limits: Vec<u64>,
    told: bool,
}

impl Monitor {
    /// A monitor on `fd` for memory devices with these sizes; without devices nobody listens there.
    pub fn new(fd: OwnedFd, limits: Vec<u64>) -> Result<Monitor> {
        let mut monitor =
            Monitor { channel: Channel::new((!limits.is_empty()).then_some(fd))?, limits, told: false };
        monitor.say(&json!({ "execute": "qmp_capabilities" }));
        Ok(monitor)
    }

    /// Has a device plug in `bytes` in all, or as much as it can.
    pub fn resize(&mut self, device: u8, bytes: u64) {
        let device = usize::from(device);
        // A guest that asks for what was not promised gets nothing.
        let Some(&limit) = self.limits.get(device) else { return };
        let path = format!("/machine/peripheral/{}", growth_device(device));
        let value = bytes.min(limit) / BLOCK * BLOCK;
        let arguments = json!({ "path": path, "property": "requested-size", "value": value });
        self.say(&json!({ "execute": "qom-set", "arguments": arguments }));
    }

    fn say(&mut self, command: &Value) {
        self.channel.to_send.extend_from_slice(format!("{command}\r\n").as_bytes());
    }

    /// What to wait for.
    pub fn interest<'a>(&'a self, set: &mut Vec<(BorrowedFd<'a>, PollFlags)>) {
        self.channel.interest(set);
    }

    /// Sends what can be sent now.
    pub fn send(&mut self) {
        self.channel.send();
    }

    /// Takes QEMU's answers. The first refusal, in QEMU's words.
    pub fn receive(&mut self) -> Option<String> {
        self.channel.receive();
        let mut refusal = None;
        while let Some(end) = self.channel.received.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.channel.received.drain(..=end).collect();
            let answer: Value = serde_json::from_slice(&line).unwrap_or_default();
            let words = answer.pointer("/error/desc").and_then(Value::as_str);
            if let Some(words) = words.filter(|_| !self.told) {
                self.told = true;
                refusal = Some(words.to_owned());
            }
        }
        refusal
    }
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
        assert_eq!(monitor.receive().as_deref(), Some("no room"));
        far.write_all(b"or\": {\"desc\": \"again\"}}\r\n").expect("the rest");
        assert_eq!(monitor.receive(), None);
    }
}
