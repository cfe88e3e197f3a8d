//! Reports to the host about a run: that the kernel has started, and the memory figures at the end.
//!
//! **The audit.** When the program and all it left behind have ended, every user frame has a known
//! holder: no anonymous frame is left, no page-table leaf maps anything, nothing is pinned, each
//! page-cache frame has one reference, its file's. The kernel's map is compared with the frame
//! table as well ([`mem::check_map`]). The report names everything that does not balance, and the
//! host makes it an error.
//!
//! **Frames that a lost device keeps** are no leak. A lost device confirms neither an answer nor a
//! reset, or the IOMMU does not answer. Frames of programs and files that such a device can access
//! directly are never reused, on purpose ([`freehold_bounce::Dma::kept`]). The audit subtracts them
//! from its findings, except their mappings. The report says how much memory devices keep.
//!
//! The audit reads all frame records and then the allocator's lists. A frame that another CPU frees
//! in between is in neither or in both, and looks like a leak. So a finding counts only if the
//! allocator was idle meanwhile: [`freehold_buddy::Buddy::activity`] is the same before and after.
//! Otherwise the audit repeats its pass, for example if a CPU still frees memory of the last
//! processes, or if the host runs the CPU rarely.

use core::fmt::{self, Display, Formatter};

use freehold_bounce::{HeldFrames, SLOT_SIZE};
use freehold_buddy::AllocatorFault;
use freehold_collections::{Arc, Vec};
use freehold_frame::{Audit, FrameSource as _, FrameState, FrameTable, Owner};
use freehold_machine::{Cpus, Machine, PAGE_SIZE};
use freehold_vm::Event;

use crate::host::json::{Quoted, comma};
use crate::hw::boot::BootInfo;
use crate::sync::WaitQueue;
use crate::syscall::{self, Implemented, failures};
use crate::task::{self, SigInfo, Signal, Usage};
use crate::{block, boot, event_stream, fs, host, mem, sched, socket, swap, time};

/// Time that the program's leftover processes have to end. It restarts each time one of them ends
/// or a disk answers: a process that ends first stores what it wrote.
const LAST_RESPECTS_NS: u64 = 2_000_000_000;
/// Time for which frames may still be allocated and freed after that before the audit gives up.
const UNREST_NS: u64 = 60_000_000_000;
/// Smallest number of passes before a finding counts, however long each takes on a busy host.
const LOOKS: u32 = 4;
/// The audit's first pause between two passes, and its longest.
const PAUSE_NS: core::ops::Range<u64> = 1_000_000..1_000_000_000;

/// Tells the host that the program is about to start.
pub fn ready(info: &'static BootInfo) {
    let facts = Facts { slide: info.slide(), booted: time::now() };
    host::ready(facts);
}

struct Facts {
    slide: u64,
    booted: u64,
}

impl Display for Facts {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let kib = mem::stats::total_bytes() / 1024;
        let (cpus, nodes) = (crate::hw::Hardware.cpu_count(), crate::hw::Hardware.node_count());
        write!(
            f,
            "{{\"kernel\":\"Freehold\",\"version\":\"{}\",\"boot_ns\":{},\"slide\":\"{:#x}\",\"memory_kib\":{kib},\"cpus\":{cpus},\"nodes\":{nodes}}}",
            boot::VERSION,
            self.booted,
            self.slide,
        )
    }
}

/// Ends the processes that the program left behind, runs the audit, and reports to the host. Called
/// after the program's end.
pub fn closing() {
    let before = mem::stats::memory();
    let free_whole = mem::stats::free_in_pageblocks();
    let _no_memory_comes_or_goes = mem::hotplug::stop();
    let _nobody_looks_through_memory = (mem::khugepaged::stop(), mem::ksm::stop());
    let left = end_the_rest();
    socket::garbage::collect();
    let init = task::init::process();
    let mut usage = init.usage();
    usage.add(&init.children_usage());
    let verdict = verdict(left);
    host::report(ClosingReport { before, free_whole, usage, verdict, missing: fs::missing::take() });
}

