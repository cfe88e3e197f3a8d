//! `freehold-layers KERNEL`: shows which file of a kernel crate uses which, and checks that no
//! arrow points up.
//!
//! Reads `KERNEL/src/lib.rs` and every module below it as the bare-metal target compiles them
//! (tests and host stand-ins are left out), resolves each path to the file that defines its target
//! (re-exports, `super`, globs, inline paths and paths in macros followed), and holds the arrows
//! against `KERNEL/layers`. That file ranks the layers and lists the arrows that still point up or
//! sideways, with their number: a number may shrink and may not grow. `--arrows FROM TO` lists the
//! places that one number counts, `--hooks` the traits of a lower layer that a higher one
//! implements; `--write` stores smaller numbers.
//!
//! `--shape LONG WIDE DUPLICATES WORN FOLDER…` counts long functions, functions with many
//! parameters, duplicates, and names of too many types. It fails if there are more than the given
//! numbers ([`shape`]).
//!
//! Method calls are not resolved: they need types. The type or trait that owns the method is
//! imported or named somewhere, and that place counts.
#![forbid(unsafe_code)]

mod crates;
mod graph;
mod layers;
mod names;
mod shape;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use graph::Graph;
use layers::{Layers, LayersVerdict};

const USAGE: &str = "usage: freehold-layers KERNEL [--write | --arrows FROM TO | --circle | --hooks]\n       \
                     freehold-layers --shape LONG WIDE DUPLICATES WORN FOLDER…";

/// The request of the command line.
#[derive(PartialEq, Debug)]
enum CommandRequest {
    Check,
    Write,
    Arrows { from: String, to: String },
    Circle,
    Hooks,
}

fn parse(arguments: &[String]) -> Option<(PathBuf, CommandRequest)> {
    let (folder, rest) = arguments.split_first()?;
    let request = match rest {
        [] => CommandRequest::Check,
        [option] if option == "--write" => CommandRequest::Write,
        [option] if option == "--circle" => CommandRequest::Circle,
        [option] if option == "--hooks" => CommandRequest::Hooks,
        [option, from, to] if option == "--arrows" => {
            CommandRequest::Arrows { from: from.clone(), to: to.clone() }
        }
        _ => return None,
    };
    Some((folder.into(), request))
}

/// Runs `--shape`: prints findings beyond the limits.
fn check_shape(arguments: &[String]) -> Result<ExitCode, String> {
    let [long, wide, duplicates, worn, folders @ ..] = arguments else { return Err(USAGE.into()) };
    let number = |text: &String| text.parse().map_err(|_| format!("{text} is no number"));
    let most = [number(long)?, number(wide)?, number(duplicates)?, number(worn)?];
    let folders: Vec<PathBuf> = folders.iter().map(PathBuf::from).collect();
    let complaints = shape::Shape::read(&folders)?.complaints(most);
    print!("{complaints}");
    Ok(if complaints.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == "--shape") {
        return check_shape(&arguments[1..]).unwrap_or_else(|problem| {
            eprintln!("freehold-layers: {problem}");
            ExitCode::from(2)
        });
    }
    let Some((folder, request)) = parse(&arguments) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(&folder, &request) {
        Ok(code) => code,
        Err(problem) => {
            eprintln!("freehold-layers: {problem}");
            ExitCode::from(2)
        }
    }
}

fn run(folder: &Path, request: &CommandRequest) -> Result<ExitCode, String> {
    let graph = Graph::read(&folder.join("src/lib.rs"))?;
    let list = folder.join("layers");
    let text = std::fs::read_to_string(&list).map_err(|error| format!("{}: {error}", list.display()))?;
    let layers = Layers::parse(&text).map_err(|problem| format!("{}: {problem}", list.display()))?;
    let verdict = layers.judge(&graph)?;
    match request {
        CommandRequest::Circle => {
            graph.largest_circle().iter().for_each(|&file| println!("{}", graph.files[file].name));
            return Ok(ExitCode::SUCCESS);
        }
        CommandRequest::Hooks => {
            verdict.hooks(&graph).iter().for_each(|hook| println!("{hook}"));
            return Ok(ExitCode::SUCCESS);
        }
        CommandRequest::Arrows { from, to } => {
            verdict.arrows_between(from, to).for_each(|arrow| println!("{}", graph.describe(arrow)));
            return Ok(ExitCode::SUCCESS);
        }
        CommandRequest::Check => {}
        CommandRequest::Write => {
            let smaller = verdict.rewritten(&text)?;
            std::fs::write(&list, smaller).map_err(|error| format!("{}: {error}", list.display()))?;
        }
    }
    summarise(&graph, &verdict);
    let mut complaints = if *request == CommandRequest::Write { Vec::new() } else { verdict.complaints() };
    complaints.extend(verdict.too_many_hooks(&graph));
    complaints.iter().for_each(|complaint| eprintln!("freehold-layers: {complaint}"));
    Ok(if complaints.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn summarise(graph: &Graph, verdict: &LayersVerdict) {
    println!(
        "{} files, {} arrows between them; largest circle {} files; arrows up {}, sideways {}; {} traits of a lower \
         layer are implemented in a higher one",
        graph.files.len(),
        graph.arrows.len(),
        graph.largest_circle().len(),
        verdict.up(),
        verdict.sideways(),
        verdict.hooks(graph).len(),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_asks_for_one_thing() {
        let words = |text: &str| text.split(' ').map(String::from).collect::<Vec<_>>();
        assert_eq!(parse(&words("kernel")), Some(("kernel".into(), CommandRequest::Check)));
        let arrows = CommandRequest::Arrows { from: "mem".into(), to: "task".into() };
        assert_eq!(parse(&words("kernel --arrows mem task")), Some(("kernel".into(), arrows)));
        assert_eq!(parse(&words("kernel --arrows mem")), None);
        assert_eq!(parse(&[]), None);
    }
}
