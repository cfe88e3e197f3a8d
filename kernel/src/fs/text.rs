//! Programs that run and files that are written: a file is never both (`ETXTBSY`). Leases ask how
//! often a file is open ([`leases`](super::leases)), so those who only read it are counted, too.
//!
//! Invariant: a [`TextUse`] counts either descriptions open for writing or running programs, never
//! both at once. Each is counted by a [`Permit`], which its holder drops at the end.

use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use freehold_collections::Arc;

use super::node::Node;
use crate::{Errno, Result};

/// The counts of one inode: writers above 0, programs below; descriptions that only read.
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
    /// Returns a count without writers and programs.
    pub const fn new() -> Self {
        Self(AtomicI32::new(0), AtomicU32::new(0))
    }

    /// Descriptions that are open for writing; running programs where it is negative.
    pub fn writers(&self) -> i32 {
        self.0.load(Ordering::SeqCst)
    }

    /// Descriptions that only read, those of running programs included.
    pub fn readers(&self) -> u32 {
        self.1.load(Ordering::SeqCst)
    }

    /// A description that only reads comes.
    #[inline]
    pub fn add_reader(&self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }

    /// It goes.
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

/// One who writes or runs a file.
pub struct Permit {
    node: Arc<dyn Node>,
    purpose: Purpose,
}

impl Permit {
    /// Be counted, where `node` counts (regular files do).
    ///
    /// # Errors
    /// `ETXTBSY` while the file is in the other use.
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
