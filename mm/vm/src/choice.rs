//! The choice of frames to reclaim.

use freehold_charge::Below;
use freehold_frame::{FrameState, FrameTable, NodeSet};
use freehold_machine::Pfn;

/// Frames of some nodes: all of them, or those that are charged to some accounts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameChoice {
    /// The nodes of the frames.
    pub nodes: NodeSet,
    /// The accounts that the frames are charged to; `None`: any.
    pub charged: Option<Below>,
}

impl FrameChoice {
    /// All frames.
    pub const ALL: Self = Self::on(NodeSet::ALL);

    /// The frames of `nodes`.
    pub const fn on(nodes: NodeSet) -> Self {
        Self { nodes, charged: None }
    }
    /// The frames that are charged to `accounts`.
    pub const fn charged_to(accounts: Below) -> Self {
        Self { nodes: NodeSet::ALL, charged: Some(accounts) }
    }
    /// Returns whether `frame`, which starts a block, is one of them.
    pub(crate) fn contains(self, table: FrameTable, frame: Pfn) -> bool {
        let Some(record) = table.get(frame) else { return false };
        let FrameState::Owned { node, .. } = record.state() else { return false };
        self.nodes.contains(node) && self.charged.is_none_or(|below| below.contains(table.account(frame)))
    }
}
