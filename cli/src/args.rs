//! The command line. One source for parsing, `--help`, shell completion and the man page.

mod complete;
mod container;
mod diff;
mod events;
mod habits;
mod help;
mod learn;
mod manual;
mod network;
mod owns;
mod scope;
mod sweep;
mod values;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use crate::failure::{Failure, OWN_ERROR};
use crate::terminal::Streams;
use crate::{Result, print};
pub use complete::print_completion;
pub use container::ContainerOptions;
pub use diff::DiffOptions;
pub use events::EventOptions;
use habits::HABITS;
use help::{
    BENCH_HELP, COMPLETION_HELP, COVERAGE_HELP, DIFF_HELP, DOCTOR_HELP, LAB_HELP, MAN_HELP, OWNS_HELP,
    RUN_HELP, SCOPE_HELP, SWEEP_HELP,
};
pub use learn::LearnOptions;
pub use manual::print_man;
pub use network::{NetworkMode, NetworkOptions};
pub use owns::{OwnerOptions, OwnsOptions};
pub use scope::{CoverageOptions, ScopeOptions};
pub use sweep::{SweepOptions, SweepRunner};

#[derive(Parser)]
#[command(
    name = "freehold",
    version,
    about = "Run an unmodified Linux program in a microVM on the Freehold kernel",
    after_help = "Start with:  freehold run -- busybox echo hello\nThen:        freehold doctor      what is installed and what will be used"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The subcommand that the user chose, with its options.
#[derive(Subcommand)]
pub enum Command {
    /// Run a program in a microVM, with its streams and its exit status
    #[command(after_help = RUN_HELP, override_usage = "freehold run [OPTIONS] -- PROGRAM [ARGS]...\n       freehold run --image FILE [OPTIONS] [-- ARGS...]")]
    Run(Box<RunOptions>),
    /// Run a program under a microscope: cache conflicts, TLB lifetimes, remote memory, page heat
    #[command(
        after_help = SCOPE_HELP,
        override_usage = "freehold scope [OPTIONS] -- PROGRAM [ARGS]...",
        mut_arg("json", |arg| arg.help("Write everything that was seen, for machines, to FILE"))
    )]
    Scope(Box<ScopeOptions>),
    /// Tell which of the kernel's code ran, from the records of freehold scope --coverage
    #[command(after_help = COVERAGE_HELP)]
    Coverage(CoverageOptions),
    /// Compare what operations cost on two kernels, or on one kernel with two command lines
    #[command(after_help = BENCH_HELP)]
    Bench(Box<BenchOptions>),
    /// Repeat an experiment: one question, one command, one report
    #[command(after_help = LAB_HELP)]
    Lab(LabOptions),
    /// Make many runs: kernels × parameters × programs × machines × seeds, each once
    #[command(after_help = SWEEP_HELP)]
    Sweep(SweepOptions),
    /// Compare two records that run, bench, lab or scope wrote with --json
    #[command(after_help = DIFF_HELP)]
    Diff(DiffOptions),
    /// Tell whose a frame of a running VM is, or what frames a process has
    #[command(after_help = OWNS_HELP)]
    Owns(OwnsOptions),
    /// Say what is installed, whether KVM really works, and how to fix problems
    #[command(after_help = DOCTOR_HELP)]
    Doctor(DoctorOptions),
    /// Print a completion script for a shell
    #[command(after_help = COMPLETION_HELP)]
    Completion {
        /// The shell to complete in
        shell: clap_complete::Shell,
    },
    /// Print a manual page (roff)
    #[command(after_help = MAN_HELP)]
    Man {
        /// The subcommand whose page it is; the whole command's without
        #[arg(value_parser = manual::PAGES)]
        topic: Option<String>,
    },
    /// Print the version
    Version,
}

/// Kind of an IOMMU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum IommuKind {
    /// Intel VT-d, which remaps interrupts too.
    Vtd,
    /// A virtio device.
    Virtio,
}

/// How disks get a program's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Dma {
    /// Through bounce buffers: each transfer is copied.
    Bounce,
    /// In their places, behind an IOMMU.
    Direct,
}

