//! Virtqueues that own what they lend to a device.
//!
//! **Invariant.** From [`Queue::submit`] until [`Queue::complete`] returns it, a [`Chain`] and its memory
//! belong to the queue; a device that answers nonsense gets nothing freed under its writes: the queue is then
//! [`Broken`] and keeps its chains. It frees them, and the ring, once the device has confirmed a reset
//! ([`Queue::reclaim`]). A queue that is dropped without that proof loses its memory: nothing else uses it again, and the
//! DMA API counts it. A part is one descriptor or several, as its mapping is one run of pages or several. There are no indirect
//! descriptors: the crate's tables of them are on the kernel heap, which no device may reach. Chains are made of [`Mapping`](freehold_bounce::Mapping)s, so a device is told no address but
//! those of the DMA API.
//!
//! **Checks.** Before the crate `virtio-drivers` looks at an entry of the used ring, this crate checks all 32 bits of its
//! id, that the chain is in flight, and that the index is not further ahead than chains are in flight.
//!
//! May use `unsafe`: the crate `virtio-drivers` wants raw memory for rings and promises about the life of
//! buffers. This crate gives both, and is safe to use; drivers are built on it in safe code.
//!
//! **Context.** Tasks and start-up; the caller's lock makes the methods exclusive. Interrupt handlers do not
//! come here.
#![no_std]
#![allow(unsafe_code, reason = "the crate `virtio-drivers` wants raw memory for rings")]
#![cfg_attr(test, allow(clippy::unwrap_used))]

extern crate alloc;

mod memory;
#[cfg(feature = "model")]
pub mod model;
mod placement;
mod queue;
mod reset;

pub use memory::{NoRings, install};
pub use queue::{Broken, Chain, Completion, Full, MAX_DESCRIPTORS, MAX_PARTS, Part, Queue};
pub use reset::{DeviceReset, reset};
pub use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};
pub use virtio_drivers::{Error as TransportError, PhysAddr as RingAddr, Result as TransportResult};
