//! ptrace(2): the calls of the tracer.

use freehold_collections::{Arc, Vec};
use freehold_machine::VirtAddr;
use freehold_vm::Rule;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::attach::{Attachment, release};
use super::{
    Attached, Event, Options, Resume, StopKind, TraceState, Tracee, TracerPower, USER_BYTES, UserRegisters,
    transfer,
};
use crate::fs::bytes::{SliceSink, SliceSource};
use crate::hw::user;
use crate::mem::ProcessSpace;
use crate::sched::thread::{SIGNAL, WATCH};
use crate::sched::{self, Sleep};
use crate::sync::Woken;
use crate::syscall::Args;
use crate::task::inspect::{self, Dumpable, Mode};
use crate::task::process::{ExitStatus, Process};
use crate::task::signal::{SigInfo, SigSet, Signal, Whose, code, write_whole};
use crate::task::{Pid, Task, current, registry};
use crate::user::{self as bytes, UserPtr};
use crate::{Errno, Result, mem};

/// PTRACE_*.
mod request {
    pub const TRACEME: i32 = 0;
    pub const PEEKTEXT: i32 = 1;
    pub const PEEKDATA: i32 = 2;
    pub const PEEKUSER: i32 = 3;
    pub const POKETEXT: i32 = 4;
    pub const POKEDATA: i32 = 5;
    pub const POKEUSER: i32 = 6;
    pub const CONT: i32 = 7;
    pub const KILL: i32 = 8;
    pub const SINGLESTEP: i32 = 9;
    pub const GETREGS: i32 = 12;
    pub const SETREGS: i32 = 13;
    pub const GETFPREGS: i32 = 14;
    pub const SETFPREGS: i32 = 15;
    pub const ATTACH: i32 = 16;
    pub const DETACH: i32 = 17;
    pub const SYSCALL: i32 = 24;
    pub const SETOPTIONS: i32 = 0x4200;
    pub const GETEVENTMSG: i32 = 0x4201;
    pub const GETSIGINFO: i32 = 0x4202;
    pub const SETSIGINFO: i32 = 0x4203;
    pub const GETREGSET: i32 = 0x4204;
    pub const SETREGSET: i32 = 0x4205;
    pub const SEIZE: i32 = 0x4206;
    pub const INTERRUPT: i32 = 0x4207;
    pub const LISTEN: i32 = 0x4208;
    pub const PEEKSIGINFO: i32 = 0x4209;
    pub const GETSIGMASK: i32 = 0x420a;
    pub const SETSIGMASK: i32 = 0x420b;
    pub const GET_SYSCALL_INFO: i32 = 0x420e;
}

const NT_PRSTATUS: u64 = 1;
const NT_PRFPREG: u64 = 2;
const NT_X86_XSTATE: u64 = 0x202;
const LEGACY_BYTES: usize = 512;
/// Bytes of the vector state that a tracer cannot change: MXCSR_MASK.
const MXCSR_MASK: core::ops::Range<usize> = 28..32;
/// Components of the legacy part of the vector state, in XSTATE_BV.
const LEGACY_COMPONENTS: u8 = 0b11;
/// Range of the debug registers in `struct user`: `u_debugreg`, eight words.
const DEBUG_REGISTERS: core::ops::Range<u64> = 848..912;

/// The argument of PTRACE_GETREGSET and PTRACE_SETREGSET: `struct iovec`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Vector {
    base: u64,
    bytes: u64,
}

/// `struct ptrace_peeksiginfo_args`.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct PeekSigInfo {
    offset: u64,
    flags: u32,
    count: i32,
}

/// `struct ptrace_syscall_info`, with the part for the entry of a call.
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct CallInfo {
    op: u8,
    pad: [u8; 3],
    architecture: u32,
    rip: u64,
    rsp: u64,
    /// At entry: the number and the arguments. At exit: the result, and in the first byte of the
    /// next word whether it is an error.
    words: [u64; 7],
}

const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;

