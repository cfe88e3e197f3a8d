//! The kernel's command line, in Linux' syntax (Documentation/admin-guide/kernel-parameters.rst).
//!
//! Parameters are separated by blanks; `name` or `name=value`; double quotes keep blanks together
//! and are removed around a value or a whole parameter; in names `-` and `_` are the same; `--`
//! ends the kernel's part. Every supported parameter is in [`KNOWN`], with its type and its help.
//! An unknown parameter or an invalid value is reported and otherwise ignored: the kernel starts.

use core::fmt;

use freehold_bounce::{Limits, Scrub};
use freehold_buddy::{BadParameter, Options};
use freehold_iommu::Transfers;
use freehold_machine::topology::Emulation;
use freehold_replica::Setting;
use freehold_vm::HugeMode;
use freehold_xpfo::Policy;

use freehold_tracepoints::{COUNT, selections};

use crate::hw::static_keys::KeyState;

mod bounce;

pub use bounce::Force;

/// The four numbers of a kernel parameter `failslab` or `fail_page_alloc`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultNumbers {
    /// Of the allocations that pass all other conditions, each `interval`-th may fail.
    pub interval: u64,
    /// Probability of a failure, in percent.
    pub probability: u64,
    /// Number of bytes that are allocated before the first failure.
    pub space: i64,
    /// Largest number of failures; -1 for any number.
    pub times: i64,
}

impl FaultNumbers {
    /// Reads `interval,probability,space,times`; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(',').map(str::trim);
        let numbers = Self {
            interval: parts.next()?.parse().ok()?,
            probability: parts.next()?.parse().ok()?,
            space: parts.next()?.parse().ok()?,
            times: parts.next()?.parse().ok()?,
        };
        parts.next().is_none().then_some(numbers)
    }
}

/// One parameter, as written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameter<'a> {
    /// The parameter's name.
    pub name: &'a str,
    /// The text after the `=`, if any.
    pub value: Option<&'a str>,
}

/// A rule of frames or of memory isolation that can be broken on purpose, harmlessly, to test the
/// checkers outside the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Plant {
    /// The kernel reads a user's frame through the direct map.
    DirectMapRead,
    /// The kernel reads a frame of plugged-in memory through the direct map, while a user owns it.
    PluggedRead,
    /// A translation is used after its frame was freed.
    StaleEntry,
    /// The kernel's text is written through another address.
    TextAlias,
    /// The kernel half maps a user's frame, and no code uses the mapping.
    UnusedMapping,
    /// The kernel's text is mapped writable, and no code stores to it.
    WritableText,
    /// A frame is allocated for a program and never freed.
    LostFrame,
    /// One bit is flipped in the kernel's image and in all of its copies.
    BuildFlip,
    /// One bit is flipped in a node's copy of the kernel.
    ReplicaFlip,
    /// The kernel runs with SMAP off.
    SmapOpen,
    /// A CPU runs with the root of another node.
    WrongRoot,
}

/// Mitigations of speculative execution.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mitigations {
    /// The mitigations that the CPU needs.
    #[default]
    Auto,
    /// No mitigations.
    Off,
}

/// Use of an IOMMU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Iommu {
    /// No IOMMU: devices can access all memory.
    Off,
    /// Devices can access only memory that was shared with them. One invalidation covers all pages
    /// that are unmapped from a device together.
    On,
    /// Like `On`, but with one invalidation per page.
    Strict,
}

// Each event has a bit in `Settings::trace_events`.
const _: () = assert!(COUNT <= 64);

