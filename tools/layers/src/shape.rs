//! The shape of code: long functions, functions with many parameters, duplicate lines, and names
//! that many types share.
//!
//! - A function is *long* with more than [`LINES`] lines, from its `fn` to its closing brace.
//! - It is *wide* with more than [`PARAMETERS`] parameters, `self` among them.
//! - A *duplicate* is a run of [`RUN`] or more lines that is in two places, letter for letter
//!   except for the indentation. Blank lines, comments and imports do not count, and lines of a
//!   bracket alone make no run.
//! - A name is *worn* if more than [`NAMESAKES`] structures, enumerations, unions, traits and
//!   aliases have it. Associated types have the names that their traits give them, and do not
//!   count.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use proc_macro2::Span;
use syn::visit::{self, Visit};
use syn::{Attribute, Signature};

/// Largest number of lines of a function.
pub const LINES: usize = 60;
/// Largest number of parameters of a function, `self` among them.
pub const PARAMETERS: usize = 5;
/// Largest number of types of one name.
pub const NAMESAKES: usize = 3;
/// The length of a duplicate.
pub const RUN: usize = 6;
/// Smallest number of letters and digits in the lines of a run, together.
const SUBSTANCE: usize = 80;

/// Findings, a line for each: `file:line name (number)`, or `name: file:line, file:line …`.
#[derive(Default, Debug)]
pub struct Shape {
    pub long: Vec<String>,
    pub wide: Vec<String>,
    pub duplicates: Vec<String>,
    pub worn: Vec<String>,
}

impl Shape {
    /// Reads the Rust files below `folders`. Tests are left out: modules and folders of that name,
    /// and items with `#[cfg(test)]` or `#[test]`.
    ///
    /// # Errors
    /// A sentence that names the file which cannot be read or parsed.
    pub fn read(folders: &[PathBuf]) -> Result<Shape, String> {
        let mut files = Vec::new();
        for folder in folders {
            collect(folder, &mut files)?;
        }
        files.sort();
        let mut shape = Shape::default();
        let (mut lines, mut names) = (Vec::new(), BTreeMap::new());
        for path in &files {
            let text =
                std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
            let name = path.display().to_string();
            let parsed = syn::parse_file(&text).map_err(|error| format!("{name}: {error}"))?;
            let mut items = Items { shape: &mut shape, names: &mut names, file: &name, tests: Vec::new() };
            items.visit_file(&parsed);
            let tests = items.tests;
            lines.extend(lines_of(&name, &text, &tests));
        }
        shape.duplicates = duplicates(&lines);
        names.retain(|_, places| places.len() > NAMESAKES);
        shape.worn = names.iter().map(|(name, places)| format!("{name}: {}", places.join(", "))).collect();
        Ok(shape)
    }

    /// Returns the findings beyond the limits `most`, in the order long, wide, duplicates, worn;
    /// empty where there are none.
    pub fn complaints(&self, most: [usize; 4]) -> String {
        let mut text = String::new();
        let kinds = [
            ("functions of more than 60 lines", &self.long),
            ("functions with more than 5 parameters", &self.wide),
            ("runs of six lines that stand twice", &self.duplicates),
            ("names that more than 3 types have", &self.worn),
        ];
        for ((what, found), most) in kinds.into_iter().zip(most) {
            if found.len() > most {
                let _ = writeln!(text, "{} {what}, at most {most}:", found.len());
                found.iter().for_each(|line| _ = writeln!(text, "  {line}"));
            }
        }
        text
    }
}

/// Adds the Rust files below `folder` to `files`.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let tell = |error: std::io::Error| format!("{}: {error}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(tell)? {
        let path = entry.map_err(tell)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_tests = |name: &str| matches!(name, "tests" | "fuzz" | "benches" | "target" | "examples");
        if path.is_dir() {
            if !is_tests(&name) && !name.starts_with('.') {
                collect(&path, files)?;
            }
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// Visits the items of a file.
struct Items<'a> {
    shape: &'a mut Shape,
    /// Places of each type name.
    names: &'a mut BTreeMap<String, Vec<String>>,
    file: &'a str,
    /// Lines of tests, first and last.
    tests: Vec<(usize, usize)>,
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || (attribute.path().is_ident("cfg")
                && attribute.parse_args::<syn::Ident>().is_ok_and(|name| name == "test"))
    })
}

impl Items<'_> {
    fn measure(&mut self, signature: &Signature, end: Span) {
        let start = signature.fn_token.span.start().line;
        let (lines, at) = (end.end().line - start + 1, format!("{}:{start} {}", self.file, signature.ident));
        if lines > LINES {
            self.shape.long.push(format!("{at} ({lines})"));
        }
        let parameters = signature.inputs.len();
        if parameters > PARAMETERS {
            self.shape.wide.push(format!("{at} ({parameters})"));
        }
    }
}

impl<'ast> Visit<'ast> for Items<'_> {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let named = match item {
            syn::Item::Struct(item) => Some(&item.ident),
            syn::Item::Enum(item) => Some(&item.ident),
            syn::Item::Union(item) => Some(&item.ident),
            syn::Item::Trait(item) => Some(&item.ident),
            syn::Item::Type(item) => Some(&item.ident),
            _ => None,
        };
        if let Some(name) = named {
            let place = format!("{}:{}", self.file, name.span().start().line);
            self.names.entry(name.to_string()).or_default().push(place);
        }
        let (attributes, start, end) = match item {
            syn::Item::Mod(item) => {
                let start = item.mod_token.span;
                (&item.attrs, start, item.content.as_ref().map_or(start, |(brace, _)| brace.span.close()))
            }
            syn::Item::Fn(item) => (&item.attrs, item.sig.fn_token.span, item.block.brace_token.span.close()),
            _ => return visit::visit_item(self, item),
        };
        if is_test(attributes) {
            self.tests.push((start.start().line, end.end().line));
        } else {
            visit::visit_item(self, item);
        }
    }
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.measure(&item.sig, item.block.brace_token.span.close());
        visit::visit_item_fn(self, item);
    }
    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.measure(&item.sig, item.block.brace_token.span.close());
        visit::visit_impl_item_fn(self, item);
    }
    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        let end =
            item.default.as_ref().map_or(item.sig.fn_token.span, |block| block.brace_token.span.close());
        self.measure(&item.sig, end);
        visit::visit_trait_item_fn(self, item);
    }
}

