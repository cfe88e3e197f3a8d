//! sysfs(2) and ustat(2): types of file systems by number, and the free space of a file system by
//! its device. Both are older than /proc/filesystems and statfs(2), which report more.

use freehold_collections::Vec;
use zerocopy::{Immutable, IntoBytes};

use super::{path_at, process};
use crate::fs::device::split_device;
use crate::fs::mount::TYPES;
use crate::syscall::Args;
use crate::user::{self, UserPtr};
use crate::{Errno, Result};

/// sysfs(1, name), sysfs(2, index, buffer), sysfs(3): the number of a type, the name of a type, the
/// number of types.
///
/// # Errors
/// As in the manual.
pub fn sys_sysfs(args: &Args) -> Result<i64> {
    match args.int(0) {
        1 => {
            let name: Vec<u8> = path_at(args[1])?;
            let index = TYPES.iter().position(|known| known.as_bytes() == &name[..]);
            index.map(|index| index as i64).ok_or(Errno::EINVAL)
        }
        2 => {
            let name = TYPES.get(args.uint(1) as usize).ok_or(Errno::EINVAL)?;
            user::write_exact(args[2], name.as_bytes())?;
            user::write_exact(args[2].wrapping_add(name.len() as u64), &[0])?;
            Ok(0)
        }
        3 => Ok(TYPES.len() as i64),
        _ => Err(Errno::EINVAL),
    }
}

/// `struct ustat` of x86-64.
#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct Free {
    blocks: i32,
    padding: u32,
    inodes: u64,
    /// Name and pack, which Linux leaves empty.
    names: [u8; 12],
    padding_behind: u32,
}

/// ustat(device, buffer)
///
/// # Errors
/// `EINVAL` if the caller's mounts have no file system of that device, `EFAULT`, `ENOMEM`.
pub fn sys_ustat(args: &Args) -> Result<i64> {
    let wanted = split_device(args.uint(0).into());
    let mounts = process().namespaces().mount.root().tree()?;
    let found = mounts.iter().find(|mount| split_device(mount.file_system().device()) == wanted);
    let stats = found.ok_or(Errno::EINVAL)?.file_system().stats();
    let free = Free {
        blocks: stats.free_blocks as i32,
        padding: 0,
        inodes: stats.free_inodes,
        names: [0; 12],
        padding_behind: 0,
    };
    UserPtr::new(args[1]).write(&free).map(|()| 0)
}
