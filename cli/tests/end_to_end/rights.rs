//! What one user's programs may do to another's, and to the kernel by closing what they own.


use crate::conformance::{conforms, conforms_with};

/// Who may look into whom: a table of calls, files of /proc, inspectors and targets.
#[test]
fn rights() {
    conforms("rights");
}

/// What owns another to any depth goes without recursion.
#[test]
fn drops() {
    for cpus in ["1", "4"] {
        conforms_with("drops", &["--cpus", cpus], &[], &[]);
    }
}
