//! RLIMIT_FSIZE: how long a regular file the current task may make.

use freehold_collections::Arc;

use super::{Resource, SigInfo, Signal, Task, limits::INFINITY};

/// The most bytes that the current task may write from offset `at` on into a regular file
/// (RLIMIT_FSIZE); no limit on the kernel's own tasks.
///
/// # Errors
/// `EFBIG`, and SIGXFSZ, where that is none.
pub fn file_size_left(at: u64) -> crate::Result<u64> {
    match file_size_limit() {
        INFINITY => Ok(INFINITY),
        limit if at >= limit => Err(too_large()),
        limit => Ok(limit - at),
    }
}

/// Whether the current task may make a regular file `size` bytes long (RLIMIT_FSIZE).
///
/// # Errors
/// `EFBIG`, and SIGXFSZ, where it may not.
pub fn check_file_size(size: u64) -> crate::Result<()> {
    if size > file_size_limit() { Err(too_large()) } else { Ok(()) }
}

/// Before this CPU takes part in scheduling there is no limit.
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
