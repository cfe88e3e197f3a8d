//! The vDSO: a shared object of the kernel that every program has mapped, so that it reads the
//! clock without a system call.
//!
//! An [`image`] is built from `image/vdso.rs` by `build.rs`. The kernel copies it into frames of
//! its own at boot. It maps these into every program behind a page of time ([`TimePage`]) and one
//! of offsets ([`TimeOffsets`]), and puts their address into the auxiliary vector
//! (AT_SYSINFO_EHDR). Names and version are those of Linux, and glibc, musl and Go find them. Where
//! the image has no answer it makes the system call of the same name.
//!
//! The image is one read-only segment without relocations, so one set of frames serves all programs
//! at all addresses.
#![no_std]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

#[cfg(test)]
extern crate std;

mod page;

pub use page::{
    CPU_SELECTOR, NODE_SHIFT, SECOND, SHIFT, SHIFTED, SLEWED_BASE, SLEWED_WALL, TimeOffsets, TimePage, UNIT,
};

/// The image for any CPU: an ELF file that is mapped as it is.
const PLAIN: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/vdso.so"));
/// The image for CPUs with BMI2.
const BMI2: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/vdso-bmi2.so"));

/// CPU features that the image uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Uses {
    /// Features that every x86-64 CPU has.
    Baseline,
    /// BMI2, too.
    Bmi2,
}

/// The image for a CPU.
pub const fn image(uses: Uses) -> &'static [u8] {
    match uses {
        Uses::Baseline => PLAIN,
        Uses::Bmi2 => BMI2,
    }
}

/// The most bytes that an image has.
pub const IMAGE_BYTES: usize = if PLAIN.len() > BMI2.len() { PLAIN.len() } else { BMI2.len() };

/// Auxiliary vector: where the image begins.
pub const AT_SYSINFO_EHDR: u64 = 33;

#[cfg(test)]
mod tests {
    use core::cell::Cell;
    use core::sync::atomic::{AtomicI64, AtomicU64, Ordering};
    use std::collections::BTreeSet;
    use std::vec::Vec;

