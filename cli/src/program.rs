//! Finds the program on the host and all files that it names: libraries, their libraries,
//! interpreters.
//!
//! The rules are those of the dynamic loader (ld.so(8)): RPATH of the object and of its loaders
//! unless there is a RUNPATH, LD_LIBRARY_PATH, RUNPATH, the folders of ld.so.conf, the default
//! folders. Files that a program opens by name at run time (dlopen, data files) cannot be seen
//! here: the user adds them with `-a`.

mod elf;
mod folders;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use crate::failure::{Failure, words};
use crate::run::DEFAULT_PATH;
use crate::{Result, image};
pub use elf::Object;
use folders::Folders;

/// Largest number of interpreters in a chain of scripts, as in Linux.
const MAX_INTERPRETERS: usize = 4;

/// A program as the guest will see it.
#[derive(Debug)]
pub struct Program {
    /// The program's path in the guest.
    pub guest: PathBuf,
    /// Host files that the program needs, itself included, each at the same path in the guest.
    pub files: BTreeSet<PathBuf>,
}

/// Finds `name` as a shell would and gathers its files. `library_path` is the guest's
/// LD_LIBRARY_PATH.
pub fn find(name: &OsStr, library_path: Option<&OsStr>) -> Result<Program> {
    let host = locate(name)?;
    let mut closure = Closure { folders: Folders::of_host(library_path), files: BTreeSet::new() };
    closure.add_program(&host, 0)?;
    if closure.files.len() > 1 && Path::new("/etc/ld.so.cache").exists() {
        closure.files.insert("/etc/ld.so.cache".into());
    }
    Ok(Program { guest: host, files: closure.files })
}

/// Returns a file that the user adds, with its libraries if it is a program or a library itself.
pub fn with_needs(path: &Path, library_path: Option<&OsStr>) -> Result<BTreeSet<PathBuf>> {
    let host = absolute(path)?;
    let mut closure = Closure { folders: Folders::of_host(library_path), files: BTreeSet::new() };
    if Object::fits(&host) {
        closure.add_object(&host, &[])?;
    } else if is_script(&host) {
        closure.add_program(&host, 0)?;
    } else {
        closure.files.insert(host);
    }
    Ok(closure.files)
}

/// Returns whether a file is executable and starts with `#!`.
fn is_script(path: &Path) -> bool {
    let mut head = [0; 2];
    runs(path)
        && fs::File::open(path).and_then(|mut file| file.read_exact(&mut head)).is_ok()
        && head == *b"#!"
}

/// Returns the places in the guest at which a shell whose PATH is `path` looks for `name`.
pub fn places(name: &OsStr, path: &OsStr) -> Vec<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return vec![Path::new("/").join(name)];
    }
    std::env::split_paths(path).map(|folder| folder.join(name)).collect()
}

fn is_program(meta: &fs::Metadata) -> bool {
    meta.is_file() && meta.permissions().mode() & 0o111 != 0
}

/// Finds `name` as a shell would inside the tree `root`, which will be the guest's.
pub fn find_in_tree(name: &OsStr, root: &Path) -> Result<Program> {
    for guest in places(name, OsStr::new(DEFAULT_PATH)) {
        let Some(meta) = metadata_in_tree(&guest, root)? else { continue };
        if is_program(&meta) {
            return Ok(Program { guest, files: BTreeSet::new() });
        }
        if name.as_bytes().contains(&b'/') {
            let what = if meta.is_dir() { "a folder, not a program" } else { "not executable" };
            let shown = format!("{} in {} is {what}", guest.display(), root.display());
            return Err(Failure::not_executable(shown, ""));
        }
    }
    Err(Failure::not_found(
        format!("no such program in {}: {}", root.display(), name.display()),
        "with --root the program is looked for inside the tree",
    ))
}

/// Returns the metadata of the file that `guest` leads to in the tree `root`, whose symlinks stay
/// inside; `None` where there is no file.
fn metadata_in_tree(guest: &Path, root: &Path) -> Result<Option<fs::Metadata>> {
    let end = image::walk(guest, |at, _| Ok(fs::read_link(image::in_tree(root, at)).ok()))?;
    Ok(fs::symlink_metadata(image::in_tree(root, &end)).ok())
}

