//! The manual pages, made from the command line's definition and from the text below the options in
//! `--help`.

use std::io::Write as _;

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use super::Cli;
use super::help::{
    BENCH_HELP, COMPLETION_HELP, COVERAGE_HELP, DIFF_HELP, DOCTOR_HELP, LAB_HELP, MAN_HELP, OWNS_HELP,
    RUN_HELP, SCOPE_HELP, SWEEP_HELP,
};
use crate::failure::Failure;
use crate::{Result, print};

/// A subcommand with a page of its own.
struct Topic {
    name: &'static str,
    /// The text behind its options in `--help`.
    help: &'static str,
    environment: &'static [(&'static str, &'static str)],
    files: &'static [(&'static str, &'static str)],
}

impl Topic {
    /// A subcommand that runs VMs.
    const fn of_runs(name: &'static str, help: &'static str) -> Topic {
        Topic { name, help, environment: &ENVIRONMENT, files: &FILES }
    }

    /// A subcommand that reads and writes these files, and starts no VM.
    const fn of_files(
        name: &'static str,
        help: &'static str,
        files: &'static [(&'static str, &'static str)],
    ) -> Topic {
        Topic { name, help, environment: &NO_ENVIRONMENT, files }
    }
}

const TOPICS: [Topic; 11] = [
    Topic::of_runs("run", RUN_HELP),
    Topic::of_runs("scope", SCOPE_HELP),
    Topic::of_files("coverage", COVERAGE_HELP, &COVERAGE_FILES),
    Topic::of_runs("bench", BENCH_HELP),
    Topic::of_runs("lab", LAB_HELP),
    Topic::of_runs("sweep", SWEEP_HELP),
    Topic::of_files("diff", DIFF_HELP, &DIFF_FILES),
    Topic::of_files("owns", OWNS_HELP, &OWNS_FILES),
    Topic::of_runs("doctor", DOCTOR_HELP),
    Topic::of_files("completion", COMPLETION_HELP, &COMPLETION_FILES),
    Topic::of_files("man", MAN_HELP, &MAN_FILES),
];

/// The names that `freehold man` takes.
pub const PAGES: [&str; 11] = {
    let mut names = [""; 11];
    let mut at = 0;
    while at < names.len() {
        names[at] = TOPICS[at].name;
        at += 1;
    }
    names
};

/// The page of the whole command says this instead of a subcommand's own.
const STATUS: &str = "\
Each subcommand's page has its own. In common: 125 is an error of freehold's own, 124 a guest that did not end in time, 255 a guest that died. \
freehold run and freehold scope end with the program's status.";

const ENVIRONMENT: [(&str, &str); 7] = [
    ("FREEHOLD_KERNEL", "The kernel, where --kernel is not given."),
    ("FREEHOLD_QEMU", "The QEMU to use instead of the first qemu-system-x86_64 in PATH."),
    ("FREEHOLD_SCOPE_PLUGIN", "The plugin for QEMU that freehold scope uses."),
    (
        "FREEHOLD_COVERAGE",
        "A file to which each run on Freehold's own kernel adds the code that ran, as freehold scope --coverage does.",
    ),
    (
        "PATH",
        "Where programs that are named without a slash are looked for, on this machine and so in the VM, and QEMU.",
    ),
    ("TERM", "Handed to the program where it has a terminal."),
    ("XDG_CACHE_HOME, HOME", "Where the cache is."),
];

const NO_ENVIRONMENT: [(&str, &str); 1] =
    [("FREEHOLD_*", "No variable changes what this subcommand does: it starts no VM.")];

const COVERAGE_FILES: [(&str, &str); 1] = [(
    "FILE",
    "A record: freehold scope --coverage writes it, and each freehold run with FREEHOLD_COVERAGE in its environment. It is of one kernel file.",
)];

const DIFF_FILES: [(&str, &str); 1] = [(
    "A, B",
    "Records of --json of freehold run, bench, lab or scope. Their schemas are in the folder docs/schema of the source code.",
)];

const OWNS_FILES: [(&str, &str); 2] = [
    (
        "SOCKET",
        "A socket that freehold run --control made. Only its user may open it, and it goes with its run.",
    ),
    ("FILE", "A record that freehold run --owns --json wrote."),
];

const COMPLETION_FILES: [(&str, &str); 3] = [
    ("PREFIX/share/bash-completion/completions/freehold", "Where make install puts the script for bash."),
    ("PREFIX/share/zsh/site-functions/_freehold", "… for zsh."),
    ("PREFIX/share/fish/vendor_completions.d/freehold.fish", "… for fish."),
];

const MAN_FILES: [(&str, &str); 1] =
    [("PREFIX/share/man/man1/freehold*.1", "Where make install puts the pages.")];

