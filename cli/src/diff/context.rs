//! Circumstances of a measurement. Where they differ, the figures may differ for that reason alone,
//! so the differences are shown before the figures.

use serde_json::Value;

use super::record::{KeptRecord, Part, RecordKind};
use super::result::Unlike;
use crate::size::show_size;

/// Number of letters of a hash that are shown: enough to tell builds apart.
const HASH_SHOWN: usize = 12;
/// Number of letters of any other value that are shown.
const SHOWN: usize = 100;
/// Circumstances of a run: name in the text, and place in the outcome.
const OF_RUN: [(&str, &str); 13] = [
    ("kernel", "/kernel"),
    ("kernel version", "/version"),
    ("kernel build", "/machine/kernel_build"),
    ("parameters", "/machine/parameters"),
    ("accel", "/accel"),
    ("clock", "/machine/clock"),
    ("seed", "/machine/seed"),
    ("QEMU", "/machine/qemu"),
    ("memory", "/machine/memory"),
    ("memory to grow by", "/machine/growth"),
    ("CPUs", "/machine/cpus"),
    ("swap", "/machine/swap"),
    ("devices behind", "/machine/devices"),
];
/// Circumstances of bench: those of the first side.
const OF_BENCH: [(&str, &str); 8] = [
    ("kernel version", "/sides/0/version"),
    ("kernel build", "/sides/0/kernel_build"),
    ("parameters", "/sides/0/parameters"),
    ("machine", "/settings/machine"),
    ("clock", "/settings/clock"),
    ("runs", "/runs"),
    ("samples", "/samples"),
    ("operations divided by", "/divisor"),
];
/// Further circumstances of a run under the microscope.
const OF_SCOPE: [(&str, &str); 3] = [
    ("program", "/command"),
    ("models", "/results/settings/models"),
    ("nodes of CPUs", "/results/settings/cpus"),
];
/// Fields of an experiment's record that are no settings.
const NOT_SETTINGS: [&str; 3] = ["schema", "experiment", "how"];

/// Returns the circumstances that differ between the two records.
pub fn not_same(a: &KeptRecord, b: &KeptRecord) -> Vec<Unlike> {
    match a.kind {
        RecordKind::Run => unlike(&OF_RUN, a.part(), b.part()),
        RecordKind::Bench => unlike(&OF_BENCH, a.part(), b.part()),
        RecordKind::Scope => {
            let mut found = unlike(&OF_SCOPE, a.part(), b.part());
            if let (Some(a_run), Some(b_run)) = (a.value.get("outcome"), b.value.get("outcome")) {
                found.extend(unlike(&OF_RUN, a.part().with(a_run), b.part().with(b_run)));
            }
            found
        }
        RecordKind::Lab => {
            let mut found = settings(&a.value, &b.value);
            if let (Some(a_costs), Some(b_costs)) = (a.value.get("costs"), b.value.get("costs")) {
                let of_costs = unlike(&OF_BENCH, a.part().with(a_costs), b.part().with(b_costs));
                for other in of_costs {
                    if found.iter().all(|one| one.what != other.what) {
                        found.push(other);
                    }
                }
            }
            found
        }
    }
}

/// Returns whether both records counted instructions, which repeat exactly.
pub fn are_exact(a: &Value, b: &Value) -> bool {
    [a, b].iter().all(|run| run.pointer("/machine/clock").and_then(Value::as_str) == Some("instructions"))
}

fn unlike(places: &[(&str, &str)], a: Part<'_>, b: Part<'_>) -> Vec<Unlike> {
    let difference = |(what, place): &(&str, &str)| {
        let known = |part: Part<'_>| part.value.pointer(place).cloned().unwrap_or(Value::Null);
        one(what, &known(a), &known(b))
    };
    places.iter().filter_map(difference).collect()
}

/// Returns an experiment's own settings: values that are no lists of objects and no results.
fn settings(a: &Value, b: &Value) -> Vec<Unlike> {
    let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else {
        return Vec::new();
    };
    let is_setting = |value: &Value| match value {
        Value::Object(_) => false,
        Value::Array(list) => list.iter().all(|value| !value.is_object() && !value.is_array()),
        _ => true,
    };
    let names = a.keys().chain(b.keys().filter(|name| !a.contains_key(*name)));
    names
        .filter(|name| !NOT_SETTINGS.contains(&name.as_str()))
        .filter_map(|name| {
            let (a, b) = (a.get(name).unwrap_or(&Value::Null), b.get(name).unwrap_or(&Value::Null));
            (is_setting(a) && is_setting(b)).then(|| one(&name.replace('_', " "), a, b)).flatten()
        })
        .collect()
}

fn one(what: &str, a: &Value, b: &Value) -> Option<Unlike> {
    (a != b).then(|| Unlike { what: what.to_owned(), a: show(what, a), b: show(what, b) })
}

fn show(what: &str, value: &Value) -> String {
    let text = match value {
        Value::Null => return "unknown".to_owned(),
        Value::String(text) if text.is_empty() => "none".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(bytes) if what == "memory" => {
            bytes.as_u64().map_or_else(|| bytes.to_string(), show_size)
        }
        Value::Array(sizes) if what == "memory" && sizes.iter().all(Value::is_u64) => {
            sizes.iter().filter_map(Value::as_u64).map(show_size).collect::<Vec<_>>().join(", ")
        }
        other => other.to_string(),
    };
    let most = if what == "kernel build" { HASH_SHOWN } else { SHOWN };
    match text.char_indices().nth(most) {
        Some((end, _)) if what == "kernel build" => text[..end].to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_unfair_is_named_and_what_is_equal_is_not() {
        let record = |kind, value: Value| KeptRecord { file: "x".into(), kind, value };
        let run = |build: &str, memory: u64| {
            let machine = json!({"kernel_build": build, "memory": [memory], "parameters": "", "cpus": 1});
            record(RecordKind::Run, json!({"machine": machine, "accel": "tcg"}))
        };
        let (a, b) = (run("0123456789abcdef", 1 << 28), run("fedcba9876543210", 1 << 29));
        let found: Vec<String> =
            not_same(&a, &b).iter().map(|one| format!("{}: {} {}", one.what, one.a, one.b)).collect();
        assert_eq!(found, ["kernel build: 0123456789ab fedcba987654", "memory: 256M 512M"]);
        assert!(not_same(&a, &a).is_empty());
        let lab = |boots: Value| {
            record(RecordKind::Lab, json!({"boots": boots, "rows": [{"side": boots}], "how": "long"}))
        };
        let found = not_same(&lab(json!(2)), &lab(Value::Null));
        assert_eq!(found, [Unlike { what: "boots".into(), a: "2".into(), b: "unknown".into() }]);
    }
}