/// ptrace(request, tid, address, data)
pub fn sys_ptrace(args: &Args) -> Result<i64> {
    let (number, tid, address, data) = (args.int(0), args.int(1), args[2], args[3]);
    match number {
        request::TRACEME => return trace_me(),
        request::ATTACH => return attach(tid, Attached::Classic, Options::empty()),
        request::SEIZE => {
            if address != 0 {
                return Err(Errno::EIO);
            }
            return attach(tid, Attached::Seized, options(data).ok_or(Errno::EIO)?);
        }
        _ => {}
    }
    let tracer = current().process().clone();
    let tid = named(tid)?;
    let tracee = tracer.tracees.lock().get(tid).cloned().ok_or(Errno::ESRCH)?;
    let task =
        registry::find_task(tid).filter(|task| task.process().pid == tracee.pid).ok_or(Errno::ESRCH)?;
    match number {
        request::KILL => {
            task.process().end(ExitStatus::Signaled(Signal::KILL));
            Ok(0)
        }
        request::INTERRUPT => interrupt(&tracee, &task),
        request::DETACH => detach(&tracer, &tracee, data),
        request::CONT => go_on(&tracee, &task, Resume::Run, data),
        request::SYSCALL => go_on(&tracee, &task, Resume::ToCall, data),
        request::SINGLESTEP => go_on(&tracee, &task, Resume::Step, data),
        request::LISTEN => listen(&tracee, &task),
        request::PEEKTEXT | request::PEEKDATA => peek(&tracee, &task, address, data),
        request::POKETEXT | request::POKEDATA => poke(&tracee, &task, address, data),
        request::PEEKUSER if DEBUG_REGISTERS.contains(&address) => {
            let word = tracee.stopped(|_| debug_register(address).map(|index| task.watch.peek(index)))?;
            UserPtr::new(data).write(&word)?;
            Ok(0)
        }
        request::POKEUSER if DEBUG_REGISTERS.contains(&address) => {
            tracee.stopped(|_| set_debug_register(&task, debug_register(address)?, data)).map(|()| 0)
        }
        request::GETSIGMASK | request::SETSIGMASK => signal_mask(&tracee, &task, number, (address, data)),
        request::PEEKSIGINFO => peek_pending(&tracee, &task, address, data),
        _ => ask(&tracee, number, address, data),
    }
}

/// Requests about the state recorded at a stop.
fn ask(tracee: &Tracee, number: i32, address: u64, data: u64) -> Result<i64> {
    match number {
        request::PEEKUSER => {
            let word = tracee.stopped(|state| peek_user(state, address))?;
            UserPtr::new(data).write(&word)?;
        }
        request::POKEUSER => tracee.stopped(|state| poke_user(state, address, data))?,
        request::GETREGS => {
            let image = tracee.stopped(|state| Ok(state.image))?;
            UserPtr::new(data).write(&image)?;
        }
        request::SETREGS => {
            tracee.stopped(|_| Ok(()))?;
            let given = UserPtr::<UserRegisters>::new(data).read()?;
            tracee.stopped(|state| state.image.put_all(&given.words()))?;
        }
        request::GETFPREGS => {
            let mut vectors = [0; LEGACY_BYTES];
            tracee.stopped(|state| {
                vectors.copy_from_slice(&state.vectors[..LEGACY_BYTES]);
                Ok(())
            })?;
            bytes::write_exact(data, &vectors)?;
        }
        request::SETFPREGS => set_vectors(tracee, data, LEGACY_BYTES)?,
        request::GETREGSET => return registers(tracee, address, data, RegisterDirection::Get),
        request::SETREGSET => return registers(tracee, address, data, RegisterDirection::Set),
        request::SETOPTIONS => {
            let new = options(data).ok_or(Errno::EINVAL)?;
            tracee.stopped(|state| {
                state.options = new;
                Ok(())
            })?;
        }
        request::GETEVENTMSG => {
            let message = tracee.stopped(|state| Ok(state.message))?;
            UserPtr::new(data).write(&message)?;
        }
        request::GETSIGINFO => {
            let info = tracee.stopped(|state| stop_info(tracee, state))?;
            write_whole(&info, data)?;
        }
        request::SETSIGINFO => {
            let info = UserPtr::<SigInfo>::new(data).read()?;
            tracee.stopped(|state| {
                stop_info(tracee, state)?;
                state.info = info;
                Ok(())
            })?;
        }
        request::GET_SYSCALL_INFO => return call_info(tracee, address, data),
        _ => {
            tracee.stopped(|_| Ok(()))?;
            return Err(Errno::EIO);
        }
    }
    Ok(0)
}

fn options(data: u64) -> Option<Options> {
    u32::try_from(data).ok().and_then(Options::from_bits)
}

fn trace_me() -> Result<i64> {
    let task = current();
    let parent = task.process().parent().filter(|parent| !parent.is_kernel()).ok_or(Errno::EPERM)?;
    let process = task.process();
    let _rights = process.rights.lock_killable()?;
    let own = process.credentials();
    if !inspect::may_be_invited(&parent.credentials(), &own) {
        return Err(Errno::EPERM);
    }
    let power = TracerPower::of(own);
    Attachment::new(&parent, &task, (Attached::Classic, power), Options::empty())?.keep();
    Ok(0)
}

