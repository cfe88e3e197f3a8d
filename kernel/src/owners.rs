//! Answers to `freehold owns`: the owner of a frame and the programs that map it, or the frames
//! that a process maps. For `freehold scope`, the areas of all processes when the program has
//! ended.
//!
//! The host asks while programs run. Its questions about the program's end come before the start.
//!
//! The answer is read from the frame table and from one address space after the other. Programs run
//! on, so owners of frames may change meanwhile. There is no reverse map, so every address space is
//! walked for a frame. If memory is short, the answer is incomplete: omitted entries are counted.

use core::fmt::{self, Display, Formatter};

use freehold_collections::{Arc, Vec};
use freehold_frame::{Belongs, FrameSource, Holders, Order, Owner};
use freehold_machine::topology::MAX_NODES;
use freehold_machine::{Pfn, VirtAddr};
use freehold_vm::{AreaName, OfFile, PageAt};

use crate::fs::machine;
use crate::fs::procfs::area_name;
use crate::host::frame::{OwnerQuestion, ToHost};
use crate::host::json::{Quoted, comma};
use crate::hw::{PAGE, memory, watch};
use crate::mem::{AddressSpace, ProcessSpace};
use crate::task::{self, Pid, Process};
use crate::{host, mem, sched};

/// Largest number of mappings that are reported per frame.
const MOST: usize = 64;

/// Questions that are answered when the program ends.
static AT_END: spin::Once<Vec<OwnerQuestion>> = spin::Once::new();

/// Keeps the questions for the program's end. Called once, before the program starts.
pub fn ask_at_end(questions: Vec<OwnerQuestion>) {
    if !questions.is_empty() {
        AT_END.call_once(|| questions);
    }
}

/// Answers the questions for the program's end, if `process` is the program. Called by its last
/// thread, while it still has its memory.
pub fn process_ends(process: &Process) {
    if let Some(questions) = AT_END.get().filter(|_| task::init::is_program(process)) {
        questions.iter().for_each(|&question| tell(question, ToHost::LastOwners));
    }
}

/// Sends the answer to the host, in a frame of this kind.
pub fn tell(question: OwnerQuestion, kind: ToHost) {
    match question {
        OwnerQuestion::Frame(frame) => host::owners(kind, FrameAnswer::of(Pfn(frame))),
        OwnerQuestion::Process(pid) => host::owners(kind, ProcessAnswer::of(pid)),
        OwnerQuestion::Address(pid, address) => match frame_at(pid, VirtAddr(address)) {
            Ok(frame) => host::owners(kind, FrameAnswer::of(frame)),
            Err(reason) => host::owners(kind, format_args!("{{\"error\":{}}}", Quoted(reason.as_bytes()))),
        },
    }
}

/// Tells the host the areas of each process, and an observer its tables. The program has ended, and
/// its memory was kept until now.
pub fn tell_areas() {
    if let Some((program, space)) = task::init::program().zip(task::exit::take_kept_memory()) {
        AreasAnswer::tell(&program, &space);
    }
    for process in task::registry::processes() {
        if process.exit_status().is_none() {
            AreasAnswer::tell(&process, &process.space());
        }
    }
}

/// The areas of a process.
struct AreasAnswer<'a> {
    process: &'a Process,
    /// Start, end, and offset of the start in the file; name.
    areas: Vec<([u64; 3], Vec<u8>)>,
    left_out: usize,
}

impl AreasAnswer<'_> {
    fn tell(process: &Process, space: &ProcessSpace) {
        let mut answer = AreasAnswer { process, areas: Vec::new(), left_out: 0 };
        // The program has left its root directory.
        let root = crate::fs::root::root();
        for area in space.lock().areas() {
            let name = area_name(&area, &root).unwrap_or_default();
            let kept = answer.areas.try_push(([area.start.0, area.end.0, area.offset], name));
            answer.left_out += usize::from(kept.is_err());
        }
        if !answer.areas.is_empty() {
            watch::process(process.pid, space.translation().first());
            host::owners(ToHost::Owners, answer);
        }
    }
}