/// Repeats the audit until everything balances, or the imbalance is certain: see the module's
/// documentation.
fn verdict(left: usize) -> AuditVerdict {
    let begun = time::now();
    let mut verdict = AuditVerdict::take(left);
    let mut pause = PAUSE_NS.start;
    let mut looks = 1;
    // Other CPUs may still be freeing memory of the last processes: only faults that persist count.
    while !verdict.is_clean() {
        let waited = time::now().saturating_sub(begun);
        let is_certain = verdict.at_rest && looks >= LOOKS && waited > LAST_RESPECTS_NS;
        if is_certain || waited > LAST_RESPECTS_NS + UNREST_NS {
            break;
        }
        sched::wake_idle();
        let _ = WaitQueue::new().wait_until_deadline(Some(time::now() + pause), || None::<()>);
        // Each pass walks all memory, so passes become rarer the longer the audit finds faults.
        pause = (pause * 2).min(PAUSE_NS.end);
        verdict = AuditVerdict::take(left);
        looks += 1;
    }
    verdict
}

/// Kills every process but init and waits for their ends. Returns how many have not ended.
fn end_the_rest() -> usize {
    let (mut moved, mut least, mut since) = (block::traffic(), usize::MAX, time::now());
    loop {
        let mut left = 0;
        task::for_each(|process| {
            if process.pid != task::init::process().pid {
                left += 1;
                process.signal(SigInfo::kernel(Signal::KILL));
            }
        });
        let (traffic, now) = (block::traffic(), time::now());
        if traffic != moved || left < least {
            (moved, least, since) = (traffic, left.min(least), now);
        }
        if left == 0 || now > since + LAST_RESPECTS_NS {
            return left;
        }
        sched::yield_now();
    }
}

/// Returns the audit's verdict on a test's machine, whose program has ended.
#[cfg(test)]
pub(crate) fn audit() -> std::string::String {
    let left = end_the_rest();
    socket::garbage::collect();
    std::format!("{}", verdict(left))
}

struct ClosingReport {
    before: mem::stats::MemoryStats,
    /// Number of free frames in whole pageblocks.
    free_whole: u64,
    usage: Usage,
    verdict: AuditVerdict,
    missing: Vec<Vec<u8>>,
}

impl Display for ClosingReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let kib = |frames: u64| frames * PAGE_SIZE as u64 / 1024;
        let memory = [
            ("total_kib", kib(self.before.total)),
            ("free_kib", kib(self.before.free)),
            ("free_whole_kib", kib(self.free_whole)),
            ("peak_user_kib", self.usage.peak_resident / 1024),
            ("kernel_kib", kib(self.before.kernel)),
            ("page_tables_kib", kib(self.before.page_tables)),
            ("page_cache_kib", kib(self.before.page_cache)),
            ("bounce_kib", kib(self.before.bounce)),
            ("faults_minor", self.usage.minor_faults),
            ("faults_major", self.usage.major_faults),
            ("oom_kills", crate::task::oom_kills()),
        ];
        f.write_str("{\"memory\":{")?;
        let peak = mem::hotplug::peak().map(|bytes| ("most_kib", bytes / 1024));
        let happened = |event| kib(mem::commons().count_of(event));
        let swap = swap::peak().map(|most| {
            let (out, back) = (happened(Event::SwapOut), happened(Event::SwapIn));
            [("swap_peak_kib", kib(most)), ("swapped_out_kib", out), ("swapped_in_kib", back)]
        });
        // The consoles' share is the same in every run, so the line is shown only if there are
        // disks.
        let has_disks = !host::disks().is_empty() || !host::slots().is_empty();
        let bounced = has_disks.then(|| {
            let all = host::dma().statistics();
            [("bounced_kib", all.bytes / 1024), ("bounce_peak_kib", all.used_hiwater * SLOT_SIZE / 1024)]
        });
        let bounced = bounced.into_iter().flatten().map(|(name, value)| (name, value as u64));
        let lost = host::dma().statistics().lost as u64 / 1024;
        let bounced = bounced.chain((lost > 0).then_some(("lost_kib", lost)));
        let all = memory.into_iter().chain(peak).chain(swap.into_iter().flatten()).chain(bounced);
        for (at, (name, value)) in all.enumerate() {
            write!(f, "{}\"{name}\":{value}", comma(at))?;
        }
        write!(f, "}},\"audit\":\"{}\",\"syscalls\":", self.verdict)?;
        write_calls(f)?;
        match event_stream::counts() {
            Some((recorded, lost)) => write!(f, ",\"events\":{{\"recorded\":{recorded},\"lost\":{lost}}}")?,
            None => f.write_str(",\"events\":null")?,
        }
        f.write_str(",\"missing\":[")?;
        for (at, path) in self.missing.iter().enumerate() {
            write!(f, "{}{}", comma(at), Quoted(path))?;
        }
        f.write_str("]}")
    }
}

