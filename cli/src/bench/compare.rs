//! Turns samples into statements: each side's cost of each row, ratios with their intervals,
//! whether runs repeat, which rows failed.

use super::measure::{Measured, Measurements, printed, show};
use super::parse::{ParsedRow, RowKey};
use super::plan::{Measure, Plan};
use super::rows::{BenchRow, Waits};
use crate::statistics::{self, Estimate, Interval};

/// Methods for intervals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Bootstrap over samples: of one run where runs repeat, of all runs otherwise.
    Bootstrap,
    /// Student's t over pairs of alternating runs.
    Paired,
}

impl Method {
    /// Returns the method for `runs` of this measure.
    pub fn of(measure: Measure, runs: usize) -> Method {
        match measure {
            Measure::Wall if runs > 1 => Method::Paired,
            _ => Method::Bootstrap,
        }
    }

    /// Returns the method in words.
    pub fn words(self) -> String {
        match self {
            Method::Bootstrap => format!(
                "95% intervals: percentile bootstrap of the median over the samples, {} resamples; random layouts come from one seed",
                statistics::RESAMPLES
            ),
            Method::Paired => {
                "95% intervals: Student's t over the logarithms of the ratios of alternating runs' medians; ± is half the range of those medians"
                    .into()
            }
        }
    }
}

/// Why a side has no cost where a signal came before.
const NOT_MEASURED: &str = "not measured: a signal came before";

/// The cost of one operation on one side.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// The cost in clock units per operation.
    Cost(Cost),
    /// The reason why there is no cost.
    Failed(String),
}

/// A cost and its samples.
#[derive(Debug, Clone, PartialEq)]
pub struct Cost {
    /// The cost with its interval.
    pub estimate: Estimate,
    /// Samples of each run.
    pub runs: Vec<Vec<f64>>,
    /// The guest's note about the row.
    pub note: Option<String>,
}

impl Cost {
    /// Returns half the range of the runs' medians (of a single run's samples), as a share of the
    /// cost. `None` if there is one value only.
    pub fn spread(&self) -> Option<f64> {
        let values = match self.runs.as_slice() {
            [samples] => samples.clone(),
            runs => medians(runs),
        };
        let range = Interval::range(&values);
        (!range.has_too_few_runs()).then(|| (range.high - range.low) / 2.0 / self.estimate.value)
    }
}

/// One row of the comparison.
#[derive(Debug)]
pub struct ComparedRow {
    /// The row.
    pub row: &'static BenchRow,
    /// Number of workers that performed it at a time.
    pub workers: u32,
    /// Cells of the sides.
    pub cells: Vec<Cell>,
    /// First side over each other side, where both have a cost.
    pub ratios: Vec<Option<Estimate>>,
}

impl ComparedRow {
    /// Returns the row's name for people.
    pub fn name(&self) -> String {
        show(&(self.row.name.to_owned(), self.workers))
    }

    /// Judges whether the first side costs no more than the goal's share of the second. `None`
    /// without a ratio.
    pub fn verdict(&self) -> Option<RowVerdict> {
        self.ratios.first().copied().flatten().map(|ratio| RowVerdict::of(ratio, self.row.goal))
    }
}

/// Verdict about an interval against a goal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowVerdict {
    /// The whole interval is within the goal.
    Met,
    /// The whole interval is beyond the goal.
    Missed,
    /// The samples do not decide.
    Open,
}

impl RowVerdict {
    /// Returns the verdict for a goal that is the largest allowed ratio.
    pub fn of(ratio: Estimate, goal: f64) -> RowVerdict {
        if ratio.interval.high <= goal {
            RowVerdict::Met
        } else if ratio.interval.low > goal {
            RowVerdict::Missed
        } else {
            RowVerdict::Open
        }
    }

    /// Returns the verdict in a word.
    pub fn word(self) -> &'static str {
        match self {
            RowVerdict::Met => "met",
            RowVerdict::Missed => "missed",
            RowVerdict::Open => "open",
        }
    }
}

/// Returns whether a ratio's interval excludes equal sides.
pub fn distinguishable(ratio: Estimate) -> bool {
    !ratio.interval.holds(1.0)
}

/// A row that failed on a side.
#[derive(Debug, Clone, PartialEq)]
pub struct RowFailure {
    /// The side's label.
    pub side: String,
    /// The row.
    pub row: String,
    /// The harness' message.
    pub message: String,
    /// Other output of the guest, for a person.
    pub printed: String,
}

/// Two runs of a side that should have been equal.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// The side's label.
    pub side: String,
    /// The row.
    pub row: String,
    /// Clock units of all samples in the first run, and in the one that differs.
    pub units: (u64, u64),
}

/// Everything that is known after the runs.
#[derive(Debug)]
pub struct Comparison {
    /// Rows in order.
    pub lines: Vec<ComparedRow>,
    /// How intervals were made.
    pub method: Method,
    /// Runs that differ although they should be equal; `None` if equal runs are not expected.
    pub differences: Option<Vec<Difference>>,
    /// Rows that failed.
    pub failures: Vec<RowFailure>,
    /// The signal that ended the measurement early.
    pub interrupted: Option<u8>,
}

