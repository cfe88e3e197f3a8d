//! The requests of one device of messages: which task may send one, and how far each is.
//!
//! **Protocol.** A task has a place from before it sends until it has read the answer. A place's
//! number is its request's tag, so a tag is used again only after the device gave the request's
//! chain back. A task that is killed while the device has its request leaves it *abandoned*: a
//! Tflush with a tag of its own ([`DEPTH`] more) goes after it, and the place is free when the
//! device has given back both. [`MessagePlaces::take_ended`] then returns the task's note on the
//! request, if there is one; until it has, no task gets the place, so that no note is lost. The
//! task that takes notes needs no place for that, and is woken for each. The driver needs nothing
//! from Rflush: the chain itself comes back, whether the server had done the request or gave it up
//! (QEMU then gives it back empty).
//!
//! Everything happens under the device's lock; waiting tasks are woken after it is released
//! ([`MessagePlaces::take_wakes`]).

use alloc::sync::Arc;

use freehold_bounce::{Device, Direction, DmaMapping, DmaSource, Original, OriginalMut};
use freehold_ninep::{
    DATA_HEADER, MAX_REPLY, MAX_REQUEST, NO_TAG, NinepRequest, Outcome, TAG_AT, TVERSION, check, count,
};
use freehold_virtqueue::{Chain, Part, Queue, Transport};

use super::DEPTH;
use crate::link::{Link, Why};
use crate::{Data, Exchange, MessageError, SetupError};

/// Descriptors in the ring, a power of two: a request takes three to five, and twenty where its
/// memory is in pieces.
const RING: usize = 64;
/// Layout of a place's own memory: its message, the answer, data where there is no other memory,
/// and a Tflush.
const REPLY_AT: usize = MAX_REQUEST;
const BULK_AT: usize = 9216;
const OWN_BULK: usize = 4096;
const FLUSH_AT: usize = BULK_AT + OWN_BULK;
const FLUSH: usize = 16;
const PLACE: usize = FLUSH_AT + 2 * FLUSH;
const _: () = assert!(REPLY_AT + MAX_REPLY <= BULK_AT);

/// State of a place's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// The place is free, except for a Tflush.
    Free,
    /// A task has the place; the device has no request of it.
    Held,
    /// With the device; a task waits for it.
    Pending,
    /// With the device; no task waits any more. Holds the task's note for
    /// [`MessagePlaces::take_ended`].
    Abandoned(Option<u32>),
    /// Back from the device; bytes that it wrote.
    Done(usize),
}

struct Place<S: DmaSource> {
    state: State,
    /// The device has a Tflush for its last request.
    flushed: bool,
    memory: Arc<DmaMapping<S>>,
}

/// Memory for a request's data.
pub(super) struct Bulk<S: DmaSource> {
    pub mapping: Arc<DmaMapping<S>>,
    pub start: usize,
    pub length: usize,
}

impl<S: DmaSource> Bulk<S> {
    /// Copies the bytes in.
    pub fn fill(&self, bytes: &dyn Original) {
        self.mapping.sync_part_for_device(bytes, 0, self.start, self.length);
    }
    /// Copies the first `length` bytes out.
    pub fn empty(&self, to: &mut dyn OriginalMut, length: usize) {
        self.mapping.sync_part_for_cpu(to, 0, self.start, length.min(self.length));
    }
    fn range(&self) -> core::ops::Range<usize> {
        self.start..self.start + self.length
    }
}

/// An answer whose header was looked at.
pub(super) struct Finished {
    /// The answer.
    pub outcome: Outcome,
    /// Bytes of data that came with it.
    pub data: usize,
}

/// Tasks to be woken once the lock is released.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct MessageWakes {
    /// So many of those that wait for a place.
    pub turns: usize,
    /// All: the device is out of use.
    pub all: bool,
    /// The task that takes notes: there is one.
    pub ended: bool,
}

/// See the module's head.
pub(super) struct MessagePlaces<S: DmaSource, T: Transport> {
    link: Link<S, T, Queue<S, RING>>,
    places: [Place<S>; DEPTH],
    /// Tasks that wait for a place.
    waiting: usize,
    /// Notes of abandoned requests that are over, by place.
    ended: [Option<u32>; DEPTH],
    wakes: MessageWakes,
}

impl<S: DmaSource, T: Transport> MessagePlaces<S, T> {
    /// Takes all memory that requests need, then tells the device. No step fails after the device
    /// knows of memory.
    pub fn new(mut transport: T, device: Device<S>) -> Result<Self, SetupError> {
        let mut memory = [const { None }; DEPTH];
        for place in &mut memory {
            *place = Some(Arc::new(device.buffer(PLACE, Direction::Bidirectional)?));
        }
        let queue = Queue::new(&mut transport, 0, device)?;
        transport.finish_init();
        let places = memory.map(|memory| Place {
            state: State::Free,
            flushed: false,
            memory: memory.expect("all were made"),
        });
        let link = Link::new(transport, device, queue);
        Ok(Self { link, places, waiting: 0, ended: [None; DEPTH], wakes: MessageWakes::default() })
    }