/// Writes the list of system calls, or null if they were not counted.
fn write_calls(f: &mut Formatter<'_>) -> fmt::Result {
    let Some(counts) = syscall::counts() else { return f.write_str("null") };
    f.write_str("[")?;
    for (at, (number, calls, implemented)) in counts.enumerate() {
        let name = syscall::name(number).unwrap_or("unknown");
        let unimplemented = implemented == Implemented::No;
        write!(f, "{}{{\"name\":\"{name}\",\"number\":{number},\"calls\":{calls}", comma(at))?;
        write_failures(f, number)?;
        write!(f, ",\"unimplemented\":{unimplemented}}}")?;
    }
    f.write_str("]")
}

/// Writes how often a call failed: in all, and with each error.
fn write_failures(f: &mut Formatter<'_>, number: u64) -> fmt::Result {
    let mut all = 0;
    failures::each_of(number, |_, count| all += count);
    write!(f, ",\"errors\":{all},\"failed\":{{")?;
    let (mut written, mut at) = (Ok(()), 0);
    failures::each_of(number, |error, count| {
        written = written.and_then(|()| write!(f, "{}\"{error:?}\":{count}", comma(at)));
        at += 1;
    });
    written?;
    f.write_str("}")
}

/// Frames that lost devices keep, according to their records.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Kept {
    anonymous: u64,
    cached: u64,
    references: u64,
    pins: u64,
}

impl Kept {
    /// Sums the frames of all `holders`; each frame counts once. Returns zeroes if memory is too
    /// short to list the frames.
    fn sum<'a>(table: FrameTable, holders: impl Iterator<Item = &'a Arc<dyn HeldFrames>>) -> Self {
        let mut frames = Vec::new();
        for holder in holders {
            if frames.try_reserve(holder.count()).is_err() {
                return Self::default();
            }
            (0..holder.count()).for_each(|index| frames.push_reserved(holder.frame(index).pfn()));
        }
        frames.sort_unstable();
        frames.dedup();
        let mut kept = Self::default();
        for (record, owner) in frames.iter().filter_map(|&frame| {
            let FrameState::Owned { owner, .. } = table.state(frame) else { return None };
            Some((table.get(frame)?.counts().load(), owner))
        }) {
            match owner {
                Owner::Anon => kept.anonymous += 1,
                Owner::PageCache => kept.cached += 1,
                _ => continue,
            }
            kept.references += u64::from(record.references);
            kept.pins += u64::from(record.pins);
        }
        kept
    }
}

/// Largest number of faults that are named.
const MOST_FAULTS: usize = 8;

/// Findings of the audit; displays as "ok" or as a list of faults.
struct AuditVerdict {
    audit: Audit,
    /// Figures of the frames that lost devices keep.
    kept: Kept,
    faults: Vec<AllocatorFault>,
    count: u64,
    /// Whether no frame was allocated or freed during the pass.
    at_rest: bool,
    left: usize,
    /// Tables of the address space of the kernel's own tasks, and spare roots.
    own_tables: u64,
    /// Number of tables of the IOMMU.
    device_tables: u64,
    /// Number of violated rules of the kernel's map; 0 if memory was too short to check.
    map_violations: u64,
    misplaced_timers: u64,
    /// Tasks in run queues that are not runnable, or whose record names another place.
    misplaced_tasks: u64,
    /// A fault found in the process table.
    process_fault: Option<&'static str>,
    /// Number of faults in the nodes' copies of the kernel, and the first fault.
    replica_faults: (u64, Option<freehold_replica::ReplicaFault>),
}

