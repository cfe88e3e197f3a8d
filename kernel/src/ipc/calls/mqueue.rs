//! mq_open, mq_unlink, mq_timedsend, mq_timedreceive, mq_notify, mq_getsetattr.

use freehold_collections::{Arc, Vec, WipedBytes, reserve};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::super::mqueue::account::{self, Maker, PRIORITIES};
use super::super::mqueue::directory::QueueDirectory;
use super::super::mqueue::node::QueueNode;
use super::super::mqueue::notify::{COOKIE_BYTES, Notice, Registration};
use super::super::mqueue::queue::Wait;
use super::super::mqueue::state::Message;
use super::super::objects;
use crate::fs::node::NewNode;
use crate::fs::notify::{self, Events};
use crate::fs::path::PathEntry;
use crate::fs::{
    Access, Blocking, Caller, Node, NodeKind, OnExec, OpenFile, OpenFlags, Path, PathWalk, names, walk,
};
use crate::socket::netlink::CookieReceiver;
use crate::syscall::Args;
use crate::task::{Process, Signal, current};
use crate::time::{Base, Deadline, TimeSpec};
use crate::user::{self, UserPtr};
use crate::{Errno, Result, sched};

/// `struct mq_attr`.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct UserAttributes {
    flags: i64,
    most_messages: i64,
    most_bytes: i64,
    messages: i64,
    unused: [i64; 4],
}

/// First fields of `struct sigevent`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct UserEvent {
    value: u64,
    signal: i32,
    notify: i32,
    unused: [i32; 12],
}

/// Reads the name of a queue. The C library has removed the slash.
fn name_at(address: u64) -> Result<Vec<u8>> {
    let name = user::string(address)?;
    if name.is_empty() {
        return Err(Errno::ENOENT);
    }
    Ok(name)
}

/// Checks a name. As on Linux, an invalid one is `EACCES`.
fn check_name(name: &[u8]) -> Result<()> {
    if name.contains(&b'/') || name == b"." || name == b".." {
        return Err(Errno::EACCES);
    }
    if name.len() > walk::NAME_MAX { Err(Errno::ENAMETOOLONG) } else { Ok(()) }
}

/// Arguments of mq_open.
struct Opening<'a> {
    name: &'a [u8],
    flags: OpenFlags,
    mode: u32,
    attributes: Option<UserAttributes>,
}

