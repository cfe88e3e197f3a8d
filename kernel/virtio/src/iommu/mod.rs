//! An IOMMU that is a virtio device (virtio 1.2, 5.13): a device can access the frames in its
//! domain, and nothing else.
//!
//! | module | what |
//! |---|---|
//! | [`request`] | requests, answers, reserved regions and faults as bytes |
//! | [`domain`] | the mappings of one device |
//!
//! **Rule.** As behind VT-d (`freehold-iommu`): a function without a domain can access nothing.
//! Addresses in a domain equal physical ones, except those of windows. Frames are reused only after
//! the IOMMU's answer. The IOMMU itself has no domain: its rings and buffers are from the DMA API.
//! It does not remap interrupts, so the addresses of messages are never mapped.
//!
//! **Protocol.** Each page of memory is a mapping of its own, since the IOMMU cannot remove a part
//! of a mapping. Requests go in batches of up to [`BATCH`], with one notice. The sender holds the
//! lock of the queue for a batch and looks for the answers. An IOMMU without all answers after
//! [`TIMEOUT`], or with an impossible one, is reset and not asked again: from then on nothing is
//! confirmed ([`Unconfirmed`](freehold_machine::Unconfirmed)), and no domain maps anything. The
//! reset removes all domains, and their devices can access nothing (5.13.4: the field `bypass`
//! keeps its value; [`VirtioIommu::is_always_closed`] says whether there is one).
//!
//! If the reset is not confirmed, the IOMMU may still obey earlier requests. Frames of a failed
//! mapping then count as mapped ([`NotDone::Lost`]), so that they leave their device unconfirmed,
//! and are lost, as all others.
//!
//! **Trust.** The IOMMU belongs to the host: if it breaks the protocol, devices can access memory
//! of the host's choice. Its bytes are checked all the same, so the kernel never uses an invalid
//! length or index.
//!
//! Linux' nearest relative is `drivers/iommu/virtio-iommu.c`.

pub mod domain;
#[cfg(test)]
mod gone_tests;
pub mod request;
#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::hint;
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use freehold_bounce::{Device, Direction, DmaMapping, DmaSource};
use freehold_iommu::{DeviceFault, IommuError, Mode, PATIENCE};
use freehold_machine::PAGE_SHIFT;
use freehold_virtqueue::{Chain, DeviceReset, DeviceType, Part, Queue, Transport, TransportResult, reset};
use spin::Mutex;

pub use domain::{MappedDomain, Occupied};
use request::{FAULT_BYTES, IommuRequest, REQUEST_BYTES, TAIL_BYTES, fault, reserved};

use crate::link::{Lent, Link, Why};
use crate::pci::functions;
use crate::platform::{Function, Platform};
use crate::transport::{Features, device_type, negotiate, read_consistent};
use crate::{Failed, SetupError};

/// Largest number of requests of a batch, and descriptors for them.
pub const BATCH: usize = 32;
const RING: usize = 2 * BATCH;
/// Bytes of a request's slot, and the place of the answer in it.
const SLOT: usize = 128;
const ANSWER: usize = 96;
/// Faults that the device can report before the driver looks, and bytes of the slot for each.
const FAULTS: usize = 64;
const FAULT_SLOT: usize = 32;
/// Largest number of bytes of an endpoint's properties.
const MAX_PROPERTIES: usize = 4096 - TAIL_BYTES;
/// Largest number of reserved regions of an endpoint.
pub(crate) const MAX_RESERVED: usize = 8;
/// Addresses of interrupts' messages. They are reserved even if the device does not say so.
const MESSAGES: RangeInclusive<u64> = 0xfee0_0000..=0xfeef_ffff;
/// Place of the field `bypass` in the configuration.
const BYPASS: usize = 36;
/// Largest number of address bits that are used.
const ADDRESS_BITS: u32 = 48;
/// Nanoseconds that the IOMMU has for all requests of a call. A busy host may stop its thread for
/// seconds.
const TIMEOUT: u64 = 10_000_000_000;
/// Checks for an answer between two readings of the clock.
const LOOKS_PER_TIME: usize = 1 << 10;
/// Number of checks after which the IOMMU counts as dead, whatever the clock says: minutes.
const MOST_LOOKS: usize = 1000 * PATIENCE;

