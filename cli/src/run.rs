//! `freehold run`: from the command line to the exit status.

mod environment;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::BufWriter;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::NamedTempFile;

use crate::accel;
use crate::args::RunOptions;
use crate::backtrace::{Addresses, Symbols};
use crate::changes::{self, Changes};
use crate::container::{Container, Launch};
use crate::coverage::Watched;
use crate::ending::RunEnd;
use crate::failure::Failure;
use crate::host_view::HostView;
use crate::image::Image;
use crate::image::spec::{self, ProgramStream, Spec};
use crate::kernel::{self, Family, KernelChoice};
use crate::learned::{FileList, Origins};
use crate::outcome::RunOutcome;
use crate::owns::LastAnswer;
use crate::program::{self, Program};
use crate::qemu::network::{Network, RESOLV_CONF};
use crate::qemu::share::{FolderShare, ShareAccess, ShareOwners};
use crate::qemu::swap::Swap;
use crate::qemu::version;
use crate::qemu::{self, Debugger, Engine, Files, VirtualMachine};
use crate::report;
use crate::schema::RunMachine;
use crate::session::{self, End, Ended, GroupMember, Job, LastSeen, LogTo, OutputTo, Purpose};
use crate::size::show_size;
use crate::stuck;
use crate::terminal::{self, Streams};
use crate::user::User;
use crate::volume::{self, FolderSharing, Volume};
use crate::{Result, dry_run, events, files, owns, print, strace};

pub use environment::{variable, with_additions};

use environment::environment;

/// Path in the guest of the program's description.
pub const SPEC: &str = "/.freehold/spec";
/// The guest's search path for programs.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs the program of `options`; returns the exit status of this command.
pub fn run(options: &RunOptions) -> Result<u8> {
    if options.json.as_deref().is_some_and(files::is_stdout) {
        let hint = "name a file; bench, lab, doctor and scope take -";
        return Err(Failure::new("--json -: the program's output goes to stdout", hint));
    }
    events::check_options(&options.events)?;
    strace::check_options(&options.events)?;
    files::check_writable([&options.json, &options.events.events_out, &options.list.learn])?;
    files::check_appendable(&options.json_lines)?;
    let result = prepare_and_run(options);
    if let Err(failure) = &result {
        RunOutcome::of_failure(failure).write(options)?;
    }
    result
}

fn prepare_and_run(options: &RunOptions) -> Result<u8> {
    let mut prepared = Prepared::new(options)?;
    if options.dry_run {
        return dry_run::print_line(options, &prepared.machine, &prepared.kernel);
    }
    let watched = Watched::by_environment(&mut prepared, options)?;
    let engine = match watched {
        Some(_) => Engine::Tcg,
        None => accel::choose(options.accel, prepared.machine.clock)?,
    };
    let mut ended = prepared.run(engine)?;
    if let Some(watched) = watched {
        watched.add(&ended.words)?;
    }
    if options.syscalls && options.icount {
        let times = events::times_of_calls(&mut ended)?;
        report::add_times(&mut ended, &times);
    }
    let mut outcome = conclude(options, &prepared, engine, &ended)?;
    events::conclude(&options.events, &mut ended)?;
    if let Some(strace) = ended.strace.take() {
        let counts = strace.finish()?;
        strace::closing(&counts).into_iter().for_each(print::stderr);
        outcome.strace = Some(counts);
    }
    outcome.write(options)?;
    Ok(outcome.status())
}

/// A run that is ready to start: all options are checked, and its image is gathered.
pub struct Prepared {
    /// The VM.
    pub machine: VirtualMachine,
    /// Its kernel.
    pub kernel: KernelChoice,
    /// Its files.
    pub image: Image,
    /// Where the program's stdout goes.
    pub output: OutputTo,
    /// Folders of the host that are visible by default.
    seen: Vec<PathBuf>,
    changes: Option<Changes>,
    learn: Option<Origins>,
    spec: Spec,
    timeout: Option<Duration>,
    purpose: Purpose,
    watch: Watchers,
}

/// Those who look at the VM while it runs.
struct Watchers {
    log: LogTo,
    /// Where the lines of `--strace` go.
    strace: Option<PathBuf>,
    /// The socket of `--control`.
    control: Option<PathBuf>,
}

