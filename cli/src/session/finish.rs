//! Decides whether a run is over, and how it ended.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use super::end::{self, End, LastSeen};
use super::{ANSWER_GRACE, POWER_OFF_GRACE, ProgramEnd, Purpose, REFUSAL, VmSession, WATCHER_NAME};
use crate::protocol::ToGuest;

impl VmSession<'_> {
    /// Returns the end of the run, if it has come; `gone` is QEMU's status once it has ended.
    pub(super) fn finished(&mut self, gone: Option<ExitStatus>) -> Option<End> {
        if self.job.purpose == Purpose::Symbols && self.ready.is_some() {
            return Some(End::Ready);
        }
        if let Some(certificate) = self.panic.take() {
            // Earlier output of the program still belongs to the run; it is in the sockets by now.
            self.output.run();
            self.error.run();
            return Some(End::Panicked(certificate));
        }
        if let Some(ProgramEnd { ending, totals, at }) = &self.ended {
            let complete = totals.is_some_and(|(output, error)| {
                self.output.has_passed(output) && self.error.has_passed(error)
            });
            let drained = gone.is_some() && self.output.is_done() && self.error.is_done();
            // The session waits for a slow reader, but not for a guest that is slow to power off.
            let late = at.elapsed() >= POWER_OFF_GRACE && self.output.is_empty() && self.error.is_empty();
            if complete || drained || late {
                return Some(end::of(*ending, self.report.as_ref(), self.loss()));
            }
        } else if let Some(status) = gone
            && self.output.is_done()
            && self.error.is_done()
            && self.control.is_closed()
        {
            return Some(self.unexplained(status));
        }
        let late = self.started.elapsed().checked_sub(self.job.timeout?)?;
        self.time_is_up(late)
    }

    /// Ends the run after a time-out, once the kernel has reported its threads, or else QEMU its
    /// CPUs.
    fn time_is_up(&mut self, late: Duration) -> Option<End> {
        let answers = end::is_own(self.ready.as_ref());
        if answers && !self.asked_for_threads && self.job.purpose == Purpose::Program {
            self.asked_for_threads = true;
            self.tell(ToGuest::Threads);
        }
        if !self.asked_for_threads {
            return Some(End::TimedOut(LastSeen::Unknown));
        }
        if let Some(threads) = self.threads.take() {
            return Some(End::TimedOut(LastSeen::Threads(threads)));
        }
        if late < ANSWER_GRACE {
            return None;
        }
        if !self.asked_for_cpus {
            self.asked_for_cpus = true;
            self.monitor.ask_for_cpus();
        }
        match self.monitor.cpus() {
            Some(cpus) => Some(End::TimedOut(LastSeen::Cpus(cpus))),
            None => (late >= 2 * ANSWER_GRACE).then_some(End::TimedOut(LastSeen::Unknown)),
        }
    }

    /// Describes the end of QEMU if the guest had not given a reason.
    fn unexplained(&mut self, status: ExitStatus) -> End {
        while self.words.receive() {}
        self.log.receive();
        let words = String::from_utf8_lossy(&self.words.received).into_owned();
        if let Some(signal) = status.signal() {
            // A failed assertion of QEMU or of the plugin tells itself before the signal.
            let noise =
                |line: &&str| line.is_empty() || line.starts_with("note:") || line.contains("warning:");
            let last = words.lines().rfind(|line| !noise(line));
            let told = last.map(|line| format!(": {line}")).unwrap_or_default();
            return End::Qemu(format!("QEMU was killed by signal {signal}{told}"));
        }
        if self.ready.is_none()
            && let Some((_, reason)) = self.log.tail().rsplit_once(REFUSAL)
        {
            return End::Refused(reason.lines().next().unwrap_or_default().to_owned());
        }
        if let Some(line) = words.lines().find(|line| line.starts_with(WATCHER_NAME)) {
            return End::Qemu(line.to_owned());
        }
        let said = words.lines().find(|line| line.contains("qemu") && !line.contains("warning:"));
        match said {
            Some(line) if self.ready.is_none() && !self.log.spoke() => {
                let line = line.split_once(": ").map_or(line, |(_, rest)| rest);
                End::Qemu(format!("QEMU refused: {line}"))
            }
            _ => End::Died,
        }
    }
}
