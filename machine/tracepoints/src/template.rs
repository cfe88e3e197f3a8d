//! An event's text as it is in the table: words with `{field}`, `{field:x}`, `{field:03}` and
//! `{field:?}` (by name) among them.

/// A part of a template.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Piece<'a> {
    Words(&'a str),
    Field { name: &'a str, how: Show },
}

/// How a field is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Show {
    /// As its type is shown.
    Plain,
    /// In hexadecimal.
    Hex,
    /// Three digits at least.
    ThreeDigits,
    /// By the name of its value.
    Name,
}

/// The parts of `template`, in order.
pub(crate) fn pieces(mut template: &str) -> impl Iterator<Item = Piece<'_>> {
    core::iter::from_fn(move || {
        if template.is_empty() {
            return None;
        }
        if let Some(rest) = template.strip_prefix('{')
            && let Some((inside, rest)) = rest.split_once('}')
        {
            template = rest;
            let (name, how) = inside.split_once(':').unwrap_or((inside, ""));
            let how = match how {
                "x" => Show::Hex,
                "03" => Show::ThreeDigits,
                "?" => Show::Name,
                _ => Show::Plain,
            };
            return Some(Piece::Field { name, how });
        }
        let end = template[1..].find('{').map_or(template.len(), |at| at + 1);
        let (words, rest) = template.split_at(end);
        template = rest;
        Some(Piece::Words(words))
    })
}
