//! Executables, and the archive that contains them.

use std::format;
use std::vec::Vec;

/// Start of programs' text. Every 16th address stands for a function of the test.
pub const TEXT: u64 = 0x40_0000;
/// Distance in bytes from one function to the next.
pub const STRIDE: u64 = 16;
/// Start of a memory area that programs use for arguments of calls.
pub const ROOM: u64 = 0x60_0000;
/// Size of that area.
pub const ROOM_BYTES: u64 = 1 << 20;

/// Makes a program whose entry is the function with the number `index`.
pub fn executable(index: usize) -> Vec<u8> {
    let mut file = Vec::new();
    file.extend_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    for half in [2u16, 62] {
        file.extend_from_slice(&half.to_le_bytes());
    }
    file.extend_from_slice(&1u32.to_le_bytes());
    for word in [TEXT + STRIDE * index as u64, 64, 0] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    file.extend_from_slice(&0u32.to_le_bytes());
    for half in [64u16, 56, 2, 0, 0, 0] {
        file.extend_from_slice(&half.to_le_bytes());
    }
    for (flags, address, in_file, in_memory) in [(5u32, TEXT, 4096u64, 4096u64), (6, ROOM, 0, ROOM_BYTES)] {
        file.extend_from_slice(&1u32.to_le_bytes());
        file.extend_from_slice(&flags.to_le_bytes());
        for word in [0, address, address, in_file, in_memory, 4096] {
            file.extend_from_slice(&word.to_le_bytes());
        }
    }
    file.resize(4096, 0);
    file
}

/// Makes a newc archive (cpio(5)) of files with these names.
pub fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut add = |name: &str, mode: u32, content: &[u8]| {
        let fields = [1, mode, 1, 0, 0, 0, content.len() as u32, 0, 0, 0, 0, name.len() as u32 + 1, 0]
            .map(|field| format!("{field:08x}"));
        bytes.extend_from_slice(b"070701");
        fields.iter().for_each(|field| bytes.extend_from_slice(field.as_bytes()));
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(0);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    };
    for directory in ["bin", "dev", "etc", "mnt", "proc", "sys", "tmp"] {
        add(directory, 0o40755, &[]);
    }
    files.iter().for_each(|(name, content)| add(name, 0o100_755, content));
    add("TRAILER!!!", 0, &[]);
    bytes
}
