//! The rings: `trace`, `stats`, their size, and the records that programs write.

use freehold_collections::{Box, reserve};
use freehold_machine::Cpus;
use freehold_tracepoints::Stamp;

use super::{number, step};
use crate::fs::generated::{Generate, More, PART, Parts, Text};
use crate::hw::Hardware;
use crate::tracing::{self, Merge, Provided, TraceLine, Which};
use crate::{Errno, Result, sched, time};

/// The present records as text. Reading consumes nothing; truncating the file clears the records.
pub(super) struct Trace(pub Which);

impl Generate for Trace {
    fn show(&self, _out: &mut Text) -> Result<()> {
        Ok(())
    }
    fn parts(&self) -> Option<Box<dyn Parts>> {
        Some(reserve::boxed(TraceParts { which: self.0, merge: None }))
    }
    fn store(&self, _bytes: &[u8]) -> Result<()> {
        // As on Linux: opening the file for writing may have cleared it; written bytes are ignored.
        Ok(())
    }
    fn truncate(&self) -> Result<()> {
        tracing::clear(self.0);
        Ok(())
    }
}

struct TraceParts {
    which: Which,
    /// `None` before the header was written.
    merge: Option<Merge>,
}

impl Parts for TraceParts {
    fn next(&mut self, text: &mut Text) -> Result<More> {
        let merge = match &mut self.merge {
            Some(merge) => merge,
            None => {
                head(text, self.which);
                self.merge.insert(tracing::snapshot(self.which)?)
            }
        };
        while let Some(line) = merge.peek() {
            write_line(text, &line);
            merge.advance();
            sched::checkpoint()?;
            if text.length() >= PART {
                return Ok(More::Yes);
            }
        }
        Ok(More::No)
    }
}

fn head(text: &mut Text, which: Which) {
    let all = tracing::statistics(which);
    let (entries, written, cpus) = (all.entries, all.entries + all.overrun, Hardware.cpu_count());
    write!(
        text,
        "# tracer: nop\n#\n# entries-in-buffer/entries-written: {entries}/{written}   #P:{cpus}\n#\n"
    );
    text.push(b"#           TASK-PID     CPU#     TIMESTAMP  FUNCTION\n");
    text.push(b"#              | |         |         |         |\n");
}

/// Writes a record's line, after a line with the number of lost records of its CPU.
pub(super) fn write_line(text: &mut Text, line: &TraceLine<'_>) {
    if line.missed > 0 {
        writeln!(text, "CPU:{} [LOST {} EVENTS]", line.cpu, line.missed);
    }
    if let Some(line) = line.line() {
        write!(text, "{line}");
    }
}

/// Statistics of a CPU's records.
pub(super) struct Stats(pub usize);

impl Generate for Stats {
    fn show(&self, out: &mut Text) -> Result<()> {
        let all = tracing::statistics(Which::Cpu(self.0));
        write!(
            out,
            "entries: {}\noverrun: {}\ncommit overrun: 0\nbytes: {}\n",
            all.entries, all.overrun, all.bytes
        );
        let (oldest, now) = (Stamp(all.oldest.unwrap_or(0)), Stamp(time::now()));
        write!(
            out,
            "oldest event ts: {oldest}\nnow ts: {now}\ndropped events: 0\nread events: {}\n",
            all.read
        );
        Ok(())
    }
}

/// The size of each ring in KiB.
pub(super) struct Size;

impl Generate for Size {
    fn show(&self, out: &mut Text) -> Result<()> {
        match tracing::size() {
            (kib, Provided::Yes) => writeln!(out, "{kib}"),
            (kib, Provided::No) => writeln!(out, "0 (expanded: {kib})"),
        }
        Ok(())
    }
    fn store(&self, bytes: &[u8]) -> Result<()> {
        tracing::resize(number(bytes)?, &mut step)
    }
}

/// Writes the size of all rings in KiB.
pub(super) fn total_size(out: &mut Text) -> Result<()> {
    let cpus = Hardware.cpu_count() as u64;
    match tracing::size() {
        (kib, Provided::Yes) => writeln!(out, "{}", kib * cpus),
        (kib, Provided::No) => writeln!(out, "0 (expanded: {})", kib * cpus),
    }
    Ok(())
}

/// A file for writing records. Each write becomes a record. If a call writes more than
/// [`MOST_MARKER`](tracing::MOST_MARKER) bytes, each part becomes one.
pub(super) struct Marker;

impl Generate for Marker {
    fn show(&self, _out: &mut Text) -> Result<()> {
        Err(Errno::EINVAL)
    }
    fn store(&self, bytes: &[u8]) -> Result<()> {
        // The output adds its own line feed.
        let text = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        for part in text.chunks(tracing::MOST_MARKER) {
            tracing::mark(part, &mut step)?;
        }
        Ok(())
    }
}
