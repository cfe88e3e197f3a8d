//! Progress of a long measurement: one line per finished part on stderr, or a bar if stderr is a
//! terminal, with an estimate of the time that remains. And the signal that ends it early.
//!
//! The estimate knows parts by a key: a part takes as long as earlier parts with its key did, or as
//! long as the mean of all keys if there was none.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::failure::Failure;
use crate::terminal::Streams;
use crate::{Result, print};

/// Time that parts take, by their keys.
#[derive(Debug)]
struct Estimate {
    /// For each key: parts that remain, parts that are finished, and their time in all.
    keys: BTreeMap<String, (u32, u32, Duration)>,
    /// Number of parts at the same time.
    lanes: u32,
}

impl Estimate {
    fn new(parts: impl IntoIterator<Item = String>, lanes: u32) -> Estimate {
        let mut estimate = Estimate { keys: BTreeMap::new(), lanes: lanes.max(1) };
        estimate.add(parts);
        estimate
    }

    fn add(&mut self, parts: impl IntoIterator<Item = String>) {
        for key in parts {
            self.keys.entry(key).or_insert((0, 0, Duration::ZERO)).0 += 1;
        }
    }

    fn finish(&mut self, key: &str, took: Duration) {
        if let Some((left, done, time)) = self.keys.get_mut(key) {
            *left = left.saturating_sub(1);
            *done += 1;
            *time += took;
        }
    }

    /// Returns the numbers of finished parts, and of all.
    fn counts(&self) -> (u32, u32) {
        self.keys.values().fold((0, 0), |(done, all), (left, of, _)| (done + of, all + of + left))
    }

    /// Returns the time that the remaining parts will take. Zero before the first is finished.
    fn remaining(&self) -> Duration {
        let mean = |(_, done, time): &(u32, u32, Duration)| (*done > 0).then(|| *time / *done);
        let known: Vec<Duration> = self.keys.values().filter_map(mean).collect();
        let Ok(count @ 1..) = u32::try_from(known.len()) else { return Duration::ZERO };
        let usual = known.iter().sum::<Duration>() / count;
        let time = |of: &(u32, u32, Duration)| mean(of).unwrap_or(usual) * of.0;
        self.keys.values().map(time).sum::<Duration>() / self.lanes
    }
}

/// Shows how far a measurement is.
pub struct Progress {
    estimate: Mutex<Estimate>,
    /// Hidden without a terminal, where lines are printed.
    bar: ProgressBar,
}

impl Progress {
    /// Begins a measurement of these parts, each given by its key, `lanes` at the same time.
    pub fn new(parts: impl IntoIterator<Item = String>, lanes: u32) -> Progress {
        let estimate = Estimate::new(parts, lanes);
        let bar = ProgressBar::new(estimate.counts().1.into());
        if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos} of {len}, {elapsed} {msg}") {
            bar.set_style(style);
        }
        bar.tick();
        Progress { estimate: Mutex::new(estimate), bar }
    }

    fn estimate(&self) -> MutexGuard<'_, Estimate> {
        self.estimate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows that a part with this key is finished, under this name; it took so long.
    pub fn finish(&self, key: &str, name: &str, took: Duration) {
        let mut estimate = self.estimate();
        estimate.finish(key, took);
        let ((done, all), left) = (estimate.counts(), estimate.remaining());
        if Streams::now().error {
            self.bar.set_position(done.into());
            self.bar.set_message(format!("{name}{}", show_left(left)));
        } else {
            print::stderr(format!("freehold: {name}: done, {done} of {all}{}\n", show_left(left)));
        }
    }

    /// Removes the bar.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// Returns the words about the time that remains; none if it is less than a second.
fn show_left(left: Duration) -> String {
    match left.as_secs_f64().round() as u64 {
        0 => String::new(),
        seconds @ 1..120 => format!(", about {seconds} s remain"),
        seconds => format!(", about {} min remain", (seconds + 30) / 60),
    }
}

/// Notes the first signal that asks this command to end. A VM that runs then is ended by its own
/// session; this tells of signals between two VMs, too.
pub struct Interrupt {
    actions: Vec<SigId>,
}

/// The signal that came while one was watching; 0: none.
static NOTED: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// Returns the signal that ended a measurement which has not come to its end yet, if one did.
pub fn noted() -> Option<u8> {
    u8::try_from(NOTED.load(Ordering::SeqCst)).ok().filter(|&signal| signal > 0)
}

impl Interrupt {
    /// Watches signals until this is dropped.
    ///
    /// # Errors
    /// The system refuses to.
    pub fn watch() -> Result<Interrupt> {
        let mut actions = Vec::new();
        for number in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
            let action = signal_hook::flag::register_usize(number, Arc::clone(&NOTED), number as usize);
            actions.push(action.map_err(|e| Failure::new(format!("cannot watch signals: {e}"), ""))?);
        }
        Ok(Interrupt { actions })
    }

    /// Returns the signal, if one came.
    pub fn came(&self) -> Option<u8> {
        noted()
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        for action in self.actions.drain(..) {
            signal_hook::low_level::unregister(action);
        }
        NOTED.store(0, Ordering::SeqCst);
    }
}

