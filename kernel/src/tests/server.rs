//! A 9P server in the test's memory.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::vec::Vec;

use freehold_ninep::{HEADER, VERSION};
use freehold_virtio::{Data, Exchange, MessageDevice, MessageError, Sleep};

use crate::sync::WaitQueue;

/// Errors with Linux' numbers.
const ENOENT: u32 = 2;
const EBADF: u32 = 9;
const EINVAL: u32 = 22;
const EEXIST: u32 = 17;
const ENOTEMPTY: u32 = 39;
const EROFS: u32 = 30;

/// Kind of protocol violation in the server's answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Lie {
    None,
    /// Answers without a body.
    Empty,
    /// Answers whose bytes are all ones.
    Ones,
    /// Files whose type changes with each answer.
    Kinds,
    /// Invalid names.
    Names,
    /// A listing that never ends.
    EndlessListing,
    /// Fewer bytes than the reported size of the file.
    Short,
    /// Directories that contain themselves.
    Circle,
    /// Links to names that do not exist.
    Links,
    /// More bytes written than requested.
    More,
}

/// All kinds that are violations.
pub const LIES: [Lie; 9] = [
    Lie::Empty,
    Lie::Ones,
    Lie::Kinds,
    Lie::Names,
    Lie::EndlessListing,
    Lie::Short,
    Lie::Circle,
    Lie::Links,
    Lie::More,
];

#[derive(Default)]
struct Node {
    mode: u32,
    bytes: Vec<u8>,
    names: BTreeMap<Vec<u8>, usize>,
    changes: u64,
    /// The number that is reported for the file, if it has another file's number.
    number: Option<u64>,
}

#[derive(Default)]
struct Tree {
    nodes: Vec<Node>,
    fids: BTreeMap<u32, (usize, bool)>,
}

/// See the module's head.
pub struct Server {
    tree: Mutex<Tree>,
    lie: AtomicU32,
    /// Number of requests so far.
    pub requests: AtomicU64,
    /// Whether listings do not contain file types, as with QEMU's mapped owners.
    pub tells_no_kinds: AtomicBool,
    /// Whether the file system has generations.
    pub has_generations: AtomicBool,
    /// Whether it refuses all changes.
    pub is_read_only: AtomicBool,
    /// Largest number of bytes that it accepts in one write.
    pub most_written: AtomicUsize,
    /// The type of requests that are not answered.
    pub held: AtomicU32,
    /// Whether such a request has arrived.
    pub is_asked: AtomicBool,
    /// Requests of the kernel's own task wait, too.
    pub task_waits: AtomicBool,
    gate: WaitQueue,
    ended: Mutex<Vec<u32>>,
}

impl Server {
    /// Makes a server with an empty directory.
    pub fn new() -> Self {
        let root = Node { mode: 0o040_755, ..Node::default() };
        Self {
            tree: Mutex::new(Tree { nodes: std::vec![root], fids: BTreeMap::new() }),
            lie: AtomicU32::new(0),
            requests: AtomicU64::new(0),
            tells_no_kinds: AtomicBool::new(false),
            has_generations: AtomicBool::new(false),
            is_read_only: AtomicBool::new(false),
            most_written: AtomicUsize::new(usize::MAX),
            held: AtomicU32::new(0),
            is_asked: AtomicBool::new(false),
            task_waits: AtomicBool::new(false),
            gate: WaitQueue::new(),
            ended: Mutex::new(Vec::new()),
        }
    }

    /// Creates a file with this mode at a path, or changes its bytes.
    pub fn put(&self, path: &str, mode: u32, bytes: &[u8]) {
        let mut tree = self.tree.lock().unwrap();
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = tree.find(dir).expect("its directory is there");
        let known = tree.nodes[dir].names.get(name.as_bytes()).copied();
        let number = known.unwrap_or_else(|| {
            tree.nodes.push(Node::default());
            tree.nodes.len() - 1
        });
        tree.nodes[dir].names.insert(name.as_bytes().to_vec(), number);
        let node = &mut tree.nodes[number];
        (node.mode, node.bytes) = (mode, bytes.to_vec());
        node.changes += 1;
    }

    /// Returns the file at a path: its mode and its bytes.
    pub fn get(&self, path: &str) -> Option<(u32, Vec<u8>)> {
        let tree = self.tree.lock().unwrap();
        tree.find(path).map(|number| (tree.nodes[number].mode, tree.nodes[number].bytes.clone()))
    }

    /// Removes a name.
    pub fn remove(&self, name: &str) {
        self.tree.lock().unwrap().nodes[0].names.remove(name.as_bytes());
    }

    /// Moves a file. An existing file with the new name is replaced.
    pub fn rename(&self, path: &str, new_path: &str) {
        let mut tree = self.tree.lock().unwrap();
        let number = tree.unlink(path);
        let (dir, name) = new_path.rsplit_once('/').unwrap_or(("", new_path));
        let dir = tree.find(dir).expect("its directory is there");
        tree.nodes[dir].names.insert(name.as_bytes().to_vec(), number);
    }

