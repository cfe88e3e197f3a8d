//! Rings of slots: received frames in the versions 1 and 2, and frames to be sent in all versions.

use super::header::{FramePlace, Shown, Version, header};
use super::layout::Layout;
use super::{KERNEL, Put, USER};
use crate::mem::HeldRegion;

pub(super) struct SlotRing {
    region: HeldRegion,
    pub layout: Layout,
    /// The slot whose turn is next.
    head: u32,
}

impl SlotRing {
    pub(super) const fn new(region: HeldRegion, layout: Layout) -> Self {
        Self { region, layout, head: 0 }
    }

    /// Returns where the next slot begins.
    pub(super) const fn next_at(&self) -> usize {
        self.layout.slot_at(self.head)
    }

    /// Goes on to the slot after the next.
    pub(super) const fn advance(&mut self) {
        self.head = if self.head + 1 == self.layout.frames { 0 } else { self.head + 1 };
    }

    /// Returns the status of the slot at `at`: all bits of it, should a program set higher ones.
    pub(super) fn status(&self, version: Version, at: usize) -> u64 {
        let low = self.region.load(at + version.status_at());
        let high = if version == Version::V1 { self.region.load(at + 4) } else { 0 };
        u64::from(low) | u64::from(high) << 32
    }

    /// Hands the slot at `at` over.
    pub(super) fn set_status(&self, version: Version, at: usize, status: u32) {
        if version == Version::V1 {
            self.region.store(at + 4, 0);
        }
        self.region.store(at + version.status_at(), status);
    }

    /// Fills `into` with a slot's bytes.
    pub(super) fn get(&self, at: usize, into: &mut [u8]) {
        self.region.get(at, into);
    }

    /// Puts a frame into the next slot; cut, if it is longer. Its status then has `if_cut`:
    /// [`COPY`](super::COPY) if the caller queues the whole, or 0.
    pub(super) fn put(&mut self, version: Version, shown: &Shown<'_>, place: FramePlace, if_cut: u32) -> Put {
        let at = self.next_at();
        if self.status(version, at) != u64::from(KERNEL) {
            return Put::Full { ready: false };
        }
        let room = self.layout.frame_bytes.saturating_sub(place.link.into());
        let snap = shown.bytes.len().min(room);
        let if_cut = if snap < shown.bytes.len() { if_cut } else { 0 };
        self.region.put(at + usize::from(place.link), &shown.bytes[..snap]);
        place.put_offload_header(&self.region, at);
        let bytes = header(version, shown, place, snap, [0; 2]);
        // The status, at the beginning, is stored last.
        let after = if version == Version::V1 { 8 } else { 4 };
        self.region.put(at + after, &bytes[after..]);
        self.set_status(version, at, USER | shown.status | if_cut);
        self.advance();
        if if_cut != 0 { Put::Cut } else { Put::Stored { ready: true } }
    }

    /// Whether the program has a frame to read: the newest is its own.
    pub(super) fn is_readable(&self, version: Version) -> bool {
        let newest = if self.head == 0 { self.layout.frames } else { self.head } - 1;
        self.status(version, self.layout.slot_at(newest)) != u64::from(KERNEL)
    }
}
