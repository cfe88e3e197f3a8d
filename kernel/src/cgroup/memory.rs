//! The controller `memory`: how many frames a group and the groups below it may have.
//!
//! A group on which the controller acts has an account ([`freehold_charge`]). The parent account is
//! that of the nearest group above with an account. The account pays for the group's processes, and
//! for those of groups below without an account: [`Group::payer`]. Charges from before a move stay
//! with the old group. Charges of a removed group count in the groups above it until its last frame
//! is free.
//!
//! The memory layer charges, refuses and reclaims frames ([`crate::mem::charge`]). It registers
//! itself ([`set_charging`]). This module has the accounts and the files. Linux' relative:
//! `mm/memcontrol.c`. Settings without effect here have no file: memory.min, memory.low,
//! memory.numa_stat, memory.swap.high, memory.zswap.*.

use core::fmt;
use core::sync::atomic::{AtomicU16, Ordering};

use freehold_charge::{
    AccountEntry, AccountEvent, AccountLimit, Accounts, CHUNK, ChargedKind, OpenError, Resource, Together,
};
use freehold_collections::{Arc, Vec};
use freehold_frame::AccountId;
use freehold_machine::PAGE_SIZE;

use super::control::{ControlFile, Controller, OnRoot};
use super::group::{Group, Notice};
use super::tree::{self, tell};
use crate::cmdline::parse_bytes;
use crate::{Errno, Result};

static ACCOUNTS: Accounts = Accounts::new();

/// All accounts.
pub fn accounts() -> &'static Accounts {
    &ACCOUNTS
}

/// The memory layer's work on accounts.
pub trait Charging: Sync {
    /// Begins to charge frames.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn begin(&self) -> Result<()>;
    /// Reclaims frames until `account` has no more than `limit` says. For [`AccountLimit::Max`] it
    /// kills processes if reclaim does not suffice.
    ///
    /// # Errors
    /// `EINTR` for a signal.
    fn enforce(&self, account: AccountId, limit: AccountLimit) -> Result<()>;
    /// Reclaims up to this many frames. Returns how many were reclaimed.
    ///
    /// # Errors
    /// `EINTR` for a signal.
    fn take_back(&self, account: AccountId, frames: u64) -> Result<u64>;
}

static CHARGING: spin::Once<&'static dyn Charging> = spin::Once::new();

/// Sets the implementation of charging; once at boot.
pub fn set_charging(charging: &'static dyn Charging) {
    CHARGING.call_once(|| charging);
}

fn charging() -> Result<&'static dyn Charging> {
    CHARGING.get().copied().ok_or(Errno::ENODEV)
}

/// For each account, the number of the group that has it; 0 for none.
static GROUPS: [AtomicU16; AccountId::LAST as usize + 1] =
    [const { AtomicU16::new(0) }; AccountId::LAST as usize + 1];

/// Reports an event of `account` to the watchers of memory.events. Task context; the caller holds
/// no lock of this layer.
pub fn tell_of(account: AccountId) {
    let number = GROUPS[usize::from(account.number())].load(Ordering::Relaxed);
    let Some(group) = tree::find(number) else { return };
    group.note(Notice::MemoryLocal);
    group.counted().for_each(|above| above.note(Notice::Memory));
    tell(&group);
}

impl Group {
    fn account(&self) -> AccountId {
        self.account.load(Ordering::SeqCst)
    }
    /// The account that pays for the group's processes: the group's own, or that of the nearest
    /// group above with one.
    pub fn payer(&self) -> AccountId {
        self.path().find_map(|group| group.account().unless_root()).unwrap_or(AccountId::ROOT)
    }
}

/// The controller.
pub struct MemoryController;

