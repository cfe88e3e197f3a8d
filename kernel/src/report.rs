//! What the host is told of a run: that the kernel is up, and what memory did by the end.
//!
//! **The audit.** When the program and all it left behind have ended, every user frame has a known holder: no
//! anonymous frame is left, no page-table leaf maps anything, nobody pins, each page-cache frame is held once, by
//! its file. What does not balance is named, and the host makes it an error.

use alloc::vec::Vec;
use core::fmt::{self, Display, Formatter};

use freehold_arch::boot::BootInfo;
use freehold_buddy::Fault;
use freehold_frame::{Audit, Owner};
use freehold_machine::{Cpus, Machine, PAGE_SIZE};
use freehold_vm::Event;

use crate::host::json::Quoted;
use crate::sync::WaitQueue;
use crate::syscall::{self, Implemented};
use crate::task::{self, SigInfo, Signal, Usage};
use crate::{boot, fs, host, mem, sched, socket, swap, time};

/// How long the processes that the program left behind have to end.
const LAST_RESPECTS_NS: u64 = 2_000_000_000;
/// How long the audit waits before it looks a second time.
const FIRST_PAUSE_NS: u64 = 1_000_000;

/// Tell the host that the program is about to start.
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
        let (cpus, nodes) = (freehold_arch::X86.cpu_count(), freehold_arch::X86.node_count());
        write!(
            f,
            "{{\"kernel\":\"Freehold\",\"version\":\"{}\",\"boot_ns\":{},\"slide\":\"{:#x}\",\"memory_kib\":{kib},\"cpus\":{cpus},\"nodes\":{nodes}}}",
            boot::VERSION,
            self.booted,
            self.slide,
        )
    }
}

/// End what the program left behind, take stock, and tell the host. After the program's end.
pub fn closing() {
    let before = mem::stats::memory();
    let free_whole = mem::stats::free_in_pageblocks();
    let _no_memory_comes_or_goes = mem::hotplug::stop();
    let _nobody_looks_through_memory = mem::khugepaged::stop();
    let left = end_the_rest();
    socket::garbage::collect();
    let init = task::init::process();
    let mut usage = init.usage();
    usage.add(&init.children_usage());
    // Other CPUs may still be putting away what the last processes had: what remains when they are done counts.
    let deadline = time::now() + LAST_RESPECTS_NS;
    let mut verdict = Verdict::take(left);
    let mut pause = FIRST_PAUSE_NS;
    while !verdict.is_clean() && time::now() < deadline {
        sched::wake_idle();
        let _ = WaitQueue::new().wait_until_deadline(Some(time::now() + pause), || None::<()>);
        // Each look walks all memory: what is not clean soon is looked at less and less often.
        pause *= 2;
        verdict = Verdict::take(left);
    }
    host::report(Report {
        before,
        free_whole,
        usage,
        verdict,
        calls: syscall::counts().collect(),
        missing: fs::missing::list(),
    });
}

/// Kill every process but init and wait for their ends; how many are still there after all that.
fn end_the_rest() -> usize {
    let deadline = time::now() + LAST_RESPECTS_NS;
    loop {
        let mut left = 0;
        task::for_each(|process| {
            if process.pid != task::init::process().pid {
                left += 1;
                process.signal(SigInfo::kernel(Signal::KILL));
            }
        });
        if left == 0 || time::now() > deadline {
            return left;
        }
        sched::yield_now();
    }
}

struct Report {
    before: mem::stats::MemoryStats,
    /// Frames that are free in whole pageblocks.
    free_whole: u64,
    usage: Usage,
    verdict: Verdict,
    calls: Vec<(u64, u64, Implemented)>,
    missing: Vec<Vec<u8>>,
}

impl Display for Report {
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
            ("oom_kills", mem::stats::oom_kills()),
        ];
        f.write_str("{\"memory\":{")?;
        let peak = mem::hotplug::peak().map(|bytes| ("most_kib", bytes / 1024));
        let happened = |event| kib(mem::commons().count_of(event));
        let swap = swap::peak().map(|most| {
            let (out, back) = (happened(Event::SwapOut), happened(Event::SwapIn));
            [("swap_peak_kib", kib(most)), ("swapped_out_kib", out), ("swapped_in_kib", back)]
        });
        let all = memory.into_iter().chain(peak).chain(swap.into_iter().flatten());
        for (at, (name, value)) in all.enumerate() {
            write!(f, "{}\"{name}\":{value}", comma(at))?;
        }
        write!(f, "}},\"audit\":\"{}\",\"syscalls\":[", self.verdict)?;
        for (at, &(number, calls, implemented)) in self.calls.iter().enumerate() {
            let name = syscall::name(number).unwrap_or("unknown");
            let unimplemented = implemented == Implemented::No;
            write!(
                f,
                "{}{{\"name\":\"{name}\",\"number\":{number},\"calls\":{calls},\"unimplemented\":{unimplemented}}}",
                comma(at),
            )?;
        }
        f.write_str("],\"missing\":[")?;
        for (at, path) in self.missing.iter().enumerate() {
            write!(f, "{}{}", comma(at), Quoted(path))?;
        }
        f.write_str("]}")
    }
}

const fn comma(at: usize) -> &'static str {
    if at == 0 { "" } else { "," }
}

/// What the audit found; displays as "ok" or as what is wrong.
struct Verdict {
    audit: Audit,
    faults: Vec<Fault>,
    count: u64,
    left: usize,
    /// Tables of the address space that the kernel's own tasks run in.
    own_tables: u64,
}

impl Verdict {
    fn take(left: usize) -> Self {
        let own_tables = task::init::process().space().lock().usage().page_table_bytes / PAGE_SIZE as u64;
        let mut faults = Vec::new();
        let (audit, count) = mem::frames().validate(|fault| {
            if faults.len() < 8 {
                faults.push(fault);
            }
        });
        Self { audit, faults, count, left, own_tables }
    }

    fn is_clean(&self) -> bool {
        self.count == 0 && self.must_be_none().iter().all(|&(_, number)| number == 0)
    }

    fn must_be_none(&self) -> [(&'static str, u64); 6] {
        let audit = &self.audit;
        [
            ("processes would not end", self.left as u64),
            ("anonymous frames without a process", audit.frames(Owner::Anon)),
            ("page tables without a process", audit.frames(Owner::PageTable).abs_diff(self.own_tables)),
            ("mappings without a process", audit.mappings),
            ("pins without a holder", audit.pins),
            (
                "page-cache frames and the files that hold them differ by",
                audit.references.abs_diff(audit.frames(Owner::PageCache)),
            ),
        ]
    }
}

impl Display for Verdict {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut clean = true;
        for (what, number) in self.must_be_none().into_iter().filter(|&(_, number)| number > 0) {
            write!(f, "{}{what}: {number}", if clean { "" } else { "; " })?;
            clean = false;
        }
        for fault in &self.faults {
            write!(f, "{}{fault:?}", if clean { "" } else { "; " })?;
            clean = false;
        }
        if self.count > self.faults.len() as u64 {
            write!(f, "; {} faults in all", self.count)?;
        }
        if clean { f.write_str("ok") } else { Ok(()) }
    }
}
