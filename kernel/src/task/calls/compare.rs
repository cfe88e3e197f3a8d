//! kcmp: whether two processes share something.
//!
//! The answer orders different objects, so that a program can sort by it. The order is that of the
//! objects' addresses after a secret one-to-one mapping per kind of object. So it reveals nothing
//! about the addresses. Linux has the same protection with a simpler mapping (kernel/kcmp.c).

use freehold_collections::reserve::ArcMethods;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::fs::epoll::Epoll;
use crate::sync::SpinLock;
use crate::syscall::Args;
use crate::task::Task;
use crate::task::inspect::{self, Mode};
use crate::task::registry::find_task_by_number;
use crate::user::UserPtr;
use crate::{Errno, Result, hw};

/// The kinds of objects, with the numbers of KCMP_*.
mod kind {
    pub const FILE: i32 = 0;
    pub const VM: i32 = 1;
    pub const FILES: i32 = 2;
    pub const FS: i32 = 3;
    pub const SIGHAND: i32 = 4;
    pub const IO: i32 = 5;
    pub const SYSVSEM: i32 = 6;
    pub const EPOLL_TFD: i32 = 7;
    pub const COUNT: usize = 8;
}

/// `struct kcmp_epoll_slot`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct EpollSlot {
    epoll: i32,
    fd: i32,
    nth: u32,
}

/// The secret of each kind; 0 before its first use.
static SECRETS: SpinLock<[[u64; 2]; kind::COUNT]> = SpinLock::new([[0; 2]; kind::COUNT]);

fn secret(kind: i32) -> [u64; 2] {
    let secret = &mut SECRETS.lock()[kind as usize % kind::COUNT];
    if *secret == [0; 2] {
        hw::fill_random(secret.as_mut_bytes());
        secret[0] |= 1;
    }
    *secret
}

/// Maps numbers one to one. The secret chooses the mapping. Each step is invertible: a sum, a
/// product with an odd number, an exclusive-or with the upper half.
fn scramble(number: u64, [factor, summand]: [u64; 2]) -> u64 {
    (0..3).fold(number, |mixed, _| {
        let mixed = mixed.wrapping_add(summand).wrapping_mul(factor | 1);
        mixed ^ mixed >> 32
    })
}

/// Returns 0 if both are the same, 1 if the first comes before the second, else 2.
fn order(first: usize, second: usize, secret: [u64; 2]) -> i64 {
    match scramble(first as u64, secret).cmp(&scramble(second as u64, secret)) {
        core::cmp::Ordering::Equal => 0,
        core::cmp::Ordering::Less => 1,
        core::cmp::Ordering::Greater => 2,
    }
}

fn file_address(task: &Task, fd: u64) -> Result<usize> {
    Ok(task.process().file(i32::try_from(fd).map_err(|_| Errno::EBADF)?)?.address().addr())
}

/// Returns the address of the object of this kind that `task` uses; 0 for none.
fn thing(task: &Task, kind: i32) -> Result<usize> {
    let process = task.process();
    Ok(match kind {
        kind::VM => process.space().address().addr(),
        kind::FILES => process.files().address().addr(),
        kind::FS => process.fs().address().addr(),
        kind::SIGHAND => process.actions_address(),
        kind::IO => task.io_context.address(),
        kind::SYSVSEM => process.undo_address(),
        _ => return Err(Errno::EINVAL),
    })
}

/// kcmp(pid, pid, kind, index, index)
pub fn sys_kcmp(args: &Args) -> Result<i64> {
    let task = |index| find_task_by_number(args.uint(index)).ok_or(Errno::ESRCH);
    let (first, second) = (task(0)?, task(1)?);
    inspect::may_inspect(first.process(), Mode::READ_REAL)?;
    inspect::may_inspect(second.process(), Mode::READ_REAL)?;
    let kind = args.int(2);
    let (one, other) = match kind {
        kind::FILE => (file_address(&first, args[3])?, file_address(&second, args[4])?),
        kind::EPOLL_TFD => {
            let slot = UserPtr::<EpollSlot>::new(args[4]).read()?;
            let one = file_address(&first, args[3])?;
            (one, Epoll::watched_address(&*second.process().file(slot.epoll)?, slot.fd, slot.nth)?)
        }
        kind => (thing(&first, kind)?, thing(&second, kind)?),
    };
    Ok(order(one, other, secret(kind)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The order is total, as sorting requires.
        #[test]
        fn things_are_ordered_and_only_the_same_are_equal(
            things in proptest::array::uniform3(0..1usize << 47),
            secret in proptest::array::uniform2(any::<u64>()),
        ) {
            let [a, b, c] = things;
            let compare = |one, other| order(one, other, secret);
            prop_assert_eq!(compare(a, b) == 0, a == b);
            prop_assert_eq!(compare(a, b), [0, 2, 1][compare(b, a) as usize]);
            if compare(a, b) == 1 && compare(b, c) == 1 {
                prop_assert_eq!(compare(a, c), 1);
            }
        }
    }

    /// Neighbours in memory are not neighbours in the order: each comes first about equally often.
    #[test]
    fn the_order_does_not_follow_the_addresses() {
        let secret = secret(kind::VM);
        let ascending = (0..4096).filter(|at| order(at * 64, at * 64 + 64, secret) == 1).count();
        assert!((1024..3072).contains(&ascending), "{ascending}");
    }
}