    /// Removes a file. The file at `heir` gets its number.
    pub fn bequeath(&self, path: &str, heir: &str) {
        let mut tree = self.tree.lock().unwrap();
        let gone = tree.unlink(path);
        let number = tree.number(gone);
        let heir = tree.find(heir).expect("it is there");
        tree.nodes[heir].number = Some(number);
    }

    /// Returns the number of fids that are not clunked, and how many of them are open.
    pub fn fids(&self) -> (usize, usize) {
        let tree = self.tree.lock().unwrap();
        (tree.fids.len(), tree.fids.values().filter(|fid| fid.1).count())
    }

    /// Starts protocol violations of this kind.
    pub fn lie(&self, lie: Lie) {
        self.lie.store(lie as u32, Ordering::Relaxed);
    }
    fn lies(&self, lie: Lie) -> bool {
        self.lie.load(Ordering::Relaxed) == lie as u32
    }

    /// Answers the held requests.
    pub fn let_go(&self) {
        self.held.store(0, Ordering::Relaxed);
        self.task_waits.store(false, Ordering::Relaxed);
        self.gate.wake_all();
    }

    fn serve(&self, exchange: &mut Exchange<'_, '_>) -> Result<usize, u32> {
        let request = exchange.request.to_vec();
        let mut ask = Ask(&request[HEADER..]);
        let mut body = Vec::new();
        let mut tree = self.tree.lock().unwrap();
        match request[4] {
            100 => {
                let most = ask.u32();
                tree.fids.clear();
                body.extend(most.to_le_bytes());
                text(&mut body, VERSION);
            }
            104 => {
                let fid = ask.u32();
                tree.fids.insert(fid, (0, false));
                tree.qid(0, &mut body);
            }
            110 => tree.walk(&mut ask, &mut body, self)?,
            24 => {
                let number = tree.named(ask.u32())?;
                self.attributes(&tree, number, &mut body);
            }
            14 | 16 | 18 | 26 | 70 | 72 | 74 | 76 | 118 if self.is_read_only.load(Ordering::Relaxed) => {
                return Err(EROFS);
            }
            14 | 16 | 18 | 72 => tree.make(request[4], &mut ask, &mut body)?,
            26 => tree.change(&mut ask)?,
            50 => _ = tree.of(ask.u32())?,
            70 => {
                let (dir, file) = (tree.of(ask.u32())?, tree.named(ask.u32())?);
                tree.enter(dir, ask.text(), file)?;
            }
            74 => {
                let (dir, name) = (tree.of(ask.u32())?, ask.text());
                let (new_dir, new_name) = (tree.of(ask.u32())?, ask.text());
                let number = tree.nodes[dir].names.remove(name).ok_or(ENOENT)?;
                tree.nodes[new_dir].names.insert(new_name.to_vec(), number);
            }
            76 => {
                let (dir, name) = (tree.of(ask.u32())?, ask.text());
                let number = *tree.nodes[dir].names.get(name).ok_or(ENOENT)?;
                if !tree.nodes[number].names.is_empty() {
                    return Err(ENOTEMPTY);
                }
                tree.nodes[dir].names.remove(name);
            }
            118 => {
                let (fid, offset) = (ask.u32(), ask.u64() as usize);
                let (number, is_open) = *tree.fids.get(&fid).ok_or(EBADF)?;
                let Data::Sent(from) = &exchange.data else { return Err(EINVAL) };
                if !is_open {
                    return Err(EBADF);
                }
                let mut bytes = std::vec![0; from.length().min(self.most_written.load(Ordering::Relaxed))];
                from.copy_to(0, &mut bytes);
                let node = &mut tree.nodes[number];
                let end = offset + bytes.len();
                node.bytes.resize(node.bytes.len().max(end), 0);
                node.bytes[offset..end].copy_from_slice(&bytes);
                node.changes += 1;
                let told = if self.lies(Lie::More) { bytes.len() + 1 } else { bytes.len() };
                body.extend((told as u32).to_le_bytes());
            }
            12 => {
                let fid = ask.u32();
                let number = tree.of(fid)?;
                tree.fids.insert(fid, (number, true));
                tree.qid(number, &mut body);
                body.extend(0u32.to_le_bytes());
            }
            22 => {
                let number = tree.of(ask.u32())?;
                let target =
                    if self.lies(Lie::Links) { b"\0".to_vec() } else { tree.nodes[number].bytes.clone() };
                text(&mut body, &target);
            }
            8 => body.extend([0; 60]),
            120 => {
                tree.fids.remove(&ask.u32()).ok_or(EBADF)?;
            }
            116 | 40 => {
                let (fid, offset) = (ask.u32(), ask.u64());
                let (number, is_open) = *tree.fids.get(&fid).ok_or(EBADF)?;
                if !is_open {
                    return Err(EBADF);
                }
                let bytes = if request[4] == 40 {
                    self.listing(&tree, number, offset)
                } else {
                    self.part(&tree, number, offset)
                };
                let Data::Received(to) = &mut exchange.data else { return Err(EINVAL) };
                let mut count = bytes.len().min(to.length());
                if request[4] == 40 {
                    // Only whole entries.
                    count = whole(&bytes, count);
                }
                to.copy_from(0, &bytes[..count]);
                return Ok(count);
            }
            _ => return Err(EINVAL),
        }
        if self.lies(Lie::Empty) {
            body.clear();
        }
        if self.lies(Lie::Ones) {
            body.fill(0xff);
        }
        let whole = [&[0; HEADER], body.as_slice()].concat();
        let fits = whole.len().min(exchange.reply.len());
        exchange.reply[..fits].copy_from_slice(&whole[..fits]);
        Ok(whole.len())
    }

