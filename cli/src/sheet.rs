//! Figures for spreadsheets: CSV in the form of RFC 4180, with one header line and CR LF at the end
//! of each line. Numbers have a decimal point and no grouping, whatever the user's language.

use std::path::Path;

use crate::failure::Failure;
use crate::{Result, files};

/// A table that is being filled.
pub struct Sheet(csv::Writer<Vec<u8>>);

impl Sheet {
    /// Makes a sheet with these columns and no line.
    ///
    /// # Errors
    /// See [`Sheet::line`].
    pub fn new(columns: &[&str]) -> Result<Sheet> {
        let mut builder = csv::WriterBuilder::new();
        let mut sheet = Sheet(builder.terminator(csv::Terminator::CRLF).from_writer(Vec::new()));
        sheet.line(columns.iter().copied())?;
        Ok(sheet)
    }

    /// Adds a line.
    ///
    /// # Errors
    /// The number of cells differs from the number of columns.
    pub fn line<C: AsRef<[u8]>>(&mut self, cells: impl IntoIterator<Item = C>) -> Result<()> {
        self.0.write_record(cells).map_err(|error| Failure::new(format!("cannot make the CSV: {error}"), ""))
    }

    /// Returns the text.
    ///
    /// # Errors
    /// If memory cannot be written to.
    pub fn bytes(self) -> Result<Vec<u8>> {
        self.0.into_inner().map_err(|error| Failure::new(format!("cannot make the CSV: {error}"), ""))
    }

    /// Writes the file as a whole or not at all; `-` is stdout.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(self, path: &Path) -> Result<()> {
        files::write_whole(path, &self.bytes()?)
    }
}

/// Returns a number's cell; empty for `None` and for infinity.
pub fn number(value: Option<f64>) -> String {
    value.filter(|value| value.is_finite()).map_or_else(String::new, |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted_where_rfc_4180_wants_it() {
        let mut sheet = Sheet::new(&["name", "value"]).expect("two columns");
        sheet.line(["plain", "1.5"]).expect("two cells");
        sheet.line(["a, b", "says \"x\"\r\n"]).expect("two cells");
        assert!(sheet.line(["one"]).is_err(), "a cell is missing");
        let mut sheet = Sheet::new(&["name", "value"]).expect("two columns");
        sheet.line(["a, b", "says \"x\"\r\n"]).expect("two cells");
        let text = String::from_utf8(sheet.bytes().expect("memory")).expect("text");
        assert_eq!(text, "name,value\r\n\"a, b\",\"says \"\"x\"\"\r\n\"\r\n");
    }

    #[test]
    fn a_number_that_does_not_exist_is_an_empty_cell() {
        assert_eq!(number(Some(1_234_567.25)), "1234567.25");
        assert_eq!((number(None), number(Some(f64::INFINITY))), (String::new(), String::new()));
    }
}