impl Controller for MemoryController {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn files(&self) -> &'static [ControlFile] {
        &FILES
    }

    fn begin(&self, group: &Arc<Group>) -> Result<()> {
        let charging = charging()?;
        charging.begin()?;
        let above = group.parent().map_or(AccountId::ROOT, |parent| parent.payer());
        let account = open_account(&ACCOUNTS, charging, above)?;
        GROUPS[usize::from(account.number())].store(group.number(), Ordering::Relaxed);
        group.account.store(account, Ordering::SeqCst);
        Ok(())
    }

    fn end(&self, group: &Group) {
        let account = group.account.swap(AccountId::ROOT, Ordering::SeqCst);
        GROUPS[usize::from(account.number())].store(0, Ordering::Relaxed);
        ACCOUNTS.close(account);
    }
}

/// Opens an account below `above`, without limits.
///
/// An account of a removed group keeps its number as long as it pays for something. If no number is
/// left, the file pages of such accounts are given back, one account after the other.
pub(super) fn open_account(
    accounts: &Accounts,
    charging: &dyn Charging,
    above: AccountId,
) -> Result<AccountId> {
    // Entries are allocated before they are needed, so no task waits for memory with the accounts
    // locked.
    let mut opened = accounts.open(above, || None);
    if opened == Err(OpenError::NoMemory) {
        let mut entries = Vec::default();
        entries.try_extend((0..CHUNK).map(|_| AccountEntry::EMPTY))?;
        opened = accounts.open(above, || (&*entries.leak()).try_into().ok());
    }
    let mut closed = accounts.closed_with_files();
    while opened == Err(OpenError::TooMany)
        && let Some(account) = closed.next()
    {
        charging.take_back(account, accounts.charged(account, Resource::Memory))?;
        if accounts.charged(account, Resource::Memory) == 0 {
            opened = accounts.open(above, || None);
        }
    }
    opened.map_err(|error| match error {
        OpenError::NoMemory => Errno::ENOMEM,
        OpenError::TooMany => Errno::ENOSPC,
        OpenError::NoParent => Errno::ENODEV,
    })
}

/// Writes the bytes of so many frames or slots; "max" for no limit.
fn write_bytes(pages: u64, out: &mut dyn fmt::Write) -> fmt::Result {
    if pages > u64::MAX / PAGE_SIZE as u64 {
        return writeln!(out, "max");
    }
    writeln!(out, "{}", pages * PAGE_SIZE as u64)
}

/// Parses a limit: [bytes](crate::cmdline::parse_bytes), rounded to whole pages, or "max" for none.
///
/// # Errors
/// `EINVAL` for any other text.
fn parse_pages(text: &[u8]) -> Result<u64> {
    if text == b"max" {
        return Ok(u64::MAX);
    }
    let pages = parse_bytes(text).ok_or(Errno::EINVAL)? / PAGE_SIZE as u64;
    Ok(if pages > i64::MAX as u64 / PAGE_SIZE as u64 { u64::MAX } else { pages })
}

/// A file that can only be read.
const fn shown(name: &'static str, show: fn(&Group, &mut dyn fmt::Write) -> fmt::Result) -> ControlFile {
    ControlFile { name, mode: 0o444, on_root: OnRoot::No, notice: None, show, store: None }
}

/// A file that can be read and written.
const fn set(
    name: &'static str,
    show: fn(&Group, &mut dyn fmt::Write) -> fmt::Result,
    store: fn(&Group, &[u8]) -> Result<()>,
) -> ControlFile {
    ControlFile { mode: 0o644, store: Some(store), ..shown(name, show) }
}

