//! Facts about the machine that were found at boot, for /proc and /sys.

use freehold_firmware::Firmware;
use spin::Once;

/// Facts about the machine.
#[derive(Clone, Copy)]
pub struct MachineInfo {
    /// The kernel's command line.
    pub command_line: &'static str,
    /// Firmware's tables: CPUs, nodes, distances, caches.
    pub firmware: &'static Firmware,
}

static MACHINE: Once<MachineInfo> = Once::new();

/// Stores the facts; at boot, before the first /proc or /sys is mounted.
pub fn describe(machine: MachineInfo) {
    MACHINE.call_once(|| machine);
}

/// Returns the facts that [`describe`] stored.
pub fn get() -> Option<&'static MachineInfo> {
    MACHINE.get()
}
