//! TCP, UDP, ICMP and ARP over Ethernet for one address of IPv4.
//!
//! A [`Stack`] has no clock, no device and no sockets: its caller supplies frames and the time, and
//! its [`Host`] the rest. So one stack runs in the kernel. A test runs many, with a wire that
//! loses, doubles and reorders frames.
//!
//! | module | what |
//! |---|---|
//! | [`host`](Host) | services that a stack needs from its machine |
//! | [`stack`](Stack) | all connections, calls, cookies, packets for no connection |
//! | `connection`, `state` | one connection of TCP |
//! | `estimate` | round trips and congestion |
//! | `ring` | bytes that wait, and their limit together |
//! | `table`, `wheel` | connections by their ends; timers: both cost the same however many connections there are |
//! | `neighbours` | ARP |
//! | `wire` | frames to packets and back |
//!
//! **Cost of a segment**, made, read and answered: `examples/scale.rs` measures it with 10 to
//! 50,000 connections. No step visits another connection; only cache misses grow (0.3 microseconds
//! with 10 connections, 1.0 with 10,000, 1.5 with 50,000).
//!
//! **Why not a library.** smoltcp visits every socket for each packet (0.8, 9.7 and 100
//! microseconds a byte with 10, 1,000 and 10,000 of them), has neither listen queues nor cookies,
//! and allocates infallibly. Its formats (`smoltcp::wire`) and its list of gaps
//! (`smoltcp::storage::Assembler`) are used.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(test)]
extern crate std;

mod bounds;
mod connection;
mod estimate;
mod host;
mod neighbours;
mod ring;
mod seq;
mod stack;
mod state;
mod table;
#[cfg(test)]
mod tests;
mod wheel;
mod wire;

pub use host::{Host, Owner, Refusal};
pub use stack::{Config, Counters, Stack};
pub use state::{Failure, State};
pub use table::{Ends, Id};
pub use wire::Marks;
