//! Completion scripts: they know the names that options and arguments take.

use clap::builder::PossibleValuesParser;
use clap::{Command, CommandFactory, ValueHint};

use super::Cli;
use crate::{Result, bench, lab, print, scope};

/// Prints the completion script of `shell` to stdout.
///
/// # Errors
/// stdout takes no bytes.
pub fn print_completion(shell: clap_complete::Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "freehold", &mut script);
    print::stdout(script)
}

/// Returns the command line with all names that it takes. Parsing does not know them: it has better
/// answers to a wrong name.
fn command() -> Command {
    let names = |sub: Command, argument: &'static str, names: Vec<&'static str>| {
        sub.mut_arg(argument, |arg| arg.value_parser(PossibleValuesParser::new(names)))
    };
    let program =
        |sub: Command| sub.mut_arg("program", |arg| arg.value_hint(ValueHint::CommandWithArguments));
    Cli::command()
        .mut_subcommand("bench", |sub| names(sub, "names", bench::names().collect()))
        .mut_subcommand("lab", |sub| names(sub, "name", lab::names().collect()))
        .mut_subcommand("run", program)
        .mut_subcommand("scope", |sub| names(program(sub), "model", scope::model_names().collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script(shell: clap_complete::Shell) -> String {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut command(), "freehold", &mut script);
        String::from_utf8(script).expect("text")
    }

    #[test]
    fn scripts_know_rows_experiments_models_and_programs() {
        command().debug_assert();
        for shell in [clap_complete::Shell::Bash, clap_complete::Shell::Zsh] {
            let script = script(shell);
            for name in ["null-call", "fork-exit", "near-cache", "slowdown", "residue", "locality"] {
                assert!(script.contains(name), "{shell}: {name}");
            }
        }
        let zsh = script(clap_complete::Shell::Zsh);
        assert!(zsh.contains("_cmdambivalent") || zsh.contains("_command"), "programs of the host");
    }
}
