//! /sys/kernel/debug/provoke-crash/DIRECT: makes, on request, accesses that frame exclusion must
//! stop.
//!
//! Reading the file lists the names; writing one makes the access. If the access is stopped, the
//! log says so and the writer is killed with SIGKILL, as by an oops on Linux (`drivers/misc/lkdtm`;
//! the names that begin with XPFO_ are those of the XPFO series). If the access succeeds, the write
//! succeeds and the log says which data was exposed.

use core::sync::atomic::{AtomicU8, Ordering};

use freehold_bounce::{Direction, MAX_DEVICES, Original, OriginalMut};
use freehold_collections::{Arc, reserve};
use freehold_frame::{Anon, Frame, Held, Order, Owner, PageCache, Request};
use freehold_xpfo::{DEADLINE_NS, Windows};
use zerocopy::IntoBytes;

use crate::fs::bytes::SliceSource;
use crate::fs::generated::{Generate, Text};
use crate::fs::pipe::Pipe;
use crate::fs::pseudo::PseudoDir;
use crate::fs::{Blocking, File, OpenFlags, tmpfs};
use crate::hw::{Hardware, provoke, sync::Once};
use crate::socket::channel::{Ancillary, Manner, Patience, Received};
use crate::socket::endpoint::{SendTarget, Socket, SocketKind};
use crate::sync::{Mutex, WaitQueue};
use crate::task::spawn::spawn_kernel_on;
use crate::task::{self, SigInfo, Signal};
use crate::user::{Sink, Source};
use crate::{Errno, Result, host, hw, mem, sched};

/// An interrupt that is later than this is reported.
const LATE_NS: u64 = 10_000;

/// The first word of each frame that is read.
const SECRET: u64 = 0x5ec2_e75e_c2e7_5ec2;

/// Whether the kernel got access that it must not have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProvokeVerdict {
    Stopped,
    Exposed,
}

/// Names, and the functions that make the accesses.
const ACTIONS: [(&str, fn() -> Result<ProvokeVerdict>); 17] = [
    ("EXEC_PHYSMAP", exec_physmap),
    ("READ_BOUNCE", read_bounce),
    ("READ_FREED", read_freed),
    ("READ_PAGECACHE", read_page_cache),
    ("READ_PIPE", read_pipe),
    ("READ_REALLOCATED", read_reallocated),
    ("READ_SOCKET", read_socket),
    ("READ_STACK", read_stack),
    ("READ_TMPFS", read_tmpfs),
    ("READ_URING", read_uring),
    ("STALE_WINDOW", stale_window),
    ("WINDOW_IN_IRQ", window_in_interrupt),
    ("WRITE_READING_WINDOW", write_reading_window),
    ("WRITE_TEXT_ALIAS", write_text_alias),
    ("XPFO_READ_USER", read_user),
    ("XPFO_READ_USER_HUGE", read_user_huge),
    ("XPFO_SMP", read_on_another_cpu),
];

/// Adds the directory to debugfs.
pub(super) fn fill(debug: &Arc<PseudoDir>) {
    debug.dir(b"provoke-crash").generated("DIRECT", 0o600, Direct(Mutex::new(())));
}

/// The file; its lock serialises the accesses.
struct Direct(Mutex<()>);

impl Generate for Direct {
    fn show(&self, out: &mut Text) -> Result<()> {
        writeln!(out, "Available crash types:");
        ACTIONS.iter().for_each(|(name, _)| writeln!(out, "{name}"));
        Ok(())
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        let name = bytes.trim_ascii();
        let action = ACTIONS.iter().find(|(known, _)| known.as_bytes() == name);
        let (name, action) = action.ok_or(Errno::EINVAL)?;
        let one_at_a_time = self.0.lock();
        let outcome = action();
        drop(one_at_a_time);
        match outcome? {
            ProvokeVerdict::Exposed => log::error!("provoke-crash: {name}: the access succeeded"),
            ProvokeVerdict::Stopped => {
                log::error!("provoke-crash: {name}: the access was stopped, its process is killed");
                task::current().force_signal(SigInfo::kernel(Signal::KILL));
            }
        }
        Ok(())
    }
}

fn outcome(read: Option<u64>) -> ProvokeVerdict {
    if read == Some(SECRET) { ProvokeVerdict::Exposed } else { ProvokeVerdict::Stopped }
}

