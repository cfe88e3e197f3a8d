//! The frames of the kernel's text that the CPUs of each node fetch, and how they change.
//!
//! A node that had too little memory gets its copy of text while CPUs run: leaves of its tables
//! change to other frames. A CPU may have the old translations cached until it flushes all of them.
//! So all versions are kept, and a CPU may fetch frames of each version from its last such flush
//! on.

use std::sync::{PoisonError, RwLock};

use freehold_scope_doorbell::Publication;

use crate::guest::{GuestMemory, walk};

/// By node: the frames of text, from text's first page on.
type Version = Vec<Vec<u64>>;

/// The versions of all nodes' text, the oldest first.
#[derive(Debug, Default)]
pub struct Texts(RwLock<Vec<Version>>);

impl Texts {
    /// Adds the version that the tables now show.
    pub fn read(&self, memory: &dyn GuestMemory, p: &Publication) {
        let version = (0..p.roots.len()).map(|node| text_of(memory, p, node)).collect();
        self.0.write().unwrap_or_else(PoisonError::into_inner).push(version);
    }
    /// Returns the number of the newest version.
    pub fn newest(&self) -> usize {
        self.0.read().unwrap_or_else(PoisonError::into_inner).len().saturating_sub(1)
    }
    /// Returns whether `node` has `frame` as this page of text in none of the versions from number
    /// `since` on. False before there is one.
    pub fn is_anothers(&self, node: usize, page: usize, frame: u64, since: usize) -> bool {
        let versions = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let versions = versions.get(since..).unwrap_or(&[]);
        let has = |version: &Version| version.get(node).and_then(|text| text.get(page)) == Some(&frame);
        !versions.is_empty() && !versions.iter().any(has)
    }
}

/// Returns the frames of text as `node`'s CPUs see it.
fn text_of(memory: &dyn GuestMemory, p: &Publication, node: usize) -> Vec<u64> {
    let pages = (p.text & !0xfff..p.text_end).step_by(4096);
    pages.map(|address| walk(memory, p.root(node), address).map_or(0, |leaf| leaf.page >> 12)).collect()
}
