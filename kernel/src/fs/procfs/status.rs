//! Content of the status files of a process or thread.

use core::sync::atomic::Ordering;

use freehold_collections::Arc;

use super::oom;
use super::processes::{FileKind, Subject};
use super::settings::{parse_mask, parse_number};
use super::system::TICK;
use crate::fs::generated::{ShortLine, Text};
use crate::fs::masks::{list, mask};
use crate::hw::PAGE;
use crate::task::audit;
use crate::task::clock::Clock;
use crate::task::inspect::{self, Mode};
use crate::task::pidns::PidView;
use crate::task::userns::IdKind;
use crate::task::{Capability, Pid, registry};
use crate::task::{Process, Resource, SigSet, Task, Usage};
use crate::{Errno, Result, mem, sched};

/// PF_RANDOMIZE, which all programs have.
const TASK_FLAGS: u64 = 0x0040_0000;
/// The signal that a parent gets when a process ends.
const SIGCHLD: u64 = 17;

/// Returns the memory figures of a process' space; all 0 for a process that has ended.
pub(super) fn usage_of(process: &Process) -> freehold_vm::Usage {
    if process.exit_status().is_some() {
        freehold_vm::Usage::default()
    } else {
        process.space().lock().usage()
    }
}

/// Writes the content of the file `kind` of `subject`, which is `process` or one of its threads.
pub(super) fn show(out: &mut Text, subject: Subject, process: &Arc<Process>, kind: FileKind) -> Result<()> {
    match kind {
        FileKind::Stat => stat(out, subject, process)?,
        FileKind::Status => status(out, subject, process)?,
        FileKind::Statm => statm(out, process),
        FileKind::Comm => {
            push_name(out, subject, process)?;
            out.push(b"\n");
        }
        FileKind::KsmMergingPages | FileKind::KsmStat => merged(out, process, kind)?,
        FileKind::Limits => limits(out, process),
        FileKind::Io => {
            let [read, written, reads, writes] = process.usage().io;
            writeln!(out, "rchar: {read}\nwchar: {written}\nsyscr: {reads}\nsyscw: {writes}");
            writeln!(out, "read_bytes: 0\nwrite_bytes: 0\ncancelled_write_bytes: 0");
        }
        FileKind::Wchan => out.push(b"0"),
        FileKind::Cgroup => cgroup(out, process),
        FileKind::OomScore => oom_score(out, process),
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
        FileKind::Personality => writeln!(out, "{:08x}", process.personality.load(Ordering::Relaxed)),
        FileKind::CoredumpFilter => writeln!(out, "{:08x}", process.space().dump_filter()),
        FileKind::Loginuid => login(out, process),
        FileKind::Sessionid => write!(out, "{}", process.audit.session()),
        FileKind::Children => children(out, subject, process),
        FileKind::ClearRefs => {}
        FileKind::Schedstat => schedstat(out, subject, process)?,
        FileKind::Cmdline
        | FileKind::Environ
        | FileKind::Mounts
        | FileKind::Mountinfo
        | FileKind::Maps
        | FileKind::Smaps
        | FileKind::SmapsRollup
        | FileKind::NumaMaps
        | FileKind::Auxv
        | FileKind::Memory
        | FileKind::Pagemap
        | FileKind::DescriptorInfo(_)
        | FileKind::IdMap(_)
        | FileKind::SetGroups
        | FileKind::TimeOffsets
        | FileKind::Net(_) => return Err(Errno::EINVAL), // These are made elsewhere.
    }
    Ok(())
}

/// Writes the CPU time of a thread or process, and how often it was switched to.
fn schedstat(out: &mut Text, subject: Subject, process: &Arc<Process>) -> Result<()> {
    let usage = usage_in_time(subject, process)?;
    let switches = usage.voluntary_switches + usage.involuntary_switches;
    writeln!(out, "{} 0 {switches}", usage.user + usage.system);
    Ok(())
}

/// Writes the merged pages of a process.
fn merged(out: &mut Text, process: &Process, kind: FileKind) -> Result<()> {
    let pages = mem::ksm::pages_of(&process.space())?;
    if matches!(kind, FileKind::KsmMergingPages) {
        writeln!(out, "{}", pages.merged);
        return Ok(());
    }
    // A process pays for no notes of the scan (Linux: ksm_rmap_items).
    writeln!(out, "ksm_rmap_items 0\nksm_zero_pages {}", pages.zeroes);
    let profit = (pages.merged + pages.zeroes) * PAGE;
    writeln!(out, "ksm_merging_pages {}\nksm_process_profit {profit}", pages.merged);
    Ok(())
}

