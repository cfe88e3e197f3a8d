//! The last users of pages through addresses of their own (a program's, or the kernel's direct
//! map), and since when a program uses what the kernel used before.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::frames::User;

/// Above every number of a CPU.
const CPUS: u64 = 1 << 8;

/// By frame.
pub struct PageUses {
    touched: Vec<AtomicU8>,
    /// When a program first touched the frame after the kernel, on the machine's clock, × [`CPUS`]
    /// + the CPU; 0: no program has touched it, or the kernel has touched it since.
    aliased: Vec<AtomicU64>,
}

impl PageUses {
    pub fn new(frames: usize) -> Self {
        Self {
            touched: (0..frames).map(|_| AtomicU8::new(0)).collect(),
            aliased: (0..frames).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Notes a user of a frame; returns the one before, as a number. `since` is the machine's clock
    /// and the CPU.
    pub fn touched(&self, frame: u64, by: User, since: (u64, usize)) -> u8 {
        let Some(user) = self.touched.get(frame as usize) else { return 0 };
        let before = user.swap(by as u8, Ordering::Relaxed);
        let word = match by {
            User::Kernel => 0,
            _ if before == User::Kernel as u8 => since.0 * CPUS + since.1 as u64,
            _ => return before,
        };
        self.aliased[frame as usize].store(word, Ordering::Relaxed);
        before
    }

    /// Returns when a program first touched the frame after the kernel, and on which CPU; `None` if
    /// the kernel touched it last.
    pub fn aliased(&self, frame: u64) -> Option<(u64, usize)> {
        let word = self.aliased.get(frame as usize)?.load(Ordering::Relaxed);
        (word != 0).then_some((word / CPUS, (word % CPUS) as usize))
    }
}
