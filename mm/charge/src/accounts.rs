//! The tree of accounts.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use freehold_frame::{AccountId, AtomicAccountId, Owner};
use spin::{Mutex, Once};

use crate::balance::{Balance, BalanceError, charge_upwards, uncharge_upwards};
use crate::objects::ObjectBytes;

/// Number of entries that are allocated at a time.
pub const CHUNK: usize = 64;
const CHUNKS: usize = (AccountId::LAST as usize + 1) / CHUNK;

/// A limit, in frames or slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccountLimit {
    /// No charge passes this limit.
    Max,
    /// Charges may pass this limit, and are reported.
    High,
    /// A page is not swapped out if its account would then exceed this number of slots.
    SwapMax,
}

const LIMITS: usize = 3;

/// A resource that is charged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resource {
    /// Frames.
    Memory,
    /// Slots of swap areas.
    Swap,
}

/// The kind of frames that are charged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChargedKind {
    /// Anonymous memory.
    Anon,
    /// Pages of files, of shared memory, and in pipes and sockets.
    File,
    /// Page tables.
    PageTables,
    /// Objects of the kernel: [`Accounts::charge_object`].
    Objects,
    /// Stacks of the kernel.
    Stacks,
}

impl ChargedKind {
    const COUNT: usize = 5;

    /// The kind of an owner's frames; `None` if they are not [charged](Owner::is_charged).
    const fn of(owner: Owner) -> Option<Self> {
        match owner {
            Owner::Anon => Some(Self::Anon),
            Owner::PageCache => Some(Self::File),
            Owner::PageTable => Some(Self::PageTables),
            _ => None,
        }
    }
}

/// Frames that are charged, by kind.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ChargedFrames([u64; ChargedKind::COUNT]);

impl ChargedFrames {
    /// Returns the frames of a kind.
    pub const fn of(self, kind: ChargedKind) -> u64 {
        self.0[kind as usize]
    }
}

/// Events that are counted in their account and in all accounts above it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccountEvent {
    /// Memory was reclaimed because the account exceeded [`AccountLimit::High`].
    High,
    /// A charge would have exceeded [`AccountLimit::Max`].
    Max,
    /// Not enough memory could be reclaimed to stay below [`AccountLimit::Max`].
    Oom,
    /// A process was killed because of such a shortage.
    OomKill,
    /// A whole group was killed because of such a shortage.
    OomGroupKill,
    /// A page was not swapped out because of [`AccountLimit::SwapMax`].
    SwapMax,
    /// A page got no slot, because of that limit or because the swap areas were full.
    SwapFail,
}

const EVENTS: usize = 7;

/// Whether the processes of a group end together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Together {
    /// If one process is killed because memory is short, all are.
    Yes,
    /// Each process is killed separately.
    No,
}

/// Whether limits apply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Urgency {
    /// Limits hold.
    Limited,
    /// Limits do not apply: the charge helps to free memory, the thread is ending, or the caller
    /// cannot handle failure.
    Exempt,
}

/// A successful charge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameCharge {
    /// The account that was charged: [`AccountId::ROOT`] if the account no longer exists.
    pub account: AccountId,
    /// The lowest account with more than [`AccountLimit::High`] now.
    pub above_high: Option<AccountId>,
}

impl FrameCharge {
    /// A charge to no account.
    const NOBODYS: Self = Self { account: AccountId::ROOT, above_high: None };
}

/// A charge that failed at [`AccountLimit::Max`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChargeError {
    /// The account whose limit would be exceeded: the charged one, or one above.
    pub account: AccountId,
}

/// Reasons why no account was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenError {
    /// There is no memory for its entry.
    NoMemory,
    /// There are [`AccountId::LAST`] accounts already, including closed ones with charged frames.
    TooMany,
    /// The account above is not open.
    NoParent,
}

/// One account.
#[derive(Debug)]
pub struct AccountEntry {
    /// The balances, by [`Resource`].
    balances: [Balance; 2],
    /// The parent; changes only while the entry is free.
    parent: AtomicAccountId,
    /// Number of accounts in use directly below; changed under the lock.
    children: AtomicU32,
    /// The limits, by [`AccountLimit`].
    limits: [AtomicU64; LIMITS],
    /// The peaks, by [`Resource`].
    peaks: [AtomicU64; 2],
    /// Charges to this account itself, by [`ChargedKind`].
    kinds: [AtomicU64; ChargedKind::COUNT],
    /// Objects that are charged to this account itself; none while the entry is free.
    objects: ObjectBytes,
    /// Whether processes end together: see [`Accounts::ends_together`].
    together: AtomicBool,
    /// Counts of events, by [`AccountEvent`]: in this account and below, and in this account alone.
    events: [[AtomicU64; EVENTS]; 2],
}

