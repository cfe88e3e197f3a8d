//! /sys/kernel/debug/latency: the longest latency of each CPU. Writing 0 resets the figures.

use crate::fs::generated::{Generate, Text};
use crate::sched::latency::{self, Lateness};
use crate::{Errno, Result};

/// The file.
pub(super) struct Latency;

impl Generate for Latency {
    /// Two lines for each CPU. Code addresses are offsets in the kernel's image.
    fn show(&self, out: &mut Text) -> Result<()> {
        for figures in latency::figures() {
            let mut line = |what: &str, Lateness { nanoseconds, place }: Lateness| {
                writeln!(out, "cpu{} {what}: {nanoseconds} ns, at {place:#x}", figures.cpu.0);
            };
            line("interrupts off", figures.interrupts_off);
            line("another task waited", figures.waited);
        }
        Ok(())
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        if bytes.trim_ascii() != b"0" {
            return Err(Errno::EINVAL);
        }
        latency::forget();
        Ok(())
    }
}
