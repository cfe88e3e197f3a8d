//! Pages for bytes that are transferred from one program to another, in pipes and sockets.
//!
//! Such a page is needed for a short time, again and again, so each CPU keeps up to [`KEPT`] pages
//! for the next caller. The frame is a user-side one: its bytes are accessed only through a window,
//! and bytes that were not written are never read. If frames are charged to accounts, no page is
//! kept, because the next caller may have another account.
//!
//! **Protocol.** A slot is a [`FrameSlot`]: it has a frame, or none, and a CPU that takes the frame
//! out owns it exclusively. Slots are searched from the first on, so a single page in circulation
//! costs one slot. A stale CPU number does no harm: the slots are another CPU's then, and the same
//! rules apply. [`drain`] empties all slots when memory is short, before memory is unplugged, and
//! at shutdown.

use freehold_frame::{Frame, FrameSlot, Held, HeldFrame, KeptFrame, PageCache};
use freehold_machine::{Cpus as _, MAX_CPUS};

use super::{Frames, frames};
use crate::hw::Hardware;
use crate::{Result, hw};

/// Number of pages that a CPU keeps: half of what a stream of 64 KiB needs at once.
const KEPT: usize = 8;

type KeptPage = KeptFrame<PageCache, Frames>;

/// A CPU's slots, on a separate cache line.
#[repr(align(64))]
struct CpuSlots([FrameSlot<PageCache, Frames>; KEPT]);

static SLOTS: [CpuSlots; MAX_CPUS] = [const { CpuSlots([FrameSlot::EMPTY; KEPT]) }; MAX_CPUS];

impl CpuSlots {
    /// Takes a frame, if one is kept.
    fn take(&self) -> Option<KeptPage> {
        self.0.iter().find_map(|slot| if slot.is_empty() { None } else { slot.take() })
    }
    /// Keeps `frame`. Returns whether there was room.
    fn put(&self, frame: &mut KeptPage) -> bool {
        self.0.iter().any(|slot| slot.is_empty() && slot.put(frame))
    }
}

/// Returns this CPU's slots.
#[inline]
fn slots() -> &'static CpuSlots {
    &SLOTS[usize::from(hw::current_cpu().0)]
}

/// A page with undefined content.
#[derive(Debug)]
pub struct TransitPage(KeptPage);

impl TransitPage {
    /// Takes a page from this CPU's slots, else from the page allocator.
    ///
    /// # Errors
    /// `ENOMEM`.
    #[inline]
    pub fn allocate() -> Result<Self> {
        // A page that another task had may be charged to that task.
        let kept = if Hardware.charges_frames() { None } else { slots().take() };
        match kept {
            Some(frame) => Ok(Self(frame)),
            None => Ok(Self(Frame::allocate(frames())?.into())),
        }
    }
    /// Returns the page's frame.
    #[inline]
    pub fn held(&self) -> HeldFrame<'_> {
        self.0.held()
    }
}

impl Drop for TransitPage {
    #[inline]
    fn drop(&mut self) {
        if Hardware.charges_frames() || !slots().put(&mut self.0) {
            release(&mut self.0);
        }
    }
}

/// Frees a frame.
fn release(frame: &mut KeptPage) {
    drop(frame.take(frames()));
}

/// Frees the pages that CPUs keep. Returns the number of frames.
pub fn drain() -> u64 {
    let kept = SLOTS.iter().flat_map(|cpu| &cpu.0).filter_map(FrameSlot::take);
    kept.map(|mut frame| release(&mut frame)).count() as u64
}

#[cfg(test)]
mod tests {
    /// A model of the protocol in the module's head: each frame has one holder at a time, in
    /// whatever order CPUs take and put.
    mod interleavings {
        use shuttle::sync::Arc;
        use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
        use shuttle::thread;

        const NONE: u64 = u64::MAX;

        #[derive(Clone, Copy, PartialEq)]
        enum Taking {
            Swap,
            LoadThenStore,
        }

        #[derive(Clone, Copy, PartialEq)]
        enum Putting {
            CompareExchange,
            LoadThenStore,
        }

        struct World {
            slot: AtomicU64,
            held: [AtomicBool; 3],
            taking: Taking,
            putting: Putting,
        }

        impl World {
            fn take(&self) -> Option<u64> {
                let frame = match self.taking {
                    Taking::Swap => self.slot.swap(NONE, Ordering::SeqCst),
                    Taking::LoadThenStore => {
                        let frame = self.slot.load(Ordering::SeqCst);
                        self.slot.store(NONE, Ordering::SeqCst);
                        frame
                    }
                };
                (frame != NONE).then_some(frame).inspect(|&frame| {
                    assert!(
                        !self.held[frame as usize].swap(true, Ordering::SeqCst),
                        "a frame has two holders"
                    );
                })
            }

            fn put(&self, frame: u64) {
                self.held[frame as usize].store(false, Ordering::SeqCst);
                let kept = match self.putting {
                    Putting::CompareExchange => {
                        self.slot.compare_exchange(NONE, frame, Ordering::SeqCst, Ordering::SeqCst).is_ok()
                    }
                    Putting::LoadThenStore => {
                        let is_free = self.slot.load(Ordering::SeqCst) == NONE;
                        if is_free {
                            self.slot.store(frame, Ordering::SeqCst);
                        }
                        is_free
                    }
                };
                if !kept {
                    // In the kernel the page allocator would get the frame and hand it out; the
                    // model does not.
                    self.held[frame as usize].store(true, Ordering::SeqCst);
                }
            }
        }

        fn explore(taking: Taking, putting: Putting) {
            shuttle::check_random(
                move || {
                    let world = Arc::new(World {
                        slot: AtomicU64::new(0),
                        held: [false, true, true].map(AtomicBool::new),
                        taking,
                        putting,
                    });
                    let cpus: std::vec::Vec<_> = (1..3)
                        .map(|own| {
                            let world = world.clone();
                            thread::spawn(move || {
                                let taken = world.take();
                                world.put(own);
                                taken.into_iter().for_each(|frame| world.put(frame));
                                world.take().into_iter().for_each(|frame| world.put(frame));
                            })
                        })
                        .collect();
                    cpus.into_iter().for_each(|cpu| cpu.join().unwrap());
                    // A frame without a holder is in the slot. A frame that is in neither place is
                    // lost.
                    let kept = world.slot.load(Ordering::SeqCst);
                    let free = (0..3).filter(|&at| !world.held[at as usize].load(Ordering::SeqCst));
                    assert!(free.eq((kept != NONE).then_some(kept)), "a frame is lost");
                },
                2000,
            );
        }

        #[test]
        fn a_frame_has_one_holder_and_is_never_lost() {
            explore(Taking::Swap, Putting::CompareExchange);
        }

        #[test]
        #[should_panic(expected = "a frame")]
        fn a_take_in_two_steps_is_caught() {
            explore(Taking::LoadThenStore, Putting::CompareExchange);
        }

        #[test]
        #[should_panic(expected = "a frame")]
        fn a_put_in_two_steps_is_caught() {
            explore(Taking::Swap, Putting::LoadThenStore);
        }
    }
}