/// The device's configuration, checked.
#[derive(Clone, Copy, Debug)]
struct IommuLimits {
    /// Addresses that devices may use.
    first: u64,
    last: u64,
    /// Numbers of domains.
    first_domain: u32,
    last_domain: u32,
    /// Bytes of an endpoint's properties; 0 where the device tells of none.
    properties: usize,
}

/// Memory that the device was lent.
struct IommuQueues<S: DmaSource> {
    requests: Queue<S, RING>,
    faults: Queue<S, FAULTS>,
    /// A slot for each request, and for each fault.
    buffer: Arc<DmaMapping<S>>,
    fault_buffer: Arc<DmaMapping<S>>,
    /// Room for an endpoint's properties, and for the end of the answer.
    properties: Arc<DmaMapping<S>>,
}

impl<S: DmaSource> Lent for IommuQueues<S> {
    fn reclaim(&mut self, proof: &DeviceReset) {
        self.requests.reclaim(proof);
        self.faults.reclaim(proof);
    }
    fn lose(&mut self) -> usize {
        self.requests.lose() + self.faults.lose()
    }
}

/// The device. It exists for ever.
pub struct VirtioIommu<S: DmaSource, T: Transport + 'static> {
    /// Taken by tasks and start-up, while the device has requests. Orders with no other lock.
    link: Mutex<Link<S, T, IommuQueues<S>>>,
    mode: Mode,
    /// Nanoseconds, never back.
    clock: fn() -> u64,
    limits: IommuLimits,
    /// Whether the device has the field `bypass`.
    has_bypass: bool,
    domains: Mutex<Vec<&'static MappedDomain<S, T>>>,
    invalidations: AtomicUsize,
    faults: AtomicUsize,
    has_windows: AtomicBool,
}

/// The reason why a request was not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotDone {
    /// The device refuses it.
    Refused,
    /// The device is out of use. It has confirmed a reset, or was not given any of the requests.
    Dead,
    /// The device was given requests, is out of use, and does not confirm a reset: it may obey them
    /// at any time.
    Lost,
}

/// The wait for answers: both the time and [`PATIENCE`] looks have to pass, since the clock goes on
/// while the host stops the machine with all its devices.
struct Wait {
    clock: fn() -> u64,
    end: u64,
    looks: usize,
}

impl Wait {
    fn new(clock: fn() -> u64) -> Self {
        Self { clock, end: clock().saturating_add(TIMEOUT), looks: 0 }
    }
    /// Counts a check. Returns whether it was one too many.
    fn is_over(&mut self) -> bool {
        self.looks += 1;
        let is_time = self.looks >= PATIENCE && self.looks.is_multiple_of(LOOKS_PER_TIME);
        self.looks >= MOST_LOOKS || is_time && (self.clock)() >= self.end
    }
}

