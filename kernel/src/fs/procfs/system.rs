//! The files of /proc about the whole system.

use freehold_collections::{Arc, Box, reserve};
use freehold_frame::Owner;
use freehold_machine::NodeId;
use freehold_vm::HugePoolFigures;

use super::{cpuinfo, loads};
use crate::cgroup;
use crate::fs::device::{self, split_device};
use crate::fs::generated::{Generate, More, PART, Parts, ShortLine, Text};
use crate::fs::locks::{Cursor, Lock, LockSharing, LockSpace, Owner as LockOwner};
use crate::fs::machine;
use crate::fs::mount::{DISK_TYPES, TYPES};
use crate::fs::node::{Identity, NodeKind};
use crate::fs::pseudo::PseudoDir;
use crate::mem::{self, hugetlb::HUGE_FRAMES, stats::MemoryStats};
use crate::sched::CpuStatistics;
use crate::task::clock::Clock;
use crate::task::{registry, uts};
use crate::{Errno, Result, hw, sched, swap, task, time};

/// Frames of the address range that Linux has for the kernel's own mappings on x86-64: 32 TiB.
const VMALLOC_FRAMES: u64 = (1 << 45) / 4096 - 1;
/// Kilobytes in a frame.
const FRAME_KB: u64 = 4;
/// Nanoseconds in a clock tick of user space (USER_HZ is 100).
pub(super) const TICK: u64 = 10_000_000;

/// Adds all files to `root`.
pub(super) fn fill(root: &Arc<PseudoDir>) {
    root.file("meminfo", meminfo);
    root.file("stat", stat);
    root.file("uptime", uptime);
    root.file("cpuinfo", |out| {
        let cpus = sched::online();
        for cpu in cpus.iter() {
            cpuinfo::show(out, usize::from(cpu.0), cpus.len(), hw::time::counter_frequency());
        }
        Ok(())
    });
    root.file("version", |out| {
        writeln!(out, "{} version {} {}", uts::SYSTEM, uts::RELEASE, uts::VERSION);
        Ok(())
    });
    root.file("cmdline", |out| {
        writeln!(out, "{}", machine::get().map_or("", |machine| machine.command_line));
        Ok(())
    });
    root.file("filesystems", filesystems);
    root.file("devices", devices);
    root.file("partitions", |out| {
        out.push(b"major minor  #blocks  name\n\n");
        for (name, number, size) in crate::block::list() {
            let (major, minor) = split_device(number);
            writeln!(out, "{major:4} {minor:7} {:10} {}", size / 1024, name.escape_ascii());
        }
        Ok(())
    });
    root.file("diskstats", |out| {
        for place in 0..crate::block::most() {
            let Some(counts) = crate::block::counts_of(place) else { continue };
            let (major, minor) = split_device(crate::block::number_of(place));
            let name = crate::block::name_of(place);
            writeln!(out, "{major:4} {minor:7} {} {counts}", name.escape_ascii());
        }
        Ok(())
    });
    root.file("swaps", swaps);
    root.file("interrupts", |out| {
        out.push(b"    ");
        for cpu in sched::online().iter() {
            write!(out, "       CPU{:<2}", cpu.0);
        }
        out.push(b"\nTLB:");
        for cpu in sched::online().iter() {
            write!(out, " {:10}", hw::cpu::shootdowns(cpu));
        }
        out.push(b"   TLB shootdowns\n");
        Ok(())
    });
    root.file("slabinfo", slabinfo);
    root.generated("locks", 0o444, Locks);
    root.file("cgroups", cgroups);
    root.file("modules", |_| Ok(()));
    root.generated("sysrq-trigger", 0o200, SysRq);
}

/// /proc/cgroups: the controllers. All belong to the one hierarchy.
fn cgroups(out: &mut Text) -> Result<()> {
    writeln!(out, "#subsys_name\thierarchy\tnum_cgroups\tenabled");
    for controller in cgroup::CONTROLLERS {
        writeln!(out, "{}\t0\t{}\t1", controller.name(), cgroup::tree::count() + 1);
    }
    Ok(())
}

