//! Breaches of isolation. They need the bare machine: here each one is refused, as an intact
//! machine refuses it.

/// Accesses that must be refused.
pub mod provoke {
    use freehold_frame::HeldFrame;
    use freehold_machine::Pfn;

    /// Reads a program's frame through the kernel's map.
    pub fn read(_frame: Pfn) -> Option<u64> {
        None
    }
    /// Reads the kernel's bytes through a second address.
    pub fn read_alias(_bytes: &[u8]) -> Option<u64> {
        None
    }
    /// Executes the bytes in the frame.
    pub fn execute(_frame: Pfn) -> bool {
        false
    }
    /// Writes the kernel's text through a second address.
    pub fn write_text_alias() -> bool {
        false
    }
    /// Result of [`read_closed_window`].
    #[derive(Clone, Copy, Debug)]
    pub struct ClosedWindow {
        /// The word; `None`: the window is closed.
        pub word: Option<u64>,
        /// Delay of an interrupt that should have come before the read.
        pub late_ns: u64,
    }
    /// Reads a word at the address of the frame's former window.
    pub fn read_closed_window(_frame: HeldFrame<'_>, _wait_ns: u64) -> ClosedWindow {
        ClosedWindow { word: None, late_ns: 0 }
    }
    /// Writes through a window that is open for reading.
    pub fn write_reading_window(_frame: HeldFrame<'_>) -> bool {
        false
    }
    /// Opens a window in an interrupt.
    pub fn window_in_interrupt() -> bool {
        false
    }
}

/// Rules that are broken on purpose, to test checks from outside.
pub mod plant {
    use freehold_machine::Pfn;

    use crate::hw::memory::OutOfMemory;

    /// Reads a program's frame through the kernel's map.
    pub fn direct_map_read(_user: Pfn) {}
    /// Maps the frame at an address that no code uses.
    ///
    /// # Errors
    /// Always.
    pub fn unused_mapping(_user: Pfn) -> Result<(), OutOfMemory> {
        Err(OutOfMemory)
    }
    /// Makes text writable.
    ///
    /// # Errors
    /// Always.
    pub fn writable_text() -> Result<(), OutOfMemory> {
        Err(OutOfMemory)
    }
    /// Leaves a stale translation in the TLB.
    ///
    /// # Errors
    /// Always.
    pub fn stale_entry() -> Result<(), OutOfMemory> {
        Err(OutOfMemory)
    }
    /// Maps text twice.
    ///
    /// # Errors
    /// Always.
    pub fn text_alias() -> Result<(), OutOfMemory> {
        Err(OutOfMemory)
    }
    /// Loads another node's root.
    pub fn wrong_root() -> bool {
        false
    }
    /// Leaves SMAP off.
    pub fn smap_open() {}
}
