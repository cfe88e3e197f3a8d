//! The meeting of a process' threads for its core file: each thread stores its registers, and ends
//! once the file is written.

use freehold_collections::Vec;

use crate::Result;
use crate::hw::user::UserContext;
use crate::sync::{Completion, SpinLock};
use crate::task::Pid;
use crate::task::trace::{UserRegisters, registers_of};

/// A thread as recorded in a core file.
pub struct DumpedThread {
    /// The thread's number in its own PID namespace.
    pub tid: Pid,
    /// The blocked signals, and the pending signals for this thread alone.
    pub signals: [u64; 2],
    /// Microseconds in user mode and in the kernel.
    pub times: [u64; 2],
    /// The registers.
    pub registers: UserRegisters,
    /// The vector state in the format of PTRACE_GETREGSET; empty if there was no memory for it.
    pub vectors: Vec<u8>,
}

impl DumpedThread {
    /// Records the running thread.
    pub fn new(context: &mut UserContext, tid: Pid, signals: [u64; 2], times: [u64; 2]) -> Self {
        let (registers, vectors) = registers_of(context);
        let vectors = Vec::try_from_slice(vectors).unwrap_or_default();
        Self { tid, signals, times, registers, vectors }
    }
}

/// The threads that have arrived for a dump.
pub struct Meeting {
    threads: SpinLock<Vec<DumpedThread>>,
    /// Completed when the file is written, or when none is written.
    pub over: Completion,
}

impl Meeting {
    /// Makes a meeting with room for `most` threads.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(most: usize) -> Result<Self> {
        let threads = SpinLock::new(Vec::try_with_capacity(most)?);
        Ok(Self { threads, over: Completion::new() })
    }
    /// Adds a thread that has arrived.
    pub fn come(&self, thread: DumpedThread) {
        {
            let mut threads = self.threads.lock();
            if threads.len() < threads.capacity() {
                threads.push_reserved(thread);
            }
        }
    }
    /// Returns the number of threads that have arrived.
    pub fn count(&self) -> usize {
        self.threads.lock().len()
    }
    /// Takes the threads that have arrived, in the order of arrival.
    pub fn take(&self) -> Vec<DumpedThread> {
        core::mem::take(&mut *self.threads.lock())
    }
}

impl core::fmt::Debug for Meeting {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "meeting of {}", self.count())
    }
}
