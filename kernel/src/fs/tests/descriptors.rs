//! Descriptor tables.

use std::sync::Arc;
use std::vec::Vec;

use super::World;
use crate::Errno;
use crate::fs::flags::OpenFlags;
use crate::fs::table::{FileTable, OnExec};

const LIMIT: usize = 8;

fn table(world: &World, count: usize) -> Arc<FileTable> {
    world.write("/f", "x");
    let table = FileTable::new();
    for _ in 0..count {
        let file = world.open("/f", OpenFlags::empty()).unwrap();
        table.insert(file, OnExec::Keep, LIMIT).unwrap();
    }
    table
}

fn open_descriptors(table: &FileTable) -> Vec<usize> {
    let mut found = Vec::new();
    while let Some((fd, _)) = table.next_open(found.last().map_or(0, |last| last + 1)) {
        found.push(fd);
    }
    found
}

/// A new descriptor is the lowest free one, from the requested number on, and below the limit.
#[test]
fn descriptors_are_the_lowest_free() {
    let world = World::new();
    let table = table(&world, 4);
    let file = table.get(0).unwrap();
    table.close(1).unwrap();
    table.close(2).unwrap();
    assert_eq!(table.close(2), Err(Errno::EBADF));
    assert_eq!(table.insert_from(2, file.clone(), OnExec::Keep, LIMIT), Ok(2));
    assert_eq!(table.insert(file.clone(), OnExec::Keep, LIMIT), Ok(1));
    assert_eq!(table.insert(file.clone(), OnExec::Keep, LIMIT), Ok(4));
    assert_eq!(table.insert_from(7, file.clone(), OnExec::Keep, LIMIT), Ok(7));
    assert_eq!(table.insert_from(7, file.clone(), OnExec::Keep, LIMIT), Err(Errno::EMFILE));
    assert_eq!(table.insert(file.clone(), OnExec::Keep, LIMIT), Ok(5));
    assert_eq!(table.insert(file.clone(), OnExec::Keep, LIMIT), Ok(6));
    assert_eq!(table.insert(file, OnExec::Keep, LIMIT), Err(Errno::EMFILE));
    assert_eq!(open_descriptors(&table), [0, 1, 2, 3, 4, 5, 6, 7]);
}

/// A reserved descriptor is given to no other caller of the same table, and is not open before it
/// is kept.
#[test]
fn a_promised_descriptor_waits_for_its_file() {
    let world = World::new();
    let table = table(&world, 6);
    let file = table.get(0).unwrap();
    table.close(1).unwrap();
    let (low, high) = (table.promise(LIMIT).unwrap(), table.promise(LIMIT).unwrap());
    let copy = table.duplicate().unwrap();
    assert_eq!(copy.insert(file.clone(), OnExec::Keep, LIMIT), Ok(1));
    assert_eq!(table.get(1).err(), Some(Errno::EBADF));
    assert_eq!(table.close(1), Err(Errno::EBADF));
    assert_eq!(table.replace(1, file.clone(), OnExec::Keep, LIMIT).err(), Some(Errno::EBUSY));
    table.close_range(1..=1);
    assert_eq!(table.insert(file.clone(), OnExec::Keep, LIMIT), Ok(7));
    assert_eq!(table.promise(LIMIT).err(), Some(Errno::EMFILE));
    assert_eq!(high.keep(file.clone(), OnExec::Close), 6);
    assert_eq!(table.on_exec(6), Ok(OnExec::Close));
    drop(low);
    assert_eq!(table.insert(file, OnExec::Keep, LIMIT), Ok(1));
    assert_eq!(open_descriptors(&table), [0, 1, 2, 3, 4, 5, 6, 7]);
}

/// dup2 replaces the previous file and shares the offset; a number beyond the limit is no
/// descriptor.
#[test]
fn replacing_gives_back_what_was_there() {
    let world = World::new();
    let table = table(&world, 2);
    let (one, two) = (table.get(0).unwrap(), table.get(1).unwrap());
    let old = table.replace(1, one.clone(), OnExec::Close, LIMIT).unwrap();
    assert!(old.is_some_and(|old| Arc::ptr_eq(&old, &two)));
    assert!(Arc::ptr_eq(&table.get(1).unwrap(), &one));
    assert!(table.replace(5, one.clone(), OnExec::Keep, LIMIT).unwrap().is_none());
    assert_eq!(table.replace(8, one.clone(), OnExec::Keep, LIMIT).err(), Some(Errno::EBADF));
    assert_eq!(table.replace(-1, one, OnExec::Keep, LIMIT).err(), Some(Errno::EBADF));
    assert_eq!(open_descriptors(&table), [0, 1, 5]);
}

/// execve closes the marked descriptors; a copy of the table is independent of it.
#[test]
fn exec_closes_what_is_marked() {
    let world = World::new();
    let table = table(&world, 4);
    table.set_on_exec(1, OnExec::Close).unwrap();
    table.set_on_exec_range(3..=u32::MAX, OnExec::Close);
    let copy = table.duplicate().unwrap();
    assert_eq!(copy.on_exec(1), Ok(OnExec::Close));
    table.close_on_exec();
    assert_eq!(open_descriptors(&table), [0, 2]);
    copy.close_range(0..=1);
    assert_eq!(open_descriptors(&copy), [2, 3]);
    assert!(Arc::ptr_eq(&copy.get(2).unwrap(), &table.get(2).unwrap()));
}
