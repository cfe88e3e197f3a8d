//! The requests of one disk: which task may send one, and how far each is.
//!
//! **Protocol.** A task takes a *place* first and memory second, so tasks that wait hold no memory.
//! There are [`DEPTH`] places. A task that finds none free, or finds others waiting, joins the
//! queue. A place that becomes free is *granted* to the queue, and one waiting task is woken for
//! it; a newcomer cannot take a granted place without queueing. All of it happens under the disk's
//! lock; tasks are woken after it is released ([`Requests::take_wakes`]), in the order in which
//! they came. A wake-up, from a grant or from an interrupt that woke no other task, may reach a
//! task that has just got its place and is still in the line. So a task that has waited for a
//! place, and has left the line, checks the ring once more and wakes one task while grants are left
//! ([`Requests::leave`]). A task that ends another wait without success looks at the ring, too.
//! Linux' nearest relative is the tag allocation of blk-mq (`blk_mq_get_tag`).
//!
//! **Places are taken in turn**, so that the next request has a different status byte. A device
//! that answers a request twice may complete another request that it has not done. That request's
//! status byte then still holds [`NO_STATUS`], which is no valid status, so the protocol violation
//! is noticed. If the next request used the same place, the late status of the previous request
//! would be taken for its own.
//!
//! **The end.** A device that leaves its slot ([`Requests::remove`]) has no more memory: requests
//! fail, the spare buffer is freed, and all tasks are woken. A task gets no place after that, and
//! takes memory with a place only, so once all places are free ([`Requests::is_quiet`]), no task
//! has or will get memory of the device.
//!
//! **Invariant** ([`Requests::validate`]). granted ≤ waiting, granted ≤ free places.

use alloc::sync::Arc;
use core::sync::atomic::{Ordering, fence};

use freehold_bounce::{Device, Direction, DmaMapping, DmaSource};
use freehold_virtqueue::{Chain, DeviceReset, Part, PartMemory, PowerSlot, Queue, Transport};

use super::write_cache::WriteCache;
use super::{DEPTH, HEADER, LAST_STATUS, NO_STATUS, RING, RequestKind, STATUS};
use freehold_machine::PAGE_SIZE;

use crate::link::{Lent, Link, Why};
use crate::{BlockError, Failed, SECTOR_SIZE, SetupError};

const _: () = assert!(DEPTH <= u16::BITS as usize, "a bit for each place");

/// Bytes of the spare buffer: a size that every disk can always transfer, even if memory is short.
pub(super) const SPARE: usize = 4096;

/// State of a place's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RequestState {
    /// The place is free.
    Free,
    /// A task has the place; the device has no request of it.
    Held,
    /// With the device; a task waits for it.
    Pending,
    /// With the device; its task no longer waits for it, but still has the place.
    Abandoned,
    /// With the device; no task has the place.
    Orphaned,
    /// Back from the device; bytes that it wrote, and its status.
    Done(usize, u8),
}

/// Memory for one request's bytes, and how much of it the request uses.
pub(super) struct Buffer<S: DmaSource> {
    pub memory: PartMemory<S>,
    pub length: usize,
}

impl<S: DmaSource> Buffer<S> {
    /// Returns the mapping whose bytes have to be copied; `None` if the device accesses the frames
    /// directly.
    pub fn bounced(&self) -> Option<&DmaMapping<S>> {
        match &self.memory {
            PartMemory::Bounced(mapping) => Some(mapping),
            PartMemory::InPlace(_) => None,
        }
    }
}

/// The device's limits for the descriptors of a request's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Segments {
    /// Largest number of descriptors (seg_max).
    pub most: usize,
    /// Largest number of bytes of one descriptor (size_max).
    pub length: usize,
}

impl Segments {
    /// Returns the largest number of bytes of a direct transfer, which is one piece: whole pages.
    pub const fn in_place(self) -> usize {
        self.most.saturating_mul(self.length) / PAGE_SIZE * PAGE_SIZE
    }
    /// Returns how many of a mapping's bytes fit in one request: whole sectors.
    pub fn fit<S: DmaSource>(self, mapping: &DmaMapping<S>) -> usize {
        if mapping.one_piece(0..mapping.len()).is_some_and(|piece| piece.length <= self.length) {
            return mapping.len() / SECTOR_SIZE * SECTOR_SIZE;
        }
        let (mut left, mut bytes) = (self.most, 0);
        for piece in mapping.pieces(0..mapping.len()) {
            let length = piece.length.min(left.saturating_mul(self.length));
            left -= length.div_ceil(self.length);
            bytes += length;
            if length < piece.length || left == 0 {
                break;
            }
        }
        bytes / SECTOR_SIZE * SECTOR_SIZE
    }
}

