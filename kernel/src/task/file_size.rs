//! RLIMIT_FSIZE: the largest size that the current task may give a regular file.

use freehold_collections::Arc;

use super::{Resource, SigInfo, Signal, Task, limits::INFINITY};

/// Returns the number of bytes that the current task may write to a regular file from offset `at`
/// on (RLIMIT_FSIZE). The kernel's own tasks have no limit.
///
/// # Errors
/// `EFBIG`, and SIGXFSZ, if that is none.
pub fn file_size_left(at: u64) -> crate::Result<u64> {
    match file_size_limit() {
        INFINITY => Ok(INFINITY),
        limit if at >= limit => Err(too_large()),
        limit => Ok(limit - at),
    }
}

/// Checks that the current task may make a regular file `size` bytes long (RLIMIT_FSIZE).
///
/// # Errors
/// `EFBIG`, and SIGXFSZ, if it may not.
pub fn check_file_size(size: u64) -> crate::Result<()> {
    if size > file_size_limit() { Err(too_large()) } else { Ok(()) }
}

/// Returns the limit. There is none before this CPU takes part in scheduling.
fn file_size_limit() -> u64 {
    let limit = |task: &Arc<Task>| task.process().soft_limit(Resource::FileSize);
    crate::hw::thread::with_current(limit).unwrap_or(INFINITY)
}

fn too_large() -> crate::Errno {
    if let Some(task) = super::try_current() {
        task.signal(SigInfo::kernel(Signal::XFSZ));
    }
    crate::Errno::EFBIG
}
