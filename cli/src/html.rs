//! Reports as one offline HTML file: page frame, tables, figures drawn as SVG.
//!
//! The file needs no network, no fonts and no other file, and looks right on light and dark screens
//! and on paper. Its script only shows a value under the pointer or a finger, or the one that the
//! arrow keys chose; everything else works without it. Every text is escaped where it enters: names
//! come from guests and are not trusted. The page forbids itself everything else
//! (Content-Security-Policy).

mod bars;
#[cfg(test)]
mod colours;
mod escape;
mod figure;
mod grid;
mod lines;
mod origin;
mod scale;
mod table;

use std::fmt::Write;
use std::path::Path;

use crate::{Result, files};
pub use bars::{Bar, Bars};
pub use escape::escape;
pub use figure::Figure;
pub use grid::{HeatMap, Matrix};
pub use lines::{Lines, Shape, survival};
pub use origin::command_line;
pub use scale::{Axis, Unit};
pub use table::{Cell, Column, Table};

const STYLE: &str = include_str!("html/style.css");
const SCRIPT: &str = include_str!("html/script.js");
/// The only script that the page lets run: SHA-256 of [`SCRIPT`]
/// (`openssl dgst -sha256 -binary | base64`).
const SCRIPT_HASH: &str = "sha256-Fqq3P9uMwHgz9tTpUBQxz0M/hhvK9Rdc+khZAZWz41g=";

/// The meaning of a value, a note or a tile for the reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tone {
    /// Nothing in particular.
    #[default]
    Plain,
    /// A desired value.
    Good,
    /// A value that deserves attention.
    Warning,
    /// A wrong value.
    Bad,
}

impl Tone {
    const fn class(self) -> &'static str {
        match self {
            Tone::Plain => "plain",
            Tone::Good => "good",
            Tone::Warning => "warning",
            Tone::Bad => "bad",
        }
    }
}

/// A key figure at the top of a page.
#[derive(Debug, Clone)]
pub struct Tile {
    /// The name of the figure.
    pub label: String,
    /// The figure, with its unit.
    pub value: String,
    /// One line of detail.
    pub detail: String,
    /// The meaning of the figure.
    pub tone: Tone,
}

/// A page that is being built; parts appear in the order in which they are added.
#[derive(Debug)]
pub struct Page {
    title: String,
    lead: String,
    sections: Vec<String>,
    body: String,
    figures: usize,
    next: Option<(String, String)>,
}

impl Page {
    /// Makes a page with a title and the sentence below it.
    pub fn new(title: &str, lead: &str) -> Page {
        Page {
            title: title.into(),
            lead: lead.into(),
            sections: Vec::new(),
            body: String::new(),
            figures: 0,
            next: None,
        }
    }

    /// Sets the command that a reader would type next, and why; it is shown at the top.
    pub fn next(&mut self, why: &str, command: &str) {
        self.next = Some((why.into(), command.into()));
    }

    /// Begins a section; the list at the top of the page leads to it.
    pub fn section(&mut self, heading: &str) {
        self.sections.push(heading.into());
        let number = self.sections.len();
        self.put(format_args!("<h2 id=\"s{number}\">{}</h2>\n", escape(heading)));
    }

    /// Adds a paragraph.
    pub fn text(&mut self, paragraph: &str) {
        self.put(format_args!("<p>{}</p>\n", escape(paragraph)));
    }

    /// Adds a paragraph that stands out.
    pub fn note(&mut self, tone: Tone, text: &str) {
        self.put(format_args!("<p class=\"note {}\">{}</p>\n", tone.class(), escape(text)));
    }

    /// Puts a sentence that limits all the rest at the top.
    pub fn warn(&mut self, text: &str) {
        self.body.insert_str(0, &format!("<p class=\"note warning\">{}</p>\n", escape(text)));
    }

    /// Adds key figures side by side.
    pub fn tiles(&mut self, tiles: &[Tile]) {
        self.body.push_str("<div class=\"tiles\">\n");
        for tile in tiles {
            self.put(format_args!(
                "<div class=\"tile {}\"><div class=\"label\">{}</div><div class=\"value\">{}</div>\
                 <div class=\"detail\">{}</div></div>\n",
                tile.tone.class(),
                escape(&tile.label),
                escape(&tile.value),
                escape(&tile.detail),
            ));
        }
        self.body.push_str("</div>\n");
    }

    /// Adds names with their values: settings, versions, command lines.
    pub fn facts(&mut self, facts: &[(String, String)]) {
        self.body.push_str("<dl class=\"facts\">\n");
        for (name, value) in facts {
            self.put(format_args!("<dt>{}</dt><dd>{}</dd>\n", escape(name), escape(value)));
        }
        self.body.push_str("</dl>\n");
    }

    /// Adds a table.
    pub fn table(&mut self, table: &Table) {
        table.render(&mut self.body);
    }

    /// Adds a figure, numbered, with its title above it and a sentence that says how to read it
    /// (may be empty).
    pub fn figure(&mut self, figure: &impl Figure, caption: &str) {
        self.figures += 1;
        let number = self.figures;
        let title = escape(figure.title());
        self.put(format_args!("<figure id=\"f{number}\"><h3>{title}</h3>\n{}", figure.legend()));
        // On a narrow screen it scrolls sideways, so the keyboard must reach it.
        self.put(format_args!(
            "<div class=\"plot\" tabindex=\"0\" role=\"group\" aria-label=\"{title}: arrow keys tell its values\">{}</div>\n",
            figure.draw()
        ));
        if !caption.is_empty() {
            self.put(format_args!("<figcaption>{}</figcaption>\n", escape(caption)));
        }
        self.body.push_str("<details class=\"data\"><summary>The values as a table</summary>\n");
        figure.data().render(&mut self.body);
        self.body.push_str("</details>\n</figure>\n");
    }

