//! `freehold owns`: to whom a frame of a running VM belongs, in one sentence.
//!
//! The VM's kernel answers from its frame table and its address spaces, through the socket that
//! `freehold run --control SOCKET` makes. Programs continue to run meanwhile, so an answer
//! describes a past moment. Questions of `freehold run --owns` are answered when the program ends,
//! while it still has its memory, and are in the run's record.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use crate::args::{OwnerOptions, OwnsOptions, RunOptions};
use crate::diff::record::KeptRecord;
use crate::failure::{Failure, words};
use crate::kernel::Family;
use crate::{Result, files, schema};

/// Time for the kernel to answer: a search through all address spaces of a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of a frame.
const FRAME: u64 = 4096;

/// A question about owners of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerQuestion {
    /// About the frame with this number.
    Frame(u64),
    /// About the frames of the process with this number.
    Process(u32),
    /// About the frame at this address of the process with this number.
    Address(u32, u64),
}

impl OwnerQuestion {
    /// Parses what a user types: `2` (a process), `2:0x7ffd1000` (an address of it), `frame:499`,
    /// `0x1f3000` (an address of the machine's memory).
    pub fn parse(text: &str) -> Option<OwnerQuestion> {
        if let Some(frame) = text.strip_prefix("frame:") {
            return number(frame).map(OwnerQuestion::Frame);
        }
        if let Some((pid, address)) = text.split_once(':') {
            return Some(OwnerQuestion::Address(pid.parse().ok()?, number(address)?));
        }
        match text.strip_prefix("0x") {
            Some(_) => number(text).map(|address| OwnerQuestion::Frame(address / FRAME)),
            None => text.parse().ok().map(OwnerQuestion::Process),
        }
    }

    /// Parses what a user types.
    ///
    /// # Errors
    /// It is no question.
    fn read(text: &str) -> Result<OwnerQuestion> {
        OwnerQuestion::parse(text).ok_or_else(|| {
            Failure::new(
                format!("{text}: neither a process, nor an address, nor a frame"),
                "for example 2, 2:0x401000, frame:499 or 0x1f3000",
            )
        })
    }

    /// Returns the words that ask it, with decimal numbers.
    pub fn words(self) -> String {
        match self {
            OwnerQuestion::Frame(frame) => format!("frame:{frame}"),
            OwnerQuestion::Process(pid) => pid.to_string(),
            OwnerQuestion::Address(pid, address) => format!("{pid}:{address}"),
        }
    }
}

/// Parses a decimal number, or one in hexadecimal with 0x.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Rejects a kernel that does not answer.
pub fn check_family(options: &RunOptions, family: Family) -> Result<()> {
    let name = match &options.owners {
        OwnerOptions { control: Some(_), .. } => "--control",
        OwnerOptions { at_end, .. } if !at_end.is_empty() => "--owns",
        _ => return Ok(()),
    };
    if family == Family::Linux {
        let message = format!("{name}: only freehold's own kernel knows the owners of its frames");
        return Err(Failure::new(message, format!("leave {name} or --kernel linux out")));
    }
    Ok(())
}

/// Returns the questions that the run of `options` answers at the program's end.
///
/// # Errors
/// One is no question.
pub fn at_end(options: &RunOptions) -> Result<Vec<OwnerQuestion>> {
    options.owners.at_end.iter().map(|text| OwnerQuestion::read(text)).collect()
}

/// An answer at the program's end, as the run's record has it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LastAnswer {
    /// The question, as [`OwnerQuestion::words`] writes it.
    pub question: String,
    /// The kernel's answer.
    #[serde(flatten)]
    pub answer: Value,
}

impl LastAnswer {
    /// Returns the answers with their questions. If the program did not come to its end, there are
    /// fewer answers.
    pub fn all(questions: &[OwnerQuestion], answers: &[Value]) -> Vec<LastAnswer> {
        let one = |(question, answer): (&OwnerQuestion, &Value)| LastAnswer {
            question: question.words(),
            answer: if answer.is_object() { answer.clone() } else { json!({}) },
        };
        questions.iter().zip(answers).map(one).collect()
    }