/// How the virtual CPUs run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Accel {
    /// KVM when a guest proves that it works, else TCG
    Auto,
    /// QEMU's emulator: works everywhere
    Tcg,
    /// Hardware virtualisation
    Kvm,
}

/// When something optional is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum When {
    /// On a terminal, and with --verbose
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// Options of `freehold run`, and of the commands that run a program as it does.
#[derive(Args, Clone, Debug)]
#[allow(missing_docs)] // The help text that clap makes of each line below is the documentation.
pub struct RunOptions {
    /// The program (found on the VM's PATH, or this shell's) and its arguments
    #[arg(value_name = "PROGRAM", required_unless_present = "image", trailing_var_arg = true)]
    pub program: Vec<OsString>,

    /// Memory of the VM: 512M, 1G [default: 256M]
    #[arg(short, long, value_name = "SIZE", allow_hyphen_values = true, help_heading = "Machine")]
    pub memory: Option<String>,

    /// Let the VM grow to SIZE while it runs, as its programs need it, and shrink again
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, help_heading = "Machine")]
    pub memory_max: Option<String>,

    /// Number of CPUs (1 to 16)
    #[arg(long, value_name = "N", default_value = "1", allow_hyphen_values = true, help_heading = "Machine")]
    pub cpus: String,

    /// Split memory and CPUs evenly over N NUMA nodes
    #[arg(long, value_name = "N", help_heading = "Machine")]
    pub numa: Option<String>,

    /// One NUMA node: mem=256M,cpus=0-1 (repeat for each node; cpus or mem may be missing); max=1G
    /// lets it grow
    #[arg(long, value_name = "SPEC", conflicts_with = "numa", help_heading = "Machine")]
    pub node: Vec<String>,

    /// Distance D (10 to 254) between nodes A and B: A,B,D
    #[arg(long, value_name = "A,B,D", help_heading = "Machine")]
    pub distance: Vec<String>,

    /// A direct-mapped memory-side cache of SIZE for every node, published in HMAT
    #[arg(long, value_name = "SIZE[,line=64]", help_heading = "Machine")]
    pub near_cache: Option<String>,

    /// A raw disk: /dev/vda, /dev/vdb…; ro = read-only, iops=N = slow on purpose; vhost-user=SOCKET
    /// = served by another process; null=SIZE[,latency=TIME] = keeps nothing, and answers after
    /// TIME
    #[arg(long, value_name = "FILE[,ro][,iops=N]", help_heading = "Machine")]
    pub disk: Vec<OsString>,

    /// Let the VM swap to a disk of SIZE, a sparse temporary file (in TMPDIR); iops=N = slow on
    /// purpose
    #[arg(long, value_name = "SIZE[,iops=N]", help_heading = "Machine")]
    pub swap: Option<String>,

    /// Add N (1 to 8) empty slots, slot0, slot1…, which disks are plugged into while the VM runs
    /// (--qmp)
    #[arg(long, value_name = "N", help_heading = "Machine")]
    pub slots: Option<String>,

    /// Let others tell QEMU what to do: its monitor (QMP) listens at SOCKET, a path
    #[arg(long, value_name = "SOCKET", help_heading = "Machine")]
    pub qmp: Option<PathBuf>,

    #[command(flatten)]
    pub owners: OwnerOptions,

    /// How to run the CPUs
    #[arg(long, value_enum, default_value = "auto", help_heading = "Machine")]
    pub accel: Accel,

    /// Count instructions: repeatable runs, one CPU, TCG
    #[arg(long, help_heading = "Machine")]
    pub icount: bool,

    /// With --icount: another boot, whose random numbers begin with N (1 if not given)
    #[arg(long, value_name = "N", requires = "icount", allow_hyphen_values = true, help_heading = "Machine")]
    pub seed: Option<String>,

    /// Add a host file or folder at the same path; a program comes with its libraries
    #[arg(short, long, value_name = "PATH", help_heading = "Files and environment")]
    pub add: Vec<PathBuf>,

    /// Show a host folder at another path, as it is and read-only; :rw lets the guest make and
    /// change there all that this user may (set-user-ID programs of this user too); :copy gives a
    /// copy instead, as files always are
    #[arg(
        short = 'v',
        long = "volume",
        value_name = "HOST:GUEST[:rw|copy]",
        help_heading = "Files and environment"
    )]
    pub volume: Vec<OsString>,

    /// See nothing of the host but copies: the program, the libraries that it names, and what -a
    /// and -v add (so it is with --icount and a stock Linux)
    #[arg(long, conflicts_with = "root", help_heading = "Files and environment")]
    pub sealed: bool,

    /// Use a tree of the host as the guest's root, where PROGRAM is looked for: the VM sees it as
    /// it is, and what it changes there is in its memory only (--icount and a stock Linux get a
    /// copy)
    #[arg(long, value_name = "DIR", help_heading = "Files and environment")]
    pub root: Option<PathBuf>,

    /// Keep what programs change in DIR when they have ended, and begin with what an earlier run
    /// kept there
    #[arg(long, value_name = "DIR", help_heading = "Files and environment")]
    pub changes: Option<PathBuf>,

    /// Set an environment variable; -e K takes the host's value
    #[arg(short, long, value_name = "K=V", help_heading = "Files and environment")]
    pub env: Vec<OsString>,

    #[command(flatten)]
    pub list: LearnOptions,

    #[command(flatten)]
    pub container: ContainerOptions,

    #[command(flatten)]
    pub network: NetworkOptions,

    /// The program's working directory in the guest [default: /]
    #[arg(long, value_name = "DIR", help_heading = "Files and environment")]
    pub cwd: Option<PathBuf>,

    /// Run the program as this user, by number, without supplementary groups [default: 0:0, which
    /// is root]
    #[arg(
        long,
        value_name = "UID[:GID]",
        allow_hyphen_values = true,
        help_heading = "Files and environment"
    )]
    pub user: Option<String>,

    /// freehold, linux (Debian's cloud kernel, fetched once) or a kernel file
    #[arg(long, value_name = "KERNEL", default_value = "freehold", help_heading = "Kernel")]
    pub kernel: OsString,

    /// More kernel parameters, in Linux' syntax
    #[arg(long, value_name = "PARAMETERS", allow_hyphen_values = true, help_heading = "Kernel")]
    pub append: Vec<String>,

    /// Keep frames of programs out of the kernel's map: off, lap, on (the default) or strict
    #[arg(long, value_name = "POLICY", value_parser = ["off", "lap", "on", "strict"], help_heading = "Kernel")]
    pub xpfo: Option<String>,

    /// Copy the kernel's text to nodes that have CPUs: to each (on), to none (off), to at most N;
    /// auto (the default): to each, where there are several
    #[arg(long, value_name = "auto|on|off|N", value_parser = values::numa_replica, help_heading = "Kernel")]
    pub numa_replica: Option<String>,

    /// Put an IOMMU (vtd: Intel VT-d, the default; virtio) between devices and memory: a device
    /// reaches what the kernel gives it, and nothing else
    #[arg(
        long,
        value_enum,
        value_name = "KIND",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "vtd",
        help_heading = "Machine"
    )]
    pub iommu: Option<IommuKind>,

    /// How disks get a program's bytes: copied (bounce), or in their places for the time of the
    /// transfer (direct, with --iommu)
    #[arg(long, value_enum, default_value = "bounce", help_heading = "Machine")]
    pub dma: Dma,

    /// Wait for a debugger on this machine's TCP port PORT (1234) before the first instruction; the
    /// kernel is not slid
    #[arg(
        long,
        value_name = "PORT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1234",
        value_parser = values::port,
        help_heading = "Kernel"
    )]
    pub gdb: Option<u16>,

    /// Kill the VM after TIME, in seconds or as 90s, 2m (exit status 124)
    #[arg(long, value_name = "TIME", allow_hyphen_values = true, help_heading = "Outcome")]
    pub timeout: Option<String>,

    /// Write the outcome for machines to FILE
    #[arg(long, value_name = "FILE", help_heading = "Outcome")]
    pub json: Option<PathBuf>,

    /// Append the outcome to FILE, in one line: a file for many runs
    #[arg(long, value_name = "FILE", help_heading = "Outcome")]
    pub json_lines: Option<PathBuf>,

    /// Count system calls and print a summary at the end
    #[arg(long, help_heading = "Outcome")]
    pub syscalls: bool,

    #[command(flatten)]
    pub events: EventOptions,

    /// When to print what the program's memory did
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto", help_heading = "Outcome")]
    pub report: When,

    /// Print the QEMU command line and stop
    #[arg(long, help_heading = "Outcome")]
    pub dry_run: bool,

    /// Print the kernel log (to stderr), and name kernel addresses where a panic is reported
    #[arg(long, help_heading = "Outcome")]
    pub verbose: bool,
}

