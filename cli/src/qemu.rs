//! The virtual machine's shape, and its QEMU command line.

pub mod disk;
pub mod network;
pub mod numa;
pub mod share;
pub mod slots;
pub mod swap;
pub mod version;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::Result;
use crate::args::{Dma, IommuKind, RunOptions};
use crate::failure::Failure;
use crate::kernel::{Family, KernelChoice};
use crate::size::{self, MIB, show_size};
use disk::Disk;
use network::Network;
use numa::{Backing, Topology};
use share::FolderShare;
use slots::HotPlug;
use swap::Swap;

/// Largest number of CPUs that the kernel starts.
pub const MAX_CPUS: u32 = 16;
/// QEMU's CPU, without the fast-string bits: TCG runs `rep stosb` byte by byte, and a Linux guest
/// would choose it.
const CPU: &str = "max,-erms,-fsrm,-la57";
/// CPU features that are removed as well when instructions are counted. From version 9.0 on, QEMU
/// has registers of the interrupt controller that read the clock where a counted clock cannot be
/// read; QEMU then exits with "Bad icount read".
const UNCOUNTED: &str = ",-x2apic";
/// Time is the number of instructions, one nanosecond each. While all CPUs sleep it jumps to the
/// next timer.
pub const ICOUNT: &str = "shift=0,sleep=off";
/// Counted time jumps from timer to timer while programs wait for a disk, which takes the host's
/// time: the answer of a busy host would come minutes late.
const PATIENT: &str = "disk.io_timeout=4294967295";
/// Date at which a counted run begins.
pub const RTC: &str = "base=2024-01-01,clock=vm";
/// Seed of everything random in a counted run, if the user gives none.
const SEED: u64 = 1;
const DEFAULT_MEMORY: u64 = 256 * MIB;
/// Rules of QEMU's sandbox, in force from its start. A guest that took QEMU over could not start
/// programs, change its user or take the CPUs of other processes.
const SANDBOX: &str = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";
/// Where the port devices sit on the PCI bus: the guest knows stream, error and control by this
/// order.
const FIRST_PORT_SLOT: u32 = 4;
const FIRST_DISK_SLOT: u32 = 8;
/// Slots 8 to 30 (31 is the chipset's).
const MAX_DISKS: usize = 23;

/// The engine that executes the guest's instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// Emulation.
    Tcg,
    /// Hardware virtualisation.
    Kvm,
}

/// Time in the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clock {
    /// The host's.
    Real,
    /// One nanosecond per instruction, from a fixed date; everything random comes from the seed.
    Instructions {
        /// Runs with the same seed are equal.
        seed: u64,
    },
}

/// Whether the CPUs wait for a debugger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Debugger {
    /// The CPUs run at once.
    None,
    /// The CPUs wait for a debugger on this TCP port of the loopback interface.
    Waited {
        /// The port.
        port: u16,
    },
}

/// A plugin that watches the guest.
#[derive(Debug, Clone)]
pub struct Watcher {
    /// The plugin's shared library.
    pub plugin: PathBuf,
    /// The file with its settings.
    pub settings: PathBuf,
    /// The files that hold each node's memory, in the order of nodes, and then each memory
    /// device's: it looks into them.
    pub memory: Vec<String>,
    /// Guest-physical addresses of the memory devices.
    pub growth_starts: Vec<u64>,
    /// Bytes of addresses for them.
    pub growth_span: u64,
}

/// Access of devices to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Devices {
    /// Devices can access all memory.
    Unchecked,
    /// An IOMMU is between devices and memory.
    BehindIommu(IommuKind),
    /// As `BehindIommu`; devices access programs' pages directly.
    InPlace(IommuKind),
}

