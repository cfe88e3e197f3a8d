//! A system call's arguments and result as text, in strace's form.

use freehold_tracepoints::calls::{self, ArgumentKind};

use super::names;

/// A text, or bytes, that an argument leads to.
#[derive(Debug)]
pub struct ArgumentText {
    /// The number of the argument.
    pub argument: usize,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Whether there are more.
    pub more: bool,
}

impl ArgumentText {
    fn quoted(&self) -> String {
        let text = quoted(&self.bytes);
        if self.more { text + "..." } else { text }
    }
}

/// A call and what is known of its arguments.
#[derive(Debug)]
pub struct Call {
    /// Its number.
    pub number: u64,
    /// The registers.
    pub values: [u64; 6],
    /// Texts, in order.
    pub texts: Vec<ArgumentText>,
}

/// Kinds of all arguments of a call without an entry in the table.
const UNKNOWN: [ArgumentKind; 6] = [ArgumentKind::Hex; 6];

/// Numbers of calls whose results are addresses: mmap, brk, mremap, shmat.
const ADDRESSES: [u64; 4] = [9, 12, 25, 30];
/// Numbers of calls that do not return: exit, exit_group.
const ENDINGS: [u64; 2] = [60, 231];

impl Call {
    /// Returns its name.
    pub fn name(&self) -> String {
        name(self.number)
    }

    /// Returns the arguments that are shown.
    fn kinds(&self) -> &'static [ArgumentKind] {
        let kinds = calls::arguments(self.number).unwrap_or(&UNKNOWN);
        &kinds[..kinds.len().min(self.used())]
    }

    /// Returns how many arguments the call uses, where that depends on one of them.
    fn used(&self) -> usize {
        let [_, second, third, fourth, ..] = self.values;
        // O_CREAT, and the bit that only O_TMPFILE has: a file may be made, with a mode.
        let makes = |flags: u64| flags & 0o20000100 != 0;
        match self.number {
            2 if !makes(second) => 2,
            257 if !makes(third) => 3,
            // MREMAP_FIXED.
            25 if fourth & 2 == 0 => 4,
            // F_GETFD, F_GETFL, F_GETOWN, F_GETSIG, F_GETLEASE, F_GETPIPE_SZ, F_GET_SEALS.
            72 if [1, 3, 9, 11, 1025, 1032, 1034].contains(&second) => 2,
            // FUTEX_WAKE, FUTEX_UNLOCK_PI, FUTEX_TRYLOCK_PI; FUTEX_WAIT, FUTEX_LOCK_PI.
            202 if [1, 7, 8].contains(&(second & 0x7f)) => 3,
            202 if [0, 6].contains(&(second & 0x7f)) => 4,
            157 => 2,
            _ => 6,
        }
    }

    /// Returns the arguments that are known before the call has ended, and whether these are all.
    pub fn before(&self) -> (String, bool) {
        let kinds = self.kinds();
        let end = kinds.iter().position(|kind| kind.is_filled()).unwrap_or(kinds.len());
        let mut text = self.list(0, end);
        if end > 0 && end < kinds.len() {
            text.push_str(", ");
        }
        (text, end == kinds.len())
    }

    /// Returns the arguments that [`Call::before`] left out.
    pub fn behind(&self) -> String {
        let kinds = self.kinds();
        let start = kinds.iter().position(|kind| kind.is_filled()).unwrap_or(kinds.len());
        self.list(start, kinds.len())
    }

    fn list(&self, from: usize, to: usize) -> String {
        let kinds = self.kinds();
        let shown: Vec<String> = (from..to).map(|at| self.argument(at, kinds[at])).collect();
        shown.join(", ")
    }

    fn argument(&self, at: usize, kind: ArgumentKind) -> String {
        let value = self.values[at];
        match kind {
            ArgumentKind::Int | ArgumentKind::Fd => (value as i32).to_string(),
            ArgumentKind::Uint => (value as u32).to_string(),
            ArgumentKind::Long => (value as i64).to_string(),
            ArgumentKind::Size => value.to_string(),
            ArgumentKind::Hex if value == 0 => "0".into(),
            ArgumentKind::Hex => format!("{value:#x}"),
            ArgumentKind::Address => address(value),
            ArgumentKind::Mode => format!("{:#05o}", value & 0o177_777).replacen("0o", "0", 1),
            ArgumentKind::DirFd if value as i32 == -100 => "AT_FDCWD".into(),
            ArgumentKind::DirFd => (value as i32).to_string(),
            ArgumentKind::Vector => self.vector(at),
            ArgumentKind::Path
            | ArgumentKind::Text
            | ArgumentKind::In(_)
            | ArgumentKind::Out
            | ArgumentKind::OutText => {
                let text = self.texts.iter().find(|text| text.argument == at);
                text.map_or_else(|| address(value), |text| text.quoted())
            }
            ArgumentKind::Named(names) => names::show(names, value),
        }
    }

    fn vector(&self, at: usize) -> String {
        let parts: Vec<&ArgumentText> = self.texts.iter().filter(|text| text.argument == at).collect();
        if parts.is_empty() {
            return address(self.values[at]);
        }
        let shown = |text: &&ArgumentText| {
            if text.bytes.is_empty() && text.more { "...".into() } else { text.quoted() }
        };
        format!("[{}]", parts.iter().map(shown).collect::<Vec<_>>().join(", "))
    }

    /// Returns the result as text.
    pub fn result(&self, value: i64) -> String {
        let interrupted = match value {
            -512 => "ERESTARTSYS (To be restarted if SA_RESTART is set)",
            -513 => "ERESTARTNOINTR (To be restarted)",
            -514 => "ERESTARTNOHAND (To be restarted if no handler)",
            -516 => "ERESTART_RESTARTBLOCK (Interrupted by signal)",
            _ => "",
        };
        if ENDINGS.contains(&self.number) {
            return "?".into();
        }
        if !interrupted.is_empty() {
            return format!("? {interrupted}");
        }
        if (-4095..0).contains(&value) {
            return error(-value);
        }
        if ADDRESSES.contains(&self.number) { format!("{value:#x}") } else { value.to_string() }
    }
}

