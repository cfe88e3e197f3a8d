//! fanotify_init(2) and fanotify_mark(2). The checks have Linux' order.

use freehold_collections::reserve::ArcMethods as _;
use freehold_collections::{Arc, reserve};

use super::{FanotifyFile, OF_DIRECTORIES};
use crate::fs::caller::Access;
use crate::fs::calls::{place_at, place_of};
use crate::fs::notify::fanotify::{FanGroup, FanMask, GroupSettings, MarkChange, MarkFlags, MarkedObject};
use crate::fs::path::Path;
use crate::fs::walk::Final;
use crate::fs::{NodeKind, OpenFlags, anonymous, root};
use crate::syscall::Args;
use crate::task::{self, Capability};
use crate::{Errno, Result};

/// Settings that need CAP_SYS_ADMIN.
const PRIVILEGED: GroupSettings = GroupSettings::CLASSES
    .union(GroupSettings::TID)
    .union(GroupSettings::PIDFD)
    .union(GroupSettings::UNLIMITED_QUEUE)
    .union(GroupSettings::UNLIMITED_MARKS);

/// Flags that the descriptors of events can have.
const EVENT_FLAGS: OpenFlags = OpenFlags::WRONLY
    .union(OpenFlags::RDWR)
    .union(OpenFlags::APPEND)
    .union(OpenFlags::NONBLOCK)
    .union(OpenFlags::DSYNC)
    .union(OpenFlags::SYNC_BIT)
    .union(OpenFlags::CLOEXEC)
    .union(OpenFlags::LARGEFILE)
    .union(OpenFlags::NOATIME);

/// fanotify_init(flags, event_f_flags)
///
/// # Errors
/// As in the manual.
#[cold]
pub fn sys_fanotify_init(args: &Args) -> Result<i64> {
    let mut settings = GroupSettings::from_bits_retain(args.uint(0));
    let event_flags = OpenFlags::from_bits_retain(args.uint(1));
    let is_privileged = task::may(Capability::SysAdmin);
    let reports = |what| settings.contains(what);
    if !is_privileged && (settings.intersects(PRIVILEGED) || !settings.intersects(GroupSettings::HANDLES)) {
        return Err(Errno::EPERM);
    }
    let is_known = GroupSettings::all().difference(GroupSettings::UNPRIVILEGED).contains(settings);
    let access = event_flags.bits() & 3;
    let class = settings & GroupSettings::CLASSES;
    let asks = !class.is_empty();
    let name_needs = GroupSettings::DIR_FID;
    let target_needs = GroupSettings::NAME | GroupSettings::FID;
    if !is_known
        || reports(GroupSettings::PIDFD | GroupSettings::TID)
        || !EVENT_FLAGS.contains(event_flags)
        || access == 3
        || (asks && settings.intersects(GroupSettings::HANDLES))
        || (reports(GroupSettings::NAME) && !reports(name_needs))
        || (reports(GroupSettings::TARGET_FID) && !reports(target_needs))
        || class == GroupSettings::CLASSES
    {
        return Err(Errno::EINVAL);
    }
    settings.set(GroupSettings::UNPRIVILEGED, !is_privileged);
    let user = task::current().process().credentials().euid;
    let group = FanGroup::new(user, settings)?;
    let file = reserve::arc(FanotifyFile::new(group, event_flags | OpenFlags::LARGEFILE));
    let mut flags = OpenFlags::RDWR;
    flags.set(OpenFlags::CLOEXEC, settings.contains(GroupSettings::CLOEXEC));
    flags.set(OpenFlags::NONBLOCK, settings.contains(GroupSettings::NONBLOCK));
    task::install(file, flags).map(i64::from)
}

/// Checks the arguments of fanotify_mark that need no file.
#[cold]
fn check_arguments(flags: MarkFlags, mask: FanMask) -> Result<()> {
    let command = flags & MarkFlags::COMMANDS;
    let kind = flags & MarkFlags::KINDS;
    let is_valid = MarkFlags::all().contains(flags)
        && kind != MarkFlags::KINDS
        && match command {
            MarkFlags::ADD | MarkFlags::REMOVE => !mask.is_empty(),
            MarkFlags::FLUSH => (MarkFlags::KINDS | MarkFlags::FLUSH).contains(flags),
            _ => false,
        };
    let is_known = FanMask::REQUESTABLE.contains(mask) && flags & MarkFlags::IGNORES != MarkFlags::IGNORES;
    if is_valid && is_known { Ok(()) } else { Err(Errno::EINVAL) }
}

/// Checks that a group with `settings` can have such a mark.
#[cold]
fn check_group(settings: GroupSettings, flags: MarkFlags, mask: FanMask) -> Result<()> {
    let kind = flags & MarkFlags::KINDS;
    let is_privileged = !settings.contains(GroupSettings::UNPRIVILEGED) && task::may(Capability::SysAdmin);
    if !is_privileged && !kind.is_empty() {
        return Err(Errno::EPERM);
    }
    let by_handle = settings.intersects(GroupSettings::HANDLES);
    let without_file = !(FanMask::WITH_FILE | FanMask::QUALIFIERS).contains(mask);
    if (mask.intersects(FanMask::PERMISSIONS) && !settings.intersects(GroupSettings::CLASSES))
        || (mask.contains(FanMask::FS_ERROR) && kind != MarkFlags::FILESYSTEM)
        || (flags.contains(MarkFlags::EVICTABLE) && !kind.is_empty())
        || (without_file && (!by_handle || kind == MarkFlags::MOUNT))
        || (mask.contains(FanMask::RENAME) && !settings.contains(GroupSettings::NAME))
    {
        return Err(Errno::EINVAL);
    }
    Ok(())
}

