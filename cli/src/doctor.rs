//! `freehold doctor`: reports the installed parts, which of them work, which will be used, and how
//! to fix problems.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use serde::Serialize;

use crate::accel::{self, Kvm};
use crate::args::DoctorOptions;
use crate::failure::OWN_ERROR;
use crate::size::MIB;
use crate::{Result, files, kernel, linux, program, qemu, schema, scope};

/// Free space below which a note is printed: the default VM's files and memory fit well into it.
const PLENTY: u64 = 512 * MIB;

/// Effect of a finding on `freehold run`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum DoctorVerdict {
    Ok,
    /// `freehold run` works, but less well.
    Note,
    /// `freehold run` does not work.
    Bad,
}

/// Result of one check.
#[derive(Serialize)]
struct Finding {
    /// Its name, the same in every version.
    about: &'static str,
    verdict: DoctorVerdict,
    text: String,
    /// How to fix it; empty if there is no problem.
    cure: String,
}

/// The record that `--json FILE` writes.
#[derive(Serialize)]
struct DoctorRecord<'a> {
    schema: &'static str,
    /// The version of this command.
    version: &'static str,
    /// This command's exit status.
    status: u8,
    findings: &'a [Finding],
}

/// Prints the findings; the status is 0 when `freehold run` can work.
///
/// # Errors
/// The findings cannot be printed or written.
pub fn doctor(options: &DoctorOptions) -> Result<u8> {
    files::check_writable([&options.json])?;
    let findings = examine();
    let bad = findings.iter().any(|finding| finding.verdict == DoctorVerdict::Bad);
    let status = if bad { OWN_ERROR } else { 0 };
    if let Some(path) = &options.json {
        let version = env!("CARGO_PKG_VERSION");
        let record = DoctorRecord { schema: schema::DOCTOR, version, status, findings: &findings };
        files::write_json(path, &record)?;
    }
    let text: String = findings.iter().map(Finding::lines).collect();
    files::print_beside(&text, [&options.json])?;
    Ok(status)
}

impl Finding {
    fn of(
        about: &'static str,
        verdict: DoctorVerdict,
        text: impl Into<String>,
        cure: impl Into<String>,
    ) -> Finding {
        Finding { about, verdict, text: text.into(), cure: cure.into() }
    }

    fn lines(&self) -> String {
        let mark = match self.verdict {
            DoctorVerdict::Ok => "ok  ",
            DoctorVerdict::Note => "note",
            DoctorVerdict::Bad => "BAD ",
        };
        let mut lines = format!("{mark}  {}: {}\n", self.about, self.text);
        if !self.cure.is_empty() {
            lines.push_str(&format!("      {}\n", self.cure));
        }
        lines
    }
}

fn examine() -> Vec<Finding> {
    let mut findings = vec![Finding::of("command", DoctorVerdict::Ok, env!("CARGO_PKG_VERSION"), "")];
    let qemu = qemu::program().and_then(|path| Ok((qemu::version::line(&path)?, path)));
    let works = match &qemu {
        Ok((version, path)) => {
            findings.push(Finding::of(
                "QEMU",
                DoctorVerdict::Ok,
                format!("{} ({version})", path.display()),
                "",
            ));
            findings.push(network(path));
            findings.push(own_kernel());
            findings.iter().all(|finding| finding.verdict != DoctorVerdict::Bad)
        }
        Err(failure) => {
            findings.push(Finding::of("QEMU", DoctorVerdict::Bad, failure.to_string(), ""));
            false
        }
    };
    if works {
        findings.push(kvm());
        findings.push(microscope());
    }
    findings.push(match kernel::installed("guest/init") {
        Some(path) => Finding::of("guest/init", DoctorVerdict::Ok, path.display().to_string(), ""),
        None => Finding::of("guest/init", DoctorVerdict::Note, "missing: no --kernel linux", "make build"),
    });
    findings.push(match linux::cached_version() {
        Some(version) => {
            Finding::of("Linux", DoctorVerdict::Ok, format!("{version}, for --kernel linux"), "")
        }
        None => {
            Finding::of("Linux", DoctorVerdict::Note, "not fetched yet; the first --kernel linux does", "")
        }
    });
    findings.push(temporary());
    findings.extend(memory());
    if program::find(OsStr::new("busybox"), None).is_err() {
        let cure = "apt-get install busybox-static";
        findings.push(Finding::of("busybox", DoctorVerdict::Note, "not found; the examples use it", cure));
    }
    findings
}