impl Devices {
    /// Returns the access that the options ask for.
    fn of(options: &RunOptions) -> Self {
        match (options.dma, options.iommu) {
            (Dma::Direct, kind) => Self::InPlace(kind.unwrap_or(IommuKind::Vtd)),
            (Dma::Bounce, Some(kind)) => Self::BehindIommu(kind),
            (Dma::Bounce, None) => Self::Unchecked,
        }
    }
    /// Returns the kind of the IOMMU, if there is one.
    fn iommu(self) -> Option<IommuKind> {
        match self {
            Self::Unchecked => None,
            Self::BehindIommu(kind) | Self::InPlace(kind) => Some(kind),
        }
    }
    /// Adds the IOMMU, if there is one. It must come before the devices that are behind it.
    fn arguments(self, line: &mut CommandLine) {
        let Some(kind) = self.iommu() else { return };
        match kind {
            IommuKind::Vtd => line.option("-device", "intel-iommu,aw-bits=48,intremap=on"),
            // It translates for others, not for itself. Nothing passes before its driver starts.
            IommuKind::Virtio => line.option(
                "-device",
                "virtio-iommu-pci,addr=0x1d,disable-legacy=on,iommu_platform=off,boot-bypass=off",
            ),
        }
        line.option("-global", "virtio-device.iommu_platform=on");
    }
}

/// A virtual machine, checked.
#[derive(Debug)]
pub struct VirtualMachine {
    /// Bytes of memory, all nodes together.
    pub memory: u64,
    /// Number of CPUs.
    pub cpus: u32,
    /// Nodes, distances and near caches.
    pub topology: Topology,
    /// Disks in order: vda, vdb, …
    pub disks: Vec<Disk>,
    /// The swap disk, which comes after `disks`.
    pub swap: Option<Swap>,
    /// Slots for more of them while it runs.
    pub hot_plug: HotPlug,
    /// Folders of the host that it sees.
    pub shares: Vec<FolderShare>,
    /// How it is connected, if it is.
    pub network: Option<Network>,
    /// Time.
    pub clock: Clock,
    /// Debugger.
    pub debugger: Debugger,
    /// The unit between devices and memory.
    pub devices: Devices,
    /// Freehold's policy for frames of programs, where it is not the default.
    pub xpfo: Option<String>,
    /// Which nodes get a copy of Freehold's text, where it is not the default.
    pub numa_replica: Option<String>,
    /// Whether the kernel counts system calls.
    pub calls: CallCounts,
    /// The user's kernel parameters.
    pub append: String,
    /// The observer of the guest's instructions and accesses. A watched machine is asked to end and
    /// is not killed, since the watcher writes its results at the end.
    pub watcher: Option<Watcher>,
}

/// Files that are made for one run.
#[derive(Debug, Clone, Copy)]
pub struct Files<'a> {
    /// The guest's first files.
    pub initramfs: &'a Path,
    /// The file behind the swap disk, if there is one.
    pub swap: Option<&'a Path>,
}

/// Chardev descriptors (or placeholders) for the guest's ports.
#[derive(Debug, Clone)]
pub struct Ports {
    /// stdin and stdout.
    pub stream: String,
    /// stderr.
    pub error: String,
    /// Control frames.
    pub control: String,
    /// The UART: kernel log.
    pub log: String,
    /// QEMU's own monitor.
    pub monitor: String,
}

