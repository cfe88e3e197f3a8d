//! Frames as values: the holder of such a value owns, maps or pins the frame, and dropping the
//! value releases the frame.
//!
//! | value | what it is | dropped |
//! |---|---|---|
//! | [`Frame<K, S>`] of a kernel kind | the block, alone | the block is free |
//! | [`Frame<K, S>`] of a user kind | one reference | the last holder frees |
//! | [`LeafMapping<K, S>`] | one page-table leaf's hold | the last holder frees |
//! | [`Pin<K, S>`] | one pin | the last holder frees |
//!
//! A mapping lives in a page-table entry as a bare frame number: [`LeafMapping::into_leaf`] puts it
//! there, [`LeafMapping::from_leaf`] takes it out again, and [`LeafMapping::borrow_leaf`] reads it
//! in place.

use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::Deref;

use freehold_machine::{Pfn, PfnRange};

use crate::counts::Hold;
use crate::transition::CopyFrom;
use crate::{
    Anon, Belongs, Bounce, CountError, FrameKind, FrameRecord, FrameSource, FrameState, Order, OutOfMemory,
    Owner, PageCache, Payer, Request, ReverseKey, UserKind,
};

/// A frame has another owner than the caller expects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WrongOwner {
    /// The frame.
    pub frame: Pfn,
    /// The frame's present owner.
    pub found: Owner,
    /// The owner that the handle's kind requires.
    pub expected: Owner,
}

impl fmt::Display for WrongOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} belongs to {}, not to {}", self.frame, self.found.name(), self.expected.name())
    }
}

impl core::error::Error for WrongOwner {}

fn check<K: FrameKind, S: FrameSource>(source: S, frame: Pfn) -> Result<Order, WrongOwner> {
    let state = source.table().state(frame);
    match state {
        FrameState::Owned { owner, order, .. } if K::accepts(owner) => Ok(order),
        _ => Err(WrongOwner { frame, found: state.owner(), expected: K::OWNER }),
    }
}

fn record<S: FrameSource>(source: S, frame: Pfn) -> &'static FrameRecord {
    source.table().get(frame).expect("a handle's frame was in the table when the handle was made")
}

/// Common part of the three values: the block and its source. A `Handle` holds no count itself.
pub struct Handle<K: FrameKind, S: FrameSource> {
    source: S,
    frame: Pfn,
    order: Order,
    kind: PhantomData<K>,
}

impl<K: FrameKind, S: FrameSource> Clone for Handle<K, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: FrameKind, S: FrameSource> Copy for Handle<K, S> {}

impl<K: FrameKind, S: FrameSource> Handle<K, S> {
    pub(crate) const fn new(source: S, frame: Pfn, order: Order) -> Self {
        Self { source, frame, order, kind: PhantomData }
    }
    /// The block's first frame.
    pub const fn pfn(&self) -> Pfn {
        self.frame
    }
    /// The block's size.
    pub const fn order(&self) -> Order {
        self.order
    }
    /// The block's frames.
    pub const fn frames(&self) -> PfnRange {
        PfnRange::new(self.frame, self.frame.offset(self.order.frames()))
    }
    /// The first frame's record.
    pub fn record(&self) -> &'static FrameRecord {
        record(self.source, self.frame)
    }
    /// The first frame's reverse key: it locates the page and counts the writers.
    ///
    /// # Panics
    /// If the table has no [`ReverseKey`]s.
    pub fn reverse_key(&self) -> &'static ReverseKey {
        self.source
            .table()
            .reverse_key(self.frame)
            .expect("whoever asks for reverse_keys has a table of them")
    }
    /// The page allocator it came from.
    pub const fn source(&self) -> S {
        self.source
    }
    #[inline(always)]
    fn let_go(self, hold: Hold) {
        if self.record().counts().drop_hold(hold) {
            self.source.release_of(K::OWNER, self.frame, self.order);
        }
    }
}

/// A block of frames with the owner `K`; for user kinds, one reference to it. See the module's
/// head.
#[must_use = "dropping it gives the block back"]
pub struct Frame<K: FrameKind, S: FrameSource>(Handle<K, S>);