/// Tasks to wake once the lock is released.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Wakes {
    /// Number of grants: each wakes one waiting task.
    pub turns: usize,
    /// Memory was freed for which some task waits.
    pub memory: bool,
    /// The device failed or is silent: all tasks are woken.
    pub all: bool,
}

/// Memory that is lent to the device.
struct Rings<S: DmaSource> {
    queue: Queue<S, RING>,
    headers: Arc<DmaMapping<S>>,
    segments: Segments,
}

impl<S: DmaSource> Lent for Rings<S> {
    fn reclaim(&mut self, proof: &DeviceReset) {
        self.queue.reclaim(proof);
    }
    fn lose(&mut self) -> usize {
        // The headers count as memory in flight.
        self.queue.lose()
    }
}

/// See the module's head.
pub(super) struct Requests<S: DmaSource, T: Transport> {
    link: Link<S, T, Rings<S>>,
    name: &'static str,
    states: [RequestState; DEPTH],
    /// The places whose request is a write, a bit each.
    writes: u16,
    /// State of the device's write cache.
    pub cache: WriteCache,
    /// Where the search for a free place begins: after the one taken last.
    next: usize,
    waiting: usize,
    granted: usize,
    /// Requests that the device has answered, late ones too.
    answers: u64,
    /// Whether the device has answered nothing for the length of a time-out.
    is_silent: bool,
    /// The spare buffer, taken at start-up and kept, so that a request can always be made. `None`:
    /// the device has failed or left its slot.
    spare: Option<Arc<DmaMapping<S>>>,
    /// Largest number of the spare buffer's bytes that the device takes in one request.
    spare_length: usize,
    /// Tasks that have a place and wait for memory.
    starving: usize,
    wakes: Wakes,
}

impl<S: DmaSource, T: Transport> Requests<S, T> {
    /// Takes all memory that the disk needs to make progress, then starts the device. No step fails
    /// after the device knows of memory.
    pub fn new(mut transport: T, device: Device<S>, segments: Segments) -> Result<Self, SetupError> {
        let headers = Arc::new(device.buffer(DEPTH * HEADER, Direction::Bidirectional)?);
        let spare = Arc::new(device.buffer(SPARE, Direction::Bidirectional)?);
        let queue = Queue::new(&mut transport, 0, device)?;
        transport.finish_init();
        Ok(Self {
            link: Link::new(transport, device, Rings { queue, headers, segments }),
            name: device.rules().name,
            states: [RequestState::Free; DEPTH],
            writes: 0,
            cache: WriteCache::new(),
            next: 0,
            waiting: 0,
            granted: 0,
            answers: 0,
            is_silent: false,
            spare_length: segments.fit(&spare),
            spare: Some(spare),
            starving: 0,
            wakes: Wakes::default(),
        })
    }

    /// Requests that the device has answered.
    pub fn answers(&self) -> u64 {
        self.answers
    }

    /// Returns the tasks to wake, if any. The caller wakes them after it has released the lock.
    pub fn take_wakes(&mut self) -> Option<Wakes> {
        let Wakes { turns, memory, all } = self.wakes;
        (turns > 0 || memory || all).then(|| core::mem::take(&mut self.wakes))
    }

    /// Takes a place; `None` if the task has to wait for one. `is_queued` is the task's own note,
    /// false at first. If the note was set, the task must call [`Self::leave`] in the end.
    ///
    /// # Errors
    /// The device failed or is silent; the task is then in no queue.
    pub fn take_place(&mut self, is_queued: &mut bool) -> Result<Option<usize>, BlockError> {
        let mut usable = self.check();
        if *is_queued || self.first_free().is_none() {
            usable = usable.and_then(|()| self.reap());
        }
        if let Err(error) = usable {
            self.leave(is_queued);
            return Err(error);
        }
        if !*is_queued {
            if self.waiting > 0 || self.first_free().is_none() {
                *is_queued = true;
                self.waiting += 1;
                self.grant();
                return Ok(None);
            }
        } else if self.granted == 0 {
            return Ok(None);
        } else {
            (self.waiting, self.granted, *is_queued) = (self.waiting - 1, self.granted - 1, false);
        }
        let number = self.first_free();
        if let Some(number) = number {
            self.states[number] = RequestState::Held;
            self.next = (number + 1) % DEPTH;
        }
        Ok(number)
    }

