//! `freehold scope`: a run like that of `freehold run`, watched by a QEMU plugin (scope/plugin),
//! and its results.
//!
//! The plugin gets one file of settings and writes one file of results when QEMU ends
//! (scope/record). All errors in options are found before the VM starts; files for the user appear
//! whole or not at all.

mod damo;
mod digest;
pub mod lines;
mod options;
mod owners;
mod page;
mod summary;
pub mod symbols;

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use freehold_scope_record::{HwAddress, MemoryBackends, Models, PluggableMemory, Results, Settings, Subject};
use rustix::fs::MemfdFlags;
use serde::Serialize;
use tempfile::TempDir;

use crate::args::{Accel, ScopeOptions};
use crate::coverage::{self, Watched};
use crate::failure::Failure;
use crate::kernel::Family;
use crate::outcome::RunOutcome;
use crate::qemu::{self, Engine, Watcher};
use crate::run::{self, Prepared};
use crate::session::{End, Ended, GroupMember, OutputTo, WATCHER_NAME};
use crate::{Result, dry_run, files, kernel, print, schema};
pub use digest::Digest;
use lines::SharedLines;
pub use options::model_names;
use owners::PairOwner;
use summary::Rows;
pub use summary::plural;
use symbols::{Hot, Names, Programs};

const PLUGIN: &str = "libfreehold_scope.so";
/// The guest's command that begins a phase, and its place in the image.
const PHASE: (&str, &str) = ("guest/tools/phase", "/usr/local/bin/phase");

/// The record that `--json FILE` writes.
#[derive(Serialize)]
struct ScopeRecord<'a> {
    schema: &'static str,
    /// The program and its arguments.
    command: &'a [String],
    /// The outcome, as `freehold run --json` writes it.
    outcome: &'a RunOutcome,
    /// Instructions by function, most first.
    symbols: &'a [Hot],
    /// With the sharing model: functions that store to lines of several CPUs, most first.
    shared_lines: &'a [SharedLines],
    /// The owners of the frames that evicted each other most, if the kernel told them.
    pair_owners: &'a [PairOwner],
    /// All counts.
    results: &'a Results,
}

/// Runs the program of `options` under the microscope; returns the exit status of this command.
pub fn scope(options: &ScopeOptions) -> Result<u8> {
    files::check_writable([&options.run.json, &options.html, &options.damo, &options.coverage])?;
    files::check_appendable(&options.run.json_lines)?;
    if let Some(into) = &options.coverage {
        return only_code(options, into);
    }
    let mut microscope = Microscope::new(options)?;
    let mut run = Prepared::closed(&options.run, "the microscope")?;
    if [&options.run.json, &options.html, &options.damo]
        .into_iter()
        .flatten()
        .any(|path| files::is_stdout(path))
    {
        run.output = OutputTo::Stderr;
    }
    let seen = microscope.watch(&mut run)?;
    if options.run.dry_run {
        name_files(&mut run);
        return dry_run::print_line(&options.run, &run.machine, &run.kernel);
    }
    run.ask_for_text();
    if run.machine.topology.near_cache.is_some() && run.kernel.family == Family::Freehold {
        run.ask_for_areas();
    }
    let names = Names::prepare(options.symbols.as_deref(), &run.kernel)?;
    let ended = run.run(Engine::Tcg)?;
    let mut outcome = run::conclude(&options.run, &run, Engine::Tcg, &ended)
        .map_err(|failure| explain(&microscope.plugin, &ended.words, failure))?;
    let mut results = Results::read(&seen).map_err(|error| lost(&ended.words, &error))?;
    if options.no_oracle {
        results.oracle.violations.clear();
        results.oracle.total = 0;
    }
    if results.oracle.total > 0 {
        outcome.broke_isolation(summary::verdict(&results.oracle));
    }
    let names = names.at(&results, ended.ready.as_ref());
    let hot = symbols::hot(&results, &names, &Programs::of(&run.image, &results));
    let sharing = results.sharing.as_ref();
    let shared_lines = lines::by_function(sharing.iter().flat_map(|sharing| &sharing.stores), &names);
    let command: Vec<String> =
        options.run.program.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let story = Story {
        command: &command,
        outcome: &outcome,
        hot: &hot,
        shared_lines: &shared_lines,
        pair_owners: &owners::of(&results, &ended.areas),
        names: &names,
        digest: Digest::of(&results),
        kernel: kernel_name(&ended),
    };
    write_files(options, &story)?;
    let rows = if options.phase_rows { Rows::All } else { Rows::Marked };
    print::stderr(summary::summary(&story, rows));
    if results.oracle.total > 0 {
        print::stderr(format!("freehold: {}\n", summary::verdict(&results.oracle)));
    }
    Ok(outcome.status())
}

