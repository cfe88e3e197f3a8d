//! Mounts as descriptors: fsopen, fsconfig, fsmount, fspick, open_tree, move_mount, mount_setattr.
//!
//! A *context* collects the options of a file system that is to be mounted, or of one that is to be
//! changed. A *loose* tree of mounts belongs to a descriptor until move_mount attaches it. If the
//! descriptor is closed before that, the tree ends.
//!
//! Options are checked when the file system is made or changed, and not one by one as Linux does
//! for some types. A context has no messages: read(2) returns `ENODATA`.
//!
//! Source: Linux fs/fsopen.c, fs/namespace.c.

use freehold_collections::{Arc, Vec, Weak, reserve, reserve::ArcMethods};

use super::mounting::{
    FsType, changeable, copy_of, hand_over, may_mount_anew, may_reveal, new_mount, reconfigure,
};
use super::open::install;
use super::{
    AT_EMPTY_PATH, AT_FDCWD, AT_NO_AUTOMOUNT, AT_SYMLINK_NOFOLLOW, last_of, only, place_at, process,
};
use crate::fs::anonymous::AnonymousNode;
use crate::fs::flags::OpenFlags;
use crate::fs::mount::{Looseness, Mount, MountFlags};
use crate::fs::namespace::{self, CopyDepth};
use crate::fs::node::{Node, NodeKind};
use crate::fs::open_file::OpenFile;
use crate::fs::path::Path;
use crate::fs::table::OnExec;
use crate::fs::walk::Final;
use crate::fs::{Blocking, File};
use crate::sync::Mutex;
use crate::syscall::Args;
use crate::task::{self, Capability};
use crate::user::{self, Sink, UserPtr};
use crate::{Errno, Result};

/// FSOPEN_CLOEXEC, FSMOUNT_CLOEXEC and FSPICK_CLOEXEC; OPEN_TREE_CLOEXEC is O_CLOEXEC.
const CLOEXEC: u32 = 1;
const OPEN_TREE_CLONE: u32 = 1;
const AT_RECURSIVE: u32 = 0x8000;
/// Largest number of bytes of a context's options.
const MOST_OPTIONS: usize = 4096 - 2;
/// Largest length of a name or value, with its NUL.
const MOST_TEXT: usize = 256;

/// Commands of fsconfig.
mod command {
    pub const SET_FLAG: u32 = 0;
    pub const SET_STRING: u32 = 1;
    pub const SET_BINARY: u32 = 2;
    pub const SET_PATH: u32 = 3;
    pub const SET_PATH_EMPTY: u32 = 4;
    pub const SET_FD: u32 = 5;
    pub const CREATE: u32 = 6;
    pub const RECONFIGURE: u32 = 7;
}

/// Flags of fspick.
mod pick {
    pub const SYMLINK_NOFOLLOW: u32 = 2;
    pub const NO_AUTOMOUNT: u32 = 4;
    pub const EMPTY_PATH: u32 = 8;
}

/// Flags of move_mount.
mod moving {
    pub const FROM_SYMLINKS: u32 = 1;
    pub const FROM_EMPTY_PATH: u32 = 4;
    pub const TO_SYMLINKS: u32 = 0x10;
    pub const TO_EMPTY_PATH: u32 = 0x40;
    /// With MOVE_MOUNT_F_AUTOMOUNTS and MOVE_MOUNT_T_AUTOMOUNTS.
    pub const KNOWN: u32 = 0x77;
}

/// MOUNT_ATTR_*, where they differ from [`MountFlags`].
mod attribute {
    /// RDONLY, NOSUID, NODEV, NOEXEC: as [`super::MountFlags`].
    pub const RESTRICTIONS: u64 = 0xf;
    /// A value, not bits: 0 is RELATIME.
    pub const TIMES: u64 = 0x70;
    pub const NOATIME: u64 = 0x10;
    pub const STRICTATIME: u64 = 0x20;
    pub const NODIRATIME: u64 = 0x80;
    pub const KNOWN: u64 = RESTRICTIONS | TIMES | NODIRATIME;
}

