//! The closing report on stderr: why a guest died, the program's memory use, system calls, missing
//! files.

use std::collections::HashMap;
use std::fmt::Write;

use serde_json::Value;

use crate::backtrace::{Addresses, Symbols};
use crate::failure::words;
use crate::session::{End, Ended, LastSeen, Loss};
use crate::stuck;

/// Number of log lines that are shown after a death.
const LOG_LINES: usize = 40;
/// Number of registers per line of a panic report.
const REGISTERS_A_LINE: usize = 4;

/// Describes a guest's death for a person: message, each CPU's registers and backtrace, or the end
/// of the log.
pub fn death(ended: &Ended, symbols: &Symbols) -> Option<String> {
    let mut text = match &ended.end {
        End::Panicked(_) | End::Died => format!("{}\n", death_line(ended, symbols)),
        _ => return None,
    };
    if let End::Panicked(certificate) = &ended.end {
        certificate_text(&mut text, certificate, symbols);
    }
    let full_certificate =
        matches!(&ended.end, End::Panicked(certificate) if certificate.get("cpus").is_some());
    if !full_certificate {
        let lines: Vec<&str> = ended.log.lines().collect();
        let shown = &lines[lines.len().saturating_sub(LOG_LINES)..];
        if !shown.is_empty() {
            text.push_str("the end of its log:\n");
        }
        let slide = slide_in(&ended.log);
        for line in shown {
            let _ = writeln!(text, "  {}", symbols.annotate(line, slide));
        }
    }
    Some(text)
}

/// Returns the first line of [`death`].
pub fn death_line(ended: &Ended, symbols: &Symbols) -> String {
    let what = match (&ended.end, &ended.ready) {
        (End::Panicked(_), _) => "the guest kernel panicked",
        (_, Some(_)) => "the guest died",
        (_, None) => "the guest died before it could start the program",
    };
    format!("{what}: {}", cause_of_death(ended, symbols).replace('\n', " "))
}

/// Describes a guest's death in one line: its certificate's message, else the line of a stock
/// Linux that names the panic, else the last line of its log about a panic.
pub fn cause_of_death(ended: &Ended, symbols: &Symbols) -> String {
    if let End::Panicked(certificate) = &ended.end {
        return symbols.without_addresses(message(certificate), slide_of(certificate));
    }
    let cause = panic_line(&ended.log).map_or("QEMU exited without output", without_time);
    symbols.without_addresses(cause, slide_in(&ended.log))
}

/// Returns the line of a log that says why the kernel panicked. A stock Linux prints it first, and
/// then a backtrace, in which functions may have "panic" in their names.
fn panic_line(log: &str) -> Option<&str> {
    let named = log.lines().find(|line| line.contains("Kernel panic - "));
    named.or_else(|| log.lines().rev().find(|line| line.to_ascii_lowercase().contains("panic")))
}

/// Returns the place of each thread at the time-out, or of each CPU of a kernel that did not
/// answer.
pub fn stuck_threads(ended: &Ended, symbols: &Symbols) -> Option<Value> {
    let End::TimedOut(LastSeen::Threads(answer) | LastSeen::Cpus(answer)) = &ended.end else {
        return None;
    };
    let slide = ended.ready.as_ref().map_or(0, slide_of);
    Some(stuck::named(answer, slide, symbols))
}

/// Returns the certificate of a guest that died: what its kernel sent, or else its last line about
/// a panic.
pub fn certificate(ended: &Ended, symbols: &Symbols) -> Option<Value> {
    match &ended.end {
        End::Panicked(certificate) => Some(public_certificate(certificate, symbols)),
        End::Died => Some(serde_json::json!({ "message": cause_of_death(ended, symbols) })),
        _ => None,
    }
}

/// Returns the certificate for publication: if addresses are hidden, symbols and offsets replace
/// them.
fn public_certificate(certificate: &Value, symbols: &Symbols) -> Value {
    let mut public = certificate.clone();
    if symbols.addresses() == Addresses::Shown {
        return public;
    }
    let slide = slide_of(certificate);
    if let Some(fields) = public.as_object_mut() {
        fields.remove("slide");
    }
    hide(&mut public, symbols, slide);
    public
}

fn hide(value: &mut Value, symbols: &Symbols, slide: u64) {
    match value {
        Value::String(text) => *text = symbols.without_addresses(text, slide),
        Value::Number(number) => {
            let text = number.to_string();
            let public = symbols.without_addresses(&text, slide);
            if public != text {
                *value = Value::String(public);
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|value| hide(value, symbols, slide)),
        Value::Object(fields) => fields.values_mut().for_each(|value| hide(value, symbols, slide)),
        Value::Null | Value::Bool(_) => {}
    }
}

fn slide_of(certificate: &Value) -> u64 {
    certificate.get("slide").and_then(number).unwrap_or(0)
}

fn message(certificate: &Value) -> &str {
    certificate.get("message").and_then(Value::as_str).unwrap_or("no message").trim_end()
}

/// Removes the time from a kernel log line.
fn without_time(line: &str) -> &str {
    let line = line.trim();
    match line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((_, text)) => text.trim(),
        None => line,
    }
}

