//! JSON text, written without allocating memory.

use core::fmt::{self, Write};

/// A string with its quotes, escaped. Bytes that are not UTF-8 appear as U+FFFD.
#[derive(Clone, Copy, Debug)]
pub struct Quoted<'a>(pub &'a [u8]);

impl<'a> Quoted<'a> {
    /// Makes one of a name, which ends before its first zero byte.
    pub fn name(name: &'a [u8]) -> Self {
        Self(name.split(|&byte| byte == 0).next().unwrap_or_default())
    }
}

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for chunk in self.0.utf8_chunks() {
            chunk.valid().chars().try_for_each(|c| escape(f, c))?;
            if !chunk.invalid().is_empty() {
                f.write_char(char::REPLACEMENT_CHARACTER)?;
            }
        }
        f.write_char('"')
    }
}

/// Returns the separator before element number `at` of a list.
pub const fn comma(at: usize) -> &'static str {
    if at == 0 { "" } else { "," }
}

fn escape(f: &mut fmt::Formatter<'_>, c: char) -> fmt::Result {
    match c {
        '"' | '\\' => {
            f.write_char('\\')?;
            f.write_char(c)
        }
        '\n' => f.write_str("\\n"),
        '\t' => f.write_str("\\t"),
        c if (c as u32) < 0x20 => write!(f, "\\u{:04x}", c as u32),
        c => f.write_char(c),
    }
}

/// A writer that only counts bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counter(pub usize);

impl Write for Counter {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn strings_are_escaped_whole() {
        let text = b"a \"quote\" \\ \n\t\x01 \xff \xc3\xa9";
        let expected = "\"a \\\"quote\\\" \\\\ \\n\\t\\u0001 \u{fffd} \u{e9}\"";
        assert_eq!(format!("{}", Quoted(text)), expected);
    }

    #[test]
    fn the_counter_agrees_with_what_is_written() {
        let mut counter = Counter::default();
        write!(counter, "{{\"k\":{}}}", Quoted("\u{e9}\n".as_bytes())).unwrap();
        assert_eq!(counter.0, "{\"k\":\"\u{e9}\\n\"}".len());
    }
}
