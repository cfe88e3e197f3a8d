//! Backtraces of all threads, sent to the host on request. The host requests them when a program
//! does not end in time.

use core::fmt::{self, Display, Formatter};

use freehold_collections::Vec;

use crate::host::json::{Quoted, comma};
use crate::hw::panic::MAX_FRAMES;
use crate::task::{self, Pid, Task};
use crate::{host, sched};

/// Largest number of threads that are reported: those with the lowest numbers.
const MOST: usize = 128;
/// Largest number of addresses that are reported per thread, innermost first.
const DEEP: usize = 16;

struct TaskSnapshot {
    pid: Pid,
    tid: Pid,
    name: [u8; 16],
    state: u8,
    frames: [u64; DEEP],
    depth: usize,
}

impl TaskSnapshot {
    fn of(task: &Task) -> Self {
        let thread = task.thread();
        let mut all = [0; MAX_FRAMES];
        let depth = thread.backtrace(&mut all).min(DEEP);
        let mut frames = [0; DEEP];
        frames[..depth].copy_from_slice(&all[..depth]);
        let (pid, tid) = (task.process().pid, task.tid());
        Self { pid, tid, name: task.name(), state: thread.schedule.state_letter(), frames, depth }
    }
}

impl Display for TaskSnapshot {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (pid, tid, name) = (self.pid, self.tid, Quoted::name(&self.name));
        let state = char::from(self.state);
        write!(f, "{{\"pid\":{pid},\"tid\":{tid},\"name\":{name},\"state\":\"{state}\",\"backtrace\":[")?;
        for (at, address) in self.frames[..self.depth].iter().enumerate() {
            write!(f, "{}\"{address:#x}\"", comma(at))?;
        }
        f.write_str("]}")
    }
}

/// The answer. It is taken before it is displayed, since it is displayed twice.
struct Backtraces {
    places: Vec<TaskSnapshot>,
    /// Number of threads that are left out.
    left_out: usize,
}

impl Backtraces {
    /// Takes the backtraces. When memory is short, the answer has fewer threads, or none.
    fn take() -> Self {
        let mut all = Self { places: Vec::new(), left_out: 0 };
        for process in task::registry::processes() {
            for thread in process.threads() {
                if all.places.len() == MOST || all.places.try_push(TaskSnapshot::of(&thread)).is_err() {
                    all.left_out += 1;
                }
            }
            sched::cond_resched();
        }
        all
    }
}

impl Display for Backtraces {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("{\"threads\":[")?;
        for (at, place) in self.places.iter().enumerate() {
            write!(f, "{}{place}", comma(at))?;
        }
        write!(f, "],\"left_out\":{}}}", self.left_out)
    }
}

/// Sends the answer to the host.
pub fn tell() {
    host::threads(Backtraces::take());
}