/// Returns whether `guest` leads to a file in the tree `root` with execute permission.
pub fn runs_in_tree(guest: &Path, root: &Path) -> bool {
    metadata_in_tree(guest, root).is_ok_and(|found| found.is_some_and(|meta| is_program(&meta)))
}

/// Returns whether `path` leads to a file with execute permission.
pub fn runs(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|meta| is_program(&meta))
}

/// Returns the absolute path of `name`, without `.` and `..`; symlinks are not followed.
fn locate(name: &OsStr) -> Result<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        let path = absolute(Path::new(name))?;
        return match fs::metadata(&path) {
            Ok(_) => Ok(path),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(Failure::not_found(
                format!("no such program: {}", name.display()),
                "the path is a path on the host; use -v HOST:GUEST to place files elsewhere",
            )),
            Err(error) => Err(Failure::not_executable(
                format!("{} cannot be executed: {}", name.display(), words(&error)),
                "",
            )),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    for dir in std::env::split_paths(&path) {
        let candidate = dir.join(name);
        if runs(&candidate) {
            return absolute(&candidate);
        }
    }
    let hint = if Path::new(name).exists() {
        format!("there is one in this folder: write ./{}", name.display())
    } else {
        "looked in every folder of PATH".into()
    };
    Err(Failure::not_found(format!("no such program: {}", name.display()), hint))
}

/// Returns `path` as an absolute path, with `.` and `..` removed by name.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    let whole = std::path::absolute(path).map_err(|e| Failure::io("find", path, &e))?;
    let mut clean = PathBuf::from("/");
    for part in whole.components() {
        match part {
            Component::ParentDir => {
                clean.pop();
            }
            Component::Normal(name) => clean.push(name),
            _ => {}
        }
    }
    Ok(clean)
}

/// Gathers files; every object is read once.
struct Closure {
    folders: Folders,
    files: BTreeSet<PathBuf>,
}

impl Closure {
    fn add_program(&mut self, path: &Path, depth: usize) -> Result<()> {
        let meta = fs::metadata(path).map_err(|e| Failure::io("read", path, &e))?;
        if meta.is_dir() {
            return Err(Failure::not_executable(
                format!("{} is a folder, not a program", path.display()),
                "",
            ));
        }
        if !meta.is_file() {
            return Err(Failure::not_executable(format!("{} is no regular file", path.display()), ""));
        }
        if meta.permissions().mode() & 0o111 == 0 {
            return Err(Failure::not_executable(
                format!("{} is not executable", path.display()),
                format!("chmod +x {}", path.display()),
            ));
        }
        let mut head = [0; 256];
        let got = fs::File::open(path)
            .and_then(|mut file| file.read(&mut head))
            .map_err(|e| Failure::io("read", path, &e))?;
        match head[..got].strip_prefix(b"#!") {
            Some(line) => self.add_script(path, line, depth),
            None => self.add_object(path, &[]),
        }
    }

    fn add_script(&mut self, path: &Path, line: &[u8], depth: usize) -> Result<()> {
        if depth == MAX_INTERPRETERS {
            return Err(Failure::not_executable(
                format!("{}: too many interpreters in a row", path.display()),
                "a script's #! line names a script, and so on",
            ));
        }
        self.files.insert(path.to_path_buf());
        let line = line.split(|&b| b == b'\n').next().unwrap_or(line);
        let mut words = line
            .split(|b| b.is_ascii_whitespace())
            .filter(|word| !word.is_empty())
            .map(|word| OsString::from_vec(word.to_vec()));
        let Some(interpreter) = words.next() else {
            return Err(Failure::not_executable(
                format!("{}: its #! line names no interpreter", path.display()),
                "",
            ));
        };
        let interpreter_path = Path::new(&interpreter);
        if !interpreter_path.exists() {
            return Err(Failure::not_executable(
                format!("{}: its interpreter {} does not exist", path.display(), interpreter.display()),
                "",
            ));
        }
        self.add_program(&absolute(interpreter_path)?, depth + 1)?;
        if interpreter_path.file_name() == Some(OsStr::new("env")) {
            // Handles `#!/usr/bin/env NAME`, perhaps with -S and VAR=value before the name.
            let program =
                words.find(|word| !word.as_bytes().starts_with(b"-") && !word.as_bytes().contains(&b'='));
            if let Some(program) = program {
                self.add_program(&locate(&program)?, depth + 1)?;
            }
        }
        Ok(())
    }