/// Writes the login user of a process.
fn login(out: &mut Text, process: &Process) {
    let user = process.audit.user();
    let reader = crate::task::current().process().credentials();
    let shown = if user == audit::UNSET { user } else { reader.user_ns.shown_user(user) };
    write!(out, "{shown}");
}

/// Writes the children that a thread made, in a PID namespace. Here a process' threads share their
/// children: the first thread shows all.
fn children(out: &mut Text, subject: Subject, process: &Process) {
    if subject.tid.is_some_and(|tid| tid != process.pid) {
        return;
    }
    registry::for_each(|child| {
        if child.parent().is_some_and(|parent| parent.pid == process.pid) {
            let number = child.number_in(subject.view);
            if number != 0 {
                write!(out, "{number} ");
            }
        }
    });
}

/// Writes the path of the process' control group, from the reader's namespace root.
fn cgroup(out: &mut Text, process: &Process) {
    let group = process.cgroup.group();
    let own = crate::task::current().process().namespaces().cgroup.clone();
    out.push(b"0::");
    group.write_path(own.root(), |part| out.push(part));
    out.push(if group.is_removed() { b" (deleted)\n" } else { b"\n" });
}

/// Returns the pages of the program's own code; what else is executable belongs to libraries
/// (Linux: `task_mem`).
fn code_pages(process: &Process, usage: &freehold_vm::Usage) -> u64 {
    let code = process.space().program().code;
    code.end.div_ceil(PAGE).saturating_sub(code.start / PAGE).min(usage.exec_pages)
}

fn statm(out: &mut Text, process: &Process) {
    let usage = usage_of(process);
    let code = code_pages(process, &usage);
    let shared = usage.rss_file + usage.rss_shmem;
    let data = usage.data_pages + usage.stack_pages;
    writeln!(out, "{} {} {shared} {} 0 {data} 0", usage.total_pages, usage.rss(), code);
}

fn oom_score(out: &mut Text, process: &Process) {
    let total = mem::stats::memory().total.max(1);
    let share = usage_of(process).rss() * 1000 / total;
    let score = share as i64 + i64::from(process.oom_score_adj.load(Ordering::Relaxed));
    writeln!(out, "{}", score.clamp(0, 2000));
}

