//! One run of the VM: starts QEMU, carries the streams, speaks the control protocol, and decides
//! how the run ended.
//!
//! There is one thread with one poll loop. Each direction of each stream has one buffer, and a
//! source is read only while its buffer is empty. So a slow reader slows the writer, and memory
//! stays bounded. QEMU's ends of the sockets are made blocking once it runs: its console ports lose
//! bytes if a non-blocking socket is full, so QEMU has to block.

mod channel;
mod end;
mod escape;
mod finish;
mod job_control;
mod monitor;
mod pump;
mod questions;
mod recall;
mod signals;

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::Value;

use crate::failure::Failure;
use crate::image::spec::ProgramStream;
use crate::learned::FoundNames;
use crate::protocol::{Decoder, Ending, FromGuest, ToGuest};
use crate::qemu::{Engine, Files, Ports, VirtualMachine};
use crate::strace::{FirstProgram, Strace};
use crate::terminal::{self, JobPlace};
use crate::{Result, print};
use crate::{kernel, progress, qemu};
use channel::{Channel, Log};
use monitor::Monitor;
use pump::{Pump, Source};
use questions::Questions;
use signals::Signals;

pub use channel::{on_path, owned_command};
pub use end::{End, Ended, LastSeen, Loss};
pub use recall::{GroupMember, Recall};

/// Time for a guest that does not count its bytes to power off after the program's end.
const POWER_OFF_GRACE: Duration = Duration::from_secs(5);

/// Time for a kernel whose program is late to report its threads. If it does not answer, QEMU has
/// the same time to report the CPUs.
const ANSWER_GRACE: Duration = Duration::from_secs(2);

/// Time for a watcher to write its results.
const WATCHER_GRACE: Duration = Duration::from_secs(30);

/// Text before the reason in the log of a kernel that refuses to start.
const REFUSAL: &str = "refuses to start: ";

/// Prefix of the plugin's lines.
pub const WATCHER_NAME: &str = "freehold-scope: ";

/// A run to start.
pub struct Job<'a> {
    /// The VM.
    pub machine: &'a VirtualMachine,
    /// Its kernel.
    pub kernel: &'a kernel::KernelChoice,
    /// Files made for the VM.
    pub files: Files<'a>,
    /// The engine that executes the VM.
    pub engine: Engine,
    /// Kinds of the program's streams.
    pub streams: [ProgramStream; 3],
    /// Where the program's stdout goes.
    pub output: OutputTo,
    /// Time after which the VM is killed.
    pub timeout: Option<Duration>,
    /// The purpose of the run.
    pub purpose: Purpose,
    /// Where the kernel log goes.
    pub log: LogTo,
    /// The run's part in a group of runs.
    pub member: Option<GroupMember<'a>>,
    /// Where questions of `freehold owns` come from.
    pub control: Option<&'a Path>,
    /// The destination of the lines of `--strace`, and the first program in them.
    pub strace: Option<(&'a Path, FirstProgram)>,
}

/// The purpose of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The user's program, with our streams.
    Program,
    /// A measurement: its output is kept for us, and it has no input. The host sends it no
    /// messages, because every message would be an interrupt at a random moment.
    Measurement,
    /// A proof that a guest works: it uses no stream of ours.
    Proof,
    /// A run that learns a stock Linux' symbols: like a proof, but it ends at READY, before which
    /// the symbols come.
    Symbols,
}

/// Where the program's stdout goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputTo {
    /// Our stdout.
    Stdout,
    /// Our stderr: stdout takes a file that the user named `-`.
    Stderr,
}

/// Destination of the kernel log, besides the part that is kept for the report of a panic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogTo {
    /// stderr.
    Stderr,
    /// Nowhere.
    Nowhere,
}

/// Runs a VM to its end. `Err` only when QEMU cannot be started.
pub fn run(job: &Job<'_>) -> Result<Ended> {
    VmSession::start(job)?.serve()
}

/// Makes a file without a name, for output that is read when the run is over.
fn keep() -> Result<File> {
    tempfile::tempfile().map_err(|e| {
        Failure::new(format!("cannot make a temporary file: {e}"), "TMPDIR names another folder")
    })
}

