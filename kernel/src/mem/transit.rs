//! Pages for bytes on their way from one program to another, in pipes and sockets.
//!
//! Such a page is needed for a moment, again and again, so each CPU keeps up to [`KEPT`] for the
//! next caller. The frame is a user-side one: its bytes are reached through a window only, and
//! bytes that were not written are never read. Where frames are charged to accounts no page is
//! kept: the next caller may have another account.
//!
//! **Protocol.** A slot holds a frame's number, or [`NONE`]. A CPU that takes the number out, by an
//! atomic swap, has the frame alone. A CPU puts a number in where [`NONE`] was, by a
//! compare-exchange, and has the frame no more. Slots are looked at from the first on, so one page
//! that goes to and fro costs one slot. A CPU number that is out of date does no harm: the slots
//! are another CPU's then, and the same holds. [`drain`] empties all slots, when memory is short,
//! before it is taken out and at the end.

use core::sync::atomic::{AtomicU64, Ordering};

use freehold_frame::{Frame, PageCache};
use freehold_machine::{Cpus as _, MAX_CPUS, Pfn};

use super::{Frames, frames};
use crate::hw::Hardware;
use crate::{Result, hw};

/// No frame has this number: physical addresses have 52 bits.
const NONE: u64 = u64::MAX;

/// Pages that a CPU keeps: half of what a stream of 64 KiB needs at once.
const KEPT: usize = 8;

struct TransitSlot(AtomicU64);

/// A CPU's slots, on a cache line of their own.
#[repr(align(64))]
struct CpuSlots([TransitSlot; KEPT]);

static SLOTS: [CpuSlots; MAX_CPUS] = [const { CpuSlots::new() }; MAX_CPUS];

impl TransitSlot {
    fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed) == NONE
    }
    /// Takes the frame in the slot, if there is one.
    fn take(&self) -> Option<Pfn> {
        match self.0.swap(NONE, Ordering::Acquire) {
            NONE => None,
            frame => Some(Pfn(frame)),
        }
    }
    /// Puts `frame` into the slot. Returns whether there was room.
    fn put(&self, frame: Pfn) -> bool {
        self.0.compare_exchange(NONE, frame.0, Ordering::Release, Ordering::Relaxed).is_ok()
    }
}

impl CpuSlots {
    const fn new() -> Self {
        Self([const { TransitSlot(AtomicU64::new(NONE)) }; KEPT])
    }
    /// Takes a frame, if one is kept.
    fn take(&self) -> Option<Pfn> {
        self.0.iter().find_map(|slot| if slot.is_empty() { None } else { slot.take() })
    }
    /// Keeps `frame`. Returns whether there was room.
    fn put(&self, frame: Pfn) -> bool {
        self.0.iter().any(|slot| slot.is_empty() && slot.put(frame))
    }
}

/// Returns this CPU's slots.
#[inline]
fn slots() -> &'static CpuSlots {
    &SLOTS[usize::from(hw::current_cpu().0)]
}

/// A page of undefined content.
#[derive(Debug)]
pub struct TransitPage(Pfn);

impl TransitPage {
    /// Takes a page from this CPU's slots, else from the page allocator.
    ///
    /// # Errors
    /// `ENOMEM`.
    #[inline]
    pub fn allocate() -> Result<Self> {
        // A page that another task had may be charged to that one.
        let kept = if Hardware.charges_frames() { None } else { slots().take() };
        match kept {
            Some(frame) => Ok(Self(frame)),
            None => Ok(Self(Frame::<PageCache, Frames>::allocate(frames())?.into_raw())),
        }
    }
    /// Returns the page's frame.
    #[inline]
    pub const fn pfn(&self) -> Pfn {
        self.0
    }
}

impl Drop for TransitPage {
    #[inline]
    fn drop(&mut self) {
        if Hardware.charges_frames() || !slots().put(self.0) {
            release(self.0);
        }
    }
}

/// Gives back a frame without a holder.
fn release(frame: Pfn) {
    drop(Frame::<PageCache, Frames>::from_raw(frames(), frame).expect("a page in transit has its frame"));
}

/// Gives back what the CPUs keep, and says how many frames that is.
pub fn drain() -> u64 {
    SLOTS.iter().flat_map(|cpu| &cpu.0).filter_map(TransitSlot::take).map(release).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_keeps_one_page_and_gives_it_once() {
        let slot = TransitSlot(AtomicU64::new(NONE));
        let [one, other] = [3, 4].map(Pfn);
        assert!(slot.put(one) && !slot.put(other));
        assert_eq!((slot.take(), slot.take()), (Some(one), None));
    }

    #[test]
    fn a_cpu_keeps_some_pages_and_gives_each_once() {
        let slots = CpuSlots::new();
        let taken: std::vec::Vec<_> = (0..KEPT as u64 + 2).map(|frame| slots.put(Pfn(frame))).collect();
        assert!(taken[..KEPT].iter().all(|&kept| kept) && taken[KEPT..] == [false, false]);
        assert!((0..KEPT as u64).all(|frame| slots.take() == Some(Pfn(frame))));
        assert_eq!(slots.take(), None);
    }

    /// The protocol of the module's head, step by step: each frame has one holder at a time, in
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
                    // To the page allocator, which would hand the frame out: the model does not.
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
                    // A frame without a holder is in the slot; a frame in neither is lost.
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
