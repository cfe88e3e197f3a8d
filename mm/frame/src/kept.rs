//! Single frames as words: for large tables, or for words that several CPUs share.
//!
//! Only a [`Frame`] becomes such a word, and the same frame is taken out again, once. So no look-up
//! in the table is needed, and no other number can get in.

use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicU64, Ordering};

use freehold_machine::Pfn;

use crate::handle::Handle;
use crate::{Frame, FrameKind, FrameSource, Order};

/// No frame has this number: physical addresses have 52 bits.
const NONE: u64 = u64::MAX;

/// A block of one frame, without the source to which it is freed. Dropping it leaks the frame.
#[derive(Debug)]
#[must_use = "dropping it leaks the frame"]
pub struct KeptFrame<K: FrameKind, S: FrameSource> {
    number: u64,
    kind: PhantomData<fn() -> (K, S)>,
}

impl<K: FrameKind, S: FrameSource> KeptFrame<K, S> {
    const fn new(number: u64) -> Self {
        Self { number, kind: PhantomData }
    }
    /// Take the frame out, with the source that it came from. `None` if it was already taken out,
    /// or put into a slot.
    pub fn take(&mut self, source: S) -> Option<Frame<K, S>> {
        let number = core::mem::replace(&mut self.number, NONE);
        (number != NONE).then(|| Frame::from_handle(Handle::new(source, Pfn(number), Order::FRAME)))
    }
    /// The frame's number; after the frame was taken out, a number that no frame has.
    #[inline(always)]
    pub(crate) const fn pfn(&self) -> Pfn {
        Pfn(self.number)
    }
}

impl<K: FrameKind, S: FrameSource> From<Frame<K, S>> for KeptFrame<K, S> {
    /// # Panics
    /// For a block of several frames.
    fn from(frame: Frame<K, S>) -> Self {
        assert!(frame.order() == Order::FRAME, "a block of several frames has no room in a word");
        Self::new(ManuallyDrop::new(frame).pfn().0)
    }
}

/// A slot for one frame that any CPU fills and empties without a lock. The frame is put in by a
/// compare-exchange and taken out by a swap, so only one CPU has it at a time. The CPU that empties
/// the slot sees all stores to the frame of the CPU that filled it (release, acquire).
#[derive(Debug)]
pub struct FrameSlot<K: FrameKind, S: FrameSource> {
    number: AtomicU64,
    kind: PhantomData<fn() -> (K, S)>,
}

impl<K: FrameKind, S: FrameSource> FrameSlot<K, S> {
    /// No frame.
    #[allow(clippy::declare_interior_mutable_const, reason = "a value to build tables from, never borrowed")]
    pub const EMPTY: Self = Self { number: AtomicU64::new(NONE), kind: PhantomData };

    /// Whether the slot is empty; the answer may be out of date.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.number.load(Ordering::Relaxed) == NONE
    }
    /// Takes the frame in the slot, if there is one.
    #[inline]
    pub fn take(&self) -> Option<KeptFrame<K, S>> {
        match self.number.swap(NONE, Ordering::Acquire) {
            NONE => None,
            number => Some(KeptFrame::new(number)),
        }
    }
    /// Puts `frame` into the slot. Returns whether there was room; if so, `frame` no longer has it.
    #[inline]
    pub fn put(&self, frame: &mut KeptFrame<K, S>) -> bool {
        let put =
            self.number.compare_exchange(NONE, frame.number, Ordering::Release, Ordering::Relaxed).is_ok();
        if put {
            frame.number = NONE;
        }
        put
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::sync::Mutex;
    use std::vec::Vec;

    use freehold_machine::{CpuId, NodeId};

    use super::*;
    use crate::{FrameRecord, FrameTable, Held, Kernel, OutOfMemory, Request, Tag};

    static RECORDS: [FrameRecord; 2] = [FrameRecord::EMPTY; 2];
    static FREE: Mutex<Vec<Pfn>> = Mutex::new(Vec::new());

    #[derive(Clone, Copy, Debug)]
    struct Source;
    impl FrameSource for Source {
        type Machine = ();
        fn machine(self) {}
        fn table(self) -> FrameTable {
            FrameTable::new(&RECORDS)
        }
        fn allocate(self, request: Request) -> Result<Pfn, OutOfMemory> {
            let frame = FREE.lock().unwrap().pop().ok_or(OutOfMemory)?;
            let tag = Tag::new(request.owner, request.order, NodeId(0));
            self.table().get(frame).unwrap().hand_out(tag).unwrap();
            Ok(frame)
        }
        fn release(self, block: Pfn, order: Order) {
            let record = self.table().get(block).unwrap();
            record.take_back(record.freeable(order).unwrap().trace(CpuId(0)));
            FREE.lock().unwrap().push(block);
        }
    }

    #[test]
    fn a_slot_keeps_one_frame_and_gives_it_once() {
        FREE.lock().unwrap().extend([Pfn(0), Pfn(1)]);
        let slot = FrameSlot::<Kernel, Source>::EMPTY;
        let [mut one, mut other] = [(); 2].map(|()| KeptFrame::from(Frame::allocate(Source).unwrap()));
        let number = one.held().pfn();
        assert!(slot.put(&mut one) && !slot.put(&mut other));
        assert!(one.take(Source).is_none(), "it is in the slot");
        let mut again = slot.take().unwrap();
        assert!(again.held().pfn() == number && slot.take().is_none() && slot.is_empty());
        drop((again.take(Source), other.take(Source)));
        assert!(again.take(Source).is_none() && FREE.lock().unwrap().len() == 2);
        // A frame that was taken out leaves a number that opens no window.
        assert_eq!(again.held().pfn(), Pfn(u64::MAX));
    }
}
