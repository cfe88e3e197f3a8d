//! The path of a panic's report to the host. It takes no lock and allocates nothing: it writes byte
//! by byte to the console's emergency register.
//!
//! If the control channel has sent part of a frame, the rest is first completed with blanks, so
//! that the host finds the next frame. The panic waits for a while for frames that were submitted
//! before, so that its report does not overtake them.

use core::fmt::{self, Write};

use freehold_virtio::ByteStream;

use super::control::owed;
use super::devices::{self, Port};
use super::frame::{ToHost, head};
use super::json::{Counter, Quoted, comma};
use crate::hw::panic::{Certificate, CertificateSink, CpuReport};

/// How often to check whether the host has taken the frames that were submitted before.
const LOOKS: usize = 1_000_000;

/// Sends the report of a panic as a PANIC frame.
#[derive(Debug)]
pub struct LastWords;

impl CertificateSink for LastWords {
    fn certificate(&self, certificate: &Certificate) {
        let Some(control) = devices::control() else { return };
        control.settle(LOOKS);
        let text = Text(certificate);
        let mut length = Counter::default();
        let mut wire = Wire(control);
        // Neither writer fails. A report displays the same text twice, since all other CPUs stand
        // still.
        let _ = write!(length, "{text}");
        (0..owed()).for_each(|_| wire.put(b' '));
        let length = u32::try_from(length.0).unwrap_or(u32::MAX);
        head(ToHost::Panic, length).into_iter().for_each(|byte| wire.put(byte));
        let _ = write!(wire, "{text}");
    }
}

struct Wire<'a>(&'a Port);

impl Wire<'_> {
    fn put(&mut self, byte: u8) {
        self.0.emergency_write(byte);
    }
}

impl Write for Wire<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(|byte| self.put(byte));
        Ok(())
    }
}

/// A report as JSON.
struct Text<'a>(&'a Certificate);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = Quoted(self.0.message().as_bytes());
        write!(f, "{{\"message\":{message},\"slide\":\"{:#x}\",\"cpus\":[", self.0.slide())?;
        for (number, report) in self.0.cpus().enumerate() {
            write!(f, "{}{}", comma(number), Cpu(report))?;
        }
        f.write_str("]}")
    }
}

struct Cpu<'a>(&'a CpuReport);

impl fmt::Display for Cpu<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let r = self.0.registers();
        let registers = [
            ("rip", r.rip),
            ("rsp", r.rsp),
            ("rbp", r.rbp),
            ("rflags", r.rflags),
            ("rax", r.rax),
            ("rbx", r.rbx),
            ("rcx", r.rcx),
            ("rdx", r.rdx),
            ("rsi", r.rsi),
            ("rdi", r.rdi),
            ("r8", r.r8),
            ("r9", r.r9),
            ("r10", r.r10),
            ("r11", r.r11),
            ("r12", r.r12),
            ("r13", r.r13),
            ("r14", r.r14),
            ("r15", r.r15),
        ];
        write!(f, "{{\"cpu\":{},\"registers\":{{", self.0.cpu().0)?;
        for (number, (name, value)) in registers.into_iter().enumerate() {
            write!(f, "{}\"{name}\":\"{value:#x}\"", comma(number))?;
        }
        f.write_str("},\"backtrace\":[")?;
        for (number, address) in self.0.backtrace().iter().enumerate() {
            write!(f, "{}\"{address:#x}\"", comma(number))?;
        }
        f.write_str("]}")
    }
}
