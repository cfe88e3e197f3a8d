//! Blocks that are charged to accounts.
//!
//! A block of an owner that is [charged](freehold_frame::Owner::is_charged) is charged before the
//! search for it. Each of its frames records the charged account, since its pieces may be freed one
//! by one. The [`Ledger`](crate::Ledger) decides which account is charged, and whether its limit
//! allows it. Until charges begin, this costs a no-op per allocation and one per free.
//!
//! A frame that was handed out before charges began is charged to no account: its record reads as
//! [`AccountId::ROOT`].

use freehold_frame::{AccountId, Order, OutOfMemory, Owner, Payer, Request};
use freehold_machine::{Machine, Pfn, PhysicalBytes};

use crate::{Bill, Buddy};

impl<M: Machine + PhysicalBytes> Buddy<M> {
    /// As [`Buddy::allocate`], but charges `payer` instead of the caller's account.
    ///
    /// # Errors
    /// [`OutOfMemory`]; never waits for memory.
    #[cold]
    #[inline(never)]
    pub fn allocate_for(&self, payer: Payer, request: Request) -> Result<Pfn, OutOfMemory> {
        if !request.owner.is_charged() || !self.machine.charges_frames() {
            return self.allocate_uncharged(request);
        }
        self.allocate_charged(payer, request)
    }
    fn allocate_charged(&self, payer: Payer, request: Request) -> Result<Pfn, OutOfMemory> {
        let Request { owner, order, pressure, .. } = request;
        let bill = |account| Bill { owner, frames: order.frames(), pressure, account };
        let charge = |account| {
            self.options.ledger.map_or(Ok(AccountId::ROOT), |ledger| (ledger.charge)(bill(account)))
        };
        let account = match payer {
            Payer::Asker => charge(None)?,
            Payer::SameAs(frame) => charge(Some(self.table.account(frame)))?,
            Payer::Account(account) => charge(Some(account))?,
            Payer::Nobody => AccountId::ROOT,
        };
        let block = self.allocate_uncharged(request);
        match block {
            Ok(block) => self.table.set_account(block, order, account),
            Err(OutOfMemory) => self.give_charge_back(owner, order, account),
        }
        block
    }

    /// Uncharges a block that is about to be freed. A block that cannot be freed keeps its charge.
    #[cold]
    #[inline(never)]
    pub(crate) fn uncharge(&self, block: Pfn, order: Order) {
        let Some(Ok(tag)) = self.table.get(block).map(|record| record.freeable(order)) else { return };
        if tag.owner().is_charged() {
            self.give_charge_back(tag.owner(), order, self.table.account(block));
            self.table.set_account(block, Order::FRAME, AccountId::ROOT);
        }
    }

    fn give_charge_back(&self, owner: Owner, order: Order, account: AccountId) {
        if account != AccountId::ROOT
            && let Some(ledger) = self.options.ledger
        {
            (ledger.uncharge)(owner, order.frames(), account);
        }
    }
}
