//! Statistics of samples: medians, ratios, 95% intervals.
//!
//! There are two methods, for two kinds of repetition. Runs that repeat exactly (counted
//! instructions) have no spread between runs: samples differ only by their time in the machine's
//! life, and the interval is a percentile bootstrap over samples. Runs by the host's clock differ
//! by other work of the host, which lasts longer than a sample. There a run is one observation, the
//! runs of the two sides alternate, and the interval is Student's t over the logarithms of the
//! pairs' ratios.

use fastrand::Rng;

/// Resamples of a bootstrap.
pub const RESAMPLES: usize = 4000;
/// Seed of the bootstrap's random numbers: the same samples give the same interval.
const SEED: u64 = 0x0f4e_e401_d5ee_d001;

/// The words in place of an interval that the runs are too few for.
pub const TOO_FEW_RUNS: &str = "too few runs";

/// A 95% interval, or the range of observations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end; infinity if the runs are too few for an interval.
    pub high: f64,
}

impl Interval {
    /// The interval of a positive quantity that the runs are too few for.
    pub const OPEN: Interval = Interval { low: 0.0, high: f64::INFINITY };

    /// Returns the range of the observations; fewer than two have none.
    pub fn range(values: &[f64]) -> Interval {
        if values.len() < 2 {
            return Interval::OPEN;
        }
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        Interval { low, high: values.iter().copied().fold(f64::NEG_INFINITY, f64::max) }
    }

    /// Returns whether the runs are too few for an interval.
    pub fn has_too_few_runs(self) -> bool {
        self.high.is_infinite()
    }

    /// Returns both ends in words, each as `show` formats it; or that the runs are too few.
    pub fn show(self, between: &str, show: impl Fn(f64) -> String) -> String {
        if self.has_too_few_runs() {
            return TOO_FEW_RUNS.into();
        }
        format!("{}{between}{}", show(self.low), show(self.high))
    }

    /// Returns whether `value` is in the interval.
    pub fn holds(self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }
}

/// A value and its 95% interval.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// The best estimate.
    pub value: f64,
    /// The 95% interval of the value.
    pub interval: Interval,
}

/// Returns the median; of an even number of values the mean of the two in the middle; NaN for no
/// values.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        size if size % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// Returns the median of `values`, with its interval by bootstrap.
pub fn bootstrap(values: &[f64]) -> Estimate {
    let mut random = Rng::with_seed(SEED);
    let mut drawn = Vec::new();
    let medians = (0..RESAMPLES).map(|_| median_of_resample(values, &mut random, &mut drawn)).collect();
    Estimate { value: median(values), interval: middle_95(medians) }
}

/// Returns the median of `ours` over the median of `theirs`, with its interval by bootstrap: each
/// side is resampled separately.
pub fn bootstrap_ratio(ours: &[f64], theirs: &[f64]) -> Estimate {
    let mut random = Rng::with_seed(SEED);
    let mut drawn = Vec::new();
    let ratios = (0..RESAMPLES)
        .map(|_| {
            median_of_resample(ours, &mut random, &mut drawn)
                / median_of_resample(theirs, &mut random, &mut drawn)
        })
        .collect();
    Estimate { value: median(ours) / median(theirs), interval: middle_95(ratios) }
}

/// Returns the geometric mean of `values`, with its interval by Student's t. One value alone has no
/// spread: then the interval is everything above 0.
pub fn geometric_mean(values: &[f64]) -> Estimate {
    let count = values.len() as f64;
    let logarithms: Vec<f64> = values.iter().map(|value| value.ln()).collect();
    let mean = logarithms.iter().sum::<f64>() / count;
    if values.len() < 2 {
        return Estimate { value: mean.exp(), interval: Interval::OPEN };
    }
    let variance = logarithms.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let half = t_quantile(values.len() - 1) * (variance / count).sqrt();
    let interval = Interval { low: (mean - half).exp(), high: (mean + half).exp() };
    Estimate { value: mean.exp(), interval }
}

/// Returns the ratio of two sides whose runs alternated: the geometric mean of the pairs' ratios.
pub fn paired_ratio(ours: &[f64], theirs: &[f64]) -> Estimate {
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(our, their)| our / their).collect();
    geometric_mean(&ratios)
}

