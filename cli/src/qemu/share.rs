//! A folder that QEMU shares with the guest (virtio-9p).

use std::ffi::OsString;
use std::path::PathBuf;

use super::{CommandLine, escape_commas};

/// What the guest may do with a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareAccess {
    /// Read; QEMU refuses the rest.
    Read,
    /// Whatever QEMU's user may.
    Write,
    /// Read it below what the image has at its place and what programs write there.
    Below,
    /// Nothing; the kernel writes there what they changed elsewhere.
    Changes,
}

/// Whose files QEMU shows the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareOwners {
    /// Those of the host.
    Host,
    /// Those that extended attributes say; kinds and modes, too.
    Mapped,
}

/// A checked folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderShare {
    /// Where it is on the host.
    pub host: PathBuf,
    /// Where it is in the guest.
    pub guest: PathBuf,
    /// What the guest may do there.
    pub access: ShareAccess,
    /// Whose files they are in the guest.
    pub owners: ShareOwners,
}

impl FolderShare {
    /// What the guest knows share `number` by.
    pub fn tag(number: usize) -> String {
        format!("share{number}")
    }

    /// What /.freehold/spec has of it: tag, mode and place.
    pub fn record(&self, number: usize) -> OsString {
        let mode = match self.access {
            ShareAccess::Read => "ro",
            ShareAccess::Write => "rw",
            ShareAccess::Below => "below",
            ShareAccess::Changes => "changes",
        };
        let mut record = OsString::from(format!("{}:{mode}:", FolderShare::tag(number)));
        record.push(&self.guest);
        record
    }

    /// The folder as QEMU's arguments.
    pub fn arguments(&self, line: &mut CommandLine, number: usize, slot: u32) {
        let tag = FolderShare::tag(number);
        let model = match self.owners {
            ShareOwners::Host => "none",
            ShareOwners::Mapped => "mapped-xattr",
        };
        // multidevs: folders with mounts in them have inode numbers of several file systems.
        let mut folder = OsString::from(format!("local,id={tag},security_model={model},multidevs=remap,"));
        if matches!(self.access, ShareAccess::Read | ShareAccess::Below) {
            folder.push("readonly=on,");
        }
        folder.push("path=");
        folder.push(escape_commas(&self.host));
        line.option("-fsdev", folder);
        line.option(
            "-device",
            format!("virtio-9p-pci,fsdev={tag},mount_tag={tag},addr={slot:#x},disable-legacy=on"),
        );
    }
}