/// The purpose of a context.
enum ContextGoal {
    /// A new file system of this type.
    Make(FsType),
    /// Changes of the file system of this mount. The context does not keep the mount in use.
    Change(Weak<Mount>),
}

/// Progress of a context.
enum ContextState {
    Setting {
        goal: ContextGoal,
        source: Option<Vec<u8>>,
        options: Vec<u8>,
        /// Whether changes are forbidden; `None` if the context does not say.
        read_only: Option<bool>,
    },
    /// A file system of this type has been made. Its mount has not been taken.
    Made(Arc<Mount>, FsType),
    /// The file system could not be made.
    Failed,
}

impl ContextState {
    const fn setting(goal: ContextGoal) -> Self {
        Self::Setting { goal, source: None, options: Vec::new(), read_only: None }
    }
}

/// The file of a context.
struct ContextFile {
    state: Mutex<ContextState>,
    node: Arc<dyn Node>,
}

impl File for ContextFile {
    fn node(&self) -> Arc<dyn Node> {
        self.node.clone()
    }
    fn read_at(&self, _offset: u64, _sink: &mut dyn Sink, _blocking: Blocking) -> Result<usize> {
        Err(Errno::ENODATA)
    }
}

/// The file of a descriptor to which a tree of mounts belongs.
struct TreeFile(Arc<Mount>);

impl File for TreeFile {
    fn node(&self) -> Arc<dyn Node> {
        self.0.root().clone()
    }
    fn is_always_ready(&self) -> bool {
        true
    }
}

impl Drop for TreeFile {
    fn drop(&mut self) {
        namespace::dissolve(&self.0);
    }
}

fn open_context(goal: ContextGoal, flags: u32) -> Result<i64> {
    let node = AnonymousNode::plain(NodeKind::Regular, "anon_inode:[fscontext]");
    let file = reserve::arc(ContextFile { state: Mutex::new(ContextState::setting(goal)), node });
    install(OpenFile::new(file, None, OpenFlags::RDWR)?, on_exec(flags & CLOEXEC != 0))
}

const fn on_exec(closes: bool) -> OnExec {
    if closes { OnExec::Close } else { OnExec::Keep }
}

/// Opens the root of a tree to which no other task refers.
fn open_loose(tree: Arc<Mount>, on_exec: OnExec) -> Result<i64> {
    tree.set_loose(Looseness::Loose);
    let place = Path::root_of(tree.clone());
    install(OpenFile::new(reserve::arc(TreeFile(tree)), Some(place), OpenFlags::PATH)?, on_exec)
}

/// Runs `f` on the state of a descriptor's context.
fn with_context<R>(fd: i32, f: impl FnOnce(&mut ContextState) -> Result<R>) -> Result<R> {
    let file = super::file(fd)?;
    file.check_not_path()?;
    let context = file.file().downcast::<ContextFile>().ok_or(Errno::EINVAL)?;
    let mut state = context.state.lock_killable()?;
    f(&mut state)
}

/// fsopen(type, flags)
///
/// # Errors
/// As in the manual.
pub fn sys_fsopen(args: &Args) -> Result<i64> {
    changeable()?;
    only(args.uint(1), CLOEXEC)?;
    let kind = FsType::named(&user::bounded_string(args[0], MOST_TEXT, Errno::EINVAL)?)?;
    open_context(ContextGoal::Make(kind), args.uint(1))
}

/// fspick(dirfd, path, flags)
///
/// # Errors
/// As in the manual.
pub fn sys_fspick(args: &Args) -> Result<i64> {
    let flags = args.uint(2);
    changeable()?;
    only(flags, CLOEXEC | pick::SYMLINK_NOFOLLOW | pick::NO_AUTOMOUNT | pick::EMPTY_PATH)?;
    let last = if flags & pick::SYMLINK_NOFOLLOW != 0 { Final::Stop } else { Final::Follow };
    let empty = if flags & pick::EMPTY_PATH != 0 { AT_EMPTY_PATH } else { 0 };
    let place = place_at(args.fd(0), args[1], empty, last)?.topmost()?;
    if !place.is_mount_root() {
        return Err(Errno::EINVAL);
    }
    open_context(ContextGoal::Change(place.mount.downgrade()), flags)
}

