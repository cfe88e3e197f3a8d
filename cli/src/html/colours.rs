//! Checks that readers with any colour vision can tell the series' colours apart: CIEDE2000
//! differences (Sharma, Wu, Dalal 2005) under the simulations of Machado, Oliveira and Fernandes
//! (2009) for complete protanopia, deuteranopia and tritanopia (severity 1).

use super::STYLE;

/// The least difference between two series' colours.
const LEAST: f64 = 15.0;
/// The least contrast of a colour with the card behind it (WCAG 2.1, 1.4.11).
const CONTRAST: f64 = 3.0;
/// Simulations: rows of matrices over linear RGB.
const VISIONS: [(&str, [[f64; 3]; 3]); 4] = [
    ("normal", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
    (
        "protanopia",
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    ),
    (
        "deuteranopia",
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    ),
    (
        "tritanopia",
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    ),
];

type Triple = [f64; 3];

fn product(matrix: [[f64; 3]; 3], vector: Triple) -> Triple {
    matrix.map(|row| row.iter().zip(vector).map(|(a, b)| a * b).sum())
}

/// Returns linear RGB of `#rrggbb`.
fn linear(colour: &str) -> Triple {
    [1, 3, 5].map(|at| {
        let byte = u8::from_str_radix(&colour[at..at + 2], 16).expect("#rrggbb");
        let value = f64::from(byte) / 255.0;
        if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
    })
}

/// Returns CIE L*a*b* of linear sRGB, white D65.
fn lab(rgb: Triple) -> Triple {
    const XYZ: [[f64; 3]; 3] = [
        [0.4124564 / 0.95047, 0.3575761 / 0.95047, 0.1804375 / 0.95047],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339 / 1.08883, 0.1191920 / 1.08883, 0.9503041 / 1.08883],
    ];
    let f = |t: f64| if t > 216.0 / 24389.0 { t.cbrt() } else { (24389.0 / 27.0 * t + 16.0) / 116.0 };
    let [x, y, z] = product(XYZ, rgb).map(f);
    [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
}

/// Returns the CIEDE2000 difference.
fn difference([l1, a1, b1]: Triple, [l2, a2, b2]: Triple) -> f64 {
    let seventh = |c: f64| (c.powi(7) / (c.powi(7) + 25_f64.powi(7))).sqrt();
    let g = 1.5 - 0.5 * seventh((a1.hypot(b1) + a2.hypot(b2)) / 2.0);
    let (a1, a2) = (a1 * g, a2 * g);
    let (c1, c2) = (a1.hypot(b1), a2.hypot(b2));
    let hue = |b: f64, a: f64| b.atan2(a).to_degrees().rem_euclid(360.0);
    let (h1, h2) = (hue(b1, a1), hue(b2, a2));
    let is_grey = c1 * c2 == 0.0;
    let turn = if is_grey { 0.0 } else { (h2 - h1 + 180.0).rem_euclid(360.0) - 180.0 };
    let (dl, dc) = (l2 - l1, c2 - c1);
    let dh = 2.0 * (c1 * c2).sqrt() * (turn / 2.0).to_radians().sin();
    let (l, c) = ((l1 + l2) / 2.0, (c1 + c2) / 2.0);
    let h = if is_grey { h1 + h2 } else { (h1 + turn / 2.0).rem_euclid(360.0) };
    let cos = |degrees: f64| degrees.to_radians().cos();
    let t = 1.0 - 0.17 * cos(h - 30.0) + 0.24 * cos(2.0 * h) + 0.32 * cos(3.0 * h + 6.0)
        - 0.20 * cos(4.0 * h - 63.0);
    let square = (l - 50.0).powi(2);
    let (sl, sc, sh) = (1.0 + 0.015 * square / (20.0 + square).sqrt(), 1.0 + 0.045 * c, 1.0 + 0.015 * c * t);
    let rotation = 60.0 * (-((h - 275.0) / 25.0).powi(2)).exp();
    let rt = -2.0 * seventh(c) * rotation.to_radians().sin();
    let (l, c, h) = (dl / sl, dc / sc, dh / sh);
    (l * l + c * c + h * h + rt * c * h).sqrt()
}

fn contrast(one: &str, other: &str) -> f64 {
    let luminance = |colour: &str| product([[0.2126, 0.7152, 0.0722]; 3], linear(colour))[0] + 0.05;
    let (one, other) = (luminance(one), luminance(other));
    one.max(other) / one.min(other)
}

/// Returns each theme's value of the colour `name`.
fn values(name: &str) -> Vec<String> {
    STYLE.split(&format!("--{name}: ")).skip(1).map(|rest| rest[..7].to_owned()).collect()
}

/// Returns the colours c1 to c6 and the card of each theme of the style: light, dark, print.
fn themes() -> Vec<(Vec<String>, String)> {
    let blocks = STYLE.split(":root {").skip(1).map(|block| block.split('}').next().unwrap_or(block));
    let value = |block: &str, name: &str| {
        let rest = block.split_once(&format!("--{name}: ")).expect("a colour of the theme").1;
        rest[..7].to_owned()
    };
    blocks
        .map(|block| ((1..=6).map(|n| value(block, &format!("c{n}"))).collect(), value(block, "card")))
        .collect()
}

#[test]
fn differences_are_those_of_the_published_test_data() {
    for (one, other, expected) in [
        ([50.0, 2.6772, -79.7751], [50.0, 0.0, -82.7485], 2.0425),
        ([50.0, 2.5, 0.0], [50.0, 0.0, -2.5], 4.3065),
        ([50.0, 2.5, 0.0], [73.0, 25.0, -18.0], 27.1492),
        ([60.2574, -34.0099, 36.2677], [60.4626, -34.1751, 39.4387], 1.2644),
        ([2.0776, 0.0795, -1.135], [0.9033, -0.0636, -0.5514], 0.9082),
    ] {
        let found = difference(one, other);
        assert!((found - expected).abs() < 5e-5, "{one:?} {other:?}: {found}, {expected}");
    }
}

#[test]
fn the_colours_of_series_differ_for_every_kind_of_colour_vision_and_show_on_their_card() {
    let themes = themes();
    assert_eq!(themes.len(), 3, "light, dark, print");
    for (colours, card) in themes {
        for (at, one) in colours.iter().enumerate() {
            assert!(contrast(one, &card) >= CONTRAST, "{one} on {card}: {:.2}", contrast(one, &card));
            for other in &colours[..at] {
                for (vision, matrix) in VISIONS {
                    let seen =
                        |colour| lab(product(matrix, linear(colour)).map(|value| value.clamp(0.0, 1.0)));
                    let found = difference(seen(one), seen(other));
                    assert!(found >= LEAST, "{one} and {other}, {vision}: {found:.1}");
                }
            }
        }
    }
}

#[test]
fn the_text_of_drawings_can_be_read_on_what_lies_behind_it() {
    for (text, behind) in [("ink", "card"), ("soft", "card"), ("ink", "paper"), ("soft", "paper")] {
        for (text, behind) in values(text).iter().zip(values(behind)) {
            assert!(contrast(text, &behind) >= 4.5, "{text} on {behind}: {:.2}", contrast(text, &behind));
        }
    }
    for shade in 1..=super::grid::SHADES {
        let cells = values(&format!("h{shade}"));
        for (text, cell) in values(super::grid::text_class(shade)).iter().zip(cells) {
            assert!(contrast(text, &cell) >= 4.5, "{text} on {cell}: {:.2}", contrast(text, &cell));
        }
    }
}
