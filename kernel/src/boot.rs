//! From the first instruction in Rust to the first program.
//!
//! Each step comes after the steps that it depends on. Firmware's tables come before the first
//! frame: the allocator hands out frames only where memory is. Frames come before CPUs, since each
//! CPU has lists and stacks. CPUs come before devices, and devices and files before the program.

use core::fmt::{self, Display, Formatter};

use freehold_collections::{Arc, TryCollect, Vec, reserve};
use freehold_firmware::Firmware;
use freehold_machine::topology::Emulation;
use freehold_machine::{Access, CpuId, Cpus, Entropy, Pfn, PfnRange, VirtAddr};
use freehold_tracepoints::trace;
use freehold_virtio::mem::Region;

use crate::cmdline::{Mitigations, Plant};
use crate::fs::boot::BelowTree;
use crate::fs::changes::Changes;
use crate::fs::initramfs;
use crate::fs::userfault;
use crate::host::BounceSettings;
use crate::host::spec::{self, Learning, ShareMode, ShareSpec, Spec};
use crate::hw::alternatives::Feature;
use crate::hw::boot::{BootInfo, MemoryKind};
use crate::hw::memory::{OutOfMemory, pluggable};
use crate::hw::speculation::choice::WantedMitigations;
use crate::hw::static_keys::{KeyState, StaticKey};
use crate::hw::user::UserContext;
use crate::hw::{
    Hardware, alternatives, boot, cpu, firmware, irq, panic, power, speculation, time, traps, watch,
};
use crate::socket::attachment::Attachment;
use crate::{
    Errno, Result, backtraces, block, cgroup, cmdline, dev, event_stream, fault_inject, fs, host, klog, mem,
    owners, report, sched, share, socket, swap, syscall, task, tracing, tty, uring,
};

/// The kernel's version, as reported by uname and to the host.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The kernel's first function. It sets up everything, on the first CPU.
#[cold]
pub fn main(info: &'static BootInfo) -> ! {
    klog::init(log::LevelFilter::Info);
    panic::set_sink(&host::LastWords);
    let settings = cmdline::parse(info.command_line(), |problem| log::warn!("{problem}"));
    log::set_max_level(settings.log_level);
    log::info!("Freehold {VERSION}");
    klog::tell_host(format_args!("image slide {:#x}", info.slide()));
    speculation::start(match settings.mitigations {
        Mitigations::Auto => WantedMitigations::Auto,
        Mitigations::Off => WantedMitigations::Off,
    });
    alternatives::apply(Feature::is_there, &mut |feature, sites| {
        log::info!("alternatives: {} ({sites} places)", feature.name());
    });
    if !Hardware.is_seeded() {
        log::warn!(
            "random bits were drawn that the CPU could not give: without RDRAND and RDSEED, keys and \
             addresses come from the time-stamp counter"
        );
    }
    let (firmware, pluggable) = read_firmware(info, settings.numa);
    let cpus = firmware.platform.cpus().len().min(settings.max_cpus);
    let (bounce, planted) =
        (BounceSettings { limits: settings.slots, restricted: settings.restricted }, settings.plant);
    let (iommu, transfers, traced) = (settings.iommu, settings.transfers, settings.trace_events);
    if let Some(limit) = settings.disk_timeout {
        block::set_io_timeout(limit);
    }
    raise(settings, firmware, (info.command_line(), cpus));
    irq::enable();
    start_cpus(firmware, cpus);
    if host::start_dma(mem::frames(), bounce.limits).is_ok() {
        if let Err(reason) = host::iommu::start(&firmware.platform, iommu, transfers) {
            refuse(format_args!("the IOMMU that devices were to be behind cannot be used: {reason}"));
        }
        host::init(bounce.restricted, &pluggable, &mut |function, error| {
            log::error!("{function:?}: {error}")
        });
    }
    sched::spawn_kernel("start", move || start(info, planted, traced)).expect("memory for the first task");
    sched::idle_forever()
}

