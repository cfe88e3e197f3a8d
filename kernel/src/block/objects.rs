//! The small objects that a driver needs for a request.
//!
//! A call may make any number of requests. The reserve that was set aside at its door is for a few,
//! so each request sets it aside anew.

use freehold_vm::VmError;

use crate::hw::heap;
use crate::sync::WaitQueue;
use crate::time;

/// How often a write that finds no small object is tried again, a millisecond apart.
const TRIES: u32 = 1000;
/// Small objects of the driver for one request, and more.
const OBJECTS: usize = 4096;

/// Reaction to a lack of memory for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shortage {
    /// Wait for up to a second: writing is how memory is found.
    Wait,
    /// Fail.
    Fail,
}

/// Makes sure that the driver has its small objects for the next request.
///
/// # Errors
/// [`VmError::NoMemory`].
pub fn ensure_objects(shortage: Shortage) -> Result<(), VmError> {
    let mut tries = 0;
    while heap::ensure(OBJECTS).is_err() {
        if shortage == Shortage::Fail || tries == TRIES {
            return Err(VmError::NoMemory);
        }
        tries += 1;
        let soon = time::now() + time::SECOND / 1000;
        let _ = WaitQueue::new().wait_uninterruptible_until(soon, || None::<()>);
    }
    Ok(())
}
