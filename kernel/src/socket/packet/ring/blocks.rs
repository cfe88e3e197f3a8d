//! Rings of blocks: received frames in version 3.
//!
//! The kernel fills one block at a time. It hands a block over when the next frame has no room in
//! it, or some time after its first frame. If the program has not given back the next block by
//! then, frames are lost until it does.

use zerocopy::{Immutable, IntoBytes};

use super::header::{FramePlace, Shown, Version, header};
use super::layout::Layout;
use super::{KERNEL, LOSING, Put, USER};
use crate::mem::HeldRegion;
use crate::time;

/// Bytes of a block's header (`struct tpacket_block_desc`).
const BLOCK_HEADER: usize = 48;
/// Where the first frame of a block is, if a program reserves no bytes before it.
pub const FIRST_AT: usize = BLOCK_HEADER;
/// Frames begin at multiples of it (V3_ALIGNMENT).
const FRAME_ALIGNMENT: usize = 8;
/// Where a block's status is.
const STATUS_AT: usize = 8;
/// TP_STATUS_BLK_TMO: the block was handed over although it is not full.
const NOT_FULL: u32 = 1 << 5;

/// Returns the bytes of a block that are the program's, for `private` that it reserves.
pub const fn private_bytes(private: u32) -> u64 {
    (private as u64).next_multiple_of(FRAME_ALIGNMENT as u64)
}

/// `struct tpacket_block_desc`, without the status.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct BlockHeader {
    version: u32,
    private_at: u32,
    status: u32,
    frames: u32,
    first_at: u32,
    length: u32,
    sequence: u64,
    first_time: [u32; 2],
    last_time: [u32; 2],
}

const _: () = assert!(size_of::<BlockHeader>() == BLOCK_HEADER);

/// A block that is being filled.
struct OpenBlock {
    header: BlockHeader,
    /// Where its last frame is in the block.
    last_at: usize,
    /// When it is handed over, in nanoseconds since boot. `None` while it is empty.
    due: Option<u64>,
}

pub(super) struct BlockRing {
    region: HeldRegion,
    pub layout: Layout,
    /// The block that is filled, or that the program has to give back first.
    active: u32,
    open: Option<OpenBlock>,
    next_sequence: u64,
    /// How often the program had all blocks.
    pub freezes: u32,
}

impl BlockRing {
    pub(super) fn new(region: HeldRegion, layout: Layout) -> Self {
        let mut blocks = Self { region, layout, active: 0, open: None, next_sequence: 1, freezes: 0 };
        blocks.open_active();
        blocks
    }

    /// Returns where frames of a block begin.
    fn first_at(&self) -> usize {
        FIRST_AT + private_bytes(self.layout.private) as usize
    }

    fn status_of(&self, block: u32) -> u32 {
        self.region.load(self.layout.block_at(block) + STATUS_AT)
    }

    /// Opens the active block, which is the kernel's.
    fn open_active(&mut self) {
        let first_at = self.first_at() as u32;
        let now = times_of(time::wall_nanoseconds() as u64);
        let header = BlockHeader {
            version: Version::V3 as u32,
            private_at: BLOCK_HEADER as u32,
            status: KERNEL,
            frames: 0,
            first_at,
            length: first_at,
            sequence: self.next_sequence,
            first_time: now,
            last_time: [0; 2],
        };
        self.next_sequence += 1;
        let open = OpenBlock { header, last_at: first_at as usize, due: None };
        self.write_header(&open.header);
        self.open = Some(open);
    }

    /// Writes all of the active block's header but the status.
    fn write_header(&self, header: &BlockHeader) {
        let at = self.layout.block_at(self.active);
        self.region.put(at, &header.as_bytes()[..STATUS_AT]);
        self.region.put(at + STATUS_AT + 4, &header.as_bytes()[STATUS_AT + 4..]);
    }

    /// Hands the open block over.
    fn close(&mut self, mut open: OpenBlock, status: u32) {
        let at = self.layout.block_at(self.active);
        // No frame follows the last.
        self.region.store(at + open.last_at, 0);
        if open.header.frames == 0 {
            open.header.last_time = times_of(time::wall_nanoseconds() as u64);
        }
        self.write_header(&open.header);
        self.region.store(at + STATUS_AT, USER | status);
        self.active = if self.active + 1 == self.layout.blocks { 0 } else { self.active + 1 };
    }

    /// Opens the next block, unless the program still has it. Returns whether it did.
    fn open_next(&mut self) -> bool {
        let is_free = self.status_of(self.active) & USER == 0;
        if is_free {
            self.open_active();
        } else {
            self.freezes = self.freezes.saturating_add(1);
        }
        is_free
    }

    /// Puts a frame at `now` (since boot) into the open block, or into the next.
    pub(super) fn put(&mut self, shown: &Shown<'_>, place: FramePlace, now: u64) -> Put {
        if self.status_of(self.active) != KERNEL {
            return Put::Full { ready: false };
        }
        let most = self.layout.block_bytes - self.first_at();
        let link = usize::from(place.link).min(most);
        let snap = shown.bytes.len().min(most - link);
        let whole = (link + snap).next_multiple_of(FRAME_ALIGNMENT);
        let mut ready = false;
        match self.open.take() {
            None => self.open_active(),
            // As on Linux, no frame ends at the block's very end.
            Some(open) if open.header.length as usize + whole >= self.layout.block_bytes => {
                self.close(open, shown.status & LOSING);
                ready = true;
                if !self.open_next() {
                    return Put::Full { ready };
                }
            }
            open => self.open = open,
        }
        let block_at = self.layout.block_at(self.active);
        let Some(open) = &mut self.open else { return Put::Full { ready } };
        let frame_at = open.header.length as usize;
        let hash = if self.layout.has_hashes { shown.flow_hash() } else { 0 };
        let place = FramePlace { link: link as u16, ..place };
        let bytes = header(Version::V3, shown, place, snap, [whole as u32, hash]);
        self.region.put(block_at + frame_at, &bytes);
        self.region.put(block_at + frame_at + link, &shown.bytes[..snap]);
        place.put_offload_header(&self.region, block_at + frame_at);
        self.region.store(block_at + frame_at + Version::V3.status_at(), USER | shown.status);
        open.last_at = frame_at;
        open.header.length += whole as u32;
        open.header.frames += 1;
        open.header.last_time = times_of(shown.time);
        open.due.get_or_insert(now + u64::from(self.layout.handover) * MILLISECOND);
        Put::Stored { ready }
    }

    /// Returns when the open block is handed over, in nanoseconds since boot.
    pub(super) fn due(&self) -> Option<u64> {
        self.open.as_ref()?.due
    }

    /// Hands the open block over if its time has come. Returns whether it did.
    pub(super) fn hand_over(&mut self, now: u64, losing: u32) -> bool {
        let is_due = self.due().is_some_and(|due| due <= now);
        if let Some(open) = self.open.take_if(|_| is_due) {
            self.close(open, NOT_FULL | losing);
            self.open_next();
        }
        is_due
    }

    /// Whether the program has a block to read: the one that was handed over last is its own.
    pub(super) fn is_readable(&self) -> bool {
        let last = if self.active == 0 { self.layout.blocks } else { self.active } - 1;
        self.status_of(last) != KERNEL
    }
}

const MILLISECOND: u64 = 1_000_000;

/// Returns seconds and nanoseconds of a time since 1970.
fn times_of(nanoseconds: u64) -> [u32; 2] {
    [(nanoseconds / time::SECOND) as u32, (nanoseconds % time::SECOND) as u32]
}
