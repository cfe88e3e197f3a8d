//! The microscope as a plugin of QEMU: `-plugin libfreehold_scope.so,settings=FILE`.
//!
//! May use `unsafe`: QEMU calls through C, passes pointers, and its memory is the
//! guest's. It only connects QEMU to [`freehold_scope_engine`], which is safe code and does the
//! work.
//!
//! # What QEMU needs
//! The plugin needs emulation (TCG) of x86-64, and one memory backend for each node, shared, on a
//! file or memfd named `freehold-mN` ([`mapping`]). QEMU has to end by itself or by SIGTERM: the
//! results are written then, and not when it is killed.
//!
//! One plugin serves every version of the interface from 1 to [`LAST_INTERFACE`]. When it is
//! loaded, it names the version that it is written for ([`CHOOSE_INTERFACE`]), depending on QEMU's
//! exports. It was run with versions 1 (QEMU 7.2) and 4 (QEMU 10.0).
//! - Up to 2 (QEMU 9.0), every block that runs is a call.
//! - From 3 on (QEMU 9.1), the code that QEMU makes for a block counts it, compares its page with
//!   the last one's and its lines with those in the modelled first level of instruction caches, and
//!   calls only where one differs ([`counting`]).
//!
//! Each load and store is a call in all versions: none can compare an address without a call.
//!
//! # Where things are
//! *Instructions*: QEMU gives the host address of their bytes; the backends' mappings in this
//! process turn that into a guest-physical address. Blocks are keyed by physical page, so the
//! address is looked up once, at the translation. A block that is left early (by an exception) is
//! counted whole. *Data*: QEMU is asked once for each page that a CPU uses between two flushes.
//! Before QEMU 8.2 its answer counts the offset of a backend twice, which
//! [`freehold_scope_record::MemoryBackends::from_hw_address`] undoes. Firmware's ROMs then look
//! like a part of the second node; only firmware itself reads them. *Not visible*: accesses of the
//! CPU's page walks and of devices. An access that crosses a page is counted in its first page.
//!
//! # Doorbell
//! The marker and its messages are described in `scope/doorbell`. If QEMU cuts blocks short
//! (`-icount`), the marker may be the last instruction of a block: then the plugin waits for the
//! next block that begins behind it.
//!
//! # Which code ran
//! If only coverage is wanted ([`Subject::Code`]), a block adds to a word when it runs, and nothing
//! else is called ([`coverage`]).
//!
//! # Threads
//! Each CPU has a thread, and only that thread uses its [`Cpu`]. At the exit another thread
//! collects the CPUs. It sets `STOPPING`, makes every running thread see that (membarrier, or a
//! pause if the host has none), waits until no thread is inside a callback, and then uses all CPUs.
//! A thread that enters later returns at once.

#![allow(unsafe_code, reason = "QEMU calls through C and hands out pointers")]

mod counting;
mod coverage;
mod flags;
mod later;
mod mapping;
mod qemu;

use std::cell::UnsafeCell;
use std::collections::HashSet;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering, compiler_fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use counting::{Calls, Counter};
use freehold_scope_engine::{
    AtSite, Choice, CodePlace, Cpu, DoorbellRing, Flags, Flush, Special, Watch, finish, special, tells,
};
use freehold_scope_model::AccessKind;
use freehold_scope_record::{Emulator, Results, Settings, Subject};
use mapping::Mapped;
use qemu::{ExecCallback, Instruction, MemCallback, TranslationBlock};

/// The last version of the interface whose declarations are those used here. Version 7 changes its
/// callbacks.
const LAST_INTERFACE: u32 = 6;

/// The version of the interface that this plugin is written for, which QEMU reads before it calls
/// anything.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static qemu_plugin_version: AtomicI32 = AtomicI32::new(1);

/// Called by the loader, before QEMU looks for symbols here.
#[used]
#[unsafe(link_section = ".init_array")]
static CHOOSE_INTERFACE: extern "C" fn() = choose_interface;

