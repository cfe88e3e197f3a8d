//! userfaultfd(2): the file through which a program serves page faults.
//!
//! [`user_faults`] has the waiting tasks and makes sure that none sleeps forever. The module
//! `monitor` of `freehold_vm` decides which pages may be filled. This module has the calls and the
//! messages; the checks and their order are Linux' (fs/userfaultfd.c).
//!
//! Unsupported features are: events, moving, poison, and write-protection of pages other than
//! present pages of private anonymous memory. UFFDIO_API refuses the features, and UFFDIO_REGISTER
//! the modes.
//!
//! [`user_faults`]: crate::mem::user_faults

use core::ops::Range;
use core::sync::atomic::{AtomicU32, Ordering};

use freehold_collections::{Arc, reserve};
use freehold_machine::{PAGE_SIZE, VirtAddr};
use freehold_vm::{Access, AreaFlags, Lack, Monitor, NewPage, VmError, Watching};
use freehold_xpfo::Windows;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::anonymous::AnonymousNode;
use super::device::register_char;
use super::{Blocking, File, Node, NodeKind, OpenFlags, Ready};
use crate::hw::Hardware;
use crate::mem::user_faults::{Served, UserFaults, WaitingFault};
use crate::mem::{AddressSpace, Frames, ProcessSpace, find_more, hotplug::GrowthOutcome};
use crate::sync::PollWaiter;
use crate::syscall::Args;
use crate::task::Capability;
use crate::user::{Sink, Source, UserPtr, UserSlice};
use crate::{Errno, Result, sched, task};

/// UFFD_API
const API: u64 = 0xaa;
/// UFFD_USER_MODE_ONLY
const USER_MODE_ONLY: u32 = 1;
/// UFFD_EVENT_PAGEFAULT
const EVENT_PAGEFAULT: u8 = 0x12;
/// UFFD_PAGEFAULT_FLAG_WRITE
const FLAG_WRITE: u64 = 1;
/// UFFD_PAGEFAULT_FLAG_WP
const FLAG_WATCHED: u64 = 2;
/// UFFD_PAGEFAULT_FLAG_MINOR
const FLAG_MINOR: u64 = 4;
/// UFFD_FEATURE_PAGEFAULT_FLAG_WP
const TELLS_STORES: u64 = 1;
/// UFFD_FEATURE_MINOR_SHMEM
const MINOR_SHMEM: u64 = 1 << 10;
/// UFFD_FEATURE_MISSING_SHMEM
const MISSING_SHMEM: u64 = 1 << 5;
/// The features that UFFDIO_API offers.
const FEATURES: u64 = TELLS_STORES
    | MISSING_SHMEM
    | MINOR_SHMEM
    | UserFaults::SIGBUS
    | UserFaults::THREAD_ID
    | UserFaults::EXACT_ADDRESS;
/// UFFDIO_REGISTER_MODE_MISSING, _WP and _MINOR, and the area flags that they set.
const MODES: [(u64, AreaFlags); 3] =
    [(1, AreaFlags::MONITOR_MISSING), (2, AreaFlags::MONITOR_STORES), (4, AreaFlags::MONITOR_MINOR)];
/// UFFDIO_COPY_MODE_DONTWAKE, and the same flag of UFFDIO_ZEROPAGE and UFFDIO_CONTINUE.
const DONTWAKE: u64 = 1;
/// UFFDIO_COPY_MODE_WP
const COPY_WATCHED: u64 = 2;
/// UFFDIO_WRITEPROTECT_MODE_WP and _DONTWAKE
const PROTECT: u64 = 1;
const PROTECT_DONTWAKE: u64 = 2;
/// One more than the largest user address.
const USER_BYTES: u64 = (1 << 47) - PAGE_SIZE as u64;

/// The requests.
mod request {
    /// UFFDIO_API
    pub const API: u32 = 0xc018_aa3f;
    pub const REGISTER: u32 = 0xc020_aa00;
    pub const UNREGISTER: u32 = 0x8010_aa01;
    pub const WAKE: u32 = 0x8010_aa02;
    pub const COPY: u32 = 0xc028_aa03;
    pub const ZEROPAGE: u32 = 0xc020_aa04;
    pub const WRITEPROTECT: u32 = 0xc018_aa06;
    pub const CONTINUE: u32 = 0xc020_aa07;
    /// USERFAULTFD_IOC_NEW, a request of /dev/userfaultfd.
    pub const NEW: u32 = 0xaa00;
}