/// Returns the ID of the thread with this number in the caller's PID namespace.
fn named(tid: i32) -> Result<Pid> {
    u32::try_from(tid).ok().and_then(registry::pid_by_number).ok_or(Errno::ESRCH)
}

#[cold]
fn attach(tid: i32, attached: Attached, options: Options) -> Result<i64> {
    let caller = current();
    let task = registry::find_task(named(tid)?).ok_or(Errno::ESRCH)?;
    let process = task.process();
    if process.pid == caller.process().pid || process.is_kernel() {
        return Err(Errno::EPERM);
    }
    let attachment = inspect::act_on(process, Mode::ATTACH_REAL, || {
        if process.exit_status().is_some() || task.has_finished() {
            return Err(Errno::EPERM);
        }
        let power = TracerPower::of(caller.process().credentials());
        Attachment::new(caller.process(), &task, (attached, power), options)
    })?;
    let tracee = attachment.tracee();
    attachment.keep();
    if attached == Attached::Classic {
        let (pid, uid) = (caller.process().number_for(process), caller.process().uid());
        task.signal(SigInfo::user(Signal::STOP, code::USER, pid, uid));
    }
    // A thread stopped by job control leaves that stop for its tracer's stop, so that requests
    // succeed at once (Linux: JOBCTL_TRAPPING).
    task.call_attention(SIGNAL);
    match sched::wake(&task, &[Sleep::Stopped]) {
        Woken::Sleeper => wait_for_stop(caller.process(), &tracee, &task),
        Woken::Nobody => Ok(0),
    }
}

/// Waits until a tracee that was stopped by job control is in its tracer's stop.
///
/// # Errors
/// `EINTR` if the caller is being killed.
fn wait_for_stop(tracer: &Process, tracee: &Tracee, task: &Task) -> Result<i64> {
    // SIGCONT from another process ends the stop and notifies only the other parent, so this polls.
    const LOOK: u64 = 10_000_000;
    let there = || {
        let state = tracee.state.lock();
        let is_told = state.stop.is_some() || state.released || state.ended.is_some();
        drop(state);
        let runs = || task.process().signals.lock().stop().is_none();
        (is_told || task.has_finished() || runs()).then_some(())
    };
    loop {
        let deadline = crate::time::now().saturating_add(LOOK);
        if tracer.child_changed.wait_killable_until(deadline, there)?.is_some() {
            return Ok(0);
        }
    }
}

fn interrupt(tracee: &Tracee, task: &Task) -> Result<i64> {
    if tracee.attached != Attached::Seized {
        return Err(Errno::EIO);
    }
    task.traced.ask_for_trap();
    let listens = {
        let mut state = tracee.state.lock();
        core::mem::take(&mut state.listens) && state.resume.replace(Resume::Run).is_none()
    };
    task.interrupt();
    if listens {
        sched::wake(task, &[Sleep::Traced]);
    }
    Ok(0)
}

fn signal_of(data: u64) -> Result<u8> {
    if data > u64::from(Signal::MAX.number()) { Err(Errno::EIO) } else { Ok(data as u8) }
}

fn go_on(tracee: &Tracee, task: &Task, how: Resume, data: u64) -> Result<i64> {
    let inject = signal_of(data)?;
    tracee.stopped(|state| {
        state.inject = inject;
        state.resume = Some(how);
        Ok(())
    })?;
    sched::wake(task, &[Sleep::Traced]);
    Ok(0)
}

fn detach(tracer: &Process, tracee: &Arc<Tracee>, data: u64) -> Result<i64> {
    let inject = signal_of(data)?;
    tracee.stopped(|state| {
        state.inject = inject;
        state.listens = false;
        Ok(())
    })?;
    drop(tracer.tracees.lock().remove(tracee.tid()));
    release(tracee);
    Ok(0)
}

fn listen(tracee: &Tracee, task: &Task) -> Result<i64> {
    tracee.stopped(|state| {
        let at_event = state.stop.is_some_and(|stop| stop.code >> 8 == Event::Stop as i32);
        if tracee.attached != Attached::Seized || !at_event {
            return Err(Errno::EIO);
        }
        state.listens = true;
        Ok(())
    })?;
    // The stop may have ended already.
    sched::wake(task, &[Sleep::Traced]);
    Ok(0)
}