extern "C" fn choose_interface() {
    let version = match later::later() {
        Some(_) => 3,
        None if later::has_scoreboards() => 2,
        None => 1,
    };
    qemu_plugin_version.store(version, Ordering::Relaxed);
}

/// Largest number of CPUs.
const MAX_CPUS: usize = 64;
/// Time that the threads may take to stop.
const PATIENCE: Duration = Duration::from_secs(10);

/// State of one CPU.
struct CpuSlot {
    /// Whether its thread is inside a callback.
    inside: AtomicBool,
    cpu: UnsafeCell<Option<Box<Cpu>>>,
    /// The operand that the guest told before a translation instruction; owned by its CPU.
    told: UnsafeCell<Option<u64>>,
}

// SAFETY: the cells are used by their CPU's thread while `inside` is set, and by the thread that
// ends QEMU when `STOPPING` is set and `inside` is not (see "Threads" above).
unsafe impl Sync for CpuSlot {}

static SLOTS: [CpuSlot; MAX_CPUS] = [const {
    CpuSlot { inside: AtomicBool::new(false), cpu: UnsafeCell::new(None), told: UnsafeCell::new(None) }
}; MAX_CPUS];
static STOPPING: AtomicBool = AtomicBool::new(false);
static STORE_BIT: AtomicU32 = AtomicU32::new(0);
/// The answer of [`qemu::size_field`].
static SIZE_AT: AtomicU32 = AtomicU32::new(0);
static SIZE_MASK: AtomicU32 = AtomicU32::new(0);
static SETTINGS: OnceLock<(Settings, u32)> = OnceLock::new();
static RUNNING: OnceLock<Running> = OnceLock::new();

/// The state once the guest runs.
struct Running {
    watch: Arc<Watch>,
    mapped: Mapped,
    callbacks: Callbacks,
    counter: Counter,
    /// The version of QEMU's plugin interface.
    interface: u32,
    /// Addresses right behind a marker that ended its block.
    pending: Mutex<HashSet<u64>>,
}

impl Running {
    fn pending(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Returns whether a block that begins at `pc` begins behind a marker that ended another block.
    fn awaits(&self, pc: u64) -> bool {
        self.pending().contains(&pc)
    }
}

/// The callbacks that are compiled for the chosen models.
#[derive(Clone, Copy)]
struct Callbacks {
    blocks: Calls,
    access: MemCallback,
}

struct Chosen<const CACHE: bool, const TLB: bool, const STORES: bool>;

impl<const C: bool, const T: bool, const S: bool> Choice for Chosen<C, T, S> {
    const CACHE: bool = C;
    const TLB: bool = T;
    const STORES: bool = S;
}

impl Callbacks {
    fn of<C: Choice>() -> Self {
        let blocks =
            Calls { block: on_block::<C>, page: on_page::<C>, look: on_look, line: on_line, smap: on_smap };
        Self { blocks, access: on_access::<C> }
    }
    fn choose(settings: &Settings) -> Self {
        let follows_stores = settings.models.residue || settings.models.sharing;
        if follows_stores { Self::with::<true>(settings) } else { Self::with::<false>(settings) }
    }
    fn with<const S: bool>(settings: &Settings) -> Self {
        match (&settings.models.cache, &settings.models.tlb) {
            (None, None) => Self::of::<Chosen<false, false, S>>(),
            (None, Some(_)) => Self::of::<Chosen<false, true, S>>(),
            (Some(_), None) => Self::of::<Chosen<true, false, S>>(),
            (Some(_), Some(_)) => Self::of::<Chosen<true, true, S>>(),
        }
    }
}

/// Prints one line for the user, who sees QEMU's stderr through the command.
fn say(words: &str) {
    eprintln!("freehold-scope: {words}");
}

/// Installs the plugin: QEMU's first call.
///
/// # Safety
/// QEMU calls this once, with the arguments of its interface.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: u64,
    info: *const qemu::Info,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    // SAFETY: QEMU's own arguments.
    let (machine, arguments) = unsafe { qemu::install_arguments(info, argc, argv) };
    match prepare(&machine, &arguments) {
        Ok(settings) => {
            // No other call sets it: QEMU installs a plugin once.
            let _ = SETTINGS.set((settings, machine.interface));
            // SAFETY: QEMU's own id.
            unsafe { qemu::register(id, on_translation, on_exit) };
            0
        }
        Err(why) => {
            say(&why);
            1
        }
    }
}

