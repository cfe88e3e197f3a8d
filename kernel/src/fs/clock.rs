//! The time that files are stamped with.

use super::node::Timestamp;

/// Now, by the wall clock.
pub fn now() -> Timestamp {
    crate::time::wall()
}
