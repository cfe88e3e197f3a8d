//! The kernel as a whole on the software machine.
//!
//! Each test starts a kernel in a separate process ([`machine`]) and runs programs in it
//! ([`program`]): functions of the test that make system calls, access memory through the machine's
//! tables, take signals, fork and execute each other. Everything between the system call entry and
//! the machine is the kernel's own code.

mod calls;
mod disk;
mod elf;
mod lost;
mod machine;
mod namespaces;
mod network;
mod pressure;
mod processes;
mod program;
mod roots;
mod server;
mod share_identity;
mod shares;
mod shortage;
mod smoke;
mod tracing;
mod views;
mod volumes;
mod waiting;
mod written_shares;
