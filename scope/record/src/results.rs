//! Results of a run.

use serde::{Deserialize, Serialize};

use crate::{Exposure, KernelData, Oracle, Residue, Settings, Sharing};

/// Values for the kernel and for programs apart. Code that ran before the first kernel instruction
/// (firmware, loader) is counted with programs, in the phase "firmware".
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Modes<T> {
    /// Programs.
    pub user: T,
    /// The kernel.
    pub kernel: T,
}

/// Counts of one CPU in one mode in one phase. Vectors have an entry per node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CpuCounts {
    /// Instructions.
    pub instructions: u64,
    /// Loads.
    pub loads: u64,
    /// Stores.
    pub stores: u64,
    /// Bytes that the stores wrote.
    pub stored_bytes: u64,
    /// Loads and stores outside memory: device registers, firmware.
    pub elsewhere: u64,
    /// Loads and stores by the node whose memory they name.
    pub data: Vec<u64>,
    /// Instructions by the node whose memory they are in.
    pub fetches: Vec<u64>,
    /// Data lines that the first-level cache did not have.
    pub first_misses: u64,
    /// Lines of instructions that the first-level cache did not have.
    pub first_fetch_misses: u64,
    /// Data lines that the last-level cache did not have either, by the node that had to bring
    /// them.
    pub data_misses: Vec<u64>,
    /// Lines of instructions that the last-level cache did not have either, by node.
    pub fetch_misses: Vec<u64>,
    /// Data look-ups that the first-level TLB missed.
    pub tlb_data_misses: u64,
    /// Instruction look-ups that the first-level TLB missed.
    pub tlb_fetch_misses: u64,
    /// Look-ups that both levels missed.
    pub tlb_walks: u64,
}

/// Counts of one CPU in one phase.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct CpuPhase {
    /// Counts of the CPU.
    pub modes: Modes<CpuCounts>,
    /// Instructions that empty translation caches: writes to CR3.
    pub space_flushes: u64,
    /// Writes to CR4, INVPCID and other instructions that empty all translation caches.
    pub full_flushes: u64,
    /// INVLPG.
    pub page_flushes: u64,
    /// The kernel's loads and stores by kind of data.
    #[serde(default)]
    pub kernel_data: KernelData,
}

/// Counts of one memory-side cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NearCounts {
    /// All accesses: lines that the last-level caches missed or wrote back.
    pub accesses: u64,
    /// Accesses whose line was there.
    pub hits: u64,
    /// First uses.
    pub cold: u64,
    /// Misses that a fully associative cache of the size has too.
    pub capacity: u64,
    /// Misses that only the mapping causes.
    pub conflict: u64,
    /// Dirty lines that went to memory.
    pub written_back: u64,
}

/// A time between two marks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Phase {
    /// The mark's name. "firmware" and "boot" exist always, "program" begins when the guest starts
    /// its program; phases of one name are one entry each time.
    pub name: String,
    /// Start time.
    pub start: u64,
    /// End time.
    pub end: u64,
    /// Each CPU.
    pub cpus: Vec<CpuPhase>,
    /// Each node's memory-side cache; empty if none is modelled.
    pub near: Vec<NearCounts>,
}

/// A part of a memory-side cache's sets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Bucket {
    /// Accesses.
    pub accesses: u64,
    /// Conflicts.
    pub conflicts: u64,
    /// Sets that hold a line at the end.
    pub occupied: u64,
}

/// Two frames that evicted each other's lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Collision {
    /// The frame whose line left.
    pub evicted: u64,
    /// The frame whose line came.
    pub arrived: u64,
    /// Number of conflicts.
    pub count: u64,
}

/// The owner of a frame of a pair, when the program had ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FrameOwner {
    /// The frame's number, as in [`Collision`].
    pub frame: u64,
    /// Its owner class: an index into [`Results::classes`].
    pub class: usize,
    /// Up to [`FrameOwner::USERS`] processes that mapped the frame.
    pub users: Vec<FrameUser>,
    /// Number of further mappings.
    pub more: u64,
}