/// Adds the code that runs to the record `into`.
fn only_code(options: &ScopeOptions, into: &Path) -> Result<u8> {
    if options.run.accel == Accel::Kvm {
        return Err(no_kvm());
    }
    let mut run = Prepared::closed(&options.run, "the microscope")?;
    let watched = Watched::new(&mut run, into.to_owned())?;
    if options.run.dry_run {
        name_files(&mut run);
        return dry_run::print_line(&options.run, &run.machine, &run.kernel);
    }
    let ended = run.run(Engine::Tcg)?;
    let (own, whole) = watched.add(&ended.words)?;
    let outcome = run::conclude(&options.run, &run, Engine::Tcg, &ended)?;
    print::stderr(format!("{}\n", coverage::line(&own, &whole)));
    Ok(outcome.status())
}

/// Replaces the real files by names, because the files exist only in this process and the command
/// line is printed.
fn name_files(run: &mut Prepared) {
    if let Some(watcher) = &mut run.machine.watcher {
        watcher.settings = "SETTINGS".into();
        watcher.memory = (0..watcher.memory.len()).map(|number| format!("MEMORY{number}")).collect();
    }
}

fn no_kvm() -> Failure {
    Failure::new("the microscope watches an emulated CPU: it cannot watch KVM", "leave --accel kvm out")
}

/// A watched measurement, for experiments.
pub struct Measurement {
    microscope: Microscope,
    run: Prepared,
    seen: PathBuf,
}

impl Measurement {
    /// Prepares everything up to the start of the VM.
    pub fn prepare(options: &ScopeOptions) -> Result<Measurement> {
        let mut microscope = Microscope::new(options)?;
        let mut run = Prepared::measurement(&options.run)?;
        let seen = microscope.watch(&mut run)?;
        Ok(Measurement { microscope, run, seen })
    }

    /// Runs the program; returns the results, and the program's output.
    pub fn run(self) -> Result<(Results, Vec<u8>)> {
        let (results, ended) = self.run_unless(None)?;
        let output = ended.into_output()?;
        Ok((results?, output))
    }

    /// As [`run`](Self::run), with the names of the kernel's functions.
    pub fn run_named(mut self) -> Result<NamedResults> {
        self.run.ask_for_text();
        let names = Names::prepare(None, &self.run.kernel)?;
        let (results, ended) = self.run_unless(None)?;
        let ready = ended.ready.clone();
        let output = ended.into_output()?;
        let results = results?;
        let names = names.at(&results, ready.as_ref());
        Ok(NamedResults { results, output, names })
    }

    /// Runs the program; returns the results, if QEMU wrote them, and the run's end. For callers
    /// that judge the end themselves, and may recall the run.
    pub fn run_unless(self, member: Option<GroupMember<'_>>) -> Result<(Result<Results>, Ended)> {
        let ended = self.run.run_unless(Engine::Tcg, member)?;
        if let End::Qemu(words) = &ended.end {
            let failure = Failure::qemu(words, words.clone());
            return Err(explain(&self.microscope.plugin, &ended.words, failure));
        }
        let results = Results::read(&self.seen).map_err(|error| lost(&ended.words, &error));
        Ok((results, ended))
    }
}

/// The results of a measurement, the program's output, and the names of the kernel's functions.
pub struct NamedResults {
    pub results: Results,
    pub output: Vec<u8>,
    pub names: Names,
}

/// The plugin and the folder where it and this command exchange files.
pub struct Microscope {
    plugin: PathBuf,
    subject: Subject,
    models: Models,
    folder: TempDir,
    /// Files with each node's memory, and each memory device's. QEMU inherits them.
    memory: Vec<OwnedFd>,
}

impl Microscope {
    /// Checks the options that need no machine.
    fn new(options: &ScopeOptions) -> Result<Microscope> {
        if options.run.accel == Accel::Kvm {
            return Err(no_kvm());
        }
        let models = options::models(options)?;
        if let Some(path) = &options.symbols {
            symbols::check(path)?;
        }
        Microscope::with(Subject::Everything, models)
    }

    /// Makes a microscope that only records which code runs.
    ///
    /// # Errors
    /// The plugin is missing.
    pub fn of_code() -> Result<Microscope> {
        Microscope::with(Subject::Code, Models::default())
    }

