//! The steps of execve: load the new program, end the other threads, switch over.
//!
//! **Rights.** A program may give its file's owner's IDs, and capabilities. [`SetIds::of`] checks
//! this when the program is loaded, because its addresses in memory depend on the answer.
//! [`credentials_after`] checks once more when the thread is the last one of its process and holds
//! the `rights` lock (see [`inspect`]), because a tracer, or no_new_privs of another thread, may
//! have been added since. The second check only removes rights. IDs that were withheld first stay
//! withheld, since the caller of execve may know the program's addresses.

use core::sync::atomic::Ordering;

use freehold_collections::{
    Arc, Vec,
    reserve::{self, ArcMethods},
    try_format,
};
use freehold_machine::{Cpus, Entropy, VirtAddr};
use freehold_tracepoints::{Pid, trace};
use freehold_vm::{AreaFlags, AreaPlace, Backing, Limits as MemoryLimits, MapRequest, Protection, Rule};

use crate::fs::caller::Access;
use zerocopy::IntoBytes;

use crate::fs::bytes::SliceSource;
use crate::fs::mount::{Mount, MountFlags};
use crate::fs::node::NodeKind;
use crate::fs::rights::{self, S_ISUID};
use crate::fs::walk::{Final, PathWalk};
use crate::fs::{OpenFile, OpenFlags, Path};
use crate::hw::Hardware;
use crate::hw::PAGE;
use crate::hw::user::{USER_END, UserContext};
use crate::mem::{self, ProcessSpace, Program, ProgramLayout};
use crate::sched::thread::WATCH;
use crate::sync::IrqSpinLock;
use crate::syscall::Args;
use crate::task::capabilities::{Capabilities, Capability, Gains};
use crate::task::inspect::{self, Dumpable};
use crate::task::persona::{ADDR_NO_RANDOMIZE, CLEARED_BY_GAINS, READ_IMPLIES_EXEC};
use crate::task::pidns::Numbers;
use crate::task::process::{ExitStatus, Process};
use crate::task::signal::{Actions, AlternateStack, Signal};
use crate::task::userns::UserNs;
use crate::task::{Credentials, Resource, Task, above, current};
use crate::{Errno, Result, sched, user};

use super::auxiliary::{Bases, Identity, auxiliary, identity};
use super::elf::{self, StackRights};
use super::load::{Executable, LoadPlaces, Role, randomness};
use super::stack::{self, Contents};
use super::{Strings, script};

/// The lowest address that a program may map (mmap_min_addr).
const LOWEST: u64 = 0x1_0000;
/// Pages of randomness in the position of the stack: 2^22.
const STACK_PAGES: u64 = 1 << 22;
/// Pages of randomness in the position of mappings: 2^28.
const MMAP_PAGES: u64 = 1 << 28;
/// Bytes of stack that are mapped from the start, in addition to those that the kernel fills.
const STACK_RESERVE: u64 = 128 << 10;
/// Smallest and largest room that a stack can grow into.
const STACK_GAP: core::ops::RangeInclusive<u64> = 128 << 20..=USER_END / 6 * 5;
/// Largest number of scripts that may interpret each other.
const MAX_SCRIPTS: usize = 5;
/// A program to be started.
pub struct ExecRequest {
    /// The file, if it is open already (execveat with AT_EMPTY_PATH).
    pub file: Option<Arc<OpenFile>>,
    /// The directory where a relative name begins; if absent, the working directory.
    pub start: Option<Path>,
    /// The file's name.
    pub name: Vec<u8>,
    /// argv.
    pub arguments: Strings,
    /// envp.
    pub environment: Strings,
    /// Whether a symbolic link as the last component is followed.
    pub last: Final,
}

impl ExecRequest {
    /// Makes a request for the program with this name, without arguments.
    const fn named(name: Vec<u8>) -> Self {
        Self {
            file: None,
            start: None,
            name,
            arguments: Strings::new(),
            environment: Strings::new(),
            last: Final::Follow,
        }
    }
}

