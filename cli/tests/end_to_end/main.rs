//! The whole command, from its arguments to its exit status, with a real VM under each run.
//!
//! Every VM runs under a deadline, and no more run at a time than there are cores.
//! `FREEHOLD_TEST_KERNEL=linux` runs the same tests on a stock Linux: what both kernels pass is a
//! fact about the program, not about one kernel.
#![forbid(unsafe_code)]

mod allocation;
mod allocator;
mod alternatives;
mod audit;
mod bad_input;
mod bench;
mod bounce;
mod browser;
mod changes;
mod command_line;
mod common;
mod conformance;
mod coverage;
mod devices;
mod diff;
mod disks;
mod dry_run;
mod endings;
mod errors;
mod exactness;
mod exclusion;
mod first_tries;
mod growth;
mod hostile;
mod hotplug;
mod images;
mod integrations;
mod interrupted;
mod kill;
mod kprobes;
mod ksm;
mod latency;
mod learn;
mod machine;
mod mirrors;
mod network;
mod oracle;
mod owns;
mod registers;
mod replica;
mod rights;
mod rogue;
mod scope;
mod script;
mod secrets;
mod shares;
mod static_keys;
mod strace;
mod streams;
mod swap;
mod sweep;
mod terminal;
mod tracepoints;
mod tracing;
mod volumes;
mod xpfo;