/// /proc/sysrq-trigger: "c" crashes the kernel on purpose, which tests its panic report. Linux'
/// other keys do nothing.
struct SysRq;

impl Generate for SysRq {
    fn show(&self, _out: &mut Text) -> Result<()> {
        Err(Errno::EIO)
    }

    fn store(&self, bytes: &[u8]) -> Result<()> {
        if bytes.first() == Some(&b'c') {
            panic!("sysrq triggered crash");
        }
        Ok(())
    }
}

/// Writes swap areas in the format of swap_show() in mm/swapfile.c: names of up to 40 characters,
/// figures in kB.
fn swaps(out: &mut Text) -> Result<()> {
    out.push(b"Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n");
    let root = task::current().process().fs().root();
    for area in swap::list(&root)? {
        let (size, used) = (area.pages * FRAME_KB, area.used * FRAME_KB);
        let tab = |figure: u64| if figure < 10_000_000 { "\t" } else { "" };
        out.push(&area.name);
        write!(
            out,
            "{:blanks$}partition\t{size}\t{}",
            "",
            tab(size),
            blanks = 40usize.saturating_sub(area.name.len()).max(1)
        );
        writeln!(out, "{used}\t{}{}", tab(used), area.priority);
    }
    Ok(())
}

fn meminfo(out: &mut Text) -> Result<()> {
    let memory = mem::stats::memory();
    let MemoryStats { total, free, anonymous, page_tables, kernel, stacks, bounce, disks, .. } = memory;
    let shared = memory.shared();
    let swap = mem::commons().swap().usage();
    let heap = mem::stats::heap_bytes().div_ceil(4096);
    let mut line = |name: &str, frames: u64| out.kib(name, frames * FRAME_KB);
    line("MemTotal:", total);
    line("MemFree:", free);
    line("MemAvailable:", memory.available());
    // Pages of block devices are buffers; pages of all other files are only in memory.
    line("Buffers:", disks.pages);
    line("Cached:", shared);
    line("SwapCached:", swap.cached);
    line("Active:", anonymous + shared + disks.active);
    line("Inactive:", disks.pages - disks.active);
    line("Active(anon):", anonymous + shared);
    line("Inactive(anon):", 0);
    line("Active(file):", disks.active);
    line("Inactive(file):", disks.pages - disks.active);
    line("SwapTotal:", swap.slots);
    line("SwapFree:", swap.free);
    line("Dirty:", disks.dirty);
    line("Writeback:", disks.under_way);
    line("AnonPages:", anonymous);
    line("Shmem:", shared);
    line("KReclaimable:", 0);
    line("Slab:", heap);
    line("SReclaimable:", 0);
    line("SUnreclaim:", heap);
    line("KernelStack:", stacks);
    line("PageTables:", page_tables);
    line("NFS_Unstable:", 0);
    line("Bounce:", bounce);
    line("WritebackTmp:", 0);
    line("CommitLimit:", mem::stats::commit_limit());
    line("Committed_AS:", mem::commons().promised_pages());
    line("VmallocTotal:", VMALLOC_FRAMES);
    line("VmallocUsed:", kernel.saturating_sub(heap));
    line("VmallocChunk:", 0);
    line("HardwareCorrupted:", 0);
    line("AnonHugePages:", mem::commons().huge_pages());
    line("ShmemHugePages:", 0);
    line("FileHugePages:", 0);
    let HugePoolFigures { total: huge, free, reserved, surplus, .. } = mem::commons().huge_pool(None);
    for (name, pages) in [("Total:", huge), ("Free:", free), ("Rsvd:", reserved), ("Surp:", surplus)] {
        writeln!(out, "HugePages_{name:<9}{pages:>5}");
    }
    writeln!(out, "Hugepagesize:       2048 kB");
    out.kib("Hugetlb:", huge * HUGE_FRAMES * FRAME_KB);
    let map = crate::hw::memory::map_figures();
    writeln!(out, "{:<16}{:>8} kB", "DirectMap4k:", map.small * FRAME_KB);
    writeln!(out, "{:<16}{:>8} kB", "DirectMap2M:", map.large * 2048);
    Ok(())
}