/// A program in a new address space, ready to run.
pub struct Prepared {
    space: Arc<ProcessSpace>,
    entry: u64,
    sp: u64,
    name: Vec<u8>,
    ids: SetIds,
    /// The program's identity as stored in its auxiliary vector, and the address of that.
    identity: Identity,
    identity_at: u64,
    /// Whether its user may read all of its files. A file that may be executed only must not be
    /// readable through the memory either.
    readable: bool,
}

/// Loads a program for `process` into a new address space.
///
/// # Errors
/// Those of execve(2).
pub fn load(process: &Process, mut request: ExecRequest) -> Result<Prepared> {
    let shown = Vec::try_from_slice(&request.name)?;
    let mut head = [0; script::HEAD];
    for _ in 0..MAX_SCRIPTS {
        let file = open(process, &request)?;
        let length = file.read_kernel(0, &mut head)?;
        let head = &head[..length];
        if let Some((interpreter, argument)) = script::interpreter(head) {
            request = interpreted(request, interpreter, argument)?;
            continue;
        }
        let program = Executable::open(file, head)?;
        return assemble(process, &program, &request, &shown);
    }
    Err(Errno::ELOOP)
}

/// Number of arguments that are copied at once.
const STEP: usize = 1024;

/// Returns the request for a script's interpreter: the interpreter's name, its argument, the
/// script's name, the script's arguments.
fn interpreted(request: ExecRequest, interpreter: &[u8], argument: Option<&[u8]>) -> Result<ExecRequest> {
    let name = Vec::try_from_slice(interpreter)?;
    let mut arguments = Strings::new();
    arguments.push(interpreter)?;
    if let Some(argument) = argument {
        arguments.push(argument)?;
    }
    arguments.push(&request.name)?;
    for (step, text) in (1..).zip(request.arguments.iter().skip(1)) {
        arguments.push(text)?;
        if step % STEP == 0 {
            sched::checkpoint()?;
        }
    }
    Ok(ExecRequest { arguments, environment: request.environment, ..ExecRequest::named(name) })
}

fn open(process: &Process, request: &ExecRequest) -> Result<Arc<OpenFile>> {
    let credentials = process.credentials();
    let caller = credentials.caller();
    if let Some(file) = &request.file {
        let metadata = file.node().metadata();
        let bars = |path: &Path| path.mount.flags().contains(MountFlags::NOEXEC);
        if metadata.kind != NodeKind::Regular || file.path().is_some_and(bars) {
            return Err(Errno::EACCES);
        }
        caller.may(&metadata, Access::EXECUTE)?;
        let path = file.path().cloned();
        let opened = file.node().open(OpenFlags::empty())?;
        return OpenFile::of_program(opened, path);
    }
    let fs = process.fs();
    let (root, cwd) = (fs.root(), fs.cwd());
    let walk = PathWalk::new(&root, request.start.as_ref().unwrap_or(&cwd), &caller);
    let place = walk.find(&request.name, request.last)?;
    let metadata = place.node.metadata();
    if metadata.kind == NodeKind::Symlink {
        return Err(Errno::ELOOP);
    }
    if metadata.kind != NodeKind::Regular || place.mount.flags().contains(MountFlags::NOEXEC) {
        return Err(Errno::EACCES);
    }
    caller.may(&metadata, Access::EXECUTE)?;
    let opened = place.node.clone().open(OpenFlags::empty())?;
    OpenFile::of_program(opened, Some(place))
}

/// Rights that a program cannot be given now (Linux: LSM_UNSAFE_*).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Withheld {
    Nothing,
    /// New capabilities. IDs of others as well, unless the process may adopt them by itself.
    Gains,
    /// All IDs, and capabilities.
    All,
}

impl Withheld {
    fn from(process: &Process) -> Self {
        if process.no_new_privileges.load(Ordering::Relaxed) {
            Self::All
        } else if process.is_watched() || process.shares_fs() {
            Self::Gains
        } else {
            Self::Nothing
        }
    }

