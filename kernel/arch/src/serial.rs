//! The kernel log's last resort: the first UART (0x3f8), polled.
//!
//! It works from the first instruction of Rust on, and needs no lock to be correct (lines of
//! several CPUs may mix during a panic). It waits for room for a bounded time only.

use core::fmt::{self, Write};

use crate::registers::{in_u8, out_u8};
use crate::sync::IrqSpinLock;

const PORT: u16 = 0x3f8;
const LINE_STATUS: u16 = PORT + 5;
const TRANSMIT_EMPTY: u8 = 0x20;

static WRITER: IrqSpinLock<()> = IrqSpinLock::new(());

struct Uart;

impl Write for Uart {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            if byte == b'\n' {
                send(b'\r');
            }
            send(byte);
        }
        Ok(())
    }
}

/// Set up 115200 baud, 8 bits, no parity, FIFO on, no interrupts.
pub(crate) fn init() {
    for (register, value) in [(1, 0), (3, 0x80), (0, 1), (1, 0), (3, 3), (2, 7), (4, 3)] {
        out_u8(PORT + register, value);
    }
}

fn send(byte: u8) {
    // A missing UART reads as 0xff; one that does not respond costs a bounded wait.
    for _ in 0..100_000 {
        if in_u8(LINE_STATUS) & TRANSMIT_EMPTY != 0 {
            break;
        }
        core::hint::spin_loop();
    }
    out_u8(PORT, byte);
}

/// Print; the text of one call stays together.
pub fn print(arguments: fmt::Arguments) {
    let _together = WRITER.lock();
    // The writer itself never fails. If a `Display` fails, there is no place to report that.
    let _ = Uart.write_fmt(arguments);
}

/// Prints without the lock, during a panic.
pub(crate) fn print_unlocked(arguments: fmt::Arguments) {
    let _ = Uart.write_fmt(arguments);
}
