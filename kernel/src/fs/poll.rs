//! poll, ppoll, select, pselect6: waiting for any of many files.
//!
//! First every file is checked. Only if no file is ready, and the caller would wait, a waiter is
//! registered with all of them, and they are checked again. POLLERR, POLLHUP and POLLNVAL are
//! always reported.

use core::mem::offset_of;

use freehold_collections::{Arc, Short, reserve};
use linux_raw_sys::general as c;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::OpenFile;
use super::file::{POLLRDNORM, POLLWRNORM, Ready};
use crate::sync::{PollWaiter, Slept};
use crate::syscall::Args;
use crate::task::{self, Resource, personality};
use crate::time::{self, TimeSpec, TimeVal};
use crate::user::UserPtr;
use crate::{Errno, Result};

const POLLNVAL: u32 = 0x20;
/// Always reported.
const ALWAYS: u32 = Ready::ERR.bits() | Ready::HUP.bits();
/// Bits in one word of an fd_set.
const WORD: usize = 64;
/// Files that are looked up before the CPU is yielded.
const FILES_PER_STEP: usize = 256;

/// Up to this many files are waited for without a list on the heap.
const FEW: usize = 16;
/// Number of words of all sets of select that need no list on the heap: for 256 descriptors.
const FEW_WORDS: usize = 6 * 4;

/// The files of one call.
type Watches = Short<Watch, FEW>;

/// A file that is waited for.
struct Watch {
    file: Arc<OpenFile>,
    /// The file's index in the caller's list.
    index: usize,
    /// The events that are waited for.
    wanted: u32,
}

/// Waits until any of `watches` is ready or `deadline` has passed. Calls `found` with each file
/// that is ready, and returns their number.
fn wait(watches: &[Watch], deadline: Option<u64>, mut found: impl FnMut(&Watch, u32)) -> Result<usize> {
    let mut look = |mut waiter: Option<&mut PollWaiter>| {
        let mut count = 0;
        for (step, some) in watches.chunks(FILES_PER_STEP).enumerate() {
            if step > 0 {
                crate::sched::rest();
            }
            for watch in some {
                // Once a file is ready, the caller will not sleep.
                let waiter = if count == 0 { waiter.as_deref_mut() } else { None };
                let ready = watch.file.poll(waiter).reported(watch.wanted);
                if ready != 0 {
                    found(watch, ready);
                    count += 1;
                }
            }
        }
        count
    };
    let count = look(None);
    if count > 0 || deadline.is_some_and(|deadline| deadline <= time::now()) {
        return Ok(count);
    }
    let mut waiter = PollWaiter::new();
    let mut count = look(Some(&mut waiter));
    if count == 0 {
        waiter.check_complete()?;
    }
    while count == 0 {
        match waiter.sleep(deadline)? {
            Slept::Woken => count = look(None),
            Slept::TimedOut => return Ok(0),
        }
    }
    Ok(count)
}

/// `struct pollfd`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct PollFd {
    fd: i32,
    events: u16,
    revents: u16,
}

fn poll(list: UserPtr<PollFd>, length: usize, deadline: Option<u64>) -> Result<i64> {
    let process = task::current().process().clone();
    if length as u64 > process.limit(Resource::Files).soft {
        return Err(Errno::EINVAL);
    }
    let mut entries = list.read_few::<FEW>(length)?;
    let files = process.files();
    let mut watches = Watches::try_with_capacity(length)?;
    let mut invalid = 0;
    for (step, some) in entries.chunks_mut(FILES_PER_STEP).enumerate() {
        if step > 0 {
            crate::sched::checkpoint()?;
        }
        let table = files.look();
        let named = some.iter_mut().zip(step * FILES_PER_STEP..);
        watches.extend_reserved(named.filter_map(|(entry, index)| {
            entry.revents = 0;
            if entry.fd < 0 {
                return None;
            }
            let Ok(file) = table.get(entry.fd) else {
                entry.revents = POLLNVAL as u16;
                invalid += 1;
                return None;
            };
            Some(Watch { file: file.clone(), index, wanted: u32::from(entry.events) | ALWAYS })
        }));
    }
    let deadline = if invalid > 0 { Some(0) } else { deadline };
    let count = wait(&watches, deadline, |watch, ready| entries[watch.index].revents = ready as u16)?;
    let mut told = list.address().wrapping_add(offset_of!(PollFd, revents) as u64);
    for (step, some) in entries.chunks(FILES_PER_STEP).enumerate() {
        if step > 0 {
            crate::sched::rest();
        }
        for entry in some {
            // Only the results are written: the program may not expect changes in the rest.
            UserPtr::<u16>::new(told).write(&entry.revents)?;
            told = told.wrapping_add(size_of::<PollFd>() as u64);
        }
    }
    Ok((count + invalid) as i64)
}