fn middle_95(mut values: Vec<f64>) -> Interval {
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values[((values.len() - 1) as f64 * share).round() as usize];
    Interval { low: at(0.025), high: at(0.975) }
}

/// Returns the 97.5% point of Student's t distribution. Tables are exact for few degrees of
/// freedom. For more, the expansion around the normal distribution (Abramowitz and Stegun, 26.7.5)
/// is good to four digits.
fn t_quantile(degrees: usize) -> f64 {
    const TABLE: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    if let Some(value) = degrees.checked_sub(1).and_then(|at| TABLE.get(at)) {
        return *value;
    }
    let z: f64 = 1.959_964;
    let n = degrees as f64;
    z + (z.powi(3) + z) / (4.0 * n) + (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / (96.0 * n * n)
}

/// Returns the median of a random resample of the same size.
fn median_of_resample(values: &[f64], random: &mut Rng, drawn: &mut Vec<f64>) -> f64 {
    drawn.clear();
    drawn.extend(values.iter().map(|_| values[random.usize(..values.len())]));
    median(drawn)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 0.002 * b.abs()
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn student_s_quantiles_are_those_of_the_tables() {
        // Fisher and Yates' table, two-sided 5%.
        for (degrees, value) in [(1, 12.706), (4, 2.776), (11, 2.201), (20, 2.086), (30, 2.042), (120, 1.980)]
        {
            assert!(near(t_quantile(degrees), value), "{degrees}: {}", t_quantile(degrees));
        }
    }

    #[test]
    fn a_paired_interval_is_student_s_over_the_logarithms() {
        // Logarithms of the ratios: -0.1, 0, 0.1; mean 0, deviation 0.1, half width 4.303 * 0.1 /
        // sqrt(3) = 0.24843.
        let ours = [(-0.1_f64).exp(), 2.0, 3.0 * 0.1_f64.exp()];
        let found = paired_ratio(&ours, &[1.0, 2.0, 3.0]);
        assert!(near(found.value, 1.0));
        assert!(
            near(found.interval.low, (-0.24843_f64).exp()) && near(found.interval.high, 0.24843_f64.exp())
        );
    }

    #[test]
    fn pairing_takes_off_what_both_sides_suffered() {
        // The host slowed threefold for the second pair: the ratio of the pairs is still exactly
        // 0.5.
        let found = paired_ratio(&[5.0, 15.0, 5.0], &[10.0, 30.0, 10.0]);
        assert!(near(found.value, 0.5) && found.interval.high < 0.51);
    }

    #[test]
    fn one_run_distinguishes_nothing_and_is_called_too_few() {
        let found = paired_ratio(&[1.0], &[1000.0]);
        assert!(found.interval.holds(1.0));
        let show = |interval: Interval| interval.show("–", |value| value.to_string());
        assert_eq!(show(found.interval), "too few runs");
        assert_eq!(
            (show(Interval::range(&[])), show(Interval::range(&[2.0]))),
            (show(Interval::OPEN), show(Interval::OPEN))
        );
        assert_eq!(show(Interval::range(&[3.0, 1.0, 2.0])), "1–3");
    }

    #[test]
    fn a_bootstrap_of_equal_samples_has_no_width_and_of_scattered_ones_holds_the_truth() {
        let found = bootstrap_ratio(&[50.0; 8], &[100.0; 8]);
        assert_eq!((found.value, found.interval), (0.5, Interval { low: 0.5, high: 0.5 }));
        let ours = [98.0, 103.0, 99.0, 101.0, 97.0, 102.0, 100.0, 104.0];
        let theirs = [101.0, 96.0, 100.0, 103.0, 99.0, 98.0, 102.0, 97.0];
        assert!(bootstrap_ratio(&ours, &theirs).interval.holds(1.0));
        let slower: Vec<f64> = theirs.iter().map(|value| value * 1.2).collect();
        assert!(!bootstrap_ratio(&ours, &slower).interval.holds(1.0));
        // The median of eight values whose middle two are 100 and 101 is rarely below 98 or
        // above 103.
        let found = bootstrap(&ours);
        assert!(found.interval.low >= 97.5 && found.interval.high <= 103.5, "{found:?}");
        assert!(found.interval.low <= 98.5 && found.interval.high >= 102.5, "{found:?}");
    }
}
