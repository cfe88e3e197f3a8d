//! Faults that the disk commits on purpose.

use std::str::FromStr;

/// A fault of the disk. It begins with the request that [`Disk`](crate::Disk) names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// No fault: a correct disk.
    None,
    /// A returned chain has an id beyond the ring.
    IdBeyondRing,
    /// The id's low 16 bits are right, one above them is set.
    IdInUpperBits,
    /// The disk returns a chain that it does not have.
    IdNotInFlight,
    /// The disk returns each chain twice, before the guest looks.
    IdTwice,
    /// The length in each answer is 0.
    LengthZero,
    /// The length in each answer is 4 GiB less a byte.
    LengthHuge,
    /// All flags of the used ring are set.
    UsedFlags,
    /// The index of the used ring goes back by one.
    IndexBack,
    /// The index of the used ring goes forward by more than there are requests.
    IndexForward,
    /// The index of the used ring jumps by half its range.
    IndexJump,
    /// The capacity is 2^64 - 1 sectors.
    SizeImpossible,
    /// The capacity is 0.
    SizeZero,
    /// Limits of segments are 0, and the block size is 3 bytes.
    ConfigNonsense,
    /// The disk offers all features of a disk.
    FeaturesOfAllOnes,
    /// Each answer comes with a thousand interrupts.
    SpuriousInterrupts,
    /// The disk stops answering.
    NoAnswer,
    /// Each request is answered again a little later.
    DoubleAnswer,
    /// Each answer takes two seconds.
    LateAnswer,
    /// Each status is 77.
    StatusNonsense,
    /// Every second write fails.
    FailSecondWrite,
    /// The disk closes the connection.
    Disconnect,
}

/// All faults with their names on the command line.
pub const LIES: [(&str, Lie); 22] = [
    ("none", Lie::None),
    ("id-beyond-ring", Lie::IdBeyondRing),
    ("id-in-upper-bits", Lie::IdInUpperBits),
    ("id-not-in-flight", Lie::IdNotInFlight),
    ("id-twice", Lie::IdTwice),
    ("length-zero", Lie::LengthZero),
    ("length-huge", Lie::LengthHuge),
    ("used-flags", Lie::UsedFlags),
    ("index-back", Lie::IndexBack),
    ("index-forward", Lie::IndexForward),
    ("index-jump", Lie::IndexJump),
    ("size-impossible", Lie::SizeImpossible),
    ("size-zero", Lie::SizeZero),
    ("config-nonsense", Lie::ConfigNonsense),
    ("features-of-all-ones", Lie::FeaturesOfAllOnes),
    ("spurious-interrupts", Lie::SpuriousInterrupts),
    ("no-answer", Lie::NoAnswer),
    ("double-answer", Lie::DoubleAnswer),
    ("late-answer", Lie::LateAnswer),
    ("status-nonsense", Lie::StatusNonsense),
    ("fail-second-write", Lie::FailSecondWrite),
    ("disconnect", Lie::Disconnect),
];

/// Error for an unknown name of a lie.
#[derive(Debug, PartialEq, Eq)]
pub struct UnknownLie;

impl FromStr for Lie {
    type Err = UnknownLie;
    fn from_str(text: &str) -> Result<Self, UnknownLie> {
        LIES.iter().find(|(name, _)| *name == text).map(|&(_, lie)| lie).ok_or(UnknownLie)
    }
}
