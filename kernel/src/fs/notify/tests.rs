//! Host tests of instances and watches, on trees in plain memory.

use std::borrow::ToOwned;
use std::format;
use std::string::String;
use std::sync::atomic::{AtomicU32, Ordering};

use freehold_collections::inject::{each_fails, fail_nth};
use std::sync::Arc;

use super::{Events, InotifyFile, dnotify, watches};
use crate::Errno;
use crate::fs::bytes::{SliceSink, SliceSource};
use crate::fs::flags::{OpenFlags, RenameFlags};
use crate::fs::tests::World;
use crate::fs::walk::Final;
use crate::fs::{Blocking, File, Node, Ready, metadata, names};
use crate::sync::{News, Wake, Woken};

/// A user that only these tests use.
const USER: u32 = 90_000;

/// An instance, opened.
pub(in crate::fs) struct Observer(pub Arc<dyn File>);

impl Observer {
    pub fn new() -> Self {
        Self(InotifyFile::open(USER).unwrap())
    }

    fn instance(&self) -> &InotifyFile {
        self.0.downcast().unwrap()
    }

    pub fn watch(&self, world: &World, path: &str, mask: Events) -> i32 {
        self.instance().add(&node(world, path), mask).unwrap()
    }

    /// Returns the waiting events: "WATCH EVENTS NAME;" each.
    pub fn told(&self) -> String {
        let mut bytes = [0; 4096];
        let mut told = String::new();
        let Ok(count) = self.0.read_at(0, &mut SliceSink::new(&mut bytes), Blocking::Never) else {
            return told;
        };
        let mut rest = &bytes[..count];
        while !rest.is_empty() {
            let word = |at: usize| u32::from_le_bytes(*rest[at..].first_chunk().unwrap());
            let length = 16 + word(12) as usize;
            let name = String::from_utf8_lossy(&rest[16..length]).trim_end_matches('\0').to_owned();
            let events = format!("{:?}", Events::from_bits_retain(word(4)));
            let events = events.trim_start_matches("Events(").trim_end_matches(')');
            told += &format!("{} {events} {name};", word(0) as i32);
            rest = &rest[length..];
        }
        told
    }
}

fn node(world: &World, path: &str) -> Arc<dyn Node> {
    world.walk().find(path.as_bytes(), Final::Stop).unwrap().node
}

/// Events of a file are reported to watches of its directory and of the file. After its last name
/// and its last user its watch ends.
#[test]
fn a_file_is_watched_to_its_end() {
    let (world, observer) = (World::new(), Observer::new());
    world.write("/f", "x");
    observer.watch(&world, "/", Events::MODIFY | Events::DELETE);
    observer.watch(&world, "/f", Events::ASKABLE);
    assert_eq!(observer.0.poll(None), Ready::empty());
    let file = world.open("/f", OpenFlags::WRONLY).unwrap();
    file.write(&mut SliceSource::new(b"y")).unwrap();
    assert_eq!(observer.0.poll(None), Ready::IN);
    assert_eq!(observer.told(), "2 OPEN ;1 MODIFY f;2 MODIFY ;");
    let identity = file.node().identity();
    names::unlink(&world.walk(), b"/f").unwrap();
    assert_eq!(observer.told(), "2 ATTRIB ;1 DELETE f;");
    drop(file);
    assert_eq!(observer.told(), "2 CLOSE_WRITE ;2 DELETE_SELF ;2 IGNORED ;");
    assert!(watches::interest(identity).is_empty());
    assert_eq!(observer.instance().remove(2), Err(Errno::EINVAL));
}

/// If an inode gets a name again, the entry keeps it again.
#[test]
fn a_file_without_a_name_that_gets_one_is_kept() {
    let (world, observer) = (World::new(), Observer::new());
    let flags = OpenFlags::TMPFILE_BIT | OpenFlags::DIRECTORY | OpenFlags::RDWR;
    let file = world.open("/", flags).unwrap();
    let place = file.path().unwrap().clone();
    observer.instance().add(&place.node, Events::DELETE_SELF | Events::ATTRIB).unwrap();
    names::link(&place, &world.walk(), b"/named").unwrap();
    drop((file, place));
    assert_eq!(observer.told(), "1 ATTRIB ;");
    names::unlink(&world.walk(), b"/named").unwrap();
    assert_eq!(observer.told(), "1 ATTRIB ;1 DELETE_SELF ;1 IGNORED ;");
}

#[test]
fn a_closed_instance_leaves_nothing() {
    let (world, observer) = (World::new(), Observer::new());
    for number in 0..100 {
        world.write(&format!("/{number}"), "x");
        observer.watch(&world, &format!("/{number}"), Events::OPEN);
    }
    let identities = (0..100).map(|number| node(&world, &format!("/{number}")).identity());
    assert!(identities.clone().all(|identity| watches::interest(identity) == Events::OPEN));
    drop(observer);
    assert!(identities.clone().all(|identity| watches::interest(identity).is_empty()));
    let file = node(&world, "/0");
    names::unlink(&world.walk(), b"/0").unwrap();
    assert_eq!(Arc::strong_count(&file), 1, "no watch keeps it");
}

