//! Records of tracepoints: a ring per CPU, and its readers.
//!
//! **Writing.** [`record`] runs on the CPU of the event with interrupts off, so a ring has one
//! writer at a time (the protocol is `freehold_tracepoints::ring`'s). It takes the ring from its
//! CPU's slot by an exchange and puts it back by another: it never waits, and no other CPU accesses
//! the slot. Any context may record, except NMIs, double faults and machine checks, in which no
//! static key may be used.
//!
//! **Other rings.** Rings are made when the first event is turned on, or the first marker is
//! written, and again when their size changes. Then (1) [`RECORDING`] is cleared, (2) every CPU
//! enters the kernel once, so no CPU is between the two exchanges, (3) the slots get the new rings,
//! (4) [`RECORDING`] gets its previous value. Events in between are not recorded.
//!
//! **Reading.** Readers hold references to the rings, and never make a writer wait. `trace` copies
//! records from the position of consuming readers on; `trace_pipe` consumes under [`BUFFERS`]'
//! lock. The number of lost records follows from the difference of records' numbers
//! ([`Statistics`]).
//!
//! **Waking.** An event may happen under a run queue's lock, so it wakes no task. While a task
//! waits for records, a timer polls for them ([`has_records`]).
//!
//! Rings stay until their size changes, as on Linux. Linux' relative is kernel/trace/trace.c.

pub mod kprobes;
mod merge;
mod ring;

use core::sync::atomic::{AtomicBool, Ordering};

use freehold_collections::{Arc, TryCollect, Vec, reserve};
use freehold_machine::MAX_CPUS;
use freehold_tracepoints::ring::RingPlace;
use freehold_tracepoints::table::Print;
use freehold_tracepoints::{MOST_PAYLOAD, RecordHead, TraceEvent};

pub use merge::{Merge, RingReader, TraceLine};
pub use ring::Ring;

use crate::hw::{self, irq};
use crate::sched::thread::{TraceLabel, with_current};
use crate::sync::{ArcSlot, IrqSpinLock, Mutex};
use crate::{Errno, Result, sched};

/// Default size of a ring, in KiB.
const DEFAULT_KIB: u64 = 1024;
/// Size of the largest ring, in KiB.
pub const MOST_KIB: u64 = 64 << 10;

/// The slot in which a CPU's writer finds its ring. Each CPU has its own cache line.
#[repr(align(128))]
struct WriterPlace(ArcSlot<Ring>);

static WRITERS: [WriterPlace; MAX_CPUS] = [const { WriterPlace(ArcSlot::new()) }; MAX_CPUS];
/// Whether events are recorded now.
static RECORDING: AtomicBool = AtomicBool::new(true);
/// The rings, for readers.
static BUFFERS: Mutex<Buffers> = Mutex::new(Buffers::NONE);

/// The rings a second time, for [`has_records`], which must not sleep.
static SHOWN: IrqSpinLock<Vec<Arc<Ring>>> = IrqSpinLock::new(Vec::new());

/// The rings of all CPUs.
struct Buffers {
    rings: Vec<ReadRing>,
    kib: u64,
    /// The value of `tracing_on`.
    switch: Switch,
}

impl Buffers {
    const NONE: Self = Self { rings: Vec::new(), kib: DEFAULT_KIB, switch: Switch::On };
}

/// Whether tracing is on as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Switch {
    /// Events that are on are recorded.
    On,
    /// No event is recorded.
    Off,
}

/// A ring and the position up to which it was consumed.
struct ReadRing {
    ring: Arc<Ring>,
    consumed: RingPlace,
    /// The position of the last clearing, from which records are counted.
    cleared: u64,
    /// Number of records that consumers found lost since then.
    lost: u64,
}

/// Counts of a ring's records since it was cleared. `entries` + `overrun` + `read` is the number of
/// all records written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// Number of records that can be read.
    pub entries: u64,
    /// Number of records that were overwritten unread.
    pub overrun: u64,
    /// Number of records that were consumed.
    pub read: u64,
    /// Bytes of the entries.
    pub bytes: u64,
    /// The time of the oldest entry in nanoseconds.
    pub oldest: Option<u64>,
}

impl ReadRing {
    fn new(ring: Arc<Ring>) -> Self {
        Self { ring, consumed: RingPlace::default(), cleared: 0, lost: 0 }
    }

    /// Publishes the position up to which it was consumed.
    fn note(&self) {
        self.ring.consumed.store(self.consumed.number, Ordering::Relaxed);
    }

    fn clear(&mut self) {
        self.consumed = self.ring.ends.end();
        self.cleared = self.consumed.number;
        self.lost = 0;
        self.note();
    }

