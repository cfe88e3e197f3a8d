//! The kprobes: which there are, and arming them.
//!
//! A probe is at the beginning of an instruction: its function is decoded from the start, as on
//! Linux. Arming fills the probe's slot and stores INT3 over the instruction's first byte, on all
//! nodes ([`freehold_replica::Replicas::store`]); disarming takes both back
//! ([`freehold_arch::probes`]). One lock orders all of this, and it is taken before that of the
//! replicas.
//!
//! Functions are known by the record that the build leaves in the image. A function's path names
//! it, or its last name if no other function has that.

use freehold_collections::{String, Vec, try_format};
use freehold_machine::VirtAddr;
use freehold_probes::{
    Command, Decoded, Definition, Function, Kind, LONGEST, Location, NameSearch, ParseError, Probing, decode,
};
use freehold_replica::{INT3, PatchError, Replicas};

use super::Frames;
use super::replica::replicas;
use crate::hw::built;
use crate::hw::memory::replica::ImagePort;
use crate::hw::probes::{self, SLOTS, UNUSED};
use crate::hw::static_keys::KeyState;
use crate::sync::{Mutex, MutexGuard};
use crate::tracing::kprobes as records;
use crate::{Errno, Result, sched};

type PatchableText = Replicas<Frames, ImagePort>;

/// Largest number of probes, armed or not.
const MOST_PROBES: usize = 1024;

static PROBES: Mutex<Vec<Kprobe>> = Mutex::new(Vec::new());

/// A probe.
pub struct Kprobe {
    /// Its group of events.
    pub group: String,
    /// Its name.
    pub name: String,
    /// Its place, as it was defined.
    pub location: String,
    /// The place as a record shows it: function, offset and size.
    shown: String,
    address: u64,
    bytes: [u8; LONGEST],
    decoded: Decoded,
    /// Its slot while it is armed.
    slot: Option<usize>,
    /// Hits and missed hits while it was armed before.
    counted: (u64, u64),
}

impl Kprobe {
    /// Whether it is armed.
    pub fn state(&self) -> KeyState {
        if self.slot.is_some() { KeyState::On } else { KeyState::Off }
    }
    /// How often a CPU came to it, and how often that was inside the handler of another probe.
    pub fn counts(&self) -> (u64, u64) {
        let (hits, missed) = self.counted;
        let now = self.slot.map_or((0, 0), |slot| (records::hits(slot), probes::missed(slot)));
        (hits + now.0, missed + now.1)
    }
    fn is(&self, group: &str, name: &str) -> bool {
        *self.group == *group && *self.name == *name
    }

    fn arm(&mut self, slot: usize, text: &mut PatchableText) -> Result<()> {
        let bytes = &self.bytes[..self.decoded.length];
        let Some((code, effect)) = probes::plan(slot, self.address, bytes, self.decoded) else {
            return Err(Errno::EOPNOTSUPP);
        };
        records::prepare(slot, &try_format(format_args!("{}: ({})", &*self.name, &*self.shown))?);
        let place = VirtAddr(probes::slot_address(slot));
        text.store(place, &UNUSED, &code).map_err(told)?;
        probes::arm(slot, self.address, effect);
        if let Err(error) = text.store(VirtAddr(self.address), &bytes[..1], &[INT3]) {
            probes::release(slot);
            text.store(place, &code, &UNUSED).map_err(told)?;
            return Err(told(error));
        }
        self.slot = Some(slot);
        Ok(())
    }

    fn disarm(&mut self, text: &mut PatchableText) -> Result<()> {
        let Some(slot) = self.slot else { return Ok(()) };
        let bytes = &self.bytes[..self.decoded.length];
        text.store(VirtAddr(self.address), &[INT3], &bytes[..1]).map_err(told)?;
        // Every CPU has answered an interrupt since: none is in the slot.
        self.counted = self.counts();
        probes::release(slot);
        self.slot = None;
        match probes::plan(slot, self.address, bytes, self.decoded) {
            Some((code, _)) => text.store(VirtAddr(probes::slot_address(slot)), &code, &UNUSED).map_err(told),
            None => Ok(()),
        }
    }
}