impl Comparison {
    /// Compares what was measured. Rows that no side has finished are left out.
    pub fn new(plan: &Plan, measured: &Measurements) -> Comparison {
        let method = Method::of(plan.measure, plan.extent.runs);
        let labels: Vec<&str> = plan.sides.iter().map(|side| side.label.as_str()).collect();
        let repeats = plan.measure == Measure::Instructions && plan.extent.runs > 1;
        let mut comparison = Comparison {
            lines: Vec::new(),
            method,
            differences: repeats.then(Vec::new),
            failures: Vec::new(),
            interrupted: measured.interrupted,
        };
        for row in &plan.rows {
            for workers in &plan.workers {
                let key = (row.name.to_owned(), *workers);
                if !measured.sides.iter().any(|side| side.has(&key)) {
                    continue;
                }
                let cells: Vec<Cell> = measured
                    .sides
                    .iter()
                    .zip(&labels)
                    .map(|(side, label)| comparison.cell(label, side, row, &key))
                    .collect();
                let ratios = cells[1..].iter().map(|other| ratio(method, &cells[0], other)).collect();
                comparison.lines.push(ComparedRow { row, workers: *workers, cells, ratios });
            }
        }
        comparison
    }

    fn cell(&mut self, label: &str, side: &Measured, row: &BenchRow, key: &RowKey) -> Cell {
        let found: Vec<&ParsedRow> = side.runs.iter().filter_map(|run| run.rows.get(key)).collect();
        if found.is_empty() {
            return Cell::Failed(NOT_MEASURED.into());
        }
        for (run, found) in side.runs.iter().zip(&found) {
            if let Some(message) = &found.failure {
                self.failures.push(RowFailure {
                    side: label.to_owned(),
                    row: show(key),
                    message: message.clone(),
                    printed: printed(run),
                });
                return Cell::Failed(message.clone());
            }
        }
        if let (Some(differences), [first, others @ ..]) = (&mut self.differences, found.as_slice())
            && row.waits == Waits::Nothing
            && let Some(other) = others.iter().find(|other| other.raw != first.raw)
        {
            let units = |found: &ParsedRow| found.raw.iter().map(|(_, elapsed)| elapsed).sum();
            differences.push(Difference {
                side: label.to_owned(),
                row: show(key),
                units: (units(first), units(other)),
            });
        }
        let mut runs: Vec<Vec<f64>> = found.iter().map(|found| found.samples.clone()).collect();
        if self.differences.is_some() && found.windows(2).all(|pair| pair[0].raw == pair[1].raw) {
            // The same samples again are no more evidence.
            runs.truncate(1);
        }
        let estimate = match self.method {
            Method::Bootstrap => statistics::bootstrap(&runs.concat()),
            Method::Paired => statistics::geometric_mean(&medians(&runs)),
        };
        Cell::Cost(Cost { estimate, runs, note: found.iter().find_map(|found| found.note.clone()) })
    }
}

fn medians(runs: &[Vec<f64>]) -> Vec<f64> {
    runs.iter().map(|samples| statistics::median(samples)).collect()
}

fn ratio(method: Method, ours: &Cell, theirs: &Cell) -> Option<Estimate> {
    let (Cell::Cost(ours), Cell::Cost(theirs)) = (ours, theirs) else {
        return None;
    };
    Some(match method {
        Method::Bootstrap => statistics::bootstrap_ratio(&ours.runs.concat(), &theirs.runs.concat()),
        Method::Paired => {
            // A measurement that was ended early lacks the last run of some sides.
            let pairs = ours.runs.len().min(theirs.runs.len());
            statistics::paired_ratio(&medians(&ours.runs[..pairs]), &medians(&theirs.runs[..pairs]))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(value: f64, low: f64, high: f64) -> Estimate {
        Estimate { value, interval: Interval { low, high } }
    }

    #[test]
    fn a_goal_is_met_or_missed_only_where_the_interval_decides() {
        assert_eq!(RowVerdict::of(estimate(0.4, 0.39, 0.5), 0.5), RowVerdict::Met);
        assert_eq!(RowVerdict::of(estimate(0.6, 0.51, 0.7), 0.5), RowVerdict::Missed);
        assert_eq!(RowVerdict::of(estimate(0.4, 0.3, 0.6), 0.5), RowVerdict::Open);
        assert_eq!(RowVerdict::of(estimate(0.4, 0.0, f64::INFINITY), 0.5), RowVerdict::Open);
    }

    #[test]
    fn the_spread_is_half_the_range_of_the_runs() {
        let cost = |runs: &[&[f64]]| Cost {
            estimate: estimate(100.0, 0.0, 0.0),
            runs: runs.iter().map(|samples| samples.to_vec()).collect(),
            note: None,
        };
        assert_eq!(
            cost(&[&[90.0, 90.0, 500.0], &[110.0]]).spread(),
            Some(0.1),
            "outliers within a run do not count"
        );
        assert_eq!(cost(&[&[80.0, 100.0, 120.0]]).spread(), Some(0.2), "one run has only its samples");
        assert_eq!(cost(&[&[80.0]]).spread(), None);
    }
}
