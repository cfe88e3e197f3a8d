//! Terminals.

pub mod discipline;
pub mod termios;
