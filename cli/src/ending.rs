//! How a run ended: one name and one sentence, the same on the terminal and in the record.

use std::time::Duration;

use serde::Serialize;

use crate::backtrace::Symbols;
use crate::failure::{Failure, OWN_ERROR, READER_GONE};
use crate::progress::status_of;
use crate::protocol::Ending;
use crate::report;
use crate::session::{End, Ended, Loss};

/// The signal that a terminal's user sends to end a program.
const SIGINT: u8 = 2;
const SIGKILL: u8 = 9;
/// Exit status of a time-out.
pub const TIMED_OUT: u8 = 124;
/// Exit status of a guest that died.
pub const GUEST_DIED: u8 = 255;
/// The program's process on our own kernel, whose first process is the kernel's own.
const PROGRAM: u64 = 2;
/// Letters of a process' name.
const NAME_LENGTH: usize = 15;

/// A process that a kernel killed for want of memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OomVictim {
    /// Its number in the guest.
    pub pid: u64,
    /// Its name.
    pub name: String,
    /// Its resident memory, in KiB.
    pub resident_kib: u64,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunEnd {
    /// The program called exit, or the run came to its own purpose.
    Exit(u8),
    /// A signal ended the program.
    Signal(u8),
    /// The kernel killed the program for want of memory.
    OomKill(OomVictim),
    /// The kernel panicked, or died without a message: the first line of its death certificate.
    Panic(String),
    /// The program did not end in this time.
    Timeout(Duration),
    /// The kernel's closing audit found this. The program ended on its own.
    Audit(String),
    /// The microscope saw that the kernel broke a rule of memory isolation.
    Isolation(String),
    /// The machine ended before the kernel said anything.
    Firmware(String),
    /// The kernel refuses the machine as its firmware describes it.
    Refused(String),
    /// QEMU did not do its work.
    Qemu(String),
    /// A signal to this command ended the run.
    HostSignal(u8),
    /// The user ended the run from the terminal.
    Escaped,
    /// Some of the program's output could not be written.
    OutputLost(Loss),
    /// There was no run: the error, and this command's status.
    Error(String, u8),
}

impl RunEnd {
    /// Returns the end of a run of `program`, whose time was `limit`.
    pub fn of(ended: &Ended, (program, limit): (&str, Option<Duration>), symbols: &Symbols) -> RunEnd {
        match &ended.end {
            End::Program(Ending::Signal(SIGKILL)) => match victim(ended, program) {
                Some(victim) => RunEnd::OomKill(victim),
                None => RunEnd::Signal(SIGKILL),
            },
            End::Program(Ending::Signal(signal)) => RunEnd::Signal(*signal),
            End::Program(Ending::Exit(status)) => RunEnd::Exit(*status),
            End::Unbalanced(_, finding) => RunEnd::Audit(finding.clone()),
            End::OutputLost(_, loss) => RunEnd::OutputLost(*loss),
            End::Ready => RunEnd::Exit(0),
            End::TimedOut(_) => RunEnd::Timeout(limit.unwrap_or_default()),
            End::Interrupted(signal) => RunEnd::HostSignal(*signal),
            End::Recalled => RunEnd::HostSignal(SIGKILL),
            End::Escaped => RunEnd::Escaped,
            End::Died if ended.ready.is_none() && ended.log.is_empty() => {
                RunEnd::Firmware(report::death_line(ended, symbols))
            }
            End::Panicked(_) | End::Died => RunEnd::Panic(report::death_line(ended, symbols)),
            End::Refused(reason) => RunEnd::Refused(reason.clone()),
            End::Qemu(words) => RunEnd::Qemu(words.clone()),
        }
    }

    /// Returns the end of a run that could not be made, or in which QEMU or the kernel refused to
    /// work.
    pub fn of_failure(failure: &Failure) -> RunEnd {
        let words = failure.to_string();
        match failure.signal() {
            Some(signal) => RunEnd::HostSignal(signal),
            None if failure.is_of_qemu() => RunEnd::Qemu(words),
            None if failure.is_of_firmware() => RunEnd::Refused(words),
            None => RunEnd::Error(words, failure.status()),
        }
    }

