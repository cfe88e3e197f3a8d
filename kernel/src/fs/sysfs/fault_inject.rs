//! /sys/kernel/debug/failslab and fail_page_alloc: the settings of fault injection; see
//! [`crate::fault_inject`].
//!
//! Names and formats are Linux'. Files for rules that do not exist here are absent: heap and page
//! allocator never wait, so there is no ignore-gfp-wait, and there are no caches to filter by.

use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use freehold_collections::Arc;

use crate::fault_inject::{self, FAIL_PAGE_ALLOC, FAILSLAB, FaultAttr, IGNORE_HIGHMEM, MIN_ORDER};
use crate::fs::generated::{Generate, Text};
use crate::fs::pseudo::PseudoDir;
use crate::{Errno, Result};

/// A number that a file shows and changes.
#[derive(Clone, Copy)]
enum Knob {
    Unsigned(&'static AtomicU64),
    Signed(&'static AtomicI64),
    Flag(&'static AtomicBool),
}

impl Generate for Knob {
    fn show(&self, out: &mut Text) -> Result<()> {
        match self {
            Self::Unsigned(number) => writeln!(out, "{}", number.load(Ordering::Relaxed)),
            Self::Signed(number) => writeln!(out, "{}", number.load(Ordering::Relaxed)),
            Self::Flag(flag) => writeln!(out, "{}", if flag.load(Ordering::Relaxed) { 'Y' } else { 'N' }),
        }
        Ok(())
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?.trim();
        match self {
            Self::Unsigned(number) => {
                number.store(text.parse().map_err(|_| Errno::EINVAL)?, Ordering::Relaxed);
            }
            Self::Signed(number) => {
                number.store(text.parse().map_err(|_| Errno::EINVAL)?, Ordering::Relaxed);
            }
            Self::Flag(flag) => {
                let on = match text {
                    "1" | "y" | "Y" | "on" => true,
                    "0" | "n" | "N" | "off" => false,
                    _ => return Err(Errno::EINVAL),
                };
                flag.store(on, Ordering::Relaxed);
            }
        }
        fault_inject::arm();
        Ok(())
    }
}

/// Adds the directories to debugfs.
pub(super) fn fill(debug: &Arc<PseudoDir>) {
    capability(&debug.dir(b"failslab"), &FAILSLAB);
    let pages = debug.dir(b"fail_page_alloc");
    capability(&pages, &FAIL_PAGE_ALLOC);
    pages.generated("min-order", 0o600, Knob::Unsigned(&MIN_ORDER));
    pages.generated("ignore-gfp-highmem", 0o600, Knob::Flag(&IGNORE_HIGHMEM));
    debug.file("heap_reserve", reserve);
}

/// Shows the number of bytes that a system call has reserved, and the largest number that one used,
/// if the heap is checked (the QUICK kernel; zeroes elsewhere). Linux has no such file.
fn reserve(out: &mut Text) -> Result<()> {
    let drawn = crate::task::reserve::largest();
    writeln!(out, "set_aside {}\nlargest {drawn}", crate::hw::heap::CALL_RESERVE);
    Ok(())
}

fn capability(dir: &PseudoDir, attr: &'static FaultAttr) {
    dir.generated("interval", 0o600, Knob::Unsigned(&attr.interval));
    dir.generated("probability", 0o600, Knob::Unsigned(&attr.probability));
    dir.generated("space", 0o600, Knob::Signed(&attr.space));
    dir.generated("times", 0o600, Knob::Signed(&attr.times));
    dir.generated("verbose", 0o600, Knob::Unsigned(&attr.verbose));
    dir.generated("task-filter", 0o600, Knob::Flag(&attr.task_filter));
}