fn slide_in(log: &str) -> u64 {
    let text = log.lines().find_map(|line| line.split_once("image slide 0x"));
    let digits = text.map(|(_, rest)| rest.split(|c: char| !c.is_ascii_hexdigit()).next().unwrap_or(""));
    digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0)
}

/// Reads an address or number that JSON may have as a number or as hexadecimal text.
fn number(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => u64::from_str_radix(text.trim_start_matches("0x"), 16).ok(),
        other => other.as_u64(),
    }
}

fn certificate_text(text: &mut String, certificate: &Value, symbols: &Symbols) {
    let slide = slide_of(certificate);
    for cpu in certificate.get("cpus").and_then(Value::as_array).into_iter().flatten() {
        let name = cpu.get("cpu").and_then(number).unwrap_or(0);
        let _ = writeln!(text, "CPU {name}:");
        if let Some(registers) = cpu.get("registers").and_then(Value::as_object) {
            let shown: Vec<String> = registers
                .iter()
                .map(|(name, value)| match number(value) {
                    Some(number) => format!("{name:>6} {number:016x}"),
                    None => format!("{name:>6} {value}"),
                })
                .map(|register| symbols.without_addresses(&register, slide))
                .collect();
            for line in shown.chunks(REGISTERS_A_LINE) {
                let _ = writeln!(text, "  {}", line.join(" "));
            }
        }
        let backtrace = cpu.get("backtrace").and_then(Value::as_array);
        for (depth, address) in backtrace.into_iter().flatten().filter_map(number).enumerate() {
            for (place, line) in symbols.describe(address, slide, depth).into_iter().enumerate() {
                let mark = if place == 0 { format!("{depth:>4}:") } else { "     ".into() };
                let _ = writeln!(text, "{mark} {line}");
            }
        }
    }
}

/// Returns the closing table: the program's end, its time, the memory figures.
pub fn closing(ended: &Ended, program: &str, machine: &str) -> String {
    let mut text = String::new();
    let field = |name: &str| ended.ready.as_ref().and_then(|ready| ready.get(name));
    let kernel = field("kernel").and_then(Value::as_str).unwrap_or("?");
    let version = field("version").and_then(Value::as_str).unwrap_or("");
    let boot = field("boot_ns").and_then(Value::as_u64).unwrap_or(0);
    let _ = writeln!(
        text,
        "── {program}: {} in {:.2} s (boot {:.0} ms of it) on {kernel} {version}, {machine}",
        ending(&ended.end),
        ended.wall.as_secs_f64(),
        boot as f64 / 1e6,
    );
    let report = ended.report.as_ref();
    let memory = report.and_then(|report| report.get("memory")).and_then(Value::as_object);
    let rows: Vec<(String, String)> =
        memory.into_iter().flatten().map(|(key, value)| (label(key), amount(key, value))).collect();
    // Two columns side by side, filled downwards.
    let half = rows.len().div_ceil(2);
    let width = rows.iter().take(half).map(|(label, _)| label.chars().count()).max().unwrap_or(0);
    let width_right = rows.iter().skip(half).map(|(label, _)| label.chars().count()).max().unwrap_or(0);
    for (left, right) in (0..half).map(|row| (&rows[row], rows.get(row + half))) {
        let _ = write!(text, "   {:<width$} {:>12}", left.0, left.1);
        if let Some(right) = right {
            let _ = write!(text, "    {:<width_right$} {:>12}", right.0, right.1);
        }
        text.push('\n');
    }
    text
}

fn ending(end: &End) -> String {
    use crate::protocol::Ending;
    match end {
        End::Program(ending) | End::Unbalanced(ending, _) | End::OutputLost(ending, _) => match ending {
            Ending::Exit(status) => format!("exit {status}"),
            Ending::Signal(signal) => format!("ended by signal {signal}"),
        },
        _ => "did not end".into(),
    }
}

fn label(key: &str) -> String {
    let known = match key {
        "total_kib" => "memory of the VM",
        "free_kib" => "free at the end",
        "free_whole_kib" => "  in whole 2 MiB blocks",
        "most_kib" => "memory at its most",
        "peak_user_kib" => "the program's peak",
        "kernel_kib" => "kernel",
        "page_tables_kib" => "page tables",
        "page_cache_kib" => "files in memory",
        "bounced_kib" => "passed through bounce",
        "bounce_peak_kib" => "bounce at its most",
        "lost_kib" => "kept by lost devices",
        "faults_minor" => "faults",
        "faults_major" => "faults that waited",
        "zero_page_hits" => "reads of the zero page",
        "cow_copied" => "copied on write",
        "cow_reused" => "reused on write",
        "tlb_shootdowns" => "TLB shootdowns",
        "swap_peak_kib" => "swap at its most",
        "swapped_out_kib" => "swapped out",
        "swapped_in_kib" => "swapped in",
        _ => "",
    };
    if !known.is_empty() {
        return known.into();
    }
    let bare = ["_kib", "_frames", "_ns"].iter().fold(key, |key, end| key.strip_suffix(end).unwrap_or(key));
    bare.replace('_', " ")
}

