//! Tables.

use std::fmt::Write;

use super::{Tone, escape};

/// A column's heading and the kind of its cells.
#[derive(Debug, Clone)]
pub struct Column {
    heading: String,
    class: &'static str,
}

impl Column {
    /// Makes a column of words, aligned left.
    pub fn text(heading: &str) -> Column {
        Column { heading: heading.into(), class: "text" }
    }

    /// Makes a column of figures, aligned right, with digits of equal width.
    pub fn number(heading: &str) -> Column {
        Column { heading: heading.into(), class: "number" }
    }

    /// Makes a column of symbols, addresses or commands, with letters of equal width.
    pub fn code(heading: &str) -> Column {
        Column { heading: heading.into(), class: "code" }
    }
}

/// One cell.
#[derive(Debug, Clone)]
pub struct Cell {
    text: String,
    tone: Tone,
    hint: String,
    /// 0..=1: a bar behind the text.
    share: Option<f64>,
}

impl Cell {
    /// Makes a cell that shows `text`.
    pub fn text(text: impl Into<String>) -> Cell {
        Cell { text: text.into(), tone: Tone::Plain, hint: String::new(), share: None }
    }

    /// Colours the cell.
    pub fn tone(mut self, tone: Tone) -> Cell {
        self.tone = tone;
        self
    }

    /// Adds a text that is shown under the pointer.
    pub fn hint(mut self, hint: impl Into<String>) -> Cell {
        self.hint = hint.into();
        self
    }

    /// Adds a bar behind the text, with this share (0..=1) of the cell.
    pub fn share(mut self, share: f64) -> Cell {
        self.share = Some(share.clamp(0.0, 1.0));
        self
    }
}

/// A table; rows are as long as the list of columns.
#[derive(Debug, Clone)]
pub struct Table {
    caption: String,
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Makes an empty table. `caption` may be empty.
    pub fn new(caption: &str, columns: &[Column]) -> Table {
        Table { caption: caption.into(), columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row; missing cells are empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let mut cells: Vec<Cell> = cells.into_iter().take(self.columns.len()).collect();
        cells.resize_with(self.columns.len(), || Cell::text(""));
        self.rows.push(cells);
    }

    /// Appends the table's markup.
    pub(super) fn render(&self, to: &mut String) {
        // A part that scrolls sideways must be reachable by keyboard, and has a name.
        let headings: Vec<&str> = self.columns.iter().map(|column| column.heading.as_str()).collect();
        let name = if self.caption.is_empty() { headings.join(", ") } else { self.caption.clone() };
        let _ = writeln!(
            to,
            "<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"{}\"><table>",
            escape(&name)
        );
        if !self.caption.is_empty() {
            let _ = writeln!(to, "<caption>{}</caption>", escape(&self.caption));
        }
        to.push_str("<thead><tr>");
        for column in &self.columns {
            // A heading without words is no heading: screen readers would announce nothing.
            let tag = if column.heading.is_empty() { "td" } else { "th" };
            let _ = write!(to, "<{tag} class=\"{}\">{}</{tag}>", column.class, escape(&column.heading));
        }
        to.push_str("</tr></thead>\n<tbody>\n");
        for row in &self.rows {
            to.push_str("<tr>");
            for (column, cell) in self.columns.iter().zip(row) {
                let _ = write!(to, "<td class=\"{} {}\"", column.class, cell.tone.class());
                if !cell.hint.is_empty() {
                    let _ = write!(to, " data-tip=\"{}\"", escape(&cell.hint));
                }
                to.push('>');
                if let Some(share) = cell.share {
                    let _ = write!(
                        to,
                        "<svg class=\"meter\" viewBox=\"0 0 100 1\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\
                         <rect width=\"{:.1}\" height=\"1\"/></svg>",
                        share * 100.0
                    );
                }
                let _ = write!(to, "<span>{}</span></td>", escape(&cell.text));
            }
            to.push_str("</tr>\n");
        }
        to.push_str("</tbody></table></div>\n");
    }
}
