//! Flag words of the file system calls, with Linux' x86-64 values.

use bitflags::bitflags;

bitflags! {
    /// open(2)'s flags.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct OpenFlags: u32 {
        /// Write only.
        const WRONLY = 0o1;
        /// Read and write.
        const RDWR = 0o2;
        /// Create the file if it does not exist.
        const CREAT = 0o100;
        /// With CREAT: fail if it exists.
        const EXCL = 0o200;
        /// A terminal does not become the controlling one.
        const NOCTTY = 0o400;
        /// Empty a regular file.
        const TRUNC = 0o1000;
        /// Every write goes to the end.
        const APPEND = 0o2000;
        /// Do not wait.
        const NONBLOCK = 0o4000;
        /// Writes wait for the data.
        const DSYNC = 0o10_000;
        /// SIGIO when ready.
        const ASYNC = 0o20_000;
        /// Transfers bypass the page cache.
        const DIRECT = 0o40_000;
        /// Meaningless on 64 bits, but F_GETFL shows it.
        const LARGEFILE = 0o100_000;
        /// The file must be a directory.
        const DIRECTORY = 0o200_000;
        /// The file must not be a symbolic link.
        const NOFOLLOW = 0o400_000;
        /// Reading does not change the access time.
        const NOATIME = 0o1_000_000;
        /// Close on execve (a property of the descriptor).
        const CLOEXEC = 0o2_000_000;
        /// Writes wait for data and metadata (without DSYNC's bit).
        const SYNC_BIT = 0o4_000_000;
        /// The descriptor only identifies a place; it cannot read or write.
        const PATH = 0o10_000_000;
        /// An unnamed file in a directory (without DIRECTORY's bit).
        const TMPFILE_BIT = 0o20_000_000;
        /// The description's use is no event, since fanotify gives it to a reader (Linux:
        /// FMODE_NONOTIFY). No program can request this.
        const UNNOTIFIED = 0o400_000_000;
        /// All other bits, kept so that openat2 can refuse them.
        const _ = !0;
    }
}

impl OpenFlags {
    /// Flags that fcntl(F_SETFL) may change, without ASYNC, which signal-driven I/O sets.
    pub const SETTABLE: Self = Self::APPEND.union(Self::NONBLOCK).union(Self::DIRECT).union(Self::NOATIME);
    /// All flags that openat2 knows.
    pub const KNOWN: Self = Self::from_bits_retain(0o37_777_703);
    /// Flags that stay with the open description (creation flags and CLOEXEC do not).
    pub const KEPT: Self = Self::from_bits_retain(
        Self::KNOWN.bits()
            & !(Self::CREAT.bits()
                | Self::EXCL.bits()
                | Self::NOCTTY.bits()
                | Self::TRUNC.bits()
                | Self::CLOEXEC.bits()),
    );

    /// Whether the file is opened for reading.
    pub fn reads(self) -> bool {
        !self.contains(Self::PATH) && self.bits() & 3 != Self::WRONLY.bits()
    }

    /// Whether the file is opened for writing.
    pub fn writes(self) -> bool {
        !self.contains(Self::PATH) && self.bits() & 3 != 0
    }

    /// Whether all of O_TMPFILE's bits are set.
    pub fn is_tmpfile(self) -> bool {
        self.contains(Self::TMPFILE_BIT | Self::DIRECTORY)
    }
}

bitflags! {
    /// renameat2(2)'s flags.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct RenameFlags: u32 {
        /// `EEXIST` if the new name exists.
        const NOREPLACE = 1;
        /// Both names exist and change places.
        const EXCHANGE = 2;
        /// A whiteout stays at the old name: a character device 0/0, which an overlay treats as a
        /// removed file.
        const WHITEOUT = 4;
        /// The kernel found the new name free: `EEXIST` if it no longer is. A file system that
        /// cannot check this ignores it.
        const FREE = 1 << 31;

        /// Flags that programs may give.
        const ASKABLE = 7;
    }
}

bitflags! {
    /// openat2(2)'s restrictions of path resolution.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct ResolveFlags: u64 {
        /// No crossing of mount points.
        const NO_XDEV = 0x01;
        /// No /proc-style magic links.
        const NO_MAGICLINKS = 0x02;
        /// No symbolic links at all.
        const NO_SYMLINKS = 0x04;
        /// Never above the starting directory.
        const BENEATH = 0x08;
        /// The starting directory is the root.
        const IN_ROOT = 0x10;
    }
}
