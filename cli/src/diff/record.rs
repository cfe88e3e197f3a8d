//! Reads the records to compare. A file may hold anything: its size is limited before it is parsed,
//! the parser limits its nesting, and an error names the place of a missing field or a wrong type.

use std::io::Read;
use std::path::Path;

use serde_json::Value;

use crate::failure::Failure;
use crate::{Result, files, schema};

/// The largest file that is read. A record of `freehold scope` takes a few MiB; a parsed record
/// takes about 30 times the space.
const LARGEST: u64 = 32 << 20;
/// Schemas that can be compared.
const KINDS: [(&str, RecordKind); 4] = [
    (schema::RUN, RecordKind::Run),
    (schema::SCOPE, RecordKind::Scope),
    (schema::BENCH, RecordKind::Bench),
    (schema::LAB, RecordKind::Lab),
];
/// Hint about the source of a record.
const HOW: &str = "freehold run, bench, lab and scope write one with --json FILE";

/// The command that wrote a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    /// `freehold run`.
    Run,
    /// `freehold scope`.
    Scope,
    /// `freehold bench`, and `freehold lab costs`.
    Bench,
    /// `freehold lab`.
    Lab,
}

impl RecordKind {
    /// Returns the command's name.
    pub fn command(self) -> &'static str {
        match self {
            RecordKind::Run => "run",
            RecordKind::Scope => "scope",
            RecordKind::Bench => "bench",
            RecordKind::Lab => "lab",
        }
    }
}

/// One of the two records, or an object in it.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// The file, as messages name it.
    file: &'a str,
    /// The fields.
    pub value: &'a Value,
}

/// A record that was read.
#[derive(Debug)]
pub struct KeptRecord {
    /// The file, as messages name it.
    pub file: String,
    /// The command that wrote it.
    pub kind: RecordKind,
    /// The whole record.
    pub value: Value,
}

impl KeptRecord {
    /// Reads the file; `-` is stdin.
    ///
    /// # Errors
    /// The file cannot be read, is too large, or is no record that can be compared.
    pub fn read(path: &Path) -> Result<KeptRecord> {
        if files::is_stdout(path) {
            return KeptRecord::parse("stdin".into(), std::io::stdin().lock());
        }
        let file = std::fs::File::open(path).map_err(|e| Failure::io("read", path, &e))?;
        KeptRecord::parse(path.display().to_string(), file)
    }

    /// Reads a record from a stream that messages call `file`.
    ///
    /// # Errors
    /// As above.
    pub fn parse(file: String, from: impl Read) -> Result<KeptRecord> {
        let mut text = Vec::new();
        from.take(LARGEST + 1)
            .read_to_end(&mut text)
            .map_err(|e| Failure::io("read", Path::new(&file), &e))?;
        if text.len() as u64 > LARGEST {
            return Err(Failure::new(format!("{file} is larger than {} MiB", LARGEST >> 20), HOW));
        }
        let value: Value = serde_json::from_slice(&text)
            .map_err(|error| Failure::new(format!("{file} is not JSON: {error}"), HOW).in_one_line())?;
        let kind = kind(&file, &value)?;
        Ok(KeptRecord { file, kind, value })
    }

    /// Returns the whole record as a part.
    pub fn part(&self) -> Part<'_> {
        Part { file: &self.file, value: &self.value }
    }
}

/// Returns the kind of the command that wrote `value`.
fn kind(file: &str, value: &Value) -> Result<RecordKind> {
    let Some(told) = value.get("schema").and_then(Value::as_str) else {
        let is_ours = ["outcome", "results", "experiment"].iter().any(|name| value.get(name).is_some());
        let cure = if is_ours { "its command is too old to say what it wrote: write it again" } else { HOW };
        return Err(Failure::new(format!("{file} is no record of freehold: it has no field schema"), cure));
    };
    if let Some((_, kind)) = KINDS.iter().find(|(known, _)| *known == told) {
        return Ok(*kind);
    }
    let bare = |text: &str| text.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
    let shown: String = told.chars().take(60).collect();
    let failure = match KINDS.iter().find(|(known, _)| bare(known) == bare(told)) {
        Some((known, _)) => Failure::new(
            format!("{file} has the form {shown}, and this command knows {known}"),
            "compare with the freehold that wrote it, or write it again",
        ),
        None if told.starts_with("freehold-") => {
            Failure::new(format!("{file} has the form {shown}, which cannot be compared"), HOW)
        }
        None => Failure::new(format!("{file} is no record of freehold: its schema is {shown}"), HOW),
    };
    Err(failure.in_one_line())
}