/// Returns the nanoseconds that a CPU spent in user mode, in the kernel and idle.
fn times_of(cpu: &CpuStatistics) -> [u64; 3] {
    let &CpuStatistics { user, idle, .. } = cpu;
    let system = time::now().saturating_sub(idle).saturating_sub(user);
    [user, system, idle]
}

/// Returns the nanoseconds that all CPUs spent in user mode, in the kernel and idle, and the number
/// of their switches.
fn times_of_all() -> ([u64; 3], u64) {
    let (mut times, mut switches) = ([0; 3], 0);
    for cpu in sched::online().iter().map(sched::statistics) {
        times.iter_mut().zip(times_of(&cpu)).for_each(|(sum, time)| *sum += time);
        switches += cpu.switches;
    }
    (times, switches)
}

/// Nanoseconds that all CPUs spent in user mode and in the kernel.
pub(in crate::fs) fn busy_times() -> [u64; 2] {
    let ([user, system, _], _) = times_of_all();
    [user, system]
}

fn stat(out: &mut Text) -> Result<()> {
    let mut line = |name: ShortLine, times: [u64; 3]| {
        let [user, system, idle] = times.map(|time| time / TICK);
        out.push(name.bytes());
        writeln!(out, " {user} 0 {system} {idle} 0 0 0 0 0 0");
    };
    let (sum, switches) = times_of_all();
    line(ShortLine::of(b"cpu "), sum);
    for cpu in sched::online().iter() {
        line(ShortLine::displaying(format_args!("cpu{}", cpu.0)), times_of(&sched::statistics(cpu)));
    }
    // The reader's clock of the time since boot was 0 then.
    let booted = time::boot_wall().saturating_sub(Clock::Boottime.offset());
    writeln!(out, "intr 0\nctxt {switches}\nbtime {}", booted / time::SECOND as i64);
    writeln!(out, "processes {}\nprocs_running {}\nprocs_blocked 0", registry::forks(), loads::runnable());
    writeln!(out, "softirq 0 0 0 0 0 0 0 0 0 0 0");
    Ok(())
}

fn uptime(out: &mut Text) -> Result<()> {
    let idle: u64 = sched::online().iter().map(|cpu| sched::statistics(cpu).idle).sum();
    let (now, idle) = (Clock::Boottime.shown(time::now()) / TICK, idle / TICK);
    writeln!(out, "{}.{:02} {}.{:02}", now / 100, now % 100, idle / 100, idle % 100);
    Ok(())
}

/// /proc/filesystems
fn filesystems(out: &mut Text) -> Result<()> {
    for (at, name) in TYPES.iter().enumerate() {
        let mark = if at < TYPES.len() - DISK_TYPES { "nodev" } else { "" };
        writeln!(out, "{mark}\t{name}");
    }
    Ok(())
}

fn devices(out: &mut Text) -> Result<()> {
    for (title, kind) in [("Character", NodeKind::CharDevice), ("\nBlock", NodeKind::BlockDevice)] {
        writeln!(out, "{title} devices:");
        for (major, name) in device::list(kind)? {
            writeln!(out, "{major:3} {name}");
        }
    }
    Ok(())
}

