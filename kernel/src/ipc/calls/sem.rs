//! semget, semop, semtimedop, semctl.

use core::sync::atomic::Ordering;

use freehold_collections::Vec;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::super::ids::{Object as _, WantedObject};
use super::super::limits::{SEMMNI, SEMMNS, SEMMSL, SEMOPM};
use super::super::permission::{READ, UserPermission, WRITE};
use super::super::sem::{self, MOST_VALUE, Operation, SemFigure, SemOperations, Set, UNDO};
use super::super::{caller_pid, undo};
use super::{
    IPC_INFO, IPC_RMID, IPC_SET, IPC_STAT, Named, caller, check, find_to_change, find_to_tell, of_caller,
    set_permission, valid,
};
use crate::syscall::Args;
use crate::task::registry;
use crate::time::{self, TimeSpec};
use crate::user::{self, UserPtr};
use crate::{Errno, Result, task};

/// `struct semid64_ds` of x86-64: 104 bytes.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct UserSet {
    permission: UserPermission,
    operated: i64,
    unused1: u64,
    changed: i64,
    unused2: u64,
    count: u64,
    unused3: [u64; 2],
}

/// `struct seminfo`: 40 bytes.
#[repr(C)]
#[derive(FromBytes, IntoBytes, Immutable)]
struct UserLimits {
    map: i32,
    mni: i32,
    mns: i32,
    mnu: i32,
    msl: i32,
    opm: i32,
    ume: i32,
    usz: i32,
    vmx: i32,
    aem: i32,
}

/// semget(key, count, flags)
///
/// # Errors
/// As in the manual.
pub fn sys_semget(args: &Args) -> Result<i64> {
    let wanted =
        WantedObject { key: args.int(0), flags: args.uint(2), caller: &caller(), home: &of_caller() };
    sem::get(&wanted, args.int(1)).map(i64::from)
}

/// semop(id, operations, count)
///
/// # Errors
/// As in the manual.
pub fn sys_semop(args: &Args) -> Result<i64> {
    operate(args, None)
}

/// semtimedop(id, operations, count, timeout)
///
/// # Errors
/// As in the manual.
pub fn sys_semtimedop(args: &Args) -> Result<i64> {
    let timeout = UserPtr::<TimeSpec>::new(args[3]).read_optional()?;
    operate(args, timeout)
}

fn operate(args: &Args, timeout: Option<TimeSpec>) -> Result<i64> {
    let (id, count) = (args.int(0), args.uint(2));
    if u64::from(count) > SEMOPM.get() {
        return Err(Errno::E2BIG);
    }
    if count == 0 {
        return Err(Errno::EINVAL);
    }
    let operations = read_operations(args[1], count as usize)?;
    let id = valid(id)?;
    let deadline = match timeout {
        Some(timeout) => Some(time::now().saturating_add(timeout.nanoseconds()?)),
        None => None,
    };
    let set = of_caller().sets.find(id)?;
    let undoes = operations.iter().any(|operation| operation.flags & UNDO != 0);
    let undo = match undoes {
        true => Some(undo::enter(task::current().process(), &set)?),
        false => None,
    };
    if operations.iter().any(|operation| usize::from(operation.number) >= set.count) {
        return Err(Errno::EFBIG);
    }
    let alters = operations.iter().any(|operation| operation.change != 0);
    check(&*set, if alters { WRITE } else { READ })?;
    set.operate(SemOperations { operations, pid: caller_pid(), undo }, deadline)?;
    Ok(0)
}

fn read_operations(from: u64, count: usize) -> Result<Vec<Operation>> {
    let none = Operation { number: 0, change: 0, flags: 0 };
    let mut operations = Vec::try_filled(none, count)?;
    user::read_exact(from, operations[..].as_mut_bytes())?;
    Ok(operations)
}

fn tell_limits(to: u64, used: Option<usize>) -> Result<i64> {
    let (mns, opm) = (SEMMNS.get() as i32, SEMOPM.get() as i32);
    let limits = UserLimits {
        map: mns,
        mni: SEMMNI.get() as i32,
        mns,
        mnu: mns,
        msl: SEMMSL.get() as i32,
        opm,
        ume: opm,
        usz: used.map_or(20, |used| used as i32),
        vmx: MOST_VALUE,
        aem: used.map_or(MOST_VALUE, |_| of_caller().semaphores.load(Ordering::Relaxed) as i32),
    };
    UserPtr::new(to).write(&limits)?;
    Ok(of_caller().sets.used().1 as i64)
}