/// Stores [`SECRET`] in the frame's first word.
fn mark(frame: &impl Held) {
    Hardware.with_bytes(frame, |bytes| bytes[..8].copy_from_slice(&SECRET.to_le_bytes()));
}

fn user_frame() -> Result<Frame<Anon, mem::Frames>> {
    let frame = Frame::<Anon, _>::allocate(mem::frames())?;
    mark(&frame);
    Ok(frame)
}

fn read_user() -> Result<ProvokeVerdict> {
    let frame = user_frame()?;
    Ok(outcome(provoke::read(frame.pfn())))
}

fn read_user_huge() -> Result<ProvokeVerdict> {
    let request = Request::new(Owner::Anon).order(Order::PAGEBLOCK);
    let block = Frame::<Anon, _>::allocate_with(mem::frames(), request)?;
    mark(&block);
    Ok(outcome(provoke::read(block.pfn())))
}

fn read_page_cache() -> Result<ProvokeVerdict> {
    let frame = Frame::<PageCache, _>::allocate(mem::frames())?;
    mark(&frame);
    Ok(outcome(provoke::read(frame.pfn())))
}

/// A sink to which the kernel shows [`SECRET`]. It determines the address of the bytes, and
/// meanwhile searches the direct map for them.
#[derive(Default)]
struct Looker {
    taken: usize,
    read: Option<u64>,
}

