//! The system calls of System V IPC, and of message queues of POSIX.

mod mqueue;
mod msg;
mod sem;
mod shm;

pub use mqueue::{
    sys_mq_getsetattr, sys_mq_notify, sys_mq_open, sys_mq_timedreceive, sys_mq_timedsend, sys_mq_unlink,
};
pub use msg::{sys_msgctl, sys_msgget, sys_msgrcv, sys_msgsnd};
pub use sem::{sys_semctl, sys_semget, sys_semop, sys_semtimedop};
pub use shm::{sys_shmat, sys_shmctl, sys_shmdt, sys_shmget};

use super::ids::{IpcIds, Object};
use super::objects::of_caller;
use super::permission::{self, UserPermission};
use crate::task::{self, Credentials};
use crate::{Errno, Result};
use freehold_collections::Arc;

const IPC_RMID: i32 = 0;
const IPC_SET: i32 = 1;
const IPC_STAT: i32 = 2;
const IPC_INFO: i32 = 3;

/// Returns the caller's credentials.
fn caller() -> Arc<Credentials> {
    task::current().process().credentials()
}

/// Checks that the caller may access `object` with the permissions in `wanted`.
fn check(object: &impl Object, wanted: u32) -> Result<()> {
    let home = object.head().home().ok_or(Errno::EIDRM)?;
    object.head().permission().check(&caller(), home.owner(), wanted)
}

/// How IPC_STAT and similar commands name an object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Named {
    /// By its ID.
    Id,
    /// By its place in the table, for callers that may read the object.
    Place,
    /// By its place in the table, for all callers.
    PlaceForAll,
}

/// Finds the object that the caller queries. Also returns the number that the call returns.
fn find_to_tell<T: Object>(ids: &IpcIds<T>, number: i32, named: Named) -> Result<(Arc<T>, i64)> {
    let object = if named == Named::Id { ids.find(number)? } else { ids.find_at(number)? };
    if named != Named::PlaceForAll {
        check(&*object, permission::READ)?;
    }
    let answer = if named == Named::Id { 0 } else { object.head().id() };
    Ok((object, i64::from(answer)))
}

/// Finds the object that the caller changes or removes.
fn find_to_change<T: Object>(ids: &IpcIds<T>, id: i32) -> Result<Arc<T>> {
    let object = ids.find(id)?;
    let home = object.head().home().ok_or(Errno::EIDRM)?;
    object.head().permission().check_owner(&caller(), home.owner())?;
    Ok(object)
}

/// IPC_SET: sets an object's owner and mode.
fn set_permission(object: &impl Object, new: &UserPermission) -> Result<()> {
    let new = new.of_kernel()?;
    object.head().change(|permission| permission.set(&new))
}

/// Checks an ID: a negative one names no object.
fn valid(id: i32) -> Result<i32> {
    if id < 0 { Err(Errno::EINVAL) } else { Ok(id) }
}
