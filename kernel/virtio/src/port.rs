//! PCI Express root ports: slots that devices are plugged into and out of while the machine runs
//! (PCI Express 5.0, 6.7 and 7.5.3).
//!
//! A port reports by an interrupt that a device came or went, or that its attention button was
//! pressed, which requests the removal of a device. [`Port::take_events`] returns these events; the
//! slot's task answers with power on or off ([`Port::set_power`]). Firmware gave each port a bus
//! and a range of addresses; [`place_registers`] puts a new device's registers there, since
//! firmware does not run again.
//!
//! **Surprise removal.** A device that was removed without a request reads as all ones, in its
//! configuration space and in its registers. The memory lent to it stays the device's until the
//! slot reports that its power is off.
//!
//! **Context.** Tasks, one per port. Linux' nearest relative is drivers/pci/hotplug/pciehp_hpc.c.

use core::ops::Range;

use crate::SetupError;
use crate::pci::{capabilities, enable, functions, route_message};
use crate::platform::{Function, Notify, Platform};

/// Capability id of PCI Express.
const EXPRESS: u8 = 0x10;
/// Type of a root port, and the bit that says it has a slot, in the capability's first word.
const ROOT_PORT: u32 = 4 << 20;
const TYPE: u32 = 0xf << 20;
const HAS_SLOT: u32 = 1 << 24;
/// Places in the capability: what the slot can, its control (16 bits), its status (16 bits).
const SLOT: u8 = 0x14;
const CONTROL: u8 = 0x18;
const STATUS: u8 = 0x1a;
/// Capabilities of the slot: hot-plug, and commands that are done at once.
const HOT_PLUG: u32 = 1 << 6;
const NO_COMPLETION: u32 = 1 << 18;

/// Bits of the status.
mod status {
    pub const PRESSED: u16 = 1 << 0;
    pub const FAULT: u16 = 1 << 1;
    pub const CHANGED: u16 = 1 << 3;
    pub const COMPLETED: u16 = 1 << 4;
    pub const OCCUPIED: u16 = 1 << 6;
    /// All that are cleared by writing ones.
    pub const EVENTS: u16 = PRESSED | FAULT | 1 << 2 | CHANGED | COMPLETED | 1 << 8;
}

/// Bits of the control.
mod control {
    /// Interrupts for the button, power faults, presence; and interrupts at all.
    pub const LISTEN: u16 = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 5;
    pub const INDICATORS: u16 = 0xf << 6;
    /// No attention, and power.
    pub const LIT: u16 = 3 << 6 | 1 << 8;
    /// No attention, and no power.
    pub const DARK: u16 = 3 << 6 | 3 << 8;
    pub const POWER_OFF: u16 = 1 << 10;
}

/// How often to check whether a command is done. Emulated ports have done it when the write ends.
const COMMAND_LOOKS: usize = 1000;
/// BARs of a function.
const BARS: u8 = 6;

/// State of a port's slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotState {
    /// A device is in the slot.
    pub is_occupied: bool,
    /// One came or went since the last look.
    pub has_changed: bool,
    /// The attention button was pressed since the last look.
    pub is_pressed: bool,
}

/// Whether the device in a slot has power.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Power {
    /// The device has power.
    On,
    /// The device has no power: it can access nothing.
    Off,
}

/// A root port with a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    bridge: Function,
    /// Where its PCI Express capability is.
    at: u8,
    bus: u8,
    window: Range<u64>,
    number: u16,
    has_completion: bool,
}

/// The root ports of bus 0 whose slots devices can be plugged into.
pub fn ports<P: Platform>(platform: &P) -> impl Iterator<Item = Port> {
    functions(platform).filter_map(|(function, ..)| Port::of(platform, function))
}

impl Port {
    /// Returns the port that a function is, if it is one.
    fn of<P: Platform>(platform: &P, bridge: Function) -> Option<Self> {
        // Header type 1: a bridge.
        if platform.read_config(bridge, 0x0c) >> 16 & 0x7f != 1 {
            return None;
        }
        let (at, word) = capabilities(platform, bridge).find(|(_, word)| *word as u8 == EXPRESS)?;
        if at > u8::MAX - 0x20 || word & TYPE != ROOT_PORT || word & HAS_SLOT == 0 {
            return None;
        }
        let slot = platform.read_config(bridge, at + SLOT);
        let bus = (platform.read_config(bridge, 0x18) >> 8) as u8;
        if slot & HOT_PLUG == 0 || bus == 0 || bus == u8::MAX {
            return None;
        }
        // Bits 20 to 31 of both ends; the last address has ones below them.
        let memory = platform.read_config(bridge, 0x20);
        let (first, last) = (u64::from(memory & 0xfff0) << 16, u64::from(memory & 0xfff0_0000) | 0xf_ffff);
        let window = if first == 0 || last < first { 0..0 } else { first..last + 1 };
        let (number, has_completion) = ((slot >> 19) as u16, slot & NO_COMPLETION == 0);
        Some(Self { bridge, at, bus, window, number, has_completion })
    }

