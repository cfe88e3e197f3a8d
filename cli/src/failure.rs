//! Errors of the command itself: one line that says what is wrong and how to fix it.

use std::fmt;

use crate::print;
use crate::progress::status_of;

/// The default exit status of a [`Failure`]: an error of ours, not of the program.
pub const OWN_ERROR: u8 = 125;
/// The exit status of a program that was found and cannot be executed, as in a shell.
const NOT_EXECUTABLE: u8 = 126;
/// The exit status of a program that was not found, as in a shell.
const NOT_FOUND: u8 = 127;
/// The exit status of a command whose reader went away: 128 and SIGPIPE.
pub const READER_GONE: u8 = 128 + 13;

/// The kind of a failure, where it decides the exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FailureKind {
    Own,
    NotExecutable,
    NotFound,
    /// Of QEMU, which did not do its work.
    Qemu,
    /// Of a kernel that refuses the machine.
    Firmware,
    ReaderGone,
    /// By this signal.
    Interrupted(u8),
}

/// A failure, and what the user can do about it. Shown as one line.
#[derive(Debug)]
pub struct Failure {
    kind: FailureKind,
    message: String,
    hint: String,
}

impl Failure {
    /// Makes a failure: `message` says what is wrong; `hint` how to fix it (may be empty).
    pub fn new(message: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure { kind: FailureKind::Own, message: message.into(), hint: hint.into() }
    }

    /// Makes the failure for a program that does not exist.
    pub fn not_found(message: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure { kind: FailureKind::NotFound, ..Failure::new(message, hint) }
    }

    /// Makes the failure for a program that exists and cannot be executed.
    pub fn not_executable(message: impl Into<String>, hint: impl Into<String>) -> Failure {
        Failure { kind: FailureKind::NotExecutable, ..Failure::new(message, hint) }
    }

    /// Makes the failure for a reader of stdout that went away: nothing is printed.
    pub fn reader_gone() -> Failure {
        Failure { kind: FailureKind::ReaderGone, ..Failure::new("the reader of stdout went away", "") }
    }

    /// Makes the failure for a measurement that a signal ended.
    pub fn interrupted(signal: u8) -> Failure {
        let kind = FailureKind::Interrupted(signal);
        Failure { kind, ..Failure::new(format!("ended by signal {signal}"), "") }
    }

    /// Returns the signal that was the reason, if it was one.
    pub fn signal(&self) -> Option<u8> {
        match self.kind {
            FailureKind::Interrupted(signal) => Some(signal),
            _ => None,
        }
    }

    /// Makes the failure of a file operation: names the operation, the file and the system's
    /// reason.
    pub fn io(deed: &str, path: &std::path::Path, error: &std::io::Error) -> Failure {
        Failure::new(format!("cannot {deed} {}: {}", path.display(), words(error)), "")
    }

    /// Adds the cause.
    #[must_use]
    pub fn because(self, cause: &str) -> Failure {
        Failure { message: format!("{}: {cause}", self.message), ..self }
    }

    /// Adds the name of a file.
    #[must_use]
    pub fn at(self, path: &std::path::Path) -> Failure {
        Failure { message: format!("{}: {}", path.display(), self.message), ..self }
    }

    /// Returns the failure in one line, for text from other sources: control characters become `?`.
    #[must_use]
    pub fn in_one_line(self) -> Failure {
        let message = self.message.replace(|c: char| c.is_control(), "?");
        Failure { message, ..self }
    }

    /// Makes the failure for the end of QEMU with `words`; `told` has these words, and their source
    /// if that is not clear.
    pub fn qemu(words: &str, told: String) -> Failure {
        let of_kernel = words.contains("elf kernel") || words.contains("PVH ELF Note");
        let hint = if of_kernel {
            "a kernel file is a whole bzImage, or an ELF file with a PVH note"
        } else if words.contains("cannot set up guest memory") {
            "the host does not have so much: a smaller -m, --node or --memory-max"
        } else if words.contains("Failed to get") && words.contains("lock") {
            "another machine has this disk, or another --disk of this one: name a file of its own"
        } else {
            "freehold doctor checks the installation"
        };
        Failure { kind: FailureKind::Qemu, ..Failure::new(told, hint) }
    }

    /// Makes the failure for a kernel that refuses the machine, for this reason.
    pub fn firmware(reason: impl Into<String>) -> Failure {
        Failure { kind: FailureKind::Firmware, ..Failure::new(reason, "") }
    }

    /// Returns whether QEMU did not do its work.
    pub fn is_of_qemu(&self) -> bool {
        self.kind == FailureKind::Qemu
    }

    /// Returns whether the kernel refuses the machine.
    pub fn is_of_firmware(&self) -> bool {
        self.kind == FailureKind::Firmware
    }

    /// Returns the exit status of this command.
    pub fn status(&self) -> u8 {
        match self.kind {
            FailureKind::Own | FailureKind::Qemu | FailureKind::Firmware => OWN_ERROR,
            FailureKind::NotExecutable => NOT_EXECUTABLE,
            FailureKind::NotFound => NOT_FOUND,
            FailureKind::ReaderGone => READER_GONE,
            FailureKind::Interrupted(signal) => status_of(signal),
        }
    }

    /// Prints the failure, unless it is silent; returns the exit status.
    pub fn exit(&self) -> u8 {
        if self.kind != FailureKind::ReaderGone {
            print::stderr(format!("freehold: {self}\n"));
        }
        self.status()
    }

    /// Returns the failure's name in JSON, which tells our exit status from the same status of the
    /// program.
    pub fn reason(&self) -> &'static str {
        match self.kind {
            FailureKind::Own | FailureKind::Qemu | FailureKind::Firmware => "error",
            FailureKind::NotExecutable => "not-executable",
            FailureKind::NotFound => "not-found",
            FailureKind::ReaderGone => "reader-gone",
            FailureKind::Interrupted(_) => "interrupted",
        }
    }
}

/// Returns the system's text for an error, without its number.
pub fn words(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error ").next().unwrap_or(&text).to_owned()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_qemu_refuses_is_not_blamed_on_the_installation() {
        let hint = |words: &str| Failure::qemu(words, words.to_owned()).to_string();
        assert!(
            hint("QEMU refused: Error loading uncompressed kernel without PVH ELF Note").contains("bzImage")
        );
        assert!(hint("QEMU refused: Error while loading elf kernel").contains("bzImage"));
        assert!(hint("QEMU was killed by signal 9").contains("doctor"));
        assert!(hint("QEMU refused: cannot set up guest memory 'pc.ram': Cannot allocate").contains("-m"));
        assert!(hint("QEMU refused: -drive x: Failed to get \"write\" lock").contains("--disk"));
    }
}
