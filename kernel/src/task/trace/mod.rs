//! ptrace(2): one process, the tracer, stops and changes the threads of others, its tracees.
//!
//! A [`Tracee`] is what both sides share. The tracee stops itself, on its way to user mode, at the
//! places that [`stop`] names; there it puts its registers into the tracee's [`TraceState`] and
//! sleeps ([`Sleep::Traced`](crate::sched::Sleep)). The tracer reads and changes them there
//! ([`calls`]), so registers are only ever touched by their own thread. When the tracer lets it go
//! on, the tracee takes back what changed. Memory is read and written through pins that a debugger
//! may ask for ([`Rule::Forced`](freehold_vm::Rule)): a store to a private page gets that page a
//! frame of its own, exactly as a store by the program would.
//!
//! **Tracees.** A thread has at most one tracer, a process. The tracer has its tracees by thread
//! ID. Both references are made together ([`attach`]) and undone by the first of three: a detach,
//! the end of the tracee that the tracer was told of, or the end of the tracer. Linux ties a tracee
//! to one thread of its tracer; here any thread of it may ask.
//!
//! **Rights.** Attaching needs what [`inspect`](super::inspect) asks for. execve of a set-id
//! program gives a tracee no other ids, unless the tracer could have inspected those anyway
//! (CAP_SYS_PTRACE). A tracee that is killed leaves its stop at once.
//!
//! **Order.** A tracee's state lock is a leaf: only the heap's are taken under it. The stop is
//! published before the tracer is woken, and the tracer's answer before the tracee is: neither
//! misses the other ([`sched::wake`](crate::sched::wake)).
//!
//! Source: ptrace(2); Linux kernel/ptrace.c and kernel/signal.c.

pub(super) mod attach;
pub mod calls;
mod image;
mod stop;
mod tracee;
mod transfer;
mod watch;

pub use image::{USER_BYTES, UserRegisters};
pub use tracee::{
    Attached, Event, Options, Resume, Stop, StopKind, TraceState, Traced, Tracee, Tracees, TracerPower,
};
pub use transfer::registers_of;
pub use watch::Watchpoints;