    /// The port's own function.
    pub const fn bridge(&self) -> Function {
        self.bridge
    }
    /// Where the device in the slot is: functions above 0 are not used.
    pub const fn device(&self) -> Function {
        Function { bus: self.bus, device: 0, function: 0 }
    }
    /// The number that is written on the slot.
    pub const fn number(&self) -> u16 {
        self.number
    }
    /// Addresses for the device's registers; an empty range where firmware gave it none.
    pub fn window(&self) -> Range<u64> {
        self.window.clone()
    }

    /// Sends the port's events to `handler` from now on.
    ///
    /// # Errors
    /// [`SetupError::NoInterrupt`] and others: the port cannot be used.
    pub fn listen<P: Platform>(&self, platform: &P, handler: &'static dyn Notify) -> Result<(), SetupError> {
        // The port is a bridge: this lets accesses through, both ways.
        enable(platform, self.bridge);
        route_message(platform, self.bridge, handler)?;
        self.command(platform, |control| control | control::LISTEN);
        Ok(())
    }

    /// Returns the slot's state and the events since the last call, which the port then forgets.
    pub fn take_events<P: Platform>(&self, platform: &P) -> SlotState {
        let status = self.status(platform);
        if status & status::EVENTS != 0 {
            platform.write_config16(self.bridge, self.at + STATUS, status & status::EVENTS);
        }
        SlotState {
            is_occupied: status & status::OCCUPIED != 0,
            has_changed: status & status::CHANGED != 0,
            is_pressed: status & status::PRESSED != 0,
        }
    }

    /// Gives the device in the slot power, or takes it, and says so with the slot's lamp.
    pub fn set_power<P: Platform>(&self, platform: &P, power: Power) {
        let bits = match power {
            Power::On => control::LIT,
            Power::Off => control::DARK | control::POWER_OFF,
        };
        self.command(platform, |control| control & !(control::INDICATORS | control::POWER_OFF) | bits);
    }

    /// Whether nothing in the slot can reach memory: it is empty, or has no power.
    pub fn is_off<P: Platform>(&self, platform: &P) -> bool {
        self.status(platform) & status::OCCUPIED == 0 || self.control(platform) & control::POWER_OFF != 0
    }

    /// Returns vendor and device of the function in the slot; `None` if nothing answers.
    pub fn find<P: Platform>(&self, platform: &P) -> Option<(u16, u16)> {
        let id = platform.read_config(self.device(), 0);
        // A vendor of 1: it is there and not ready.
        (id != u32::MAX && id as u16 != 1).then_some((id as u16, (id >> 16) as u16))
    }

    fn status<P: Platform>(&self, platform: &P) -> u16 {
        (platform.read_config(self.bridge, self.at + CONTROL) >> 16) as u16
    }
    fn control<P: Platform>(&self, platform: &P) -> u16 {
        platform.read_config(self.bridge, self.at + CONTROL) as u16
    }

    /// Changes the control and waits, for a bounded time, until the port has done it.
    fn command<P: Platform>(&self, platform: &P, change: impl FnOnce(u16) -> u16) {
        let value = change(self.control(platform));
        platform.write_config16(self.bridge, self.at + CONTROL, value);
        let is_done = || !self.has_completion || self.status(platform) & status::COMPLETED != 0;
        let _ = (0..COMMAND_LOOKS).any(|_| is_done());
        platform.write_config16(self.bridge, self.at + STATUS, status::COMPLETED);
    }
}

/// Puts a new device's registers into `window`, one BAR after the other. It answers to no access
/// meanwhile. I/O BARs stay unplaced.
///
/// # Errors
/// [`SetupError::NoRegisters`]: they do not fit. [`SetupError::Nonsense`]: sizes that cannot be.
pub fn place_registers<P: Platform>(
    platform: &P,
    device: Function,
    window: Range<u64>,
) -> Result<(), SetupError> {
    platform.write_config(device, 4, 0);
    let (mut next, mut number) = (window.start, 0);
    while number < BARS {
        let register = 0x10 + 4 * number;
        let ask = |register| {
            platform.write_config(device, register, u32::MAX);
            platform.read_config(device, register)
        };
        let low = ask(register);
        if low == u32::MAX {
            return Err(SetupError::NoRegisters("device"));
        }
        // Bit 0: I/O. Bits 1 and 2: 2 for an address of 64 bits, whose other half is in the next.
        let is_wide = low & 1 == 0 && low >> 1 & 3 == 2 && number + 1 < BARS;
        let high = if is_wide { ask(register + 4) } else { u32::MAX };
        number += if is_wide { 2 } else { 1 };
        let mask = u64::from(high) << 32 | u64::from(low & !0xf);
        if low & 1 != 0 || low & !0xf == 0 && (!is_wide || high == 0) {
            continue;
        }
        let size = mask.wrapping_neg();
        if !size.is_power_of_two() {
            return Err(SetupError::Nonsense("size of registers"));
        }
        let first = next.checked_next_multiple_of(size);
        let place = first.and_then(|first| Some(first..first.checked_add(size)?));
        let place = place.filter(|place| place.end <= window.end);
        let place = place.ok_or(SetupError::NoRegisters("room for its registers"))?;
        platform.write_config(device, register, place.start as u32);
        if is_wide {
            platform.write_config(device, register + 4, (place.start >> 32) as u32);
        }
        next = place.end;
    }
    Ok(())
}
