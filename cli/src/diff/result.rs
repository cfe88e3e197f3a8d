//! What a comparison found.

use crate::bench::compare::distinguishable;
use crate::bench::statistics::{Estimate, Interval};

/// What is compared, as far as it is shown.
#[derive(Debug, Clone, PartialEq)]
pub enum DiffValue {
    /// A figure.
    Number(f64),
    /// Anything else.
    Text(String),
}

impl DiffValue {
    /// The figure.
    pub fn number(&self) -> Option<f64> {
        match self {
            DiffValue::Number(number) => Some(*number),
            DiffValue::Text(_) => None,
        }
    }
}

/// What is said of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiffVerdict {
    /// A row of bench, which costs more in B.
    CostsMore,
    /// A row of bench, which costs less in B.
    CostsLess,
    /// The samples, or the noise, leave it open whether they differ.
    NotDistinguishable,
    /// A figure that is larger in B.
    More,
    /// A figure that is smaller in B.
    Less,
    /// Equal.
    Same,
    /// What is no figure, and differs.
    Changed,
    /// A row that failed in B, or in both.
    Failed,
    /// A single time of the host's clock.
    NotJudged,
}

impl DiffVerdict {
    /// In words.
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
        }
    }

    /// Of a row of bench.
    pub fn of_cost(ratio: Option<Estimate>) -> DiffVerdict {
        match ratio {
            Some(ratio) if distinguishable(ratio) && ratio.value > 1.0 => DiffVerdict::CostsMore,
            Some(ratio) if distinguishable(ratio) && ratio.value < 1.0 => DiffVerdict::CostsLess,
            _ => DiffVerdict::NotDistinguishable,
        }
    }

    /// Of a figure that says nothing of its spread. `noise` is the share by which equal runs may
    /// differ.
    pub fn of_figure(a: f64, b: f64, noise: f64) -> DiffVerdict {
        match a.total_cmp(&b) {
            _ if a == b => DiffVerdict::Same,
            _ if (b - a).abs() <= noise * a.abs().max(b.abs()) => DiffVerdict::NotDistinguishable,
            std::cmp::Ordering::Less => DiffVerdict::More,
            _ => DiffVerdict::Less,
        }
    }
}

/// A thing that both records have.
#[derive(Debug, Clone, PartialEq)]
pub struct DiffLine {
    /// The row's name, or the figure's path in the record.
    pub name: String,
    /// Of both values; empty where they are no figures, or their name says it.
    pub unit: &'static str,
    /// In the first record.
    pub a: DiffValue,
    /// In the second.
    pub b: DiffValue,
    /// B over A, where both are figures above 0; its interval, where something is known of the
    /// spread.
    pub ratio: Option<f64>,
    /// See there.
    pub interval: Option<Interval>,
    /// What follows.
    pub verdict: DiffVerdict,
}

impl DiffLine {
    /// Two figures with nothing known of their spread.
    pub fn figures(name: &str, (a, b): (f64, f64), verdict: DiffVerdict) -> DiffLine {
        let ratio = (a > 0.0 && b > 0.0).then(|| b / a).filter(|ratio| ratio.is_finite());
        let (a, b) = (DiffValue::Number(a), DiffValue::Number(b));
        DiffLine { name: name.to_owned(), unit: "", a, b, ratio, interval: None, verdict }
    }

    /// Two texts.
    pub fn texts(name: &str, a: String, b: String) -> DiffLine {
        let verdict = if a == b { DiffVerdict::Same } else { DiffVerdict::Changed };
        let (a, b) = (DiffValue::Text(a), DiffValue::Text(b));
        DiffLine { name: name.to_owned(), unit: "", a, b, ratio: None, interval: None, verdict }
    }
}

/// A thing about the surroundings that is not the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unlike {
    /// Its name.
    pub what: String,
    /// In the first record.
    pub a: String,
    /// In the second.
    pub b: String,
}

/// One of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhichRecord {
    /// The first.
    A,
    /// The second.
    B,
}

/// All that was found.
#[derive(Debug, Default)]
pub struct DiffResult {
    /// What makes the comparison unfair.
    pub not_same: Vec<Unlike>,
    /// What both records have, rows of bench first.
    pub lines: Vec<DiffLine>,
    /// How many of the lines are rows of bench.
    pub rows: usize,
    /// What one record alone has.
    pub only: Vec<(String, WhichRecord)>,
    /// How the figures were judged, a sentence each.
    pub remarks: Vec<String>,
    /// What makes the status 1, a sentence each.
    pub regressions: Vec<String>,
}

impl DiffResult {
    /// The exit status.
    pub fn status(&self) -> u8 {
        u8::from(!self.regressions.is_empty())
    }
}
