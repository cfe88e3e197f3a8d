//! The software machine under the names of `freehold-arch`.
//!
//! A process of the host is one machine: memory, tables and TLBs of [`freehold_machine::model`],
//! one CPU that runs. Plain logic is taken from `freehold-arch`. Code that needs an instruction of
//! a real CPU has a substitute here, or is not called on a host (devices, firmware, breaches of
//! isolation).
//!
//! Unit tests use this module without a kernel: a page allocator over [`FRAMES`] frames is made at
//! the first request, the clock stands still, and no object is [shown](thread::show) on a thread. A
//! test of the kernel as a whole starts it on the machine, in a process of its own.

extern crate std;

mod breach;
mod locks;
mod machine;
pub mod memory;
pub mod thread;
pub mod time;
pub mod user;
pub mod usercopy;

pub use breach::{plant, provoke};
pub use freehold_arch::{alternatives, boot, built, firmware, mmio, probes, speculation, static_keys};
use freehold_buddy::Buddy;
use freehold_frame::{FrameSource as _, FrameTable};
pub use machine::{FRAMES, Hardware, model, start_machine};

/// Without a kernel no thread can sleep: threads of a test that share a lock spin until the lock is
/// free.
pub const LOCK_SPINS: usize = u32::MAX as usize;

static BUDDY: sync::Once<Buddy<Hardware>> = sync::Once::new();

/// Sets the page allocator; once.
pub fn set_frames(buddy: Buddy<Hardware>) {
    BUDDY.set(buddy);
}

/// Returns the page allocator. If no kernel was started, it is one without a kernel around it.
#[inline]
pub(super) fn allocator() -> &'static Buddy<Hardware> {
    BUDDY.get().unwrap_or_else(machine::lone_frames)
}

/// Returns the frame table.
pub(super) fn frame_table() -> FrameTable {
    allocator().table()
}

/// The one CPU that runs.
pub mod cpu {
    use freehold_machine::{CpuId, Topology};

    pub use super::time::idle;

    /// Does nothing: the machine has its topology already.
    pub fn set_topology(_topology: &Topology, _cpus: usize) {}
    /// No other CPU starts: the first runs alone.
    pub fn start_secondary(_bus_ids: &[u32], _life: fn(CpuId) -> !) -> usize {
        1
    }
    /// Interrupts no CPU: the only CPU checks for work before it idles.
    pub fn send_reschedule(_cpu: CpuId) {}
    /// Returns 0: no other CPU has requests.
    pub fn shootdowns(_cpu: CpuId) -> u64 {
        0
    }
    /// Returns the CPU's number on the interrupt bus.
    pub fn bus_id() -> u32 {
        0
    }
    /// Returns false: the CPU's programs have no BMI2.
    pub fn has_bmi2() -> bool {
        false
    }
}

/// Random bits from the machine's generator: the same in every run.
pub mod entropy {
    use freehold_machine::Entropy;

    /// Fills `bytes`.
    pub fn fill(bytes: &mut [u8]) {
        for part in bytes.chunks_mut(8) {
            let random = super::Hardware.random_u64().to_le_bytes();
            part.copy_from_slice(&random[..part.len()]);
        }
    }
}

/// The host's allocator stands in for the kernel's heap.
pub mod heap {
    pub use freehold_arch::heap::{CALL_RESERVE, CHECKED, FaultHook, HeapStats, Watch};

    /// Runs `body`: no failure is injected into the host's heap.
    pub fn fallibly<R>(body: impl FnOnce() -> R) -> R {
        body()
    }

    /// The host's allocator charges no account.
    pub mod charge {
        pub use freehold_arch::heap::charge::{ObjectLedger, ObjectNeed};

        /// Does nothing: nothing is charged on a host.
        pub fn begin(_ledger: ObjectLedger) {}
    }

    use super::memory::OutOfMemory;