/// The requests of an instance, as a mask of their numbers (UFFD_API_IOCTLS).
const API_IOCTLS: u64 = 1 << 0x3f | 1 << 0x01 | 1 << 0x00;
/// The requests that any registered range supports: UFFDIO_WAKE, _COPY, _ZEROPAGE.
const RANGE_IOCTLS: u64 = 1 << 0x02 | 1 << 0x03 | 1 << 0x04;
/// UFFDIO_WRITEPROTECT and UFFDIO_CONTINUE, if the modes of a range permit them.
const WRITEPROTECT_IOCTL: u64 = 1 << 0x06;
const CONTINUE_IOCTL: u64 = 1 << 0x07;

/// `struct uffdio_api`
#[repr(C)]
#[derive(Clone, Copy, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct ApiRequest {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_range`
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct UserRange {
    start: u64,
    len: u64,
}

/// `struct uffdio_writeprotect`; also `struct uffdio_register`, `uffdio_zeropage` and
/// `uffdio_continue` without their output fields.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct RangeRequest {
    range: UserRange,
    mode: u64,
}

/// `struct uffdio_copy` without its output field.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct CopyRequest {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
}

/// `struct uffd_msg` of a page fault.
#[repr(C)]
#[derive(Clone, Copy, IntoBytes, Immutable)]
struct FaultMessage {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    thread: u32,
    rest: u32,
}

impl UserRange {
    /// Checks that the range consists of whole pages of user addresses (validate_range).
    ///
    /// # Errors
    /// `EINVAL`.
    fn check(self) -> Result<Range<u64>> {
        if !self.start.is_multiple_of(PAGE_SIZE as u64) { Err(Errno::EINVAL) } else { self.check_unaligned() }
    }
    /// Like [`check`](Self::check), with any start (validate_unaligned_range).
    fn check_unaligned(self) -> Result<Range<u64>> {
        let Self { start, len } = self;
        let is_bad =
            len % PAGE_SIZE as u64 != 0 || len == 0 || start >= USER_BYTES || len > USER_BYTES - start;
        if is_bad { Err(Errno::EINVAL) } else { Ok(start..start + len) }
    }
}

const fn addresses(range: &Range<u64>) -> Range<VirtAddr> {
    VirtAddr(range.start)..VirtAddr(range.end)
}

/// Whether programs without CAP_SYS_PTRACE may also serve faults of the kernel
/// (vm.unprivileged_userfaultfd).
static UNPRIVILEGED: AtomicU32 = AtomicU32::new(0);

/// Returns vm.unprivileged_userfaultfd.
pub fn unprivileged() -> u64 {
    u64::from(UNPRIVILEGED.load(Ordering::Relaxed))
}

/// Sets vm.unprivileged_userfaultfd.
///
/// # Errors
/// `EINVAL` for anything but 0 and 1.
pub fn set_unprivileged(value: u64) -> Result<()> {
    if value > 1 {
        return Err(Errno::EINVAL);
    }
    UNPRIVILEGED.store(value as u32, Ordering::Relaxed);
    Ok(())
}

/// userfaultfd(flags)
///
/// # Errors
/// As in the manual.
pub fn sys_userfaultfd(args: &Args) -> Result<i64> {
    let flags = args.uint(0);
    if flags & USER_MODE_ONLY == 0 && unprivileged() == 0 && !task::may(Capability::SysPtrace) {
        return Err(Errno::EPERM);
    }
    install(flags)
}

fn install(flags: u32) -> Result<i64> {
    let open_flags = OpenFlags::from_bits_retain(flags & !USER_MODE_ONLY);
    if !(OpenFlags::CLOEXEC | OpenFlags::NONBLOCK).contains(open_flags) {
        return Err(Errno::EINVAL);
    }
    let served = if flags & USER_MODE_ONLY == 0 { Served::All } else { Served::ByProgram };
    let space = task::with_current(|task| task.process().space());
    let node = AnonymousNode::plain(NodeKind::Regular, "anon_inode:[userfaultfd]");
    let file = UserFaultFile { faults: UserFaults::new(&space, served), node };
    task::install(reserve::arc(file), open_flags).map(i64::from)
}

