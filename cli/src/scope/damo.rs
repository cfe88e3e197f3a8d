//! Page heat as a record that `damo report heatmap` and `damo report wss` read
//! (github.com/damonitor/damo): JSON, a list of records of snapshots of regions, compressed with
//! zlib. Plain JSON does not work, because damo asks file(1) for the type.
//!
//! A slice of time is one aggregation interval; an instruction is a nanosecond. DAMON counts
//! samples in which a region was found used, and gives the possible maximum. Here every access was
//! seen, and the busiest region sets the scale.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;
use freehold_scope_record::Results;
use serde_json::{Value, json};

/// Returns the record's bytes.
pub fn record(results: &Results) -> Vec<u8> {
    let text = json(results).to_string();
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    // Writing to a vector cannot fail.
    let _ = encoder.write_all(text.as_bytes());
    encoder.finish().unwrap_or_default()
}

fn json(results: &Results) -> Value {
    let most =
        results.slices.iter().flat_map(|slice| &slice.heat).map(|(_, count)| *count).max().unwrap_or(1);
    let length = results.slices.first().map_or(1, |slice| (slice.end - slice.start).max(1));
    // Microseconds as text: damo reads units from text.
    let micros = |nanos: f64| format!("{:.6}", nanos / 1000.0);
    let mut ages = vec![(0u64, 0u64); results.regions.len()];
    let snapshots: Vec<Value> = results
        .slices
        .iter()
        .map(|slice| {
            let mut counts = vec![0; results.regions.len()];
            for &(region, count) in &slice.heat {
                counts[region] = count;
            }
            let mut regions: Vec<Value> = Vec::new();
            for ((region, count), age) in results.regions.iter().zip(counts).zip(&mut ages) {
                *age = if age.0 == count { (count, age.1 + 1) } else { (count, 0) };
                regions.push(json!({
                    "start": region.start.to_string(),
                    "end": (region.start + region.bytes).to_string(),
                    "nr_accesses": { "samples": count, "percent": 100.0 * count as f64 / most as f64 },
                    "age": { "usec": null, "aggr_intervals": age.1.to_string() },
                }));
            }
            json!({
                "start_time": slice.start.to_string(),
                "end_time": slice.end.to_string(),
                "regions": regions,
                "total_bytes": null,
            })
        })
        .collect();
    json!([{
        "kdamond_idx": 0,
        "context_idx": 0,
        "intervals": {
            "sample_us": micros(length as f64 / most as f64),
            "aggr_us": micros(length as f64),
            "ops_update_us": micros(length as f64),
        },
        "scheme_idx": null,
        "target_id": 0,
        "scheme_filters": [],
        "snapshots": snapshots,
        "data_source": "unknown",
    }])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_record_holds_every_slice_and_every_access() {
        let results = crate::scope::tests::sample();
        let mut text = String::new();
        flate2::read::ZlibDecoder::new(&record(&results)[..]).read_to_string(&mut text).expect("zlib");
        let value: Value = serde_json::from_str(&text).expect("JSON");
        let snapshots = value[0]["snapshots"].as_array().expect("snapshots");
        assert_eq!(snapshots.len(), results.slices.len());
        let told: u64 = snapshots
            .iter()
            .flat_map(|snapshot| snapshot["regions"].as_array().expect("regions"))
            .filter_map(|region| region["nr_accesses"]["samples"].as_u64())
            .sum();
        let seen: u64 = results.slices.iter().flat_map(|slice| &slice.heat).map(|(_, count)| count).sum();
        assert_eq!(told, seen);
    }
}
