//! Extended attributes.

use freehold_collections::{Vec, WipedBytes};

use super::{AT_FDCWD, as_caller, file, place_at, place_of};
use crate::fs::caller::Access;
use crate::fs::metadata;
use crate::fs::node::{NodeKind, XattrSet, xattrs_without};
use crate::fs::notify::{self, Events};
use crate::fs::path::Path;
use crate::fs::walk::Final;
use crate::syscall::Args;
use crate::task::Capability;
use crate::{Errno, Result, task, user};

const NAME_MAX: usize = 255;
const VALUE_MAX: usize = 65536;
const S_ISVTX: u32 = 0o1000;
/// The attribute "security.capability", without its prefix.
const CAPABILITY: &[u8] = b"capability";

fn name_at(address: u64) -> Result<Vec<u8>> {
    let name = user::bounded_string(address, NAME_MAX + 1, Errno::ERANGE)?;
    if name.is_empty() { Err(Errno::ERANGE) } else { Ok(name) }
}

/// Checks the access that the name's prefix requires; `EOPNOTSUPP` for prefixes that files in
/// memory do not support.
fn check(place: &Path, name: &[u8], want: Access) -> Result<()> {
    if [&b"trusted."[..], b"security.", b"user."].contains(&name) {
        return Err(Errno::EINVAL);
    }
    as_caller(|walk| {
        if name.starts_with(b"trusted.") {
            return match (walk.caller.may_for_all(Capability::SysAdmin), want) {
                (true, _) => Ok(()),
                (false, Access::READ) => Err(Errno::ENODATA),
                (false, _) => Err(Errno::EPERM),
            };
        }
        if let Some(attribute) = name.strip_prefix(b"security.") {
            return if want == Access::READ || may_secure(place, attribute) {
                Ok(())
            } else {
                Err(Errno::EPERM)
            };
        }
        if !name.starts_with(b"user.") {
            return Err(Errno::EOPNOTSUPP);
        }
        let meta = place.node.metadata();
        if !matches!(meta.kind, NodeKind::Regular | NodeKind::Directory) {
            return Err(if want == Access::READ { Errno::ENODATA } else { Errno::EPERM });
        }
        // Only the owner may set attributes of a directory with the sticky bit, even if others may
        // write to it.
        let is_of_all = meta.kind == NodeKind::Directory && meta.mode & S_ISVTX != 0;
        if is_of_all && want == Access::WRITE && !walk.caller.owns(&meta) {
            return Err(Errno::EPERM);
        }
        walk.caller.may(&meta, want)
    })
}

/// Whether the caller may change the attribute "security." followed by `attribute` (Linux:
/// `cap_inode_setxattr`, `cap_inode_removexattr`). Capabilities of a file apply in all namespaces.
/// Only the initial one can set them, as before Linux 4.14.
fn may_secure(place: &Path, attribute: &[u8]) -> bool {
    match attribute {
        CAPABILITY => task::may(Capability::SetFcap),
        _ => task::may_in(place.mount.fs_owner(), Capability::SysAdmin),
    }
}

/// Refuses a value of "security.capability" that is no `struct vfs_cap_data` of version 2 or 3
/// (Linux: `validheader`).
fn check_file_capabilities(value: &[u8]) -> Result<()> {
    const EFFECTIVE: u32 = 1;
    let magic = value.first_chunk().map(|word| u32::from_le_bytes(*word) & !EFFECTIVE);
    match (magic, value.len()) {
        (Some(0x0200_0000), 20) | (Some(0x0300_0000), 24) => Ok(()),
        _ => Err(Errno::EINVAL),
    }
}

/// Writes `bytes` to `address`, or only returns their length if `size` is 0.
fn give(bytes: &[u8], address: u64, size: usize) -> Result<i64> {
    if size != 0 {
        if bytes.len() > size {
            return Err(Errno::ERANGE);
        }
        user::write_exact(address, bytes)?;
    }
    Ok(bytes.len() as i64)
}

fn get(place: &Path, args: &Args) -> Result<i64> {
    let name = name_at(args[1])?;
    check(place, &name, Access::READ)?;
    give(&WipedBytes::from(place.node.xattr(&name)?), args[2], args.size(3))
}