/// Settings that the parameters control.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Options of the page allocator.
    pub page_allocator: Options,
    /// Largest number of CPUs to start.
    pub max_cpus: usize,
    /// The least severe level of log messages that are shown on the console.
    pub log_level: log::LevelFilter,
    /// Which anonymous memory gets 2 MiB pages; `None` for the mode that suits the machine.
    pub huge_pages: Option<HugeMode>,
    /// Mitigations of speculative execution.
    pub mitigations: Mitigations,
    /// Whether programs' parts have the same addresses each time.
    pub fixed_places: bool,
    /// How strictly frames of programs are removed from the kernel's map.
    pub xpfo: Policy,
    /// The emulation of nodes; `None`: the nodes stay as firmware describes them.
    pub numa: Option<Emulation>,
    /// The nodes that get a copy of the kernel's text and read-only data.
    pub numa_replica: Setting,
    /// Whether system calls are counted by number.
    pub syscall_counts: KeyState,
    /// Events that are recorded from the start: one bit per event number.
    pub trace_events: u64,
    /// A rule of frames or of memory isolation that is violated on purpose before the program
    /// begins.
    pub plant: Option<Plant>,
    /// Limits for the memory that devices can access.
    pub slots: Limits,
    /// The disk that has bounce memory of its own and uses no other: its number, and the bytes of
    /// that memory.
    pub restricted: Option<(usize, usize)>,
    /// How long a disk may take for one request, in milliseconds; `None`: the driver's default.
    pub disk_timeout: Option<u32>,
    /// Use of an IOMMU; `None`: as with [`Iommu::On`], if the machine has one.
    pub iommu: Option<Iommu>,
    /// How data reaches devices.
    pub transfers: Transfers,
    /// Whether the user forces or forbids bouncing.
    pub force: Force,
    /// The allocations of the kernel heap that fail.
    pub failslab: Option<FaultNumbers>,
    /// The requests of the page allocator that fail.
    pub fail_page_alloc: Option<FaultNumbers>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            page_allocator: Options::default(),
            max_cpus: freehold_machine::MAX_CPUS,
            log_level: log::LevelFilter::Info,
            huge_pages: None,
            mitigations: Mitigations::default(),
            fixed_places: false,
            xpfo: Policy::default(),
            numa: None,
            numa_replica: Setting::default(),
            syscall_counts: KeyState::Off,
            trace_events: 0,
            plant: None,
            slots: Limits::default(),
            restricted: None,
            disk_timeout: None,
            iommu: None,
            transfers: Transfers::Bounced,
            force: Force::Yes,
            failslab: None,
            fail_page_alloc: None,
        }
    }
}

/// A supported parameter.
#[derive(Clone, Copy)]
pub struct Known {
    /// The parameter's name.
    pub name: &'static str,
    /// The parameter's possible values, as in Linux' documentation; empty for a parameter without a
    /// value.
    pub values: &'static str,
    /// The help text.
    pub help: &'static str,
    /// Sets the parameter. The error is the text of the parameter's possible values.
    set: fn(&mut Settings, Parameter) -> Result<(), &'static str>,
}

