//! signalfd(2): a file from which signals are read.
//!
//! The set belongs to the open file. The signals are those of the thread that reads.

use freehold_collections::{Arc, reserve};
use linux_raw_sys::general as c;
use zerocopy::{Immutable, IntoBytes};

use super::anonymous::AnonymousNode;
use super::file::Line;
use super::{Blocking, File, Node, NodeKind, OpenFlags, Ready};
use crate::sync::{PollWaiter, SpinLock};
use crate::syscall::Args;
use crate::task::{self, SigInfo, SigSet};
use crate::user::{Sink, UserPtr};
use crate::{Errno, Result};

/// `struct signalfd_siginfo`: 128 bytes.
#[repr(C)]
#[derive(Clone, Copy, IntoBytes, Immutable)]
struct SignalfdInfo {
    number: u32,
    errno: i32,
    code: i32,
    pid: u32,
    uid: u32,
    fd: i32,
    timer: u32,
    band: u32,
    overrun: u32,
    trap: u32,
    status: i32,
    int: i32,
    pointer: u64,
    user_time: u64,
    system_time: u64,
    address: u64,
    rest: [u64; 6],
}

const _: () = assert!(size_of::<SignalfdInfo>() == 128);

/// si_code's of signals whose first word is not a sender.
const SI_TIMER: i32 = -2;
const SI_QUEUE: i32 = -1;

impl From<SigInfo> for SignalfdInfo {
    fn from(info: SigInfo) -> Self {
        let [first, second, third, fourth] = info.fields;
        let mut record = Self {
            number: info.number as u32,
            errno: info.errno,
            code: info.code,
            pid: 0,
            uid: 0,
            fd: 0,
            timer: 0,
            band: 0,
            overrun: 0,
            trap: 0,
            status: 0,
            int: 0,
            pointer: 0,
            user_time: 0,
            system_time: 0,
            address: 0,
            rest: [0; 6],
        };
        let fault = [c::SIGSEGV, c::SIGBUS, c::SIGILL, c::SIGFPE, c::SIGTRAP].contains(&record.number);
        if let Some((band, fd)) = info.file_news() {
            (record.band, record.fd) = (band as u32, fd);
        } else if info.code == SI_TIMER {
            (record.timer, record.overrun) = (first as u32, (first >> 32) as u32);
            (record.int, record.pointer) = (second as i32, second);
        } else if fault && info.code > 0 {
            record.address = first;
        } else {
            (record.pid, record.uid) = (first as u32, (first >> 32) as u32);
            if record.number == c::SIGCHLD && info.code > 0 {
                (record.status, record.user_time, record.system_time) = (second as i32, third, fourth);
            } else if info.code == SI_QUEUE {
                (record.int, record.pointer) = (second as i32, second);
            }
        }
        record
    }
}

/// An open file with a set of signals.
pub struct SignalFile {
    signals: SpinLock<SigSet>,
    node: Arc<dyn Node>,
}

impl File for SignalFile {
    fn node(&self) -> Arc<dyn Node> {
        self.node.clone()
    }

    fn describe(&self, line: Line<'_>) -> Result<()> {
        let signals = self.signals.lock().0;
        line(format_args!("sigmask:\t{signals:016x}"));
        Ok(())
    }

    fn read_at(&self, _offset: u64, sink: &mut dyn Sink, blocking: Blocking) -> Result<usize> {
        let size = size_of::<SignalfdInfo>();
        if sink.remaining() < size {
            return Err(Errno::EINVAL);
        }
        let task = task::current();
        let take = || task.take_signal(*self.signals.lock());
        let mut done = 0;
        while sink.remaining() >= size {
            let info = match take() {
                Some(info) => info,
                None if done > 0 => break,
                None => blocking.until(&task.process().signal_arrival, take)?,
            };
            let info = task.process().restart_timer(info);
            done += sink.put(SignalfdInfo::from(info).as_bytes())?;
        }
        Ok(done)
    }

    fn poll(&self, waiter: Option<&mut PollWaiter>) -> Ready {
        let Some(task) = task::try_current() else { return Ready::empty() };
        if let Some(waiter) = waiter {
            waiter.register(&task.process().signal_arrival);
        }
        let wanted = *self.signals.lock();
        let waiting = task.pending_signals();
        let mut ready = Ready::ALONE;
        ready.set(Ready::IN, waiting.0 & wanted.0 != 0);
        ready
    }
}

fn signalfd(args: &Args, flags: OpenFlags) -> Result<i64> {
    if args.size(2) != size_of::<u64>() || !(OpenFlags::CLOEXEC | OpenFlags::NONBLOCK).contains(flags) {
        return Err(Errno::EINVAL);
    }
    let signals = SigSet(UserPtr::<u64>::new(args[1]).read()?).minus(SigSet::UNSTOPPABLE);
    let fd = args.fd(0);
    if fd == -1 {
        let node = AnonymousNode::plain(NodeKind::Regular, "anon_inode:[signalfd]");
        let file = reserve::arc(SignalFile { signals: SpinLock::new(signals), node });
        return task::install(file, flags | OpenFlags::RDWR).map(i64::from);
    }
    let file = task::current().process().files().get(fd)?;
    *file.file().downcast::<SignalFile>().ok_or(Errno::EINVAL)?.signals.lock() = signals;
    task::current().process().signal_arrival.wake_all();
    Ok(i64::from(fd))
}

/// signalfd4(fd, mask, size, flags)
///
/// # Errors
/// As in the manual.
pub fn sys_signalfd4(args: &Args) -> Result<i64> {
    signalfd(args, OpenFlags::from_bits_retain(args.uint(3)))
}

/// signalfd(fd, mask, size)
///
/// # Errors
/// As in the manual.
pub fn sys_signalfd(args: &Args) -> Result<i64> {
    signalfd(args, OpenFlags::empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Signal;

    #[test]
    fn a_childs_end_is_told_with_its_status_and_times() {
        let record = SignalfdInfo::from(SigInfo::child(1, 42, 1000, 7).with_ticks(11, 12));
        assert_eq!((record.number, record.pid, record.uid, record.status), (17, 42, 1000, 7));
        assert_eq!((record.user_time, record.system_time), (11, 12));
        let record = SignalfdInfo::from(SigInfo::user(Signal::USR1, 0, 9, 1000));
        assert_eq!((record.pid, record.uid, record.int), (9, 1000, 0));
    }
}