    fn lets_ids(self, own: &Credentials) -> bool {
        match self {
            Self::Nothing => true,
            Self::Gains => own.may_within(Capability::SetUid),
            Self::All => false,
        }
    }
}

/// The IDs that a set-user-ID or set-group-ID program runs with.
#[derive(Clone, Copy, PartialEq, Eq)]
struct SetIds {
    user: Option<u32>,
    group: Option<u32>,
}

impl SetIds {
    /// The process keeps its own IDs.
    const NONE: Self = Self { user: None, group: None };

    /// Returns the IDs that a program gives to a process.
    ///
    /// # Errors
    /// `EINTR` if the caller is killed meanwhile.
    fn of(process: &Process, program: &Executable) -> Result<Self> {
        let metadata = program.file.node().metadata();
        let own = process.credentials();
        // Linux: `mnt_may_suid`. Mounts that other users made in their namespaces give no rights
        // here.
        let refuses = |mount: &Arc<Mount>| -> Result<bool> {
            let is_refused = mount.flags().contains(MountFlags::NOSUID)
                || !mount.fs_owner().contains(&own.user_ns)
                || !process.namespaces().mount.contains(mount)?;
            Ok(is_refused)
        };
        let (user, group) = (metadata.mode & S_ISUID != 0, rights::runs_as_group(metadata.mode));
        if !(user || group) || program.file.path().map_or(Ok(false), |path| refuses(&path.mount))? {
            return Ok(Self::NONE);
        }
        // An ID that the user namespace does not map is not adopted (Linux: `bprm_fill_uid`).
        if !own.user_ns.maps(metadata.uid, metadata.gid) || !Withheld::from(process).lets_ids(&own) {
            return Ok(Self::NONE);
        }
        Ok(Self { user: user.then_some(metadata.uid), group: group.then_some(metadata.gid) })
    }
}

/// Returns the credentials of a process that starts a program with these IDs now.
fn credentials_after(process: &Process, ids: SetIds) -> Credentials {
    let withheld = Withheld::from(process);
    let mut new = Credentials::clone(&process.credentials());
    if withheld.lets_ids(&new) {
        new.euid = ids.user.unwrap_or(new.euid);
        new.egid = ids.group.unwrap_or(new.egid);
    }
    (new.suid, new.fsuid) = (new.euid, new.euid);
    (new.sgid, new.fsgid) = (new.egid, new.egid);
    let gains = if withheld == Withheld::Nothing { Gains::Allowed } else { Gains::Refused };
    new.capabilities = Capabilities::after_exec(&new, gains);
    new
}

/// Makes an address space for a program, and returns the end of its stack. `places` decides about
/// the positions of the stack and of the mappings below it.
fn empty_space(process: &Process, places: LoadPlaces) -> Result<(Arc<ProcessSpace>, u64)> {
    let random_pages = |pages: u64| places.draw() % pages * PAGE;
    let stack_top = USER_END - mem::vdso::LENGTH - random_pages(STACK_PAGES);
    let gap = process.limit(Resource::Stack).soft.clamp(*STACK_GAP.start(), *STACK_GAP.end());
    let below_stack = USER_END.saturating_sub(STACK_PAGES * PAGE + gap + (1 << 20));
    let mmap_base = below_stack.saturating_sub(random_pages(MMAP_PAGES)).max(USER_END / 4) & !(PAGE - 1);
    let space = ProcessSpace::new(ProgramLayout {
        lowest: VirtAddr(LOWEST),
        end: VirtAddr(USER_END),
        mmap_base: VirtAddr(mmap_base),
    })?;
    let old = process.space();
    let (huge, merges_all, time_offsets) = {
        let areas = old.lock();
        (areas.huge_use(), areas.merges_all(), areas.time_offsets().cloned())
    };
    let mut areas = space.lock();
    areas.set_huge_use(huge);
    if merges_all {
        areas.merge_all();
    }
    if time_offsets.is_some() {
        areas.set_time_offsets(time_offsets);
    }
    areas.make_room_for_program()?;
    drop(areas);
    Ok((space, stack_top))
}

