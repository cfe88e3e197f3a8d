//! The files of groups.

use crate::cgroup::control::OnRoot;
use crate::cgroup::{CONTROLLERS, ControlFile, ControllerSet, Group, Notice, files};

/// A file of a group, by its implementation.
#[derive(Clone, Copy)]
pub(super) enum Row {
    /// cgroup.procs
    Procs,
    /// cgroup.threads
    Threads,
    /// cgroup.freeze
    Freeze,
    /// cgroup.kill
    Kill,
    /// cpu.stat
    CpuStat,
    /// A file that needs nothing of other layers.
    Control(&'static ControlFile),
}

const OWN: [Row; 5] = [Row::Procs, Row::Threads, Row::Freeze, Row::Kill, Row::CpuStat];

impl Row {
    /// The file's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Procs => "cgroup.procs",
            Self::Threads => "cgroup.threads",
            Self::Freeze => "cgroup.freeze",
            Self::Kill => "cgroup.kill",
            Self::CpuStat => "cpu.stat",
            Self::Control(file) => file.name,
        }
    }

    /// The file's permission bits until a program changes them.
    pub fn mode(self) -> u32 {
        match self {
            Self::Procs | Self::Threads | Self::Freeze => 0o644,
            Self::Kill => 0o200,
            Self::CpuStat => 0o444,
            Self::Control(file) => file.mode,
        }
    }

    /// The notice by which the file reports changes.
    pub fn notice(self) -> Option<Notice> {
        match self {
            Self::Control(file) => file.notice,
            _ => None,
        }
    }

    fn is_on_root(self) -> bool {
        match self {
            Self::Procs | Self::Threads | Self::CpuStat => true,
            Self::Freeze | Self::Kill => false,
            Self::Control(file) => file.on_root == OnRoot::Yes,
        }
    }

    /// Whether a delegatee may write to the file in the root group of its cgroup namespace.
    pub fn is_delegated(self) -> bool {
        match self {
            Self::Procs | Self::Threads => true,
            Self::Control(file) => file.name == "cgroup.subtree_control",
            _ => false,
        }
    }
}

/// All files, each with its index, which never changes, and the controller that provides it.
fn all() -> impl Iterator<Item = (usize, Row, ControllerSet)> {
    let own = OWN.into_iter().map(|row| (row, ControllerSet::empty()));
    let plain = files::FILES.iter().map(|file| (Row::Control(file), ControllerSet::empty()));
    let brought = CONTROLLERS.iter().enumerate().flat_map(|(at, controller)| {
        let set = ControllerSet::from_bits_truncate(1 << at);
        controller.files().iter().map(move |file| (Row::Control(file), set))
    });
    own.chain(plain).chain(brought).enumerate().map(|(index, (row, set))| (index, row, set))
}

/// The files of a group.
pub(super) fn of(group: &Group) -> impl Iterator<Item = (usize, Row)> {
    let (is_root, acting) = (group.is_root(), group.controllers());
    let is_there = move |row: Row, by: ControllerSet| (!is_root || row.is_on_root()) && acting.contains(by);
    all().filter(move |&(_, row, by)| is_there(row, by)).map(|(index, row, _)| (index, row))
}

/// Whether some group may have a file with this name.
pub(super) fn is_known(name: &[u8]) -> bool {
    all().any(|(_, row, _)| row.name().as_bytes() == name)
}

/// The index of the file that reports `notice`.
pub(super) fn index_of(notice: Notice) -> Option<usize> {
    all().find(|(_, row, _)| row.notice() == Some(notice)).map(|(index, ..)| index)
}
