//! Switches of events: `available_events`, `set_event`, and the files below `events`.

use freehold_collections::Arc;
use freehold_tracepoints::{Action, EVENTS, EventDescription, Format, selections};

use super::{CHANGEABLE, READABLE, kprobes, step};
use crate::fs::generated::{Generate, Text};
use crate::fs::pseudo::PseudoDir;
use crate::hw::static_keys::{self, KeyState, StaticKey};
use crate::{Errno, Result, mem, tracing};

pub(super) fn fill(root: &Arc<PseudoDir>) {
    root.generated("available_events", READABLE, |out: &mut Text| {
        switched().for_each(|(event, _)| writeln!(out, "{}:{}", event.system, event.name));
        kprobes::each(|group, name, _| writeln!(out, "{group}:{name}"));
        Ok(())
    });
    root.generated("set_event", CHANGEABLE, SetEvent);
    let events = root.dir(b"events");
    events.generated("enable", CHANGEABLE, Enable(Group::All));
    events.generated("header_event", READABLE, header_event);
    for event in EVENTS.iter().filter(|event| !event.is_kprobe()) {
        let system = events.dir(event.system.as_bytes());
        system.generated("enable", CHANGEABLE, Enable(Group::System(event.system)));
        system.generated("filter", CHANGEABLE, Filter);
        let dir = system.dir(event.name.as_bytes());
        if !event.is_marker() {
            dir.generated("enable", CHANGEABLE, Enable(Group::One(event)));
            dir.generated("filter", CHANGEABLE, Filter);
        }
        dir.generated("id", READABLE, |out: &mut Text| {
            writeln!(out, "{}", event.id());
            Ok(())
        });
        dir.generated("format", READABLE, |out: &mut Text| {
            write!(out, "{}", Format(event));
            Ok(())
        });
    }
}

/// Describes the first word of an event in a page: libtraceevent reads this before it reads
/// formats.
fn header_event(out: &mut Text) -> Result<()> {
    out.push(
        b"# compressed entry header\n\ttype_len    :    5 bits\n\ttime_delta  :   27 bits\n\tarray       :   32 bits\n\n\
          \tpadding     : type == 29\n\ttime_extend : type == 30\n\ttime_stamp : type == 31\n\
          \tdata max type_len  == 28\n",
    );
    Ok(())
}

/// The events that have a switch.
fn switched() -> impl Iterator<Item = (&'static EventDescription, StaticKey)> {
    EVENTS.iter().filter_map(|event| Some((event, StaticKey::of_event(event)?)))
}

/// Turns an event on or off; makes the rings before the first one.
fn set(key: StaticKey, state: KeyState) -> Result<()> {
    if state == KeyState::On {
        tracing::provide(&mut step)?;
    }
    mem::turn_key(key, state)
}

/// Turns events on or off as the words of `text` say, one after the other.
///
/// # Errors
/// `EINVAL` for a word that selects nothing; the words before it have taken effect. `ENOMEM`,
/// `EINTR`.
pub fn enable_selected(text: &[u8]) -> Result<()> {
    for (word, selection) in selections(text) {
        let Ok(selection) = selection else {
            set_kprobe(word)?;
            continue;
        };
        let state = if selection.action == Action::Enable { KeyState::On } else { KeyState::Off };
        for (_, key) in switched().filter(|(event, _)| selection.selects(event)) {
            set(key, state)?;
        }
    }
    Ok(())
}

/// Turns the kprobe with this `GROUP:NAME` on, or off after `!`.
fn set_kprobe(word: &[u8]) -> Result<()> {
    let word = core::str::from_utf8(word).map_err(|_| Errno::EINVAL)?;
    let (state, word) = word.strip_prefix('!').map_or((KeyState::On, word), |rest| (KeyState::Off, rest));
    let meant = word.split_once(':').ok_or(Errno::EINVAL)?;
    match kprobes::set(state, |group, name| (group, name) == meant)? {
        0 => Err(Errno::EINVAL),
        _ => Ok(()),
    }
}

/// Turns on the events whose numbers' bits are set.
///
/// # Errors
/// `ENOMEM`, `EINTR`.
pub fn enable_numbered(events: u64) -> Result<()> {
    let mut wanted = switched().filter(|(event, _)| events >> event.number() & 1 != 0);
    wanted.try_for_each(|(_, key)| set(key, KeyState::On))
}

/// Turns all events on or off.
///
/// # Errors
/// `ENOMEM`, `EINTR`.
pub fn turn_all(state: KeyState) -> Result<()> {
    switched().try_for_each(|(_, key)| set(key, state))?;
    kprobes::set(state, |_, _| true).map(|_| ())
}

/// The events that are on. Opening the file with O_TRUNC turns all off.
struct SetEvent;

impl Generate for SetEvent {
    fn show(&self, out: &mut Text) -> Result<()> {
        for (event, _) in switched().filter(|(_, key)| static_keys::state(*key) == KeyState::On) {
            writeln!(out, "{}:{}", event.system, event.name);
        }
        kprobes::each(|group, name, state| {
            if state == KeyState::On {
                writeln!(out, "{group}:{name}");
            }
        });
        Ok(())
    }
    fn store(&self, bytes: &[u8]) -> Result<()> {
        enable_selected(bytes)
    }
    fn truncate(&self) -> Result<()> {
        turn_all(KeyState::Off)
    }
}

/// The events that a file `enable` controls.
enum Group {
    All,
    System(&'static str),
    One(&'static EventDescription),
}

impl Group {
    fn events(&self) -> impl Iterator<Item = (&'static EventDescription, StaticKey)> {
        switched().filter(|(event, _)| match self {
            Self::All => true,
            Self::System(system) => event.system == *system,
            Self::One(one) => event.number() == one.number(),
        })
    }
}

/// An event's filter: filters are not supported. Removing a filter succeeds, setting one does not.
struct Filter;

impl Generate for Filter {
    fn show(&self, out: &mut Text) -> Result<()> {
        writeln!(out, "none");
        Ok(())
    }
    fn store(&self, bytes: &[u8]) -> Result<()> {
        if bytes.trim_ascii() == b"0" { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
    }
}

/// Shows the switch of `all` events, of which `on` are on: 1 if all are, 0 if none is, X otherwise.
pub(super) fn show_switch(out: &mut Text, (on, all): (usize, usize)) {
    let shown = match on {
        0 => "0",
        _ if on == all => "1",
        _ => "X",
    };
    writeln!(out, "{shown}");
}

/// The switch of a group of events.
struct Enable(Group);

impl Generate for Enable {
    fn show(&self, out: &mut Text) -> Result<()> {
        let is_on = |(_, key): &(&EventDescription, StaticKey)| static_keys::state(*key) == KeyState::On;
        let (mut on, mut all) = (self.0.events().filter(is_on).count(), self.0.events().count());
        if matches!(self.0, Group::All) {
            kprobes::each(|_, _, state| {
                all += 1;
                on += usize::from(state == KeyState::On);
            });
        }
        show_switch(out, (on, all));
        Ok(())
    }
    fn store(&self, bytes: &[u8]) -> Result<()> {
        let state = KeyState::parse(bytes).ok_or(Errno::EINVAL)?;
        if matches!(self.0, Group::All) {
            return turn_all(state);
        }
        self.0.events().try_for_each(|(_, key)| set(key, state))
    }
}
