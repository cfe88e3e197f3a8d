//! Owners of frames, and their properties.
//!
//! Three questions about an owner have independent answers: does the frame belong to a program
//! ([`Owner::is_user`]), is it in the kernel's map ([`Owner::side`]), may a device see it
//! ([`Owner::is_seen_by_devices`]).

use freehold_machine::{BOUNCE_OWNER, KERNEL_OWNERS, PROGRAM_OWNER, PROGRAM_OWNER_MASK};

/// The owner of a frame.
///
/// An outside observer reads the number in a record's lowest four bits. Numbers from
/// [`Owner::COUNT`] to 15 are not in use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum Owner {
    /// No owner: free in the page allocator, or no memory at all (the page allocator knows which).
    #[default]
    Free = 0,
    /// Set aside before the page allocator existed: image, firmware, the frame table itself.
    Reserved = 1,
    /// The kernel's own data: slabs, buffers.
    Kernel = 2,
    /// A translation table.
    PageTable = 3,
    /// A page through which transfers of devices pass: programs' bytes in transit.
    Bounce = 4,
    /// A node's copy of kernel text and read-only data. Mapped read-only in one place, and outside
    /// the direct map.
    Replica = 5,
    /// A page of anonymous memory.
    Anon = 6,
    /// A page of a file, or of shared memory.
    PageCache = 7,
    /// A page of time that programs have mapped for reading.
    Time = 8,
    /// A table that an IOMMU reads.
    DeviceTable = 9,
    /// A page of a kernel stack. Mapped in one place, between guards, and outside the direct map.
    Stack = 10,
    /// Rings: words that the kernel and a device use at the same time, by pointers.
    Ring = 11,
}

/// Whether a pageblock is in the direct map.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Side {
    /// In the direct map: the kernel can access the bytes at any time.
    Kernel,
    /// Not in the direct map: bytes are accessed through user addresses or per-CPU windows.
    User,
}

impl Owner {
    /// How many owners there are.
    pub const COUNT: usize = 12;
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
        Self::Time,
        Self::DeviceTable,
        Self::Stack,
        Self::Ring,
    ];

    /// Whether the frame is in the kernel's map: the side that this owner's pageblocks are on. For
    /// free frames the pageblock decides, not this function. It returns the user's side for them,
    /// since no code may access their bytes.
    pub const fn side(self) -> Side {
        match self {
            Self::Free
            | Self::Bounce
            | Self::Replica
            | Self::Anon
            | Self::PageCache
            | Self::Time
            | Self::Stack => Side::User,
            Self::Reserved | Self::Kernel | Self::PageTable | Self::DeviceTable | Self::Ring => Side::Kernel,
        }
    }
    /// Whether the frame belongs to a program: then its record has counts.
    pub const fn is_user(self) -> bool {
        matches!(self, Self::Anon | Self::PageCache)
    }
    /// Whether frames of this owner are charged to accounts, if frames are charged at all. These
    /// are frames that exist for one process, or for a few.
    pub const fn is_charged(self) -> bool {
        matches!(self, Self::Anon | Self::PageCache | Self::PageTable | Self::Time)
    }
    /// Whether the kernel may access the frame only through windows: it has an owner on the user's
    /// side.
    pub const fn is_outside(self) -> bool {
        matches!(self.side(), Side::User) && !matches!(self, Self::Free)
    }
    /// Whether a device may access the bytes permanently. (A device may access a program's pinned
    /// frame only while a request is in flight.)
    pub const fn is_seen_by_devices(self) -> bool {
        matches!(self, Self::Bounce | Self::Ring)
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
            Self::Time => "time",
            Self::DeviceTable => "devicetable",
            Self::Stack => "stack",
            Self::Ring => "ring",
        }
    }
    /// Returns the owner whose number is in the lowest four bits. An unused number reads as
    /// [`Owner::Reserved`], whose frames cannot be freed.
    pub const fn from_bits(bits: u32) -> Self {
        const BY_NUMBER: [Owner; 16] = {
            let mut owners = [Owner::Reserved; 16];
            let mut number = 0;
            while number < Owner::COUNT {
                owners[number] = Owner::ALL[number];
                number += 1;
            }
            owners
        };
        BY_NUMBER[(bits & 15) as usize]
    }
}

