//! Signal masks for the duration of one call: ppoll, pselect6, epoll_pwait.

use super::{SigSet, Task};
use crate::user::UserPtr;
use crate::{Errno, Result};

impl Task {
    /// Runs `call` with exactly the signals in `mask` blocked, if there is a mask. If a signal
    /// interrupts `call`, the old mask is restored when the handler has returned, so that the
    /// handler can run. Without a handler it is restored at once.
    ///
    /// # Errors
    /// Those of `call`.
    pub fn with_signals_blocked<R>(
        &self,
        mask: Option<SigSet>,
        call: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        let Some(mask) = mask else { return call() };
        let before = self.blocked();
        *self.saved_mask.lock() = Some(before);
        self.set_blocked(mask);
        let result = call();
        let interrupted = matches!(
            result,
            Err(Errno::EINTR | Errno::ERESTARTSYS | Errno::ERESTARTNOHAND | Errno::ERESTARTBLOCK)
        );
        if !interrupted {
            self.saved_mask.lock().take();
            self.set_blocked(before);
        }
        result
    }
}

/// Reads the mask of a call from user memory; `None` if `mask` is 0.
///
/// # Errors
/// `EINVAL` for a wrong size, `EFAULT`.
pub fn mask_at(mask: u64, size: usize) -> Result<Option<SigSet>> {
    if mask == 0 {
        return Ok(None);
    }
    if size != size_of::<u64>() {
        return Err(Errno::EINVAL);
    }
    UserPtr::<u64>::new(mask).read().map(|bits| Some(SigSet(bits)))
}