    /// Adds an object and its libraries. `rpaths` are the RPATHs of the objects that led here.
    fn add_object(&mut self, path: &Path, rpaths: &[PathBuf]) -> Result<()> {
        if !self.files.insert(path.to_path_buf()) {
            return Ok(());
        }
        let object = Object::read(path)?;
        if let Some(interpreter) = &object.interpreter {
            if !interpreter.exists() {
                return Err(Failure::new(
                    format!(
                        "{}: its dynamic loader {} does not exist",
                        path.display(),
                        interpreter.display()
                    ),
                    "install the C library that it was built for",
                ));
            }
            self.files.insert(absolute(interpreter)?);
        }
        let mut rpaths = rpaths.to_vec();
        if object.runpath.is_empty() {
            rpaths.splice(0..0, object.rpath.iter().cloned());
        }
        for library in &object.needed {
            let Some(found) = self.folders.find(library, &rpaths, &object.runpath) else {
                return Err(Failure::new(
                    format!("library {} is missing: {} needs it", library.display(), path.display()),
                    "install it, or name its folder with -e LD_LIBRARY_PATH=DIR",
                ));
            };
            self.add_object(&absolute(&found)?, &rpaths)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_program_brings_its_loader_and_libraries() {
        let program = find(OsStr::new("ls"), None).expect("ls is everywhere");
        let names: Vec<_> = program
            .files
            .iter()
            .filter_map(|path| path.file_name())
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        assert!(names.iter().any(|name| name == "libc.so.6"), "{names:?}");
        assert!(names.iter().any(|name| name.starts_with("ld-linux")), "{names:?}");
    }

    #[test]
    fn a_script_brings_its_interpreter_and_what_env_names() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let script = dir.path().join("script");
        fs::write(&script, "#!/usr/bin/env sh\necho\n").expect("write");
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("chmod");
        let program = find(script.as_os_str(), None).expect("script");
        for name in ["env", "sh"] {
            assert!(program.files.iter().any(|path| path.ends_with(name)), "{name}");
        }
    }

    #[test]
    fn links_of_a_tree_stay_in_it() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let inside = |path: &str| dir.path().join(path);
        fs::create_dir_all(inside("usr/bin")).expect("mkdir");
        std::os::unix::fs::symlink("/usr/bin", inside("bin")).expect("symlink");
        std::os::unix::fs::symlink("/usr/bin/own", inside("link")).expect("symlink");
        std::os::unix::fs::symlink("../../../bin/sh", inside("out")).expect("symlink");
        fs::write(inside("usr/bin/own"), "").expect("write");
        let find = |name: &str| find_in_tree(OsStr::new(name), dir.path());
        assert!(find("/link").unwrap_err().to_string().contains("not executable"));
        fs::set_permissions(inside("usr/bin/own"), fs::Permissions::from_mode(0o755)).expect("chmod");
        assert_eq!(find("own").expect("found").guest, Path::new("/usr/bin/own"));
        assert_eq!(find("/link").expect("found").guest, Path::new("/link"));
        for (name, why) in [("/bin", "a folder"), ("/out", "no such program"), ("sh", "no such program")] {
            assert!(find(name).unwrap_err().to_string().contains(why), "{name}");
        }
    }

    #[test]
    fn paths_lose_their_dots() {
        let path = absolute(Path::new("/usr/./lib/../bin/x")).expect("absolute");
        assert_eq!(path, Path::new("/usr/bin/x"));
    }
}
