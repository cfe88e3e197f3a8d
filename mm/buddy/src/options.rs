//! Settings of the administrator, with Linux' names: the kernel parameters `page_alloc.*` and
//! `init_on_*`.

use freehold_frame::{AccountId, Order, OutOfMemory, Owner, Pressure, Request};
use freehold_machine::topology::Indexing;
use freehold_machine::{NodeId, Topology};

use crate::Misuse;

/// `page_alloc.shuffle=`
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Shuffle {
    /// On if a direct-mapped memory-side cache is present.
    #[default]
    Auto,
    /// On (also `1`, `Y`).
    On,
    /// Off (also `0`, `N`): overrides detection.
    Off,
}

/// `page_alloc.placement=`
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Placement {
    /// Balanced if a direct-mapped memory-side cache is present, else by the shuffle setting.
    #[default]
    Auto,
    /// In order of addresses: shuffle is off.
    Linear,
    /// Drawn at random from all free memory: shuffle is on.
    Random,
    /// Drawn from the near-cache bins that have the fewest frames of the owner, if there is such a
    /// cache.
    Balanced,
}

/// `page_alloc.check=`
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Check {
    /// Owners, sizes and double frees are checked, as always; the bytes of free frames are not.
    #[default]
    Owners,
    /// Free frames are filled with a pattern that must still be there when they are handed out.
    Fill,
}

/// When the allocator zeroes memory without a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Wipe {
    /// The allocator writes no zeroes.
    #[default]
    Never,
    /// The allocator always writes zeroes.
    Always,
}

/// Function that is called for each misuse, in the context of the misuser, with no lock of the
/// allocator held.
pub type MisuseSink = fn(&Misuse);

/// Function that is called repeatedly while a node is below its low watermark; it wakes the
/// reclaimer (Linux: kswapd). The code that requests memory calls it, with the CPU pinned and no
/// lock of the allocator held. The function must not sleep or allocate.
pub type PressureSink = fn(NodeId);

/// Function that is called when a request found no memory. The code that requested it calls it,
/// under the rules of [`PressureSink`].
pub type DenialSink = fn(&Request);

/// Function that returns whether a request has to fail though there may be memory (fault
/// injection). The requesting code calls it, before the allocator does anything for the request. It
/// must not sleep or allocate.
pub type FaultHook = fn(Owner, Order) -> bool;

/// Function that fills the reserve of small objects for use when memory runs out; see
/// [`FrameSource::ensure_objects`](freehold_frame::FrameSource::ensure_objects).
pub type ObjectReserve = fn() -> Result<(), OutOfMemory>;

/// Function that lets other tasks have the CPU; see
/// [`FrameSource::rest`](freehold_frame::FrameSource::rest).
pub type Rest = fn();

/// The accounts that pay for frames, once
/// [`charges_frames`](freehold_machine::Cpus::charges_frames) is true. Called by the task that asks
/// for a block or gives one back, with no lock of the allocator held. The functions may not sleep
/// or allocate.
#[derive(Clone, Copy, Debug)]
pub struct Ledger {
    /// Charges a block before the search for it, and returns the account. If it fails, the request
    /// fails.
    pub charge: fn(Bill) -> Result<AccountId, OutOfMemory>,
    /// Uncharges a block: its owner, its frames, and the account, never [`AccountId::ROOT`].
    pub uncharge: fn(Owner, u64, AccountId),
}

/// A block that is to be charged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bill {
    /// The owner that it will have.
    pub owner: Owner,
    /// Its number of frames.
    pub frames: u64,
    /// Whether a reserve may be used; if so, limits do not apply.
    pub pressure: Pressure,
    /// The account to charge; `None`: the caller's.
    pub account: Option<AccountId>,
}

/// Behaviour of the allocator.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// `page_alloc.shuffle=auto|on|off`, also 1/0/Y/N.
    pub shuffle: Shuffle,
    /// `page_alloc.shuffle_order=` 0 to 10: log2 of the number of adjacent frames that are handed
    /// out one after the other. 0: every frame is drawn separately when it is handed out. 1 to 8:
    /// aligned groups of 2 to 256 frames are drawn, and their frames are handed out in order of
    /// addresses. 9: pageblocks of 2 MiB. 10: blocks of 4 MiB, both of whose pageblocks are used
    /// before the next is drawn. Blocks larger than a group are drawn separately.
    pub shuffle_order: u32,
    /// `page_alloc.placement=auto|linear|random|balanced`
    pub placement: Placement,
    /// `page_alloc.check=fill`
    pub check: Check,
    /// `init_on_alloc=1`
    pub init_on_alloc: Wipe,
    /// `init_on_free=1`
    pub init_on_free: Wipe,
    /// Whether a pageblock that programs used is zeroed before it enters the direct map.
    /// [`Wipe::Never`] is for a machine whose direct map holds programs' frames anyway.
    pub wipe_on_enter: Wipe,
    /// Function that is called for misuse.
    pub on_misuse: Option<MisuseSink>,
    /// Function that is called for shortage.
    pub on_pressure: Option<PressureSink>,
    /// Function that is called for requests that found no memory.
    pub on_denial: Option<DenialSink>,
    /// Function that makes requests fail, once
    /// [`Buddy::inject_faults`](crate::Buddy::inject_faults) was called.
    pub fault_hook: Option<FaultHook>,
    /// Function that fills the reserve of small objects.
    pub object_reserve: Option<ObjectReserve>,
    /// Function by which long work on memory lets other tasks run.
    pub rest: Option<Rest>,
    /// The accounts that pay for frames.
    pub ledger: Option<Ledger>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            shuffle: Shuffle::Auto,
            shuffle_order: 0,
            placement: Placement::Auto,
            check: Check::Owners,
            init_on_alloc: Wipe::Never,
            init_on_free: Wipe::Never,
            wipe_on_enter: Wipe::Always,
            on_misuse: None,
            on_pressure: None,
            on_denial: None,
            fault_hook: None,
            object_reserve: None,
            rest: None,
            ledger: None,
        }
    }
}

