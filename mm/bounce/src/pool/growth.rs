//! Memory that a pool gets from the page allocator, and returns.
//!
//! **Pieces.** Memory is added in pieces of a segment up to 1 MiB, the longest request of a disk:
//! the largest that is not more than what is needed. If there is no such block, half as much is
//! tried, down to a single page. A piece of several segments is divided into them, so each is freed
//! on its own.
//!
//! **Fragmentation.** If memory came in pieces below a segment, the pool says so
//! ([`Pool::is_fragmented`]). The kernel's worker then has pageblocks emptied, and adds a whole
//! piece ([`Pool::mend`]). The small ones go once they are idle.
//!
//! **Nodes.** A caller's growth comes from the node of its CPU, the worker's from the node of the
//! last caller that found too little.

use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use freehold_frame::{Bounce, Frame, FrameState, NodePolicy, Order, Owner, Request};
use freehold_machine::{BOUNCE_ORDER, CpuId, Cpus, NodeId};

use super::{CHUNK, IDLE_TICKS, Means, Pool, Segment, Taker};
use crate::areas::{NEW, NO_AREA};
use crate::owners::NOBODY;
use crate::published::Published;
use crate::word::{SEGMENT_PAGES, Span};
use crate::{DmaAddr, DmaError, DmaSource};

/// log2 of the pages of the largest piece.
const PIECE_ORDER: u32 = 8;
/// A segment's size.
const SEGMENT: Order = Order::new(BOUNCE_ORDER).expect("a small order");

/// The lifetime of an added segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Growth {
    /// Added by a caller that found too little.
    Transient,
    /// Added by start-up or the worker.
    Lasting,
}