/// Sets up memory, time, files and scheduling, on the first CPU. From here on there can be tasks,
/// and the running code is this CPU's idle task. The kernel's command line and the number of CPUs
/// come last.
pub(crate) fn raise(
    settings: cmdline::Settings,
    firmware: &'static Firmware,
    (command_line, cpus): (&'static str, usize),
) {
    fs::machine::describe(fs::machine::MachineInfo { command_line, firmware });
    cpu::set_topology(&firmware.topology, cpus);
    time::measure(firmware.platform.hpet);
    let exclusion = (settings.xpfo, settings.numa_replica);
    mem::init(&firmware.topology, cpus, settings.page_allocator, settings.huge_pages, exclusion);
    if let Err(error) = mem::turn_key(StaticKey::COUNTS_SYSCALLS, settings.syscall_counts) {
        log::warn!("syscall_counts: {error:?}, calls are not counted");
    }
    if firmware.topology.node_count() > 1
        && let Err(error) = mem::turn_key(StaticKey::TASK_NODES, KeyState::On)
    {
        log::warn!("task_nodes: {error:?}, tasks run on any node");
    }
    if settings.fixed_places {
        task::exec::set_randomness(0).expect("0 is valid");
    }
    mem::mirrors::init(&firmware.topology, cpus);
    fault_inject::configure(settings.failslab, settings.fail_page_alloc);
    task::Task::watch_reserve();
    traps::register(&KernelAbove);
    task::set_above(&KernelAbove);
    cgroup::set_observer(&fs::cgroupfs::Watches);
    cgroup::memory::set_charging(&mem::charge::GroupCharging);
    mem::charge::register_killer(task::kill_charged);
    time::start();
    crate::time::set_wall((time::wall_clock_at_boot() + time::now()) as i64);
    mem::vdso::init().expect("memory for the pages that every program has");
    let files = fs::boot::init(reserve::arc(mem::CacheSource::new(mem::frames())))
        .expect("an empty root file system");
    task::spawn::init(mem::ProcessSpace::empty().expect("memory for the kernel's own space"), files);
    start_scheduling(CpuId(0));
}

/// Ends the machine before any device is started. The host reads the reason on the serial line.
fn refuse(reason: core::fmt::Arguments<'_>) -> ! {
    klog::tell_host(format_args!("refuses to start: {reason}"));
    power::exit(0)
}

fn start_scheduling(cpu: CpuId) {
    task::spawn::start_cpu(cpu).expect("memory for a CPU's idle task");
}

/// Reads ACPI's tables, and finds the devices that plug memory in. The tables are believed as far
/// as they make sense.
#[inline(never)]
#[cold]
fn read_firmware(
    info: &'static BootInfo,
    numa: Option<Emulation>,
) -> (&'static Firmware, Vec<host::FoundMemory>) {
    let usable = info.memory_map().iter().filter(|region| region.kind == MemoryKind::Usable).map(|region| {
        let end = region.start.0 + region.len;
        PfnRange::new(Pfn(region.start.0.div_ceil(4096)), Pfn(end / 4096))
    });
    let table = |at, len| Some(firmware::map(at, len)).filter(|bytes| bytes.len() == len);
    let read = reserve::leaked(freehold_firmware::read(
        &table,
        info.rsdp(),
        cpu::bus_id(),
        usable,
        &mut |warning| {
            log::warn!("firmware: {warning}");
        },
    ));
    let mut pluggable = find_pluggable(read);
    if let Some(emulation) = numa {
        emulate_nodes(read, emulation, &mut pluggable);
    }
    (read, pluggable)
}

/// Assigns the machine's memory to other nodes than firmware does, as the parameter `numa` asks.
fn emulate_nodes(firmware: &mut Firmware, emulation: Emulation, pluggable: &mut [host::FoundMemory]) {
    let cpus = firmware.platform.cpus().len();
    match firmware.topology.emulate(emulation, cpus) {
        Ok(topology) => firmware.topology = topology,
        Err(reason) => return log::warn!("kernel parameter numa ignored: {reason}"),
    }
    for found in pluggable {
        let node = firmware.topology.node_of(found.region.frames().start);
        found.node = node.expect("where memory can be plugged in belongs to a node");
    }
    log::info!("NUMA: {} nodes, as the parameter numa asks", firmware.topology.node_count());
}

/// Finds where memory may be plugged in, before the frame table and the page allocator are made for
/// it.
fn find_pluggable(firmware: &mut Firmware) -> Vec<host::FoundMemory> {
    let Firmware { topology, domains, .. } = firmware;
    let node_of = |region: &Region| domains.node_of_plugged(region.domain(), region.frames());
    let mut found = host::find_memory(node_of, &mut |function, error| log::error!("{function:?}: {error}"));
    found.retain(|device| {
        let frames = device.region.frames();
        let possible =
            pluggable::is_possible(frames) && topology.add_pluggable_range(frames, device.node).is_ok();
        if !possible {
            log::error!("{:?}: no memory can be plugged in at {frames:?}", device.function);
        }
        possible
    });
    let runs = found.iter().map(|device| device.region.frames()).try_collect_vec();
    let declared = runs.is_ok_and(|runs| pluggable::declare(&runs).is_ok());
    assert!(declared, "memory for a table a GiB");
    found
}

#[cold]
fn start_cpus(firmware: &'static Firmware, cpus: usize) {
    if cpus < 2 {
        return;
    }
    let apic_ids = firmware.platform.cpus().iter().take(cpus).map(|cpu| cpu.apic_id).try_collect_vec();
    let running = apic_ids.map_or(1, |apic_ids| cpu::start_secondary(&apic_ids, secondary));
    if running < cpus {
        log::warn!("{running} of {cpus} CPUs have started");
    }
}

/// The function that every CPU but the first runs.
fn secondary(cpu: CpuId) -> ! {
    start_scheduling(cpu);
    irq::enable();
    sched::idle_forever()
}

/// The first task: sets up devices and files, runs the program, and ends the machine.
#[cold]
fn start(info: &'static BootInfo, planted: Option<Plant>, traced: u64) {
    let ending = match prepare() {
        Ok((mut spec, changes)) => {
            report::ready(info);
            watch::program_begins();
            if let Some(plant) = planted
                && let Err(error) = mem::plant(plant)
            {
                log::error!("freehold.plant: {error:?}");
            }
            let (wanted, tells_areas) = (spec.report, spec.tells_areas);
            if let Err(error) = fs::tracefs::enable_numbered(traced) {
                log::error!("trace_event: {error:?}");
            }
            if let Some(Err(error)) = spec.events.as_deref().map(event_stream::start) {
                host::notice(format_args!("events cannot be recorded: {error:?}"));
            }
            let learned = start_learning(spec.learning);
            owners::ask_at_end(core::mem::take(&mut spec.owners));
            let ending = task::init::run(spec);
            event_stream::finish();
            if learned == Learning::Wanted {
                tell_names();
            }
            watch::program_ended();
            if tells_areas {
                owners::tell_areas();
            }
            if let Some(changes) = changes {
                keep(&changes);
            }
            if wanted == spec::ClosingTables::Wanted {
                report::closing();
            }
            ending
        }
        Err(reason) => {
            log::error!("no program to run: {reason}");
            host::notice(format_args!("{reason}"));
            host::Ending::Exit(125)
        }
    };
    if let Err(error) = crate::block::sync_all() {
        host::notice(format_args!("what was written to a disk could not be kept: {error:?}"));
    }
    host::end(ending);
    power::exit(0)
}

/// Starts keeping the names of files, if the host wants them. Returns whether they are kept.
fn start_learning(wanted: Learning) -> Learning {
    if wanted == Learning::Wanted
        && let Err(error) = mem::turn_key(StaticKey::LEARNING, KeyState::On)
    {
        host::notice(format_args!("the names of files are not kept: {error:?}"));
        return Learning::Unwanted;
    }
    wanted
}

/// Number of bytes of names in one message.
const NAMES_AT_ONCE: usize = 32 << 10;

/// Sends the host the names that programs found.
fn tell_names() {
    let names = fs::learned::take();
    let (mut message, mut left_out) = (Vec::new(), names.lost);
    for name in names.found.keys() {
        if message.len() + name.len() >= NAMES_AT_ONCE {
            host::names(&message, left_out);
            message.clear();
            left_out = 0;
        }
        if message.try_reserve(name.len() + 1).and_then(|()| message.try_extend_from_slice(name)).is_err() {
            left_out += 1;
            continue;
        }
        message.push_reserved(0);
    }
    host::names(&message, left_out);
}

/// The reason why no program can run; displays as a line.
pub(crate) enum Failure {
    /// This step has failed.
    Step(&'static str, Errno),
    /// There is no image.
    Image(OutOfMemory),
    /// The image cannot be unpacked.
    Unpack(initramfs::Error),
    /// The image does not name a program to run.
    Spec(Errno),
}

impl Display for Failure {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(what, error) => write!(f, "{what}: {error:?}"),
            Self::Image(error) => write!(f, "there is no image: {error:?}"),
            Self::Unpack(error @ initramfs::Error::Make { error: Errno::ENOSPC | Errno::ENOMEM, .. }) => {
                write!(f, "the image does not fit into memory when unpacked ({error}); more memory: -m")
            }
            Self::Unpack(error) => write!(f, "the image cannot be unpacked: {error}"),
            Self::Spec(error) => {
                write!(f, "the image has no usable {}: {error:?}", spec::PATH.escape_ascii())
            }
        }
    }
}