/// fsconfig(fd, command, key, value, auxiliary)
///
/// # Errors
/// As in the manual.
pub fn sys_fsconfig(args: &Args) -> Result<i64> {
    let (fd, command, [key, value], auxiliary) = (args.fd(0), args.uint(1), [args[2], args[3]], args.int(4));
    let is_valid = match command {
        command::SET_FLAG => key != 0 && value == 0 && auxiliary == 0,
        command::SET_STRING => key != 0 && value != 0 && auxiliary == 0,
        command::SET_BINARY => key != 0 && value != 0 && (1..=1 << 20).contains(&auxiliary),
        command::SET_PATH | command::SET_PATH_EMPTY => {
            key != 0 && value != 0 && (auxiliary == AT_FDCWD || auxiliary >= 0)
        }
        command::SET_FD => key != 0 && value == 0 && auxiliary >= 0,
        command::CREATE | command::RECONFIGURE => key == 0 && value == 0 && auxiliary == 0,
        _ => return Err(Errno::EOPNOTSUPP),
    };
    if fd < 0 || !is_valid {
        return Err(Errno::EINVAL);
    }
    with_context(fd, |state| match command {
        command::CREATE => create(state),
        command::RECONFIGURE => change(state),
        // No type of file system here has options that are no text.
        command::SET_FLAG | command::SET_STRING => {
            let key = user::bounded_string(key, MOST_TEXT, Errno::EINVAL)?;
            let value = match command {
                command::SET_FLAG => None,
                _ => Some(user::bounded_string(value, MOST_TEXT, Errno::EINVAL)?),
            };
            set(state, key, value)
        }
        _ => Err(Errno::EINVAL),
    })?;
    Ok(0)
}

/// Adds an option to a context.
fn set(state: &mut ContextState, key: Vec<u8>, value: Option<Vec<u8>>) -> Result<()> {
    let ContextState::Setting { source, options, read_only, .. } = state else { return Err(Errno::EBUSY) };
    match (&key[..], value) {
        (b"source", Some(value)) if source.is_none() => *source = Some(value),
        (b"source", _) => return Err(Errno::EINVAL),
        (b"ro", None) => *read_only = Some(true),
        (b"rw", None) => *read_only = Some(false),
        (_, Some(value)) if value.contains(&b',') => return Err(Errno::EINVAL),
        (key, value) => {
            let length = key.len() + value.as_ref().map_or(0, |value| value.len() + 1);
            if options.len() + length + 1 > MOST_OPTIONS {
                return Err(Errno::EINVAL);
            }
            options.try_reserve(length + 1)?;
            if !options.is_empty() {
                options.push_reserved(b',');
            }
            options.try_extend_from_slice(key)?;
            if let Some(value) = value {
                options.push_reserved(b'=');
                options.try_extend_from_slice(&value)?;
            }
        }
    }
    Ok(())
}

/// FSCONFIG_CMD_CREATE
fn create(state: &mut ContextState) -> Result<()> {
    let ContextState::Setting { goal: ContextGoal::Make(kind), source, options, read_only } = &*state else {
        return Err(Errno::EBUSY);
    };
    let (kind, own) = (*kind, process().credentials());
    may_mount_anew(&own, kind)?;
    let source = source.as_ref().map_or(&b"none"[..], |source| &source[..]);
    let flags = if *read_only == Some(true) { MountFlags::RDONLY } else { MountFlags::empty() };
    let made = new_mount(&own, (kind, source, options), flags);
    *state = match &made {
        Ok(mount) => ContextState::Made(mount.clone(), kind),
        Err(_) => ContextState::Failed,
    };
    made.map(drop)
}

/// FSCONFIG_CMD_RECONFIGURE
fn change(state: &mut ContextState) -> Result<()> {
    let ContextState::Setting { goal: ContextGoal::Change(mount), options, read_only, .. } = &*state else {
        return Err(Errno::EBUSY);
    };
    let mount = mount.upgrade().ok_or(Errno::EINVAL)?;
    if !task::may_in(mount.fs_owner(), Capability::SysAdmin) {
        return Err(Errno::EPERM);
    }
    let mut restrictions = mount.flags();
    if let Some(read_only) = *read_only {
        restrictions.set(MountFlags::RDONLY, read_only);
    }
    reconfigure(&mount, restrictions, Some(options))?;
    *state = ContextState::setting(ContextGoal::Change(mount.downgrade()));
    Ok(())
}