    /// Returns the line for a terminal.
    pub fn line(&self) -> String {
        match self.answer["error"].as_str() {
            Some(error) => format!("freehold: at the end: {}: {error}\n", self.question),
            None => format!("freehold: at the end: {}\n", sentence(&self.answer)),
        }
    }
}

/// Asks the VM of `options`, and prints the answer; returns the exit status of this command.
pub fn owns(options: &OwnsOptions) -> Result<u8> {
    let question = OwnerQuestion::read(&options.what)?;
    files::check_writable([&options.json])?;
    let answer = match (&options.vm, &options.record) {
        (Some(vm), _) => ask(vm, question)?,
        (None, Some(record)) => recorded(record, question)?,
        (None, None) => return Err(Failure::new("neither --vm nor --record", "one of them is needed")),
    };
    if let Some(error) = answer["error"].as_str() {
        return Err(Failure::new(format!("{}: {error}", options.what), ""));
    }
    if let Some(path) = &options.json {
        let mut record = json!({ "schema": schema::OWNS });
        if let (Some(to), Some(from)) = (record.as_object_mut(), answer.as_object()) {
            to.extend(from.clone());
        }
        files::write_json(path, &record)?;
    }
    files::print_beside(&format!("{}\n", sentence(&answer)), [&options.json])?;
    Ok(0)
}

/// Returns the answer that a run's record has.
fn recorded(path: &Path, question: OwnerQuestion) -> Result<Value> {
    let record = KeptRecord::read(path)?;
    let list = record.value["owners"].as_array().into_iter().flatten();
    let mut found = list.filter(|one| one["question"].as_str() == Some(&question.words()));
    let mut answer = found.next().cloned().ok_or_else(|| {
        Failure::new(
            format!("{}: its run was not asked about {}", path.display(), question.words()),
            "freehold run --owns asks, and the program has to come to its end",
        )
    })?;
    answer.as_object_mut().into_iter().for_each(|answer| drop(answer.remove("question")));
    Ok(answer)
}

fn sentence(answer: &Value) -> String {
    if answer["pid"].is_u64() { of_process(answer) } else { of_frame(answer) }
}

fn ask(socket: &Path, question: OwnerQuestion) -> Result<Value> {
    let failed = |error: std::io::Error| {
        Failure::new(
            format!("cannot ask the VM at {}: {}", socket.display(), words(&error)),
            "freehold run --control SOCKET makes the socket, and takes it away at the run's end",
        )
    };
    let mut stream = UnixStream::connect(socket).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.write_all(format!("{}\n", question.words()).as_bytes()).map_err(failed)?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).map_err(failed)?;
    serde_json::from_str(&line).map_err(|_| {
        Failure::new(format!("the VM at {} did not answer", socket.display()), "its run may have ended")
    })
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn named(user: &Value) -> String {
    format!("process {} ({})", count(&user["pid"]), user["name"].as_str().unwrap_or("?"))
}

/// Returns the sentence about a frame.
fn of_frame(answer: &Value) -> String {
    let frame = format!("frame {:#x}", count(&answer["frame"]));
    let Some(node) = answer["node"].as_u64() else { return format!("{frame} is no memory") };
    let Some(owner) = answer["owner"].as_str() else { return format!("{frame} on node {node} is free") };
    if answer["zeroes"] == true {
        return format!("{frame} on node {node} is the page of zeroes, which every process may map");
    }
    let users: Vec<&Value> = answer["users"].as_array().into_iter().flatten().collect();
    let of_file = users.iter().find_map(|user| Some((user["area"].as_str()?, user["offset"].as_u64()?)));
    let mut text = match of_file {
        Some((file, offset)) => format!("{frame} on node {node} holds {file} from byte {offset} ({owner})"),
        None => format!("{frame} on node {node} belongs to {owner}"),
    };
    let block = count(&answer["block_frames"]);
    if block > 1 {
        text.push_str(&format!(", in a block of {block} frames"));
    }
    if !users.is_empty() {
        let places = users.iter().map(|user| {
            let area = user["area"].as_str().filter(|area| !area.is_empty() && of_file.is_none());
            let area = area.map(|area| format!(" in {area}")).unwrap_or_default();
            format!("{} at {:#x}{area}", named(user), count(&user["address"]))
        });
        let exclusive = if answer["exclusive"] == true { "alone " } else { "" };
        text.push_str(&format!(", mapped {exclusive}by {}", places.collect::<Vec<_>>().join(" and ")));
    }
    if count(&answer["left_out"]) > 0 {
        text.push_str(&format!(" and {} more", count(&answer["left_out"])));
    }
    let side = if answer["in_kernel_map"] == true { "in" } else { "outside" };
    let held = ["mappings", "references", "pins"].map(|name| format!("{} {name}", count(&answer[name])));
    text.push_str(&format!("; {side} the kernel's map; {}", held.join(", ")));
    text
}