impl RunOptions {
    /// Returns whether the closing report is shown.
    pub fn shows_report(&self) -> bool {
        match self.report {
            When::Always => true,
            When::Never => false,
            When::Auto => {
                let streams = Streams::now();
                self.verbose || (streams.error && streams.output)
            }
        }
    }
}

/// Options of `freehold doctor`.
#[derive(Args, Clone, Debug)]
#[allow(missing_docs)] // The help text that clap makes of each line below is the documentation.
pub struct DoctorOptions {
    /// Write the findings, for machines, to FILE (- is stdout)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Options of `freehold bench`.
#[derive(Args, Clone, Debug, Default)]
#[allow(missing_docs)] // The help text that clap makes of each line below is the documentation.
pub struct BenchOptions {
    /// Rows to measure: a name, or its beginning and * [default: all]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,

    /// Name the rows and stop
    #[arg(long)]
    pub list: bool,

    /// The first side: freehold, linux or a kernel file [default: freehold]
    #[arg(long, value_name = "KERNEL", help_heading = "Sides")]
    pub kernel: Option<OsString>,

    /// The other side; a Linux is shown lean (init_on_alloc=0) and as it boots [default: linux]
    #[arg(long, value_name = "KERNEL", help_heading = "Sides")]
    pub against: Option<OsString>,

