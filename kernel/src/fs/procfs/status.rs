//! What the files of a process or thread say.

use core::sync::atomic::Ordering;

use freehold_collections::Arc;

use super::processes::{FileKind, Subject};
use super::settings::parse_number;
use super::system::TICK;
use super::{memory, mounts, oom};
use crate::fs::generated::{Line, Text};
use crate::fs::masks::{list, mask};
use crate::task::inspect::{self, Mode};
use crate::task::signal::SIG_IGN;
use crate::task::{Capability, capabilities};
use crate::task::{Process, Resource, SigSet, Signal, Task, Usage};
use crate::{Errno, Result, mem, sched};

/// What a process' space says; nothing for one that has ended.
pub(super) fn usage_of(process: &Process) -> freehold_vm::Usage {
    if process.exit_status().is_some() {
        freehold_vm::Usage::default()
    } else {
        process.space().lock().usage()
    }
}

/// Write the content of the file `kind` of `subject`, which is `process` or one of its threads.
pub(super) fn show(out: &mut Text, subject: Subject, process: &Arc<Process>, kind: FileKind) -> Result<()> {
    match kind {
        FileKind::Stat => stat(out, subject, process)?,
        FileKind::Status => status(out, subject, process)?,
        FileKind::Statm => {
            let usage = usage_of(process);
            let shared = usage.rss_file + usage.rss_shmem;
            let data = usage.data_pages + usage.stack_pages;
            writeln!(out, "{} {} {shared} {} 0 {data} 0", usage.total_pages, usage.rss(), usage.exec_pages);
        }
        FileKind::Comm => {
            push_name(out, subject, process)?;
            out.push(b"\n");
        }
        FileKind::Limits => limits(out, process),
        FileKind::Io => {
            let [read, written, reads, writes] = process.io.each_ref().map(|n| n.load(Ordering::Relaxed));
            writeln!(out, "rchar: {read}\nwchar: {written}\nsyscr: {reads}\nsyscw: {writes}");
            writeln!(out, "read_bytes: 0\nwrite_bytes: 0\ncancelled_write_bytes: 0");
        }
        FileKind::Wchan => out.push(b"0"),
        FileKind::Cgroup => out.push(b"0::/\n"),
        FileKind::OomScore => {
            let total = mem::stats::memory().total.max(1);
            let share = usage_of(process).rss() * 1000 / total;
            let score = share as i64 + i64::from(process.oom_score_adj.load(Ordering::Relaxed));
            writeln!(out, "{}", score.clamp(0, 2000));
        }
        FileKind::FailNth => {
            let nth = match subject.tid {
                None => process.fail_nth(),
                Some(_) => subject.task()?.ok_or(Errno::ESRCH)?.injection.nth(),
            };
            writeln!(out, "{nth}");
        }
        FileKind::MakeItFail => {
            let task = subject.task()?.ok_or(Errno::ESRCH)?;
            writeln!(out, "{}", u8::from(task.injection.is_filtered()));
        }
        FileKind::OomScoreAdj => writeln!(out, "{}", process.oom_score_adj.load(Ordering::Relaxed)),
        FileKind::OomAdj => writeln!(out, "{}", oom::shown(process)),
        FileKind::Mounts => mounts::mounts(out, &process.fs().root())?,
        FileKind::Mountinfo => mounts::mountinfo(out, &process.fs().root())?,
        FileKind::Personality => out.push(b"00000000\n"),
        FileKind::CoredumpFilter => out.push(b"00000033\n"),
        FileKind::Loginuid => out.push(b"4294967295"),
        FileKind::ClearRefs => {}
        FileKind::Schedstat => {
            let usage = usage_in_time(subject, process)?;
            let switches = usage.voluntary_switches + usage.involuntary_switches;
            writeln!(out, "{} 0 {switches}", usage.user + usage.system);
        }
        FileKind::Cmdline => memory::show(out, process, &process.space(), kind)?,
        // These are made elsewhere.
        FileKind::Environ
        | FileKind::Maps
        | FileKind::Smaps
        | FileKind::SmapsRollup
        | FileKind::NumaMaps
        | FileKind::Auxv
        | FileKind::Memory
        | FileKind::Pagemap
        | FileKind::DescriptorInfo(_) => return Err(Errno::EINVAL),
    }
    Ok(())
}