    fn statistics(&self) -> Statistics {
        let end = self.ring.ends.end();
        let Some((oldest, time)) = self.ring.oldest(self.consumed) else {
            let read = self.consumed.number - self.cleared - self.lost;
            return Statistics { overrun: self.lost, read, ..Statistics::default() };
        };
        let (first, position) = (oldest.number.max(self.consumed.number), oldest.position);
        Statistics {
            entries: end.number.saturating_sub(first),
            overrun: self.lost + (first - self.consumed.number),
            read: self.consumed.number - self.cleared - self.lost,
            bytes: end.position.saturating_sub(position) * 8,
            oldest: Some(hw::time::nanoseconds(time)),
        }
    }
}

/// Records an event of the running thread. Any context, except NMIs, double faults and machine
/// checks.
#[cold]
#[inline(never)]
pub fn record(event: usize, fields: &[u64]) {
    with_current(|thread| record_by(&thread.label, event, fields));
}

/// As [`record`], for a caller that knows the running thread's label.
#[cold]
#[inline(never)]
pub fn record_by(by: &TraceLabel, event: usize, fields: &[u64]) {
    let off = irq::disable();
    // After an entry with interrupts off, which acts as a barrier: a CPU that clears this waits
    // until every CPU has taken an interrupt.
    if RECORDING.load(Ordering::Relaxed) {
        let place = &WRITERS[usize::from(hw::current_cpu().0)].0;
        if let Some(ring) = place.take() {
            let head = || {
                let (time, pid, comm) = (hw::time::ticks(), by.pid().0, by.comm());
                RecordHead { time, event, pid, comm }
            };
            ring.ends.write(&*ring, head, fields);
            let replaced = place.put(ring);
            debug_assert!(replaced.is_none(), "rings change while nobody records");
        }
    }
    drop(off);
}

/// Records a marker that a program wrote, cut to the size of a record. Returns the number of bytes
/// recorded.
///
/// # Errors
/// `ENOMEM`; those of `step`; `EBADF` if tracing is off.
pub fn mark(text: &[u8], step: &mut dyn FnMut() -> Result<()>) -> Result<usize> {
    provide(step)?;
    if switch() == Switch::Off {
        return Err(Errno::EBADF);
    }
    let text = &text[..text.len().min(MOST_MARKER)];
    let mut words = [0u64; MOST_MARKER / 8];
    for (word, bytes) in words.iter_mut().zip(text.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(whole);
    }
    record(Print::NUMBER, &words[..text.len().div_ceil(8)]);
    Ok(text.len())
}

/// Size of the longest marker.
pub const MOST_MARKER: usize = 1024;
const _: () = assert!(MOST_MARKER / 8 <= MOST_PAYLOAD);

/// Makes the rings if there are none. `step` is called between two steps of work.
///
/// # Errors
/// `ENOMEM`; those of `step`.
pub fn provide(step: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    let mut buffers = BUFFERS.lock_killable()?;
    if buffers.rings.is_empty() {
        let new = make(buffers.kib, step)?;
        replace(&mut buffers, new)?;
    }
    Ok(())
}

/// Makes rings of `kib` KiB for all CPUs.
fn make(kib: u64, step: &mut dyn FnMut() -> Result<()>) -> Result<Vec<ReadRing>> {
    let mut rings = Vec::new();
    // A CPU that starts later records nothing until the rings are made again.
    let cpus = sched::online().iter().last().map_or(1, |last| usize::from(last.0) + 1);
    for _ in 0..cpus {
        rings.try_push(ReadRing::new(reserve::arc(Ring::new(kib, step)?)))?;
    }
    Ok(rings)
}

/// Replaces the rings in the writers' slots; see the module's head.
///
/// # Errors
/// `ENOMEM`: then nothing has changed.
fn replace(buffers: &mut Buffers, new: Vec<ReadRing>) -> Result<()> {
    let shown = new.iter().map(|read| read.ring.clone()).try_collect_vec()?;
    let unshown = core::mem::replace(&mut *SHOWN.lock(), shown);
    RECORDING.store(false, Ordering::SeqCst);
    hw::interrupt_all();
    for (place, read) in WRITERS.iter().zip(&new) {
        drop(place.0.put(read.ring.clone()));
    }
    let old = core::mem::replace(&mut buffers.rings, new);
    RECORDING.store(buffers.switch == Switch::On, Ordering::SeqCst);
    drop((unshown, old));
    Ok(())
}