/// Unpacks the image, mounts the file systems that programs expect, and connects the streams.
/// Returns the program to run.
///
/// # Errors
/// The step that failed.
fn prepare() -> core::result::Result<(Spec, Option<Changes>), Failure> {
    let or = |what: &'static str| move |error| Failure::Step(what, error);
    unpack()?;
    let spec = fs::root::read_file(spec::PATH).and_then(|bytes| Spec::parse(&bytes));
    let spec = spec.map_err(Failure::Spec)?;
    let changes = furnish(&spec.shares)?;
    share::mount_all(&spec.shares).map_err(or("the host's folders"))?;
    connect(&spec).map_err(or("the program's streams"))?;
    host::listen(&KernelAbove).map_err(or("the host's messages"))?;
    if let Some(settings) = spec.net {
        let network = host::network().ok_or(Errno::ENODEV).map_err(or("the network device"))?;
        attach(Attachment {
            device: network.device.clone(),
            changed: network.changed().clone(),
            interrupted: network.interrupted(),
            address: settings.address.into(),
            prefix: settings.prefix,
            gateway: settings.gateway.into(),
        })
        .map_err(or("the network"))?;
    }
    host::hotplug::start().map_err(or("memory that can be plugged in"))?;
    let pages = mem::stats::memory().total;
    socket::memory::init(usize::try_from(pages).unwrap_or(usize::MAX));
    fs::epoll::init(pages);
    mem::khugepaged::mode_changed().map_err(or("khugepaged"))?;
    mem::start_late_copies().map_err(or("copies of the kernel's text"))?;
    if let Some(device) = &spec.swap {
        swap::on_at_boot(device);
    }
    Ok((spec, changes))
}

