//! The memory that a ring shares with its program.
//!
//! Three regions of one file, at the offsets that mmap(2) names: the submission ring, the
//! completion ring and the submission entries ([`HeldRegion`]). Values on which the kernel relies
//! (its own positions in the rings, masks, sizes) are kept in the kernel and only copied there.

use core::sync::atomic::{AtomicU32, Ordering};

use arrayvec::ArrayVec;
use freehold_collections::Arc;
use freehold_machine::PAGE_SIZE;
use linux_raw_sys::io_uring as c;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::fs::FileContent;
use crate::mem::{CacheContent, HeldRegion, word_in};
use crate::user::{Sink, Source};
use crate::{Errno, Result};

/// Words at the beginning of either ring, at these offsets in bytes.
mod word {
    pub const HEAD: usize = 0;
    pub const TAIL: usize = 4;
    pub const MASK: usize = 8;
    pub const ENTRIES: usize = 12;
    /// Submission ring: flags. Completion ring: overflow.
    pub const FLAGS: usize = 16;
    /// Submission ring: dropped. Completion ring: flags.
    pub const DROPPED: usize = 20;
    /// Offset of the array that follows: indices, or completions.
    pub const ARRAY: usize = 64;
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

/// Largest number of submissions that are copied before the first of them starts.
pub const AHEAD: usize = 16;

/// The three regions. The caller holds the lock of the ring position that it uses.
pub struct SharedRings {
    content: Arc<CacheContent>,
    submission_ring: HeldRegion,
    completion_ring: HeldRegion,
    entries: HeldRegion,
    submissions: u32,
    completions: u32,
}

/// Writes bytes into the submissions of new rings, and passes them to `sink`: for
/// /sys/kernel/debug/provoke-crash/DIRECT.
///
/// # Errors
/// `ENOMEM`, and the errors of source and sink.
pub fn show_through_rings(source: &mut dyn Source, sink: &mut dyn Sink) -> Result<()> {
    let rings = SharedRings::new(1, 2)?;
    let at = u64::from(c::IORING_OFF_SQES);
    rings.content.write_at(at, source)?;
    rings.content.read_at(at, sink)?;
    Ok(())
}

impl SharedRings {
    /// Makes rings with this many entries; both numbers are powers of two.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(submissions: u32, completions: u32) -> Result<Self> {
        let content = HeldRegion::file();
        let region = |start: u32, bytes: usize| {
            let start = u64::from(start);
            HeldRegion::make(&content, start..start + bytes as u64)
        };
        let submission_ring = region(c::IORING_OFF_SQ_RING, word::ARRAY + 4 * submissions as usize)?;
        let completion_bytes = size_of::<Completion>() * completions as usize;
        let completion_ring = region(c::IORING_OFF_CQ_RING, word::ARRAY + completion_bytes)?;
        let entries = region(c::IORING_OFF_SQES, size_of::<Submission>() * submissions as usize)?;
        for (ring, entries) in [(&submission_ring, submissions), (&completion_ring, completions)] {
            ring.store(word::MASK, entries - 1);
            ring.store(word::ENTRIES, entries);
        }
        Ok(Self { content, submission_ring, completion_ring, entries, submissions, completions })
    }

    /// Returns the content for mmap.
    pub const fn content(&self) -> &Arc<CacheContent> {
        &self.content
    }
    /// Checks that a mapping shows one region, or the beginning of one.
    ///
    /// # Errors
    /// `EINVAL`.
    pub fn check_mapping(&self, offset: u64, length: u64) -> Result<()> {
        let region = match u32::try_from(offset) {
            Ok(c::IORING_OFF_SQ_RING) => &self.submission_ring,
            Ok(c::IORING_OFF_CQ_RING) => &self.completion_ring,
            Ok(c::IORING_OFF_SQES) => &self.entries,
            _ => return Err(Errno::EINVAL),
        };
        if length <= region.bytes() { Ok(()) } else { Err(Errno::EINVAL) }
    }
    /// Returns the number of entries of the submission ring.
    pub const fn submissions(&self) -> u32 {
        self.submissions
    }
    /// Returns the number of entries of the completion ring.
    pub const fn completions(&self) -> u32 {
        self.completions
    }

