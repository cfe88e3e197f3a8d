//! The program's environment variables.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use super::DEFAULT_PATH;
use crate::Result;
use crate::failure::Failure;
use crate::user::User;

/// Returns the program's environment: a fixed part, the terminal's kind, the user's additions.
pub fn environment(user: User, kind: Option<OsString>, additions: &[OsString]) -> Result<Vec<OsString>> {
    let mut list: Vec<(OsString, OsString)> = vec![
        ("PATH".into(), DEFAULT_PATH.into()),
        ("HOME".into(), user.home().into()),
        ("USER".into(), user.name().into()),
    ];
    list.extend(kind.map(|kind| ("TERM".into(), kind)));
    with_additions(list, additions)
}

/// Returns an environment: variables in their order, with the changes of `-e`.
pub fn with_additions(mut list: Vec<(OsString, OsString)>, additions: &[OsString]) -> Result<Vec<OsString>> {
    for addition in additions {
        let bytes = addition.as_bytes();
        if bytes.contains(&0) {
            return Err(Failure::new("-e: a variable cannot hold a zero byte", ""));
        }
        let (key, value) = match bytes.iter().position(|&byte| byte == b'=') {
            Some(at) => (&bytes[..at], Some(OsString::from_vec(bytes[at + 1..].to_vec()))),
            None => (bytes, std::env::var_os(addition)),
        };
        if key.is_empty() {
            return Err(Failure::new(
                format!("-e {}: no name before =", addition.display()),
                "-e NAME=VALUE",
            ));
        }
        let key = OsString::from_vec(key.to_vec());
        list.retain(|(known, _)| *known != key);
        // `-e NAME` with a variable that the host does not have leaves it unset.
        list.extend(value.map(|value| (key, value)));
    }
    let join = |(mut key, value): (OsString, OsString)| {
        key.push("=");
        key.push(value);
        key
    };
    Ok(list.into_iter().map(join).collect())
}

/// Returns the value of a variable.
pub fn variable<'a>(environment: &'a [OsString], name: &str) -> Option<&'a OsStr> {
    let value = |entry: &'a OsString| entry.as_bytes().strip_prefix(name.as_bytes())?.strip_prefix(b"=");
    environment.iter().find_map(value).map(OsStr::from_bytes)
}
