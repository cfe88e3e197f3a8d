//! `--swap SIZE[,iops=N]`: a disk for the guest's swap, made for the run and deleted after it.

use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::disk::{Disk, iops};
use crate::Result;
use crate::failure::Failure;
use crate::size::{parse_size, show_size};

/// Bytes in a page of swap.
const PAGE: u64 = 4096;
/// The smallest size that mkswap accepts: 10 pages.
const LEAST: u64 = 10 * PAGE;
/// The largest size: the header numbers pages in 32 bits.
const MOST: u64 = PAGE << 32;

/// A checked request for swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Swap {
    bytes: u64,
    iops: Option<u32>,
}

impl Swap {
    /// Parses and checks a request.
    pub fn parse(text: &str) -> Result<Swap> {
        let (size, rest) = text.split_once(',').unwrap_or((text, ""));
        let iops = match rest.strip_prefix("iops=") {
            Some(number) => Some(iops("--swap", text.as_ref(), number.as_bytes())?),
            None if rest.is_empty() => None,
            None => {
                return Err(Failure::new(
                    format!("--swap {text}: {rest} is no option of swap"),
                    "for example --swap 512M or --swap 512M,iops=100",
                ));
            }
        };
        let bytes = parse_size("--swap", size)?;
        if !(LEAST..=MOST).contains(&bytes) {
            return Err(Failure::new(
                format!("--swap {text}: not between {} and {}", show_size(LEAST), show_size(MOST)),
                "for example --swap 512M",
            ));
        }
        Ok(Swap { bytes: bytes / PAGE * PAGE, iops })
    }

    /// Makes the file, with the first page as mkswap(8) writes it: both kernels accept it.
    pub fn make(self) -> Result<NamedTempFile> {
        let fails =
            |e| Failure::new(format!("cannot make a file for --swap: {e}"), "TMPDIR names another folder");
        let mut file =
            tempfile::Builder::new().prefix("freehold-").suffix(".swap").tempfile().map_err(fails)?;
        let inner = file.as_file_mut();
        inner
            .set_len(self.bytes)
            .and_then(|()| inner.seek(SeekFrom::Start(0)))
            .and_then(|_| inner.write_all(&self.header()))
            .map_err(fails)?;
        Ok(file)
    }

    /// Returns the disk that has `file`.
    pub fn disk(self, file: &Path) -> Disk {
        Disk::temporary(file.to_path_buf(), self.iops)
    }

    /// Returns the header of linux/swap.h: 1024 bytes for a boot loader, version 1, the last page,
    /// no bad pages; the signature at the page's end.
    fn header(self) -> [u8; PAGE as usize] {
        let mut page = [0; PAGE as usize];
        let last = (self.bytes / PAGE - 1) as u32;
        page[1024..1028].copy_from_slice(&1u32.to_le_bytes());
        page[1028..1032].copy_from_slice(&last.to_le_bytes());
        page[1052..1060].copy_from_slice(b"freehold");
        page[4086..].copy_from_slice(b"SWAPSPACE2");
        page
    }
}

/// Returns the guest's path of the disk with this number.
pub fn guest_path(number: usize) -> PathBuf {
    // There are few enough slots for one letter.
    PathBuf::from(format!("/dev/vd{}", char::from(b'a' + number as u8)))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn sizes_that_are_no_swap_are_refused() {
        assert_eq!(Swap::parse("64M,iops=9").expect("swap"), Swap { bytes: 64 << 20, iops: Some(9) });
        for text in ["4K", "x", "64M,ro", "64M,iops=0", "17T", ""] {
            let error = Swap::parse(text).expect_err(text).to_string();
            assert!(error.contains("--swap"), "{error}");
        }
    }

    /// Checks the header that all other tests depend on. Without swaplabel on the host only the
    /// kernels check it (end to end).
    #[test]
    fn the_header_is_that_of_mkswap() {
        let file = Swap::parse("1M").expect("swap").make().expect("a file");
        assert_eq!(file.as_file().metadata().expect("metadata").len(), 1 << 20);
        if let Ok(told) = Command::new("swaplabel").arg(file.path()).output() {
            assert!(String::from_utf8_lossy(&told.stdout).contains("LABEL: freehold"), "{told:?}");
        }
    }
}
