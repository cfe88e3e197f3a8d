//! What all figures share: the canvas, its axes, legends.

use std::fmt::{Arguments, Write};

use super::escape;
use super::scale::Scale;

/// Width of every figure in its own units; it is scaled to the page.
pub(super) const WIDTH: f64 = 860.0;
/// Colours for series in style.css.
const COLOURS: usize = 6;

/// A thing that a page can show.
pub trait Figure {
    /// What it shows.
    fn title(&self) -> &str;
    /// HTML that explains its colours; may be empty.
    fn legend(&self) -> String;
    /// The SVG element.
    fn draw(&self) -> String;
}

/// The class of series number `n`.
pub(super) fn colour(n: usize) -> String {
    format!("c{}", n % COLOURS + 1)
}

/// A legend of series names, in their order; nothing for a single one.
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

/// About how wide `text` is at the size of labels.
pub(super) fn text_width(text: &str) -> f64 {
    6.6 * text.chars().count() as f64
}

/// `text`, cut so that it takes no more than `width`.
pub(super) fn fit_text(text: &str, width: f64) -> String {
    if text_width(text) <= width {
        return text.to_owned();
    }
    let kept = ((width / 6.6) as usize).saturating_sub(1);
    text.chars().take(kept).chain(['…']).collect()
}

/// Where a text is tied to its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// An SVG element in the making.
pub(super) struct Canvas {
    height: f64,
    body: String,
}

impl Canvas {
    pub fn new(height: f64) -> Canvas {
        Canvas { height, body: String::new() }
    }

    /// Markup whose texts are escaped already.
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

    /// A rectangle by its upper left corner and its width and height.
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

    /// Grid lines, labels and the axis' name for a scale that runs from left to right, below
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

    /// The same for a scale that runs upwards, left of `left`. Its name stands above its upper end.
    pub fn axis_left(&mut self, scale: &Scale, top: f64, left: f64, right: f64) {
        for tick in scale.ticks() {
            let y = scale.place(tick);
            self.line((left, y), (right, y), "rule");
            self.text((left - 8.0, y + 4.0), Anchor::End, "tick", &scale.show(tick));
        }
        self.text((0.0, top - 14.0), Anchor::Start, "axis", &scale.axis.label);
    }

    /// The element; `title` is for those who cannot see it.
    pub fn finish(self, class: &str, title: &str) -> String {
        format!(
            "<svg class=\"figure {class}\" viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" aria-label=\"{}\">\n{}</svg>",
            self.height,
            escape(title),
            self.body
        )
    }
}