impl AccountEntry {
    /// A free entry.
    #[allow(clippy::declare_interior_mutable_const, reason = "a value to build tables from, never borrowed")]
    pub const EMPTY: Self = Self {
        balances: [const { Balance::FREE }; 2],
        parent: AtomicAccountId::new(AccountId::ROOT),
        children: AtomicU32::new(0),
        limits: [const { AtomicU64::new(u64::MAX) }; LIMITS],
        peaks: [const { AtomicU64::new(0) }; 2],
        kinds: [const { AtomicU64::new(0) }; ChargedKind::COUNT],
        objects: ObjectBytes::NONE,
        together: AtomicBool::new(false),
        events: [const { [const { AtomicU64::new(0) }; EVENTS] }; 2],
    };

    fn reset(&self, parent: AccountId) {
        self.parent.store(parent, Ordering::Relaxed);
        self.limits.iter().for_each(|limit| limit.store(u64::MAX, Ordering::Relaxed));
        self.together.store(false, Ordering::Relaxed);
        let counts = self.kinds.iter().chain(self.events.iter().flatten());
        counts.chain(&self.peaks).for_each(|count| count.store(0, Ordering::Relaxed));
    }
    fn parent(&self) -> AccountId {
        self.parent.load(Ordering::Relaxed)
    }
    const fn balance(&self, resource: Resource) -> &Balance {
        &self.balances[resource as usize]
    }
    fn note_peak(&self, resource: Resource, charged: u64) {
        let peak = &self.peaks[resource as usize];
        if peak.load(Ordering::Relaxed) < charged {
            peak.fetch_max(charged, Ordering::Relaxed);
        }
    }
    fn limit(&self, limit: AccountLimit) -> u64 {
        self.limits[limit as usize].load(Ordering::Relaxed)
    }
}

/// All accounts, by their numbers. Entry 0 is never used: the root counts nothing.
#[derive(Debug)]
pub struct Accounts {
    chunks: [Once<&'static [AccountEntry; CHUNK]>; CHUNKS],
    /// The number after that of the last opened account. The lock is held while accounts are opened
    /// and closed.
    next: Mutex<u16>,
}

impl Default for Accounts {
    fn default() -> Self {
        Self::new()
    }
}

impl Accounts {
    /// Makes a tree without accounts.
    pub const fn new() -> Self {
        Self { chunks: [const { Once::new() }; CHUNKS], next: Mutex::new(1) }
    }
    fn entry(&self, account: AccountId) -> Option<&'static AccountEntry> {
        let number = usize::from(account.number());
        let chunk = self.chunks[number / CHUNK].get()?;
        if number == 0 { None } else { Some(&chunk[number % CHUNK]) }
    }
    /// `account` and those above it, each looked up when the iterator reaches it.
    fn upwards(
        &self,
        account: AccountId,
    ) -> impl Iterator<Item = (AccountId, &'static AccountEntry)> + Clone {
        let found = move |account| self.entry(account).map(|entry| (account, entry));
        core::iter::successors(found(account), move |(_, entry)| found(entry.parent()))
    }