impl VirtualMachine {
    /// Checks the options of the machine.
    pub fn from_options(options: &RunOptions) -> Result<VirtualMachine> {
        let cpus: u32 =
            options.cpus.parse().ok().filter(|n| (1..=MAX_CPUS).contains(n)).ok_or_else(|| {
                Failure::new(
                    format!("--cpus {}: not a number of CPUs", options.cpus),
                    format!("1 to {MAX_CPUS}"),
                )
            })?;
        if options.icount && cpus > 1 {
            return Err(Failure::new("--icount counts the instructions of one CPU", "leave --cpus at 1"));
        }
        let seed = options.seed.as_deref().map_or(Ok(SEED), parse_seed)?;
        let memory = options.memory.as_deref().map(|text| size::parse_size("-m", text)).transpose()?;
        let topology = Topology::from_options(options, memory.unwrap_or(DEFAULT_MEMORY), cpus)?;
        let total = topology.memory();
        if memory.is_some_and(|memory| memory != total) {
            return Err(Failure::new(
                format!(
                    "-m {} but the nodes have {} together",
                    show_size(memory.unwrap_or(0)),
                    show_size(total)
                ),
                "leave -m out with --node",
            ));
        }
        let disks = options.disk.iter().map(|text| Disk::parse(text)).collect::<Result<Vec<_>>>()?;
        let swap = options.swap.as_deref().map(Swap::parse).transpose()?;
        let count = disks.len() + usize::from(swap.is_some());
        if count > MAX_DISKS {
            return Err(Failure::new(format!("{count} disks are too many"), format!("at most {MAX_DISKS}")));
        }
        let devices = Devices::of(options);
        if devices != Devices::Unchecked && disks.iter().any(Disk::shares_memory) {
            return Err(Failure::new(
                "--iommu: a vhost-user disk reaches all memory, past the IOMMU",
                "leave one of them out",
            ));
        }
        Ok(VirtualMachine {
            memory: total,
            cpus,
            topology,
            disks,
            swap,
            hot_plug: HotPlug::from_options(options)?,
            shares: Vec::new(),
            network: Network::from_options(options)?,
            clock: if options.icount { Clock::Instructions { seed } } else { Clock::Real },
            debugger: options.gdb.map_or(Debugger::None, |port| Debugger::Waited { port }),
            devices,
            xpfo: options.xpfo.clone(),
            numa_replica: options.numa_replica.clone(),
            calls: CallCounts::of(options),
            append: options.append.join(" "),
            watcher: None,
        })
    }

    /// One CPU and `memory` bytes: to check whether and how a kernel boots.
    pub fn small(memory: u64) -> VirtualMachine {
        VirtualMachine {
            memory,
            cpus: 1,
            topology: Topology::one(memory),
            disks: Vec::new(),
            swap: None,
            hot_plug: HotPlug::default(),
            shares: Vec::new(),
            network: None,
            clock: Clock::Real,
            debugger: Debugger::None,
            devices: Devices::Unchecked,
            xpfo: None,
            numa_replica: None,
            calls: CallCounts::Off,
            append: String::new(),
            watcher: None,
        }
    }

    /// Fails when `kernel` cannot boot with an image that takes `unpacking_bytes` while it is
    /// unpacked.
    pub fn check_memory(&self, family: Family, unpacking_bytes: u64) -> Result<()> {
        let need = (family.least_memory() + unpacking_bytes).next_multiple_of(MIB);
        if self.memory >= need {
            return Ok(());
        }
        Err(Failure::new(
            format!(
                "{} of memory is too little to boot: this needs {}",
                show_size(self.memory),
                show_size(need)
            ),
            format!("-m {}", show_size(need)),
        ))
    }

    /// Bytes that can be plugged in while it runs.
    pub fn growth(&self) -> u64 {
        self.topology.growth().map(|(_, bytes)| bytes).sum()
    }

    /// Fails if a kernel of this family cannot do what the machine requires.
    pub fn check_family(&self, family: Family) -> Result<()> {
        let (most, size) = (family.longest_command_line(), self.parameters(family).len());
        if size > most {
            return Err(Failure::new(
                format!("--append: the kernel's parameters have {size} bytes, and it takes {most} at most"),
                "leave some out",
            ));
        }
        if family == Family::Linux && self.growth() > 0 {
            return Err(Failure::new(
                "--memory-max needs the Freehold kernel: a stock Linux does not ask for memory",
                "give it all at the start with -m",
            ));
        }
        if family == Family::Linux && self.network.is_some() {
            return Err(Failure::new(
                "--net and -p need the Freehold kernel: nobody sets a stock Linux' network up",
                "leave them out",
            ));
        }
        if family == Family::Linux && self.xpfo.is_some() {
            return Err(Failure::new(
                "--xpfo needs the Freehold kernel: a stock Linux has all frames in its map",
                "leave it out",
            ));
        }
        if family == Family::Linux && self.numa_replica.is_some() {
            return Err(Failure::new(
                "--numa-replica needs the Freehold kernel: a stock Linux has its text once",
                "leave it out",
            ));
        }
        if family == Family::Linux && self.devices.iommu() == Some(IommuKind::Virtio) {
            return Err(Failure::new(
                "--iommu=virtio needs the Freehold kernel: a stock Linux has no driver for it",
                "write --iommu",
            ));
        }
        Ok(())
    }