    /// Publishes the position up to which the kernel has taken submissions.
    pub fn set_submission_head(&self, head: u32) {
        self.submission_ring.store(word::HEAD, head);
    }
    /// Copies entries that the program has put into the ring from `position` on into `into`, which
    /// is empty: at most `most` and [`AHEAD`]. Copies none only if there is none. `None` stands for
    /// an entry that does not exist.
    pub fn copy_submissions(&self, position: u32, most: u32, into: &mut ArrayVec<Option<Submission>, AHEAD>) {
        let slot = position & (self.submissions - 1);
        let most = most.min(AHEAD as u32).min(self.submissions - slot) as usize;
        let array = word::ARRAY + 4 * slot as usize;
        let mut indices = ArrayVec::<u32, AHEAD>::new();
        // Tail and indices mostly share a page, and so a window.
        let filled = self.submission_ring.write(0, |bytes| {
            let tail = word_in(bytes, word::TAIL).load(Ordering::Acquire);
            let filled = most.min(tail.wrapping_sub(position) as usize);
            if array + 4 * filled <= PAGE_SIZE {
                load_indices(&mut bytes[array..array + 4 * filled], &mut indices);
            }
            filled
        });
        if indices.len() < filled {
            self.submission_ring.write(array, |bytes| {
                let end = bytes.len().min(4 * filled);
                load_indices(&mut bytes[..end], &mut indices);
            });
        }
        let mut left = indices.as_slice();
        while let Some(&first) = left.first() {
            let begun = if first < self.submissions { self.copy_run(left, into) } else { 0 };
            if begun == 0 {
                into.push(None);
            }
            left = &left[begun.max(1)..];
        }
    }
    /// Copies the first of the entries at `indices`, and those that follow it in memory, up to the
    /// end of the page. Returns their number.
    fn copy_run(&self, indices: &[u32], into: &mut ArrayVec<Option<Submission>, AHEAD>) -> usize {
        let size = size_of::<Submission>();
        let first = indices[0];
        self.entries.read(first as usize * size, |bytes| {
            let entries = (first..self.submissions).zip(bytes.chunks_exact(size));
            let wanted = indices.iter().zip(entries).take_while(|(wanted, (index, _))| *wanted == index);
            let before = into.len();
            into.extend(wanted.map(|(_, (_, entry))| Submission::read_from_bytes(entry).ok()));
            into.len() - before
        })
    }
    /// Counts a submission that names an entry which does not exist.
    pub fn count_dropped(&self) {
        self.submission_ring.word(word::DROPPED, |dropped| dropped.fetch_add(1, Ordering::Relaxed));
    }