fn tell(id: i32, to: u64, named: Named) -> Result<i64> {
    let (set, answer) = find_to_tell(&of_caller().sets, id, named)?;
    let (operated, changed) = set.times();
    let told = UserSet {
        permission: set.head().told(),
        operated,
        unused1: 0,
        changed,
        unused2: 0,
        count: set.count as u64,
        unused3: [0; 2],
    };
    UserPtr::new(to).write(&told)?;
    Ok(answer)
}

fn change(id: i32, from: u64) -> Result<i64> {
    let new: UserSet = UserPtr::new(from).read()?;
    let set = find_to_change(&of_caller().sets, id)?;
    set_permission(&*set, &new.permission)?;
    set.note_changed();
    Ok(0)
}

fn number_in(set: &Set, number: i32) -> Result<usize> {
    usize::try_from(number).ok().filter(|&number| number < set.count).ok_or(Errno::EINVAL)
}

fn set_value(id: i32, number: i32, value: i32) -> Result<i64> {
    if !(0..=MOST_VALUE).contains(&value) {
        return Err(Errno::ERANGE);
    }
    let set = of_caller().sets.find(id)?;
    let number = number_in(&set, number)?;
    check(&*set, WRITE)?;
    set.set_values(number, &[value as u16])?;
    Ok(0)
}

fn set_all(id: i32, from: u64) -> Result<i64> {
    let set = of_caller().sets.find(id)?;
    check(&*set, WRITE)?;
    let mut values = Vec::try_filled(0u16, set.count)?;
    user::read_exact(from, values[..].as_mut_bytes())?;
    if values.iter().any(|&value| i32::from(value) > MOST_VALUE) {
        return Err(Errno::ERANGE);
    }
    set.set_values(0, &values)?;
    Ok(0)
}

fn figure(id: i32, number: i32, figure: SemFigure) -> Result<i64> {
    let set = of_caller().sets.find(id)?;
    check(&*set, READ)?;
    set.figure(number_in(&set, number)?, figure)
}

fn get_all(id: i32, to: u64) -> Result<i64> {
    let set = of_caller().sets.find(id)?;
    check(&*set, READ)?;
    UserPtr::new(to).write_slice(&set.values()?)?;
    Ok(0)
}

/// semctl(id, number, command, argument)
///
/// # Errors
/// As in the manual.
#[cold]
pub fn sys_semctl(args: &Args) -> Result<i64> {
    const GETPID: i32 = 11;
    const GETVAL: i32 = 12;
    const GETALL: i32 = 13;
    const GETNCNT: i32 = 14;
    const GETZCNT: i32 = 15;
    const SETVAL: i32 = 16;
    const SETALL: i32 = 17;
    const SEM_STAT: i32 = 18;
    const SEM_INFO: i32 = 19;
    const SEM_STAT_ANY: i32 = 20;
    let (id, number, argument) = (valid(args.int(0))?, args.int(1), args[3]);
    match args.int(2) {
        IPC_INFO => tell_limits(argument, None),
        SEM_INFO => tell_limits(argument, Some(of_caller().sets.used().0)),
        IPC_STAT => tell(id, argument, Named::Id),
        SEM_STAT => tell(id, argument, Named::Place),
        SEM_STAT_ANY => tell(id, argument, Named::PlaceForAll),
        IPC_SET => change(id, argument),
        IPC_RMID => find_to_change(&of_caller().sets, id)?.remove().map(|()| 0),
        GETPID => figure(id, number, SemFigure::Pid).map(|pid| registry::shown(pid as u32).into()),
        GETVAL => figure(id, number, SemFigure::Value),
        GETNCNT => figure(id, number, SemFigure::WaitForMore),
        GETZCNT => figure(id, number, SemFigure::WaitForZero),
        GETALL => get_all(id, argument),
        SETVAL => set_value(id, number, argument as i32),
        SETALL => set_all(id, argument),
        _ => Err(Errno::EINVAL),
    }
}