fn prepare(machine: &qemu::GuestMachine, arguments: &[String]) -> Result<Settings, String> {
    if !machine.is_x86_system {
        return Err("only whole x86-64 machines can be looked at".into());
    }
    if machine.interface > LAST_INTERFACE {
        return Err(format!(
            "QEMU's plugin interface is version {}, but only 1 to {LAST_INTERFACE} are known",
            machine.interface
        ));
    }
    let [argument] = arguments else { return Err("its only argument is settings=FILE".into()) };
    if argument == "probe=on" {
        let way = if later::later().is_some() { "in QEMU's own code" } else { "by calls" };
        let version = env!("CARGO_PKG_VERSION");
        return Err(format!("{version}, interface {}: blocks are counted {way}", machine.interface));
    }
    let path = argument.strip_prefix("settings=").ok_or("its only argument is settings=FILE")?;
    let settings = Settings::read(path.as_ref()).map_err(|error| format!("settings {path}: {error}"))?;
    settings.check().map_err(|error| format!("settings {path}: {error}"))?;
    if machine.cpus != settings.cpus.len() || machine.cpus > MAX_CPUS {
        return Err(format!("{} CPUs, but the settings describe {}", machine.cpus, settings.cpus.len()));
    }
    let bit = qemu::store_bit().ok_or("this QEMU tells stores from loads in a way that is not known")?;
    STORE_BIT.store(bit, Ordering::Relaxed);
    let (at, mask) =
        qemu::size_field().ok_or("this QEMU tells bytes of accesses in a way that is not known")?;
    SIZE_AT.store(at, Ordering::Relaxed);
    SIZE_MASK.store(mask, Ordering::Relaxed);
    Ok(settings)
}

/// Prepares the run. The guest is about to run its first instruction: memory is there.
fn start() -> Result<Running, String> {
    let (settings, interface) = SETTINGS.get().ok_or("it was not installed")?;
    let mapped = Mapped::find(&settings.memory)?;
    let watch = Watch::new(settings.clone(), Box::new(mapped.clone())).map_err(|error| error.to_string())?;
    let watch = Arc::new(watch);
    Ok(Running {
        callbacks: Callbacks::choose(settings),
        counter: Counter::choose(&watch),
        interface: *interface,
        watch,
        mapped,
        pending: Mutex::default(),
    })
}

fn running() -> &'static Running {
    RUNNING.get_or_init(|| {
        start().unwrap_or_else(|why| {
            say(&why);
            std::process::exit(1)
        })
    })
}

/// Runs `f` with a CPU, on its thread. `None` if QEMU is ending, or the machine has no such CPU.
#[inline]
fn with_cpu<R>(number: c_uint, f: impl FnOnce(&mut Cpu, &mut Option<u64>) -> R) -> Option<R> {
    let slot = SLOTS.get(number as usize)?;
    slot.inside.store(true, Ordering::Relaxed);
    // The other side's barrier orders these two accesses for the machine, so a compiler fence is
    // enough here.
    compiler_fence(Ordering::SeqCst);
    if STOPPING.load(Ordering::Relaxed) {
        slot.inside.store(false, Ordering::Release);
        return None;
    }
    // SAFETY: only this CPU's thread calls this with its number, callbacks do not nest, and QEMU is
    // not ending.
    let cpu = unsafe { &mut *slot.cpu.get() };
    // SAFETY: as above.
    let told = unsafe { &mut *slot.told.get() };
    if cpu.is_none() {
        *cpu = begin(running(), number as usize);
    }
    let result = cpu.as_deref_mut().map(|cpu| f(cpu, told));
    slot.inside.store(false, Ordering::Release);
    result
}