fn places(process: &Process, ids: SetIds) -> LoadPlaces {
    let asked = process.personality.load(Ordering::Relaxed) & ADDR_NO_RANDOMIZE != 0;
    if asked && ids == SetIds::NONE || randomness() == 0 { LoadPlaces::Fixed } else { LoadPlaces::Random }
}

fn assemble(
    process: &Process,
    program: &Executable,
    request: &ExecRequest,
    shown: &[u8],
) -> Result<Prepared> {
    let limits = process.memory_limits();
    let ids = SetIds::of(process, program)?;
    let identity = identity(&credentials_after(process, ids));
    let places = places(process, ids);
    let (space, stack_top) = empty_space(process, places)?;
    let loaded = program.map(&space, Role::Program(places), &limits)?;
    let program_entry = program.plan.entry.wrapping_add(loaded.bias);
    let mut readable = is_readable(process, &program.file);
    let (mut entry, mut base) = (program_entry, 0);
    if let Some((offset, length)) = program.plan.interpreter {
        let interpreter = open_interpreter(process, program, offset, length)?;
        readable &= is_readable(process, &interpreter.file);
        base = interpreter.map(&space, Role::Interpreter, &limits)?.bias;
        entry = interpreter.plan.entry.wrapping_add(base);
    }
    let break_start = loaded.end.next_multiple_of(PAGE) + places.draw_heap_gap();
    space.lock().set_brk_base(VirtAddr(break_start));
    let vdso = mem::vdso::map(&space, stack_top, places.draw(), &limits)?;
    let bases = Bases { vdso, interpreter: base, entry: program_entry, bias: loaded.bias };
    let auxiliary = auxiliary(&program.plan, &bases, &identity);
    // As on Linux, a program always has an argv[0].
    let mut nameless = Strings::new();
    nameless.push(b"")?;
    let arguments = if request.arguments.is_empty() { &nameless } else { &request.arguments };
    let random = (u128::from(Hardware.random_u64()) << 64 | u128::from(Hardware.random_u64())).to_le_bytes();
    let contents =
        Contents { arguments, environment: &request.environment, name: shown, random, auxiliary: &auxiliary };
    let image = stack::build(stack_top - (places.draw() % 512 * 16), &contents)?;
    map_stack(&space, image.sp, stack_top, program.plan.stack, &limits)?;
    space.lock().write_remote(VirtAddr(image.sp), &image.bytes)?;
    space.update_program(|known| {
        *known = Program {
            executable: Some(program.file.clone()),
            code: program.plan.first_with(elf::EXECUTABLE, loaded.bias),
            data: program.plan.first_with(elf::WRITABLE, loaded.bias),
            break_start,
            stack_start: image.sp,
            arguments: image.arguments.clone(),
            environment: image.environment.clone(),
            auxiliary: Some(reserve::arc(image.auxiliary)),
        };
    });
    let name = Vec::try_from_slice(shown.rsplit(|&byte| byte == b'/').next().unwrap_or(shown))?;
    Ok(Prepared {
        space,
        entry,
        sp: image.sp,
        name,
        ids,
        identity,
        identity_at: image.auxiliary_at,
        readable,
    })
}

fn is_readable(process: &Process, file: &OpenFile) -> bool {
    process.credentials().caller().may(&file.node().metadata(), Access::READ).is_ok()
}

fn open_interpreter(
    process: &Process,
    program: &Executable,
    offset: u64,
    length: usize,
) -> Result<Executable> {
    let mut name = user::zeroed(length)?;
    if program.file.read_kernel(offset, &mut name)? != length || name.pop() != Some(0) {
        return Err(Errno::ENOEXEC);
    }
    if let Some(end) = name.iter().position(|&byte| byte == 0) {
        name.truncate(end);
    }
    let file = open(process, &ExecRequest::named(name))?;
    let mut head = [0; script::HEAD];
    let length = file.read_kernel(0, &mut head)?;
    // A bad interpreter is an error of the system, not of the program (ELIBBAD).
    Executable::open(file, &head[..length])
}