/// Returns the restrictions that MOUNT_ATTR_* mean.
///
/// # Errors
/// `EINVAL` for unknown attributes and for two ways of access times.
fn restrictions_of(attributes: u64) -> Result<MountFlags> {
    if attributes & !attribute::KNOWN != 0 {
        return Err(Errno::EINVAL);
    }
    let mut flags = MountFlags::from_bits_truncate((attributes & attribute::RESTRICTIONS) as u32);
    flags |= match attributes & attribute::TIMES {
        0 => MountFlags::RELATIME,
        attribute::NOATIME => MountFlags::NOATIME,
        attribute::STRICTATIME => MountFlags::empty(),
        _ => return Err(Errno::EINVAL),
    };
    flags.set(MountFlags::NODIRATIME, attributes & attribute::NODIRATIME != 0);
    Ok(flags)
}

/// fsmount(fd, flags, attributes)
///
/// # Errors
/// As in the manual.
pub fn sys_fsmount(args: &Args) -> Result<i64> {
    let namespace = changeable()?;
    only(args.uint(1), CLOEXEC)?;
    let restrictions = restrictions_of(u64::from(args.uint(2)))?;
    let mount = with_context(args.fd(0), |state| {
        let (mount, kind) = match &*state {
            ContextState::Made(mount, kind) => (mount.clone(), *kind),
            ContextState::Setting { goal: ContextGoal::Change(_), .. } => return Err(Errno::EBUSY),
            _ => return Err(Errno::EINVAL),
        };
        let flags = restrictions | (mount.flags() & MountFlags::RDONLY);
        may_reveal(&namespace, kind, flags)?;
        mount.set_flags(flags)?;
        *state = ContextState::setting(ContextGoal::Change(mount.downgrade()));
        Ok(mount)
    })?;
    open_loose(mount, on_exec(args.uint(1) & CLOEXEC != 0))
}

/// open_tree(dirfd, path, flags)
///
/// # Errors
/// As in the manual.
pub fn sys_open_tree(args: &Args) -> Result<i64> {
    let flags = args.uint(2);
    let at = AT_EMPTY_PATH | AT_NO_AUTOMOUNT | AT_SYMLINK_NOFOLLOW;
    only(flags, at | AT_RECURSIVE | OPEN_TREE_CLONE | OpenFlags::CLOEXEC.bits())?;
    let (is_copy, is_deep) = (flags & OPEN_TREE_CLONE != 0, flags & AT_RECURSIVE != 0);
    if is_deep && !is_copy {
        return Err(Errno::EINVAL);
    }
    let namespace = if is_copy { Some(changeable()?) } else { None };
    let place = place_at(args.fd(0), args[1], flags, last_of(flags))?;
    let on_exec = OnExec::asked_by(OpenFlags::from_bits_truncate(flags));
    let Some(namespace) = namespace else {
        let file = reserve::arc(crate::fs::path_file::PathFile::new(place.node.clone()));
        return install(OpenFile::new(file, Some(place), OpenFlags::PATH)?, on_exec);
    };
    let depth = if is_deep { CopyDepth::All } else { CopyDepth::One };
    let tree = {
        let _change = namespace::change()?;
        copy_of(&namespace, &place, depth)?
    };
    open_loose(tree, on_exec)
}

/// move_mount(from_dirfd, from_path, to_dirfd, to_path, flags)
///
/// # Errors
/// As in the manual. `EINVAL` for MOVE_MOUNT_SET_GROUP: nothing is propagated between mounts.
pub fn sys_move_mount(args: &Args) -> Result<i64> {
    let flags = args.uint(4);
    let namespace = changeable()?;
    only(flags, moving::KNOWN)?;
    let find = |dirfd: i32, path: u64, [symlinks, empty]: [u32; 2]| {
        let last = if flags & symlinks != 0 { Final::Follow } else { Final::Stop };
        place_at(dirfd, path, if flags & empty != 0 { AT_EMPTY_PATH } else { 0 }, last)
    };
    let from = find(args.fd(0), args[1], [moving::FROM_SYMLINKS, moving::FROM_EMPTY_PATH])?;
    let to = find(args.fd(2), args[3], [moving::TO_SYMLINKS, moving::TO_EMPTY_PATH])?.topmost()?;
    hand_over(&namespace, &from, to).map(|()| 0)
}

