//! Sizes of rings, as programs request them.

use freehold_machine::PAGE_SIZE;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Direction;
use super::blocks::{FIRST_AT, private_bytes};
use super::header::{ALIGNMENT, Version};
use crate::{Errno, Result};

/// `struct tpacket_req3`. The versions 1 and 2 have only the first four members.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Request {
    pub block_bytes: u32,
    pub blocks: u32,
    pub frame_bytes: u32,
    pub frames: u32,
    /// Milliseconds after which a block is handed over; 0 for a usual time.
    pub handover: u32,
    /// Bytes in each block for the program.
    pub private: u32,
    /// TP_FT_REQ_FILL_RXHASH.
    pub features: u32,
}

/// Sizes of a ring. Positions and sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    pub block_bytes: usize,
    pub blocks: u32,
    pub frame_bytes: usize,
    pub frames: u32,
    /// Milliseconds, at least 1.
    pub handover: u32,
    pub private: u32,
    /// Whether frames get a hash of their flow.
    pub has_hashes: bool,
}

/// Milliseconds after which a block is handed over, if the program does not say
/// (DEFAULT_PRB_RETIRE_TOV).
const USUAL_HANDOVER: u32 = 8;

impl Request {
    /// Bytes of a request of this version.
    pub const fn length(version: Version) -> usize {
        match version {
            Version::V1 | Version::V2 => 16,
            Version::V3 => size_of::<Self>(),
        }
    }

    /// Whether a ring is requested, and not its end.
    pub const fn has_blocks(&self) -> bool {
        self.blocks != 0
    }

    /// Checks the request. `reserve` is what PACKET_RESERVE set.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn layout(&self, version: Version, direction: Direction, reserve: u32) -> Result<Option<Layout>> {
        if !self.has_blocks() {
            return if self.frames == 0 { Ok(None) } else { Err(Errno::EINVAL) };
        }
        let is_possible = || {
            let block = u64::from(self.block_bytes);
            let least = version.head_bytes() as u64 + u64::from(reserve);
            let is_v3 = version == Version::V3;
            let per_block = self.block_bytes.checked_div(self.frame_bytes)?;
            let checks = [
                (1..=i32::MAX as u32).contains(&self.block_bytes),
                self.block_bytes.is_multiple_of(PAGE_SIZE as u32),
                !is_v3 || block >= FIRST_AT as u64 + private_bytes(self.private) + least,
                u64::from(self.frame_bytes) >= least,
                self.frame_bytes.is_multiple_of(ALIGNMENT as u32),
                per_block > 0 && per_block.checked_mul(self.blocks)? == self.frames,
                !is_v3
                    || direction == Direction::Receive
                    || [self.handover, self.private, self.features] == [0; 3],
            ];
            checks.iter().all(|holds| *holds).then_some(())
        };
        is_possible().ok_or(Errno::EINVAL)?;
        Ok(Some(Layout {
            block_bytes: self.block_bytes as usize,
            blocks: self.blocks,
            frame_bytes: self.frame_bytes as usize,
            frames: self.frames,
            handover: if self.handover == 0 { USUAL_HANDOVER } else { self.handover },
            private: self.private,
            has_hashes: self.features & 1 != 0,
        }))
    }
}

impl Layout {
    /// Returns the bytes of the ring.
    pub const fn bytes(&self) -> u64 {
        self.block_bytes as u64 * self.blocks as u64
    }

    /// Returns where a slot begins.
    pub const fn slot_at(&self, slot: u32) -> usize {
        let per_block = (self.block_bytes / self.frame_bytes) as u32;
        (slot / per_block) as usize * self.block_bytes + (slot % per_block) as usize * self.frame_bytes
    }

    /// Returns where a block begins.
    pub const fn block_at(&self, block: u32) -> usize {
        block as usize * self.block_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u32 = PAGE_SIZE as u32;
    const GOOD: Request = Request {
        block_bytes: 2 * PAGE,
        blocks: 3,
        frame_bytes: 3200,
        frames: 6,
        handover: 0,
        private: 0,
        features: 0,
    };

    fn refused(change: impl FnOnce(&mut Request)) -> bool {
        let mut request = GOOD;
        change(&mut request);
        Version::ALL.iter().all(|&version| {
            [Direction::Receive, Direction::Send]
                .iter()
                .all(|&direction| request.layout(version, direction, 0) == Err(Errno::EINVAL))
        })
    }

    #[test]
    fn slots_do_not_cross_blocks() {
        let layout = GOOD.layout(Version::V2, Direction::Receive, 0).unwrap().unwrap();
        assert_eq!(layout.bytes(), 24576);
        let places: std::vec::Vec<_> = (0..6).map(|slot| layout.slot_at(slot)).collect();
        assert_eq!(places, [0, 3200, 8192, 11392, 16384, 19584]);
        assert_eq!(layout.handover, USUAL_HANDOVER);
    }

    #[test]
    fn sizes_must_fit() {
        assert!(refused(|request| request.block_bytes = 0));
        assert!(refused(|request| request.block_bytes = PAGE + 16));
        assert!(refused(|request| request.block_bytes = 1 << 31));
        assert!(refused(|request| request.frame_bytes = 0));
        assert!(refused(|request| request.frame_bytes = 48));
        assert!(refused(|request| request.frame_bytes = 3208));
        assert!(refused(|request| request.frame_bytes = 3 * PAGE));
        assert!(refused(|request| request.frames = 5));
        assert!(refused(|request| request.blocks = u32::MAX));
        assert!(refused(|request| request.blocks = 0));
        let end = Request { blocks: 0, frames: 0, ..GOOD };
        assert_eq!(end.layout(Version::V1, Direction::Send, 0), Ok(None));
    }

    #[test]
    fn what_is_reserved_must_fit_too() {
        assert!(GOOD.layout(Version::V1, Direction::Receive, 3200 - 52).is_ok());
        assert_eq!(GOOD.layout(Version::V1, Direction::Receive, 3200 - 51), Err(Errno::EINVAL));
        assert_eq!(GOOD.layout(Version::V1, Direction::Receive, u32::MAX), Err(Errno::EINVAL));
        let private = |private| Request { private, ..GOOD }.layout(Version::V3, Direction::Receive, 0);
        assert!(private(8192 - 48 - 68 - 4).is_ok());
        assert_eq!(private(8192 - 48 - 68), Err(Errno::EINVAL));
        assert_eq!(private(u32::MAX), Err(Errno::EINVAL));
        assert_eq!(
            Request { private: 8, ..GOOD }.layout(Version::V3, Direction::Send, 0),
            Err(Errno::EINVAL)
        );
    }
}
