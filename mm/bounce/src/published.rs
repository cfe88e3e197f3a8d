//! Memory that the host sees, in a confidential guest.
//!
//! A segment is made visible as a whole when it is allocated, and private when it is freed;
//! transfers change nothing. The bytes are zeroed after memory has become visible. Devices leave
//! memory before it becomes private. Memory that the host does not confirm as private is lost: it
//! never goes back to the page allocator.

use freehold_frame::{Frame, FrameKind};
use freehold_machine::{NotWithdrawn, PhysicalBytes, Publish};
use spin::Once;

use crate::{Dma, DmaError, DmaSource};

/// How memory becomes visible; unset if the host sees all memory anyway.
pub(crate) struct Published(Once<&'static dyn Publish>);

impl Published {
    pub const fn new() -> Self {
        Self(Once::new())
    }

    /// Makes a block visible to the host, with all bytes zero.
    ///
    /// # Errors
    /// [`DmaError::OutOfMemory`]: the block is private.
    pub fn publish<K: FrameKind, S: DmaSource>(
        &self,
        source: S,
        block: &Frame<K, S>,
    ) -> Result<(), DmaError> {
        let Some(publisher) = self.0.get() else { return Ok(()) };
        let frames = block.frames();
        publisher.publish(frames).map_err(|_| DmaError::OutOfMemory)?;
        source.machine().zero_run(frames.start, frames.len());
        Ok(())
    }

    /// Makes a block private. After an error it must stay out of use.
    pub fn withdraw<K: FrameKind, S: DmaSource>(&self, block: &Frame<K, S>) -> Result<(), NotWithdrawn> {
        self.0.get().map_or(Ok(()), |publisher| publisher.withdraw(block.frames()))
    }
}

impl<S: DmaSource> Dma<S> {
    /// Sets how memory becomes visible to the host, in a guest whose memory is private. Called
    /// once, before [`Dma::start`].
    pub fn set_publisher(&self, publisher: &'static dyn Publish) {
        self.published.0.call_once(|| publisher);
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::boxed::Box;
    use std::collections::BTreeSet;
    use std::sync::Mutex;
    use std::vec::Vec;

    use freehold_machine::{NotPublished, Pfn, PfnRange};

    use super::*;
    use crate::tests::{LIMITS, Source, source};
    use crate::{Device, DeviceRules, Direction, DmaAddr};

    /// A host that records the frames it was shown, and refuses on request.
    #[derive(Debug, Default)]
    struct Host(Mutex<HostState>);

    #[derive(Debug, Default)]
    struct HostState {
        seen: BTreeSet<u64>,
        calls: usize,
        refuses_to_show: bool,
        refuses_to_hide: bool,
    }

    impl Host {
        fn state(&self) -> std::sync::MutexGuard<'_, HostState> {
            self.0.lock().unwrap()
        }
        /// The number of frames that the host sees, and the number of calls.
        fn counts(&self) -> (usize, usize) {
            let state = self.state();
            (state.seen.len(), state.calls)
        }
        fn sees(&self, frame: Pfn) -> bool {
            self.state().seen.contains(&frame.0)
        }
    }

    impl Publish for Host {
        fn publish(&self, frames: PfnRange) -> Result<(), NotPublished> {
            let mut state = self.state();
            state.calls += 1;
            if state.refuses_to_show {
                return Err(NotPublished);
            }
            assert!((frames.start.0..frames.end.0).all(|frame| state.seen.insert(frame)), "shown twice");
            Ok(())
        }
        fn withdraw(&self, frames: PfnRange) -> Result<(), NotWithdrawn> {
            let mut state = self.state();
            state.calls += 1;
            if state.refuses_to_hide {
                return Err(NotWithdrawn);
            }
            assert!((frames.start.0..frames.end.0).all(|frame| state.seen.remove(&frame)), "hidden twice");
            Ok(())
        }
    }

    fn confidential(frames: u64) -> (Source, &'static Host, Device<Source>) {
        let (source, host) = (source(frames), Box::leak(Box::new(Host::default())));
        let dma: &'static Dma<Source> = Box::leak(Box::new(Dma::new()));
        dma.set_publisher(host);
        dma.start(source, LIMITS);
        let rules = DeviceRules { name: "disk", reach: DmaAddr(u64::MAX), quota: usize::MAX, domain: None };
        (source, host, dma.attach(rules).unwrap())
    }

    #[test]
    fn the_host_sees_what_devices_have_and_nothing_that_went_back() {
        let (source, host, disk) = confidential(256);
        let held: Vec<_> =
            (0..3).map(|_| disk.buffer(256 << 10, Direction::Bidirectional).unwrap()).collect();
        let ring = disk.coherent(8192).unwrap();
        let pieces = held.iter().flat_map(|mapping| mapping.pieces(0..mapping.len()));
        for piece in pieces {
            let pages = piece.length.div_ceil(4096) as u64;
            assert!((0..pages).all(|page| host.sees(piece.frame.offset(page))));
        }
        assert!(host.sees(ring.pfn()) && host.sees(ring.pfn().offset(1)));
        assert_eq!(host.counts(), (3 * 64 + 2, 4));
        drop((held, ring));
        disk.dma().shrink();
        assert_eq!((source.taken(), host.counts()), (0, (0, 8)));
    }

    #[test]
    fn a_piece_of_several_segments_is_shown_in_one_operation_and_hidden_segment_by_segment() {
        let (source, host, disk) = confidential(256);
        drop(disk.buffer(1 << 20, Direction::Bidirectional).unwrap());
        assert_eq!(host.counts(), (256, 1));
        disk.dma().shrink();
        assert_eq!((source.taken(), host.counts()), (0, (0, 5)));
    }

    #[test]
    fn transfers_in_steady_state_ask_the_host_for_nothing() {
        let (_, host, disk) = confidential(256);
        drop(disk.buffer(64 << 10, Direction::Bidirectional).unwrap());
        let before = host.state().calls;
        for length in [1, 600, 4096, 64 << 10].repeat(100) {
            drop(disk.buffer(length, Direction::Bidirectional).unwrap());
        }
        assert_eq!((before, host.state().calls), (1, 1));
    }

    #[test]
    fn memory_that_the_host_does_not_show_is_no_memory_and_stays_private() {
        let (source, host, disk) = confidential(256);
        host.state().refuses_to_show = true;
        assert_eq!(disk.buffer(4096, Direction::ToDevice).err(), Some(DmaError::OutOfMemory));
        assert_eq!(disk.coherent(4096).err(), Some(DmaError::OutOfMemory));
        assert_eq!((source.taken(), host.state().seen.len(), disk.held()), (0, 0, 0));
    }

    #[test]
    fn memory_that_the_host_does_not_hide_is_lost_counted_and_never_used_again() {
        let (source, host, disk) = confidential(256);
        let ring = disk.coherent(4096).unwrap();
        drop(disk.buffer(256 << 10, Direction::ToDevice).unwrap());
        host.state().refuses_to_hide = true;
        drop(ring);
        disk.dma().shrink();
        let lost = disk.dma().statistics().lost;
        assert_eq!((lost, source.taken()), ((256 << 10) + 4096, 65));
        host.state().refuses_to_hide = false;
        drop(disk.buffer(256 << 10, Direction::ToDevice).unwrap());
        assert_eq!(source.taken(), 65 + 64);
    }
}
