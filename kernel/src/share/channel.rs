//! A message device, and the requests that are sent through it.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use freehold_bounce::OriginalMut;
use freehold_collections::{Arc, Vec, reserve};
use freehold_ninep::{
    self as ninep, Attributes, DATA_HEADER, FileSystemStats, HEADER, MAX_REPLY, MAX_REQUEST, NewAttributes,
    NinepRequest, Qid, VERSION,
};
use freehold_virtio::p9::MAX_DATA;
use freehold_virtio::{Data, Exchange, MessageDevice, MessageError, Sleep};
use spin::Once;

use super::ChannelUse;
use super::fids::{Fid, Fids, Haste};
use crate::block::{Shortage, ensure_objects};
use crate::fs::device::split_device;
use crate::fs::node::{NewNode, NodeKind};
use crate::{Errno, Result, host, sched};

/// Bytes of the longest request, except that for a symbolic link: two names, and numbers.
const REQUEST: usize = 544;
/// unlinkat(2): the name is a directory's.
const REMOVE_DIRECTORY: u32 = 0x200;
/// Bytes of the longest answer, except that for a symbolic link.
const REPLY: usize = 192;
/// Bytes of a message without its data (P9_IOHDRSZ).
const OVERHEAD: usize = 24;
/// The smallest data size of a message that a server must support.
const LEAST: usize = 4096;

static CHANNELS: Once<Vec<&'static Channel>> = Once::new();

/// A device of the host that shows one folder.
pub(super) struct Channel {
    device: Arc<dyn MessageDevice>,
    is_used: AtomicBool,
    /// Largest data size of a message, as agreed with the server.
    most: AtomicUsize,
    fids: Fids,
}

/// Registers the host's folder devices, and starts for each the task that tells its server which
/// fids are no longer needed. Returns whether there are any folders.
pub(super) fn init() -> Result<bool> {
    let mut channels = Vec::new();
    for device in host::folders() {
        let channel: &'static Channel = reserve::leaked(Channel {
            device: device.clone(),
            is_used: AtomicBool::new(false),
            most: AtomicUsize::new(LEAST),
            fids: Fids::new()?,
        });
        channels.try_push(channel)?;
        // One task per server: a server that does not answer delays only its own task.
        sched::spawn_kernel("9p", || channel.work())?;
    }
    let any = !channels.is_empty();
    CHANNELS.call_once(|| channels);
    Ok(any)
}

fn all() -> &'static [&'static Channel] {
    CHANNELS.get().map_or(&[], Vec::as_slice)
}

