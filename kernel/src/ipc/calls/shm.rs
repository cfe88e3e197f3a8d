//! shmget, shmat, shmdt, shmctl.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::super::ids::{Object as _, WantedObject};
use super::super::limits::{SHMALL, SHMMAX, SHMMNI};
use super::super::permission::{READ, UserPermission, WRITE};
use super::super::shm::{self, Hold, Locked, Segment};
use super::{
    IPC_INFO, IPC_RMID, IPC_SET, IPC_STAT, Named, caller, check, find_to_change, find_to_tell, of_caller,
    set_permission, valid,
};
use crate::fs::OpenFlags;
use crate::hw::PAGE;
use crate::mem::{self, SegmentMap, SegmentPlace, SegmentUse};
use crate::syscall::Args;
use crate::task::{self, Resource, personality, registry};
use crate::user::UserPtr;
use crate::{Errno, Result};

/// `struct shmid64_ds`: 112 bytes.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct UserSegment {
    permission: UserPermission,
    size: u64,
    attached: i64,
    detached: i64,
    changed: i64,
    creator_pid: u32,
    last_pid: u32,
    attachments: u64,
    unused: [u64; 2],
}

/// `struct shminfo64`: 72 bytes.
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable)]
struct UserLimits {
    max: u64,
    min: u64,
    mni: u64,
    seg: u64,
    all: u64,
    unused: [u64; 4],
}

/// `struct shm_info`: 48 bytes.
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable)]
struct UserTotals {
    used: u64,
    pages: u64,
    resident: u64,
    swapped: u64,
    swap_attempts: u64,
    swap_successes: u64,
}

/// shmget(key, size, flags)
///
/// # Errors
/// As in the manual.
pub fn sys_shmget(args: &Args) -> Result<i64> {
    let wanted =
        WantedObject { key: args.int(0), flags: args.uint(2), caller: &caller(), home: &of_caller() };
    shm::get(&wanted, args[1]).map(i64::from)
}

const SHM_RDONLY: u32 = 0o10000;
const SHM_RND: u32 = 0o20000;
const SHM_REMAP: u32 = 0o40000;
const SHM_EXEC: u32 = 0o100000;

/// Returns the place where shmat puts a segment.
fn place(address: u64, flags: u32) -> Result<SegmentPlace> {
    let replaces = flags & SHM_REMAP != 0;
    if address == 0 {
        return if replaces { Err(Errno::EINVAL) } else { Ok(SegmentPlace::Anywhere) };
    }
    let aligned = address / PAGE * PAGE;
    if aligned != address && flags & SHM_RND == 0 || aligned == 0 && replaces {
        return Err(Errno::EINVAL);
    }
    Ok(match (aligned, replaces) {
        (0, _) => SegmentPlace::Anywhere,
        (at, true) => SegmentPlace::Replace(at),
        (at, false) => SegmentPlace::Free(at),
    })
}

/// shmat(id, address, flags): returns the address of the segment.
///
/// # Errors
/// As in the manual.
pub fn sys_shmat(args: &Args) -> Result<i64> {
    let (id, flags) = (valid(args.int(0))?, args.uint(2));
    let place = place(args[1], flags)?;
    let segment = of_caller().segments.find(id)?;
    let (mut wanted, open) =
        if flags & SHM_RDONLY != 0 { (READ, OpenFlags::empty()) } else { (READ | WRITE, OpenFlags::RDWR) };
    if flags & SHM_EXEC != 0 {
        wanted |= 0o111;
    }
    check(&*segment, wanted)?;
    let runs = flags & SHM_EXEC != 0 || personality::has(personality::READ_IMPLIES_EXEC);
    let code = if runs { SegmentUse::Executable } else { SegmentUse::Data };
    let map = SegmentMap { mapping: Segment::hold(&segment, open)?, size: segment.size, place, code };
    let process = task::current().process().clone();
    let address = mem::attach(&process.space(), &process.memory_limits(), map)?;
    segment.note_attached();
    Ok(address as i64)
}

/// shmdt(address)
///
/// # Errors
/// As in the manual.
pub fn sys_shmdt(args: &Args) -> Result<i64> {
    if !args[0].is_multiple_of(PAGE) {
        return Err(Errno::EINVAL);
    }
    let held = mem::detach(&task::current().process().space(), args[0])?;
    if let Some(hold) = held.downcast_ref::<Hold>() {
        hold.segment().note_detached();
    }
    Ok(0)
}

fn tell(segment: &Segment) -> UserSegment {
    let times = segment.times();
    UserSegment {
        permission: segment.head().told(),
        size: segment.size,
        attached: times.attached,
        detached: times.detached,
        changed: times.changed,
        creator_pid: registry::shown(segment.creator_pid),
        last_pid: registry::shown(times.last_pid),
        attachments: segment.attachments(),
        unused: [0; 2],
    }
}

fn tell_limits(to: u64) -> Result<i64> {
    let (mni, all) = (SHMMNI.get(), SHMALL.get());
    UserPtr::new(to).write(&UserLimits { max: SHMMAX.get(), min: 1, mni, seg: mni, all, unused: [0; 4] })?;
    Ok(of_caller().segments.used().1 as i64)
}

fn tell_totals(to: u64) -> Result<i64> {
    let (used, highest) = of_caller().segments.used();
    let (pages, resident, swapped) = of_caller().segment_pages();
    let totals =
        UserTotals { used: used as u64, pages, resident, swapped, swap_attempts: 0, swap_successes: 0 };
    UserPtr::new(to).write(&totals)?;
    Ok(highest as i64)
}

fn set(id: i32, from: u64) -> Result<i64> {
    let new: UserSegment = UserPtr::new(from).read()?;
    let segment = find_to_change(&of_caller().segments, id)?;
    set_permission(&*segment, &new.permission)?;
    segment.note_changed();
    Ok(0)
}

fn lock(id: i32, locked: Locked) -> Result<i64> {
    let segment = of_caller().segments.find(id)?;
    let limit = task::current().process().soft_limit(Resource::Memlock);
    shm::set_locked(&segment, &caller(), locked, limit).map(|()| 0)
}

/// shmctl(id, command, buffer)
///
/// # Errors
/// As in the manual.
#[cold]
pub fn sys_shmctl(args: &Args) -> Result<i64> {
    const SHM_LOCK: i32 = 11;
    const SHM_UNLOCK: i32 = 12;
    const SHM_STAT: i32 = 13;
    const SHM_INFO: i32 = 14;
    const SHM_STAT_ANY: i32 = 15;
    let (id, command) = (valid(args.int(0))?, args.int(1));
    let named = match command {
        IPC_INFO => return tell_limits(args[2]),
        SHM_INFO => return tell_totals(args[2]),
        IPC_SET => return set(id, args[2]),
        IPC_RMID => {
            find_to_change(&of_caller().segments, id)?.remove();
            return Ok(0);
        }
        SHM_LOCK => return lock(id, Locked::Yes),
        SHM_UNLOCK => return lock(id, Locked::No),
        IPC_STAT => Named::Id,
        SHM_STAT => Named::Place,
        SHM_STAT_ANY => Named::PlaceForAll,
        _ => return Err(Errno::EINVAL),
    };
    let (segment, answer) = find_to_tell(&of_caller().segments, id, named)?;
    UserPtr::new(args[2]).write(&tell(&segment))?;
    Ok(answer)
}