impl<K: FrameKind, S: FrameSource> Deref for Frame<K, S> {
    type Target = Handle<K, S>;
    #[inline]
    fn deref(&self) -> &Handle<K, S> {
        &self.0
    }
}

impl<K: FrameKind, S: FrameSource> Frame<K, S> {
    /// Allocates one frame of undefined content, near this CPU.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn allocate(source: S) -> Result<Self, OutOfMemory> {
        Self::allocate_with(source, Request::new(K::OWNER))
    }
    /// Allocates one frame of zeroes, near this CPU.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn allocate_zeroed(source: S) -> Result<Self, OutOfMemory> {
        Self::allocate_with(source, Request::new(K::OWNER).zeroed())
    }
    /// Allocates a block as requested; the request's owner is replaced by `K`'s.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn allocate_with(source: S, request: Request) -> Result<Self, OutOfMemory> {
        source
            .allocate(Request { owner: K::OWNER, ..request })
            .map(|frame| Self::start(source, frame, request.order))
    }
    /// Does the same, and charges `payer`.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn allocate_for(source: S, payer: Payer, request: Request) -> Result<Self, OutOfMemory> {
        let frame = source.allocate_for(payer, Request { owner: K::OWNER, ..request })?;
        Ok(Self::start(source, frame, request.order))
    }
    fn start(source: S, frame: Pfn, order: Order) -> Self {
        match K::OWNER {
            Owner::Anon => record(source, frame).counts().start(Belongs::Exclusive),
            Owner::PageCache => record(source, frame).counts().start(Belongs::Shared),
            _ => {}
        }
        Self(Handle::new(source, frame, order))
    }
    #[inline]
    pub(crate) const fn from_handle(handle: Handle<K, S>) -> Self {
        Self(handle)
    }
    /// Sets the key by which the first frame's page is found. Called before other code can find the
    /// frame.
    ///
    /// # Panics
    /// If the table has no [`ReverseKey`]s.
    pub fn set_reverse_key(&self, object: u64, index: u64) {
        self.reverse_key().set(object, index);
    }
    /// Keep the block as a bare number, for structures that cannot hold values (page tables, slab
    /// headers). It is leaked unless [`Frame::from_raw`] takes it back.
    pub fn into_raw(self) -> Pfn {
        ManuallyDrop::new(self).pfn()
    }
    /// Takes back a block that [`Frame::into_raw`] turned into a number. Called once for each such
    /// call.
    ///
    /// # Errors
    /// [`WrongOwner`] if the frame does not start a block of this kind.
    pub fn from_raw(source: S, frame: Pfn) -> Result<Self, WrongOwner> {
        let order = check::<K, S>(source, frame)?;
        Ok(Self(Handle::new(source, frame, order)))
    }
    /// Borrows a block that is stored as a number ([`Frame::into_raw`]); the structure that stores
    /// it stays the holder.
    ///
    /// # Errors
    /// As [`Frame::from_raw`].
    pub fn borrow_raw(source: S, frame: Pfn) -> Result<ManuallyDrop<Self>, WrongOwner> {
        Self::from_raw(source, frame).map(ManuallyDrop::new)
    }
}

impl<S: FrameSource> Frame<Bounce, S> {
    /// Divides the block into blocks of `order`, by address, each of which is freed on its own. A
    /// block that is not larger stays as it is. Blocks that are not taken from the iterator are
    /// leaked.
    pub fn divide(self, order: Order) -> impl Iterator<Item = Self> {
        let (source, whole) = (self.source, self.order);
        let first = self.into_raw();
        let order = order.min(whole);
        let heads = (0..1u64 << (whole.log2() - order.log2())).map(move |n| first.offset(n << order.log2()));
        if let FrameState::Owned { owner, node, .. } = record(source, first).state() {
            // The first record covers the whole block until all others have their own.
            heads.clone().rev().for_each(|head| {
                record(source, head).set_state(FrameState::Owned { owner, order, node });
            });
        }
        heads.map(move |head| Self(Handle::new(source, head, order)))
    }
}