    /// More kernel parameters for the first side
    #[arg(long, value_name = "PARAMETERS", allow_hyphen_values = true, help_heading = "Sides")]
    pub append: Vec<String>,

    /// More kernel parameters for the other side; without --against it is the first side's kernel
    #[arg(long, value_name = "PARAMETERS", allow_hyphen_values = true, help_heading = "Sides")]
    pub against_append: Vec<String>,

    /// Count guest instructions, on one CPU [default]
    #[arg(long, conflicts_with = "wall", help_heading = "Measurement")]
    pub icount: bool,

    /// With counted instructions: another boot, with other layouts, whose random numbers begin with
    /// N [default: 1]
    #[arg(long, value_name = "N", conflicts_with = "wall", help_heading = "Measurement")]
    pub seed: Option<String>,

    /// Take the host's time, with one worker and with as many as CPUs
    #[arg(long, help_heading = "Measurement")]
    pub wall: bool,

    /// VMs started on each side [default: 2; with --wall 5]
    #[arg(long, value_name = "N", help_heading = "Measurement")]
    pub runs: Option<String>,

    /// CPUs of the VM, with --wall [default: the host's, at most 4]
    #[arg(long, value_name = "N", help_heading = "Measurement")]
    pub cpus: Option<String>,

    /// Memory of the VM [default: 1G]
    #[arg(short, long, value_name = "SIZE", help_heading = "Measurement")]
    pub memory: Option<String>,

    /// How to run the CPUs, with --wall [default: auto]
    #[arg(long, value_enum, conflicts_with = "icount", help_heading = "Measurement")]
    pub accel: Option<Accel>,

    /// Fewer samples of fewer operations: under a minute
    #[arg(long, help_heading = "Measurement")]
    pub quick: bool,

