//! Kinds of data that the kernel loads and stores, and the counts for each.

use serde::{Deserialize, Serialize};

/// A kind of data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataKind {
    /// Programs' bytes: through their own addresses, through windows, or in their frames.
    Programs,
    /// The image: variables, constants.
    Image,
    /// Records of frames.
    FrameTable,
    /// Mapped one page at a time: stacks, and what is too long for the heap.
    Stacks,
    /// Translation tables.
    Tables,
    /// All else in the direct map: objects, private data of CPUs, buffers.
    Heap,
}

impl DataKind {
    /// The kinds of the kernel's own data.
    pub const OWN: [Self; 5] = [Self::Image, Self::FrameTable, Self::Stacks, Self::Tables, Self::Heap];

    /// Returns the name of the kind in texts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Programs => "programs",
            Self::Image => "image",
            Self::FrameTable => "frame table",
            Self::Stacks => "stacks",
            Self::Tables => "tables",
            Self::Heap => "heap",
        }
    }
}

/// Loads and stores to data of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct KindCounts {
    /// To the CPU's own node.
    pub local: u64,
    /// To another.
    pub remote: u64,
}

/// Loads and stores of the kernel by kind of data; all zero if the kernel does not publish its map.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct KernelData {
    /// [`DataKind::Programs`].
    pub programs: KindCounts,
    /// [`DataKind::Image`].
    pub image: KindCounts,
    /// [`DataKind::FrameTable`].
    pub frame_table: KindCounts,
    /// [`DataKind::Stacks`].
    pub stacks: KindCounts,
    /// [`DataKind::Tables`].
    pub tables: KindCounts,
    /// [`DataKind::Heap`].
    pub heap: KindCounts,
}

impl KernelData {
    /// Returns the counts of one kind.
    pub const fn of(&self, kind: DataKind) -> KindCounts {
        match kind {
            DataKind::Programs => self.programs,
            DataKind::Image => self.image,
            DataKind::FrameTable => self.frame_table,
            DataKind::Stacks => self.stacks,
            DataKind::Tables => self.tables,
            DataKind::Heap => self.heap,
        }
    }

    /// Adds counts of one kind.
    pub const fn add(&mut self, kind: DataKind, more: KindCounts) {
        let counts = match kind {
            DataKind::Programs => &mut self.programs,
            DataKind::Image => &mut self.image,
            DataKind::FrameTable => &mut self.frame_table,
            DataKind::Stacks => &mut self.stacks,
            DataKind::Tables => &mut self.tables,
            DataKind::Heap => &mut self.heap,
        };
        counts.local += more.local;
        counts.remote += more.remote;
    }

    /// Adds all counts of `more`.
    pub fn join(&mut self, more: &Self) {
        self.add(DataKind::Programs, more.programs);
        DataKind::OWN.iter().for_each(|&kind| self.add(kind, more.of(kind)));
    }

    /// Returns the sum of the kernel's own kinds.
    pub fn own(&self) -> KindCounts {
        DataKind::OWN.iter().fold(KindCounts::default(), |sum, &kind| {
            let more = self.of(kind);
            KindCounts { local: sum.local + more.local, remote: sum.remote + more.remote }
        })
    }
}
