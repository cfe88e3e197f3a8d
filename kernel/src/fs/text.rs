//! Running programs and written files: a file is never both (`ETXTBSY`). Leases need to know how
//! often a file is open ([`leases`](super::leases)), so descriptions that only read it are counted,
//! too.
//!
//! Invariant: a [`TextUse`] counts either descriptions open for writing or running programs, never
//! both at once. A [`Permit`] stands for each; its holder drops it at the end.

use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use freehold_collections::Arc;

use super::node::Node;
use crate::{Errno, Result};

/// The counts of one inode: positive for writers, negative for running programs; and the
/// descriptions that only read.
#[derive(Debug, Default)]
pub struct TextUse(AtomicI32, AtomicU32);

/// Purpose of a permit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// To write the file.
    Write,
    /// To run it.
    Run,
}

impl Purpose {
    const fn step(self) -> i32 {
        match self {
            Self::Write => 1,
            Self::Run => -1,
        }
    }
}

impl TextUse {
    /// Returns a new counter: no writers, no running programs.
    pub const fn new() -> Self {
        Self(AtomicI32::new(0), AtomicU32::new(0))
    }

    /// Number of descriptions that are open for writing; if negative, the number of running
    /// programs.
    pub fn writers(&self) -> i32 {
        self.0.load(Ordering::SeqCst)
    }

    /// Number of descriptions that only read, including those of running programs.
    pub fn readers(&self) -> u32 {
        self.1.load(Ordering::SeqCst)
    }

    /// Counts one more description that only reads.
    #[inline]
    pub fn add_reader(&self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts one such description less.
    #[inline]
    pub fn remove_reader(&self) {
        self.1.fetch_sub(1, Ordering::SeqCst);
    }

    fn begin(&self, purpose: Purpose) -> Result<()> {
        let step = purpose.step();
        let more = |count: i32| if count.signum() == -step { None } else { count.checked_add(step) };
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).map(|_| ()).map_err(|_| Errno::ETXTBSY)
    }
}

/// A counted writer or running program of a file.
pub struct Permit {
    node: Arc<dyn Node>,
    purpose: Purpose,
}

impl Permit {
    /// Counts a writer or running program, if `node` has a counter (regular files do).
    ///
    /// # Errors
    /// `ETXTBSY` while the file is used in the other way.
    pub fn new(node: &Arc<dyn Node>, purpose: Purpose) -> Result<Option<Self>> {
        let Some(text) = node.text_use() else { return Ok(None) };
        text.begin(purpose)?;
        Ok(Some(Self { node: node.clone(), purpose }))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(text) = self.node.text_use() {
            text.0.fetch_sub(self.purpose.step(), Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_and_programs_keep_each_other_out() {
        let text = TextUse::new();
        text.begin(Purpose::Write).unwrap();
        text.begin(Purpose::Write).unwrap();
        assert_eq!(text.begin(Purpose::Run), Err(Errno::ETXTBSY));
        text.0.fetch_sub(2, Ordering::Relaxed);
        text.begin(Purpose::Run).unwrap();
        assert_eq!(text.begin(Purpose::Write), Err(Errno::ETXTBSY));
        text.begin(Purpose::Run).unwrap();
    }
}
