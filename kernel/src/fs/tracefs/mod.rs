//! tracefs (/sys/kernel/tracing): tracepoints are turned on here, and their records read.
//!
//! Only root has access: the root directory has mode 0700, and user namespaces cannot mount the
//! file system. `freehold_tracepoints::table` lists the fields of records. The only text from
//! programs in them is a thread's name, and text that root itself writes into `trace_marker`.
//!
//! Not supported, so their files are absent: filters, triggers, histograms, `trace_pipe_raw`,
//! function tracers.

mod buffers;
mod events;
mod kprobes;
mod pipe;

use freehold_collections::{Arc, reserve};
use freehold_machine::Cpus;

use super::device::unnamed_device;
use super::generated::{Generate, Text};
use super::mount::{FileSystem, FsStats};
use super::node::Node;
use super::pseudo::{PseudoDir, Refusal};
use crate::hw::Hardware;
use crate::sync::SpinLock;
use crate::tracing::{self, Switch, Which};
use crate::{Errno, Result, sched};

pub use events::{enable_numbered, enable_selected, turn_all};
pub use pipe::TraceReader;

/// Root may read and write.
const CHANGEABLE: u32 = 0o640;
/// Root may read.
const READABLE: u32 = 0o440;

/// The one tracefs, however often it is mounted.
struct TraceFs {
    device: u64,
    root: Arc<PseudoDir>,
}

static INSTANCE: SpinLock<Option<Arc<TraceFs>>> = SpinLock::new(None);

/// Returns the file system; makes it at the first call.
pub fn instance() -> Result<Arc<dyn FileSystem>> {
    if let Some(there) = INSTANCE.lock().as_ref() {
        return Ok(there.clone());
    }
    let device = unnamed_device();
    let root = PseudoDir::new_root(device, Refusal::NotPermitted);
    root.set_mode(0o700);
    fill(&root);
    if !root.is_complete() {
        return Err(Errno::ENOMEM);
    }
    let new = reserve::arc(TraceFs { device, root });
    Ok(INSTANCE.lock().get_or_insert(new).clone())
}

impl FileSystem for TraceFs {
    fn name(&self) -> &'static str {
        "tracefs"
    }

    fn device(&self) -> u64 {
        self.device
    }

    fn root(&self) -> Arc<dyn Node> {
        self.root.clone()
    }

    fn stats(&self) -> FsStats {
        FsStats { magic: 0x7472_6163, block_size: 4096, ..FsStats::default() }
    }
}

fn fill(root: &Arc<PseudoDir>) {
    events::fill(root);
    kprobes::fill(root);
    root.generated("trace", CHANGEABLE, buffers::Trace(Which::All));
    pipe::add(root, Which::All);
    root.generated("tracing_on", 0o644, TracingOn);
    root.generated("buffer_size_kb", CHANGEABLE, buffers::Size);
    root.generated("buffer_total_size_kb", READABLE, buffers::total_size);
    root.generated("trace_marker", 0o220, buffers::Marker);
    root.generated("current_tracer", CHANGEABLE, OneChoice("nop", "nop"));
    root.generated("available_tracers", READABLE, constant("nop"));
    root.generated("trace_clock", CHANGEABLE, OneChoice("local", "[local]"));
    root.generated("trace_options", CHANGEABLE, Options);
    let options = root.dir(b"options");
    for &(name, state) in OPTIONS {
        options.generated(name, 0o644, OptionFile(state));
    }
    for cpu in 0..Hardware.cpu_count() {
        let dir = root.dirs(format_args!("per_cpu/cpu{cpu}"));
        dir.generated("trace", CHANGEABLE, buffers::Trace(Which::Cpu(cpu)));
        pipe::add(&dir, Which::Cpu(cpu));
        dir.generated("stats", READABLE, buffers::Stats(cpu));
        dir.generated("buffer_size_kb", READABLE, |out: &mut Text| buffers::Size.show(out));
    }
}

/// Checks for signals between two steps of work whose length a program chooses.
fn step() -> Result<()> {
    sched::checkpoint()
}

fn constant(text: &'static str) -> impl Fn(&mut Text) -> Result<()> + Send + Sync {
    move |out| {
        writeln!(out, "{text}");
        Ok(())
    }
}

/// Parses the number that a program wrote.
fn number(bytes: &[u8]) -> Result<u64> {
    let text = core::str::from_utf8(bytes.trim_ascii()).map_err(|_| Errno::EINVAL)?;
    text.parse().map_err(|_| Errno::EINVAL)
}

/// Whether records are written.
struct TracingOn;

impl Generate for TracingOn {
    fn show(&self, out: &mut Text) -> Result<()> {
        writeln!(out, "{}", u8::from(tracing::switch() == Switch::On));
        Ok(())
    }
    fn store(&self, bytes: &[u8]) -> Result<()> {
        tracing::set_switch(if number(bytes)? == 0 { Switch::Off } else { Switch::On });
        Ok(())
    }
}

/// A setting with one possible value: the word that a program can write, and the text that it
/// reads.
struct OneChoice(&'static str, &'static str);

impl Generate for OneChoice {
    fn show(&self, out: &mut Text) -> Result<()> {
        writeln!(out, "{}", self.1);
        Ok(())
    }
    fn store(&self, bytes: &[u8]) -> Result<()> {
        if bytes.trim_ascii() == self.0.as_bytes() { Ok(()) } else { Err(Errno::EINVAL) }
    }
}

/// Options that tools know. Each has only one state here.
const OPTIONS: &[(&str, OptionState)] = &[
    ("context-info", OptionState::On),
    ("irq-info", OptionState::Off),
    ("markers", OptionState::On),
    ("overwrite", OptionState::On),
    ("pause-on-trace", OptionState::Off),
    ("record-cmd", OptionState::On),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum OptionState {
    On,
    Off,
}

struct Options;

impl Generate for Options {
    fn show(&self, out: &mut Text) -> Result<()> {
        for (name, state) in OPTIONS {
            writeln!(out, "{}{name}", if *state == OptionState::On { "" } else { "no" });
        }
        Ok(())
    }
    fn store(&self, bytes: &[u8]) -> Result<()> {
        let name = bytes.trim_ascii();
        let is_so = |&(known, state): &(&str, OptionState)| match state {
            OptionState::On => name == known.as_bytes(),
            OptionState::Off => name.strip_prefix(b"no") == Some(known.as_bytes()),
        };
        if OPTIONS.iter().any(is_so) { Ok(()) } else { Err(Errno::EINVAL) }
    }
}

struct OptionFile(OptionState);

impl Generate for OptionFile {
    fn show(&self, out: &mut Text) -> Result<()> {
        writeln!(out, "{}", u8::from(self.0 == OptionState::On));
        Ok(())
    }
    fn store(&self, bytes: &[u8]) -> Result<()> {
        let wanted = match bytes.trim_ascii() {
            b"0" => OptionState::Off,
            b"1" => OptionState::On,
            _ => return Err(Errno::EINVAL),
        };
        if wanted == self.0 { Ok(()) } else { Err(Errno::EINVAL) }
    }
}
