//! The memory that a ring shares with its program.
//!
//! Three regions of one file, at the offsets that mmap(2) names: the submission ring, the completion ring and the
//! submission entries. The frames are page cache, so the kernel looks at them through windows. The program may write
//! anything at any moment: each word is read once, as one atomic access, and what the kernel must rely on (its own
//! ends of the rings, masks, sizes) it keeps to itself and only shows there.

use core::sync::atomic::{AtomicU32, Ordering};

use freehold_collections::{Arc, reserve};
use linux_raw_sys::io_uring as c;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::fs::Content;
use crate::mem::{CacheContent, PageCache, frames};
use crate::user::{Sink, Source};
use crate::{Errno, Result};

/// Words at the beginning of either ring, at these offsets in bytes.
mod word {
    pub const HEAD: u32 = 0;
    pub const TAIL: u32 = 4;
    pub const MASK: u32 = 8;
    pub const ENTRIES: u32 = 12;
    /// Submission: flags. Completion: overflow.
    pub const FLAGS: u32 = 16;
    /// Submission: dropped. Completion: flags.
    pub const DROPPED: u32 = 20;
    /// Where the array follows: indices, or completions.
    pub const ARRAY: u32 = 64;
}

/// `struct io_uring_sqe`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Submission {
    pub opcode: u8,
    pub flags: u8,
    pub priority: u16,
    pub fd: i32,
    pub offset: u64,
    pub address: u64,
    pub length: u32,
    pub operation_flags: u32,
    pub user_data: u64,
    pub buffer: u16,
    pub personality: u16,
    pub splice_fd: i32,
    pub more: [u64; 2],
}

/// `struct io_uring_cqe`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Completion {
    pub user_data: u64,
    pub result: i32,
    pub flags: u32,
}

/// The three regions. Whoever calls holds the lock of the ring's end that is meant.
pub struct SharedRings {
    content: Arc<CacheContent>,
    submissions: u32,
    completions: u32,
}

/// Put bytes among the submissions of rings of their own, and show them to `sink`: for /sys/kernel/debug/provoke-crash/DIRECT.
///
/// # Errors
/// `ENOMEM`, and what source and sink fail with.
pub fn show_through_rings(source: &mut dyn Source, sink: &mut dyn Sink) -> Result<()> {
    let rings = SharedRings::new(1, 2)?;
    let at = u64::from(c::IORING_OFF_SQES);
    rings.content.write_at(at, source)?;
    rings.content.read_at(at, sink)?;
    Ok(())
}

impl SharedRings {
    /// Rings of so many entries; both are powers of two.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(submissions: u32, completions: u32) -> Result<Self> {
        let cache = PageCache::new(frames());
        // Completions are put there where nobody can wait.
        cache.keep_in_memory();
        let regions = [
            (c::IORING_OFF_SQ_RING, word::ARRAY + 4 * submissions),
            (c::IORING_OFF_CQ_RING, word::ARRAY + size_of::<Completion>() as u32 * completions),
            (c::IORING_OFF_SQES, size_of::<Submission>() as u32 * submissions),
        ];
        for (start, length) in regions {
            let end = (u64::from(start) + u64::from(length)).next_multiple_of(4096);
            cache.set_size_grow(end);
            cache.allocate(u64::from(start)..end)?;
        }
        let rings = Self { content: reserve::arc(CacheContent::new(cache)), submissions, completions };
        for (start, entries) in [(c::IORING_OFF_SQ_RING, submissions), (c::IORING_OFF_CQ_RING, completions)] {
            rings.store(start + word::MASK, entries - 1);
            rings.store(start + word::ENTRIES, entries);
        }
        Ok(rings)
    }

    /// What mmap shows.
    pub const fn content(&self) -> &Arc<CacheContent> {
        &self.content
    }
    /// Entries of the submission ring.
    pub const fn submissions(&self) -> u32 {
        self.submissions
    }
    /// Entries of the completion ring.
    pub const fn completions(&self) -> u32 {
        self.completions
    }

    fn with<R>(&self, at: u32, length: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
        let (mut f, mut value) = (Some(f), None);
        let reached = self.content.cache().write_at(u64::from(at), length, |bytes| {
            value = f.take().map(|f| f(bytes));
            bytes.len()
        });
        debug_assert!(reached.is_ok_and(|count| count == length));
        value.expect("the regions have frames, and no entry crosses a page")
    }

    fn word<R>(&self, at: u32, f: impl FnOnce(&AtomicU32) -> R) -> R {
        self.with(at, 4, |bytes| f(AtomicU32::mut_from_bytes(bytes).expect("offsets are multiples of 4")))
    }

    fn load(&self, at: u32) -> u32 {
        self.word(at, |word| word.load(Ordering::Acquire))
    }

    fn store(&self, at: u32, value: u32) {
        self.word(at, |word| word.store(value, Ordering::Release));
    }

    /// How far the program has filled the submission ring.
    pub fn submission_tail(&self) -> u32 {
        self.load(c::IORING_OFF_SQ_RING + word::TAIL)
    }
    /// Tell the program how far it was emptied.
    pub fn set_submission_head(&self, head: u32) {
        self.store(c::IORING_OFF_SQ_RING + word::HEAD, head);
    }
    /// The entry that the ring names at `position`; `None` where it names none, which is counted.
    pub fn submission(&self, position: u32) -> Option<Submission> {
        let slot = position & (self.submissions - 1);
        let index = self.load(c::IORING_OFF_SQ_RING + word::ARRAY + 4 * slot);
        if index >= self.submissions {
            let count = |dropped: &AtomicU32| dropped.fetch_add(1, Ordering::Relaxed);
            self.word(c::IORING_OFF_SQ_RING + word::DROPPED, count);
            return None;
        }
        let size = size_of::<Submission>();
        let at = c::IORING_OFF_SQES + index * size as u32;
        Some(self.with(at, size, |bytes| Submission::read_from_bytes(bytes).expect("as long as an entry")))
    }

    /// How far the program has emptied the completion ring.
    pub fn completion_head(&self) -> u32 {
        self.load(c::IORING_OFF_CQ_RING + word::HEAD)
    }
    /// Tell the program how far it is filled.
    pub fn set_completion_tail(&self, tail: u32) {
        self.store(c::IORING_OFF_CQ_RING + word::TAIL, tail);
    }
    /// Put a completion at `position`; the program sees it when the tail is beyond.
    pub fn put_completion(&self, position: u32, completion: &Completion) {
        let slot = position & (self.completions - 1);
        let size = size_of::<Completion>();
        let at = c::IORING_OFF_CQ_RING + word::ARRAY + slot * size as u32;
        self.with(at, size, |bytes| bytes.copy_from_slice(completion.as_bytes()));
    }
    /// A completion was lost.
    pub fn count_overflow(&self) {
        let count = |overflow: &AtomicU32| overflow.fetch_add(1, Ordering::Relaxed);
        self.word(c::IORING_OFF_CQ_RING + word::FLAGS, count);
    }
    /// Tell the program whether completions wait for room.
    pub fn show_backlog(&self, backlog: Backlog) {
        let flags = match backlog {
            Backlog::Empty => 0,
            Backlog::Waits => c::IORING_SQ_CQ_OVERFLOW,
        };
        self.store(c::IORING_OFF_SQ_RING + word::FLAGS, flags);
    }
}