/// Connects the machine to its network.
pub(crate) fn attach(attachment: Attachment) -> Result<()> {
    socket::wire::start(attachment)?;
    fs::sysfs::fill_network();
    Ok(())
}

/// Sets up devices and the file systems that programs expect. These are mounted over those of the
/// host's `folders` that lie below everything else.
pub(crate) fn furnish(folders: &[ShareSpec]) -> core::result::Result<Option<Changes>, Failure> {
    let or = |what: &'static str| move |error| Failure::Step(what, error);
    share::init().map_err(or("the host's folders"))?;
    let changes = lay(folders).map_err(or("a folder of the host below the image"))?;
    dev::init().map_err(or("the character devices"))?;
    userfault::init().map_err(or("/dev/userfaultfd"))?;
    fs::device::register_fifos(fs::pipe::open_named);
    fs::boot::mount_standard(Some(tty::devpts::DevPts::file_system())).map_err(or("the file systems"))?;
    block::init(mem::frames()).map_err(or("the disks"))?;
    fs::sysfs::fill_disks();
    fs::sysfs::set_ring_memory(uring::show_through_rings);
    Ok(changes)
}

/// Ends all processes and writes their changes down. The host sees whether the record of changes is
/// complete.
fn keep(changes: &Changes) {
    let kept = match task::init::end_others() {
        Ok(()) => changes.keep(),
        Err(error) => return host::notice(format_args!("some processes do not end: {error:?}")),
    };
    if let Err(reason) = kept {
        host::notice(format_args!("the changes cannot be written: {reason}"));
    }
}

/// Lays the image over those of the host's folders that are to lie below it.
fn lay(folders: &[ShareSpec]) -> Result<Option<Changes>> {
    let mut trees = Vec::new();
    for ShareSpec { tag, path, .. } in folders.iter().filter(|folder| folder.mode == ShareMode::Below) {
        trees.try_push(BelowTree { tree: share::mount(tag, b"")?, source: tag, path })?;
    }
    let Some(kept) = folders.iter().find(|folder| folder.mode == ShareMode::Changes) else {
        trees.iter().try_for_each(fs::boot::show_over)?;
        return Ok(None);
    };
    Changes::begin(&trees, share::mount(&kept.tag, b"")?).map(Some)
}

