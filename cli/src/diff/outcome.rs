//! Compares outcomes of runs, of `freehold run` and of runs under the microscope: the program's
//! end, its memory, its system calls.

use serde_json::Value;

use super::context::are_exact;
use super::figures::{Judge, PathFigures, Tolerance};
use super::record::Part;
use super::result::{DiffLine, DiffResult};
use crate::Result;

/// Fields with text that is compared literally.
const TEXTS: [&str; 6] = ["outcome", "exit", "signal", "reason", "message", "audit"];
/// Fields with figures: the guest's own, and those of the command.
const FIGURES: [&str; 5] = ["boot_ns", "wall_ms", "memory", "syscalls", "changes"];
/// Suffix of system-call numbers, which are names and not figures.
const IS_NAME: &str = ".number";

/// Compares two outcomes; `prefix` is their place in the records.
///
/// # Errors
/// An outcome is damaged.
pub fn compare(a: Part<'_>, b: Part<'_>, prefix: &str, threshold: f64, into: &mut DiffResult) -> Result<()> {
    let (end_a, end_b) = (ProgramEnd::of(a, prefix)?, ProgramEnd::of(b, prefix)?);
    if end_a.program != end_b.program {
        into.regressions.push(format!("the program ended otherwise: {}, {}", end_a.program, end_b.program));
    }
    if let (None, Some(finding)) = (&end_a.audit_failure, &end_b.audit_failure) {
        into.regressions.push(format!("the audit found what it did not find in A: {finding}"));
    }
    for name in TEXTS {
        let show = |part: Part<'_>| part.get(name).map_or_else(|| "–".to_owned(), text);
        let line = DiffLine::texts(&format!("{prefix}{name}"), show(a), show(b));
        into.lines.push(line);
    }
    for name in ["missing", "notices"] {
        let show = |part: Part<'_>| {
            let list = part.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            if list.is_empty() {
                "–".to_owned()
            } else {
                list.iter().map(text).collect::<Vec<_>>().join(", ")
            }
        };
        into.lines.push(DiffLine::texts(&format!("{prefix}{name}"), show(a), show(b)));
    }
    let exact = are_exact(a.value, b.value);
    let is_left_out = |path: &str| {
        // Without counted instructions this is a time of the host.
        path.ends_with(IS_NAME) || (!exact && path.ends_with("boot_ns"))
    };
    let have_calls = [a, b].iter().all(|part| part.get("syscalls").is_some());
    let calls = format!("{prefix}syscalls[");
    let is_zero = |path: &str| have_calls && path.starts_with(&calls);
    let tolerance = |path: &str| match exact {
        true if path.ends_with("boot_ns") => Tolerance::BOOT,
        true => Tolerance::of(0.0),
        false => Tolerance::of(threshold),
    };
    let judge = Judge { tolerance: &tolerance, is_zero: &is_zero };
    for name in FIGURES {
        let figures = |part: Part<'_>| {
            PathFigures::of(part.get(name).unwrap_or(&Value::Null), &format!("{prefix}{name}"), &is_left_out)
        };
        judge.compare(&figures(a), &figures(b), into);
    }
    Ok(())
}

/// The end of a run.
struct ProgramEnd {
    program: String,
    audit_failure: Option<String>,
}