impl Sink for Looker {
    fn remaining(&self) -> usize {
        size_of_val(&SECRET) - self.taken
    }
    fn put(&mut self, bytes: &[u8]) -> Result<usize> {
        Ok(self.put_without_fault(bytes))
    }
    fn put_without_fault(&mut self, bytes: &[u8]) -> usize {
        self.read = provoke::read_alias(bytes);
        let count = bytes.len().min(self.remaining());
        self.taken += count;
        count
    }
    fn fault_in(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Returns the verdict on bytes that `pass` makes the kernel store for a program, and show to a
/// reader. `EIO` if no bytes were shown.
fn look(pass: impl FnOnce(&mut dyn Source, &mut dyn Sink) -> Result<()>) -> Result<ProvokeVerdict> {
    let mut looker = Looker::default();
    pass(&mut SliceSource::new(&SECRET.to_le_bytes()), &mut looker)?;
    if looker.taken == 0 { Err(Errno::EIO) } else { Ok(outcome(looker.read)) }
}

/// Returns the verdict on bytes that are written to one file and read from another.
fn look_through(to: &dyn File, from: &dyn File) -> Result<ProvokeVerdict> {
    look(|source, sink| {
        to.write_at(0, source, Blocking::Never)?;
        from.read_at(0, sink, Blocking::Never)?;
        Ok(())
    })
}

fn read_tmpfs() -> Result<ProvokeVerdict> {
    let node = tmpfs::unnamed_file(0o600, 0, 0)?;
    look_through(&*node, &*node)
}

fn read_pipe() -> Result<ProvokeVerdict> {
    let (from, to) = Pipe::pair(OpenFlags::empty())?;
    look_through(&*to, &*from)
}

fn read_socket() -> Result<ProvokeVerdict> {
    let (from, to) = Socket::pair(SocketKind::Stream);
    look(|source, sink| {
        to.send(source, Ancillary::default(), SendTarget::default(), Patience::Never)?;
        from.receive(sink, Manner::take(Patience::Never), &mut Received::default())
    })
}

/// Writes bytes to memory that an io_uring shares with its program, and shows them to a reader.
pub type RingMemory = fn(&mut dyn Source, &mut dyn Sink) -> Result<()>;

static RING_MEMORY: Once<RingMemory> = Once::new();

/// Sets the function by which READ_URING accesses the rings, which belong to a higher layer. Once.
pub fn set_ring_memory(pass: RingMemory) {
    RING_MEMORY.set(pass);
}

fn read_uring() -> Result<ProvokeVerdict> {
    look(RING_MEMORY.get().ok_or(Errno::ENODEV)?)
}

/// Receives bytes that a device gives to the kernel. It searches the direct map for them while the
/// window on their page is open.
#[derive(Default)]
struct Catcher(Option<u64>);

impl Original for Catcher {
    fn length(&self) -> usize {
        size_of_val(&SECRET)
    }
    fn copy_to(&self, offset: usize, to: &mut [u8]) {
        to.copy_from_slice(&SECRET.to_le_bytes()[offset..offset + to.len()]);
    }
}

impl OriginalMut for Catcher {
    fn copy_from(&mut self, _: usize, from: &[u8]) {
        self.0 = provoke::read_alias(from);
    }
}

/// Reads a word in bounce memory of a device, as used by its transfers. `ENODEV` if there is no
/// device.
#[cold]
fn read_bounce() -> Result<ProvokeVerdict> {
    let device = (0..MAX_DEVICES as u8).find_map(|number| host::dma().device(number));
    let device = device.ok_or(Errno::ENODEV)?;
    let mut catcher = Catcher::default();
    let mapping = device.map(&catcher, Direction::Bidirectional).map_err(|_| Errno::ENOMEM)?;
    mapping.unmap(&mut catcher);
    Ok(outcome(catcher.0))
}

/// Reads a word on the stack of the calling task, which bytes of programs pass.
fn read_stack() -> Result<ProvokeVerdict> {
    let secret = core::hint::black_box(SECRET);
    Ok(outcome(provoke::read_alias(core::hint::black_box(&secret).as_bytes())))
}

fn read_freed() -> Result<ProvokeVerdict> {
    let frame = user_frame()?.pfn();
    Ok(outcome(provoke::read(frame)))
}

fn read_reallocated() -> Result<ProvokeVerdict> {
    drop(user_frame()?);
    read_user()
}

/// ret2dir (Kemerlis and others, 2014): a program's page is filled with code, and the kernel jumps
/// to the page's alias in the direct map.
fn exec_physmap() -> Result<ProvokeVerdict> {
    const RET: u8 = 0xc3;
    let frame = user_frame()?;
    Hardware.with_bytes(&frame, |bytes| bytes.fill(RET));
    Ok(if provoke::execute(frame.pfn()) { ProvokeVerdict::Exposed } else { ProvokeVerdict::Stopped })
}

fn write_text_alias() -> Result<ProvokeVerdict> {
    Ok(if provoke::write_text_alias() { ProvokeVerdict::Exposed } else { ProvokeVerdict::Stopped })
}

fn write_reading_window() -> Result<ProvokeVerdict> {
    let frame = user_frame()?;
    Ok(if provoke::write_reading_window(frame.held()) {
        ProvokeVerdict::Exposed
    } else {
        ProvokeVerdict::Stopped
    })
}

fn stale_window() -> Result<ProvokeVerdict> {
    let frame = user_frame()?;
    let read = provoke::read_closed_window(frame.held(), DEADLINE_NS);
    if read.late_ns >= LATE_NS {
        log::warn!("provoke-crash: the timer's interrupt came {} us late", read.late_ns / 1000);
    }
    Ok(outcome(read.word))
}

fn window_in_interrupt() -> Result<ProvokeVerdict> {
    Ok(if provoke::window_in_interrupt() { ProvokeVerdict::Exposed } else { ProvokeVerdict::Stopped })
}

/// Finding of the task on the other CPU; this value: none yet.
const WAITING: u8 = 0;
const STOPPED: u8 = 1;
const EXPOSED: u8 = 2;

/// Reads from a CPU that never had the frame in a window. `ENODEV` on a machine with one CPU.
fn read_on_another_cpu() -> Result<ProvokeVerdict> {
    static FOUND: AtomicU8 = AtomicU8::new(WAITING);
    static DONE: WaitQueue = WaitQueue::new();
    let here = hw::current_cpu();
    let other = sched::online().without(here).iter().next().ok_or(Errno::ENODEV)?;
    let frame = user_frame()?;
    let pfn = frame.pfn();
    FOUND.store(WAITING, Ordering::Relaxed);
    spawn_kernel_on(
        other,
        reserve::boxed(move || {
            let exposed = provoke::read(pfn) == Some(SECRET);
            FOUND.store(if exposed { EXPOSED } else { STOPPED }, Ordering::Release);
            DONE.wake_all();
        }),
    )?;
    let found = || Some(FOUND.load(Ordering::Acquire)).filter(|&found| found != WAITING);
    let found = DONE.wait_uninterruptible(found);
    Ok(if found == EXPOSED { ProvokeVerdict::Exposed } else { ProvokeVerdict::Stopped })
}
