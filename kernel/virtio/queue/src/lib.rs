//! Virtqueues that own what they lend to a device.
//!
//! **Invariant.** From [`Queue::submit`] until [`Queue::complete`] returns it, a [`Chain`] and its
//! memory belong to the queue. If a device's answer is invalid, the queue is [`Broken`] and keeps
//! its chains, since the device may still write to them. It frees them, and the ring, once the
//! device has confirmed a reset ([`Queue::reclaim`]). A queue that is dropped without that proof
//! loses its memory: nothing else uses it again, and the DMA API counts it. A part is one
//! descriptor or several, as its mapping is one run of pages or several. There are no indirect
//! descriptors: a table of them would be more memory that a device can access. Chains are made of
//! [`Mapping`](freehold_bounce::Mapping)s and [`InPlace`](freehold_bounce::InPlace) frames, so a
//! device only gets addresses of the DMA API.
//!
//! **Checks.** All 32 bits of a used ring entry's id are checked. Its chain has to be in flight,
//! and the ring's index may not be ahead by more than the number of chains in flight. Lengths are
//! limited to the lent memory.
//!
//! May use `unsafe`: a ring's words are accessed through pointers (`ring.rs`), and the model is
//! memory of the host. The crate is safe to use; drivers are built on it in safe code.
//!
//! **Context.** Tasks and start-up; the caller's lock makes the methods exclusive. Interrupt
//! handlers do not come here.
#![no_std]
#![allow(unsafe_code, reason = "a ring's words are reached through pointers")]
#![cfg_attr(test, allow(clippy::unwrap_used))]

extern crate alloc;

mod memory;
#[cfg(feature = "model")]
pub mod model;
mod queue;
mod reset;
mod ring;

pub use memory::{NoRings, install};
pub use queue::{Broken, Chain, Completion, Full, MAX_DESCRIPTORS, MAX_PARTS, Part, PartMemory, Queue};
pub use reset::{DeviceReset, PowerSlot, reset, unplugged};
pub use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
pub use virtio_drivers::{Error as TransportError, PhysAddr as RingAddr, Result as TransportResult};
