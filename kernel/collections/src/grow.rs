//! Common operations of a list and a queue: they grow fallibly and shrink in the same ways.

/// Gives the operations to a type whose first field is `alloc`'s.
macro_rules! grows_fallibly {
    ($kind:ident) => {
        impl<T> $kind<T> {
            /// Creates an empty one with room for `count` entries.
            ///
            /// # Errors
            /// [`AllocError`](crate::AllocError).
            pub fn try_with_capacity(count: usize) -> Result<Self, crate::AllocError> {
                let mut new = Self::new();
                new.try_reserve_exact(count)?;
                Ok(new)
            }
            /// Makes room for `more` entries, and for about as many again as there are.
            ///
            /// # Errors
            /// [`AllocError`](crate::AllocError).
            #[inline]
            pub fn try_reserve(&mut self, more: usize) -> Result<(), crate::AllocError> {
                if self.0.capacity() - self.0.len() >= more {
                    return Ok(());
                }
                crate::heap_use::fallibly(|| self.0.try_reserve(more))
            }
            /// Makes room for `more` entries if no more will follow.
            ///
            /// # Errors
            /// [`AllocError`](crate::AllocError).
            #[inline]
            pub fn try_reserve_exact(&mut self, more: usize) -> Result<(), crate::AllocError> {
                if self.0.capacity() - self.0.len() >= more {
                    return Ok(());
                }
                crate::heap_use::fallibly(|| self.0.try_reserve_exact(more))
            }
            /// The number of entries that there is room for.
            pub fn capacity(&self) -> usize {
                self.0.capacity()
            }
            /// Removes all entries from `count` on.
            pub fn truncate(&mut self, count: usize) {
                self.0.truncate(count);
            }
            /// Removes all entries.
            pub fn clear(&mut self) {
                self.0.clear();
            }
            /// Removes the entries for which `stays` is false.
            pub fn retain(&mut self, stays: impl FnMut(&T) -> bool) {
                self.0.retain(stays);
            }
        }
    };
}

pub(crate) use grows_fallibly;
