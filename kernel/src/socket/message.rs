//! `struct msghdr` of sendmsg and recvmsg, and ancillary data.

use core::mem::offset_of;

use freehold_collections::Vec;
use linux_raw_sys::net as c;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::beside::controls::Controls;
use super::beside::wishes::{Versions, Wishes};
use super::channel::Ancillary;
use super::endpoint::{Socket, SocketKind};
use super::family::Family;
use super::flight::Files;
use super::options::Credentials;
use crate::fs::OnExec;
use crate::mem::ProgramMemory;
use crate::task;
use crate::user::{self, UserPtr};
use crate::{Errno, Result};

/// Largest number of bytes of control data that are read.
const MOST_CONTROL: usize = 4096;
/// Control messages begin at multiples of this.
const ALIGN: usize = 8;

/// `struct msghdr`: 56 bytes.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct MessageHeader {
    /// msg_name.
    pub name: u64,
    /// msg_namelen.
    pub name_length: u32,
    /// Padding.
    pub pad: u32,
    /// msg_iov.
    pub vectors: u64,
    /// msg_iovlen.
    pub vector_count: u64,
    /// msg_control.
    pub control: u64,
    /// msg_controllen.
    pub control_length: u64,
    /// msg_flags.
    pub flags: u32,
    /// Padding.
    pub pad2: u32,
}

impl MessageHeader {
    /// Writes the results of a receive into the program's header at `at` of `memory`. The other
    /// fields are not written: another thread may use them.
    ///
    /// # Errors
    /// `EFAULT`.
    #[inline]
    pub(super) fn write_result(&self, at: UserPtr<Self>, memory: &impl ProgramMemory) -> Result<()> {
        let field = |offset: usize| at.address().wrapping_add(offset as u64);
        if self.name != 0 {
            memory.write(field(offset_of!(Self, name_length)), &self.name_length)?;
        }
        memory.write(field(offset_of!(Self, control_length)), &self.control_length)?;
        memory.write(field(offset_of!(Self, flags)), &self.flags)
    }

    /// Reads the control messages; none if there is no room for one.
    ///
    /// # Errors
    /// `ENOBUFS` if they are too long; `EFAULT`, `ENOMEM`.
    #[inline]
    pub(super) fn read_control(&self) -> Result<Vec<u8>> {
        let length = usize::try_from(self.control_length).unwrap_or(usize::MAX);
        if self.control == 0 || length < CONTROL_BYTES {
            return Ok(Vec::new());
        }
        if length > MOST_CONTROL {
            return Err(Errno::ENOBUFS);
        }
        user::read_vec(self.control, length)
    }
}

/// `struct cmsghdr`: 16 bytes.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct Control {
    length: u64,
    level: u32,
    kind: u32,
}

const CONTROL_BYTES: usize = size_of::<Control>();

/// SCM_CREDENTIALS.
const SCM_CREDENTIALS: u32 = 2;

/// A sender's ancillary data: the data that travels with the bytes, and the sender's requests.
pub(super) type Sent = (Ancillary, Option<Wishes>);

/// Parses the control messages that a program sends with `socket`. As on Linux, those of other
/// levels are skipped.
///
/// # Errors
/// `EINVAL`, `EBADF`, `EPERM` for credentials that are not the sender's.
pub(super) fn parse_control(socket: &Socket, mut rest: &[u8]) -> Result<Sent> {
    let mut ancillary = Ancillary::unsigned();
    let mut wishes: Option<Wishes> = None;
    while let Ok((control, _)) = Control::read_from_prefix(rest) {
        let length = usize::try_from(control.length).map_err(|_| Errno::EINVAL)?;
        let data = rest.get(CONTROL_BYTES..length).ok_or(Errno::EINVAL)?;
        match (control.level, control.kind) {
            (c::SOL_SOCKET, c::SCM_RIGHTS) => read_files(data, &mut ancillary.files)?,
            (c::SOL_SOCKET, SCM_CREDENTIALS) => {
                let claimed = Credentials::read_from_bytes(data).map_err(|_| Errno::EINVAL)?.of_kernel()?;
                if !claimed.may_be_claimed() {
                    return Err(Errno::EPERM);
                }
                ancillary.credentials = claimed;
            }
            (c::SOL_SOCKET, _) => return Err(Errno::EINVAL),
            (level, kind) if socket.family().is_ip() && socket.kind() == SocketKind::Datagram => {
                let is_v6 = socket.family() == Family::Inet6;
                let versions = if is_v6 { Versions::Both } else { Versions::V4 };
                wishes.get_or_insert_default().read(versions, (level, kind), data)?;
            }
            _ => {}
        }
        rest = rest.get(length.next_multiple_of(ALIGN)..).unwrap_or_default();
    }
    Ok((ancillary, wishes))
}

