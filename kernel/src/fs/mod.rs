//! Files and names.
//!
//! A [`node::Node`] is a file's identity (an inode), a [`file::File`] what an open description does.
//! Path resolution, mounts and descriptor tables are built on these two traits only.

pub mod file;
pub mod node;
