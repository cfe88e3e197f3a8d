//! The places of the guest's threads at a time-out, with the names of the kernel's functions.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::backtrace::Symbols;

/// Functions that only say that a thread does not run.
const SWITCHING: [&str; 3] = ["thread::switch", "switch::reschedule", "switch::block"];
/// Functions that all system calls and threads pass through: their callers give no information.
const COMMON_CALLERS: [&str; 4] =
    ["syscall::dispatch", "user_loop::run", "Task::make_thread", "Thread::prepare"];
/// Largest number of functions that are printed per thread, innermost first; the JSON has all.
const SHOWN: usize = 6;

/// Replaces addresses in the kernel's answer by functions; `slide` is the distance of the image
/// from its link address.
pub fn named(answer: &Value, slide: u64, symbols: &Symbols) -> Value {
    let mut answer = answer.clone();
    let threads = answer.get_mut("threads").and_then(Value::as_array_mut);
    for thread in threads.into_iter().flatten().filter_map(Value::as_object_mut) {
        let addresses = thread.remove("backtrace");
        let addresses = addresses.as_ref().and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        thread.insert("running".into(), json!(addresses.is_empty()));
        let places: Vec<String> = addresses
            .iter()
            .filter_map(|address| u64::from_str_radix(address.as_str()?.strip_prefix("0x")?, 16).ok())
            // A return address belongs to the call before it.
            .map(|address| symbols.function(address.wrapping_sub(1), slide).unwrap_or_else(|| "?".into()))
            .map(|name| short(&name))
            .skip_while(|name| SWITCHING.contains(&name.as_str()))
            .take_while(|name| !COMMON_CALLERS.contains(&name.as_str()))
            .collect();
        thread.insert("where".into(), json!(places));
    }
    answer
}

/// Returns lines for the user.
pub fn text(named: &Value) -> String {
    let mut text = String::new();
    for thread in named["threads"].as_array().into_iter().flatten() {
        let places = thread["where"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let places: Vec<&str> = places.take(SHOWN).collect();
        let does = match thread["state"].as_str().unwrap_or_default() {
            _ if thread["running"] == true => "runs",
            "R" => "waits for a CPU",
            "S" | "D" => "sleeps",
            "T" => "is stopped",
            // An empty state marks a CPU.
            "" => "is",
            _ => "ends",
        };
        let inside = if places.is_empty() { "" } else { " in " };
        let (tid, name) = (thread["tid"].as_u64().unwrap_or(0), thread["name"].as_str().unwrap_or("?"));
        let _ = writeln!(text, "  {tid:>7} {name:<15} {does}{inside}{}", places.join(" < "));
    }
    match named["left_out"].as_u64().unwrap_or(0) {
        0 => {}
        1 => text.push_str("  and one more thread\n"),
        more => {
            let _ = writeln!(text, "  and {more} more threads");
        }
    }
    text
}

/// Shortens `<a::b::Type<T> as c::Trait>::function::<U>` to `Type::function`, `a::b::c` to `b::c`.
fn short(name: &str) -> String {
    let segments = segments(name);
    let named =
        segments.iter().enumerate().filter(|(at, segment)| *at == 0 || !segment.starts_with(['<', '{']));
    let plain: Vec<&str> = named.map(|(_, segment)| last_of_type(segment)).collect();
    plain[plain.len().saturating_sub(2)..].join("::")
}

/// Returns the name of a type without its path, its trait and its parameters.
fn last_of_type(segment: &str) -> &str {
    let Some(inside) = segment.strip_prefix('<') else { return segment };
    let inside = inside.strip_suffix('>').unwrap_or(inside);
    let implementor = inside.split(" as ").next().unwrap_or(inside);
    let name = segments(implementor).into_iter().rfind(|part| !part.starts_with('<')).unwrap_or(implementor);
    name.split('<').next().unwrap_or(name)
}

/// Splits at each `::` that is not inside brackets.
fn segments(name: &str) -> Vec<&str> {
    let (mut all, mut depth, mut start) = (Vec::new(), 0usize, 0);
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'<' | b'(' | b'[' | b'{' => depth += 1,
            b'>' if at > 0 && name.as_bytes()[at - 1] == b'-' => {}
            b'>' | b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b':' if depth == 0 && name[at..].starts_with("::") => {
                all.push(&name[start..at]);
                start = at + 2;
            }
            _ => {}
        }
    }
    all.push(&name[start..]);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shortened_to_type_and_function() {
        for (name, expected) in [
            ("freehold_kernel::time::calls::sleep_until", "calls::sleep_until"),
            (
                "<freehold_kernel::sync::wait::WaitQueue>::wait_until::<(), a::b::{closure#0}>",
                "WaitQueue::wait_until",
            ),
            ("<freehold_kernel::boot::Kernel as freehold_arch::traps::Handlers>::timer", "Kernel::timer"),
            ("<a::Store<b::Disk> as c::Backing<fn() -> d::E>>::fill::{closure#0}", "Store::fill"),
            ("thread_begin", "thread_begin"),
        ] {
            assert_eq!(short(name), expected, "{name}");
        }
    }

    #[test]
    fn each_thread_has_a_line() {
        let named = json!({
            "threads": [
                { "tid": 1, "name": "init", "state": "S", "where": ["wait::wait_for", "wait::sys_wait4"] },
                { "tid": 23, "name": "busy", "state": "R", "running": true, "where": [] },
            ],
            "left_out": 3,
        });
        let expected = "        1 init            sleeps in wait::wait_for < wait::sys_wait4
       23 busy            runs
  and 3 more threads
";
        assert_eq!(text(&named), expected);
    }
}
