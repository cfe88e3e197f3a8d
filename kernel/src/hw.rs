//! What this crate asks of the hardware under a plain name, so that its logic also runs under `cargo test`.
//!
//! In the kernel each of these is `freehold-arch`'s. On the host there is one CPU, no user memory and nobody to
//! switch to; tests there stay on this side of that line.

pub use freehold_machine::PAGE;

#[cfg(target_os = "none")]
mod real {
    use freehold_arch::sync::Once;
    use freehold_buddy::Buddy;
    use freehold_machine::{CpuId, Cpus, VirtAddr};

    pub use freehold_arch::X86 as Hardware;
    pub use freehold_arch::usercopy::Faults;
    pub use freehold_arch::{cpu, irq, thread, time, usercopy};
    /// Windows on frames of programs.
    pub mod windows {
        pub use freehold_arch::memory::{close_as, forget_closed, lend, policy, take_back};
    }

    /// Nodes' copies of the kernel's text and read-only data.
    pub mod replicas {
        pub use freehold_arch::memory::replica::{
            are_used, forget_shared_text, note_shared_load, shared_load_count,
        };
    }

    /// The page allocator's handle: every frame comes from it and goes back to it.
    pub type Frames = &'static Buddy<Hardware>;

    static BUDDY: Once<Buddy<Hardware>> = Once::new();

    /// The page allocator.
    ///
    /// # Panics
    /// Before [`set_frames`].
    #[inline]
    pub fn frames() -> Frames {
        BUDDY.get().expect("the page allocator is up before its first user")
    }
    /// Hands the page allocator over; once.
    pub fn set_frames(buddy: Buddy<Hardware>) {
        BUDDY.set(buddy);
    }
    /// Bytes of a program's vector state.
    pub fn vector_bytes() -> usize {
        freehold_arch::user::xsave_size()
    }
    /// The CPU this runs on; a hint unless it cannot move.
    pub fn current_cpu() -> CpuId {
        Hardware.current_cpu()
    }
    /// The node nearest to `cpu`.
    pub fn node_of(cpu: CpuId) -> freehold_machine::NodeId {
        Hardware.node_of_cpu(cpu)
    }
    /// Make every CPU that is in a program pass through the kernel; returns when all have.
    pub fn interrupt_all() {
        use freehold_machine::{CpuSet, Flush, Tlb};
        // The flush itself does not matter, that all CPUs have answered does.
        Hardware.flush_on(CpuSet::first(Hardware.cpu_count()), Flush::Range { start: VirtAddr(0), pages: 1 });
    }
    /// Copy from a user address; the bytes copied.
    pub fn read_user(from: u64, to: &mut [u8], faults: Faults) -> usize {
        usercopy::read(VirtAddr(from), to, faults)
    }
    /// Copy to a user address; the bytes copied.
    pub fn write_user(to: u64, from: &[u8], faults: Faults) -> usize {
        usercopy::write(VirtAddr(to), from, faults)
    }
    /// Load a value from a user address, at once where its size is a word's; `None` if it cannot be read. May sleep.
    #[inline]
    pub fn load_user(from: u64, value: &mut [u8]) -> Option<()> {
        usercopy::load(VirtAddr(from), value, Faults::Sleep)
    }
    /// Store a value at a user address, at once where its size is a word's; `None` if it cannot be written. May sleep.
    #[inline]
    pub fn store_user(to: u64, value: &[u8]) -> Option<()> {
        usercopy::store(VirtAddr(to), value, Faults::Sleep)
    }
    /// Show text on the serial line.
    pub fn print_serial(text: core::fmt::Arguments<'_>) {
        freehold_arch::serial::print(text);
    }
    /// Fill `bytes` from the machine's random generator.
    pub fn fill_random(bytes: &mut [u8]) {
        freehold_arch::entropy::fill(bytes);
    }
    /// Weaknesses of the CPU's speculation, as /proc/cpuinfo names them.
    pub fn bugs() -> impl Iterator<Item = &'static str> {
        freehold_arch::speculation::bugs()
    }
    /// The length of a NUL-terminated string of at most `max` bytes.
    pub fn user_string_length(at: u64, max: usize) -> Option<usize> {
        usercopy::strnlen(VirtAddr(at), max, Faults::Sleep)
    }
}

#[cfg(not(target_os = "none"))]
mod real {
    use freehold_machine::CpuId;

    /// Whether a copy may fault and sleep.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum Faults {
        /// It may.
        Sleep,
        /// It ends at the first page that is not there.
        Never,
    }
    /// Bytes of a program's vector state: FXSAVE's.
    pub fn vector_bytes() -> usize {
        512
    }
    /// The one CPU.
    pub fn current_cpu() -> CpuId {
        CpuId(0)
    }
    /// There is no user memory.
    pub fn read_user(_from: u64, _to: &mut [u8], _faults: Faults) -> usize {
        0
    }
    /// There is no user memory.
    pub fn write_user(_to: u64, _from: &[u8], _faults: Faults) -> usize {
        0
    }
    /// There is no user memory.
    pub fn load_user(_from: u64, _value: &mut [u8]) -> Option<()> {
        None
    }
    /// There is no user memory.
    pub fn store_user(_to: u64, _value: &[u8]) -> Option<()> {
        None
    }
    /// No serial line in tests.
    pub fn print_serial(_text: core::fmt::Arguments<'_>) {}
    /// Nothing random in tests.
    pub fn fill_random(bytes: &mut [u8]) {
        bytes.fill(4);
    }
    /// There is no user memory.
    pub fn user_string_length(_at: u64, _max: usize) -> Option<usize> {
        None
    }
    /// The host's CPU is not looked at.
    pub fn bugs() -> impl Iterator<Item = &'static str> {
        core::iter::empty()
    }
    /// Time.
    pub mod time {
        /// A clock that stands still.
        pub fn now() -> u64 {
            0
        }
        /// A tick a nanosecond.
        pub fn nanoseconds(ticks: u64) -> u64 {
            ticks
        }
        /// There are no programs to show it to.
        pub fn show_in(_frame: freehold_machine::Pfn, _wall: i64) {}
        /// There are no programs to show it to.
        pub fn show_wall(_wall: i64) {}
    }
}

pub use real::*;