    /// Opens an account below `parent`, without limits. `room` allocates entries if none is left.
    ///
    /// # Errors
    /// [`OpenError`]; nothing has changed, except that there may be more entries.
    pub fn open(
        &self,
        parent: AccountId,
        room: impl FnOnce() -> Option<&'static [AccountEntry; CHUNK]>,
    ) -> Result<AccountId, OpenError> {
        let mut next = self.next.lock();
        let above = self.entry(parent);
        if parent != AccountId::ROOT && above.is_none_or(|above| !above.balance(Resource::Memory).is_open()) {
            return Err(OpenError::NoParent);
        }
        let (account, entry) = match self.find_unused(*next) {
            Some(found) => found,
            None => self.make_room(room)?,
        };
        entry.reset(parent);
        if let Some(above) = above {
            above.children.fetch_add(1, Ordering::Relaxed);
        }
        // Memory is opened last: an account that can be charged for memory can also be charged for
        // slots.
        let was_free = [Resource::Swap, Resource::Memory].map(|resource| entry.balance(resource).open());
        debug_assert_eq!(was_free, [true; 2], "the lock is held");
        *next = account.number() % AccountId::LAST + 1;
        Ok(account)
    }
    /// Finds a free entry, from number `from` on with wrap-around. Closed entries without charges
    /// are freed on the way. So a number stays unused as long as possible.
    fn find_unused(&self, from: u16) -> Option<(AccountId, &'static AccountEntry)> {
        (from..=AccountId::LAST).chain(1..from).filter_map(AccountId::new).find_map(|account| {
            let entry = self.entry(account)?;
            (!entry.balance(Resource::Memory).is_used() || self.retire(entry)).then_some((account, entry))
        })
    }
    /// Frees a closed entry without charges. Returns whether the entry is free now.
    fn retire(&self, entry: &AccountEntry) -> bool {
        let [memory, swap] = &entry.balances;
        if entry.children.load(Ordering::Relaxed) != 0 || !memory.retire() {
            return false;
        }
        // No frame is charged, so no further slot will be charged.
        swap.close();
        let retired = swap.retire();
        if !retired {
            memory.open();
            memory.close();
        }
        if retired && let Some(above) = self.entry(entry.parent()) {
            above.children.fetch_sub(1, Ordering::Relaxed);
        }
        retired
    }
    fn make_room(
        &self,
        room: impl FnOnce() -> Option<&'static [AccountEntry; CHUNK]>,
    ) -> Result<(AccountId, &'static AccountEntry), OpenError> {
        let free = self.chunks.iter().position(|chunk| !chunk.is_completed()).ok_or(OpenError::TooMany)?;
        let entries = room().ok_or(OpenError::NoMemory)?;
        self.chunks[free].call_once(|| entries);
        let account = AccountId::new(((free * CHUNK) as u16).max(1)).ok_or(OpenError::TooMany)?;
        self.entry(account).map(|entry| (account, entry)).ok_or(OpenError::TooMany)
    }
    /// Closes `account`, which has no process and no open account below. Frames charged to it stay
    /// charged, and count in the accounts above.
    pub fn close(&self, account: AccountId) {
        let _held = self.next.lock();
        if let Some(entry) = self.entry(account) {
            entry.balance(Resource::Memory).close();
        }
    }

    /// Closed accounts that are charged for pages of files: when these pages are freed, an
    /// account's number can be used again.
    pub fn closed_with_files(&self) -> impl Iterator<Item = AccountId> {
        let is_one = |entry: &AccountEntry| {
            let balance = entry.balance(Resource::Memory);
            balance.is_used()
                && !balance.is_open()
                && entry.kinds[ChargedKind::File as usize].load(Ordering::Relaxed) != 0
        };
        (1..=AccountId::LAST)
            .filter_map(AccountId::new)
            .filter(move |account| self.entry(*account).is_some_and(is_one))
    }