impl<'a> Part<'a> {
    /// Returns the failure for a record in which `place` is not as it must be.
    pub fn damaged(self, place: &str, wanted: &str) -> Failure {
        let message = format!("{}: {place} is not {wanted}", self.file);
        Failure::new(message, "the record is damaged: write it again").in_one_line()
    }

    /// Returns a field, if it exists and is not null.
    pub fn get(self, name: &str) -> Option<&'a Value> {
        self.value.get(name).filter(|value| !value.is_null())
    }

    /// Returns another value of the same file.
    pub fn with(self, value: &'a Value) -> Part<'a> {
        Part { value, ..self }
    }

    /// Returns a field that is a list; `place` names the object.
    ///
    /// # Errors
    /// The field is no list.
    pub fn list(self, name: &str, place: &str) -> Result<&'a [Value]> {
        let found = self.get(name).and_then(Value::as_array).map(Vec::as_slice);
        found.ok_or_else(|| self.damaged(&format!("{place}{name}"), "a list"))
    }

    /// Returns a field that is text.
    ///
    /// # Errors
    /// The field is no text.
    pub fn text(self, name: &str, place: &str) -> Result<&'a str> {
        let found = self.get(name).and_then(Value::as_str);
        found.ok_or_else(|| self.damaged(&format!("{place}{name}"), "text"))
    }
}

/// Returns a finite number.
pub fn finite(value: &Value) -> Option<f64> {
    value.as_f64().filter(|number| number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: impl Into<Vec<u8>>) -> String {
        let text = text.into();
        let line = KeptRecord::parse("x.json".into(), text.as_slice()).expect_err("refused").to_string();
        assert_eq!(line.lines().count(), 1, "{line}");
        assert!(line.contains('(') && line.ends_with(')') && line.contains("x.json"), "a cure: {line}");
        line
    }

    #[test]
    fn what_is_no_record_is_refused_in_one_line_with_the_cure() {
        for text in ["", "{", "nul", "[1, 2", "\u{1}\n\n", "{\"schema\": \"freehold-run-3\", \"x\": NaN}"] {
            assert!(refused(text).contains("not JSON"), "{text:?}");
        }
        assert!(refused("{\"schema\": \"freehold-run-3\", \"x\": 1e999}").contains("out of range"));
        for text in ["1", "[]", "{}", "\"freehold-run-3\"", "{\"schema\": 7}", "{\"schema\": null}"] {
            assert!(refused(text).contains("no field schema"), "{text:?}");
        }
        assert!(refused("{\"outcome\": \"exit\"}").contains("write it again"));
        assert!(refused("{\"schema\": \"freehold-run-3\"}").contains("knows freehold-run-2"));
        assert!(refused("{\"schema\": \"freehold-doctor-1\"}").contains("cannot be compared"));
        assert!(refused("{\"schema\": \"other\\n\\u001b[31m\"}").contains("its schema is other??[31m"));
    }

    #[test]
    fn deep_nesting_and_a_hundred_megabytes_are_refused() {
        let deep = format!("{{\"schema\": \"freehold-run-2\", \"x\": {}1", "[".repeat(1_000_000));
        assert!(refused(deep).contains("recursion limit"));
        let spaces = std::io::repeat(b' ').take(100 << 20);
        let line = KeptRecord::parse("x.json".into(), spaces).expect_err("too large").to_string();
        assert!(line.contains("larger than 32 MiB"), "{line}");
    }
}