/// Changes the size of the rings to `kib` KiB, rounded up to a power of two; their records are
/// lost. If there are no rings yet, they will be made with this size.
///
/// # Errors
/// `EINVAL` for 0; `ENOMEM` without memory, or for more than [`MOST_KIB`]: then the old rings stay.
/// Those of `step`.
pub fn resize(kib: u64, step: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    if kib == 0 {
        return Err(Errno::EINVAL);
    }
    if kib > MOST_KIB {
        return Err(Errno::ENOMEM);
    }
    let kib = kib.next_power_of_two().max(8);
    let mut buffers = BUFFERS.lock_killable()?;
    if buffers.kib != kib && !buffers.rings.is_empty() {
        let new = make(kib, step)?;
        replace(&mut buffers, new)?;
    }
    buffers.kib = kib;
    Ok(())
}

/// Returns the size of a ring in KiB, and whether the rings exist.
pub fn size() -> (u64, Provided) {
    let buffers = BUFFERS.lock();
    (buffers.kib, if buffers.rings.is_empty() { Provided::No } else { Provided::Yes })
}

/// Whether the rings exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Provided {
    /// Yes.
    Yes,
    /// No: they are made when an event is turned on.
    No,
}

/// Returns whether tracing is on.
pub fn switch() -> Switch {
    BUFFERS.lock().switch
}

/// Turns tracing on or off; events keep their own switches.
pub fn set_switch(switch: Switch) {
    let mut buffers = BUFFERS.lock();
    buffers.switch = switch;
    RECORDING.store(switch == Switch::On, Ordering::SeqCst);
}

/// The rings that a call applies to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// The rings of all CPUs.
    All,
    /// The ring of the CPU with this number.
    Cpu(usize),
}

impl Which {
    fn has(self, cpu: usize) -> bool {
        match self {
            Self::All => true,
            Self::Cpu(one) => one == cpu,
        }
    }
}

/// Removes all records.
pub fn clear(which: Which) {
    let mut buffers = BUFFERS.lock();
    let rings = buffers.rings.iter_mut().enumerate().filter(|(cpu, _)| which.has(*cpu));
    rings.for_each(|(_, ring)| ring.clear());
}

/// Returns the counts of these rings' records.
pub fn statistics(which: Which) -> Statistics {
    let buffers = BUFFERS.lock();
    let rings = buffers.rings.iter().enumerate().filter(|(cpu, _)| which.has(*cpu));
    rings.map(|(_, ring)| ring.statistics()).fold(Statistics::default(), |sum, one| Statistics {
        entries: sum.entries + one.entries,
        overrun: sum.overrun + one.overrun,
        read: sum.read + one.read,
        bytes: sum.bytes + one.bytes,
        oldest: match (sum.oldest, one.oldest) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        },
    })
}

/// Returns the present records, by time, without consuming them.
///
/// # Errors
/// `ENOMEM`.
pub fn snapshot(which: Which) -> Result<Merge> {
    let buffers = BUFFERS.lock_killable()?;
    let mut merge = Merge::new();
    for (cpu, read) in buffers.rings.iter().enumerate().filter(|(cpu, _)| which.has(*cpu)) {
        let end = read.ring.ends.end().position;
        merge.add(RingReader::new(cpu, read.ring.clone(), read.consumed, Some(end))?)?;
    }
    Ok(merge)
}

/// Consumes records in the order of time, as long as `take` returns [`Taken::More`].
///
/// # Errors
/// `ENOMEM`; `EINTR`.
pub fn consume(which: Which, mut take: impl FnMut(&TraceLine<'_>) -> Taken) -> Result<()> {
    let mut buffers = BUFFERS.lock_killable()?;
    let mut merge = Merge::new();
    for (cpu, read) in buffers.rings.iter().enumerate().filter(|(cpu, _)| which.has(*cpu)) {
        merge.add(RingReader::new(cpu, read.ring.clone(), read.consumed, None)?)?;
    }
    while let Some(line) = merge.peek() {
        let (cpu, missed, next) = (line.cpu, line.missed, line.next);
        let taken = take(&line);
        if taken == Taken::Nothing {
            break;
        }
        let read = &mut buffers.rings[cpu];
        read.lost += missed;
        read.consumed = next;
        read.note();
        merge.advance();
        if taken == Taken::Last {
            break;
        }
    }
    Ok(())
}

/// Treatment of a record by a consumer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// The consumer took the record and wants more.
    More,
    /// The consumer took the record and wants no more.
    Last,
    /// The consumer left the record where it is.
    Nothing,
}

/// Whether these rings have records that were not consumed. Any context.
pub fn has_records(which: Which) -> bool {
    let shown = SHOWN.lock();
    let mut rings = shown.iter().enumerate().filter(|(cpu, _)| which.has(*cpu));
    rings.any(|(_, ring)| ring.ends.written() > ring.consumed.load(Ordering::Relaxed))
}
