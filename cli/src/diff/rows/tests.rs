//! Tests the comparison of rows against its definition.

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::json;

use super::super::record::{KeptRecord, RecordKind};
use super::*;

/// Returns a record with these rows; the other side of each does not matter.
fn record(unit: &str, rows: &[(&str, Value)]) -> KeptRecord {
    let rows: Vec<Value> = rows
        .iter()
        .map(|(name, cost)| json!({"name": name, "workers": 1, "costs": [cost, {"side": "other", "failure": "x"}]}))
        .collect();
    let value = json!({"schema": "freehold-bench-1", "unit": unit, "rows": rows});
    KeptRecord { file: "x.json".into(), kind: RecordKind::Bench, value }
}

fn sampled(runs: &[&[f64]]) -> Value {
    json!({"side": "ours", "cost": statistics::median(&runs.concat()), "low": 0, "high": null, "runs": runs})
}

fn compared(a: &KeptRecord, b: &KeptRecord) -> Result<DiffResult> {
    let mut result = DiffResult::default();
    compare(a.part(), b.part(), 0.01, &mut result)?;
    Ok(result)
}

/// Returns the verdict for one row with these samples.
fn verdict(unit: &str, a: &[&[f64]], b: &[&[f64]]) -> (DiffVerdict, u8) {
    let (a, b) = (record(unit, &[("row", sampled(a))]), record(unit, &[("row", sampled(b))]));
    let result = compared(&a, &b).expect("two whole records");
    (result.lines[0].verdict, result.status())
}

#[test]
fn a_row_that_costs_more_is_a_regression_beyond_its_interval_and_the_threshold() {
    let of = |a: &[f64], b: &[f64]| verdict("instructions", &[a], &[b]);
    assert_eq!(of(&[100.0; 4], &[100.0; 4]), (DiffVerdict::NotDistinguishable, 0));
    assert_eq!(of(&[100.0; 4], &[102.0; 4]), (DiffVerdict::CostsMore, 1));
    assert_eq!(of(&[100.0; 4], &[100.5; 4]), (DiffVerdict::CostsMore, 0), "within the threshold");
    assert_eq!(of(&[100.0; 4], &[50.0; 4]), (DiffVerdict::CostsLess, 0));
    // 5% more at the median, with widely spread samples.
    assert_eq!(of(&[60.0, 100.0, 140.0], &[65.0, 105.0, 145.0]), (DiffVerdict::NotDistinguishable, 0));
}

#[test]
fn runs_by_the_host_s_clock_are_one_observation_each_and_few_decide_nothing() {
    let of = |a: &[&[f64]], b: &[&[f64]]| verdict("nanoseconds", a, b);
    let slow: [&[f64]; 3] = [&[200.0; 9], &[210.0; 9], &[205.0; 9]];
    let fast: [&[f64]; 3] = [&[100.0; 9], &[101.0; 9], &[102.0; 9]];
    assert_eq!(of(&fast, &slow), (DiffVerdict::CostsMore, 1));
    assert_eq!(of(&fast[..2], &slow), (DiffVerdict::NotDistinguishable, 0));
    assert_eq!(of(&fast[..1], &slow[..1]), (DiffVerdict::NotDistinguishable, 0));
}

#[test]
fn a_record_without_samples_is_judged_by_its_intervals_and_that_is_said() {
    let told = |cost: f64, low: f64, high: Option<f64>| json!({"cost": cost, "low": low, "high": high});
    let of = |a: Value, b: Value| {
        let (a, b) = (record("instructions", &[("row", a)]), record("instructions", &[("row", b)]));
        let result = compared(&a, &b).expect("two whole records");
        assert!(
            result.remarks.iter().any(|line| line.starts_with("B has no samples of 1 rows")),
            "{result:?}"
        );
        (result.lines[0].verdict, result.lines[0].interval)
    };
    let interval = Interval { low: 1.0, high: 2.0 };
    assert_eq!(
        of(told(100.0, 80.0, Some(100.0)), told(120.0, 100.0, Some(160.0))),
        (DiffVerdict::NotDistinguishable, Some(interval))
    );
    let apart = of(told(100.0, 90.0, Some(110.0)), told(220.0, 200.0, Some(240.0)));
    assert_eq!(apart.0, DiffVerdict::CostsMore);
    let open = of(told(100.0, 90.0, None), told(220.0, 200.0, Some(240.0)));
    assert_eq!(open.0, DiffVerdict::NotDistinguishable, "the interval has no upper end");
    let zero = of(told(0.0, 0.0, Some(0.0)), told(220.0, 200.0, Some(240.0)));
    assert_eq!(zero, (DiffVerdict::NotDistinguishable, None), "nothing costs 0 times as much");
}