impl<S: DmaSource, T: Transport + 'static> VirtioIommu<S, T> {
    /// Starts the device, with no domain: from now on the functions behind it reach nothing. The
    /// transport's handler is notified of faults, if the device has interrupts. `clock` returns
    /// nanoseconds and never goes back.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn start(
        mut transport: T,
        device: Device<S>,
        mode: Mode,
        clock: fn() -> u64,
    ) -> Result<&'static Self, SetupError> {
        let wanted = Features::IOMMU_INPUT_RANGE
            | Features::IOMMU_DOMAIN_RANGE
            | Features::IOMMU_MAP_UNMAP
            | Features::IOMMU_PROBE
            | Features::IOMMU_BYPASS_CONFIG;
        let features = negotiate(&mut transport, wanted)?;
        if !features.contains(Features::IOMMU_MAP_UNMAP) {
            return Err(SetupError::Nonsense("lack of requests"));
        }
        let limits = read_consistent(&transport, |transport| IommuLimits::read(transport, features))??;
        let has_bypass = features.contains(Features::IOMMU_BYPASS_CONFIG);
        if has_bypass {
            // A device without this feature, and without the older feature for it, needs no such
            // call: functions without a domain can access nothing once the driver has started.
            set_bypass(&mut transport, Bypass::Nothing)?;
        }
        let buffer = |bytes| Ok::<_, SetupError>(Arc::new(device.buffer(bytes, Direction::Bidirectional)?));
        let (slots, fault_buffer) = (buffer(BATCH * SLOT)?, buffer(FAULTS * FAULT_SLOT)?);
        let properties = buffer(limits.properties + TAIL_BYTES)?;
        let requests = Queue::new(&mut transport, 0, device)?;
        let faults = Queue::new(&mut transport, 1, device)?;
        transport.finish_init();
        let lent = IommuQueues { requests, faults, buffer: slots, fault_buffer, properties };
        let mut link = Link::new(transport, device, lent);
        let listens = (0..FAULTS).all(|slot| link.lent().is_ok_and(|(lent, _)| lent.listen(slot)));
        if !listens {
            return Err(SetupError::Nonsense("queue of faults"));
        }
        if let Ok((lent, transport)) = link.lent() {
            // No interrupt is needed: the sender polls for answers.
            lent.requests.disable_interrupts();
            transport.notify(1);
        }
        Ok(Box::leak(Box::new(Self {
            link: Mutex::new(link),
            mode,
            clock,
            limits,
            has_bypass,
            domains: Mutex::new(Vec::new()),
            invalidations: AtomicUsize::new(0),
            faults: AtomicUsize::new(0),
            has_windows: AtomicBool::new(false),
        })))
    }

    /// Makes a domain for a function, whose number at the device is `endpoint`.
    ///
    /// # Errors
    /// [`IommuError`]; the function then reaches nothing.
    pub fn attach(
        &'static self,
        (source_id, endpoint): (u16, u32),
        name: &'static str,
        occupied: Occupied,
    ) -> Result<&'static MappedDomain<S, T>, IommuError> {
        let mut domains = self.domains.lock();
        if domains.iter().any(|domain| domain.endpoint() == endpoint) {
            return Err(IommuError::Taken);
        }
        domains.try_reserve(1).map_err(|_| IommuError::OutOfMemory)?;
        let number = u32::try_from(domains.len()).ok().and_then(|n| self.limits.first_domain.checked_add(n));
        let number = number.filter(|&number| number <= self.limits.last_domain);
        let number = number.ok_or(IommuError::TooManyDomains)?;
        let domain: &'static _ =
            Box::leak(Box::new(MappedDomain::new(self, source_id, (endpoint, number), name)));
        domains.push(domain);
        drop(domains);
        if occupied == Occupied::Now {
            domain.enter()?;
        }
        Ok(domain)
    }

    /// Gives the device up, because it did not execute a request to unmap. Returns whether it has
    /// confirmed a reset, now or before.
    pub(crate) fn give_up(&self) -> bool {
        let mut link = self.link.lock();
        link.fail(Why::BrokeTheProtocol);
        link.is_reset()
    }

    /// Whether functions can access nothing also while no driver runs the device: before the start
    /// and after a failure. Unless the device has the field `bypass`, the device decides that.
    pub const fn is_always_closed(&self) -> bool {
        self.has_bypass
    }

    /// Gives domains windows from now on.
    pub fn allow_windows(&self) {
        self.has_windows.store(true, Ordering::Relaxed);
    }

    /// Sends requests and waits for the answers to all of them.
    pub(crate) fn send(&self, requests: impl IntoIterator<Item = IommuRequest>) -> Result<(), NotDone> {
        let mut requests = requests.into_iter().peekable();
        let (mut result, mut wait, mut is_given) = (Ok(()), Wait::new(self.clock), false);
        while requests.peek().is_some() {
            // Other tasks' requests have their turn between batches.
            let mut link = self.link.lock();
            is_given |= !link.is_failed();
            let answers = self.post(&mut link, &mut requests);
            let answers = answers.and_then(|count| collect(&mut link, count, &mut wait));
            let has_them = is_given && !link.is_reset();
            result = result.and(answers.map_err(|_| if has_them { NotDone::Lost } else { NotDone::Dead })?);
        }
        result
    }

    /// Gives the device up to [`BATCH`] requests. Returns their number.
    fn post(
        &self,
        link: &mut Link<S, T, IommuQueues<S>>,
        requests: &mut impl Iterator<Item = IommuRequest>,
    ) -> Result<usize, Failed> {
        let (lent, transport) = link.lent()?;
        let mut count = 0;
        for request in requests.take(BATCH) {
            if matches!(request, IommuRequest::Unmap { .. } | IommuRequest::Detach { .. }) {
                self.invalidations.fetch_add(1, Ordering::Relaxed);
            }
            if !lent.add(count, request) {
                link.fail(Why::BrokeTheProtocol);
                return Err(Failed);
            }
            count += 1;
        }
        if lent.requests.wants_notice() {
            transport.notify(0);
        }
        Ok(count)
    }

    /// Asks for an endpoint's reserved regions, and calls `each` with each.
    ///
    /// # Errors
    /// [`IommuError`]: the regions are impossible, or the device does not answer.
    pub(crate) fn probe(
        &self,
        endpoint: u32,
        mut each: impl FnMut(RangeInclusive<u64>) -> Result<(), IommuError>,
    ) -> Result<(), IommuError> {
        each(MESSAGES)?;
        if self.limits.properties == 0 {
            return Ok(());
        }
        let mut properties = Vec::new();
        properties.try_reserve_exact(self.limits.properties).map_err(|_| IommuError::OutOfMemory)?;
        properties.resize(self.limits.properties, 0);
        let mut link = self.link.lock();
        const DEAD: IommuError = IommuError::Dead("properties of a device");
        let mut request = [IommuRequest::Probe { endpoint }].into_iter();
        let answer = self.post(&mut link, &mut request);
        let answer = answer.and_then(|count| collect(&mut link, count, &mut Wait::new(self.clock)));
        answer.map_err(|_| DEAD)?.map_err(|_| DEAD)?;
        if let Ok((lent, _)) = link.lent() {
            lent.properties.read(0, &mut properties);
        }
        drop(link);
        for region in reserved(&properties) {
            each(region.ok_or(IommuError::Unsupported("reserved regions that make sense"))?)?;
        }
        Ok(())
    }

    /// Takes a fault that the device has reported, and the function's domain if it has one. `place`
    /// returns the function of an endpoint. `None`: there are no more.
    pub fn take_fault(
        &self,
        place: impl Fn(u32) -> u16,
    ) -> Option<(DeviceFault, Option<&'static MappedDomain<S, T>>)> {
        let told = {
            let mut link = self.link.lock();
            let (lent, transport) = link.lent().ok()?;
            match lent.take_fault() {
                Ok(told) => {
                    if told.is_some() {
                        // The device has the slot again.
                        transport.notify(1);
                    }
                    told
                }
                Err(Failed) => {
                    link.fail(Why::BrokeTheProtocol);
                    None
                }
            }
        };
        let fault = fault(&told?, place);
        self.faults.fetch_add(1, Ordering::Relaxed);
        let domain = self.domain_of(fault.source_id);
        if let Some(domain) = domain {
            domain.note_fault();
        }
        Some((fault, domain))
    }

    /// Returns the function's domain.
    pub fn domain_of(&self, source_id: u16) -> Option<&'static MappedDomain<S, T>> {
        self.domains.lock().iter().copied().find(|domain| domain.source_id() == source_id)
    }
    /// Calls `f` with each domain whose device is present.
    pub fn each_domain(&self, mut f: impl FnMut(&MappedDomain<S, T>)) {
        let count = self.domains.lock().len();
        let all = (0..count).filter_map(|number| self.domains.lock().get(number).copied());
        all.filter(|domain| domain.is_occupied()).for_each(&mut f);
    }
    /// Returns the number of faults that were taken.
    pub fn faults(&self) -> usize {
        self.faults.load(Ordering::Relaxed)
    }
    /// Returns the number of requests that took memory away from a device.
    pub fn invalidations(&self) -> usize {
        self.invalidations.load(Ordering::Relaxed)
    }
}