static FILES: [ControlFile; 13] = [
    shown("memory.current", |group, out| {
        write_bytes(ACCOUNTS.charged(group.account(), Resource::Memory), out)
    }),
    ControlFile {
        notice: Some(Notice::Memory),
        ..shown("memory.events", |group, out| show_events(group, Accounts::events, out))
    },
    ControlFile {
        notice: Some(Notice::MemoryLocal),
        ..shown("memory.events.local", |group, out| show_events(group, Accounts::local_events, out))
    },
    set(
        "memory.high",
        |group, out| show_limit(group, AccountLimit::High, out),
        |group, text| store_limit(group, AccountLimit::High, text),
    ),
    set(
        "memory.max",
        |group, out| show_limit(group, AccountLimit::Max, out),
        |group, text| store_limit(group, AccountLimit::Max, text),
    ),
    set("memory.oom.group", show_together, store_together),
    shown("memory.peak", |group, out| write_bytes(ACCOUNTS.peak(group.account(), Resource::Memory), out)),
    ControlFile { mode: 0o200, ..set("memory.reclaim", |_, _| Ok(()), reclaim) },
    shown("memory.stat", show_stat),
    shown("memory.swap.current", |group, out| {
        write_bytes(ACCOUNTS.charged(group.account(), Resource::Swap), out)
    }),
    shown("memory.swap.events", |group, out| {
        let count = |event| ACCOUNTS.events(group.account(), event);
        writeln!(out, "max {}\nfail {}", count(AccountEvent::SwapMax), count(AccountEvent::SwapFail))
    }),
    set(
        "memory.swap.max",
        |group, out| show_limit(group, AccountLimit::SwapMax, out),
        |group, text| store_limit(group, AccountLimit::SwapMax, text),
    ),
    shown("memory.swap.peak", |group, out| write_bytes(ACCOUNTS.peak(group.account(), Resource::Swap), out)),
];

fn show_events(
    group: &Group,
    count: fn(&Accounts, AccountId, AccountEvent) -> u64,
    out: &mut dyn fmt::Write,
) -> fmt::Result {
    let count = |event| count(&ACCOUNTS, group.account(), event);
    // Nothing protects a group's memory: "low" never happens.
    writeln!(out, "low 0\nhigh {}\nmax {}", count(AccountEvent::High), count(AccountEvent::Max))?;
    writeln!(out, "oom {}\noom_kill {}", count(AccountEvent::Oom), count(AccountEvent::OomKill))?;
    writeln!(out, "oom_group_kill {}", count(AccountEvent::OomGroupKill))
}

fn show_limit(group: &Group, limit: AccountLimit, out: &mut dyn fmt::Write) -> fmt::Result {
    write_bytes(ACCOUNTS.limit(group.account(), limit), out)
}

fn store_limit(group: &Group, limit: AccountLimit, text: &[u8]) -> Result<()> {
    let (account, pages) = (group.account(), parse_pages(text)?);
    ACCOUNTS.set_limit(account, limit, pages);
    match limit {
        AccountLimit::Max | AccountLimit::High => charging()?.enforce(account, limit),
        AccountLimit::SwapMax => Ok(()),
    }
}

fn show_together(group: &Group, out: &mut dyn fmt::Write) -> fmt::Result {
    writeln!(out, "{}", u8::from(ACCOUNTS.together(group.account()) == Together::Yes))
}

fn store_together(group: &Group, text: &[u8]) -> Result<()> {
    let together = match text {
        b"0" => Together::No,
        b"1" => Together::Yes,
        _ => return Err(Errno::EINVAL),
    };
    ACCOUNTS.set_together(group.account(), together);
    Ok(())
}

/// Reclaims the number of bytes that a program requests.
///
/// # Errors
/// `EAGAIN` if fewer were reclaimed; `EINTR`.
fn reclaim(group: &Group, text: &[u8]) -> Result<()> {
    let pages = parse_pages(text)?;
    let taken = charging()?.take_back(group.account(), pages)?;
    if taken < pages { Err(Errno::EAGAIN) } else { Ok(()) }
}

fn show_stat(group: &Group, out: &mut dyn fmt::Write) -> fmt::Result {
    let charged = ACCOUNTS.charged_kinds(group.account());
    let bytes = |kind| charged.of(kind) * PAGE_SIZE as u64;
    let [stacks, tables, objects] =
        [ChargedKind::Stacks, ChargedKind::PageTables, ChargedKind::Objects].map(bytes);
    writeln!(out, "anon {}\nfile {}", bytes(ChargedKind::Anon), bytes(ChargedKind::File))?;
    writeln!(out, "kernel {}\nkernel_stack {stacks}\npagetables {tables}", stacks + tables + objects)?;
    writeln!(out, "slab_unreclaimable {objects}\nslab {objects}")
}
