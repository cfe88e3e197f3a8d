//! Freehold's mechanisms behind the traits that other kernels' code is written to.
//!
//! | trait | of the crate | value here | made from |
//! |---|---|---|---|
//! | `FrameAllocator`, `FrameDeallocator` | `x86_64` | [`TypedFrames`] | any [`FrameSource`](freehold_frame::FrameSource) |
//! | `Mapper` | `x86_64` | [`SpaceMapper`] | a `freehold_paging::Space` |
//! | `BaseAllocator`, `PageAllocator` | `axallocator` | [`BuddyPages`] | a `freehold_buddy::Buddy` |
//! | `ReadBuffer`, `WriteBuffer` | `embedded-dma` | [`DmaBuffer`] | `freehold_bounce::Coherent` memory |
//!
//! Each trait is a feature of its own; all are on by default. `virtio-drivers`' `Hal` is the crate
//! `freehold-bounce-hal`.
//!
//! May use `unsafe`: the traits are unsafe, or their functions are.
//!
//! **What the traits lose.** They pass frames as numbers, so the compiler no longer knows the owner
//! of a frame. The frame's record still does: a frame that is given back twice, or as another kind,
//! is noticed.
#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![no_std]
#![allow(unsafe_code)]

#[cfg(feature = "embedded-dma")]
mod buffer;
#[cfg(feature = "x86_64")]
mod frames;
#[cfg(feature = "x86_64")]
mod mapper;
#[cfg(feature = "axallocator")]
mod pages;

#[cfg(feature = "embedded-dma")]
pub use buffer::DmaBuffer;
#[cfg(feature = "x86_64")]
pub use frames::TypedFrames;
#[cfg(feature = "x86_64")]
pub use mapper::SpaceMapper;
#[cfg(feature = "axallocator")]
pub use pages::BuddyPages;
