//! Replicas: a copy of the kernel's text and read-only data on each node that has CPUs, so that no
//! CPU fetches the kernel's instructions from another node.
//!
//! **Copied pages.** The pages of the image from the first of text to the last of read-only data,
//! after relocation. Replicas have the same bytes at the same addresses. Writable data is not
//! copied: there is only one instance.
//!
//! **Where.** [`plan`] chooses the nodes: those with CPUs and memory, except the image's node. A
//! node without a replica uses the nearest one, or the image ([`nearest`]).
//!
//! **Roots.** A replica has its own tables for the top-level slot that contains the image, and a
//! root that shares every other slot of the kernel half with the image's root. So other mappings in
//! the kernel half are made for all nodes by one store, and are flushed by one shootdown.
//!
//! **Frames.** Pageblocks, and frames for the rest, whose owner is
//! [`Owner::Replica`](freehold_frame::Owner::Replica): on their node, outside the direct map, and
//! read-only in the one place where they are mapped. They are written through windows before any
//! CPU uses them; then the windows are flushed. After that only a patch writes to them.
//!
//! **Check.** [`Replicas::verify`] compares each page of the image and of every replica with its
//! hash, which the first check of the page computes (`check.rs`): start-up copies and does not
//! hash. [`Replicas::validate`] checks the tables and the owners of frames.
//!
//! **Patching.** [`Replicas::patch`] changes instructions in the image and in all replicas at once,
//! while CPUs run them, and updates the hashes: the protocol is in `patch.rs`.
//!
//! **Late copies.** A node that had too little memory has tables of its own that lead to another
//! node's frames. [`Replicas::catch_up`] makes its copy when there is memory (`late.rs`).
//!
//! **Dump.** [`dump`] shows a root's mappings of the kernel half, in Linux' form.
//!
//! The nearest relatives are Linux' series for x86 that was never merged (Kuzin, RFC of
//! December 2023) and `REPLICATE_KTEXT` of MIPS IP27.
#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod check;
mod copy;
mod dump;
mod late;
mod patch;
mod plan;
mod tables;
#[cfg(test)]
mod tests;

pub use check::ReplicaFault;
pub use copy::{KernelImage, NodeFigures, Port, ReplicaMemory, Replicas, Rest, page_hash};
pub use dump::{Run, dump};
pub use patch::{INT3, Instruction, LENGTH, Patch, PatchError};
pub use plan::{Setting, nearest, plan};
