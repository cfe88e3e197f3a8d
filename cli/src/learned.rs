//! `--learn FILE` writes down the files of the host that a run used, and `--files-from FILE` gives
//! copies of them to a run that sees nothing else.
//!
//! The guest's kernel tells the names that its programs found. They are claims of a guest: this
//! side decides which files of the host they stand for ([`Origins`]). So FILE names only files that
//! the run could see, and never one behind a symlink that a program made in a shared folder.
//!
//! FILE is a text: a line for each path in the guest and, where the host has the file elsewhere, a
//! tab and the path there, with escapes as in Rust's strings. Lines that begin with # and empty
//! lines are comments. A folder stands for itself, without its contents.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use crate::changes::unescaped;
use crate::failure::Failure;
use crate::files;
use crate::image::{Image, Origin};
use crate::kernel::Family;
use crate::qemu::share::{FolderShare, ShareAccess};
use crate::session::{End, Ended};
use crate::user::User;
use crate::volume::Volume;
use crate::{Result, print};

const HEAD: &str =
    "# Files of the host that a run used, written by freehold run --learn and read by --files-from.\n";

/// Files of the host: by their paths in the guest, their paths on the host.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct FileList(BTreeMap<PathBuf, PathBuf>);

impl FileList {
    /// Reads the list `file`.
    ///
    /// # Errors
    /// The file cannot be read, or a line is malformed.
    pub fn read(file: &Path) -> Result<FileList> {
        let text = fs::read(file).map_err(|error| Failure::io("read", file, &error))?;
        FileList::parse(&text).map_err(|line| {
            Failure::new(
                format!("--files-from {}: line {line} is malformed", file.display()),
                "a line is an absolute path in the VM, and perhaps a tab and the path on the host",
            )
        })
    }

    fn parse(text: &[u8]) -> std::result::Result<FileList, usize> {
        let mut list = FileList::default();
        for (number, line) in text.split(|&byte| byte == b'\n').enumerate() {
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let (guest, host) = entry(line).ok_or(number + 1)?;
            list.0.insert(guest, host);
        }
        Ok(list)
    }

    fn encode(&self) -> Vec<u8> {
        let mut text = HEAD.as_bytes().to_vec();
        for (guest, host) in &self.0 {
            text.extend(guest.as_os_str().as_bytes().escape_ascii());
            if host != guest {
                text.push(b'\t');
                text.extend(host.as_os_str().as_bytes().escape_ascii());
            }
            text.push(b'\n');
        }
        text
    }

    /// Returns the host's file for a path in the guest.
    pub fn host(&self, guest: &Path) -> Option<&Path> {
        self.0.get(guest).map(PathBuf::as_path)
    }

    /// Adds copies of the files to `image`, except those that are `shown` anyway or there already.
    ///
    /// # Errors
    /// A file does not exist any more, or cannot be read, or a symlink leads to its folder: a
    /// program that can change a shared folder may have made that since the list was written.
    pub fn add_to(&self, image: &mut Image, shown: impl Fn(&Path) -> bool) -> Result<()> {
        let wanted = self.0.iter().filter(|(guest, _)| !shown(guest));
        wanted.filter(|(guest, _)| **guest != *Path::new("/")).try_for_each(|(guest, host)| {
            if image.has(guest) {
                return Ok(());
            }
            if host != guest {
                check_place(host)?;
            }
            image.add_alone(host, guest)
        })
    }
}

/// Refuses a path of the host whose folder is reached through a symlink.
fn check_place(host: &Path) -> Result<()> {
    let failed = |error: std::io::Error| Failure::io("read", host, &error);
    let at = std::path::absolute(host).map_err(failed)?;
    let Some(folder) = at.parent() else { return Ok(()) };
    if fs::canonicalize(folder).map_err(failed)? == folder {
        return Ok(());
    }
    let what = format!("--files-from: {}: a symlink leads to its folder", host.display());
    Err(Failure::new(what, "name the folder itself in the list, if that is the file that you mean"))
}

/// Parses a line.
fn entry(line: &[u8]) -> Option<(PathBuf, PathBuf)> {
    let line = std::str::from_utf8(line).ok()?;
    let path = |text: &str| {
        let bytes = unescaped(text).filter(|bytes| !bytes.contains(&0))?;
        Some(PathBuf::from(OsString::from_vec(bytes)))
    };
    let (guest, host) = match line.split_once('\t') {
        Some((guest, host)) => (path(guest)?, path(host)?),
        None => (path(line)?, path(line)?),
    };
    is_clean(&guest).then_some((guest, host))
}

