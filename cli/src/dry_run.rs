//! `--dry-run`: the QEMU command line, as people write it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::args::{Accel, RunOptions};
use crate::kernel::KernelChoice;
use crate::qemu::{self, Engine, Files, Ports, VirtualMachine};
use crate::{Result, accel, print};

/// Prints the command line; returns the exit status.
pub fn print_line(options: &RunOptions, machine: &VirtualMachine, kernel: &KernelChoice) -> Result<u8> {
    let engine = match options.accel {
        Accel::Kvm => Engine::Kvm,
        Accel::Tcg => Engine::Tcg,
        Accel::Auto => accel::choose(Accel::Auto, machine.clock)?,
    };
    let place = |name: &str| format!("fd={name}");
    let ports = Ports {
        stream: place("STREAM"),
        error: place("ERROR"),
        control: place("CONTROL"),
        log: place("LOG"),
        monitor: place("MONITOR"),
    };
    let files = Files { initramfs: Path::new("INITRAMFS"), swap: Some(Path::new("SWAP")) };
    let mut text = quote(qemu::program()?.as_os_str());
    for argument in machine.arguments(kernel, &files, &ports, engine) {
        // One option per line, as people write it.
        text.push_str(if argument.as_bytes().starts_with(b"-") { " \\\n  " } else { " " });
        text.push_str(&quote(&argument));
    }
    text.push('\n');
    print::stdout(text)?;
    Ok(0)
}

/// Returns `argument` as a shell takes it.
pub fn quote(argument: &OsStr) -> String {
    let text = argument.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=,.:/+%@".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}
