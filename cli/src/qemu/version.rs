//! Reads the version that a QEMU reports.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::Result;
use crate::failure::Failure;

/// Prefix of every QEMU's answer.
const NAME: &str = "QEMU emulator version ";

/// Returns the first line of the answer of `program`: "QEMU emulator version 7.2.22 (…)".
///
/// # Errors
/// The program cannot be started, or is another program that happens to have QEMU's name.
pub fn line(program: &Path) -> Result<String> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    let output = output.map_err(|error| Failure::io("start", program, &error))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().next().unwrap_or_default();
    if output.status.success() && line.starts_with(NAME) {
        Ok(line.to_owned())
    } else {
        Err(unknown(program, line))
    }
}

/// Returns the failure for a `program` whose answer `line` has no version of QEMU.
pub fn unknown(program: &Path, line: &str) -> Failure {
    let message = format!("{} is not QEMU: it says {line:?} when asked for its version", program.display());
    Failure::new(message, "FREEHOLD_QEMU=FILE names a qemu-system-x86_64")
}

/// Returns the first two numbers of the version in a [`line`].
pub fn numbers(line: &str) -> Option<(u32, u32)> {
    let version = line.strip_prefix(NAME)?;
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map_while(|part| part.parse().ok());
    Some((numbers.next()?, numbers.next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_qemu_tells_a_version_of_qemu() {
        assert_eq!(numbers("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)"), Some((7, 2)));
        assert_eq!(numbers("QEMU emulator version 10.0.2"), Some((10, 0)));
        assert_eq!((numbers(""), numbers("true (GNU coreutils) 9.1\n")), (None, None));
    }
}
