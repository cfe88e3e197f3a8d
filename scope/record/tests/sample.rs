//! A record is read as it was written, and its figures agree with each other.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use freehold_scope_record::{CpuCounts, Results};

fn sample() -> Results {
    Results::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sample.json")).unwrap()
}

fn modes(results: &Results) -> impl Iterator<Item = &CpuCounts> {
    let cpus = results.phases.iter().flat_map(|phase| &phase.cpus);
    cpus.flat_map(|cpu| [&cpu.modes.user, &cpu.modes.kernel])
}

#[test]
fn a_record_survives_its_file() {
    let path = std::env::temp_dir().join(format!("freehold-results-{}", std::process::id()));
    sample().write(&path).unwrap();
    let again = Results::read(&path);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(again.unwrap(), sample());
}

#[test]
fn settings_of_a_record_are_accepted() {
    assert_eq!(sample().settings.check(), Ok(()));
}

#[test]
fn phases_cover_the_run() {
    let results = sample();
    assert_eq!(modes(&results).map(|counts| counts.instructions).sum::<u64>(), results.instructions);
    assert_eq!(results.phases[0].start, 0);
    for pair in results.phases.windows(2) {
        assert_eq!(pair[0].end, pair[1].start, "{}", pair[1].name);
    }
    assert_eq!(results.phases.last().unwrap().end, results.instructions);
}

#[test]
fn every_access_has_a_place() {
    for counts in modes(&sample()) {
        assert_eq!(counts.loads + counts.stores, counts.data.iter().sum::<u64>() + counts.elsewhere);
    }
}

#[test]
fn near_caches_account_for_every_access() {
    let results = sample();
    for near in results.phases.iter().flat_map(|phase| &phase.near) {
        assert_eq!(near.accesses, near.hits + near.cold + near.capacity + near.conflict);
    }
    for near in &results.near {
        assert_eq!(near.buckets.len() as u64 * near.sets_per_bucket, near.sets);
        assert!(near.collisions.iter().all(|row| row.len() == results.classes.len()));
    }
}
