//! The parts that all file systems on disks have.

/// Largest number of bytes of a symbolic link's text.
pub const MAX_LINK: usize = 4095;
/// st_mode's kinds of files, in units of 2^12 (DT_* of getdents(2)), by the kinds in directories of
/// ext4 and of EROFS.
const KINDS: [u8; 8] = [0, 8, 4, 2, 6, 1, 12, 10];

/// The disk.
pub trait BlockSource {
    /// Error of the disk, or of a caller that is to end.
    type Error: Copy;
    /// Number of bytes.
    fn bytes(&self) -> u64;
    /// Reads the bytes from `at` on, which are all on the disk. May stop a long work with an error.
    ///
    /// # Errors
    /// The disk's.
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Self::Error>;
}

/// The reason why something cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VolumeError<E> {
    /// The disk's error.
    Device(E),
    /// The disk has no file system of this kind.
    Other,
    /// The disk's bytes contradict each other. The text names the structure.
    Corrupt(&'static str),
    /// The text names a feature that is not supported.
    Unsupported(&'static str),
    /// The journal has changes that were not applied.
    NeedsRecovery,
}

impl<E> From<E> for VolumeError<E> {
    fn from(error: E) -> Self {
        Self::Device(error)
    }
}

/// Seconds since 1970, and nanoseconds.
pub type DiskTime = (i64, u32);

/// The facts about a file that its inode tells.
#[derive(Clone, Copy, Debug)]
pub struct InodeFacts {
    /// The inode's number.
    pub number: u64,
    /// Kind and permissions, as st_mode has them.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names; 1 for a directory of ext4 with very many subdirectories.
    pub links: u32,
    /// Bytes, at most 2^63 - 1.
    pub size: u64,
    /// Blocks of 512 bytes that it holds.
    pub sectors: u64,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// Last access.
    pub accessed: DiskTime,
    /// Last change of content.
    pub modified: DiskTime,
    /// Last change of the inode.
    pub changed: DiskTime,
    /// Creation, if the inode tells it.
    pub born: Option<DiskTime>,
}

/// A name in a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskEntry<'a> {
    /// The name: 1 to 255 bytes without NUL and slash.
    pub name: &'a [u8],
    /// The inode's number.
    pub inode: u64,
    /// DT_* of getdents(2); 0 if the entry does not say it.
    pub kind: u8,
    /// The position behind the entry.
    pub next: u64,
}

/// Bytes of a file that are adjacent on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskRun {
    /// Where the first is on the disk; `None` for bytes that are 0.
    pub start: Option<u64>,
    /// How many; at least 1.
    pub bytes: u64,
}

/// A request for entries of a directory.
pub struct Listing<'a> {
    /// Position to begin at: 0, or one that an entry told. From another one on, the next entry is
    /// the first.
    pub from: u64,
    /// Room for a block, at least.
    pub room: &'a mut [u8],
    /// Gets each entry, `.` and `..` among them, until it returns `false`.
    pub show: &'a mut dyn FnMut(DiskEntry<'_>) -> bool,
}

/// Figures of a file system, for statfs(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolumeStats {
    /// Blocks for files.
    pub blocks: u64,
    /// Free blocks.
    pub free_blocks: u64,
    /// Inodes.
    pub inodes: u64,
    /// Free inodes.
    pub free_inodes: u64,
}

type VolumeResult<T, B> = Result<T, VolumeError<<B as BlockSource>::Error>>;

/// A file system on a disk.
pub trait Volume {
    /// The disk.
    type Source: BlockSource;
    /// An inode that was read.
    type Inode: Copy + AsRef<InodeFacts>;

    /// The disk.
    fn source(&self) -> &Self::Source;
    /// Number of the root directory's inode.
    fn root(&self) -> u64;
    /// Bytes per block: a power of two, 512 to 65536.
    fn block_size(&self) -> u32;
    /// The figures for statfs(2).
    fn stats(&self) -> VolumeStats;