fn unpack() -> core::result::Result<(), Failure> {
    let archive = boot::initrd().map_err(Failure::Image)?;
    let summary = initramfs::unpack(archive, &fs::root::root()).map_err(Failure::Unpack)?;
    log::info!("initramfs: {summary:?}");
    mem::frames().release_reserved(boot::release_initrd());
    Ok(())
}

fn connect(spec: &Spec) -> Result<()> {
    let (Some(stream), Some(error)) = (host::stream(), host::error()) else { return Err(Errno::ENXIO) };
    let wire = |port: &Arc<host::Port>| dev::stream::HostStream::new(port.clone(), port.changed().clone());
    let standard = wire(stream);
    if spec.streams.contains(&spec::Stream::Terminal) {
        let keyboard = match spec.streams[0] {
            spec::Stream::Terminal => tty::console::Keyboard::Attached,
            spec::Stream::Pipe => tty::console::Keyboard::Absent,
        };
        tty::console::init(standard.clone(), spec.rows, spec.columns, keyboard)?;
    }
    dev::stdio::init(dev::stdio::Streams { standard, error: wire(error) });
    Ok(())
}

/// Returns the page-fault error code for an access by the kernel, as far as `access` determines it:
/// bit 1 is a store.
fn kernel_fault_code(access: Access) -> u64 {
    u64::from(access == Access::Write) << 1
}

/// Services that the kernel provides to hardware and the host.
struct KernelAbove;

impl traps::Handlers for KernelAbove {
    fn kernel_page_fault(
        &self,
        addr: VirtAddr,
        access: Access,
    ) -> core::result::Result<(), traps::Unresolved> {
        trace!(Hardware, PageFaultKernel { address: addr.0, error_code: kernel_fault_code(access) });
        task::handle_kernel_fault(addr, access)
    }
    fn timer(&self, late: u64, interrupted: traps::Interrupted) {
        sched::latency::timer_was_late(late, interrupted);
        crate::time::interrupt();
    }
    fn reschedule(&self) {}
    fn goes_on(&self, place: traps::ImageOffset) {
        sched::latency::kernel_goes_on(place);
    }
    fn record_event(&self, event: usize, fields: &[u64]) {
        tracing::record(event, fields);
    }
    fn probe_hit(&self, slot: usize) {
        tracing::kprobes::hit(slot);
    }
    fn thread_finished(&self) -> ! {
        sched::exit_current()
    }
}

impl task::Above for KernelAbove {
    fn run_program(&self, task: &Arc<task::Task>, context: &mut UserContext) {
        syscall::user_loop::run(task, context);
    }
    fn process_ends(&self, process: &task::Process) {
        owners::process_ends(process);
    }
    fn cancel_operations(&self, process: task::Pid) {
        uring::leave(process);
    }
    fn close_files(&self, files: &fs::FileTable) {
        let is_due = socket::garbage::is_due_at_exit(files);
        files.close_range(0..=u32::MAX);
        if is_due {
            socket::garbage::collect();
        }
    }
    fn close_unreachable(&self) -> bool {
        socket::garbage::collect_if_rested()
    }
    fn leave_terminal(&self, session: &Arc<task::Session>) {
        tty::leave_session(session);
    }
    fn notice(&self, text: core::fmt::Arguments<'_>) {
        host::notice(text);
    }
    fn cgroup_for_child(&self, directory: &fs::OpenFile) -> Result<Arc<cgroup::Group>> {
        fs::cgroupfs::for_child(directory)
    }
}

impl host::Events for KernelAbove {
    fn end_of_input(&self, total: u64) {
        dev::stdio::end_of_input(total);
    }
    fn window(&self, rows: u16, columns: u16) {
        tty::console::resize(rows, columns);
    }
    fn signal(&self, number: u8) {
        task::init::signal(number);
    }
    fn closed(&self, output: host::frame::Output) {
        dev::stdio::closed(output);
    }
    fn threads(&self) {
        backtraces::tell();
    }
    fn owner(&self, question: host::frame::OwnerQuestion) {
        owners::tell(question, host::frame::ToHost::Owners);
    }
}