/// poll(fds, count, milliseconds)
///
/// # Errors
/// As in the manual.
pub fn sys_poll(args: &Args) -> Result<i64> {
    let (list, length) = (UserPtr::new(args[0]), args.uint(1) as usize);
    let deadline = u64::try_from(args.int(2)).ok().map(|ms| time::now().saturating_add(ms * 1_000_000));
    restartable(list, length, deadline)
}

/// Polls. After a stop or an ignored signal, the call is restarted with the remaining time.
fn restartable(list: UserPtr<PollFd>, length: usize, deadline: Option<u64>) -> Result<i64> {
    match poll(list, length, deadline) {
        Err(Errno::ERESTARTSYS) => {
            let again = move || restartable(list, length, deadline);
            Err(task::current().restart_with(reserve::boxed(again)))
        }
        result => result,
    }
}

/// Maps an interruption for the calls that set a signal mask: a signal handler ends them.
fn no_handler<R>(result: Result<R>) -> Result<R> {
    result.map_err(|error| if error == Errno::ERESTARTSYS { Errno::ERESTARTNOHAND } else { error })
}

/// ppoll(fds, count, timeout, mask, size): the timeout is updated to the remaining time.
///
/// # Errors
/// As in the manual.
pub fn sys_ppoll(args: &Args) -> Result<i64> {
    let timeout = UserPtr::<TimeSpec>::new(args[2]);
    let deadline = deadline_of(timeout.read_optional()?.map(TimeSpec::nanoseconds).transpose()?);
    let mask = task::mask_at(args[3], args.size(4))?;
    let result = task::current().with_signals_blocked(mask, || {
        no_handler(poll(UserPtr::new(args[0]), args.uint(1) as usize, deadline))
    });
    tell_left(result, deadline, |left| timeout.write(&TimeSpec::from_nanoseconds(left)))
}

/// Calls `tell` with the remaining nanoseconds of a time-out, and returns `result`. The error of
/// `tell` is ignored: the program may have passed read-only memory. With STICKY_TIMEOUTS the
/// time-out stays as it is, and a signal ends the call, since it would begin anew otherwise (Linux:
/// `poll_select_finish`).
fn tell_left(
    result: Result<i64>,
    deadline: Option<u64>,
    tell: impl FnOnce(u64) -> Result<()>,
) -> Result<i64> {
    let Some(deadline) = deadline else { return result };
    if personality::has(personality::STICKY_TIMEOUTS) {
        return if result == Err(Errno::ERESTARTNOHAND) { Err(Errno::EINTR) } else { result };
    }
    let _ = tell(deadline.saturating_sub(time::now()));
    result
}

fn deadline_of(timeout: Option<u64>) -> Option<u64> {
    timeout.map(|timeout| time::now().saturating_add(timeout))
}

/// Events that make a descriptor ready in each set.
const SET_BITS: [u32; 3] = [
    Ready::IN.bits() | POLLRDNORM | Ready::HUP.bits() | Ready::ERR.bits(),
    Ready::OUT.bits() | POLLWRNORM | Ready::ERR.bits(),
    Ready::PRI.bits(),
];

