//! Files that this command writes for the user: whole, or not at all.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde::Serialize;

use crate::Result;
use crate::failure::Failure;

/// Writes `bytes` to `path`: under another name first, so that nobody ever sees a half of it.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    let failed = |e: &std::io::Error| Failure::io("write", path, e);
    let mut file = temporary_beside(path)?;
    file.write_all(bytes).map_err(|e| failed(&e))?;
    file.as_file().set_permissions(PermissionsExt::from_mode(0o644)).map_err(|e| failed(&e))?;
    file.persist(path).map_err(|e| failed(&e.error))?;
    Ok(())
}

/// Writes `record` as JSON for machines that people can read too.
pub fn write_json(path: &Path, record: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_vec_pretty(record).map_err(|e| Failure::io("write", path, &e.into()))?;
    text.push(b'\n');
    write_whole(path, &text)
}

/// Fails now if [`write_whole`] would fail for its place later: asked before a run that would be lost.
pub fn check_writable(path: &Path) -> Result<()> {
    if path.is_dir() {
        return Err(Failure::new(format!("cannot write {}: it is a folder", path.display()), "name a file"));
    }
    temporary_beside(path).map(drop)
}

fn temporary_beside(path: &Path) -> Result<tempfile::NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let made = tempfile::Builder::new().prefix(".freehold-").tempfile_in(folder);
    made.map_err(|e| {
        Failure::new(
            format!("cannot write {}: {}", path.display(), reason(&e)),
            format!("{} must be a folder that you may write to", folder.display()),
        )
    })
}

/// The system's words, without the name of the temporary file.
fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" at path ").next().unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
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
        let message = check_writable(&nowhere).expect_err("no such folder").to_string();
        assert!(message.contains("No such file") && !message.contains(".freehold-"), "{message}");
        assert!(check_writable(folder.path()).is_err(), "a folder is no file");
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }
}
