//! Error numbers of Linux' x86-64 system calls.

impl From<freehold_collections::AllocError> for Errno {
    fn from(_: freehold_collections::AllocError) -> Self {
        Self::ENOMEM
    }
}

/// The kernel's result type. An error is a number that a program gets.
pub type Result<T> = core::result::Result<T, Errno>;

impl Errno {
    /// Whether a call failed because memory was short: `ENOMEM`, or `ENOLCK`, as a record lock
    /// reports it.
    pub const fn is_want_of_memory(self) -> bool {
        matches!(self, Self::ENOMEM | Self::ENOLCK)
    }
}

macro_rules! errnos {
    ($($name:ident = $value:literal $text:literal,)*) => {
        /// A Linux error number (include/uapi/asm-generic/errno*.h), or one of four numbers that
        /// never leave the kernel.
        #[allow(clippy::upper_case_acronyms)]
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(i32)]
        pub enum Errno { $(#[doc = $text] $name = $value,)* }

        impl Errno {
            /// The error with this number, unless that error never leaves the kernel.
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($value if number < 512 => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

errnos! {
    EPERM = 1 "Operation not permitted",
    ENOENT = 2 "No such file or directory",
    ESRCH = 3 "No such process",
    EINTR = 4 "Interrupted system call",
    EIO = 5 "Input/output error",
    ENXIO = 6 "No such device or address",
    E2BIG = 7 "Argument list too long",
    ENOEXEC = 8 "Exec format error",
    EBADF = 9 "Bad file descriptor",
    ECHILD = 10 "No child processes",
    EAGAIN = 11 "Resource temporarily unavailable",
    ENOMEM = 12 "Cannot allocate memory",
    EACCES = 13 "Permission denied",
    EFAULT = 14 "Bad address",
    ENOTBLK = 15 "Block device required",
    EBUSY = 16 "Device or resource busy",
    EEXIST = 17 "File exists",
    EXDEV = 18 "Invalid cross-device link",
    ENODEV = 19 "No such device",
    ENOTDIR = 20 "Not a directory",
    EISDIR = 21 "Is a directory",
    EINVAL = 22 "Invalid argument",
    ENFILE = 23 "Too many open files in system",
    EMFILE = 24 "Too many open files",
    ENOTTY = 25 "Inappropriate ioctl for device",
    ETXTBSY = 26 "Text file busy",
    EFBIG = 27 "File too large",
    ENOSPC = 28 "No space left on device",
    ESPIPE = 29 "Illegal seek",
    EROFS = 30 "Read-only file system",
    EMLINK = 31 "Too many links",
    EPIPE = 32 "Broken pipe",
    EDOM = 33 "Numerical argument out of domain",
    ERANGE = 34 "Numerical result out of range",
    EDEADLK = 35 "Resource deadlock avoided",
    ENAMETOOLONG = 36 "File name too long",
    ENOLCK = 37 "No locks available",
    ENOSYS = 38 "Function not implemented",
    ENOTEMPTY = 39 "Directory not empty",
    ELOOP = 40 "Too many levels of symbolic links",
    ENOMSG = 42 "No message of desired type",
    EIDRM = 43 "Identifier removed",
    ENODATA = 61 "No data available",
    ETIME = 62 "Timer expired",
    EPROTO = 71 "Protocol error",
    EBADMSG = 74 "Bad message",
    EOVERFLOW = 75 "Value too large for defined data type",
    EILSEQ = 84 "Illegal byte sequence",
    EUSERS = 87 "Too many users",
    ENOTSOCK = 88 "Socket operation on non-socket",
    EDESTADDRREQ = 89 "Destination address required",
    EMSGSIZE = 90 "Message too long",
    EPROTOTYPE = 91 "Protocol wrong type for socket",
    ENOPROTOOPT = 92 "Protocol not available",
    EPROTONOSUPPORT = 93 "Protocol not supported",
    ESOCKTNOSUPPORT = 94 "Socket type not supported",
    EOPNOTSUPP = 95 "Operation not supported",
    EAFNOSUPPORT = 97 "Address family not supported by protocol",
    EADDRINUSE = 98 "Address already in use",
    EADDRNOTAVAIL = 99 "Cannot assign requested address",
    ENETDOWN = 100 "Network is down",
    ENETUNREACH = 101 "Network is unreachable",
    ECONNABORTED = 103 "Software caused connection abort",
    ECONNRESET = 104 "Connection reset by peer",
    ENOBUFS = 105 "No buffer space available",
    EISCONN = 106 "Transport endpoint is already connected",
    ENOTCONN = 107 "Transport endpoint is not connected",
    ESHUTDOWN = 108 "Cannot send after transport endpoint shutdown",
    ETOOMANYREFS = 109 "Too many references: cannot splice",
    ETIMEDOUT = 110 "Connection timed out",
    ECONNREFUSED = 111 "Connection refused",
    EHOSTUNREACH = 113 "No route to host",
    EALREADY = 114 "Operation already in progress",
    EINPROGRESS = 115 "Operation now in progress",
    ESTALE = 116 "Stale file handle",
    EUCLEAN = 117 "Structure needs cleaning",
    EDQUOT = 122 "Disk quota exceeded",
    ECANCELED = 125 "Operation canceled",
    ENOKEY = 126 "Required key not available",
    EKEYEXPIRED = 127 "Key has expired",
    EKEYREVOKED = 128 "Key has been revoked",
    ERESTARTSYS = 512 "Internal: interrupted; restart if the handler has SA_RESTART, else EINTR",
    ERESTARTNOINTR = 513 "Internal: interrupted; always restart",
    ERESTARTNOHAND = 514 "Internal: interrupted; restart only if no handler runs",
    ERESTARTBLOCK = 516 "Internal: interrupted; restart through restart_syscall with what is left",
}

impl Errno {
    /// Returns the result of a system call with this error: the negated number.
    pub const fn to_return_value(self) -> i64 {
        -(self as i64)
    }
}
