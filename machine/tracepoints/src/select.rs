//! The grammar of `set_event`: `[!]SYSTEM:EVENT`, where SYSTEM or EVENT may be left out or be `*`,
//! which means all; a word without a colon is a system or an event. As on Linux, an asterisk is no
//! pattern within a name.

use crate::table::{EVENTS, EventDescription};

/// Whether events are turned on or off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// On.
    Enable,
    /// Off (`!`).
    Disable,
}

/// A word of `set_event`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Selection<'a> {
    /// Whether the events are turned on or off.
    pub action: Action,
    /// The system; `None` where the word has no colon.
    system: Option<&'a str>,
    /// The event.
    event: &'a str,
}

/// The reason why a word selects nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SelectError {
    /// The word is not text.
    NotText,
    /// The word selects no event.
    NoSuchEvent,
}

/// Reads one word.
///
/// # Errors
/// Where no event is selected.
pub fn parse(word: &[u8]) -> Result<Selection<'_>, SelectError> {
    let word = core::str::from_utf8(word).map_err(|_| SelectError::NotText)?;
    let (action, word) = match word.strip_prefix('!') {
        Some(rest) => (Action::Disable, rest),
        None => (Action::Enable, word),
    };
    let selection = match word.split_once(':') {
        Some((system, event)) => Selection {
            action,
            system: Some(if system.is_empty() { "*" } else { system }),
            event: if event.is_empty() { "*" } else { event },
        },
        None => Selection { action, system: None, event: word },
    };
    if selection.events().next().is_none() { Err(SelectError::NoSuchEvent) } else { Ok(selection) }
}

/// Reads words with blanks, commas or line feeds between them. Returns each with its meaning.
pub fn selections(text: &[u8]) -> impl Iterator<Item = (&[u8], Result<Selection<'_>, SelectError>)> {
    let words = text.split(|byte| byte.is_ascii_whitespace() || *byte == b',');
    words.filter(|word| !word.is_empty()).map(|word| (word, parse(word)))
}

impl Selection<'_> {
    /// Whether this selection contains an event.
    pub fn selects(&self, event: &EventDescription) -> bool {
        if !event.has_switch() {
            return false;
        }
        match self.system {
            Some(system) => matches(system, event.system) && matches(self.event, event.name),
            None => matches(self.event, event.system) || matches(self.event, event.name),
        }
    }
    /// The events that this selection contains.
    pub fn events(&self) -> impl Iterator<Item = &'static EventDescription> {
        EVENTS.iter().filter(|event| self.selects(event))
    }
}

/// Whether a word of the selection means `name`.
fn matches(word: &str, name: &str) -> bool {
    word == "*" || word == name
}
