//! The kernel for comparisons: Debian's cloud kernel, fetched once as a package, unpacked, never
//! installed.
//!
//! Its virtio drivers are modules. They are in the initramfs, and guest/init loads them in the
//! order given here.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use object::{Object, ObjectSection};

use crate::failure::Failure;
use crate::kernel::{Family, KernelChoice};
use crate::{Result, print};

/// The package that depends on the current cloud kernel.
const META_PACKAGE: &str = "linux-image-cloud-amd64";
/// Modules that guest/init and the VM's devices need.
const WANTED: [&str; 3] = ["virtio_pci", "virtio_console", "virtio_blk"];

/// Returns the folder for fetched files and kept results of this command.
pub fn cache_folder() -> Result<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))
        .ok_or_else(|| {
            Failure::new("neither HOME nor XDG_CACHE_HOME is set", "set one: fetched kernels are kept there")
        })?;
    Ok(base.join("freehold"))
}

/// Returns Debian's cloud kernel: from the cache, else fetched.
pub fn fetched() -> Result<KernelChoice> {
    let folder = cache_folder()?.join("linux");
    match in_cache(&folder) {
        Some(version) => from_folder(&version),
        None => from_folder(&fetch(&folder)?),
    }
}

/// Returns the version in the cache, if any, for `freehold doctor`.
pub fn cached_version() -> Option<String> {
    let folder = in_cache(&cache_folder().ok()?.join("linux"))?;
    Some(folder.file_name()?.to_string_lossy().into_owned())
}

fn in_cache(folder: &Path) -> Option<PathBuf> {
    let mut versions: Vec<PathBuf> = fs::read_dir(folder)
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.join("boot").is_dir())
        .collect();
    versions.sort();
    versions.pop()
}

/// Downloads and unpacks. The folder gets its final name only when it is complete, so parallel and
/// interrupted runs do no harm.
fn fetch(folder: &Path) -> Result<PathBuf> {
    let offline = |what: &str| {
        Failure::new(
            format!("cannot fetch Debian's cloud kernel: {what}"),
            "needs apt and a network once; or give a kernel file with --kernel PATH",
        )
    };
    fs::create_dir_all(folder).map_err(|e| Failure::io("make", folder, &e))?;
    let work = tempfile::Builder::new()
        .prefix(".fetch-")
        .tempdir_in(folder)
        .map_err(|e| Failure::io("make a folder in", folder, &e))?;
    let depends = output("apt-cache", &["depends", META_PACKAGE], work.path()).map_err(|e| offline(&e))?;
    let package = depends
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with("linux-image-"))
        .ok_or_else(|| offline("apt knows no such package; apt-get update may help"))?
        .to_owned();
    print::stderr(format!("freehold: fetching {package} (once)\n"));
    output("apt-get", &["download", "-q", &package], work.path()).map_err(|e| offline(&e))?;
    let archive = fs::read_dir(work.path())
        .ok()
        .and_then(|entries| {
            entries
                .flatten()
                .map(|entry| entry.path())
                .find(|path| path.extension().is_some_and(|ext| ext == "deb"))
        })
        .ok_or_else(|| offline("apt-get download left no package"))?;
    let tree = work.path().join("tree");
    output("dpkg-deb", &["-x", &archive.to_string_lossy(), "tree"], work.path()).map_err(|e| offline(&e))?;
    let version = package.trim_start_matches("linux-image-");
    let target = folder.join(version);
    match fs::rename(&tree, &target) {
        Err(error) if !target.is_dir() => Err(Failure::io("move the kernel to", &target, &error)),
        _ => Ok(target),
    }
}

fn output(program: &str, arguments: &[&str], folder: &Path) -> std::result::Result<String, String> {
    let result = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if result.status.success() {
        return Ok(String::from_utf8_lossy(&result.stdout).into_owned());
    }
    let errors = String::from_utf8_lossy(&result.stderr);
    let line = errors.lines().find(|line| line.starts_with("E:")).or(errors.lines().last());
    Err(format!("{program}: {}", line.unwrap_or("failed")))
}

fn from_folder(folder: &Path) -> Result<KernelChoice> {
    let boot = folder.join("boot");
    let path = fs::read_dir(&boot)
        .map_err(|e| Failure::io("read", &boot, &e))?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz")))
        .ok_or_else(|| {
            Failure::new(
                format!("no vmlinuz in {}", boot.display()),
                format!("remove {} to fetch it again", folder.display()),
            )
        })?;
    let version =
        path.file_name().unwrap_or_default().to_string_lossy().trim_start_matches("vmlinuz-").to_owned();
    from_file(&path, Some(&version))
}

/// Uses a kernel file of the user's: modules are looked for where a package puts them, else they
/// are assumed to be built in.
pub fn from_file(path: &Path, version: Option<&str>) -> Result<KernelChoice> {
    let mut modules = Vec::new();
    if let Some(version) = version {
        let beside = path.parent().unwrap_or(Path::new(".")).join("../lib/modules").join(version);
        let installed = Path::new("/lib/modules").join(version);
        if let Some(folder) = [beside, installed].into_iter().find(|folder| folder.is_dir()) {
            modules = in_order(&folder)?;
        }
    }
    Ok(KernelChoice { family: Family::Linux, path: path.to_path_buf(), modules })
}

/// Returns the wanted modules of a modules folder, each after its dependencies.
fn in_order(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = BTreeMap::new();
    collect(&folder.join("kernel/drivers"), &mut found);
    let mut order = Vec::new();
    for name in WANTED {
        visit(name, &found, &mut order)?;
    }
    Ok(order)
}

fn visit(name: &str, found: &BTreeMap<String, PathBuf>, order: &mut Vec<PathBuf>) -> Result<()> {
    let Some(path) = found.get(name) else {
        return Ok(()); // Built into the kernel.
    };
    if order.contains(path) {
        return Ok(());
    }
    let data = fs::read(path).map_err(|e| Failure::io("read", path, &e))?;
    let damaged = || {
        Failure::new(
            format!("{} is no kernel module", path.display()),
            "compressed modules are not supported",
        )
    };
    let file = object::File::parse(&*data).map_err(|_| damaged())?;
    let information =
        file.section_by_name(".modinfo").and_then(|section| section.data().ok()).ok_or_else(damaged)?;
    let depends = information
        .split(|&byte| byte == 0)
        .find_map(|record| record.strip_prefix(b"depends="))
        .map(|names| String::from_utf8_lossy(names).into_owned())
        .unwrap_or_default();
    for needed in depends.split(',').filter(|needed| !needed.is_empty()) {
        visit(needed, found, order)?;
    }
    order.push(path.clone());
    Ok(())
}

fn collect(folder: &Path, found: &mut BTreeMap<String, PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, found);
        } else if let Some(name) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".ko")) {
            found.insert(name.replace('-', "_"), path);
        }
    }
}