/// The parts of an experiment, one after the other, until a signal comes.
pub struct LabSteps {
    progress: Progress,
    interrupt: Interrupt,
    /// The signal that ended a VM.
    ended_by: Option<u8>,
}

impl LabSteps {
    /// Begins an experiment of these parts, each given by its key.
    ///
    /// # Errors
    /// Signals cannot be watched.
    pub fn new(parts: impl IntoIterator<Item = String>) -> Result<LabSteps> {
        Ok(LabSteps { progress: Progress::new(parts, 1), interrupt: Interrupt::watch()?, ended_by: None })
    }

    /// Adds parts that were not known before.
    pub fn add(&mut self, parts: impl IntoIterator<Item = String>) {
        let mut estimate = self.progress.estimate();
        estimate.add(parts);
        self.progress.bar.set_length(estimate.counts().1.into());
    }

    /// Makes a part with this key and name. Returns its result; `None` if a signal came before its
    /// end.
    pub fn step<T>(&mut self, key: &str, name: &str, part: impl FnOnce() -> Result<T>) -> Result<Option<T>> {
        if self.interrupted().is_some() {
            return Ok(None);
        }
        let begun = Instant::now();
        match part() {
            Ok(result) => {
                self.progress.finish(key, name, begun.elapsed());
                Ok(Some(result))
            }
            Err(failure) => match failure.signal() {
                Some(signal) => {
                    self.ended_by = Some(signal);
                    Ok(None)
                }
                None => Err(failure),
            },
        }
    }

    /// Returns the signal that ended the experiment early, if one did.
    pub fn interrupted(&self) -> Option<u8> {
        self.ended_by.or_else(|| self.interrupt.came())
    }

    /// Ends the experiment's measurements; returns the signal that ended them early, if one did.
    ///
    /// # Errors
    /// A signal came before anything was finished.
    pub fn end(self) -> Result<Option<u8>> {
        self.progress.end();
        match self.interrupted() {
            Some(signal) if self.progress.estimate().counts().0 == 0 => Err(Failure::interrupted(signal)),
            signal => Ok(signal),
        }
    }
}

/// Returns the sentence that marks a result as partial.
pub fn partial_sentence(signal: u8) -> String {
    format!("partial: ended by signal {signal}; only what was finished before is here")
}

/// Returns this command's exit status after a signal.
pub fn status_of(signal: u8) -> u8 {
    128u8.saturating_add(signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(of: &[&str]) -> Vec<String> {
        of.iter().map(|key| (*key).to_owned()).collect()
    }

    #[test]
    fn what_remains_is_estimated_by_parts_with_the_same_key() {
        let mut estimate = Estimate::new(keys(&["fast", "slow", "new", "fast", "fast", "slow"]), 1);
        assert_eq!(estimate.remaining(), Duration::ZERO, "nothing is known yet");
        estimate.finish("fast", Duration::from_secs(1));
        assert_eq!(estimate.remaining(), Duration::from_secs(5), "all others are taken to be as fast");
        estimate.finish("slow", Duration::from_secs(9));
        // Two fast, one slow, and one that is taken to be between them.
        assert_eq!(estimate.remaining(), Duration::from_secs(2 + 9 + 5));
        assert_eq!(estimate.counts(), (2, 6));
        for key in ["new", "fast", "slow", "fast"] {
            estimate.finish(key, Duration::from_secs(5));
        }
        assert_eq!((estimate.remaining(), estimate.counts()), (Duration::ZERO, (6, 6)));
    }

    #[test]
    fn parts_side_by_side_take_their_share_of_the_time() {
        let mut estimate = Estimate::new(keys(&["a", "a", "a"]), 2);
        estimate.finish("a", Duration::from_secs(4));
        assert_eq!(estimate.remaining(), Duration::from_secs(4));
    }

    #[test]
    fn times_are_told_in_the_unit_that_matters() {
        let show = |milliseconds| show_left(Duration::from_millis(milliseconds));
        assert_eq!(show(400), "");
        assert_eq!(show(1_400), ", about 1 s remain");
        assert_eq!(show(119_000), ", about 119 s remain");
        assert_eq!(show(150_000), ", about 3 min remain");
    }

    #[test]
    fn a_signal_keeps_the_steps_before_it() {
        let mut steps = LabSteps::new(keys(&["a", "a"])).expect("steps");
        assert_eq!(steps.step("a", "first", || Ok(1)).expect("a result"), Some(1));
        let interrupted = steps.step("a", "second", || Err::<i32, _>(Failure::interrupted(15)));
        assert_eq!(interrupted.expect("no failure"), None);
        assert_eq!(steps.step("a", "third", || Ok(3)).expect("no failure"), None, "nothing more is begun");
        assert_eq!(steps.end().expect("one is finished"), Some(15));
        let mut early = LabSteps::new(keys(&["a"])).expect("steps");
        assert!(early.step("a", "first", || Err::<i32, _>(Failure::interrupted(2))).expect("none").is_none());
        assert_eq!(early.end().expect_err("nothing is finished").status(), 130);
        let mut failing = LabSteps::new(keys(&["a"])).expect("steps");
        assert!(failing.step("a", "x", || Err::<i32, _>(Failure::new("broken", ""))).is_err());
    }
}
