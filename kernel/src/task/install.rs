//! Descriptors of the calling process for files without a name.

use super::with_current;
use crate::Result;
use crate::fs::{File, OnExec, OpenFile, OpenFlags};
use crate::user::UserPtr;
use freehold_collections::Arc;

/// Gives the calling process a descriptor for a file without a name. `flags` become those of the
/// description, except for CLOEXEC, which is the descriptor's.
///
/// # Errors
/// `EMFILE`, `ENOMEM`.
pub fn install(file: Arc<dyn File>, flags: OpenFlags) -> Result<i32> {
    let file = OpenFile::new(file, None, flags)?;
    with_current(|task| {
        let limit = task.process().descriptor_limit();
        task.with_files(|files| files.insert(file, OnExec::asked_by(flags), limit))
    })
}

/// Gives the calling process descriptors for two files, and writes their numbers to `to`. Either
/// both succeed or none.
///
/// # Errors
/// `EMFILE`, `ENOMEM`, `EFAULT`.
pub fn install_pair(
    to: UserPtr<[i32; 2]>,
    first: (Arc<dyn File>, OpenFlags),
    second: (Arc<dyn File>, OpenFlags),
) -> Result<i64> {
    let close = |fd| with_current(|task| task.with_files(|files| _ = files.close(fd)));
    let first = install(first.0, first.1)?;
    let result = install(second.0, second.1)
        .and_then(|second| to.write(&[first, second]).inspect_err(|_| close(second)));
    if result.is_err() {
        close(first);
    }
    result.map(|()| 0)
}
