//! The tracepoints of this crate. The function that records is separate from the test: a tracepoint
//! that is off costs the code around it a no-op and no register.

use freehold_machine::{Cpus, Pfn};
use freehold_tracepoints::TraceEvent;
use freehold_tracepoints::table::XpfoWindow;

use crate::X86;
use crate::memory::tables::WRITABLE;

/// A window opens on a frame, with these bits in its entry.
#[inline(always)]
pub(crate) fn trace_window(frame: Pfn, bits: u64) {
    if X86.is_traced::<{ XpfoWindow::NUMBER }>() {
        record_window(frame, bits);
    }
}

#[cold]
#[inline(never)]
fn record_window(frame: Pfn, bits: u64) {
    let event = XpfoWindow { pfn: frame.0, access: u32::from(bits & WRITABLE != 0) };
    X86.record_event(XpfoWindow::NUMBER, &event.words());
}