fn read_back(file: &mut File) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let result = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
    result.map_err(|e| Failure::new(format!("cannot read what the guest printed: {e}"), ""))?;
    Ok(bytes)
}

/// The program's end, as the guest reported it.
struct ProgramEnd {
    ending: Ending,
    /// Bytes of stdout and stderr in all, if the guest counts them.
    totals: Option<(u64, u64)>,
    at: Instant,
}

struct VmSession<'a> {
    job: &'a Job<'a>,
    started: Instant,
    qemu: Child,
    exited: OwnedFd,
    /// QEMU's ends of the sockets, until they are made blocking.
    far_ends: Vec<OwnedFd>,
    input: Pump,
    output: Pump,
    error: Pump,
    control: Channel,
    decoder: Decoder,
    log: Log,
    words: Channel,
    monitor: Monitor,
    signals: Signals,
    progress: ProgressBar,
    ready: Option<Value>,
    report: Option<Value>,
    notices: Vec<String>,
    ended: Option<ProgramEnd>,
    panic: Option<Value>,
    symbols: Option<String>,
    /// Records of tracepoints, unchanged.
    events: Option<File>,
    /// Takes the records instead, if it is there.
    strace: Option<Strace>,
    questions: Option<Questions>,
    names: Option<FoundNames>,
    /// Answers at the program's end.
    owners: Vec<Value>,
    /// The areas of each process at the end.
    areas: Vec<Value>,
    /// The reason why some of them were not kept.
    events_lost: Option<String>,
    asked_for_threads: bool,
    /// Whether QEMU was asked for the CPUs.
    asked_for_cpus: bool,
    /// The kernel's answer about its threads.
    threads: Option<Value>,
    /// stdout and stderr of a measurement.
    kept: Option<[File; 2]>,
    /// Bytes of that stdout that the group has heard.
    heard: u64,
}