/// Handles a CPU's first callback.
#[cold]
fn begin(running: &Running, number: usize) -> Option<Box<Cpu>> {
    // SAFETY: it is its thread that calls.
    let board = unsafe { running.counter.board(&running.watch, number) };
    Cpu::new(Arc::clone(&running.watch), number, board).ok().map(Box::new)
}

extern "C" fn on_block<C: Choice>(number: c_uint, data: *mut c_void) {
    // SAFETY: `on_translation` registered a block that lives for ever.
    let block = unsafe { &*data.cast::<freehold_scope_engine::WatchedBlock>() };
    with_cpu(number, |cpu, _| cpu.block::<C>(block));
}

extern "C" fn on_page<C: Choice>(number: c_uint, data: *mut c_void) {
    // SAFETY: as above.
    let block = unsafe { &*data.cast::<freehold_scope_engine::WatchedBlock>() };
    with_cpu(number, |cpu, _| cpu.page::<C>(block));
}

extern "C" fn on_look(number: c_uint, _: *mut c_void) {
    with_cpu(number, |cpu, _| cpu.look());
}

extern "C" fn on_line(number: c_uint, data: *mut c_void) {
    let (line, mode) = counting::unpack(data);
    with_cpu(number, |cpu, _| cpu.line(line, mode));
}

extern "C" fn on_smap(number: c_uint, data: *mut c_void) {
    // SAFETY: as above.
    let block = unsafe { &*data.cast::<freehold_scope_engine::WatchedBlock>() };
    with_cpu(number, |cpu, _| cpu.smap(block));
}

extern "C" fn on_access<C: Choice>(number: c_uint, info: u32, address: u64, data: *mut c_void) {
    let store = info & STORE_BIT.load(Ordering::Relaxed) != 0;
    let access = if store { AccessKind::Write } else { AccessKind::Read };
    let bytes = 1 << (info >> SIZE_AT.load(Ordering::Relaxed) & SIZE_MASK.load(Ordering::Relaxed));
    with_cpu(number, |cpu, _| {
        cpu.access::<C>(data as u64, address, (access, bytes), || physical(info, address))
    });
}

#[inline(never)]
fn physical(info: u32, address: u64) -> Option<u64> {
    // SAFETY: called in the access's callback with its own arguments.
    let answer = unsafe { qemu::hw_address(info, address) }?;
    running().mapped.read_hw_address(answer)
}

extern "C" fn on_told(number: c_uint, info: u32, address: u64, _: *mut c_void) {
    with_cpu(number, |cpu, told| *told = cpu.told(physical(info, address)));
}

extern "C" fn on_ring(number: c_uint, info: u32, address: u64, data: *mut c_void) {
    let rung = with_cpu(number, |cpu, _| cpu.ring(data as u64, physical(info, address)));
    if let Some(DoorbellRing::Refused(why)) = rung {
        running().watch.remark(format!("The doorbell rang at {:#x}, but {why}.", data as u64));
    }
}

extern "C" fn on_page_flush(number: c_uint, _: *mut c_void) {
    with_cpu(number, |cpu, told| cpu.flush(Flush::Page(told.take())));
}

extern "C" fn on_space_flush(number: c_uint, data: *mut c_void) {
    with_cpu(number, |cpu, told| {
        let root = told.take();
        if let Some(root) = root {
            cpu.loads_root(data as u64, root);
        }
        cpu.flush(Flush::Space(root));
    });
}

extern "C" fn on_full_flush(number: c_uint, _: *mut c_void) {
    with_cpu(number, |cpu, _| cpu.flush(Flush::All));
}

extern "C" fn on_halt(number: c_uint, _: *mut c_void) {
    with_cpu(number, |cpu, _| cpu.halt());
}

/// Called before an INT3 at a place where the kernel patches an instruction.
extern "C" fn on_breakpoint(number: c_uint, data: *mut c_void) {
    with_cpu(number, |cpu, _| cpu.ran_at_site(data as u64, AtSite::Breakpoint));
}