    /// Succeeds, unless a test asked for a failure: the host has memory.
    ///
    /// # Errors
    /// As on the bare machine, for more than a reserve can promise.
    pub fn ensure(bytes: usize) -> Result<(), OutOfMemory> {
        if bytes <= 32 << 10 { Ok(()) } else { Err(OutOfMemory) }
    }
    /// Returns zeroes: the host's allocator keeps its own statistics.
    pub fn stats() -> HeapStats {
        HeapStats { frames: 0, allocated_bytes: 0, reserve_frames: 0 }
    }
    /// Returns false: there is no reserve to be filled.
    pub fn is_refilling() -> bool {
        false
    }
    /// Does nothing: tests of collections use `freehold_collections::inject`.
    pub fn inject_faults(_hook: FaultHook) {}
    /// Does nothing: no sums are kept on a host.
    pub fn watch(_watch: Watch) {}
}

/// There are no interrupts on a host: timers expire while the CPU idles.
pub mod irq {
    use core::marker::PhantomData;

    pub use freehold_arch::irq::{InterruptHandler, Msi, allocate, has_wide_numbers};

    /// Marks the section in which interrupts would be off.
    #[must_use]
    #[derive(Debug)]
    pub struct InterruptsOff(PhantomData<*mut ()>);

    impl Drop for InterruptsOff {
        fn drop(&mut self) {}
    }

    /// Returns the marker. No interrupt can occur on a host.
    pub fn disable() -> InterruptsOff {
        InterruptsOff(PhantomData)
    }
    /// Does nothing: no interrupt will occur.
    pub fn enable() {}
}

/// Reports of panics.
pub mod panic {
    pub use freehold_arch::panic::{Certificate, CertificateSink, CpuReport, MAX_FRAMES, set_sink};
}

/// Power off.
pub mod power {
    /// Ends the process.
    pub fn exit(code: u8) -> ! {
        super::std::process::exit(i32::from(code))
    }
}

/// Nodes share the kernel's text, which is the test's.
pub mod replicas {
    pub use super::memory::replica::{are_used, forget_shared_text, note_shared_load, shared_load_count};
}

/// The serial line.
pub mod serial {
    /// Prints a kernel's log. The test harness shows it if the test fails.
    pub fn print(text: core::fmt::Arguments<'_>) {
        if super::traps::handlers().is_some() {
            super::std::eprint!("{text}");
        }
    }
}

/// Locks.
pub mod sync {
    pub use freehold_arch::sync::{ArcSlot, Once, PerCpuRwGuard, PerCpuRwKept, PerCpuRwLock, ReadAttempt};

    pub use super::locks::{SpinLock, SpinLockGuard};

    use super::irq::InterruptsOff;

    /// There are no interrupts to hold off.
    pub type IrqSpinLock<T> = SpinLock<T>;

    /// As [`freehold_arch::sync::lock_with`].
    pub fn lock_with<'a, T: ?Sized>(
        lock: &'a IrqSpinLock<T>,
        _off: &'a InterruptsOff,
    ) -> SpinLockGuard<'a, T> {
        lock.lock()
    }
}

/// The handlers of traps, and the machine's end.
pub mod traps {
    pub use freehold_arch::traps::{Handlers, ImageOffset, Interrupted, Registers, Unresolved};

    static HANDLERS: super::sync::Once<&'static dyn Handlers> = super::sync::Once::new();

    /// Sets the handlers; once.
    pub fn register(handlers: &'static dyn Handlers) {
        HANDLERS.set(handlers);
    }
    pub(super) fn handlers() -> Option<&'static dyn Handlers> {
        HANDLERS.get().copied()
    }
}

/// Notes to an observer outside the machine: a host has none.
pub mod watch {
    pub use freehold_arch::watch::Records;

    /// Notes that a program begins.
    pub fn program_begins() {}
    /// Notes that the last program has ended.
    pub fn program_ended() {}
    /// Notes the tables of a process.
    pub fn process(_pid: u32, _root: freehold_machine::Pfn) {}
    /// Publishes the layout of the frame table.
    pub fn publish(_records: Records, _owners: impl Iterator<Item = &'static str>) {}
}

/// Windows close at once, as the model closes them.
pub mod windows {
    use freehold_xpfo::Closing;

    pub use super::memory::policy;

    /// Does nothing: windows always close at once.
    pub fn close_as(_closing: Closing) {}
    /// Does nothing: no closed window is remembered.
    pub fn forget_closed() {}
    /// Does nothing: only the kernel uses the CPU.
    pub fn lend() {}
    /// Does nothing. On a real machine, the CPU runs a program again.
    pub fn take_back() {}
}