impl Watchers {
    /// Returns those of the options, if a kernel of `family` knows them.
    fn of(options: &RunOptions, family: Family) -> Result<Watchers> {
        events::check_family(&options.events, family)?;
        owns::check_family(options, family)?;
        Ok(Watchers {
            log: if options.verbose { LogTo::Stderr } else { LogTo::Nowhere },
            strace: options.events.strace.clone(),
            control: options.owners.control.clone(),
        })
    }
}

/// Returns the kind of the program's terminal, and its rows and columns.
///
/// The image of a measurement must be the same on any host: its length decides the place of a stock
/// Linux, and the number of instructions to unpack it affects Linux' random choices.
fn terminal_for(purpose: Purpose) -> (Option<OsString>, (u16, u16)) {
    match purpose {
        Purpose::Measurement => (None, terminal::WINDOW),
        _ => (std::env::var_os("TERM"), terminal::window()),
    }
}

impl Prepared {
    /// Prepares the run of `options`, with our streams.
    pub fn new(options: &RunOptions) -> Result<Prepared> {
        Prepared::with(options, Purpose::Program, streams(), sharing(options))
    }

    /// Prepares a run that sees only copies of the host's files, with our streams; `why` it does.
    pub fn closed(options: &RunOptions, why: &'static str) -> Result<Prepared> {
        Prepared::with(options, Purpose::Program, streams(), FolderSharing::Copies(why))
    }

    /// Prepares a run whose output is kept for the caller.
    pub fn measurement(options: &RunOptions) -> Result<Prepared> {
        Prepared::with(
            options,
            Purpose::Measurement,
            [ProgramStream::Pipe; 3],
            FolderSharing::Copies("a measurement"),
        )
    }

    fn with(
        options: &RunOptions,
        purpose: Purpose,
        streams: [ProgramStream; 3],
        sharing: FolderSharing,
    ) -> Result<Prepared> {
        let timeout = options.timeout.as_deref().map(parse_timeout).transpose()?;
        let mut machine = VirtualMachine::from_options(options)?;
        let kernel = kernel::select("--kernel", &options.kernel)?;
        let sharing = match kernel.family {
            Family::Linux => FolderSharing::Copies("a stock Linux"),
            Family::Freehold => sharing,
        };
        let volumes = volume::parse_all(&options.volume, sharing)?;
        let changes = options.changes.as_ref().map(|folder| Changes::open(folder, sharing)).transpose()?;
        let mut base = Base::of(options, sharing)?;
        let (kind, window) = terminal_for(purpose);
        let listed = options.list.files_from.as_deref().map(FileList::read).transpose()?;
        let (launch, files) = launch(options, (&volumes, &mut base, listed.as_ref()), kind)?;
        let Launch { exec, arguments, environment, cwd, user } = launch;
        let kept = changes.iter().map(Changes::share).collect();
        machine.share([base.shares(), volume::shares(&volumes), kept].concat())?;
        let spec = Spec {
            exec,
            arguments,
            environment,
            cwd,
            user,
            streams,
            window,
            symbols: spec::Symbols::None,
            swap: machine.swap_path(),
            shares: machine.shares.clone(),
            events: events::wanted(options, kernel.family),
            network: machine.network.clone(),
            learns: options.list.learn.is_some(),
            owns: owns::at_end(options)?,
            tells_areas: false,
        };
        let mut image = build_image((options, &volumes, &base), (&files, listed.as_ref()), &spec, &kernel)?;
        changes.as_ref().map_or(Ok(()), |changes| changes.add_to(&mut image))?;
        image.check_runs(&spec.exec, user)?;
        if purpose == Purpose::Measurement {
            image.forget_times();
        }
        let watch = Watchers::of(options, kernel.family)?;
        machine.check_family(kernel.family)?;
        machine.check_memory(kernel.family, image.unpacking_bytes()).map_err(|failure| match &changes {
            Some(changes) => changes.explain(failure, &image),
            None => failure,
        })?;
        let tree = base.tree_copy();
        let learn = Origins::new(&options.list.learn, kernel.family, (&machine.shares, &volumes, tree))?;
        let (seen, output) = (base.seen().to_vec(), OutputTo::Stdout);
        Ok(Prepared { machine, kernel, image, output, seen, changes, learn, spec, timeout, purpose, watch })
    }