impl<'a> VmSession<'a> {
    fn start(job: &'a Job<'a>) -> Result<VmSession<'a>> {
        let strace =
            job.strace.as_ref().map(|(path, first)| Strace::open(path, first.clone())).transpose()?;
        let questions = job.control.map(Questions::listen).transpose()?;
        let (stream, stream_far) = channel::pair()?;
        let (error, error_far) = channel::pair()?;
        let (control, control_far) = channel::pair()?;
        let (log, log_far) = channel::pair()?;
        let (monitor, monitor_far) = channel::pair()?;
        let ports = Ports {
            stream: channel::place(&stream_far),
            error: channel::place(&error_far),
            control: channel::place(&control_far),
            log: channel::place(&log_far),
            monitor: channel::place(&monitor_far),
        };
        let program = qemu::program()?;
        let signals = Signals::register(progress::noted())?;
        let mut command = channel::owned_command(&program);
        command
            .args(job.machine.arguments(job.kernel, &job.files, &ports, job.engine))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // A separate process group: this process passes on a Ctrl-C of the terminal.
            .process_group(0);
        let ends = [&stream_far, &error_far, &control_far, &log_far, &monitor_far];
        let mut qemu =
            channel::lend(&ends, || command.spawn().map_err(|e| Failure::io("start", &program, &e)))?;
        drop(monitor_far);
        let exited = rustix::process::pidfd_open(
            rustix::process::Pid::from_child(&qemu),
            rustix::process::PidfdFlags::empty(),
        )
        .map_err(|e| Failure::new(format!("cannot watch QEMU: {e}"), ""))?;
        let words = qemu.stderr.take().map(OwnedFd::from);
        let kept = match job.purpose {
            Purpose::Measurement => Some([keep()?, keep()?]),
            Purpose::Program | Purpose::Proof | Purpose::Symbols => None,
        };
        let (input, output, error) = match job.purpose {
            Purpose::Program => (
                Pump::from_host(rustix::stdio::stdin(), &stream)?,
                match job.output {
                    OutputTo::Stdout => Pump::to_host(&stream, rustix::stdio::stdout())?,
                    OutputTo::Stderr => Pump::to_host(&stream, rustix::stdio::stderr())?,
                },
                Pump::to_host(&error, rustix::stdio::stderr())?,
            ),
            Purpose::Proof | Purpose::Symbols => (Pump::idle(), Pump::idle(), Pump::idle()),
            Purpose::Measurement => {
                let to = |from: &OwnedFd, at: usize| match &kept {
                    Some(files) => Pump::to_host(from, files[at].as_fd()),
                    None => Ok(Pump::idle()),
                };
                (Pump::idle(), to(&stream, 0)?, to(&error, 1)?)
            }
        };
        let progress = match job.purpose {
            _ if terminal::place() == JobPlace::Background => ProgressBar::hidden(),
            Purpose::Program => ProgressBar::new_spinner().with_message("booting"),
            Purpose::Measurement => ProgressBar::hidden(),
            Purpose::Proof => ProgressBar::new_spinner().with_message("seeing whether KVM works (once)"),
            Purpose::Symbols => {
                ProgressBar::new_spinner().with_message("asking the kernel for its symbols (once)")
            }
        };
        progress.tick();
        Ok(VmSession {
            job,
            started: Instant::now(),
            qemu,
            exited,
            far_ends: vec![stream_far, error_far, control_far, log_far],
            input,
            output,
            error,
            control: Channel::new(Some(control))?,
            decoder: Decoder::default(),
            log: Log::new(log, job.log)?,
            words: Channel::new(words)?,
            monitor: Monitor::new(monitor, job.machine.topology.growth().map(|(_, bytes)| bytes).collect())?,
            signals,
            progress,
            ready: None,
            report: None,
            notices: Vec::new(),
            ended: None,
            panic: None,
            symbols: None,
            events: None,
            strace,
            questions,
            names: None,
            owners: Vec::new(),
            areas: Vec::new(),
            events_lost: None,
            asked_for_threads: false,
            asked_for_cpus: false,
            threads: None,
            kept,
            heard: 0,
        })
    }

    fn serve(mut self) -> Result<Ended> {
        let end = loop {
            self.wait()?;
            if let Some(end) = self.take_signals() {
                break end;
            }
            if self.job.member.is_some_and(|member| member.recall.called()) {
                break End::Recalled;
            }
            let gone = self.qemu.try_wait().ok().flatten();
            if gone.is_some() {
                // Drops our copies, so that QEMU's output ends with an end of file.
                self.far_ends.clear();
            }
            let heard = self.listen();
            self.output.run();
            self.error.run();
            self.let_group_hear();
            self.tell_closed();
            self.take_terminal();
            if self.ended.is_none() && self.job.purpose == Purpose::Program && self.may_read() {
                self.input.run();
                if self.input.escaped() {
                    break End::Escaped;
                }
                self.tell_end_of_input();
            }
            if heard {
                self.let_qemu_block();
            }
            self.take_question();
            self.control.send();
            self.monitor.send();
            if let Some(end) = self.finished(gone) {
                break end;
            }
        };
        self.progress.finish_and_clear();
        terminal::restore();
        if self.job.machine.watcher.is_some() {
            self.ask_to_end();
        }
        if self.qemu.try_wait().ok().flatten().is_none() {
            // QEMU is killed, not asked to end: the guest has no more messages, and a hung one
            // would not answer.
            let _ = self.qemu.kill();
            let _ = self.qemu.wait();
        }
        while self.words.receive() {}
        self.log.finish();
        let [output, error] = match &mut self.kept {
            Some(files) => [read_back(&mut files[0])?, read_back(&mut files[1])?],
            None => [Vec::new(), Vec::new()],
        };
        Ok(Ended {
            end,
            symbols: self.symbols,
            events: self.events,
            strace: self.strace,
            names: self.names,
            owners: self.owners,
            areas: self.areas,
            output,
            error,
            words: String::from_utf8_lossy(&self.words.received).into_owned(),
            ready: self.ready,
            report: self.report,
            notices: self.notices,
            log: self.log.tail(),
            wall: self.started.elapsed(),
        })
    }

    /// Lets QEMU end in order, so that its plugin writes its results.
    fn ask_to_end(&mut self) {
        let asked = Instant::now();
        let _ = rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.qemu),
            rustix::process::Signal::TERM,
        );
        while asked.elapsed() < WATCHER_GRACE && self.qemu.try_wait().ok().flatten().is_none() {
            // A guest that still writes must not block QEMU.
            self.listen();
            self.output.run();
            self.error.run();
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Sleeps until there is work.
    fn wait(&mut self) -> Result<()> {
        let mut interest: Vec<(BorrowedFd<'_>, PollFlags)> =
            vec![(self.exited.as_fd(), PollFlags::IN), (self.signals.as_fd(), PollFlags::IN)];
        interest.extend(self.job.member.map(|member| (member.recall.as_fd(), PollFlags::IN)));
        self.control.interest(&mut interest);
        self.log.channel.interest(&mut interest);
        self.words.interest(&mut interest);
        self.monitor.interest(&mut interest);
        let questions = self.questions.as_ref().filter(|_| self.ready.is_some());
        questions.inspect(|questions| questions.interest(&mut interest));
        self.output.interest(&mut interest);
        self.error.interest(&mut interest);
        if self.ended.is_none() && self.ready.is_some() && self.may_read() {
            self.input.interest(&mut interest);
        }
        let mut set: Vec<PollFd<'_>> =
            interest.iter().map(|(fd, flags)| PollFd::from_borrowed_fd(*fd, *flags)).collect();
        let mut limit: Option<Duration> = None;
        let mut no_later = |at: Duration| limit = Some(limit.map_or(at, |limit| limit.min(at)));
        if let Some(timeout) = self.job.timeout {
            let end = match (self.asked_for_threads, self.asked_for_cpus) {
                (false, _) => timeout,
                (true, false) => timeout + ANSWER_GRACE,
                (true, true) => timeout + 2 * ANSWER_GRACE,
            };
            no_later(end.saturating_sub(self.started.elapsed()));
        }
        self.next_look().into_iter().for_each(&mut no_later);
        if let Some(ProgramEnd { at, .. }) = &self.ended {
            no_later(POWER_OFF_GRACE.saturating_sub(at.elapsed()));
        }
        if self.ready.is_none() && !self.progress.is_hidden() {
            no_later(Duration::from_millis(100));
        }
        let limit = limit.map(|limit| Timespec {
            tv_sec: limit.as_secs() as i64,
            // One millisecond is added: a wait that ends just before its time would only be
            // repeated.
            tv_nsec: i64::from(limit.subsec_nanos().saturating_add(1_000_000).min(999_999_999)),
        });
        match poll(&mut set, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Failure::new(format!("cannot wait for the VM: {error}"), "")),
        }
        if self.ready.is_none() {
            self.progress.tick();
        }
        Ok(())
    }

    /// Receives messages of the guest and QEMU. Returns whether the guest sent any.
    fn listen(&mut self) -> bool {
        self.words.receive();
        for word in self.monitor.receive() {
            self.notice(word.text(self.job.machine));
        }
        let mut heard = self.log.receive();
        heard |= self.control.receive();
        let bytes = std::mem::take(&mut self.control.received);
        self.decoder.push(&bytes);
        loop {
            match self.decoder.next() {
                Ok(Some(frame)) => self.take_frame(frame),
                Ok(None) => return heard,
                Err(error) => {
                    self.panic =
                        Some(serde_json::json!({ "message": format!("the guest is out of step: {error}") }));
                    return heard;
                }
            }
        }
    }

    fn take_frame(&mut self, frame: FromGuest) {
        match frame {
            FromGuest::Ready(message) => {
                self.ready = Some(message);
                self.progress.finish_and_clear();
                self.unlink_files();
            }
            FromGuest::Exit(ending, totals) => {
                self.ended = Some(ProgramEnd { ending, totals, at: Instant::now() })
            }
            FromGuest::Symbols(symbols) => self.symbols = Some(symbols),
            FromGuest::Report(report) => self.report = Some(report),
            FromGuest::Panic(certificate) => self.panic = Some(certificate),
            FromGuest::Log(text) => self.log.add_text(&text),
            FromGuest::Notice(text) => self.notice(text),
            FromGuest::Threads(threads) => self.threads = Some(threads),
            FromGuest::Owners(areas) if areas["areas"].is_array() => self.areas.push(areas),
            FromGuest::Owners(answer) => {
                self.questions.iter_mut().for_each(|questions| questions.answer(&answer));
            }
            FromGuest::LastOwners(answer) => self.owners.push(answer),
            FromGuest::Events(records) => match &mut self.strace {
                Some(strace) => strace.add(&records),
                None => self.keep_events(&records),
            },
            FromGuest::Names(names, left_out) => {
                self.names.get_or_insert_default().add(&names, left_out);
            }
            FromGuest::Memory(device, bytes) => self.monitor.resize(device, bytes),
        }
    }

    /// Passes a question of `freehold owns` on to the kernel.
    fn take_question(&mut self) {
        if self.ready.is_some()
            && let Some(question) = self.questions.as_mut().and_then(Questions::take)
        {
            self.tell(ToGuest::Owner(question));
        }
    }

    /// Unlinks files that QEMU has opened or read by now: if this process is killed, no file stays
    /// behind.
    fn unlink_files(&self) {
        for file in [Some(self.job.files.initramfs), self.job.files.swap].into_iter().flatten() {
            // The file's owner removes it at the end, if it still exists.
            let _ = std::fs::remove_file(file);
        }
    }

    fn let_group_hear(&mut self) {
        if let (Some(member), Some([output, _])) = (&self.job.member, &self.kept) {
            self.heard += member.listen(output, self.heard);
        }
    }

    fn notice(&mut self, text: String) {
        if self.job.purpose != Purpose::Measurement {
            let end = if terminal::is_raw() { "\r\n" } else { "\n" };
            print::stderr(format!("freehold: {}{end}", text.trim_end()));
        }
        self.notices.push(text);
    }

    fn tell(&mut self, what: ToGuest) {
        what.encode(&mut self.control.to_send);
    }

    fn tell_end_of_input(&mut self) {
        if let Some(total) = self.input.newly_ended() {
            self.tell(ToGuest::StdinEof(total));
        }
    }

    fn tell_closed(&mut self) {
        if self.output.newly_refused() {
            self.tell(ToGuest::Closed(0));
        }
        if self.error.newly_refused() {
            self.tell(ToGuest::Closed(1));
        }
    }

    /// Returns the output that could not be written; stdout first, since stderr is used for the
    /// message.
    fn loss(&self) -> Option<Loss> {
        let of = |pump: &Pump, stream| pump.refusal().map(|error| Loss { stream, error });
        of(&self.output, "stdout").or_else(|| of(&self.error, "stderr"))
    }

    /// Makes QEMU's ends of the sockets blocking. QEMU runs from the guest's first message on, so
    /// its own set-up does not change them later.
    fn let_qemu_block(&mut self) {
        for end in self.far_ends.drain(..) {
            channel::make_blocking(&end);
        }
    }

    /// Keeps records in a file without a name until the run is over. If the file cannot be written,
    /// the user is told once, and later records are not kept.
    fn keep_events(&mut self, records: &[u8]) {
        let file = match &mut self.events {
            Some(file) => Ok(file),
            none => keep().map(|file| none.insert(file)),
        };
        let kept = file.and_then(|file| {
            file.write_all(records).map_err(|e| Failure::new(format!("cannot keep events: {e}"), ""))
        });
        if let (Err(failure), None) = (&kept, &self.events_lost) {
            let told = format!("{failure}");
            self.notice(told.clone());
            self.events_lost = Some(told);
        }
    }

    fn take_signals(&mut self) -> Option<End> {
        let mut came = self.signals.pending();
        self.control_job(&mut came);
        for signal in came {
            if self.job.purpose == Purpose::Measurement {
                if signal != signals::WINDOW_CHANGED {
                    return Some(End::Interrupted(signal));
                }
            } else if signal == signals::WINDOW_CHANGED {
                let (rows, columns) = terminal::window();
                self.tell(ToGuest::WindowSize(rows, columns));
            } else if self.ready.is_none() || self.signals.insisted(signal) {
                return Some(End::Interrupted(signal));
            } else {
                self.tell(ToGuest::Signal(signal));
            }
        }
        None
    }
}
