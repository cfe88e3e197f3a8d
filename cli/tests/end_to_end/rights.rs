//! What programs may do to the kernel by closing what they own.


use crate::conformance::conforms_with;

/// What owns another to any depth goes without recursion.
#[test]
fn drops() {
    for cpus in ["1", "4"] {
        conforms_with("drops", &["--cpus", cpus], &[], &[]);
    }
}
