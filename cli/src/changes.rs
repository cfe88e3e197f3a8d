//! `--changes DIR` keeps the changes of programs in the guest, and a later run continues from them.
//!
//! DIR has two parts. `files` is an ordinary tree of new and changed files, at their paths in the
//! guest, except devices and FIFOs. `changes` is a text with a line for each of them and for each
//! name that was removed. The guest's kernel writes it; its `overlay::keep` describes the form.
//! Owners and exact modes are in the text, since a file on the host belongs to the host's user. So
//! a guest can never create a set-ID program or a device on the host, and no special rights are
//! needed.
//!
//! The guest writes into a new folder beside DIR, and sees neither. When all is written, the two
//! exchange places in one step: DIR has everything of one run or everything of the run before. A
//! user may change `files`: a file without a line belongs to root, a line without its file is
//! ignored.

mod lines;

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use serde::Serialize;
use tempfile::TempDir;

pub use self::lines::unescaped;
use self::lines::{Attribute, ChangeLines, KeptKind};
use crate::Result;
use crate::failure::{Failure, words};
use crate::image::{Image, ImageNode, in_tree};
use crate::qemu::share::{FolderShare, ShareAccess, ShareOwners};
use crate::session::End;
use crate::size::{MIB, show_size};
use crate::user::User;
use crate::volume::FolderSharing;
use crate::{print, program};

const FILES: &str = "files";
const LINES: &str = "changes";
/// Path in the guest of the kept changes and their attributes.
const IN_IMAGE: &str = "/.freehold/changes";
const ATTRIBUTES: &str = "/.freehold/attributes";

/// A folder that keeps changes.
#[derive(Debug)]
pub struct Changes {
    /// The path as the user named it.
    shown: PathBuf,
    folder: PathBuf,
    /// A folder beside it, for this run's changes.
    next: TempDir,
    /// Lock that is held during the run: only one run at a time changes a folder.
    _lock: File,
}

/// Counts of the changes that a run has left in the folder.
#[derive(Serialize, Debug, Default, PartialEq, Eq)]
pub struct KeptCounts {
    /// Files, directories, links and devices that are new or changed.
    pub changed: usize,
    /// Names that were removed.
    pub removed: usize,
}

impl KeptCounts {
    /// Returns the line of the closing report.
    pub fn line(&self) -> String {
        let KeptCounts { changed, removed } = self;
        format!("   changes kept: {changed} new or changed, {removed} removed\n")
    }
}

