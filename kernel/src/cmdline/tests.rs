//! The command line: its settings, and its errors.

use super::*;
use freehold_buddy::{Shuffle, Wipe};
use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

fn split_all(line: &str) -> Vec<(&str, Option<&str>)> {
    parameters(line).map(|p| (p.name, p.value)).collect()
}

#[test]
fn quotes_keep_blanks_as_in_linux() {
    let line = "  a b=1\tc=\"x y\" \"d=p q\" e=\"\" f= g=\"half open -- h";
    let expected = [
        ("a", None),
        ("b", Some("1")),
        ("c", Some("x y")),
        ("d", Some("p q")),
        ("e", Some("")),
        ("f", Some("")),
        ("g", Some("half open -- h")),
    ];
    assert_eq!(split_all(line), expected);
}

#[test]
fn what_follows_two_dashes_is_not_the_kernels() {
    assert_eq!(split_all("quiet -- init=1 debug"), [("quiet", None)]);
    assert_eq!(split_all("-- x"), []);
    assert_eq!(split_all(" "), []);
}

#[test]
fn known_parameters_are_set_and_dashes_are_underscores() {
    let line = "init-on-alloc=1 page_alloc.shuffle=off maxcpus=3 loglevel=4 page-alloc.shuffle_order=7";
    let settings = parse(line, |problem| panic!("{problem}"));
    assert_eq!(settings.page_allocator.init_on_alloc, Wipe::Always);
    assert_eq!(settings.page_allocator.shuffle, Shuffle::Off);
    assert_eq!(settings.page_allocator.shuffle_order, 7);
    assert_eq!(settings.max_cpus, 3);
    assert_eq!(settings.log_level, log::LevelFilter::Error);
}

/// `noforce` has no effect without `dma=direct`, wherever that stands in the line.
#[test]
fn bounce_memory_is_set_as_on_linux_and_noforce_needs_dma_direct() {
    let told = |line: &str| {
        let mut problems = Vec::new();
        let settings = parse(line, |problem| problems.push(problem.to_string()));
        let slots = settings.slots;
        ((slots.slabs, slots.areas, settings.force), problems.join("; "))
    };
    assert_eq!(told("swiotlb=512,4,force"), ((512, 4, Force::Yes), String::new()));
    let needs = "kernel parameter swiotlb=noforce ignored: it can be noforce with dma=direct only, since devices are bounced without it";
    assert_eq!(told("swiotlb=noforce").1, needs);
    for line in ["swiotlb=64,2,noforce dma=direct", "dma=direct swiotlb=64,2,noforce"] {
        assert_eq!(told(line), ((64, 2, Force::No), String::new()));
    }
    let useless = "kernel parameter coherent_pool ignored: no task takes memory of devices with a spin lock, so there is no reserve for that; swiotlb=SLABS sets what exists from the start";
    assert_eq!(told("coherent_pool=1M"), ((128, 0, Force::Yes), useless.into()));
    for value in ["", "0", "1,65", "524289", "force,noforce", "7,noforce,1", "perhaps"] {
        let expected = "SLABS[,AREAS][,force|noforce], with up to 524288 slots and 64 areas";
        let problem = format!("kernel parameter swiotlb={value} ignored: it can be {expected}");
        assert_eq!(told(&format!("swiotlb={value}")), ((128, 0, Force::Yes), problem));
    }
}

#[test]
fn unknown_parameters_and_values_are_reported_and_change_nothing() {
    let mut problems = Vec::new();
    let line = "page_aloc.shuffle=on page_alloc.shuffle=perhaps maxcpus=0 maxcpus xpfo=eager numa_replica=all numa=fake syscall_counts=1";
    let settings = parse(line, |problem| problems.push(problem.to_string()));
    assert_eq!(settings.page_allocator.shuffle, Shuffle::Auto);
    assert_eq!(settings.max_cpus, freehold_machine::MAX_CPUS);
    assert_eq!(settings.xpfo, Policy::On);
    let expected = [
        "unknown kernel parameter \"page_aloc.shuffle\", ignored",
        "kernel parameter page_alloc.shuffle=perhaps ignored: it can be auto, on or off",
        "kernel parameter maxcpus=0 ignored: it can be 1 or more",
        "kernel parameter maxcpus= ignored: it can be 1 or more",
        "kernel parameter xpfo=eager ignored: it can be off, lap, on or strict",
        "kernel parameter numa_replica=all ignored: it can be auto, on, off or a number of nodes",
        "kernel parameter numa=fake ignored: it can be off, fake=N, fake=NU or fake=SIZE with M or G",
        "kernel parameter syscall_counts=1 ignored: it can be on or off",
    ];
    assert_eq!(problems, expected);
}

#[test]
fn the_registry_is_sorted_and_every_entry_takes_what_its_help_says() {
    assert!(KNOWN.is_sorted_by_key(|known| known.name));
    for known in KNOWN {
        // The values are a choice between words, or a range of numbers.
        let between = if known.values.contains('|') { '|' } else { '-' };
        let value = known.values.split(between).next().filter(|value| !value.is_empty());
        let value = match known.values {
            FAULT_NUMBERS => Some("1,0,0,-1"),
            "EVENTS" => Some("sched:*,sys_enter"),
            bounce::SLABS => Some("128,2,force"),
            values if values.starts_with("BYTES") => Some("2M"),
            values if values.starts_with("DISK") => Some("vda:1M"),
            _ => value,
        };
        let parameter = Parameter { name: known.name, value };
        assert_eq!((known.set)(&mut Settings::default(), parameter), Ok(()), "{}", known.name);
        assert!(!known.help.is_empty());
    }
}

#[test]
fn bytes_are_digits_and_one_letter() {
    let read =
        [("0", 0), ("8192", 8192), ("64k", 64 << 10), ("3M", 3 << 20), ("1g", 1 << 30), ("2T", 2 << 40)];
    for (text, bytes) in read {
        assert_eq!(parse_bytes(text.as_bytes()), Some(bytes), "{text}");
    }
    for text in ["", "k", "-1", "+1", " 1", "1 ", "1kk", "1MB", "0x10", "1E", "max"] {
        assert_eq!(parse_bytes(text.as_bytes()), None, "{text:?}");
    }
    for text in ["18446744073709551616", "16777216T", "99999999999999999999999999"] {
        assert_eq!(parse_bytes(text.as_bytes()), Some(u64::MAX), "{text}");
    }
}