fn amount(key: &str, value: &Value) -> String {
    let Some(number) = value.as_u64() else {
        return value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    };
    if key.ends_with("_kib") {
        return kib(number);
    }
    if key.ends_with("_frames") {
        return kib(4 * number);
    }
    if key.ends_with("_ns") {
        return format!("{:.3} ms", number as f64 / 1e6);
    }
    number.to_string()
}

fn kib(number: u64) -> String {
    if number >= 10 << 10 { format!("{:.1} MiB", number as f64 / 1024.0) } else { format!("{number} KiB") }
}

/// Returns the message for a run where the frame-table audit ended with this finding: the error,
/// its meaning and what to do.
pub fn unbalanced(finding: &str) -> String {
    format!(
        "the kernel's frame table does not balance: {finding} (a defect of the kernel: do not rely on this run; run it again with --verbose and \
         report what it prints)"
    )
}

/// Returns the message for a run whose output did not arrive.
pub fn output_lost(loss: Loss) -> String {
    let Loss { stream, error } = loss;
    format!("cannot write the program's output to {stream}: {}", words(&error.into()))
}

/// Adds the time in each system call, by its number, to the kernel's report about calls.
pub fn add_times(ended: &mut Ended, times: &HashMap<u64, u64>) {
    let calls = ended.report.as_mut().and_then(|report| report.get_mut("syscalls"));
    for call in calls.and_then(Value::as_array_mut).into_iter().flatten() {
        let time = call.get("number").and_then(Value::as_u64).and_then(|number| times.get(&number));
        if let (Some(time), Some(fields)) = (time, call.as_object_mut()) {
            fields.insert("time_ns".into(), (*time).into());
        }
    }
}

/// Returns the summary of `--syscalls`: most frequent first, with unimplemented calls marked, and
/// with the time in all calls where it is known.
pub fn syscalls(ended: &Ended) -> String {
    let list = ended.report.as_ref().and_then(|report| report.get("syscalls")).and_then(Value::as_array);
    let Some(list) = list else {
        return "── this kernel does not count system calls\n".into();
    };
    let field = |call: &Value, name: &str| call.get(name).and_then(Value::as_u64).unwrap_or(0);
    let mut calls: Vec<&Value> = list.iter().filter(|call| field(call, "calls") > 0).collect();
    calls.sort_by_key(|call| std::cmp::Reverse(field(call, "calls")));
    let has_times = calls.iter().any(|call| call.get("time_ns").is_some());
    let heading = if has_times { "     instructions" } else { "" };
    let mut text = format!("──      calls   errors{heading}  system call\n");
    for call in calls {
        let time = call.get("time_ns").and_then(Value::as_u64);
        let time = if has_times {
            format!(" {:>16}", time.map_or_else(String::new, |t| t.to_string()))
        } else {
            String::new()
        };
        let name = call.get("name").and_then(Value::as_str).unwrap_or("?");
        let missing = call.get("unimplemented").and_then(Value::as_bool).unwrap_or(false);
        let failed = call.get("failed").and_then(Value::as_object).into_iter().flatten();
        let errors: Vec<String> = failed.map(|(error, count)| format!("{error} {count}")).collect();
        let mark = match (missing, errors.is_empty()) {
            (true, _) => "  (not implemented)".to_owned(),
            (false, true) => String::new(),
            (false, false) => format!("  ({})", errors.join(", ")),
        };
        let _ =
            writeln!(text, "{:>12} {:>8}{time}  {name}{mark}", field(call, "calls"), field(call, "errors"));
    }
    text
}

/// Returns the summary of `--events`: the numbers of records written and lost.
pub fn events(ended: &Ended) -> String {
    let events = ended.report.as_ref().and_then(|report| report.get("events"));
    let count = |name: &str| events.and_then(|events| events.get(name)).and_then(Value::as_u64);
    match (count("recorded"), count("lost")) {
        (Some(recorded), Some(0)) => format!("── events: {recorded} recorded, none lost\n"),
        (Some(recorded), Some(lost)) => format!("── events: {recorded} recorded, {lost} lost\n"),
        _ => "── events: the kernel did not say whether any were lost\n".into(),
    }
}

/// Returns the files that the program did not find in the image: a hint for `-a`.
pub fn missing_files(ended: &Ended) -> Vec<String> {
    let list = ended.report.as_ref().and_then(|report| report.get("missing")).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}
