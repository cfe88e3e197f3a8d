//! The file of an O_PATH descriptor, which only leads to its place.

use super::file::File;
use super::node::Node;
use freehold_collections::Arc;

/// A file that is only a handle on a node.
pub struct PathFile {
    node: Arc<dyn Node>,
}

impl PathFile {
    /// A handle on `node`.
    pub fn new(node: Arc<dyn Node>) -> Self {
        Self { node }
    }
}

impl File for PathFile {
    fn node(&self) -> Arc<dyn Node> {
        self.node.clone()
    }

    fn is_always_ready(&self) -> bool {
        true
    }
}
