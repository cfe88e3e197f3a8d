//! `--slots N`: PCI Express root ports with nothing in them, which disks are plugged into while the
//! machine runs. `--qmp SOCKET`: where QEMU's monitor (QMP) is told to.
//!
//! The ports are `slot0` to `slot7`, as buses for `device_add`. QEMU is told to leave hot-plug to
//! them: q35 would do it by ACPI, whose methods Freehold does not run.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::{CommandLine, escape_commas};
use crate::Result;
use crate::args::RunOptions;
use crate::failure::{Failure, words};

/// Largest number of slots: the functions of one place on the bus.
const MOST: u8 = 8;
/// The place on the bus that has the slots.
const PLACE: u32 = 1;
/// The longest path of a socket (sockaddr_un).
const LONGEST: usize = 107;

/// Slots for disks that are plugged in later, and the monitor that plugs them in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HotPlug {
    slots: u8,
    monitor: Option<PathBuf>,
}

impl HotPlug {
    /// As the options say.
    pub fn from_options(options: &RunOptions) -> Result<HotPlug> {
        let slots = options.slots.as_deref().map_or(Ok(0), parse_slots)?;
        options.qmp.as_deref().map_or(Ok(()), check_socket)?;
        Ok(HotPlug { slots, monitor: options.qmp.clone() })
    }

    /// Returns whether disks can be plugged in.
    pub fn has_slots(&self) -> bool {
        self.slots > 0
    }

    /// Removes the monitor's socket, which a QEMU that was killed leaves behind.
    pub fn tidy(&self) {
        if let Some(path) = &self.monitor
            && path.symlink_metadata().is_ok_and(|there| there.file_type().is_socket())
        {
            // A socket that stays is used again by the next run.
            let _ = std::fs::remove_file(path);
        }
    }

    /// Adds the slots to QEMU's arguments.
    pub fn arguments(&self, line: &mut CommandLine) {
        if self.slots > 0 {
            line.option("-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off");
        }
        for slot in 0..self.slots {
            let place = format!("bus=pcie.0,addr={PLACE:#x}.{slot},multifunction=on");
            let number = u32::from(slot) + 1;
            line.option(
                "-device",
                format!("pcie-root-port,id=slot{slot},{place},chassis={number},slot={number}"),
            );
        }
        if let Some(path) = &self.monitor {
            let mut chardev = OsString::from("socket,id=qmp,server=on,wait=off,path=");
            chardev.push(escape_commas(path));
            line.option("-chardev", chardev);
            line.option("-mon", "chardev=qmp,mode=control");
        }
    }
}

fn parse_slots(text: &str) -> Result<u8> {
    text.parse()
        .ok()
        .filter(|number| (1..=MOST).contains(number))
        .ok_or_else(|| Failure::new(format!("--slots {text}: not a number of slots"), format!("1 to {MOST}")))
}

/// Fails where QEMU could not make the socket, or would remove a file for it.
fn check_socket(path: &Path) -> Result<()> {
    let shown = path.display();
    let fails = |what: String| Err(Failure::new(what, "--qmp SOCKET names a socket that is to be made"));
    if path.as_os_str().len() > LONGEST {
        return fails(format!("--qmp {shown}: a socket's path has {LONGEST} bytes at most"));
    }
    if path.as_os_str().as_bytes().ends_with(b"/") || path.file_name().is_none() {
        return fails(format!("--qmp {shown}: not a file's name"));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if folder.is_some_and(|folder| !folder.is_dir()) {
        return fails(format!("--qmp {shown}: there is no such folder"));
    }
    if let Err(error) = access(folder.unwrap_or(Path::new(".")), Access::WRITE_OK) {
        return fails(format!("--qmp {shown}: {}", words(&error.into())));
    }
    match path.symlink_metadata() {
        Ok(there) if !there.file_type().is_socket() => {
            fails(format!("--qmp {shown}: it exists, and is no socket"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_root_ports_side_by_side_and_leave_hot_plug_to_themselves() {
        let mut line = CommandLine::default();
        HotPlug { slots: 2, monitor: Some("/tmp/a,b".into()) }.arguments(&mut line);
        let words: Vec<_> = line.0.iter().map(|word| word.to_string_lossy()).collect();
        assert_eq!(
            words,
            [
                "-global",
                "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off",
                "-device",
                "pcie-root-port,id=slot0,bus=pcie.0,addr=0x1.0,multifunction=on,chassis=1,slot=1",
                "-device",
                "pcie-root-port,id=slot1,bus=pcie.0,addr=0x1.1,multifunction=on,chassis=2,slot=2",
                "-chardev",
                "socket,id=qmp,server=on,wait=off,path=/tmp/a,,b",
                "-mon",
                "chardev=qmp,mode=control",
            ]
        );
        let mut line = CommandLine::default();
        HotPlug::default().arguments(&mut line);
        assert!(line.0.is_empty());
    }

    #[test]
    fn what_cannot_be_is_one_sentence() {
        for text in ["0", "9", "-1", "x", ""] {
            assert!(parse_slots(text).is_err(), "{text}");
        }
        let folder = tempfile::tempdir().expect("temporary folder");
        let file = folder.path().join("file");
        std::fs::write(&file, b"mine").expect("written");
        assert!(check_socket(&file).is_err(), "QEMU would remove it");
        assert!(check_socket(&folder.path().join("nowhere/qmp")).is_err());
        assert!(check_socket(&folder.path().join("x".repeat(200))).is_err());
        assert!(check_socket(&folder.path().join("")).is_err());
        let socket = folder.path().join("qmp");
        assert!(check_socket(&socket).is_ok());
        drop(std::os::unix::net::UnixListener::bind(&socket).expect("bound"));
        assert!(check_socket(&socket).is_ok(), "one that was left behind is used again");
    }
}
