//! Axes: the mapping from values to places, and the labels.

/// The format of an axis' values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// 12 k, 3.4 M.
    Count,
    /// The value 0.25 is 25%.
    Percent,
    /// 64 KiB, 1.5 GiB.
    Bytes,
    /// ns, µs, ms, s.
    Nanoseconds,
    /// A plain number: 1.25.
    Number,
}

impl Unit {
    /// Formats `value` in three or four digits.
    pub fn show(self, value: f64) -> String {
        match self {
            Unit::Percent => format!("{}%", digits(value * 100.0)),
            Unit::Number => digits(value),
            Unit::Count => scaled(value, 1000.0, &["", " k", " M", " G", " T"]),
            Unit::Bytes => scaled(value, 1024.0, &[" B", " KiB", " MiB", " GiB", " TiB"]),
            Unit::Nanoseconds => scaled(value, 1000.0, &[" ns", " µs", " ms", " s"]),
        }
    }
}

fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut unit = 0;
    // 999.9 of a unit would be written as 1000 of the unit.
    while value.abs() >= step * 0.9995 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    format!("{}{}", digits(value), units[unit])
}

/// Formats three significant digits, without zeros at the end.
fn digits(value: f64) -> String {
    let places = match value.abs() {
        v if v >= 99.95 || v == 0.0 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.9995 => 2,
        v if v >= 0.0095 => 3,
        _ => 5,
    };
    let text = format!("{value:.places$}");
    if text.contains('.') {
        return text.trim_end_matches('0').trim_end_matches('.').to_owned();
    }
    text
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spacing {
    Linear,
    Logarithmic,
}

/// One axis: its label (with the unit in words if that helps), its spacing and its range.
#[derive(Debug, Clone)]
pub struct Axis {
    /// The name of the quantity along the axis.
    pub label: String,
    /// The unit of its values.
    pub unit: Unit,
    spacing: Spacing,
    /// Least upper end, if one is set.
    at_least: f64,
    range: Option<(f64, f64)>,
}

impl Axis {
    /// Makes an axis from 0 to the largest value.
    pub fn linear(label: &str, unit: Unit) -> Axis {
        Axis { label: label.into(), unit, spacing: Spacing::Linear, at_least: 0.0, range: None }
    }

    /// Makes an axis of powers of ten (of two for bytes); values of 0 and less are at its lower
    /// end.
    pub fn logarithmic(label: &str, unit: Unit) -> Axis {
        Axis { label: label.into(), unit, spacing: Spacing::Logarithmic, at_least: 0.0, range: None }
    }

    /// Extends the axis at least to `value`.
    pub fn up_to(mut self, value: f64) -> Axis {
        self.at_least = value;
        self
    }

    /// Fixes the axis to the range from `low` to `high`.
    pub fn range(mut self, low: f64, high: f64) -> Axis {
        self.range = Some((low, high));
        self
    }

    /// Returns the value at which part `number` of `all` equal parts of the range begins.
    pub(super) fn part(&self, number: usize, all: usize) -> String {
        let (low, high) = self.range.unwrap_or((0.0, 1.0));
        self.unit.show(low + (high - low) * number as f64 / all as f64)
    }

    /// Returns the scale that shows all of `values` on the places from `start` to `end`.
    pub(super) fn fit(&self, values: impl Iterator<Item = f64>, start: f64, end: f64) -> Scale {
        let mut low = f64::INFINITY;
        let mut high = self.at_least;
        for value in values.filter(|value| value.is_finite()) {
            if self.spacing == Spacing::Linear || value > 0.0 {
                low = low.min(value);
                high = high.max(value);
            }
        }
        let (low, high) = match (self.range, self.spacing) {
            (Some(range), _) => range,
            (None, Spacing::Linear) => linear_range(low.min(0.0), high, self.unit),
            (None, Spacing::Logarithmic) => logarithmic_range(low, high, self.base()),
        };
        Scale { axis: self.clone(), low, high, start, end }
    }

    fn base(&self) -> f64 {
        if self.unit == Unit::Bytes { 2.0 } else { 10.0 }
    }
}

fn linear_range(low: f64, high: f64, unit: Unit) -> (f64, f64) {
    let high = if high > low { high } else { low + 1.0 };
    let step = step(high - low, unit);
    ((low / step).floor() * step, (high / step - 1e-9).ceil() * step)
}

fn logarithmic_range(low: f64, high: f64, base: f64) -> (f64, f64) {
    if !low.is_finite() || high <= 0.0 {
        return (1.0, base);
    }
    let (low, high) = (low * (1.0 + 1e-9), high * (1.0 - 1e-9));
    let (below, above) = (base.powf(low.log(base).floor()), base.powf(high.log(base).floor()));
    // The ends of a decimal axis may also be 2 and 5 times a power.
    let steps = if base == 10.0 { &[1.0, 2.0, 5.0, 10.0][..] } else { &[1.0, base] };
    let start = below * steps.iter().rev().copied().find(|&s| s * below <= low).unwrap_or(1.0);
    let end = above * steps.iter().copied().find(|&s| s * above >= high).unwrap_or(base);
    (start, if end > start { end } else { start * base })
}

/// Returns a step of 1, 2 or 5 times a power of ten (for bytes: a power of two) that divides `span`
/// into about five parts.
fn step(span: f64, unit: Unit) -> f64 {
    let rough = span / 5.0;
    if unit == Unit::Bytes {
        return 2f64.powf(rough.log2().round());
    }
    let power = 10f64.powf(rough.log10().floor());
    let times = rough / power;
    power
        * if times < 1.5 {
            1.0
        } else if times < 3.5 {
            2.0
        } else if times < 7.5 {
            5.0
        } else {
            10.0
        }
}

/// An axis with its range and its place.
#[derive(Debug, Clone)]
pub(super) struct Scale {
    pub axis: Axis,
    low: f64,
    high: f64,
    start: f64,
    end: f64,
}

impl Scale {
    /// Returns the place of `value`; values outside are at the nearer end.
    pub fn place(&self, value: f64) -> f64 {
        let share = match self.axis.spacing {
            Spacing::Linear => (value - self.low) / (self.high - self.low),
            Spacing::Logarithmic if value <= self.low => 0.0,
            Spacing::Logarithmic => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        self.start + share.clamp(0.0, 1.0) * (self.end - self.start)
    }

    /// Returns the values that get a label.
    pub fn ticks(&self) -> Vec<f64> {
        match self.axis.spacing {
            Spacing::Linear => {
                let step = step(self.high - self.low, self.axis.unit);
                let first = (self.low / step - 1e-9).ceil() as i64;
                let last = (self.high / step + 1e-9).floor() as i64;
                (first..=last).map(|n| n as f64 * step).collect()
            }
            Spacing::Logarithmic => {
                let base = self.axis.base();
                let (first, last) = (self.low.log(base).round() as i32, self.high.log(base).round() as i32);
                // At most eight labels.
                let every = ((last - first) as usize / 8 + 1).max(1);
                let powers: Vec<f64> = (first..=last).step_by(every).map(|n| base.powi(n)).collect();
                if last - first > 2 || base == 2.0 {
                    return powers;
                }
                powers
                    .iter()
                    .flat_map(|&p| [p, 2.0 * p, 5.0 * p])
                    .filter(|&v| v <= self.high * 1.001)
                    .collect()
            }
        }
    }

    /// Returns the value's label.
    pub fn show(&self, value: f64) -> String {
        self.axis.unit.show(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_in_few_digits_and_their_unit() {
        assert_eq!(Unit::Count.show(96_123.0), "96.1 k");
        assert_eq!(Unit::Count.show(999_990.0), "1 M");
        assert_eq!(Unit::Bytes.show(64.0 * 1024.0), "64 KiB");
        assert_eq!(Unit::Percent.show(0.368), "36.8%");
        assert_eq!(Unit::Nanoseconds.show(1_500.0), "1.5 µs");
        assert_eq!(Unit::Number.show(0.0), "0");
    }

    #[test]
    fn a_linear_axis_holds_its_values_and_has_a_handful_of_round_labels() {
        for high in [0.003, 0.9, 7.0, 1234.0, 9.9e9] {
            let scale = Axis::linear("x", Unit::Number).fit([0.0, high].into_iter(), 0.0, 100.0);
            let ticks = scale.ticks();
            assert!((4..=11).contains(&ticks.len()), "{high}: {ticks:?}");
            assert!(scale.place(high) > 50.0 && scale.place(high) <= 100.0);
            assert_eq!(scale.place(0.0), 0.0);
        }
    }

    #[test]
    fn a_logarithmic_axis_puts_equal_ratios_at_equal_distances() {
        let scale = Axis::logarithmic("x", Unit::Count).fit([3.0, 40_000.0].into_iter(), 0.0, 100.0);
        let (a, b, c) = (scale.place(10.0), scale.place(100.0), scale.place(1000.0));
        assert!(((b - a) - (c - b)).abs() < 1e-9);
        assert_eq!(scale.place(0.0), 0.0, "nothing is not infinitely far away");
        assert!(scale.ticks().contains(&1000.0));
    }
}
