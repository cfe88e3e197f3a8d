//! `--user UID[:GID]`: the user that runs the program in the guest.

use crate::Result;
use crate::failure::Failure;

/// A user and a group, by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    /// User ID.
    pub uid: u32,
    /// Group ID. There are no supplementary groups.
    pub gid: u32,
}

/// The home directory of users other than root: all users may write there.
pub const HOME: &str = "/tmp";
/// The guest's name for a user that its `/etc/passwd` does not have.
pub const NAME: &str = "user";

/// The user that owns nothing.
pub const NOBODY: u32 = 65_534;

impl User {
    /// The user that runs programs without the option.
    pub const ROOT: User = User { uid: 0, gid: 0 };

    /// Reads `UID` or `UID:GID`. The group of a bare `UID` has the same number.
    pub fn parse(text: &str) -> Result<User> {
        let (uid, gid) = text.split_once(':').unwrap_or((text, text));
        Ok(User { uid: id(text, uid)?, gid: id(text, gid)? })
    }

    /// Returns the value of `USER`.
    pub fn name(self) -> &'static str {
        match self.uid {
            0 => "root",
            NOBODY => "nobody",
            _ => NAME,
        }
    }

    /// Returns the value of `HOME`.
    pub fn home(self) -> &'static str {
        if self.uid == 0 { "/root" } else { HOME }
    }

    /// Returns the record in /.freehold/spec.
    pub fn record(self) -> String {
        format!("{}:{}", self.uid, self.gid)
    }
}

/// Parses a number below 2^32 - 1, which stands for "no user" in system calls.
fn id(whole: &str, text: &str) -> Result<u32> {
    let wrong = |why: &str| {
        Failure::new(
            format!("--user {whole}: {why}"),
            "write numbers, for example 1000 or 1000:100; id -u NAME shows a user's number",
        )
    };
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong("not UID or UID:GID in numbers"));
    }
    text.parse().ok().filter(|&id| id != u32::MAX).ok_or_else(|| wrong("too large: IDs are below 4294967295"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_a_number_with_a_group_or_without() {
        let parse = |text| User::parse(text).ok().map(User::record);
        assert_eq!(parse("1000").as_deref(), Some("1000:1000"));
        assert_eq!(parse("1000:5").as_deref(), Some("1000:5"));
        assert_eq!(parse("0").as_deref(), Some("0:0"));
        assert_eq!(parse("4294967294").as_deref(), Some("4294967294:4294967294"));
        for bad in ["", ":", "1000:", ":5", "nobody", "-1", "+1", " 1", "1:2:3", "4294967295", "99999999999"]
        {
            assert!(User::parse(bad).is_err(), "{bad} is no user");
        }
    }
}