fn told(error: PatchError) -> Errno {
    if error == PatchError::OutOfMemory {
        return Errno::ENOMEM;
    }
    log::error!("kprobes: {error}");
    Errno::EIO
}

/// The probes, for a look at them.
pub fn all() -> MutexGuard<'static, Vec<Kprobe>> {
    PROBES.lock()
}

/// An event that a line has made or removed.
pub enum Changed {
    /// The probe with this number in the list is new.
    Defined(usize),
    /// This probe was removed.
    Removed(Kprobe),
}

/// Carries out a line of `kprobe_events`.
///
/// # Errors
/// `EINVAL` for another line, or a place where no probe can be; `EOPNOTSUPP` for a return probe,
/// arguments, or an instruction that cannot run elsewhere; `ENOENT` for an unknown function or
/// probe; `EADDRNOTAVAIL` for a name of several functions; `EILSEQ` inside an instruction; `EEXIST`
/// for a name that is in use; `EBUSY` for the removal of an armed probe; `ENOSPC`, `ENOMEM`.
pub fn change(line: &[u8], is_taken: impl Fn(&str, &str) -> bool) -> Result<Option<Changed>> {
    let command = Command::parse(line).map_err(|error| match error {
        ParseError::Malformed => Errno::EINVAL,
        ParseError::Unsupported => Errno::EOPNOTSUPP,
    })?;
    let mut all = PROBES.lock_killable()?;
    match command {
        None => Ok(None),
        Some(Command::Remove { group, name }) => {
            let at = all.iter().position(|probe| probe.is(group, name)).ok_or(Errno::ENOENT)?;
            if all[at].slot.is_some() {
                return Err(Errno::EBUSY);
            }
            Ok(Some(Changed::Removed(all.remove(at))))
        }
        Some(Command::Define(definition)) => {
            if all.len() >= MOST_PROBES {
                return Err(Errno::ENOSPC);
            }
            let new = make(&definition, &all)?;
            if all.iter().any(|probe| probe.is(&new.group, &new.name)) || is_taken(&new.group, &new.name) {
                return Err(Errno::EEXIST);
            }
            all.try_push(new)?;
            Ok(Some(Changed::Defined(all.len() - 1)))
        }
    }
}

/// Removes all probes; `removed` is called for each.
///
/// # Errors
/// `EBUSY` if one is armed: then all stay.
pub fn remove_all(mut removed: impl FnMut(&Kprobe)) -> Result<()> {
    let mut all = PROBES.lock_killable()?;
    if all.iter().any(|probe| probe.slot.is_some()) {
        return Err(Errno::EBUSY);
    }
    all.iter().for_each(&mut removed);
    all.clear();
    Ok(())
}

/// Arms or disarms the probes that `is_meant`. Returns how many are meant.
///
/// # Errors
/// `ENOSPC` if all slots are used; `EBUSY` if another probe is armed at the same instruction;
/// `ENOMEM`; `EIO` if text differs from the expected one. Probes before that one are changed.
pub fn set(state: KeyState, is_meant: impl Fn(&Kprobe) -> bool) -> Result<usize> {
    let mut all = PROBES.lock_killable()?;
    let mut count = 0;
    for at in 0..all.len() {
        if !is_meant(&all[at]) {
            continue;
        }
        count += 1;
        if all[at].state() == state {
            continue;
        }
        sched::checkpoint()?;
        let mut text = replicas().ok_or(Errno::ENODEV)?.lock();
        if state == KeyState::Off {
            all[at].disarm(&mut text)?;
            continue;
        }
        if all.iter().any(|other| other.slot.is_some() && other.address == all[at].address) {
            return Err(Errno::EBUSY);
        }
        let is_free = |slot: &usize| all.iter().all(|probe| probe.slot != Some(*slot));
        let slot = (0..SLOTS).find(is_free).ok_or(Errno::ENOSPC)?;
        all[at].arm(slot, &mut text)?;
    }
    Ok(count)
}

