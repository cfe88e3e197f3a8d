//! The folders in which the dynamic loader looks for a library.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::Object;

/// Built into Debian's loader; other distributions have a subset of these.
const DEFAULTS: [&str; 6] =
    ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// The search path that is common to all objects of a program.
pub struct Folders {
    library_path: Vec<PathBuf>,
    system: Vec<PathBuf>,
}

impl Folders {
    /// Returns the folders of this host: `library_path` (LD_LIBRARY_PATH), ld.so.conf and the
    /// defaults.
    pub fn of_host(library_path: Option<&OsStr>) -> Folders {
        let mut system = Vec::new();
        read_configuration(Path::new("/etc/ld.so.conf"), &mut system, 0);
        system.extend(DEFAULTS.iter().map(PathBuf::from));
        Folders {
            library_path: library_path.map(|path| std::env::split_paths(path).collect()).unwrap_or_default(),
            system,
        }
    }

    /// Finds `library` for an object with these RPATHs and this RUNPATH.
    pub fn find(&self, library: &OsStr, rpath: &[PathBuf], runpath: &[PathBuf]) -> Option<PathBuf> {
        if library.as_bytes().contains(&b'/') {
            return Some(PathBuf::from(library)).filter(|path| Object::fits(path));
        }
        let rpath = if runpath.is_empty() { rpath } else { &[] };
        rpath
            .iter()
            .chain(&self.library_path)
            .chain(runpath)
            .chain(&self.system)
            .map(|folder| folder.join(library))
            .find(|path| Object::fits(path))
    }
}

/// Reads ld.so.conf(5): one folder per line, `include PATTERN`, comments.
fn read_configuration(file: &Path, folders: &mut Vec<PathBuf>, depth: usize) {
    const MAX_INCLUDES: usize = 8;
    let Ok(text) = std::fs::read_to_string(file) else {
        return;
    };
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or("").trim();
        if let Some(pattern) = line.strip_prefix("include ") {
            if depth < MAX_INCLUDES {
                for included in matching(Path::new(pattern.trim())) {
                    read_configuration(&included, folders, depth + 1);
                }
            }
        } else if line.starts_with('/') {
            folders.push(line.into());
        }
    }
}

/// Returns files that match a pattern with at most one `*`, in its last component: the only form in
/// use.
fn matching(pattern: &Path) -> Vec<PathBuf> {
    let name = pattern.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some((before, after)) = name.split_once('*') else {
        return vec![pattern.to_path_buf()];
    };
    let folder = pattern.parent().unwrap_or(Path::new("/"));
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.len() >= before.len() + after.len() && name.starts_with(before) && name.ends_with(after)
        })
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn included_configuration_files_are_followed_in_order() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("write");
        std::fs::create_dir(dir.path().join("d")).expect("mkdir");
        write("d/b.conf", "/second # comment\n");
        write("d/a.conf", "/first\n");
        write("ld.so.conf", &format!("include {}/d/*.conf\n/third\n", dir.path().display()));
        let mut folders = Vec::new();
        read_configuration(&dir.path().join("ld.so.conf"), &mut folders, 0);
        assert_eq!(folders, ["/first", "/second", "/third"].map(PathBuf::from));
    }
}
