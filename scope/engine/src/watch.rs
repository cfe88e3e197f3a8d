//! State that all CPUs share: the settings, the machine's clock, phases, blocks of code, near
//! caches, frames.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use freehold_scope_doorbell::{self as doorbell, Publication};
use freehold_scope_record::{
    CODE_PAGE, FrameOwner, FrameUser, HeatRegion, NearCounts, NearResult, Phase, Residue as Sample, Settings,
    SettingsError, fingerprint,
};

use crate::board::{self, Board, Step};
use crate::cpu::Counted;
use crate::frames::{Frames, Suspect, User};
use crate::guest::{GuestMemory, MAX_NODES, NOWHERE, Nodes, user_pages};
use crate::near::NearCaches;
use crate::patching::AtSite;
use crate::residue::Residue;

/// Instructions between two samples of programs' bytes.
const SAMPLE: u64 = 1 << 26;

/// The phase before the first kernel instruction.
pub const FIRMWARE: usize = 0;

/// A block of code, as it was translated. Fields that each run needs stand first.
#[derive(Debug)]
#[repr(C)]
pub struct WatchedBlock {
    /// Its place in every CPU's counts of runs.
    pub(crate) number: usize,
    /// Page number of the first instruction's address.
    pub(crate) page: u64,
    pub(crate) instructions: u64,
    /// The line, if there is only one; else a number that no line has.
    pub(crate) only_line: u64,
    pub(crate) mode: usize,
    pub(crate) node: usize,
    pub(crate) pc: u64,
    /// Guest-physical address of that page, if it is memory.
    pub(crate) frame: Option<u64>,
    /// Lines of the block, if caches are modelled: those in its page, and those in the next page if
    /// it goes on there. Both from the first to one past the last.
    pub(crate) lines: [(u64, u64); 2],
    /// The fingerprint of that page, for programs: see `BlockRecord::contents`.
    pub(crate) contents: AtomicU64,
}

impl WatchedBlock {
    /// Returns the number that its runs are counted under: one more than that of the block before.
    pub const fn number(&self) -> usize {
        self.number
    }
}

/// The place of a block's instructions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CodePlace {
    /// The first instruction's address.
    pub pc: u64,
    /// Its guest-physical address; `None` outside the guest's memory (firmware).
    pub physical: Option<u64>,
    /// Bytes in the page of the first instruction.
    pub bytes: u64,
    /// Guest-physical address and bytes of the part in the next page.
    pub further: Option<(u64, u64)>,
    /// Instructions.
    pub instructions: u64,
}

/// The program's phases, by number: from `program` to the one before `closing`, as far as is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ProgramTime {
    pub program: usize,
    pub closing: usize,
}

impl ProgramTime {
    const UNKNOWN: Self = Self { program: usize::MAX, closing: usize::MAX };

    /// Returns whether a program began.
    pub const fn has_begun(self) -> bool {
        self.program != usize::MAX
    }

    /// Begins the phase of this number and name.
    fn begin(&mut self, number: usize, name: &str) {
        match name {
            Phase::PROGRAM if !self.has_begun() => self.program = number,
            Phase::CLOSING if self.has_begun() => self.closing = number,
            _ => {}
        }
    }
}

struct PhaseMark {
    name: String,
    near: Vec<NearCounts>,
}

/// The meaning of a ring at the doorbell.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DoorbellRing {
    /// A phase began.
    Phase,
    /// Our kernel published itself.
    Published,
    /// Our kernel told the tables of a process.
    Process,
    /// A message that is not understood; why.
    Refused(&'static str),
}