impl<S: DmaSource> Pool<S> {
    /// Adds one piece: the largest power of two of pages that is not above `needed`, but a segment
    /// at least. It is smaller if memory is short or in small pieces, or the cap is near, but not
    /// smaller than the taker's step.
    pub fn grow(
        &self,
        means: Means<'_, S>,
        taker: Taker,
        needed: usize,
        how: Growth,
    ) -> Result<(), DmaError> {
        if how == Growth::Transient {
            self.short_node.store(means.node(), Ordering::Relaxed);
        }
        let largest = needed.max(1).ilog2().clamp(BOUNCE_ORDER, PIECE_ORDER);
        let (mut error, mut is_in_pieces) = (DmaError::OutOfMemory, false);
        for order in (taker.step.ilog2()..=largest).rev().filter_map(Order::new) {
            let pages = order.frames() as usize;
            let room = self.pages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| {
                now.checked_add(pages).filter(|&sum| sum <= self.cap())
            });
            if room.is_err() {
                error = DmaError::Cap;
                continue;
            }
            let added = self.add(means, order, taker.reach, how);
            self.pages.fetch_sub(pages - added.unwrap_or(0), Ordering::Relaxed);
            match added {
                Ok(_) => {
                    if is_in_pieces && order < SEGMENT {
                        self.fragmented.fetch_max(needed, Ordering::Relaxed);
                    }
                    return Ok(());
                }
                Err(why) => error = why,
            }
            is_in_pieces |= error == DmaError::OutOfMemory && order >= SEGMENT;
        }
        Err(error)
    }

    /// Whether memory came in pieces below a segment since the last [`Pool::mend`].
    pub fn is_fragmented(&self) -> bool {
        self.fragmented.load(Ordering::Relaxed) > 0
    }

    /// Adds a piece of a segment or more, of as many pages as were needed at once when there were
    /// only smaller pieces. Returns whether the page allocator has no such piece, so that a whole
    /// pageblock would help.
    pub fn mend(&self, means: Means<'_, S>) -> bool {
        let needed = self.fragmented.load(Ordering::Relaxed);
        let taker = Taker { step: SEGMENT_PAGES, ..Taker::ANYONE };
        let outcome = self.grow(means, taker, needed, Growth::Lasting);
        let is_short = matches!(outcome, Err(DmaError::OutOfMemory));
        if !is_short {
            // At the cap, larger pieces would have to wait until the small ones go.
            self.fragmented.store(0, Ordering::Relaxed);
        }
        is_short
    }

    /// Allocates a piece. Returns how many of its pages were added: fewer than all if there are no
    /// more records for segments.
    fn add(&self, means: Means<'_, S>, order: Order, reach: DmaAddr, how: Growth) -> Result<usize, DmaError> {
        let place = match how {
            Growth::Transient => NodePolicy::Local,
            Growth::Lasting => NodePolicy::Preferred(NodeId(self.short_node.load(Ordering::Relaxed))),
        };
        let request = Request::new(Owner::Bounce).order(order).zeroed().policy(place);
        let piece = Frame::allocate_with(means.source, request)?;
        if piece.pfn().start().0 + order.bytes() as u64 - 1 > reach.0 {
            return Err(DmaError::OutOfReach);
        }
        means.published.publish(means.source, &piece)?;
        let mut added = 0;
        for block in piece.divide(SEGMENT) {
            let pages = block.order().frames() as usize;
            match self.install(block, how) {
                Ok(()) => added += pages,
                Err(block) => self.hide(block, means.published),
            }
        }
        if added == 0 {
            return Err(DmaError::OutOfMemory);
        }
        self.grows.fetch_add(1, Ordering::Relaxed);
        Ok(added)
    }

    /// Puts a block into a segment without memory. Returns the block if there is no such segment.
    fn install(&self, block: Frame<Bounce, S>, how: Growth) -> Result<(), Frame<Bounce, S>> {
        let pages = block.order().frames() as u32;
        let (first, node) = (block.pfn(), node_of(&block));
        let change = self.change.lock();
        let vacant = self.vacant().and_then(|number| Some((number, self.segment(number)?)));
        let Some((number, segment)) = vacant else { return Err(block) };
        *segment.block.lock() = Some(block);
        segment.first.store(first.0, Ordering::Relaxed);
        segment.pages.store(pages, Ordering::Relaxed);
        segment.node.store(node, Ordering::Relaxed);
        self.nodes.fetch_or(1 << node, Ordering::Relaxed);
        segment.user.store(NEW, Ordering::Relaxed);
        segment.idle.store(0, Ordering::Relaxed);
        segment.is_transient.store(how == Growth::Transient, Ordering::Relaxed);
        segment.free.install(pages);
        self.note_free(number, segment);
        drop(change);
        Ok(())
    }

    /// Returns a segment without memory. If all have memory, records for more segments are made.
    fn vacant(&self) -> Option<usize> {
        let found = self.segments().find(|(_, segment)| segment.pages.load(Ordering::Relaxed) == 0);
        if let Some((number, _)) = found {
            return Some(number);
        }
        let (number, chunk) = self.chunks.iter().enumerate().find(|(_, chunk)| chunk.get().is_none())?;
        let mut records = Vec::new();
        records.try_reserve_exact(CHUNK).ok()?;
        records.extend((0..CHUNK).map(|_| Segment::new()));
        chunk.call_once(|| records.into_boxed_slice());
        Some(number * CHUNK)
    }

    /// Does the worker's periodic scan: see the module's head. Returns the number of pages freed.
    pub fn tick(&self, used: usize, means: Means<'_, S>) -> usize {
        let mut gone = 0;
        for (_, segment) in self.segments() {
            segment.is_transient.store(false, Ordering::Relaxed);
            let pages = segment.pages.load(Ordering::Relaxed);
            let is_idle = pages > 0 && segment.free.bits() == Span { first: 0, count: pages }.mask();
            if segment.user.swap(NO_AREA, Ordering::Relaxed) != NO_AREA || !is_idle {
                segment.idle.store(0, Ordering::Relaxed);
                continue;
            }
            let idle = segment.idle.load(Ordering::Relaxed).saturating_add(1);
            segment.idle.store(idle, Ordering::Relaxed);
            if idle >= IDLE_TICKS {
                gone += self.retire(segment, means);
            }
        }
        // Memory is short if it is in use and below the watermark, or if there are fewer segments
        // than CPUs that use them.
        let missing = (used / 4).saturating_sub(self.pages() - used.min(self.pages()));
        let is_crowded = self.is_crowded.swap(false, Ordering::Relaxed)
            && self.pages() < self.areas.count() * SEGMENT_PAGES as usize;
        if gone == 0 && (missing > 0 || is_crowded) {
            let _ = self.grow(means, Taker::ANYONE, missing, Growth::Lasting);
        }
        if !self.has_grown() {
            // The small pieces are gone.
            self.fragmented.store(0, Ordering::Relaxed);
        }
        self.bring_home(means.source.machine());
        gone
    }

    /// Moves the hints of CPUs whose last segment is on another node to one of their own nodes that
    /// has a free page, if there is one.
    fn bring_home(&self, machine: S::Machine) {
        if self.nodes.load(Ordering::Relaxed).is_power_of_two() {
            return;
        }
        for number in 0..self.areas.count().min(machine.cpu_count()) {
            let (hint, node) = (self.areas.hint(number), machine.node_of_cpu(CpuId(number as u16)).0);
            let is_far = |segment: &Segment<S>| segment.node.load(Ordering::Relaxed) != node;
            if self.segment(hint.load(Ordering::Relaxed) as usize).is_some_and(is_far)
                && let Some(near) = self.index(node).next(0)
            {
                hint.store(near as u32, Ordering::Relaxed);
            }
        }
    }

    /// Frees all idle segments except those requested at start-up. Returns the number of pages.
    pub fn shrink(&self, means: Means<'_, S>) -> usize {
        self.segments().map(|(_, segment)| self.retire(segment, means)).sum()
    }

    /// Whether there is more memory than at start-up.
    pub fn has_grown(&self) -> bool {
        self.pages() > self.base.load(Ordering::Relaxed)
    }

    /// Frees a segment's memory if it is idle and not needed for the base. Returns the number of
    /// its pages. First the pages leave the domains of their last devices, outside the lock. That
    /// is safe: all pages are taken, and the segment is not vacant before its pages have no owner.
    fn retire(&self, segment: &Segment<S>, means: Means<'_, S>) -> usize {
        let mut leaving = self.change.lock();
        let pages = segment.pages.load(Ordering::Relaxed);
        let needed = self.base.load(Ordering::Relaxed) + *leaving;
        let spare = self.pages().saturating_sub(needed);
        if pages == 0 || pages as usize > spare || !segment.free.retire(pages) {
            return 0;
        }
        *leaving += pages as usize;
        drop(leaving);
        let all = Span { first: 0, count: pages };
        let is_confirmed = self.leave_all(segment, all, means);
        if is_confirmed {
            means.name(segment.frames(all), None);
        }
        segment.owners.set(all, NOBODY);
        let mut leaving = self.change.lock();
        let block = segment.block.lock().take();
        segment.pages.store(0, Ordering::Relaxed);
        self.pages.fetch_sub(pages as usize, Ordering::Relaxed);
        *leaving -= pages as usize;
        drop(leaving);
        match block {
            Some(block) if is_confirmed => self.hide(block, means.published),
            Some(block) => self.lose(block),
            None => {}
        }
        self.shrinks.fetch_add(1, Ordering::Relaxed);
        pages as usize
    }

    /// Removes pages, which the caller has taken, from the devices that had them last. Returns
    /// whether no device can access any of them.
    fn leave_all(&self, segment: &Segment<S>, mut left: Span, means: Means<'_, S>) -> bool {
        let mut is_confirmed = true;
        while left.count > 0 {
            let (owner, same) = segment.owners.first_run(left);
            is_confirmed &= means.domains.leave(owner, segment.frames(same)).is_ok();
            left = left.after(same);
        }
        is_confirmed
    }

    /// Frees a block that no device can access, after the host has no access to it either.
    fn hide(&self, block: Frame<Bounce, S>, published: &Published) {
        if published.withdraw(&block).is_err() {
            self.lose(block);
        }
    }

    fn lose(&self, block: Frame<Bounce, S>) {
        self.lost.fetch_add(block.order().frames() as usize, Ordering::Relaxed);
        block.into_raw();
    }
}

/// The node of a block of the pool.
fn node_of<S: DmaSource>(block: &Frame<Bounce, S>) -> u8 {
    match block.record().state() {
        FrameState::Owned { node, .. } => node.0,
        FrameState::Unowned(_) => 0,
    }
}
