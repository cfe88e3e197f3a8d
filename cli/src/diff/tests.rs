//! Tests with whole records: which are refused, what the output says, and that the command never
//! panics.

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn record(value: &Value) -> KeptRecord {
    KeptRecord::parse("x.json".into(), value.to_string().as_bytes()).expect("a record")
}

fn compared(a: &Value, b: &Value) -> Result<DiffResult> {
    compare(&record(a), &record(b), 0.01)
}

fn scope_record(loads: u64, violations: u64) -> Value {
    json!({
        "schema": "freehold-scope-1",
        "command": ["true"],
        "outcome": {"outcome": "exit", "exit": 0, "machine": {"clock": "instructions"}, "boot_ns": 7, "wall_ms": loads},
        "symbols": [{"name": "read", "half": "kernel", "instructions": loads, "share": 0.5}],
        "shared_lines": [],
        "results": {
            "instructions": 100,
            "phases": [{"name": "program", "end": 90}],
            "blocks": [{"pc": loads, "runs": loads}],
            "cost": {"emulator": {"cpu_seconds": loads}},
            "oracle": {"total": violations, "layout": {"slide": loads}},
        },
    })
}

fn lab_record(cost: f64, boots: u64) -> Value {
    json!({
        "schema": "freehold-lab-1",
        "experiment": "cow",
        "boots": boots,
        "needless": [{"side": "Freehold", "name": "fork", "boots": [{"copies": 1}, {"copies": 2}]}],
        "costs": {
            "schema": "freehold-bench-1",
            "unit": "instructions",
            "rows": [{"name": "cow-copy", "workers": 1, "costs": [{"cost": cost, "runs": [[cost, cost]]}]}],
        },
    })
}

#[test]
fn the_figures_of_an_experiment_are_a_line_each_with_the_ends_of_its_boots() {
    let sheet = sheet_of_figures(&lab_record(100.0, 2)).expect("a sheet").bytes().expect("text");
    let text = String::from_utf8(sheet).expect("text");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "name,unit,value,low,high,observations");
    assert!(lines.contains(&"\"needless[fork, Freehold].boots.copies\",,1.5,1,2,2"), "{text}");
    assert!(lines.iter().any(|line| line.starts_with("costs.rows[cow-copy]")), "{text}");
}

#[test]
fn a_record_of_each_command_is_equal_to_itself() {
    for value in
        [scope_record(5, 0), lab_record(100.0, 2), json!({"schema": "freehold-run-2", "outcome": "exit"})]
    {
        let result = compared(&value, &value).expect("a whole record");
        assert_eq!((result.status(), result.only.len(), result.not_same.len()), (0, 0, 0), "{value}");
        let (one, percent) = (record(&value), 1.0);
        let text = Output { a: &one, b: &one, percent, result: &result }.text();
        assert!(text.contains("no regression") && !text.contains("figure  "), "{text}");
    }
}

#[test]
fn counted_figures_of_the_microscope_differ_exactly_and_addresses_are_left_out() {
    let result = compared(&scope_record(5, 0), &scope_record(6, 0)).expect("whole records");
    let changed: Vec<&str> = result
        .lines
        .iter()
        .filter(|line| line.verdict != result::DiffVerdict::Same)
        .map(|line| line.name.as_str())
        .collect();
    assert_eq!(changed, ["outcome.wall_ms", "symbols[read, kernel].instructions"]);
    assert_eq!(result.status(), 0);
    // The boot waits for devices.
    let booted = |instructions: u64| {
        let mut record = scope_record(5, 0);
        record["outcome"]["boot_ns"] = json!(instructions);
        record
    };
    let verdict = |instructions: u64| {
        let result = compared(&booted(1_000_000), &booted(instructions)).expect("whole records");
        result.lines.iter().find(|line| line.name == "outcome.boot_ns").map(|line| line.verdict)
    };
    assert_eq!(verdict(1_001_000), Some(result::DiffVerdict::NotDistinguishable));
    assert_eq!(verdict(1_001_001), Some(result::DiffVerdict::More));
    let broken = compared(&scope_record(5, 0), &scope_record(5, 2)).expect("whole records");
    assert_eq!(broken.regressions, ["the kernel broke its rules of memory isolation"]);
    assert_eq!(compared(&scope_record(5, 2), &scope_record(5, 3)).expect("whole records").status(), 0);
}

#[test]
fn the_closing_phase_waits_for_the_host_and_totals_may_differ_as_far_as_it_does() {
    let closed = |instructions: u64, total: u64| {
        let mut record = scope_record(5, 0);
        let cpus =
            json!([{"modes": {"user": {"instructions": 0}, "kernel": {"instructions": instructions}}}]);
        let phases = record["results"]["phases"].as_array_mut().expect("a list");
        phases.push(json!({"name": "closing", "cpus": cpus}));
        record["results"]["instructions"] = json!(total);
        record
    };
    let verdict = |instructions: u64, total: u64| {
        let result = compared(&closed(7, 1000), &closed(instructions, total)).expect("whole records");
        assert!(result.lines.iter().all(|line| !line.name.contains("closing")));
        result.lines.iter().find(|line| line.name == "results.instructions").map(|line| line.verdict)
    };
    assert_eq!(verdict(107, 1800), Some(result::DiffVerdict::NotDistinguishable));
    assert_eq!(verdict(107, 1900), Some(result::DiffVerdict::More));
    assert_eq!(verdict(7, 1100), Some(result::DiffVerdict::NotDistinguishable), "a hundred accesses");
    assert_eq!(verdict(7, 1101), Some(result::DiffVerdict::More), "the closing phases are equal");
}

