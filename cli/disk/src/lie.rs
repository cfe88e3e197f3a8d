//! What the disk does wrong.

use std::str::FromStr;

/// What the disk does wrong, from the request on that [`Disk`](crate::Disk) names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// Nothing: it is a correct disk.
    None,
    /// It gives back a chain whose id is beyond the ring.
    IdBeyondRing,
    /// The id's low 16 bits are right, one above them is set.
    IdInUpperBits,
    /// It gives back a chain that it does not have.
    IdNotInFlight,
    /// It gives each chain back twice, before the guest looks.
    IdTwice,
    /// It says that it wrote nothing.
    LengthZero,
    /// It says that it wrote 4 GiB less a byte.
    LengthHuge,
    /// It sets all flags of the used ring.
    UsedFlags,
    /// The index of the used ring goes back by one.
    IndexBack,
    /// It goes forward by more than there are requests.
    IndexForward,
    /// It jumps by half its range.
    IndexJump,
    /// The capacity is 2^64 - 1 sectors.
    SizeImpossible,
    /// The capacity is 0.
    SizeZero,
    /// Limits of segments are 0, and the block size is 3 bytes.
    ConfigNonsense,
    /// It offers all features of a disk.
    FeaturesOfAllOnes,
    /// It sends a thousand interrupts with each answer.
    SpuriousInterrupts,
    /// It answers nothing any more.
    NoAnswer,
    /// It answers each request again a little later.
    DoubleAnswer,
    /// It answers after two seconds.
    LateAnswer,
    /// Each status is 77.
    StatusNonsense,
    /// Every second write fails.
    FailSecondWrite,
    /// It closes the connection.
    Disconnect,
}

/// All of them with their names on the command line.
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

/// No lie has this name.
#[derive(Debug, PartialEq, Eq)]
pub struct UnknownLie;

impl FromStr for Lie {
    type Err = UnknownLie;
    fn from_str(text: &str) -> Result<Self, UnknownLie> {
        LIES.iter().find(|(name, _)| *name == text).map(|&(_, lie)| lie).ok_or(UnknownLie)
    }
}