/// Reasons why a parameter was rejected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadParameter {
    /// The allocator has no such parameter.
    Unknown,
    /// The value of the parameter is invalid; contains a description of the valid values.
    Value(&'static str),
}

impl Options {
    /// Sets a kernel parameter by its full name.
    ///
    /// # Errors
    /// [`BadParameter`]; the options stay as they were.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), BadParameter> {
        let wipe = |value| match truth(value) {
            Some(true) => Ok(Wipe::Always),
            Some(false) => Ok(Wipe::Never),
            None => Err(BadParameter::Value("0 or 1")),
        };
        match name {
            "page_alloc.shuffle" => {
                self.shuffle = match (value, truth(value)) {
                    ("auto", _) => Shuffle::Auto,
                    (_, Some(true)) => Shuffle::On,
                    (_, Some(false)) => Shuffle::Off,
                    _ => return Err(BadParameter::Value("auto, on or off")),
                }
            }
            "page_alloc.shuffle_order" => {
                let order = value.parse().ok().filter(|order| *order <= 10);
                self.shuffle_order = order.ok_or(BadParameter::Value("0 to 10"))?;
            }
            "page_alloc.placement" => {
                self.placement = match value {
                    "auto" => Placement::Auto,
                    "linear" => Placement::Linear,
                    "random" => Placement::Random,
                    "balanced" => Placement::Balanced,
                    _ => return Err(BadParameter::Value("auto, linear, random or balanced")),
                }
            }
            "page_alloc.check" => {
                self.check = match value {
                    "fill" => Check::Fill,
                    "owners" => Check::Owners,
                    _ => return Err(BadParameter::Value("fill or owners")),
                }
            }
            "init_on_alloc" => self.init_on_alloc = wipe(value)?,
            "init_on_free" => self.init_on_free = wipe(value)?,
            _ => return Err(BadParameter::Unknown),
        }
        Ok(())
    }
    /// Whether user memory is placed by near-cache bin, if there is a cache with bins.
    pub(crate) const fn balances(&self) -> bool {
        matches!(self.placement, Placement::Auto | Placement::Balanced)
    }
    /// Whether this machine's memory is shuffled.
    pub fn shuffles(&self, topology: &Topology) -> bool {
        match (self.placement, self.shuffle) {
            (Placement::Linear, _) => false,
            (Placement::Random, _) | (_, Shuffle::On) => true,
            (_, Shuffle::Off) => false,
            (_, Shuffle::Auto) => (0..topology.node_count())
                .flat_map(|node| topology.near_caches(freehold_machine::NodeId(node as u8)))
                .any(|cache| cache.indexing == Indexing::Direct),
        }
    }
}

fn truth(value: &str) -> Option<bool> {
    match value {
        "1" | "y" | "Y" | "on" => Some(true),
        "0" | "n" | "N" | "off" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_taken_in_every_spelling_and_bad_ones_change_nothing() {
        let mut options = Options::default();
        for (value, shuffle) in
            [("1", Shuffle::On), ("N", Shuffle::Off), ("auto", Shuffle::Auto), ("on", Shuffle::On)]
        {
            options.set("page_alloc.shuffle", value).unwrap();
            assert_eq!(options.shuffle, shuffle);
        }
        options.set("page_alloc.shuffle_order", "9").unwrap();
        options.set("page_alloc.check", "fill").unwrap();
        options.set("init_on_free", "1").unwrap();
        for (name, value) in
            [("page_alloc.shuffle", "maybe"), ("page_alloc.shuffle_order", "11"), ("init_on_free", "")]
        {
            assert!(matches!(options.set(name, value), Err(BadParameter::Value(_))), "{name}={value}");
        }
        assert_eq!(options.set("page_alloc.shufle", "1"), Err(BadParameter::Unknown));
        assert_eq!((options.shuffle, options.shuffle_order), (Shuffle::On, 9));
        assert_eq!((options.check, options.init_on_free), (Check::Fill, Wipe::Always));
    }
}