fn make(definition: &Definition<'_>, all: &[Kprobe]) -> Result<Kprobe> {
    let place = ProbePlace::find(definition.location)?;
    let (bytes, decoded) = place.instruction(all)?;
    if decoded.kind == Kind::Fixed {
        log::warn!("kprobes: the instruction at {:#x} cannot run from another place", place.address);
        return Err(Errno::EOPNOTSUPP);
    }
    if probes::is_refused(place.address..place.address + decoded.length as u64) {
        return Err(Errno::EINVAL);
    }
    let name = match definition.name {
        Some(name) => String::try_from_str(name)?,
        None => place.name()?,
    };
    let group = String::try_from_str(definition.group)?;
    let (location, shown) = place.texts()?;
    let (address, slot, counted) = (place.address, None, (0, 0));
    Ok(Kprobe { group, name, location, shown, address, bytes, decoded, slot, counted })
}

/// The place of a probe.
struct ProbePlace<'a> {
    /// The name by which it was found.
    symbol: Option<&'a str>,
    function: Function,
    /// Where the function begins.
    start: u64,
    address: u64,
}

impl<'a> ProbePlace<'a> {
    fn find(location: Location<'a>) -> Result<Self> {
        let record = built::record();
        let text = replicas().ok_or(Errno::ENODEV)?.lock().image().start.0;
        let (symbol, function, offset) = match location {
            Location::Symbol(symbol, offset) => match record.named(symbol) {
                NameSearch::One(function) => (Some(symbol), function, offset),
                NameSearch::None => return Err(Errno::ENOENT),
                NameSearch::Several => return Err(Errno::EADDRNOTAVAIL),
            },
            Location::Address(address) => {
                let offset = address.checked_sub(text).ok_or(Errno::EINVAL)?;
                let function = record.at(offset).ok_or(Errno::EINVAL)?;
                (None, function, offset - u64::from(function.offset))
            }
        };
        if offset >= u64::from(function.size) || function.probing == Probing::Refused {
            return Err(Errno::EINVAL);
        }
        let start = text + u64::from(function.offset);
        Ok(Self { symbol, function, start, address: start + offset })
    }

    /// Returns the instruction at the place.
    fn instruction(&self, all: &[Kprobe]) -> Result<([u8; LONGEST], Decoded)> {
        let text = replicas().ok_or(Errno::ENODEV)?.lock();
        let mut at = self.start;
        loop {
            let mut bytes = [0; LONGEST];
            text.read_text(VirtAddr(at), &mut bytes).map_err(|_| Errno::EINVAL)?;
            // An armed probe hides the first byte of its instruction.
            for probe in all.iter().filter(|probe| probe.slot.is_some()) {
                if let Some(byte) = bytes.get_mut(probe.address.wrapping_sub(at) as usize) {
                    *byte = probe.bytes[0];
                }
            }
            let decoded = decode(&bytes).ok_or(Errno::EINVAL)?;
            if at == self.address {
                return Ok((bytes, decoded));
            }
            at += decoded.length as u64;
            if at > self.address {
                return Err(Errno::EILSEQ);
            }
        }
    }

    /// The name of a probe that was defined without one.
    fn name(&self) -> Result<String> {
        let mut name = String::try_from_str("p_")?;
        let (place, _) = self.texts()?;
        for character in place.chars().take(61) {
            name.try_push(if character.is_ascii_alphanumeric() { character } else { '_' })?;
        }
        Ok(name)
    }

    /// The place as `kprobe_events` lists it, and as `trace` shows it.
    fn texts(&self) -> Result<(String, String)> {
        let (offset, size) = (self.address - self.start, self.function.size);
        let Some(symbol) = self.symbol else {
            let address = try_format(format_args!("{:#x}", self.address))?;
            let shown = String::try_from_str(&address)?;
            return Ok((address, shown));
        };
        let listed = match offset {
            0 => String::try_from_str(symbol)?,
            _ => try_format(format_args!("{symbol}+{offset}"))?,
        };
        Ok((listed, try_format(format_args!("{symbol}+{offset:#x}/{size:#x}"))?))
    }
}