impl<K: UserKind, S: FrameSource> Frame<K, S> {
    /// One more reference.
    ///
    /// # Errors
    /// [`CountError::Overflow`].
    pub fn try_clone(&self) -> Result<Self, CountError> {
        self.record().counts().reference()?;
        Ok(Self(self.0))
    }
    /// Turn the reference into a mapping; a new anonymous frame stays exclusive.
    ///
    /// # Errors
    /// [`CountError::Overflow`], with the frame given back.
    pub fn into_mapping(self) -> Result<LeafMapping<K, S>, (Self, CountError)> {
        if let Err(error) = self.record().counts().reference_to_mapping() {
            return Err((self, error));
        }
        let this = ManuallyDrop::new(self);
        Ok(LeafMapping(this.0))
    }
}

impl<S: FrameSource> Frame<Anon, S> {
    /// Turns the reference into a mapping again, exclusive or shared as [`LeafMapping::vacate`]
    /// returned. The frame may be mapped by the same or by another leaf.
    ///
    /// # Errors
    /// [`CountError::Held`] if the frame has to be exclusive and is mapped;
    /// [`CountError::Overflow`]; with the frame given back.
    pub fn into_mapping_as(self, belongs: Belongs) -> Result<LeafMapping<Anon, S>, (Self, CountError)> {
        if let Err(error) = self.record().counts().occupy(belongs) {
            return Err((self, error));
        }
        let this = ManuallyDrop::new(self);
        Ok(LeafMapping(this.0))
    }
    /// Takes a reference to `frame` if it is a merged one. The caller may have found the number in
    /// an old note: the frame may be free, or have another owner.
    pub fn try_merged(source: S, frame: Pfn) -> Option<Self> {
        source.table().get(frame)?.counts().reference_merged().ok()?;
        Some(Self(Handle::new(source, frame, Order::FRAME)))
    }
    /// Makes a mapping of a merged frame.
    ///
    /// # Errors
    /// [`CountError::NotMerged`], [`CountError::Overflow`].
    pub fn map_merged(&self) -> Result<LeafMapping<Anon, S>, CountError> {
        self.record().counts().map_merged()?;
        Ok(LeafMapping(self.0))
    }
    /// Makes a mapping for an address space that does not use the frame alone: from now on the
    /// frame is shared.
    ///
    /// # Errors
    /// [`CountError::Pinned`], [`CountError::Overflow`].
    pub fn share(&self) -> Result<LeafMapping<Anon, S>, CountError> {
        self.record().counts().share()?;
        Ok(LeafMapping(self.0))
    }
}

impl<S: FrameSource> Frame<PageCache, S> {
    /// Makes a mapping of the frame.
    ///
    /// # Errors
    /// [`CountError::Overflow`].
    pub fn map(&self) -> Result<LeafMapping<PageCache, S>, CountError> {
        self.record().counts().map()?;
        Ok(LeafMapping(self.0))
    }
    /// Pins the frame; shared memory needs no exclusive owner.
    ///
    /// # Errors
    /// [`CountError::Overflow`].
    pub fn pin(&self) -> Result<Pin<PageCache, S>, CountError> {
        self.record().counts().pin_shared()?;
        Ok(Pin(self.0))
    }
}

impl<K: FrameKind, S: FrameSource> Drop for Frame<K, S> {
    fn drop(&mut self) {
        if K::OWNER.is_user() {
            self.0.let_go(Hold::Reference);
        } else {
            self.source().release_of(K::OWNER, self.pfn(), self.order());
        }
    }
}

impl<K: FrameKind, S: FrameSource> fmt::Debug for Frame<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frame<{}>({:?}, order {})", K::OWNER.name(), self.pfn(), self.order().log2())
    }
}

/// The hold of one page-table leaf on a user frame. See the module's head.
#[must_use = "dropping it unmaps the frame"]
pub struct LeafMapping<K: UserKind, S: FrameSource>(Handle<K, S>);

impl<K: UserKind, S: FrameSource> Deref for LeafMapping<K, S> {
    type Target = Handle<K, S>;
    #[inline]
    fn deref(&self) -> &Handle<K, S> {
        &self.0
    }
}