// The numbers match the constants with which the machine crate recognises frames of programs and of
// the kernel.
const _: () = {
    let mut number = 0;
    while number < Owner::COUNT {
        let is_programs = number as u64 & PROGRAM_OWNER_MASK == PROGRAM_OWNER;
        assert!(Owner::ALL[number].is_user() == is_programs);
        let is_kernels = KERNEL_OWNERS >> number & 1 != 0;
        let is_reserved = matches!(Owner::ALL[number], Owner::Reserved);
        assert!(is_kernels == (matches!(Owner::ALL[number].side(), Side::Kernel) && !is_reserved));
        assert!(matches!(Owner::ALL[number], Owner::Bounce) == (number as u64 == BOUNCE_OWNER));
        number += 1;
    }
};

mod sealed {
    pub trait Sealed {}
}

/// An owner as a type, for [`Frame<K, S>`](crate::Frame).
pub trait FrameKind: sealed::Sealed + Send + Sync + 'static {
    /// Owner in the record of a new frame of this kind.
    const OWNER: Owner;
    /// Whether a frame with this owner is of this kind.
    fn accepts(owner: Owner) -> bool {
        owner == Self::OWNER
    }
}

/// A kind whose frames are held by counts: mappings, references, pins.
pub trait UserKind: FrameKind {}

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident),*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $kind {}
        impl sealed::Sealed for $kind {}
        impl FrameKind for $kind {
            const OWNER: Owner = Owner::$kind;
        }
    )*};
}

kinds! {
    /// The kernel's own data.
    Kernel,
    /// A translation table.
    PageTable,
    /// Pages of transfers.
    Bounce,
    /// A node's copy of kernel text or read-only data.
    Replica,
    /// Anonymous user memory.
    Anon,
    /// File pages and shared memory.
    PageCache,
    /// A page of time: a frame without counts, mapped by programs.
    Time,
    /// A table that an IOMMU reads: the memory that devices can access.
    DeviceTable,
    /// Memory that the kernel and a device use at the same time.
    Ring
}

/// Any user kind: for code that removes leaves and does not need the kind of their frames. Frames
/// are never allocated as this kind. [`FrameKind::OWNER`] is required; [`Owner::Anon`] is
/// arbitrary.
#[derive(Debug)]
pub enum User {}
impl sealed::Sealed for User {}
impl FrameKind for User {
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
        }
        (Owner::COUNT as u32..16).for_each(|bits| assert_eq!(Owner::from_bits(bits), Owner::Reserved));
    }

    #[test]
    fn three_questions_are_answered_for_each_owner() {
        let answers = Owner::ALL.map(|owner| {
            (owner.name(), owner.is_user(), owner.side() == Side::Kernel, owner.is_seen_by_devices())
        });
        let expected = [
            ("free", false, false, false),
            ("reserved", false, true, false),
            ("kernel", false, true, false),
            ("pagetable", false, true, false),
            ("bounce", false, false, true),
            ("replica", false, false, false),
            ("anon", true, false, false),
            ("pagecache", true, false, false),
            ("time", false, false, false),
            ("devicetable", false, true, false),
            ("stack", false, false, false),
            ("ring", false, true, true),
        ];
        assert_eq!(answers, expected);
        assert!(answers.iter().all(|&(_, is_program, in_map, _)| !(is_program && in_map)));
        let outside = Owner::ALL.into_iter().filter(|owner| owner.is_outside());
        let expected =
            [Owner::Bounce, Owner::Replica, Owner::Anon, Owner::PageCache, Owner::Time, Owner::Stack];
        assert!(outside.eq(expected));
    }
}