/// Registers /dev/userfaultfd. Called once, before the first program runs.
///
/// # Errors
/// `ENOMEM`.
pub fn init() -> Result<()> {
    register_char(10, 126..=126, "misc", open)
}

/// Opens the device. A program that may open it needs no capability to serve faults of the kernel.
fn open(node: Arc<dyn Node>, _minor: u32, _flags: OpenFlags) -> Result<Arc<dyn File>> {
    Ok(reserve::arc(UserFaultDevice(node)))
}

/// An open /dev/userfaultfd.
struct UserFaultDevice(Arc<dyn Node>);

impl File for UserFaultDevice {
    fn node(&self) -> Arc<dyn Node> {
        self.0.clone()
    }
    fn ioctl(&self, request: u32, argument: u64) -> Result<i64> {
        if request == request::NEW { install(argument as u32) } else { Err(Errno::EINVAL) }
    }
}

/// An open instance.
pub struct UserFaultFile {
    faults: Arc<UserFaults>,
    node: Arc<dyn Node>,
}

impl UserFaultFile {
    /// Returns the numbers of waiting faults: the unread ones, and all.
    pub fn counts(&self) -> (usize, usize) {
        self.faults.counts()
    }

    /// Returns the interface that /proc/PID/fdinfo shows: its version, the agreed features, and the
    /// supported requests.
    pub fn interface(&self) -> (u64, u64, u64) {
        (
            API,
            self.faults.agreed().unwrap_or(0),
            API_IOCTLS | RANGE_IOCTLS | WRITEPROTECT_IOCTL | CONTINUE_IOCTL,
        )
    }

    fn monitor(&self) -> Arc<dyn Monitor> {
        self.faults.clone()
    }

    fn agree(&self, argument: u64) -> Result<()> {
        let at = UserPtr::<ApiRequest>::new(argument);
        let asked = at.read()?;
        let outcome = if asked.api != API || asked.features & !FEATURES != 0 {
            Err(Errno::EINVAL)
        } else {
            at.write(&ApiRequest { api: API, features: FEATURES, ioctls: API_IOCTLS })?;
            self.faults.agree(asked.features)
        };
        if outcome.is_err() {
            at.write(&ApiRequest::default())?;
        }
        outcome
    }

    fn register(&self, argument: u64) -> Result<()> {
        let RangeRequest { range, mode } = UserPtr::new(argument).read()?;
        let known = MODES.iter().fold(0, |all, (bit, _)| all | bit);
        if mode == 0 || mode & !known != 0 {
            return Err(Errno::EINVAL);
        }
        let modes = MODES.iter().filter(|(bit, _)| mode & bit != 0);
        let modes = modes.fold(AreaFlags::empty(), |all, (_, flag)| all | *flag);
        let range = range.check()?;
        let space = self.faults.space().map_err(|_| Errno::ENOMEM)?;
        space.lock().set_monitor(addresses(&range), &self.monitor(), modes)?;
        let mut requests = RANGE_IOCTLS;
        requests |= if modes.contains(AreaFlags::MONITOR_STORES) { WRITEPROTECT_IOCTL } else { 0 };
        requests |= if modes.contains(AreaFlags::MONITOR_MINOR) { CONTINUE_IOCTL } else { 0 };
        answer(argument + size_of::<RangeRequest>() as u64, requests as i64)
    }

    fn unregister(&self, argument: u64) -> Result<()> {
        let range = UserPtr::<UserRange>::new(argument).read()?.check()?;
        let space = self.faults.space().map_err(|_| Errno::ENOMEM)?;
        space.lock().end_monitor(addresses(&range), &self.monitor())?;
        self.faults.wake(&range);
        Ok(())
    }

    fn wake(&self, argument: u64) -> Result<()> {
        let range = UserPtr::<UserRange>::new(argument).read()?.check()?;
        self.faults.wake(&range);
        Ok(())
    }