    /// Returns the guest's path of its swap disk.
    pub fn swap_path(&self) -> Option<PathBuf> {
        self.swap.map(|_| swap::guest_path(self.disks.len()))
    }

    /// QEMU's arguments, without the program's name.
    pub fn arguments(
        &self,
        kernel: &KernelChoice,
        files: &Files<'_>,
        ports: &Ports,
        engine: Engine,
    ) -> Vec<OsString> {
        let mut line = CommandLine::default();
        let hmat = if self.topology.near_cache.is_some() { ",hmat=on" } else { "" };
        let (backing, memory) = match &self.watcher {
            None if !self.disks.iter().any(Disk::shares_memory) => (Backing::Anonymous, ""),
            None if self.topology.is_plain() => (Backing::Shared, ",memory-backend=m0"),
            None => (Backing::Shared, ""),
            Some(watcher) if self.topology.is_plain() => {
                (Backing::Files(&watcher.memory), ",memory-backend=m0")
            }
            Some(watcher) => (Backing::Files(&watcher.memory), ""),
        };
        line.option("-M", format!("q35{hmat}{memory}"));
        self.devices.arguments(&mut line);
        match (engine, self.clock) {
            // QEMU remaps the interrupts, so it must have the controller that devices write to.
            (Engine::Kvm, _) if self.devices.iommu() == Some(IommuKind::Vtd) => {
                line.option("-accel", "kvm,kernel-irqchip=split");
            }
            (Engine::Kvm, _) => line.option("-accel", "kvm"),
            (Engine::Tcg, Clock::Real) => line.option("-accel", "tcg,thread=multi"),
            (Engine::Tcg, Clock::Instructions { .. }) => line.option("-accel", "tcg"),
        }
        line.option("-cpu", cpu(self.clock));
        line.option("-smp", format!("{0},sockets={0},cores=1,threads=1", self.cpus));
        let growth = self.growth();
        let span = self.watcher.as_ref().map_or(growth, |watcher| watcher.growth_span);
        let most =
            if growth > 0 { format!(",maxmem={}", show_size(self.memory + span)) } else { String::new() };
        line.option("-m", show_size(self.memory) + &most);
        self.topology.arguments(&mut line, backing);
        line.flags(&["-nodefaults", "-no-user-config", "-no-reboot"]);
        line.option("-sandbox", SANDBOX);
        line.option("-display", "none");
        if let Clock::Instructions { seed } = self.clock {
            line.option("-icount", ICOUNT);
            line.option("-rtc", RTC);
            line.option("-seed", seed.to_string());
        }
        if let Some(watcher) = &self.watcher {
            let mut value = escape_commas(&watcher.plugin);
            value.push(",settings=");
            value.push(escape_commas(&watcher.settings));
            line.option("-plugin", value);
        }
        if let Debugger::Waited { port } = self.debugger {
            line.flags(&["-S"]);
            line.option("-gdb", format!("tcp:127.0.0.1:{port}"));
        }
        line.option("-kernel", kernel.path.as_os_str());
        line.option("-initrd", files.initramfs.as_os_str());
        line.option("-append", self.parameters(kernel.family));
        line.option("-chardev", format!("socket,id=log,{}", ports.log));
        line.option("-serial", "chardev:log");
        line.option("-device", "isa-debug-exit,iobase=0xf4,iosize=4");
        for (slot, (name, place)) in (FIRST_PORT_SLOT..).zip([
            ("stream", &ports.stream),
            ("error", &ports.error),
            ("control", &ports.control),
        ]) {
            self.port(&mut line, kernel.family, slot, (name, place));
        }
        if growth > 0 {
            self.topology.growth_arguments(&mut line, self.watcher.as_ref(), backing);
        }
        if !self.disks.is_empty() || self.swap.is_some() || self.hot_plug.has_slots() {
            // QEMU would stop the machine, until it is told to go on, when the host's disk is full.
            line.option("-global", "virtio-blk-device.werror=report");
            line.option("-global", "virtio-blk-device.rerror=report");
        }
        line.option("-chardev", format!("socket,id=monitor,{}", ports.monitor));
        line.option("-mon", "chardev=monitor,mode=control");
        for (number, disk) in self.disks.iter().enumerate() {
            disk.arguments(&mut line, number, FIRST_DISK_SLOT + number as u32);
        }
        if let (Some(swap), Some(file)) = (self.swap, files.swap) {
            let number = self.disks.len();
            swap.disk(file).arguments(&mut line, number, FIRST_DISK_SLOT + number as u32);
        }
        self.network.iter().for_each(|network| network.arguments(&mut line));
        self.hot_plug.arguments(&mut line);
        let first = FIRST_DISK_SLOT + self.disks.len() as u32 + u32::from(self.swap.is_some());
        for ((number, share), slot) in self.shares.iter().enumerate().zip(first..) {
            share.arguments(&mut line, number, slot);
        }
        line.0
    }

