//! `kprobe_events`, `kprobe_profile`, and the files of each probe below `events`.

use freehold_collections::{Arc, String};
use freehold_tracepoints::EVENTS;

use super::events::show_switch;
use super::{CHANGEABLE, READABLE, step};
use crate::fs::generated::{Generate, Text};
use crate::fs::pseudo::PseudoDir;
use crate::hw::static_keys::KeyState;
use crate::mem::kprobes::{self, Changed, Kprobe};
use crate::{Errno, Result, tracing};

/// Names of files beside groups and probes.
const FILES: [&str; 3] = ["enable", "filter", "header_event"];

pub(super) fn fill(root: &Arc<PseudoDir>) {
    root.generated("kprobe_events", CHANGEABLE, KprobeEvents { events: root.dir(b"events") });
    root.generated("kprobe_profile", READABLE, |out: &mut Text| {
        for probe in kprobes::all().iter() {
            let (hits, missed) = probe.counts();
            writeln!(out, "  {:<44} {hits:>15} {missed:>15}", &*probe.name);
        }
        Ok(())
    });
}

/// Calls `visit` with each probe's group, name and state.
pub(super) fn each(mut visit: impl FnMut(&str, &str, KeyState)) {
    kprobes::all().iter().for_each(|probe| visit(&probe.group, &probe.name, probe.state()));
}

/// Turns on or off the probes that `is_meant` by group and name. Returns how many are meant.
pub(super) fn set(state: KeyState, is_meant: impl Fn(&str, &str) -> bool) -> Result<usize> {
    if state == KeyState::On {
        tracing::provide(&mut step)?;
    }
    kprobes::set(state, |probe| is_meant(&probe.group, &probe.name))
}

/// The probes, in the form of their definitions. Opening the file with O_TRUNC removes all.
struct KprobeEvents {
    events: Arc<PseudoDir>,
}

impl Generate for KprobeEvents {
    fn show(&self, out: &mut Text) -> Result<()> {
        for probe in kprobes::all().iter() {
            writeln!(out, "p:{}/{} {}", &*probe.group, &*probe.name, &*probe.location);
        }
        Ok(())
    }
    fn store(&self, bytes: &[u8]) -> Result<()> {
        for line in bytes.split(|&byte| byte == b'\n') {
            match kprobes::change(line, is_taken)? {
                Some(Changed::Removed(probe)) => self.remove(&probe),
                Some(Changed::Defined(at)) => self.add(at)?,
                None => {}
            }
        }
        Ok(())
    }
    fn truncate(&self) -> Result<()> {
        kprobes::remove_all(|probe| self.remove(probe))
    }
}

/// Whether a group and a name cannot be a probe's.
fn is_taken(group: &str, name: &str) -> bool {
    let is_file = |name: &str| FILES.contains(&name);
    is_file(group) || is_file(name) || EVENTS.iter().any(|event| (event.system, event.name) == (group, name))
}

fn is_system(group: &str) -> bool {
    EVENTS.iter().any(|event| event.has_switch() && event.system == group)
}

impl KprobeEvents {
    /// Makes the files of the probe with this number.
    fn add(&self, at: usize) -> Result<()> {
        let all = kprobes::all();
        let Some(probe) = all.get(at) else { return Ok(()) };
        let copy = |text: &str| String::try_from_str(text);
        let group = self.events.dir(probe.group.as_bytes());
        if !is_system(&probe.group) {
            group.generated("enable", CHANGEABLE, Enable { group: copy(&probe.group)?, name: None });
        }
        let dir = group.dir(probe.name.as_bytes());
        let (own_group, own_name) = (copy(&probe.group)?, copy(&probe.name)?);
        dir.generated("enable", CHANGEABLE, Enable { group: own_group, name: Some(own_name) });
        Ok(())
    }

    fn remove(&self, probe: &Kprobe) {
        let group = self.events.dir(probe.group.as_bytes());
        group.remove(probe.name.as_bytes());
    }
}

/// Switch of one probe, or of a group of probes.
struct Enable {
    group: String,
    name: Option<String>,
}

impl Enable {
    fn is_meant(&self, group: &str, name: &str) -> bool {
        *self.group == *group && self.name.as_ref().is_none_or(|own| **own == *name)
    }
}

impl Generate for Enable {
    fn show(&self, out: &mut Text) -> Result<()> {
        let (mut on, mut all) = (0, 0);
        each(|group, name, state| {
            if self.is_meant(group, name) {
                all += 1;
                on += usize::from(state == KeyState::On);
            }
        });
        show_switch(out, (on, all));
        Ok(())
    }
    fn store(&self, bytes: &[u8]) -> Result<()> {
        let state = KeyState::parse(bytes).ok_or(Errno::EINVAL)?;
        set(state, |group, name| self.is_meant(group, name)).map(|_| ())
    }
}
