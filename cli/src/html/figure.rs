//! Parts that all figures share: the canvas, its axes, legends.

use std::fmt::{Arguments, Write};

use super::escape;
use super::scale::Scale;
use super::table::Table;

/// Width of every figure in its own units; it is scaled to the page.
pub(super) const WIDTH: f64 = 860.0;
/// Colours for series in style.css.
const COLOURS: usize = 6;

/// A thing that a page can show.
pub trait Figure {
    /// Returns the title.
    fn title(&self) -> &str;
    /// Returns HTML that explains the colours; may be empty.
    fn legend(&self) -> String;
    /// Returns the SVG element.
    fn draw(&self) -> String;
    /// Returns the values, for readers to whom the drawing says nothing.
    fn data(&self) -> Table;
}

/// Returns whether so many series share colours, so that each value needs its series' name.
pub(super) fn share_colours(series: usize) -> bool {
    series > COLOURS
}

/// Returns the class of series number `n`.
pub(super) fn colour(n: usize) -> String {
    format!("c{}", n % COLOURS + 1)
}

/// Returns a legend of series names, in their order; nothing for a single one.
pub(super) fn legend(names: &[String]) -> String {
    if names.len() < 2 {
        return String::new();
    }
    let mut html = String::from("<div class=\"legend\">");
    for (number, name) in names.iter().enumerate() {
        let _ = write!(html, "<span><i class=\"{}\"></i>{}</span>", colour(number), escape(name));
    }
    html.push_str("</div>\n");
    html
}

/// Returns the approximate width of `text` at the size of labels.
pub(super) fn text_width(text: &str) -> f64 {
    6.6 * text.chars().count() as f64
}

/// Returns `text`, cut to fit in `width`.
pub(super) fn fit_text(text: &str, width: f64) -> String {
    if text_width(text) <= width {
        return text.to_owned();
    }
    let kept = ((width / 6.6) as usize).saturating_sub(1);
    text.chars().take(kept).chain(['…']).collect()
}

/// Anchor of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// An SVG element that is being built.
pub(super) struct Canvas {
    height: f64,
    body: String,
}

impl Canvas {
    pub fn new(height: f64) -> Canvas {
        Canvas { height, body: String::new() }
    }

    /// Adds markup whose texts are escaped already.
    pub fn put(&mut self, markup: Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.body.write_fmt(markup);
        self.body.push('\n');
    }

    pub fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escape(text);
        self.put(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" class=\"{class}\">{text}</text>"
        ));
    }

    /// Draws a rectangle by its upper left corner, width and height.
    pub fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), class: &str, tip: &str) {
        let tip = if tip.is_empty() { String::new() } else { format!(" data-tip=\"{}\"", escape(tip)) };
        self.put(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" class=\"{class}\"{tip}/>"
        ));
    }

    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), class: &str) {
        self.put(format_args!(
            "<path d=\"M{:.1} {:.1}L{:.1} {:.1}\" class=\"{class}\"/>",
            from.0, from.1, to.0, to.1
        ));
    }

    /// Draws grid lines, labels and the axis' name for a scale that runs from left to right, below
    /// `bottom`.
    pub fn axis_below(&mut self, scale: &Scale, ends: (f64, f64), top: f64, bottom: f64) {
        for tick in scale.ticks() {
            let x = scale.place(tick);
            self.line((x, top), (x, bottom), "rule");
            self.text((x, bottom + 17.0), Anchor::Middle, "tick", &scale.show(tick));
        }
        let middle = (ends.0 + ends.1) / 2.0;
        self.text((middle, bottom + 37.0), Anchor::Middle, "axis", &scale.axis.label);
    }

    /// Draws the same for a scale that runs upwards, left of `left`. Its name is above its upper
    /// end.
    pub fn axis_left(&mut self, scale: &Scale, top: f64, left: f64, right: f64) {
        for tick in scale.ticks() {
            let y = scale.place(tick);
            self.line((left, y), (right, y), "rule");
            self.text((left - 8.0, y + 4.0), Anchor::End, "tick", &scale.show(tick));
        }
        self.text((0.0, top - 14.0), Anchor::Start, "axis", &scale.axis.label);
    }

    /// Returns the element; `title` is for readers who cannot see it.
    pub fn finish(self, class: &str, title: &str) -> String {
        format!(
            "<svg class=\"figure {class}\" viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" aria-label=\"{}\">\n{}</svg>",
            self.height,
            escape(title),
            self.body
        )
    }
}