    /// Takes folders that the guest is to see.
    ///
    /// # Errors
    /// There are more devices than slots.
    pub fn share(&mut self, shares: Vec<FolderShare>) -> Result<()> {
        let count = self.disks.len() + usize::from(self.swap.is_some()) + shares.len();
        if count > MAX_DISKS {
            return Err(Failure::new(
                format!("{count} disks and shared folders are too many"),
                format!("at most {MAX_DISKS}; --sealed and -v HOST:GUEST:copy take no place"),
            ));
        }
        self.shares = shares;
        Ok(())
    }

    fn port(&self, line: &mut CommandLine, family: Family, slot: u32, (name, place): (&str, &str)) {
        line.option("-chardev", format!("socket,id={name}-host,{place}"));
        // Linux' driver for plain console ports writes 16 bytes at a time with interrupts off: it
        // gets ports of the other kind, on the same device.
        let (ports, device) = match family {
            Family::Freehold => (1, "virtconsole"),
            Family::Linux => (2, "virtserialport"),
        };
        // If QEMU's main loop answered the doorbell, the answer would come when the host gets to
        // it, so the time of the device's interrupt would differ between counted runs. Without
        // that, the CPU that rings the doorbell does the device's work itself, at that instruction.
        let bell = match self.clock {
            Clock::Real => "",
            Clock::Instructions { .. } => ",ioeventfd=off",
        };
        line.option(
            "-device",
            format!("virtio-serial-pci,id={name},addr={slot:#x},max_ports={ports},disable-legacy=on{bell}"),
        );
        let number = ports - 1;
        line.option("-device", format!("{device},bus={name}.0,nr={number},chardev={name}-host"));
    }