fn read_files(data: &[u8], files: &mut Files) -> Result<()> {
    let table = task::current().process().files();
    for fd in data.chunks_exact(size_of::<i32>()) {
        let file = table.get(i32::from_le_bytes([fd[0], fd[1], fd[2], fd[3]]))?;
        if !file.file().may_travel() {
            return Err(Errno::EINVAL);
        }
        files.push(file)?;
    }
    Ok(())
}

/// Handling of received control data.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    /// SO_PASSCRED.
    pub credentials: PassCredentials,
    /// MSG_CMSG_CLOEXEC.
    pub on_exec: OnExec,
}

/// Whether the receiver requested the sender's credentials.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PassCredentials {
    /// The receiver requested credentials.
    Yes,
    /// The receiver did not request credentials.
    No,
}

/// Gives the receiver the ancillary data in `memory`: descriptors for the files, and the sender's
/// credentials. Returns the length that was written, and MSG_CTRUNC if not everything fitted. Files
/// that do not fit are closed.
///
/// # Errors
/// `EFAULT`.
pub(super) fn write_control(
    header: &MessageHeader,
    (ancillary, controls): (Ancillary, Option<&Controls>),
    delivery: Delivery,
    memory: &impl ProgramMemory,
) -> Result<(u64, u32)> {
    let room = usize::try_from(header.control_length).unwrap_or(usize::MAX);
    let mut flags = 0;
    let mut written = 0;
    let mut put = |(level, kind): (u32, u32), data: &[u8], flags: &mut u32| -> Result<()> {
        let left = room.saturating_sub(written);
        if header.control == 0 || left < CONTROL_BYTES {
            *flags |= c::MSG_CTRUNC;
            return Ok(());
        }
        let data = if data.len() > left - CONTROL_BYTES {
            *flags |= c::MSG_CTRUNC;
            &data[..left - CONTROL_BYTES]
        } else {
            data
        };
        let control = Control { length: (CONTROL_BYTES + data.len()) as u64, level, kind };
        let at = header.control + written as u64;
        memory.write_exact(at, control.as_bytes())?;
        memory.write_exact(at + CONTROL_BYTES as u64, data)?;
        written += (CONTROL_BYTES + data.len()).next_multiple_of(ALIGN);
        Ok(())
    };
    for control in controls.into_iter().flat_map(Controls::iter) {
        put((control.level, control.kind), control.data(), &mut flags)?;
    }
    if delivery.credentials == PassCredentials::Yes {
        put(
            (c::SOL_SOCKET, SCM_CREDENTIALS),
            ancillary.credentials.shown_or_overflow().as_bytes(),
            &mut flags,
        )?;
    }
    if !ancillary.files.is_empty() {
        let before = if delivery.credentials == PassCredentials::Yes { 32 } else { 0 };
        let fit = room.saturating_sub(before + CONTROL_BYTES) / size_of::<i32>();
        let numbers = install(ancillary.files, if header.control == 0 { 0 } else { fit }, delivery.on_exec);
        let (numbers, all) = numbers;
        if !all {
            flags |= c::MSG_CTRUNC;
        }
        if !numbers.is_empty() {
            put((c::SOL_SOCKET, c::SCM_RIGHTS), numbers.as_bytes(), &mut flags)?;
        }
    }
    Ok((written.min(room) as u64, flags))
}

/// Makes descriptors for up to `most` of `files`, as far as memory suffices. Also returns whether
/// all files got one.
fn install(files: Files, most: usize, on_exec: OnExec) -> (Vec<i32>, bool) {
    let process = task::current().process().clone();
    let limit = process.descriptor_limit();
    let total = files.len();
    let mut numbers = Vec::new();
    let most = if numbers.try_reserve_exact(most.min(total)).is_ok() { most } else { 0 };
    for file in files.into_vec().into_iter().take(most) {
        match process.files().insert(file, on_exec, limit) {
            Ok(fd) => numbers.push_reserved(fd),
            Err(_) => break,
        }
    }
    let all = numbers.len() == total;
    (numbers, all)
}

const _: () = assert!(size_of::<MessageHeader>() == size_of::<c::msghdr>());
