//! Promises of address spaces, each under the eye of the software machine's TLB judge; every test
//! ends with all frames back.

mod basics;
mod cache;
mod calls;
mod collapse;
mod evict;
mod huge;
mod migrate;
mod monitor;
mod pins;
mod random;
mod refs;
mod registry;
mod remote;
mod secret;
mod shared_fault;
mod stored;
mod stores_model;
mod swap;
mod vdso;
mod world;