    /// Charges `frames` of `owner` to `account` and all above.
    ///
    /// # Errors
    /// [`ChargeError`] if a limit would be exceeded: nothing is charged, and the event is counted.
    pub fn charge(
        &self,
        account: AccountId,
        owner: Owner,
        frames: u64,
        urgency: Urgency,
    ) -> Result<FrameCharge, ChargeError> {
        ChargedKind::of(owner)
            .map_or(Ok(FrameCharge::NOBODYS), |kind| self.charge_kind(account, kind, frames, urgency))
    }
    /// Charges `frames` of a kind to `account` and all above.
    ///
    /// # Errors
    /// As [`charge`](Self::charge).
    pub fn charge_kind(
        &self,
        account: AccountId,
        kind: ChargedKind,
        frames: u64,
        urgency: Urgency,
    ) -> Result<FrameCharge, ChargeError> {
        let Some(entry) = self.entry(account) else { return Ok(FrameCharge::NOBODYS) };
        let above = self.upwards(account);
        let levels = above.clone().map(|(_, entry)| match urgency {
            Urgency::Limited => (entry.balance(Resource::Memory), entry.limit(AccountLimit::Max)),
            Urgency::Exempt => (entry.balance(Resource::Memory), u64::MAX),
        });
        let mut above_high = None;
        let mut names = above.clone();
        let charged = charge_upwards(levels, frames, |_, charged| {
            let Some((account, entry)) = names.next() else { return };
            entry.note_peak(Resource::Memory, charged);
            if charged > entry.limit(AccountLimit::High) && above_high.is_none() {
                above_high = Some(account);
            }
        });
        match charged {
            Ok(()) => {
                entry.kinds[kind as usize].fetch_add(frames, Ordering::Relaxed);
                Ok(FrameCharge { account, above_high })
            }
            Err((_, BalanceError::Gone)) => Ok(FrameCharge::NOBODYS),
            Err((level, BalanceError::Over)) => {
                let account = above.clone().nth(level).map_or(account, |(account, _)| account);
                self.note(account, AccountEvent::Max);
                Err(ChargeError { account })
            }
        }
    }
    /// Removes a charge of [`charge`](Self::charge).
    pub fn uncharge(&self, account: AccountId, owner: Owner, frames: u64) {
        if let Some(kind) = ChargedKind::of(owner) {
            self.uncharge_kind(account, kind, frames);
        }
    }
    /// Removes a charge of [`charge_kind`](Self::charge_kind).
    pub fn uncharge_kind(&self, account: AccountId, kind: ChargedKind, frames: u64) {
        let Some(entry) = self.entry(account) else { return };
        entry.kinds[kind as usize].fetch_sub(frames, Ordering::Relaxed);
        uncharge_upwards(self.upwards(account).map(|(_, entry)| entry.balance(Resource::Memory)), frames);
    }
    /// Charges an object of `bytes` bytes, fewer than 2^30, to `account`. Charges to all accounts
    /// above the additional frames that the object needs.
    ///
    /// # Errors
    /// As [`charge`](Self::charge).
    pub fn charge_object(
        &self,
        account: AccountId,
        bytes: u64,
        urgency: Urgency,
    ) -> Result<FrameCharge, ChargeError> {
        let Some(entry) = self.entry(account) else { return Ok(FrameCharge::NOBODYS) };
        let charge = |frames| match self.charge_kind(account, ChargedKind::Objects, frames, urgency) {
            Ok(charged) if charged.account == AccountId::ROOT => Err(Ok(charged)),
            charged => charged.map_err(Err),
        };
        let give_back = |_, frames| self.uncharge_kind(account, ChargedKind::Objects, frames);
        match entry.objects.add(bytes, Err(ChargeError { account }), charge, give_back) {
            Ok(charged) => Ok(charged.unwrap_or(FrameCharge { account, above_high: None })),
            Err(other) => other,
        }
    }
    /// Removes the charge of an object.
    pub fn uncharge_object(&self, account: AccountId, bytes: u64) {
        let frames = self.entry(account).map_or(0, |entry| entry.objects.take(bytes));
        if frames > 0 {
            self.uncharge_kind(account, ChargedKind::Objects, frames);
        }
    }
    /// Charges a slot of a swap area to `account`, which is charged for the page's frame, and to
    /// all above. Returns whether there was room below [`AccountLimit::SwapMax`].
    pub fn charge_slot(&self, account: AccountId) -> bool {
        let above = self.upwards(account);
        let levels = above
            .clone()
            .map(|(_, entry)| (entry.balance(Resource::Swap), entry.limit(AccountLimit::SwapMax)));
        let mut entries = above.clone().map(|(_, entry)| entry);
        let seen = |_, charged| {
            if let Some(entry) = entries.next() {
                entry.note_peak(Resource::Swap, charged);
            }
        };
        let Err((level, _)) = charge_upwards(levels, 1, seen) else { return true };
        let full = above.clone().nth(level).map_or(account, |(account, _)| account);
        self.note(full, AccountEvent::SwapMax);
        self.note(full, AccountEvent::SwapFail);
        false
    }
    /// Removes the charge of a slot.
    pub fn uncharge_slot(&self, account: AccountId) {
        uncharge_upwards(self.upwards(account).map(|(_, entry)| entry.balance(Resource::Swap)), 1);
    }
    /// Whether `account` and all above may be charged for one more slot.
    pub fn has_slot_room(&self, account: AccountId) -> bool {
        let has_room = |entry: &AccountEntry| {
            entry.balance(Resource::Swap).charged() < entry.limit(AccountLimit::SwapMax)
        };
        self.upwards(account).all(|(_, entry)| has_room(entry))
    }