fn slabinfo(out: &mut Text) -> Result<()> {
    out.push(b"slabinfo - version: 2.1\n");
    out.push(b"# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables <limit> <batchcount> <sharedfactor> : slabdata <active_slabs> <num_slabs> <sharedavail>\n");
    let heap = crate::hw::heap::stats();
    let frames = heap.frames as u64;
    let used = (heap.allocated_bytes as u64).div_ceil(64);
    writeln!(
        out,
        "heap               {used} {} 64 64 1 : tunables 0 0 0 : slabdata {frames} {frames} 0",
        frames * 64
    );
    Ok(())
}

/// /proc/locks. The number of locks is unlimited, so the file is written in parts.
struct Locks;

impl Generate for Locks {
    fn show(&self, _text: &mut Text) -> Result<()> {
        Ok(())
    }
    fn parts(&self) -> Option<Box<dyn Parts>> {
        Some(reserve::boxed(LockLines { cursor: Cursor::default(), shown: 0 }))
    }
}

struct LockLines {
    cursor: Cursor,
    shown: usize,
}

impl Parts for LockLines {
    fn next(&mut self, out: &mut Text) -> Result<More> {
        while out.length() < PART {
            let Some((file, lock)) = self.cursor.advance()? else { return Ok(More::No) };
            // A lock is not shown if its owner has no number in the reader's namespace (Linux:
            // `locks_show`).
            let owner = registry::shown(lock.pid);
            if owner == 0 && lock.pid != 0 {
                continue;
            }
            let lock = Lock { pid: owner, ..lock };
            self.shown += 1;
            show_lock(out, self.shown, file, &lock);
        }
        Ok(More::Yes)
    }
}

fn show_lock(out: &mut Text, number: usize, file: Identity, lock: &Lock) {
    let (major, minor) = split_device(file.device);
    let kind = match (lock.space, lock.owner) {
        (LockSpace::Flock, _) => "FLOCK ",
        (LockSpace::Record, LockOwner::Process(_)) => "POSIX ",
        (LockSpace::Record, LockOwner::Description(_)) => "OFDLCK",
    };
    let sharing = if lock.sharing == LockSharing::Shared { "READ " } else { "WRITE" };
    let pid = if lock.pid == 0 { -1 } else { i64::from(lock.pid) };
    write!(
        out,
        "{number}: {kind} ADVISORY  {sharing} {pid} {major:02x}:{minor:02x}:{} {} ",
        file.inode, lock.start
    );
    if lock.end == u64::MAX {
        out.push(b"EOF\n");
    } else {
        writeln!(out, "{}", lock.end - 1);
    }
}

/// Writes the node's part of these figures in the format of /sys, as far as they are known per
/// node.
pub fn node_meminfo(out: &mut Text, node: NodeId) -> Result<()> {
    // A node without memory has these lines, too.
    let zone = mem::frames().zone_info().find(|zone| zone.node == node).unwrap_or_default();
    let owned = mem::frames().owned_on(node);
    let of = |owner: Owner| owned[owner as usize];
    let mut line = |name: &str, frames: u64| {
        writeln!(out, "Node {} {:<16}{:>8} kB", node.0, name, frames * FRAME_KB);
    };
    let free = of(Owner::Free);
    line("MemTotal:", zone.managed);
    line("MemFree:", free);
    line("MemUsed:", zone.managed.saturating_sub(free));
    line("FilePages:", of(Owner::PageCache));
    let HugePoolFigures { total: huge, free: free_huge, surplus, .. } = mem::commons().huge_pool(Some(node));
    line("AnonPages:", of(Owner::Anon).saturating_sub(huge * HUGE_FRAMES));
    line("PageTables:", of(Owner::PageTable));
    line("Bounce:", mem::stats::seen_by_devices(of));
    line("Slab:", of(Owner::Kernel));
    line("SUnreclaim:", of(Owner::Kernel));
    for (name, pages) in [("Total:", huge), ("Free:", free_huge), ("Surp:", surplus)] {
        writeln!(out, "Node {} HugePages_{name:<7}{pages:>5}", node.0);
    }
    Ok(())
}
