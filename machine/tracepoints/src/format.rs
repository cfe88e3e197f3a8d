//! Events as text: an event's `format` file, and the line of a record in `trace`.

use core::fmt::{self, Display, Formatter};

use crate::field::Comm;
use crate::record::RecordView;
use crate::table::{EventDescription, FieldDescription};
use crate::template::{Piece, Show, pieces};

/// Bytes of the common fields, which precede an event's own.
pub(crate) const COMMON_BYTES: usize = 8;

/// The content of an event's `format` file.
#[derive(Clone, Copy, Debug)]
pub struct Format(pub &'static EventDescription);

impl Display for Format {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let event = self.0;
        write!(f, "name: {}\nID: {}\nformat:\n", event.name, event.id())?;
        let common = [
            ("unsigned short common_type", 0, 2, 0),
            ("unsigned char common_flags", 2, 1, 0),
            ("unsigned char common_preempt_count", 3, 1, 0),
            ("int common_pid", 4, 4, 1),
        ];
        for (field, offset, size, signed) in common {
            writeln!(f, "\tfield:{field};\toffset:{offset};\tsize:{size};\tsigned:{signed};")?;
        }
        f.write_str("\n")?;
        for FieldDescription { name, kind, offset } in event.fields() {
            let (before, after, size, signed) = (kind.before, kind.after, kind.size, u8::from(kind.signed));
            let offset = COMMON_BYTES + offset;
            writeln!(f, "\tfield:{before} {name}{after};\toffset:{offset};\tsize:{size};\tsigned:{signed};")?;
        }
        f.write_str("\nprint fmt: \"")?;
        for piece in pieces(event.template) {
            match piece {
                Piece::Words(words) => f.write_str(words)?,
                Piece::Field { name, how } => conversion(f, event.field(name), how)?,
            }
        }
        f.write_str("\"")?;
        for piece in pieces(event.template) {
            if let Piece::Field { name, how } = piece {
                argument(f, event, name, how)?;
            }
        }
        f.write_str("\n")
    }
}

/// printf's conversion of a field.
fn conversion(f: &mut Formatter<'_>, field: FieldDescription, how: Show) -> fmt::Result {
    match (how, field.kind.conversion) {
        (Show::Name, _) => f.write_str("%s"),
        (_, "") => f.write_str("%lx, %lx, %lx, %lx, %lx, %lx"),
        (Show::Plain, plain) => f.write_str(plain),
        (Show::Hex, _) => f.write_str(if field.kind.size == 8 { "%lx" } else { "%x" }),
        (Show::ThreeDigits, _) => f.write_str("%03d"),
    }
}

/// The argument of the conversion.
fn argument(f: &mut Formatter<'_>, event: &EventDescription, name: &str, how: Show) -> fmt::Result {
    if how == Show::Name {
        write!(f, ", __print_symbolic(REC->{name}")?;
        for (value, word) in event.names_of(name) {
            write!(f, ", {{ {value}, \"{word}\" }}")?;
        }
        return f.write_str(")");
    }
    if event.field(name).kind.conversion.is_empty() {
        return (0..6).try_for_each(|at| write!(f, ", REC->{name}[{at}]"));
    }
    write!(f, ", REC->{name}")
}

/// The text of an event's fields.
pub(crate) struct Fields<'a>(pub(crate) &'a RecordView<'a>);

impl Display for Fields<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let event = self.0.event();
        for piece in pieces(event.template) {
            match piece {
                Piece::Words(words) => f.write_str(words)?,
                Piece::Field { name, how } => value(f, self.0, event, (name, how))?,
            }
        }
        Ok(())
    }
}

/// The value of one field as text.
#[derive(Clone, Copy, Debug)]
pub struct FieldText<'a> {
    pub(crate) record: &'a RecordView<'a>,
    pub(crate) name: &'a str,
}

impl Display for FieldText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        value(f, self.record, self.record.event(), (self.name, Show::Plain))
    }
}

fn value(
    f: &mut Formatter<'_>,
    record: &RecordView<'_>,
    event: &EventDescription,
    (name, how): (&str, Show),
) -> fmt::Result {
    let FieldDescription { kind, offset, .. } = event.field(name);
    if kind.conversion == "%s" {
        // A name ends at the end of its field, the text of the print event at the end of the
        // record.
        let end = if kind.size == 0 { 8 * record.payload.len() } else { offset + kind.size };
        return text(f, (offset..end).map(|at| record.byte(at)));
    }
    if kind.conversion.is_empty() {
        return (0..6).try_for_each(|at| {
            let comma = if at == 0 { "" } else { ", " };
            write!(f, "{comma}{:x}", record.word_at(offset + 8 * at, 8))
        });
    }
    let number = record.number_at(offset, &kind);
    match how {
        Show::Name => match event.names_of(name).find(|&(known, _)| known as u64 == number) {
            Some((_, word)) => f.write_str(word),
            None => write!(f, "{number:#x}"),
        },
        Show::Hex if kind.size == 8 => write!(f, "{number:x}"),
        Show::Hex => write!(f, "{:x}", number as u32),
        Show::ThreeDigits => write!(f, "{number:03}"),
        Show::Plain if kind.signed => write!(f, "{}", number as i64),
        Show::Plain => write!(f, "{number}"),
    }
}

/// Shows bytes up to the first zero. An unprintable byte is shown as a question mark, so a name
/// that a program chose cannot control a terminal or look like another line.
pub(crate) fn text(f: &mut Formatter<'_>, bytes: impl Iterator<Item = u8>) -> fmt::Result {
    use fmt::Write;
    for byte in bytes.take_while(|&byte| byte != 0) {
        f.write_char(if matches!(byte, b' '..=b'~') { char::from(byte) } else { '?' })?;
    }
    Ok(())
}

/// Nanoseconds since the machine's start, as `trace` shows them.
#[derive(Clone, Copy, Debug)]
pub struct Stamp(pub u64);

impl Display for Stamp {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:5}.{:06}", self.0 / 1_000_000_000, self.0 / 1000 % 1_000_000)
    }
}

/// The line of a record in `trace`, in Linux' layout without the flags of the context
/// (`noirq-info`).
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// The record.
    pub record: RecordView<'a>,
    /// The CPU that recorded it.
    pub cpu: usize,
    /// The time of its stamp.
    pub time: Stamp,
}

impl Display for Line<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let head = &self.record.head;
        let comm = match head.comm.0.starts_with(b"swapper/") && head.pid == 0 {
            true => Comm::of(b"<idle>").0,
            false => head.comm.0,
        };
        let length = comm.iter().position(|&byte| byte == 0).unwrap_or(comm.len());
        (length..16).try_for_each(|_| f.write_str(" "))?;
        text(f, comm.into_iter())?;
        let (cpu, time) = (self.cpu, self.time);
        write!(f, "-{:<7} [{cpu:03}] {time}: ", head.pid)?;
        if !self.record.event().is_kprobe() {
            write!(f, "{}: ", self.record.event().line_name())?;
        }
        writeln!(f, "{}", Fields(&self.record))
    }
}