    /// The kernel's command line.
    pub fn parameters(&self, family: Family) -> String {
        let own = match (family, &self.watcher) {
            (Family::Freehold, _) => "",
            // no_timer_check: on a loaded host the check of the timer interrupt fails under
            // emulation.
            (Family::Linux, None) => "console=ttyS0 quiet panic=-1 no_timer_check rdinit=/init",
            // nokaslr: the place of the image decides which fetches are remote and which cache sets
            // it fills. Watched runs are compared, so the image stays at its place without KASLR,
            // on the first node.
            (Family::Linux, Some(_)) => "console=ttyS0 quiet panic=-1 no_timer_check rdinit=/init nokaslr",
        };
        let xpfo = self.xpfo.as_ref().map(|policy| format!("xpfo={policy}")).unwrap_or_default();
        let replica =
            self.numa_replica.as_ref().map(|nodes| format!("numa_replica={nodes}")).unwrap_or_default();
        let calls = match (family, self.calls) {
            (Family::Freehold, CallCounts::On) => "syscall_counts=on",
            _ => "",
        };
        // A debugger knows the kernel at its link address.
        let unslid = if self.debugger == Debugger::None { "" } else { "nokaslr" };
        // If an IOMMU is requested, Freehold does not start without it.
        let iommu = match (family, self.devices) {
            (Family::Linux, Devices::BehindIommu(IommuKind::Vtd) | Devices::InPlace(IommuKind::Vtd)) => {
                "intel_iommu=on"
            }
            (Family::Freehold, Devices::BehindIommu(_)) => "iommu=on",
            (Family::Freehold, Devices::InPlace(_)) => "iommu=on dma=direct",
            (Family::Linux, _) | (_, Devices::Unchecked) => "",
        };
        let patience = match (family, self.clock) {
            (Family::Freehold, Clock::Instructions { .. }) => PATIENT,
            _ => "",
        };
        [own, &xpfo, &replica, calls, unslid, iommu, patience, &self.append]
            .iter()
            .filter(|part| !part.is_empty())
            .copied()
            .collect::<Vec<_>>()
            .join(" ")
    }
}

fn parse_seed(text: &str) -> Result<u64> {
    text.parse().map_err(|_| {
        Failure::new(format!("--seed {text}: not a seed"), "a number, 0 to 18446744073709551615")
    })
}

/// Whether the kernel counts system calls, which costs each call a little.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallCounts {
    /// The kernel counts no calls.
    Off,
    /// The report shows the counts, or keeps them for machines.
    On,
}

impl CallCounts {
    fn of(options: &RunOptions) -> Self {
        if options.syscalls || options.json.is_some() { Self::On } else { Self::Off }
    }
}

/// QEMU's CPU in a machine with this clock.
pub fn cpu(clock: Clock) -> String {
    let lacks = match clock {
        Clock::Real => "",
        Clock::Instructions { .. } => UNCOUNTED,
    };
    format!("{CPU}{lacks}")
}

/// Arguments in the making.
#[derive(Default)]
pub struct CommandLine(Vec<OsString>);

impl CommandLine {
    /// `name value`.
    pub fn option(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.0.push(name.into());
        self.0.push(value.as_ref().into());
    }

    fn flags(&mut self, names: &[&str]) {
        self.0.extend(names.iter().map(OsString::from));
    }
}

/// The emulator's program.
pub fn program() -> Result<PathBuf> {
    const NAME: &str = "qemu-system-x86_64";
    let named = std::env::var_os("FREEHOLD_QEMU").filter(|path| !path.is_empty());
    if let Some(path) = named.map(PathBuf::from) {
        let what = match std::fs::metadata(&path) {
            Ok(meta) if meta.is_dir() => "a folder",
            Ok(_) if crate::program::runs(&path) => return Ok(path),
            Ok(_) => "not executable",
            Err(_) => "no such file",
        };
        return Err(Failure::new(
            format!("FREEHOLD_QEMU={}: {what}", path.display()),
            "it names a qemu-system-x86_64",
        ));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join(NAME)).find(|file| file.is_file()).ok_or_else(|| {
        Failure::new(
            format!("{NAME} is missing"),
            "apt-get install --no-install-recommends qemu-system-x86; freehold doctor checks the rest",
        )
    })
}

/// A value inside a comma-separated QEMU option: commas are doubled.
pub fn escape_commas(path: &Path) -> OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let mut bytes = Vec::new();
    for &byte in path.as_os_str().as_bytes() {
        bytes.push(byte);
        if byte == b',' {
            bytes.push(byte);
        }
    }
    OsString::from_vec(bytes)
}
