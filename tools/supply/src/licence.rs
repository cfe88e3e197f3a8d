//! SPDX licence expressions, as far as crates have them: names, `WITH`, `AND`, `OR`, parentheses,
//! and the older `/` for `OR`.

/// Returns whether the licences in `allowed` are enough for `expression`.
///
/// # Errors
/// The text is no expression.
pub fn is_allowed(expression: &str, allowed: &[String]) -> Result<bool, String> {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut parser = Parser { words: &words, allowed };
    let result = parser.any();
    match (result, parser.words) {
        (Some(result), []) => Ok(result),
        _ => Err(format!("{expression}: not a licence expression")),
    }
}

struct Parser<'a> {
    words: &'a [&'a str],
    allowed: &'a [String],
}

impl Parser<'_> {
    fn take(&mut self, word: &str) -> bool {
        match self.words {
            [first, rest @ ..] if *first == word => {
                self.words = rest;
                true
            }
            _ => false,
        }
    }

    fn any(&mut self) -> Option<bool> {
        let mut result = self.all()?;
        while self.take("OR") {
            result |= self.all()?;
        }
        Some(result)
    }

    fn all(&mut self) -> Option<bool> {
        let mut result = self.one()?;
        while self.take("AND") {
            result &= self.one()?;
        }
        Some(result)
    }

    fn one(&mut self) -> Option<bool> {
        if self.take("(") {
            let result = self.any()?;
            return self.take(")").then_some(result);
        }
        let (&name, rest) = self.words.split_first()?;
        if ["OR", "AND", "WITH", ")"].contains(&name) {
            return None;
        }
        self.words = rest;
        let mut name = name.to_owned();
        if self.take("WITH") {
            let (exception, rest) = self.words.split_first()?;
            name = format!("{name} WITH {exception}");
            self.words = rest;
        }
        Some(self.allowed.contains(&name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_allowed_alternative_is_enough_and_every_part_is_needed() {
        let allowed = ["MIT", "Unicode-3.0", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned);
        for (expression, result) in [
            ("MIT OR GPL-3.0", true),
            ("GPL-3.0/MIT", true),
            ("GPL-3.0 AND MIT", false),
            ("(MIT OR GPL-3.0) AND Unicode-3.0", true),
            ("(MIT OR GPL-3.0) AND Zlib", false),
            ("MIT OR GPL-3.0 AND Zlib", true),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("Apache-2.0", false),
        ] {
            assert_eq!(is_allowed(expression, &allowed), Ok(result), "{expression}");
        }
        for nonsense in ["", "OR", "(MIT", "MIT)", "MIT MIT", "MIT WITH"] {
            assert!(is_allowed(nonsense, &allowed).is_err(), "{nonsense}");
        }
    }
}
