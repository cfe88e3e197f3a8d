//! The `freehold` command: packs a Linux program, boots it in a microVM on the Freehold kernel (or
//! a stock Linux, for comparison), connects its streams and ends with its status.
//!
//! Exit statuses: the program's own 0–255; 128+N if signal N ended the program; 124 time-out; 125
//! an error of ours (one line, with a hint), or of the kernel under `scope`; 126 the program cannot
//! be executed; 127 there is no such program; 255 the guest died (the cause is always printed).
#![forbid(unsafe_code)]

mod accel;
mod args;
mod backtrace;
mod bench;
mod changes;
mod container;
mod coverage;
mod diff;
mod doctor;
mod dry_run;
mod ending;
mod events;
mod failure;
mod files;
mod host_view;
mod html;
mod image;
mod kernel;
mod lab;
mod learned;
mod linux;
mod outcome;
mod owns;
mod payload;
mod print;
mod program;
mod progress;
mod protocol;
mod qemu;
mod report;
mod run;
mod schema;
mod scope;
mod session;
mod sheet;
mod size;
mod statistics;
mod strace;
mod stuck;
mod sweep;
mod symbol_file;
mod terminal;
mod user;
mod volume;

use std::process::ExitCode;

use args::Command;
use failure::Failure;

fn main() -> ExitCode {
    let command = match args::parse() {
        Ok(command) => command,
        Err(status) => return ExitCode::from(status),
    };
    let result = match command {
        Command::Run(options) => run::run(&options),
        Command::Scope(options) => scope::scope(&options),
        Command::Coverage(options) => coverage::coverage(&options),
        Command::Bench(options) => bench::bench(&options),
        Command::Lab(options) => lab::lab(&options),
        Command::Sweep(options) => sweep::sweep(&options),
        Command::Diff(options) => diff::diff(&options),
        Command::Owns(options) => owns::owns(&options),
        Command::Doctor(options) => doctor::doctor(&options),
        Command::Completion { shell } => args::print_completion(shell).map(|()| 0),
        Command::Man { topic } => args::print_man(topic.as_deref()).map(|()| 0),
        Command::Version => print::stdout(format!("freehold {}\n", env!("CARGO_PKG_VERSION"))).map(|()| 0),
    };
    match result {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            terminal::restore();
            ExitCode::from(failure.exit())
        }
    }
}

/// The result type of all modules of this command.
pub(crate) type Result<T> = std::result::Result<T, Failure>;
