//! `--disk FILE[,ro][,iops=N]` is a raw disk of the guest, `--disk null=SIZE[,latency=TIME]` a disk
//! that keeps nothing. `--disk vhost-user=SOCKET` is a disk that another process serves, by QEMU's
//! protocol vhost-user-blk; that process reaches all of the guest's memory.

use std::ffi::{OsStr, OsString};
use std::fs::{self, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{CommandLine, escape_commas};
use crate::Result;
use crate::failure::Failure;
use crate::size::parse_size;

/// Bytes in a sector: a disk is whole sectors.
const SECTOR: u64 = 512;

/// The guest's access to a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskAccess {
    /// Read only.
    Read,
    /// Read and write.
    Write,
}

/// A checked disk.
#[derive(Debug, PartialEq, Eq)]
pub enum Disk {
    /// The bytes of a file or a block device.
    File(DiskFile),
    /// Another process serves it at this socket.
    Served(PathBuf),
    /// A disk of this many zero bytes that ignores writes; latency of each request.
    Null { bytes: u64, latency: Duration },
}

/// A disk whose bytes are in a file.
#[derive(Debug, PartialEq, Eq)]
pub struct DiskFile {
    file: PathBuf,
    access: DiskAccess,
    /// Requests per second, if the user limits them.
    iops: Option<u32>,
    keep: Keep,
}

/// Prefix of a `--disk` that names a socket.
const VHOST_USER: &[u8] = b"vhost-user=";
/// Prefix of a `--disk` that keeps nothing.
const NULL: &[u8] = b"null=";
/// The longest latency of such a disk: longer than a guest waits for a request.
const LONGEST_LATENCY: Duration = Duration::from_secs(600);

/// Whether the user wants the bytes after the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keep {
    Yes,
    /// QEMU need not write them to the host's disk.
    No,
}

impl Disk {
    /// Parses and checks a disk: its file exists, can be used as requested, and is a whole number
    /// of sectors.
    pub fn parse(text: &OsStr) -> Result<Disk> {
        if let Some(socket) = text.as_bytes().strip_prefix(VHOST_USER) {
            let socket = PathBuf::from(OsString::from_vec(socket.to_vec()));
            check_socket(&socket)?;
            return Ok(Disk::Served(socket));
        }
        if let Some(rest) = text.as_bytes().strip_prefix(NULL) {
            return parse_null(text, &String::from_utf8_lossy(rest));
        }
        DiskFile::parse(text).map(Disk::File)
    }

    /// Makes a disk of ours for the run.
    pub fn temporary(file: PathBuf, iops: Option<u32>) -> Disk {
        Disk::File(DiskFile { file, access: DiskAccess::Write, iops, keep: Keep::No })
    }

    /// Returns whether another process serves it, which then has to reach the guest's memory.
    pub fn shares_memory(&self) -> bool {
        matches!(self, Disk::Served(_))
    }

    /// Adds the disk to QEMU's arguments.
    pub fn arguments(&self, line: &mut CommandLine, number: usize, slot: u32) {
        let mut device = format!("virtio-blk-pci,drive=disk{number}");
        match self {
            Disk::File(file) => line.option("-drive", file.drive(number)),
            Disk::Null { bytes, latency } => {
                let nanoseconds = latency.as_nanos();
                let node = format!("null-co,node-name=disk{number},size={bytes},latency-ns={nanoseconds}");
                line.option("-blockdev", format!("{node},read-zeroes=on"));
            }
            Disk::Served(socket) => {
                let mut chardev = OsString::from(format!("socket,id=disk{number},path="));
                chardev.push(escape_commas(socket));
                line.option("-chardev", chardev);
                // Our servers have one queue.
                device = format!("vhost-user-blk-pci,chardev=disk{number},num-queues=1");
            }
        }
        line.option("-device", format!("{device},addr={slot:#x},disable-legacy=on"));
    }
}

impl DiskFile {
    fn parse(text: &OsStr) -> Result<DiskFile> {
        let mut disk =
            DiskFile { file: PathBuf::new(), access: DiskAccess::Write, iops: None, keep: Keep::Yes };
        // Options are at the end, so a file name may have commas.
        let mut rest = text.as_bytes();
        while let Some(comma) = rest.iter().rposition(|&byte| byte == b',') {
            let option = &rest[comma + 1..];
            if option == b"ro" {
                disk.access = DiskAccess::Read;
            } else if let Some(number) = option.strip_prefix(b"iops=") {
                disk.iops = Some(iops("--disk", text, number)?);
            } else {
                break;
            }
            rest = &rest[..comma];
        }
        disk.file = OsString::from_vec(rest.to_vec()).into();
        disk.check()?;
        Ok(disk)
    }

