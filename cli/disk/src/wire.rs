//! Messages of vhost-user (QEMU's docs/interop/vhost-user.rst).

use std::fs::File;
use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

/// Bytes of a header: request, flags, size of the payload.
const HEADER: usize = 12;
/// The longest payload that is read.
const MAX_PAYLOAD: usize = 4096;
/// Largest number of files that come with a message.
const MAX_FILES: usize = 8;
/// Version 1, and "this is a reply".
const REPLY: u32 = 1 | 1 << 2;

/// A request of the master, as far as this server acts on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum VhostRequest {
    GetFeatures,
    SetMemoryTable,
    SetRingSize,
    SetRingAddresses,
    SetRingBase,
    GetRingBase,
    SetRingKick,
    SetRingCall,
    GetProtocolFeatures,
    EnableRing,
    GetConfig,
    Other,
}

/// A message.
pub(crate) struct VhostMessage {
    pub request: VhostRequest,
    number: u32,
    pub payload: Vec<u8>,
    pub files: Vec<File>,
}

impl VhostMessage {
    /// Returns 32 bits of the payload; 0 beyond its end.
    pub fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|i| self.payload.get(at + i).copied().unwrap_or(0)))
    }
    /// Returns 64 bits of the payload.
    pub fn long(&self, at: usize) -> u64 {
        u64::from(self.word(at + 4)) << 32 | u64::from(self.word(at))
    }
}

/// Receives the next message; `None` at the end of the connection.
pub(crate) fn receive(mut stream: &UnixStream) -> io::Result<Option<VhostMessage>> {
    let mut header = [0; HEADER];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let first =
        recvmsg(stream, &mut [IoSliceMut::new(&mut header)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if first.bytes == 0 {
        return Ok(None);
    }
    let files = ancillary.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => files.map(File::from).collect(),
        _ => Vec::new(),
    });
    let files = files.collect();
    stream.read_exact(&mut header[first.bytes..])?;
    let field = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| header[at + i]));
    let (number, size) = (field(0), field(8) as usize);
    if size > MAX_PAYLOAD {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message that is too long"));
    }
    let mut payload = vec![0; size];
    stream.read_exact(&mut payload)?;
    let request = match number {
        1 => VhostRequest::GetFeatures,
        5 => VhostRequest::SetMemoryTable,
        8 => VhostRequest::SetRingSize,
        9 => VhostRequest::SetRingAddresses,
        10 => VhostRequest::SetRingBase,
        11 => VhostRequest::GetRingBase,
        12 => VhostRequest::SetRingKick,
        13 => VhostRequest::SetRingCall,
        15 => VhostRequest::GetProtocolFeatures,
        18 => VhostRequest::EnableRing,
        24 => VhostRequest::GetConfig,
        _ => VhostRequest::Other,
    };
    Ok(Some(VhostMessage { request, number, payload, files }))
}

/// Answers `to`.
pub(crate) fn reply(mut stream: &UnixStream, to: &VhostMessage, payload: &[u8]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(HEADER + payload.len());
    for word in [to.number, REPLY, payload.len() as u32] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(payload);
    stream.write_all(&bytes)
}
