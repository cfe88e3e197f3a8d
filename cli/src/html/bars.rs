//! Horizontal bars in groups, with error bars: measurements side by side.

use super::figure::{self, Anchor, Canvas, Figure, WIDTH};
use super::scale::{Axis, Scale};
use super::table::{Cell, Column, Table};
use crate::statistics::Interval;

const BAR: f64 = 13.0;
const GROUP_GAP: f64 = 12.0;
const LABELS_AT_MOST: f64 = 270.0;
/// Room for a value right of the longest bar.
const VALUES: f64 = 74.0;
const TOP: f64 = 8.0;

/// One bar.
#[derive(Debug, Clone, Copy)]
pub struct Bar {
    /// The bar's length.
    pub value: f64,
    /// Ends of the error bar.
    pub spread: Option<Interval>,
}

impl Bar {
    /// Makes a value without error.
    pub const fn exact(value: f64) -> Bar {
        Bar { value, spread: None }
    }

    /// Makes a value with an interval around it, or with the words that the runs are too few for
    /// one.
    pub const fn within(value: f64, interval: Interval) -> Bar {
        Bar { value, spread: Some(interval) }
    }

    /// Returns the ends that are drawn.
    fn ends(&self) -> Option<Interval> {
        self.spread.filter(|spread| !spread.has_too_few_runs())
    }

    /// Returns the value and its interval in words, each number as `show` formats it.
    fn told(&self, show: impl Fn(f64) -> String) -> String {
        match self.spread {
            None => show(self.value),
            Some(spread) => format!("{} ({})", show(self.value), spread.show(" to ", &show)),
        }
    }
}

/// Arrangement of the bars of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BarLayout {
    Beside,
    EndToEnd,
}

/// Bars of one or more series, one group per line.
#[derive(Debug)]
pub struct Bars {
    title: String,
    axis: Axis,
    layout: BarLayout,
    series: Vec<String>,
    groups: Vec<(String, Vec<Option<Bar>>)>,
    reference: Option<(f64, String)>,
}

impl Bars {
    /// Makes a figure without groups. `series` names the bars of every group, in order.
    pub fn new(title: &str, axis: Axis, series: &[&str]) -> Bars {
        Bars {
            title: title.into(),
            axis,
            layout: BarLayout::Beside,
            series: series.iter().map(|name| (*name).to_owned()).collect(),
            groups: Vec::new(),
            reference: None,
        }
    }

    /// Makes a figure in which the bars of each group are end to end: parts of a whole. They need a
    /// linear axis.
    pub fn parts(title: &str, axis: Axis, series: &[&str]) -> Bars {
        Bars { layout: BarLayout::EndToEnd, ..Bars::new(title, axis, series) }
    }

    /// Adds a group: one bar for each series, `None` where there is no value.
    pub fn group(&mut self, label: &str, bars: &[Option<Bar>]) {
        self.groups.push((label.into(), bars.to_vec()));
    }

    /// Adds a line across all groups: a limit, or the value at which both sides are equal.
    pub fn reference(&mut self, value: f64, label: &str) {
        self.reference = Some((value, label.into()));
    }
}

impl Bars {
    fn draw_parts(&self, canvas: &mut Canvas, scale: &Scale, group: &(String, Vec<Option<Bar>>), y: f64) {
        let (label, bars) = group;
        let mut at = 0.0;
        for (number, bar) in bars.iter().enumerate().take(self.series.len()) {
            let Some(bar) = bar else { continue };
            let (start, end) = (scale.place(at), scale.place(at + bar.value));
            at += bar.value;
            let value = scale.show(bar.value);
            let tip = format!("{label}\n{} {value}", self.series[number]);
            let class = format!("bar {}", figure::colour(number));
            canvas.rect((start, y), ((end - start - 1.0).max(0.0), BAR * 1.5), &class, &tip);
            if figure::text_width(&value) + 8.0 < end - start {
                canvas.text(((start + end) / 2.0, y + BAR + 1.0), Anchor::Middle, "inside", &value);
            }
        }
    }
}

impl Bars {
    /// Draws the bars of a group below each other, with their left ends at a corner.
    fn draw_beside(
        &self,
        canvas: &mut Canvas,
        scale: &Scale,
        (label, bars): &(String, Vec<Option<Bar>>),
        (left, top): (f64, f64),
    ) {
        for (number, bar) in bars.iter().enumerate().take(self.series.len()) {
            let Some(bar) = bar else { continue };
            let y = top + BAR * number as f64;
            let name = if self.series.len() > 1 { &self.series[number] } else { "" };
            let value = scale.show(bar.value);
            let tip = format!("{label}\n{name} {}", bar.told(|value| scale.show(value)));
            let end = scale.place(bar.value);
            let class = format!("bar {}", figure::colour(number));
            let mut text_at = end;
            if let Some(ends) = bar.ends() {
                text_at = text_at.max(scale.place(ends.high));
            }
            canvas.rect((left, y + 1.0), ((end - left).max(1.0), BAR - 2.0), &class, &tip);
            if let Some(Interval { low, high }) = bar.ends() {
                let (low, high, y) = (scale.place(low), scale.place(high), y + BAR / 2.0);
                canvas.put(format_args!(
                    "<path d=\"M{low:.1} {y:.1}H{high:.1}M{low:.1} {:.1}v6M{high:.1} {:.1}v6\" class=\"error\"/>",
                    y - 3.0,
                    y - 3.0
                ));
            }
            // Where colours repeat, the value says whose it is.
            let told =
                if figure::share_colours(self.series.len()) { format!("{value} {name}") } else { value };
            canvas.text((text_at + 6.0, y + BAR - 3.0), Anchor::Start, "value", &told);
        }
    }
}

