//! Bytes of a run of frames that no device writes.

use core::ops::Range;

use freehold_frame::{Frame, PageCache as CacheKind};
use freehold_machine::PAGE_SIZE;
use freehold_xpfo::Windows;

use crate::hw::Hardware;
use crate::mem::Frames;

/// Clears the bytes `range` of a run of frames.
pub fn clear_frames(frames: &[Frame<CacheKind, Frames>], range: Range<usize>) {
    each_part(frames, range, |bytes, _| bytes.fill(0));
}

/// Copies `from` to the bytes of a run of frames that begin at `at`.
pub fn copy_to_frames(frames: &[Frame<CacheKind, Frames>], at: usize, from: &[u8]) {
    each_part(frames, at..at + from.len(), |bytes, done| bytes.copy_from_slice(&from[done..][..bytes.len()]));
}

/// Shows `f` the bytes `range` of a run of frames, one frame after the other, with the number of
/// those before them.
fn each_part(frames: &[Frame<CacheKind, Frames>], range: Range<usize>, mut f: impl FnMut(&mut [u8], usize)) {
    for (page, frame) in frames.iter().enumerate() {
        let before = page * PAGE_SIZE;
        let [start, end] = [range.start, range.end].map(|at| at.saturating_sub(before).min(PAGE_SIZE));
        if start < end {
            Hardware.with_bytes(frame, |bytes| f(&mut bytes[start..end], before + start - range.start));
        }
    }
}