impl Channel {
    /// Returns the channel of the folder with this `tag`.
    pub fn named(tag: &[u8]) -> Option<&'static Self> {
        all().iter().copied().find(|channel| channel.device.tag() == tag)
    }

    /// The channel's fids.
    pub const fn fids(&self) -> &Fids {
        &self.fids
    }

    /// Largest data size of a message.
    pub fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }

    /// Begins a session.
    ///
    /// # Errors
    /// `EBUSY`: there is a session already; `EPROTONOSUPPORT`: the server speaks another protocol.
    pub fn begin(&'static self) -> Result<ChannelUse> {
        if self.is_used.swap(true, Ordering::AcqRel) {
            return Err(Errno::EBUSY);
        }
        let session = ChannelUse(self);
        let mut reply = [0; REPLY];
        let longest = (MAX_DATA + OVERHEAD) as u32;
        let length = self.ask(&NinepRequest::Version(longest, VERSION), &mut reply, None)?;
        let (agreed, version) = body(&reply, length).and_then(ninep::version).ok_or(Errno::EIO)?;
        let most = (agreed.min(longest) as usize).saturating_sub(OVERHEAD);
        if version != VERSION || most < LEAST {
            return Err(Errno::EPROTONOSUPPORT);
        }
        self.most.store(most, Ordering::Relaxed);
        Ok(session)
    }

    /// Ends the session. Its fids were put away before.
    pub fn end(&self) {
        self.is_used.store(false, Ordering::Release);
    }

    /// Returns a fid for the root of the server's tree.
    pub fn attach(&'static self) -> Result<Fid> {
        self.make(NinepRequest::Attach, |_| Some(())).map(|(fid, ())| fid)
    }

    /// Returns the file that `name` leads to from `dir`.
    pub fn walk(&'static self, dir: &Fid, name: &[u8]) -> Result<(Fid, Qid)> {
        self.make(|fid| NinepRequest::Walk(dir.number(), fid, Some(name)), ninep::walked)
    }

    /// Opens the file of `fid` with these flags of open(2). Returns a new fid for the open file.
    pub fn open(&'static self, fid: &Fid, flags: u32) -> Result<Fid> {
        let (opened, ()) = self.make(|new| NinepRequest::Walk(fid.number(), new, None), |_| Some(()))?;
        let mut reply = [0; REPLY];
        // If the open is killed half-way, the server may have an open file. It closes the file when
        // it is told of the number.
        opened.set_open();
        let length = self.ask(&NinepRequest::Open(opened.number(), flags), &mut reply, None)?;
        body(&reply, length).and_then(ninep::opened).ok_or(Errno::EIO)?;
        Ok(opened)
    }

    /// Makes a file in `dir` and opens it with these flags of open(2). Returns its fid and its
    /// identity.
    pub fn create(&'static self, dir: &Fid, name: &[u8], flags: u32, new: &NewNode) -> Result<(Fid, Qid)> {
        let (made, ()) = self.make(|fid| NinepRequest::Walk(dir.number(), fid, None), |_| Some(()))?;
        let mut reply = [0; REPLY];
        made.set_open();
        let request = NinepRequest::Create(made.number(), name, flags, new.mode, new.gid);
        let length = self.ask(&request, &mut reply, None)?;
        let (qid, _) = body(&reply, length).and_then(ninep::opened).ok_or(Errno::EIO)?;
        Ok((made, qid))
    }

    /// Makes a directory, FIFO, socket or device in `dir`.
    pub fn make_node(&self, dir: &Fid, name: &[u8], new: &NewNode) -> Result<()> {
        let (dir, mode) = (dir.number(), new.kind as u32 | new.mode);
        self.tell(&match new.kind {
            NodeKind::Directory => NinepRequest::MakeDirectory(dir, name, new.mode, new.gid),
            _ => NinepRequest::MakeNode(dir, name, mode, split_device(new.rdev), new.gid),
        })
    }

    /// Makes a symbolic link in `dir`.
    pub fn symlink(&self, dir: &Fid, name: &[u8], target: &[u8], gid: u32) -> Result<()> {
        let (mut room, mut reply) = (Vec::try_filled(0, MAX_REQUEST)?, [0; REPLY]);
        let request = NinepRequest::Symlink(dir.number(), name, target, gid);
        let sent = self.exchange_in(&mut room, &request, (&mut reply, Data::None), None);
        sent.map(|_| ()).map_err(errno)
    }

    /// Gives a file another name.
    pub fn link(&self, dir: &Fid, file: &Fid, name: &[u8]) -> Result<()> {
        self.tell(&NinepRequest::Link(dir.number(), file.number(), name))
    }

    /// Moves a name.
    pub fn rename(&self, dir: &Fid, name: &[u8], new_dir: &Fid, new_name: &[u8]) -> Result<()> {
        self.tell(&NinepRequest::Rename(dir.number(), name, new_dir.number(), new_name))
    }

    /// Removes a name; `kind` says whether it is a directory's.
    pub fn unlink(&self, dir: &Fid, name: &[u8], kind: NodeKind) -> Result<()> {
        let flags = if kind == NodeKind::Directory { REMOVE_DIRECTORY } else { 0 };
        self.tell(&NinepRequest::Unlink(dir.number(), name, flags))
    }

    /// Changes a file's attributes.
    pub fn set_attributes(&self, fid: &Fid, new: NewAttributes) -> Result<()> {
        self.tell(&NinepRequest::SetAttributes(fid.number(), new))
    }

    /// Makes the server write the data of an open file to its disk.
    pub fn sync(&self, fid: &Fid) -> Result<()> {
        self.tell(&NinepRequest::Sync(fid.number()))
    }

    /// Writes at an offset of an open file, at most [`Channel::most`] bytes. Returns how many bytes
    /// the server took.
    pub fn write(&self, fid: &Fid, offset: u64, bytes: &[u8]) -> Result<usize> {
        let mut reply = [0; REPLY];
        let request = NinepRequest::Write(fid.number(), offset, 0);
        let length = self.exchange(&request, &mut reply, Data::Sent(&bytes), None).map_err(errno)?;
        let count = body(&reply, length).and_then(ninep::count).ok_or(Errno::EIO)? as usize;
        if count <= bytes.len() { Ok(count) } else { Err(Errno::EIO) }
    }

    /// Returns the server's attributes of a file.
    pub fn attributes(&self, fid: &Fid) -> Result<Attributes> {
        let mut reply = [0; REPLY];
        let length = self.ask(&NinepRequest::GetAttributes(fid.number()), &mut reply, None)?;
        body(&reply, length).and_then(Attributes::decode).ok_or(Errno::EIO)
    }

    /// Returns the size of the file system and its free space.
    pub fn stats(&self, fid: &Fid) -> Result<FileSystemStats> {
        let mut reply = [0; REPLY];
        let length = self.ask(&NinepRequest::Stats(fid.number()), &mut reply, None)?;
        body(&reply, length).and_then(FileSystemStats::decode).ok_or(Errno::EIO)
    }

    /// Returns the target of a symbolic link.
    pub fn read_link(&self, fid: &Fid) -> Result<Vec<u8>> {
        let mut reply = Vec::try_filled(0, MAX_REPLY)?;
        let length = self.ask(&NinepRequest::ReadLink(fid.number()), &mut reply, None)?;
        let target = body(&reply, length).and_then(ninep::link_target).ok_or(Errno::EIO)?;
        Ok(Vec::try_from_slice(target)?)
    }

    /// Reads bytes of an open file from an offset on. Returns 0 at the file's end.
    pub fn read(&self, fid: &Fid, offset: u64, to: &mut dyn OriginalMut) -> Result<usize> {
        self.receive(&NinepRequest::Read(fid.number(), offset, 0), to)
    }

    /// Reads entries of an open directory from a position on. Returns 0 bytes at the directory's
    /// end.
    pub fn list(&self, fid: &Fid, from: u64, mut to: &mut [u8]) -> Result<usize> {
        self.receive(&NinepRequest::ReadDirectory(fid.number(), from, 0), &mut to)
    }

    /// Like [`Channel::read`], into memory of the kernel.
    pub fn read_bytes(&self, fid: &Fid, offset: u64, mut to: &mut [u8]) -> Result<usize> {
        self.read(fid, offset, &mut to)
    }

    fn receive(&self, request: &NinepRequest<'_>, to: &mut dyn OriginalMut) -> Result<usize> {
        let mut reply = [0; DATA_HEADER];
        self.exchange(request, &mut reply, Data::Received(to), None).map_err(errno)
    }

    /// Sends a request that introduces a new fid, and reads the answer's body.
    fn make<'a, R>(
        &'static self,
        request: impl FnOnce(u32) -> NinepRequest<'a>,
        read: impl FnOnce(&[u8]) -> Option<R>,
    ) -> Result<(Fid, R)> {
        let fid = Fid::new(self)?;
        let request = request(fid.number());
        let mut reply = [0; REPLY];
        match self.exchange(&request, &mut reply, Data::None, Some(fid.number())) {
            Ok(length) => {
                let told = body(&reply, length).and_then(read).ok_or(Errno::EIO)?;
                Ok((fid, told))
            }
            Err(error) => {
                match error {
                    MessageError::Abandoned => fid.abandoned(),
                    _ => fid.refused(),
                }
                Err(errno(error))
            }
        }
    }

    fn ask(&self, request: &NinepRequest<'_>, reply: &mut [u8], left: Option<u32>) -> Result<usize> {
        self.exchange(request, reply, Data::None, left).map_err(errno)
    }

    /// Sends a request whose answer only confirms it.
    fn tell(&self, request: &NinepRequest<'_>) -> Result<()> {
        self.ask(request, &mut [0; REPLY], None).map(|_| ())
    }

    fn exchange(
        &self,
        request: &NinepRequest<'_>,
        reply: &mut [u8],
        data: Data<'_>,
        left: Option<u32>,
    ) -> core::result::Result<usize, MessageError> {
        self.exchange_in(&mut [0; REQUEST], request, (reply, data), left)
    }

    fn exchange_in(
        &self,
        room: &mut [u8],
        request: &NinepRequest<'_>,
        (reply, data): (&mut [u8], Data<'_>),
        left: Option<u32>,
    ) -> core::result::Result<usize, MessageError> {
        let request = request.encode(room).ok_or(MessageError::TooLong)?;
        // Ensures that the device has its objects for one request.
        ensure_objects(Shortage::Fail).map_err(|_| MessageError::Refused(Errno::ENOMEM as u32))?;
        self.device.exchange(&mut Exchange { request, reply, data, left }, Sleep::Killable)
    }

    /// The task: releases one fid after the other.
    fn work(&self) {
        loop {
            let number = host::folders_ended().wait_uninterruptible(|| self.next_due());
            self.clunk(number, Sleep::Uninterruptible);
        }
    }

    /// Makes the caller release put-away fids if the task does not keep up: while too many are put
    /// away, or no number is free.
    ///
    /// # Errors
    /// `EINTR`: a signal kills the caller.
    pub fn relieve(&'static self) -> Result<()> {
        while let Some(number) = self.fids.next_in_excess() {
            self.clunk(number, Sleep::Killable);
            if sched::is_current_dying() {
                return Err(Errno::EINTR);
            }
            if self.fids.has_free() {
                break;
            }
        }
        Ok(())
    }

    /// Returns a fid to release, if any.
    fn next_due(&self) -> Option<u32> {
        while let Some(number) = self.device.take_ended() {
            self.fids.put_away(number, Haste::Now);
        }
        self.fids.next_due()
    }

    /// Tells the server that a fid is not used any more. The result does not matter: in each case
    /// the server does not know the number afterwards. If the caller is killed meanwhile, the task
    /// releases the number.
    fn clunk(&self, number: u32, sleep: Sleep) {
        let mut reply = [0; DATA_HEADER];
        let mut room = [0; REQUEST];
        if let Some(request) = NinepRequest::Clunk(number).encode(&mut room)
            && ensure_objects(Shortage::Wait).is_ok()
        {
            let data = Data::None;
            let mut exchange = Exchange { request, reply: &mut reply, data, left: Some(number) };
            match self.device.exchange(&mut exchange, sleep) {
                Err(MessageError::Killed) => return self.fids.put_away(number, Haste::Now),
                // The abandoned message is reported later, when it has ended.
                Err(MessageError::Abandoned) => return,
                _ => {}
            }
        }
        self.fids.told(number);
    }
}

/// Returns the body of an answer of `length` bytes, as far as there was room for it.
fn body(reply: &[u8], length: usize) -> Option<&[u8]> {
    reply.get(HEADER..length.min(reply.len()))
}

/// Returns the error for the program.
fn errno(error: MessageError) -> Errno {
    match error {
        MessageError::Refused(number) => Errno::from_number(number).unwrap_or(Errno::EIO),
        MessageError::Killed | MessageError::Abandoned => Errno::EINTR,
        MessageError::TooLong => Errno::ENAMETOOLONG,
        MessageError::Failed => Errno::EIO,
    }
}
