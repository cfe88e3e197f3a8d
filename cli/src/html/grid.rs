//! Values on a plane: heat maps (many cells, two numeric axes) and matrices (few cells, named rows
//! and columns).

use std::fmt::Write;

use super::figure::{self, Anchor, Canvas, Figure, WIDTH};
use super::scale::Axis;
use super::table::{Cell, Column, Table};
use super::{Unit, escape};

/// Number of shades in style.css, from little to much; zero has no shade.
pub(super) const SHADES: usize = 10;
/// The most cells in the table of a map.
const LISTED: usize = 100;
const LEFT: f64 = 78.0;
const RIGHT: f64 = WIDTH - 16.0;
const TOP: f64 = 34.0;

/// Returns the class of a text on a cell of this shade.
pub(super) fn text_class(shade: usize) -> &'static str {
    if shade > SHADES / 2 { "on-dark" } else { "on-light" }
}

/// Returns the shade (1..=SHADES) of `value`; 0 for zero. Counts are spread by their logarithm,
/// shares evenly.
fn shade(value: f64, most: f64, unit: Unit) -> usize {
    if value <= 0.0 || most <= 0.0 {
        return 0;
    }
    let share = match unit {
        Unit::Percent | Unit::Number => value / most,
        _ => (1.0 + value).ln() / (1.0 + most).ln(),
    };
    ((share * SHADES as f64).ceil() as usize).clamp(1, SHADES)
}

fn ramp(label: &str, unit: Unit, most: f64) -> String {
    let mut html = format!("<div class=\"legend\"><span>{} 0</span><span class=\"ramp\">", escape(label));
    for shade in 1..=SHADES {
        let _ = write!(html, "<i class=\"h{shade}\"></i>");
    }
    let _ = writeln!(html, "</span><span>{}</span></div>", escape(&unit.show(most)));
    html
}

/// A heat map. Row 0 is at the lower end.
#[derive(Debug)]
pub struct HeatMap {
    title: String,
    x: Axis,
    y: Axis,
    columns: usize,
    values: Vec<f64>,
    /// The name of a cell's value, and the unit that it is written in.
    value: (String, Unit),
    height: f64,
}

impl HeatMap {
    /// Makes a map with `columns` columns, filled row after row with `values`. Both axes need a
    /// range.
    pub fn new(
        title: &str,
        (x, y): (Axis, Axis),
        value: (&str, Unit),
        columns: usize,
        values: Vec<f64>,
    ) -> HeatMap {
        let rows = values.len() / columns.max(1);
        let height = if rows > 1 { 300.0 } else { 44.0 };
        HeatMap {
            title: title.into(),
            x,
            y,
            columns: columns.max(1),
            values,
            value: (value.0.into(), value.1),
            height,
        }
    }

    fn most(&self) -> f64 {
        self.values.iter().copied().fold(0.0, f64::max)
    }
}

impl Figure for HeatMap {
    fn title(&self) -> &str {
        &self.title
    }

    fn legend(&self) -> String {
        ramp(&self.value.0, self.value.1, self.most())
    }

    fn data(&self) -> Table {
        let rows = (self.values.len() / self.columns).max(1);
        let mut cells: Vec<(usize, f64)> =
            self.values.iter().copied().enumerate().filter(|(_, value)| *value > 0.0).collect();
        cells.sort_by(|a, b| b.1.total_cmp(&a.1));
        let caption = match cells.len() {
            0..=LISTED => String::new(),
            all => format!("the {LISTED} largest of {all} values"),
        };
        let columns = [&self.x.label, &self.y.label, &self.value.0].map(|name| Column::number(name));
        let mut table = Table::new(&caption, &columns);
        for (number, value) in cells.into_iter().take(LISTED) {
            let x = self.x.part(number % self.columns, self.columns);
            let y = self.y.part(number / self.columns, rows);
            table.row([x, y, self.value.1.show(value)].map(Cell::text));
        }
        table
    }

    fn draw(&self) -> String {
        let rows = (self.values.len() / self.columns).max(1);
        let bottom = TOP + self.height;
        let (width, height) = ((RIGHT - LEFT) / self.columns as f64, self.height / rows as f64);
        let most = self.most();
        // One path per shade: a rectangle per cell would make the file ten times as large.
        let mut paths = vec![String::new(); SHADES + 1];
        let place =
            |row: usize, column: usize| (LEFT + width * column as f64, bottom - height * (row + 1) as f64);
        for (number, &value) in self.values.iter().take(rows * self.columns).enumerate() {
            let (x, y) = place(number / self.columns, number % self.columns);
            // Slightly wider, so that neighbours of one shade show no seam.
            let (w, h) = (width + 0.3, height + 0.3);
            let _ = write!(paths[shade(value, most, self.value.1)], "M{x:.1} {y:.1}h{w:.1}v{h:.1}h-{w:.1}z");
        }
        let mut canvas = Canvas::new(bottom + 44.0);
        canvas.rect((LEFT, TOP), (RIGHT - LEFT, self.height), "field", "");
        for (shade, path) in paths.iter().enumerate().skip(1).filter(|(_, path)| !path.is_empty()) {
            canvas.put(format_args!("<path d=\"{path}\" class=\"h{shade}\"/>"));
        }
        let x = self.x.fit(std::iter::empty(), LEFT, RIGHT);
        let y = self.y.fit(std::iter::empty(), bottom, TOP);
        canvas.axis_below(&x, (LEFT, RIGHT), bottom, bottom + 4.0);
        if rows > 1 {
            canvas.axis_left(&y, TOP, LEFT, LEFT - 4.0);
        }
        // The script shows this under the pointer: each cell's value, by row from the lower end.
        let mut list = String::new();
        for value in self.values.iter().take(rows * self.columns) {
            if *value > 0.0 {
                list.push_str(&self.value.1.show(*value));
            }
            list.push(';');
        }
        canvas.put(format_args!(
            "<rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{:.1}\" class=\"cells\" data-columns=\"{}\" \
             data-rows=\"{rows}\" data-name=\"{}\" data-cells=\"{}\"/>",
            RIGHT - LEFT,
            self.height,
            self.columns,
            escape(&self.value.0),
            escape(&list)
        ));
        canvas.finish("heat", &self.title)
    }
}