    /// Writes the file, whole or not at all. Its last section says where it comes from.
    pub fn write(mut self, path: &Path) -> Result<()> {
        self.section("Origin");
        self.facts(&origin::origin());
        files::write_whole(path, self.render().as_bytes())
    }

    /// Returns the whole file's text.
    pub fn render(&self) -> String {
        let mut links = String::new();
        if self.sections.len() > 1 {
            links.push_str("<nav>");
            for (number, heading) in self.sections.iter().enumerate() {
                let _ = write!(links, "<a href=\"#s{}\">{}</a>", number + 1, escape(heading));
            }
            links.push_str("</nav>\n");
        }
        let next = self.next.as_ref().map(|(why, command)| {
            format!("<p class=\"next\">{}: <code>{}</code></p>\n", escape(why), escape(command))
        });
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
             script-src '{SCRIPT_HASH}'; img-src data:\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
             <link rel=\"icon\" href=\"data:,\">\n<style>\n{STYLE}</style>\n</head>\n<body>\n<header>\n\
             <p class=\"brand\">freehold {version}</p>\n<h1>{title}</h1>\n<p class=\"lead\">{lead}</p>\n{next}{links}</header>\n\
             <main>\n{body}</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n",
            title = escape(&self.title),
            lead = escape(&self.lead),
            next = next.unwrap_or_default(),
            version = env!("CARGO_PKG_VERSION"),
            body = self.body,
        )
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.body.write_fmt(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Interval;

    #[test]
    fn text_from_a_guest_stays_text_wherever_it_enters_a_page() {
        let evil = "</style><script>alert(1)</script>\"'&";
        let mut page = Page::new(evil, evil);
        page.section(evil);
        page.text(evil);
        page.note(Tone::Bad, evil);
        page.warn(evil);
        page.next(evil, evil);
        page.facts(&[(evil.into(), evil.into())]);
        page.tiles(&[Tile { label: evil.into(), value: evil.into(), detail: evil.into(), tone: Tone::Good }]);
        let mut table = Table::new(evil, &[Column::text(evil)]);
        table.row([Cell::text(evil).hint(evil)]);
        page.table(&table);
        let mut bars = Bars::new(evil, Axis::linear(evil, Unit::Number), &[evil]);
        bars.group(evil, &[Some(Bar::exact(1.0))]);
        page.figure(&bars, evil);
        let mut lines = Lines::new(evil, Axis::linear(evil, Unit::Number), Axis::linear(evil, Unit::Number));
        lines.line(evil, Shape::Step, &[(0.0, 1.0), (1.0, 2.0)]);
        page.figure(&lines, evil);
        page.figure(&Matrix::new(evil, (evil, evil), &[evil.into()], &[evil.into()], vec![1.0]), evil);
        let text = page.render();
        assert_eq!(text.matches("<script").count(), 1, "our own");
        assert_eq!(text.matches("</style>").count(), 1, "our own");
        assert!(!text.contains("alert(1)</script>"));
    }

    #[test]
    fn each_figure_has_its_values_as_a_table_and_what_scrolls_takes_the_keyboard() {
        let mut page = Page::new("t", "l");
        page.next("again", "freehold lab t");
        let mut bars = Bars::new("costs", Axis::linear("cost", Unit::Number), &["ours", "theirs"]);
        bars.group("fork", &[Some(Bar::within(2.0, Interval { low: 1.5, high: 2.5 })), None]);
        page.figure(&bars, "");
        let mut lines = Lines::new("time", Axis::linear("s", Unit::Number), Axis::linear("n", Unit::Number));
        lines.line("ours", Shape::Straight, &(0..1000).map(|n| (f64::from(n), 7.0)).collect::<Vec<_>>());
        page.figure(&lines, "");
        let axis = |label: &str| Axis::linear(label, Unit::Number).range(0.0, 2.0);
        let value = ("loads", Unit::Number);
        page.figure(&HeatMap::new("heat", (axis("x"), axis("y")), value, 2, vec![0.0, 3.0, 0.0, 5.0]), "");
        page.figure(&Matrix::new("who", ("a", "b"), &["r".into()], &["c".into()], vec![4.0]), "");
        let text = page.render();
        let tables: Vec<&str> = text.split("<details").skip(1).collect();
        assert_eq!(tables.len(), 4);
        let has = |table: &str, cells: &[&str]| {
            cells.iter().all(|cell| table.contains(&format!("<span>{cell}</span>")))
        };
        assert!(has(tables[0], &["fork", "2 (1.5 to 2.5)"]), "{}", tables[0]);
        assert!(has(tables[1], &["ours", "0", "7"]) && tables[1].matches("<tr>").count() <= 202, "thinned");
        assert!(has(tables[2], &["1", "5"]) && tables[2].matches("<tr>").count() == 3, "{}", tables[2]);
        assert!(has(tables[3], &["r", "c", "4"]), "{}", tables[3]);
        assert_eq!(
            text.matches("class=\"scroll\"").count() + text.matches("class=\"plot\"").count(),
            text.matches("tabindex=\"0\" role=\"group\"").count()
        );
        assert!(text.contains("again: <code>freehold lab t</code>"));
    }

    #[test]
    fn a_page_asks_for_nothing_outside_itself() {
        let text = Page::new("t", "l").render();
        for word in ["http:", "https:", "//", "@import", "url("] {
            assert!(!text.contains(word), "{word}");
        }
    }
}
