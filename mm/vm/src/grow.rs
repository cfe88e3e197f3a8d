//! Areas that grow: the stack and the break.

use freehold_machine::{PAGE, ProtectionKey, VirtAddr};
use freehold_paging::Memory;

use crate::AddressSpace;
use crate::area::{Area, AreaContent, AreaUse, Copied};
use crate::areas::STACK_GAP;
use crate::error::{FaultError, SegvCode, VmError};
use crate::request::{AreaFlags, Limits, Protection};

impl<S: Memory> AddressSpace<S> {
    /// Let the stack above `page` grow down to it, within its limit and with its gap to what is
    /// below.
    pub(crate) fn grow_stack(&mut self, page: VirtAddr, limits: &Limits) -> Result<(), FaultError> {
        let nothing = FaultError::Segv(SegvCode::MapErr);
        let area = self.areas.above(page).ok_or(nothing)?;
        let grows =
            area.flags.contains(AreaFlags::GROWSDOWN) && matches!(area.content, AreaContent::Anonymous);
        let from = area.start;
        if !grows || page < self.layout.lowest || area.end.0 - page.0 > limits.stack {
            return Err(nothing);
        }
        if let Some(below) = self.areas.below(page) {
            let needs_gap = !below.flags.contains(AreaFlags::GROWSDOWN) && !below.protection.is_empty();
            let gap = if needs_gap { STACK_GAP } else { 0 };
            if below.end.0 + gap > page.0 {
                return Err(nothing);
            }
        }
        let pages = (from.0 - page.0) / PAGE;
        let is_promised = area.flags.contains(AreaFlags::ACCOUNT);
        self.check_limits(pages, AreaUse::Stack, limits).map_err(|_| nothing)?;
        if is_promised {
            self.promise(pages).map_err(|_| nothing)?;
        }
        self.areas.move_start(from, page);
        self.settle();
        self.count_in(pages);
        Ok(())
    }

    /// Sets the start of the break; execve calls this once.
    pub fn set_brk_base(&mut self, base: VirtAddr) {
        self.brk_base = base;
        self.brk = base;
    }

    /// Moves the break to `new` if possible; returns its position afterwards.
    pub fn brk(&mut self, new: VirtAddr, limits: &Limits) -> VirtAddr {
        // As Linux: the call cannot fail, it just does not move the break.
        if new >= self.brk_base {
            let moved = self.move_brk(new, limits);
            self.settle();
            if moved.is_ok() {
                self.brk = new;
            }
        }
        self.brk
    }

    fn move_brk(&mut self, new: VirtAddr, limits: &Limits) -> Result<(), VmError> {
        let round_up =
            |addr: VirtAddr| addr.0.checked_next_multiple_of(PAGE).map(VirtAddr).ok_or(VmError::NoMemory);
        let (old_end, new_end) = (round_up(self.brk)?, round_up(new)?);
        if new_end <= old_end {
            return if new_end < old_end { self.unmap_range(new_end..old_end) } else { Ok(()) };
        }
        if new.0 - self.brk_base.0 > limits.data || new_end > self.layout.end {
            return Err(VmError::NoMemory);
        }
        let pages = (new_end.0 - old_end.0) / PAGE;
        self.promise(pages)?;
        self.check_limits(pages, AreaUse::Data, limits)?;
        if !self.areas.is_usable(old_end..new_end) {
            return Err(VmError::NoMemory);
        }
        self.make_room(1)?;
        let flags = AreaFlags::HEAP | AreaFlags::SOFTDIRTY | AreaFlags::ACCOUNT | self.future;
        self.check_lock(pages, flags, limits)?;
        let mut area = Area {
            start: old_end,
            end: new_end,
            protection: Protection::READ | Protection::WRITE,
            key: ProtectionKey::DEFAULT,
            flags,
            policy: None,
            content: AreaContent::Anonymous,
            copied: Copied::default(),
            monitor: None,
        };
        self.mark_new(&mut area);
        self.areas.add(area);
        self.count_in(pages);
        if Self::is_locked_now(flags) {
            self.owe(old_end, new_end);
        }
        Ok(())
    }
}