/// If memory is short, at each allocation in turn, no watch is made, and the inode is not kept for
/// it.
#[test]
fn a_watch_without_memory_is_not_there() {
    let (world, observer) = (World::new(), Observer::new());
    let mut failures = 0;
    for number in 0..200 {
        world.write(&format!("/{number}"), "x");
        let file = node(&world, &format!("/{number}"));
        let references = Arc::strong_count(&file);
        let (added, failed) = each_fails(|| {
            let added = observer.instance().add(&file, Events::OPEN);
            if added.is_err() {
                assert!(watches::interest(file.identity()).is_empty());
                assert_eq!(Arc::strong_count(&file), references);
                let next = observer.instance().describe_from(number as u64 + 1, &mut |_| ());
                assert_eq!(next, Ok(None));
            }
            added
        });
        assert_eq!(added, Ok(number + 1));
        failures += failed;
    }
    assert!(failures > 200, "{failures}");
}

/// An event without memory becomes an overflow; the operation itself succeeds.
#[test]
fn a_write_whose_event_finds_no_memory_succeeds() {
    let (world, observer) = (World::new(), Observer::new());
    world.write("/f", "x");
    let file = world.open("/f", OpenFlags::WRONLY).unwrap();
    observer.watch(&world, "/f", Events::ATTRIB);
    let place = file.path().unwrap();
    fail_nth(1);
    metadata::change_mode(&world.walk(), place, 0o600).unwrap();
    fail_nth(0);
    assert_eq!(observer.told(), "-1 Q_OVERFLOW ;");
}

/// IN_ONESHOT ends one instance's watch of a directory. The watches of the other instances
/// continue.
#[test]
fn a_spent_watch_ends_alone() {
    let world = World::new();
    let observers = [Observer::new(), Observer::new(), Observer::new()];
    world.write("/f", "x");
    for (observer, once) in observers.iter().zip([Events::ONESHOT, Events::empty(), Events::ONESHOT]) {
        observer.watch(&world, "/f", Events::OPEN | once);
    }
    for round in ["1 OPEN ;1 IGNORED ;", ""] {
        drop(world.open("/f", OpenFlags::empty()).unwrap());
        let told = observers.each_ref().map(Observer::told);
        assert_eq!(told, [round, "1 OPEN ;", round]);
    }
}

#[test]
fn a_name_is_followed_through_renames() {
    let (world, observer) = (World::new(), Observer::new());
    world.make_dir("/d");
    world.write("/d/log", "x");
    let file = world.open("/d/log", OpenFlags::WRONLY).unwrap();
    let append = || file.write(&mut SliceSource::new(b"y")).unwrap();
    observer.watch(&world, "/d", Events::MODIFY);
    append();
    let walk = world.walk();
    names::rename(&walk, b"/d/log", &walk, b"/d/old", RenameFlags::empty()).unwrap();
    append();
    assert_eq!(observer.told(), "1 MODIFY log;1 MODIFY old;");
    names::rename(&walk, b"/d", &walk, b"/e", RenameFlags::empty()).unwrap();
    append();
    assert_eq!(observer.told(), "1 MODIFY old;", "the directory itself may move");
    names::rename(&walk, b"/e/old", &walk, b"/far", RenameFlags::empty()).unwrap();
    append();
    assert_eq!(observer.told(), "", "it is in the directory no more");
}

/// Counts the signals that an owner would get.
#[derive(Default)]
struct SignalCount(AtomicU32);

impl Wake for SignalCount {
    fn wake(&self) -> Woken {
        Woken::Nobody
    }

    fn announce(&self, news: News) {
        assert_eq!(news as u32, News::Message as u32);
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Requests of one table for one description add up, those of two tables are apart. A watch without
/// DN_MULTISHOT ends at its first event, another one with its descriptor.
#[test]
fn a_directory_tells_its_owner_until_the_watch_ends() {
    const CREATE: u32 = 4;
    const DELETE: u32 = 8;
    const MULTISHOT: u32 = 1 << 31;
    let (world, owner) = (World::new(), Arc::new(SignalCount::default()));
    world.make_dir("/d");
    let dir = world.open("/d", OpenFlags::DIRECTORY).unwrap();
    let is_told = |count| owner.0.swap(0, Ordering::Relaxed) == count;
    let watch = |table, requested| {
        let mask = dnotify::mask(requested).unwrap();
        let (watched, failures) = each_fails(|| dnotify::watch(&dir, table, mask, owner.clone()));
        watched.unwrap();
        failures
    };
    assert!(watch(7, CREATE) > 0);
    watch(8, DELETE);
    watch(8, CREATE);
    world.write("/d/one", "x");
    assert!(is_told(2));
    world.write("/d/two", "x");
    names::unlink(&world.walk(), b"/d/two").unwrap();
    assert!(is_told(0) && watches::interest(dir.node().identity()).is_empty());
    watch(7, CREATE | MULTISHOT);
    watch(7, DELETE);
    watch(8, CREATE);
    dnotify::end(&dir, 8);
    world.write("/d/two", "x");
    names::unlink(&world.walk(), b"/d/two").unwrap();
    assert!(is_told(2));
    dnotify::end(&dir, 7);
    assert!(watches::interest(dir.node().identity()).is_empty());
    assert_eq!((dnotify::mask(0), dnotify::mask(MULTISHOT)), (None, None));
}