/// Checks that this QEMU supports --net and -p: its user network is an optional part.
fn network(qemu: &Path) -> Finding {
    let listed = Command::new(qemu).args(["-netdev", "help"]).output();
    let has =
        listed.is_ok_and(|listed| listed.stdout.split(|&byte| byte == b'\n').any(|line| line == b"user"));
    if has {
        return Finding::of("network", DoctorVerdict::Ok, "QEMU has a user network for --net and -p", "");
    }
    let text = "this QEMU was built without slirp: --net and -p do not work";
    Finding::of("network", DoctorVerdict::Note, text, "FREEHOLD_QEMU=FILE names another one")
}

/// Boots the kernel as `freehold run` does, because a file that merely exists proves nothing.
fn own_kernel() -> Finding {
    let path = match kernel::own_kernel() {
        Ok(path) => path,
        Err(failure) => return Finding::of("kernel", DoctorVerdict::Bad, failure.to_string(), ""),
    };
    match accel::boot(&path) {
        Ok(version) if version == env!("CARGO_PKG_VERSION") => {
            Finding::of("kernel", DoctorVerdict::Ok, format!("{} ({version}) boots", path.display()), "")
        }
        Ok(version) => Finding::of(
            "kernel",
            DoctorVerdict::Note,
            format!(
                "{} boots, but it is {version} and this command {}",
                path.display(),
                env!("CARGO_PKG_VERSION")
            ),
            "make build makes both",
        ),
        Err(failure) => {
            let text = format!("{} does not boot: {failure}", path.display());
            Finding::of("kernel", DoctorVerdict::Bad, text, "make build makes it")
        }
    }
}

fn kvm() -> Finding {
    match accel::proved() {
        Kvm::Works => Finding::of("KVM", DoctorVerdict::Ok, "a 64-bit guest ran; it will be used", ""),
        Kvm::Unusable(why) => {
            let cure = "the emulator (TCG) will be used: everything works, computation is slower";
            Finding::of("KVM", DoctorVerdict::Note, why, cure)
        }
    }
}

fn microscope() -> Finding {
    match scope::probe() {
        Ok(words) => plugin(&words, env!("CARGO_PKG_VERSION")),
        Err(failure) => Finding::of(
            "microscope",
            DoctorVerdict::Note,
            failure.to_string(),
            "freehold scope will not work",
        ),
    }
}

/// Judges a plugin that says `VERSION, interface N: …`, beside a command of version `own`.
fn plugin(words: &str, own: &str) -> Finding {
    match words.split_once(", interface ") {
        Some((version, interface)) if version == own => {
            let text = format!("QEMU's plugin {version}, interface {interface}");
            Finding::of("microscope", DoctorVerdict::Ok, text, "")
        }
        told => {
            // The first plugins did not say what they are.
            let version = told.map_or("of an unknown version", |(version, _)| version);
            let text = format!("QEMU's plugin is {version}, and this command {own}");
            Finding::of("microscope", DoctorVerdict::Note, text, "make build makes both")
        }
    }
}

/// Checks the folder for temporary files: images and swap files are made there.
fn temporary() -> Finding {
    let folder = std::env::temp_dir();
    if let Err(error) = tempfile::tempfile_in(&folder) {
        let text = format!("cannot make a file in {}: {error}", folder.display());
        return Finding::of("TMPDIR", DoctorVerdict::Bad, text, "TMPDIR=FOLDER names another folder");
    }
    let Ok(found) = rustix::fs::statvfs(&folder) else {
        return Finding::of("TMPDIR", DoctorVerdict::Ok, folder.display().to_string(), "");
    };
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    let text = format!("{}, {} MiB free", folder.display(), free / MIB);
    if free < PLENTY {
        return Finding::of(
            "TMPDIR",
            DoctorVerdict::Note,
            text,
            "TMPDIR=FOLDER names a folder with more room",
        );
    }
    Finding::of("TMPDIR", DoctorVerdict::Ok, text, "")
}

fn memory() -> Option<Finding> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    let free = kib << 10;
    let text = format!("{} MiB free for VMs", free / MIB);
    let few = free < PLENTY;
    let cure = if few { "a VM takes 256 MiB unless -m says otherwise" } else { "" };
    Some(Finding::of("memory", if few { DoctorVerdict::Note } else { DoctorVerdict::Ok }, text, cure))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_of_another_version_is_told_with_both() {
        let judged = |words: &str| plugin(words, "0.2.0");
        let same = judged("0.2.0, interface 4: blocks are counted by calls");
        assert_eq!((same.verdict, same.cure.as_str()), (DoctorVerdict::Ok, ""));
        assert!(same.text.ends_with("interface 4: blocks are counted by calls"), "{}", same.text);
        for (words, part) in [("0.1.9, interface 4: x", "0.1.9"), ("interface 4: x", "unknown version")] {
            let other = judged(words);
            assert_eq!(other.verdict, DoctorVerdict::Note, "{words}");
            assert!(other.text.contains(part) && other.text.contains("0.2.0"), "{}", other.text);
        }
    }
}