    /// Counts `event` for `account` and all above.
    pub fn note(&self, account: AccountId, event: AccountEvent) {
        for (level, (_, entry)) in self.upwards(account).enumerate() {
            entry.events[0][event as usize].fetch_add(1, Ordering::Relaxed);
            if level == 0 {
                entry.events[1][event as usize].fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    /// Returns how often `event` happened to `account` or an account below.
    pub fn events(&self, account: AccountId, event: AccountEvent) -> u64 {
        self.read(account, |entry| entry.events[0][event as usize].load(Ordering::Relaxed))
    }
    /// Returns how often `event` happened to `account` itself.
    pub fn local_events(&self, account: AccountId, event: AccountEvent) -> u64 {
        self.read(account, |entry| entry.events[1][event as usize].load(Ordering::Relaxed))
    }
    fn read(&self, account: AccountId, what: impl FnOnce(&AccountEntry) -> u64) -> u64 {
        self.entry(account).map_or(0, what)
    }

    /// Returns the frames or slots that are charged to `account` and those below.
    pub fn charged(&self, account: AccountId, resource: Resource) -> u64 {
        self.read(account, |entry| entry.balance(resource).charged())
    }
    /// Returns the largest number of frames or slots that were charged at one time.
    pub fn peak(&self, account: AccountId, resource: Resource) -> u64 {
        self.read(account, |entry| entry.peaks[resource as usize].load(Ordering::Relaxed))
    }
    /// Returns a limit, in frames or slots; `u64::MAX` is none.
    pub fn limit(&self, account: AccountId, limit: AccountLimit) -> u64 {
        self.entry(account).map_or(u64::MAX, |entry| entry.limit(limit))
    }
    /// Sets a limit. Charges that exist already stay, even above the limit.
    pub fn set_limit(&self, account: AccountId, limit: AccountLimit, frames: u64) {
        if let Some(entry) = self.entry(account) {
            entry.limits[limit as usize].store(frames, Ordering::Relaxed);
        }
    }
    /// Sets whether all processes of `account` and the accounts below are killed if one is killed
    /// because memory is short.
    pub fn set_together(&self, account: AccountId, together: Together) {
        if let Some(entry) = self.entry(account) {
            entry.together.store(together == Together::Yes, Ordering::Relaxed);
        }
    }
    /// The setting of [`Accounts::set_together`].
    pub fn together(&self, account: AccountId) -> Together {
        let is_set = self.entry(account).is_some_and(|entry| entry.together.load(Ordering::Relaxed));
        if is_set { Together::Yes } else { Together::No }
    }
    /// The highest account between `account` and `top`, both included, whose processes are killed
    /// together.
    pub fn ends_together(&self, account: AccountId, top: AccountId) -> Option<AccountId> {
        let above = self.upwards(account);
        let end = above.clone().position(|(account, _)| account == top).map_or(usize::MAX, |at| at + 1);
        let set = above.take(end).filter(|(_, entry)| entry.together.load(Ordering::Relaxed));
        set.map(|(account, _)| account).last()
    }
    /// Whether `account` is `top` or below it. All are below the root.
    pub fn is_below(&self, account: AccountId, top: AccountId) -> bool {
        top == AccountId::ROOT || self.upwards(account).any(|(above, _)| above == top)
    }
    /// Accounts that exceed a limit, among `account` and those above it.
    pub fn exceeded(&self, account: AccountId, limit: AccountLimit) -> impl Iterator<Item = AccountId> {
        let exceeds =
            move |entry: &AccountEntry| entry.balance(Resource::Memory).charged() > entry.limit(limit);
        self.upwards(account).filter(move |(_, entry)| exceeds(entry)).map(|(account, _)| account)
    }
    /// Frames that are charged to `account` and those below, by kind. Walks all accounts, so a
    /// caller that needs several kinds calls this once.
    pub fn charged_kinds(&self, account: AccountId) -> ChargedFrames {
        let all = self.chunks.iter().enumerate().filter_map(|(chunk, entries)| Some((chunk, entries.get()?)));
        let numbered = all.flat_map(|(chunk, entries)| (chunk * CHUNK..).zip(entries.iter()));
        let used = numbered.filter(|(_, entry)| entry.balance(Resource::Memory).is_used());
        let below = used.filter(|(number, _)| {
            AccountId::new(*number as u16).is_some_and(|number| self.is_below(number, account))
        });
        below.fold(ChargedFrames::default(), |mut sums, (_, entry)| {
            for (sum, kind) in sums.0.iter_mut().zip(&entry.kinds) {
                *sum += kind.load(Ordering::Relaxed);
            }
            sums
        })
    }
}

/// An account and those below it.
#[derive(Clone, Copy)]
pub struct Below {
    accounts: &'static Accounts,
    top: AccountId,
}

impl Below {
    /// `top` and those below it.
    pub const fn new(accounts: &'static Accounts, top: AccountId) -> Self {
        Self { accounts, top }
    }
    /// Frames that are charged to them, by kind: see [`Accounts::charged_kinds`].
    pub fn charged_kinds(self) -> ChargedFrames {
        self.accounts.charged_kinds(self.top)
    }
    /// Whether there is room for one more slot.
    pub fn has_slot_room(self) -> bool {
        self.accounts.has_slot_room(self.top)
    }
    /// Whether `account` is one of them.
    pub fn contains(self, account: AccountId) -> bool {
        self.accounts.is_below(account, self.top)
    }
}

impl PartialEq for Below {
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self.accounts, other.accounts) && self.top == other.top
    }
}

impl Eq for Below {}

impl core::fmt::Debug for Below {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Below").field(&self.top).finish()
    }
}