    use object::LittleEndian as LE;
    use object::elf::{self, FileHeader64};
    use object::read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _};

    use super::*;

    const IMAGES: [&[u8]; 2] = [image(Uses::Baseline), image(Uses::Bmi2)];

    fn header(image: &'static [u8]) -> &'static FileHeader64<LE> {
        FileHeader64::<LE>::parse(image).unwrap()
    }

    #[test]
    fn the_image_is_one_segment_that_is_never_written() {
        for image in IMAGES {
            let headers = header(image).program_headers(LE, image).unwrap();
            let loads: Vec<_> = headers.iter().filter(|header| header.p_type(LE) == elf::PT_LOAD).collect();
            let [load] = loads[..] else { panic!("{} segments", loads.len()) };
            assert_eq!((load.p_offset(LE), load.p_vaddr(LE)), (0, 0));
            assert_eq!(load.p_filesz(LE), load.p_memsz(LE));
            assert_eq!(load.p_flags(LE).0 & 7, 5);
            let kinds: Vec<_> = headers.iter().map(|header| header.p_type(LE)).collect();
            assert!(kinds.contains(&elf::PT_DYNAMIC) && kinds.contains(&elf::PT_GNU_EH_FRAME));
        }
    }

    #[test]
    fn its_symbols_are_linux_and_of_version_linux_2_6() {
        for image in IMAGES {
            let sections = header(image).sections(LE, image).unwrap();
            let symbols = sections.symbols(LE, image, elf::SHT_DYNSYM).unwrap();
            let versions = sections.versions(LE, image).unwrap().unwrap();
            let mut functions = BTreeSet::new();
            for (index, symbol) in symbols.enumerate().filter(|(_, symbol)| symbol.st_type() == elf::STT_FUNC)
            {
                let name = core::str::from_utf8(symbols.symbol_name(LE, symbol).unwrap()).unwrap();
                let version = versions.version(versions.version_index(LE, index).into()).unwrap().unwrap();
                assert_eq!(version.name(), b"LINUX_2.6", "{name}");
                let binding = if name.starts_with("__vdso_") { elf::STB_GLOBAL } else { elf::STB_WEAK };
                assert_eq!(symbol.st_bind(), binding, "{name}");
                functions.insert(name);
            }
            let names = ["clock_getres", "clock_gettime", "getcpu", "gettimeofday", "time"];
            let all = names
                .into_iter()
                .flat_map(|name| [std::string::String::from(name), std::format!("__vdso_{name}")]);
            assert_eq!(functions, all.collect::<Vec<_>>().iter().map(|name| name.as_str()).collect());
        }
    }

    #[test]
    fn both_tables_of_names_are_there() {
        for image in IMAGES {
            let sections = header(image).sections(LE, image).unwrap();
            let (dynamic, _) = sections.dynamic(LE, image).unwrap().unwrap();
            let tags: Vec<_> = dynamic.iter().map(|entry| entry.d_tag.get(LE)).collect();
            for tag in [
                elf::DT_HASH,
                elf::DT_GNU_HASH,
                elf::DT_SYMTAB,
                elf::DT_STRTAB,
                elf::DT_VERSYM,
                elf::DT_VERDEF,
            ] {
                assert!(tags.contains(&tag), "{tag:?}");
            }
            let relocates = |tag: &&elf::DynamicTag| tags.iter().any(|found| **tag == *found);
            assert_eq!(
                [elf::DT_RELA, elf::DT_REL, elf::DT_JMPREL, elf::DT_TEXTREL].iter().find(relocates),
                None
            );
            assert!(sections.iter().all(|section| section.sh_type(LE) != elf::SHT_RELA));
        }
    }

    /// The page of a machine whose counter ticks `frequency` times a second.
    fn page(frequency: u64, base: u64, wall: i64) -> TimePage {
        let factor = ((u128::from(SECOND) << SHIFT) / u128::from(frequency)) as u64;
        let seconds_factor = TimePage::seconds_factor(factor);
        TimePage {
            base: AtomicU64::new(base),
            factor: AtomicU64::new(factor),
            seconds_factor: AtomicU64::new(seconds_factor),
            wall: AtomicI64::new(wall),
            seconds_base: AtomicU64::new(TimePage::seconds_base(base, seconds_factor, wall)),
            start: AtomicU64::new(base),
        }
    }

    #[test]
    fn time_follows_the_counter_and_never_goes_back() {
        let page = page(2_500_000_000, 1000, 7);
        assert_eq!((page.monotonic(1000), page.monotonic(999)), (Some(0), None));
        assert_eq!(page.machine_monotonic(999), 0);
        assert_eq!(page.wall(|| 1000), Some(7));
        // The clock runs for a hundred years without a new base. Rounding of the factor costs less
        // than two seconds in that time.
        let century = 100 * 365 * 86_400 * SECOND;
        let shown = page.monotonic(1000 + century / 2 * 5).unwrap();
        assert!(century - shown < 2 * SECOND, "{shown}");
        assert!((0..10_000).all(|tick| page.monotonic(1000 + tick) <= page.monotonic(1001 + tick)));
    }

    #[test]
    fn in_a_time_namespace_only_the_slow_way_tells_the_time() {
        let (page, shifted) = (page(2_500_000_000, 1000, 7), page(2_500_000_000, 1000, 7));
        shifted.base.store(SHIFTED, Ordering::Relaxed);
        for ticks in [0, 1000, 123_456_789, u64::MAX - 1] {
            assert_eq!((shifted.monotonic(ticks), shifted.wall(|| ticks)), (None, None));
            assert_eq!(shifted.machine_monotonic(ticks), page.machine_monotonic(ticks));
            assert_eq!(shifted.machine_wall(|| ticks), page.machine_wall(|| ticks));
            assert_eq!(shifted.seconds(|| ticks), page.seconds(|| ticks));
        }
        assert_eq!(page.monotonic(123_456_789), Some(page.machine_monotonic(123_456_789)));
    }

    #[test]
    fn a_slewed_wall_clock_is_not_told_until_it_has_its_rate_again() {
        let (page, slewed) = (page(2_500_000_000, 1000, 7), page(2_500_000_000, 1000, 7));
        slewed.base.store(SLEWED_BASE, Ordering::Relaxed);
        slewed.wall.store(SLEWED_WALL, Ordering::Relaxed);
        assert_eq!((slewed.wall(|| 5000), slewed.machine_wall(|| 5000)), (None, None));
        assert_eq!(slewed.machine_monotonic(5000), page.machine_monotonic(5000));
        slewed.wall.store(7, Ordering::Relaxed);
        assert_eq!((slewed.wall(|| 5000), slewed.machine_wall(|| 5000)), (None, page.machine_wall(|| 5000)));
    }

    #[test]
    fn a_clock_that_is_set_during_a_reading_shows_nothing_from_before_it_was_set() {
        let page = page(SECOND, 0, 100 * SECOND as i64);
        // The counter is read at 5 s; before the reading ends the clock is set, at 7 s, to 1,000 s.
        let readings = Cell::new(0);
        let read = || {
            readings.set(readings.get() + 1);
            if readings.get() == 1 {
                page.wall.store(993 * SECOND as i64, Ordering::Release);
                return 5 * SECOND;
            }
            8 * SECOND
        };
        assert_eq!(page.wall(read), Some(1001 * SECOND));
        assert_eq!(readings.get(), 2);
    }

    #[test]
    fn seconds_are_those_of_the_wall_clock_and_never_early() {
        let year = 365 * 86_400;
        // 1970, today, and the last second that can be set.
        for wall in [
            0i64,
            1,
            999_999_999,
            1_795_000_000_123_456_789,
            (9_223_372_036 - 30 * year as i64) * SECOND as i64,
        ] {
            for frequency in [999_999_937u64, 1_000_000_000, 2_893_202_000, 5_000_000_000] {
                let page = page(frequency, 123_456_789_012, wall);
                for since in [1, 59, 86_400, year, 10 * year] {
                    let edge = 123_456_789_012 + since * frequency;
                    for ticks in (0..2000).map(|step| edge - 1_000_000 + step * 1000) {
                        let (exact, told) = (page.machine_wall(|| ticks).unwrap(), page.seconds(|| ticks));
                        let lag = 1000 + since / year * 250_000;
                        assert!(told <= (exact / SECOND) as i64, "{told} is early: {exact}, {frequency}");
                        assert!(
                            told >= (exact.saturating_sub(lag) / SECOND) as i64,
                            "{told} is late: {exact}, {frequency}"
                        );
                    }
                }
            }
        }
    }
}
