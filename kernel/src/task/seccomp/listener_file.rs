//! The file of a [`Listener`]: its requests, and their structures.

use freehold_bpf::CallData;
use freehold_collections::{Arc, reserve};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::super::{current, registry};
use super::listener::{Answer, Asking, Listener, Phase};
use crate::fs::anonymous::AnonymousNode;
use crate::fs::{File, Node, NodeKind, OnExec, OpenFile, OpenFlags, Ready};
use crate::sync::PollWaiter;
use crate::user::{self, UserPtr};
use crate::{Errno, Result};

/// Sizes of struct seccomp_notif, seccomp_notif_resp and seccomp_data, in bytes.
pub const SIZES: [u16; 3] =
    [size_of::<Shown>() as u16, size_of::<Response>() as u16, size_of::<CallData>() as u16];

/// The requests, and the part of a request that says how large its argument is.
mod request {
    pub const RECEIVE: u32 = 0xc050_2100;
    pub const SEND: u32 = 0xc018_2101;
    pub const IS_VALID: u32 = 0x4008_2102;
    /// The same in the wrong direction, as Linux once defined it.
    pub const IS_VALID_READ: u32 = 0x8008_2102;
    /// SECCOMP_IOCTL_NOTIF_ADDFD without direction and size.
    pub const ADD_FILE: u32 = 0x2103;
    pub const SIZE_SHIFT: u32 = 16;
    pub const SIZE: u32 = 0x3fff;
    pub const NUMBER: u32 = 0xffff;
}

/// SECCOMP_USER_NOTIF_FLAG_CONTINUE
const CONTINUE: u32 = 1;
/// SECCOMP_ADDFD_FLAG_SETFD, SECCOMP_ADDFD_FLAG_SEND.
const AT_NUMBER: u32 = 1;
const AND_SEND: u32 = 2;
/// Smallest and largest size of struct seccomp_notif_addfd.
const ADDED_SIZES: core::ops::Range<usize> = size_of::<Added>()..4096;

/// `struct seccomp_notif`
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct Shown {
    id: u64,
    pid: u32,
    flags: u32,
    data: [u32; size_of::<CallData>() / 4],
}

/// `struct seccomp_notif_resp`
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct Response {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

/// `struct seccomp_notif_addfd`
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct Added {
    id: u64,
    flags: u32,
    source: u32,
    number: u32,
    number_flags: u32,
}

/// The file through which a listener's holder receives and answers.
pub struct ListenerFile {
    listener: Arc<Listener>,
    node: Arc<dyn Node>,
}

impl ListenerFile {
    /// Opens the file of `listener`.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn open(listener: &Arc<Listener>) -> Result<Arc<OpenFile>> {
        let node = AnonymousNode::plain(NodeKind::Regular, "anon_inode:seccomp notify");
        let file = reserve::arc(Self { listener: listener.clone(), node });
        OpenFile::new(file, None, OpenFlags::RDWR)
    }
}

impl Drop for ListenerFile {
    fn drop(&mut self) {
        self.listener.close();
    }
}

impl File for ListenerFile {
    fn node(&self) -> Arc<dyn Node> {
        self.node.clone()
    }

    fn poll(&self, waiter: Option<&mut PollWaiter>) -> Ready {
        if let Some(waiter) = waiter {
            waiter.register(&self.listener.changed);
        }
        let state = self.listener.state.lock();
        let mut ready = Ready::empty();
        ready.set(Ready::IN, state.is_any(Phase::New));
        ready.set(Ready::OUT, state.is_any(Phase::Received));
        ready.set(Ready::HUP, !state.has_threads);
        ready
    }

    fn ioctl(&self, request: u32, argument: u64) -> Result<i64> {
        match request {
            request::RECEIVE => self.receive(argument),
            request::SEND => self.send(UserPtr::new(argument).read()?),
            request::IS_VALID | request::IS_VALID_READ => {
                let id: u64 = UserPtr::new(argument).read()?;
                let is_valid = self.listener.state.lock().received(id).is_ok();
                if is_valid { Ok(0) } else { Err(Errno::ENOENT) }
            }
            _ if request & request::NUMBER == request::ADD_FILE => {
                let size = (request >> request::SIZE_SHIFT & request::SIZE) as usize;
                self.add_file(read_added(argument, size)?)
            }
            _ => Err(Errno::EINVAL),
        }
    }
}

/// Reads struct seccomp_notif_addfd, of which a program may have a longer version.
fn read_added(address: u64, size: usize) -> Result<Added> {
    if !ADDED_SIZES.contains(&size) {
        return Err(Errno::EINVAL);
    }
    let bytes = user::read_vec(address, size)?;
    let (known, unknown) = bytes.split_at(size_of::<Added>());
    if unknown.iter().any(|&byte| byte != 0) {
        return Err(Errno::E2BIG);
    }
    Added::read_from_bytes(known).map_err(|_| Errno::EINVAL)
}

impl ListenerFile {
    /// SECCOMP_IOCTL_NOTIF_RECV. Waits for a notification even if the file is non-blocking, as on
    /// Linux.
    fn receive(&self, argument: u64) -> Result<i64> {
        let place = UserPtr::<Shown>::new(argument);
        if place.read()?.as_bytes().iter().any(|&byte| byte != 0) {
            return Err(Errno::EINVAL);
        }
        let Listener { state, changed, .. } = &*self.listener;
        changed.wait_until(|| state.lock().take_turn())?;
        let shown = {
            let mut state = state.lock();
            let (id, asking) = state.receive()?;
            let pid = registry::number_in(current().process().pid_view(), asking.tid);
            Shown { id, pid, flags: 0, data: *asking.data.words() }
        };
        changed.wake_all();
        if let Err(error) = place.write(&shown) {
            state.lock().put_back(shown.id);
            changed.wake_all();
            return Err(error);
        }
        Ok(0)
    }

    /// SECCOMP_IOCTL_NOTIF_SEND
    fn send(&self, response: Response) -> Result<i64> {
        let Response { id, value, error, flags } = response;
        let answer = match flags {
            0 if error != 0 => Answer::Result(error.into()),
            0 => Answer::Result(value),
            CONTINUE if error == 0 && value == 0 => Answer::Continue,
            _ => return Err(Errno::EINVAL),
        };
        self.listener.state.lock().received(id)?.answer(answer);
        Ok(0)
    }

    /// SECCOMP_IOCTL_NOTIF_ADDFD
    fn add_file(&self, added: Added) -> Result<i64> {
        let flags = OpenFlags::from_bits_retain(added.number_flags);
        let is_known = OpenFlags::CLOEXEC.contains(flags) && added.flags & !(AT_NUMBER | AND_SEND) == 0;
        if !is_known || (added.number != 0 && added.flags & AT_NUMBER == 0) {
            return Err(Errno::EINVAL);
        }
        let file = current().process().file(added.source as i32)?;
        file.check_not_path()?;
        // `file` outlives the lock: its end may sleep.
        let number = (added.flags & AT_NUMBER != 0).then_some(added.number as i32);
        let mut state = self.listener.state.lock();
        let notification = state.received(added.id)?;
        let Asking { files, limit, .. } = notification.asking.clone();
        let on_exec = OnExec::asked_by(flags);
        let (number, replaced) = match number {
            Some(number) => (number, files.replace(number, file.clone(), on_exec, limit)?),
            None => (files.insert(file.clone(), on_exec, limit)?, None),
        };
        if added.flags & AND_SEND != 0 {
            notification.answer(Answer::Result(number.into()));
        }
        drop(state);
        if let Some(replaced) = replaced {
            files.closed(&replaced);
        }
        Ok(number.into())
    }
}