impl Opening<'_> {
    /// Returns the existing queue `node`, if the caller may open it with these flags.
    fn existing(&self, node: Arc<QueueNode>, caller: &Caller<'_>) -> Result<Arc<QueueNode>> {
        if self.flags.contains(OpenFlags::CREAT | OpenFlags::EXCL) {
            return Err(Errno::EEXIST);
        }
        if self.flags.contains(OpenFlags::WRONLY | OpenFlags::RDWR) {
            return Err(Errno::EINVAL);
        }
        let mut wanted = Access::EXISTS;
        if self.flags.reads() {
            wanted = wanted.and(Access::READ);
        }
        if self.flags.writes() {
            wanted = wanted.and(Access::WRITE);
        }
        caller.may(&node.metadata(), wanted)?;
        Ok(node)
    }

    fn make(&self, dir: &QueueDirectory, process: &Process, caller: &Caller<'_>) -> Result<Arc<QueueNode>> {
        caller.may(&dir.metadata(), Access::WRITE.and(Access::EXECUTE))?;
        let maker = Maker::of(process);
        let shape = match &self.attributes {
            None => account::default_shape(),
            Some(asked) => account::shape_of(asked.most_messages, asked.most_bytes, &maker)?,
        };
        let new =
            NewNode { kind: NodeKind::Regular, mode: self.mode, uid: caller.uid, gid: caller.gid, rdev: 0 };
        dir.make(self.name, &new, shape, &maker)
    }

    /// Returns the queue, and whether it was created.
    fn find_or_make(&self, process: &Process, caller: &Caller<'_>) -> Result<(Arc<QueueNode>, Origin)> {
        let dir = objects::of_caller().posix_queues.directory();
        loop {
            match dir.find(self.name) {
                Ok(node) => return Ok((self.existing(node, caller)?, Origin::Existing)),
                Err(_) if !self.flags.contains(OpenFlags::CREAT) => return Err(Errno::ENOENT),
                Err(_) => match self.make(&dir, process, caller) {
                    // Another task created the queue first: open it.
                    Err(Errno::EEXIST) => {}
                    made => return Ok((made?, Origin::Made)),
                },
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    Existing,
    Made,
}

/// mq_open(name, flags, mode, attributes)
///
/// # Errors
/// As in the manual.
#[cold]
pub fn sys_mq_open(args: &Args) -> Result<i64> {
    let attributes = UserPtr::<UserAttributes>::new(args[3]).read_optional()?;
    let name = name_at(args[0])?;
    let process = current().process().clone();
    let files = process.files();
    let descriptor = files.promise(process.descriptor_limit())?;
    check_name(&name)?;
    let flags =
        OpenFlags::from_bits_retain(args.uint(1)) & OpenFlags::KEPT.union(OpenFlags::CREAT | OpenFlags::EXCL);
    let mode = args.uint(2) & 0o7777 & !process.fs().umask();
    let credentials = process.credentials();
    let opening = Opening { name: &name, flags, mode, attributes };
    let place = Path::root_of(objects::of_caller().posix_queues.own_mount()?);
    let order = names::order_of_events(&place)?;
    let (node, origin) = opening.find_or_make(&process, &credentials.caller())?;
    if origin == Origin::Made {
        let made: Arc<dyn Node> = node.clone();
        notify::entry(&place, &name, &made, Events::CREATE);
    }
    drop(order);
    let entry = PathEntry::new(place.node.clone(), name);
    let place = Path { mount: place.mount, node: node.clone(), entry: Some(reserve::arc(entry)) };
    let file = OpenFile::new(node, Some(place), flags)?;
    Ok(i64::from(descriptor.keep(file, OnExec::Close)))
}

/// mq_unlink(name)
///
/// # Errors
/// As in the manual.
pub fn sys_mq_unlink(args: &Args) -> Result<i64> {
    let name = name_at(args[0])?;
    check_name(&name)?;
    let root = Path::root_of(objects::of_caller().posix_queues.own_mount()?);
    let credentials = current().process().credentials();
    names::unlink(&PathWalk::new(&root, &root, &credentials.caller()), &name)?;
    Ok(0)
}

/// Runs `f` on the open queue of a descriptor.
fn with_queue<R>(fd: i32, f: impl FnOnce(&OpenFile, &QueueNode) -> Result<R>) -> Result<R> {
    let file = current().process().file(fd)?;
    file.check_not_path()?;
    let queue = file.file().downcast::<QueueNode>().ok_or(Errno::EBADF)?;
    f(&file, queue)
}

/// How a call on `file` waits: until the wall clock shows the time at `address`, or without a limit
/// if `address` is 0.
fn wait_of(file: &OpenFile, deadline: Option<Deadline>) -> Wait {
    Wait { blocking: file.blocking(), deadline, nice: current().schedule.nice() }
}

fn deadline(address: u64) -> Result<Option<Deadline>> {
    let time = UserPtr::<TimeSpec>::new(address).read_optional()?;
    let by_wall = |at| Deadline { base: Base::Wall, at };
    time.map(|time| time.nanoseconds().map(by_wall)).transpose()
}

/// Bytes of a message text that are copied before other tasks may run.
const COPIED_AT_ONCE: usize = 256 << 10;

/// Reads the text of a message to be sent.
fn read_text(address: u64, length: usize) -> Result<WipedBytes> {
    if length <= COPIED_AT_ONCE {
        return Ok(WipedBytes::from(user::read_vec(address, length)?));
    }
    let mut text = WipedBytes::new();
    text.try_reserve(length)?;
    while text.len() < length {
        let step = (length - text.len()).min(COPIED_AT_ONCE);
        let part = WipedBytes::from(user::read_vec(address.wrapping_add(text.len() as u64), step)?);
        text.try_extend(&part)?;
        sched::checkpoint()?;
    }
    Ok(text)
}

/// Copies the text of a message to a program. The message has left its queue.
fn write_text(address: u64, text: &[u8]) -> Result<()> {
    let mut place = address;
    for part in text.chunks(COPIED_AT_ONCE) {
        user::write_exact(place, part)?;
        place = place.wrapping_add(part.len() as u64);
        sched::rest();
    }
    Ok(())
}

/// mq_timedsend(queue, text, length, priority, deadline)
///
/// # Errors
/// As in the manual.
pub fn sys_mq_timedsend(args: &Args) -> Result<i64> {
    let deadline = deadline(args[4])?;
    if u64::from(args.uint(3)) >= PRIORITIES {
        return Err(Errno::EINVAL);
    }
    with_queue(args.fd(0), |file, node| {
        file.check_writable()?;
        if args.size(2) > node.queue().shape().bytes {
            return Err(Errno::EMSGSIZE);
        }
        let text = read_text(args[1], args.size(2))?;
        node.queue().send(Message { priority: args.uint(3), text }, wait_of(file, deadline))?;
        node.touch();
        Ok(0)
    })
}

/// mq_timedreceive(queue, text, length, priority, deadline): returns the length of the message.
///
/// # Errors
/// As in the manual.
pub fn sys_mq_timedreceive(args: &Args) -> Result<i64> {
    let deadline = deadline(args[4])?;
    with_queue(args.fd(0), |file, node| {
        file.check_readable()?;
        if args.size(2) < node.queue().shape().bytes {
            return Err(Errno::EMSGSIZE);
        }
        let message = node.queue().receive(wait_of(file, deadline))?;
        node.touch();
        UserPtr::new(args[3]).write_optional(&message.priority)?;
        write_text(args[1], &message.text)?;
        Ok(message.text.len() as i64)
    })
}

/// Returns the kind of notice that a program requests.
fn notice_of(event: UserEvent) -> Result<Notice> {
    const SIGEV_SIGNAL: i32 = 0;
    const SIGEV_NONE: i32 = 1;
    const SIGEV_THREAD: i32 = 2;
    match event.notify {
        SIGEV_NONE => Ok(Notice::None),
        SIGEV_SIGNAL if event.signal == 0 => Ok(Notice::Signal(None, event.value)),
        SIGEV_SIGNAL => {
            let signal = Signal::new(i64::from(event.signal)).ok_or(Errno::EINVAL)?;
            Ok(Notice::Signal(Some(signal), event.value))
        }
        SIGEV_THREAD => {
            let cookie = UserPtr::<[u8; COOKIE_BYTES]>::new(event.value).read()?;
            Ok(Notice::Thread(CookieReceiver::of(&*current().process().file(event.signal)?)?, cookie))
        }
        _ => Err(Errno::EINVAL),
    }
}

/// mq_notify(queue, event)
///
/// # Errors
/// As in the manual.
pub fn sys_mq_notify(args: &Args) -> Result<i64> {
    let event = UserPtr::<UserEvent>::new(args[1]).read_optional()?;
    let notice = event.map(notice_of).transpose()?;
    with_queue(args.fd(0), |_, node| {
        match notice {
            Some(notice) => node.queue().register(Registration::new(notice))?,
            None if node.queue().unregister() => {}
            None => return Ok(0),
        }
        node.touch();
        Ok(0)
    })
}

/// mq_getsetattr(queue, new, old). Only O_NONBLOCK of the description can change.
///
/// # Errors
/// As in the manual.
pub fn sys_mq_getsetattr(args: &Args) -> Result<i64> {
    let nonblock = i64::from(OpenFlags::NONBLOCK.bits());
    let new = UserPtr::<UserAttributes>::new(args[1]).read_optional()?;
    if new.is_some_and(|new| new.flags & !nonblock != 0) {
        return Err(Errno::EINVAL);
    }
    with_queue(args.fd(0), |file, node| {
        let shape = node.queue().shape();
        let old = UserAttributes {
            flags: i64::from(file.flags().bits()) & nonblock,
            most_messages: shape.messages as i64,
            most_bytes: shape.bytes as i64,
            messages: node.queue().figures().messages as i64,
            unused: [0; 4],
        };
        if let Some(new) = new {
            file.set_blocking(if new.flags == 0 { Blocking::Wait } else { Blocking::Never });
            node.touch();
        }
        UserPtr::new(args[2]).write_optional(&old)?;
        Ok(0)
    })
}
