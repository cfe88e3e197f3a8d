//! The microscope's own options: the models and their shapes.

use freehold_scope_record::{CacheModel, CacheShape, Heat, Models, NearShape, SettingsError, TlbShape};

use crate::Result;
use crate::args::ScopeOptions;
use crate::failure::Failure;
use crate::qemu::numa::NearCache;
use crate::size;

/// Number of regions of page heat: enough for `damo`, and at most a megabyte of results.
const REGIONS: usize = 1024;

/// The models that can be asked for.
const MODELS: [&str; 6] = ["cache", "tlb", "heat", "residue", "sharing", "locality"];
/// The word for all models that are not slow.
const ALL: &str = "all";

/// Returns all words that `--model` takes.
pub fn model_names() -> impl Iterator<Item = &'static str> {
    MODELS.into_iter().chain([ALL])
}

/// Returns the models that `--model`, `--llc` and `--tlb` select.
pub fn models(options: &ScopeOptions) -> Result<Models> {
    let mut models = Models::default();
    let cache = CacheModel { last: last_level(&options.llc)?, ..CacheModel::server(None) };
    let tlb = tlb(&options.tlb)?;
    for name in options.model.split(',') {
        let all = name == ALL;
        if !all && !MODELS.contains(&name) {
            return Err(Failure::new(
                format!("--model {name}: no such model"),
                format!("{} or {ALL}", MODELS.join(", ")),
            ));
        }
        if all || name == "cache" {
            models.cache = Some(cache);
        }
        if all || name == "tlb" {
            models.tlb = Some(tlb.clone());
        }
        // These models follow each store, and `all` is slow enough without them.
        models.residue |= name == "residue";
        models.sharing |= name == "sharing";
        if all || name == "heat" {
            models.heat = Some(Heat { regions: REGIONS });
        }
    }
    if options.damo.is_some() && models.heat.is_none() {
        return Err(Failure::new(
            "--damo writes page heat, and --model leaves it out",
            "--model all, or heat",
        ));
    }
    Ok(models)
}

/// Adds the machine's memory-side caches to the models.
pub fn near_cache(models: &mut Models, near: Option<NearCache>) {
    if let (Some(cache), Some(near)) = (&mut models.cache, near) {
        cache.line = u64::from(near.line);
        cache.near = Some(NearShape { size: near.size });
    }
}

/// Returns the failure for unsupported model settings, in the words of the option to blame.
pub fn refused(error: &SettingsError) -> Failure {
    let (option, hint) = match error.setting {
        "near cache" => ("--near-cache", "the machine may have any size, its model a power of two: 64M"),
        "line" => ("--near-cache", "64M,line=64"),
        "last-level cache" => ("--llc", "SIZE,WAYS, for example 2M,16 or 1M,8"),
        "TLB" => ("--tlb", "for example 64/4,128/8,1536/12"),
        other => (other, ""),
    };
    Failure::new(format!("{option}: {}", error.problem), hint)
}

fn last_level(text: &str) -> Result<CacheShape> {
    let wrong = || Failure::new(format!("--llc {text}: not a size and ways"), "for example 2M,16");
    let (bytes, ways) = text.split_once(',').ok_or_else(wrong)?;
    let ways = ways.parse().map_err(|_| wrong())?;
    Ok(CacheShape { size: size::parse_size("--llc", bytes)?, ways })
}

fn tlb(text: &str) -> Result<TlbShape> {
    if let Some(shape) = text.strip_suffix(":plru") {
        return tlb(shape).map(TlbShape::with_pseudo_lru);
    }
    if let Some(shape) = TlbShape::preset(text) {
        return Ok(shape);
    }
    let level = |part: &str| {
        let (entries, ways) = part.split_once('/')?;
        Some((entries.parse().ok()?, ways.parse().ok()?))
    };
    let levels: Option<Vec<(usize, usize)>> = text.split(',').map(level).collect();
    match levels.as_deref() {
        Some(&[data, fetch, second]) => Ok(TlbShape::new(text, [data, fetch, second])),
        _ => Err(Failure::new(
            format!("--tlb {text}: no preset, and no three levels of ENTRIES/WAYS"),
            format!("{} or 64/4,128/8,1536/12", TlbShape::PRESETS.join(", ")),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tlb_is_a_preset_or_three_levels() {
        assert_eq!(tlb("zen4").expect("a preset").second_entries, 3072);
        let own = tlb("32/4,64/8,512/8").expect("three levels");
        assert!(tlb("zen5:plru").expect("a preset").pseudo_lru && !own.pseudo_lru);
        assert_eq!((own.data_ways, own.fetch_entries, own.second_ways), (4, 64, 8));
        for bad in ["z80", "32/4", "32/4,64/8,512", "a/b,c/d,e/f"] {
            assert!(tlb(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_last_level_has_a_size_and_ways() {
        assert_eq!(last_level("1M,8").expect("a shape"), CacheShape { size: 1 << 20, ways: 8 });
        for bad in ["1M", "8", "1M,x", "x,8"] {
            assert!(last_level(bad).is_err(), "{bad}");
        }
    }
}