/// Everything that is shared. One per run; all methods may be called from any thread.
pub struct Watch {
    pub(crate) settings: Settings,
    pub(crate) memory: Box<dyn GuestMemory>,
    pub(crate) nodes: Nodes,
    pub(crate) frames: Frames,
    pub(crate) near: NearCaches,
    /// The residue model: programs' bytes, if the run follows them.
    pub(crate) residue: Option<Residue>,
    samples: Mutex<Vec<Sample>>,
    next_sample: AtomicU64,
    /// Instructions of all CPUs, as far as they have reported.
    pub(crate) total: AtomicU64,
    /// Number of the phase, which never goes back.
    phase: AtomicUsize,
    phases: Mutex<Vec<PhaseMark>>,
    time: Mutex<ProgramTime>,
    counted: OnceLock<Arc<dyn Counted>>,
    /// The board of each CPU that has begun to run.
    pub(crate) boards: Vec<OnceLock<Board>>,
    blocks: Mutex<HashMap<CodePlace, &'static WatchedBlock>>,
    pub(crate) translated: AtomicU64,
    pub(crate) region_shift: u32,
    remarks: Mutex<Vec<String>>,
    /// The owners of frames by number, once the kernel has told a process.
    owners: Mutex<HashMap<u64, FrameOwner>>,
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    /// Makes a watch over a machine that is about to start.
    ///
    /// # Errors
    /// A setting makes no sense; the error names it.
    pub fn new(settings: Settings, memory: Box<dyn GuestMemory>) -> Result<Self, SettingsError> {
        settings.check()?;
        if settings.memory.backends.len() > MAX_NODES {
            return Err(SettingsError { setting: "nodes", problem: format!("more than {MAX_NODES}") });
        }
        let near = NearCaches::new(&settings)?;
        let regions = settings.models.heat.map_or(1, |heat| heat.regions as u64);
        let region = settings.memory.end().div_ceil(regions).next_power_of_two().max(4096);
        Ok(Self {
            nodes: Nodes::new(&settings.memory),
            frames: Frames::new(&settings.memory, settings.violations),
            near,
            residue: settings.models.residue.then(|| Residue::new((settings.memory.end() >> 12) as usize)),
            samples: Mutex::default(),
            next_sample: AtomicU64::new(SAMPLE),
            total: AtomicU64::new(0),
            phase: AtomicUsize::new(FIRMWARE),
            phases: Mutex::new(vec![PhaseMark { name: "firmware".into(), near: Vec::new() }]),
            time: Mutex::new(ProgramTime::UNKNOWN),
            counted: OnceLock::new(),
            boards: settings.cpus.iter().map(|_| OnceLock::new()).collect(),
            blocks: Mutex::default(),
            translated: AtomicU64::new(0),
            region_shift: region.trailing_zeros(),
            remarks: Mutex::default(),
            owners: Mutex::default(),
            memory,
            settings,
        })
    }

    /// Returns the settings.
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the distance of our kernel's image from its link address, once it has published
    /// itself.
    pub fn slide(&self) -> Option<u64> {
        self.frames.published().map(|publication| publication.slide)
    }

    /// Returns the kind of an instruction with these bytes, if they are at a published site; `None`
    /// elsewhere.
    pub fn at_site(&self, pc: u64, bytes: &[u8]) -> Option<AtSite> {
        self.frames.patching().filter(|_| pc >> 63 != 0)?.judge(pc, bytes)
    }

