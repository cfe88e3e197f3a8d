//! The functions of a stock Linux, from the kernel itself (/proc/kallsyms). It is booted once,
//! unwatched, and the answer is kept while its file does not change. Distributions ship no symbols
//! beside their kernels, and reading /proc/kallsyms in the watched run would cost more instructions
//! than many programs.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::failure::Failure;
use crate::image::Image;
use crate::image::spec::{ProgramStream, Spec, Symbols};
use crate::kernel::KernelChoice;
use crate::qemu::{Engine, Files, VirtualMachine};
use crate::session::{self, Job, LogTo, OutputTo, Purpose};
use crate::size::MIB;
use crate::user::User;
use crate::{Result, files, linux, run};

/// Deadline for the answer: the kernel boots in seconds.
const DEADLINE: Duration = Duration::from_secs(120);

/// Returns names by address, with the addresses of that boot.
pub fn functions(kernel: &KernelChoice) -> Result<BTreeMap<u64, String>> {
    let kept = kept_as(kernel);
    if let Some(table) = kept.as_ref().and_then(|path| parse(&fs::read_to_string(path).ok()?)) {
        return Ok(table);
    }
    let text = ask(kernel)?;
    let table = parse(&text).ok_or_else(|| {
        Failure::new("this kernel tells no symbols (/proc/kallsyms)", "--symbols ELF takes them from a file")
    })?;
    if let Some(path) = kept {
        // Without a cache the kernel is asked again next time.
        let _ = path.parent().map(fs::create_dir_all);
        let _ = files::write_whole(&path, text.as_bytes());
    }
    Ok(table)
}

fn kept_as(kernel: &KernelChoice) -> Option<PathBuf> {
    let meta = fs::metadata(&kernel.path).ok()?;
    let name = kernel.path.file_name()?.to_string_lossy().into_owned();
    let file = format!("{name}-{}-{}", meta.len(), meta.mtime());
    Some(linux::cache_folder().ok()?.join("symbols").join(file))
}

/// Parses the table. `None` unless every line is an address and a name, and the start of text is
/// among them.
fn parse(text: &str) -> Option<BTreeMap<u64, String>> {
    let mut table = BTreeMap::new();
    for line in text.lines() {
        let (address, name) = line.split_once(' ')?;
        let address = u64::from_str_radix(address, 16).ok()?;
        // The first of several names is kept; `_text` is needed to compute the slide.
        if name == "_text" || !table.contains_key(&address) {
            table.insert(address, name.to_owned());
        }
    }
    table.values().any(|name| name == "_text").then_some(table)
}

fn ask(kernel: &KernelChoice) -> Result<String> {
    let mut image = Image::new(User::ROOT);
    let spec = Spec {
        exec: "/none".into(),
        arguments: vec!["none".into()],
        environment: Vec::new(),
        cwd: "/".into(),
        user: User::ROOT,
        streams: [ProgramStream::Pipe; 3],
        window: (24, 80),
        symbols: Symbols::All,
        swap: None,
        events: None,
        shares: Vec::new(),
        network: None,
        learns: false,
        owns: Vec::new(),
        tells_areas: false,
    };
    image.add_bytes(Path::new(run::SPEC), 0o600, spec.encode());
    run::add_init(&mut image, kernel)?;
    let mut file = tempfile::Builder::new()
        .prefix("freehold-symbols-")
        .tempfile()
        .map_err(|e| Failure::new(format!("cannot make a temporary file: {e}"), ""))?;
    image.write(file.as_file_mut())?;
    let ended = session::run(&Job {
        machine: &VirtualMachine::small(256 * MIB),
        kernel,
        files: Files { initramfs: file.path(), swap: None },
        engine: Engine::Tcg,
        streams: [ProgramStream::Pipe; 3],
        output: OutputTo::Stdout,
        timeout: Some(DEADLINE),
        purpose: Purpose::Symbols,
        log: LogTo::Nowhere,
        member: None,
        control: None,
        strace: None,
    })?;
    ended.symbols.ok_or_else(|| {
        Failure::new(
            "the kernel did not come up to tell its symbols",
            "does freehold run --kernel boot it? --symbols ELF takes them from a file",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_needs_the_start_of_text_and_whole_lines() {
        let table = parse("ffffffff81000000 startup_64\nffffffff81000000 _text\nffffffff81000040 later\n");
        let table = table.expect("a table");
        assert_eq!(
            table.range(..=0xffff_ffff_8100_0050).next_back().map(|(_, name)| &name[..]),
            Some("later")
        );
        assert!(parse("ffffffff81000040 later\n").is_none(), "no start of text: no slide");
        assert!(parse("ffffffff81000000 _text\nffff").is_none(), "cut short");
    }
}