impl Figure for Bars {
    fn title(&self) -> &str {
        &self.title
    }

    fn legend(&self) -> String {
        figure::legend(&self.series)
    }

    fn data(&self) -> Table {
        let mut columns = vec![Column::text("")];
        columns.extend(self.series.iter().map(|name| Column::number(name)));
        let mut table = Table::new("", &columns);
        let show = |value: f64| self.axis.unit.show(value);
        let cell = |bar: &Option<Bar>| bar.map_or_else(String::new, |bar| bar.told(show));
        for (label, bars) in &self.groups {
            let label = std::iter::once(Cell::text(label));
            table.row(label.chain(bars.iter().map(|bar| Cell::text(cell(bar)))));
        }
        table
    }

    fn draw(&self) -> String {
        let widest = self.groups.iter().map(|(label, _)| figure::text_width(label)).fold(0.0, f64::max);
        let left = widest.min(LABELS_AT_MOST) + 14.0;
        let lines = match self.layout {
            BarLayout::Beside => self.series.len() as f64,
            BarLayout::EndToEnd => 1.5,
        };
        let group_height = BAR * lines + GROUP_GAP;
        let top = TOP + if self.reference.is_some() { 18.0 } else { 0.0 };
        let bottom = top + group_height * self.groups.len() as f64 + 4.0;
        let all = self.groups.iter().flat_map(|(_, bars)| bars.iter().flatten());
        let ends = all.flat_map(|bar| [bar.value, bar.ends().map_or(bar.value, |ends| ends.high)]);
        let scale =
            self.axis.fit(ends.chain(self.reference.iter().map(|(value, _)| *value)), left, WIDTH - VALUES);
        let mut canvas = Canvas::new(bottom + 44.0);
        canvas.axis_below(&scale, (left, WIDTH - VALUES), top, bottom);
        for (row, group) in self.groups.iter().enumerate() {
            let y = top + group_height * row as f64 + GROUP_GAP / 2.0;
            let middle = y + (group_height - GROUP_GAP) / 2.0 + 4.0;
            let label = figure::fit_text(&group.0, LABELS_AT_MOST);
            canvas.text((left - 10.0, middle), Anchor::End, "label", &label);
            match self.layout {
                BarLayout::EndToEnd => self.draw_parts(&mut canvas, &scale, group, y),
                BarLayout::Beside => self.draw_beside(&mut canvas, &scale, group, (left, y)),
            }
        }
        canvas.line((left, top), (left, bottom), "base");
        if let Some((value, label)) = &self.reference {
            let x = scale.place(*value);
            canvas.line((x, top - 4.0), (x, bottom), "reference");
            canvas.text((x, top - 9.0), Anchor::Middle, "tick", label);
        }
        canvas.finish("bars", &self.title)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::html::Unit;

    #[test]
    fn every_value_is_a_bar_with_its_error_and_a_missing_one_is_none() {
        let mut bars = Bars::new("t", Axis::linear("x", Unit::Count), &["a", "b"]);
        let (known, open) = (Interval { low: 9.0, high: 12.0 }, Interval::OPEN);
        bars.group("first", &[Some(Bar::within(10.0, known)), Some(Bar::exact(5.0))]);
        bars.group("second", &[None, Some(Bar::within(2.0, open))]);
        let svg = bars.draw();
        assert_eq!(svg.matches("class=\"bar ").count(), 3);
        assert_eq!(svg.matches("class=\"error\"").count(), 1);
        assert!(bars.legend().contains("c2") && svg.contains("2 (too few runs)"), "{svg}");
    }

    #[test]
    fn twice_the_value_is_twice_the_length() {
        let mut bars = Bars::new("t", Axis::linear("x", Unit::Count), &["a"]);
        bars.group("g", &[Some(Bar::exact(40.0))]);
        bars.group("h", &[Some(Bar::exact(80.0))]);
        let svg = bars.draw();
        let widths: Vec<f64> = svg
            .lines()
            .filter(|line| line.contains("class=\"bar "))
            .filter_map(|line| line.split("width=\"").nth(1)?.split('"').next()?.parse().ok())
            .collect();
        assert!((widths[1] / widths[0] - 2.0).abs() < 0.01, "{widths:?}");
    }
}