/// A line that counts for duplicates: its place, and its text without indentation.
type CountedLine<'a> = (String, &'a str);

fn lines_of<'a>(name: &str, text: &'a str, tests: &[(usize, usize)]) -> Vec<(String, String)> {
    let counts = |(at, line): &(usize, &'a str)| {
        let is_code = !line.is_empty()
            && !line.starts_with("//")
            && !line.starts_with("#[")
            && !line.starts_with("use ")
            && !line.starts_with("pub use ");
        is_code && !tests.iter().any(|&(first, last)| (first..=last).contains(&(at + 1)))
    };
    let lines = text.lines().map(str::trim).enumerate().filter(counts);
    let mut all: Vec<_> = lines.map(|(at, line)| (format!("{name}:{}", at + 1), line.to_string())).collect();
    // A run does not go from one file into the next.
    all.push((String::new(), format!("end of {name}")));
    all
}

fn duplicates(lines: &[(String, String)]) -> Vec<String> {
    let lines: Vec<CountedLine<'_>> =
        lines.iter().map(|(place, text)| (place.clone(), text.as_str())).collect();
    let mut first: HashMap<Vec<&str>, usize> = HashMap::new();
    let mut found = Vec::new();
    let mut at = 0;
    while at + RUN <= lines.len() {
        let key: Vec<&str> = lines[at..at + RUN].iter().map(|line| line.1).collect();
        let substance: usize =
            key.iter().map(|line| line.chars().filter(|c| c.is_alphanumeric()).count()).sum();
        match first.get(&key) {
            Some(&before) if substance >= SUBSTANCE && at >= before + RUN => {
                let mut length = RUN;
                while at + length < lines.len() && lines[before + length].1 == lines[at + length].1 {
                    length += 1;
                }
                found.push(format!("{} and {} ({length} lines)", lines[before].0, lines[at].0));
                at += length;
            }
            _ => {
                first.entry(key).or_insert(at);
                at += 1;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(files: &[(&str, &str)]) -> Shape {
        let folder = tempfile::tempdir().expect("a folder for the test");
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).expect("a file for the test");
        }
        Shape::read(&[folder.path().into()]).expect("good Rust")
    }

    #[test]
    fn long_and_wide_functions_are_found_and_tests_are_not() {
        let body = "    let _ = 1;\n".repeat(60);
        let long = format!("fn long() {{\n{body}}}\n");
        let wide = "trait T { fn wide(&self, a: u8, b: u8, c: u8, d: u8, e: u8); }\n";
        let fine = "fn fine(a: u8, b: u8, c: u8, d: u8, e: u8) {}\n";
        let tests = format!("#[cfg(test)]\nmod tests {{\n{long}}}\n");
        let found = shape(&[("a.rs", &format!("{long}{wide}{fine}{tests}"))]);
        assert_eq!((found.long.len(), found.wide.len()), (1, 1), "{found:?}");
        assert!(found.long[0].contains("long (62)"), "{found:?}");
        assert!(found.complaints([1, 1, 0, 0]).is_empty());
        assert!(found.complaints([0, 1, 0, 0]).contains("1 functions of more than 60 lines, at most 0"));
        assert!(found.complaints([2, 2, 1, 1]).is_empty());
    }

    #[test]
    fn a_name_that_four_types_have_is_worn_wherever_they_stand() {
        let three = "mod a { pub struct Place; }\nfn f() { enum Place {} }\npub type Place = u8;\n";
        let associated = "trait T { type Place; }\nimpl T for u8 { type Place = u8; }\n";
        let tests = "#[cfg(test)]\nmod tests { struct Place; }\n";
        let found = shape(&[("a.rs", &format!("{three}{associated}{tests}"))]);
        assert!(found.worn.is_empty(), "{found:?}");
        let found = shape(&[("a.rs", three), ("b.rs", "\ntrait Place {}\n")]);
        assert!(found.worn[0].starts_with("Place: ") && found.worn[0].ends_with("b.rs:2"), "{found:?}");
        assert!(found.complaints([0; 4]).contains("1 names that more than 3 types have, at most 0"));
    }

    #[test]
    fn six_lines_that_stand_twice_are_found_once_however_they_are_indented() {
        let run: Vec<String> = (0..8).map(|n| format!("    let a_long_name_{n} = {n};")).collect();
        let one = format!("fn one() {{\n{}\n}}\n", run.join("\n"));
        let two = format!("fn two() {{\n    {{\n    {}\n    }}\n}}\n", run[1..].join("\n    "));
        let found = shape(&[("a.rs", &one), ("b.rs", &two)]);
        assert_eq!(found.duplicates.len(), 1, "{found:?}");
        assert!(found.duplicates[0].contains("(7 lines)") || found.duplicates[0].contains("(8 lines)"));
        let short = format!("fn three() {{\n{}\n}}\n", run[..5].join("\n"));
        assert!(shape(&[("a.rs", &one), ("b.rs", &short)]).duplicates.is_empty());
    }
}