fn set(place: &Path, args: &Args) -> Result<i64> {
    let how = match args.uint(4) {
        0 => XattrSet::Any,
        1 => XattrSet::Create,
        2 => XattrSet::Replace,
        BOTH => return Err(either_way(place, &name_at(args[1])?)),
        _ => return Err(Errno::EINVAL),
    };
    let name = name_at(args[1])?;
    if args.size(3) > VALUE_MAX {
        return Err(Errno::E2BIG);
    }
    let value = WipedBytes::from(user::read_vec(args[2], args.size(3))?);
    place.mount.writable()?;
    if name.strip_prefix(b"security.") == Some(CAPABILITY) {
        check_file_capabilities(&value)?;
    }
    // The lock keeps other programs from changing the file's owner between the check and the
    // change.
    let _changes = metadata::lock(place.node.identity())?;
    check(place, &name, Access::WRITE)?;
    place.node.set_xattr(&name, &value, how)?;
    notify::place(place, Events::ATTRIB);
    Ok(0)
}

/// XATTR_CREATE and XATTR_REPLACE together: no attribute can satisfy both.
const BOTH: u32 = 3;

/// Returns the error of a change that must both create an attribute and replace it.
fn either_way(place: &Path, name: &[u8]) -> Errno {
    match check(place, name, Access::WRITE) {
        Err(error) => error,
        Ok(()) if place.node.xattr(name).is_ok() => Errno::EEXIST,
        Ok(()) => Errno::ENODATA,
    }
}

/// Lists names. Names of trusted attributes are listed only to callers that may read them.
fn list(place: &Path, args: &Args) -> Result<i64> {
    let all = place.node.list_xattrs()?;
    if task::may(Capability::SysAdmin) {
        return give(&all, args[1], args.size(2));
    }
    give(&xattrs_without(&all, b"trusted.")?, args[1], args.size(2))
}

fn remove(place: &Path, args: &Args) -> Result<i64> {
    let name = name_at(args[1])?;
    place.mount.writable()?;
    let _changes = metadata::lock(place.node.identity())?;
    check(place, &name, Access::WRITE)?;
    place.node.remove_xattr(&name)?;
    notify::place(place, Events::ATTRIB);
    Ok(0)
}

fn followed(args: &Args) -> Result<Path> {
    place_at(AT_FDCWD, args[0], 0, Final::Follow)
}

fn stopped(args: &Args) -> Result<Path> {
    place_at(AT_FDCWD, args[0], 0, Final::Stop)
}

fn opened(args: &Args) -> Result<Path> {
    let file = file(args.fd(0))?;
    file.check_not_path()?;
    Ok(place_of(&file))
}

/// getxattr(path, name, value, size)
pub fn sys_getxattr(args: &Args) -> Result<i64> {
    get(&followed(args)?, args)
}

/// lgetxattr(path, name, value, size)
pub fn sys_lgetxattr(args: &Args) -> Result<i64> {
    get(&stopped(args)?, args)
}

/// fgetxattr(fd, name, value, size)
pub fn sys_fgetxattr(args: &Args) -> Result<i64> {
    get(&opened(args)?, args)
}

/// setxattr(path, name, value, size, flags)
pub fn sys_setxattr(args: &Args) -> Result<i64> {
    set(&followed(args)?, args)
}

/// lsetxattr(path, name, value, size, flags)
pub fn sys_lsetxattr(args: &Args) -> Result<i64> {
    set(&stopped(args)?, args)
}

/// fsetxattr(fd, name, value, size, flags)
pub fn sys_fsetxattr(args: &Args) -> Result<i64> {
    set(&opened(args)?, args)
}

/// listxattr(path, list, size)
pub fn sys_listxattr(args: &Args) -> Result<i64> {
    list(&followed(args)?, args)
}

/// llistxattr(path, list, size)
pub fn sys_llistxattr(args: &Args) -> Result<i64> {
    list(&stopped(args)?, args)
}

/// flistxattr(fd, list, size)
pub fn sys_flistxattr(args: &Args) -> Result<i64> {
    list(&opened(args)?, args)
}

/// removexattr(path, name)
pub fn sys_removexattr(args: &Args) -> Result<i64> {
    remove(&followed(args)?, args)
}

/// lremovexattr(path, name)
pub fn sys_lremovexattr(args: &Args) -> Result<i64> {
    remove(&stopped(args)?, args)
}

/// fremovexattr(fd, name)
pub fn sys_fremovexattr(args: &Args) -> Result<i64> {
    remove(&opened(args)?, args)
}
