//! Sequence numbers, which wrap around (RFC 9293, section 3.4).

/// A sequence number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seq(pub u32);

impl Seq {
    /// Returns the number `count` after this one.
    pub const fn plus(self, count: usize) -> Self {
        Self(self.0.wrapping_add(count as u32))
    }
    /// Returns the number `count` before this one.
    pub const fn before(self, count: usize) -> Self {
        Self(self.0.wrapping_sub(count as u32))
    }
    /// How far it is after `other`; negative where it is before.
    pub const fn after(self, other: Self) -> i32 {
        self.0.wrapping_sub(other.0) as i32
    }
    /// The one that is further on.
    pub const fn latest(self, other: Self) -> Self {
        if other.after(self) > 0 { other } else { self }
    }
    /// As [`after`](Self::after), but 0 if this number is before `other`.
    pub const fn past(self, other: Self) -> usize {
        let distance = self.after(other);
        if distance > 0 { distance as usize } else { 0 }
    }
}