fn map_stack(
    space: &ProcessSpace,
    sp: u64,
    top: u64,
    rights: StackRights,
    limits: &MemoryLimits,
) -> Result<()> {
    let start = (sp & !(PAGE - 1)) - STACK_RESERVE;
    let mut protection = Protection::READ | Protection::WRITE;
    protection.set(Protection::EXEC, rights == StackRights::Executable);
    let request = MapRequest {
        place: AreaPlace::FixedNoReplace(VirtAddr(start)),
        len: top - start,
        protection,
        backing: Backing::Anonymous,
        flags: AreaFlags::GROWSDOWN | AreaFlags::STACK,
    };
    space.lock().map(request, limits)?;
    Ok(())
}

impl Prepared {
    /// Updates the identity in the program's auxiliary vector. It may have changed since loading:
    /// by another thread, or because rights are withheld.
    ///
    /// # Errors
    /// `ENOMEM`; `EFAULT`, also if the caller is being killed.
    fn correct_identity(&self, identity: &Identity) -> Result<()> {
        if *identity == self.identity {
            return Ok(());
        }
        let before = self.space.program().auxiliary.ok_or(Errno::EFAULT)?;
        let mut vector = before.try_clone()?;
        vector[..identity.len()].copy_from_slice(identity);
        let vector = reserve::arc(vector);
        self.space.update_program(|known| known.auxiliary = Some(vector));
        let words = identity.map(|(kind, value)| [kind, value]);
        let bytes = words.as_bytes();
        let written = mem::write_space(
            &self.space,
            VirtAddr(self.identity_at),
            bytes.len(),
            Rule::Asked,
            &mut SliceSource::new(bytes),
        )?;
        if written == bytes.len() { Ok(()) } else { Err(Errno::EFAULT) }
    }

    /// Starts the program in the only task of a process. The task's ID was `former`.
    pub(in crate::task) fn begin(self, task: &Arc<Task>, context: &mut UserContext, former: u32) {
        let process = task.process();
        let rights = process.rights.lock();
        let credentials = credentials_after(process, self.ids);
        if self.correct_identity(&identity(&credentials)).is_err() {
            process.end(ExitStatus::Signaled(Signal::KILL));
        }
        let set_id = credentials.uid != credentials.euid || credentials.gid != credentials.egid;
        let changes = set_id || inspect::changes(&process.credentials(), &credentials);
        if changes {
            process.parent_death_signal.store(0, Ordering::Relaxed);
            // Another process must not choose which allocation of a program with rights fails.
            task.injection.set_nth(0);
        }
        // The parent chose the signal for the program that it created, which has ended (Linux:
        // `begin_new_exec`).
        process.exit_signal.store(u32::from(Signal::CHLD.number()), Ordering::Relaxed);
        let dumpable = if changes || !self.readable { inspect::after_change() } else { Dumpable::Yes };
        process.barriers.store(0, Ordering::Relaxed);
        self.space.set_dumpable(dumpable);
        // A file that the user may not read may belong to a parent user namespace.
        let owner = if self.readable { credentials.user_ns.clone() } else { UserNs::INITIAL };
        self.space.set_owner(owner);
        self.space.set_dump_filter(process.space().dump_filter());
        let gained = credentials.capabilities.permitted & !process.credentials().capabilities.permitted;
        let cleared =
            if self.ids == SetIds::NONE && gained == 0 { READ_IMPLIES_EXEC } else { CLEARED_BY_GAINS };
        process.personality.fetch_and(!cleared, Ordering::Relaxed);
        // Before the space is replaced: see the order in `inspect`.
        if credentials != *process.credentials() {
            process.set_credentials(credentials);
        }
        task.set_name(&self.name);
        task.watch.clear();
        task.answer_call(WATCH);
        trace!(
            Hardware,
            SchedExec { comm: task.label.comm(), pid: Pid(process.pid as i32), old_pid: Pid(former as i32) }
        );
        task.set_translation(self.space.translation().clone());
        let before = process.replace_space(self.space);
        drop(rights);
        drop(before);
        process.executed.fetch_add(1, Ordering::Relaxed);
        context.start(self.entry, self.sp);
    }