/// Returns the number of functions that access memory without a domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bypass {
    Nothing = 0,
    All = 1,
}

fn set_bypass<T: Transport>(transport: &mut T, bypass: Bypass) -> Result<(), SetupError> {
    transport.write_config_space(BYPASS, bypass as u8)?;
    let is_set = transport.read_config_space::<u8>(BYPASS)? == bypass as u8;
    is_set.then_some(()).ok_or(SetupError::Nonsense("bypass"))
}

/// Lets all functions behind the device reach all memory, and resets the device: the field keeps
/// its value.
///
/// # Errors
/// [`SetupError`]: the functions behind it may reach nothing.
pub fn let_pass<T: Transport>(mut transport: T) -> Result<(), SetupError> {
    if !negotiate(&mut transport, Features::IOMMU_BYPASS_CONFIG)?.contains(Features::IOMMU_BYPASS_CONFIG) {
        return Err(SetupError::Nonsense("lack of a bypass"));
    }
    set_bypass(&mut transport, Bypass::All)?;
    reset(&mut transport).map(drop).ok_or(SetupError::NoReset)
}

/// Returns the function of bus, device and function in 8, 5 and 3 bits, if it is a virtio IOMMU.
///
/// # Errors
/// [`IommuError`]: there is no such function on bus 0, or it is another device.
pub fn function_at<P: Platform>(platform: &P, source_id: u16) -> Result<Function, IommuError> {
    let is_there = |&(Function { bus, device, function }, ..): &(Function, u16, u16)| {
        u16::from(bus) << 8 | u16::from(device) << 3 | u16::from(function) == source_id
    };
    let (function, vendor, device) = functions(platform).find(is_there).ok_or(IommuError::Absent)?;
    let is_iommu = device_type(vendor, device) == Some(DeviceType::IOMMU);
    is_iommu.then_some(function).ok_or(IommuError::Unsupported("a virtio IOMMU where firmware says one is"))
}