impl FrameOwner {
    /// Largest number of users.
    pub const USERS: usize = 4;
}

/// A mapping of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FrameUser {
    /// Number of the process.
    pub pid: u32,
    /// Virtual address of the frame's first byte.
    pub address: u64,
}

/// One node's memory-side cache over the whole run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NearResult {
    /// Bytes.
    pub size: u64,
    /// Sets (lines).
    pub sets: u64,
    /// The sets in order, in at most 1,024 equal parts of `sets_per_bucket`.
    pub buckets: Vec<Bucket>,
    /// Sets in a bucket.
    pub sets_per_bucket: u64,
    /// Conflicts by owner class: `[left][came]`, indices into [`Results::classes`].
    pub collisions: Vec<Vec<u64>>,
    /// The worst pairs of frames.
    pub pairs: Vec<Collision>,
}

/// Size of a page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Page {
    /// 4 KiB.
    #[serde(rename = "4k")]
    Small,
    /// 2 MiB.
    #[serde(rename = "2m")]
    Large,
    /// 1 GiB.
    #[serde(rename = "1g")]
    Giant,
}

/// Half of the address space.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Half {
    /// Programs' addresses.
    User,
    /// The kernel's.
    Kernel,
}

/// The cause of a TLB entry's end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// Another entry needed its place.
    Capacity,
    /// The entry was flushed by its address.
    Page,
    /// All entries that are not global were flushed.
    Space,
    /// Everything was flushed.
    All,
}

/// Entries that died of one cause, by length of life: entry n counts 2^n to 2^(n+1) - 1
/// instructions of their CPU.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Death {
    /// The cause.
    pub cause: Cause,
    /// Number of entries by length of life.
    pub lived: Vec<u64>,
}

/// TLB entries of one kind on one CPU.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LifetimeGroup {
    /// The CPU.
    pub cpu: usize,
    /// The half of the address space.
    pub half: Half,
    /// The page size.
    pub page: Page,
    /// Entries made.
    pub fills: u64,
    /// Entries that died.
    pub deaths: Vec<Death>,
    /// Entries that were alive at the end, by their age then.
    pub alive: Vec<u64>,
}

/// Lifetimes of TLB entries.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct TlbResult {
    /// By CPU, half and page size; kinds without an entry are left out.
    pub groups: Vec<LifetimeGroup>,
    /// Source of page sizes: "tables" (read, the kernel published its root) or "assumed".
    pub page_sizes: String,
    /// INVLPGs whose address was not known: the entry died when its change was seen, or not at all.
    pub unknown_page_flushes: u64,
}

/// Accesses of one CPU in one mode in one slice of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Locality {
    /// Loads and stores to the CPU's own node.
    pub data_local: u64,
    /// Loads and stores to another node.
    pub data_remote: u64,
    /// Instructions fetched from the CPU's own node.
    pub fetch_local: u64,
    /// Instructions fetched from another node.
    pub fetch_remote: u64,
}

/// A slice of time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Slice {
    /// Start time.
    pub start: u64,
    /// End time.
    pub end: u64,
    /// Each CPU.
    pub cpus: Vec<Modes<Locality>>,
    /// Loads and stores by region that had any: (index into [`Results::regions`], count).
    pub heat: Vec<(usize, u64)>,
}

/// A region of the heat map.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HeatRegion {
    /// First guest-physical address.
    pub start: u64,
    /// Bytes.
    pub bytes: u64,
    /// The node.
    pub node: usize,
}