    /// Returns the kernel's symbols, for reports about this run.
    pub fn symbols(&self) -> Symbols {
        let addresses = if self.watch.log == LogTo::Stderr { Addresses::Shown } else { Addresses::Hidden };
        Symbols::of(&self.kernel.path, addresses)
    }

    /// Makes a stock Linux report the start of its text (`text` of its READY message).
    pub fn ask_for_text(&mut self) {
        self.spec.symbols = spec::Symbols::Base;
        self.image.add_bytes(Path::new(SPEC), 0o600, self.spec.encode());
    }

    /// Makes our own kernel tell the areas of all processes when the program has ended. It keeps
    /// the program's memory until then.
    pub fn ask_for_areas(&mut self) {
        self.spec.tells_areas = true;
        self.image.add_bytes(Path::new(SPEC), 0o600, self.spec.encode());
    }

    /// Runs the VM.
    pub fn run(&self, engine: Engine) -> Result<Ended> {
        self.run_unless(engine, None)
    }

    /// Runs the VM to its end, or until its group is recalled.
    pub fn run_unless(&self, engine: Engine, member: Option<GroupMember<'_>>) -> Result<Ended> {
        qemu::program()?;
        let mut initramfs =
            tempfile::Builder::new().prefix("freehold-").suffix(".cpio").tempfile().map_err(|e| {
                Failure::new(format!("cannot make a temporary file: {e}"), "TMPDIR names another folder")
            })?;
        self.image.write(&mut BufWriter::with_capacity(1 << 20, initramfs.as_file_mut()))?;
        let swap = self.machine.swap.map(Swap::make).transpose()?;
        self.machine.network.as_ref().map_or(Ok(()), Network::check_ports)?;
        if let Debugger::Waited { port } = self.machine.debugger {
            // QEMU would report a taken port only after its start, and in other words.
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(|error| {
                Failure::new(
                    format!("cannot wait for a debugger on port {port}: {error}"),
                    "choose another one with --gdb=PORT",
                )
            })?;
            print::stderr(format!(
                "freehold: waiting for: gdb {} -ex 'target remote :{port}'\n",
                self.kernel.path.display()
            ));
        }
        let ended = session::run(&Job {
            machine: &self.machine,
            kernel: &self.kernel,
            files: Files { initramfs: initramfs.path(), swap: swap.as_ref().map(NamedTempFile::path) },
            engine,
            streams: self.spec.streams,
            output: self.output,
            timeout: self.timeout,
            purpose: self.purpose,
            log: self.watch.log,
            member,
            control: self.watch.control.as_deref(),
            strace: self.watch.strace.as_deref().map(|path| (path, self.spec.first_program())),
        });
        self.machine.hot_plug.tidy();
        ended
    }
}

/// Names a program that is not QEMU, if a VM ended without output.
///
/// # Errors
/// A failure that names the program.
fn check_engine(ended: &Ended) -> Result<()> {
    if matches!(ended.end, End::Died) && ended.ready.is_none() && ended.log.is_empty() {
        version::line(&qemu::program()?)?;
    }
    Ok(())
}

