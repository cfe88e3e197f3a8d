//! A page of an address space as the protocol of `freehold_frame::transition` sees it: a leaf, its
//! frame's record, and the operations on them.
//!
//! Stores of programs and devices are modelled too: a program's bytes are ordered by the counts
//! alone, which the model checker verifies (a copy beside a store is a race, and fails); a device
//! stores at any time.

#![allow(clippy::arc_with_non_send_sync, reason = "the checker's own threads share it")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize as Note, Ordering};

use freehold_frame::transition::{Leaf, NotPinned, Serves, forget_written, pin};
use freehold_frame::{CountError, Counts};
use loom::cell::UnsafeCell;
use loom::sync::Mutex;
use loom::sync::atomic::{AtomicU64, AtomicUsize, fence};

use super::{Loom, unheld};

pub const WRITE: u64 = 1;
pub const MARK: u64 = 2;
pub const NONE: u64 = 0;

/// Byte of a page without a store.
const OLD: usize = 1;
/// Byte that a device stores.
const DEVICE: usize = 7;

/// A leaf that maps frame `n`.
const fn leading_to(n: usize, bits: u64) -> u64 {
    (n as u64 + 1) << 8 | bits
}

/// The frame that a leaf leads to.
pub fn frame_of(entry: u64) -> Option<usize> {
    (entry >> 8).checked_sub(1).map(|n| n as usize)
}

pub struct ModelLeaf(AtomicU64);

impl Leaf for ModelLeaf {
    type Entry = u64;
    fn load(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
    fn change(&self, mut now: u64, change: impl Fn(u64) -> u64) -> u64 {
        loop {
            match self.0.compare_exchange(now, change(now), Ordering::AcqRel, Ordering::Acquire) {
                Ok(was) => return was,
                Err(other) => now = other,
            }
        }
    }
    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// A frame with its record, and counts of how often it was handed out and freed.
pub struct Frame {
    pub counts: Counts<Loom>,
    pub writers: AtomicUsize,
    freed: AtomicUsize,
    owned: Note,
    stored: UnsafeCell<()>,
    byte: Note,
    device: Note,
}

impl Frame {
    fn new() -> Self {
        Self {
            counts: unheld(),
            writers: AtomicUsize::new(0),
            freed: AtomicUsize::new(0),
            owned: Note::new(0),
            stored: UnsafeCell::new(()),
            byte: Note::new(OLD),
            device: Note::new(OLD),
        }
    }
    pub fn own(&self) {
        self.owned.fetch_add(1, Ordering::Relaxed);
        self.counts.start_mapped();
    }
    /// Drops a hold by `drop_hold`, which returns whether it was the last.
    fn let_go(&self, drop_hold: impl FnOnce(&Counts<Loom>) -> bool) {
        if drop_hold(&self.counts) {
            // Models the ordering of the allocator's lock.
            self.freed.fetch_add(1, Ordering::AcqRel);
        }
    }
    pub fn freed(&self) -> usize {
        self.freed.load(Ordering::Acquire)
    }
    /// Returns the byte that the program sees.
    fn look(&self) -> usize {
        self.stored.with(|_| self.byte.load(Ordering::Relaxed))
    }
    fn store(&self, byte: usize) {
        self.stored.with_mut(|_| self.byte.store(byte, Ordering::Relaxed));
    }
}

/// Whether a device writes the pinned page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    Read,
    Write,
}

/// One page of an address space, and the frames that it and its sharers may have.
pub struct Page {
    leaf: ModelLeaf,
    pub frames: Arc<[Frame; 3]>,
    /// The frame, among these, that the page uses if it needs a copy.
    spare: usize,
    lock: Mutex<()>,
    /// Number of living children that share frame 0.
    children: Note,
}

impl Page {
    /// Returns a page whose frame 0 is exclusive and written.
    pub fn new() -> Arc<Self> {
        let frames: Arc<[Frame; 3]> = Arc::new([(); 3].map(|()| Frame::new()));
        frames[0].own();
        Arc::new(Self::of(&frames, 1, WRITE | MARK))
    }
    /// A parent's page and its child's, which share frame 0.
    pub fn after_a_fork() -> [Arc<Self>; 2] {
        let frames: Arc<[Frame; 3]> = Arc::new([(); 3].map(|()| Frame::new()));
        frames[0].own();
        frames[0].counts.share().unwrap();
        [1, 2].map(|spare| Arc::new(Self::of(&frames, spare, 0)))
    }
    fn of(frames: &Arc<[Frame; 3]>, spare: usize, bits: u64) -> Self {
        let leaf = ModelLeaf(AtomicU64::new(leading_to(0, bits)));
        Self { leaf, frames: frames.clone(), spare, lock: Mutex::new(()), children: Note::new(0) }
    }
    pub fn entry(&self) -> u64 {
        self.leaf.load()
    }
    fn store_leaf(&self, entry: u64) {
        self.leaf.change(self.leaf.load(), |_| entry);
    }
    pub fn pins(&self) -> u32 {
        self.frames[0].counts.load().pins
    }

