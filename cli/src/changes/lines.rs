//! The lines of a folder of changes.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use crate::user::User;

/// The kind of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptKind {
    Directory,
    File,
    Symlink,
    Fifo,
    Device { is_block: bool, number: (u32, u32) },
}

/// An inode, as described by its line.
#[derive(Debug, PartialEq, Eq)]
pub struct KeptNode {
    pub kind: KeptKind,
    pub mode: u32,
    pub owner: User,
}

/// An extended attribute.
#[derive(Debug, PartialEq, Eq)]
pub struct Attribute {
    /// The path of the inode.
    pub path: PathBuf,
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Attribute {
    /// Encodes the attribute for the guest's kernel: three lengths, path, name and value.
    pub fn encode(&self) -> Vec<u8> {
        let fields = [self.path.as_os_str().as_bytes(), &self.name, &self.value];
        let lengths = fields.iter().flat_map(|field| (field.len() as u32).to_le_bytes());
        lengths.chain(fields.iter().flat_map(|field| field.iter().copied())).collect()
    }
}

/// All lines.
#[derive(Debug, Default)]
pub struct ChangeLines {
    /// Inodes that are new or changed.
    pub nodes: BTreeMap<PathBuf, KeptNode>,
    /// Other names of files among them.
    pub names: BTreeMap<PathBuf, PathBuf>,
    /// Names that were removed.
    pub removed: Vec<PathBuf>,
    /// Extended attributes.
    pub attributes: Vec<Attribute>,
}

impl ChangeLines {
    /// Reads all lines.
    ///
    /// # Errors
    /// The number of a line that is malformed, or that is missing.
    pub fn parse(text: &[u8]) -> Result<ChangeLines, usize> {
        let mut kept = ChangeLines::default();
        let mut lines = text.split_inclusive(|&byte| byte == b'\n').enumerate();
        if lines.next().is_none_or(|(_, line)| line != b"freehold changes 1\n") {
            return Err(1);
        }
        let mut count = 1;
        for (place, line) in lines {
            count = place + 1;
            let line = line.strip_suffix(b"\n").and_then(|line| std::str::from_utf8(line).ok());
            let fields: Vec<&str> = line.ok_or(count)?.split('\t').collect();
            if let ["end", said] = fields[..] {
                let is_last = text.split(|&byte| byte == b'\n').count() == count + 1;
                return if is_last && said.parse() == Ok(place - 1) { Ok(kept) } else { Err(count) };
            }
            kept.line(&fields).ok_or(count)?;
        }
        Err(count + 1)
    }

    fn line(&mut self, fields: &[&str]) -> Option<()> {
        let (kind, bits, whose, at) = match *fields {
            ["removed", at] => {
                self.removed.push(path(at)?);
                return Some(());
            }
            ["name", at, other] => {
                self.names.insert(path(at)?, path(other)?);
                return Some(());
            }
            ["attribute", name, value, at] => {
                let (name, value) = (unescaped(name)?, unescaped(value)?);
                self.attributes.push(Attribute { path: path(at)?, name, value });
                return Some(());
            }
            [kind @ ("char" | "block"), bits, whose, number, at] => {
                let (major, minor) = number.split_once(':')?;
                let number = (major.parse().ok()?, minor.parse().ok()?);
                (KeptKind::Device { is_block: kind == "block", number }, bits, whose, at)
            }
            ["directory", bits, whose, at] => (KeptKind::Directory, bits, whose, at),
            ["file", bits, whose, at] => (KeptKind::File, bits, whose, at),
            ["symlink", bits, whose, at] => (KeptKind::Symlink, bits, whose, at),
            ["fifo", bits, whose, at] => (KeptKind::Fifo, bits, whose, at),
            _ => return None,
        };
        self.nodes.insert(path(at)?, KeptNode { kind, mode: mode(bits)?, owner: owner(whose)? });
        Some(())
    }

