//! Files that this command writes for the user: whole, or not at all. A path that is no regular
//! file (a pipe, a device: `/dev/stdout`) is written to directly.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::failure::Failure;
use crate::{Result, print};

/// Returns whether a file that the user named stands for stdout.
pub fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// Prints the text for people, unless one of `files` uses stdout.
pub fn print_beside<'a>(text: &str, files: impl IntoIterator<Item = &'a Option<PathBuf>>) -> Result<()> {
    if files.into_iter().flatten().any(|path| is_stdout(path)) {
        return Ok(());
    }
    print::stdout(text)
}

/// Writes `bytes` to `path`, or to stdout for `-`. The file is written under another name first, so
/// no reader ever sees half of it. A link stays; its target is replaced.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    if is_stdout(path) {
        return print::stdout(bytes);
    }
    write_pieces(path, |file| file.write_all(bytes))
}

/// Writes in the same way as [`write_whole`], but `fill` writes the parts, to a file or a stream.
pub fn write_pieces(path: &Path, fill: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    let failed = |e: &std::io::Error| Failure::io("write", path, e);
    if is_stream(path) {
        let mut stream = std::fs::OpenOptions::new().write(true).open(path).map_err(|e| failed(&e))?;
        return fill(&mut stream).map_err(|e| failed(&e));
    }
    let path = &target(path);
    let mut file = temporary_beside(path)?;
    fill(file.as_file_mut()).map_err(|e| failed(&e))?;
    file.as_file().set_permissions(PermissionsExt::from_mode(0o644)).map_err(|e| failed(&e))?;
    file.persist(path).map_err(|e| failed(&e.error))?;
    Ok(())
}

/// Writes `record` as JSON that people can read, too.
pub fn write_json(path: &Path, record: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_vec_pretty(record).map_err(|e| Failure::io("write", path, &e.into()))?;
    text.push(b'\n');
    write_whole(path, &text)
}

/// Appends `record` to `path` as one line of JSON. Commands that do so at the same time each have
/// their own line.
///
/// # Errors
/// The file cannot be written.
pub fn append_line(path: &Path, record: &impl Serialize) -> Result<()> {
    let failed = |e: std::io::Error| Failure::io("write", path, &e);
    let mut line = serde_json::to_vec(record).map_err(|e| failed(e.into()))?;
    line.push(b'\n');
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).map_err(failed)?;
    // A single write that appends is not mixed with others, unless the disk is full.
    file.lock().map_err(failed)?;
    file.write_all(&line).map_err(failed)
}

/// Fails now if [`append_line`] would fail later.
///
/// # Errors
/// The file cannot be written.
pub fn check_appendable(path: &Option<PathBuf>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    if is_stdout(path) {
        let message = "--json-lines -: the program's output goes to stdout";
        return Err(Failure::new(message, "name a file"));
    }
    if path.is_dir() {
        return Err(is_a_folder(path));
    }
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
    opened.map(drop).map_err(|e| Failure::io("write", path, &e))
}

/// Fails now if [`write_whole`] would fail for one of these places later, or if one place would be
/// written twice. Called before a run whose results would be lost.
pub fn check_writable<'a>(paths: impl IntoIterator<Item = &'a Option<PathBuf>>) -> Result<()> {
    let mut places: Vec<PathBuf> = Vec::new();
    for path in paths.into_iter().flatten() {
        if is_stdout(path) {
            take(&mut places, path.clone(), path)?;
        } else if path.is_dir() {
            return Err(is_a_folder(path));
        } else if !is_stream(path) {
            let place = target(path);
            temporary_beside(&place)?;
            take(&mut places, place, path)?;
        }
    }
    Ok(())
}

fn is_a_folder(path: &Path) -> Failure {
    Failure::new(format!("cannot write {}: it is a folder", path.display()), "name a file")
}

