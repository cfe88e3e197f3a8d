//! The comparison for machines. guest/bench/README.md describes every field.

use serde_json::{Value, json};

use super::compare::{Cell, distinguishable};
use super::report::BenchReport;
use crate::schema;

/// Returns the whole comparison.
pub fn value(report: &BenchReport<'_>) -> Value {
    let (plan, comparison) = (report.plan, report.comparison);
    let labels = report.labels();
    let sides: Vec<Value> = plan
        .sides
        .iter()
        .zip(&report.versions)
        .map(|(side, version)| {
            let prepared = &side.prepared;
            json!({
                "label": side.label,
                "version": version,
                "kernel": prepared.kernel.path.display().to_string(),
                "kernel_build": schema::build(&prepared.kernel.path),
                "parameters": prepared.machine.parameters(prepared.kernel.family),
            })
        })
        .collect();
    let settings: serde_json::Map<String, Value> =
        report.settings.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
    let differences = comparison.differences.as_ref().map(|list| {
        let one = |difference: &super::compare::Difference| {
            json!({ "side": difference.side, "row": difference.row, "units": [difference.units.0, difference.units.1] })
        };
        list.iter().map(one).collect::<Vec<_>>()
    });
    let failures: Vec<Value> = comparison
        .failures
        .iter()
        .map(|failure| {
            json!({ "side": failure.side, "row": failure.row, "message": failure.message, "printed": failure.printed })
        })
        .collect();
    json!({
        "schema": schema::BENCH,
        "partial": comparison.interrupted.is_some(),
        "unit": plan.measure.unit(),
        "cpus": plan.sides[0].prepared.machine.cpus,
        "memory": plan.sides[0].prepared.machine.memory,
        "runs": plan.extent.runs,
        "samples": plan.extent.samples,
        "divisor": plan.extent.divisor,
        "settings": settings,
        "sides": sides,
        "rows": comparison.lines.iter().map(|line| row(line, &labels, plan.has_goals().then_some(line.row.goal))).collect::<Vec<_>>(),
        "differences": differences,
        "failures": failures,
    })
}

fn row(line: &super::compare::ComparedRow, labels: &[&str], goal: Option<f64>) -> Value {
    let cells: Vec<Value> = line
        .cells
        .iter()
        .zip(labels)
        .map(|(cell, label)| match cell {
            Cell::Failed(why) => json!({ "side": label, "failure": why }),
            Cell::Cost(cost) => json!({
                "side": label,
                "cost": cost.estimate.value,
                "low": finite(cost.estimate.interval.low),
                "high": finite(cost.estimate.interval.high),
                "too_few_runs": cost.estimate.interval.has_too_few_runs(),
                "runs": cost.runs,
                "note": cost.note,
            }),
        })
        .collect();
    let ratios: Vec<Value> = line
        .ratios
        .iter()
        .zip(&labels[1..])
        .map(|(ratio, label)| match ratio {
            None => json!({ "against": label, "ratio": null }),
            Some(ratio) => json!({
                "against": label,
                "ratio": ratio.value,
                "low": finite(ratio.interval.low),
                "high": finite(ratio.interval.high),
                "too_few_runs": ratio.interval.has_too_few_runs(),
                "distinguishable": distinguishable(*ratio),
            }),
        })
        .collect();
    json!({
        "name": line.row.name,
        "what": line.row.what,
        "workers": line.workers,
        "goal": goal,
        "costs": cells,
        "ratios": ratios,
    })
}

/// Returns null for an open end, because JSON has no infinity.
fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}