    /// Returns the end's name in records.
    pub fn name(&self) -> &'static str {
        match self {
            RunEnd::Exit(_) => "exit",
            RunEnd::Signal(_) => "signal",
            RunEnd::OomKill(_) => "oom-kill",
            RunEnd::Panic(_) => "panic",
            RunEnd::Timeout(_) => "timeout",
            RunEnd::Audit(_) => "audit",
            RunEnd::Isolation(_) => "isolation",
            RunEnd::Firmware(_) | RunEnd::Refused(_) => "firmware",
            RunEnd::Qemu(_) => "qemu",
            RunEnd::HostSignal(_) | RunEnd::Escaped => "host-signal",
            RunEnd::OutputLost(_) | RunEnd::Error(..) => "error",
        }
    }

    /// Returns the end of `program` in one sentence.
    pub fn sentence(&self, program: &str) -> String {
        match self {
            RunEnd::Exit(status) => format!("{program}: exit {status}"),
            RunEnd::Signal(signal) => format!("{program}: ended by signal {signal}"),
            RunEnd::OomKill(OomVictim { pid, name, resident_kib }) => format!(
                "{program}: killed for want of memory (process {pid}, {name}, {resident_kib} KiB resident)"
            ),
            RunEnd::Timeout(limit) => {
                format!("{program} did not end within {}: killed", humantime::format_duration(*limit))
            }
            RunEnd::Audit(finding) => report::unbalanced(finding),
            RunEnd::Isolation(verdict) => verdict.clone(),
            RunEnd::Panic(words)
            | RunEnd::Firmware(words)
            | RunEnd::Refused(words)
            | RunEnd::Qemu(words)
            | RunEnd::Error(words, _) => words.clone(),
            RunEnd::HostSignal(signal) => format!("ended by signal {signal} to freehold"),
            RunEnd::Escaped => "ended from the terminal (Ctrl-] three times)".into(),
            RunEnd::OutputLost(loss) => report::output_lost(*loss),
        }
    }

    /// Returns this command's exit status.
    pub fn status(&self) -> u8 {
        match self {
            RunEnd::Exit(status) => *status,
            RunEnd::Signal(signal) | RunEnd::HostSignal(signal) => status_of(*signal),
            RunEnd::OomKill(_) => status_of(SIGKILL),
            RunEnd::Escaped => status_of(SIGINT),
            RunEnd::Panic(_) | RunEnd::Firmware(_) => GUEST_DIED,
            RunEnd::Timeout(_) => TIMED_OUT,
            RunEnd::Audit(_) | RunEnd::Isolation(_) | RunEnd::Refused(_) | RunEnd::Qemu(_) => OWN_ERROR,
            RunEnd::OutputLost(loss) if loss.reader_gone() => READER_GONE,
            RunEnd::OutputLost(_) => OWN_ERROR,
            RunEnd::Error(_, status) => *status,
        }
    }

    /// Returns the process that was killed for want of memory.
    pub fn victim(&self) -> Option<&OomVictim> {
        match self {
            RunEnd::OomKill(victim) => Some(victim),
            _ => None,
        }
    }

    /// Returns the signal to this command that ended the run.
    pub fn host_signal(&self) -> Option<u8> {
        match self {
            RunEnd::HostSignal(signal) => Some(*signal),
            RunEnd::Escaped => Some(SIGINT),
            _ => None,
        }
    }

    /// Returns whether the sentence is printed: what a program does by itself shows in its status.
    pub fn is_told(&self) -> bool {
        match self {
            RunEnd::Exit(_) | RunEnd::Signal(_) | RunEnd::HostSignal(_) => false,
            RunEnd::OutputLost(loss) => !loss.reader_gone(),
            _ => true,
        }
    }
}

