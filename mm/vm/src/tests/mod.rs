//! Promises of address spaces, each checked by the software machine's TLB model; at the end of
//! every test all frames must be free.

mod basics;
mod cache;
mod calls;
mod collapse;
mod evict;
mod huge;
mod hugefiles;
mod hugetlb;
mod keys;
mod merge;
mod migrate;
mod mirrors;
mod monitor;
mod pins;
mod promises;
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
