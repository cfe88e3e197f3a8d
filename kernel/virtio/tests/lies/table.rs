//! Consequences of each lie.

/// Fault of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    // The used ring.
    IdBeyondRing,
    IdOfAllOnes,
    /// The low 16 bits are right, a bit above is set.
    IdInUpperBits,
    IdNotInFlight,
    /// Two entries for one chain, both there before the driver looks.
    IdTwice,
    LengthZero,
    LengthTooLong,
    LengthHuge,
    /// All bits of the ring's flags: the device wants no notices.
    UsedFlags,
    IndexBack,
    IndexForward,
    IndexJump,
    // Its configuration.
    /// The figure that the driver uses is impossible: capacity, the region's block size, or the
    /// address. Consoles have none.
    ConfigImpossible,
    /// Figures that change after start-up, or that no driver here uses: capacity and plugged
    /// memory, segment limits, block size, ports, columns, pairs of queues; and the longest packet,
    /// which is cut to the possible length.
    ConfigNonsense,
    ConfigShort,
    ConfigNeverSettles,
    QueueSizeZero,
    QueueSizeSmall,
    QueueSizeOdd,
    QueueSizeHuge,
    // Its features.
    NoVersion1,
    FeaturesOfAllOnes,
    FeaturesRefused,
    // When it answers.
    SpuriousInterrupts,
    NoAnswer,
    /// A chain is given back again after the driver has taken it.
    DoubleAnswer,
    /// An answer after the time-out.
    LateAnswer,
    ResetRefused,
    // A frame from the network.
    LengthBelowHeader,
    /// That its checksum is not complete.
    HeaderFlags,
    /// That it is to be cut into segments.
    HeaderSegments,
    HeaderNoBuffer,
    /// One more than is given back with it.
    HeaderBufferMissing,
    /// More than were lent.
    HeaderTooManyBuffers,
}

/// When it begins to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// While the driver sets it up.
    Attach,
    /// While it works, with chains in flight.
    Load,
    /// As the driver releases it.
    Detach,
}

/// How it ends. In all cases but `Lost`, all memory is back when the driver is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The driver refuses the device at start-up and has lent it nothing.
    Refused,
    /// Nothing happens: every request is served with the right bytes.
    Fine,
    /// The request fails; the next one is served.
    OneError,
    /// Requests fail at once after one time-out, until the device answers.
    Late,
    /// The driver waits for room or bytes, as for a slow host; nothing fails, and the caller can go
    /// away.
    Waits,
    /// Every request fails from then on. The device was reset and all memory is back at once, while
    /// the driver lives.
    Dead,
    /// Memory that the device has in flight is out of use for ever, and counted.
    Lost,
    /// The driver's end: all memory is back.
    Back,
}

/// A lie, and its end at attach, under load, and at detach.
pub struct Row {
    pub lie: Lie,
    pub disk: [End; 3],
    pub console: [End; 3],
    pub memory: [End; 3],
    pub p9: [End; 3],
    pub net: [End; 3],
}

const fn row(
    lie: Lie,
    disk: [End; 3],
    console: [End; 3],
    memory: [End; 3],
    p9: [End; 3],
    net: [End; 3],
) -> Row {
    Row { lie, disk, console, memory, p9, net }
}

use End::{Back, Dead, Fine, Late, Lost, OneError, Refused, Waits};
use Lie::*;

