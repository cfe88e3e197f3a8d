//! The guest's memory, read and written through the files that QEMU passes: no mapping, so no
//! `unsafe`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// A stretch of guest memory (vhost-user specification, "Memory region description").
pub(crate) struct GuestRegion {
    pub guest: u64,
    pub size: u64,
    pub user: u64,
    pub offset: u64,
    pub file: File,
}

/// All regions of guest memory.
#[derive(Default)]
pub(crate) struct SharedMemory(pub Vec<GuestRegion>);

impl SharedMemory {
    fn at(&self, address: u64, length: usize) -> io::Result<(&File, u64)> {
        let inside = |region: &&GuestRegion| {
            let start = address.checked_sub(region.guest);
            start.is_some_and(|start| start < region.size && length as u64 <= region.size - start)
        };
        let region = self.0.iter().find(inside).ok_or_else(|| self.no_memory(address))?;
        Ok((&region.file, address - region.guest + region.offset))
    }
    fn no_memory(&self, address: u64) -> io::Error {
        let known: Vec<_> = self.0.iter().map(|region| (region.guest, region.user, region.size)).collect();
        io::Error::other(format!("{address:#x} is no memory: {known:x?}"))
    }
    /// Returns the guest-physical address for one of QEMU's own addresses, which ring addresses
    /// are.
    pub fn guest_address(&self, user: u64) -> io::Result<u64> {
        let inside = |region: &&GuestRegion| user.checked_sub(region.user).is_some_and(|at| at < region.size);
        let region = self.0.iter().find(inside).ok_or_else(|| self.no_memory(user))?;
        Ok(user - region.user + region.guest)
    }
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> io::Result<()> {
        let (file, offset) = self.at(address, bytes.len())?;
        file.read_exact_at(bytes, offset)
    }
    pub fn write(&self, address: u64, bytes: &[u8]) -> io::Result<()> {
        let (file, offset) = self.at(address, bytes.len())?;
        file.write_all_at(bytes, offset)
    }
    pub fn read_u16(&self, address: u64) -> io::Result<u16> {
        let mut bytes = [0; 2];
        self.read(address, &mut bytes)?;
        Ok(u16::from_le_bytes(bytes))
    }
}
