//! A folder that QEMU shares with the guest (virtio-9p).

use std::ffi::OsString;
use std::path::PathBuf;

use super::{CommandLine, escape_commas};

/// The guest's access to a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareAccess {
    /// Read; QEMU refuses the rest.
    Read,
    /// Read and write, as far as QEMU's user may.
    Write,
    /// Read, below the image's files at that place and the programs' writes there.
    Below,
    /// No access; the kernel writes changes there that programs made elsewhere.
    Changes,
}

/// Owners of the files, as QEMU shows them to the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShareOwners {
    /// The owners on the host.
    Host,
    /// The owners in extended attributes; kinds and modes come from there, too.
    Mapped,
}

/// A checked folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderShare {
    /// Path on the host.
    pub host: PathBuf,
    /// Path in the guest.
    pub guest: PathBuf,
    /// The guest's access.
    pub access: ShareAccess,
    /// Owners of the files in the guest.
    pub owners: ShareOwners,
}

impl FolderShare {
    /// Returns the guest's name for share `number`.
    pub fn tag(number: usize) -> String {
        format!("share{number}")
    }

    /// Returns the entry in /.freehold/spec: tag, mode and place.
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

    /// Adds the folder to QEMU's arguments.
    pub fn arguments(&self, line: &mut CommandLine, number: usize, slot: u32) {
        let tag = FolderShare::tag(number);
        let model = match self.owners {
            ShareOwners::Host => "none",
            ShareOwners::Mapped => "mapped-xattr",
        };
        // multidevs: folders that contain mounts have inode numbers of several file systems.
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
