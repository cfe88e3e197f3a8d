//! Model of the protocol of [`super::recent`] in many orders: threads look up a descriptor while
//! another one closes it and opens another file at the same number.

use std::vec::Vec;

use shuttle::sync::atomic::{AtomicU32, Ordering};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;

/// When a close clears the entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Clearing {
    UnderTableLock,
    /// Wrong: the number may be another file's before the entry is cleared.
    Afterwards,
}

/// When a lookup fills the entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Filling {
    UnderTableLock,
    /// Wrong: the descriptor may be closed meanwhile.
    Afterwards,
}

/// A table with one descriptor. Files are numbers; 0 is none.
struct RecentWorld {
    clearing: Clearing,
    filling: Filling,
    table: Mutex<u32>,
    /// The entry; its lock is held for one step only.
    entry: Mutex<u32>,
    /// The newest file that was closed for good: close(2) has returned.
    closed: AtomicU32,
}

impl RecentWorld {
    /// `FileTable::get`
    fn get(&self) -> u32 {
        let found = *self.entry.lock().unwrap();
        if found != 0 {
            return found;
        }
        let table = self.table.lock().unwrap();
        let file = *table;
        if self.filling == Filling::UnderTableLock {
            *self.entry.lock().unwrap() = file;
        } else {
            drop(table);
            *self.entry.lock().unwrap() = file;
        }
        file
    }

    /// `FileTable::close`
    fn close(&self) {
        let mut table = self.table.lock().unwrap();
        let closed = core::mem::replace(&mut *table, 0);
        if self.clearing == Clearing::UnderTableLock {
            *self.entry.lock().unwrap() = 0;
            drop(table);
        } else {
            drop(table);
            *self.entry.lock().unwrap() = 0;
        }
        self.closed.fetch_max(closed, Ordering::SeqCst);
    }

    /// open(2): gives `file` the number if it is free, and then uses it.
    fn open(&self, file: u32) {
        let is_free = {
            let mut table = self.table.lock().unwrap();
            let is_free = *table == 0;
            if is_free {
                *table = file;
            }
            is_free
        };
        if is_free {
            let found = self.get();
            assert!(found == 0 || found >= file, "file {found} was closed before");
        }
    }
}

fn run(clearing: Clearing, filling: Filling) {
    shuttle::check_pct(
        move || {
            let world = Arc::new(RecentWorld {
                clearing,
                filling,
                table: Mutex::new(1),
                entry: Mutex::new(0),
                closed: AtomicU32::new(0),
            });
            let lookups = (0..2).map(|_| {
                let world = world.clone();
                thread::spawn(move || {
                    for _ in 0..3 {
                        let closed = world.closed.load(Ordering::SeqCst);
                        let found = world.get();
                        assert!(found == 0 || found > closed, "file {found} was closed before");
                    }
                })
            });
            let mut threads: Vec<_> = lookups.collect();
            let [closer, opener] = [world.clone(), world.clone()];
            threads.push(thread::spawn(move || (0..3).for_each(|_| closer.close())));
            threads.push(thread::spawn(move || (2..5).for_each(|file| opener.open(file))));
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        },
        20_000,
        3,
    );
}

#[test]
fn a_lookup_finds_no_file_that_was_closed_before() {
    run(Clearing::UnderTableLock, Filling::UnderTableLock);
}

#[test]
#[should_panic(expected = "was closed before")]
fn an_entry_that_is_filled_without_the_tables_lock_may_hold_a_closed_file() {
    run(Clearing::UnderTableLock, Filling::Afterwards);
}

#[test]
#[should_panic(expected = "was closed before")]
fn an_entry_that_is_cleared_without_the_tables_lock_may_hold_a_closed_file() {
    run(Clearing::Afterwards, Filling::UnderTableLock);
}