impl<K: UserKind, S: FrameSource> LeafMapping<K, S> {
    /// Drops the mapping, inlined: when many are dropped in a row, a call for each costs 10% more.
    #[inline(always)]
    pub fn release(self) {
        ManuallyDrop::new(self).0.let_go(Hold::Mapping);
    }
    /// Put the mapping into a page-table entry: from now on the entry is the holder.
    pub fn into_leaf(self) -> Pfn {
        ManuallyDrop::new(self).pfn()
    }
    /// Take the mapping out of a page-table entry that no longer holds it. Called once for each
    /// [`LeafMapping::into_leaf`]. The mapping is dropped only after the TLBs have flushed the
    /// entry.
    ///
    /// # Errors
    /// [`WrongOwner`] if the frame is not of this kind.
    pub fn from_leaf(source: S, frame: Pfn) -> Result<Self, WrongOwner> {
        Self::from_leaf_of(source, frame).map(|(mapping, _)| mapping)
    }
    /// As [`LeafMapping::from_leaf`], and also returns the frame's owner.
    ///
    /// # Errors
    /// As [`LeafMapping::from_leaf`].
    #[inline]
    pub fn from_leaf_of(source: S, frame: Pfn) -> Result<(Self, Owner), WrongOwner> {
        match source.table().state(frame) {
            FrameState::Owned { owner, order, .. } if K::accepts(owner) => {
                Ok((Self(Handle::new(source, frame, order)), owner))
            }
            state => Err(WrongOwner { frame, found: state.owner(), expected: K::OWNER }),
        }
    }
    /// Look at the mapping of a page-table entry in place; the entry stays the holder.
    ///
    /// # Errors
    /// [`WrongOwner`] if the frame is not of this kind.
    pub fn borrow_leaf(source: S, frame: Pfn) -> Result<ManuallyDrop<Self>, WrongOwner> {
        Self::from_leaf(source, frame).map(ManuallyDrop::new)
    }
    /// A reference to the mapped frame.
    ///
    /// # Errors
    /// [`CountError::Overflow`].
    pub fn reference(&self) -> Result<Frame<K, S>, CountError> {
        self.record().counts().reference()?;
        Ok(Frame(self.0))
    }
    /// Turn the mapping into a reference.
    ///
    /// # Errors
    /// [`CountError::Overflow`], with the mapping given back.
    pub fn into_frame(self) -> Result<Frame<K, S>, (Self, CountError)> {
        if let Err(error) = self.record().counts().mapping_to_reference() {
            return Err((self, error));
        }
        let this = ManuallyDrop::new(self);
        Ok(Frame(this.0))
    }
    /// One more mapping for another address space: an anonymous frame stops being exclusive. The
    /// caller removes this space's write right directly after this call, not before.
    ///
    /// # Errors
    /// The other space gets a copy: the frame is pinned, or a count is at its maximum.
    pub fn share(&self) -> Result<Self, CopyFrom<'_>> {
        let record = self.record();
        let refuse = |why| CopyFrom::new(self, why);
        let is_private = match K::OWNER {
            Owner::Anon => true,
            Owner::PageCache => false,
            // Anonymous frames, exclusive or not.
            _ => record.is_owned_by(Owner::Anon),
        };
        if is_private {
            record.counts().share().map_err(refuse)?
        } else {
            record.counts().map().map_err(refuse)?
        }
        Ok(Self(self.0))
    }
}