#[test]
fn rows_that_one_record_has_or_a_side_failed_are_named() {
    let cost = || sampled(&[&[100.0; 4]]);
    let failed = || json!({"side": "ours", "failure": "no memory"});
    let a = record(
        "instructions",
        &[("old", cost()), ("breaks", cost()), ("works", failed()), ("never", failed())],
    );
    let b = record(
        "instructions",
        &[("never", failed()), ("works", cost()), ("breaks", failed()), ("new", cost())],
    );
    let result = compared(&a, &b).expect("two whole records");
    assert_eq!(result.only, [("old".into(), WhichRecord::A), ("new".into(), WhichRecord::B)]);
    let verdicts: Vec<_> = result.lines.iter().map(|line| (line.name.as_str(), line.verdict)).collect();
    let expected =
        [("breaks", DiffVerdict::Failed), ("works", DiffVerdict::Changed), ("never", DiffVerdict::Failed)];
    assert_eq!(verdicts, expected);
    assert_eq!(result.regressions, ["row breaks failed"]);
}

#[test]
fn a_damaged_record_is_one_sentence_that_names_the_place() {
    let whole = record("instructions", &[("row", sampled(&[&[1.0]]))]);
    let refused = |change: fn(&mut Value)| {
        let mut broken = record("instructions", &[("row", sampled(&[&[1.0]]))]);
        change(&mut broken.value);
        let line = compared(&whole, &broken).expect_err("damaged").to_string();
        assert_eq!(compared(&broken, &whole).expect_err("damaged").to_string(), line);
        assert!(
            line.starts_with("x.json: ") && line.ends_with("(the record is damaged: write it again)"),
            "{line}"
        );
        line
    };
    assert!(refused(|record| record["rows"] = json!("many")).contains("rows is not a list"));
    assert!(refused(|record| record["unit"] = json!(null)).contains("unit is not text"));
    assert!(refused(|record| record["unit"] = json!("cycles")).contains("unit is not instructions"));
    assert!(refused(|record| record["rows"][0] = json!(7)).contains("rows[0].name is not text"));
    assert!(refused(|record| record["rows"][0]["workers"] = json!(-1)).contains("rows[0].workers"));
    assert!(refused(|record| record["rows"][0]["workers"] = json!(1e300)).contains("rows[0].workers"));
    assert!(refused(|record| record["rows"][0]["costs"] = json!([])).contains("rows[0].costs"));
    assert!(refused(|record| record["rows"][0]["costs"][0] = json!([])).contains("costs[0].cost"));
    assert!(refused(|record| record["rows"][0]["costs"][0]["cost"] = json!("NaN")).contains("costs[0].cost"));
    assert!(refused(|record| record["rows"][0]["costs"][0]["cost"] = json!(-1)).contains("costs[0].cost"));
    assert!(refused(|record| record["rows"][0]["costs"][0]["low"] = json!({})).contains("costs[0].low"));
    assert!(refused(|record| record["rows"][0]["costs"][0]["runs"] = json!(3)).contains("costs[0].runs"));
    assert!(
        refused(|record| record["rows"][0]["costs"][0]["runs"] = json!([[1], ["x"]])).contains("runs[1]")
    );
    assert!(refused(|record| record["rows"][0]["costs"][0]["failure"] = json!(1)).contains("failure"));
    assert!(
        refused(|record| {
            let row = record["rows"][0].clone();
            record["rows"] = json!([row, row]);
        })
        .contains("a name of its own")
    );
    let wall = record("nanoseconds", &[("row", sampled(&[&[1.0]]))]);
    assert!(compared(&whole, &wall).expect_err("two units").to_string().contains("--wall"));
}