impl AuditVerdict {
    fn take(left: usize) -> Self {
        let own_tables = task::init::process().space().lock().usage().page_table_bytes / PAGE_SIZE as u64
            + sched::spare_roots();
        mem::hugetlb::close();
        let mut faults = Vec::new();
        // Reserved before the walk: if the list grew later, its own frame would count as new.
        let room = if faults.try_reserve_exact(MOST_FAULTS).is_ok() { MOST_FAULTS } else { 0 };
        let kept = Kept::sum(mem::frames().table(), host::dma().kept());
        let before = mem::frames().activity();
        let (audit, count) = mem::frames().validate(|fault| {
            if faults.len() < room {
                faults.push_reserved(fault);
            }
        });
        let at_rest = mem::frames().activity() == before;
        let map_violations =
            mem::check_map(mem::frames().table(), &mut |violation| log::error!("kernel map: {violation}"))
                .map_or(0, |report| report.violations);
        let misplaced_timers = time::misplaced() as u64;
        let replica_faults = mem::check_replicas(mem::Checks::Replicas);
        let device_tables = host::iommu::get().map_or(0, |iommu| iommu.tables() as u64);
        Self {
            audit,
            kept,
            faults,
            count,
            at_rest,
            left,
            own_tables,
            device_tables,
            map_violations,
            misplaced_timers,
            misplaced_tasks: sched::misplaced() as u64,
            process_fault: task::registry::audit::validate().err(),
            replica_faults,
        }
    }

    fn is_clean(&self) -> bool {
        self.count == 0 && self.must_be_none().iter().all(|&(_, number)| number == 0)
    }

    fn must_be_none(&self) -> [(&'static str, u64); 12] {
        let (audit, kept) = (&self.audit, &self.kept);
        let references = audit.references.saturating_sub(kept.references);
        let cached = audit.frames(Owner::PageCache).saturating_sub(kept.cached);
        [
            ("processes would not end", self.left as u64),
            ("violations of the kernel's map", self.map_violations),
            ("timers that are not where they say", self.misplaced_timers),
            ("tasks that are not where they say", self.misplaced_tasks),
            ("faults of the table of processes", self.process_fault.iter().count() as u64),
            ("faults of nodes' copies of the kernel", self.replica_faults.0),
            ("anonymous frames without a process", audit.frames(Owner::Anon).saturating_sub(kept.anonymous)),
            ("page tables without a process", audit.frames(Owner::PageTable).abs_diff(self.own_tables)),
            ("tables of no device", audit.frames(Owner::DeviceTable).abs_diff(self.device_tables)),
            ("mappings without a process", audit.mappings),
            ("pins without a holder", audit.pins.saturating_sub(kept.pins)),
            ("page-cache frames and the files that hold them differ by", references.abs_diff(cached)),
        ]
    }
}

impl Display for AuditVerdict {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut clean = true;
        for (what, number) in self.must_be_none().into_iter().filter(|&(_, number)| number > 0) {
            write!(f, "{}{what}: {number}", if clean { "" } else { "; " })?;
            clean = false;
        }
        if let Some(fault) = self.process_fault {
            write!(f, " ({fault})")?;
        }
        if let Some(fault) = self.replica_faults.1 {
            write!(f, " ({fault})")?;
        }
        for fault in &self.faults {
            write!(f, "{}{fault:?}", if clean { "" } else { "; " })?;
            clean = false;
        }
        if self.count > self.faults.len() as u64 {
            write!(f, "{}{} faults in all", if clean { "" } else { "; " }, self.count)?;
            clean = false;
        }
        if !clean && !self.at_rest {
            f.write_str("; frames were still coming and going")?;
        }
        if clean { f.write_str("ok") } else { Ok(()) }
    }
}