/// Returns the victim of the kernel's last OOM kill, if it was `program`.
fn victim(ended: &Ended, program: &str) -> Option<OomVictim> {
    let of_notices = || ended.notices.iter().rev().find_map(|notice| own_victim(notice));
    let of_log = || ended.log.lines().rev().find_map(linux_victim);
    if ended.is_of_own_kernel() {
        return of_notices().filter(|victim| victim.pid == PROGRAM);
    }
    let name = program.rsplit('/').next().unwrap_or(program);
    let name: String = name.chars().take(NAME_LENGTH).collect();
    of_log().filter(|victim| victim.name == name)
}

/// Parses our own kernel's notice: `… killed process PID (NAME), KIB KiB resident, …`.
fn own_victim(notice: &str) -> Option<OomVictim> {
    let (_, rest) = notice.split_once("out of memory")?.1.split_once("killed process ")?;
    let (pid, rest) = rest.split_once(" (")?;
    let (name, rest) = rest.rsplit_once("), ")?;
    let resident = rest.split(' ').next()?;
    Some(OomVictim { pid: pid.parse().ok()?, name: name.into(), resident_kib: resident.parse().ok()? })
}

/// Parses Linux' line: `Out of memory: Killed process PID (NAME) …, anon-rss:NkB, file-rss:NkB,
/// shmem-rss:NkB, …`.
fn linux_victim(line: &str) -> Option<OomVictim> {
    let (_, rest) = line.split_once("Killed process ")?;
    let (pid, rest) = rest.split_once(" (")?;
    let (name, rest) = rest.split_once(") ")?;
    let sizes = rest.split(", ").filter_map(|part| part.split_once("-rss:")?.1.strip_suffix("kB"));
    let resident_kib = sizes.filter_map(|size| size.parse::<u64>().ok()).sum();
    Some(OomVictim { pid: pid.parse().ok()?, name: name.into(), resident_kib })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn victims_of_both_kernels_are_read_with_their_sizes() {
        let own = "out of memory (page fault by process 2): killed process 2 (busybox (x), y), 53576 KiB resident, oom_score_adj 0";
        let victim = own_victim(own).expect("a victim");
        assert_eq!((victim.pid, &*victim.name, victim.resident_kib), (2, "busybox (x), y", 53_576));
        let linux = "[    4.2] Out of memory: Killed process 71 (busybox) total-vm:70000kB, anon-rss:63000kB, file-rss:4kB, shmem-rss:0kB, UID:0 pgtables:180kB oom_score_adj:0";
        let victim = linux_victim(linux).expect("a victim");
        assert_eq!((victim.pid, &*victim.name, victim.resident_kib), (71, "busybox", 63_004));
        for line in ["", "killed process", "out of memory: killed process x (y), 1 KiB", "Killed process 1"] {
            assert_eq!((own_victim(line), linux_victim(line)), (None, None), "{line}");
        }
    }

    #[test]
    fn each_end_has_its_own_name_and_a_sentence_of_one_line() {
        let victim = OomVictim { pid: 2, name: "hog".into(), resident_kib: 5 };
        let words = || String::from("words");
        let ends = [
            (RunEnd::Exit(3), "exit", 3),
            (RunEnd::Signal(15), "signal", 143),
            (RunEnd::OomKill(victim), "oom-kill", 137),
            (RunEnd::Panic(words()), "panic", 255),
            (RunEnd::Timeout(Duration::from_secs(90)), "timeout", 124),
            (RunEnd::Audit(words()), "audit", 125),
            (RunEnd::Isolation(words()), "isolation", 125),
            (RunEnd::Firmware(words()), "firmware", 255),
            (RunEnd::Qemu(words()), "qemu", 125),
            (RunEnd::HostSignal(2), "host-signal", 130),
        ];
        for (end, name, status) in ends {
            assert_eq!((end.name(), end.status()), (name, status));
            let sentence = end.sentence("hog");
            assert_eq!(sentence.lines().count(), 1, "{sentence}");
            let parts = ["hog", "words", "signal 2"];
            assert!(parts.iter().any(|part| sentence.contains(part)), "{sentence}");
        }
    }
}