/// Generates samples of a row: so few values that equal medians and ties occur.
fn samples() -> impl Strategy<Value = Vec<f64>> {
    prop_oneof![vec((1u32..6).prop_map(f64::from), 1..6), vec(1e-3..1e12f64, 1..12)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_record_does_not_differ_from_itself(rows in vec(samples(), 1..5), is_wall in any::<bool>()) {
        let names: Vec<String> = (0..rows.len()).map(|at| at.to_string()).collect();
        let rows: Vec<(&str, Value)> =
            names.iter().zip(&rows).map(|(name, samples)| (name.as_str(), sampled(&[samples]))).collect();
        let one = record(if is_wall { "nanoseconds" } else { "instructions" }, &rows);
        let result = compared(&one, &one).expect("a whole record");
        prop_assert_eq!(result.status(), 0);
        prop_assert!(result.only.is_empty());
        for line in &result.lines {
            prop_assert_eq!(line.ratio, Some(1.0));
            prop_assert_eq!(line.verdict, DiffVerdict::NotDistinguishable);
        }
    }

    #[test]
    fn an_exchange_of_the_records_inverts_ratios_intervals_and_verdicts(a in samples(), b in samples()) {
        let (a, b) = (record("instructions", &[("row", sampled(&[&a]))]), record("instructions", &[("row", sampled(&[&b]))]));
        let (one, other) = (compared(&a, &b).expect("whole"), compared(&b, &a).expect("whole"));
        let (one, other) = (&one.lines[0], &other.lines[0]);
        let near = |x: f64, y: f64| (x * y - 1.0).abs() < 1e-9;
        prop_assert!(near(one.ratio.expect("a ratio"), other.ratio.expect("a ratio")));
        let (interval, inverse) = (one.interval.expect("known"), other.interval.expect("known"));
        prop_assert!(near(interval.low, inverse.high) && near(interval.high, inverse.low), "{:?} {:?}", interval, inverse);
        let expected = match one.verdict {
            DiffVerdict::CostsMore => DiffVerdict::CostsLess,
            DiffVerdict::CostsLess => DiffVerdict::CostsMore,
            verdict => verdict,
        };
        prop_assert_eq!(other.verdict, expected);
    }

    /// The definition: medians by sorting, a ratio by division. If no sample of one side is within
    /// the other's range, the verdict has the right direction.
    #[test]
    fn ratios_are_those_of_the_medians_and_ranges_that_do_not_meet_are_told_apart(a in samples(), b in samples()) {
        let middle = |values: &[f64]| {
            let mut sorted = values.to_vec();
            sorted.sort_by(|x, y| x.partial_cmp(y).expect("numbers"));
            (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0
        };
        let result = compared(
            &record("instructions", &[("row", sampled(&[&a]))]),
            &record("instructions", &[("row", sampled(&[&b]))]),
        ).expect("whole");
        let line = &result.lines[0];
        let ratio = middle(&b) / middle(&a);
        prop_assert!((line.ratio.expect("a ratio") / ratio - 1.0).abs() < 1e-9);
        let range = |values: &[f64]| values.iter().fold((f64::MAX, 0.0f64), |(low, high), v| (low.min(*v), high.max(*v)));
        let (range_a, range_b) = (range(&a), range(&b));
        if range_b.0 > range_a.1 {
            prop_assert_eq!(line.verdict, DiffVerdict::CostsMore);
            prop_assert_eq!(result.status() == 1, ratio > 1.01);
        } else if range_b.1 < range_a.0 {
            prop_assert_eq!((line.verdict, result.status()), (DiffVerdict::CostsLess, 0));
        }
    }
}
