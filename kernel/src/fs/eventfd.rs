//! eventfd(2): a counter to wait on.
//!
//! Writing adds to the counter, and waits if the sum would not fit. Reading takes the whole count
//! (or 1 from a semaphore), and waits until the count is above 0.

use freehold_collections::{Arc, reserve};
use linux_raw_sys::general as c;

use super::anonymous::AnonymousNode;
use super::file::Line;
use super::{Blocking, File, Node, NodeKind, OpenFile, OpenFlags, Ready};
use crate::sync::{PollWaiter, SpinLock, WaitQueue};
use crate::syscall::Args;
use crate::user::{Sink, Source};
use crate::{Errno, Result};

/// The amount that a read takes from the counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Take {
    All,
    One,
}

/// Largest value that a program can write. One more is reserved for the kernel's own events, which
/// never wait: a counter with that value has overflowed, and poll reports an error.
const MOST: u64 = u64::MAX - 1;

/// An event counter, opened.
struct EventFile {
    count: SpinLock<u64>,
    take: Take,
    /// The queue that is woken when the count changes.
    changed: Arc<WaitQueue>,
    node: Arc<dyn Node>,
}

/// Reads a counter: eight bytes. Checks that they fit before it calls `take`.
///
/// # Errors
/// `EINVAL` if they do not fit; those of `take`.
#[inline]
pub(super) fn read_counter(sink: &mut dyn Sink, take: impl FnOnce() -> Result<u64>) -> Result<usize> {
    if sink.remaining() < size_of::<u64>() {
        return Err(Errno::EINVAL);
    }
    sink.put(&take()?.to_le_bytes())
}

impl EventFile {
    fn new(initial: u64, take: Take) -> Self {
        Self {
            count: SpinLock::new(initial),
            take,
            changed: reserve::arc(WaitQueue::new()),
            node: AnonymousNode::plain(NodeKind::Regular, "anon_inode:[eventfd]"),
        }
    }

    fn try_take(&self) -> Option<u64> {
        let mut count = self.count.lock();
        let taken = match self.take {
            _ if *count == 0 => return None,
            Take::All => *count,
            Take::One => 1,
        };
        *count -= taken;
        Some(taken)
    }

    fn try_add(&self, value: u64) -> Option<()> {
        let mut count = self.count.lock();
        *count = count.checked_add(value).filter(|&sum| sum <= MOST)?;
        Some(())
    }

    fn count_event(&self) {
        {
            let mut count = self.count.lock();
            *count = count.saturating_add(1);
        }
        self.changed.wake_all();
    }

    fn wait_for<T>(&self, blocking: Blocking, attempt: impl FnMut() -> Option<T>) -> Result<T> {
        let done = blocking.until(&self.changed, attempt)?;
        self.changed.wake_all();
        Ok(done)
    }
}

impl File for EventFile {
    fn node(&self) -> Arc<dyn Node> {
        self.node.clone()
    }

    fn read_at(&self, _offset: u64, sink: &mut dyn Sink, blocking: Blocking) -> Result<usize> {
        read_counter(sink, || self.wait_for(blocking, || self.try_take()))
    }

    fn write_at(&self, _offset: u64, source: &mut dyn Source, blocking: Blocking) -> Result<usize> {
        let mut value = [0; size_of::<u64>()];
        if source.remaining() < value.len() {
            return Err(Errno::EINVAL);
        }
        if source.take(&mut value)? < value.len() {
            return Err(Errno::EFAULT);
        }
        let value = u64::from_le_bytes(value);
        if value > MOST {
            return Err(Errno::EINVAL);
        }
        self.wait_for(blocking, || self.try_add(value))?;
        Ok(size_of::<u64>())
    }

    fn describe(&self, line: Line<'_>) -> Result<()> {
        let count = *self.count.lock();
        line(format_args!("eventfd-count: {count:16x}"));
        line(format_args!("eventfd-id: {}", self.node.identity().inode));
        line(format_args!("eventfd-semaphore: {}", u8::from(self.take == Take::One)));
        Ok(())
    }

