//! Tracepoints: the events, the contents of their records, and the ring of records.
//!
//! The [table] is the only place that defines an event: its name, its fields with their C types,
//! and its text. The `format` file, the bytes of a record and the line in `trace` come from it. The
//! kernel, the mm crates and the command use the same table, so the command knows every event
//! before a machine starts.
//!
//! A tracepoint asks its static key first: [`trace!`] calls `is_traced`, which is a no-op in the
//! kernel's text while the event is off. The fields are evaluated only if the event is on.
//!
//! This crate allocates nothing and knows no kernel. Linux' relatives are TRACE_EVENT
//! (include/linux/tracepoint.h) and kernel/trace/ring_buffer.c.
#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(test)]
extern crate std;

pub mod calls;
mod field;
mod format;
mod record;
pub mod ring;
mod select;
pub mod table;
mod template;
#[cfg(test)]
mod tests;

pub use field::{Comm, FieldType, Pid};
pub use format::{FieldText, Format, Line, Stamp};
pub use record::{HEAD_WORDS, MOST_PAYLOAD, MOST_WORDS, RecordHead, RecordView};
pub use select::{Action, SelectError, Selection, parse, selections};
pub use table::{COUNT, EVENTS, EventDescription, TraceEvent};

/// The atomics of `ring.rs`, which `tests/loom.rs` replaces.
mod atomic {
    pub use core::sync::atomic::{AtomicU64, Ordering, fence};
}

/// Traces an event if it is on. `$tracer` has the methods `is_traced` and `record_event` of
/// `freehold_machine::Cpus`. The fields are evaluated only if the event is on.
#[macro_export]
macro_rules! trace {
    ($tracer:expr, $event:ident { $($fields:tt)* }) => {
        if $tracer.is_traced::<{ <$crate::table::$event as $crate::TraceEvent>::NUMBER }>() {
            let event = $crate::table::$event { $($fields)* };
            $tracer.record_event(
                <$crate::table::$event as $crate::TraceEvent>::NUMBER,
                &$crate::TraceEvent::words(&event),
            );
        }
    };
}
