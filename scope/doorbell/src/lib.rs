//! Messages from a guest to the microscope.
//!
//! The doorbell is an instruction that does nothing, [`MARKER`], directly followed by an ordinary
//! load from a message. Every CPU can run both at any privilege, on any kernel, watched or not. The
//! microscope finds the marker in the code, sees the load's address, and reads the message from the
//! guest's memory. A message does not cross a page and is aligned to 8 bytes. It is a word with its
//! kind and length ([`head`]), then its payload. The load is one of 1 to 8 bytes at the message's
//! beginning.
//!
//! - [`PHASE`]: a name, UTF-8, of at most [`MAX_NAME`] bytes: from here on counts belong to a new
//!   phase.
//! - [`KERNEL`]: a [`Publication`], from kernel code only.
//! - [`PROCESS`]: the number of a process and the physical address of its top-level table, from
//!   kernel code only. The microscope looks up there which frames the process maps.
//!
//! Translation instructions have a second, silent form. A 64-bit store of a register to memory,
//! directly before `mov cr3` from the same register, or `invlpg` through it, shows the operand. The
//! instruction itself does not show its operand to an observer.
#![no_std]
#![forbid(unsafe_code)]

/// `nop dword ptr [rax + 0x46484f4c]`: an instruction that no compiler emits by accident.
pub const MARKER: [u8; 7] = [0x0f, 0x1f, 0x80, b'L', b'O', b'H', b'F'];
/// A message that begins a phase.
pub const PHASE: u32 = 1;
/// A message that describes the kernel.
pub const KERNEL: u32 = 2;
/// A message that tells the tables of a process.
pub const PROCESS: u32 = 3;
/// Largest number of bytes of a phase's name.
pub const MAX_NAME: usize = 120;

/// Returns the first word of a message: its kind, and the bytes of its payload.
pub const fn head(kind: u32, length: u32) -> u64 {
    kind as u64 | (length as u64) << 32
}

/// Returns a phase message: `N` is 1 word more than the name takes.
///
/// # Panics
/// When the name does not fit (at compile time, for a constant).
pub const fn phase<const N: usize>(name: &str) -> [u64; N] {
    let bytes = name.as_bytes();
    assert!(bytes.len() <= MAX_NAME && N == 1 + bytes.len().div_ceil(8), "the words of a phase's name");
    let mut words = [0; N];
    words[0] = head(PHASE, bytes.len() as u32);
    let mut at = 0;
    while at < bytes.len() {
        words[1 + at / 8] |= (bytes[at] as u64) << (8 * (at % 8));
        at += 1;
    }
    words
}

/// Bytes of an owner's name, filled up with zeroes.
pub const NAME_BYTES: usize = 16;
/// Largest number of owners.
pub const MAX_OWNERS: usize = 16;
/// Largest number of nodes.
pub const MAX_NODES: usize = 16;
const FIGURES: usize = 34;
const NAMES: usize = FIGURES + MAX_NODES;
/// Words of a [`Publication`].
pub const WORDS: usize = NAMES + MAX_OWNERS * NAME_BYTES / 8;
/// The layout of [`Publication::words`].
pub const VERSION: u64 = 7;
/// Bytes of an entry of the table of [sites](Publication::sites): the distance of the site from
/// this field, the distance of the jump's target from the next field, and the key.
pub const SITE_BYTES: u64 = 12;

/// The exclusion of programs' frames from the kernel's map, as the kernel parameter `xpfo` names
/// it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// No exclusion: the kernel's map holds every frame.
    Off = 0,
    /// Closed windows stay cached until their CPU has used all its slots once.
    Lap = 1,
    /// As [`Policy::Lap`], with a deadline.
    On = 2,
    /// Each window is flushed when it closes.
    Strict = 3,
}

impl Policy {
    /// All policies, by number.
    pub const ALL: [Self; 4] = [Self::Off, Self::Lap, Self::On, Self::Strict];

    /// Returns the policy's name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Lap => "lap",
            Self::On => "on",
            Self::Strict => "strict",
        }
    }

    fn from_word(word: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|&policy| policy as u64 == word)
    }
}

