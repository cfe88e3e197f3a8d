//! Services of the kernel for the drivers.

use freehold_machine::PhysAddr;

/// A PCI function.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Function {
    /// Bus number.
    pub bus: u8,
    /// Device (slot) number, 0..32.
    pub device: u8,
    /// Function number, 0..8.
    pub function: u8,
}

impl Function {
    /// The value for the address port 0xcf8 that selects `register`, a multiple of 4 (PCI 3.0,
    /// 3.2.2.3.2).
    pub const fn port_address(self, register: u8) -> u32 {
        1 << 31
            | (self.bus as u32) << 16
            | (self.device as u32 & 31) << 11
            | (self.function as u32 & 7) << 8
            | (register as u32 & 0xfc)
    }
}

/// A device's registers, uncached. Callers stay within the mapped length.
pub trait Registers: Send + Sync + 'static {
    /// Read 8 bits.
    fn read8(&self, offset: usize) -> u8;
    /// Read 16 bits at a multiple of 2.
    fn read16(&self, offset: usize) -> u16;
    /// Read 32 bits at a multiple of 4.
    fn read32(&self, offset: usize) -> u32;
    /// Write 8 bits.
    fn write8(&self, offset: usize, value: u8);
    /// Write 16 bits at a multiple of 2.
    fn write16(&self, offset: usize, value: u16);
    /// Write 32 bits at a multiple of 4.
    fn write32(&self, offset: usize, value: u32);
}

/// The address and the value that a message-signalled interrupt writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MsiMessage {
    /// The address.
    pub address: u64,
    /// The value.
    pub data: u32,
}

/// Notified that something may have changed; wakes waiting tasks without checking anything.
pub trait Notify: Send + Sync {
    /// In any context: takes interrupt-safe locks only, allocates and frees nothing.
    fn notify(&self);
}

/// An event that may end a wait early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sleep {
    /// No event: an unfinished transfer would lose bytes that exist nowhere else.
    Uninterruptible,
    /// The end of the task.
    Killable,
}

/// Result of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// The condition was true.
    Held,
    /// The time ran out first.
    TimedOut,
    /// The task has to end.
    Killed,
}

/// A [`Notify`] that tasks can wait on. [`Notify::notify`] wakes all of them.
pub trait Wait: Notify {
    /// Sleeps until `condition` is true, and checks it after each notice; at most `limit_ns`
    /// nanoseconds.
    fn wait_until(&self, limit_ns: u64, sleep: Sleep, condition: &mut dyn FnMut() -> bool) -> Waited;
    /// Wakes the task that has waited longest. For tasks.
    fn notify_one(&self);
}

/// The wait queues of a device's tasks.
#[derive(Clone, Copy)]
pub struct Lines {
    /// Tasks whose request is with the device, and those that wait for its memory.
    pub answers: &'static dyn Wait,
    /// Tasks that wait for a place. An interrupt that finds no task on `answers` has to notify one
    /// of these: the answer belongs to a request that was abandoned.
    pub turns: &'static dyn Wait,
}

/// The machine around the devices. For tasks and start-up.
pub trait Platform {
    /// Mapped registers.
    type Registers: Registers;
    /// Reads the 32 bits at `register`, a multiple of 4, of a function's configuration space; all
    /// ones where there is no function.
    fn read_config(&self, function: Function, register: u8) -> u32;
    /// Writes the 32 bits at `register`.
    fn write_config(&self, function: Function, register: u8, value: u32);
    /// Writes 16 bits at `register`, a multiple of 2, for neighbours of bits that are cleared by
    /// writing ones.
    fn write_config16(&self, function: Function, register: u8, value: u16);
    /// Maps `length` bytes of registers at `address`.
    fn map(&self, address: PhysAddr, length: usize) -> Option<Self::Registers>;
    /// A vector whose interrupts call `handler`; what `function` has to write for one. No other
    /// function can raise it where interrupts are remapped.
    fn interrupt(&self, function: Function, handler: &'static dyn Notify) -> Option<MsiMessage>;
}
