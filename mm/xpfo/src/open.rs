//! Windows for holders of frames.
//!
//! A machine opens windows by frame number ([`PhysicalBytes`]). Only three callers have nothing but
//! a number: the machine itself, the page allocator for a block that it moves or will hand out, and
//! the copier of the kernel's image. All other code uses [`Windows`], which requires a value that
//! keeps the frame ([`Held`]) as long as the window is open. That costs nothing: at run time the
//! proof is only the number.
//!
//! ```
//! use freehold_frame::{Anon, Frame, FrameSource};
//! use freehold_xpfo::Windows;
//!
//! fn fill<S: FrameSource<Machine: Windows>>(source: S, frame: Frame<Anon, S>) {
//!     source.machine().with_bytes(&frame, |bytes| bytes.fill(7));
//!     drop(frame);
//! }
//! ```
//!
//! A number opens no window, and neither does the part of a handle that can be copied:
//! ```compile_fail,E0277
//! # use freehold_frame::{Anon, Frame, FrameSource};
//! # use freehold_xpfo::Windows;
//! fn fill<S: FrameSource<Machine: Windows>>(source: S, frame: Frame<Anon, S>) {
//!     source.machine().with_bytes(&frame.pfn(), |bytes| bytes.fill(7));
//!     drop(frame);
//! }
//! ```
//! ```compile_fail,E0277
//! # use freehold_frame::{Anon, Frame, FrameSource};
//! # use freehold_xpfo::Windows;
//! fn fill<S: FrameSource<Machine: Windows>>(source: S, frame: Frame<Anon, S>) {
//!     source.machine().with_bytes(&*frame, |bytes| bytes.fill(7));
//!     drop(frame);
//! }
//! ```
//! A [`Machine`](freehold_machine::Machine), for which the memory manager's code is written, has no
//! other method:
//! ```compile_fail,E0599
//! # use freehold_machine::{Machine, Pfn};
//! fn fill<M: Machine>(machine: M, number: Pfn) {
//!     machine.with_bytes(number, |bytes| bytes.fill(7));
//! }
//! ```
//! A handle that was dropped opens none:
//! ```compile_fail,E0382
//! # use freehold_frame::{Anon, Frame, FrameSource};
//! # use freehold_xpfo::Windows;
//! fn fill<S: FrameSource<Machine: Windows>>(source: S, frame: Frame<Anon, S>) {
//!     drop(frame);
//!     source.machine().with_bytes(&frame, |bytes| bytes.fill(7));
//! }
//! ```
//! The same holds for a handle whose frame was moved away (here to a page table), and for a proof
//! borrowed from it:
//! ```compile_fail,E0382
//! # use freehold_frame::{Anon, FrameSource, LeafMapping};
//! # use freehold_xpfo::Windows;
//! fn fill<S: FrameSource<Machine: Windows>>(source: S, page: LeafMapping<Anon, S>) {
//!     let number = page.into_leaf();
//!     source.machine().with_bytes(&page, |bytes| bytes.fill(7));
//! }
//! ```
//! ```compile_fail,E0505
//! # use freehold_frame::{Anon, FrameSource, Held, LeafMapping};
//! # use freehold_xpfo::Windows;
//! fn fill<S: FrameSource<Machine: Windows>>(source: S, page: LeafMapping<Anon, S>) {
//!     let held = page.held();
//!     let number = page.into_leaf();
//!     source.machine().with_bytes(&held, |bytes| bytes.fill(7));
//! }
//! ```
//! And a handle cannot be moved while its window is open:
//! ```compile_fail,E0505
//! # use freehold_frame::{Anon, Frame, FrameSource};
//! # use freehold_xpfo::Windows;
//! fn fill<S: FrameSource<Machine: Windows>>(source: S, frame: Frame<Anon, S>) {
//!     source.machine().with_bytes(&frame, |bytes| {
//!         drop(frame);
//!         bytes.fill(7);
//!     });
//! }
//! ```

use core::ops::Range;

use freehold_frame::{Held, HeldRun};
use freehold_machine::{PAGE_SIZE, PhysicalBytes, VirtAddr};