const FILES: [(&str, &str); 5] = [
    (
        "PREFIX/lib/freehold/freehold-kernel",
        "The kernel. PREFIX is that of the command; one beside the command comes first.",
    ),
    (
        "PREFIX/lib/freehold/freehold-kernel.symbols.gz",
        "The names of the kernel's functions, where the kernel itself has none, as in a package.",
    ),
    ("PREFIX/lib/freehold/libfreehold_scope.so", "The microscope, a plugin of QEMU."),
    ("PREFIX/lib/freehold/guest/", "Programs that the command puts into guests."),
    (
        "$XDG_CACHE_HOME/freehold, ~/.cache/freehold",
        "Stock Linux kernels that were fetched, files that a command of cargo install brought along, and what was found out or said once.",
    ),
];

/// Prints a manual page to stdout: of the subcommand `topic`, or of the whole command.
pub fn print_man(topic: Option<&str>) -> Result<()> {
    let page = match TOPICS.iter().find(|known| Some(known.name) == topic) {
        Some(topic) => subcommand_page(topic),
        None => main_page(),
    };
    print::stdout(page.map_err(|e| Failure::new(format!("cannot make the manual page: {e}"), ""))?)
}

fn whole() -> Command {
    let mut command = Cli::command();
    command.build();
    command
}

fn main_page() -> std::io::Result<Vec<u8>> {
    let mut page = Vec::new();
    let command = whole();
    let man = Man::new(command.clone());
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    page.extend_from_slice(b".SH COMMANDS\n");
    for topic in &TOPICS {
        let about = about(&command, topic.name);
        write!(page, ".TP\n\\fBfreehold\\-{}\\fR(1)\n{}\n", topic.name, escaped(&about))?;
    }
    let others =
        command.get_subcommands().filter(|sub| !PAGES.contains(&sub.get_name()) && sub.get_name() != "help");
    for sub in others {
        let about = about(&command, sub.get_name());
        write!(page, ".TP\n\\fBfreehold {}\\fR\n{}\n", sub.get_name(), escaped(&about))?;
    }
    section(&mut page, "EXIT STATUS", STATUS)?;
    list(&mut page, "ENVIRONMENT", &ENVIRONMENT)?;
    list(&mut page, "FILES", &FILES)?;
    let (examples, _) = split(RUN_HELP);
    example_section(&mut page, &examples)?;
    let pages: Vec<_> = PAGES.iter().map(|name| format!("freehold-{name}")).collect();
    see_also(&mut page, &pages)?;
    Ok(page)
}

fn subcommand_page(topic: &Topic) -> std::io::Result<Vec<u8>> {
    let mut page = Vec::new();
    let command = whole();
    let name = format!("freehold-{}", topic.name);
    let sub = command.find_subcommand(topic.name).cloned().unwrap_or_default();
    let man = Man::new(sub).title(name.to_uppercase());
    man.render_title(&mut page)?;
    write!(page, ".SH NAME\n{} \\- {}\n", escaped(&name), escaped(&about(&command, topic.name)))?;
    man.render_synopsis_section(&mut page)?;
    man.render_options_section(&mut page)?;
    let (examples, notes) = split(topic.help);
    for (heading, text) in &notes {
        section(&mut page, heading, text)?;
    }
    if !notes.iter().any(|(heading, _)| *heading == "EXIT STATUS") {
        section(&mut page, "EXIT STATUS", "0; 125 an error of freehold's own.")?;
    }
    list(&mut page, "ENVIRONMENT", topic.environment)?;
    list(&mut page, "FILES", topic.files)?;
    example_section(&mut page, &examples)?;
    let others = PAGES.iter().filter(|other| **other != topic.name).map(|other| format!("freehold-{other}"));
    see_also(&mut page, &[vec!["freehold".to_owned()], others.collect()].concat())?;
    Ok(page)
}

fn about(command: &Command, name: &str) -> String {
    let sub = command.find_subcommand(name);
    sub.and_then(Command::get_about).map(ToString::to_string).unwrap_or_default()
}

