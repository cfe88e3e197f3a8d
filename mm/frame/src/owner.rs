//! Who may own a frame, and on which side of the direct map that puts it.

/// The owner of a frame.
///
/// The number is what an outside observer reads in a record's lowest three bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum Owner {
    /// Nobody: free in the page allocator, or no memory at all (the page allocator knows which).
    #[default]
    Free = 0,
    /// Set aside before the page allocator existed: image, firmware, the frame table itself.
    Reserved = 1,
    /// The kernel's own data: slabs, stacks, buffers.
    Kernel = 2,
    /// A translation table.
    PageTable = 3,
    /// Visible to devices through the DMA API.
    Bounce = 4,
    /// A node's copy of kernel text and read-only data.
    Replica = 5,
    /// A page of anonymous memory.
    Anon = 6,
    /// A page of a file, or of shared memory.
    PageCache = 7,
}

/// Which side of the direct map a pageblock is on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Side {
    /// In the direct map: the kernel reaches the bytes at any time.
    Kernel,
    /// Not in the direct map: bytes are reached through user addresses or per-CPU windows.
    User,
}

impl Owner {
    /// How many owners there are.
    pub const COUNT: usize = 8;
    /// All owners, by number.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Free,
        Self::Reserved,
        Self::Kernel,
        Self::PageTable,
        Self::Bounce,
        Self::Replica,
        Self::Anon,
        Self::PageCache,
    ];

    /// The side this owner's pageblocks are on. Free frames are asked by pageblock, not here:
    /// they count as user's, since nobody may reach their bytes.
    pub const fn side(self) -> Side {
        match self {
            Self::Free | Self::Anon | Self::PageCache => Side::User,
            Self::Reserved | Self::Kernel | Self::PageTable | Self::Bounce | Self::Replica => Side::Kernel,
        }
    }
    /// Whether frames of this owner carry counts.
    pub const fn is_user(self) -> bool {
        matches!(self, Self::Anon | Self::PageCache)
    }
    /// A short lower-case name for reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Reserved => "reserved",
            Self::Kernel => "kernel",
            Self::PageTable => "pagetable",
            Self::Bounce => "bounce",
            Self::Replica => "replica",
            Self::Anon => "anon",
            Self::PageCache => "pagecache",
        }
    }
    pub(crate) const fn from_bits(bits: u32) -> Self {
        Self::ALL[(bits & 7) as usize]
    }
}

mod sealed {
    pub trait Sealed {}
}

/// An owner as a type, for [`Frame<K, S>`](crate::Frame).
pub trait Kind: sealed::Sealed + Send + Sync + 'static {
    /// What the record says for a new frame of this kind.
    const OWNER: Owner;
    /// Whether a frame with this owner is of this kind.
    fn accepts(owner: Owner) -> bool {
        owner == Self::OWNER
    }
}

/// A kind whose frames are held by counts: mappings, references, pins.
pub trait UserKind: Kind {}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident),*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $kind {}
        impl sealed::Sealed for $kind {}
        impl Kind for $kind {
            const OWNER: Owner = Owner::$kind;
        }
    )*};
}

kinds! {
    /// The kernel's own data.
    Kernel,
    /// A translation table.
    PageTable,
    /// Memory that devices see.
    Bounce,
    /// A node's copy of kernel text or read-only data.
    Replica,
    /// Anonymous user memory.
    Anon,
    /// File pages and shared memory.
    PageCache
}

/// Any user kind: for code that takes leaves down and need not know what they map. Frames are never
/// allocated as this kind ([`Kind::OWNER`] is [`Owner::Anon`] only for want of a better one).
#[derive(Debug)]
pub enum User {}
impl sealed::Sealed for User {}
impl Kind for User {
    const OWNER: Owner = Owner::Anon;
    fn accepts(owner: Owner) -> bool {
        owner.is_user()
    }
}

impl UserKind for Anon {}
impl UserKind for PageCache {}
impl UserKind for User {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_owner_survives_its_number() {
        for (bits, owner) in Owner::ALL.into_iter().enumerate() {
            assert_eq!(owner as usize, bits);
            assert_eq!(Owner::from_bits(bits as u32), owner);
            assert_eq!(owner.is_user(), owner.side() == Side::User && owner != Owner::Free);
        }
    }
}
