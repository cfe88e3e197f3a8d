//! The part of the host that a run sees by default: programs with their libraries and data, and the
//! settings that they look up.
//!
//! The host side decides which files are seen, because the guest's kernel is not our security
//! boundary. QEMU exports [`TREES`] and nothing beside them, read-only. The image has copies of
//! [`SETTINGS`], which hold no secrets and are the same for every user. Files that programs write
//! lie over the trees, in the VM's memory. Homes, /root, /var, /tmp and /run are not visible.
//!
//! A program in another place is copied alone with the libraries that it names, as into a sealed
//! image. A program below /opt/NAME comes with all of /opt/NAME, because packages there are made
//! that way.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::Result;
use crate::image::Image;
use crate::program::{self, Program};
use crate::qemu::share::{FolderShare, ShareAccess, ShareOwners};

/// The folders that the guest sees unchanged. If the later ones are links into the first on this
/// host, the guest has these links.
const TREES: [&str; 7] = ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32"];

/// Settings in /etc that programs look up: of the loader and the C library, of TLS, of languages
/// and terminals. A name that ends with a star stands for all names with that prefix. Accounts,
/// hosts and the resolver are the guest's own.
const SETTINGS: [&str; 27] = [
    "alternatives",
    "bash.bashrc",
    "debian_version",
    "ethertypes",
    "gai.conf",
    "inputrc",
    "java-*",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "localtime",
    "magic",
    "magic.mime",
    "mime.types",
    "networks",
    "nsswitch.conf",
    "os-release",
    "perl",
    "protocols",
    "python3*",
    "rpc",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "timezone",
];

/// The view of the host for one run.
#[derive(Debug)]
pub struct HostView {
    /// Folders that QEMU exports.
    trees: Vec<PathBuf>,
    /// Links that lead into these folders.
    links: Vec<(PathBuf, PathBuf)>,
}

impl HostView {
    /// Returns the view of this host.
    pub fn new() -> HostView {
        let mut view = HostView { trees: Vec::new(), links: Vec::new() };
        for tree in TREES.map(Path::new) {
            match fs::read_link(tree) {
                Ok(target) => view.links.push((tree.to_path_buf(), target)),
                Err(_) if fs::read_dir(tree).is_ok() => view.trees.push(tree.to_path_buf()),
                Err(_) => {}
            }
        }
        view
    }

    /// Finds the program `name` as a shell in the VM would, whose PATH is `path`, else as a shell
    /// of the host would. From then on the view has the package of a program below /opt.
    ///
    /// # Errors
    /// There is no such program, or it cannot run.
    pub fn find(&mut self, name: &OsStr, path: &OsStr, library_path: Option<&OsStr>) -> Result<Program> {
        let seen = std::env::split_paths(path).map(|folder| folder.join(name));
        let is_path = name.as_encoded_bytes().contains(&b'/');
        if !is_path && let Some(guest) = seen.into_iter().find(|at| self.shows(at) && program::runs(at)) {
            return Ok(Program { guest, files: [].into() });
        }
        let mut found = program::find(name, library_path)?;
        self.add_package(&found.guest);
        found.files.retain(|file| !self.shows(file));
        Ok(found)
    }

    /// Returns whether the guest sees the file that the absolute `path` leads to.
    pub fn shows(&self, path: &Path) -> bool {
        let is_shown = |at: &Path| self.trees.iter().any(|tree| at.starts_with(tree));
        let is_linked = self.links.iter().any(|(link, _)| path.starts_with(link));
        (is_linked || is_shown(path)) && fs::canonicalize(path).is_ok_and(|end| is_shown(&end))
    }

    /// Returns the folders that QEMU exports, below the image's files at their places.
    pub fn shares(&self) -> Vec<FolderShare> {
        let below = |tree: &PathBuf| FolderShare {
            host: tree.clone(),
            guest: tree.clone(),
            access: ShareAccess::Below,
            owners: ShareOwners::Host,
        };
        self.trees.iter().map(below).collect()
    }