/// Prints the texts for the end and returns the outcome.
pub fn conclude(options: &RunOptions, run: &Prepared, engine: Engine, ended: &Ended) -> Result<RunOutcome> {
    let machine = &run.machine;
    let accel = match engine {
        Engine::Tcg => "tcg",
        Engine::Kvm => "kvm",
    };
    let symbols = run.symbols();
    let name = run.spec.arguments[0].to_string_lossy();
    let end = RunEnd::of(ended, (&name, run.timeout), &symbols);
    let mut outcome = RunOutcome::of(ended, (&name, &end), accel, &symbols);
    match &ended.end {
        End::Qemu(words) => return Err(Failure::qemu(words, words.clone())),
        End::Refused(reason) => return Err(Failure::firmware(reason.clone())),
        _ => check_engine(ended)?,
    }
    match report::death(ended, &symbols) {
        Some(text) => print::stderr(format!("freehold: {text}")),
        None if end.is_told() => print::stderr(format!("freehold: {}\n", end.sentence(&name))),
        None => {}
    }
    if let End::TimedOut(whereabouts) = &ended.end
        && ended.is_of_own_kernel()
        && !matches!(whereabouts, LastSeen::Threads(_))
    {
        print::stderr("  and its kernel does not answer\n");
    }
    outcome.owners = LastAnswer::all(&run.spec.owns, &ended.owners);
    outcome.owners.iter().for_each(|answer| print::stderr(answer.line()));
    outcome.threads.iter().for_each(|threads| print::stderr(stuck::text(threads)));
    if let Some(changes) = &run.changes {
        outcome.changes = changes.conclude(&ended.end)?;
    }
    let learned = run.learn.as_ref().map(|learn| learn.conclude(&run.image, ended)).transpose()?.flatten();
    let is_kept = options.json.is_some() || options.json_lines.is_some();
    outcome.machine = is_kept.then(|| RunMachine::of(machine, &run.kernel));
    let show = options.shows_report();
    if show && ended.report.is_some() {
        let cpus = if machine.cpus == 1 { "1 CPU".to_owned() } else { format!("{} CPUs", machine.cpus) };
        let shape = format!("{}, {cpus}, {}", show_size(machine.memory), accel.to_uppercase());
        print::stderr(report::closing(ended, &name, &shape));
    }
    if show {
        print::stderr(files_lines(run, ended));
        outcome.changes.as_ref().inspect(|kept| print::stderr(kept.line()));
        learned.into_iter().for_each(print::stderr);
    }
    if options.syscalls {
        print::stderr(report::syscalls(ended));
    }
    Ok(outcome)
}

/// Returns the closing report's lines about files: the program's packages, and missing files.
fn files_lines(run: &Prepared, ended: &Ended) -> String {
    let mut text = String::new();
    for package in run.seen.iter().filter(|folder| folder.starts_with("/opt")) {
        let shown = package.display();
        text.push_str(&format!("   seen of the host beside /usr, since the program is there: {shown}\n"));
    }
    // A file missing in a folder that is seen is missing on the host, too.
    let mut missing = report::missing_files(ended);
    missing.retain(|name| !run.seen.iter().any(|folder| Path::new(name).starts_with(folder)));
    if !missing.is_empty() {
        let listed = missing.join(" ");
        text.push_str(&format!("   not found in the VM (-a PATH adds a file): {listed}\n"));
    }
    text
}

/// The longest time-out: longer than any user waits, and short enough to be added to any time.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(1_000_000_000);

/// Parses a time-out: a number of seconds, or a form of `humantime`: `90s`, `2m`, `1h 30m`.
fn parse_timeout(text: &str) -> Result<Duration> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds
        .or_else(|| humantime::parse_duration(text).ok())
        .filter(|timeout| !timeout.is_zero() && *timeout < LONGEST_TIMEOUT)
        .ok_or_else(|| {
            Failure::new(
                format!("--timeout {text}: not a time"),
                "seconds or a number with its unit, for example 10, 0.5, 90s or 2m",
            )
        })
}

/// Returns whether folders can be shared with the run of `options`.
const fn sharing(options: &RunOptions) -> FolderSharing {
    if options.icount { FolderSharing::Copies("a counted run") } else { FolderSharing::Possible }
}

