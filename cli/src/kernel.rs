//! Finds the kernel to boot: ours, Debian's Linux, or a file; and finds installed files.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use crate::Result;
use crate::failure::{Failure, words};
use crate::linux;
use crate::payload;
use crate::size::MIB;

/// The two families of kernels that speak the protocol: ours directly, Linux through guest/init.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Freehold's own kernel.
    Freehold,
    /// A Linux kernel.
    Linux,
}

impl Family {
    /// Returns the smallest amount of memory that boots, without the program's files, in bytes.
    pub fn least_memory(self) -> u64 {
        match self {
            Family::Freehold => 12 * MIB,
            Family::Linux => 76 * MIB,
        }
    }

    /// Returns the largest number of bytes of parameters. QEMU's loader of PVH kernels has a buffer
    /// of 4096 bytes (pc-bios/optionrom/pvh_main.c), and a Linux cuts them off after 2047
    /// (COMMAND_LINE_SIZE).
    pub fn longest_command_line(self) -> usize {
        match self {
            Family::Freehold => 4095,
            Family::Linux => 2047,
        }
    }
}

/// A kernel to boot.
#[derive(Debug)]
pub struct KernelChoice {
    /// The kernel's family.
    pub family: Family,
    /// The file for QEMU's `-kernel`.
    pub path: PathBuf,
    /// Linux only: virtio modules, each after those that it needs.
    pub modules: Vec<PathBuf>,
}

/// Finds the kernel that `option` names.
pub fn select(option: &str, name: &OsStr) -> Result<KernelChoice> {
    match name.to_str() {
        Some("freehold") => {
            Ok(KernelChoice { family: Family::Freehold, path: own_kernel()?, modules: Vec::new() })
        }
        Some("linux") => linux::fetched(),
        _ => from_file(option, Path::new(name)),
    }
}

/// Returns our kernel's file.
pub fn own_kernel() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("FREEHOLD_KERNEL").map(PathBuf::from) {
        if path.is_file() {
            return Ok(path);
        }
        return Err(Failure::new(format!("FREEHOLD_KERNEL={}: no such file", path.display()), ""));
    }
    payload::folder()?; // Unpacked, or the reason why it cannot be.
    installed("freehold-kernel").ok_or_else(|| {
        Failure::new(
            "freehold-kernel is not beside this command nor in ../lib/freehold",
            "make build makes it; FREEHOLD_KERNEL=FILE names another place",
        )
    })
}

/// Finds a file that was built or installed with this command.
pub fn installed(name: &str) -> Option<PathBuf> {
    let command = std::env::current_exe().ok()?;
    let folder = command.parent()?;
    // The file is beside the command (target/), one folder up (target/debug/ in tests), installed
    // (bin/ and lib/freehold/), or part of the command.
    [folder.to_path_buf(), folder.join(".."), folder.join("../lib/freehold")]
        .into_iter()
        .chain(payload::folder().ok().flatten())
        .map(|place| place.join(name))
        .find(|path| path.is_file())
}

fn from_file(option: &str, path: &Path) -> Result<KernelChoice> {
    let mut head = [0; 0x210];
    let mut file = File::open(path).map_err(|error| {
        Failure::new(
            format!("{option} {}: {}", path.display(), words(&error)),
            "write freehold, linux, or the path of a kernel file",
        )
    })?;
    let got = file.read(&mut head).map_err(|e| Failure::io("read", path, &e))?;
    if got == head.len() && head[0x202..0x206] == *b"HdrS" {
        let version = bzimage_version(&mut file, u16::from_le_bytes([head[0x20e], head[0x20f]]));
        return linux::from_file(path, version.as_deref());
    }
    if head.starts_with(b"\x7fELF") {
        let data = std::fs::read(path).map_err(|e| Failure::io("read", path, &e))?;
        if contains(&data, b"Linux version ") {
            return linux::from_file(path, None);
        }
        return Ok(KernelChoice { family: Family::Freehold, path: path.to_path_buf(), modules: Vec::new() });
    }
    Err(Failure::new(
        format!("{option} {}: no kernel (neither an ELF file nor a bzImage)", path.display()),
        "write freehold, linux, or the path of a kernel file",
    ))
}

/// Reads the version string of a bzImage (Linux Documentation/arch/x86/boot.rst: kernel_version +
/// 0x200).
fn bzimage_version(file: &mut File, pointer: u16) -> Option<String> {
    let mut text = [0; 128];
    file.seek(SeekFrom::Start(u64::from(pointer) + 0x200)).ok()?;
    let got = file.read(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text[..got]).into_owned();
    text.split([' ', '\0']).next().map(str::to_owned)
}

fn contains(data: &[u8], part: &[u8]) -> bool {
    data.windows(part.len()).any(|window| window == part)
}