/// Returns the memory of a tracee that is in a stop (Linux: `ptrace_access_vm`).
///
/// # Errors
/// `ESRCH` if it is not in a stop; `EIO` if its user may not read the memory and the tracer has no
/// power over it.
fn space_of(tracee: &Tracee, task: &Task) -> Result<Arc<ProcessSpace>> {
    tracee.stopped(|_| Ok(()))?;
    let space = task.process().space();
    let is_open = space.dumpable() == Dumpable::Yes || tracee.power.covers(&space.owner());
    if is_open { Ok(space) } else { Err(Errno::EIO) }
}

fn peek(tracee: &Tracee, task: &Task, address: u64, to: u64) -> Result<i64> {
    let (mut word, space) = ([0; 8], space_of(tracee, task)?);
    let mut room = SliceSink::new(&mut word);
    let read = mem::read_space(&space, VirtAddr(address), 8, Rule::Forced, &mut room);
    if read.unwrap_or(0) != 8 {
        return Err(Errno::EIO);
    }
    UserPtr::new(to).write(&word)?;
    Ok(0)
}

fn poke(tracee: &Tracee, task: &Task, address: u64, word: u64) -> Result<i64> {
    let (word, space) = (word.to_le_bytes(), space_of(tracee, task)?);
    let mut source = SliceSource::new(&word);
    let written = mem::write_space(&space, VirtAddr(address), 8, Rule::Forced, &mut source);
    if written.unwrap_or(0) == 8 { Ok(0) } else { Err(Errno::EIO) }
}

fn peek_user(state: &TraceState, offset: u64) -> Result<u64> {
    if !offset.is_multiple_of(8) || offset >= USER_BYTES {
        return Err(Errno::EIO);
    }
    Ok(state.image.words().get(offset as usize / 8).copied().unwrap_or(0))
}

fn poke_user(state: &mut TraceState, offset: u64, word: u64) -> Result<()> {
    if !offset.is_multiple_of(8) || offset >= USER_BYTES {
        return Err(Errno::EIO);
    }
    match offset as usize / 8 {
        index if index < UserRegisters::WORDS => state.image.put(index, word),
        _ => Ok(()),
    }
}

/// Returns the number of the debug register at an offset of `struct user`.
fn debug_register(offset: u64) -> Result<usize> {
    if offset.is_multiple_of(8) {
        Ok(((offset - DEBUG_REGISTERS.start) / 8) as usize)
    } else {
        Err(Errno::EIO)
    }
}

