//! A virtio-9p device, as a [`MessageDevice`]: messages to a file server of the host (virtio's 9P
//! transport is in Linux' net/9p/trans_virtio.c and QEMU's hw/9pfs; virtio 1.2 has its device
//! number only).
//!
//! Up to [`DEPTH`] requests are with the device at once; each task sleeps until the ring says that
//! its own is done. A request is one chain: message, data to be written, room for the answer, room
//! for data to be read.
//!
//! **Waiting.** A task takes a place first and memory second (`places.rs`). Tasks that wait for a
//! place have a line of their own, and a free place wakes the one that has waited longest: however
//! many wait, an answer wakes the [`DEPTH`] tasks that have a place and no more. Where the DMA API
//! has no memory for the data, a page of the place's own carries it, so a place is all that a task
//! ever waits for. There is no time-out, as on Linux: a server may take as long as it likes, and a
//! killed task leaves at once if it allowed that ([`Sleep::Killable`]). The device then keeps the
//! place until it has answered; Tflush asks it to be quick.
//!
//! **Protocol violations.** An answer that does not belong to the request, or longer than the
//! device says it wrote, breaks the protocol: the device is reset and stays out of use (`link.rs`).
//! The file system checks the rest of an answer after its header.

mod places;

use alloc::sync::Arc;
use alloc::vec::Vec;

use freehold_bounce::{Device, Direction, DmaError, DmaSource};
use freehold_ninep::Outcome;
use freehold_virtqueue::Transport;
use places::{Bulk, Finished, MessagePlaces, MessageWakes};
use spin::Mutex;

use crate::platform::{Lines, Notify, Sleep, Wait, Waited};
use crate::transport::{Features, negotiate, read_consistent};
use crate::{Data, Exchange, MessageDevice, MessageError, SetupError};

/// Requests that may be with the device at once.
pub const DEPTH: usize = 8;
/// The longest data of one message.
pub const MAX_DATA: usize = 128 << 10;
/// The longest tag.
const MAX_TAG: usize = 255;

/// A device of messages.
pub struct Messages<S: DmaSource, T: Transport> {
    /// Taken by tasks only, for as long as the ring is changed. Orders with no other lock.
    places: Mutex<MessagePlaces<S, T>>,
    lines: Lines,
    /// Is notified when [`MessageDevice::take_ended`] has an entry.
    ended: &'static dyn Notify,
    device: Device<S>,
    tag: Vec<u8>,
}

/// A task's place among the requests.
struct HeldPlace<'a, S: DmaSource, T: Transport> {
    messages: &'a Messages<S, T>,
    number: usize,
}

impl<S: DmaSource, T: Transport> Drop for HeldPlace<'_, S, T> {
    fn drop(&mut self) {
        self.messages.with(|places| places.release(self.number));
    }
}

/// Returns the device's name for its tree: a length of 2 bytes, and the bytes.
fn tag<T: Transport>(transport: &T, features: Features) -> Result<Vec<u8>, SetupError> {
    if !features.contains(Features::P9_TAG) {
        return Err(SetupError::Nonsense("tag"));
    }
    let mut tag = Vec::new();
    tag.try_reserve_exact(MAX_TAG).map_err(|_| SetupError::Memory(DmaError::OutOfMemory))?;
    let told = read_consistent(transport, |transport| {
        let length: u16 = transport.read_config_space(0)?;
        let mut bytes = [0; MAX_TAG];
        for (at, byte) in bytes.iter_mut().enumerate().take(usize::from(length)) {
            *byte = transport.read_config_space(2 + at)?;
        }
        Ok((usize::from(length), bytes))
    })?;
    match told {
        (length @ 1..=MAX_TAG, bytes) if !bytes[..length].contains(&0) => {
            tag.extend_from_slice(&bytes[..length])
        }
        _ => return Err(SetupError::Nonsense("tag")),
    }
    Ok(tag)
}