/// Waits for the answers to `count` requests. The inner error: the device refuses one of them.
fn collect<S: DmaSource, T: Transport + 'static>(
    link: &mut Link<S, T, IommuQueues<S>>,
    count: usize,
    wait: &mut Wait,
) -> Result<Result<(), NotDone>, Failed> {
    let (mut done, mut result) = (0, Ok(()));
    while done < count {
        let (lent, _) = link.lent()?;
        match lent.answer() {
            Ok(Some(answer)) => {
                result = result.and(answer);
                done += 1;
            }
            Ok(None) if wait.is_over() => {
                link.fail(Why::Silent);
                return Err(Failed);
            }
            Ok(None) => hint::spin_loop(),
            Err(Failed) => {
                link.fail(Why::BrokeTheProtocol);
                return Err(Failed);
            }
        }
    }
    Ok(result)
}

impl<S: DmaSource> IommuQueues<S> {
    /// Lends a request in its slot to the device. Returns `false` if the queue has no room.
    fn add(&mut self, slot: usize, request: IommuRequest) -> bool {
        let (bytes, length) = request.encode();
        let at = slot * SLOT;
        self.buffer.write(at, &bytes);
        let answer = match request {
            // The answer begins with the properties.
            IommuRequest::Probe { .. } => {
                let end = self.properties.len();
                // No bytes of the last endpoint's answer stay.
                for at in (0..end).step_by(SLOT) {
                    self.properties.write(at, &[0; SLOT][..SLOT.min(end - at)]);
                }
                self.properties.write(end - TAIL_BYTES, &[0xff; TAIL_BYTES]);
                Part::writable(self.properties.clone(), 0..end)
            }
            _ => {
                self.buffer.write(at + ANSWER, &[0xff; TAIL_BYTES]);
                Part::writable(self.buffer.clone(), at + ANSWER..at + ANSWER + TAIL_BYTES)
            }
        };
        // The tag is the place of the answer.
        let tag = if matches!(request, IommuRequest::Probe { .. }) { BATCH } else { slot };
        let parts = Part::readable(self.buffer.clone(), at..at + length).zip(answer);
        let chain = parts.and_then(|(request, answer)| Chain::new(tag, [request, answer]));
        chain.is_some_and(|chain| self.requests.submit(chain).is_ok())
    }