/// Take what a program wrote to the file `kind` of `subject`.
pub(super) fn store(subject: Subject, kind: FileKind, bytes: &[u8]) -> Result<()> {
    let process = subject.process()?;
    match kind {
        FileKind::Comm => {
            if process.pid != crate::task::current().process().pid {
                return Err(Errno::EINVAL);
            }
            let line = bytes.split(|&byte| byte == b'\n' || byte == 0).next().unwrap_or_default();
            subject.task()?.ok_or(Errno::ESRCH)?.set_name(line);
        }
        FileKind::OomScoreAdj => oom::set(&process, bytes)?,
        FileKind::OomAdj => oom::set_by_old_scale(&process, bytes)?,
        FileKind::FailNth => {
            let nth = u32::try_from(parse_number(bytes)?).map_err(|_| Errno::ERANGE)?;
            let task = subject.task()?.ok_or(Errno::ESRCH)?;
            crate::fault_inject::arm();
            task.injection.set_nth(nth);
        }
        FileKind::MakeItFail => {
            if !crate::task::current().process().credentials().may(Capability::SysResource) {
                return Err(Errno::EPERM);
            }
            let filtered = i64::try_from(parse_number(bytes)?).map_err(|_| Errno::EINVAL)?;
            subject.task()?.ok_or(Errno::ESRCH)?.injection.set_filtered(filtered)?;
        }
        // There are no core files to filter.
        FileKind::CoredumpFilter => {}
        FileKind::ClearRefs => {
            let what = freehold_vm::ClearRefs::from_linux(parse_number(bytes)?).ok_or(Errno::EINVAL)?;
            if process.exit_status().is_none() {
                process.space().lock().clear_references(what);
            }
        }
        _ => return Err(Errno::EACCES),
    }
    Ok(())
}

fn push_name(out: &mut Text, subject: Subject, process: &Process) -> Result<()> {
    let name = subject.task()?.map_or_else(|| process.name(), |task| task.name());
    out.push(name.split(|&byte| byte == 0).next().unwrap_or_default());
    Ok(())
}

fn usage_in_time(subject: Subject, process: &Process) -> Result<Usage> {
    match subject.tid {
        None => Ok(process.usage()),
        Some(_) => Ok(subject.task()?.map_or_else(Usage::default, |task| task.usage())),
    }
}

/// The letter of a state and Linux' words for it.
fn state(process: &Process, task: Option<&Arc<Task>>) -> (char, &'static str) {
    let letter = match task {
        Some(task) if process.exit_status().is_none() => task.schedule.state_letter(),
        _ => b'Z',
    };
    let words = match letter {
        b'R' => "running",
        b'S' => "sleeping",
        b'D' => "disk sleep",
        b'T' => "stopped",
        b'Z' => "zombie",
        _ => "dead",
    };
    (char::from(letter), words)
}

/// Signals that are ignored, and those that are caught.
fn dispositions(process: &Process) -> [u64; 2] {
    let mut sets = [0, 0];
    for number in 1..=64 {
        if let Some(signal) = Signal::new(number) {
            match process.action(signal).handler {
                0 => {}
                SIG_IGN => sets[0] |= 1 << (number - 1),
                _ => sets[1] |= 1 << (number - 1),
            }
        }
    }
    sets
}

/// The terminal's device number as /proc shows it and the foreground group, or 0 and -1.
fn terminal(process: &Process) -> (u64, i64) {
    let session = process.session();
    let terminal = crate::tty::terminal_of(&session);
    match terminal {
        None => (0, -1),
        Some(tty) => (tty.device(), i64::from(tty.control().1)),
    }
}