/// Returns whether `path` is absolute, without `.` and `..`.
fn is_clean(path: &Path) -> bool {
    let is_plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    path.is_absolute() && path.components().all(is_plain)
}

/// Names that the guest's programs found, as its kernel tells them.
#[derive(Debug, Default)]
pub struct FoundNames {
    /// Each with a zero byte behind it.
    bytes: Vec<u8>,
    left_out: u64,
}

impl FoundNames {
    /// Largest number of bytes that are taken from a guest.
    const MOST: usize = 64 << 20;

    /// Adds the names of one message, which left out this many names.
    pub fn add(&mut self, names: &[u8], left_out: u64) {
        self.left_out = self.left_out.saturating_add(left_out);
        if self.bytes.len() + names.len() <= FoundNames::MOST {
            self.bytes.extend_from_slice(names);
        } else {
            self.left_out = self.left_out.saturating_add(1);
        }
    }
}

/// The places of the host that a run's files come from.
#[derive(Debug)]
pub struct Origins {
    file: PathBuf,
    /// Paths in the guest, and the paths on the host of what lies there.
    places: Vec<(PathBuf, PathBuf)>,
}

impl Origins {
    /// Prepares to write a list into `file`, if there is one. The run sees `shares` and has copies
    /// of the others among `volumes` and of `tree`, its root.
    ///
    /// # Errors
    /// The kernel is a stock Linux.
    pub fn new(
        file: &Option<PathBuf>,
        family: Family,
        (shares, volumes, tree): (&[FolderShare], &[Volume], Option<&Path>),
    ) -> Result<Option<Origins>> {
        let Some(file) = file else { return Ok(None) };
        if family == Family::Linux {
            return Err(Failure::new("--learn: a stock Linux does not tell what it used", "leave it out"));
        }
        let seen = shares.iter().filter(|share| share.access != ShareAccess::Changes);
        let seen = seen.map(|share| (share.guest.clone(), share.host.clone()));
        let copied = volumes.iter().map(|volume| (volume.guest.clone(), volume.host.clone()));
        let tree = tree.map(|tree| (PathBuf::from("/"), tree.to_path_buf()));
        let places = seen.chain(copied).chain(tree);
        let real = |(guest, host): (PathBuf, PathBuf)| {
            let host = fs::canonicalize(&host).unwrap_or(host);
            (guest, host)
        };
        Ok(Some(Origins { file: file.clone(), places: places.map(real).collect() }))
    }

    /// Writes the list, if the run's program came to its end, and says if it did not. Returns the
    /// line of the closing report.
    ///
    /// # Errors
    /// The guest did not tell all names, or the file cannot be written.
    pub fn conclude(&self, image: &Image, ended: &Ended) -> Result<Option<String>> {
        let shown = self.file.display();
        let failed = |why: String| Failure::new(format!("--learn {shown}: nothing is written: {why}"), "");
        if !matches!(ended.end, End::Program(_) | End::Unbalanced(..) | End::OutputLost(..)) {
            print::stderr(format!("freehold: {}\n", failed("the run did not come to its end".into())));
            return Ok(None);
        }
        let names = ended.names.as_ref().ok_or_else(|| failed("the VM told no names".into()))?;
        if names.left_out > 0 {
            return Err(failed(format!("{} names had no place in the VM's memory", names.left_out)));
        }
        let list = self.list(image, &names.bytes);
        files::write_whole(&self.file, &list.encode())?;
        Ok(Some(format!("   files used by the run: {} names in {shown}\n", list.0.len())))
    }

    fn list(&self, image: &Image, names: &[u8]) -> FileList {
        // Every run has these.
        let always = Image::new(User::ROOT);
        let names = names.split(|&byte| byte == 0).filter(|name| !name.is_empty());
        let paths = names.map(|name| PathBuf::from(OsString::from_vec(name.to_vec())));
        let wanted = paths.filter(|path| is_clean(path) && !always.has(path));
        FileList(wanted.filter_map(|path| Some((path.clone(), self.host(image, &path)?))).collect())
    }