/// Whether completions wait for room in their ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backlog {
    /// None.
    Empty,
    /// Some.
    Waits,
}

/// `struct io_uring_params`.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub struct Parameters {
    pub submissions: u32,
    pub completions: u32,
    pub flags: u32,
    pub thread_cpu: u32,
    pub thread_idle: u32,
    pub features: u32,
    pub queue_fd: u32,
    pub reserved: [u32; 3],
    pub submission_offsets: [u32; 10],
    pub completion_offsets: [u32; 10],
}

impl Parameters {
    /// What setup answers: sizes, features and where the words are.
    pub fn describe(&mut self, rings: &SharedRings, features: u32) {
        self.submissions = rings.submissions();
        self.completions = rings.completions();
        self.features = features;
        // head, tail, ring_mask, ring_entries, flags, dropped, array, reserved, user address
        self.submission_offsets = [
            word::HEAD,
            word::TAIL,
            word::MASK,
            word::ENTRIES,
            word::FLAGS,
            word::DROPPED,
            word::ARRAY,
            0,
            0,
            0,
        ];
        // head, tail, ring_mask, ring_entries, overflow, cqes, flags, reserved, user address
        self.completion_offsets = [
            word::HEAD,
            word::TAIL,
            word::MASK,
            word::ENTRIES,
            word::FLAGS,
            word::ARRAY,
            word::DROPPED,
            0,
            0,
            0,
        ];
    }

    /// The rings' sizes that are asked for: submissions and completions.
    ///
    /// # Errors
    /// `EINVAL` for none, for more than there may be (unless they are to be clamped), and for fewer completions than
    /// submissions.
    pub fn sizes(&self, wanted: u32) -> Result<(u32, u32)> {
        const MOST: u32 = 32768;
        let limited = |entries: u32, most: u32| match entries {
            0 => Err(Errno::EINVAL),
            _ if entries <= most => Ok(entries.next_power_of_two()),
            _ if self.flags & c::IORING_SETUP_CLAMP != 0 => Ok(most),
            _ => Err(Errno::EINVAL),
        };
        let submissions = limited(wanted, MOST)?;
        let completions = if self.flags & c::IORING_SETUP_CQSIZE != 0 {
            limited(self.completions, 2 * MOST)?
        } else {
            2 * submissions
        };
        if completions < submissions { Err(Errno::EINVAL) } else { Ok((submissions, completions)) }
    }
}

const _: () = assert!(size_of::<Submission>() == size_of::<c::io_uring_sqe>());
const _: () = assert!(size_of::<Parameters>() == size_of::<c::io_uring_params>());