/// `struct mount_attr`: what is set, what is cleared, the propagation, and a user namespace.
type MountAttributes = [u64; 4];

/// Changes of a mount's restrictions.
struct AttributeChange {
    set: MountFlags,
    clear: MountFlags,
}

impl AttributeChange {
    /// # Errors
    /// `EINVAL` for unknown attributes, and if access times are set but not cleared as a whole.
    fn new([set, clear, propagation, _]: MountAttributes) -> Result<Self> {
        // One of MS_UNBINDABLE, MS_PRIVATE, MS_SLAVE and MS_SHARED, which change nothing here.
        if propagation & !(0xf << 17) != 0 || propagation.count_ones() > 1 {
            return Err(Errno::EINVAL);
        }
        let times = clear & attribute::TIMES;
        if (set | clear) & !attribute::KNOWN != 0
            || ![0, attribute::TIMES].contains(&times)
            || (times == 0 && set & attribute::TIMES != 0)
        {
            return Err(Errno::EINVAL);
        }
        let all_times = MountFlags::NOATIME | MountFlags::RELATIME;
        let (mut change, cleared) = (restrictions_of(set)?, clear & !attribute::TIMES);
        let mut clear = restrictions_of(cleared)? & !all_times;
        if times == 0 {
            change -= all_times;
        } else {
            clear |= all_times;
        }
        Ok(Self { set: change, clear })
    }

    fn apply(&self, mounts: &[Arc<Mount>]) -> Result<()> {
        let new = |mount: &Mount| (mount.flags() - self.clear) | self.set;
        mounts.iter().try_for_each(|mount| mount.check_flags(new(mount)))?;
        let mut before = Vec::try_with_capacity(mounts.len())?;
        for mount in mounts {
            let flags = mount.flags();
            if let Err(error) = mount.set_flags(new(mount)) {
                for (mount, &flags) in mounts.iter().zip(before.iter()) {
                    let _undone = mount.set_flags(flags);
                }
                return Err(error);
            }
            before.push_reserved(flags);
        }
        Ok(())
    }
}

/// mount_setattr(dirfd, path, flags, attributes, size)
///
/// # Errors
/// As in the manual. `EINVAL` for MOUNT_ATTR_IDMAP: no type of file system here supports it.
pub fn sys_mount_setattr(args: &Args) -> Result<i64> {
    let (flags, size) = (args.uint(2), args.size(4));
    only(flags, AT_EMPTY_PATH | AT_RECURSIVE | AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT)?;
    if size > 4096 {
        return Err(Errno::E2BIG);
    }
    let known = size_of::<MountAttributes>();
    if size < known {
        return Err(Errno::EINVAL);
    }
    let namespace = changeable()?;
    let rest = user::read_vec(args[3] + known as u64, size - known)?;
    if rest.iter().any(|&byte| byte != 0) {
        return Err(Errno::E2BIG);
    }
    let attributes: MountAttributes = UserPtr::new(args[3]).read()?;
    if attributes[..3] == [0; 3] {
        return Ok(0);
    }
    let change = AttributeChange::new(attributes)?;
    let place = place_at(args.fd(0), args[1], flags, last_of(flags))?.topmost()?;
    let _change = namespace::change()?;
    let is_own = place.mount.is_loose() || namespace.contains(&place.mount)?;
    if !place.is_mount_root() || !is_own {
        return Err(Errno::EINVAL);
    }
    if flags & AT_RECURSIVE != 0 {
        change.apply(&place.mount.tree()?)?;
    } else {
        change.apply(&[place.mount.arc()])?;
    }
    namespace.tell_change();
    Ok(0)
}