    /// Returns an answer, if there is one.
    fn answer(&mut self) -> Result<Option<Result<(), NotDone>>, Failed> {
        let Some(done) = self.requests.complete()? else { return Ok(None) };
        let mut tail = [0xff; TAIL_BYTES];
        let whole = if done.tag == BATCH {
            self.properties.read(self.properties.len() - TAIL_BYTES, &mut tail);
            self.properties.len()
        } else {
            self.buffer.read(done.tag * SLOT + ANSWER, &mut tail);
            TAIL_BYTES
        };
        let is_done = tail[0] == 0 && done.written >= whole;
        Ok(Some(is_done.then_some(()).ok_or(NotDone::Refused)))
    }

    /// Lends the slot of a fault to the device. Returns `false` if the queue has no room.
    fn listen(&mut self, slot: usize) -> bool {
        let at = slot * FAULT_SLOT;
        let part = Part::writable(self.fault_buffer.clone(), at..at + FAULT_BYTES);
        let chain = part.and_then(|part| Chain::new(slot, [part]));
        chain.is_some_and(|chain| self.faults.submit(chain).is_ok())
    }

    fn take_fault(&mut self) -> Result<Option<[u8; FAULT_BYTES]>, Failed> {
        let Some(done) = self.faults.complete()? else { return Ok(None) };
        let mut bytes = [0; FAULT_BYTES];
        self.fault_buffer.read(done.tag * FAULT_SLOT, &mut bytes);
        if done.written < FAULT_BYTES || !self.listen(done.tag) {
            return Err(Failed);
        }
        Ok(Some(bytes))
    }
}

impl IommuLimits {
    fn read<T: Transport>(transport: &T, features: Features) -> TransportResult<Result<Self, SetupError>> {
        let pages: u64 = transport.read_config_space(0)?;
        if pages.trailing_zeros() > PAGE_SHIFT {
            return Ok(Err(SetupError::Nonsense("page size")));
        }
        let (mut first, mut last) = (0, u64::MAX);
        if features.contains(Features::IOMMU_INPUT_RANGE) {
            (first, last) = (transport.read_config_space(8)?, transport.read_config_space(16)?);
        }
        let (mut first_domain, mut last_domain) = (0, u32::MAX);
        if features.contains(Features::IOMMU_DOMAIN_RANGE) {
            (first_domain, last_domain) =
                (transport.read_config_space(24)?, transport.read_config_space(28)?);
        }
        let last = last.min((1 << ADDRESS_BITS) - 1);
        // There are windows, and memory below them.
        if first >= last || last - first < 2 * domain::WINDOW_BYTES || first_domain > last_domain {
            return Ok(Err(SetupError::Nonsense("range of addresses or domains")));
        }
        let mut properties = 0;
        if features.contains(Features::IOMMU_PROBE) {
            properties = transport.read_config_space::<u32>(32)? as usize;
            if properties > MAX_PROPERTIES {
                return Ok(Err(SetupError::Nonsense("size of properties")));
            }
        }
        Ok(Ok(Self { first, last, first_domain, last_domain, properties }))
    }
}

const _: () = assert!(REQUEST_BYTES <= ANSWER && ANSWER + TAIL_BYTES <= SLOT && FAULT_BYTES <= FAULT_SLOT);