impl<S: FrameSource> LeafMapping<Anon, S> {
    /// Allocates an exclusive frame for the leaf into which the caller puts it; the request's owner
    /// is replaced.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    #[inline]
    pub fn allocate_with(source: S, request: Request) -> Result<Self, OutOfMemory> {
        let frame = source.allocate(Request { owner: Owner::Anon, ..request })?;
        record(source, frame).counts().start_mapped();
        Ok(Self(Handle::new(source, frame, request.order)))
    }
    /// Whether only this address space uses the frame.
    pub fn is_exclusive(&self) -> bool {
        self.record().counts().load().is_exclusive()
    }
    /// Makes the frame exclusive again, if this mapping is its only holder.
    ///
    /// # Errors
    /// Others hold it: this page gets a copy.
    pub fn reuse(&self) -> Result<(), CopyFrom<'_>> {
        self.record().counts().reuse().map_err(|why| CopyFrom::new(self, why))
    }
    /// As [`LeafMapping::reuse`], but allows up to `references` whose holders never read the bytes
    /// again.
    ///
    /// # Errors
    /// As [`LeafMapping::reuse`].
    pub fn reuse_beside(&self, references: u32) -> Result<(), CopyFrom<'_>> {
        let outcome = self.record().counts().reuse_beside(references);
        outcome.map_err(|why| CopyFrom::new(self, why))
    }
    /// Turns the mapping of a frame that will be removed from its page (swap-out, migration) into a
    /// reference that cannot be pinned. Also returns whether the frame was exclusive. The leaf is
    /// cleared after this, and flushed before the bytes are used.
    ///
    /// # Errors
    /// [`CountError::Pinned`]; [`CountError::Held`] if there are references to an exclusive frame;
    /// [`CountError::Overflow`]; with the mapping given back, as it was.
    pub fn vacate(self) -> Result<(Frame<Anon, S>, Belongs), (Self, CountError)> {
        let belonged = match self.record().counts().vacate() {
            Ok(belonged) => belonged,
            Err(error) => return Err((self, error)),
        };
        let this = ManuallyDrop::new(self);
        let frame = Frame(this.0);
        Ok((frame, belonged))
    }
    /// Pin the exclusive frame.
    ///
    /// # Errors
    /// [`CountError::NotExclusive`]: unshare first. [`CountError::Overflow`].
    pub fn pin(&self) -> Result<Pin<Anon, S>, CountError> {
        self.record().counts().pin_exclusive()?;
        Ok(Pin(self.0))
    }
}

impl<S: FrameSource> LeafMapping<PageCache, S> {
    /// Pin the shared frame.
    ///
    /// # Errors
    /// [`CountError::Overflow`].
    pub fn pin(&self) -> Result<Pin<PageCache, S>, CountError> {
        self.record().counts().pin_shared()?;
        Ok(Pin(self.0))
    }
}

impl<K: UserKind, S: FrameSource> Drop for LeafMapping<K, S> {
    // Called for each leaf that is removed.
    #[inline]
    fn drop(&mut self) {
        self.0.let_go(Hold::Mapping);
    }
}

impl<K: UserKind, S: FrameSource> fmt::Debug for LeafMapping<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({:?}, {:?})", self.pfn(), self.record().counts().load())
    }
}

/// A pin: while it lives the frame is neither moved, nor copied away from its mapping, nor reused.
#[must_use = "dropping it unpins the frame"]
pub struct Pin<K: UserKind, S: FrameSource>(Handle<K, S>);

impl<K: UserKind, S: FrameSource> Deref for Pin<K, S> {
    type Target = Handle<K, S>;
    #[inline]
    fn deref(&self) -> &Handle<K, S> {
        &self.0
    }
}

impl<S: FrameSource> Pin<Anon, S> {
    /// Pins `frame`, which a leaf mapped a moment ago, if it is an exclusive anonymous one. It may
    /// belong to another space by now: see [`transition`](crate::transition) for the necessary next
    /// steps.
    pub fn try_exclusive(source: S, frame: Pfn) -> Option<Self> {
        // Only anonymous frames have the exclusive mark, and a pinned frame is a block of its own.
        source.table().get(frame)?.counts().pin_exclusive().ok()?;
        Some(Self(Handle::new(source, frame, Order::FRAME)))
    }
}

impl<S: FrameSource> Pin<PageCache, S> {
    /// As [`Pin::try_exclusive`], for a frame of shared memory.
    pub fn try_shared(source: S, frame: Pfn) -> Option<Self> {
        source.table().get(frame)?.counts().pin_shared().ok()?;
        Some(Self(Handle::new(source, frame, Order::FRAME)))
    }
}

impl<K: UserKind, S: FrameSource> Pin<K, S> {
    /// Frees the frame of the last holder: the page was unmapped while it was pinned.
    #[cold]
    fn free(&self) {
        self.0.source.release_of(K::OWNER, self.0.frame, self.0.order);
    }
}

impl<K: UserKind, S: FrameSource> Drop for Pin<K, S> {
    #[inline]
    fn drop(&mut self) {
        if self.record().counts().drop_hold(Hold::Pin) {
            self.free();
        }
    }
}

impl<K: UserKind, S: FrameSource> fmt::Debug for Pin<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pin({:?}, {:?})", self.pfn(), self.record().counts().load())
    }
}