/// Returns the sentence about a process.
fn of_process(answer: &Value) -> String {
    let number = |name: &str| count(&answer[name]);
    let nodes = answer["nodes"].as_object().into_iter().flatten();
    let nodes: Vec<String> = nodes.map(|(node, pages)| format!("{} on node {node}", count(pages))).collect();
    let nodes = if nodes.is_empty() { String::new() } else { format!(" ({})", nodes.join(", ")) };
    format!(
        "{} maps {} frames{nodes}: {} anonymous, {} of files; {} mapped elsewhere too, {} pinned, {} in the kernel's map; \
         {} pages of zeroes, {} swapped out",
        named(answer),
        number("anonymous") + number("file"),
        number("anonymous"),
        number("file"),
        number("shared"),
        number("pinned"),
        number("in_kernel_map"),
        number("zeroes"),
        number("swapped"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_a_process_an_address_or_a_frame() {
        for (text, question) in [
            ("2", Some(OwnerQuestion::Process(2))),
            ("2:0x1000", Some(OwnerQuestion::Address(2, 4096))),
            ("2:4096", Some(OwnerQuestion::Address(2, 4096))),
            ("frame:0x10", Some(OwnerQuestion::Frame(16))),
            ("0x3456", Some(OwnerQuestion::Frame(3))),
            ("", None),
            ("x", None),
            ("0x", None),
            ("frame:", None),
            ("-2", None),
            ("2:", None),
        ] {
            assert_eq!(OwnerQuestion::parse(text), question, "{text}");
            if let Some(question) = question {
                assert_eq!(OwnerQuestion::parse(&question.words()), Some(question));
            }
        }
    }

    #[test]
    fn an_answer_is_a_sentence() {
        let frame = json!({
            "frame": 499, "node": 1, "owner": "Anon", "block_frames": 1, "in_kernel_map": false, "mappings": 1, "references": 0,
            "pins": 2, "exclusive": true, "zeroes": false, "left_out": 0,
            "users": [{"pid": 2, "name": "sh", "address": 4096, "area": "[heap]", "offset": null}],
        });
        assert_eq!(
            of_frame(&frame),
            "frame 0x1f3 on node 1 belongs to Anon, mapped alone by process 2 (sh) at 0x1000 in [heap]; \
             outside the kernel's map; 1 mappings, 0 references, 2 pins"
        );
        assert_eq!(of_frame(&json!({"frame": 1, "node": 0, "owner": null})), "frame 0x1 on node 0 is free");
        assert_eq!(of_frame(&json!({"frame": 1, "node": null})), "frame 0x1 is no memory");
        let questions = [OwnerQuestion::Frame(1), OwnerQuestion::Process(9)];
        let none = json!({"error": "there is no such process"});
        let told: Vec<String> = LastAnswer::all(&questions, &[json!({"frame": 1, "node": null}), none])
            .iter()
            .map(LastAnswer::line)
            .collect();
        let lines = ["frame 0x1 is no memory", "9: there is no such process"];
        assert_eq!(told, lines.map(|line| format!("freehold: at the end: {line}\n")));
    }
}