    /// Pins without the lock; returns the frame. A device that writes has then already stored.
    pub fn pin(&self, purpose: Purpose) -> Option<usize> {
        let hold = |entry| {
            let frame = frame_of(entry)?;
            if purpose == Purpose::Write && entry & WRITE == 0 {
                return None;
            }
            self.frames[frame].counts.pin_exclusive().ok()?;
            if purpose == Purpose::Write {
                self.frames[frame].writers.fetch_add(1, Ordering::AcqRel);
            }
            Some(frame)
        };
        let serves = |first: u64, second: u64| {
            let writable = purpose == Purpose::Read || second & WRITE != 0;
            if frame_of(first) == frame_of(second) && writable { Serves::Yes } else { Serves::No }
        };
        match pin(&self.leaf, hold, serves) {
            Ok(frame) => {
                if purpose == Purpose::Write {
                    self.frames[frame].device.store(DEVICE, Ordering::Relaxed);
                }
                Some(frame)
            }
            Err(NotPinned::Refused) => None,
            Err(NotPinned::Changed(frame)) => {
                self.unpin(frame, purpose);
                None
            }
        }
    }
    pub fn unpin(&self, frame: usize, purpose: Purpose) {
        let frame = &self.frames[frame];
        if purpose == Purpose::Write {
            frame.writers.fetch_sub(1, Ordering::AcqRel);
        }
        frame.let_go(Counts::unpin);
    }

    /// Forks; returns whether the child shares the frame. Otherwise the child has a copy.
    pub fn fork(&self) -> bool {
        let _lock = self.lock.lock().unwrap();
        let Some(frame) = frame_of(self.entry()) else { return false };
        match self.frames[frame].counts.share() {
            Ok(()) => {
                self.leaf.change(self.entry(), |entry| entry & !WRITE);
                self.children.fetch_add(usize::from(frame == 0), Ordering::Relaxed);
                true
            }
            Err(why) => {
                assert_eq!(why, CountError::Pinned);
                false
            }
        }
    }
    /// The child that shared frame 0 is gone.
    pub fn child_exits(&self) {
        self.children.fetch_sub(1, Ordering::Relaxed);
        self.frames[0].let_go(Counts::unmap);
    }
    /// Stores `byte`; returns whether the page has a copy now.
    pub fn stores(&self, byte: usize) -> bool {
        let _lock = self.lock.lock().unwrap();
        let Some(frame) = frame_of(self.entry()) else { return false };
        if self.entry() & WRITE != 0 {
            self.frames[frame].store(byte);
            return false;
        }
        let reused = self.frames[frame].counts.reuse();
        match reused {
            Ok(()) => {
                self.leaf.change(self.entry(), |entry| entry | WRITE | MARK);
                self.frames[frame].store(byte);
            }
            Err(why) => {
                assert_eq!(why, CountError::Held);
                let [old, copy] = [&self.frames[frame], &self.frames[self.spare]];
                copy.own();
                copy.store(old.look());
                copy.device.store(old.device.load(Ordering::Relaxed), Ordering::Relaxed);
                copy.store(byte);
                self.store_leaf(leading_to(self.spare, WRITE | MARK));
                old.let_go(Counts::unmap);
            }
        }
        reused.is_err()
    }
    /// Unmaps the page; returns whether there was one.
    pub fn unmap(&self) -> bool {
        let _lock = self.lock.lock().unwrap();
        let Some(frame) = frame_of(self.entry()) else { return false };
        self.store_leaf(NONE);
        self.frames[frame].let_go(Counts::unmap);
        true
    }
    /// Swaps the page out; returns whether that succeeded: the bytes are elsewhere now and the
    /// frame's reference is dropped.
    pub fn swap_out(&self) -> bool {
        let _lock = self.lock.lock().unwrap();
        let Some(frame) = frame_of(self.entry()) else { return false };
        if self.frames[frame].counts.vacate().is_err() {
            return false;
        }
        self.store_leaf(NONE);
        // The TLBs are flushed, so the bytes can be copied here.
        assert_eq!(self.frames[frame].counts.load().pins, 0, "the bytes move under a pin");
        self.frames[frame].look();
        self.frames[frame].let_go(Counts::unreference);
        true
    }
    /// Clears the written mark; returns whether the page now counts as not written.
    pub fn clear_refs(&self) -> bool {
        let _lock = self.lock.lock().unwrap();
        let entry = self.entry();
        let Some(frame) = frame_of(entry) else { return false };
        let is_written = || self.frames[frame].writers.load(Ordering::Acquire) != 0;
        let undo = |entry, was| entry | was & (WRITE | MARK);
        forget_written(&self.leaf, entry, |entry| entry & !(WRITE | MARK), undo, is_written).is_some()
    }

    /// Checks that every mapper of the page, when no operation is running, sees `stored` or the
    /// byte before it. Only `pinned`'s owner may see a byte that a device has stored.
    pub fn shows(&self, stored: usize, pinned: Option<usize>) {
        let Some(frame) = frame_of(self.entry()) else { return };
        let byte = self.frames[frame].look();
        assert!(byte == stored || byte == OLD, "a page shows {byte}, which another stored");
        let device = self.frames[frame].device.load(Ordering::Relaxed);
        assert!(device == OLD || pinned == Some(frame), "a page shows what a device stored for another");
    }
    /// The children see the bytes from when they were made.
    pub fn children_see(&self, expected: &[usize]) {
        if self.children.load(Ordering::Relaxed) > 0 {
            let byte = self.frames[0].look();
            assert!(byte == OLD || expected.contains(&byte), "a child sees {byte}");
            assert_eq!(
                self.frames[0].device.load(Ordering::Relaxed),
                OLD,
                "a child sees what a device stored"
            );
        }
    }
    /// Drops all holds of frames through this page.
    pub fn ends(&self) {
        self.unmap();
        while self.children.load(Ordering::Relaxed) > 0 {
            self.child_exits();
        }
    }
    /// Checks that every frame that was handed out was freed once, and that no hold is left.
    pub fn is_balanced(&self) {
        for frame in &*self.frames {
            assert_eq!(frame.freed(), frame.owned.load(Ordering::Relaxed));
            assert!(frame.counts.load().is_none());
            assert_eq!(frame.writers.load(Ordering::Relaxed), 0);
        }
    }
}