#[test]
fn an_experiment_has_figures_and_rows_and_its_settings_are_said_first() {
    let result = compared(&lab_record(100.0, 2), &lab_record(110.0, 3)).expect("whole records");
    assert_eq!(result.not_same.len(), 1, "{:?}", result.not_same);
    assert_eq!(result.regressions, ["row cow-copy costs 10.00% more"]);
    let names: Vec<&str> = result.lines.iter().map(|line| line.name.as_str()).collect();
    assert_eq!((result.rows, names), (1, vec!["cow-copy", "needless[fork, Freehold].boots.copies"]));
}

#[test]
fn records_of_two_commands_or_experiments_are_refused() {
    let line = compared(&scope_record(1, 0), &lab_record(1.0, 1)).expect_err("two commands").to_string();
    assert!(line.contains("two commands: x.json of scope, x.json of lab"), "{line}");
    let mut other = lab_record(1.0, 1);
    other["experiment"] = json!("xpfo");
    let line = compared(&lab_record(1.0, 1), &other).expect_err("two experiments").to_string();
    assert!(
        line.contains("two experiments") && line.ends_with("(compare two records of one kind)"),
        "{line}"
    );
}

#[test]
fn a_threshold_is_a_share_in_percent() {
    assert_eq!((threshold("0").ok(), threshold("2.5%").ok()), (Some(0.0), Some(2.5)));
    for text in ["", "x", "-1", "NaN", "inf", "1e9"] {
        let line = threshold(text).expect_err("refused").to_string();
        assert!(line.contains("--threshold") && line.lines().count() == 1, "{line}");
    }
}

#[test]
fn the_csv_has_a_line_for_each_figure_and_the_json_says_the_status() {
    let (a, b) = (record(&lab_record(100.0, 2)), record(&lab_record(110.0, 2)));
    let result = compare(&a, &b, 0.01).expect("whole records");
    let output = Output { a: &a, b: &b, percent: 1.0, result: &result };
    let text = String::from_utf8(output.sheet().expect("made").bytes().expect("made")).expect("text");
    let expected = "name,unit,a,b,ratio,low,high,verdict\r\n\
                    cow-copy,instructions,100,110,1.1,1.1,1.1,costs more\r\n\
                    \"needless[fork, Freehold].boots.copies\",,1.5,1.5,1,,,same\r\n";
    assert_eq!(text, expected);
    let json = output.json();
    assert_eq!((&json["schema"], &json["status"]), (&json!("freehold-diff-1"), &json!(1)));
    assert_eq!(json.as_object().and_then(|fields| fields.keys().next()).map(String::as_str), Some("schema"));
}

/// Generates any JSON, with the names that records have.
fn anything() -> impl Strategy<Value = Value> {
    let names = prop::sample::select(vec![
        "rows",
        "costs",
        "name",
        "workers",
        "cost",
        "low",
        "high",
        "runs",
        "unit",
        "outcome",
        "exit",
        "results",
        "oracle",
        "total",
        "syscalls",
        "experiment",
        "machine",
        "audit",
        "boots",
        "side",
        "settings",
        "symbols",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(vec!["instructions", "exit", "ok", "cow", "\u{1b}[31m", ""])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 48, 6, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Value::from),
            vec((names.clone(), inner), 0..6).prop_map(|fields| fields
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect::<Value>()),
        ]
    })
}

/// Returns `whole` with `put` in one of its places.
fn spoiled(mut whole: Value, at: &[usize], put: Value) -> Value {
    let mut place = &mut whole;
    for step in at {
        let next = match &*place {
            Value::Object(fields) if !fields.is_empty() => {
                fields.keys().nth(step % fields.len()).map(|name| format!("/{name}"))
            }
            Value::Array(list) if !list.is_empty() => Some(format!("/{}", step % list.len())),
            _ => None,
        };
        let Some(next) = next.filter(|next| next != "/schema") else { break };
        place = place.pointer_mut(&next).expect("it is there");
    }
    if !place.get("schema").is_some_and(Value::is_string) {
        *place = put;
    }
    whole
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn whatever_stands_in_a_record_is_compared_or_refused_in_one_line(
        which in 0..3usize,
        at in vec(0..8usize, 1..7),
        put in anything(),
    ) {
        let whole = [scope_record(5, 0), lab_record(100.0, 2), json!({
            "schema": "freehold-run-2", "outcome": "exit", "exit": 0, "memory": {"peak_user_kib": 4},
            "syscalls": [{"name": "read", "calls": 1}], "audit": "ok", "machine": {"clock": "real", "memory": [4096]},
        })][which].clone();
        let broken = spoiled(whole.clone(), &at, put);
        for (a, b) in [(&whole, &broken), (&broken, &whole), (&broken, &broken)] {
            match compared(a, b) {
                Ok(result) => {
                    let (one, other) = (record(a), record(b));
                    let output = Output { a: &one, b: &other, percent: 1.0, result: &result };
                    let text = output.text();
                    let obeyed = text.chars().any(|c| c == char::from(27));
                    prop_assert!(!obeyed, "a control character is printed");
                    output.json();
                    output.sheet().expect("it has a cell for each column");
                    if a == b {
                        prop_assert_eq!(result.status(), 0, "{}", text);
                    }
                }
                Err(failure) => prop_assert_eq!(failure.to_string().lines().count(), 1, "{}", failure),
            }
        }
    }
}