    /// Returns the path on the host of what programs saw at `guest`; `None` for what was made in
    /// the guest or by this command.
    fn host(&self, image: &Image, guest: &Path) -> Option<PathBuf> {
        let in_image = image.origin(guest);
        if let Some(Origin::File(host)) = in_image {
            return std::path::absolute(host).ok();
        }
        if let Some(Origin::Made) = in_image {
            return None;
        }
        let place = self.places.iter().filter(|(place, _)| guest.starts_with(place));
        if let Some((place, host)) = place.max_by_key(|(place, _)| place.components().count()) {
            return inside(host, guest.strip_prefix(place).ok()?);
        }
        // A folder or link of the image counts as the host's if the host has the same one there.
        let is_same = match in_image? {
            Origin::Folder => fs::symlink_metadata(guest).is_ok_and(|meta| meta.is_dir()),
            Origin::Symlink(target) => fs::read_link(guest).is_ok_and(|link| link == target),
            Origin::File(_) | Origin::Made => false,
        };
        is_same.then(|| guest.to_path_buf())
    }
}

/// Returns the path of a file that exists in a folder of the host, unless a symlink leads there.
fn inside(folder: &Path, rest: &Path) -> Option<PathBuf> {
    let mut at = folder.to_path_buf();
    for name in rest.components() {
        let is_way = at == folder || fs::symlink_metadata(&at).is_ok_and(|meta| meta.is_dir());
        if !is_way {
            return None;
        }
        at.push(name);
    }
    fs::symlink_metadata(&at).is_ok().then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> PathBuf {
        text.into()
    }

    #[test]
    fn a_list_comes_back_as_it_was_written() {
        let pairs = [("/usr/bin/ls", "/usr/bin/ls"), ("/data/a b", "/home/x/a\tb"), ("/n\nl", "/n\nl")];
        let list = FileList(pairs.map(|(guest, host)| (path(guest), path(host))).into());
        assert_eq!(FileList::parse(&list.encode()), Ok(list));
        let parsed = FileList::parse(b"# x\n\n/a\n/b\trelative\n").expect("understood");
        assert_eq!(parsed.host(Path::new("/b")), Some(Path::new("relative")));
        for (text, line) in [("/a\nb\n", 2), ("/a/../b\n", 1), ("\n/a\\q", 2), ("/a\\x00\n", 1)] {
            assert_eq!(FileList::parse(text.as_bytes()), Err(line), "{text}");
        }
    }

    #[test]
    fn a_guest_names_only_files_that_it_saw() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let at = |name: &str| folder.path().join(name);
        for name in ["shared", "shared/sub"] {
            fs::create_dir(at(name)).expect("mkdir");
        }
        for name in ["secret", "shared/file", "copied"] {
            fs::write(at(name), "x").expect("written");
        }
        std::os::unix::fs::symlink("..", at("shared/up")).expect("symlink");
        let mut image = Image::new(User::ROOT);
        image.add_host_at(&at("copied"), Path::new("/copied")).expect("added");
        image.add_bytes(Path::new("/shared/made"), 0o644, Vec::new());
        let places = vec![(path("/shared"), at("shared"))];
        let origins = Origins { file: path("/none"), places };
        let claims =
            b"/shared/file\0/shared/sub\0/shared/up\0/shared/up/secret\0/shared/../secret\0/etc/shadow\0\
            /etc/passwd\0/copied\0/shared/made\0/shared/none\0relative\0/tmp\0";
        let list = origins.list(&image, claims);
        let told: Vec<_> = list.0.iter().map(|(guest, host)| (guest.display().to_string(), host)).collect();
        let expected = [
            ("/copied".to_owned(), &at("copied")),
            ("/shared/file".to_owned(), &at("shared/file")),
            ("/shared/sub".to_owned(), &at("shared/sub")),
            ("/shared/up".to_owned(), &at("shared/up")),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn no_symlink_that_came_later_leads_a_listed_path_elsewhere() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let folder = fs::canonicalize(folder.path()).expect("its path");
        let at = |name: &str| folder.join(name);
        for name in ["shared", "shared/sub", "private"] {
            fs::create_dir(at(name)).expect("mkdir");
        }
        for name in ["shared/sub/key", "private/key"] {
            fs::write(at(name), "x").expect("written");
        }
        let list = FileList([(path("/data/sub/key"), at("shared/sub/key"))].into());
        list.add_to(&mut Image::new(User::ROOT), |_| false).expect("added");
        fs::remove_dir_all(at("shared/sub")).expect("removed");
        std::os::unix::fs::symlink(at("private"), at("shared/sub")).expect("symlink");
        let refused = list.add_to(&mut Image::new(User::ROOT), |_| false).expect_err("refused");
        assert!(refused.to_string().contains("a symlink leads to its folder"), "{refused}");
    }
}
