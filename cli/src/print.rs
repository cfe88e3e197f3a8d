//! Output of this command itself. Rust's own macros panic if a stream accepts nothing (`>&-`, `|
//! head`, `/dev/full`).

use std::io::{Error, ErrorKind, Write};

use crate::Result;
use crate::failure::{Failure, words};

/// Prints `text` to stdout, all of it.
///
/// # Errors
/// A reader that went away (`| head`) ends the command quietly, with the status of SIGPIPE. Any
/// other error is one sentence.
pub fn stdout(text: impl AsRef<[u8]>) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_ref()).and_then(|()| stdout.flush()).map_err(|error| refused(&error))
}

/// Returns the failure of a write to stdout.
pub fn refused(error: &Error) -> Failure {
    match error.kind() {
        ErrorKind::BrokenPipe => Failure::reader_gone(),
        _ => Failure::new(format!("cannot write to stdout: {}", words(error)), ""),
    }
}

/// Prints `text` to stderr. If stderr takes no bytes, the failure cannot be reported there; the
/// exit status remains.
pub fn stderr(text: impl AsRef<[u8]>) {
    let _ = std::io::stderr().write_all(text.as_ref());
}