    fn copy(&self, argument: u64) -> Result<()> {
        let CopyRequest { dst, src, len, mode } = UserPtr::new(argument).read()?;
        UserRange { start: src, len }.check_unaligned()?;
        let range = UserRange { start: dst, len }.check()?;
        if mode & !(DONTWAKE | COPY_WATCHED) != 0 {
            return Err(Errno::EINVAL);
        }
        let watching = if mode & COPY_WATCHED == 0 { Watching::Off } else { Watching::On };
        let space = self.faults.space()?;
        let whole = addresses(&range);
        let bytes = |page: VirtAddr| UserSlice::new(src + (page.0 - dst), PAGE_SIZE);
        let fill = |page| with_memory(|| copy_page(&space, (page, &whole, watching), bytes(page)));
        let done = fill_pages(&range, fill);
        self.tell(argument + size_of::<CopyRequest>() as u64, &range, mode, done)
    }

    /// UFFDIO_ZEROPAGE and UFFDIO_CONTINUE: `fill` provides each page of a range, and gets the rest
    /// of the range.
    fn fill(
        &self,
        argument: u64,
        fill: fn(&mut AddressSpace, VirtAddr, &Range<VirtAddr>) -> core::result::Result<(), VmError>,
    ) -> Result<()> {
        let RangeRequest { range, mode } = UserPtr::new(argument).read()?;
        let range = range.check()?;
        if mode & !DONTWAKE != 0 {
            return Err(Errno::EINVAL);
        }
        let space = self.faults.space()?;
        let whole = addresses(&range);
        let fill = |page| with_memory(|| Ok(fill(&mut space.lock(), page, &rest(page, &whole))?));
        let done = fill_pages(&range, fill);
        self.tell(argument + size_of::<RangeRequest>() as u64, &range, mode, done)
    }

    fn write_protect(&self, argument: u64) -> Result<()> {
        let RangeRequest { range, mode } = UserPtr::new(argument).read()?;
        let range = range.check()?;
        if mode & !(PROTECT | PROTECT_DONTWAKE) != 0 || mode == PROTECT | PROTECT_DONTWAKE {
            return Err(Errno::EINVAL);
        }
        let watching = if mode & PROTECT == 0 { Watching::Off } else { Watching::On };
        let space = self.faults.space()?;
        with_memory(|| Ok(space.lock().watch(addresses(&range), watching)?))?;
        if mode == 0 {
            self.faults.wake(&range);
        }
        Ok(())
    }

    /// Stores the result of filling `range` at `to`, and wakes the faults that waited for the
    /// filled pages.
    fn tell(&self, to: u64, range: &Range<u64>, mode: u64, done: Result<u64>) -> Result<()> {
        let told = match done {
            Ok(bytes) => bytes as i64,
            Err(error) => error.to_return_value(),
        };
        answer(to, told)?;
        let bytes = done?;
        if mode & DONTWAKE == 0 {
            self.faults.wake(&(range.start..range.start + bytes));
        }
        if bytes == range.end - range.start { Ok(()) } else { Err(Errno::EAGAIN) }
    }

    fn message(&self, fault: &WaitingFault) -> FaultMessage {
        let tells_thread = self.faults.agreed().is_some_and(|features| features & UserFaults::THREAD_ID != 0);
        let write = if fault.access == Access::Write { FLAG_WRITE } else { 0 };
        let lack = match fault.lack {
            Lack::Missing => 0,
            Lack::Watched => FLAG_WATCHED,
            Lack::Minor => FLAG_MINOR,
        };
        FaultMessage {
            event: EVENT_PAGEFAULT,
            reserved: [0; 7],
            flags: write | lack,
            address: fault.address,
            thread: if tells_thread { fault.thread as u32 } else { 0 },
            rest: 0,
        }
    }
}

/// Writes a request's result.
fn answer(to: u64, value: i64) -> Result<()> {
    UserPtr::new(to).write(&value)
}

/// The part of `whole` from `page` on.
fn rest(page: VirtAddr, whole: &Range<VirtAddr>) -> Range<VirtAddr> {
    page..whole.end
}