/// All supported parameters, by name.
pub const KNOWN: &[Known] = &[
    Known {
        name: "debug",
        values: "",
        help: "log everything",
        set: |settings, _| {
            settings.log_level = log::LevelFilter::Trace;
            Ok(())
        },
    },
    Known {
        name: "disk.io_timeout",
        values: "1-4294967295",
        help: "milliseconds that a disk may take for one request (120000), until /sys/block/DISK/queue/io_timeout says otherwise",
        set: |settings, parameter| {
            let limit = parameter.value.and_then(|value| value.parse().ok()).filter(|&limit| limit > 0);
            settings.disk_timeout = Some(limit.ok_or("1 to 4294967295")?);
            Ok(())
        },
    },
    Known {
        name: "dma",
        values: "bounce|direct",
        help: "disks get copies of all bytes; pinned pages and those of the page cache in their places, behind an IOMMU (`freehold run --dma direct`)",
        set: |settings, parameter| {
            settings.transfers = match parameter.value {
                Some("bounce") => Transfers::Bounced,
                Some("direct") => Transfers::InPlace,
                _ => return Err("bounce or direct"),
            };
            Ok(())
        },
    },
    Known {
        name: "fail_page_alloc",
        values: FAULT_NUMBERS,
        help: "let requests of the page allocator fail (Linux' fault injection; /sys/kernel/debug/fail_page_alloc)",
        set: |settings, parameter| {
            settings.fail_page_alloc = Some(fault_numbers(parameter)?);
            Ok(())
        },
    },
    Known {
        name: "failslab",
        values: FAULT_NUMBERS,
        help: "let allocations of the kernel heap fail (Linux' fault injection; /sys/kernel/debug/failslab)",
        set: |settings, parameter| {
            settings.failslab = Some(fault_numbers(parameter)?);
            Ok(())
        },
    },
    Known {
        name: "freehold.plant",
        values: "build-flip|direct-map-read|lost-frame|plugged-read|replica-flip|smap-open|stale-entry|text-alias|unused-mapping|writable-text|wrong-root",
        help: "break a rule of frames or of memory isolation once, harmlessly, before the program begins: `freehold scope` has to find it, and the closing audit a lost frame and a flipped bit",
        set: |settings, parameter| {
            settings.plant = Some(match parameter.value {
                Some("build-flip") => Plant::BuildFlip,
                Some("direct-map-read") => Plant::DirectMapRead,
                Some("plugged-read") => Plant::PluggedRead,
                Some("replica-flip") => Plant::ReplicaFlip,
                Some("smap-open") => Plant::SmapOpen,
                Some("stale-entry") => Plant::StaleEntry,
                Some("text-alias") => Plant::TextAlias,
                Some("unused-mapping") => Plant::UnusedMapping,
                Some("writable-text") => Plant::WritableText,
                Some("wrong-root") => Plant::WrongRoot,
                Some("lost-frame") => Plant::LostFrame,
                _ => {
                    return Err(
                        "build-flip, direct-map-read, lost-frame, plugged-read, replica-flip, smap-open, stale-entry, text-alias, unused-mapping, writable-text or wrong-root",
                    );
                }
            });
            Ok(())
        },
    },
    Known {
        name: "init_on_alloc",
        values: "0|1",
        help: "fill every frame with zeroes before it is handed out",
        set: page_allocator,
    },
    Known {
        name: "init_on_free",
        values: "0|1",
        help: "fill every frame with zeroes when it is given back",
        set: page_allocator,
    },
    Known {
        name: "iommu",
        values: "off|on|strict",
        help: "what devices behind an IOMMU (`freehold run --iommu`) reach: everything; what they were given; strict: with an invalidation for each page that they lose",
        set: |settings, parameter| {
            settings.iommu = Some(match parameter.value {
                Some("off") => Iommu::Off,
                Some("on") => Iommu::On,
                Some("strict") => Iommu::Strict,
                _ => return Err("off, on or strict"),
            });
            Ok(())
        },
    },
    Known {
        name: "loglevel",
        values: "0-8",
        help: "log what is more urgent than this (4 warnings, 7 information, 8 everything)",
        set: |settings, parameter| {
            settings.log_level = match parameter.value {
                Some("0" | "1" | "2") => log::LevelFilter::Off,
                Some("3" | "4") => log::LevelFilter::Error,
                Some("5") => log::LevelFilter::Warn,
                Some("6" | "7") => log::LevelFilter::Info,
                Some("8") => log::LevelFilter::Trace,
                _ => return Err("0 to 8"),
            };
            Ok(())
        },
    },
    Known {
        name: "maxcpus",
        values: "1-64",
        help: "start no more CPUs than this",
        set: |settings, parameter| {
            let count = parameter.value.and_then(|value| value.parse().ok()).filter(|&count| count > 0);
            settings.max_cpus = count.ok_or("1 or more")?;
            Ok(())
        },
    },
    Known {
        name: "mitigations",
        values: "auto|off",
        help: "what is done about speculative execution: what the CPU needs, or nothing",
        set: |settings, parameter| {
            settings.mitigations = match parameter.value {
                Some("auto") => Mitigations::Auto,
                Some("off") => Mitigations::Off,
                _ => return Err("auto or off"),
            };
            Ok(())
        },
    },
    Known {
        name: "nokaslr",
        values: "",
        help: "leave the kernel where it is linked, for a debugger",
        // Start-up reads this parameter itself, before this list exists.
        set: |_, _| Ok(()),
    },
    Known {
        name: "norandmaps",
        values: "",
        help: "give programs' parts the same addresses each time, until /proc/sys/kernel/randomize_va_space says otherwise",
        set: |settings, _| {
            settings.fixed_places = true;
            Ok(())
        },
    },
    Known {
        name: "numa",
        values: "off|fake=N|fake=NU|fake=SIZE",
        help: "have memory and CPUs on other nodes than firmware says: off: on one; fake=N: on N; fake=NU: each node split in N; fake=SIZE (M or G): in nodes of that size",
        set: |settings, parameter| {
            let emulation = parameter.value.and_then(Emulation::parse);
            settings.numa = Some(emulation.ok_or("off, fake=N, fake=NU or fake=SIZE with M or G")?);
            Ok(())
        },
    },
    Known {
        name: "numa_replica",
        values: "auto|on|off|N",
        help: "copy the kernel's text and read-only data to nodes that have CPUs: to each; to none; to N at most; auto: to each where there are several",
        set: |settings, parameter| {
            let setting = parameter.value.and_then(Setting::parse);
            settings.numa_replica = setting.ok_or("auto, on, off or a number of nodes")?;
            Ok(())
        },
    },
    Known {
        name: "page_alloc.check",
        values: "owners|fill",
        help: "fill: free frames hold a pattern that must still be there when they are handed out",
        set: page_allocator,
    },
    Known {
        name: "page_alloc.placement",
        values: "auto|linear|random|balanced",
        help: "balanced: user frames come from the near-cache bins that hold the fewest; auto: where there are such bins",
        set: page_allocator,
    },
    Known {
        name: "page_alloc.shuffle",
        values: "auto|on|off",
        help: "hand frames out in random order; auto: where a direct-mapped memory-side cache is present",
        set: page_allocator,
    },
    Known {
        name: "page_alloc.shuffle_order",
        values: "0-10",
        help: "log2 of the frames that are used one after the other: 0 draws every frame, 9 pageblocks, 10 blocks of 4 MiB",
        set: page_allocator,
    },
    Known {
        name: "quiet",
        values: "",
        help: "log errors only",
        set: |settings, _| {
            settings.log_level = log::LevelFilter::Error;
            Ok(())
        },
    },
    Known {
        name: "swiotlb",
        values: bounce::SLABS,
        help: "slots of 2 KiB that devices' bounce buffers have from the start, and in how many areas CPUs look for free ones (128 slots, one area per CPU); noforce says that whole pages are not bounced, and needs dma=direct",
        set: |settings, parameter| {
            bounce::swiotlb(&mut settings.slots, &mut settings.force, parameter.value.unwrap_or(""))
        },
    },
    Known {
        name: "swiotlb.max",
        values: "BYTES[KMG]",
        help: "the most memory of bounce buffers (1 GiB, or an eighth of memory if that is less)",
        set: |settings, parameter| {
            settings.slots.cap = parameter.value.and_then(bytes).ok_or("bytes, for example 2M")?;
            Ok(())
        },
    },
    Known {
        name: "swiotlb.restricted",
        values: "DISK:BYTES[KMG]",
        help: "a disk that has so much bounce memory, rings included, and none beside it",
        set: |settings, parameter| {
            settings.restricted =
                Some(parameter.value.and_then(bounce::restricted).ok_or("vda:BYTES, 64K at least")?);
            Ok(())
        },
    },
    Known {
        name: "swiotlb.scrub",
        values: "owner|always",
        help: "when bounce buffers are zeroed: when another device gets them, or after each use, too",
        set: |settings, parameter| {
            settings.slots.scrub = match parameter.value {
                Some("owner") => Scrub::OwnerChange,
                Some("always") => Scrub::Always,
                _ => return Err("owner or always"),
            };
            Ok(())
        },
    },
    Known {
        name: "syscall_counts",
        values: "on|off",
        help: "count system calls by number, for the report at the end",
        set: |settings, parameter| {
            settings.syscall_counts = match parameter.value {
                Some("on") => KeyState::On,
                Some("off") => KeyState::Off,
                _ => return Err("on or off"),
            };
            Ok(())
        },
    },
    Known {
        name: "trace_event",
        values: "EVENTS",
        help: "events that are recorded from the start, as set_event names them, with commas between them",
        set: |settings, parameter| {
            for (_, selection) in selections(parameter.value.unwrap_or("").as_bytes()) {
                let selection = selection.map_err(|_| "names of events")?;
                selection.events().for_each(|event| settings.trace_events |= 1 << event.number());
            }
            Ok(())
        },
    },
    Known {
        name: "transparent_hugepage",
        values: "always|madvise|never",
        help: "which anonymous memory gets 2 MiB pages (always, with 512 MiB of memory or more; else never)",
        set: |settings, parameter| {
            settings.huge_pages = Some(match parameter.value {
                Some("always") => HugeMode::Always,
                Some("madvise") => HugeMode::Advised,
                Some("never") => HugeMode::Never,
                _ => return Err("always, madvise or never"),
            });
            Ok(())
        },
    },
    Known {
        name: "xpfo",
        values: "off|lap|on|strict",
        help: "keep frames of programs out of the kernel's map: not at all; but for windows that stay cached for a lap; for 4 ms at most; or not at all",
        set: |settings, parameter| {
            let policy = parameter.value.and_then(Policy::parse);
            settings.xpfo = policy.ok_or("off, lap, on or strict")?;
            Ok(())
        },
    },
];