    fn poll(&self, waiter: Option<&mut PollWaiter>) -> Ready {
        if let Some(waiter) = waiter {
            waiter.register(&self.changed);
        }
        let count = *self.count.lock();
        let mut ready = Ready::ALONE;
        ready.set(Ready::IN, count > 0);
        ready.set(Ready::ERR, count > MOST);
        ready.set(Ready::OUT, count < MOST);
        ready
    }
}

/// eventfd2(initial, flags)
///
/// # Errors
/// As in the manual.
pub fn sys_eventfd2(args: &Args) -> Result<i64> {
    let flags = args.uint(1);
    if flags & !(c::EFD_CLOEXEC | c::EFD_NONBLOCK | c::EFD_SEMAPHORE) != 0 {
        return Err(Errno::EINVAL);
    }
    let take = if flags & c::EFD_SEMAPHORE != 0 { Take::One } else { Take::All };
    let file = reserve::arc(EventFile::new(u64::from(args.uint(0)), take));
    let flags = OpenFlags::from_bits_retain(flags & !c::EFD_SEMAPHORE) | OpenFlags::RDWR;
    crate::task::install(file, flags).map(i64::from)
}

/// eventfd(initial)
///
/// # Errors
/// As in the manual.
pub fn sys_eventfd(args: &Args) -> Result<i64> {
    let file = reserve::arc(EventFile::new(u64::from(args.uint(0)), Take::All));
    crate::task::install(file, OpenFlags::RDWR).map(i64::from)
}

/// Returns `file` if it is an event counter.
///
/// # Errors
/// `EINVAL`.
pub fn checked(file: Arc<OpenFile>) -> Result<Arc<OpenFile>> {
    if file.file().downcast::<EventFile>().is_some() { Ok(file) } else { Err(Errno::EINVAL) }
}

/// Counts one event in `file`, which was [`checked`]. A full counter overflows, and stays so until
/// it is read.
pub fn count(file: &OpenFile) {
    if let Some(counter) = file.file().downcast::<EventFile>() {
        counter.count_event();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::bytes::{SliceSink, SliceSource};

    fn read(file: &EventFile) -> Result<u64> {
        let mut bytes = [0; 8];
        file.read_at(0, &mut SliceSink::new(&mut bytes), Blocking::Never)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn write(file: &EventFile, value: u64) -> Result<usize> {
        file.write_at(0, &mut SliceSource::new(&value.to_le_bytes()), Blocking::Never)
    }

    #[test]
    fn a_read_takes_the_sum_of_the_writes() {
        let file = EventFile::new(1, Take::All);
        write(&file, 4).unwrap();
        assert_eq!(read(&file), Ok(5));
        assert_eq!(read(&file), Err(Errno::EAGAIN));
        assert_eq!(file.poll(None), Ready::OUT | Ready::ALONE);
    }

    #[test]
    fn a_semaphore_gives_one_at_a_time() {
        let file = EventFile::new(2, Take::One);
        assert_eq!((read(&file), read(&file), read(&file)), (Ok(1), Ok(1), Err(Errno::EAGAIN)));
    }

    #[test]
    fn the_count_never_overflows() {
        let file = EventFile::new(0, Take::All);
        assert_eq!(write(&file, u64::MAX), Err(Errno::EINVAL));
        write(&file, MOST).unwrap();
        assert_eq!(write(&file, 1), Err(Errno::EAGAIN));
        assert_eq!(file.poll(None), Ready::IN | Ready::ALONE);
        assert_eq!(file.write_at(0, &mut SliceSource::new(b"short"), Blocking::Never), Err(Errno::EINVAL));
    }

    /// Events of the kernel can overflow the counter; poll shows this until the counter is read.
    #[test]
    fn events_of_the_kernel_overflow() {
        let file = EventFile::new(0, Take::All);
        write(&file, MOST).unwrap();
        file.count_event();
        file.count_event();
        assert_eq!(file.poll(None), Ready::IN | Ready::ERR | Ready::ALONE);
        assert_eq!(read(&file), Ok(u64::MAX));
        assert_eq!(file.poll(None), Ready::OUT | Ready::ALONE);
    }
}
