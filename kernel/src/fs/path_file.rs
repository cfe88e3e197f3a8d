//! The file of an O_PATH descriptor, which only identifies a place.

use super::file::File;
use super::node::Node;
use freehold_collections::Arc;

/// A file that only identifies a node.
pub struct PathFile {
    node: Arc<dyn Node>,
}

impl PathFile {
    /// Makes the file for `node`.
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