/// A block of code: instructions that run one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BlockRecord {
    /// The first instruction's address. Programs share addresses: only kernel blocks can be named
    /// by them alone.
    pub pc: u64,
    /// The half that the block belongs to.
    pub half: Half,
    /// Number of runs.
    pub runs: u64,
    /// Instructions in all.
    pub instructions: u64,
    /// Instructions in the program's time: see [`Phase::PROGRAM`].
    pub program: u64,
    /// The [`fingerprint`] of the page with the first instruction, for programs' blocks: it tells
    /// which file the code is from, at any address. 0: a block of the kernel, or of a page whose
    /// bytes changed between two translations.
    #[serde(default)]
    pub contents: u64,
}

/// Bytes of a page of code.
pub const CODE_PAGE: usize = 4096;

/// Returns a number for the contents of a page, given as words in the machine's order: equal for
/// equal pages, and different for different ones but for a chance of 1 in 2^64. Never 0.
pub fn fingerprint(words: impl Iterator<Item = u64>) -> u64 {
    // FNV's prime and start, by words; the rotation brings high bits down.
    let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
    words.fold(0xcbf2_9ce4_8422_2325, step).max(1)
}

impl Phase {
    /// The name of the phase with which the program begins. The program's time ends when the last
    /// later phase named [`Phase::CLOSING`] begins, or with the run. If no phase of this name
    /// began, all time is the program's.
    pub const PROGRAM: &str = "program";
    /// The name of the phase in which the kernel makes its audit.
    pub const CLOSING: &str = "closing";
}

/// Ways to count blocks of code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Counting {
    /// By a call for each block.
    Calls,
    /// By code that the emulator makes for a block; calls only when an event is due.
    Inline,
}

/// The emulator that ran the guest.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Emulator {
    /// CPU time of its process, seconds.
    pub cpu_seconds: f64,
    /// The version of its plugin interface.
    pub interface: u32,
    /// The way of counting that the interface allowed.
    pub counting: Counting,
}

/// The cost of watching.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Cost {
    /// The emulator that ran the guest.
    pub emulator: Emulator,
    /// Blocks that ran.
    pub blocks: u64,
    /// Loads and stores.
    pub accesses: u64,
    /// Accesses that needed QEMU's own translation.
    pub translations: u64,
    /// Blocks that were translated.
    pub translated: u64,
}

/// Results of a run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Results {
    /// [`VERSION`](crate::VERSION).
    pub version: u32,
    /// The settings of the run.
    pub settings: Settings,
    /// All instructions.
    pub instructions: u64,
    /// Phases in order of time.
    pub phases: Vec<Phase>,
    /// Memory-side caches by node; empty if none is modelled.
    pub near: Vec<NearResult>,
    /// The owner classes of [`NearResult::collisions`]: for our kernel the owners of frames, for
    /// others the last users of the page.
    pub classes: Vec<String>,
    /// The owners of the frames in [`NearResult::pairs`], by number; empty if the kernel did not
    /// tell its processes.
    #[serde(default)]
    pub owners: Vec<FrameOwner>,
    /// Lifetimes of translations.
    pub tlb: Option<TlbResult>,
    /// Translations of programs' frames; with the TLB model.
    pub exposure: Option<Exposure>,
    /// Programs' bytes, sampled in order of time; with the residue model, else empty.
    pub residue: Vec<Residue>,
    /// Lines of the kernel that several CPUs store to; with the sharing model.
    pub sharing: Option<Sharing>,
    /// Slices of time, of equal length except the last.
    pub slices: Vec<Slice>,
    /// The heat map's regions.
    pub regions: Vec<HeatRegion>,
    /// The blocks that ran most instructions in the program's time, most first, then in the other
    /// time.
    pub blocks: Vec<BlockRecord>,
    /// The oracle.
    pub oracle: Oracle,
    /// The cost of watching.
    pub cost: Cost,
    /// Remarks that the reader needs to judge the figures, a sentence each.
    pub remarks: Vec<String>,
}

crate::in_a_file!(Results);

/// Returns the bucket of a length of life: the power of two at or below it.
pub const fn log2_bucket(lived: u64) -> usize {
    (63 - (lived | 1).leading_zeros()) as usize
}