/// Notes a place for output, which the user called `name`; fails if it was noted before.
fn take(places: &mut Vec<PathBuf>, place: PathBuf, name: &Path) -> Result<()> {
    if places.contains(&place) {
        let message = format!("{} is named for two outputs", name.display());
        return Err(Failure::new(message, "name a file for each"));
    }
    places.push(place);
    Ok(())
}

/// Returns whether the path is something other than a file, which a file cannot replace.
fn is_stream(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// Returns the file at the end of links, by one unique name.
fn target(path: &Path) -> PathBuf {
    let new = || Some(folder(path).canonicalize().ok()?.join(path.file_name()?));
    path.canonicalize().ok().or_else(new).unwrap_or_else(|| path.to_owned())
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn temporary_beside(path: &Path) -> Result<tempfile::NamedTempFile> {
    let folder = folder(path);
    let made = tempfile::Builder::new().prefix(".freehold-").tempfile_in(folder);
    made.map_err(|e| {
        Failure::new(
            format!("cannot write {}: {}", path.display(), reason(&e)),
            format!("{} must be a folder that you may write to", folder.display()),
        )
    })
}

/// Returns the system's words, without the name of the temporary file.
fn reason(error: &std::io::Error) -> String {
    let text = crate::failure::words(error);
    text.split(" at path ").next().unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_file_is_replaced_as_a_whole_and_a_failure_leaves_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("out.json");
        std::fs::write(&path, "old, and longer than the new one").expect("a file");
        write_whole(&path, b"new").expect("written");
        assert_eq!(std::fs::read(&path).expect("readable"), b"new");
        let nowhere = folder.path().join("none/out.json");
        assert!(write_whole(&nowhere, b"x").is_err());
        let message = check_writable([&Some(nowhere)]).expect_err("no such folder").to_string();
        assert!(message.contains("No such file") && !message.contains(".freehold-"), "{message}");
        assert!(check_writable([&Some(folder.path().to_owned())]).is_err(), "a folder is no file");
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }

    #[test]
    fn each_record_is_a_line_of_its_own_whoever_else_appends() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("runs.jsonl");
        check_appendable(&Some(path.clone())).expect("it can be written");
        let record = vec!["x"; 5000];
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..25).for_each(|_| append_line(&path, &record).expect("appended")));
            }
        });
        let text = std::fs::read_to_string(&path).expect("readable");
        let whole = |line: &str| serde_json::from_str::<Vec<String>>(line).is_ok_and(|read| read == record);
        assert_eq!(text.lines().filter(|line| whole(line)).count(), 100);
        assert!(append_line(folder.path(), &record).is_err(), "a folder takes no line");
        assert!(check_appendable(&Some(folder.path().to_owned())).is_err());
    }

    #[test]
    fn a_link_stays_and_a_pipe_is_written_to() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::fs::write(&file, "old").expect("a file");
        std::os::unix::fs::symlink(&file, &link).expect("a link");
        write_whole(&link, b"new").expect("written");
        assert!(link.is_symlink());
        assert_eq!(std::fs::read(&file).expect("readable"), b"new");

        let (mut from, to) = std::io::pipe().expect("a pipe");
        let place = PathBuf::from(format!("/proc/self/fd/{}", to.as_raw_fd()));
        check_writable([&Some(place.clone())]).expect("it can be written to");
        write_whole(&place, b"bytes").expect("written");
        drop(to);
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).expect("readable");
        assert_eq!(bytes, b"bytes");
    }

    #[test]
    fn no_file_is_written_twice() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = |name: &str| Some(folder.path().join(name));
        std::fs::write(folder.path().join("file"), "").expect("a file");
        std::os::unix::fs::symlink("file", folder.path().join("link")).expect("a link");
        check_writable([&place("file"), &place("other"), &None]).expect("two files");
        for (one, two) in [("new", "./new"), ("file", "link")] {
            let message = check_writable([&place(one), &place(two)]).expect_err("one file").to_string();
            assert!(message.contains("two outputs"), "{message}");
        }
    }
}