/// Returns the name of the call with this number.
pub fn name(number: u64) -> String {
    let call = usize::try_from(number).ok().and_then(syscalls::x86_64::Sysno::new);
    call.map_or_else(|| format!("syscall_{number:#x}"), |call| call.name().to_owned())
}

fn error(number: i64) -> String {
    let error = syscalls::Errno::new(number as i32);
    match (error.name(), error.description()) {
        (Some(name), Some(words)) => format!("-1 {name} ({words})"),
        _ => format!("-1 (errno {number})"),
    }
}

fn address(value: u64) -> String {
    if value == 0 { "NULL".into() } else { format!("{value:#x}") }
}

/// Returns bytes between quotation marks, as a C string.
pub fn quoted(bytes: &[u8]) -> String {
    let mut text = String::from("\"");
    for (at, &byte) in bytes.iter().enumerate() {
        match byte {
            b'"' => text.push_str("\\\""),
            b'\\' => text.push_str("\\\\"),
            b'\n' => text.push_str("\\n"),
            b'\t' => text.push_str("\\t"),
            b'\r' => text.push_str("\\r"),
            0x0b => text.push_str("\\v"),
            0x0c => text.push_str("\\f"),
            b' '..=b'~' => text.push(byte.into()),
            // A digit after it would belong to the number.
            _ if bytes.get(at + 1).is_some_and(u8::is_ascii_digit) => text.push_str(&format!("\\{byte:03o}")),
            _ => text.push_str(&format!("\\{byte:o}")),
        }
    }
    text.push('"');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(number: u64, values: [u64; 6], texts: &[(usize, &[u8], bool)]) -> Call {
        let text = |&(argument, bytes, more): &(usize, &[u8], bool)| ArgumentText {
            argument,
            bytes: bytes.to_vec(),
            more,
        };
        Call { number, values, texts: texts.iter().map(text).collect() }
    }

    #[test]
    fn arguments_have_the_form_of_strace() {
        let at = -100i32 as u32 as u64;
        let opened = call(257, [at, 0x1000, 0o2000000, 7, 0, 0], &[(1, b"/etc/a \"b\"", false)]);
        assert_eq!(opened.before(), ("AT_FDCWD, \"/etc/a \\\"b\\\"\", O_RDONLY|O_CLOEXEC".into(), true));
        let made = call(2, [0x1000, 0o101, 0o644, 0, 0, 0], &[]);
        assert_eq!(made.before().0, "0x1000, O_WRONLY|O_CREAT, 0644");
        let read = call(0, [3, 0x1000, 100, 0, 0, 0], &[(1, b"\0\x017\xff", true)]);
        assert_eq!(read.before(), ("3, ".into(), false));
        assert_eq!(read.behind(), "\"\\0\\0017\\377\"..., 100");
        let words: &[(usize, &[u8], bool)] = &[(1, b"a", false), (1, b"b", true), (1, b"", true)];
        assert_eq!(call(59, [0, 1, 0, 0, 0, 0], words).before().0, "NULL, [\"a\", \"b\"..., ...], NULL");
        assert_eq!(call(72, [1, 3, 9, 0, 0, 0], &[]).before().0, "1, F_GETFL");
        assert_eq!(call(9999, [1, 0, 0, 0, 0, 0], &[]).before().0, "0x1, 0, 0, 0, 0, 0");
        assert_eq!(call(39, [0; 6], &[]).before(), (String::new(), true));
    }

    #[test]
    fn results_are_numbers_addresses_or_names_of_errors() {
        let of = |number, value| call(number, [0; 6], &[]).result(value);
        assert_eq!(of(0, 7), "7");
        assert_eq!(of(9, 0x7000), "0x7000");
        assert_eq!(of(2, -2), "-1 ENOENT (No such file or directory)");
        assert_eq!(of(231, 0), "?");
        assert_eq!(of(35, -516), "? ERESTART_RESTARTBLOCK (Interrupted by signal)");
        assert_eq!(of(8, -5000), "-5000");
    }
}
