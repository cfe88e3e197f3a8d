//! `/.freehold/spec`: the program that the guest runs. NUL-terminated records `key=value`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::owns::OwnerQuestion;
use crate::qemu::network::Network;
use crate::qemu::share::FolderShare;
use crate::strace::FirstProgram;
use crate::user::User;

/// The kind of a stream of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgramStream {
    /// The terminal of the guest.
    Terminal,
    /// Bare bytes.
    Pipe,
}

/// Facts about its own functions that a stock Linux is to report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Symbols {
    /// No facts.
    None,
    /// The start of the kernel's text in this boot.
    Base,
    /// The start of the text, and every function's address.
    All,
}

/// The program, its arguments and its environment.
#[derive(Debug)]
pub struct Spec {
    /// Path of the program in the guest.
    pub exec: PathBuf,
    /// argv, the program's name included.
    pub arguments: Vec<OsString>,
    /// `K=V` each.
    pub environment: Vec<OsString>,
    /// Working directory.
    pub cwd: PathBuf,
    /// The user that runs the program.
    pub user: User,
    /// stdin, stdout, stderr.
    pub streams: [ProgramStream; 3],
    /// Terminal size: rows, columns.
    pub window: (u16, u16),
    /// Facts about the kernel that guest/init reports.
    pub symbols: Symbols,
    /// The device that the guest swaps to.
    pub swap: Option<PathBuf>,
    /// Folders of the host that the guest sees.
    pub shares: Vec<FolderShare>,
    /// The events that are recorded while the program runs.
    pub events: Option<String>,
    /// The guest's network, if it has one.
    pub network: Option<Network>,
    /// Whether the guest tells the names that programs found.
    pub learns: bool,
    /// Questions that the kernel answers at the program's end.
    pub owns: Vec<OwnerQuestion>,
    /// Whether the guest tells the areas of all processes at the end.
    pub tells_areas: bool,
}

impl Spec {
    /// Returns the program, for the lines of `--strace`.
    pub fn first_program(&self) -> FirstProgram {
        FirstProgram {
            path: self.exec.as_os_str().as_bytes().to_vec(),
            arguments: self.arguments.iter().map(|word| word.as_bytes().to_vec()).collect(),
            variables: self.environment.len(),
        }
    }

    /// Returns the file's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut record = |key: &str, value: &OsStr| {
            bytes.extend_from_slice(key.as_bytes());
            bytes.push(b'=');
            bytes.extend_from_slice(value.as_bytes());
            bytes.push(0);
        };
        record("exec", self.exec.as_os_str());
        for argument in &self.arguments {
            record("arg", argument);
        }
        for variable in &self.environment {
            record("env", variable);
        }
        record("cwd", self.cwd.as_os_str());
        if self.user != User::ROOT {
            record("user", OsStr::new(&self.user.record()));
        }
        for (key, stream) in ["stdin", "stdout", "stderr"].iter().zip(self.streams) {
            let value = match stream {
                ProgramStream::Terminal => "tty",
                ProgramStream::Pipe => "pipe",
            };
            record(key, OsStr::new(value));
        }
        record("rows", OsStr::new(&self.window.0.to_string()));
        record("cols", OsStr::new(&self.window.1.to_string()));
        record("report", OsStr::new("1"));
        if let Some(device) = &self.swap {
            record("swap", device.as_os_str());
        }
        for (number, share) in self.shares.iter().enumerate() {
            record("share", &share.record(number));
        }
        if let Some(network) = &self.network {
            record("net", OsStr::new(network.record()));
        }
        if let Some(events) = &self.events {
            record("events", OsStr::new(events));
        }
        if self.learns {
            record("learn", OsStr::new("1"));
        }
        for question in &self.owns {
            record("owns", OsStr::new(&question.words()));
        }
        if self.tells_areas {
            record("areas", OsStr::new("1"));
        }
        match self.symbols {
            Symbols::None => {}
            Symbols::Base => record("symbols", OsStr::new("base")),
            Symbols::All => record("symbols", OsStr::new("all")),
        }
        bytes
    }
}