    /// Give up on a VM after TIME, in seconds or as 90s, 2m [default: 600]
    #[arg(long, value_name = "TIME", help_heading = "Measurement")]
    pub timeout: Option<String>,

    /// Write all figures, for machines, to FILE
    #[arg(long, value_name = "FILE", help_heading = "Outcome")]
    pub json: Option<PathBuf>,

    /// Write a line for each row and side, for spreadsheets, to FILE (- is stdout)
    #[arg(long, value_name = "FILE", conflicts_with = "list", help_heading = "Outcome")]
    pub csv: Option<PathBuf>,

    /// Write a report to look at: one file, no network
    #[arg(long, value_name = "FILE", help_heading = "Outcome")]
    pub html: Option<PathBuf>,
}

/// Options of `freehold lab`.
#[derive(Args, Clone, Debug)]
#[allow(missing_docs)] // The help text that clap makes of each line below is the documentation.
pub struct LabOptions {
    /// The experiment [default: name them all]
    #[arg(value_name = "NAME")]
    pub name: Option<String>,

    /// Name the experiments and stop
    #[arg(long, conflicts_with = "name")]
    pub list: bool,

    /// A short run that shows that it works
    #[arg(long)]
    pub quick: bool,

    /// How many boots to look at, where boots differ [default: the experiment's own number]
    #[arg(long, value_name = "N")]
    pub boots: Option<String>,

    /// Write the report to FILE: one file, no network
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Write all figures, for machines, to FILE
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Write a line for each figure, for spreadsheets, to FILE (- is stdout)
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
}

/// Parses the process's arguments. `Err` holds the exit status when there is nothing left to do:
/// 0 after `--help`, 125 after a wrong command line (already printed, in one line).
pub fn parse() -> std::result::Result<Command, u8> {
    match Cli::try_parse() {
        Ok(cli) => Ok(cli.command),
        Err(error) if !error.use_stderr() => {
            Err(error.print().map_or_else(|error| print::refused(&error).exit(), |()| 0))
        }
        Err(error) => {
            let text = error.render().to_string();
            if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
                return Err(print::stdout(text).map_or_else(|failure| failure.exit(), |()| 0));
            }
            let command = std::env::args_os().nth(1).unwrap_or_default();
            print::stderr(format!("freehold: {}\n", told(&error, &command)));
            Err(OWN_ERROR)
        }
    }
}

/// The options of `freehold run WORDS`, for experiments that run programs of their own.
pub fn run_options(words: &[OsString]) -> Result<RunOptions> {
    match parse_words("run", words)? {
        Command::Run(options) => Ok(*options),
        _ => Err(Failure::new("not a run", "")),
    }
}

/// The options of `freehold scope WORDS`, likewise.
pub fn scope_options(words: &[OsString]) -> Result<ScopeOptions> {
    match parse_words("scope", words)? {
        Command::Scope(options) => Ok(*options),
        _ => Err(Failure::new("not a run under the microscope", "")),
    }
}

fn parse_words(command: &str, words: &[OsString]) -> Result<Command> {
    let line = ["freehold".into(), command.into()].into_iter().chain(words.iter().cloned());
    let cli = Cli::try_parse_from(line).map_err(|error| Failure::new(told(&error, command.as_ref()), ""))?;
    Ok(cli.command)
}

/// Returns the message for a wrong command line of `command`: clap's error on one line, or the
/// command to use instead of a familiar one that does not exist.
fn told(error: &clap::Error, command: &OsStr) -> String {
    let text = error.render().to_string();
    if error.kind() == ErrorKind::InvalidSubcommand
        && let Some(ContextValue::String(wrong)) = error.get(ContextKind::InvalidSubcommand)
    {
        return unknown_command(wrong);
    }
    let wrong = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(wrong)) if error.kind() == ErrorKind::UnknownArgument => wrong,
        _ => return one_line(&text, command),
    };
    let name = wrong.split(['=', ' ']).next().unwrap_or(wrong);
    match HABITS.iter().find(|(names, _)| names.contains(&name)) {
        Some((_, instead)) => format!("there is no option {name} ({instead})"),
        None => one_line(&text, command),
    }
}