/// A table of counts with shaded cells.
#[derive(Debug)]
pub struct Matrix {
    title: String,
    /// Names of the rows' side and of the columns' side.
    sides: (String, String),
    rows: Vec<String>,
    columns: Vec<String>,
    values: Vec<f64>,
}

impl Matrix {
    /// Makes a matrix; `values` go row after row, a value for each column.
    pub fn new(
        title: &str,
        sides: (&str, &str),
        rows: &[String],
        columns: &[String],
        values: Vec<f64>,
    ) -> Matrix {
        Matrix {
            title: title.into(),
            sides: (sides.0.into(), sides.1.into()),
            rows: rows.to_vec(),
            columns: columns.to_vec(),
            values,
        }
    }
}

impl Figure for Matrix {
    fn title(&self) -> &str {
        &self.title
    }

    fn legend(&self) -> String {
        String::new()
    }

    fn data(&self) -> Table {
        let (one, other) = &self.sides;
        let mut table = Table::new("", &[Column::text(one), Column::text(other), Column::number("count")]);
        for (number, value) in self.values.iter().enumerate().filter(|(_, value)| **value > 0.0) {
            let at = (number / self.columns.len().max(1), number % self.columns.len().max(1));
            let names =
                [self.rows.get(at.0), self.columns.get(at.1)].map(|name| name.cloned().unwrap_or_default());
            let [row, column] = names;
            table.row([row, column, Unit::Count.show(*value)].map(Cell::text));
        }
        table
    }

    fn draw(&self) -> String {
        const ROW: f64 = 30.0;
        let widest = self.rows.iter().map(|name| figure::text_width(name)).fold(60.0, f64::max).min(200.0);
        let left = widest + 40.0;
        let top = 48.0;
        let width = ((WIDTH - 16.0 - left) / self.columns.len().max(1) as f64).min(110.0);
        let most = self.values.iter().copied().fold(0.0, f64::max);
        let total: f64 = self.values.iter().sum();
        let mut canvas = Canvas::new(top + ROW * self.rows.len() as f64 + 10.0);
        canvas.text((left - 10.0, top - 8.0), Anchor::End, "axis", &format!("{} ↓", self.sides.0));
        canvas.text((left, top - 30.0), Anchor::Start, "axis", &format!("{} →", self.sides.1));
        for (column, name) in self.columns.iter().enumerate() {
            let x = left + width * (column as f64 + 0.5);
            canvas.text((x, top - 8.0), Anchor::Middle, "label", &figure::fit_text(name, width));
        }
        for (row, name) in self.rows.iter().enumerate() {
            let y = top + ROW * row as f64;
            canvas.text((left - 10.0, y + 19.0), Anchor::End, "label", &figure::fit_text(name, 200.0));
            for (column, other) in self.columns.iter().enumerate() {
                let value = self.values.get(row * self.columns.len() + column).copied().unwrap_or(0.0);
                let x = left + width * column as f64;
                let shade = shade(value, most, Unit::Number);
                let share = if total > 0.0 { value / total } else { 0.0 };
                let tip = format!(
                    "{} {name}, {} {other}\n{} ({} of all)",
                    self.sides.0,
                    self.sides.1,
                    Unit::Count.show(value),
                    Unit::Percent.show(share)
                );
                canvas.rect((x + 1.0, y + 1.0), (width - 2.0, ROW - 2.0), &format!("cell h{shade}"), &tip);
                if value > 0.0 {
                    let class = text_class(shade);
                    canvas.text((x + width / 2.0, y + 19.0), Anchor::Middle, class, &Unit::Count.show(value));
                }
            }
        }
        canvas.finish("matrix", &self.title)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_is_darker_and_nothing_has_no_shade() {
        let shades: Vec<usize> = [0.0, 1.0, 30.0, 1000.0].map(|v| shade(v, 1000.0, Unit::Count)).to_vec();
        assert_eq!(shades[0], 0);
        assert_eq!(shades[3], SHADES);
        assert!(shades.is_sorted(), "{shades:?}");
        assert_eq!(shade(0.5, 1.0, Unit::Percent), 5);
    }

    #[test]
    fn a_heat_map_keeps_each_value_at_its_cell() {
        let axis = || Axis::linear("", Unit::Number).range(0.0, 2.0);
        let map = HeatMap::new("t", (axis(), axis()), ("touches", Unit::Count), 2, vec![0.0, 7.0, 3.0, 0.0]);
        assert!(map.draw().contains("data-cells=\";7;3;;\""));
    }
}