    /// Returns the folders that the guest sees unchanged.
    pub fn trees(&self) -> &[PathBuf] {
        &self.trees
    }

    /// Adds links and settings to `image`.
    ///
    /// # Errors
    /// A setting disappeared while it was read.
    pub fn furnish(&self, image: &mut Image) -> Result<()> {
        for (link, target) in &self.links {
            image.add_link(link, target);
        }
        for setting in settings(Path::new("/etc"), &SETTINGS) {
            image.add_readable(&setting)?;
        }
        Ok(())
    }

    /// Adds /opt/NAME if `program` lies there.
    fn add_package(&mut self, program: &Path) {
        let Ok(end) = fs::canonicalize(program) else { return };
        let parts: Vec<_> = end.components().take(4).collect();
        if let [Component::RootDir, Component::Normal(opt), Component::Normal(name), Component::Normal(_)] =
            parts[..]
            && opt == "opt"
        {
            let package = Path::new("/opt").join(name);
            if fs::read_dir(&package).is_ok() {
                self.trees.push(package);
            }
        }
    }
}

/// Returns the existing files for the names in `wanted`, below `folder`.
fn settings(folder: &Path, wanted: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for name in wanted {
        match name.strip_suffix('*') {
            None => found.extend(Some(folder.join(name)).filter(|path| path.symlink_metadata().is_ok())),
            Some(beginning) => {
                let begins = |name: &OsString| name.as_encoded_bytes().starts_with(beginning.as_bytes());
                let entries = fs::read_dir(folder).into_iter().flatten().flatten();
                let mut names: Vec<_> = entries.map(|entry| entry.file_name()).filter(begins).collect();
                names.sort();
                found.extend(names.into_iter().map(|name| folder.join(name)));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_the_trees_bring_nothing_and_others_what_is_not_seen() {
        let mut view = HostView::new();
        let found = view.find(OsStr::new("ls"), OsStr::new("/usr/bin:/bin"), None).expect("ls is everywhere");
        assert_eq!((found.guest.as_path(), found.files.len()), (Path::new("/usr/bin/ls"), 0));
        let folder = tempfile::tempdir().expect("temporary folder");
        let own = folder.path().join("own");
        fs::copy("/usr/bin/ls", &own).expect("copied");
        let found = view.find(own.as_os_str(), OsStr::new("/usr/bin"), None).expect("found");
        let brought: Vec<_> = found.files.iter().filter(|file| !file.starts_with("/etc")).collect();
        assert_eq!((found.guest.as_path(), brought), (own.as_path(), vec![&own]));
        assert!(view.trees().iter().all(|tree| !tree.starts_with("/opt")));
        assert!(view.find(OsStr::new("no-such-program"), OsStr::new("/usr/bin"), None).is_err());
    }

    #[test]
    fn a_link_out_of_the_trees_is_not_seen() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (tree, beside) = (folder.path().join("tree"), folder.path().join("beside"));
        fs::create_dir(&tree).expect("mkdir");
        fs::write(&beside, "").expect("written");
        std::os::unix::fs::symlink(&beside, tree.join("out")).expect("symlink");
        fs::write(tree.join("file"), "").expect("written");
        let view = HostView { trees: vec![tree.clone()], links: Vec::new() };
        assert_eq!(["file", "out", "none"].map(|name| view.shows(&tree.join(name))), [true, false, false]);
        assert!(!view.shows(&beside));
    }

    #[test]
    fn settings_are_those_of_the_list_and_no_others() {
        let folder = tempfile::tempdir().expect("temporary folder");
        for name in ["shadow", "localtime", "python3", "python3.11", "python2"] {
            fs::write(folder.path().join(name), "").expect("written");
        }
        let found = settings(folder.path(), &["localtime", "none", "python3*"]);
        assert_eq!(found, ["localtime", "python3", "python3.11"].map(|name| folder.path().join(name)));
        let secrets = ["shadow", "gshadow", "ssl/private", "ssh", "sudoers", "machine-id", "passwd", "hosts"];
        assert!(secrets.iter().all(|name| !SETTINGS.contains(name)));
    }
}
