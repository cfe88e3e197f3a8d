//! Control groups (cgroup2): the tree of groups, which processes are in which, and their limits.
//!
//! | module | concept |
//! |---|---|
//! | [`group`] | one group: its place in the tree, its counts, its settings |
//! | [`tree`] | making and removing groups; their numbers |
//! | [`member`] | a process' place: forks, ends, moves |
//! | [`control`] | controllers and control files |
//! | [`files`] | the files that every group has |
//! | [`cpu`] | the controller of CPU time: quotas |
//! | [`memory`] | the controller of memory: accounts that frames are charged to |
//! | [`pids`] | the controller of the number of tasks |
//!
//! **Membership.** A process has a [`CgroupMember`], one atomic word: the number of its group and
//! how many of its threads live. Number 0 is the root group, which counts nothing. So fork and exit
//! of a process in the root cost a load and a branch, and no lock.
//!
//! **Protocol.** The spin lock of the [tree] serialises all operations on groups and their members:
//! forks, exits and moves of members of groups other than the root, and making and removing groups.
//! A word with number 0 also changes without the lock, by compare-exchange; a move replaces such a
//! word by compare-exchange under the lock. A fork counts its child in the group before the child
//! is made, and undoes the count if it fails. So a group with a concurrent fork is populated, and
//! cannot be removed. A move of the forking process leaves the child where it was counted. A kill
//! advances the group's [`kills`](group::Group::kills) first and then looks for processes. A fork
//! checks `kills` once its child can be found. So either the kill finds the child, or the fork
//! notices the kill. `model.rs` explores this.
//!
//! **Numbers.** A group's number names it in a word. The number is reused when no member, no child
//! and no charge is left ([`group::Group::hold`]). That may be later than the group's removal: an
//! ended process that was not waited for stays in its group.
//!
//! **Lock order.** The registry of processes > the tree. Code that holds the tree's lock does not
//! sleep, allocate infallibly or report events. A task that changed watched files reports it
//! afterwards ([`tell`]).
//!
//! Linux' relatives: `kernel/cgroup/cgroup.c`, `css_set` for the word. There is no threaded mode:
//! all threads of a process are in its group.

pub mod control;
pub mod cpu;
pub mod files;
pub mod group;
pub mod member;
pub mod memory;
#[cfg(test)]
mod model;
pub mod pids;
#[cfg(test)]
mod tests;
pub mod tree;

pub use control::{CONTROLLERS, ControlFile, Controller, ControllerSet};
pub use group::{Group, Notice};
pub use member::{CgroupMember, CpuTime, Fork, GroupHelper};
pub use tree::{Observer, is_below, make, remove, root, set_observer, tell};
