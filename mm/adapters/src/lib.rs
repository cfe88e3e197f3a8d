//! Freehold's mechanisms behind the traits that other kernels' code is written to, and Freehold's
//! hardware traits for other kernels on one CPU.
//!
//! | trait | of the crate | value here | made from |
//! |---|---|---|---|
//! | `FrameAllocator`, `FrameDeallocator` | `x86_64` | [`TypedFrames`] | any [`FrameSource`](freehold_frame::FrameSource) |
//! | `Mapper` | `x86_64` | [`SpaceMapper`] | a `freehold_paging::Space` |
//! | `BaseAllocator`, `PageAllocator` | `axallocator` | [`BuddyPages`] | a `freehold_buddy::Buddy` |
//! | `ReadBuffer`, `WriteBuffer` | `embedded-dma` | [`DmaBuffer`] | `freehold_bounce::Coherent` memory |
//! | `GlobalAlloc` | `core` | [`EarlyHeap`] | bytes of the kernel's image |
//! | [`Machine`](freehold_machine::Machine) | `freehold_machine` | [`OneCpu`] | instructions and tables of `x86_64` |
//!
//! [`start_buddy`] makes a page allocator in one call, where there is a heap.
//!
//! Each trait is a feature of its own; all are on by default. `virtio-drivers`' `Hal` is the crate
//! `freehold-bounce-hal`.
//!
//! May use `unsafe`: the traits are unsafe, or their functions are; and a machine has registers.
//!
//! **What the traits lose.** They pass frames as numbers, so the compiler no longer knows the owner
//! of a frame. The frame's record still does: a frame that is given back twice, or as another kind,
//! is noticed.
#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![no_std]
#![allow(unsafe_code)]

#[cfg(feature = "embedded-dma")]
mod buffer;
mod early_heap;
#[cfg(feature = "x86_64")]
mod frames;
#[cfg(feature = "x86_64")]
mod mapper;
#[cfg(all(feature = "one-cpu", target_arch = "x86_64"))]
mod one_cpu;
#[cfg(feature = "axallocator")]
mod pages;
#[cfg(feature = "buddy")]
mod start;

#[cfg(feature = "embedded-dma")]
pub use buffer::DmaBuffer;
pub use early_heap::EarlyHeap;
#[cfg(feature = "x86_64")]
pub use frames::TypedFrames;
#[cfg(feature = "x86_64")]
pub use mapper::SpaceMapper;
#[cfg(all(feature = "one-cpu", target_arch = "x86_64"))]
pub use one_cpu::{DIRECT_MAP, KernelMap, OneCpu};
#[cfg(feature = "axallocator")]
pub use pages::BuddyPages;
#[cfg(feature = "buddy")]
pub use start::start_buddy;
