//! Accounts: the memory for which groups of processes are charged, and their limits.
//!
//! Accounts form a tree. A frame is charged to one account and counts in all accounts above it, up
//! to the root, which counts nothing. Each account has a hard limit (`max`), a soft limit (`high`)
//! that charges may pass and that is then reported, a high-water mark (`peak`), and counts of
//! events. Slots of swap areas are charged separately, to the account of their page.
//!
//! The page allocator charges frames ([`Ledger`](https://docs.rs/freehold-buddy)), and frames
//! remember their accounts' numbers ([`freehold_frame::AccountId`]). So the charges of a process
//! stay behind when it moves to another group, as on Linux (memory controller of cgroup v2), and a
//! group that is gone stays known until its last frame is free.
//!
//! **Protocol.** An account's [`Balance`] is one word: its state and the frames charged. A charge
//! climbs from the account to the top. It reads the next account above only after it has charged
//! the one below, which then cannot disappear. If an account above refuses, the charges are undone.
//! A closed account can still be charged by a task that read it earlier. Its number is used again
//! only when it is closed, nothing is charged to it, and it has no account below: the word goes
//! from "closed, 0" to "free" in one compare-exchange. A charge that finds "free" succeeds and
//! charges no account. `tests/loom.rs` explores this, and variants that are wrong.
//!
//! Objects smaller than a frame are charged by the byte ([`ObjectBytes`]): an account is charged
//! for the frames that its objects would fill.
//!
//! **Locks.** Opening and closing take a spin lock; charging and reading take none. Any context may
//! charge.
#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod accounts;
mod balance;
mod objects;

pub use accounts::{
    AccountEntry, AccountEvent, AccountLimit, Accounts, Below, CHUNK, ChargeError, ChargedFrames,
    ChargedKind, FrameCharge, OpenError, Resource, Together, Urgency,
};
pub use balance::{Balance, BalanceError, charge_upwards, uncharge_upwards};
pub use objects::ObjectBytes;
