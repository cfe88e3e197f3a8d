//! The result of a comparison.

use crate::bench::compare::distinguishable;
use crate::statistics::{Estimate, Interval, TOO_FEW_RUNS};

/// A compared value, as far as it is shown.
#[derive(Debug, Clone, PartialEq)]
pub enum DiffValue {
    /// A figure.
    Number(f64),
    /// Anything else.
    Text(String),
}

impl DiffValue {
    /// Returns the figure, if the value is one.
    pub fn number(&self) -> Option<f64> {
        match self {
            DiffValue::Number(number) => Some(*number),
            DiffValue::Text(_) => None,
        }
    }
}

/// Verdict about a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiffVerdict {
    /// A row of bench, which costs more in B.
    CostsMore,
    /// A row of bench, which costs less in B.
    CostsLess,
    /// The samples, or the noise, do not decide whether they differ.
    NotDistinguishable,
    /// A figure that is larger in B.
    More,
    /// A figure that is smaller in B.
    Less,
    /// Equal.
    Same,
    /// A value that is no figure, and differs.
    Changed,
    /// A row that failed in B, or in both.
    Failed,
    /// A single time of the host's clock.
    NotJudged,
    /// Observations that differ, of which one side has fewer than two.
    TooFewRuns,
}

impl DiffVerdict {
    /// Returns the verdict in words.
    pub fn words(self) -> &'static str {
        match self {
            DiffVerdict::CostsMore => "costs more",
            DiffVerdict::CostsLess => "costs less",
            DiffVerdict::NotDistinguishable => "not distinguishable",
            DiffVerdict::More => "more",
            DiffVerdict::Less => "less",
            DiffVerdict::Same => "same",
            DiffVerdict::Changed => "changed",
            DiffVerdict::Failed => "failed",
            DiffVerdict::NotJudged => "not judged (host time)",
            DiffVerdict::TooFewRuns => TOO_FEW_RUNS,
        }
    }

    /// Returns the verdict for a row of bench.
    pub fn of_cost(ratio: Option<Estimate>) -> DiffVerdict {
        match ratio {
            Some(ratio) if distinguishable(ratio) && ratio.value > 1.0 => DiffVerdict::CostsMore,
            Some(ratio) if distinguishable(ratio) && ratio.value < 1.0 => DiffVerdict::CostsLess,
            _ => DiffVerdict::NotDistinguishable,
        }
    }

    /// Returns the verdict for a figure without a known spread. `noise` is the share by which equal
    /// runs may differ.
    pub fn of_figure(a: f64, b: f64, noise: f64) -> DiffVerdict {
        match a.total_cmp(&b) {
            _ if a == b => DiffVerdict::Same,
            _ if (b - a).abs() <= noise * a.abs().max(b.abs()) => DiffVerdict::NotDistinguishable,
            std::cmp::Ordering::Less => DiffVerdict::More,
            _ => DiffVerdict::Less,
        }
    }
}

/// A line for a value that both records have.
#[derive(Debug, Clone, PartialEq)]
pub struct DiffLine {
    /// The row's name, or the figure's path in the record.
    pub name: String,
    /// Unit of both values; empty if they are no figures, or if the name has the unit.
    pub unit: &'static str,
    /// Value in the first record.
    pub a: DiffValue,
    /// Value in the second record.
    pub b: DiffValue,
    /// B over A, if both are figures above 0.
    pub ratio: Option<f64>,
    /// Interval of the ratio, if the spread is known.
    pub interval: Option<Interval>,
    /// The conclusion.
    pub verdict: DiffVerdict,
}

impl DiffLine {
    /// Makes a line of two figures without a known spread.
    pub fn figures(name: &str, (a, b): (f64, f64), verdict: DiffVerdict) -> DiffLine {
        let ratio = (a > 0.0 && b > 0.0).then(|| b / a).filter(|ratio| ratio.is_finite());
        let (a, b) = (DiffValue::Number(a), DiffValue::Number(b));
        DiffLine { name: name.to_owned(), unit: "", a, b, ratio, interval: None, verdict }
    }

    /// Makes a line of two texts.
    pub fn texts(name: &str, a: String, b: String) -> DiffLine {
        let verdict = if a == b { DiffVerdict::Same } else { DiffVerdict::Changed };
        let (a, b) = (DiffValue::Text(a), DiffValue::Text(b));
        DiffLine { name: name.to_owned(), unit: "", a, b, ratio: None, interval: None, verdict }
    }
}

/// A circumstance that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unlike {
    /// Its name.
    pub what: String,
    /// Value in the first record.
    pub a: String,
    /// Value in the second record.
    pub b: String,
}

/// One of the two records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhichRecord {
    /// The first record.
    A,
    /// The second record.
    B,
}

/// All findings.
#[derive(Debug, Default)]
pub struct DiffResult {
    /// Differences that make the comparison unfair.
    pub not_same: Vec<Unlike>,
    /// Lines that both records have, rows of bench first.
    pub lines: Vec<DiffLine>,
    /// Number of lines that are rows of bench.
    pub rows: usize,
    /// Names that only one record has.
    pub only: Vec<(String, WhichRecord)>,
    /// Remarks on how the figures were judged, a sentence each.
    pub remarks: Vec<String>,
    /// Reasons for exit status 1, a sentence each.
    pub regressions: Vec<String>,
}

impl DiffResult {
    /// Returns the exit status.
    pub fn status(&self) -> u8 {
        u8::from(!self.regressions.is_empty())
    }
}