/// Handles a write to the file `kind` of `subject`.
pub(super) fn store(subject: Subject, process: &Process, kind: FileKind, bytes: &[u8]) -> Result<()> {
    match kind {
        FileKind::Comm => {
            if process.pid != crate::task::current().process().pid {
                return Err(Errno::EINVAL);
            }
            let line = bytes.split(|&byte| byte == b'\n' || byte == 0).next().unwrap_or_default();
            task_of(subject, process)?.set_name(line);
        }
        FileKind::Loginuid => {
            if process.pid != crate::task::current().process().pid {
                return Err(Errno::EPERM);
            }
            let user = u32::try_from(parse_number(bytes)?).map_err(|_| Errno::EINVAL)?;
            let user = if user == audit::UNSET { user } else { crate::task::kernel_id(IdKind::User, user)? };
            if process.audit.user() != audit::UNSET && !crate::task::may(Capability::AuditControl) {
                return Err(Errno::EPERM);
            }
            process.audit.log_in(user);
        }
        FileKind::OomScoreAdj => oom::set(process, bytes)?,
        FileKind::OomAdj => oom::set_by_old_scale(process, bytes)?,
        FileKind::FailNth => {
            let nth = u32::try_from(parse_number(bytes)?).map_err(|_| Errno::ERANGE)?;
            // The file may have been opened before the process gained rights.
            inspect::act_on(process, Mode::ATTACH_FS, || {
                let task = task_of(subject, process)?;
                crate::fault_inject::arm();
                task.injection.set_nth(nth);
                Ok(())
            })?;
        }
        FileKind::MakeItFail => {
            if !crate::task::may(Capability::SysResource) {
                return Err(Errno::EPERM);
            }
            let filtered = i64::try_from(parse_number(bytes)?).map_err(|_| Errno::EINVAL)?;
            task_of(subject, process)?.injection.set_filtered(filtered)?;
        }
        FileKind::CoredumpFilter => {
            let bits = u32::try_from(parse_mask(bytes)?).map_err(|_| Errno::ERANGE)?;
            process.space().set_dump_filter(bits);
        }
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

/// Returns the subject's thread, which is one of `process`.
///
/// # Errors
/// `ESRCH` if there is none.
fn task_of(subject: Subject, process: &Process) -> Result<Arc<Task>> {
    let task = subject.task()?.filter(|task| core::ptr::eq(&**task.process(), process));
    task.ok_or(Errno::ESRCH)
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

/// Returns the letter of a state and Linux' words for it.
fn state(process: &Process, task: Option<&Arc<Task>>) -> (char, &'static str) {
    let letter = match task {
        _ if process.exit_status().is_some() => b'Z',
        Some(task) => task.schedule.state_letter(),
        // Its last thread still releases what it had.
        None => b'R',
    };
    let words = match letter {
        b'R' => "running",
        b'S' => "sleeping",
        b'D' => "disk sleep",
        b'T' => "stopped",
        b't' => "tracing stop",
        b'Z' => "zombie",
        _ => "dead",
    };
    (char::from(letter), words)
}

/// Returns the terminal's device number as /proc shows it and the foreground group, or 0 and -1.
fn terminal(process: &Process, view: PidView) -> (u64, i64) {
    let session = process.session();
    let terminal = crate::tty::terminal_of(&session);
    match terminal {
        None => (0, -1),
        Some(tty) => (tty.device(), i64::from(registry::number_in(view, tty.control().1))),
    }
}

/// Returns the ID of a subject.
fn id(subject: Subject, process: &Process) -> Pid {
    subject.tid.unwrap_or(process.pid)
}

/// Returns the number of a process' parent in a PID namespace.
fn parent_number(process: &Process, view: PidView) -> Pid {
    process.parent().map_or(0, |parent| parent.number_in(view))
}

/// Writes a row with the numbers of an ID, from the reader's PID namespace inwards to the process'
/// own.
fn namespace_row(out: &mut Text, name: &str, id: Pid, (process, view): (&Process, PidView)) {
    if process.numbers().is_initial() {
        return out.row(name, &[id.into()]);
    }
    let shown = registry::numbers_of(id);
    write!(out, "{name}:");
    process.numbers().each_from(view, |level, _| write!(out, "\t{}", shown.in_view(level)));
    out.push(b"\n");
}

fn stat(out: &mut Text, subject: Subject, process: &Arc<Process>) -> Result<()> {
    let task = subject.task()?;
    let usage = usage_in_time(subject, process)?;
    let children = process.children_usage();
    let space = usage_of(process);
    let program = process.space().program();
    let (tty, foreground) = terminal(process, subject.view);
    let (letter, _) = state(process, task.as_ref());
    let nice = task.as_ref().map_or(0, |task| task.schedule.nice());
    let pending = task.as_ref().map_or(SigSet::EMPTY, |task| task.pending_signals());
    let blocked = task.as_ref().map_or(SigSet::EMPTY, |task| task.blocked());
    let (ignored, caught) = process.dispositions();
    let cpu = task.as_ref().map_or(0, |task| task.schedule.cpu.load(Ordering::Relaxed));
    let policy = task.as_ref().map_or(0, |task| task.schedule.policy() as u64);
    let priority = task.as_ref().map_or(0, |task| task.schedule.priority());
    let shown_priority = task.as_ref().map_or(20, |task| task.schedule.shown_priority() - 100);
    let view = subject.view;
    let shown = |id| u64::from(registry::number_in(view, id));
    out.push(ShortLine::of_number(shown(id(subject, process))).bytes());
    out.push(b" (");
    push_name(out, subject, process)?;
    out.push(&[b')', b' ', letter as u8]);
    let parent = parent_number(process, view).into();
    out.numbers(&[parent, shown(process.group()), shown(process.session().id), tty]);
    out.signed_number(foreground);
    out.numbers(&[
        TASK_FLAGS,
        usage.minor_faults,
        children.minor_faults,
        usage.major_faults,
        children.major_faults,
    ]);
    out.numbers(&[usage.user, usage.system, children.user, children.system].map(|time| time / TICK));
    out.signed_number(shown_priority.into());
    out.signed_number(nice.into());
    let rss_limit = process.limit(Resource::Rss).soft;
    let started = Clock::Boottime.shown(process.started);
    out.numbers(&[process.thread_count() as u64, 0, started / TICK]);
    out.numbers(&[space.total_pages * PAGE, space.rss(), rss_limit]);
    // Addresses in memory are shown only to callers that may inspect the process.
    let told = inspect::may_inspect(process, Mode::READ_FS).is_ok();
    let place = |address: u64| if told { address } else { 0 };
    let code = if told || program.code.end == 0 { program.code } else { 1..1 };
    out.numbers(&[code.start, code.end, place(program.stack_start), 0, 0]);
    out.numbers(&[pending, blocked, ignored, caught].map(|set| set.0));
    out.numbers(&[0, 0, 0, SIGCHLD, cpu as u64, priority.into(), policy, 0, 0, 0]);
    let (arguments, environment) = (&program.arguments, &program.environment);
    out.numbers(&[program.data.start, program.data.end, program.break_start].map(place));
    out.numbers(&[arguments.start, arguments.end, environment.start, environment.end].map(place));
    out.push(b" 0\n");
    Ok(())
}

fn status(out: &mut Text, subject: Subject, process: &Arc<Process>) -> Result<()> {
    let task = subject.task()?;
    out.push(b"Name:\t");
    push_name(out, subject, process)?;
    out.push(b"\n");
    identity(out, subject, process, task.as_ref());
    if process.exit_status().is_none() {
        memory_use(out, process);
    }
    signals(out, process, task.as_ref());
    rights(out, process, task.as_ref());
    places(out, task.as_ref());
    let usage = usage_in_time(subject, process)?;
    out.row("voluntary_ctxt_switches", &[usage.voluntary_switches]);
    out.row("nonvoluntary_ctxt_switches", &[usage.involuntary_switches]);
    Ok(())
}

/// Writes the identity: state, numbers, users and groups.
fn identity(out: &mut Text, subject: Subject, process: &Arc<Process>, task: Option<&Arc<Task>>) {
    if process.exit_status().is_none() {
        let mut line = ShortLine::of(b"Umask:\t");
        line.octal(process.fs().umask().into(), 4);
        line.push(b"\n");
        out.push(line.bytes());
    }
    let (letter, words) = state(process, task);
    let mut line = ShortLine::of(b"State:\t");
    for part in [&[letter as u8, b' ', b'('], words.as_bytes(), b")\n"] {
        line.push(part);
    }
    out.push(line.bytes());
    let (view, id) = (subject.view, id(subject, process));
    let c = &process.credentials();
    let reader = crate::task::current().process().credentials();
    let (user, group_of) =
        (|id| u64::from(reader.user_ns.shown_user(id)), |id| reader.user_ns.shown_group(id));
    out.row("Tgid", &[process.number_in(view).into()]);
    out.row("Ngid", &[0]);
    out.row("Pid", &[registry::number_in(view, id).into()]);
    out.row("PPid", &[parent_number(process, view).into()]);
    let tracer = task.and_then(|task| task.traced.tracee()).map_or(0, |tracee| tracee.tracer);
    out.row("TracerPid", &[registry::number_in(view, tracer).into()]);
    out.row("Uid", &[c.uid, c.euid, c.suid, c.fsuid].map(user));
    out.row("Gid", &[c.gid, c.egid, c.sgid, c.fsgid].map(|id| group_of(id).into()));
    out.row("FDSize", &[process.files().size() as u64]);
    out.push(b"Groups:\t");
    for group in c.groups.iter() {
        let mut line = ShortLine::of_number(group_of(*group).into());
        line.push(b" ");
        out.push(line.bytes());
    }
    out.push(b"\n");
    let place = (&**process, view);
    namespace_row(out, "NStgid", process.pid, place);
    namespace_row(out, "NSpid", id, place);
    namespace_row(out, "NSpgid", process.group(), place);
    namespace_row(out, "NSsid", process.session().id, place);
}

/// Writes the memory use.
fn memory_use(out: &mut Text, process: &Process) {
    let (usage, huge) = {
        let shared = process.space();
        let space = shared.lock();
        (space.usage(), space.huge_use() == freehold_vm::HugeUse::ByArea)
    };
    let code = code_pages(process, &usage);
    for (name, pages) in [
        ("VmPeak", usage.peak_total),
        ("VmSize", usage.total_pages),
        ("VmLck", usage.locked_pages),
        ("VmHWM", usage.peak_rss.max(usage.rss())),
        ("VmRSS", usage.rss()),
        ("RssAnon", usage.rss_anon),
        ("RssFile", usage.rss_file),
        ("RssShmem", usage.rss_shmem),
        ("VmData", usage.data_pages),
        ("VmStk", usage.stack_pages),
        ("VmExe", code),
        ("VmLib", usage.exec_pages - code),
        ("VmPTE", usage.page_table_bytes / PAGE),
        ("VmSwap", usage.swapped),
        ("HugetlbPages", usage.huge_pages),
    ] {
        let mut line = ShortLine::of(name.as_bytes());
        line.push(b":\t");
        line.decimal(pages * (PAGE / 1024), 8);
        line.push(b" kB\n");
        out.push(line.bytes());
    }
    out.row("CoreDumping", &[process.is_dumping().into()]);
    out.row("THP_enabled", &[huge.into()]);
}

/// Writes the dispositions of signals, and the pending ones.
fn signals(out: &mut Text, process: &Arc<Process>, task: Option<&Arc<Task>>) {
    out.row("Threads", &[process.thread_count() as u64]);
    let mut line = ShortLine::of(b"SigQ:\t");
    line.decimal(crate::task::users::queued_signals(process.credentials().uid), 0);
    line.push(b"/");
    line.decimal(process.limit(Resource::SigPending).soft, 0);
    line.push(b"\n");
    out.push(line.bytes());
    let (ignored, caught) = process.dispositions();
    out.mask_row("SigPnd", 0);
    out.mask_row("ShdPnd", task.map_or(0, |task| task.pending_signals().0));
    out.mask_row("SigBlk", task.map_or(0, |task| task.blocked().0));
    out.mask_row("SigIgn", ignored.0);
    out.mask_row("SigCgt", caught.0);
}

/// Writes the capabilities and other rights beyond those of the user.
fn rights(out: &mut Text, process: &Process, task: Option<&Arc<Task>>) {
    let sets = process.credentials().capabilities;
    out.mask_row("CapInh", sets.inheritable);
    out.mask_row("CapPrm", sets.permitted);
    out.mask_row("CapEff", sets.effective);
    out.mask_row("CapBnd", sets.bounding);
    out.mask_row("CapAmb", sets.ambient);
    out.row("NoNewPrivs", &[process.no_new_privileges.load(Ordering::Relaxed).into()]);
    let (mode, filters) = task.map_or((0, 0), |task| task.seccomp());
    out.row("Seccomp", &[mode.into()]);
    out.row("Seccomp_filters", &[filters]);
}

/// Writes the CPUs on which the task may run, and the nodes from which it may allocate memory.
fn places(out: &mut Text, task: Option<&Arc<Task>>) {
    let online = sched::online();
    let cpus = task.map_or(online.0, |task| task.schedule.affinity().0 & online.0);
    let count = online.len();
    writeln!(out, "Cpus_allowed:\t{}\nCpus_allowed_list:\t{}", mask(cpus, count), list(cpus));
    let nodes = crate::fs::machine::get().map_or(1, |machine| machine.firmware.topology.node_count());
    let all_nodes = (1u64 << nodes) - 1;
    writeln!(out, "Mems_allowed:\t{}\nMems_allowed_list:\t{}", mask(all_nodes, nodes), list(all_nodes));
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
        u64::MAX => ShortLine::of(b"unlimited"),
        limit => ShortLine::of_number(limit),
    };
    writeln!(out, "{:<25} {:<20} {:<20} {:<10}", "Limit", "Soft Limit", "Hard Limit", "Units");
    for (title, resource, unit) in ROWS {
        let limit = process.limit(resource);
        let mut line = ShortLine::of(title.as_bytes());
        for (column, part) in
            [(26, shown(limit.soft)), (47, shown(limit.hard)), (68, ShortLine::of(unit.as_bytes()))]
        {
            line.pad(column);
            line.push(part.bytes());
        }
        line.pad(78);
        line.push(b"\n");
        out.push(line.bytes());
    }
}