fn select(count: i32, sets: [u64; 3], deadline: Option<u64>) -> Result<i64> {
    let count = usize::try_from(count).map_err(|_| Errno::EINVAL)?;
    let files = task::current().process().files();
    let count = count.min(files.size().next_multiple_of(WORD).max(WORD));
    let words = count.div_ceil(WORD);
    // The three sets as the program passed them, then the three result sets.
    let mut all = Short::<u64, FEW_WORDS>::try_filled(0, 6 * words)?;
    let (asked, answered) = all.split_at_mut(3 * words);
    for (at, &address) in sets.iter().enumerate().filter(|(_, address)| **address != 0) {
        UserPtr::<u64>::new(address).read_into(&mut asked[at * words..][..words])?;
    }
    let asked_by = |word: usize| [asked[word], asked[words + word], asked[2 * words + word]];
    let named = |word: usize| {
        // Bits after the last descriptor are ignored.
        let within = u64::MAX >> (WORD - (count - word * WORD).min(WORD));
        asked_by(word).iter().fold(0, |all, set| all | set) & within
    };
    let mut watches =
        Watches::try_with_capacity((0..words).map(|word| named(word).count_ones() as usize).sum())?;
    for word in 0..words {
        if word % (FILES_PER_STEP / WORD) == FILES_PER_STEP / WORD - 1 {
            crate::sched::checkpoint()?;
        }
        let table = files.look();
        let mut left = named(word);
        while left != 0 {
            let bit = left.trailing_zeros() as usize;
            left &= left - 1;
            let wanted = asked_by(word)
                .iter()
                .zip(SET_BITS)
                .fold(0, |bits, (set, of_set)| if set >> bit & 1 == 0 { bits } else { bits | of_set });
            let index = word * WORD + bit;
            watches.push_reserved(Watch { file: table.get(index as i32)?.clone(), index, wanted });
        }
    }
    let mut ready_bits = 0;
    wait(&watches, deadline, |watch, ready| {
        let (word, bit) = (watch.index / WORD, 1u64 << (watch.index % WORD));
        for (at, of_set) in SET_BITS.into_iter().enumerate() {
            let place = at * words + word;
            if asked[place] & bit != 0 && ready & of_set != 0 {
                answered[place] |= bit;
                ready_bits += 1;
            }
        }
    })?;
    for (at, &address) in sets.iter().enumerate().filter(|(_, address)| **address != 0) {
        UserPtr::<u64>::new(address).write_slice(&answered[at * words..][..words])?;
    }
    Ok(ready_bits)
}

/// select(count, read, write, except, timeout): the timeout is updated to the remaining time.
///
/// # Errors
/// As in the manual.
pub fn sys_select(args: &Args) -> Result<i64> {
    let timeout = UserPtr::<TimeVal>::new(args[4]);
    let deadline = deadline_of(timeout.read_optional()?.map(TimeVal::nanoseconds).transpose()?);
    let result = no_handler(select(args.int(0), [args[1], args[2], args[3]], deadline));
    tell_left(result, deadline, |left| timeout.write(&TimeVal::from_nanoseconds(left)))
}

/// pselect6(count, read, write, except, timeout, [mask, size])
///
/// # Errors
/// As in the manual.
pub fn sys_pselect6(args: &Args) -> Result<i64> {
    let timeout = UserPtr::<TimeSpec>::new(args[4]);
    let deadline = deadline_of(timeout.read_optional()?.map(TimeSpec::nanoseconds).transpose()?);
    let [mask, size] = UserPtr::<[u64; 2]>::new(args[5]).read_optional()?.unwrap_or_default();
    let mask = task::mask_at(mask, size as usize)?;
    let result = task::current().with_signals_blocked(mask, || {
        no_handler(select(args.int(0), [args[1], args[2], args[3]], deadline))
    });
    tell_left(result, deadline, |left| timeout.write(&TimeSpec::from_nanoseconds(left)))
}

const _: () = assert!(size_of::<PollFd>() == size_of::<c::pollfd>());