    /// Reads an inode that a directory names, or the root.
    ///
    /// # Errors
    /// [`VolumeError`].
    fn inode(&self, number: u64) -> VolumeResult<Self::Inode, Self::Source>;

    /// Returns where the byte `at` of a file is, and how many bytes follow it in the same way. Does
    /// not compare with the file's size.
    ///
    /// # Errors
    /// [`VolumeError`].
    fn map(&self, inode: &Self::Inode, at: u64) -> VolumeResult<DiskRun, Self::Source>;

    /// Shows the entries of a directory.
    ///
    /// # Errors
    /// [`VolumeError`].
    fn entries(&self, directory: &Self::Inode, listing: Listing<'_>) -> VolumeResult<(), Self::Source>;

    /// Returns the number of the inode with this name in a directory. `room` has at least a block's
    /// bytes.
    ///
    /// # Errors
    /// [`VolumeError`].
    fn lookup(
        &self,
        directory: &Self::Inode,
        name: &[u8],
        room: &mut [u8],
    ) -> VolumeResult<Option<u64>, Self::Source> {
        let mut found = None;
        let mut show = |entry: DiskEntry<'_>| {
            found = (entry.name == name).then_some(entry.inode);
            found.is_none()
        };
        self.entries(directory, Listing { from: 0, room, show: &mut show })?;
        Ok(found)
    }

    /// Reads the text of a symbolic link. Returns its length.
    ///
    /// # Errors
    /// [`VolumeError`].
    fn link(&self, inode: &Self::Inode, into: &mut [u8; MAX_LINK]) -> VolumeResult<usize, Self::Source> {
        let text = link_room(inode.as_ref(), into, MAX_LINK)?;
        self.read_at(inode, 0, text)?;
        Ok(link_end(text))
    }

    /// Reads bytes of a file; past its blocks they are zeroes. Does not compare with its size.
    ///
    /// # Errors
    /// [`VolumeError`].
    fn read_at(&self, inode: &Self::Inode, at: u64, into: &mut [u8]) -> VolumeResult<(), Self::Source> {
        let mut done = 0;
        while done < into.len() {
            let here = at + done as u64;
            let run = self.map(inode, here)?;
            let part = &mut into[done..];
            let left = run.bytes.min(part.len() as u64) as usize;
            match run.start {
                Some(start) => self.source().read(start, &mut part[..left])?,
                None => part[..left].fill(0),
            }
            done += left;
        }
        Ok(())
    }
}

/// Place of the superblock, in bytes.
pub(crate) const SUPERBLOCK: u64 = 1024;

/// Reads the first `N` bytes of the superblock; a smaller disk has none.
pub(crate) fn superblock<const N: usize, B: BlockSource>(source: &B) -> VolumeResult<[u8; N], B> {
    let mut raw = [0; N];
    if source.bytes() < SUPERBLOCK + N as u64 {
        return Err(VolumeError::Other);
    }
    source.read(SUPERBLOCK, &mut raw)?;
    Ok(raw)
}

/// Returns the room for a link's text, which has at most `most` bytes.
pub(crate) fn link_room<'a, E>(
    facts: &InodeFacts,
    into: &'a mut [u8; MAX_LINK],
    most: usize,
) -> Result<&'a mut [u8], VolumeError<E>> {
    let corrupt = VolumeError::Corrupt("symbolic link");
    let length = usize::try_from(facts.size).ok().filter(|length| (1..=most).contains(length));
    into.get_mut(..length.ok_or(corrupt)?).ok_or(VolumeError::Corrupt("symbolic link"))
}

/// Returns where a link's text ends: at its first NUL, as on Linux.
pub(crate) fn link_end(text: &[u8]) -> usize {
    text.iter().position(|&byte| byte == 0).unwrap_or(text.len())
}

/// Whether a directory may have this name.
pub(crate) fn is_name(name: &[u8]) -> bool {
    (1..=255).contains(&name.len()) && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

/// Returns DT_* of getdents(2) for the kind in a directory's entry.
pub(crate) fn kind_of(told: u8) -> u8 {
    KINDS[usize::from(told & 7)]
}