    fn check(&self) -> Result<()> {
        let shown = self.file.display();
        let meta = fs::metadata(&self.file).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Failure::new(
                format!("--disk {shown}: no such file"),
                format!("make an empty one of 64 MiB: truncate -s 64M {shown}"),
            ),
            _ => Failure::new(format!("--disk {shown}: {error}"), ""),
        })?;
        if !meta.is_file() && !meta.file_type().is_block_device() {
            return Err(Failure::new(format!("--disk {shown}: neither a file nor a block device"), ""));
        }
        let mut open = OpenOptions::new();
        let mut file =
            open.read(true).write(self.access == DiskAccess::Write).open(&self.file).map_err(|error| {
                Failure::new(format!("--disk {shown}: {error}"), "add ,ro to use it read-only")
            })?;
        let size = file.seek(SeekFrom::End(0)).map_err(|e| Failure::io("read", &self.file, &e))?;
        if size == 0 || !size.is_multiple_of(SECTOR) {
            return Err(Failure::new(
                format!("--disk {shown}: its {size} bytes are not whole sectors of {SECTOR} bytes"),
                format!("truncate -s %{SECTOR} {shown} fills it up"),
            ));
        }
        Ok(())
    }

    /// Returns the `-drive` argument of QEMU.
    fn drive(&self, number: usize) -> OsString {
        let mut drive = OsString::from(format!("if=none,id=disk{number},format=raw,file="));
        drive.push(escape_commas(&self.file));
        if self.access == DiskAccess::Read {
            drive.push(",readonly=on");
        }
        if self.keep == Keep::No {
            drive.push(",cache=unsafe");
        }
        if let Some(iops) = self.iops {
            drive.push(format!(",throttling.iops-total={iops}"));
        }
        drive
    }
}

/// Parses `SIZE[,latency=TIME]`, a part of `text`.
fn parse_null(text: &OsStr, rest: &str) -> Result<Disk> {
    let wrong = |what: &str| {
        let hint = "for example --disk null=64M or --disk null=1G,latency=2ms";
        Failure::new(format!("--disk {}: {what}", text.display()), hint)
    };
    let (size, option) = rest.split_once(',').map_or((rest, None), |(size, option)| (size, Some(option)));
    let bytes = parse_size("--disk", size).map_err(|_| wrong("its size is no size"))?;
    if !bytes.is_multiple_of(SECTOR) || bytes > i64::MAX as u64 {
        return Err(wrong(&format!("its {bytes} bytes are not whole sectors of {SECTOR} bytes")));
    }
    let latency = match option.map(|option| option.strip_prefix("latency=")) {
        None => Duration::ZERO,
        Some(None) => return Err(wrong("its only option is latency=TIME")),
        Some(Some(time)) => humantime::parse_duration(time)
            .ok()
            .filter(|&time| time <= LONGEST_LATENCY)
            .ok_or_else(|| wrong("its latency is no time of up to 10 minutes"))?,
    };
    Ok(Disk::Null { bytes, latency })
}

/// Checks that `socket` is a socket. Whether a server listens there is left to QEMU, because a
/// server serves only one connection.
fn check_socket(socket: &Path) -> Result<()> {
    let shown = socket.display();
    let fails = |why: &str| {
        Failure::new(
            format!("--disk vhost-user={shown}: {why}"),
            "start the disk's server first; it makes the socket",
        )
    };
    let meta = fs::metadata(socket).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => fails("no such socket"),
        _ => fails(&error.to_string()),
    })?;
    if !meta.file_type().is_socket() {
        return Err(fails("not a socket"));
    }
    Ok(())
}

/// Parses the number of `iops=`, more than 0.
pub fn iops(option: &str, text: &OsStr, number: &[u8]) -> Result<u32> {
    let number = std::str::from_utf8(number).ok().and_then(|n| n.parse().ok()).filter(|&n| n > 0);
    number.ok_or_else(|| {
        Failure::new(format!("{option} {}: iops is no number", text.display()), "for example iops=100")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_stand_behind_a_name_that_may_hold_commas() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let file = dir.path().join("a,b");
        fs::write(&file, [0; 1024]).expect("write");
        let mut text = file.clone().into_os_string();
        text.push(",ro,iops=50");
        let disk = Disk::parse(&text).expect("a disk");
        let expected = DiskFile { file, access: DiskAccess::Read, iops: Some(50), keep: Keep::Yes };
        assert_eq!(disk, Disk::File(expected));
    }

    #[test]
    fn a_disk_must_be_whole_sectors() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let file = dir.path().join("odd");
        fs::write(&file, [0; 700]).expect("write");
        let error = Disk::parse(file.as_os_str()).expect_err("not whole sectors");
        assert!(error.to_string().contains("700 bytes"), "{error}");
    }
}