impl<S: DmaSource, T: Transport> Messages<S, T> {
    /// Start the device, whose transport's interrupt notifies `lines`. `ended` is notified, without
    /// a lock of the device, when a request is over that its task has abandoned with a note: the
    /// place of the request is free once [`MessageDevice::take_ended`] has returned the note.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn new(
        mut transport: T,
        device: Device<S>,
        lines: Lines,
        ended: &'static dyn Notify,
    ) -> Result<Self, SetupError> {
        let features = negotiate(&mut transport, Features::P9_TAG)?;
        let tag = tag(&transport, features)?;
        let places = Mutex::new(MessagePlaces::new(transport, device)?);
        Ok(Self { places, lines, ended, device, tag })
    }

    /// Calls `f` with the lock held. Wakes waiting tasks once it is released, if they have a
    /// reason.
    fn with<R>(&self, f: impl FnOnce(&mut MessagePlaces<S, T>) -> R) -> R {
        let (result, wakes) = {
            let mut places = self.places.lock();
            (f(&mut places), places.take_wakes())
        };
        self.wake(wakes);
        result
    }

    fn wake(&self, MessageWakes { turns, all, ended }: MessageWakes) {
        if all {
            self.lines.turns.notify();
            self.lines.answers.notify();
        } else {
            (0..turns).for_each(|_| self.lines.turns.notify_one());
        }
        if ended {
            self.ended.notify();
        }
    }

    /// Sleeps on `line` until `look` gives a value.
    fn wait<R>(
        &self,
        line: &'static dyn Wait,
        sleep: Sleep,
        mut look: impl FnMut(&mut MessagePlaces<S, T>) -> Result<Option<R>, MessageError>,
    ) -> Result<R, MessageError> {
        loop {
            let mut seen = Ok(None);
            let waited = line.wait_until(u64::MAX, sleep, &mut || {
                seen = self.with(&mut look);
                !matches!(seen, Ok(None))
            });
            match (seen?, waited) {
                (Some(value), _) => return Ok(value),
                (None, Waited::Killed) => return Err(MessageError::Killed),
                (None, _) => {}
            }
        }
    }

    fn hold(&self, sleep: Sleep) -> Result<HeldPlace<'_, S, T>, MessageError> {
        let mut is_counted = false;
        let taken = self.wait(self.lines.turns, sleep, |places| places.take(&mut is_counted));
        self.with(|places| places.leave(&mut is_counted));
        Ok(HeldPlace { messages: self, number: taken? })
    }

    /// Memory for the data of a request: as much as can be had, or the place's own.
    fn bulk(&self, held: &HeldPlace<'_, S, T>, data: &Data<'_>) -> Option<Bulk<S>> {
        let (length, direction) = match data {
            Data::None => return None,
            Data::Sent(bytes) => (bytes.length(), Direction::ToDevice),
            Data::Received(bytes) => (bytes.length(), Direction::FromDevice),
        };
        let length = length.min(MAX_DATA);
        let bulk = match self.device.buffer_up_to(length, direction) {
            Ok(mapping) => {
                let length = length.min(mapping.len());
                Bulk { mapping: Arc::new(mapping), start: 0, length }
            }
            Err(_) => {
                self.device.count_wait();
                self.with(|places| places.own_bulk(held.number, length))
            }
        };
        if let Data::Sent(bytes) = data {
            bulk.fill(*bytes);
        }
        Some(bulk)
    }
}

impl<S, T> MessageDevice for Messages<S, T>
where
    S: DmaSource,
    T: Transport + Send,
{
    fn tag(&self) -> &[u8] {
        &self.tag
    }

    fn exchange(&self, exchange: &mut Exchange<'_, '_>, sleep: Sleep) -> Result<usize, MessageError> {
        let held = self.hold(sleep)?;
        let number = held.number;
        let bulk = self.bulk(&held, &exchange.data);
        let answers = self.lines.answers;
        self.wait(answers, sleep, |places| Ok(places.send(number, exchange, bulk.as_ref())?.then_some(())))?;
        let answered = self.wait(answers, sleep, |places| places.finished(number));
        let written = match answered {
            Err(MessageError::Killed) => self.with(|places| places.abandon(number, exchange.left)),
            answered => answered,
        }?;
        let Finished { outcome, data } =
            self.with(|places| places.answer(number, written, exchange, bulk.as_ref()))?;
        match outcome {
            Outcome::Error(number) => Err(MessageError::Refused(number)),
            Outcome::Done(length) => match (&mut exchange.data, bulk) {
                (Data::Received(to), Some(bulk)) => {
                    bulk.empty(&mut **to, data);
                    Ok(data)
                }
                _ => Ok(length),
            },
        }
    }

    fn take_ended(&self) -> Option<u32> {
        self.with(MessagePlaces::take_ended)
    }
}
