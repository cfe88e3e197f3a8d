//! What boot found out about the machine, for /proc and /sys.

use freehold_firmware::Firmware;
use spin::Once;

/// What there is to tell.
#[derive(Clone, Copy)]
pub struct MachineInfo {
    /// The kernel's command line.
    pub command_line: &'static str,
    /// What firmware says: CPUs, nodes, distances, caches.
    pub firmware: &'static Firmware,
}

static MACHINE: Once<MachineInfo> = Once::new();

/// Tell; at boot, before the first /proc or /sys is mounted.
pub fn describe(machine: MachineInfo) {
    MACHINE.call_once(|| machine);
}

/// What was told.
pub fn get() -> Option<&'static MachineInfo> {
    MACHINE.get()
}
