//! Lines over a numeric axis: curves over time with bands, step and survival curves, filled
//! profiles.

use std::fmt::Write;

use super::escape;
use super::figure::{self, Anchor, Canvas, Figure, WIDTH};
use super::scale::{Axis, Scale};
use super::table::{Cell, Column, Table};

const HEIGHT: f64 = 250.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = WIDTH - 16.0;
const TOP: f64 = 34.0;
/// The most points of a figure that react to the pointer: more would make the file large, and the
/// pointer could not tell them apart.
const POINTS: usize = 600;

/// The most points, about, in the table of a figure.
const LISTED: usize = 200;

/// Ways to join points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// From point to point.
    Straight,
    /// Each value holds until the next point.
    Step,
    /// As [`Shape::Step`], filled down to the axis.
    Profile,
}

#[derive(Debug)]
struct Series {
    name: String,
    shape: Shape,
    points: Vec<(f64, f64)>,
    band: Vec<(f64, f64, f64)>,
}

/// A figure of lines.
#[derive(Debug)]
pub struct Lines {
    title: String,
    x: Axis,
    y: Axis,
    series: Vec<Series>,
    marks: Vec<(f64, String)>,
}

impl Lines {
    /// Makes a figure without lines.
    pub fn new(title: &str, x: Axis, y: Axis) -> Lines {
        Lines { title: title.into(), x, y, series: Vec::new(), marks: Vec::new() }
    }

    /// Adds a line through `points`, which are sorted by x. A value that is not a number is a gap.
    pub fn line(&mut self, name: &str, shape: Shape, points: &[(f64, f64)]) {
        self.line_in_band(name, shape, points, &[]);
    }

    /// Adds a line with an area of uncertainty around it: (x, low, high).
    pub fn line_in_band(
        &mut self,
        name: &str,
        shape: Shape,
        points: &[(f64, f64)],
        band: &[(f64, f64, f64)],
    ) {
        self.series.push(Series { name: name.into(), shape, points: points.to_vec(), band: band.to_vec() });
    }

    /// Marks a place on the x axis: the start of a phase.
    pub fn mark(&mut self, x: f64, label: &str) {
        self.marks.push((x, label.into()));
    }

    fn path(series: &Series, x: &Scale, y: &Scale) -> String {
        let mut path = String::new();
        let mut before = None;
        for &(at, value) in &series.points {
            if value.is_nan() {
                before = None;
                continue;
            }
            let (at, value) = (x.place(at), y.place(value));
            let _ = match (before, series.shape) {
                // A point between two gaps is a dot: a line of no length with round ends.
                (None, Shape::Straight) => write!(path, "M{at:.1} {value:.1}h0"),
                (None, _) => write!(path, "M{at:.1} {value:.1}"),
                (Some(_), Shape::Straight) => write!(path, "L{at:.1} {value:.1}"),
                (Some(_), Shape::Step | Shape::Profile) => write!(path, "H{at:.1}V{value:.1}"),
            };
            before = Some(value);
        }
        path
    }

    fn draw_series(&self, canvas: &mut Canvas, number: usize, x: &Scale, y: &Scale) {
        let series = &self.series[number];
        let colour = figure::colour(number);
        if !series.band.is_empty() {
            let mut path = String::from("M");
            for &(at, low, _) in &series.band {
                let _ = write!(path, "{:.1} {:.1} ", x.place(at), y.place(low));
            }
            for &(at, _, high) in series.band.iter().rev() {
                let _ = write!(path, "{:.1} {:.1} ", x.place(at), y.place(high));
            }
            canvas.put(format_args!("<path d=\"{path}Z\" class=\"band {colour}\"/>"));
        }
        let path = Lines::path(series, x, y);
        if let (Shape::Profile, Some(first), Some(last)) =
            (series.shape, series.points.first(), series.points.last())
        {
            let floor = y.place(f64::NEG_INFINITY);
            canvas.put(format_args!(
                "<path d=\"{path}L{:.1} {floor:.1}L{:.1} {floor:.1}Z\" class=\"band {colour}\"/>",
                x.place(last.0),
                x.place(first.0)
            ));
        }
        if !path.is_empty() {
            canvas.put(format_args!("<path d=\"{path}\" class=\"line {colour}\"/>"));
        }
        let shown = series.points.iter().filter(|(_, value)| !value.is_nan());
        let every = (series.points.len() * self.series.len()).div_ceil(POINTS).max(1);
        let name = if self.series.len() > 1 { format!("{}\n", series.name) } else { String::new() };
        for &(at, value) in shown.step_by(every) {
            let tip = format!("{name}{}: {}", x.show(at), y.show(value));
            canvas.put(format_args!(
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"5\" class=\"point {colour}\" data-tip=\"{}\"/>",
                x.place(at),
                y.place(value),
                escape(&tip)
            ));
        }
    }
}

impl Figure for Lines {
    fn title(&self) -> &str {
        &self.title
    }

    fn legend(&self) -> String {
        figure::legend(&self.series.iter().map(|series| series.name.clone()).collect::<Vec<_>>())
    }

