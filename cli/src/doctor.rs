//! `freehold doctor`: what is here, what works, what will be used, how to mend the rest.

use std::process::Command;

use crate::Result;
use crate::accel::{self, Kvm};
use crate::failure::OWN_ERROR;
use crate::{kernel, linux, qemu, scope};

/// How a finding bears on `freehold run`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Good,
    /// Works without, less well.
    Note,
    /// Does not work without.
    Bad,
}

/// Prints the findings; the status is 0 when `freehold run` can work.
pub fn doctor() -> Result<u8> {
    let mut worst = Verdict::Good;
    let mut say = |verdict: Verdict, text: String, mend: &str| {
        let mark = match verdict {
            Verdict::Good => "ok  ",
            Verdict::Note => "note",
            Verdict::Bad => "BAD ",
        };
        println!("{mark}  {text}");
        if !mend.is_empty() {
            println!("      {mend}");
        }
        if verdict == Verdict::Bad {
            worst = Verdict::Bad;
        }
    };
    match qemu::program() {
        Ok(path) => {
            let version = first_line(&path.to_string_lossy(), "--version");
            say(Verdict::Good, format!("QEMU: {} ({})", path.display(), version.unwrap_or_default()), "");
        }
        Err(failure) => say(Verdict::Bad, format!("QEMU: {failure}"), ""),
    }
    let own = kernel::own_kernel();
    match &own {
        Ok(path) => say(Verdict::Good, format!("kernel: {}", path.display()), ""),
        Err(failure) => say(Verdict::Bad, format!("kernel: {failure}"), "make build"),
    }
    if own.is_ok() && qemu::program().is_ok() {
        match accel::proved() {
            Kvm::Works => say(Verdict::Good, "KVM: a 64-bit guest ran; it will be used".into(), ""),
            Kvm::Unusable(why) => say(
                Verdict::Note,
                format!("KVM: {why}"),
                "the emulator (TCG) will be used: everything works, computation is slower",
            ),
        }
    }
    if qemu::program().is_ok() {
        match scope::probe() {
            Ok(words) => say(Verdict::Good, format!("microscope: QEMU's plugin {words}"), ""),
            Err(failure) => {
                say(Verdict::Note, format!("microscope: {failure}"), "freehold scope will not work")
            }
        }
    }
    match kernel::installed("guest/init") {
        Some(path) => say(Verdict::Good, format!("guest/init for --kernel linux: {}", path.display()), ""),
        None => {
            say(Verdict::Note, "guest/init is missing: --kernel linux will not work".into(), "make build")
        }
    }
    match linux::cached_version() {
        Some(version) => say(Verdict::Good, format!("Linux for --kernel linux: {version}"), ""),
        None => say(
            Verdict::Note,
            "Linux for --kernel linux: not fetched yet; the first use fetches it".into(),
            "",
        ),
    }
    if crate::program::find(std::ffi::OsStr::new("busybox"), None).is_err() {
        say(
            Verdict::Note,
            "busybox: not found; the examples use it".into(),
            "apt-get install busybox-static",
        );
    }
    Ok(if worst == Verdict::Bad { OWN_ERROR } else { 0 })
}

fn first_line(program: &str, argument: &str) -> Option<String> {
    let output = Command::new(program).arg(argument).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).lines().next()?.to_owned())
}
