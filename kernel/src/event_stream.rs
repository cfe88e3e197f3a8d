//! `freehold run --events`: events are turned on before the program starts, and the host gets their
//! records while it runs.
//!
//! A task takes records every [`INTERVAL`] and sends them; records that are overwritten before that
//! are counted. During the run the task is the reader of `trace_pipe`. The task's own events are
//! recorded, too.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use freehold_collections::{Arc, Vec, reserve};
use freehold_machine::Cpus;

use crate::fs::tracefs::{self, TraceReader};
use crate::hw::static_keys::KeyState;
use crate::sync::{Mutex, WaitQueue};
use crate::tracing::{self, Taken, TraceLine, Which};
use crate::{Result, host, hw, sched, time};

/// The interval at which records are taken (nanoseconds).
const INTERVAL: u64 = 5_000_000;
/// Index of the word of a record that is its time.
const TIME_WORD: usize = 1;
/// Number of bytes of records in one message.
const MESSAGE: usize = 48 << 10;

static RECORDED: AtomicU64 = AtomicU64::new(0);
static LOST: AtomicU64 = AtomicU64::new(0);
/// Whether records are sent in this run.
static SENDING: AtomicBool = AtomicBool::new(false);
/// Serialises senders; holds their buffer.
static BUFFER: Mutex<Vec<u8>> = Mutex::new(Vec::new());

/// Turns on the events that `selection` names, and sends their records from now on.
///
/// # Errors
/// `EINVAL` if `selection` names no event; `EBUSY`; `ENOMEM`.
pub fn start(selection: &[u8]) -> Result<()> {
    let reader = TraceReader::of(Which::All)?;
    BUFFER.lock().try_reserve(MESSAGE)?;
    tracefs::enable_selected(selection)?;
    SENDING.store(true, Ordering::Relaxed);
    let pause: Arc<WaitQueue> = reserve::arc(WaitQueue::new());
    sched::spawn_kernel("events", move || {
        let _reader = reader;
        while SENDING.load(Ordering::Relaxed) {
            send();
            let deadline = time::now() + INTERVAL;
            pause.wait_uninterruptible_until(deadline, || None::<()>);
        }
    })?;
    Ok(())
}

/// Turns all events off and sends the remaining records. Returns how many records were sent and how
/// many were lost; `None` if this run sends no records.
pub fn finish() -> Option<(u64, u64)> {
    if !SENDING.load(Ordering::Relaxed) {
        return None;
    }
    // An event that cannot be turned off continues to be recorded, which is harmless.
    let _ = tracefs::turn_all(KeyState::Off);
    send();
    SENDING.store(false, Ordering::Relaxed);
    counts()
}

/// How many records were sent and how many were lost; `None` if this run sends no records.
pub fn counts() -> Option<(u64, u64)> {
    let (recorded, lost) = (RECORDED.load(Ordering::Relaxed), LOST.load(Ordering::Relaxed));
    (recorded + lost > 0 || SENDING.load(Ordering::Relaxed)).then_some((recorded, lost))
}

/// Sends all present records, in the order of their times.
///
/// Records of one thread may be in the rings of several CPUs. A CPU may also be about to write a
/// record whose time it has already taken. When every CPU has passed through the kernel, all
/// records from before `until` are in the rings. Later records wait for the next call.
fn send() {
    let mut buffer = BUFFER.lock();
    let until = hw::time::ticks();
    if hw::Hardware.cpu_count() > 1 {
        hw::interrupt_all();
    }
    // A few messages at most: the events that sending itself causes would otherwise never end.
    for _ in 0..64 {
        buffer.clear();
        if take(&mut buffer, until).is_err() || buffer.is_empty() {
            return;
        }
        host::events(&buffer);
        if buffer.len() < MESSAGE / 2 {
            return;
        }
    }
}

/// Appends a record as an entry of `bytes` bytes.
fn put(buffer: &mut Vec<u8>, bytes: usize, line: &TraceLine) -> Result<()> {
    buffer.try_reserve(bytes)?;
    buffer.try_extend_from_slice(&(line.cpu as u16).to_le_bytes())?;
    buffer.try_extend_from_slice(&(line.words.len() as u16).to_le_bytes())?;
    for (at, &word) in line.words.iter().enumerate() {
        let word = if at == TIME_WORD { hw::time::nanoseconds(word) } else { word };
        buffer.try_extend_from_slice(&word.to_le_bytes())?;
    }
    Ok(())
}

/// Takes the records from before `until` (ticks). Each entry has the CPU's number, the record's
/// length in words, and the words, with the time in nanoseconds.
fn take(buffer: &mut Vec<u8>, until: u64) -> Result<()> {
    let mut failed = Ok(());
    tracing::consume(Which::All, |line| {
        let bytes = 4 + line.words.len() * 8;
        if buffer.len() + bytes > MESSAGE || line.words[TIME_WORD] > until {
            return Taken::Nothing;
        }
        failed = put(buffer, bytes, line);
        if failed.is_err() {
            return Taken::Nothing;
        }
        RECORDED.fetch_add(1, Ordering::Relaxed);
        LOST.fetch_add(line.missed, Ordering::Relaxed);
        Taken::More
    })?;
    failed
}