    /// Replaces the current program. Afterwards the calling thread is the only one.
    ///
    /// Returns the thread's previous numbers.
    fn replace(self, task: &Arc<Task>, context: &mut UserContext) -> Result<Numbers> {
        let process = task.process().clone();
        let former = task.stay_alone()?;
        process.cgroup.executed();
        task.forget_kept();
        crate::task::exit::leave_program(task, crate::task::thread::Departure::Exec);
        above().cancel_operations(process.pid);
        if process.files().references() > 2 {
            let own = process.files().duplicate()?;
            drop(process.replace_files(own));
        }
        process.files().close_on_exec();
        let mut actions: Actions = {
            let shared = process.actions.lock();
            *shared.lock()
        };
        actions.reset_for_exec();
        let fresh = reserve::arc(IrqSpinLock::new(actions));
        let old = core::mem::replace(&mut *process.actions.lock(), fresh);
        drop(old);
        *task.alternate_stack.lock() = AlternateStack::NONE;
        process.timers.delete_posix();
        self.begin(task, context, former.id());
        sched::activate_current();
        Ok(former)
    }
}

/// Returns the largest number of bytes of arguments and environment together: a quarter of the
/// stack, but at least 128 KiB.
fn argument_limit(process: &Process) -> usize {
    let stack = process.limit(Resource::Stack).soft.min(24 << 20);
    (stack / 4).max(128 << 10) as usize
}

fn exec(context: &mut UserContext, request: ExecRequest, argv: u64, envp: u64) -> Result<i64> {
    let task = current();
    let process = task.process();
    let limit = argument_limit(process);
    let arguments = Strings::read(argv, limit)?;
    let environment = Strings::read(envp, limit.saturating_sub(arguments.size()))?;
    let prepared = load(process, ExecRequest { arguments, environment, ..request })?;
    let number = context.syscall_number();
    let former = prepared.replace(&task, context)?;
    context.set_return(0);
    task.executed(context, number, &former);
    Ok(0)
}

/// execve(path, argv, envp)
pub fn sys_execve(context: &mut UserContext, args: &Args) -> Result<i64> {
    let name = user::string(args[0])?;
    exec(context, ExecRequest::named(name), args[1], args[2])
}

/// execveat(dirfd, path, argv, envp, flags)
pub fn sys_execveat(context: &mut UserContext, args: &Args) -> Result<i64> {
    const AT_FDCWD: i32 = -100;
    const AT_SYMLINK_NOFOLLOW: u32 = 0x100;
    const AT_EMPTY_PATH: u32 = 0x1000;
    let flags = args.uint(4);
    if flags & !(AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH) != 0 {
        return Err(Errno::EINVAL);
    }
    let mut name = user::string(args[1])?;
    let files = current().process().files();
    let (mut file, mut start) = (None, None);
    if name.is_empty() {
        if flags & AT_EMPTY_PATH == 0 {
            return Err(Errno::ENOENT);
        }
        let fd = args.fd(0);
        file = Some(files.get(fd)?);
        name = try_format!("/dev/fd/{fd}")?.into_bytes();
    } else if name[0] != b'/' && args.fd(0) != AT_FDCWD {
        start = Some(files.get(args.fd(0))?.path().cloned().ok_or(Errno::ENOTDIR)?);
    }
    let last = if flags & AT_SYMLINK_NOFOLLOW != 0 { Final::Stop } else { Final::Follow };
    exec(context, ExecRequest { file, start, last, ..ExecRequest::named(name) }, args[2], args[3])
}