fn set_debug_register(task: &Task, index: usize, word: u64) -> Result<()> {
    task.watch.poke(index, word)?;
    if task.watch.is_any() {
        task.call_attention(WATCH);
    } else {
        task.answer_call(WATCH);
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RegisterDirection {
    Get,
    Set,
}

fn registers(tracee: &Tracee, set: u64, at: u64, direction: RegisterDirection) -> Result<i64> {
    tracee.stopped(|_| Ok(()))?;
    let pointer = UserPtr::<Vector>::new(at);
    let vector = pointer.read()?;
    let (size, unit) = match set {
        NT_PRSTATUS => (size_of::<UserRegisters>(), 8),
        NT_PRFPREG => (LEGACY_BYTES, 8),
        NT_X86_XSTATE if user::xfeatures() != 0 => (user::xsave_size(), 8),
        _ => return Err(Errno::EINVAL),
    };
    if !vector.bytes.is_multiple_of(unit) {
        return Err(Errno::EINVAL);
    }
    let bytes = size.min(usize::try_from(vector.bytes).unwrap_or(usize::MAX));
    match (direction, set) {
        (RegisterDirection::Get, NT_PRSTATUS) => {
            let image = tracee.stopped(|state| Ok(state.image))?;
            bytes::write_exact(vector.base, &image.as_bytes()[..bytes])?;
        }
        (RegisterDirection::Get, _) => {
            let mut shown = Vec::try_filled(0, bytes)?;
            tracee.stopped(|state| {
                shown.copy_from_slice(&state.vectors[..bytes]);
                Ok(())
            })?;
            bytes::write_exact(vector.base, &shown)?;
        }
        (RegisterDirection::Set, NT_PRSTATUS) => {
            let given = bytes::read_vec(vector.base, bytes)?;
            let mut words = [0; UserRegisters::WORDS];
            words.as_mut_bytes()[..bytes].copy_from_slice(&given);
            tracee.stopped(|state| state.image.put_all(&words[..bytes / 8]))?;
        }
        // As on Linux, the state must be complete.
        (RegisterDirection::Set, NT_X86_XSTATE) if bytes != size => return Err(Errno::EFAULT),
        (RegisterDirection::Set, _) => set_vectors(tracee, vector.base, bytes)?,
    }
    pointer.write(&Vector { base: vector.base, bytes: bytes as u64 })?;
    Ok(0)
}

fn set_vectors(tracee: &Tracee, from: u64, length: usize) -> Result<()> {
    tracee.stopped(|_| Ok(()))?;
    let given = bytes::read_vec(from, length)?;
    tracee.stopped(|state| {
        let before = state.vectors.try_clone()?;
        let vectors = &mut state.vectors;
        vectors[..length].copy_from_slice(&given);
        vectors[MXCSR_MASK].copy_from_slice(&before[MXCSR_MASK]);
        if length == LEGACY_BYTES && vectors.len() > LEGACY_BYTES {
            vectors[LEGACY_BYTES] |= LEGACY_COMPONENTS;
        }
        if !transfer::is_acceptable(vectors) {
            vectors.copy_from_slice(&before);
            return Err(Errno::EINVAL);
        }
        state.vectors_changed = true;
        Ok(())
    })
}

/// Returns the siginfo of a stop; a group stop has none.
fn stop_info(tracee: &Tracee, state: &TraceState) -> Result<SigInfo> {
    let stop = state.stop.ok_or(Errno::ESRCH)?;
    match stop.kind {
        StopKind::Delivery => Ok(state.info),
        StopKind::Group if tracee.attached == Attached::Classic => Err(Errno::EINVAL),
        _ => Ok(SigInfo {
            number: stop.code & 0x7f,
            code: stop.code,
            ..SigInfo::user(Signal::TRAP, 0, tracee.number(), 0)
        }),
    }
}

fn signal_mask(tracee: &Tracee, task: &Task, number: i32, (size, at): (u64, u64)) -> Result<i64> {
    if size != size_of::<SigSet>() as u64 {
        return Err(Errno::EINVAL);
    }
    tracee.stopped(|_| Ok(()))?;
    let pointer = UserPtr::<SigSet>::new(at);
    if number == request::GETSIGMASK {
        pointer.write(&task.blocked())?;
    } else {
        let mask = pointer.read()?;
        tracee.stopped(|_| Ok(()))?;
        task.set_blocked(mask);
    }
    Ok(0)
}

/// PTRACE_PEEKSIGINFO: returns siginfos of pending signals, which stay pending.
fn peek_pending(tracee: &Tracee, task: &Task, at: u64, to: u64) -> Result<i64> {
    const SHARED: u32 = 1;
    const WHOLE_BYTES: u64 = 128;
    let asked = UserPtr::<PeekSigInfo>::new(at).read()?;
    if asked.flags & !SHARED != 0 || asked.count < 0 {
        return Err(Errno::EINVAL);
    }
    tracee.stopped(|_| Ok(()))?;
    for done in 0..asked.count as u64 {
        sched::checkpoint()?;
        let index = asked.offset.checked_add(done).and_then(|index| usize::try_from(index).ok());
        let whose = if asked.flags & SHARED != 0 { Whose::Process } else { Whose::Thread };
        let Some(info) = index.and_then(|index| task.pending_at(index, whose)) else {
            return Ok(done as i64);
        };
        write_whole(&info, to.wrapping_add(done * WHOLE_BYTES))?;
    }
    Ok(asked.count.into())
}

fn call_info(tracee: &Tracee, size: u64, to: u64) -> Result<i64> {
    let (info, used) = tracee.stopped(|state| {
        let image = &state.image;
        let head = CallInfo {
            architecture: AUDIT_ARCH_X86_64,
            rip: image.rip,
            rsp: image.rsp,
            ..CallInfo::default()
        };
        Ok(match state.stop.map(|stop| stop.kind) {
            Some(StopKind::Entry) => {
                let arguments = [image.rdi, image.rsi, image.rdx, image.r10, image.r8, image.r9];
                let mut words = [image.orig_rax; 7];
                words[1..].copy_from_slice(&arguments);
                (CallInfo { op: 1, words, ..head }, 80)
            }
            Some(StopKind::Exit) => {
                let failed = (-4095..0).contains(&(image.rax as i64));
                (CallInfo { op: 2, words: [image.rax, failed.into(), 0, 0, 0, 0, 0], ..head }, 33)
            }
            _ => (head, 24),
        })
    })?;
    let length = usize::try_from(size).map_or(used, |size| size.min(used));
    bytes::write_exact(to, &info.as_bytes()[..length])?;
    Ok(used as i64)
}
