//! The small objects that a driver needs for a request.
//!
//! A call may make any number of requests. The reserve that is set aside at the call's entry
//! suffices for a few. So each request refills the reserve.

use freehold_vm::VmError;

use crate::hw::heap;
use crate::sync::WaitQueue;
use crate::time;

/// How often the reserve is tried to be filled before a write fails, a millisecond apart.
const TRIES: u32 = 1000;
/// Bytes of the driver's small objects for one request, with a margin.
const OBJECTS: usize = 4096;

/// Reaction to a lack of memory for a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shortage {
    /// Wait for up to a second: memory is reclaimed by writing, so writes must not fail.
    Wait,
    /// Fail at once.
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
