//! Programs' frames outside the kernel's map: the microscope's figures, and `freehold lab xpfo`.

use serde_json::Value;

use crate::browser::clean_report;
use crate::common::*;

#[test]
fn the_lab_measures_the_policies_that_the_kernel_has_and_names_the_others() {
    if kernel() != "freehold" {
        return;
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let (json, html) = (folder.path().join("r.json"), folder.path().join("r.html"));
    let mut command = freehold();
    command.args(["lab", "xpfo", "--quick", "--json"]).arg(&json).arg("--html").arg(&html);
    let outcome = finish(command, b"");
    let record: Value =
        serde_json::from_slice(&std::fs::read(&json).expect("the record")).expect("it is JSON");
    validate(&record, "lab.json");
    let missing: Vec<&str> =
        record["missing"].as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    let rows = record["rows"].as_array().expect("a list");
    assert_eq!(rows.len() + missing.len(), 4, "{record}");
    let outcome = outcome.expect(if missing.is_empty() { 0 } else { 125 });
    for name in missing {
        assert!(outcome.stderr.contains(name), "{name}: {}", outcome.stderr);
    }
    for row in rows {
        let figure = |name: &str| row[name].as_u64().expect("a count");
        assert!(figure("kernel_instructions") > 100_000, "{row}");
        assert_eq!(figure("violations"), 0, "{row}");
        let opens_windows = row["policy"] != "off";
        assert_eq!(figure("windows") > 100, opens_windows, "{row}");
        let lives: u64 = ["ended", "alive"]
            .iter()
            .flat_map(|kind| row["lives"][kind].as_array().expect("a histogram"))
            .filter_map(Value::as_u64)
            .sum();
        assert_eq!(lives, figure("closed_cached"), "each closed window has one life: {row}");
    }
    let row_of = |policy: &str| rows.iter().find(|row| row["policy"] == policy).expect("a row");
    let figures = |policy: &str, name: &str| row_of(policy)[name].as_f64().expect("a count");
    for policy in ["lap", "on", "strict"] {
        let more = |name: &str| figures(policy, name) - figures("off", name);
        let each = more("kernel_fills") / more("windows");
        assert!((0.5..=1.05).contains(&each), "{each} translations for each window under {policy}");
    }
    assert!(clean_report(&html).contains("Closed windows"));
}