    /// Notes that the queued task has left the line of sleepers, with a place or without.
    pub fn leave(&mut self, is_queued: &mut bool) {
        if core::mem::take(is_queued) {
            self.waiting -= 1;
            self.granted = self.granted.min(self.waiting);
        }
        // A device that failed wakes all.
        let _ = self.reap();
        self.wakes.turns += usize::from(self.granted > 0);
    }

    /// Ends the task's use of its place; the place is freed unless the device still has its
    /// request.
    pub fn release(&mut self, number: usize) {
        if self.states[number] == RequestState::Abandoned {
            self.states[number] = RequestState::Orphaned;
        }
        let is_back = matches!(self.states[number], RequestState::Held | RequestState::Done(..));
        // A device that failed, or has left its slot, has no requests.
        if is_back || self.link.is_failed() {
            self.states[number] = RequestState::Free;
            self.grant();
        }
        self.wakes.memory |= self.starving > 0;
    }

    fn first_free(&self) -> Option<usize> {
        (self.next..DEPTH).chain(0..self.next).find(|&number| self.states[number] == RequestState::Free)
    }
    fn free(&self) -> usize {
        self.states.iter().filter(|&&state| state == RequestState::Free).count()
    }

    /// Gives free places to tasks that wait.
    fn grant(&mut self) {
        if self.waiting == self.granted {
            return;
        }
        let grants = self.free().min(self.waiting).saturating_sub(self.granted);
        self.granted += grants;
        self.wakes.turns += grants;
    }

    /// Notes that a task with a place begins to wait for memory.
    pub fn begin_starving(&mut self) {
        self.starving += 1;
    }
    /// Notes that a task no longer waits for memory.
    pub fn end_starving(&mut self) {
        self.starving -= 1;
    }

    /// Returns the spare buffer; `None` while a request uses it.
    ///
    /// # Errors
    /// The device failed or is silent.
    pub fn spare(&mut self, length: usize) -> Result<Option<Buffer<S>>, BlockError> {
        self.check()?;
        self.reap()?;
        Ok(self.idle_spare(length))
    }

    /// Returns the spare buffer if no request uses it, as far as is known without checking the
    /// ring.
    pub fn idle_spare(&mut self, length: usize) -> Option<Buffer<S>> {
        // Only this code makes clones, and they are dropped without a lock. So a clone that is seen
        // here is in use or was just used.
        let spare = self.spare.as_ref()?;
        if Arc::strong_count(spare) > 1 {
            return None;
        }
        // The last user of the spare buffer is done with its bytes.
        fence(Ordering::Acquire);
        spare.begin_again();
        Some(Buffer { memory: spare.clone().into(), length: length.min(self.spare_length) })
    }

    /// Whether the device can be sent requests.
    ///
    /// # Errors
    /// It failed or is silent.
    pub fn check(&mut self) -> Result<(), BlockError> {
        self.link.lent()?;
        if self.is_silent {
            self.reap()?;
        }
        if self.is_silent {
            // The driver may have missed a notice.
            self.link.transport.notify(0);
            return Err(BlockError::TimedOut);
        }
        Ok(())
    }

    /// Gives the request of a place to the device; `false` if the ring has no room for it now.
    pub fn send(
        &mut self,
        number: usize,
        kind: RequestKind,
        sector: u64,
        data: Option<&Buffer<S>>,
    ) -> Result<bool, BlockError> {
        self.check()?;
        // Answers received meanwhile make room. A protocol violation is noticed before the device
        // gets more.
        self.reap()?;
        let (rings, transport) = self.link.lent()?;
        let chain = rings.chain(kind, number, data).ok_or(BlockError::OutOfRange)?;
        if chain.descriptors() > rings.queue.room() {
            return Ok(false);
        }
        let at = number * HEADER;
        let mut header = [0; STATUS + 1];
        header[..4].copy_from_slice(&(kind as u32).to_le_bytes());
        header[8..16].copy_from_slice(&sector.to_le_bytes());
        header[STATUS] = NO_STATUS;
        rings.headers.write(at, &header);
        if rings.queue.submit(chain).is_err() {
            // The check above found room.
            self.fail();
            return Err(BlockError::Failed);
        }
        if rings.queue.wants_notice() {
            transport.notify(0);
        }
        self.states[number] = RequestState::Pending;
        let bit = 1 << number;
        self.writes = if kind == RequestKind::Out { self.writes | bit } else { self.writes & !bit };
        Ok(true)
    }

