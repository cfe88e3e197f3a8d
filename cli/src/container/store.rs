//! The cache of unpacked images: `images/DIGEST` in the cache folder, one folder for each image.
//!
//! An image is unpacked into a folder of another name, which is renamed when it is complete and
//! checked. Only one process at a time unpacks: it holds the lock of the file `images/lock`. So
//! another process that wants the same image waits and finds it. The next process removes the
//! leftovers of one that was killed.
//!
//! `images/known/KEY` says which image a file holds, so that a compressed archive is not unpacked
//! again to find out. KEY depends on everything that changes with the file.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sha2::Digest as _;

use super::layers::TreeBuilder;
use super::manifest::ChosenImage;
use super::source::ImageSource;
use super::{stream, tree};
use crate::failure::Failure;
use crate::{Result, linux, print};

/// The configuration of an image, beside its tree.
const CONFIG: &str = "config.json";
/// A file that changed more recently than this may change again without a change of its times.
const SETTLED: Duration = Duration::from_secs(2);
/// Prefix of an image's folder while it is made.
const UNFINISHED: &str = ".unpack-";

/// Returns the unpacked image that `file` is known to hold: its root and its configuration.
pub fn known(file: &Path) -> Option<(PathBuf, Vec<u8>)> {
    let folder = linux::cache_folder().ok()?.join("images");
    let id = fs::read_to_string(folder.join("known").join(key(file)?)).ok()?;
    let is_id = id.len() == 64 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let whole = is_id.then(|| folder.join(&id))?;
    let config = fs::read(whole.join(CONFIG)).ok()?;
    let root = whole.join("root");
    let is_whole = stream::hexadecimal(&sha2::Sha256::digest(&config)) == id && root.is_dir();
    is_whole.then_some((root, config))
}

/// Notes that `file` holds the image. If that fails, the next run looks again.
fn note(file: &Path, folder: &Path, id: &str) {
    if let Some(key) = key(file) {
        let known = folder.join("known");
        let _ = fs::create_dir_all(&known).and_then(|()| fs::write(known.join(key), id));
    }
}

/// Returns a key for the file and its state; `None` for a folder, and while it may still be written
/// to.
fn key(file: &Path) -> Option<String> {
    let meta = fs::metadata(file).ok().filter(fs::Metadata::is_file)?;
    let changed = u64::try_from(meta.ctime()).ok()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    if now < Duration::from_secs(changed) + SETTLED {
        return None;
    }
    let state = [
        (meta.dev(), meta.ino()),
        (meta.size(), 0),
        (meta.mtime().cast_unsigned(), meta.mtime_nsec().cast_unsigned()),
        (changed, meta.ctime_nsec().cast_unsigned()),
    ];
    Some(stream::hexadecimal(&sha2::Sha256::digest(format!("{state:?}"))))
}

/// Returns the root of the unpacked image; unpacks it first if necessary. `file` is the name for
/// messages.
///
/// # Errors
/// The image is damaged; the cache folder cannot be written to.
pub fn unpacked(file: &Path, source: &ImageSource, image: &ChosenImage) -> Result<PathBuf> {
    let folder = linux::cache_folder()?.join("images");
    let whole = folder.join(&image.id);
    let root = whole.join("root");
    if root.is_dir() {
        note(file, &folder, &image.id);
        return Ok(root);
    }
    let no_folder = |e: io::Error| Failure::io("make", &folder, &e);
    DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(no_folder)?;
    let _lock = lock(&folder.join("lock"))?;
    if root.is_dir() {
        return Ok(root);
    }
    remove_unfinished(&folder);
    tree::check_holds_attributes(&folder)?;
    let name = file.file_name().unwrap_or(file.as_os_str());
    print::stderr(format!("freehold: unpacking {} (once)\n", name.display()));
    let work = tempfile::Builder::new()
        .prefix(UNFINISHED)
        .tempdir_in(&folder)
        .map_err(|e| Failure::io("make a folder in", &folder, &e))?;
    let new_root = work.path().join("root");
    DirBuilder::new().mode(0o700).create(&new_root).map_err(|e| Failure::io("make", &new_root, &e))?;
    unpack(source, image, &new_root).map_err(|failure| failure.at(file))?;
    let config = work.path().join(CONFIG);
    fs::write(&config, &image.document).map_err(|e| Failure::io("write", &config, &e))?;
    // After a power cut the folder must not have its name without its files.
    let written = File::open(&new_root).and_then(|folder| Ok(rustix::fs::syncfs(&folder)?));
    written.map_err(|e| Failure::io("write", &new_root, &e))?;
    fs::rename(work.path(), &whole).map_err(|e| Failure::io("rename to", &whole, &e))?;
    // It has another name now.
    let _ = work.keep();
    note(file, &folder, &image.id);
    Ok(root)
}

/// Unpacks the image into `root`, an empty folder.
///
/// # Errors
/// The image is damaged; the folder cannot be written to.
pub fn unpack(source: &ImageSource, image: &ChosenImage, root: &Path) -> Result<()> {
    let mut tree = TreeBuilder::new(root)?;
    for layer in &image.layers {
        stream::with_layer(source, layer, |bytes| tree.apply(bytes, &layer.what))?;
    }
    tree.finish(super::launch::working_folder(&image.config))
}

fn lock(path: &Path) -> Result<File> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    let locked = file.and_then(|file| file.lock().map(|()| file));
    locked.map_err(|error| Failure::io("lock", path, &error))
}

/// Removes the leftovers of processes that were killed. The caller holds the lock.
fn remove_unfinished(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            // A folder that cannot be removed only costs disk space.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