/// The description of itself that our kernel publishes once, when its frame table is in use.
/// Addresses are virtual unless a field says otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Publication {
    /// Per node, the physical address of a top-level table that maps the whole kernel half, as the
    /// CPUs of that node see it. Each stays for ever. 0: the node's CPUs use the first.
    pub roots: [u64; MAX_NODES],
    /// The frames that the kernel's map leaves out, and the time for which closed windows stay
    /// cached.
    pub policy: Policy,
    /// The direct map: first address.
    pub direct_map: u64,
    /// The direct map: bytes.
    pub direct_span: u64,
    /// All CPUs' windows: first address.
    pub windows: u64,
    /// All CPUs' windows: bytes.
    pub windows_span: u64,
    /// The frame table: first address; frame n's record is the n-th.
    pub frame_table: u64,
    /// Number of records in the frame table.
    pub frames: u64,
    /// The format of the records.
    pub records: Records,
    /// Text: first address.
    pub text: u64,
    /// Text: one past the last.
    pub text_end: u64,
    /// Read-only data: first address.
    pub rodata: u64,
    /// Read-only data: one past the last.
    pub rodata_end: u64,
    /// Distance of the image from its link address.
    pub slide: u64,
    /// The interrupt descriptor table that all CPUs load: 256 gates of 16 bytes.
    pub interrupts: u64,
    /// The code that may run with RFLAGS.AC set, which switches SMAP off: first address.
    pub user_copies: u64,
    /// The same: one past the last.
    pub user_copies_end: u64,
    /// The code that may store to free frames, to wipe them: first address. Equal to the end: there
    /// is no such code.
    pub wiping: u64,
    /// The same: one past the last.
    pub wiping_end: u64,
    /// First word of an array with one word per CPU: the number of times that the CPU was about to
    /// load a root with another node's image, for lack of memory for its own root. The word is
    /// raised before the load. 0: there are no such words.
    pub shared_loads: u64,
    /// The code that may store to text: first address. Equal to the end: there is no such code.
    pub patching: u64,
    /// The same: one past the last.
    pub patching_end: u64,
    /// The page through which that code stores to text. 0: there is none.
    pub patch_window: u64,
    /// The table of places in text whose instruction changes, each a no-op or a jump of five bytes:
    /// first address.
    pub sites: u64,
    /// The same: one past the last.
    pub sites_end: u64,
    /// The owners' names by number.
    pub owners: [[u8; NAME_BYTES]; MAX_OWNERS],
}

/// The place of a frame's owner in the frame table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Records {
    /// Bytes of a record.
    pub bytes: u64,
    /// Offset of the state in a record: 32 bits; zero says that no block begins there.
    pub state_offset: u64,
    /// Mask of the owner in a state; 0 is no owner.
    pub owner_mask: u64,
    /// Shift of the block's log2 size in an owned block's state.
    pub order_shift: u64,
    /// Mask of the log2 size, after the shift.
    pub order_mask: u64,
    /// Bit n is set when owner n is a program.
    pub user_owners: u64,
    /// Bit n is set when owner n holds copies of kernel text.
    pub replica_owners: u64,
    /// Bit n is set when owner n's frames are kernel stacks: mapped, but not in the direct map.
    pub stack_owners: u64,
    /// Bit n is set when programs' bytes pass through owner n's frames on their way to and from
    /// devices: devices store them there, too.
    pub transfer_owners: u64,
    /// Bit n is set when no frame of owner n may be in the kernel half, except in a window. 0 under
    /// [`Policy::Off`].
    pub outside_owners: u64,
}

impl Publication {
    /// Returns the bytes of the owner's `name` for [`Publication::owners`]; a longer name is cut
    /// off.
    pub fn name(name: &str) -> [u8; NAME_BYTES] {
        let mut bytes = [0; NAME_BYTES];
        bytes.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
        bytes
    }

    /// Returns the root that the CPUs of `node` use for the kernel half.
    pub fn root(&self, node: usize) -> u64 {
        self.roots.get(node).copied().filter(|&root| root != 0).unwrap_or(self.roots[0])
    }

