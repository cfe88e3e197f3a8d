//! msgget, msgsnd, msgrcv, msgctl.

use freehold_collections::WipedBytes;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::super::ids::{NOWAIT, Object as _, WantedObject};
use super::super::limits::{MSGMAX, MSGMNB, MSGMNI};
use super::super::msg::{self, Patience, QueuedMessage, Reception, Selection, TooLong};
use super::super::permission::UserPermission;
use super::{
    IPC_INFO, IPC_RMID, IPC_SET, IPC_STAT, Named, caller, find_to_change, find_to_tell, of_caller, valid,
};
use crate::syscall::Args;
use crate::task::registry;
use crate::user::{self, UserPtr};
use crate::{Errno, Result};

/// `struct msqid64_ds`: 120 bytes.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct UserQueue {
    permission: UserPermission,
    sent: i64,
    received: i64,
    changed: i64,
    bytes: u64,
    count: u64,
    most: u64,
    sender_pid: u32,
    receiver_pid: u32,
    unused: [u64; 2],
}

/// `struct msginfo`: 32 bytes.
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable)]
struct UserLimits {
    pool: i32,
    map: i32,
    max: i32,
    mnb: i32,
    mni: i32,
    ssz: i32,
    tql: i32,
    seg: u16,
    pad: u16,
}

/// Bytes of the type, which precedes the text.
const TYPE: u64 = 8;

/// msgget(key, flags)
///
/// # Errors
/// As in the manual.
pub fn sys_msgget(args: &Args) -> Result<i64> {
    msg::get(&WantedObject { key: args.int(0), flags: args.uint(1), caller: &caller(), home: &of_caller() })
        .map(i64::from)
}

fn patience(flags: u32) -> Patience {
    if flags & NOWAIT != 0 { Patience::Never } else { Patience::Wait }
}

/// msgsnd(id, message, length, flags)
///
/// # Errors
/// As in the manual.
pub fn sys_msgsnd(args: &Args) -> Result<i64> {
    let kind: i64 = UserPtr::new(args[1]).read()?;
    if args[2] > MSGMAX.get() || args.int(0) < 0 || kind < 1 {
        return Err(Errno::EINVAL);
    }
    let text = user::read_vec(args[1].wrapping_add(TYPE), args.size(2))?;
    let message = QueuedMessage { kind, text: WipedBytes::from(text) };
    of_caller().queues.find(args.int(0))?.send(message, &caller(), patience(args.uint(3)))?;
    Ok(0)
}

const MSG_NOERROR: u32 = 0o10000;
const MSG_EXCEPT: u32 = 0o20000;
const MSG_COPY: u32 = 0o40000;

fn selection(kind: i64, flags: u32) -> Selection {
    match kind {
        at if flags & MSG_COPY != 0 => Selection::CopyAt(at),
        0 => Selection::Any,
        // The smallest i64 has no positive counterpart.
        ..0 => Selection::UpTo(kind.checked_neg().unwrap_or(i64::MAX)),
        kind if flags & MSG_EXCEPT != 0 => Selection::Except(kind),
        kind => Selection::Equal(kind),
    }
}

/// msgrcv(id, message, length, type, flags): returns the length of the text.
///
/// # Errors
/// As in the manual.
pub fn sys_msgrcv(args: &Args) -> Result<i64> {
    let (id, flags) = (valid(args.int(0))?, args.uint(4));
    if args.long(2) < 0 {
        return Err(Errno::EINVAL);
    }
    if flags & MSG_COPY != 0 && (flags & MSG_EXCEPT != 0 || flags & NOWAIT == 0) {
        return Err(Errno::EINVAL);
    }
    let too_long = if flags & MSG_NOERROR != 0 { TooLong::Cut } else { TooLong::Refuse };
    let wanted = Reception { selection: selection(args.long(3), flags), room: args.size(2), too_long };
    let message = of_caller().queues.find(id)?.receive(wanted, &caller(), patience(flags))?;
    let length = message.text.len().min(wanted.room);
    UserPtr::new(args[1]).write(&message.kind)?;
    user::write_exact(args[1].wrapping_add(TYPE), &message.text[..length])?;
    Ok(length as i64)
}

fn tell_limits(to: u64) -> Result<i64> {
    write_limits(to, [(MSGMNI.get() * MSGMNB.get() / 1024) as i32, MSGMNB.get() as i32, MSGMNB.get() as i32])
}

fn tell_totals(to: u64) -> Result<i64> {
    let (messages, bytes) = of_caller().messages();
    write_limits(to, [of_caller().queues.used().0 as i32, messages as i32, bytes as i32])
}

fn write_limits(to: u64, [pool, map, tql]: [i32; 3]) -> Result<i64> {
    let (max, mnb, mni) = (MSGMAX.get() as i32, MSGMNB.get() as i32, MSGMNI.get() as i32);
    UserPtr::new(to).write(&UserLimits { pool, map, max, mnb, mni, ssz: 16, tql, seg: u16::MAX, pad: 0 })?;
    Ok(of_caller().queues.used().1 as i64)
}

fn tell(id: i32, to: u64, named: Named) -> Result<i64> {
    let (queue, answer) = find_to_tell(&of_caller().queues, id, named)?;
    let figures = queue.figures();
    let told = UserQueue {
        permission: queue.head().told(),
        sent: figures.sent,
        received: figures.received,
        changed: figures.changed,
        bytes: figures.bytes,
        count: figures.count,
        most: figures.most,
        sender_pid: registry::shown(figures.sender_pid),
        receiver_pid: registry::shown(figures.receiver_pid),
        unused: [0; 2],
    };
    UserPtr::new(to).write(&told)?;
    Ok(answer)
}

fn change(id: i32, from: u64) -> Result<i64> {
    let new: UserQueue = UserPtr::new(from).read()?;
    find_to_change(&of_caller().queues, id)?.set(&new.permission.of_kernel()?, new.most, &caller())?;
    Ok(0)
}

/// msgctl(id, command, buffer)
///
/// # Errors
/// As in the manual.
#[cold]
pub fn sys_msgctl(args: &Args) -> Result<i64> {
    const MSG_STAT: i32 = 11;
    const MSG_INFO: i32 = 12;
    const MSG_STAT_ANY: i32 = 13;
    let (id, to) = (valid(args.int(0))?, args[2]);
    match args.int(1) {
        IPC_INFO => tell_limits(to),
        MSG_INFO => tell_totals(to),
        IPC_STAT => tell(id, to, Named::Id),
        MSG_STAT => tell(id, to, Named::Place),
        MSG_STAT_ANY => tell(id, to, Named::PlaceForAll),
        IPC_SET => change(id, to),
        IPC_RMID => find_to_change(&of_caller().queues, id)?.remove().map(|()| 0),
        _ => Err(Errno::EINVAL),
    }
}
