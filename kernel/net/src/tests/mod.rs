//! Whole stacks, on a wire that a test decides about.

mod hostile;
mod wire;
mod world;