fn stat(out: &mut Text, subject: Subject, process: &Arc<Process>) -> Result<()> {
    let task = subject.task()?;
    let usage = usage_in_time(subject, process)?;
    let children = process.children_usage();
    let space = usage_of(process);
    let program = process.space().program();
    let (tty, foreground) = terminal(process);
    let (letter, _) = state(process, task.as_ref());
    let nice = task.as_ref().map_or(0, |task| task.schedule.nice());
    let pending = task.as_ref().map_or(SigSet::EMPTY, |task| task.pending_signals());
    let blocked = task.as_ref().map_or(SigSet::EMPTY, |task| task.blocked());
    let [ignored, caught] = dispositions(process);
    let cpu = task.as_ref().map_or(0, |task| task.schedule.cpu.load(Ordering::Relaxed));
    write!(out, "{} (", subject.tid.unwrap_or(process.pid));
    push_name(out, subject, process)?;
    write!(out, ") {letter}");
    write!(
        out,
        " {} {} {} {tty} {foreground} 4194304",
        process.parent_pid(),
        process.group(),
        process.session().id
    );
    write!(out, " {} {}", usage.minor_faults, children.minor_faults);
    write!(out, " {} {}", usage.major_faults, children.major_faults);
    write!(out, " {} {}", usage.user / TICK, usage.system / TICK);
    write!(out, " {} {}", children.user / TICK, children.system / TICK);
    write!(out, " {} {nice} {} 0 {}", 20 + nice, process.thread_count(), process.started / TICK);
    let rss_limit = process.limit(Resource::Rss).soft;
    write!(out, " {} {} {rss_limit}", space.total_pages * 4096, space.rss());
    // Where things are in memory is told to those who may inspect it.
    let told = inspect::may_inspect(process, Mode::READ_FS).is_ok();
    let place = |address: u64| if told { address } else { 0 };
    let code = if told || program.code.end == 0 { program.code } else { 1..1 };
    write!(out, " {} {} {} 0 0", code.start, code.end, place(program.stack_start));
    write!(out, " {} {} {ignored} {caught}", pending.0, blocked.0);
    write!(out, " 0 0 0 17 {cpu} 0 0 0 0 0");
    write!(out, " {} {} {}", place(program.data.start), place(program.data.end), place(program.break_start));
    write!(out, " {} {}", place(program.arguments.start), place(program.arguments.end));
    writeln!(out, " {} {} 0", place(program.environment.start), place(program.environment.end));
    Ok(())
}

