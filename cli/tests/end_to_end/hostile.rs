//! Programs that mean harm.

use crate::common::*;

#[test]
fn random_system_calls_leave_the_kernel_as_it_was() {
    let program = guest_program("workloads/hostile");
    for (cpus, seed) in [("1", "10"), ("2", "3")] {
        let options = ["--cpus", cpus, "-m", "512M"];
        // Whatever is left of the processes, a frame without its owner for example, fails the run.
        let outcome = run(&options, &[text(&program), seed, "40"], b"").expect(0);
        assert!(outcome.text().starts_with("hostile: "), "{}", outcome.text());
    }
}
