//! ptrace(2): one process, the tracer, stops and changes threads of other processes, its tracees.
//!
//! Both sides share a [`Tracee`]. The thread stops itself, on its way to user mode, at the places
//! that [`stop`] names. There it stores its registers in the [`TraceState`] and sleeps
//! ([`Sleep::Traced`](crate::sched::Sleep)). The tracer reads and changes the stored values
//! ([`calls`]), so only a thread itself accesses its registers. When the tracer resumes it, the
//! tracee reloads the changed values. Memory is read and written through pins with a debugger's
//! rights ([`Rule::Forced`](freehold_vm::Rule)): a store to a private page copies the page, exactly
//! as a store by the program would.
//!
//! **Tracees.** A thread has at most one tracer, a process. The tracer stores its tracees by thread
//! ID. Both references are made together ([`attach`]). The first of three events removes them: a
//! detach, the tracer's notification of the tracee's end, or the end of the tracer. On Linux a
//! tracee belongs to one thread of its tracer; here any thread of the tracer may make requests.
//!
//! **Rights.** Attaching needs the permission of [`inspect`](super::inspect). execve of a set-id
//! program gives a tracee no other IDs, unless the tracer may inspect processes with these anyway
//! (CAP_SYS_PTRACE). A tracee that is killed leaves its stop at once.
//!
//! **Order.** A tracee's state lock is a leaf: only the heap's are taken under it. The stop is
//! published before the tracer is woken, and the tracer's answer before the tracee is woken. So
//! neither misses the other ([`sched::wake`](crate::sched::wake)).
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