    fn with(subject: Subject, models: Models) -> Result<Microscope> {
        let plugin = plugin()?;
        let folder = tempfile::Builder::new()
            .prefix("freehold-scope-")
            .tempdir()
            .map_err(|e| Failure::new(format!("cannot make a temporary folder: {e}"), ""))?;
        Ok(Microscope { plugin, subject, models, folder, memory: Vec::new() })
    }

    /// Points the microscope at `run`; returns the path of its results, which are deleted with
    /// `self`.
    ///
    /// # Errors
    /// The machine's shape or the models are not supported.
    pub fn watch(&mut self, run: &mut Prepared) -> Result<PathBuf> {
        if self.subject == Subject::Everything
            && let Some(phase) = kernel::installed(PHASE.0)
        {
            run.image.add_host_at(&phase, Path::new(PHASE.1))?;
        }
        let (asked, seen) =
            (self.folder.path().join("settings.json"), self.folder.path().join("results.json"));
        let sizes = run.machine.topology.sizes();
        let growth =
            run.machine.topology.growth().map(|(node, bytes)| PluggableMemory { node, bytes }).collect();
        let memory = MemoryBackends::q35(&sizes, hw_address()?).with_growth(growth);
        let (growth_starts, growth_span) = (memory.growth_starts(), memory.devices_span());
        let cpus = run.machine.topology.nodes_of_cpus(run.machine.cpus);
        let mut settings = Settings::new(seen.clone(), memory, cpus);
        settings.subject = self.subject;
        settings.models = self.models.clone();
        options::near_cache(&mut settings.models, run.machine.topology.near_cache);
        settings.check().map_err(|e| options::refused(&e))?;
        settings.write(&asked).map_err(|e| Failure::io("write", &asked, &e))?;
        // The plugin knows nodes by the names of these files, which /proc/self/maps shows.
        self.memory = (0..sizes.len() + growth_starts.len())
            .map(|number| rustix::fs::memfd_create(format!("freehold-m{number}"), MemfdFlags::empty()))
            .collect::<std::result::Result<_, _>>()
            .map_err(|e| Failure::new(format!("cannot make the guest's memory: {e}"), ""))?;
        let memory = self.memory.iter().map(|file| format!("/proc/self/fd/{}", file.as_raw_fd())).collect();
        let plugin = self.plugin.clone();
        run.machine.watcher = Some(Watcher { plugin, settings: asked, memory, growth_starts, growth_span });
        Ok(seen)
    }
}

/// Data of the summary and the report.
struct Story<'a> {
    command: &'a [String],
    outcome: &'a RunOutcome,
    hot: &'a [Hot],
    shared_lines: &'a [SharedLines],
    pair_owners: &'a [PairOwner],
    names: &'a Names,
    digest: Digest<'a>,
    /// Name and version.
    kernel: String,
}

fn write_files(options: &ScopeOptions, story: &Story<'_>) -> Result<()> {
    let results = story.digest.results;
    let Story { command, outcome, hot: symbols, shared_lines, pair_owners, .. } = *story;
    let record =
        ScopeRecord { schema: schema::SCOPE, command, outcome, symbols, shared_lines, pair_owners, results };
    options.run.json_lines.as_ref().map_or(Ok(()), |path| files::append_line(path, &record))?;
    if let Some(path) = &options.run.json {
        let text = serde_json::to_vec(&record).map_err(|e| Failure::io("write", path, &e.into()))?;
        files::write_whole(path, &text)?;
    }
    if let Some(path) = &options.html {
        page::page(story).write(path)?;
    }
    if let Some(path) = &options.damo {
        files::write_whole(path, &damo::record(results))?;
    }
    Ok(())
}

fn kernel_name(ended: &Ended) -> String {
    let field = |name: &str| ended.ready.as_ref()?.get(name)?.as_str().map(str::to_owned);
    let parts = [field("kernel"), field("version")];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

fn plugin() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("FREEHOLD_SCOPE_PLUGIN").map(PathBuf::from) {
        if path.is_file() {
            return Ok(path);
        }
        return Err(Failure::new(format!("FREEHOLD_SCOPE_PLUGIN={}: no such file", path.display()), ""));
    }
    kernel::installed(PLUGIN).ok_or_else(|| {
        Failure::new(
            format!("{PLUGIN} is not beside this command nor in ../lib/freehold"),
            "make build makes it; FREEHOLD_SCOPE_PLUGIN=FILE names another place",
        )
    })
}