impl Changes {
    /// Opens the folder `shown`; makes it if it does not exist.
    ///
    /// # Errors
    /// The folder has other files, another run uses it, no folder can be made beside it, or folders
    /// cannot be shared with the run.
    pub fn open(shown: &Path, sharing: FolderSharing) -> Result<Changes> {
        if let FolderSharing::Copies(why) = sharing {
            return Err(Failure::new(format!("--changes: {why} cannot keep them"), "leave --changes out"));
        }
        let failed = |error: &std::io::Error| {
            Failure::new(format!("--changes {}: {}", shown.display(), words(error)), "")
        };
        match fs::create_dir(shown) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let message = format!("--changes {}: {}", shown.display(), words(&error));
                return Err(Failure::new(message, "make the folder first that it is to be in"));
            }
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(&error)),
            _ if shown.is_file() => {
                let message = format!("--changes {}: it is a file", shown.display());
                return Err(Failure::new(message, "name a new or an empty folder"));
            }
            _ => {}
        }
        let folder = fs::canonicalize(shown).map_err(|error| failed(&error))?;
        let names = fs::read_dir(&folder).map_err(|error| failed(&error))?;
        let names: Vec<_> = names.flatten().map(|entry| entry.file_name()).collect();
        if !names.is_empty() && !names.iter().any(|name| name == LINES) {
            return Err(Failure::new(
                format!("--changes {}: it has files that no run kept there", shown.display()),
                "name a new or an empty folder",
            ));
        }
        let lock = File::open(&folder).map_err(|error| failed(&error))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                return Err(Failure::new(
                    format!("--changes {}: another run keeps its changes there", shown.display()),
                    "name another folder, or wait for its end",
                ));
            }
            Err(error) => return Err(failed(&error.into())),
        }
        let beside = folder.parent().filter(|parent| device(parent) == device(&folder));
        let Some(beside) = beside else {
            return Err(Failure::new(
                format!("--changes {}: a file system is mounted there", shown.display()),
                "name a folder in it",
            ));
        };
        let prefix = format!(".freehold-changes-{}-", fs::metadata(&folder).map_or(0, |meta| meta.ino()));
        remove_left_behind(beside, &prefix);
        let next = tempfile::Builder::new().prefix(&prefix).tempdir_in(beside);
        let next = next.map_err(|error| {
            let why = words(&error);
            Failure::new(format!("--changes {}: nothing can be made beside it: {why}", shown.display()), "")
        })?;
        Ok(Changes { shown: shown.to_path_buf(), folder, next, _lock: lock })
    }

    /// Returns the folder that QEMU exports for the changes.
    pub fn share(&self) -> FolderShare {
        FolderShare {
            host: self.next.path().to_path_buf(),
            guest: "/".into(),
            access: ShareAccess::Changes,
            owners: ShareOwners::Host,
        }
    }

    /// Adds the changes that an earlier run kept to `image`.
    ///
    /// # Errors
    /// A line is malformed, or a file cannot be read.
    pub fn add_to(&self, image: &mut Image) -> Result<()> {
        let text = match fs::read(self.folder.join(LINES)) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(Failure::io("read", &self.folder.join(LINES), &error)),
        };
        let kept = ChangeLines::parse(&text).map_err(|line| {
            Failure::new(
                format!("--changes {}: line {line} of {LINES} is malformed", self.shown.display()),
                "was it edited?",
            )
        })?;
        let files = self.folder.join(FILES);
        add_files(&files, Path::new("/"), &kept, image)?;
        for path in &kept.removed {
            if fs::symlink_metadata(in_tree(&files, path)).is_err() {
                let whiteout = ImageNode::Device { is_block: false, number: (0, 0) };
                image.put_owned(&in_image(path), whiteout, (0, User::ROOT), 0);
            }
        }
        for (path, told) in &kept.nodes {
            let node = match told.kind {
                KeptKind::Fifo => ImageNode::Fifo,
                KeptKind::Device { is_block, number } => ImageNode::Device { is_block, number },
                KeptKind::Directory | KeptKind::File | KeptKind::Symlink => continue,
            };
            image.put_owned(&in_image(path), node, (told.mode, told.owner), 0);
        }
        let attributes = kept.attributes.iter().filter(|of| image.has(&in_image(&of.path)));
        image.add_bytes(Path::new(ATTRIBUTES), 0o600, attributes.flat_map(Attribute::encode).collect());
        Ok(())
    }

    /// Names the kept files in the `failure` of a machine that has too little memory for `image`,
    /// if they take most of it.
    pub fn explain(&self, failure: Failure, image: &Image) -> Failure {
        let kept = image.contents_below(Path::new(IN_IMAGE));
        if 2 * kept < image.contents_below(Path::new("/")) {
            return failure;
        }
        let (shown, kept) = (self.shown.display(), show_size(kept.next_multiple_of(MIB)));
        failure.because(&format!("the files that --changes {shown} keeps have {kept}, holes included"))
    }

    /// Replaces the folder by the run's changes, if the run's program came to its end.
    ///
    /// # Errors
    /// The guest did not write all of it, or the folder cannot be changed; it then stays as it was.
    pub fn conclude(&self, end: &End) -> Result<Option<KeptCounts>> {
        if let End::Program(_) | End::OutputLost(..) = end {
            return self.finish().map(Some);
        }
        print::stderr(format!("freehold: {}\n", self.not_kept("its program did not come to its end")));
        Ok(None)
    }

    fn not_kept(&self, why: &str) -> Failure {
        let shown = self.shown.display();
        Failure::new(format!("the changes of this run are not kept: {why}"), format!("{shown} is as it was"))
    }

    fn finish(&self) -> Result<KeptCounts> {
        let written = fs::read(self.next.path().join(LINES)).unwrap_or_default();
        let kept = ChangeLines::parse(&written)
            .map_err(|_| self.not_kept("the VM did not come to write them all"))?;
        let mode = fs::metadata(&self.folder).map_or(0o755, |meta| meta.mode() & 0o777);
        let swapped = fs::set_permissions(self.next.path(), fs::Permissions::from_mode(mode))
            .and_then(|()| change_places(self.next.path(), &self.folder));
        swapped.map_err(|error| self.not_kept(&words(&error)))?;
        Ok(KeptCounts { changed: kept.changed(), removed: kept.removed.len() })
    }
}

