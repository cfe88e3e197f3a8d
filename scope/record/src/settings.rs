//! Settings that the command gives the plugin.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{MemoryBackends, VERSION};

/// A set-associative cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CacheShape {
    /// Bytes.
    pub size: u64,
    /// Lines in a set.
    pub ways: usize,
}

/// A direct-mapped memory-side cache in front of each node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NearShape {
    /// Bytes.
    pub size: u64,
}

/// The caches. Lines are the same size in all of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CacheModel {
    /// Bytes in a line: a power of two of 32 to 4096.
    pub line: u64,
    /// The first level of each CPU, one for data and one for instructions, direct-mapped.
    pub first: CacheShape,
    /// The last level of each CPU: its share of the cache that hardware shares.
    pub last: CacheShape,
    /// The memory-side caches, if the machine has any.
    pub near: Option<NearShape>,
}

/// The translation caches of each CPU.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TlbShape {
    /// The preset's name, or "custom".
    pub name: String,
    /// First level for data: entries.
    pub data_entries: usize,
    /// First level for data: ways.
    pub data_ways: usize,
    /// First level for instructions: entries.
    pub fetch_entries: usize,
    /// First level for instructions: ways.
    pub fetch_ways: usize,
    /// Second level, for both: entries.
    pub second_entries: usize,
    /// Second level, for both: ways.
    pub second_ways: usize,
    /// Whether the second level replaces by pseudo-LRU (one bit for each way) instead of the least
    /// recently used entry.
    pub pseudo_lru: bool,
}

/// Resolution of page heat. Slices of time are joined two by two if there would be more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Heat {
    /// Largest number of regions into which memory is divided.
    pub regions: usize,
}

/// The models to run. A model that is `None` costs nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Models {
    /// Caches.
    pub cache: Option<CacheModel>,
    /// Translation caches.
    pub tlb: Option<TlbShape>,
    /// Page heat.
    pub heat: Option<Heat>,
    /// Programs' bytes, by byte: bytes that programs stored and that were not overwritten.
    pub residue: bool,
    /// Lines of the kernel that several CPUs store to.
    pub sharing: bool,
}

/// The subject that the plugin watches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// Every instruction and every access: the result is a [`Results`](crate::Results).
    #[default]
    Everything,
    /// Which code ran: the result is an [`Executed`](crate::Executed). The guest's memory is not
    /// read.
    Code,
}

/// Settings that the command gives the plugin.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// [`VERSION`].
    pub version: u32,
    /// Path for the results.
    pub result: PathBuf,
    /// The subject to watch.
    pub subject: Subject,
    /// The guest's memory.
    pub memory: MemoryBackends,
    /// The node of each CPU.
    pub cpus: Vec<usize>,
    /// The models to run.
    pub models: Models,
    /// Largest number of slices of time that are kept.
    pub slices: usize,
    /// Largest number of blocks of code that are named in the results.
    pub blocks: usize,
    /// Largest number of violations of the oracle that are listed one by one.
    pub violations: usize,
}

/// Reason why settings make no sense.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SettingsError {
    /// The setting, as the user knows it.
    pub setting: &'static str,
    /// The problem with it.
    pub problem: String,
}

impl core::fmt::Display for SettingsError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}: {}", self.setting, self.problem)
    }
}

impl std::error::Error for SettingsError {}

impl TlbShape {
    /// Shapes by name, with the figures of the makers' optimisation manuals.
    pub const PRESETS: [&str; 4] = ["skylake-sp", "ice-lake", "zen4", "zen5"];

    /// Returns a preset.
    pub fn preset(name: &str) -> Option<Self> {
        // Data, instructions, second level: (entries, ways). Skylake-SP has a second level of 12
        // ways for both sizes of page and 8 ways of 128 entries for 4 KiB instructions; Zen 4 has
        // fully associative first levels. Zen 4's separate second level for instructions (512
        // entries) is left out: its larger one serves both here. Ice Lake's second level has 2048
        // entries in 16 ways, Zen 5's for data 4096 in 16 ways; Zen 5's for instructions is left
        // out too.
        let (data, fetch, second) = match name {
            "skylake-sp" => ((64, 4), (128, 8), (1536, 12)),
            "ice-lake" => ((64, 4), (128, 8), (2048, 16)),
            "zen5" => ((96, 96), (64, 64), (4096, 16)),
            "zen4" => ((72, 72), (64, 64), (3072, 24)),
            _ => return None,
        };
        Some(Self::new(name, [data, fetch, second]))
    }

    /// Makes a custom shape: (entries, ways) for data, for instructions, of the second level.
    pub fn new(name: &str, [data, fetch, second]: [(usize, usize); 3]) -> Self {
        Self {
            name: name.into(),
            data_entries: data.0,
            data_ways: data.1,
            fetch_entries: fetch.0,
            fetch_ways: fetch.1,
            second_entries: second.0,
            second_ways: second.1,
            pseudo_lru: false,
        }
    }

    /// Returns the same shape with another replacement in the second level.
    #[must_use]
    pub fn with_pseudo_lru(self) -> Self {
        Self { name: format!("{}:plru", self.name), pseudo_lru: true, ..self }
    }
}