/// A number of bytes: decimal digits, optionally followed by one of the letters K, M, G and T,
/// upper or lower case, for 2^10, 2^20, 2^30 and 2^40. `None` for anything else. A number that does
/// not fit 64 bits is `u64::MAX`. Linux' memparse() also takes other bases, P and E.
pub fn parse_bytes(text: &[u8]) -> Option<u64> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let shift = match text[digits..] {
        [] => 0,
        [b'K' | b'k'] => 10,
        [b'M' | b'm'] => 20,
        [b'G' | b'g'] => 30,
        [b'T' | b't'] => 40,
        _ => return None,
    };
    let number = text[..digits].iter().try_fold(0_u64, |number, digit| {
        number.checked_mul(10).and_then(|number| number.checked_add(u64::from(digit - b'0')))
    });
    (digits > 0).then(|| number.and_then(|number| number.checked_mul(1 << shift)).unwrap_or(u64::MAX))
}

/// A number of bytes of the machine: more than zero, and no more than there are addresses.
fn bytes(text: &str) -> Option<usize> {
    parse_bytes(text.as_bytes()).filter(|&bytes| bytes > 0 && bytes < u64::MAX).map(|bytes| bytes as usize)
}

/// Format of the values of `failslab` and `fail_page_alloc`.
const FAULT_NUMBERS: &str = "<interval>,<probability>,<space>,<times>";