/// The table. The driver finds an index or id that is wrong at attach when it first reads the
/// ring.
#[rustfmt::skip]
pub const ROWS: [Row; 28] = [
    //                       disk: attach, load, detach    console                       memory                  messages                 network
    row(IdBeyondRing,       [Dead,    Dead,     Back],    [Dead,    Dead,     Back],    [Dead,    Dead,  Back], [Dead,    Dead,  Back], [Dead,    Dead,  Back]),
    row(IdOfAllOnes,        [Dead,    Dead,     Back],    [Dead,    Dead,     Back],    [Dead,    Dead,  Back], [Dead,    Dead,  Back], [Dead,    Dead,  Back]),
    row(IdInUpperBits,      [Dead,    Dead,     Back],    [Dead,    Dead,     Back],    [Dead,    Dead,  Back], [Dead,    Dead,  Back], [Dead,    Dead,  Back]),
    row(IdNotInFlight,      [Dead,    Dead,     Back],    [Dead,    Dead,     Back],    [Dead,    Dead,  Back], [Dead,    Dead,  Back], [Dead,    Dead,  Back]),
    row(IdTwice,            [Dead,    Dead,     Back],    [Dead,    Dead,     Back],    [Dead,    Dead,  Back], [Dead,    Dead,  Back], [Dead,    Dead,  Back]),
    // At attach no chain is in flight yet, so any entry is one too many. A frame has a header, and
    // its length is all that says where it ends.
    row(LengthZero,         [Dead,    OneError, Back],    [Dead,    Fine,     Back],    [Dead,    Dead,  Back], [Dead,    Dead,  Back], [Dead,    Dead,  Back]),
    row(LengthTooLong,      [Dead,    Fine,     Back],    [Dead,    Fine,     Back],    [Dead,    Fine,  Back], [Dead,    Fine,  Back], [Dead,    Dead,  Back]),
    row(LengthHuge,         [Dead,    Fine,     Back],    [Dead,    Fine,     Back],    [Dead,    Fine,  Back], [Dead,    Fine,  Back], [Dead,    Dead,  Back]),
    row(UsedFlags,          [Dead,    Fine,     Back],    [Dead,    Fine,     Back],    [Dead,    Fine,  Back], [Dead,    Fine,  Back], [Dead,    Fine,  Back]),
    row(IndexBack,          [Dead,    Dead,     Back],    [Dead,    Dead,     Back],    [Dead,    Dead,  Back], [Dead,    Dead,  Back], [Dead,    Dead,  Back]),
    row(IndexForward,       [Dead,    Dead,     Back],    [Dead,    Dead,     Back],    [Dead,    Dead,  Back], [Dead,    Dead,  Back], [Dead,    Dead,  Back]),
    row(IndexJump,          [Dead,    Dead,     Back],    [Dead,    Dead,     Back],    [Dead,    Dead,  Back], [Dead,    Dead,  Back], [Dead,    Dead,  Back]),
    row(ConfigImpossible,   [Refused, Fine,     Back],    [Fine,    Fine,     Back],    [Refused, Fine,  Back], [Refused, Fine,  Back], [Refused, Fine,  Back]),
    row(ConfigNonsense,     [Fine,    Fine,     Back],    [Fine,    Fine,     Back],    [Fine,    Fine,  Back], [Refused, Fine,  Back], [Fine,    Fine,  Back]),
    // A memory device's sizes are read again and again: only they tell how much memory the host
    // requests.
    row(ConfigShort,        [Refused, Fine,     Back],    [Fine,    Fine,     Back],    [Refused, Dead,  Back], [Refused, Fine,  Back], [Refused, Fine,  Back]),
    row(ConfigNeverSettles, [Refused, Fine,     Back],    [Fine,    Fine,     Back],    [Refused, Dead,  Back], [Refused, Fine,  Back], [Refused, Fine,  Back]),
    // Queues are set up once: later nothing reads their size or the features.
    row(QueueSizeZero,      [Refused, Fine,     Back],    [Refused, Fine,     Back],    [Refused, Fine,  Back], [Refused, Fine,  Back], [Refused, Fine,  Back]),
    row(QueueSizeSmall,     [Refused, Fine,     Back],    [Refused, Fine,     Back],    [Refused, Fine,  Back], [Refused, Fine,  Back], [Refused, Fine,  Back]),
    row(QueueSizeOdd,       [Fine,    Fine,     Back],    [Fine,    Fine,     Back],    [Fine,    Fine,  Back], [Fine,    Fine,  Back], [Fine,    Fine,  Back]),
    row(QueueSizeHuge,      [Fine,    Fine,     Back],    [Fine,    Fine,     Back],    [Fine,    Fine,  Back], [Fine,    Fine,  Back], [Fine,    Fine,  Back]),
    row(NoVersion1,         [Refused, Fine,     Back],    [Refused, Fine,     Back],    [Refused, Fine,  Back], [Refused, Fine,  Back], [Refused, Fine,  Back]),
    row(FeaturesOfAllOnes,  [Fine,    Fine,     Back],    [Fine,    Fine,     Back],    [Fine,    Fine,  Back], [Fine,    Fine,  Back], [Fine,    Fine,  Back]),
    row(FeaturesRefused,    [Refused, Fine,     Back],    [Refused, Fine,     Back],    [Refused, Fine,  Back], [Refused, Fine,  Back], [Refused, Fine,  Back]),
    row(SpuriousInterrupts, [Fine,    Fine,     Back],    [Fine,    Fine,     Back],    [Fine,    Fine,  Back], [Fine,    Fine,  Back], [Fine,    Fine,  Back]),
    // A memory device that does not answer is of no use; a console's host may be slow for as long
    // as it likes.
    row(NoAnswer,           [Late,    Late,     Back],    [Waits,   Waits,    Back],    [Dead,    Dead,  Back], [Waits,   Waits, Back], [Waits,   Waits, Back]),
    row(DoubleAnswer,       [Dead,    Dead,     Back],    [Dead,    Dead,     Back],    [Dead,    Dead,  Back], [Dead,    Dead,  Back], [Dead,    Dead,  Back]),
    row(LateAnswer,         [Late,    Late,     Back],    [Waits,   Waits,    Back],    [Dead,    Dead,  Back], [Waits,   Waits, Back], [Waits,   Waits, Back]),
    row(ResetRefused,       [Refused, Lost,     Lost],    [Refused, Lost,     Lost],    [Refused, Lost,  Lost], [Refused, Lost,  Lost], [Refused, Lost,  Lost]),
];

/// Lies that only network devices can tell, from the first frame on and later. Other drivers do not
/// read these fields.
pub const FRAME_ROWS: [(Lie, [End; 3]); 6] = [
    (LengthBelowHeader, [Dead, Dead, Back]),
    (HeaderFlags, [Dead, Dead, Back]),
    (HeaderSegments, [Dead, Dead, Back]),
    (HeaderNoBuffer, [Dead, Dead, Back]),
    (HeaderBufferMissing, [Dead, Dead, Back]),
    (HeaderTooManyBuffers, [Dead, Dead, Back]),
];
