//! Ancillary data that recvmsg(2) returns with a message.

/// Largest size of a data item: a `struct sockaddr_in6`.
const MOST_DATA: usize = 28;

/// One control message.
#[derive(Clone, Copy, Debug)]
pub struct Control {
    pub(in crate::socket) level: u32,
    pub(in crate::socket) kind: u32,
    data: [u8; MOST_DATA],
    length: u8,
}

impl Control {
    pub(in crate::socket) fn data(&self) -> &[u8] {
        &self.data[..usize::from(self.length)]
    }
}

/// All control messages of one received message.
#[derive(Clone, Copy, Debug)]
pub struct Controls {
    all: [Control; Self::MOST],
    count: usize,
}

impl Controls {
    /// Largest number of control messages: a time, a count of losses, the interface and the hops in
    /// two forms each, the traffic class, and the receiver's address.
    const MOST: usize = 8;

    pub(super) fn new() -> Self {
        Self { all: [Control { level: 0, kind: 0, data: [0; MOST_DATA], length: 0 }; Self::MOST], count: 0 }
    }

    pub(super) fn push(&mut self, level: u32, kind: u32, parts: &[&[u8]]) {
        let mut control = Control { level, kind, data: [0; MOST_DATA], length: 0 };
        for part in parts {
            let at = usize::from(control.length);
            control.data[at..at + part.len()].copy_from_slice(part);
            control.length += part.len() as u8;
        }
        self.all[self.count] = control;
        self.count += 1;
    }

    pub(in crate::socket) fn iter(&self) -> impl Iterator<Item = &Control> {
        self.all[..self.count].iter()
    }
}
