//! The types that a field of an event may have.

/// A C type as a `format` file names it, and how its bytes are shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FieldType {
    /// The part of the type before the name.
    pub before: &'static str,
    /// The part after the name: an array's length.
    pub after: &'static str,
    /// Bytes.
    pub size: usize,
    /// Alignment in bytes.
    pub align: usize,
    /// Whether the type is signed.
    pub signed: bool,
    /// printf's conversion; empty for an array of numbers.
    pub(crate) conversion: &'static str,
}

/// A value that a field may have.
pub(crate) trait Field: Copy {
    const TYPE: FieldType;
    /// Stores the value's bytes.
    fn put(self, into: &mut [u8]);
}

const fn number(before: &'static str, size: usize, signed: bool, conversion: &'static str) -> FieldType {
    FieldType { before, after: "", size, align: size, signed, conversion }
}

/// The number of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pid(pub i32);

/// A short name: a thread's, or a device's. Zeroes fill it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Comm(pub [u8; 16]);

impl Comm {
    /// The beginning of `name`, followed by at least one zero.
    pub fn of(name: &[u8]) -> Self {
        let mut comm = [0; 16];
        let length = name.len().min(15);
        comm[..length].copy_from_slice(&name[..length]);
        Self(comm)
    }
}

macro_rules! numbers {
    ($($type:ty, $before:literal, $signed:literal, $conversion:literal;)*) => {
        $(impl Field for $type {
            const TYPE: FieldType = number($before, size_of::<$type>(), $signed, $conversion);
            #[inline(always)]
            fn put(self, into: &mut [u8]) {
                into.copy_from_slice(&self.to_le_bytes());
            }
        })*
    };
}

numbers! {
    i32, "int", true, "%d";
    u32, "unsigned int", false, "%u";
    i64, "long", true, "%ld";
    u64, "unsigned long", false, "%lu";
}

impl Field for Pid {
    const TYPE: FieldType = number("pid_t", 4, true, "%d");
    #[inline(always)]
    fn put(self, into: &mut [u8]) {
        self.0.put(into);
    }
}

impl Field for bool {
    const TYPE: FieldType = number("bool", 1, false, "%d");
    #[inline(always)]
    fn put(self, into: &mut [u8]) {
        into[0] = u8::from(self);
    }
}

impl Field for Comm {
    const TYPE: FieldType =
        FieldType { before: "char", after: "[16]", size: 16, align: 1, signed: false, conversion: "%s" };
    #[inline(always)]
    fn put(self, into: &mut [u8]) {
        into.copy_from_slice(&self.0);
    }
}

/// The arguments of a system call.
impl Field for [u64; 6] {
    const TYPE: FieldType = FieldType {
        before: "unsigned long",
        after: "[6]",
        size: 48,
        align: 8,
        signed: false,
        conversion: "",
    };
    #[inline(always)]
    fn put(self, into: &mut [u8]) {
        for (place, value) in into.chunks_exact_mut(8).zip(self) {
            place.copy_from_slice(&value.to_le_bytes());
        }
    }
}

/// Text of any length, up to the end of the record: the last field of an event.
impl Field for () {
    const TYPE: FieldType =
        FieldType { before: "char", after: "[]", size: 0, align: 1, signed: false, conversion: "%s" };
    fn put(self, _into: &mut [u8]) {}
}