impl ProgramEnd {
    fn of(part: Part<'_>, prefix: &str) -> Result<ProgramEnd> {
        let outcome = part.text("outcome", prefix)?;
        let number = |name: &str| match part.get(name) {
            None => Ok(None),
            Some(value) => match value.as_u64() {
                Some(number) => Ok(Some(number)),
                None => Err(part.damaged(&format!("{prefix}{name}"), "a number or null")),
            },
        };
        let program = match (outcome, number("exit")?, number("signal")?, part.get("reason")) {
            ("exit" | "audit", Some(status), ..) => format!("exit {status}"),
            ("signal" | "audit", _, Some(signal), _) => format!("signal {signal}"),
            (other, _, _, Some(reason)) => format!("{other} ({})", text(reason)),
            (other, ..) => other.to_owned(),
        };
        let audit = part.get("audit").map(text).filter(|finding| finding != "ok");
        let audit_failure = match (outcome, audit) {
            ("audit", None) => Some(part.get("sentence").map_or_else(|| "it failed".into(), text)),
            (_, audit) => audit,
        };
        Ok(ProgramEnd { program, audit_failure })
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::record::{KeptRecord, RecordKind};
    use super::super::result::DiffVerdict;
    use super::*;

    fn found(a: Value, b: Value) -> DiffResult {
        let record = |value| KeptRecord { file: "x".into(), kind: RecordKind::Run, value };
        let (a, b) = (record(a), record(b));
        let mut result = DiffResult::default();
        compare(a.part(), b.part(), "", 0.01, &mut result).expect("whole records");
        result
    }

    fn changed(result: &DiffResult) -> Vec<&str> {
        result
            .lines
            .iter()
            .filter(|line| line.verdict != DiffVerdict::Same)
            .map(|line| line.name.as_str())
            .collect()
    }

    fn run(exit: u64, audit: &str) -> Value {
        let outcome = if audit == "ok" { "exit" } else { "audit" };
        json!({"outcome": outcome, "exit": exit, "signal": null, "audit": audit, "memory": {"peak_user_kib": 100}})
    }

    #[test]
    fn another_end_or_a_new_finding_of_the_audit_is_a_regression() {
        assert_eq!(found(run(3, "ok"), run(3, "ok")).status(), 0);
        assert_eq!(
            found(run(0, "ok"), run(1, "ok")).regressions,
            ["the program ended otherwise: exit 0, exit 1"]
        );
        let broken = found(run(0, "ok"), run(0, "1 frame is lost"));
        assert_eq!(broken.regressions, ["the audit found what it did not find in A: 1 frame is lost"]);
        assert_eq!(changed(&broken), ["outcome", "audit"]);
        assert_eq!(found(run(0, "1 frame is lost"), run(0, "1 frame is lost")).status(), 0, "A had it");
        assert_eq!(found(run(0, "1 frame is lost"), run(0, "ok")).status(), 0, "it is gone");
        let killed = json!({"outcome": "signal", "signal": 9});
        assert_eq!(
            found(run(0, "ok"), killed).regressions,
            ["the program ended otherwise: exit 0, signal 9"]
        );
        let missing = json!({"outcome": "error", "reason": "not-found"});
        assert_eq!(found(run(127, "ok"), missing).status(), 1, "an own 127 is not a missing program");
    }

    #[test]
    fn system_calls_are_compared_by_name_and_memory_beyond_the_noise() {
        let run = |peak: u64, calls: Value| json!({"outcome": "exit", "exit": 0, "wall_ms": peak, "memory": {"peak_user_kib": peak}, "syscalls": calls});
        let call =
            |name: &str, number: u64, calls: u64| json!({"name": name, "number": number, "calls": calls});
        let a = run(1000, json!([call("read", 0, 4), call("write", 1, 2)]));
        let b = run(1005, json!([call("write", 1, 3), call("mmap", 9, 1)]));
        let result = found(a, b);
        let verdict =
            |name: &str| result.lines.iter().find(|line| line.name == name).map(|line| line.verdict);
        assert_eq!(verdict("syscalls[read].calls"), Some(DiffVerdict::Less));
        assert_eq!(verdict("syscalls[write].calls"), Some(DiffVerdict::More));
        assert_eq!(verdict("syscalls[mmap].calls"), Some(DiffVerdict::More));
        assert_eq!(verdict("syscalls[write].number"), None);
        assert_eq!(verdict("memory.peak_user_kib"), Some(DiffVerdict::NotDistinguishable));
        assert_eq!(verdict("wall_ms"), Some(DiffVerdict::NotJudged));
        assert!(result.only.is_empty(), "{:?}", result.only);
    }
}