impl Display for AreasAnswer<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (pid, name, left_out) = (self.process.pid, self.process.name(), self.left_out);
        let name = Quoted::name(&name);
        write!(f, "{{\"pid\":{pid},\"name\":{name},\"left_out\":{left_out},\"areas\":[")?;
        for (at, ([start, end, offset], name)) in self.areas.iter().enumerate() {
            write!(f, "{}[{start},{end},{offset},{}]", comma(at), Quoted(name))?;
        }
        f.write_str("]}")
    }
}

/// Returns the frame that an address of a process is mapped to, or the reason why there is none.
fn frame_at(pid: Pid, address: VirtAddr) -> core::result::Result<Pfn, &'static str> {
    const NONE: &str = "nothing is mapped there";
    let process = task::registry::find(pid).ok_or("there is no such process")?;
    let space = process.space();
    let areas = space.lock();
    let start = VirtAddr(address.0 & !(PAGE - 1));
    let end = VirtAddr(start.0.checked_add(PAGE).ok_or(NONE)?);
    let mut found =
        Err(if areas.areas_in(start, end).next().is_some() { "the page has no frame yet" } else { NONE });
    areas.pages(start, end, |page| {
        found = match page.at {
            PageAt::Frame(frame) => Ok(frame),
            PageAt::Swapped(_) => Err("the page is swapped out"),
        };
    });
    found
}

/// A process that maps a frame.
struct FrameUser {
    pid: Pid,
    name: [u8; 16],
    address: u64,
    area: Vec<u8>,
    /// The offset in the file, for pages of files.
    offset: Option<u64>,
}

/// State and users of a frame.
struct FrameAnswer {
    frame: Pfn,
    node: Option<usize>,
    state: Option<(Owner, Order, Holders)>,
    is_in_map: bool,
    is_zeroes: bool,
    users: Vec<FrameUser>,
    left_out: usize,
}

impl FrameAnswer {
    fn of(frame: Pfn) -> Self {
        let table = mem::frames().table();
        let block = table.block_of(frame).and_then(|(head, order, owner, _)| {
            let head_holds = table.get(head)?.counts().load();
            let own = if head_holds.whole { head_holds } else { table.get(frame)?.counts().load() };
            Some((owner, order, own))
        });
        let node = machine::get().and_then(|at| at.firmware.topology.node_of(frame));
        let mut answer = Self {
            frame,
            node: node.map(|node| usize::from(node.0)),
            state: block,
            is_in_map: memory::is_in_direct_map(frame),
            is_zeroes: mem::commons().is_zeroes(frame),
            users: Vec::new(),
            left_out: 0,
        };
        // The zero page is in every address space.
        if matches!(block, Some((Owner::Anon | Owner::PageCache, ..))) && !answer.is_zeroes {
            for process in task::registry::processes() {
                answer.look_in(&process);
                sched::cond_resched();
            }
        }
        answer
    }

    /// Adds the mappings that a process has of the frame.
    fn look_in(&mut self, process: &Arc<Process>) {
        if process.exit_status().is_some() {
            return;
        }
        let (space, root) = (process.space(), process.fs().root());
        let areas = space.lock();
        for area in areas.areas() {
            let mut found: Option<(VirtAddr, OfFile)> = None;
            areas.pages(area.start, area.end, |page| {
                if matches!(page.at, PageAt::Frame(frame) if frame == self.frame) {
                    found.get_or_insert((page.addr, page.of_file));
                }
            });
            let Some((address, of_file)) = found else { continue };
            let offset = (of_file == OfFile::Yes).then(|| area.offset + (address.0 - area.start.0));
            let user = FrameUser {
                pid: process.pid,
                name: process.name(),
                address: address.0,
                area: area_name(&area, &root).unwrap_or_default(),
                offset,
            };
            if self.users.len() == MOST || self.users.try_push(user).is_err() {
                self.left_out += 1;
            }
        }
    }
}