    fn part(&self, tree: &Tree, number: usize, offset: u64) -> Vec<u8> {
        let bytes = &tree.nodes[number].bytes;
        let end = if self.lies(Lie::Short) { 10.min(bytes.len()) } else { bytes.len() };
        bytes.get(offset as usize..end).unwrap_or_default().to_vec()
    }

    fn listing(&self, tree: &Tree, number: usize, from: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        let own = [(b".".to_vec(), number), (b"..".to_vec(), 0)];
        let names = tree.nodes[number].names.iter().map(|(name, &number)| (name.clone(), number));
        for (at, (name, number)) in own.into_iter().chain(names).enumerate() {
            if (at as u64) < from && !self.lies(Lie::EndlessListing) {
                continue;
            }
            tree.qid(number, &mut bytes);
            bytes.extend((at as u64 + 1).to_le_bytes());
            let is_told = !self.tells_no_kinds.load(Ordering::Relaxed);
            bytes.push(if is_told { (tree.nodes[number].mode >> 12) as u8 } else { 0 });
            text(&mut bytes, if self.lies(Lie::Names) { b"a/b" } else { &name });
        }
        bytes
    }

    fn attributes(&self, tree: &Tree, number: usize, body: &mut Vec<u8>) {
        let node = &tree.nodes[number];
        let turn = self.requests.load(Ordering::Relaxed) as u32 % 16;
        let mode = if self.lies(Lie::Kinds) { turn << 12 } else { node.mode };
        let generation = if self.has_generations.load(Ordering::Relaxed) { 0x1000 } else { 0 };
        body.extend((0x7ff_u64 | generation).to_le_bytes());
        tree.qid(number, body);
        for word in [mode, 0, 0] {
            body.extend(word.to_le_bytes());
        }
        let size = node.bytes.len() as u64;
        let time = [node.changes, 0];
        for word in [1, 0, size, 4096, size.div_ceil(512)].iter().chain(&[time; 3].concat()).chain(&[
            0,
            0,
            number as u64,
            0,
        ]) {
            body.extend(word.to_le_bytes());
        }
    }
}

impl Tree {
    fn find(&self, path: &str) -> Option<usize> {
        let names = path.split('/').filter(|name| !name.is_empty());
        names.into_iter().try_fold(0, |at, name| self.nodes[at].names.get(name.as_bytes()).copied())
    }
    fn of(&self, fid: u32) -> Result<usize, u32> {
        self.fids.get(&fid).map(|&(number, _)| number).ok_or(EBADF)
    }
    /// Returns the file of a fid, if it has a name: QEMU's server identifies files by their names,
    /// even open ones.
    fn named(&self, fid: u32) -> Result<usize, u32> {
        let number = self.of(fid)?;
        let is_named =
            number == 0 || self.nodes.iter().any(|node| node.names.values().any(|&found| found == number));
        if is_named { Ok(number) } else { Err(ENOENT) }
    }
    fn qid(&self, number: usize, to: &mut Vec<u8>) {
        to.push(if self.nodes[number].mode >> 12 == 4 { 0x80 } else { 0 });
        to.extend((self.nodes[number].changes as u32).to_le_bytes());
        to.extend(self.number(number).to_le_bytes());
    }
    /// Returns the number that is reported for the file at this index.
    fn number(&self, at: usize) -> u64 {
        self.nodes[at].number.unwrap_or(at as u64 + 1)
    }
    fn unlink(&mut self, path: &str) -> usize {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = self.find(dir).expect("its directory is there");
        self.nodes[dir].names.remove(name.as_bytes()).expect("it is there")
    }
    fn walk(&mut self, ask: &mut Ask<'_>, body: &mut Vec<u8>, server: &Server) -> Result<(), u32> {
        let (fid, new, count) = (ask.u32(), ask.u32(), ask.u16());
        let mut number = self.of(fid)?;
        assert!(!self.fids.contains_key(&new), "fid {new} stands for something");
        if count == 1 {
            let name = ask.text();
            if !server.lies(Lie::Circle) {
                number = *self.nodes[number].names.get(name).ok_or(ENOENT)?;
            }
        }
        body.extend(count.to_le_bytes());
        if count == 1 {
            self.qid(number, body);
        }
        self.fids.insert(new, (number, false));
        Ok(())
    }
}