    /// Returns the tasks that have to be woken.
    pub fn take_wakes(&mut self) -> MessageWakes {
        core::mem::take(&mut self.wakes)
    }

    /// Lets one more of the tasks that wait for a place check again, if there is one.
    fn wake_turn(&mut self) {
        self.wakes.turns += usize::from(self.waiting > 0);
    }

    /// Takes a free place; `None` where the task has to wait for one. The task is counted as
    /// waiting until it [leaves](Self::leave).
    pub fn take(&mut self, is_counted: &mut bool) -> Result<Option<usize>, MessageError> {
        self.reap()?;
        let is_free = |(place, note): (&Place<S>, &Option<u32>)| {
            place.state == State::Free && !place.flushed && note.is_none()
        };
        let number = self.places.iter().zip(&self.ended).position(is_free);
        if let Some(number) = number {
            self.places[number].state = State::Held;
        } else if !core::mem::replace(is_counted, true) {
            self.waiting += 1;
        }
        Ok(number)
    }

    /// Notes that the task no longer waits for a place.
    pub fn leave(&mut self, is_counted: &mut bool) {
        if core::mem::take(is_counted) {
            self.waiting -= 1;
            // The wake-up that the task had may have been meant for another task.
            self.wake_turn();
        }
    }

    /// Frees the place of a task that is done, unless the device still has its request.
    pub fn release(&mut self, number: usize) {
        let state = &mut self.places[number].state;
        if matches!(state, State::Held | State::Done(_)) {
            *state = State::Free;
            self.wake_turn();
        }
    }

    /// A place's own memory for data.
    pub fn own_bulk(&self, number: usize, length: usize) -> Bulk<S> {
        Bulk { mapping: self.places[number].memory.clone(), start: BULK_AT, length: length.min(OWN_BULK) }
    }

    /// Gives the request of a place to the device; `false` where the ring has no room for it now.
    pub fn send(
        &mut self,
        number: usize,
        exchange: &mut Exchange<'_, '_>,
        bulk: Option<&Bulk<S>>,
    ) -> Result<bool, MessageError> {
        self.reap()?;
        let memory = &self.places[number].memory;
        let chain = chain(memory, number, exchange, bulk).ok_or(MessageError::TooLong)?;
        let (queue, _) = self.link.lent()?;
        if chain.descriptors() > queue.room() {
            return Ok(false);
        }
        let tag = if exchange.request[TAG_AT - 1] == TVERSION { NO_TAG } else { number as u16 };
        exchange.request[TAG_AT..TAG_AT + 2].copy_from_slice(&tag.to_le_bytes());
        if let Some(bulk) = bulk {
            let sent = if matches!(exchange.data, Data::Sent(_)) { bulk.length } else { 0 };
            let end = exchange.request.len();
            exchange.request[..4].copy_from_slice(&((end + sent) as u32).to_le_bytes());
            exchange.request[end - 4..].copy_from_slice(&(bulk.length as u32).to_le_bytes());
        }
        memory.write(0, exchange.request);
        // The rest of an earlier answer must not pass for this request's answer.
        memory.write(REPLY_AT, &[0; DATA_HEADER]);
        self.submit(chain)?;
        self.places[number].state = State::Pending;
        Ok(true)
    }

    fn submit(&mut self, chain: Chain<S>) -> Result<(), MessageError> {
        let (queue, transport) = self.link.lent()?;
        if queue.submit(chain).is_err() {
            // There was room.
            self.fail();
            return Err(MessageError::Failed);
        }
        if queue.wants_notice() {
            transport.notify(0);
        }
        Ok(())
    }

    /// Gathers the chains that the device has given back.
    fn reap(&mut self) -> Result<(), MessageError> {
        loop {
            let (queue, _) = self.link.lent()?;
            match queue.complete() {
                Ok(None) => return Ok(()),
                Ok(Some(done)) => self.is_back(done.tag, done.written),
                Err(_) => {
                    self.fail();
                    return Err(MessageError::Failed);
                }
            }
        }
    }

    fn is_back(&mut self, tag: usize, written: usize) {
        let number = tag % DEPTH;
        let place = &mut self.places[number];
        match place.state {
            _ if tag >= DEPTH => place.flushed = false,
            State::Abandoned(left) => {
                place.state = State::Free;
                self.ended[number] = left;
                self.wakes.ended |= left.is_some();
            }
            _ => place.state = State::Done(written),
        }
        if place.state == State::Free {
            self.wake_turn();
        }
    }