impl Display for FrameAnswer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{{\"frame\":{},\"node\":", self.frame.0)?;
        match self.node {
            Some(node) => write!(f, "{node}")?,
            None => f.write_str("null")?,
        }
        let Some((owner, order, held)) = &self.state else { return f.write_str(",\"owner\":null}") };
        let (pages, is_in_map) = (1u64 << order.log2(), self.is_in_map);
        write!(f, ",\"owner\":\"{owner:?}\",\"block_frames\":{pages},\"in_kernel_map\":{is_in_map}")?;
        write!(
            f,
            ",\"mappings\":{},\"references\":{},\"pins\":{}",
            held.mappings, held.references, held.pins
        )?;
        write!(f, ",\"exclusive\":{},\"zeroes\":{}", held.belongs == Belongs::Exclusive, self.is_zeroes)?;
        f.write_str(",\"users\":[")?;
        for (at, user) in self.users.iter().enumerate() {
            let (pid, name, address) = (user.pid, Quoted::name(&user.name), user.address);
            write!(f, "{}{{\"pid\":{pid},\"name\":{name},\"address\":{address}", comma(at))?;
            write!(f, ",\"area\":{},\"offset\":", Quoted(&user.area))?;
            match user.offset {
                Some(offset) => write!(f, "{offset}}}")?,
                None => f.write_str("null}")?,
            }
        }
        write!(f, "],\"left_out\":{}}}", self.left_out)
    }
}

/// Pages that a process maps.
struct ProcessAnswer {
    pid: Pid,
    /// The process's name; `None` if there is no such process.
    name: Option<[u8; 16]>,
    counts: PageCounts,
}

/// Numbers of pages by kind.
#[derive(Default)]
struct PageCounts {
    anonymous: u64,
    file: u64,
    zeroes: u64,
    swapped: u64,
    shared: u64,
    pinned: u64,
    in_kernel_map: u64,
    by_node: [u64; MAX_NODES],
}

impl ProcessAnswer {
    fn of(pid: Pid) -> Self {
        let process = task::registry::find(pid).filter(|process| process.exit_status().is_none());
        let mut counts = PageCounts::default();
        if let Some(process) = &process {
            let space = process.space();
            counts.add(&space.lock());
        }
        Self { pid, name: process.map(|process| process.name()), counts }
    }
}

impl PageCounts {
    fn add(&mut self, space: &AddressSpace) {
        let (table, commons) = (mem::frames().table(), mem::commons());
        for area in space.areas().filter(|area| !matches!(area.name, AreaName::Vdso(_))) {
            space.pages(area.start, area.end, |page| {
                let PageAt::Frame(frame) = page.at else {
                    self.swapped += 1;
                    return;
                };
                if commons.is_zeroes(frame) {
                    self.zeroes += 1;
                    return;
                }
                let pins = table.get(frame).map_or(0, |record| record.counts().load().pins);
                match page.of_file {
                    OfFile::Yes => self.file += 1,
                    OfFile::No => self.anonymous += 1,
                }
                self.shared += u64::from(page.mappings > 1);
                self.pinned += u64::from(pins > 0);
                self.in_kernel_map += u64::from(memory::is_in_direct_map(frame));
                self.by_node[usize::from(commons.node_of(frame).0)] += 1;
            });
        }
    }
}

impl Display for ProcessAnswer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Some(name) = &self.name else { return f.write_str("{\"error\":\"there is no such process\"}") };
        let PageCounts { anonymous, file, zeroes, swapped, shared, pinned, in_kernel_map, by_node } =
            &self.counts;
        write!(f, "{{\"pid\":{},\"name\":{}", self.pid, Quoted::name(name))?;
        write!(f, ",\"anonymous\":{anonymous},\"file\":{file},\"zeroes\":{zeroes},\"swapped\":{swapped}")?;
        write!(f, ",\"shared\":{shared},\"pinned\":{pinned},\"in_kernel_map\":{in_kernel_map},\"nodes\":{{")?;
        let nodes = by_node.iter().enumerate().filter(|(_, pages)| **pages > 0);
        for (at, (node, pages)) in nodes.enumerate() {
            write!(f, "{}\"{node}\":{pages}", comma(at))?;
        }
        f.write_str("}}")
    }
}
