//! Users and groups of an image, as its /etc/passwd and /etc/group have them (passwd(5), group(5)).

use std::path::Path;

use super::tree::MappedTree;
use crate::Result;
use crate::failure::Failure;
use crate::user::User;

/// Home directory of a user without an account.
const NO_HOME: &str = "/";

/// The user that a program runs as.
#[derive(Debug, PartialEq, Eq)]
pub struct Account {
    /// Its numbers.
    pub user: User,
    /// Its home directory.
    pub home: String,
}

/// A line of /etc/passwd.
struct PasswdLine<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

impl<'a> PasswdLine<'a> {
    fn parse(line: &'a str) -> Option<PasswdLine<'a>> {
        let fields: Vec<&str> = line.trim().split(':').collect();
        let [name, _, uid, gid, _, home, ..] = fields[..] else { return None };
        Some(PasswdLine { name, uid: number(uid)?, gid: number(gid)?, home })
    }
}

/// Finds `text`, which is `USER[:GROUP]` by name or number. A user without an account has group 0,
/// as in container tools.
///
/// # Errors
/// The image knows no user or group of that name.
pub fn find(tree: &MappedTree, text: &str) -> Result<Account> {
    find_in(text, &tree.text(Path::new("/etc/passwd")), &tree.text(Path::new("/etc/group")))
}

fn find_in(text: &str, passwd: &str, group: &str) -> Result<Account> {
    let (user, wanted_group) = text.split_once(':').unwrap_or((text, ""));
    let user = if user.is_empty() { "0" } else { user };
    let known = passwd
        .lines()
        .filter_map(PasswdLine::parse)
        .find(|line| line.name == user || number(user) == Some(line.uid));
    let unknown = |what: &str, name: &str, file: &str| {
        Failure::new(
            format!("user {text}: there is no {what} {name} in the image's {file}"),
            "--user UID:GID needs no names",
        )
    };
    let uid = match &known {
        Some(line) => line.uid,
        None => number(user).ok_or_else(|| unknown("user", user, "/etc/passwd"))?,
    };
    let gid = match wanted_group {
        "" => known.as_ref().map_or(0, |line| line.gid),
        name => group_named(group, name)
            .or_else(|| number(name))
            .ok_or_else(|| unknown("group", name, "/etc/group"))?,
    };
    let home = known.map(|line| line.home).filter(|home| !home.is_empty()).unwrap_or(NO_HOME);
    Ok(Account { user: User { uid, gid }, home: home.to_owned() })
}

fn group_named(group: &str, wanted: &str) -> Option<u32> {
    group.lines().find_map(|line| {
        let mut fields = line.trim().split(':');
        let name = fields.next()?;
        let gid = number(fields.nth(1)?)?;
        (name == wanted).then_some(gid)
    })
}

/// Parses a number of a user or group, below the number that means "no user" in system calls.
fn number(text: &str) -> Option<u32> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|&id| is_number && id != u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/sh\nbroken\napp:x:1000:50:App:/srv/app:/bin/false\n7:x:8:9:::\n";
    const GROUP: &str = "root:x:0:\nstaff:x:50:\nwheel:x:10:root,app\n";

    #[test]
    fn a_user_is_found_by_name_or_number_with_the_group_and_home_of_its_account() {
        let find = |text| {
            find_in(text, PASSWD, GROUP).ok().map(|found| (found.user.uid, found.user.gid, found.home))
        };
        let told = |uid, gid, home: &str| Some((uid, gid, home.to_owned()));
        assert_eq!(find(""), told(0, 0, "/root"));
        assert_eq!(find("app"), told(1000, 50, "/srv/app"));
        assert_eq!(find("1000"), told(1000, 50, "/srv/app"));
        assert_eq!(find("app:wheel"), told(1000, 10, "/srv/app"));
        assert_eq!(find("app:4"), told(1000, 4, "/srv/app"));
        assert_eq!(find("2000"), told(2000, 0, "/"));
        assert_eq!(find("2000:2001"), told(2000, 2001, "/"));
        assert_eq!(find("7"), told(8, 9, "/"));
        assert_eq!(find(":staff"), told(0, 50, "/root"));
        for unknown in ["nobody", "app:nobody", "broken", "-1", "4294967295", "+5", "1000:4294967295"] {
            assert_eq!(find(unknown), None, "{unknown}");
        }
    }
}
