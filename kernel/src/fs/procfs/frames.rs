//! /proc/kpagecount and /proc/kpageflags: a 64-bit word for every frame of physical memory
//! (Documentation/admin-guide/mm/pagemap.rst).
//!
//! The files read the frame table as it is at that moment; frames may be freed and allocated
//! meanwhile.

use freehold_collections::{Arc, Receiver, TryCollect, reserve};
use freehold_frame::{FrameSource, Holders, Order, Owner};
use freehold_machine::Pfn;

use crate::fs::file::{Blocking, File, Seekable};
use crate::fs::flags::OpenFlags;
use crate::fs::node::{Identity, Metadata, Node, NodeKind, SetMetadata};
use crate::fs::pseudo::{self, PseudoDir};
use crate::fs::{clock, machine};
use crate::user::Sink;
use crate::{Errno, Result, mem};

const WORD: u64 = 8;
/// Number of words that are made at a time.
const STEP: u64 = 512;

/// Bits of a frame's word, by Linux' names (include/uapi/linux/kernel-page-flags.h).
const UPTODATE: u64 = 1 << 3;
const LRU: u64 = 1 << 5;
const SLAB: u64 = 1 << 7;
const BUDDY: u64 = 1 << 10;
const MMAP: u64 = 1 << 11;
const ANON: u64 = 1 << 12;
const SWAPCACHE: u64 = 1 << 13;
const SWAPBACKED: u64 = 1 << 14;
const COMPOUND_HEAD: u64 = 1 << 15;
const COMPOUND_TAIL: u64 = 1 << 16;
const NOPAGE: u64 = 1 << 20;
const KSM: u64 = 1 << 21;
const THP: u64 = 1 << 22;
const ZERO_PAGE: u64 = 1 << 24;
const PGTABLE: u64 = 1 << 26;

pub(super) fn fill(root: &Arc<PseudoDir>) {
    let device = root.identity().device;
    for (name, word) in [("kpagecount", count as fn(Pfn) -> u64), ("kpageflags", flags)] {
        let identity = Identity { device, inode: pseudo::new_inode() };
        root.add(name, reserve::arc(FrameFile { identity, word }));
    }
}

/// Returns the frame's holders, and the allocated block of which it is part.
fn facts(frame: Pfn) -> Option<(Holders, Pfn, Order, Owner)> {
    let table = mem::frames().table();
    let (head, order, owner, _) = table.block_of(frame)?;
    let head_holds = table.get(head)?.counts().load();
    Some((if head_holds.whole { head_holds } else { table.get(frame)?.counts().load() }, head, order, owner))
}

/// How often the frame is mapped.
fn count(frame: Pfn) -> u64 {
    facts(frame).map_or(0, |(holders, ..)| u64::from(holders.mappings))
}

/// Returns the flags of the frame's use.
fn flags(frame: Pfn) -> u64 {
    let Some((holders, head, order, owner)) = facts(frame) else {
        let is_memory = machine::get().is_some_and(|at| at.firmware.topology.node_of(frame).is_some());
        return if is_memory { BUDDY } else { NOPAGE };
    };
    let mut flags = match owner {
        Owner::Free => BUDDY,
        Owner::Reserved
        | Owner::Bounce
        | Owner::Replica
        | Owner::Time
        | Owner::DeviceTable
        | Owner::Stack
        | Owner::Ring => 0,
        Owner::Kernel => SLAB,
        Owner::PageTable => PGTABLE,
        Owner::Anon if mem::commons().swap().is_cache_frame(frame) => {
            UPTODATE | LRU | ANON | SWAPBACKED | SWAPCACHE
        }
        Owner::Anon => UPTODATE | LRU | ANON | SWAPBACKED,
        Owner::PageCache => UPTODATE | LRU,
    };
    if holders.mappings > 0 {
        flags |= MMAP;
    }
    if order > Order::FRAME {
        flags |= if frame == head { COMPOUND_HEAD } else { COMPOUND_TAIL };
    }
    let record = mem::frames().table().get(frame);
    if record.is_some_and(|record| record.counts().is_merged()) {
        flags |= KSM;
    }
    if holders.whole {
        flags |= THP;
    }
    if mem::commons().is_zeroes(frame) {
        flags = ZERO_PAGE | flags & (COMPOUND_HEAD | COMPOUND_TAIL);
    }
    flags
}

struct FrameFile {
    identity: Identity,
    word: fn(Pfn) -> u64,
}

impl Node for FrameFile {
    fn identity(&self) -> Identity {
        self.identity
    }
    fn kind(&self) -> NodeKind {
        NodeKind::Regular
    }
    fn metadata(&self) -> Metadata {
        pseudo::metadata(self.identity, NodeKind::Regular, 0o400, clock::now())
    }
    fn set_metadata(&self, change: &SetMetadata) -> Result<()> {
        pseudo::set_metadata(change)
    }
    fn open(self: Receiver<Self>, _flags: OpenFlags) -> Result<Arc<dyn File>> {
        Ok(reserve::arc(OpenFrameFile(self)))
    }
}

struct OpenFrameFile(Arc<FrameFile>);

impl File for OpenFrameFile {
    fn node(&self) -> Arc<dyn Node> {
        self.0.clone()
    }

    fn seekable(&self) -> Seekable {
        Seekable::Offset
    }

    fn read_at(&self, offset: u64, sink: &mut dyn Sink, _blocking: Blocking) -> Result<usize> {
        if !offset.is_multiple_of(WORD) || !(sink.remaining() as u64).is_multiple_of(WORD) {
            return Err(Errno::EINVAL);
        }
        let end = mem::frames().table().end().0;
        put_in_steps(sink, |told, sink| {
            let first = (offset + told as u64) / WORD;
            let count = (sink.remaining() as u64 / WORD).min(STEP).min(end.saturating_sub(first));
            let words = (first..first + count).flat_map(|frame| (self.0.word)(Pfn(frame)).to_ne_bytes());
            sink.put(&words.try_collect_vec()?)
        })
    }
}

/// Fills `sink` in steps. Between steps other tasks run, and SIGKILL is noticed. A step gets the
/// number of bytes so far, and returns how many it added: 0 at the end.
///
/// # Errors
/// Those of the first step. An error of a later step ends the transfer.
pub(super) fn put_in_steps(
    sink: &mut dyn Sink,
    mut step: impl FnMut(usize, &mut dyn Sink) -> Result<usize>,
) -> Result<usize> {
    let mut told = 0;
    while sink.remaining() > 0 {
        match step(told, sink) {
            Ok(0) => break,
            Ok(bytes) => told += bytes,
            Err(error) if told == 0 => return Err(error),
            Err(_) => break,
        }
        if crate::sched::checkpoint().is_err() {
            break;
        }
    }
    Ok(told)
}