/// Called before a part of an instruction at a place that the kernel patches.
extern "C" fn on_torn(number: c_uint, data: *mut c_void) {
    with_cpu(number, |cpu, _| cpu.ran_at_site(data as u64, AtSite::Torn));
}

/// Called before an instruction about RFLAGS.AC.
extern "C" fn on_flags(number: c_uint, data: *mut c_void) {
    with_cpu(number, |cpu, _| cpu.flags(flags::of(data)));
}

/// Called after such an instruction's access, and for the first instruction of a handler, with its
/// address.
extern "C" fn on_flags_access(number: c_uint, info: u32, address: u64, data: *mut c_void) {
    with_cpu(number, |cpu, _| cpu.flags_at(flags::of(data), address, || physical(info, address)));
}

extern "C" fn on_handler_push(number: c_uint, info: u32, address: u64, data: *mut c_void) {
    with_cpu(number, |cpu, _| cpu.handler_pushed(data as u64, address, || physical(info, address)));
}

extern "C" fn on_untold_page_flush(number: c_uint, _: *mut c_void) {
    with_cpu(number, |cpu, _| cpu.flush(Flush::Page(None)));
}

extern "C" fn on_untold_space_flush(number: c_uint, _: *mut c_void) {
    with_cpu(number, |cpu, _| cpu.flush(Flush::Space(None)));
}

extern "C" fn on_translation(_: u64, raw: *mut c_void) {
    // SAFETY: the callback's own argument, used until it returns.
    let block = unsafe { TranslationBlock::new(raw) };
    let running = running();
    match running.watch.settings().subject {
        Subject::Everything => translate(running, &block),
        Subject::Code => coverage::translate(running, &block),
    }
}

