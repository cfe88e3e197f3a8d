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

    /// The same about a file.
    #[must_use]
    pub fn at(self, path: &std::path::Path) -> Failure {
        Failure { message: format!("{}: {}", path.display(), self.message), ..self }
    }

    /// QEMU ended with `words`; `told` is them, and whom they are about if that is not clear.
    pub fn qemu(words: &str, told: String) -> Failure {
        let of_kernel = words.contains("elf kernel") || words.contains("PVH ELF Note");
        let hint = if of_kernel {
            "a kernel file is a whole bzImage, or an ELF file with a PVH note"
        } else {
            "freehold doctor checks the installation"
        };
        Failure::new(told, hint)
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
    }
}