/// Splits the text behind the options in `--help`: the examples' lines, and the paragraphs under
/// the headings that manual pages have for them.
fn split(help: &str) -> (String, Vec<(&'static str, String)>) {
    let (mut examples, mut notes) = (String::new(), Vec::new());
    for paragraph in help.split("\n\n") {
        let under = |heading: &'static str, word: &str| Some((heading, paragraph.strip_prefix(word)?.trim()));
        let known = under("EXIT STATUS", "Exit status:").or_else(|| under("WHAT THE VM SEES", "Files:"));
        if let Some(lines) = paragraph.strip_prefix("Examples:\n") {
            lines.clone_into(&mut examples);
        } else {
            let (heading, text) = known.unwrap_or(("NOTES", paragraph));
            notes.push((heading, text.to_owned()));
        }
    }
    // man-pages(7) gives the order, with one section of each name.
    notes.sort_by_key(|(heading, _)| *heading != "NOTES" && *heading != "WHAT THE VM SEES");
    let mut joined: Vec<(&'static str, String)> = Vec::new();
    for (heading, text) in notes {
        match joined.iter_mut().find(|(before, _)| *before == heading) {
            Some((_, before)) => *before = format!("{before}\n\n{text}"),
            None => joined.push((heading, text)),
        }
    }
    (examples, joined)
}

/// Escapes text so that roff prints it unchanged.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

fn section(page: &mut Vec<u8>, heading: &str, text: &str) -> std::io::Result<()> {
    writeln!(page, ".SH \"{heading}\"")?;
    for line in escaped(text).lines() {
        // A line that starts with a dot would be a request to roff; an empty line needs one.
        if line.is_empty() { writeln!(page, ".PP")? } else { writeln!(page, "\\&{line}")? }
    }
    Ok(())
}

fn list(page: &mut Vec<u8>, heading: &str, entries: &[(&str, &str)]) -> std::io::Result<()> {
    writeln!(page, ".SH {heading}")?;
    for (name, text) in entries {
        write!(page, ".TP\n\\fB{}\\fR\n{}\n", escaped(name), escaped(text))?;
    }
    Ok(())
}

fn example_section(page: &mut Vec<u8>, examples: &str) -> std::io::Result<()> {
    if examples.is_empty() {
        return Ok(());
    }
    page.extend_from_slice(b".SH EXAMPLES\n.nf\n");
    escaped(examples).lines().try_for_each(|line| writeln!(page, "\\&{line}"))?;
    page.extend_from_slice(b".fi\n");
    Ok(())
}

fn see_also(page: &mut Vec<u8>, pages: &[String]) -> std::io::Result<()> {
    page.extend_from_slice(b".SH \"SEE ALSO\"\n");
    let names = pages.iter().map(|name| format!("\\fB{}\\fR(1)", escaped(name)));
    let all: Vec<_> = names.chain(["\\fBqemu\\-system\\-x86_64\\fR(1)".to_owned()]).collect();
    writeln!(page, "{}", all.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(page: std::io::Result<Vec<u8>>) -> String {
        String::from_utf8(page.expect("a page")).expect("UTF-8")
    }

    #[test]
    fn every_subcommand_with_options_has_a_page_and_every_page_its_sections() {
        let command = whole();
        let without = ["version", "help"];
        for sub in command.get_subcommands().filter(|sub| !without.contains(&sub.get_name())) {
            assert!(PAGES.contains(&sub.get_name()), "{} has no page", sub.get_name());
        }
        for topic in &TOPICS {
            let page = text(subcommand_page(topic));
            assert!(page.contains(&format!(".SH NAME\nfreehold\\-{} \\- ", topic.name)), "{page}");
            for heading in ["SYNOPSIS", "OPTIONS", "\"EXIT STATUS\"", "ENVIRONMENT", "FILES", "\"SEE ALSO\""]
            {
                assert_eq!(
                    page.matches(&format!(".SH {heading}\n")).count(),
                    1,
                    "{heading} of {}",
                    topic.name
                );
            }
        }
        let page = text(main_page());
        for heading in ["COMMANDS", "\"EXIT STATUS\"", "ENVIRONMENT", "FILES", "EXAMPLES", "\"SEE ALSO\""] {
            assert!(page.contains(&format!(".SH {heading}\n")), "{heading}");
        }
        for name in PAGES {
            assert!(page.contains(&format!("freehold\\-{name}\\fR(1)")), "{name}");
        }
    }

    #[test]
    fn nothing_of_a_help_is_lost_in_its_page() {
        for topic in &TOPICS {
            let page = text(subcommand_page(topic));
            for line in topic.help.lines().filter(|line| !line.is_empty() && *line != "Examples:") {
                let line = line.trim_start_matches("Exit status: ").trim_start_matches("Files: ");
                assert!(page.contains(&escaped(line)), "{}: {line}", topic.name);
            }
        }
    }

    #[test]
    fn no_line_of_a_text_is_a_request() {
        let mut page = Vec::new();
        section(&mut page, "X", ".so /etc/passwd\n\n'quoted").expect("written");
        assert_eq!(String::from_utf8_lossy(&page), ".SH \"X\"\n\\&.so /etc/passwd\n.PP\n\\&'quoted\n");
    }
}
