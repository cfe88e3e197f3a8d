//! Errors of the command itself: one line that says what is wrong, and how to mend it.

use std::fmt;

/// The exit status of every [`Failure`]: an error of ours, not of the program.
pub const OWN_ERROR: u8 = 125;

/// What went wrong and what the user can do about it. Shown as one line.
#[derive(Debug)]
pub struct Failure {
    message: String,
    hint: String,
}

impl Failure {
    /// `message` says what is wrong; `hint` how to mend it (may be empty).
    pub fn new(message: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure { message: message.into(), hint: hint.into() }
    }

    /// A file operation that failed: names the deed, the file and the system's reason.
    pub fn io(deed: &str, path: &std::path::Path, error: &std::io::Error) -> Failure {
        Failure::new(format!("cannot {deed} {}: {error}", path.display()), "")
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message.trim_end())?;
        if !self.hint.is_empty() {
            write!(f, " ({})", self.hint)?;
        }
        Ok(())
    }
}
