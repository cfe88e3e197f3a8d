//! Owners of the frames that evict each other in a memory-side cache: process, file or other area,
//! and place in it.
//!
//! When the program has ended, our kernel tells the areas of each process, and the plugin looks up
//! in its tables which addresses lead to these frames. The kernel keeps the program's memory until
//! then. Frames of a process that ended earlier are free by then, or have other owners.

use std::collections::HashMap;

use freehold_scope_record::{FrameUser, Results};
use serde::Serialize;
use serde_json::Value;

/// A frame of a pair, and the mappings of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PairOwner {
    /// The frame's number.
    frame: u64,
    /// Its owner class: "anon", "pagecache", "kernel" …
    class: String,
    users: Vec<PairUser>,
    /// Number of further mappings.
    more: u64,
}

/// A mapping of a frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct PairUser {
    pid: u32,
    name: String,
    address: u64,
    /// The path of a file, a name such as `[heap]`, or nothing.
    area: String,
    /// The offset in the file.
    offset: Option<u64>,
}

/// Joins the frames in `results` with the areas that the kernel told.
pub fn of(results: &Results, processes: &[Value]) -> Vec<PairOwner> {
    let user = |user: &FrameUser| {
        let process = processes.iter().find(|process| process["pid"] == user.pid);
        let name = process.and_then(|process| process["name"].as_str()).unwrap_or("?").to_owned();
        let mut areas = process.and_then(|process| process["areas"].as_array()).into_iter().flatten();
        let place = |area: &Value| {
            let (start, end) = (area[0].as_u64()?, area[1].as_u64()?);
            let text = area[3].as_str()?.to_owned();
            let offset = user.address.checked_sub(start)?.saturating_add(area[2].as_u64()?);
            (user.address < end).then_some((text, offset))
        };
        let (area, offset) = areas.find_map(place).unwrap_or_default();
        let offset = area.starts_with('/').then_some(offset);
        PairUser { pid: user.pid, name, address: user.address, area, offset }
    };
    let owners = results.owners.iter().map(|owner| PairOwner {
        frame: owner.frame,
        class: results.classes.get(owner.class).cloned().unwrap_or_default(),
        users: owner.users.iter().map(user).collect(),
        more: owner.more,
    });
    owners.collect()
}

/// Returns the text for each frame whose owner is known.
pub fn texts(owners: &[PairOwner]) -> HashMap<u64, String> {
    owners.iter().map(|owner| (owner.frame, owner.text())).collect()
}

impl PairOwner {
    /// Returns one line: "/lib/libc.so.6 from 0x1000, sh (2) at 0x7f0000001000".
    fn text(&self) -> String {
        let Some(first) = self.users.first() else {
            let state = match &self.class[..] {
                "anon" | "pagecache" => ", not mapped at the program's end",
                _ => "",
            };
            return format!("{}{state}", self.class);
        };
        let copy = if self.class == "anon" { "private copy of " } else { "" };
        let place = match (first.offset, &first.area[..]) {
            (Some(offset), file) => format!("{copy}{file} from {offset:#x}"),
            (None, "") => self.class.clone(),
            (None, area) => area.to_owned(),
        };
        let users =
            self.users.iter().map(|user| format!("{} ({}) at {:#x}", user.name, user.pid, user.address));
        let more = if self.more > 0 { format!(" and {} more", self.more) } else { String::new() };
        format!("{place}, {}{more}", users.collect::<Vec<_>>().join(" and "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scope::tests::sample;
    use freehold_scope_record::FrameOwner;

    #[test]
    fn a_frame_is_told_by_process_area_and_offset() {
        let mut results = sample();
        let class = |name| results.classes.iter().position(|class| class == name).expect("a class");
        let user = |pid, address| FrameUser { pid, address };
        let (anon, cache, kernel) = (class("anon"), class("pagecache"), class("kernel"));
        let owner = |frame, class, users: &[FrameUser], more| FrameOwner {
            frame,
            class,
            users: users.to_vec(),
            more,
        };
        results.owners = vec![
            owner(1, cache, &[user(2, 0x40_2000), user(3, 0x40_2000)], 5),
            owner(2, anon, &[user(2, 0x40_2000)], 0),
            owner(3, anon, &[user(2, 0x60_0000)], 0),
            owner(4, anon, &[user(9, 0x1000)], 0),
            owner(5, anon, &[], 0),
            owner(6, kernel, &[], 0),
        ];
        let areas = r#"[[4198400, 6291456, 4096, "/bin/a"], [6291456, 6295552, 0, "[heap]"]]"#;
        let process = |pid| -> Value {
            let text = format!(r#"{{"pid": {pid}, "name": "a", "left_out": 0, "areas": {areas}}}"#);
            serde_json::from_str(&text).expect("JSON")
        };
        let texts = texts(&of(&results, &[process(2), process(3)]));
        let told = |frame: u64| texts[&frame].as_str();
        assert_eq!(told(1), "/bin/a from 0x2000, a (2) at 0x402000 and a (3) at 0x402000 and 5 more");
        assert_eq!(told(2), "private copy of /bin/a from 0x2000, a (2) at 0x402000");
        assert_eq!(told(3), "[heap], a (2) at 0x600000");
        assert_eq!(told(4), "anon, ? (9) at 0x1000");
        assert_eq!(told(5), "anon, not mapped at the program's end");
        assert_eq!(told(6), "kernel");
    }
}