/// A command that does not exist: the one that was meant, or how to run a program of that name.
fn unknown_command(wrong: &str) -> String {
    let command = Cli::command();
    let distance = |name: &str| strsim::damerau_levenshtein(wrong, name);
    let names = command.get_subcommands().map(clap::Command::get_name);
    let hint = match names.min_by_key(|name| distance(name)).filter(|name| distance(name) <= 2) {
        Some(name) => format!("did you mean freehold {name}?"),
        None if crate::program::find(wrong.as_ref(), None).is_ok() => {
            format!("freehold run -- {wrong} runs the program of that name")
        }
        None => "freehold --help names all".into(),
    };
    format!("there is no command {wrong} ({hint})")
}

/// Clap's message without its paragraphs: the first line, its continuation and the tip; and the
/// command whose help helps.
fn one_line(text: &str, command: &OsStr) -> String {
    let mut parts = Vec::new();
    let all = Cli::command();
    let known = all.get_subcommands().map(clap::Command::get_name).find(|name| command == *name);
    let command = known.map_or_else(|| "freehold".to_owned(), |name| format!("freehold {name}"));
    let mut hints = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with("Usage:") || line.starts_with("For more information") {
            break;
        }
        match line.strip_prefix("tip: ") {
            // The words after -- are the program's.
            Some(tip) => hints.extend(Some(tip.to_owned()).filter(|tip| !tip.contains("'-- "))),
            None if line.is_empty() => {}
            None => parts.push(line.trim_start_matches("error: ")),
        }
    }
    hints.push(format!("see {command} --help"));
    format!("{} ({})", parts.join(" "), hints.join("; "))
}

/// The options of `freehold bench WORDS`, for tests of what follows from them.
#[cfg(test)]
pub fn bench_options(words: &[&str]) -> Option<BenchOptions> {
    let line = ["freehold", "bench"].iter().chain(words);
    match Cli::try_parse_from(line).ok()?.command {
        Command::Bench(options) => Some(*options),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_wrong_option_is_told_in_one_line() {
        let told = |words: &[&str]| {
            let error = Cli::try_parse_from([&["freehold"], words].concat());
            told(&error.err().expect("an error"), words[0].as_ref())
        };
        let line = told(&["run", "--xyzzyx", "--", "x"]);
        assert!(line.contains("--xyzzyx"), "{line}");
        assert_eq!(line.lines().count(), 1);
        assert!(line.ends_with("(see freehold run --help)") && !line.contains("tip"), "{line}");
        let line = told(&["run", "--verbos", "--", "x"]);
        assert!(line.contains("(a similar argument exists: '--verbose'; see freehold"), "{line}");
        let line = told(&["bench", "--icount", "--wall"]);
        assert!(line.contains("--wall") && line.ends_with("(see freehold bench --help)"), "{line}");
        assert!(told(&["bench", "--seed", "2", "--wall"]).contains("--seed"));
        let line = told(&["sweep", "--runner", "pbs", "x.toml"]);
        assert!(
            line.ends_with("; see freehold sweep --help)") || line.ends_with("(see freehold sweep --help)"),
            "{line}"
        );
        assert!(told(&["--xyzzyx"]).ends_with("(see freehold --help)"));
    }

    #[test]
    fn habits_of_container_tools_are_answered_with_what_to_use() {
        for words in [
            &["-it"][..],
            &["-d"],
            &["--rm"],
            &["--name", "x"],
            &["--name=x"],
            &["-w", "/"],
            &["-u", "1000"],
            &["--network", "x"],
            &["--pull", "always"],
        ] {
            let line = ["freehold", "run"].iter().chain(words).chain(&["--", "true"]);
            let line = told(&Cli::try_parse_from(line).err().expect("an error"), "run".as_ref());
            assert!(line.starts_with("there is no option -") && line.ends_with(')'), "{line}");
        }
    }
}