fn fault_numbers(parameter: Parameter) -> Result<FaultNumbers, &'static str> {
    parameter.value.and_then(FaultNumbers::parse).ok_or(FAULT_NUMBERS)
}

fn page_allocator(settings: &mut Settings, parameter: Parameter) -> Result<(), &'static str> {
    // Linux takes a boolean parameter without a value as "on".
    match settings.page_allocator.set(parameter.name, parameter.value.unwrap_or("1")) {
        Ok(()) => Ok(()),
        Err(BadParameter::Value(expected)) => Err(expected),
        Err(BadParameter::Unknown) => Err("nothing: this build does not have it"),
    }
}

/// A problem with a parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Problem<'a> {
    /// No parameter has this name.
    Unknown(&'a str),
    /// The parameter is Linux', and there is no use for it here: its name, and the reason.
    Useless(&'static str, &'static str),
    /// The parameter cannot have this value.
    Value {
        /// The parameter's name.
        name: &'static str,
        /// The text that the user wrote.
        value: &'a str,
        /// The possible values.
        expected: &'static str,
    },
}

impl fmt::Display for Problem<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(name) => write!(f, "unknown kernel parameter \"{name}\", ignored"),
            Self::Useless(name, reason) => write!(f, "kernel parameter {name} ignored: {reason}"),
            Self::Value { name, value, expected } => {
                write!(f, "kernel parameter {name}={value} ignored: it can be {expected}")
            }
        }
    }
}

/// Reads the whole line. Calls `problem` for each unknown parameter and each invalid value.
pub fn parse<'a>(line: &'a str, mut problem: impl FnMut(Problem<'a>)) -> Settings {
    let mut settings = Settings::default();
    for parameter in parameters(line) {
        let Some(known) = KNOWN.iter().find(|known| same_name(known.name, parameter.name)) else {
            problem(bounce::useless(parameter.name).unwrap_or(Problem::Unknown(parameter.name)));
            continue;
        };
        let canonical = Parameter { name: known.name, ..parameter };
        if let Err(expected) = (known.set)(&mut settings, canonical) {
            problem(Problem::Value { name: known.name, value: parameter.value.unwrap_or(""), expected });
        }
    }
    if settings.force == Force::No && settings.transfers != Transfers::InPlace {
        let expected = "noforce with dma=direct only, since devices are bounced without it";
        problem(Problem::Value { name: "swiotlb", value: "noforce", expected });
    }
    settings
}

/// The parameters in the kernel's part of the line.
pub fn parameters(line: &str) -> impl Iterator<Item = Parameter<'_>> {
    let mut rest = line;
    core::iter::from_fn(move || {
        rest = rest.trim_start_matches(is_blank);
        let end = end_of_parameter(rest);
        let (text, after) = rest.split_at(end);
        rest = after;
        if text.is_empty() || text == "--" {
            rest = "";
            return None;
        }
        Some(split(text))
    })
}

fn is_blank(c: char) -> bool {
    c.is_ascii_whitespace()
}

/// Returns the end of the parameter that `text` starts with: the first blank outside quotes.
fn end_of_parameter(text: &str) -> usize {
    let mut quoted = false;
    let end = text.find(|c| {
        quoted ^= c == '"';
        is_blank(c) && !quoted
    });
    end.unwrap_or(text.len())
}

fn split(text: &str) -> Parameter<'_> {
    let text = without_quotes(text);
    match text.split_once('=') {
        Some((name, value)) => Parameter { name, value: Some(without_quotes(value)) },
        None => Parameter { name: text, value: None },
    }
}

/// Removes a quote at the start and, if there was one, a quote at the end.
fn without_quotes(text: &str) -> &str {
    text.strip_prefix('"').map_or(text, |text| text.strip_suffix('"').unwrap_or(text))
}

/// Whether the names are equal, where `-` and `_` count as the same.
fn same_name(a: &str, b: &str) -> bool {
    let plain = |c| if c == b'-' { b'_' } else { c };
    a.len() == b.len() && a.bytes().map(plain).eq(b.bytes().map(plain))
}

#[cfg(test)]
mod tests;
