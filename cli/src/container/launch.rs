//! The program that a container of an image runs: its configuration, changed by the command line.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use oci_spec::image::ImageConfiguration;
use rustix::fs::FileType;

use super::accounts;
use super::tree::MappedTree;
use crate::Result;
use crate::args::RunOptions;
use crate::failure::Failure;
use crate::user::User;
use crate::{changes, run};

/// A program and its environment.
#[derive(Debug)]
pub struct Launch {
    /// Path of the program in the guest.
    pub exec: PathBuf,
    /// argv, the program's name included.
    pub arguments: Vec<OsString>,
    /// `K=V` each.
    pub environment: Vec<OsString>,
    /// Working directory.
    pub cwd: PathBuf,
    /// The user that runs it.
    pub user: User,
}

impl Launch {
    /// Returns the program that the image in `tree` runs.
    ///
    /// # Errors
    /// The image has no such program or user, or an option makes no sense.
    pub fn of(
        tree: &MappedTree,
        config: &ImageConfiguration,
        options: &RunOptions,
        terminal: Option<OsString>,
    ) -> Result<Launch> {
        let settings = config.config().as_ref();
        let user = settings.and_then(|settings| settings.user().as_deref()).unwrap_or("");
        let account = accounts::find(tree, options.user.as_deref().unwrap_or(user))?;
        let arguments = arguments(config, options)?;
        let cwd = match &options.cwd {
            Some(cwd) => run::guest_path("--cwd", cwd)?,
            None => working_folder(config).to_path_buf(),
        };
        let mut variables: Vec<(OsString, OsString)> =
            vec![("PATH".into(), run::DEFAULT_PATH.into()), ("HOME".into(), account.home.into())];
        variables.extend(terminal.map(|kind| ("TERM".into(), kind)));
        for variable in settings.and_then(|settings| settings.env().as_ref()).into_iter().flatten() {
            let (key, value) = variable.split_once('=').unwrap_or((variable, ""));
            variables.retain(|(known, _)| known != key);
            variables.push((key.into(), value.into()));
        }
        let environment = run::with_additions(variables, &options.env)?;
        let path = run::variable(&environment, "PATH").unwrap_or_default();
        let exec = find_program((tree, options.changes.as_deref()), &arguments[0], path, &cwd)?;
        Ok(Launch { exec, arguments, environment, cwd, user: account.user })
    }
}

/// Returns the image's working directory.
pub fn working_folder(config: &ImageConfiguration) -> &Path {
    let named = config.config().as_ref().and_then(|settings| settings.working_dir().as_deref());
    Path::new(named.filter(|folder| folder.starts_with('/')).unwrap_or("/"))
}

/// Applies the rule of `docker run`: arguments of the command line replace the image's Cmd, and
/// `--entrypoint` replaces its entrypoint together with Cmd. An empty `--entrypoint` means no
/// entrypoint.
fn arguments(config: &ImageConfiguration, options: &RunOptions) -> Result<Vec<OsString>> {
    let settings = config.config().as_ref();
    let words = |list: Option<&Vec<String>>| -> Vec<OsString> {
        list.into_iter().flatten().map(OsString::from).collect()
    };
    let (mut arguments, cmd) = match &options.container.entrypoint {
        Some(program) => ([program.clone()].into_iter().filter(|name| !name.is_empty()).collect(), None),
        None => (
            words(settings.and_then(|settings| settings.entrypoint().as_ref())),
            settings.and_then(|settings| settings.cmd().as_ref()),
        ),
    };
    if options.program.is_empty() {
        arguments.extend(words(cmd));
    } else {
        arguments.extend(options.program.iter().cloned());
    }
    match arguments.first() {
        None => Err(Failure::new("the image names no program", "name one: --image FILE -- PROGRAM")),
        Some(name) if name.is_empty() => Err(Failure::not_found("the image's program has no name", "")),
        Some(_) if arguments.iter().any(|word| word.as_bytes().contains(&0)) => {
            Err(Failure::new("an argument of the image's program has a zero byte", ""))
        }
        Some(_) => Ok(arguments),
    }
}

/// Finds a program as execvp(3) would in the guest, which sees `kept` over the tree.
fn find_program(
    (tree, kept): (&MappedTree, Option<&Path>),
    name: &OsStr,
    path: &OsStr,
    cwd: &Path,
) -> Result<PathBuf> {
    let is_path = name.as_bytes().contains(&b'/');
    let candidates: Vec<PathBuf> = if is_path {
        vec![cwd.join(name)]
    } else {
        // An empty folder of PATH is the working directory.
        std::env::split_paths(path).map(|folder| cwd.join(folder).join(name)).collect()
    };
    for guest in candidates {
        if kept.is_some_and(|folder| changes::has_program(folder, &guest)) {
            return Ok(guest);
        }
        let Some(found) = tree.attributes(&tree.end_of(&guest)?) else { continue };
        if found.kind() == FileType::RegularFile && found.mode & 0o111 != 0 {
            return Ok(guest);
        }
        if is_path {
            let what = if found.kind() == FileType::Directory { "a folder" } else { "not executable" };
            return Err(Failure::not_executable(format!("{} in the image is {what}", guest.display()), ""));
        }
    }
    Err(Failure::not_found(
        format!("no such program in the image: {}", name.display()),
        "with --image the program is looked for inside the image",
    ))
}
