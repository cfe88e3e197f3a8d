//! Addresses of the guest kernel as function, file and line.

use std::path::Path;

/// The symbols of a kernel file; empty when it has none.
pub struct Symbols {
    loader: Option<addr2line::Loader>,
}

impl Symbols {
    /// Reads the symbols of `kernel`. A file without any is no error: addresses then stay numbers.
    pub fn of(kernel: &Path) -> Symbols {
        Symbols { loader: addr2line::Loader::new(kernel).ok() }
    }

    /// The lines that describe one frame: the function, and those inlined there, innermost first. All but the
    /// first frame hold return addresses, which belong to the instruction before them.
    pub fn describe(&self, address: u64, slide: u64, depth: usize) -> Vec<String> {
        let linked = address.wrapping_sub(slide).wrapping_sub(u64::from(depth > 0));
        let mut lines = Vec::new();
        if let Some(loader) = &self.loader
            && let Ok(mut frames) = loader.find_frames(linked)
        {
            while let Ok(Some(frame)) = frames.next() {
                let name =
                    frame.function.as_ref().and_then(|f| f.demangle().ok().map(|name| name.into_owned()));
                let place = frame.location.as_ref().and_then(|location| {
                    let file = location.file?;
                    Some(format!(" at {}:{}", shorten(file), location.line.unwrap_or(0)))
                });
                lines.push(format!("{}{}", name.as_deref().unwrap_or("?"), place.unwrap_or_default()));
            }
            if lines.is_empty()
                && let Some(symbol) = loader.find_symbol(linked)
            {
                lines.push(rustc_demangle::demangle(symbol).to_string());
            }
        }
        match lines.first_mut() {
            Some(first) => *first = format!("{address:#x} {first}"),
            None => lines.push(format!("{address:#x}")),
        }
        lines
    }

    /// The function at `address`, without its hash.
    pub fn function(&self, address: u64, slide: u64) -> Option<String> {
        let symbol = self.loader.as_ref()?.find_symbol(address.wrapping_sub(slide))?;
        Some(format!("{:#}", rustc_demangle::demangle(symbol)))
    }

    /// A log line with the function's name after each address of the kernel's image.
    pub fn annotate(&self, line: &str, slide: u64) -> String {
        let mut text = line.to_owned();
        for word in line.split(|c: char| !c.is_ascii_alphanumeric()) {
            let Some(address) =
                word.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok())
            else {
                continue;
            };
            // Only the image, in the top 2 GiB, has symbols.
            if address >= 0xffff_ffff_8000_0000
                && let Some(loader) = &self.loader
                && let Some(symbol) = loader.find_symbol(address.wrapping_sub(slide))
            {
                text = format!("{text} [{}]", rustc_demangle::demangle(symbol));
            }
        }
        text
    }
}

/// A source path from the repository's or the library's top on, where that is to be seen.
fn shorten(file: &str) -> &str {
    for top in ["/kernel/", "/mm/", "/machine/", "/library/"] {
        if let Some(at) = file.rfind(top) {
            return &file[at + 1..];
        }
    }
    let mut cuts = file.rmatch_indices('/').skip(3);
    cuts.next().map_or(file, |(at, _)| &file[at + 1..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_paths_start_at_the_repository() {
        assert_eq!(shorten("/home/me/freehold/kernel/src/fs/open.rs"), "kernel/src/fs/open.rs");
        assert_eq!(shorten("/rust/deps/library/core/src/ptr/mod.rs"), "library/core/src/ptr/mod.rs");
        assert_eq!(shorten("/a/b/c/d/e.rs"), "b/c/d/e.rs");
    }
}