    /// Returns the payload of a message.
    pub fn words(&self) -> [u64; WORDS] {
        let figures: [u64; FIGURES] = [
            VERSION,
            self.policy as u64,
            self.direct_map,
            self.direct_span,
            self.windows,
            self.windows_span,
            self.frame_table,
            self.frames,
            self.records.bytes,
            self.records.state_offset,
            self.records.owner_mask,
            self.records.order_shift,
            self.records.order_mask,
            self.records.user_owners,
            self.records.replica_owners,
            self.records.outside_owners,
            self.text,
            self.text_end,
            self.rodata,
            self.rodata_end,
            self.slide,
            self.interrupts,
            self.user_copies,
            self.user_copies_end,
            self.wiping,
            self.wiping_end,
            self.shared_loads,
            self.patching,
            self.patching_end,
            self.patch_window,
            self.sites,
            self.sites_end,
            self.records.stack_owners,
            self.records.transfer_owners,
        ];
        let mut words = [0; WORDS];
        words[..FIGURES].copy_from_slice(&figures);
        words[FIGURES..NAMES].copy_from_slice(&self.roots);
        for (index, byte) in self.owners.iter().flatten().enumerate() {
            words[NAMES + index / 8] |= u64::from(*byte) << (8 * (index % 8));
        }
        words
    }

    /// Reads the payload of a message; `None` for another layout.
    pub fn from_words(words: &[u64; WORDS]) -> Option<Self> {
        if words[0] != VERSION {
            return None;
        }
        let mut roots = [0; MAX_NODES];
        roots.copy_from_slice(&words[FIGURES..NAMES]);
        let mut owners = [[0; NAME_BYTES]; MAX_OWNERS];
        for (index, byte) in owners.iter_mut().flatten().enumerate() {
            *byte = (words[NAMES + index / 8] >> (8 * (index % 8))) as u8;
        }
        Some(Self {
            roots,
            policy: Policy::from_word(words[1])?,
            direct_map: words[2],
            direct_span: words[3],
            windows: words[4],
            windows_span: words[5],
            frame_table: words[6],
            frames: words[7],
            records: Records {
                bytes: words[8],
                state_offset: words[9],
                owner_mask: words[10],
                order_shift: words[11],
                order_mask: words[12],
                user_owners: words[13],
                replica_owners: words[14],
                stack_owners: words[32],
                transfer_owners: words[33],
                outside_owners: words[15],
            },
            text: words[16],
            text_end: words[17],
            rodata: words[18],
            rodata_end: words[19],
            slide: words[20],
            interrupts: words[21],
            user_copies: words[22],
            user_copies_end: words[23],
            wiping: words[24],
            wiping_end: words[25],
            shared_loads: words[26],
            patching: words[27],
            patching_end: words[28],
            patch_window: words[29],
            sites: words[30],
            sites_end: words[31],
            owners,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publication_survives_its_words() {
        let mut publication =
            Publication::from_words(&core::array::from_fn(|n| if n == 0 { VERSION } else { n as u64 }));
        assert_eq!(publication.map(|known| known.policy), Some(Policy::Lap));
        let known = publication.as_mut().expect("this version");
        known.owners[3] = Publication::name("a name that is far too long");
        assert_eq!(Publication::from_words(&known.words()), Some(*known));
        assert_eq!(&known.owners[3], b"a name that is f");
        assert_eq!(Publication::from_words(&[9; WORDS]), None);
        let unknown_policy = |n| if n == 0 { VERSION } else { 9 };
        assert_eq!(Publication::from_words(&core::array::from_fn(unknown_policy)), None);
    }

    #[test]
    fn a_node_without_a_root_of_its_own_uses_the_first() {
        let mut words = [0; WORDS];
        (words[0], words[FIGURES], words[FIGURES + 2]) = (VERSION, 0x1000, 0x3000);
        let publication = Publication::from_words(&words).expect("this version");
        assert_eq!([0, 1, 2, 99].map(|node| publication.root(node)), [0x1000, 0x1000, 0x3000, 0x1000]);
    }

    #[test]
    fn a_phase_has_its_length_and_its_bytes() {
        const MESSAGE: [u64; 3] = phase("0123456789");
        assert_eq!(MESSAGE[0], head(PHASE, 10));
        assert_eq!(MESSAGE[1..], [u64::from_le_bytes(*b"01234567"), 0x3938]);
    }
}