/// The bytes of held frames. Every machine that can access bytes implements it.
pub trait Windows: Copy + Send + Sync + 'static {
    /// As [`PhysicalBytes::with_bytes`].
    fn with_bytes<R>(self, frame: &impl Held, f: impl FnOnce(&mut [u8; PAGE_SIZE]) -> R) -> R;
    /// As [`PhysicalBytes::read_bytes`].
    fn read_bytes<R>(self, frame: &impl Held, f: impl FnOnce(&[u8; PAGE_SIZE]) -> R) -> R;
    /// As [`PhysicalBytes::with_run`].
    ///
    /// # Panics
    /// If the range ends past the run.
    fn with_run(self, run: HeldRun<'_>, range: Range<usize>, f: impl FnMut(usize, &mut [u8]));
    /// As [`PhysicalBytes::zero`].
    fn zero(self, frame: &impl Held);
    /// As [`PhysicalBytes::zero_run`].
    fn zero_run(self, run: HeldRun<'_>);
    /// As [`PhysicalBytes::with_two`].
    fn with_two<R>(
        self,
        to: &impl Held,
        from: &impl Held,
        f: impl FnOnce(&mut [u8; PAGE_SIZE], &[u8; PAGE_SIZE]) -> R,
    ) -> R;
    /// As [`PhysicalBytes::copy`].
    fn copy(self, from: &impl Held, to: &impl Held);
    /// As [`PhysicalBytes::zero_at`]. The leaf at `addr` holds its frame.
    fn zero_at(self, addr: VirtAddr) -> bool;
    /// As [`PhysicalBytes::copy_at`]. The leaf at `addr` holds its frame.
    fn copy_at(self, from: &impl Held, addr: VirtAddr) -> bool;
    /// As [`PhysicalBytes::has_windows`].
    fn has_windows(self) -> bool;
}

impl<B: PhysicalBytes> Windows for B {
    #[inline(always)]
    fn with_bytes<R>(self, frame: &impl Held, f: impl FnOnce(&mut [u8; PAGE_SIZE]) -> R) -> R {
        PhysicalBytes::with_bytes(self, frame.held().pfn(), f)
    }
    #[inline(always)]
    fn read_bytes<R>(self, frame: &impl Held, f: impl FnOnce(&[u8; PAGE_SIZE]) -> R) -> R {
        PhysicalBytes::read_bytes(self, frame.held().pfn(), f)
    }
    #[inline(always)]
    fn with_run(self, run: HeldRun<'_>, range: Range<usize>, f: impl FnMut(usize, &mut [u8])) {
        assert!(range.end as u64 <= run.count() * PAGE_SIZE as u64, "the holder has fewer frames");
        PhysicalBytes::with_run(self, run.first().pfn(), range, f);
    }
    #[inline(always)]
    fn zero(self, frame: &impl Held) {
        PhysicalBytes::zero(self, frame.held().pfn());
    }
    #[inline(always)]
    fn zero_run(self, run: HeldRun<'_>) {
        PhysicalBytes::zero_run(self, run.first().pfn(), run.count());
    }
    #[inline(always)]
    fn with_two<R>(
        self,
        to: &impl Held,
        from: &impl Held,
        f: impl FnOnce(&mut [u8; PAGE_SIZE], &[u8; PAGE_SIZE]) -> R,
    ) -> R {
        PhysicalBytes::with_two(self, to.held().pfn(), from.held().pfn(), f)
    }
    #[inline(always)]
    fn copy(self, from: &impl Held, to: &impl Held) {
        PhysicalBytes::copy(self, from.held().pfn(), to.held().pfn());
    }
    #[inline(always)]
    fn zero_at(self, addr: VirtAddr) -> bool {
        PhysicalBytes::zero_at(self, addr)
    }
    #[inline(always)]
    fn copy_at(self, from: &impl Held, addr: VirtAddr) -> bool {
        PhysicalBytes::copy_at(self, from.held().pfn(), addr)
    }
    #[inline(always)]
    fn has_windows(self) -> bool {
        PhysicalBytes::has_windows(self)
    }
}