    /// Returns the position up to which the program has taken completions.
    pub fn completion_head(&self) -> u32 {
        self.completion_ring.load(word::HEAD)
    }
    /// Puts as many of `completions` as there is room for at `tail`, and publishes them.
    pub fn put_completions(&self, tail: u32, completions: &[Completion]) -> Put {
        let slot = tail & (self.completions - 1);
        let start = word::ARRAY + slot as usize * size_of::<Completion>();
        let end = start + size_of_val(completions);
        if end <= PAGE_SIZE && slot as usize + completions.len() <= self.completions as usize {
            return self.completion_ring.write(0, |bytes| {
                let put = self.room(tail, word_in(bytes, word::HEAD), completions.len());
                let part = completions[..put.count as usize].as_bytes();
                bytes[start..start + part.len()].copy_from_slice(part);
                word_in(bytes, word::TAIL).store(tail.wrapping_add(put.count), Ordering::Release);
                put
            });
        }
        let all = self.completion_ring.word(word::HEAD, |head| self.room(tail, head, completions.len()));
        let mut put = 0;
        while put < all.count as usize {
            put += self.put_part(tail.wrapping_add(put as u32), &completions[put..all.count as usize]);
        }
        self.completion_ring.store(word::TAIL, tail.wrapping_add(all.count));
        all
    }
    /// Returns how many of `wanted` completions there is room for at `tail`, if the program has
    /// taken those before `head`.
    fn room(&self, tail: u32, head: &AtomicU32, wanted: usize) -> Put {
        // An impossible head is treated like a full ring.
        let used = tail.wrapping_sub(head.load(Ordering::Acquire)).min(self.completions);
        let count = wanted.min((self.completions - used) as usize) as u32;
        Put { count, available: used + count }
    }
    /// Puts the first completions, up to the end of the page and of the ring. Returns their number.
    fn put_part(&self, position: u32, completions: &[Completion]) -> usize {
        let slot = position & (self.completions - 1);
        let to_end = (self.completions - slot) as usize;
        let size = size_of::<Completion>();
        self.completion_ring.write(word::ARRAY + slot as usize * size, |bytes| {
            let part = completions.len().min(to_end).min(bytes.len() / size);
            bytes[..part * size].copy_from_slice(completions[..part].as_bytes());
            part
        })
    }
    /// Counts a lost completion.
    pub fn count_overflow(&self) {
        self.completion_ring.word(word::FLAGS, |overflow| overflow.fetch_add(1, Ordering::Relaxed));
    }
    /// Shows the program whether completions wait for room.
    pub fn show_backlog(&self, backlog: Backlog) {
        let flags = match backlog {
            Backlog::Empty => 0,
            Backlog::Waits => c::IORING_SQ_CQ_OVERFLOW,
        };
        self.submission_ring.store(word::FLAGS, flags);
    }
}

/// Loads the words of `bytes`, which contains whole words only.
fn load_indices(bytes: &mut [u8], into: &mut ArrayVec<u32, AHEAD>) {
    let words = <[AtomicU32]>::mut_from_bytes(bytes).expect("offsets are multiples of 4");
    into.extend(words.iter().map(|word| word.load(Ordering::Acquire)));
}

/// Result of putting completions into their ring.
#[derive(Clone, Copy, Default)]
pub struct Put {
    /// Number of completions that were put.
    pub count: u32,
    /// Number of completions in the ring now, including the new ones.
    pub available: u32,
}

/// Whether completions wait for room in their ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backlog {
    /// No completion waits.
    Empty,
    /// Some completions wait.
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
    /// Fills in the results of setup: sizes, features and the offsets of the words.
    pub fn describe(&mut self, rings: &SharedRings, features: u32) {
        self.submissions = rings.submissions();
        self.completions = rings.completions();
        self.features = features;
        // head, tail, ring_mask, ring_entries, flags, dropped, array, reserved, user address
        self.submission_offsets = offsets([
            word::HEAD,
            word::TAIL,
            word::MASK,
            word::ENTRIES,
            word::FLAGS,
            word::DROPPED,
            word::ARRAY,
        ]);
        // head, tail, ring_mask, ring_entries, overflow, cqes, flags, reserved, user address
        self.completion_offsets = offsets([
            word::HEAD,
            word::TAIL,
            word::MASK,
            word::ENTRIES,
            word::FLAGS,
            word::ARRAY,
            word::DROPPED,
        ]);
    }

    /// Returns the requested sizes of the rings: submissions and completions.
    ///
    /// # Errors
    /// `EINVAL` for 0, for more than the limit (unless sizes are to be clamped), and for fewer
    /// completions than submissions.
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

/// Returns the offsets of a ring's words as programs see them: the rest is 0.
fn offsets(words: [usize; 7]) -> [u32; 10] {
    let [a, b, c, d, e, f, g] = words.map(|at| at as u32);
    [a, b, c, d, e, f, g, 0, 0, 0]
}

const _: () = assert!(size_of::<Submission>() == size_of::<c::io_uring_sqe>());
const _: () = assert!(size_of::<Parameters>() == size_of::<c::io_uring_params>());