    /// Gathers the requests that the device has given back.
    pub fn reap(&mut self) -> Result<(), BlockError> {
        loop {
            let (rings, _) = self.link.lent()?;
            match rings.queue.complete() {
                Ok(None) => return Ok(()),
                Ok(Some(done)) => {
                    let number = done.tag;
                    let mut status = [NO_STATUS];
                    rings.headers.read(number * HEADER + STATUS, &mut status);
                    if status[0] > LAST_STATUS {
                        self.fail();
                        return Err(BlockError::Failed);
                    }
                    self.answered(number, done.written, status[0]);
                }
                Err(_) => {
                    self.fail();
                    return Err(BlockError::Failed);
                }
            }
        }
    }

    fn answered(&mut self, number: usize, written: usize, status: u8) {
        match self.states[number] {
            RequestState::Pending => self.states[number] = RequestState::Done(written, status),
            // The request's task is about to release it.
            RequestState::Abandoned => self.states[number] = RequestState::Held,
            _ => {
                self.states[number] = RequestState::Free;
                self.wakes.memory |= self.starving > 0;
                self.grant();
            }
        }
        if self.writes & 1 << number != 0 {
            self.cache.count_write();
        }
        self.answers += 1;
        if self.is_silent {
            self.is_silent = false;
            log::warn!("{}: the device answers again", self.name);
        }
    }

    /// Returns the outcome of a request that a task waits for; `None` while it is with the device.
    pub fn finished(&mut self, number: usize) -> Option<Result<(usize, u8), BlockError>> {
        let done = |state| match state {
            RequestState::Done(written, status) => Some(Ok((written, status))),
            _ => None,
        };
        done(self.states[number]).or_else(|| {
            let reaped = self.reap();
            done(self.states[number]).or(reaped.err().map(Err))
        })
    }

    /// Returns the outcome of a request whose task stops waiting for the reason `error`. The
    /// request may have been completed at the last moment. Otherwise the device keeps its place and
    /// memory until it answers.
    pub fn abandon(&mut self, number: usize, error: BlockError) -> Result<(usize, u8), BlockError> {
        if let Some(done) = self.finished(number) {
            return done;
        }
        self.states[number] = RequestState::Abandoned;
        Err(error)
    }

    /// Notes that a task's wait has timed out. `before` is the number of answers when it began to
    /// wait. Returns whether the device answered other requests meanwhile.
    pub fn late(&mut self, before: u64) -> bool {
        if before != self.answers {
            return true;
        }
        if !self.is_silent {
            self.is_silent = true;
            self.wakes.all = true;
            log::error!("{}: the device does not answer: requests fail until it does", self.name);
        }
        false
    }

    /// Fails all requests of a device that leaves its slot, and wakes all tasks for that. See
    /// [`VirtioBlock::remove`](super::VirtioBlock::remove).
    pub fn remove(&mut self, slot: &dyn PowerSlot) -> Result<(), Failed> {
        self.link.remove(slot)?;
        self.spare = None;
        let orphaned = self.states.iter_mut().filter(|state| **state == RequestState::Orphaned);
        orphaned.for_each(|state| *state = RequestState::Free);
        self.wakes.all = true;
        Ok(())
    }

    /// Whether the device has failed or left its slot, and no task has a place: then no task takes
    /// memory any more.
    pub fn is_quiet(&self) -> bool {
        self.spare.is_none() && self.free() == DEPTH
    }

    fn fail(&mut self) {
        self.link.fail(Why::BrokeTheProtocol);
        // No request is made any more.
        self.spare = None;
        self.wakes.all = true;
    }

    /// Checks the invariant.
    #[cfg(test)]
    pub fn validate(&self) {
        assert!(self.granted <= self.waiting && self.granted <= self.free());
    }
    /// Places that are free.
    #[cfg(test)]
    pub fn free_places(&self) -> usize {
        self.free()
    }
    /// Tasks that wait for a place.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.waiting
    }
}

impl<S: DmaSource> Rings<S> {
    fn chain(&self, kind: RequestKind, number: usize, data: Option<&Buffer<S>>) -> Option<Chain<S>> {
        let at = number * HEADER;
        let header = Part::readable(self.headers.clone(), at..at + STATUS)?;
        let status = Part::writable(self.headers.clone(), at + STATUS..at + STATUS + 1)?;
        let Some(data) = data else { return Chain::new(number, [header, status]) };
        let (memory, range) = (data.memory.clone(), 0..data.length);
        let data = match kind {
            RequestKind::In => Part::writable(memory, range)?,
            _ => Part::readable(memory, range)?,
        };
        let data = data.in_segments(self.segments.length);
        Chain::new(number, [header, data, status])
    }
}
