//! A program's new page: its frame, and the first bytes in it.
//!
//! Zeroes and copies are written through the address that the program is about to use, where no
//! other CPU could look meanwhile ([`Roots::alone`](freehold_paging::Roots::alone)): the program's
//! access then finds the bytes in this CPU's cache, and the page needs no window. Else they are
//! written through a window, before the leaf is there.
//!
//! The kernel's own store must not go through an old translation. The caller has the space's lock,
//! and its last holder has flushed the leaves that it took away; a leaf that is replaced here is
//! flushed here. The program's next store may use the translation that is cached now. So, like any
//! store, it may happen after another CPU has removed the page and before it has flushed. Then the
//! stored byte stays with the page ([`Detach`](crate::pin::detach::Detach): the flush comes before
//! the bytes are read).

use core::mem::ManuallyDrop;

use freehold_frame::transition::CopyFrom;
use freehold_frame::{
    AccountId, Anon, Frame, Held, LeafMapping, NodePolicy, OutOfMemory, Owner, Payer, Request,
};
use freehold_machine::{Cpus, Flush, Pfn, Tlb, VirtAddr};
use freehold_paging::{Backing, Entry, EntryAt, Marks, Memory, Rights};
use freehold_xpfo::Windows;

use crate::resident::{Resident, leaf};

/// Moves the charge of the page in `old` to `new`, which was not charged yet.
#[inline]
pub(crate) fn move_charge<S: Memory>(source: S, old: Pfn, new: Pfn) {
    if source.machine().charges_frames() {
        source.table().move_charge(old, new);
    }
}

/// Bytes of a new page.
pub(crate) trait Bytes {
    /// Through a window.
    fn write(&self, machine: impl Windows, page: &impl Held);
    /// Through the page's address.
    fn write_at(&self, machine: impl Windows, addr: VirtAddr) -> bool;
}

/// Zeroes.
pub(crate) struct Zeroes;

impl Bytes for Zeroes {
    fn write(&self, machine: impl Windows, page: &impl Held) {
        machine.zero(page);
    }
    #[inline(always)]
    fn write_at(&self, machine: impl Windows, addr: VirtAddr) -> bool {
        machine.zero_at(addr)
    }
}

impl Bytes for CopyFrom<'_> {
    fn write(&self, machine: impl Windows, page: &impl Held) {
        machine.copy(&self.held(), page);
    }
    #[inline(always)]
    fn write_at(&self, machine: impl Windows, addr: VirtAddr) -> bool {
        machine.copy_at(&self.held(), addr)
    }
}

impl<S: Memory> Resident<S> {
    /// A new exclusive frame with undefined bytes.
    #[inline]
    pub(crate) fn new_page(&self, place: NodePolicy) -> Result<LeafMapping<Anon, S>, OutOfMemory> {
        let request = Request::new(Owner::Anon).policy(place);
        if let Some(payer) = self.payer {
            return self.new_page_of(payer, request);
        }
        LeafMapping::allocate_with(self.source(), request)
    }
    /// As [`Resident::new_page`]; `payer` pays.
    #[cold]
    #[inline(never)]
    fn new_page_of(&self, payer: AccountId, request: Request) -> Result<LeafMapping<Anon, S>, OutOfMemory> {
        Frame::<Anon, S>::allocate_for(self.source(), Payer::Account(payer), request)?
            .into_mapping()
            .map_err(|_| OutOfMemory)
    }
    /// Returns the payer of new pages.
    pub(crate) fn payer(&self) -> Payer {
        self.payer.map_or(Payer::Asker, Payer::Account)
    }

    /// Maps `page` with these bytes at `at`. Returns the old leaf, which no CPU knows when this
    /// returns.
    #[inline]
    pub(crate) fn put(
        &self,
        at: EntryAt<S::Machine>,
        page: LeafMapping<Anon, S>,
        rights: Rights,
        bytes: impl Bytes,
    ) -> Entry {
        self.put_in_place(at, page, rights, &bytes).unwrap_or_else(|page| {
            bytes.write(self.source().machine(), &page);
            let old = at.slot.replace(leaf(page, rights, Marks::Dirty));
            self.tables.forget::<Anon>(at.addr, old, None);
            old
        })
    }

    /// As [`Resident::put`], through the address itself.
    ///
    /// # Errors
    /// The page, and nothing done, where another CPU could look meanwhile, or there is no such way.
    #[inline(always)]
    pub(crate) fn put_in_place(
        &self,
        EntryAt { addr, slot, .. }: EntryAt<S::Machine>,
        page: LeafMapping<Anon, S>,
        rights: Rights,
        bytes: &impl Bytes,
    ) -> Result<Entry, LeafMapping<Anon, S>> {
        let machine = self.source().machine();
        if !machine.has_windows() || !rights.contains(Rights::WRITE) {
            return Err(page);
        }
        self.tables.roots().alone(page, |page| {
            // The leaf is the holder from now on, for as long as the caller has the space's lock.
            let page = ManuallyDrop::new(page);
            let old = slot.replace(Entry::leaf(page.pfn(), rights, Marks::Dirty, Backing::Counted));
            if old.may_be_cached() {
                machine.flush_local(Flush::Range { start: addr, pages: 1 });
            }
            if !bytes.write_at(machine, addr) {
                bytes.write(machine, &*page);
            }
            old
        })
    }

    /// A new exclusive frame with the bytes of `from`.
    pub(crate) fn copy_of(
        &self,
        from: CopyFrom<'_>,
        place: NodePolicy,
    ) -> Result<LeafMapping<Anon, S>, OutOfMemory> {
        let page = self.new_page(place)?;
        self.source().machine().copy(&from.held(), &page);
        Ok(page)
    }
}
