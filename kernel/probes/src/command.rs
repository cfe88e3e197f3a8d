//! A line of `kprobe_events`, as Linux has it (Documentation/trace/kprobetrace.rst):
//! `p[:[GROUP/]NAME] SYMBOL[+OFFSET]`, `p[:[GROUP/]NAME] ADDRESS`, `-:[GROUP/]NAME`.
//!
//! A symbol is a function's path, with or without its crate's modules before the last name. It may
//! contain spaces, as `<A as B>::f` does, so the rest of the line is the place. Arguments to fetch
//! are not supported.

/// The group of a probe without one.
const GROUP: &str = "kprobes";
/// Largest number of bytes of a group and of a name.
const MOST_NAME: usize = 63;

/// A line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command<'a> {
    /// Define a probe.
    Define(Definition<'a>),
    /// Remove a probe.
    Remove {
        /// Its group.
        group: &'a str,
        /// Its name.
        name: &'a str,
    },
}

/// A probe to define.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Definition<'a> {
    /// Its group.
    pub group: &'a str,
    /// Its name; `None`: made from the place.
    pub name: Option<&'a str>,
    /// Its place.
    pub location: Location<'a>,
}

/// The place of a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Location<'a> {
    /// In a function, so many bytes behind its beginning.
    Symbol(&'a str, u64),
    /// An address.
    Address(u64),
}

/// Reasons to refuse a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParseError {
    /// It has another form.
    Malformed,
    /// It asks for something that is not supported: a return probe, an argument.
    Unsupported,
}

impl<'a> Command<'a> {
    /// Reads a line. `Ok(None)`: it is empty, or a comment.
    ///
    /// # Errors
    /// If it is neither a command nor empty.
    pub fn parse(line: &'a [u8]) -> Result<Option<Self>, ParseError> {
        let line = core::str::from_utf8(line).map_err(|_| ParseError::Malformed)?;
        // Names of closures have this character, too.
        let line = line.split_once(" #").map_or(line, |(line, _)| line).trim();
        let line = if line.starts_with('#') { "" } else { line };
        if line.is_empty() {
            return Ok(None);
        }
        let (word, place) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let (kind, event) = word.split_once(':').map_or((word, None), |(kind, event)| (kind, Some(event)));
        let place = place.trim();
        match (kind, event) {
            ("p", None) => define(GROUP, None, place).map(Some),
            ("p", Some(event)) => {
                let (group, name) = group_and_name(event)?;
                define(group, Some(name), place).map(Some)
            }
            ("-", Some(event)) if place.is_empty() => {
                let (group, name) = group_and_name(event)?;
                Ok(Some(Self::Remove { group, name }))
            }
            _ if kind.starts_with('r') && kind[1..].bytes().all(|byte| byte.is_ascii_digit()) => {
                Err(ParseError::Unsupported)
            }
            _ => Err(ParseError::Malformed),
        }
    }
}

fn group_and_name(event: &str) -> Result<(&str, &str), ParseError> {
    let (group, name) = event.split_once('/').unwrap_or((GROUP, event));
    if is_name(group) && is_name(name) { Ok((group, name)) } else { Err(ParseError::Malformed) }
}

/// Whether a text is a C identifier of permitted length.
fn is_name(text: &str) -> bool {
    let is_in_name = |byte: u8| byte == b'_' || byte.is_ascii_alphanumeric();
    text.len() <= MOST_NAME
        && text.bytes().all(is_in_name)
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && !text.is_empty()
}

fn define<'a>(group: &'a str, name: Option<&'a str>, place: &'a str) -> Result<Command<'a>, ParseError> {
    let begins_argument = |word: &str| {
        word.len() > 1 && (word.starts_with(['%', '$', '@', '+', '-', '\\']) || word.contains('='))
    };
    if place.split_whitespace().skip(1).any(begins_argument) {
        return Err(ParseError::Unsupported);
    }
    let location = if place.starts_with(|c: char| c.is_ascii_digit()) {
        Location::Address(number(place)?)
    } else {
        let (symbol, offset) = match place.rsplit_once('+') {
            Some((symbol, offset)) => (symbol, number(offset)?),
            None => (place, 0),
        };
        if symbol.is_empty() || symbol.ends_with(char::is_whitespace) {
            return Err(ParseError::Malformed);
        }
        Location::Symbol(symbol, offset)
    };
    Ok(Command::Define(Definition { group, name, location }))
}

/// Reads a decimal number, or a hexadecimal one after `0x`.
fn number(text: &str) -> Result<u64, ParseError> {
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
    if digits.starts_with('+') {
        return Err(ParseError::Malformed);
    }
    u64::from_str_radix(digits, radix).map_err(|_| ParseError::Malformed)
}
