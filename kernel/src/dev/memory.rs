//! /dev/null, /dev/zero, /dev/full, /dev/random, /dev/urandom.

use super::entropy;
use crate::fs::file::{NewsOwner, NewsQueues};
use crate::fs::{Blocking, File, MmapContent, Node, OpenFlags, Seekable};
use crate::user::{Sink, Source};
use crate::{Errno, Result, hw};
use freehold_collections::{Arc, reserve};

const CHUNK: usize = 512;

/// The device, which determines the results of reads and writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DeviceKind {
    Null,
    Zero,
    Full,
    Random,
}

/// An open file of one of these devices.
struct MemoryFile {
    kind: DeviceKind,
    node: Arc<dyn Node>,
}

/// Opens minor `minor` of major 1.
///
/// # Errors
/// `ENXIO` for a minor that is none of these devices.
pub fn open(node: Arc<dyn Node>, minor: u32, _flags: OpenFlags) -> Result<Arc<dyn File>> {
    let kind = match minor {
        3 => DeviceKind::Null,
        5 => DeviceKind::Zero,
        7 => DeviceKind::Full,
        8 | 9 => DeviceKind::Random,
        _ => return Err(Errno::ENXIO),
    };
    Ok(reserve::arc(MemoryFile { kind, node }))
}

/// Writes bytes of `fill` until the sink is full. A signal ends a long read.
fn produce(sink: &mut dyn Sink, mut fill: impl FnMut(&mut [u8])) -> Result<usize> {
    let mut chunk = [0; CHUNK];
    let mut done = 0;
    while sink.remaining() > 0 {
        let count = sink.remaining().min(CHUNK);
        fill(&mut chunk[..count]);
        match sink.put(&chunk[..count]) {
            Ok(placed) => done += placed,
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
        if done % (64 * CHUNK) == 0 {
            crate::sched::cond_resched();
            if crate::task::try_current().is_some_and(|task| task.signal_pending()) {
                break;
            }
        }
    }
    Ok(done)
}

/// Accepts all bytes and discards them.
fn swallow(source: &mut dyn Source) -> usize {
    // The bytes are not needed, so they are not read: Linux does not fault them in, either.
    source.remaining()
}

impl File for MemoryFile {
    fn node(&self) -> Arc<dyn Node> {
        self.node.clone()
    }

    fn seekable(&self) -> Seekable {
        Seekable::Offset
    }

    // On Linux, reading random numbers may wait, because a machine may have none at first.
    fn is_always_ready(&self) -> bool {
        self.kind != DeviceKind::Random
    }

    fn news(&self) -> Option<NewsQueues<'_>> {
        let has_news = self.kind == DeviceKind::Random;
        has_news.then_some(NewsQueues { queues: [None, None], owner: NewsOwner::None })
    }

    fn read_at(&self, _offset: u64, sink: &mut dyn Sink, _blocking: Blocking) -> Result<usize> {
        match self.kind {
            DeviceKind::Null => Ok(0),
            DeviceKind::Zero | DeviceKind::Full => produce(sink, |_| {}),
            DeviceKind::Random => produce(sink, hw::fill_random),
        }
    }

    fn write_at(&self, _offset: u64, source: &mut dyn Source, _blocking: Blocking) -> Result<usize> {
        match self.kind {
            DeviceKind::Full => Err(Errno::ENOSPC),
            // Bytes that a program writes to the generator are not more random than its state, so
            // they are not mixed in.
            _ => Ok(swallow(source)),
        }
    }

    fn append(&self, source: &mut dyn Source, blocking: Blocking) -> Result<(usize, u64)> {
        self.write_at(0, source, blocking).map(|count| (count, 0))
    }

    fn end(&self) -> Result<u64> {
        Ok(0)
    }

    fn mapping(&self) -> Result<MmapContent> {
        if self.kind == DeviceKind::Zero { Ok(MmapContent::Zeroes) } else { Err(Errno::ENODEV) }
    }

    fn ioctl(&self, request: u32, argument: u64) -> Result<i64> {
        if self.kind == DeviceKind::Random { entropy::control(request, argument) } else { Err(Errno::ENOTTY) }
    }
}