    fn data(&self) -> Table {
        let all: usize = self.series.iter().map(|series| series.points.len()).sum();
        let step = all.div_ceil(LISTED).max(1);
        let caption = if step == 1 { String::new() } else { format!("one of {step} points") };
        let columns = [Column::text(""), Column::number(&self.x.label), Column::number(&self.y.label)];
        let mut table = Table::new(&caption, &columns);
        for series in &self.series {
            for (x, y) in series.points.iter().step_by(step).filter(|(_, y)| !y.is_nan()) {
                table.row([series.name.clone(), self.x.unit.show(*x), self.y.unit.show(*y)].map(Cell::text));
            }
        }
        table
    }

    fn draw(&self) -> String {
        let points = || self.series.iter().flat_map(|series| series.points.iter()).filter(|p| !p.1.is_nan());
        let bands = || self.series.iter().flat_map(|series| series.band.iter());
        let top = TOP + if self.marks.is_empty() { 0.0 } else { 16.0 };
        let bottom = top + HEIGHT;
        let x = self.x.fit(
            points().map(|p| p.0).chain(bands().map(|b| b.0)).chain(self.marks.iter().map(|m| m.0)),
            LEFT,
            RIGHT,
        );
        let y = self.y.fit(points().map(|p| p.1).chain(bands().map(|b| b.2)), bottom, top);
        let mut canvas = Canvas::new(bottom + 44.0);
        canvas.axis_below(&x, (LEFT, RIGHT), top, bottom);
        canvas.axis_left(&y, TOP, LEFT, RIGHT);
        canvas.line((LEFT, bottom), (RIGHT, bottom), "base");
        let mut free_from = f64::NEG_INFINITY;
        for (at, label) in &self.marks {
            let at = x.place(*at);
            canvas.line((at, top - 14.0), (at, bottom), "reference");
            // Overlapping labels are left out; the table of phases has them all.
            if at >= free_from && at + figure::text_width(label) <= WIDTH {
                canvas.text((at + 3.0, top - 6.0), Anchor::Start, "tick", label);
                free_from = at + figure::text_width(label) + 6.0;
            }
        }
        for number in 0..self.series.len() {
            self.draw_series(&mut canvas, number, &x, &y);
        }
        if self.series.iter().all(|series| series.points.is_empty()) {
            canvas.text((WIDTH / 2.0, (top + bottom) / 2.0), Anchor::Middle, "axis", "nothing was recorded");
        }
        canvas.finish("lines", &self.title)
    }
}

/// Returns a survival curve after Kaplan and Meier. `ages` go up, as upper ends of buckets of
/// powers of two. Each age has the number that ended there, and the number last seen alive there,
/// which count only up to that age.
pub fn survival(ages: &[(f64, u64, u64)]) -> Vec<(f64, f64)> {
    let mut seen: u64 = ages.iter().map(|(_, ended, lost)| ended + lost).sum();
    let mut alive = 1.0;
    // At the start of the first bucket all are alive. Buckets are powers of two, so its start is
    // half of its end.
    let mut curve: Vec<(f64, f64)> = ages.first().map(|(age, ..)| (age / 2.0, 1.0)).into_iter().collect();
    for &(age, ended, lost) in ages {
        if seen == 0 {
            break;
        }
        alive *= 1.0 - ended as f64 / seen as f64;
        seen -= ended + lost;
        curve.push((age, alive));
    }
    curve
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::html::Unit;

    #[test]
    fn a_survival_curve_counts_each_thing_as_long_as_it_was_seen() {
        // Textbook: of 8, 2 end at 1; 1 of 6 is lost from sight at 10; 2 of 5 end at 100; the last
        // 3 are alive.
        let curve = survival(&[(1.0, 2, 0), (10.0, 0, 1), (100.0, 2, 0), (1000.0, 0, 3)]);
        assert_eq!(curve, [(0.5, 1.0), (1.0, 0.75), (10.0, 0.75), (100.0, 0.75 * 0.6), (1000.0, 0.75 * 0.6)]);
        assert!(survival(&[]).is_empty());
    }

    #[test]
    fn no_line_is_drawn_over_a_gap() {
        let axis = || Axis::linear("", Unit::Number).range(0.0, 10.0);
        let mut lines = Lines::new("t", axis(), axis());
        let points = [(0.0, 0.0), (2.0, 0.0), (4.0, f64::NAN), (6.0, 0.0), (8.0, f64::NAN), (10.0, 0.0)];
        lines.line("a", Shape::Straight, &points);
        let svg = lines.draw();
        let path = svg.split("<path d=\"").find(|rest| rest.contains("class=\"line ")).expect("a path");
        let path = path.split('"').next().expect("its points");
        assert_eq!((path.matches('M').count(), path.matches('L').count()), (3, 1), "{path}");
        assert!(!svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn a_step_holds_its_value_until_the_next_point() {
        let axis = || Axis::linear("", Unit::Number).range(0.0, 10.0);
        let mut lines = Lines::new("t", axis(), axis());
        lines.line("a", Shape::Step, &[(0.0, 0.0), (10.0, 10.0)]);
        let svg = lines.draw();
        let bottom = TOP + HEIGHT;
        assert!(svg.contains(&format!("M{LEFT:.1} {bottom:.1}H{RIGHT:.1}V{TOP:.1}")), "{svg}");
    }
}