impl Tree {
    /// Enters a name for a node.
    fn enter(&mut self, dir: usize, name: &[u8], number: usize) -> Result<(), u32> {
        if self.nodes[dir].names.contains_key(name) {
            return Err(EEXIST);
        }
        self.nodes[dir].names.insert(name.to_vec(), number);
        Ok(())
    }
    /// Tlcreate, Tsymlink, Tmknod, Tmkdir.
    fn make(&mut self, kind: u8, ask: &mut Ask<'_>, body: &mut Vec<u8>) -> Result<(), u32> {
        let fid = ask.u32();
        let (dir, name, number) = (self.of(fid)?, ask.text(), self.nodes.len());
        let (mode, bytes) = match kind {
            14 => {
                ask.bytes(4);
                (0o100_000 | ask.u32(), Vec::new())
            }
            16 => (0o120_777, ask.text().to_vec()),
            18 => (ask.u32(), Vec::new()),
            _ => (0o040_000 | ask.u32(), Vec::new()),
        };
        self.enter(dir, name, number)?;
        self.nodes.push(Node { mode, bytes, changes: 1, ..Node::default() });
        self.qid(number, body);
        if kind == 14 {
            body.extend(0u32.to_le_bytes());
            self.fids.insert(fid, (number, true));
        }
        Ok(())
    }
    /// Tsetattr: mode and size.
    fn change(&mut self, ask: &mut Ask<'_>) -> Result<(), u32> {
        let number = self.named(ask.u32())?;
        let (valid, mode) = (ask.u32(), ask.u32());
        ask.bytes(8);
        let (size, node) = (ask.u64() as usize, &mut self.nodes[number]);
        node.changes += 1;
        if valid & 1 != 0 {
            node.mode = node.mode & !0o7777 | mode;
        }
        if valid & 8 != 0 {
            node.bytes.resize(size, 0);
        }
        Ok(())
    }
}

/// Returns the length of the whole entries in the first `most` bytes of `bytes`.
fn whole(bytes: &[u8], most: usize) -> usize {
    let mut at = 0;
    while let Some(&[low, high]) = bytes.get(at + 22..at + 24) {
        let end = at + 24 + usize::from(u16::from_le_bytes([low, high]));
        if end > most {
            break;
        }
        at = end;
    }
    at
}

fn text(to: &mut Vec<u8>, text: &[u8]) {
    to.extend((text.len() as u16).to_le_bytes());
    to.extend(text);
}

struct Ask<'a>(&'a [u8]);

impl<'a> Ask<'a> {
    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }
    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.bytes(2).try_into().unwrap())
    }
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes(4).try_into().unwrap())
    }
    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes(8).try_into().unwrap())
    }
    fn text(&mut self) -> &'a [u8] {
        let length = self.u16();
        self.bytes(length.into())
    }
}

/// For a static reference, because kernel and test share the server.
impl MessageDevice for &'static Server {
    fn tag(&self) -> &[u8] {
        b"memory"
    }
    fn exchange(&self, exchange: &mut Exchange<'_, '_>, sleep: Sleep) -> Result<usize, MessageError> {
        let size = u32::from_le_bytes(exchange.request[..4].try_into().unwrap());
        assert_eq!(size as usize, exchange.request.len(), "a message is as long as it says");
        self.requests.fetch_add(1, Ordering::Relaxed);
        let kind = u32::from(exchange.request[4]);
        if sleep == Sleep::Uninterruptible {
            self.gate.wait_uninterruptible(|| (!self.task_waits.load(Ordering::Relaxed)).then_some(()));
        }
        if self.held.load(Ordering::Relaxed) == kind && sleep == Sleep::Killable {
            self.is_asked.store(true, Ordering::Relaxed);
            let open = || (self.held.load(Ordering::Relaxed) != kind).then_some(());
            if self.gate.wait_killable(open).is_err() {
                // The request is carried out nevertheless.
                let _ = self.serve(exchange);
                self.ended.lock().unwrap().extend(exchange.left);
                crate::host::folders_ended().wake_all();
                return Err(MessageError::Abandoned);
            }
        }
        self.serve(exchange).map_err(MessageError::Refused)
    }
    fn take_ended(&self) -> Option<u32> {
        self.ended.lock().unwrap().pop()
    }
}