fn translate(running: &Running, block: &TranslationBlock<'_>) {
    let instructions = block.instructions();
    let count = instructions.len() as u64;
    let mut place: Option<CodePlace> = None;
    let mut before: Option<(Special, Instruction<'_>)> = None;
    for (index, instruction) in instructions.enumerate() {
        let pc = instruction.address();
        extend(&mut place, running, &instruction, count);
        instruction.on_access(running.callbacks.access, pc as *mut c_void);
        let bytes = instruction.bytes();
        let kind = special(&bytes);
        match running.watch.at_site(pc, &bytes) {
            Some(AtSite::Breakpoint) => instruction.before(on_breakpoint, pc as *mut c_void),
            Some(AtSite::Torn) => instruction.before(on_torn, pc as *mut c_void),
            Some(AtSite::Whole) | None => {}
        }
        let rings = match index {
            0 => running.awaits(pc),
            _ => matches!(before, Some((Special::Marker, _))),
        };
        if rings {
            instruction.on_access(on_ring, pc as *mut c_void);
        }
        if let Some(kind) = kind {
            let is_told = before.as_ref().is_some_and(|(store, _)| tells(*store, kind));
            if let (true, Some((_, store))) = (is_told, &before) {
                store.on_access(on_told, core::ptr::null_mut());
            }
            let callback: Option<ExecCallback> = match (kind, is_told) {
                (Special::Page(_), true) => Some(on_page_flush),
                (Special::Page(_), false) => Some(on_untold_page_flush),
                (Special::Root(_), true) => Some(on_space_flush),
                (Special::Root(_), false) => Some(on_untold_space_flush),
                (Special::Everything, _) => Some(on_full_flush),
                // A program's faults.
                (Special::Halt, _) => (pc >> 63 != 0).then_some(on_halt as ExecCallback),
                (Special::Marker | Special::Store(_) | Special::Flags(_), _) => None,
            };
            if let Some(callback) = callback {
                instruction.before(callback, pc as *mut c_void);
            }
            if let Special::Flags(kind) = kind {
                watch_flags(&instruction, kind, index);
            }
        }
        before = kind.map(|kind| (kind, instruction));
    }
    if let Some((Special::Marker, marker)) = before {
        let behind = marker.address() + marker.bytes().len() as u64;
        running.pending().insert(behind);
    }
    if let Some(place) = place {
        let known = running.watch.block(place);
        running.counter.count(&running.watch, running.callbacks.blocks, block, known);
    }
}

/// Makes the CPU see instructions about RFLAGS.AC: the kernel's, and the programs' SYSCALL.
fn watch_flags(instruction: &Instruction<'_>, kind: Flags, index: usize) {
    let pc = instruction.address();
    let data = flags::data(kind);
    let in_kernel = pc >> 63 != 0;
    match kind {
        Flags::Clear => instruction.before(on_flags, data),
        Flags::Set | Flags::Leave if in_kernel => instruction.before(on_flags, data),
        Flags::Push | Flags::Pop if in_kernel => instruction.on_access(on_flags_access, data),
        Flags::Return if in_kernel => {
            instruction.before(on_flags, data);
            instruction.on_access(on_flags_access, data);
        }
        Flags::Constant if in_kernel && index == 0 => {
            instruction.on_access(on_handler_push, pc as *mut c_void)
        }
        _ => {}
    }
}

/// Adds an instruction to the place of its block.
fn extend(place: &mut Option<CodePlace>, running: &Running, instruction: &Instruction<'_>, count: u64) {
    let bytes = instruction.bytes().len() as u64;
    let pc = instruction.address();
    let physical = || match instruction.host_address() {
        0 => None,
        host => running.mapped.guest_address(host),
    };
    let Some(place) = place else {
        *place = Some(CodePlace { pc, physical: physical(), bytes, further: None, instructions: count });
        return;
    };
    if pc >> 12 == place.pc >> 12 {
        place.bytes = (pc + bytes - place.pc).min(4096 - place.pc % 4096);
    } else if let Some((_, further)) = &mut place.further {
        *further += bytes;
    } else if let Some(physical) = physical() {
        place.further = Some((physical, bytes));
    }
}

extern "C" fn on_exit(_: u64, _: *mut c_void) {
    let Some(running) = RUNNING.get() else { return };
    if STOPPING.swap(true, Ordering::SeqCst) {
        return;
    }
    if !all_are_outside() {
        say("a CPU did not stop; there are no results");
        return;
    }
    let path = &running.watch.settings().result;
    let written = match running.watch.settings().subject {
        Subject::Everything => everything(running).write(path),
        Subject::Code => coverage::executed(running).write(path),
    };
    if let Err(error) = written {
        say(&format!("cannot write {}: {error}", path.display()));
    }
}

/// Returns the results of all CPUs. The CPUs are outside callbacks, and stay there.
fn everything(running: &Running) -> Results {
    let mut cpus: Vec<&mut Cpu> = Vec::new();
    for slot in &SLOTS {
        // SAFETY: QEMU is ending and no callback is inside, nor will one be: see "Threads" above.
        let cpu = unsafe { &mut *slot.cpu.get() };
        let Some(cpu) = cpu.as_deref_mut() else { continue };
        cpus.push(cpu);
    }
    let emulator = Emulator {
        cpu_seconds: cpu_seconds(),
        interface: running.interface,
        counting: running.counter.name(),
    };
    finish(&running.watch, &mut cpus, emulator)
}

/// Waits until no CPU's thread is inside a callback, and none can enter one. Returns false if a
/// thread stays inside for [`PATIENCE`].
fn all_are_outside() -> bool {
    // SAFETY: membarrier takes numbers; a kernel that does not know it says so.
    let registered = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_REGISTER, 0, 0) };
    // SAFETY: as above.
    let done = registered == 0 && unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER, 0, 0) } == 0;
    if !done {
        // Every store is visible after that time.
        std::thread::sleep(Duration::from_millis(100));
    }
    let started = Instant::now();
    while SLOTS.iter().any(|slot| slot.inside.load(Ordering::Acquire)) {
        if started.elapsed() > PATIENCE {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// MEMBARRIER_CMD_PRIVATE_EXPEDITED and its registration (linux/membarrier.h).
const MEMBARRIER: c_int = 1 << 3;
const MEMBARRIER_REGISTER: c_int = 1 << 4;

/// Returns the CPU time of this process.
fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a clock that every Linux has, and a place for its time.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