    /// Returns how many bytes the device wrote for a request that a task waits for; `None` while
    /// the device has it.
    pub fn finished(&mut self, number: usize) -> Result<Option<usize>, MessageError> {
        let done = |state| if let State::Done(written) = state { Some(written) } else { None };
        if let Some(written) = done(self.places[number].state) {
            return Ok(Some(written));
        }
        let reaped = self.reap();
        // A whole answer counts also where the device has failed since.
        done(self.places[number].state).map_or(reaped.map(|()| None), |written| Ok(Some(written)))
    }

    /// Notes that the task no longer waits for its request. If the request is done at the last
    /// moment, this changes nothing.
    pub fn abandon(&mut self, number: usize, left: Option<u32>) -> Result<usize, MessageError> {
        if let Some(written) = self.finished(number)? {
            return Ok(written);
        }
        self.places[number].state = State::Abandoned(left);
        self.flush(number);
        Err(MessageError::Abandoned)
    }

    /// Asks the server to give a request up. If the ring has no room, the request takes its time.
    fn flush(&mut self, number: usize) {
        let memory = &self.places[number].memory;
        let mut bytes = [0; FLUSH];
        let Some(message) = NinepRequest::Flush(number as u16).encode(&mut bytes) else { return };
        message[TAG_AT..TAG_AT + 2].copy_from_slice(&((DEPTH + number) as u16).to_le_bytes());
        let length = memory.write(FLUSH_AT, message);
        let room = FLUSH_AT + FLUSH..FLUSH_AT + 2 * FLUSH;
        let parts = Part::readable(memory.clone(), FLUSH_AT..FLUSH_AT + length)
            .zip(Part::writable(memory.clone(), room));
        let Some(chain) = parts.and_then(|(message, room)| Chain::new(DEPTH + number, [message, room]))
        else {
            return;
        };
        let has_room = self.link.lent().is_ok_and(|(queue, _)| chain.descriptors() <= queue.room());
        if has_room {
            self.places[number].flushed = self.submit(chain).is_ok();
        }
    }

    /// Looks at the answer of a place, and copies it out.
    pub fn answer(
        &mut self,
        number: usize,
        written: usize,
        exchange: &mut Exchange<'_, '_>,
        bulk: Option<&Bulk<S>>,
    ) -> Result<Finished, MessageError> {
        let length = exchange.reply.len().min(written);
        let reply = &mut exchange.reply[..length];
        self.places[number].memory.read(REPLY_AT, reply);
        let tag = u16::from_le_bytes([exchange.request[TAG_AT], exchange.request[TAG_AT + 1]]);
        let kind = exchange.request[TAG_AT - 1];
        // Bytes after the room for the answer are data, or do not belong to us.
        let received = if matches!(exchange.data, Data::Received(_)) { written } else { length };
        let outcome = check(reply, received, kind, tag);
        let data = match (outcome, bulk, &exchange.data) {
            (Ok(Outcome::Done(size)), Some(bulk), Data::Received(_)) => {
                let said = reply.get(DATA_HEADER - 4..).and_then(count).map(|count| count as usize);
                said.filter(|&said| said <= bulk.length && size == DATA_HEADER + said)
            }
            (outcome, ..) => outcome.ok().map(|_| 0),
        };
        match (outcome, data) {
            (Ok(outcome), Some(data)) => Ok(Finished { outcome, data }),
            _ => {
                self.fail();
                Err(MessageError::Failed)
            }
        }
    }

    /// Returns the note on a request that its task abandoned and that is over now.
    pub fn take_ended(&mut self) -> Option<u32> {
        let _ = self.reap();
        // The caller looks until there is none.
        self.wakes.ended = false;
        let note = self.ended.iter_mut().find_map(Option::take)?;
        self.wake_turn();
        Some(note)
    }

    fn fail(&mut self) {
        self.link.fail(Why::BrokeTheProtocol);
        self.wakes.all = true;
    }
}

/// Message, data to be read, room for the answer, room for data: a request as the device sees it.
fn chain<S: DmaSource>(
    memory: &Arc<DmaMapping<S>>,
    number: usize,
    exchange: &Exchange<'_, '_>,
    bulk: Option<&Bulk<S>>,
) -> Option<Chain<S>> {
    if exchange.request.len() > MAX_REQUEST {
        return None;
    }
    let room = exchange.reply.len().clamp(DATA_HEADER, MAX_REPLY);
    let message = Part::readable(memory.clone(), 0..exchange.request.len())?;
    let answer = Part::writable(memory.clone(), REPLY_AT..REPLY_AT + room)?;
    match (bulk, &exchange.data) {
        (Some(bulk), Data::Sent(_)) => {
            let data = Part::readable(bulk.mapping.clone(), bulk.range())?;
            Chain::new(number, [message, data, answer])
        }
        (Some(bulk), _) => {
            let answer = Part::writable(memory.clone(), REPLY_AT..REPLY_AT + DATA_HEADER)?;
            let data = Part::writable(bulk.mapping.clone(), bulk.range())?;
            Chain::new(number, [message, answer, data])
        }
        (None, _) => Chain::new(number, [message, answer]),
    }
}