fn status(out: &mut Text, subject: Subject, process: &Arc<Process>) -> Result<()> {
    let task = subject.task()?;
    let credentials = process.credentials();
    let (letter, words) = state(process, task.as_ref());
    let id = subject.tid.unwrap_or(process.pid);
    let is_alive = process.exit_status().is_none();
    out.push(b"Name:\t");
    push_name(out, subject, process)?;
    out.push(b"\n");
    if is_alive {
        writeln!(out, "Umask:\t{:04o}", process.fs().umask());
    }
    writeln!(out, "State:\t{letter} ({words})\nTgid:\t{}\nNgid:\t0\nPid:\t{id}", process.pid);
    writeln!(out, "PPid:\t{}\nTracerPid:\t0", process.parent_pid());
    let c = &credentials;
    writeln!(out, "Uid:\t{}\t{}\t{}\t{}", c.uid, c.euid, c.suid, c.fsuid);
    writeln!(out, "Gid:\t{}\t{}\t{}\t{}", c.gid, c.egid, c.sgid, c.fsgid);
    write!(out, "FDSize:\t{}\nGroups:\t", process.files().size());
    for group in c.groups.iter() {
        write!(out, "{group} ");
    }
    writeln!(out, "\nNStgid:\t{}\nNSpid:\t{id}", process.pid);
    writeln!(out, "NSpgid:\t{}\nNSsid:\t{}", process.group(), process.session().id);
    if is_alive {
        let usage = process.space().lock().usage();
        let mut line = |name: &str, pages: u64| {
            let mut line = Line::new();
            line.push(name.as_bytes());
            line.push(b":\t");
            line.decimal(pages * 4, 8);
            line.push(b" kB\n");
            out.push(line.bytes());
        };
        line("VmPeak", usage.peak_total);
        line("VmSize", usage.total_pages);
        line("VmLck", usage.locked_pages);
        line("VmHWM", usage.peak_rss.max(usage.rss()));
        line("VmRSS", usage.rss());
        line("RssAnon", usage.rss_anon);
        line("RssFile", usage.rss_file);
        line("RssShmem", usage.rss_shmem);
        line("VmData", usage.data_pages);
        line("VmStk", usage.stack_pages);
        line("VmExe", usage.exec_pages);
        line("VmPTE", usage.page_table_bytes / 4096);
        line("VmSwap", usage.swapped);
        let huge = u8::from(process.space().lock().huge_use() == freehold_vm::HugeUse::ByArea);
        writeln!(out, "HugetlbPages:\t       0 kB\nCoreDumping:\t0\nTHP_enabled:\t{huge}");
    }
    let pending = task.as_ref().map_or(SigSet::EMPTY, |task| task.pending_signals());
    let blocked = task.as_ref().map_or(SigSet::EMPTY, |task| task.blocked());
    let [ignored, caught] = dispositions(process);
    let queue = process.limit(Resource::SigPending).soft;
    let queued = crate::task::users::queued_signals(c.uid);
    writeln!(out, "Threads:\t{}\nSigQ:\t{queued}/{queue}", process.thread_count());
    writeln!(out, "SigPnd:\t{:016x}\nShdPnd:\t{:016x}\nSigBlk:\t{:016x}", 0, pending.0, blocked.0);
    writeln!(out, "SigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}");
    let sets = c.capabilities;
    writeln!(out, "CapInh:\t{:016x}\nCapPrm:\t{:016x}", sets.inheritable, sets.permitted);
    writeln!(out, "CapEff:\t{:016x}", sets.effective);
    writeln!(
        out,
        "CapBnd:\t{:016x}\nCapAmb:\t{:016x}\nNoNewPrivs:\t{}\nSeccomp:\t0\nSeccomp_filters:\t0",
        capabilities::ALL,
        0,
        u8::from(process.no_new_privileges.load(Ordering::Relaxed))
    );
    let online = sched::online();
    let cpus = task.as_ref().map_or(online.0, |task| task.schedule.affinity().0 & online.0);
    let count = online.len();
    writeln!(out, "Cpus_allowed:\t{}\nCpus_allowed_list:\t{}", mask(cpus, count), list(cpus));
    let nodes = crate::fs::machine::get().map_or(1, |machine| machine.firmware.topology.node_count());
    let all_nodes = (1u64 << nodes) - 1;
    writeln!(out, "Mems_allowed:\t{}\nMems_allowed_list:\t{}", mask(all_nodes, nodes), list(all_nodes));
    let usage = usage_in_time(subject, process)?;
    writeln!(out, "voluntary_ctxt_switches:\t{}", usage.voluntary_switches);
    writeln!(out, "nonvoluntary_ctxt_switches:\t{}", usage.involuntary_switches);
    Ok(())
}

fn limits(out: &mut Text, process: &Process) {
    const ROWS: [(&str, Resource, &str); 16] = [
        ("Max cpu time", Resource::Cpu, "seconds"),
        ("Max file size", Resource::FileSize, "bytes"),
        ("Max data size", Resource::Data, "bytes"),
        ("Max stack size", Resource::Stack, "bytes"),
        ("Max core file size", Resource::Core, "bytes"),
        ("Max resident set", Resource::Rss, "bytes"),
        ("Max processes", Resource::Processes, "processes"),
        ("Max open files", Resource::Files, "files"),
        ("Max locked memory", Resource::Memlock, "bytes"),
        ("Max address space", Resource::AddressSpace, "bytes"),
        ("Max file locks", Resource::Locks, "locks"),
        ("Max pending signals", Resource::SigPending, "signals"),
        ("Max msgqueue size", Resource::MsgQueue, "bytes"),
        ("Max nice priority", Resource::Nice, ""),
        ("Max realtime priority", Resource::RtPriority, ""),
        ("Max realtime timeout", Resource::RtTime, "us"),
    ];
    let shown = |limit: u64| match limit {
        u64::MAX => Line::of(b"unlimited"),
        limit => Line::of_number(limit),
    };
    writeln!(out, "{:<25} {:<20} {:<20} {:<10}", "Limit", "Soft Limit", "Hard Limit", "Units");
    for (title, resource, unit) in ROWS {
        let limit = process.limit(resource);
        let mut line = Line::of(title.as_bytes());
        for (column, part) in
            [(26, shown(limit.soft)), (47, shown(limit.hard)), (68, Line::of(unit.as_bytes()))]
        {
            line.pad(column);
            line.push(part.bytes());
        }
        line.pad(78);
        line.push(b"\n");
        out.push(line.bytes());
    }
}
