//! A model of a first store through a shared mapping of a file, concurrent with write-back, reclaim
//! and direct I/O. The steps are those of `resident.rs` and the cache.

use shuttle::scheduler::RandomScheduler;
use shuttle::sync::atomic::{AtomicU32, Ordering};
use shuttle::sync::{Arc, Mutex};
use shuttle::{Config, Runner, thread};

const SCHEDULES: usize = 20_000;
const SEED: u64 = 17;
/// The bytes that the program stores.
const STORED: u32 = 7;

/// The steps of a fault.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Steps {
    Properly,
    /// The page counts as writable before the leaf's mapping is counted.
    MarkedBeforeMapped,
    /// The leaf grants writing though the page has left the cache meanwhile.
    NotLookedAgain,
}

struct Page {
    bytes: AtomicU32,
    mappings: AtomicU32,
    references: AtomicU32,
}

/// Under the cache's lock.
#[derive(Default)]
struct Indexed {
    page: Option<Arc<Page>>,
    writable: bool,
    in_writeback: bool,
}

struct Stores {
    steps: Steps,
    index: Mutex<Indexed>,
    /// The tables, under the space's lock.
    leaf: Mutex<Option<Arc<Page>>>,
    disk: AtomicU32,
}

impl Stores {
    fn get_or_fill(&self) -> Arc<Page> {
        let mut index = self.index.lock().unwrap();
        let read = || Page {
            bytes: AtomicU32::new(self.disk.load(Ordering::SeqCst)),
            mappings: AtomicU32::new(0),
            references: AtomicU32::new(1),
        };
        let page = index.page.get_or_insert_with(|| Arc::new(read())).clone();
        page.references.fetch_add(1, Ordering::SeqCst);
        page
    }

    fn note_writable(&self, page: &Arc<Page>) -> bool {
        let mut index = self.index.lock().unwrap();
        let is_same = index.page.as_ref().is_some_and(|now| Arc::ptr_eq(now, page));
        index.writable |= is_same;
        is_same || self.steps == Steps::NotLookedAgain
    }

    fn fault(&self, leaf: &mut Option<Arc<Page>>) {
        loop {
            let page = self.get_or_fill();
            let is_granted = if self.steps == Steps::MarkedBeforeMapped {
                let is_granted = self.note_writable(&page);
                page.mappings.fetch_add(1, Ordering::SeqCst);
                is_granted
            } else {
                page.mappings.fetch_add(1, Ordering::SeqCst);
                self.note_writable(&page)
            };
            if is_granted {
                *leaf = Some(page.clone());
            } else {
                page.mappings.fetch_sub(1, Ordering::SeqCst);
            }
            page.references.fetch_sub(1, Ordering::SeqCst);
            if is_granted {
                return;
            }
        }
    }

    fn store(&self) {
        loop {
            if let Some(page) = &*self.leaf.lock().unwrap() {
                page.bytes.store(STORED, Ordering::SeqCst);
                return;
            }
            // The faulting thread may find that the page was mapped meanwhile, or lose it again.
            self.fault(&mut self.leaf.lock().unwrap());
        }
    }

    fn zap(&self) {
        if let Some(page) = self.leaf.lock().unwrap().take() {
            page.mappings.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn write_back(&self) {
        let page = {
            let mut index = self.index.lock().unwrap();
            let Some(page) = index.page.clone().filter(|_| index.writable && !index.in_writeback) else {
                return;
            };
            page.references.fetch_add(1, Ordering::SeqCst);
            index.in_writeback = true;
            index.writable = page.mappings.load(Ordering::SeqCst) > 0;
            page
        };
        self.disk.store(page.bytes.load(Ordering::SeqCst), Ordering::SeqCst);
        self.index.lock().unwrap().in_writeback = false;
        page.references.fetch_sub(1, Ordering::SeqCst);
    }

    fn reclaim(&self) {
        let mut index = self.index.lock().unwrap();
        let is_clean = !index.writable && !index.in_writeback;
        index.page.take_if(|page| {
            let holders = [&page.mappings, &page.references].map(|count| count.load(Ordering::SeqCst));
            is_clean && holders == [0, 1]
        });
    }

    fn forget(&self) {
        self.zap();
        self.write_back();
        {
            let mut index = self.index.lock().unwrap();
            let is_clean = !index.writable && !index.in_writeback;
            index.page.take_if(|_| is_clean);
        }
        self.zap();
    }
}

fn explore(steps: Steps) {
    let mut config = Config::new();
    config.failure_persistence = shuttle::FailurePersistence::None;
    let scheduler = RandomScheduler::new_from_seed(SEED, SCHEDULES);
    Runner::new(scheduler, config).run(move || {
        let (index, leaf) = (Mutex::default(), Mutex::new(None));
        let stores = Arc::new(Stores { steps, index, leaf, disk: AtomicU32::new(0) });
        // A store that was made before, so that there is something to write back.
        stores.get_or_fill().references.fetch_sub(1, Ordering::SeqCst);
        stores.index.lock().unwrap().writable = true;
        let others: [fn(&Stores); 3] = [Stores::write_back, Stores::reclaim, Stores::forget];
        let others = others.map(|other| {
            let stores = stores.clone();
            thread::spawn(move || other(&stores))
        });
        stores.store();
        for other in others {
            other.join().unwrap();
        }
        stores.zap();
        stores.write_back();
        stores.reclaim();
        assert_eq!(stores.disk.load(Ordering::SeqCst), STORED, "a store is lost");
    });
}

#[test]
fn a_store_through_a_mapping_reaches_the_disk_whatever_is_stored_freed_or_forgotten_beside_it() {
    explore(Steps::Properly);
}

#[test]
#[should_panic(expected = "a store is lost")]
fn a_page_that_counts_as_writable_before_it_is_mapped_loses_a_store() {
    explore(Steps::MarkedBeforeMapped);
}

#[test]
#[should_panic(expected = "a store is lost")]
fn a_leaf_that_grants_writing_without_another_look_at_the_cache_loses_a_store() {
    explore(Steps::NotLookedAgain);
}