/// Loads the plugin into QEMU without a machine; returns the plugin interface and its abilities.
pub fn probe() -> Result<String> {
    let (plugin, program) = (plugin()?, qemu::program()?);
    let mut value = qemu::escape_commas(&plugin);
    value.push(",probe=on");
    let output = Command::new(&program)
        .args(["-M", "none", "-nodefaults", "-display", "none", "-plugin"])
        .arg(value)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Failure::io("start", &program, &e))?;
    let words = String::from_utf8_lossy(&output.stderr);
    let found = words.lines().find_map(|line| line.strip_prefix(WATCHER_NAME));
    found.map(str::to_owned).ok_or_else(|| explain(&plugin, &words, Failure::new(words.trim(), "")))
}

/// Returns how this QEMU reports physical addresses to a plugin: the form changed with 8.2.
fn hw_address() -> Result<HwAddress> {
    let program = qemu::program()?;
    let line = qemu::version::line(&program)?;
    let version = qemu::version::numbers(&line).ok_or_else(|| qemu::version::unknown(&program, &line))?;
    Ok(if version < (8, 2) { HwAddress::OffsetTwice } else { HwAddress::GuestPhysical })
}

/// Explains a failure of QEMU that comes from the plugin.
fn explain(plugin: &Path, words: &str, failure: Failure) -> Failure {
    let said = |part: &str| words.lines().find(|line| line.contains(part));
    if let Some(line) = words.lines().find_map(|line| line.strip_prefix(WATCHER_NAME)) {
        return Failure::new(format!("the microscope cannot watch: {line}"), "");
    }
    if said("-plugin: invalid option").or(said("plugin interface not enabled")).is_some() {
        return Failure::new(
            "this QEMU has no plugins: the microscope needs them",
            "Debian's qemu-system-x86 has; FREEHOLD_QEMU=FILE names another",
        );
    }
    if let Some(line) = said("Could not load plugin").or(said("plugin")) {
        let why = line.rsplit_once(&format!("{}: ", plugin.display())).map_or(line, |(_, why)| why);
        return Failure::new(
            format!("cannot load the plugin {}: {}", plugin.display(), why.trim()),
            "make build builds the one that fits",
        );
    }
    failure
}

/// Returns the failure for a VM that ran without results.
fn lost(words: &str, error: &freehold_scope_record::ReadError) -> Failure {
    let said = words.lines().rev().find_map(|line| line.strip_prefix(WATCHER_NAME));
    match said {
        Some(line) => Failure::new(format!("the microscope's results are lost: {line}"), ""),
        None => Failure::new(
            format!("the microscope's results are lost: {error}"),
            "QEMU did not end in order, or the disk is full",
        ),
    }
}

#[cfg(test)]
pub use tests::sample;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the record with which scope/record is tested.
    pub fn sample() -> Results {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scope/record/tests/sample.json");
        Results::read(&path).expect("a record")
    }

    /// Calls `tell` with a story of sample results; returns its result.
    pub fn with_story<T>(tell: impl FnOnce(&Story<'_>) -> T) -> T {
        let results = sample();
        let names = Names::none();
        let hot = symbols::hot(&results, &names, &Programs::default());
        let outcome = RunOutcome::of_failure(&Failure::new("", ""));
        tell(&Story {
            command: &["/bin/busybox".into(), "ls".into()],
            outcome: &outcome,
            hot: &hot,
            shared_lines: &lines::by_function([], &names),
            pair_owners: &[],
            names: &names,
            digest: Digest::of(&results),
            kernel: "Freehold 0.1.0".into(),
        })
    }

    #[test]
    fn a_failure_of_the_plugin_is_told_in_one_line_of_ours() {
        let path = Path::new("/x/libfreehold_scope.so");
        let told = |words: &str| explain(path, words, Failure::new("other", "")).to_string();
        let line = told(
            "qemu-system-x86_64: Could not load plugin /x/libfreehold_scope.so: /x/libfreehold_scope.so: wrong ELF class: ELFCLASS32\n",
        );
        assert!(line.contains("wrong ELF class") && line.contains("make build"), "{line}");
        assert!(told("qemu-system-x86_64: -plugin: invalid option\n").contains("no plugins"));
        assert!(told("freehold-scope: no memory mapping found\n").contains("no memory mapping found"));
        assert_eq!(told("something else"), "other");
    }
}