impl CacheModel {
    /// Returns caches of a server's core (Skylake-SP: 32 KiB; 1 MiB of second level, 1.375 MiB of
    /// the shared last one, together one model of 2 MiB in 16 ways), with or without memory-side
    /// caches.
    pub fn server(near: Option<NearShape>) -> Self {
        Self {
            line: 64,
            first: CacheShape { size: 32 << 10, ways: 1 },
            last: CacheShape { size: 2 << 20, ways: 16 },
            near,
        }
    }
}

impl Settings {
    /// Returns settings with the usual bounds and no models.
    pub fn new(result: PathBuf, memory: MemoryBackends, cpus: Vec<usize>) -> Self {
        Self {
            version: VERSION,
            result,
            subject: Subject::Everything,
            memory,
            cpus,
            models: Models::default(),
            slices: 128,
            blocks: 4096,
            violations: 64,
        }
    }

    /// Checks that the figures fit each other.
    ///
    /// # Errors
    /// The first figure that does not.
    pub fn check(&self) -> Result<(), SettingsError> {
        let fail = |setting, problem| Err(SettingsError { setting, problem });
        if let Some(cache) = self.models.cache {
            if !cache.line.is_power_of_two() || !(32..=4096).contains(&cache.line) {
                return fail("line", format!("{} is not a power of two from 32 to 4096", cache.line));
            }
            for (setting, shape) in [("first-level cache", cache.first), ("last-level cache", cache.last)] {
                let set = cache.line.saturating_mul(shape.ways as u64);
                if set == 0 || shape.size % set != 0 || !(shape.size / set).is_power_of_two() {
                    let problem =
                        format!("{} bytes in {} ways are not a power of two of sets", shape.size, shape.ways);
                    return fail(setting, problem);
                }
            }
            if cache.first.ways != 1 {
                return fail("first-level cache", "its model is direct-mapped: 1 way".into());
            }
            if let Some(near) = cache.near
                && (!near.size.is_power_of_two() || near.size < cache.line)
            {
                return fail("near cache", format!("{} bytes are not a power of two", near.size));
            }
        }
        if let Some(tlb) = &self.models.tlb {
            for (entries, ways) in [
                (tlb.data_entries, tlb.data_ways),
                (tlb.fetch_entries, tlb.fetch_ways),
                (tlb.second_entries, tlb.second_ways),
            ] {
                if ways == 0 || entries == 0 || entries % ways != 0 || !(entries / ways).is_power_of_two() {
                    let problem = format!("{entries} entries in {ways} ways are not a power of two of sets");
                    return fail("TLB", problem);
                }
            }
        }
        if self.slices < 2 || self.models.heat.is_some_and(|heat| heat.regions == 0) {
            return fail("heat map", "at least two slices of time and one region".into());
        }
        let nodes = self.memory.backends.len();
        if let Some(node) = self.cpus.iter().find(|&&node| node >= nodes) {
            return fail("CPUs", format!("one is on node {node} of {nodes}"));
        }
        Ok(())
    }
}

crate::in_a_file!(Settings);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HwAddress;

    fn settings() -> Settings {
        let memory = MemoryBackends::q35(&[1 << 28], HwAddress::OffsetTwice);
        let mut settings = Settings::new("result.json".into(), memory, vec![0]);
        settings.models = Models {
            cache: Some(CacheModel::server(Some(NearShape { size: 32 << 20 }))),
            tlb: TlbShape::preset("skylake-sp"),
            heat: Some(Heat { regions: 1024 }),
            residue: true,
            sharing: true,
        };
        settings
    }

    #[test]
    fn presets_have_figures_that_fit() {
        for name in TlbShape::PRESETS {
            let mut settings = settings();
            settings.models.tlb = TlbShape::preset(name);
            assert_eq!(settings.check(), Ok(()), "{name}");
        }
        assert_eq!(TlbShape::preset("z80"), None);
    }

    #[test]
    fn figures_that_fit_nothing_are_refused_by_name() {
        let refused = |change: fn(&mut Settings)| {
            let mut settings = settings();
            change(&mut settings);
            settings.check().unwrap_err().setting
        };
        assert_eq!(
            refused(|s| s.models.cache.as_mut().unwrap().near = Some(NearShape { size: 3 << 20 })),
            "near cache"
        );
        assert_eq!(refused(|s| s.models.cache.as_mut().unwrap().line = 48), "line");
        assert_eq!(refused(|s| s.models.cache.as_mut().unwrap().last.ways = 7), "last-level cache");
        assert_eq!(refused(|s| s.models.tlb.as_mut().unwrap().second_entries = 1537), "TLB");
        assert_eq!(refused(|s| s.cpus.push(1)), "CPUs");
        assert_eq!(refused(|s| s.slices = 1), "heat map");
    }

    #[test]
    fn settings_survive_their_file() {
        let path = std::env::temp_dir().join(format!("freehold-settings-{}", std::process::id()));
        settings().write(&path).unwrap();
        let read = Settings::read(&path);
        std::fs::write(&path, r#"{"version":0}"#).unwrap();
        let old = Settings::read(&path);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(read.unwrap(), settings());
        assert!(matches!(old, Err(crate::ReadError::Version(0))));
    }
}
