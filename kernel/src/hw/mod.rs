//! The hardware as this crate uses it: the only module that names the crates behind it.
//!
//! In the kernel it is `freehold-arch`'s ([`bare`](self)). On a host it is a software machine: the
//! frames, tables and TLBs of `freehold_machine::model`, threads of the host for threads of the
//! kernel, one of which runs at a time, and a clock that goes on when no task has anything to do.
//! Both have the same names, so everything above this module is compiled on both.

#[cfg(target_os = "none")]
mod bare;
#[cfg(not(target_os = "none"))]
pub mod host;

#[cfg(target_os = "none")]
use bare as machine;
#[cfg(not(target_os = "none"))]
use host as machine;

use core::ops::Deref;

use freehold_buddy::Buddy;
use freehold_frame::{FrameSource, FrameTable, Order, OutOfMemory, Owner, Payer, Request};
use freehold_machine::{CpuId, CpuSet, Cpus, Flush, NodeId, Pfn, Tlb, VirtAddr};

pub use machine::*;
pub use usercopy::Faults;

pub use freehold_machine::PAGE;

/// The page allocator's handle: every frame comes from it and goes back to it. There is one page
/// allocator, so a handle has no size, and neither have the handles of frames that contain it.
#[derive(Clone, Copy, Debug)]
pub struct Frames(());

/// Returns the page allocator's handle.
#[inline(always)]
pub const fn frames() -> Frames {
    Frames(())
}

impl Frames {
    /// Returns the allocator.
    ///
    /// # Panics
    /// Before [`set_frames`].
    #[inline(always)]
    pub fn allocator(self) -> &'static Buddy<Hardware> {
        machine::allocator()
    }
}

impl Deref for Frames {
    type Target = Buddy<Hardware>;
    #[inline(always)]
    fn deref(&self) -> &Buddy<Hardware> {
        machine::allocator()
    }
}

impl FrameSource for Frames {
    type Machine = Hardware;
    #[inline(always)]
    fn machine(self) -> Hardware {
        Hardware
    }
    #[inline(always)]
    fn table(self) -> FrameTable {
        machine::frame_table()
    }
    #[inline(always)]
    fn allocate(self, request: Request) -> Result<Pfn, OutOfMemory> {
        self.allocator().allocate(request)
    }
    fn allocate_for(self, payer: Payer, request: Request) -> Result<Pfn, OutOfMemory> {
        self.allocator().allocate_for(payer, request)
    }
    fn ensure_objects(self) -> Result<(), OutOfMemory> {
        self.allocator().ensure_objects()
    }
    fn rest(self) {
        self.allocator().rest();
    }
    fn release(self, block: Pfn, order: Order) {
        self.allocator().release(block, order);
    }
    #[inline(always)]
    fn release_of(self, likely: Owner, block: Pfn, order: Order) {
        self.allocator().release_of(likely, block, order);
    }
}

/// Bytes of a program's vector state.
pub fn vector_bytes() -> usize {
    user::xsave_size()
}
/// The CPU that runs this code. The result is only a hint unless the caller cannot be moved.
pub fn current_cpu() -> CpuId {
    Hardware.current_cpu()
}
/// The node nearest to `cpu`.
pub fn node_of(cpu: CpuId) -> NodeId {
    Hardware.node_of_cpu(cpu)
}
/// Makes every CPU that runs a program enter the kernel. Returns when all have.
pub fn interrupt_all() {
    // The flush itself does not matter: it shows that all CPUs have answered.
    let everyone = CpuSet::first(Hardware.cpu_count());
    Hardware.flush_on(everyone, Flush::Range { start: VirtAddr(0), pages: 1 });
}
/// Copies from a user address. Returns how many bytes were copied.
pub fn read_user(from: u64, to: &mut [u8], faults: Faults) -> usize {
    usercopy::read(VirtAddr(from), to, faults)
}
/// Copies to a user address. Returns how many bytes were copied.
pub fn write_user(to: u64, from: &[u8], faults: Faults) -> usize {
    usercopy::write(VirtAddr(to), from, faults)
}
/// Loads a value from a user address; `None` if it cannot be read. A value of a word's size is
/// loaded in one access. May sleep.
#[inline]
pub fn load_user(from: u64, value: &mut [u8]) -> Option<()> {
    usercopy::load(VirtAddr(from), value, Faults::Sleep)
}
/// Stores a value at a user address; `None` if it cannot be written. A value of a word's size is
/// stored in one access. May sleep.
#[inline]
pub fn store_user(to: u64, value: &[u8]) -> Option<()> {
    usercopy::store(VirtAddr(to), value, Faults::Sleep)
}
/// Prints text on the serial line.
pub fn print_serial(text: core::fmt::Arguments<'_>) {
    serial::print(text);
}
/// Fills `bytes` from the machine's random generator.
pub fn fill_random(bytes: &mut [u8]) {
    entropy::fill(bytes);
}
/// The CPU's speculative-execution vulnerabilities, as /proc/cpuinfo names them.
pub fn bugs() -> impl Iterator<Item = &'static str> {
    speculation::bugs()
}