/// The files to which the guest's own files are added.
enum Base<'a> {
    /// No files: the guest has only its own files.
    Sealed,
    /// The default view of the host.
    Host(HostView),
    /// The tree of `--root`, as it is on the host.
    Tree(&'a Path),
    /// A copy of the tree of `--root`.
    TreeCopy(&'a Path),
    /// The image of `--image`.
    Container(Box<Container>),
}

impl<'a> Base<'a> {
    fn of(options: &'a RunOptions, sharing: FolderSharing) -> Result<Base<'a>> {
        if let Some(file) = &options.container.image {
            return match sharing {
                FolderSharing::Possible => Ok(Base::Container(Box::new(Container::open(file)?))),
                FolderSharing::Copies(why) => Err(Failure::new(
                    format!("--image: {why} has copies only, and an image is not copied"),
                    "leave --image out",
                )),
            };
        }
        let Some(root) = &options.root else {
            return Ok(match sharing {
                FolderSharing::Possible if !options.sealed => Base::Host(HostView::new()),
                _ => Base::Sealed,
            });
        };
        std::fs::read_dir(root).map_err(|error| {
            let why = match error.kind() {
                std::io::ErrorKind::NotFound => "no such folder".to_owned(),
                std::io::ErrorKind::NotADirectory => "it is no folder".to_owned(),
                _ => error.to_string(),
            };
            Failure::new(format!("--root {}: {why}", root.display()), "")
        })?;
        Ok(match sharing {
            FolderSharing::Possible => Base::Tree(root),
            FolderSharing::Copies(_) => Base::TreeCopy(root),
        })
    }

    /// Returns the folders that QEMU exports for it.
    fn shares(&self) -> Vec<FolderShare> {
        match self {
            Base::Sealed | Base::TreeCopy(_) => Vec::new(),
            Base::Host(view) => view.shares(),
            Base::Tree(root) => vec![whole_root(root, ShareOwners::Host)],
            Base::Container(container) => vec![whole_root(container.tree().host(), ShareOwners::Mapped)],
        }
    }

    /// Returns whether the guest sees a file of the host at its path by default.
    fn shows(&self, path: &Path) -> bool {
        matches!(self, Base::Host(view) if view.shows(path))
    }

    /// Returns the folders that are visible by default.
    fn seen(&self) -> &[PathBuf] {
        match self {
            Base::Host(view) => view.trees(),
            Base::Sealed | Base::Tree(_) | Base::TreeCopy(_) | Base::Container(_) => &[],
        }
    }

    /// Returns the tree of which the run has a copy as its root.
    fn tree_copy(&self) -> Option<&Path> {
        if let Base::TreeCopy(root) = self { Some(root) } else { None }
    }

    /// Returns the initial image of a run.
    fn image(&self, user: User) -> Result<Image> {
        let mut image = match self {
            Base::Sealed | Base::Host(_) => Image::new(user),
            Base::Tree(_) | Base::TreeCopy(_) => Image::empty(),
            Base::Container(container) => Image::over(container.tree()),
        };
        match self {
            Base::Host(view) => view.furnish(&mut image)?,
            Base::TreeCopy(root) => image.add_host_at(root, Path::new("/"))?,
            Base::Sealed | Base::Tree(_) | Base::Container(_) => {}
        }
        Ok(image)
    }
}

/// Returns a folder of the host as the guest's root, below the programs' changes.
fn whole_root(host: &Path, owners: ShareOwners) -> FolderShare {
    FolderShare { host: host.to_path_buf(), guest: "/".into(), access: ShareAccess::Below, owners }
}

/// Returns the program to run, and the files of the host that it needs. `terminal` is the value of
/// `TERM`.
fn launch(
    options: &RunOptions,
    (volumes, base, listed): (&[Volume], &mut Base<'_>, Option<&FileList>),
    terminal: Option<OsString>,
) -> Result<(Launch, BTreeSet<PathBuf>)> {
    if let Base::Container(container) = base {
        return Ok((container.launch(options, terminal)?, BTreeSet::new()));
    }
    let user = options.user.as_deref().map_or(Ok(User::ROOT), User::parse)?;
    let environment = environment(user, terminal, &options.env)?;
    let Program { guest: exec, files } = find_program(options, (volumes, base, listed), &environment)?;
    let cwd = guest_path("--cwd", options.cwd.as_deref().unwrap_or(Path::new("/")))?;
    Ok((Launch { exec, arguments: options.program.clone(), environment, cwd, user }, files))
}

fn find_program(
    options: &RunOptions,
    (volumes, base, listed): (&[Volume], &mut Base<'_>, Option<&FileList>),
    environment: &[OsString],
) -> Result<Program> {
    let name = &options.program[0];
    if let Some(folder) = &options.changes {
        let path = variable(environment, "PATH").unwrap_or_default();
        let mut places = program::places(name, path).into_iter();
        if let Some(guest) = places.find(|guest| changes::has_program(folder, guest)) {
            return Ok(Program { guest, files: BTreeSet::new() });
        }
    }
    if let Some(root) = &options.root {
        return program::find_in_tree(name, root);
    }
    // A program in a volume is named by its guest path.
    for Volume { host, guest, .. } in volumes {
        if let Ok(rest) = Path::new(name).strip_prefix(guest) {
            let host = if rest.as_os_str().is_empty() { host.clone() } else { host.join(rest) };
            if host.is_file() {
                let mut found = program::find(host.as_os_str(), library_path(environment))?;
                found.files.remove(&program::absolute(&host)?);
                found.files.retain(|file| !base.shows(file));
                found.guest = guest_path("program", Path::new(name))?;
                return Ok(found);
            }
        }
    }
    let path = variable(environment, "PATH").unwrap_or_default();
    if let Some(list) = listed {
        let runs = |guest: &PathBuf| list.host(guest).is_some_and(program::runs);
        if let Some(guest) = program::places(name, path).into_iter().find(runs) {
            return Ok(Program { guest, files: BTreeSet::new() });
        }
    }
    match base {
        Base::Host(view) => view.find(name, path, library_path(environment)),
        _ => program::find(name, library_path(environment)),
    }
}

fn library_path(environment: &[OsString]) -> Option<&OsStr> {
    variable(environment, "LD_LIBRARY_PATH")
}

/// Returns the place in the guest of `path`, which comes from an option.
pub fn guest_path(option: &str, path: &Path) -> Result<PathBuf> {
    if path.is_absolute() {
        return Ok(path.to_path_buf());
    }
    Err(Failure::new(
        format!("{option} {}: not an absolute path", path.display()),
        format!("it is a path in the guest: /{}", path.display()),
    ))
}

fn build_image(
    (options, volumes, base): (&RunOptions, &[Volume], &Base<'_>),
    (files, listed): (&BTreeSet<PathBuf>, Option<&FileList>),
    spec: &Spec,
    kernel: &KernelChoice,
) -> Result<Image> {
    let mut image = base.image(spec.user)?;
    for file in files {
        image.add_host(file)?;
    }
    for path in &options.add {
        if !path.exists() {
            return Err(Failure::new(format!("-a {}: no such file or folder", path.display()), ""));
        }
        let needs = program::with_needs(path, library_path(&spec.environment))?;
        for file in needs.iter().filter(|file| !base.shows(file)) {
            image.add_host(file)?;
        }
    }
    if let Some(list) = listed {
        list.add_to(&mut image, |path| base.shows(path))?;
    }
    for volume in volumes.iter().filter(|volume| volume.shared.is_none()) {
        image.add_host_at(&volume.host, &volume.guest)?;
    }
    if matches!(base, Base::Sealed | Base::Host(_)) {
        image.add_folder(&spec.cwd);
    }
    if spec.network.as_ref().is_some_and(|network| network.reaches_out) {
        image.add_bytes(Path::new("/etc/resolv.conf"), 0o644, RESOLV_CONF.into());
    }
    image.add_bytes(Path::new(SPEC), 0o600, spec.encode());
    add_init(&mut image, kernel)?;
    Ok(image)
}

/// Adds the files that a Linux guest needs to speak with this command; none for our own kernel.
pub fn add_init(image: &mut Image, kernel: &KernelChoice) -> Result<()> {
    if kernel.family == Family::Freehold {
        return Ok(());
    }
    let init = kernel::installed("guest/init").ok_or_else(|| {
        Failure::new("guest/init is missing: a Linux guest needs it", "make build makes it")
    })?;
    image.add_host_at(&init, Path::new("/init"))?;
    for folder in ["/dev", "/proc", "/sys"] {
        image.add_folder(Path::new(folder));
    }
    for (number, module) in kernel.modules.iter().enumerate() {
        image.add_host_at(module, Path::new(&format!("/.freehold/modules/{number:02}.ko")))?;
    }
    Ok(())
}

/// Chooses the kinds of the streams: a stream that is our terminal becomes the guest's terminal.
/// The terminal is the controlling one only if both stdin and stdout are terminals: otherwise an
/// echo could not be shown.
fn streams() -> [ProgramStream; 3] {
    let ours = Streams::now();
    let stream = |terminal| if terminal { ProgramStream::Terminal } else { ProgramStream::Pipe };
    [stream(ours.input && ours.output), stream(ours.output), stream(ours.output && ours.error)]
}