/// Calls `fill` for each page of `range` until it fails. Returns the number of bytes that were
/// filled, or the error if there are none.
fn fill_pages(range: &Range<u64>, mut fill: impl FnMut(VirtAddr) -> Result<()>) -> Result<u64> {
    let mut next = range.start;
    while next < range.end {
        let step = fill(VirtAddr(next)).and_then(|()| {
            next += PAGE_SIZE as u64;
            sched::checkpoint()
        });
        match step {
            Ok(()) => {}
            Err(error) if next == range.start => return Err(error),
            Err(_) => break,
        }
    }
    Ok(next - range.start)
}

/// Calls `attempt` until it does not fail because memory is short, or no more memory can be found.
fn with_memory(mut attempt: impl FnMut() -> Result<()>) -> Result<()> {
    loop {
        match attempt() {
            Err(Errno::ENOMEM) if find_more() == GrowthOutcome::Grown => {}
            outcome => return outcome,
        }
    }
}

/// Fills `page` with the bytes of `source`; `page` begins the remaining part of `whole`.
fn copy_page(
    space: &ProcessSpace,
    (page, whole, watching): (VirtAddr, &Range<VirtAddr>, Watching),
    source: UserSlice,
) -> Result<()> {
    let whole = rest(page, whole);
    let new = space.lock().new_page_for(page, &whole, watching)?;
    take_bytes(&new, source)?;
    Ok(space.lock().fill_page(page, &whole, new, watching)?)
}

/// Writes all bytes of `new`.
fn take_bytes(new: &NewPage<Frames>, mut source: UserSlice) -> Result<()> {
    let mut done = 0;
    while done < PAGE_SIZE {
        Source::fault_in(&mut source)?;
        done += Hardware.with_bytes(&new.held(), |bytes| source.take_without_fault(&mut bytes[done..]));
    }
    Ok(())
}

impl Drop for UserFaultFile {
    fn drop(&mut self) {
        self.faults.close(&self.monitor());
    }
}

impl File for UserFaultFile {
    fn node(&self) -> Arc<dyn Node> {
        self.node.clone()
    }

    fn read_at(&self, _offset: u64, sink: &mut dyn Sink, blocking: Blocking) -> Result<usize> {
        self.faults.agreed().ok_or(Errno::EINVAL)?;
        let mut done = 0;
        loop {
            if sink.remaining() < size_of::<FaultMessage>() {
                return if done > 0 { Ok(done) } else { Err(Errno::EINVAL) };
            }
            let take = || self.faults.read_next();
            let fault = match take() {
                Some(fault) => fault,
                None if done > 0 => return Ok(done),
                None => blocking.until(self.faults.news(), take)?,
            };
            let message = self.message(&fault);
            // If a message cannot be copied, it is lost, as on Linux.
            match sink.put(message.as_bytes()) {
                Ok(count) if count == size_of::<FaultMessage>() => done += count,
                _ if done > 0 => return Ok(done),
                _ => return Err(Errno::EFAULT),
            }
        }
    }

    fn poll(&self, waiter: Option<&mut PollWaiter>) -> Ready {
        if let Some(waiter) = waiter {
            waiter.register(self.faults.news());
        }
        if self.faults.agreed().is_none() {
            return Ready::ERR;
        }
        let news = if self.faults.has_news() { Ready::IN } else { Ready::empty() };
        news | Ready::ALONE | Ready::IF_NONBLOCKING
    }

    fn ioctl(&self, request: u32, argument: u64) -> Result<i64> {
        if request == request::API {
            return self.agree(argument).map(|()| 0);
        }
        self.faults.agreed().ok_or(Errno::EINVAL)?;
        let outcome = match request {
            request::REGISTER => self.register(argument),
            request::UNREGISTER => self.unregister(argument),
            request::WAKE => self.wake(argument),
            request::COPY => self.copy(argument),
            request::ZEROPAGE => self.fill(argument, AddressSpace::fill_zeroes),
            request::WRITEPROTECT => self.write_protect(argument),
            request::CONTINUE => self.fill(argument, AddressSpace::map_cached),
            _ => Err(Errno::EINVAL),
        };
        outcome.map(|()| 0)
    }
}