/// Returns the place to mark, which the caller must be able to read.
#[cold]
fn find(args: &Args, flags: MarkFlags) -> Result<Path> {
    let (dirfd, name) = (args.fd(3), args[4]);
    let place = if name == 0 {
        let file = task::with_current(|task| task.process().file(dirfd))?;
        file.check_not_path()?;
        place_of(&file)
    } else {
        let last = if flags.contains(MarkFlags::DONT_FOLLOW) { Final::Stop } else { Final::Follow };
        place_at(dirfd, name, 0, last)?
    };
    if flags.contains(MarkFlags::ONLYDIR) && place.node.kind() != NodeKind::Directory {
        return Err(Errno::ENOTDIR);
    }
    task::current().process().credentials().caller().may_use(&*place.node, Access::READ)?;
    Ok(place)
}

/// Checks that events of this kind can be requested for `place`.
#[cold]
fn check_place(place: &Path, settings: GroupSettings, flags: MarkFlags, mask: FanMask) -> Result<()> {
    let kind = flags & MarkFlags::KINDS;
    let is_directory = place.node.kind() == NodeKind::Directory;
    let fs = place.mount.file_system();
    // The kernel itself reads files of /proc while it holds locks (Linux: FS_DISALLOW_NOTIFY_PERM).
    if mask.intersects(FanMask::PERMISSIONS) && fs.name() == "proc" {
        return Err(Errno::EINVAL);
    }
    let is_unnamed =
        place.node.identity().device == anonymous::DEVICE || place.mount.is_same(&root::unnamed_mount());
    if !kind.is_empty() && is_unnamed {
        return Err(Errno::EINVAL);
    }
    let is_strict = settings.contains(GroupSettings::TARGET_FID)
        || mask.contains(FanMask::RENAME)
        || flags.contains(MarkFlags::IGNORE);
    if is_strict && kind.is_empty() && !is_directory && mask.intersects(OF_DIRECTORIES) {
        return Err(Errno::ENOTDIR);
    }
    Ok(())
}

/// fanotify_mark(fd, flags, mask, dirfd, path)
///
/// # Errors
/// As in the manual.
#[cold]
pub fn sys_fanotify_mark(args: &Args) -> Result<i64> {
    let flags = MarkFlags::from_bits_retain(args.uint(1));
    let mask = u32::try_from(args[2]).map(FanMask::from_bits_retain).map_err(|_| Errno::EINVAL)?;
    check_arguments(flags, mask)?;
    let mut change = MarkChange { mask, flags, idle: FanMask::empty() };
    if flags.contains(MarkFlags::IGNORED_MASK) {
        change.mask.remove(FanMask::QUALIFIERS);
        change.idle = FanMask::QUALIFIERS;
    }
    let file = task::with_current(|task| task.process().file(args.fd(0)))?;
    file.check_not_path()?;
    let group = file.file().downcast::<FanotifyFile>().ok_or(Errno::EINVAL)?.group.clone();
    let settings = group.settings();
    check_group(settings, flags, change.mask)?;
    if flags.contains(MarkFlags::FLUSH) {
        return group.flush(flags).map(|()| 0);
    }
    let place = find(args, flags)?;
    let is_added = flags.contains(MarkFlags::ADD);
    if is_added {
        check_place(&place, settings, flags, change.mask)?;
    }
    if settings.intersects(GroupSettings::HANDLES) {
        place.mount.file_system().handle(&place.node, place.entry.as_deref())?;
    }
    let object = match flags & MarkFlags::KINDS {
        MarkFlags::MOUNT => MarkedObject::Mount(&place),
        MarkFlags::FILESYSTEM => MarkedObject::FileSystem(&place),
        _ => MarkedObject::Inode(&place),
    };
    mark(&group, &object, change).map(|()| 0)
}

/// Changes the mark of `object` (Linux: the end of `do_fanotify_mark`).
#[cold]
fn mark(group: &Arc<FanGroup>, object: &MarkedObject<'_>, mut change: MarkChange) -> Result<()> {
    let flags = change.flags;
    let is_added = flags.contains(MarkFlags::ADD);
    let is_inode = matches!(object, MarkedObject::Inode(_));
    let is_directory = match object {
        MarkedObject::Inode(place) => place.node.kind() == NodeKind::Directory,
        _ => false,
    };
    let must_survive = is_added && flags.contains(MarkFlags::IGNORE) && (!is_inode || is_directory);
    if must_survive && !flags.contains(MarkFlags::SURVIVES_MODIFY) {
        return Err(if is_inode { Errno::EISDIR } else { Errno::EINVAL });
    }
    let is_ignore = is_added && flags.intersects(MarkFlags::IGNORES);
    if is_ignore && is_inode && !is_directory && !flags.contains(MarkFlags::SURVIVES_MODIFY) {
        // The next write would end the ignoring.
        let writers = object.path().node.text_use().map_or(0, |text| text.writers());
        if writers > 0 {
            return Ok(());
        }
    }
    if !is_directory {
        change.mask.remove(FanMask::EVENT_ON_CHILD);
        change.idle = FanMask::EVENT_ON_CHILD;
        // The group wants names, so the mark looks at files by their names.
        let wants_names = group.settings().contains(GroupSettings::DIR_FID);
        if wants_names && is_added && !flags.intersects(MarkFlags::IGNORES) {
            change.mask |= FanMask::EVENT_ON_CHILD;
        }
    }
    if is_added { group.mark(object, &change) } else { group.reduce(object, &change) }
}