/// Returns whether `guest` leads to a program among the files kept in `folder`.
pub fn has_program(folder: &Path, guest: &Path) -> bool {
    program::runs_in_tree(guest, &folder.join(FILES))
}

/// Removes folders that killed runs left beside the folder whose number is in `prefix`. The caller
/// has this folder's lock, so no run uses them.
fn remove_left_behind(beside: &Path, prefix: &str) {
    for entry in fs::read_dir(beside).into_iter().flatten().flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(prefix.as_bytes()) {
            // A folder that stays takes room and does no other harm.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn device(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|meta| meta.dev())
}

/// Exchanges two folders, in one step if the file system can.
fn change_places(one: &Path, other: &Path) -> std::io::Result<()> {
    match renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
            let aside = one.with_extension("old");
            fs::rename(other, &aside)?;
            fs::rename(one, other)?;
            fs::rename(aside, one)
        }
        done => Ok(done?),
    }
}

fn in_image(path: &Path) -> PathBuf {
    in_tree(Path::new(IN_IMAGE), path)
}

/// Adds the file of `files` at the guest's `path`, with its whole contents. A file that changes
/// between two looks is never followed; at worst it is an error.
fn add_files(files: &Path, path: &Path, kept: &ChangeLines, image: &mut Image) -> Result<()> {
    let file = in_tree(files, path);
    let failed = |error: &std::io::Error| Failure::io("read", &file, error);
    let meta = match fs::symlink_metadata(&file) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        meta => meta.map_err(|error| failed(&error))?,
    };
    let is_still = |other: &Path| {
        let same = |of: fs::Metadata| (of.dev(), of.ino()) == (meta.dev(), meta.ino());
        kept.nodes.contains_key(other) && fs::symlink_metadata(in_tree(files, other)).is_ok_and(same)
    };
    let (kind, node) = if meta.is_dir() {
        (KeptKind::Directory, ImageNode::Folder)
    } else if meta.is_symlink() {
        let target = fs::read_link(&file).map_err(|error| failed(&error))?;
        (KeptKind::Symlink, ImageNode::Symlink(target))
    } else if meta.is_file() {
        let node = match kept.names.get(path).filter(|other| is_still(other)) {
            Some(other) => ImageNode::Name(in_image(other)),
            None => ImageNode::HostFile(file.clone(), meta.len()),
        };
        (KeptKind::File, node)
    } else {
        return Ok(());
    };
    let told = match kept.nodes.get(path) {
        Some(told) if told.kind == kind => (told.mode, told.owner),
        _ => (meta.mode() & 0o777, User::ROOT),
    };
    let modified = u32::try_from(meta.mtime()).unwrap_or(0);
    image.put_owned(&in_image(path), node, told, modified);
    if meta.is_dir() {
        for entry in fs::read_dir(&file).map_err(|error| failed(&error))? {
            let name = entry.map_err(|error| failed(&error))?.file_name();
            add_files(files, &path.join(name), kept, image)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (TempDir, PathBuf) {
        let parent = tempfile::tempdir().expect("temporary folder");
        let folder = parent.path().join("kept");
        (parent, folder)
    }

    fn open(folder: &Path) -> Result<Changes> {
        Changes::open(folder, FolderSharing::Possible)
    }

    fn put(folder: &Path, path: &str, text: &str) {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("mkdir");
        fs::write(path, text).expect("written");
    }

    const ALL: &str =
        "freehold changes 1\ndirectory\t0755\t0:0\t/\nfile\t4755\t0:7\t/a\nremoved\t/gone\nend\t3\n";

    #[test]
    fn a_run_that_wrote_all_has_the_folder_be_what_it_left() {
        let (parent, shown) = folder();
        let changes = open(&shown).expect("opened");
        let next = changes.next.path().to_path_buf();
        put(&next, "files/a", "text");
        put(&next, LINES, ALL);
        assert_eq!(changes.finish().expect("kept"), KeptCounts { changed: 1, removed: 1 });
        assert_eq!(fs::read_to_string(shown.join("files/a")).expect("read"), "text");
        drop(changes);
        assert_eq!(fs::read_dir(parent.path()).expect("listed").count(), 1, "nothing is left beside it");
        let again = open(&shown).expect("opened");
        let mut image = Image::empty();
        again.add_to(&mut image).expect("added");
        for name in ["", "/a", "/gone"] {
            assert!(image.has(Path::new(&format!("{IN_IMAGE}{name}"))), "{name}");
        }
    }

    #[test]
    fn a_run_that_did_not_leaves_the_folder_as_it_was() {
        for text in ["", "freehold changes 1\n", &ALL[..ALL.len() - 1], &ALL.replace("end\t3", "end\t4")] {
            let (_parent, shown) = folder();
            put(&shown, LINES, ALL);
            let changes = open(&shown).expect("opened");
            put(changes.next.path(), LINES, text);
            let said = changes.finish().expect_err("refused").to_string();
            assert!(said.contains("is as it was"), "{said}");
            assert_eq!(fs::read_to_string(shown.join(LINES)).expect("read"), ALL);
        }
    }

    #[test]
    fn a_folder_is_one_runs_and_has_nothing_else() {
        let (_parent, shown) = folder();
        let first = open(&shown).expect("opened");
        assert!(open(&shown).expect_err("locked").to_string().contains("another run"));
        drop(first);
        put(&shown, "thesis.txt", "");
        assert!(open(&shown).expect_err("refused").to_string().contains("no run kept"));
        let missing = shown.join("no/such");
        assert!(open(&missing).expect_err("refused").to_string().contains("No such file"));
    }

    #[test]
    fn a_killed_runs_folder_is_removed_by_the_next() {
        let (parent, shown) = folder();
        let (other, mut killed) = (parent.path().join("other"), open(&shown).expect("opened"));
        killed.next.disable_cleanup(true);
        let (left, others) = (killed.next.path().to_path_buf(), open(&other).expect("opened"));
        put(&left, "files/a", "half");
        drop(killed);
        assert!(left.exists());
        let _again = open(&shown).expect("opened");
        assert!(!left.exists() && others.next.path().exists());
    }

    #[test]
    fn too_little_memory_is_blamed_on_the_kept_files_where_they_are_most() {
        let (_parent, shown) = folder();
        let changes = open(&shown).expect("opened");
        let mut image = Image::empty();
        let said = |image: &Image| changes.explain(Failure::new("too little", "-m"), image).to_string();
        image.add_bytes(Path::new("/bin/own"), 0o755, vec![0; 3 << 20]);
        assert_eq!(said(&image), "too little (-m)");
        image.add_bytes(&in_image(Path::new("/big")), 0o644, vec![0; 4 << 20]);
        let expected = format!(
            "too little: the files that --changes {} keeps have 4M, holes included (-m)",
            shown.display()
        );
        assert_eq!(said(&image), expected);
    }

    #[test]
    fn what_a_user_changed_in_it_counts() {
        let (_parent, shown) = folder();
        put(
            &shown,
            LINES,
            "freehold changes 1\nfile\t0644\t5:5\t/was\nname\t/b\t/was\nremoved\t/new\nend\t3\n",
        );
        put(&shown, "files/new", "by hand");
        put(&shown, "files/b", "no longer a name of it");
        let mut image = Image::empty();
        open(&shown).expect("opened").add_to(&mut image).expect("added");
        let there = |name: &str| image.has(&in_image(Path::new(name)));
        assert_eq!(["/was", "/new", "/b"].map(there), [false, true, true]);
    }
}
