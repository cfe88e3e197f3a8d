//! From the first instruction in Rust to the first program.
//!
//! The order matters, and is the order of what each step needs: firmware's tables before the first frame
//! (where memory is decides what is handed out), frames before CPUs (each has lists and stacks), CPUs before devices
//! (interrupts are spread), files before the program.