    /// Returns the number of new or changed names, without the root.
    pub fn changed(&self) -> usize {
        self.names.len() + self.nodes.keys().filter(|path| **path != *Path::new("/")).count()
    }
}

fn mode(bits: &str) -> Option<u32> {
    u32::from_str_radix(bits, 8).ok().filter(|mode| *mode <= 0o7777)
}

fn owner(text: &str) -> Option<User> {
    let (uid, gid) = text.split_once(':')?;
    Some(User { uid: uid.parse().ok()?, gid: gid.parse().ok()? })
}

/// Parses an absolute path without `.` and `..`.
fn path(text: &str) -> Option<PathBuf> {
    let path = PathBuf::from(OsString::from_vec(unescaped(text)?));
    let is_plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
    let is_good =
        path.is_absolute() && path.components().all(is_plain) && !path.as_os_str().as_bytes().contains(&0);
    is_good.then_some(path)
}

/// Reverses [`u8::escape_ascii`].
pub fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next()? {
                b't' => b'\t',
                b'n' => b'\n',
                b'r' => b'\r',
                b'x' => {
                    let digit = |byte: u8| char::from(byte).to_digit(16);
                    let (high, low) = (digit(rest.next()?)?, digit(rest.next()?)?);
                    u8::try_from(high << 4 | low).ok()?
                }
                quoted @ (b'\\' | b'\'' | b'"') => quoted,
                _ => return None,
            },
            b' '..=b'~' => byte,
            _ => return None,
        });
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_escaped_comes_back(bytes: Vec<u8>) {
            prop_assert_eq!(unescaped(&bytes.escape_ascii().to_string()), Some(bytes));
        }

        #[test]
        fn no_text_does_harm(text in "(freehold changes 1\n)?([a-z]{1,9}\t[0-9:/.a-z\\\\\t]{0,20}\n){0,5}") {
            if let Ok(kept) = ChangeLines::parse(text.as_bytes()) {
                prop_assert!(kept.nodes.keys().all(|path| path.is_absolute()));
            }
        }
    }

    #[test]
    fn every_line_is_understood() {
        let lines = "freehold changes 1\ndirectory\t0755\t0:0\t/\nfile\t4755\t0:7\t/a\\x0ab\nname\t/c\t/a\\x0ab\n\
            char\t0666\t0:0\t1:3\t/null\nremoved\t/gone\nattribute\tuser.x\t\\x00y\t/a\\x0ab\nend\t6\n";
        let kept = ChangeLines::parse(lines.as_bytes()).expect("understood");
        let file = kept.nodes.get(Path::new("/a\nb"));
        let owner = User { uid: 0, gid: 7 };
        assert_eq!(file, Some(&KeptNode { kind: KeptKind::File, mode: 0o4755, owner }));
        assert_eq!(kept.names.get(Path::new("/c")), Some(&PathBuf::from("/a\nb")));
        assert_eq!(kept.removed, [PathBuf::from("/gone")]);
        assert_eq!(kept.changed(), 3);
        assert_eq!(kept.attributes[0].encode()[12..], *b"/a\nbuser.x\0y");
    }

    #[test]
    fn what_makes_no_sense_is_named_by_its_line() {
        for (lines, line) in [
            ("", 1),
            ("freehold changes 2\nend\t0\n", 1),
            ("freehold changes 1\n", 2),
            ("freehold changes 1\nend\t1\n", 2),
            ("freehold changes 1\nend\t0\nremoved\t/x\n", 2),
            ("freehold changes 1\nremoved\t/../x\nend\t1\n", 2),
            ("freehold changes 1\nremoved\tx\nend\t1\n", 2),
            ("freehold changes 1\nremoved\t/x\\x00\nend\t1\n", 2),
            ("freehold changes 1\nremoved\t/x\nfile\t10000\t0:0\t/y\nend\t2\n", 3),
            ("freehold changes 1\nfile\t0644\troot:0\t/y\nend\t1\n", 2),
            ("freehold changes 1\nsocket\t0644\t0:0\t/y\nend\t1\n", 2),
        ] {
            assert_eq!(ChangeLines::parse(lines.as_bytes()).err(), Some(line), "{lines}");
        }
    }
}