    /// Registers a translated block of code. The same place is the same block, however often it is
    /// translated.
    pub fn block(&self, place: CodePlace) -> &'static WatchedBlock {
        self.translated.fetch_add(1, Ordering::Relaxed);
        let contents = self.contents(place);
        let mut blocks = locked(&self.blocks);
        let number = blocks.len();
        let block = *blocks
            .entry(place)
            .or_insert_with(|| Box::leak(Box::new(self.describe(number, place, contents))));
        // Code of several files ran here, one after the other, and its runs are counted together.
        if block.contents.load(Ordering::Relaxed) != contents {
            block.contents.store(0, Ordering::Relaxed);
        }
        block
    }
    /// Returns the fingerprint of a page of a program's code; 0 for other pages.
    fn contents(&self, place: CodePlace) -> u64 {
        let Some(physical) = place.physical.filter(|_| place.pc >> 63 == 0) else { return 0 };
        let page = physical & !(CODE_PAGE as u64 - 1);
        fingerprint((0..CODE_PAGE as u64).step_by(8).map_while(|at| self.memory.load(page + at)))
    }

    /// Returns the steps of a block on the board of the CPU that runs it, in this order.
    pub fn steps(&self, block: &WatchedBlock) -> impl Iterator<Item = Step> + use<> {
        board::steps(block, board::lines(&self.settings))
    }

    /// Registers the caller that takes the steps of blocks without calls: it counts their runs and
    /// hands them over here. Called before the guest runs.
    pub fn set_counted(&self, counted: Arc<dyn Counted>) {
        // The first registration counts.
        let _ = self.counted.set(counted);
    }
    pub(crate) fn counted(&self) -> Option<&dyn Counted> {
        self.counted.get().map(|counted| &**counted)
    }

    fn describe(&self, number: usize, place: CodePlace, contents: u64) -> WatchedBlock {
        let lines = |run: Option<(u64, u64)>| match (self.settings.models.cache, run) {
            (Some(cache), Some((start, bytes))) => {
                (start / cache.line, (start + bytes.max(1)).div_ceil(cache.line))
            }
            _ => (0, 0),
        };
        for physical in place.physical.iter().chain(place.further.iter().map(|(physical, _)| physical)) {
            self.frames.used(physical >> 12, User::Code);
        }
        let lines = [lines(place.physical.map(|physical| (physical, place.bytes))), lines(place.further)];
        let only = lines[0].1 == lines[0].0 + 1 && lines[1].0 == lines[1].1;
        WatchedBlock {
            number,
            pc: place.pc,
            page: place.pc >> 12,
            frame: place.physical.map(|physical| physical & !0xfff),
            node: place.physical.map_or(NOWHERE, |physical| self.nodes.of(physical)),
            mode: (place.pc >> 63) as usize,
            instructions: place.instructions,
            only_line: if only { lines[0].0 } else { u64::MAX },
            lines,
            contents: AtomicU64::new(contents),
        }
    }

    /// Samples programs' bytes if a sample is due; `total` is the machine's clock.
    pub(crate) fn sample(&self, total: u64) {
        let next = self.next_sample.load(Ordering::Relaxed);
        let due = self.residue.is_some() && total >= next;
        if due
            && self
                .next_sample
                .compare_exchange(next, total + SAMPLE, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        {
            self.sample_now(total);
        }
    }
    fn sample_now(&self, time: u64) {
        if let Some(residue) = &self.residue {
            residue.look_at_transfers(&*self.memory, &self.frames);
            let sample = residue.sample(&*self.memory, &self.frames, time, self.phase());
            locked(&self.samples).push(sample);
        }
    }
    /// Forgets all bytes, when a kernel begins that publishes owners: earlier software was no
    /// program.
    pub(crate) fn forget_residue(&self) {
        if let Some(residue) = &self.residue {
            residue.forget();
            locked(&self.samples).clear();
        }
    }
    /// Returns all samples of programs' bytes, with a last one.
    pub(crate) fn end_samples(&self) -> Vec<Sample> {
        self.sample_now(self.total.load(Ordering::Relaxed));
        let mut samples = core::mem::take(&mut *locked(&self.samples));
        samples.sort_by_key(|sample| sample.time);
        samples
    }

    /// Begins a phase.
    pub(crate) fn begin(&self, name: String) {
        self.sample_now(self.total.load(Ordering::Relaxed));
        let mut phases = locked(&self.phases);
        if let Some(ended) = phases.last_mut() {
            ended.near = self.near.take_counts();
        }
        locked(&self.time).begin(phases.len(), &name);
        phases.push(PhaseMark { name, near: Vec::new() });
        self.phase.store(phases.len() - 1, Ordering::Release);
        // Work from now on belongs to the new phase.
        self.boards.iter().filter_map(OnceLock::get).for_each(|&board| board::nudge(board));
    }
    /// Returns the program's phases, as far as they are known.
    pub(crate) fn program_time(&self) -> ProgramTime {
        *locked(&self.time)
    }
    /// Returns the present phase.
    pub(crate) fn phase(&self) -> usize {
        self.phase.load(Ordering::Acquire)
    }
    /// Ends the firmware's phase at the kernel's first instruction; only the first CPU that calls
    /// this begins a new one.
    pub(crate) fn end_of_firmware(&self) {
        if self.phase() == FIRMWARE && locked(&self.phases).len() == 1 {
            self.begin("boot".into());
        }
    }
    /// Returns names and near-cache counts of all phases; the last one ends now.
    pub(crate) fn end_phases(&self) -> Vec<(String, Vec<NearCounts>)> {
        let mut phases = locked(&self.phases);
        if let Some(ended) = phases.last_mut() {
            ended.near = self.near.take_counts();
        }
        phases.drain(..).map(|phase| (phase.name, phase.near)).collect()
    }

    /// Reads the message at a guest-physical address. `by` has rung the doorbell.
    pub(crate) fn read_message(&self, by: Suspect, address: u64) -> DoorbellRing {
        let word = |index: u64| {
            let at = address + 8 * index;
            if at >> 12 == address >> 12 { self.memory.load(at) } else { None }
        };
        let Some(head) = address.is_multiple_of(8).then(|| word(0)).flatten() else {
            return DoorbellRing::Refused("a message is not where it can be read");
        };
        let (kind, length) = (head as u32, (head >> 32) as usize);
        match kind {
            doorbell::PHASE if length <= doorbell::MAX_NAME => {
                let bytes: Option<Vec<u8>> = (0..length)
                    .map(|n| word(1 + n as u64 / 8).map(|word| (word >> (8 * (n % 8))) as u8))
                    .collect();
                match bytes {
                    Some(bytes) => {
                        self.begin(String::from_utf8_lossy(&bytes).into_owned());
                        DoorbellRing::Phase
                    }
                    None => DoorbellRing::Refused("a phase's name crosses a page"),
                }
            }
            doorbell::KERNEL if by.pc >> 63 == 0 => {
                DoorbellRing::Refused("a program claims to be the kernel")
            }
            doorbell::KERNEL => {
                let mut words = [0; doorbell::WORDS];
                for (index, to) in words.iter_mut().enumerate() {
                    match word(1 + index as u64) {
                        Some(word) => *to = word,
                        None => return DoorbellRing::Refused("the kernel's publication crosses a page"),
                    }
                }
                let Some(publication) = Publication::from_words(&words) else {
                    return DoorbellRing::Refused("the kernel's publication is of another version");
                };
                match self.frames.publish(&*self.memory, publication, by) {
                    Ok(()) => DoorbellRing::Published,
                    Err(why) => DoorbellRing::Refused(why),
                }
            }
            doorbell::PROCESS if by.pc >> 63 != 0 => match (word(1), word(2)) {
                (Some(pid), Some(root)) => {
                    self.look_for_owners(pid as u32, root);
                    DoorbellRing::Process
                }
                _ => DoorbellRing::Refused("a process's message crosses a page"),
            },
            _ => DoorbellRing::Refused("a message of an unknown kind"),
        }
    }

    /// Looks in a process' tables for the frames of pairs that evict each other. Which frames these
    /// are, and their classes, is settled at the first process.
    fn look_for_owners(&self, pid: u32, root: u64) {
        let mut owners = locked(&self.owners);
        if owners.is_empty() {
            let owner = |frame: u64| FrameOwner {
                frame,
                class: self.frames.class(frame << 12),
                users: Vec::new(),
                more: 0,
            };
            *owners = self.near.frames_of_pairs().map(|frame| (frame, owner(frame))).collect();
        }
        user_pages(&*self.memory, root, &mut |address, physical| {
            let Some(owner) = owners.get_mut(&(physical >> 12)) else { return };
            if owner.users.len() < FrameOwner::USERS {
                owner.users.push(FrameUser { pid, address });
            } else {
                owner.more += 1;
            }
        });
    }
    /// Returns the owners of the frames in the pairs of these results.
    pub(crate) fn owners(&self, near: &[NearResult]) -> Vec<FrameOwner> {
        let mut owners = locked(&self.owners);
        let pairs = near.iter().flat_map(|near| &near.pairs);
        let frames: BTreeSet<u64> = pairs.flat_map(|pair| [pair.evicted, pair.arrived]).collect();
        frames.into_iter().filter_map(|frame| owners.remove(&frame)).collect()
    }

    /// Adds a remark for the reader of the results, once.
    pub fn remark(&self, remark: String) {
        let mut remarks = locked(&self.remarks);
        if !remarks.contains(&remark) {
            remarks.push(remark);
        }
    }
    pub(crate) fn take_remarks(&self) -> Vec<String> {
        core::mem::take(&mut *locked(&self.remarks))
    }

    /// Returns the heat map's regions.
    pub(crate) fn regions(&self) -> Vec<HeatRegion> {
        let bytes = 1 << self.region_shift;
        let regions = (0..self.settings.memory.end()).step_by(bytes as usize);
        regions.map(|start| HeatRegion { start, bytes, node: self.nodes.of(start) }).collect()
    }
    pub(crate) fn region_count(&self) -> usize {
        match self.settings.models.heat {
            Some(_) => (self.settings.memory.end() >> self.region_shift) as usize + 1,
            None => 0,
        }
    }
    /// Returns all blocks that were translated.
    pub(crate) fn all_blocks(&self) -> Vec<&'static WatchedBlock> {
        locked(&self.blocks).values().copied().collect()
    }
}
