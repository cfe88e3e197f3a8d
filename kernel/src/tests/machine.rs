//! A kernel in a separate process: the test's executable, started again with the test's name.

use std::boxed::Box;
use std::process::Command;
use std::string::String;
use std::vec::Vec;
use std::{env, eprintln, format, process};

use freehold_collections::{Arc, reserve};
use freehold_machine::model::Model;
use freehold_machine::{CpuId, NodeId, Pfn, PfnRange, Topology};

use super::disk::{MemoryDisk, Nowhere};
use super::elf;
use super::program::{self, Main};
use crate::dev::{stdio, stream::HostStream};
use crate::host::spec::Spec;
use crate::host::{self, Ending};
use crate::socket::attachment::Attachment;
use crate::sync::WaitQueue;
use crate::{boot, cmdline, fs, klog, report, sched, swap, task};

/// Environment variable that tells the process to act as the machine.
const VARIABLE: &str = "FREEHOLD_TEST_MACHINE";

/// Parts of the machine.
pub struct Setup {
    /// Number of frames of each node.
    pub nodes: &'static [u64],
    /// Number of frames that can be plugged in, after the others.
    pub pluggable: u64,
    /// The kernel's command line.
    pub command_line: &'static str,
    /// Its disks, vda first.
    pub disks: fn() -> Vec<&'static MemoryDisk>,
    /// The host's folders.
    pub folders: fn() -> freehold_collections::Vec<host::Folder>,
    /// Programs in addition to the first: /bin/1 and so on.
    pub programs: &'static [Main],
    /// The disk to swap to.
    pub swap: Option<&'static str>,
    /// The directory that lies over the host's folder `memory`.
    pub below: Option<&'static str>,
    /// The expected message of the closing audit; `None`: the audit is not run.
    pub audit: Option<&'static str>,
    /// The network that it is connected to.
    pub network: Option<fn() -> Attachment>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            nodes: &[16 << 10],
            pluggable: 0,
            command_line: "",
            disks: Vec::new,
            folders: freehold_collections::Vec::new,
            programs: &[],
            swap: None,
            below: None,
            audit: None,
            network: None,
        }
    }
}

/// Makes a disk that exists as long as the machine.
pub fn disk(pages: usize) -> &'static MemoryDisk {
    Box::leak(Box::new(MemoryDisk::new(pages)))
}

/// Runs `main` as the first program of a separate kernel. `name` is the test's. The test fails if
/// the program or the kernel fails.
pub fn run(name: &str, setup: Setup, main: Main) {
    if env::var_os(VARIABLE).is_some() {
        start(setup, main);
    }
    let name = name.split_once("::").expect("a path begins with the crate").1;
    let this = env::current_exe().expect("a test knows its executable");
    let machine = Command::new(this)
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(VARIABLE, "1")
        .output()
        .expect("a process can be started");
    let said = String::from_utf8_lossy(&machine.stderr);
    assert!(machine.status.success(), "the machine ends with {}:\n{said}", machine.status);
}

fn topology(setup: &Setup) -> Topology {
    let mut topology = Topology::new(setup.nodes.len()).unwrap();
    let mut first = 0;
    for (&frames, node) in setup.nodes.iter().zip(0..) {
        topology.add_range(PfnRange::new(Pfn(first), Pfn(first + frames)), NodeId(node)).unwrap();
        first += frames;
    }
    if setup.pluggable > 0 {
        let frames = PfnRange::new(Pfn(first), Pfn(first + setup.pluggable));
        topology.add_pluggable_range(frames, NodeId(0)).unwrap();
    }
    topology.set_cpu_node(CpuId(0), NodeId(0)).unwrap();
    topology
}

fn start(setup: Setup, main: Main) -> ! {
    let topology = topology(&setup);
    let usable = topology.ranges().iter().map(|range| range.frames).collect::<Vec<_>>();
    crate::hw::start_machine(Model::with_topology(topology.clone(), 1, 1));
    klog::init(log::LevelFilter::Info);
    let settings = cmdline::parse(setup.command_line, |problem| panic!("{problem}"));
    log::set_max_level(settings.log_level);
    let read = freehold_firmware::read(&|_, _| None, None, 0, usable, &mut |_| {});
    let firmware = reserve::leaked(read);
    firmware.topology = topology;
    program::begin(main, setup.programs);
    boot::raise(settings, firmware, (setup.command_line, 1));
    let disks = (setup.disks)();
    let mut all = freehold_collections::Vec::new();
    for disk in disks {
        all.try_push(reserve::arc(disk) as host::Disk).unwrap();
    }
    host::init_with(all, (setup.folders)());
    sched::spawn_kernel("start", move || life(&setup)).unwrap();
    sched::idle_forever()
}

/// Does the work of `boot::start` with a test's setup.
fn life(setup: &Setup) {
    let files = (0..=setup.programs.len())
        .map(|index| (format!("bin/{index}"), elf::executable(index)))
        .collect::<Vec<_>>();
    let files = files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect::<Vec<_>>();
    fs::initramfs::unpack(&elf::archive(&files), &fs::root::root()).unwrap();
    let below = setup.below.map_or(String::new(), |place| format!("share=memory:below:{place}\0"));
    let spec = Spec::parse(format!("exec=/bin/0\0arg=main\0env=HOME=/\0{below}").as_bytes()).unwrap();
    if let Err(failure) = boot::furnish(&spec.shares) {
        panic!("{failure}");
    }
    let nowhere = || HostStream::new(reserve::arc(Nowhere), reserve::arc(WaitQueue::new()));
    stdio::init(stdio::Streams { standard: nowhere(), error: nowhere() });
    host::hotplug::start().unwrap();
    crate::mem::khugepaged::mode_changed().unwrap();
    if let Some(attached) = setup.network {
        boot::attach(attached()).unwrap();
    }
    if let Some(device) = setup.swap {
        swap::on_at_boot(device.as_bytes());
    }
    let ending = task::init::run(spec);
    eprintln!("the first program ended: {ending:?}");
    if let Some(expected) = setup.audit {
        assert_eq!(report::audit(), expected);
    }
    process::exit(if ending == Ending::Exit(0) { 0 } else { 1 })
}

/// Starts a test in a machine.
macro_rules! on_machine {
    ($(#[doc = $doc:literal])* $name:ident, $setup:expr, $main:expr) => {
        $(#[doc = $doc])*
        #[test]
        fn $name() {
            $crate::tests::machine::run(concat!(module_path!(), "::", stringify!($name)), $setup, $main);
        }
    };
}
pub(super) use on_machine;
